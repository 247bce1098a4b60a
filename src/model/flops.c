/* Operations per token, counted from the program of one sequence, so that no family needs its own formula. The usual
 * rule: 2 per weight forward, 4 backward (inputs and weights), hence 6; frozen weights have no gradient, hence 4. */
#include "kernels/op.h"
#include "src/base/mem.h"
#include "src/config/family.h"
#include "src/model/model.h"
#include "src/program/saved.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* The caller destroys it. float32, since only shapes are counted. */
static struct sh_program *emit(const struct sh_model *m, const struct sh_adapters *a, int seq)
{
    struct sh_program *p = sh_program_create(SH_F32);

    sh_model_emit(m, &(struct sh_model_batch){.batch = 1, .seq = seq, .out = SH_MODEL_LOSS, .adapters = *a}, p);
    return p;
}

static const struct sh_adapters none;

/* How many of a tensor's elements are active: of experts, only those that a token has. */
static int64_t active(const struct sh_model *m, const struct sh_saved *saved)
{
    return sh_param_info(saved->role)->experts ? saved->elems / m->n_experts * m->n_experts_per_token : saved->elems;
}

/* Whether a token is multiplied by it; the embedding is the output matrix too if they are tied. */
static bool is_product(const struct sh_model *m, enum sh_param_role role)
{
    return role < SH_PARAM_PRODUCTS || role == (sh_family_is_tied(m) ? SH_PARAM_EMBED : SH_PARAM_HEAD) ||
           sh_param_info(role)->adapter;
}

/* The mean length of documents that attention stays in; 0: it does not, or the length is not known. */
static double documents_of(const struct sh_model_batch *b)
{
    return b->docs ? b->document_tokens : 0;
}

/* How many keys a query sees on average: half of the sequence, or the window less what the first queries of the
 * sequence lack, or what is in its document. */
static double keys_seen(const struct sh_op *op, const struct sh_model_batch *b)
{
    double T = b->seq, W = op->attr.attn.window, documents = documents_of(b);
    double seen = W > 0 ? W - W * W / (2 * T) : T / 2;

    return documents > 0 ? fmin(seen, sh_op_pairs_in_documents(documents, T) / T) : seen;
}

/* The same of a kernel that computes whole squares, of sequences or documents. */
static double keys_of_squares(const struct sh_op *op, const struct sh_model_batch *b)
{
    double square = op->attr.attn.window ? op->attr.attn.window : b->seq;

    return documents_of(b) > 0 ? fmin(square, 2 * keys_seen(op, b)) : square;
}

/* Values of latent attention are filled with zeros, which nobody asked for. */
static double part_of_values(const struct sh_model *m)
{
    return m->v_head_dim ? (double)m->v_head_dim / m->head_dim : 1;
}

struct sh_model_flops sh_model_flops(const struct sh_model *m, int seq)
{
    return sh_model_flops_of(m, &(struct sh_model_batch){.seq = seq});
}

/* The block of a parameter, after which its unit is named; n_layers for those outside of all blocks. */
static int block_of(const struct sh_model *m, const struct sh_unit *u)
{
    int block;

    return sscanf(u->name, "layers.%d", &block) == 1 ? block : m->n_layers;
}

/* The backward has two products for each of the forward, but only one for a product with a frozen matrix. */
static void add_products(const struct sh_program *p, const struct sh_model *m, struct sh_model_flops *of)
{
    for (int i = 0; i < p->n_params; i++) {
        const struct sh_saved *saved = sh_saved_of(p, &p->params[i]);
        struct sh_model_flops *f = &of[block_of(m, &p->units[p->params[i].unit])];

        if (!is_product(m, saved->role))
            continue;
        f->matmul += (saved->trainable ? 6.0 : 4.0) * (double)active(m, saved);
        f->forward += 2.0 * (double)active(m, saved);
    }
}

/* Scores and weighted values: [T,T] products of H*D elements a row. Of a state, what is read of it and added to it: products of
 * D and V a row; the delta rule reads it twice. */
static void add_attention(const struct sh_op *op, const struct sh_program *p, const struct sh_model *m,
                          const struct sh_model_batch *b, struct sh_model_flops *f)
{
    const struct sh_op_attr *a = &op->attr;
    double causal, full;

    if (op->kind == SH_OP_GATED_DELTA || op->kind == SH_OP_SCAN) {
        causal =
            (op->kind == SH_OP_SCAN ? 12.0 : 18.0) * a->delta.heads * (double)a->delta.key_dim * a->delta.value_dim;
        full = causal;
    } else if (op->kind == SH_OP_ATTENTION) {
        double row = 6.0 * (double)p->tensors[op->out[0]].dim[2] * (1 + part_of_values(m));

        causal = row * keys_seen(op, b);
        full = row * keys_of_squares(op, b);
    } else {
        return;
    }
    f->attention_causal += causal;
    f->attention_full += full;
    f->forward += causal / 3;
}

void sh_model_flops_of_blocks(const struct sh_model *m, const struct sh_model_batch *b, struct sh_model_flops *of)
{
    struct sh_program *p = emit(m, &b->adapters, b->seq);

    for (int i = 0; i <= m->n_layers; i++)
        of[i] = (struct sh_model_flops){0};
    add_products(p, m, of);
    for (int i = 0; i < p->n_ops; i++)
        add_attention(&p->ops[i], p, m, b, &of[p->ops[i].block == SH_NONE ? m->n_layers : p->ops[i].block]);
    sh_program_destroy(p);
}

struct sh_model_flops sh_model_flops_of(const struct sh_model *m, const struct sh_model_batch *b)
{
    struct sh_model_flops *of = sh_calloc((size_t)m->n_layers + 1, sizeof *of), all = {0};

    sh_model_flops_of_blocks(m, b, of);
    for (int i = 0; i <= m->n_layers; i++) {
        all.matmul += of[i].matmul;
        all.attention_causal += of[i].attention_causal;
        all.attention_full += of[i].attention_full;
        all.forward += of[i].forward;
    }
    free(of);
    return all;
}

struct sh_model_rows sh_model_rows_of(const struct sh_program *p)
{
    struct sh_model_rows w = {0};

    for (int i = 0; i < p->n_ops; i++) {
        const struct sh_op *op = &p->ops[i];

        if (op->kind != SH_OP_ATTENTION_ROWS || op->phase != SH_PHASE_FORWARD)
            continue;
        *(op->attr.attn.window ? &w.windowed : &w.whole) += op->attr.attn.heads * (double)op->attr.attn.head_dim;
        w.window = op->attr.attn.window ? op->attr.attn.window : w.window;
    }
    return w;
}

double sh_model_row_work(const struct sh_model_rows *w, int64_t keys)
{
    return w->whole * (double)keys + w->windowed * fmin((double)keys, w->window);
}

/* Padding of units is not counted: this is the number by which users know a model. */
int64_t sh_model_params(const struct sh_model *m)
{
    return sh_model_trained(m, &none);
}

int64_t sh_model_active(const struct sh_model *m)
{
    struct sh_program *p = emit(m, &none, 1);
    int64_t n = 0;

    for (int i = 0; i < p->n_saved; i++)
        n += active(m, &p->saved[i]);
    sh_program_destroy(p);
    return n;
}

/* Equal to sh_model_params() if nothing is frozen. */
int64_t sh_model_trained(const struct sh_model *m, const struct sh_adapters *a)
{
    struct sh_program *p = emit(m, a, 1);
    int64_t n = 0;

    for (int i = 0; i < p->n_units; i++)
        n += sh_program_descends(&p->units[i]) ? p->units[i].elems : 0;
    sh_program_destroy(p);
    return n;
}
