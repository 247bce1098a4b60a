/* Operations on rows [N,C], each row alone: look-ups, norms, products, and what works element by element. */
#include "src/program/emit_op.h"

#include "kernels/plug.h"
#include "kernels/shape.h"

/* Rows of `table` by ids [B,T], plus rows of wpe by position; out [B*T,H]. */
static int look_up(struct sh_emit *e, int ids, int table, int wpe, const char *what)
{
    struct sh_op op =
        OP(e, SH_OP_EMBED, ids, table, wpe, e->anew && wpe != SH_NONE ? e->p->port[SH_PORT_DOCS] : SH_NONE);

    op.out[0] = sh_emit_act(e, 3, DIMS(e->batch, e->seq, sh_emit_dims(e, table)[1]), what);
    return sh_emit_flat(e, sh_emit_append(e, &op));
}

/* wte [V,H], wpe [T,H] or SH_NONE if positions enter by rotation; out [B*T,H]. With a cache, rows on several ranks or
 * leaves, rows of wpe are looked up by their positions and added: the same numbers, since only the sum is rounded. */
int sh_emit_embed(struct sh_emit *e, int wte, int wpe)
{
    bool apart = wpe != SH_NONE && (e->cache || e->apart);
    int x = look_up(e, e->p->port[SH_PORT_TOKENS], wte, apart ? SH_NONE : wpe, apart ? "words" : "embedded");

    if (apart && e->p->port[SH_PORT_AT] == SH_NONE)
        sh_emit_port(e, SH_PORT_AT);
    if (apart)
        x = sh_emit_add(e, x, look_up(e, e->p->port[SH_PORT_AT], wpe, SH_NONE, "positions"));
    return x;
}

/* x [B*T,H] to the same shape. rstd and mean [B*T] are outputs too: the backward pass reads them instead of computing
 * the statistics again. */
int sh_emit_norm(struct sh_emit *e, int x, int w, int b, struct sh_emit_norm how)
{
    struct sh_op op = OP(e, SH_OP_NORM, x, w, b);
    int64_t rows = sh_emit_dims(e, x)[0];

    op.attr.norm.rms = how.rms;
    op.attr.norm.plus_one = how.plus_one;
    op.attr.norm.eps = how.eps;
    op.out[0] = sh_emit_act(e, 2, sh_emit_dims(e, x), "norm");
    op.out[1] = sh_emit_tensor(e, SH_MEM_ACT, SH_F32, 1, DIMS(rows), "rstd");
    if (!how.rms)
        op.out[2] = sh_emit_tensor(e, SH_MEM_ACT, SH_F32, 1, DIMS(rows), "mean");
    return sh_emit_append(e, &op);
}

/* x [B*T,in] to [B*T,out]. w is [out,in] as in PyTorch, or [in,out] as in GPT-2's Conv1D (w_in_out). */
int sh_emit_linear(struct sh_emit *e, int x, int w, int b, bool w_in_out)
{
    struct sh_op op = OP(e, SH_OP_LINEAR, x, w, b);
    int64_t out = sh_emit_dims(e, w)[w_in_out ? 1 : 0];

    op.attr.linear.w_in_out = w_in_out;
    return sh_emit_out(e, &op, DIMS(sh_emit_dims(e, x)[0], out), "linear");
}

/* u [N,parts R] is kept for the backward, like lse: a thin matrix. */
int sh_emit_lora(struct sh_emit *e, int y, int x, const struct sh_emit_lora *l)
{
    struct sh_op op = OP(e, SH_OP_LORA, y, x, l->a, l->b);

    if (!l->parts)
        return y;
    op.attr.lora.parts = l->parts;
    op.attr.lora.scale = l->scale;
    for (int p = 0; p < l->parts; p++) {
        op.attr.lora.first[p] = l->first[p];
        op.attr.lora.width[p] = l->width[p];
    }
    op.out[0] = sh_emit_act(e, 2, sh_emit_dims(e, y), "adapted");
    op.out[1] = sh_emit_act(e, 2, DIMS(sh_emit_dims(e, x)[0], sh_emit_dims(e, l->a)[0]), "low rank");
    return sh_emit_append(e, &op);
}

/* How many input columns make one output column: 2 if the kind's row says [N,2F] -> [N,F]. */
int64_t sh_emit_columns(enum sh_op_kind kind)
{
    const struct sh_operand_row *in = &sh_op_shape(kind)->in[0];

    return in->dim[in->ndim - 1].term[0].factor;
}

int sh_emit_pointwise(struct sh_emit *e, enum sh_op_kind kind, int x)
{
    struct sh_op op = OP(e, kind, x);
    int64_t columns = sh_emit_dims(e, x)[1] / sh_emit_columns(kind);

    sh_plug_numbers(kind, &op.attr);
    return sh_emit_out(e, &op, DIMS(sh_emit_dims(e, x)[0], columns), sh_op_info(kind)->name);
}

int sh_emit_add(struct sh_emit *e, int a, int b)
{
    struct sh_op op = OP(e, SH_OP_ADD, a, b);

    return sh_emit_out(e, &op, sh_emit_dims(e, a), "residual");
}

int sh_emit_scale(struct sh_emit *e, int x, float by)
{
    struct sh_op op = OP(e, SH_OP_SCALE, x);

    op.attr.scale.by = by;
    return sh_emit_out(e, &op, sh_emit_dims(e, x), "scaled");
}

int sh_emit_scale_by(struct sh_emit *e, int x, int s)
{
    struct sh_op op = OP(e, SH_OP_SCALE_BY, x, s);

    return sh_emit_out(e, &op, sh_emit_dims(e, x), "scaled");
}

/* As queries of one element each, and half as many keys and values. */
void sh_emit_split_as(struct sh_emit *e, int x, int64_t left, const char *const what[2], int out[2])
{
    struct sh_op op = OP(e, SH_OP_SPLIT_KV, x);
    int64_t rows = sh_emit_dims(e, x)[0], right = sh_emit_dims(e, x)[1] - left;

    op.attr.attn.heads = (int)left;
    op.attr.attn.kv_heads = (int)right / 2;
    op.attr.attn.head_dim = 1;
    out[0] = op.out[0] = sh_emit_act(e, 2, DIMS(rows, left), what[0]);
    out[1] = op.out[1] = sh_emit_act(e, 2, DIMS(rows, right), what[1]);
    sh_emit_append(e, &op);
}

void sh_emit_split(struct sh_emit *e, int x, int64_t left, int out[2])
{
    sh_emit_split_as(e, x, left, (const char *const[]){"latent", "key of all heads"}, out);
}

int sh_emit_join(struct sh_emit *e, int a, int b, const char *what)
{
    struct sh_op op = OP(e, SH_OP_JOIN_KV, a, b);
    int64_t left = sh_emit_dims(e, a)[1], right = sh_emit_dims(e, b)[1];

    op.attr.attn.heads = (int)left;
    op.attr.attn.kv_heads = (int)right / 2;
    op.attr.attn.head_dim = 1;
    return sh_emit_out(e, &op, DIMS(sh_emit_dims(e, a)[0], left + right), what);
}
