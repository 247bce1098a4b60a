#include "src/optim/matrices.h"

#include "src/config/family.h"
#include "src/program/saved.h"

#include <math.h>

/* Rows of the product's outputs that are one matrix, or `repeat` of them, one every `stride` rows. They lie in blocks of
 * `block` rows, one every `every` rows. */
struct part {
    int64_t first, rows, block, every, repeat, stride;
};

enum { PARTS = 3 };

/* One matrix of neighbouring rows. */
static struct part plain(int64_t first, int64_t rows)
{
    return (struct part){first, rows, rows, rows, 1, rows};
}

/* Heads of queries, keys or values: one matrix, or one each. `every`: from the rows of one head to those of the next. */
static struct part heads_of(int64_t first, int n, int head_dim, int64_t every, bool apart)
{
    if (apart)
        return (struct part){first, head_dim, head_dim, head_dim, n, every};
    return (struct part){first, (int64_t)n * head_dim, head_dim, every, 1, 0};
}

/* Queries, keys and values in one product: one after the other, or head by head. */
static int split_qkv(const struct sh_model *m, bool by_head, bool apart, struct part *out)
{
    int64_t d = m->head_dim, q = m->n_heads * d, kv = m->n_kv_heads * d;

    out[0] = heads_of(0, m->n_heads, m->head_dim, by_head ? 3 * d : d, apart);
    out[1] = heads_of(by_head ? d : q, m->n_kv_heads, m->head_dim, by_head ? 3 * d : d, apart);
    out[2] = heads_of(by_head ? 2 * d : q + kv, m->n_kv_heads, m->head_dim, by_head ? 3 * d : d, apart);
    return 3;
}

void sh_matrices_dims(const struct sh_model *m, const struct sh_saved *s, int64_t *in, int64_t *out)
{
    bool turned = sh_family_of(m->family)->w_in_out;

    sh_family_linear_dims(m, s->role, in, out);
    bool differs = sh_family_of(m->family)->global_heads; /* from block to block */
    if (!differs && (!m->ffn[0] || (s->role != SH_PARAM_UP && s->role != SH_PARAM_DOWN)))
        return;
    *in = s->dim[!turned];
    *out = s->dim[turned];
}

/* Whether a product of so many outputs is an `up` that has the gate too. */
static bool has_gate(const struct sh_model *m, const struct sh_family *f, enum sh_param_role role, int64_t rows)
{
    switch (role) {
    case SH_PARAM_EXPERT_UP: return !f->gelu;
    case SH_PARAM_SHARED_UP: return !f->gelu && !f->shared_gate;
    case SH_PARAM_UP: return m->ffn[0] ? rows == 2 * (int64_t)m->ffn_dim : !f->gelu && !f->gate;
    default: return false;
    }
}

/* The matrices in the `rows` outputs of a role's product. */
static int split(const struct sh_model *m, enum sh_param_role role, int64_t rows, enum sh_cfg_muon_split how,
                 struct part out[PARTS])
{
    const struct sh_family *f = sh_family_of(m->family);
    bool apart = how == SH_MUON_SPLIT_HEADS, gated = has_gate(m, f, role, rows);

    if (how != SH_MUON_SPLIT_NONE && role == SH_PARAM_Q && !f->k && !f->kv_a)
        return split_qkv(m, f->qkv_by_head, apart, out);
    if (apart && (role == SH_PARAM_Q || role == SH_PARAM_K || role == SH_PARAM_V)) {
        out[0] = heads_of(0, (int)(rows / m->head_dim), m->head_dim, m->head_dim, true);
        return 1;
    }
    if (how != SH_MUON_SPLIT_NONE && f->experts_in_out && role == SH_PARAM_EXPERT_UP) {
        for (int i = 0; i < 2; i++)
            out[i] = (struct part){i, rows / 2, 1, 2, 1, rows / 2};
        return 2;
    }
    if (how != SH_MUON_SPLIT_NONE && gated) {
        out[0] = plain(0, rows / 2);
        out[1] = plain(rows / 2, rows / 2);
        return 2;
    }
    out[0] = plain(0, rows);
    return 1;
}

/* torch.optim.Muon's words, for a matrix [out,in]. */
static float scale_of(enum sh_cfg_adjust adjust, int64_t out, int64_t in)
{
    double ratio = (double)out / (double)in;

    switch (adjust) {
    case SH_ADJUST_ORIGINAL: return (float)sqrt(fmax(1, ratio));
    case SH_ADJUST_MATCH_RMS_ADAMW: return (float)(0.2 * sqrt((double)(out > in ? out : in)));
    case SH_ADJUST_SPECTRAL_UNCLAMPED: return (float)sqrt(ratio);
    }
    return 1;
}

/* Experts repeat the same matrix, and have no heads. */
static struct sh_matrix matrix_of(const struct sh_param *param, const struct part *part, int64_t in, int64_t out,
                                  bool w_in_out, float scale)
{
    int64_t row = w_in_out ? 1 : in, experts = param->ndim == 3 ? param->dim[0] : 1;

    return (struct sh_matrix){.at = param->unit_elems + part->first * row,
                              .out = part->rows,
                              .in = in,
                              .row_step = row,
                              .col_step = w_in_out ? out : 1,
                              .block = part->block,
                              .block_stride = part->every,
                              .repeat = experts * part->repeat,
                              .stride = experts > 1 ? out * in : part->stride * row,
                              .scale = scale,
                              .row = part->first,
                              .row_stride = experts > 1 ? out : part->stride};
}

int64_t sh_matrices_rows(const struct sh_program *p, const struct sh_param *param, const struct sh_model *m)
{
    int64_t in, out;

    sh_matrices_dims(m, sh_saved_of(p, param), &in, &out);
    return param->ndim == 3 ? param->dim[0] * out : out;
}

void sh_matrices_add(struct sh_program *p, const struct sh_param *param, const struct sh_model *m,
                     const struct sh_ortho *how)
{
    enum sh_param_role role = sh_saved_of(p, param)->role;
    const struct sh_family *f = sh_family_of(m->family);
    bool w_in_out = param->ndim == 2 ? f->w_in_out : f->experts_in_out;
    struct part part[PARTS];
    int64_t in, out;
    int n;

    sh_matrices_dims(m, sh_saved_of(p, param), &in, &out);
    n = split(m, role, out, how->split, part);
    for (int i = 0; i < n; i++)
        sh_program_add_matrix(p,
                              matrix_of(param, &part[i], in, out, w_in_out, scale_of(how->adjust, part[i].rows, in)));
}
