#include "kernels/cpu/teacher.h"

#include "kernels/cpu/base/row.h"
#include "kernels/cpu/base/stage.h"
#include "src/config/words.h"

#include <math.h>
#include <string.h>

/* What a row's loss consists of: a softmax of logits / temperature against the teacher's, and one of logits against the
 * target. */
struct row {
    float *x; /* [n] logits */
    int64_t n, k;
    const int32_t *word; /* [k] */
    const float *logp;
    int32_t target;
    double temperature, alpha, max, soft_sum, hard_sum;
    double teacher_max, teacher_sum;
    enum sh_cfg_kd_form form;
    double said;        /* the teacher's probability of its words; 1 if these are normalized */
    double tail, ratio; /* what is left of it, and that by what is left of the model's; 0 if the rest does not count */
};

/* Sum of exp((x - max) / temperature); x stays. */
static double sum_exponentials(const struct row *r, double temperature)
{
    float some[SH_CPU_PIECE];
    double sum = 0;

    for (int64_t at = 0; at < r->n; at += SH_CPU_PIECE) {
        int64_t n = r->n - at < SH_CPU_PIECE ? r->n - at : SH_CPU_PIECE;

        memcpy(some, r->x + at, (size_t)n * sizeof *some);
        sum += (double)sh_cpu_row_exp(some, n, (float)(1 / temperature), (float)(r->max / temperature));
    }
    return sum;
}

static void sum_teacher(struct row *r)
{
    r->teacher_max = -INFINITY;
    r->teacher_sum = 0;
    for (int64_t j = 0; j < r->k; j++) /* fmax() here ends GCC 12.2 for AArch64 with an internal error */
        r->teacher_max = (double)r->logp[j] > r->teacher_max ? (double)r->logp[j] : r->teacher_max;
    for (int64_t j = 0; j < r->k; j++)
        r->teacher_sum += exp(((double)r->logp[j] - r->teacher_max) / r->temperature);
}

/* The log of the teacher's share of its word j. */
static double log_share(const struct row *r, int64_t j)
{
    return r->form != SH_KD_NORMALIZED ? (double)r->logp[j]
                                       : ((double)r->logp[j] - r->teacher_max) / r->temperature - log(r->teacher_sum);
}

/* The log of the model's probability of word j of the teacher. */
static double log_own(const struct row *r, int64_t j)
{
    return ((double)r->x[r->word[j]] - r->max) / r->temperature - log(r->soft_sum);
}

static void sum_rest(struct row *r)
{
    double rest = 1;

    r->said = r->form == SH_KD_NORMALIZED;
    for (int64_t j = 0; j < r->k && r->form != SH_KD_NORMALIZED; j++) {
        r->said += exp((double)r->logp[j]);
        rest -= exp(log_own(r, j));
    }
    r->tail = r->form == SH_KD_TAIL && r->said < 1 ? 1 - r->said : 0;
    r->ratio = r->tail / (rest > SH_KD_REST ? rest : SH_KD_REST);
}

static struct row open_row(const struct sh_op_call *call, int64_t row, float *x, int64_t n)
{
    int64_t k = call->in[4].dim[call->in[4].ndim - 1];
    struct row r = {.x = x,
                    .n = n,
                    .k = k,
                    .word = (const int32_t *)call->in[4].data + row * k,
                    .logp = (const float *)call->in[5].data + row * k,
                    .target = ((const int32_t *)call->in[2].data)[row],
                    .temperature = call->attr->head.temperature,
                    .alpha = call->attr->head.alpha,
                    .form = (enum sh_cfg_kd_form)call->attr->head.form,
                    .max = (double)sh_cpu_row_max(x, n)};

    r.soft_sum = sum_exponentials(&r, r.temperature);
    r.hard_sum = r.temperature == 1 ? r.soft_sum : sum_exponentials(&r, 1);
    sum_teacher(&r);
    sum_rest(&r);
    return r;
}

/* What alpha T^2 multiplies in the loss. */
static double divergence(const struct row *r)
{
    double soft = r->tail > 0 ? r->tail * log(r->ratio) : 0;

    for (int64_t j = 0; j < r->k; j++) {
        double share = log_share(r, j);

        soft += exp(share) * (share - log_own(r, j));
    }
    return soft;
}

static struct sh_teacher_row numbers_of(const struct row *r)
{
    struct sh_teacher_row n = {.kl = divergence(r)};

    for (int64_t j = 0; j < r->k; j++)
        n.mass += exp((double)r->logp[j]);
    n.right = (double)r->x[r->target] == r->max && sh_cpu_best_word(r->x, r->n, (float)r->max) == r->target;
    return n;
}

/* x = soft exp((x - max) / temperature) + hard exp(x - max) */
static void mix_exponentials(const struct row *r, float soft, float hard)
{
    float some[SH_CPU_PIECE];

    for (int64_t at = 0; at < r->n; at += SH_CPU_PIECE) {
        int64_t n = r->n - at < SH_CPU_PIECE ? r->n - at : SH_CPU_PIECE;
        float *x = r->x + at;

        memcpy(some, x, (size_t)n * sizeof *some);
        sh_cpu_row_exp(some, n, (float)(1 / r->temperature), (float)(r->max / r->temperature));
        sh_cpu_row_exp(x, n, 1, (float)r->max);
        for (int64_t i = 0; i < n; i++)
            x[i] = soft * some[i] + hard * x[i];
    }
}

/* The derivative of the teacher's part is T times the difference of the two softmaxes: T^2 from the loss, 1 / T from the
 * logits. With a rest this is so for the teacher's words, at T = 1; the probabilities of all others count less by what
 * the teacher has left for them. A model sure of these words has a ratio of thousands, so they are computed apart: a
 * difference of multiples of the ratio would lose their last digits. `more`: of attr->head.squares. */
static void make_gradient(const struct row *r, double scale, double more)
{
    double soft = scale * r->alpha * r->temperature, hard = scale * (1 - r->alpha), own[SH_KD_WORDS];
    double all = hard + scale * more; /* what the softmax counts at temperature 1 */

    for (int64_t j = 0; j < r->k && r->tail > 0; j++)
        own[j] = (soft + all) * exp(log_own(r, j));
    mix_exponentials(r, (float)(soft * (r->tail > 0 ? 1 - r->ratio : r->said) / r->soft_sum),
                     (float)(all / r->hard_sum));
    for (int64_t j = 0; j < r->k && r->tail > 0; j++)
        r->x[r->word[j]] = (float)own[j];
    for (int64_t j = 0; j < r->k; j++)
        r->x[r->word[j]] -= (float)(soft * exp(log_share(r, j)));
    r->x[r->target] -= (float)hard;
}

/* Labels, each by itself. */
static double multi_label_row(const float *wanted, float *x, int64_t n, bool gradient, double scale,
                              struct sh_teacher_row *numbers)
{
    double loss = 0;

    *numbers = (struct sh_teacher_row){.right = true};
    for (int64_t v = 0; v < n; v++) {
        double z = (double)x[v], y = (double)wanted[v], e = exp(-fabs(z));
        bool found = z > 0, there = y >= 0.5;

        loss += (z > 0 ? z : 0) + log1p(e) - y * z;
        numbers->kl += found && there;
        numbers->mass += found + there;
        numbers->right = numbers->right && found == there;
        if (gradient)
            x[v] = (float)(scale / (double)n * ((z > 0 ? 1 : e) / (1 + e) - y));
    }
    return loss / (double)n;
}

double sh_cpu_teacher_row(const struct sh_op_call *call, int64_t row, float *x, int64_t n, bool gradient, double scale,
                          double *lse, struct sh_teacher_row *numbers)
{
    struct row r;
    double hard;

    *lse = 0;
    if (call->attr->head.multi_label)
        return multi_label_row((const float *)call->in[5].data + row * n, x, n, gradient, scale, numbers);
    r = open_row(call, row, x, n);
    hard = log(r.hard_sum) + r.max - (double)r.x[r.target];

    *numbers = numbers_of(&r);
    *lse = log(r.hard_sum) + r.max;
    if (gradient)
        make_gradient(&r, scale, 2 * call->attr->head.squares * *lse);
    return r.alpha * r.temperature * r.temperature * numbers->kl + (1 - r.alpha) * hard;
}

int32_t sh_cpu_best_word(const float *x, int64_t n, float max)
{
    for (int64_t v = 0; v < n; v++)
        if (x[v] == max)
            return (int32_t)v;
    return 0;
}

/* Of the words before it the list has the k largest, so few words enter it. Without NaN it is in a total order. */
void sh_cpu_best_words(const float *x, int64_t n, int64_t k, int32_t *word, float *best)
{
    int64_t have = 0;

    for (int32_t v = 0; v < n; v++) {
        int64_t at = have;

        float z = x[v];

        if (have == k && !(z > best[k - 1]))
            continue;
        z = isnan(z) ? -INFINITY : z;
        have += have < k;
        for (at = at < k ? at : k - 1; at > 0 && z > best[at - 1]; at--) {
            best[at] = best[at - 1];
            word[at] = word[at - 1];
        }
        best[at] = z;
        word[at] = v;
    }
}
