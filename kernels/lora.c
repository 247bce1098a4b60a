/* The parts' columns of y are in rows of the whole stack, so a part is one product with the stack's leading dimension. */
#include "kernels/lora.h"

#include <stddef.h>

struct sh_lora sh_lora_of(const struct sh_op_call *call)
{
    const struct sh_operand *y = &call->in[0], *x = &call->in[1];
    const struct sh_operand *b = &call->in[call->kind == SH_OP_LORA ? 3 : 4];
    struct sh_lora l = {.call = call, .act = y->dtype, .N = y->dim[0], .M = y->dim[1], .I = x->dim[1], .R = b->dim[1]};

    l.K = l.R * call->attr->lora.parts;
    return l;
}

static void *at(const struct sh_operand *t, int64_t i)
{
    return (char *)t->data + i * sh_dtype_bytes(t->dtype);
}

sh_rc sh_lora_down(const struct sh_lora *l)
{
    struct sh_matmul g = {
        .m = l->N,
        .n = l->K,
        .k = l->I,
        .in_dtype = l->act,
        .out_dtype = SH_F32,
        .a = l->call->in[1].data,
        .lda = l->I,
        .b = l->call->in[2].data,
        .ldb = l->I,
        .trans_b = true,
        .c = l->sums,
        .ldc = l->K,
    };

    return l->run(l, &g);
}

sh_rc sh_lora_up(const struct sh_lora *l)
{
    const struct sh_op_call *call = l->call;

    for (int64_t p = 0, row = 0; p < call->attr->lora.parts; row += call->attr->lora.width[p++]) {
        void *columns = at(&call->out[0], call->attr->lora.first[p]);
        struct sh_matmul g = {
            .m = l->N,
            .n = call->attr->lora.width[p],
            .k = l->R,
            .in_dtype = l->act,
            .out_dtype = l->act,
            .a = at(&call->out[1], p * l->R),
            .lda = l->K,
            .b = at(&call->in[3], row * l->R),
            .ldb = l->R,
            .trans_b = true,
            .c = columns,
            .ldc = l->M,
            .addend = columns,
        };
        SH_TRY(l->run(l, &g));
    }
    return SH_OK;
}

/* For part p, whose rows of b start at `row`: db (+)= dy' u, and the part's columns of dy b, not yet scaled. */
static sh_rc part_backward(const struct sh_lora *l, int64_t p, int64_t row)
{
    const struct sh_op_call *call = l->call;
    const struct sh_operand *dy = &call->in[0], *u = &call->in[2], *b = &call->in[4], *db = &call->out[2];
    struct sh_matmul g = {
        .m = call->attr->lora.width[p],
        .n = l->R,
        .k = l->N,
        .in_dtype = l->act,
        .out_dtype = SH_F32,
        .a = at(dy, call->attr->lora.first[p]),
        .lda = l->M,
        .trans_a = true,
        .b = at(u, p * l->R),
        .ldb = l->K,
        .c = at(db, row * l->R),
        .ldc = l->R,
        .addend = sh_op_adds(call, 2) ? at(db, row * l->R) : NULL,
    };

    SH_TRY(l->run(l, &g));
    g = (struct sh_matmul){
        .m = l->N,
        .n = l->R,
        .k = call->attr->lora.width[p],
        .in_dtype = l->act,
        .out_dtype = SH_F32,
        .a = at(dy, call->attr->lora.first[p]),
        .lda = l->M,
        .b = at(b, row * l->R),
        .ldb = l->R,
        .c = l->sums + p * l->R,
        .ldc = l->K,
    };
    return l->run(l, &g);
}

sh_rc sh_lora_bwd_parts(const struct sh_lora *l)
{
    const struct sh_op_call *call = l->call;

    for (int64_t p = 0, row = 0; p < call->attr->lora.parts; row += call->attr->lora.width[p++])
        SH_TRY(part_backward(l, p, row));
    return SH_OK;
}

sh_rc sh_lora_bwd_down(const struct sh_lora *l, const void *du)
{
    const struct sh_op_call *call = l->call;
    const struct sh_operand *x = &call->in[1], *a = &call->in[3], *dx = &call->out[0], *da = &call->out[1];
    struct sh_matmul g = {
        .m = l->K,
        .n = l->I,
        .k = l->N,
        .in_dtype = l->act,
        .out_dtype = SH_F32,
        .a = du,
        .lda = l->K,
        .trans_a = true,
        .b = x->data,
        .ldb = l->I,
        .c = da->data,
        .ldc = l->I,
        .addend = sh_op_adds(call, 1) ? da->data : NULL,
    };

    SH_TRY(l->run(l, &g));
    if (!dx->data)
        return SH_OK;
    g = (struct sh_matmul){
        .m = l->N,
        .n = l->I,
        .k = l->K,
        .in_dtype = l->act,
        .out_dtype = l->act,
        .a = du,
        .lda = l->K,
        .b = a->data,
        .ldb = l->I,
        .c = dx->data,
        .ldc = l->I,
        .addend = call->in[5].data,
    };
    return l->run(l, &g);
}
