/* What blocks read besides the stream, as in the small forms of Gemma 4: of each word a row of a table, which has a part for
 * each block, and a product of the embedding.
 *
 *     all blocks   (norm(in x0 / sqrt(C)) + table[word] sqrt(p)) / sqrt(2)   [N,L p], cut into [N,p] for each
 *     a block      x + norm(out (gelu(gate x) input))
 *
 * The table is a unit of its own: of the largest matrix of the model only rows are read, and never again in a step. So is
 * what the backward reads once more, the product and its norm. */
#include "src/base/mem.h"
#include "src/model/part.h"

#include <math.h>

bool sh_model_has_inputs(const struct decoder *d)
{
    return d->m->per_layer_dim;
}

/* Give [N,n p] to blocks [first, first + n), halving it so that no column is copied often. */
static void hand_out(struct decoder *d, int x, int first, int n)
{
    static const char *const what[2] = {"inputs", "inputs"};
    int half[2];

    if (n == 1) {
        d->input[first] = x;
        return;
    }
    sh_emit_split_as(&d->e, x, (int64_t)(n / 2) * d->m->per_layer_dim, what, half);
    hand_out(d, half[0], first, n / 2);
    hand_out(d, half[1], first + n / 2, n - n / 2);
}

void sh_model_make_inputs(struct decoder *d, int x)
{
    const struct sh_model *m = d->m;
    const struct sh_emit_heads groups = {.heads = m->n_layers, .head_dim = m->per_layer_dim};
    int64_t p = m->per_layer_dim, all = m->n_layers * p;
    struct weights in = {.b = SH_NONE};
    int table, norm, words;

    d->input = sh_calloc((size_t)m->n_layers, sizeof *d->input);
    sh_emit_unit(&d->e, "embed.layers");
    table = sh_model_declare(d, SH_PARAM_PER_LAYER_EMBED, d->f->per_layer_embed, 2, DIMS(m->vocab_size, all));
    sh_emit_unit(&d->e, "inputs");
    in.w = sh_model_declare(d, SH_PARAM_PER_LAYER_IN, d->f->per_layer_in, 2, DIMS(all, m->dim));
    norm = sh_model_declare(d, SH_PARAM_NORM, d->f->per_layer_norm, 1, &p);
    words = sh_emit_scale(&d->e, sh_emit_embed(&d->e, table, SH_NONE), sqrtf((float)p));
    x = sh_emit_scale(&d->e, sh_model_linear(d, x, in), 1 / sqrtf((float)m->dim));
    x = sh_emit_qk_norm(&d->e, x, norm, norm, &groups, sh_model_norm_kind(d));
    x = sh_emit_scale(&d->e, sh_emit_add(&d->e, x, words), sqrtf(0.5F));
    hand_out(d, x, 0, m->n_layers);
}

int sh_model_gate_input(struct decoder *d, int x, const struct branch *b)
{
    int gate = sh_model_linear(d, x, b->stack[IN]);
    int both = sh_emit_join(&d->e, gate, d->input[d->e.block], "gate and input");

    return sh_model_linear(d, sh_emit_pointwise(&d->e, sh_model_activation(d), both), b->stack[OUT]);
}
