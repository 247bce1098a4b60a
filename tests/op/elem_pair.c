/* The loss of pairs: rows with some pairs, one answer without targets, an odd document at the end, and empty places, each
 * its own document; and the derivatives of all losses by differences. */
#include "kernels/preference.h"
#include "tests/op/elem.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static const int shapes[][2] = {{1, 1}, {1, 2}, {3, 40}, {2, 700}, {5, 257}, {70, 9}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static const char *const words[] = {
#define WORD(id, word, takes) [SH_PREFER_##id] = word,
    SH_LOSS_TYPES(WORD) SH_VALUE_LOSSES(WORD)
#undef WORD
};

/* Documents of 1 to 5 places, more in long rows; the rest of a row is empty. */
static void put_row(struct optest *t, int64_t row, int64_t T)
{
    int64_t most = T > 100 ? T / 4 : 5, end = T - optest_int(0, T / 3 + 1), first = 0;

    for (int64_t at = 0; at < T; at++) {
        if (at >= end || optest_int(0, most) == 0)
            first = at;
        optest_set(&t->call.in[2], row * T + at, (double)first);
        optest_set(&t->call.in[1], row * T + at, at >= end || optest_int(0, 3) == 0 ? -1 : 7);
        optest_set(&t->call.in[0], row * T + at, -fabs(optest_normal()));
        if (t->call.in[3].data)
            optest_set(&t->call.in[3], row * T + at, -fabs(optest_normal()) * (double)(at - first + 1));
        if (t->call.in[4].data)
            optest_set(&t->call.in[4], row * T + at, (double)optest_int(0, t->attr.pair.loss == SH_PREFER_KTO ? 2 : 1));
    }
}

static void begin(struct optest *t, int loss, int64_t B, int64_t T)
{
    optest_begin(t, SH_OP_PAIR_LOSS);
    t->attr.pair = (struct sh_op_pair){loss, 0.3, 0.1, 0.4, loss % 2 ? 0.7 : 0, 1.5, 0.6, 0.2, 0};
    optest_in(t, 0, SH_F32, DIMS(B, T));
    optest_in_ints(t, 1, -1, 0, DIMS(B, T));
    optest_in_ints(t, 2, 0, 1, DIMS(B, T));
    if (sh_cfg_loss_takes(loss) & (SH_TAKES_REFERENCE | SH_TAKES_NUMBERS))
        optest_in(t, 3, SH_F64, DIMS(B, T));
    if (sh_cfg_loss_takes(loss) & SH_TAKES_LABELS)
        optest_in_ints(t, 4, 0, 1, DIMS(B, T));
    for (int64_t b = 0; b < B; b++)
        put_row(t, b, T);
    optest_out(t, 0, SH_F32, DIMS(B, T));
    optest_out(t, 1, SH_F64, DIMS(B, T));
    optest_out(t, 2, SH_F64, DIMS(loss == SH_PREFER_KTO ? SH_PAIR_ALL : SH_PAIR_NUMBERS));
}

void elem_pair(void **state)
{
    (void)state;
    optest_seed(41);
    for (int i = 0; i < SHAPES * SH_PREFERENCES && !elem.half; i++) {
        struct optest t;

        if (elem.few &&
            (i / SH_PREFERENCES + i % SH_PREFERENCES) % 3 > 0) /* two shapes for each loss, and all shapes */
            continue;
        begin(&t, i % SH_PREFERENCES, shapes[i / SH_PREFERENCES][0], shapes[i / SH_PREFERENCES][1]);
        if (i % 2)
            optest_add_to(&t, 2);
        elem_check(&t, TERMS(4, 1024, 1e6));
    }
}

/* A number that is not one must be seen. */
void elem_pair_not_finite(void **state)
{
    (void)state;
    for (int loss = 0; loss < SH_PREFERENCES; loss++) {
        static const double targets[] = {-1, 3, 3, 3}, docs[] = {0, 0, 2, 2};
        struct optest t;

        optest_seed(42);
        begin(&t, loss, 1, 4);
        for (int i = 0; i < 4; i++) {
            optest_set(&t.call.in[1], i, targets[i]);
            optest_set(&t.call.in[2], i, docs[i]);
        }
        optest_set(&t.call.in[0], 3, NAN);
        elem.run(&t, elem.table, 0);
        if (!isnan(optest_get(&t.call.out[2], SH_PAIR_LOSS)))
            fail_msg("%s: NaN is not seen", words[loss]);
        optest_end(&t);
    }
}

/* Single answers: the first is desirable, the second is not. */
static struct sh_pair_slope slope_at(int loss, double c, double j)
{
    const struct sh_op_pair how = {loss, 0.3, 0.1, 0.4, 0.7, 1.5, 0.6, 0.2, 0};
    struct sh_pair_answer a = {c, 3, c - 1}, b = {j, 2, j + 1};

    if (sh_cfg_loss_takes(loss) & SH_TAKES_LABELS) {
        struct sh_pair_slope first = sh_pair_single_slope(&how, 1, a, 0.7),
                             second = sh_pair_single_slope(&how, 0, b, 0.7);

        return (struct sh_pair_slope){first.loss + second.loss, first.chosen, second.chosen};
    }
    return sh_pair_slope_of(&how, a, b);
}

static double loss_at(int loss, double c, double j)
{
    return slope_at(loss, c, j).loss;
}

/* The probability of all other answers, of one that is all but certain: 1 - exp(m) would be 0 or lose all digits. */
static void almost_certain(void)
{
    for (double m = -1e-3; m < -1e-300; m /= 10)
        if (!(fabs(sh_pair_rest(m) - (log(-m) + m / 2)) <= m * m / 20 + 1e-12))
            fail_msg("the rest of exp(%g): exp(%.17g)", m, sh_pair_rest(m));
    for (double m = -40; m > -700; m *= 1.5)
        assert_true(sh_pair_rest(m) == -exp(m) && sh_pair_rest(m) < 0);
    for (int i = 0; i < 9; i++) {
        const double near[] = {0, -1e-13, -1e-9}, c = near[i / 3], j = near[i % 3];
        struct sh_pair_slope s = sh_pair_odds(0.3, c, j);

        assert_true(isfinite(s.loss) && isfinite(s.chosen) && isfinite(s.rejected));
    }
    assert_true(fabs(sh_pair_odds(1, -1e-9, -2e-9).loss - log(1.5)) < 1e-7); /* odds of 2 to 1 */
}

void elem_pair_slopes(void **state)
{
    static const double at[] = {-40, -3.1, -0.2, 0, 0.7, 2.9, 35};
    const double h = 1e-5;

    (void)state;
    almost_certain();
    for (size_t i = 0; i < SH_PREFERENCES * 49; i++) {
        int loss = (int)i / 49;
        /* Odds are those of probabilities, whose logarithms are negative. */
        bool odds = loss == SH_PREFER_ORPO;
        double c = odds ? -fabs(at[i / 7 % 7]) - 0.1 : at[i / 7 % 7], j = odds ? -fabs(at[i % 7]) - 0.1 : at[i % 7];
        struct sh_pair_slope s = slope_at(loss, c, j);
        double dc = (loss_at(loss, c - h, j) - loss_at(loss, c + h, j)) / (2 * h);
        double dj = (loss_at(loss, c, j - h) - loss_at(loss, c, j + h)) / (2 * h);

        if (!(fabs(dc - s.chosen) <= 2e-8 * (1 + fabs(dc)) && fabs(dj - s.rejected) <= 2e-8 * (1 + fabs(dj))))
            fail_msg("%s at %g, %g: %.10g and %.10g, by differences %.10g and %.10g", words[loss], c, j, s.chosen,
                     s.rejected, dc, dj);
    }
}
