/* Gates of the blocks that have them: the norm of each head that a gate multiplies, and the gate of attention's output. */
#include "kernels/ref/ref.h"

#include <math.h>

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* y = x / rms(x) w silu(z) in each head */
sh_rc sh_ref_gated_norm(const struct sh_op_call *call)
{
    const struct sh_operand *x = &call->in[0], *z = &call->in[1], *w = &call->in[2];
    int64_t V = call->attr->delta.value_dim, heads = sh_ref_elems(x) / V;

    for (int64_t h = 0; h < heads; h++) {
        double sum = 0, rstd;

        for (int64_t i = h * V; i < (h + 1) * V; i++)
            sum += sh_ref_get(x, i) * sh_ref_get(x, i);
        rstd = 1 / sqrt(sum / (double)V + (double)call->attr->delta.eps);
        for (int64_t i = h * V; i < (h + 1) * V; i++) {
            double gate = sh_ref_get(z, i);

            sh_ref_set(&call->out[0], i, sh_ref_get(x, i) * rstd * sh_ref_get(w, i - h * V) * gate * sigmoid(gate));
        }
        sh_ref_set(&call->out[1], h, rstd);
    }
    return SH_OK;
}

/* With n = x rstd and d = dy w silu(z): dx = rstd (d - n mean(d n)). */
sh_rc sh_ref_gated_norm_bwd(const struct sh_op_call *call)
{
    const struct sh_operand *dy = &call->in[0], *x = &call->in[1], *z = &call->in[2], *w = &call->in[3];
    int64_t V = call->attr->delta.value_dim, heads = sh_ref_elems(x) / V;

    for (int64_t h = 0; h < heads; h++) {
        double rstd = sh_ref_get(&call->in[4], h), mean = 0;

        for (int64_t i = h * V; i < (h + 1) * V; i++) {
            double gate = sh_ref_get(z, i), s = sigmoid(gate), n = sh_ref_get(x, i) * rstd;
            double d = sh_ref_get(dy, i) * sh_ref_get(w, i - h * V);

            mean += d * gate * s * n / (double)V;
            sh_ref_set(&call->out[1], i, d * n * s * (1 + gate * (1 - s)));
        }
        for (int64_t i = h * V; i < (h + 1) * V; i++) {
            double gate = sh_ref_get(z, i), n = sh_ref_get(x, i) * rstd;
            double d = sh_ref_get(dy, i) * sh_ref_get(w, i - h * V) * gate * sigmoid(gate);

            sh_ref_set(&call->out[0], i, rstd * (d - n * mean));
        }
    }
    for (int64_t v = 0; v < V && call->out[2].data; v++) {
        double sum = 0;

        for (int64_t h = 0; h < heads; h++) {
            double gate = sh_ref_get(z, h * V + v);

            sum += sh_ref_get(dy, h * V + v) * sh_ref_get(x, h * V + v) * sh_ref_get(&call->in[4], h) * gate *
                   sigmoid(gate);
        }
        sh_ref_sum(call, 2, v, sum);
    }
    return SH_OK;
}

sh_rc sh_ref_gate(const struct sh_op_call *call)
{
    for (int64_t i = 0; i < sh_ref_elems(&call->in[0]); i++)
        sh_ref_set(&call->out[0], i, sh_ref_get(&call->in[0], i) * sigmoid(sh_ref_get(&call->in[1], i)));
    return SH_OK;
}

sh_rc sh_ref_gate_bwd(const struct sh_op_call *call)
{
    for (int64_t i = 0; i < sh_ref_elems(&call->in[0]); i++) {
        double dy = sh_ref_get(&call->in[0], i), o = sh_ref_get(&call->in[1], i),
               s = sigmoid(sh_ref_get(&call->in[2], i));

        sh_ref_set(&call->out[0], i, dy * s);
        sh_ref_set(&call->out[1], i, dy * o * s * (1 - s));
    }
    return SH_OK;
}

/* Where element i of a row [q and gate head by head | k | v] goes: into qkv, or into the gates if it is negative. */
static int64_t place(int64_t i, int64_t H, int64_t D)
{
    int64_t head = i / (2 * D), at = i % (2 * D);

    if (head >= H)
        return i - H * D;
    return at < D ? head * D + at : -1 - (head * D + at - D);
}

static void move(const struct sh_operand *row, const struct sh_operand *qkv, const struct sh_operand *gate,
                 const struct sh_op_attr *attr, bool back)
{
    int64_t H = attr->attn.heads, D = attr->attn.head_dim, HD = H * D, wide = row->dim[1], narrow = wide - HD;

    for (int64_t i = 0; i < sh_ref_elems(row); i++) {
        int64_t n = i / wide, to = place(i % wide, H, D);
        const struct sh_operand *other = to < 0 ? gate : qkv;
        int64_t at = to < 0 ? n * HD - 1 - to : n * narrow + to;

        if (back)
            sh_ref_set(row, i, sh_ref_get(other, at));
        else
            sh_ref_set(other, at, sh_ref_get(row, i));
    }
}

sh_rc sh_ref_split_gate(const struct sh_op_call *call)
{
    move(&call->in[0], &call->out[0], &call->out[1], call->attr, false);
    return SH_OK;
}

sh_rc sh_ref_join_gate(const struct sh_op_call *call)
{
    move(&call->out[0], &call->in[0], &call->in[1], call->attr, true);
    return SH_OK;
}
