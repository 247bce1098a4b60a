/* Token embedding, with learned positions if wpe is present: x[b,t] = wte[tokens[b,t]] + wpe[t]. With docs the second
 * term is wpe[t - docs[b,t]]: positions start again in each document. The first term is 0 for words of other ranks. */
#include "kernels/ref/ref.h"

/* The position of place n of B * T. */
static int64_t position(const struct sh_operand *docs, int64_t n, int64_t T)
{
    return n % T - (docs->data ? (int64_t)sh_ref_get(docs, n) : 0);
}

/* A token outside the vocabulary is an error in the data, not a bug, and this is where it first shows. */
sh_rc sh_ref_embed(const struct sh_op_call *call)
{
    const struct sh_operand *tokens = &call->in[0], *wte = &call->in[1], *wpe = &call->in[2], *x = &call->out[0];
    int64_t rows = sh_ref_elems(tokens), T = tokens->dim[1], V = wte->dim[0], C = wte->dim[1];
    int64_t first = call->attr->part.first, all = call->attr->part.all ? call->attr->part.all : V;

    for (int64_t n = 0; n < rows; n++) {
        int64_t token = (int64_t)sh_ref_get(tokens, n);
        if (token < 0 || token >= all)
            return sh_fail(SH_E_DATA,
                           "token %lld is outside the vocabulary of %lld: was the data made with another "
                           "tokenizer?",
                           (long long)token, (long long)all);
        token -= first;
        for (int64_t c = 0; c < C; c++)
            sh_ref_set(x, n * C + c,
                       (token >= 0 && token < V ? sh_ref_get(wte, token * C + c) : 0) +
                           (wpe->data ? sh_ref_get(wpe, position(&call->in[3], n, T) * C + c) : 0));
    }
    return SH_OK;
}

/* dwte[v] = sum of dx over the places where token v occurs. */
static void token_gradients(const struct sh_op_call *call)
{
    const struct sh_operand *dx = &call->in[0], *tokens = &call->in[1], *dwte = &call->out[0];
    int64_t rows = sh_ref_elems(tokens), V = dwte->dim[0], C = dwte->dim[1];

    for (int64_t v = 0; v < V; v++) {
        for (int64_t c = 0; c < C; c++) {
            double sum = 0;
            for (int64_t n = 0; n < rows; n++)
                sum += (int64_t)sh_ref_get(tokens, n) - call->attr->part.first == v ? sh_ref_get(dx, n * C + c) : 0;
            sh_ref_sum(call, 0, v * C + c, sum);
        }
    }
}

/* dwpe[p] = sum of dx over the places with position p. Positions past T had no part in x. */
static void position_gradients(const struct sh_op_call *call)
{
    const struct sh_operand *dx = &call->in[0], *docs = &call->in[2], *dwpe = &call->out[1];
    int64_t T = dx->dim[1], C = dx->dim[2], rows = dx->dim[0] * T;

    for (int64_t p = 0; p < dwpe->dim[0]; p++) {
        for (int64_t c = 0; c < C; c++) {
            double sum = 0;
            for (int64_t n = 0; n < rows; n++)
                sum += position(docs, n, T) == p ? sh_ref_get(dx, n * C + c) : 0;
            sh_ref_sum(call, 1, p * C + c, sum);
        }
    }
}

/* Either table may be frozen or absent. */
sh_rc sh_ref_embed_bwd(const struct sh_op_call *call)
{
    if (call->out[0].data)
        token_gradients(call);
    if (call->out[1].data)
        position_gradients(call);
    return SH_OK;
}
