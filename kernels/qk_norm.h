/* Where QK_NORM finds its groups: first the columns of the queries, then those of the keys, are cut into groups as
 * wide as wq and wk. A weight as wide as a head gives one norm per head; one as wide as all queries gives one norm
 * over them all. Valid C and C++. */
#ifndef SH_KERNELS_QK_NORM_H
#define SH_KERNELS_QK_NORM_H

#include "kernels/op.h"

struct sh_qk_norm {
    int64_t rows, row;    /* of qkv: rows, and elements per row */
    int64_t q, k;         /* groups of queries and of keys */
    int64_t q_cols, cols; /* columns of queries; of both */
    int64_t wq, wk;       /* elements per group */
};

static inline int64_t sh_qk_norm_elems(const struct sh_operand *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->ndim; i++)
        n *= t->dim[i];
    return n;
}

/* `wq`: the operand; wk follows it. Widths that do not divide the columns leave a remainder; sh_qk_norm_fits() finds
 * it and the kernels refuse the call. */
static inline struct sh_qk_norm sh_qk_norm_of(const struct sh_op_call *call, const struct sh_operand *wq)
{
    struct sh_qk_norm s;
    s.row = ((int64_t)call->attr->qk.heads + 2 * call->attr->qk.kv_heads) * call->attr->qk.head_dim;
    s.rows = sh_qk_norm_elems(&call->in[0]) / s.row;
    s.q_cols = (int64_t)call->attr->qk.heads * call->attr->qk.head_dim;
    s.cols = s.q_cols + (int64_t)call->attr->qk.kv_heads * call->attr->qk.head_dim;
    s.wq = sh_qk_norm_elems(wq);
    s.wk = sh_qk_norm_elems(wq + 1);
    s.q = s.q_cols / s.wq;
    s.k = (s.cols - s.q_cols) / s.wk;
    return s;
}

static inline bool sh_qk_norm_fits(const struct sh_qk_norm *s)
{
    return s->q * s->wq == s->q_cols && s->k * s->wk == s->cols - s->q_cols;
}

#endif
