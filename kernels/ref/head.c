/* The output head and its loss. For a row n with target y >= 0: logits = W x[n], loss = weight[n] (log(sum of
 * e^logits) - logits[y]), where absent weights are 1. Rows with a negative target or weight 0 do not count and get zero
 * gradients. The loss is a sum; the gradients are those of scalars->loss_scale times the loss: with dlogits =
 * weight[n] (softmax - onehot) loss_scale, dx[n] = W' dlogits, dW += dlogits' x[n]. With a soft cap c a logit z is
 * c tanh(z / c), whose derivative is 1 - (logit / c)^2. With a factor z there is a second sum, of weight[n] z lse^2, whose
 * derivative 2 z lse softmax comes to the other. */
#include "kernels/ref/ref.h"
#include "src/config/words.h"

#include <math.h>
#include <string.h>

struct shape {
    int64_t N, C, V;
};

/* Without targets, i.e. in generation, N is 0. */
static struct shape shape_of(const struct sh_op_call *call)
{
    const struct sh_operand *w = &call->in[1], *targets = &call->in[2];
    return (struct shape){.N = targets->data ? sh_ref_elems(targets) : 0, .C = w->dim[1], .V = w->dim[0]};
}

/* cap: 0: none */
static double capped(double z, float cap)
{
    return cap == 0 ? z : (double)cap * tanh(z / (double)cap);
}

/* By a logit that is capped already. */
static double slope_of(double logit, float cap)
{
    return cap == 0 ? 1 : 1 - logit / (double)cap * (logit / (double)cap);
}

/* The square of lse in the loss, and what the softmax counts more in its derivative. */
static double square_of(double z, double lse)
{
    return z == 0 ? 0 : z * lse * lse;
}

static double more_of(double z, double lse)
{
    return z == 0 ? 0 : 2 * z * lse;
}

/* One product at a time, in double: the reference is slow and exact. */
static double logit(const struct sh_op_call *call, struct shape z, int64_t row, int64_t v, float cap)
{
    double sum = 0;
    for (int64_t c = 0; c < z.C; c++)
        sum += sh_ref_get(&call->in[0], row * z.C + c) * sh_ref_get(&call->in[1], v * z.C + c);
    return capped(sum, cap);
}

/* Compute the logits of one row into `logits`; return the log of the sum of their exponentials, 0 if they are raw. */
static double logits_of(const struct sh_op_call *call, struct shape z, int64_t row, double *logits)
{
    double max = -INFINITY, sum = 0;

    for (int64_t v = 0; v < z.V; v++) {
        logits[v] = logit(call, z, row, v, call->attr->head.cap);
        max = logits[v] > max || isnan(logits[v]) ? logits[v] : max;
    }
    for (int64_t v = 0; v < z.V; v++)
        sum += exp(logits[v] - max);
    return call->attr->head.raw ? 0 : max + log(sum);
}

/* What the row's loss counts; 0: the row is skipped. */
static double weight_of(const struct sh_op_call *call, int64_t row)
{
    if (sh_ref_get(&call->in[2], row) < 0)
        return 0;
    return call->in[3].data ? sh_ref_get(&call->in[3], row) : 1;
}

static bool has_teacher(const struct sh_op_call *call)
{
    return call->in[4].data;
}

/* Word j of the K that the teacher names for a row, and its share of them. */
struct named {
    int64_t word;
    double share;
};

static struct named named_of(const struct sh_op_call *call, int64_t row, int64_t K, int64_t j)
{
    double T = call->attr->head.temperature, sum = 0, own = sh_ref_get(&call->in[5], row * K + j);

    if (call->attr->head.form != SH_KD_NORMALIZED)
        return (struct named){(int64_t)sh_ref_get(&call->in[4], row * K + j), exp(own)};
    for (int64_t i = 0; i < K; i++)
        sum += exp((sh_ref_get(&call->in[5], row * K + i) - own) / T);
    return (struct named){(int64_t)sh_ref_get(&call->in[4], row * K + j), 1 / sum};
}

/* The log of the sum of exponentials of a row's logits divided by the temperature. */
static double soft_lse(const double *logits, int64_t V, double T)
{
    double max = -INFINITY, sum = 0;

    for (int64_t v = 0; v < V; v++)
        max = fmax(max, logits[v] / T);
    for (int64_t v = 0; v < V; v++)
        sum += exp(logits[v] / T - max);
    return max + log(sum);
}

/* Of the words of a row: the teacher's probability, and the ratio of what teacher and model have left beside them. */
struct whole {
    double said, loss, ratio;
};

static struct whole whole_of(const struct sh_op_call *call, int64_t row, int64_t K, const double *logits, double lse)
{
    struct whole w = {0};
    double rest = 1;

    for (int64_t j = 0; j < K; j++) {
        struct named n = named_of(call, row, K, j);

        w.said += n.share;
        rest -= exp(logits[n.word] - lse);
    }
    if (call->attr->head.form != SH_KD_TAIL || w.said >= 1)
        return w;
    rest = fmax(rest, SH_KD_REST);
    w.ratio = (1 - w.said) / rest;
    w.loss = (1 - w.said) * log(w.ratio);
    return w;
}

/* What the model's probability of word v counts in the derivative by its logit. */
static double factor_of(const struct sh_op_call *call, const struct whole *w, int64_t row, int64_t K, int64_t v)
{
    double factor = call->attr->head.form == SH_KD_TAIL && w->said < 1 ? 1 - w->ratio : w->said;

    for (int64_t j = 0; j < K && w->ratio != 0; j++)
        factor += (int64_t)sh_ref_get(&call->in[4], row * K + j) == v ? w->ratio : 0;
    return factor;
}

/* The likeliest word; the first one on a tie. */
static int64_t likeliest(const double *logits, int64_t n)
{
    int64_t best = 0;

    for (int64_t v = 1; v < n; v++)
        if (logits[v] > logits[best])
            best = v;
    return best;
}

/* Sums of the call, [SH_HEAD_NUMBERS]. */
static void count_teacher(const struct sh_op_call *call, int64_t row, int64_t K, double kl, bool right, double *sums)
{
    double weight = weight_of(call, row);

    sums[SH_HEAD_KL] += weight * kl;
    for (int64_t j = 0; j < K; j++)
        sums[SH_HEAD_MASS] += weight * exp(sh_ref_get(&call->in[5], row * K + j));
    sums[SH_HEAD_RIGHT] += right ? weight : 0;
}

/* The loss of one row with a teacher; with gradient, logits are overwritten with its derivatives. */
static double teacher_row(const struct sh_op_call *call, struct shape z, int64_t row, double lse, double *logits,
                          bool gradient, double *sums)
{
    double T = call->attr->head.temperature, alpha = call->attr->head.alpha, soft = soft_lse(logits, z.V, T);
    int64_t target = (int64_t)sh_ref_get(&call->in[2], row), K = call->in[4].dim[call->in[4].ndim - 1];
    struct whole w = whole_of(call, row, K, logits, lse);
    double loss = (1 - alpha) * (lse - logits[target]), kl = w.loss;

    for (int64_t j = 0; j < K; j++) {
        struct named n = named_of(call, row, K, j);
        kl += n.share * ((n.share > 0 ? log(n.share) : 0) - (logits[n.word] / T - soft));
    }
    loss += alpha * T * T * kl;
    count_teacher(call, row, K, kl, likeliest(logits, z.V) == target, sums);
    for (int64_t v = 0; v < z.V && gradient; v++)
        logits[v] = alpha * T * factor_of(call, &w, row, K, v) * exp(logits[v] / T - soft) +
                    (1 - alpha + more_of(call->attr->head.squares, lse)) * exp(logits[v] - lse) -
                    (1 - alpha) * (v == target);
    for (int64_t j = 0; j < K && gradient; j++) {
        struct named n = named_of(call, row, K, j);
        logits[n.word] -= alpha * T * n.share;
    }
    return loss;
}

/* The loss of a row of labels, each by itself; with gradient, logits are overwritten with its derivatives. */
static double multi_label_row(const struct sh_op_call *call, struct shape z, int64_t row, double *logits, bool gradient,
                              double *sums)
{
    double loss = 0, weight = weight_of(call, row);
    bool right = true;

    for (int64_t v = 0; v < z.V; v++) {
        double x = logits[v], y = sh_ref_get(&call->in[5], row * z.V + v);
        bool found = x > 0, there = y >= 0.5;

        loss += (x > 0 ? x : 0) + log1p(exp(-fabs(x))) - y * x;
        sums[SH_HEAD_TRUE_POSITIVES] += found && there ? weight : 0;
        sums[SH_HEAD_POSITIVES] += weight * (found + there);
        right = right && found == there;
        logits[v] = gradient ? (1 / (1 + exp(-x)) - y) / (double)z.V : x;
    }
    sums[SH_HEAD_RIGHT] += right ? weight : 0;
    return loss / (double)z.V;
}

/* The loss of one row, and with gradient its derivatives by the logits in their place. */
static double row_loss(const struct sh_op_call *call, struct shape z, int64_t row, double lse, double *logits,
                       bool gradient, double *sums)
{
    int64_t target = (int64_t)sh_ref_get(&call->in[2], row);
    double loss = lse - logits[target];

    if (call->attr->head.multi_label)
        return multi_label_row(call, z, row, logits, gradient, sums);
    if (has_teacher(call))
        return teacher_row(call, z, row, lse, logits, gradient, sums);
    for (int64_t v = 0; v < z.V && gradient; v++)
        logits[v] = (call->attr->head.raw ? 0 : (1 + more_of(call->attr->head.squares, lse)) * exp(logits[v] - lse)) -
                    (v == target);
    return loss;
}

/* Compute dx of one row from its dlogits, and add the row's contribution to dw (NULL: not wanted). */
static void row_gradients(const struct sh_op_call *call, struct shape z, int64_t row, double weight, double *logits,
                          double *dw)
{
    for (int64_t v = 0; v < z.V && weight != 0; v++)
        logits[v] *= weight * call->scalars->loss_scale;
    for (int64_t c = 0; c < z.C; c++) {
        double dx = 0;
        for (int64_t v = 0; v < z.V && weight != 0; v++) {
            dx += logits[v] * sh_ref_get(&call->in[1], v * z.C + c);
            if (dw)
                dw[v * z.C + c] += logits[v] * sh_ref_get(&call->in[0], row * z.C + c);
        }
        sh_ref_set(&call->out[1], row * z.C + c, dx);
    }
}

static bool makes_dw(const struct sh_op_call *call)
{
    return call->kind == SH_OP_HEAD_LOSS_GRAD && call->out[2].ndim > 0;
}

/* Rows of scratch: logits, and with a cap their derivatives. */
static int64_t rows_of(const struct sh_op_call *call)
{
    return call->attr->head.cap == 0 ? 1 : 2;
}

/* Scratch: these, and dw in double so that the sum over rows is rounded once. */
int64_t sh_ref_head_loss_work_bytes(const struct sh_op_call *call)
{
    int64_t C = call->in[1].dim[1], V = call->in[1].dim[0];
    return (rows_of(call) * V + (makes_dw(call) ? V * C : 0)) * (int64_t)sizeof(double);
}

sh_rc sh_ref_head_loss(const struct sh_op_call *call)
{
    struct shape z = shape_of(call);
    bool grad = call->kind == SH_OP_HEAD_LOSS_GRAD;
    double *logits = call->work, *slope = rows_of(call) > 1 ? logits + z.V : NULL;
    double *dw = makes_dw(call) ? logits + rows_of(call) * z.V : NULL, sums[SH_HEAD_NUMBERS] = {0};

    if (dw)
        memset(dw, 0, (size_t)(z.V * z.C) * sizeof *dw);
    for (int64_t n = 0; n < z.N; n++) {
        double weight = weight_of(call, n);
        if (weight != 0) {
            double lse = logits_of(call, z, n, logits);
            for (int64_t v = 0; v < z.V && slope; v++)
                slope[v] = slope_of(logits[v], call->attr->head.cap);
            sums[SH_HEAD_SUM] += weight * row_loss(call, z, n, lse, logits, grad, sums);
            sums[SH_HEAD_SQUARES] += weight * square_of(call->attr->head.squares, lse);
            for (int64_t v = 0; v < z.V && slope; v++)
                logits[v] *= slope[v];
        }
        if (grad)
            row_gradients(call, z, n, weight, logits, dw);
    }
    for (int i = 0; i < sh_head_numbers(call->attr); i++)
        sh_ref_sum(call, 0, i, sums[i]);
    for (int64_t i = 0; dw && i < z.V * z.C; i++)
        sh_ref_sum(call, 2, i, dw[i]);
    return SH_OK;
}

/* Logit i of a part. */
static double part_get(const struct sh_op_call *call, int64_t i)
{
    return capped(sh_ref_get(&call->in[0], i), call->attr->part.cap);
}

/* The likeliest word of a row; the first one on a tie. */
static int64_t likeliest_of(const struct sh_op_call *call, int64_t row)
{
    int64_t V = call->in[0].dim[1], best = 0;

    for (int64_t v = 1; v < V; v++)
        if (part_get(call, row * V + v) > part_get(call, row * V + best))
            best = v;
    return best;
}

static void set_stat(const struct sh_op_call *call, int64_t row, double max, double sum, double at_target)
{
    sh_ref_set(&call->out[0], 3 * row, max);
    sh_ref_set(&call->out[0], 3 * row + 1, sum);
    sh_ref_set(&call->out[0], 3 * row + 2, at_target);
}

sh_rc sh_ref_loss_part(const struct sh_op_call *call)
{
    const struct sh_operand *z = &call->in[0];
    int64_t V = z->dim[1];

    for (int64_t n = 0; n < z->dim[0]; n++) {
        double target = sh_ref_get(&call->in[1], n) - (double)call->attr->part.first, max = -INFINITY, sum = 0;

        for (int64_t v = 0; v < V; v++)
            max = fmax(max, part_get(call, n * V + v));
        max = (float)max; /* what the others will see */
        for (int64_t v = 0; v < V; v++)
            sum += exp(part_get(call, n * V + v) - max);
        if (call->out[1].data)
            sh_ref_set(&call->out[1], n, (double)(call->attr->part.first + likeliest_of(call, n)));
        set_stat(call, n, max, sum, target >= 0 && target < (double)V ? part_get(call, n * V + (int64_t)target) : 0);
    }
    return SH_OK;
}

/* Of the whole row: the log of the sum of exponentials; adds up what the parts say of the target's logit. */
static double lse_of_parts(const struct sh_operand *stats, int64_t row, double *at_target)
{
    int64_t P = stats->dim[0], N = stats->dim[1];
    double max = -INFINITY, sum = 0;

    *at_target = 0;
    for (int64_t p = 0; p < P; p++) {
        max = fmax(max, sh_ref_get(stats, 3 * (p * N + row)));
        *at_target += sh_ref_get(stats, 3 * (p * N + row) + 2);
    }
    for (int64_t p = 0; p < P; p++)
        sum += sh_ref_get(stats, 3 * (p * N + row) + 1) * exp(sh_ref_get(stats, 3 * (p * N + row)) - max);
    return max + log(sum);
}

sh_rc sh_ref_loss_rest(const struct sh_op_call *call)
{
    const struct sh_operand *z = &call->in[0];
    int64_t V = z->dim[1];
    double loss = 0, squares = 0, factor = call->attr->part.squares;

    for (int64_t n = 0; n < z->dim[0]; n++) {
        double word = sh_ref_get(&call->in[2], n), at_target, lse = lse_of_parts(&call->in[1], n, &at_target);
        int64_t target = (int64_t)(word - (double)call->attr->part.first);

        loss += word >= 0 && call->attr->part.first == 0 ? lse - at_target : 0;
        squares += word >= 0 && call->attr->part.first == 0 ? square_of(factor, lse) : 0;
        for (int64_t v = 0; v < V && call->out[1].data; v++) {
            double logit = part_get(call, n * V + v), slope = slope_of(logit, call->attr->part.cap);

            sh_ref_set(&call->out[1], n * V + v,
                       word < 0 ? 0
                                : ((1 + more_of(factor, lse)) * exp(logit - lse) - (v == target)) * slope *
                                      call->scalars->loss_scale);
        }
    }
    sh_ref_sum(call, 0, 0, loss);
    if (factor != 0)
        sh_ref_sum(call, 0, 1, squares);
    return SH_OK;
}

sh_rc sh_ref_score_rest(const struct sh_op_call *call)
{
    const struct sh_operand *stats = &call->in[0];
    int64_t P = stats->dim[0], N = stats->dim[1];

    for (int64_t n = 0; n < N; n++) {
        double at_target, lse = lse_of_parts(stats, n, &at_target);
        int64_t best = 0;

        for (int64_t p = 1; p < P; p++)
            if (sh_ref_get(stats, 3 * (p * N + n)) > sh_ref_get(stats, 3 * (best * N + n)))
                best = p;
        sh_ref_set(&call->out[0], n, sh_ref_get(&call->in[2], n) < 0 ? 0 : at_target - lse);
        sh_ref_set(&call->out[1], n, sh_ref_get(&call->in[1], best * N + n));
    }
    return SH_OK;
}

static double rank_of(double logit)
{
    return isnan(logit) ? -INFINITY : logit;
}

/* The K largest logits of a row, the largest first, of equal ones the first word: each time the best one below the last. */
static void best_words(const struct sh_op_call *call, struct shape z, int64_t row, double lse, const double *logits)
{
    int64_t K = call->out[2].dim[call->out[2].ndim - 1], last = -1;

    for (int64_t j = 0; j < K; j++) {
        int64_t best = -1;

        for (int64_t v = 0; v < z.V; v++) {
            double own = rank_of(logits[v]), end = last < 0 ? INFINITY : rank_of(logits[last]);
            bool after = own < end || (own == end && v > last);

            best = after && (best < 0 || own > rank_of(logits[best])) ? v : best;
        }
        sh_ref_set(&call->out[2], row * K + j, (double)best);
        sh_ref_set(&call->out[3], row * K + j, logits[best] - lse);
        last = best;
    }
}

sh_rc sh_ref_head_score(const struct sh_op_call *call)
{
    struct shape z = shape_of(call);
    double *logits = call->work;

    for (int64_t n = 0; n < z.N; n++) {
        int64_t target = (int64_t)sh_ref_get(&call->in[2], n);
        double lse = logits_of(call, z, n, logits);
        sh_ref_set(&call->out[0], n, target < 0 ? 0 : logits[target] - lse);
        sh_ref_set(&call->out[1], n, (double)likeliest(logits, z.V));
        if (call->out[2].data)
            best_words(call, z, n, lse, logits);
    }
    return SH_OK;
}

/* The logits of one position of every sequence, for generation; 0 for words of other ranks. */
sh_rc sh_ref_logits(const struct sh_op_call *call)
{
    struct shape z = shape_of(call);
    int64_t B = call->in[0].dim[0], T = call->in[0].dim[1], all = call->out[0].dim[1], first = call->attr->part.first;

    for (int64_t b = 0; b < B; b++)
        for (int64_t v = 0; v < all; v++) {
            bool here = v >= first && v < first + z.V;

            sh_ref_set(&call->out[0], b * all + v,
                       here ? logit(call, z, b * T + call->scalars->position, v - first, call->attr->part.cap) : 0);
        }
    return SH_OK;
}
