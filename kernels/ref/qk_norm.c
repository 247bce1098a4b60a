/* RMSNorm of queries and keys (Henry et al., arXiv:2010.04245, as in Qwen 3 and OLMo 2): xhat = x rstd and y = xhat w
 * over each group, with rstd = 1 / sqrt(mean(x^2) + eps). With attr->qk.plus_one, 1 + w takes the place of w. */
#include "kernels/qk_norm.h"
#include "kernels/ref/ref.h"

#include <math.h>

/* One group of one row: its elements, and its weight. */
struct group {
    int64_t at, width, stat;
    int weight; /* 0: of queries, 1: of keys */
};

static struct group group_of(const struct sh_qk_norm *s, int64_t n, int64_t g)
{
    bool key = g >= s->q;
    int64_t column = key ? s->q_cols + (g - s->q) * s->wk : g * s->wq;

    return (struct group){
        .at = n * s->row + column, .width = key ? s->wk : s->wq, .stat = n * (s->q + s->k) + g, .weight = key};
}

/* Gemma stores its weights minus 1. */
static double weight(const struct sh_op_call *call, const struct sh_operand *w, int64_t c)
{
    return sh_ref_get(w, c) + (call->attr->qk.plus_one ? 1 : 0);
}

/* Values are not part of the norm; they are copied if y is not the same tensor as x. */
static void copy_values(const struct sh_qk_norm *s, const struct sh_operand *to, const struct sh_operand *from)
{
    for (int64_t n = 0; n < s->rows; n++)
        for (int64_t c = s->cols; c < s->row; c++)
            sh_ref_set(to, n * s->row + c, sh_ref_get(from, n * s->row + c));
}

static void forward(const struct sh_op_call *call, struct group g)
{
    const struct sh_operand *x = &call->in[0], *w = &call->in[1 + g.weight], *y = &call->out[0];
    double square = call->in[3].data ? sh_ref_get(&call->in[3], g.stat) : 0;

    for (int64_t c = 0; c < g.width && !call->in[3].data; c++)
        square += sh_ref_get(x, g.at + c) * sh_ref_get(x, g.at + c) / (double)g.width;
    double rstd = 1 / sqrt(square + (double)call->attr->qk.eps);
    for (int64_t c = 0; c < g.width; c++)
        sh_ref_set(y, g.at + c, sh_ref_get(x, g.at + c) * rstd * weight(call, w, c));
    sh_ref_set(&call->out[1], g.stat, rstd);
}

/* There are q groups of queries and k groups of keys: one per head, or one for all heads (OLMo 2). */
sh_rc sh_ref_qk_norm(const struct sh_op_call *call)
{
    struct sh_qk_norm s = sh_qk_norm_of(call, &call->in[1]);

    SH_REQUIRE(sh_qk_norm_fits(&s));
    for (int64_t n = 0; n < s.rows; n++)
        for (int64_t g = 0; g < s.q + s.k; g++)
            forward(call, group_of(&s, n, g));
    copy_values(&s, &call->out[0], &call->in[0]);
    return SH_OK;
}

/* dw = sum over rows and groups of dy xhat. */
static void weight_gradient(const struct sh_op_call *call, const struct sh_qk_norm *s, bool key)
{
    int64_t first = key ? s->q : 0, end = key ? s->q + s->k : s->q, width = key ? s->wk : s->wq;

    for (int64_t c = 0; c < width; c++) {
        double sum = 0;
        for (int64_t n = 0; n < s->rows; n++)
            for (int64_t i = first; i < end; i++) {
                struct group g = group_of(s, n, i);
                sum += sh_ref_get(&call->in[0], g.at + c) * sh_ref_get(&call->in[1], g.at + c) *
                       sh_ref_get(&call->in[4], g.stat);
            }
        sh_ref_sum(call, 1 + key, c, sum);
    }
}

/* dx = rstd (h - xhat mean(h xhat)) with h = dy w. */
static void input_gradient(const struct sh_op_call *call, struct group g)
{
    const struct sh_operand *dy = &call->in[0], *x = &call->in[1], *w = &call->in[2 + g.weight];
    double rstd = sh_ref_get(&call->in[4], g.stat), mean = 0;

    if (call->in[5].data)
        mean = rstd * sh_ref_get(&call->in[5], g.stat);
    for (int64_t c = 0; c < g.width && !call->in[5].data; c++)
        mean += sh_ref_get(dy, g.at + c) * weight(call, w, c) * sh_ref_get(x, g.at + c) * rstd / (double)g.width;
    for (int64_t c = 0; c < g.width; c++)
        sh_ref_set(&call->out[0], g.at + c,
                   rstd * (sh_ref_get(dy, g.at + c) * weight(call, w, c) - sh_ref_get(x, g.at + c) * rstd * mean));
}

sh_rc sh_ref_qk_norm_bwd(const struct sh_op_call *call)
{
    struct sh_qk_norm s = sh_qk_norm_of(call, &call->in[2]);

    SH_REQUIRE(sh_qk_norm_fits(&s));
    for (int key = 0; key < 2; key++)
        if (call->out[1 + key].data) /* NULL if frozen */
            weight_gradient(call, &s, key);
    for (int64_t n = 0; n < s.rows; n++)
        for (int64_t g = 0; g < s.q + s.k; g++)
            input_gradient(call, group_of(&s, n, g));
    copy_values(&s, &call->out[0], &call->in[0]);
    return SH_OK;
}

sh_rc sh_ref_qk_means(const struct sh_op_call *call)
{
    int64_t q = (int64_t)call->attr->qk.heads * call->attr->qk.head_dim, k = call->attr->qk.k_width, row = q + 2 * k;

    SH_REQUIRE(call->attr->qk.q_width == q && call->attr->qk.kv_heads * call->attr->qk.head_dim == k);
    for (int64_t i = 0; i < call->in[0].dim[0] * 2; i++) {
        int64_t at = i / 2 * row + i % 2 * q, width = i % 2 ? k : q;
        const struct sh_operand *w = &call->in[2 + i % 2];
        double sum = 0;

        for (int64_t c = 0; c < width; c++)
            sum += sh_ref_get(&call->in[0], at + c) * sh_ref_get(&call->in[1], at + c) *
                   (w->data ? weight(call, w, c) : 1);
        sh_ref_set(&call->out[0], i, sum / (double)(width * call->attr->qk.ranks));
    }
    return SH_OK;
}
