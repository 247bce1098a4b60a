/* Operations per token, counted from the program of one sequence, so that no family needs its own formula. The usual
 * rule: 2 per weight forward, 4 backward (inputs and weights), hence 6; frozen weights have no gradient, hence 4. */
#include "src/model/model.h"

/* The caller destroys it. float32, since only shapes are counted. */
static struct sh_program *emit(const struct sh_model *m, const struct sh_adapters *a, int seq)
{
    struct sh_program *p = sh_program_create(SH_F32);

    sh_model_emit(m, &(struct sh_model_batch){.batch = 1, .seq = seq, .out = SH_MODEL_LOSS, .adapters = *a}, p);
    return p;
}

static const struct sh_adapters none;

/* For one product, or several written as one, which are either all trained or all frozen. */
static bool is_trained(const struct sh_program *p, int weight)
{
    return p->params[p->tensors[weight].param].trainable;
}

static double elems(const struct sh_program *p, int tensor)
{
    return (double)sh_tensor_elems(&p->tensors[tensor]);
}

/* How many keys a query sees on average: half of the sequence, or the window less what the first queries of the
 * sequence lack. */
static double keys_seen(const struct sh_op *op, int seq)
{
    double T = seq, W = op->attr.attn.window;

    return W > 0 ? W - W * W / (2 * T) : T / 2;
}

struct sh_model_flops sh_model_flops(const struct sh_model *m, int seq)
{
    return sh_model_flops_adapted(m, &none, seq);
}

/* The backward has two products for each of the forward, but only one for a product with a frozen matrix. */
struct sh_model_flops sh_model_flops_adapted(const struct sh_model *m, const struct sh_adapters *a, int seq)
{
    struct sh_program *p = emit(m, a, seq);
    double matmul = 0, causal = 0, full = 0;

    for (int i = 0; i < p->n_ops; i++) {
        const struct sh_op *op = &p->ops[i];

        if (op->kind == SH_OP_LINEAR || op->kind == SH_OP_HEAD_LOSS)
            matmul += (is_trained(p, op->in[1]) ? 6 : 4) * elems(p, op->in[1]);
        if (op->kind == SH_OP_LORA)
            matmul += 6 * (elems(p, op->in[2]) + elems(p, op->in[3]));
        if (op->kind == SH_OP_ATTENTION) { /* scores and weighted values: [T,T] products of H*D elements a row */
            double row = 12.0 * (double)p->tensors[op->out[0]].dim[2];
            causal += row * keys_seen(op, seq);
            full += row * (op->attr.attn.window ? op->attr.attn.window : seq);
        }
    }
    sh_program_destroy(p);
    return (struct sh_model_flops){.matmul = matmul, .attention_causal = causal, .attention_full = full};
}

/* Padding of units is not counted: this is the number by which users know a model. */
int64_t sh_model_params(const struct sh_model *m)
{
    struct sh_program *p = emit(m, &none, 1);
    int64_t n = 0;

    for (int i = 0; i < p->n_units; i++)
        n += p->units[i].elems;
    sh_program_destroy(p);
    return n;
}

/* Equal to sh_model_params() if nothing is frozen. */
int64_t sh_model_trained(const struct sh_model *m, const struct sh_adapters *a)
{
    struct sh_program *p = emit(m, a, 1);
    int64_t n = 0;

    for (int i = 0; i < p->n_units; i++)
        n += p->units[i].trainable ? p->units[i].elems : 0;
    sh_program_destroy(p);
    return n;
}
