#include "src/model/model.h"

static double block_matrix(const struct sh_model *m)
{
    double q = (double)m->heads * m->head_dim, kv = (double)m->kv_heads * m->head_dim;
    double mlp = (m->family == SH_FAMILY_LLAMA ? 3.0 : 2.0) * m->dim * m->ffn_dim;

    return m->dim * (q + 2 * kv) + q * m->dim + mlp;
}

struct sh_model_flops sh_model_flops(const struct sh_model *m, int seq)
{
    double weights = m->layers * block_matrix(m) + (double)m->vocab * m->dim;
    double square = 12.0 * m->layers * m->heads * m->head_dim * (double)seq;

    return (struct sh_model_flops){.matmul = 6.0 * weights, .attention_causal = square / 2, .attention_full = square};
}

int64_t sh_model_params(const struct sh_model *m)
{
    struct sh_program *p = sh_program_create(SH_F32);
    int64_t n = 0;

    sh_model_emit(m, &(struct sh_model_batch){.batch = 1, .seq = 1, .out = SH_MODEL_LOSS}, p);
    for (int i = 0; i < p->n_units; i++)
        n += p->units[i].elems;
    sh_program_destroy(p);
    return n;
}
