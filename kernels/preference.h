/* The losses of answers, with their derivatives. All devices compute with these functions, in double. With d
 * how much likelier an answer is to the model than to the reference, n the number of its targets, s the logistic
 * function, e the smoothing, and x = beta (d of the chosen - d of the rejected):
 *
 *   sigmoid       -(1 - e) log s(x) - e log s(-x)
 *   hinge         max(0, 1 - x)
 *   ipo           (d / n of the chosen - d / n of the rejected - 1 / (2 beta))^2
 *   exo_pair      s(x) (log s(x) - log(1 - e)) + s(-x) (log s(-x) - log e)
 *   robust        (-(1 - e) log s(x) + e log s(-x)) / (1 - 2 e)
 *   sigmoid_norm  -log s(beta (d / n of the chosen - d / n of the rejected))
 * and, with a = beta d of the chosen, b = beta d of the rejected,
 *   nca_pair      -log s(a) - log s(-a) / 2 - log s(-b) / 2
 *   bco_pair      -log s(a) - log s(-b)
 *   sppo_hard     (d of the chosen - 1 / (2 beta))^2 + (d of the rejected + 1 / (2 beta))^2
 *   apo_zero      1 - s(a) + s(b)
 *   apo_down      s(a) + 1 - s(a - b)
 *
 * Without a reference, with l the log-probability of an answer and m = l / n:
 *   cpo           -(1 - e) log s(x) - e log s(-x), x = beta (l of the chosen - l of the rejected)
 *   simpo         the same with x = beta (m of the chosen - m of the rejected) - gamma
 *   orpo          -m of the chosen - beta log s(o of the chosen - o of the rejected), o = m - log(1 - exp(m))
 * A pair's loss may have sft times -m of the chosen added. Of an answer by itself, which weighs w:
 *   apo_zero_unpaired   w (1 - s(a)) if it was chosen, w s(a) if it was rejected
 *   kto                 w (1 - s(a - beta z)) if it was chosen, w s(a - beta z) if it was rejected; z, a constant: the mean d
 *                       of the answers to other prompts in its row, at least 0, and 0 without any
 *
 * Of values that a head makes in place of log-probabilities, with v the value, y the number of the data that ref stands
 * for, and d = v - y; of a pair y is the margin of the chosen answer, and 0 of the rejected one:
 *   reward       -log s(d of the chosen - d of the rejected) + center (v of the chosen + v of the rejected)^2
 *   regression   d^2, of each document by itself
 *
 * Rafailov et al. 2023 (sigmoid), Zhao et al. 2023 (hinge), Azar et al. 2023 (ipo, here over means as in TRL), Ji et al.
 * 2024 (exo_pair), Chen et al. 2024 (nca_pair), Chowdhury et al. 2024 (robust), Jung et al. 2024 (bco_pair), Wu et al.
 * 2024 (sppo_hard), D'Oosterlinck et al. 2024 (apo), Xu et al. 2024 (cpo), Meng et al. 2024 (simpo), Hong et al. 2024
 * (orpo), Pang et al. 2024 (sft), Ethayarajh et al. 2024 (kto), Bradley and Terry 1952 (reward), Touvron et al. 2023 (its margin), Eisenstein et al. 2023
 * (center). Valid C and C++. */
#ifndef SH_KERNELS_PREFERENCE_H
#define SH_KERNELS_PREFERENCE_H

#include "kernels/op.h"
#include "src/config/words.h"

#include <math.h>

#ifdef __CUDACC__
#define SH_PREFERENCE __host__ __device__ static inline
#else
#define SH_PREFERENCE static inline
#endif

/* An answer: l - ref, its targets, at least 1, and l. */
struct sh_pair_answer {
    double d, n, l;
};

/* The loss, and minus its derivatives by l of the chosen and of the rejected answer. */
struct sh_pair_slope {
    double loss, chosen, rejected;
};

/* The logistic function. */
SH_PREFERENCE double sh_pair_s(double x)
{
    return 1 / (1 + exp(-x));
}

/* log(s(x)), exact for all x: at 0 it is -log(2). */
SH_PREFERENCE double sh_pair_log_s(double x)
{
    return (x < 0 ? x : 0) - log1p(exp(-fabs(x)));
}

/* The losses of x alone: the loss and minus its derivative by x. */
SH_PREFERENCE struct sh_pair_slope sh_pair_margin(int loss, double e, double x)
{
    double p = sh_pair_s(x), q = sh_pair_s(-x), log_p = sh_pair_log_s(x), log_q = sh_pair_log_s(-x);
    struct sh_pair_slope s = {-log_p, q, 0};

    if (loss == SH_PREFER_SIGMOID || loss == SH_PREFER_CPO || loss == SH_PREFER_SIMPO) {
        s.loss = -(1 - e) * log_p - e * log_q;
        s.chosen = (1 - e) * q - e * p;
    } else if (loss == SH_PREFER_ROBUST) {
        s.loss = (-(1 - e) * log_p + e * log_q) / (1 - 2 * e);
        s.chosen = ((1 - e) * q + e * p) / (1 - 2 * e);
    } else if (loss == SH_PREFER_HINGE) {
        s.loss = x >= 1 ? 0 : 1 - x;
        s.chosen = x >= 1 ? 0 : 1;
    } else if (loss == SH_PREFER_EXO_PAIR) {
        s.loss = p * (log_p - log1p(-e)) + q * (log_q - log(e));
        s.chosen = -p * q * (x - log1p(-e) + log(e));
    }
    return s;
}

/* The losses of both answers by themselves; a, b: beta d. Derivatives by a and b. */
SH_PREFERENCE struct sh_pair_slope sh_pair_apart(int loss, double a, double b)
{
    double p = sh_pair_s(a), q = sh_pair_s(b), m = sh_pair_s(a - b);
    struct sh_pair_slope s = {0, 0, 0};

    if (loss == SH_PREFER_NCA_PAIR) {
        s.loss = -sh_pair_log_s(a) - sh_pair_log_s(-a) / 2 - sh_pair_log_s(-b) / 2;
        s.chosen = sh_pair_s(-a) - p / 2;
        s.rejected = -q / 2;
    } else if (loss == SH_PREFER_BCO_PAIR) {
        s.loss = -sh_pair_log_s(a) - sh_pair_log_s(-b);
        s.chosen = sh_pair_s(-a);
        s.rejected = -q;
    } else if (loss == SH_PREFER_APO_ZERO) {
        s.loss = 1 - p + q;
        s.chosen = p * (1 - p);
        s.rejected = -q * (1 - q);
    } else { /* apo_down */
        s.loss = p + 1 - m;
        s.chosen = m * (1 - m) - p * (1 - p);
        s.rejected = -m * (1 - m);
    }
    return s;
}

/* log(1 - exp(m)), exact near 0 and far from it. An answer that is certain counts as one that is nearly so, which keeps
 * the odds finite. */
SH_PREFERENCE double sh_pair_rest(double m)
{
    return m > -0.69 ? log(-expm1(m)) : log1p(-exp(m));
}

/* c, j: the means of both answers. Derivatives by these. */
SH_PREFERENCE struct sh_pair_slope sh_pair_odds(double beta, double c, double j)
{
    const double certain = -1e-12;
    struct sh_pair_slope s;
    double x, q;

    c = c > certain ? certain : c;
    j = j > certain ? certain : j;
    x = c - j - sh_pair_rest(c) + sh_pair_rest(j);
    q = sh_pair_s(-x);
    s.loss = -c - beta * sh_pair_log_s(x);
    s.chosen = 1 - beta * q / expm1(c);
    s.rejected = beta * q / expm1(j);
    return s;
}

/* Whether a loss looks at means over targets, and the reward too. */
SH_PREFERENCE int sh_pair_means(int loss)
{
    return loss == SH_PREFER_SIMPO || loss == SH_PREFER_ORPO;
}

SH_PREFERENCE double sh_pair_reward(const struct sh_op_pair *how, struct sh_pair_answer a)
{
    if (how->loss == SH_PREFER_REWARD || how->loss == SH_PREFER_REGRESSION)
        return a.l;
    return how->beta * (sh_pair_means(how->loss) ? a.d / a.n : a.d);
}

/* An answer by itself, compared with z. The derivative is in `chosen`. */
SH_PREFERENCE struct sh_pair_slope sh_pair_single_slope(const struct sh_op_pair *how, int chosen,
                                                        struct sh_pair_answer a, double z)
{
    double p = sh_pair_s(how->beta * (a.d - z)), w = chosen ? how->desirable : how->undesirable;
    double slope = w * how->beta * p * (1 - p);
    struct sh_pair_slope s = {w * (chosen ? 1 - p : p), chosen ? slope : -slope, 0}, square = {a.d * a.d, -2 * a.d, 0};

    return how->loss == SH_PREFER_REGRESSION ? square : s;
}

/* Of the values of a pair. */
SH_PREFERENCE struct sh_pair_slope sh_pair_rewards(double center, struct sh_pair_answer c, struct sh_pair_answer j)
{
    struct sh_pair_slope s = sh_pair_margin(SH_PREFER_SIGMOID, 0, c.d - j.d);
    double sum = c.l + j.l;

    s.rejected = -s.chosen - 2 * center * sum;
    s.chosen -= 2 * center * sum;
    s.loss += center * sum * sum;
    return s;
}

/* Without what `sft` adds. */
SH_PREFERENCE struct sh_pair_slope sh_pair_plain(const struct sh_op_pair *how, struct sh_pair_answer c,
                                                 struct sh_pair_answer j)
{
    int loss = how->loss;
    double beta = how->beta, e = how->smoothing;
    struct sh_pair_slope s;
    double gap = c.d / c.n - j.d / j.n, half = 1 / (2 * beta);

    switch (loss) {
    case SH_PREFER_IPO:
        s.loss = (gap - half) * (gap - half);
        s.chosen = -2 * (gap - half) / c.n;
        s.rejected = 2 * (gap - half) / j.n;
        return s;
    case SH_PREFER_SPPO_HARD:
        s.loss = (c.d - half) * (c.d - half) + (j.d + half) * (j.d + half);
        s.chosen = -2 * (c.d - half);
        s.rejected = -2 * (j.d + half);
        return s;
    case SH_PREFER_ORPO:
        s = sh_pair_odds(beta, c.d / c.n, j.d / j.n);
        s.chosen /= c.n;
        s.rejected /= j.n;
        return s;
    case SH_PREFER_SIMPO:
    case SH_PREFER_SIGMOID_NORM:
        s = sh_pair_margin(loss, e, beta * gap - (loss == SH_PREFER_SIMPO ? how->gamma : 0));
        s.rejected = -beta * s.chosen / j.n;
        s.chosen *= beta / c.n;
        return s;
    case SH_PREFER_NCA_PAIR:
    case SH_PREFER_BCO_PAIR:
    case SH_PREFER_APO_ZERO:
    case SH_PREFER_APO_DOWN:
        s = sh_pair_apart(loss, beta * c.d, beta * j.d);
        s.chosen *= beta;
        s.rejected *= beta;
        return s;
    case SH_PREFER_REWARD: return sh_pair_rewards(how->center, c, j);
    default:
        s = sh_pair_margin(loss, e, beta * (c.d - j.d));
        s.chosen *= beta;
        s.rejected = -s.chosen;
        return s;
    }
}

SH_PREFERENCE struct sh_pair_slope sh_pair_slope_of(const struct sh_op_pair *how, struct sh_pair_answer c,
                                                    struct sh_pair_answer j)
{
    struct sh_pair_slope s = sh_pair_plain(how, c, j);

    if (how->sft > 0) {
        s.loss -= how->sft * (c.l / c.n);
        s.chosen += how->sft / c.n;
    }
    return s;
}

#undef SH_PREFERENCE
#endif
