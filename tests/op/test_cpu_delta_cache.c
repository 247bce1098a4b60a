/* The gated delta rule, Mamba-2 and their convolution from what the call before left: on the CPU as in the reference, and a text in
 * pieces as at once. Rows have any number of tokens, none too. */
#include "kernels/scan.h"
#include "tests/op/agree.h"
#include "tests/op/gradient.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static const enum sh_dtype acts[] = {SH_F32, SH_BF16, SH_F16};
enum { ACTS = sizeof acts / sizeof *acts };

struct shape {
    int B, T, K, H, D, V, C, W;
};

static const struct shape shapes[] = {
    {1, 1, 1, 1, 4, 4, 3, 4},
    {4, 5, 1, 2, 16, 24, 300, 3},
    {3, 130, 2, 4, 32, 16, 5, 4},
    {2, 70, 1, 3, 8, 40, 257, 1},
};
enum { SHAPES = sizeof shapes / sizeof *shapes, LENGTH = 200, TEXTS = 2, PIECE = 70 };

/* An operation over whole texts, and the one that goes on with them. Both have as many inputs with rows, then with
 * parameters; then come documents or positions, the bias of a convolution, and counts as input `count`. */
struct kind {
    enum sh_op_kind whole, on;
    int rows, params, count;
};

static const struct kind kinds[] = {{SH_OP_SHORT_CONV, SH_OP_SHORT_CONV_CACHE, 1, 1, 4},
                                    {SH_OP_GATED_DELTA, SH_OP_GATED_DELTA_CACHE, 2, 2, 5},
                                    {SH_OP_SCAN, SH_OP_SCAN_CACHE, 2, 1, 4}};
enum { KINDS = sizeof kinds / sizeof *kinds, BIAS = 3 };

static void set(struct optest *t, enum sh_op_kind kind, const struct shape *s)
{
    optest_begin(t, kind);
    t->attr.delta.key_heads = s->K;
    t->attr.delta.heads = s->H;
    t->attr.delta.key_dim = s->D;
    t->attr.delta.value_dim = s->V;
    t->attr.delta.least = kind == SH_OP_SCAN || kind == SH_OP_SCAN_CACHE ? 0.3f : 0;
}

/* Inputs and the first output of either operation, for T rows of a text. */
static void begin(struct optest *t, const struct kind *k, enum sh_op_kind op, const struct shape *s, int T,
                  enum sh_dtype act)
{
    set(t, op, s);
    if (k->rows == 1) {
        optest_in(t, 0, act, DIMS(s->B, T, s->C));
        optest_in(t, 1, act, DIMS(s->C, 1, s->W));
        optest_in(t, BIAS, act, DIMS(s->C));
        optest_out(t, 0, act, DIMS(s->B, T, s->C));
        return;
    }
    optest_in(t, 0, act, DIMS(s->B, T, 2 * s->K * s->D + s->H * s->V));
    optest_in(t, 1, act, DIMS(s->B, T, k->params * s->H));
    optest_in(t, 2, act, DIMS(k->params == 1 ? 3 * s->H : s->H));
    if (k->params == 2)
        optest_in(t, 3, act, DIMS(s->H));
    optest_out(t, 0, act, DIMS(s->B, T, s->H * s->V));
}

/* Positions, counts, and what is left. */
static void begin_on(struct optest *t, const struct kind *k, const struct shape *s, int T, enum sh_dtype act)
{
    begin(t, k, k->on, s, T, act);
    optest_in_ints(t, k->rows + k->params, 0, 3, DIMS(s->B, T));
    optest_in_ints(t, k->count, 0, T + 1, DIMS(s->B));
    if (k->rows == 2)
        optest_out(t, 1, SH_F32, DIMS(s->B, s->H * s->D * s->V));
    else if (s->W > 1)
        optest_out(t, 1, act, DIMS(s->B, s->W - 1, s->C));
}

/* The first text begins, the second has no tokens, the others are anywhere. */
static void as_the_reference(void **state)
{
    (void)state;
    optest_seed(91);
    for (int i = 0; i < SHAPES * ACTS * KINDS; i++) {
        const struct kind *k = &kinds[i % KINDS];
        const struct shape *s = &shapes[i / KINDS / ACTS];
        enum sh_dtype act = acts[i / KINDS % ACTS];
        const struct sh_bound made[] = {sh_bound_sum(act, 64), sh_bound_sum(k->rows == 2 ? SH_F32 : act, 64)};
        struct optest t;

        begin_on(&t, k, s, s->T, act);
        if (t.call.out[1].data)
            optest_add_to(&t, 1);
        optest_set(&t.call.in[k->rows + k->params], 0, 0);
        optest_set(&t.call.in[k->count], 0, s->T);
        if (s->B > 1)
            optest_set(&t.call.in[k->count], 1, 0);
        agree(&t, 2, made, -1, -1);
        optest_end(&t);
    }
}

/* The next n rows of a text go into the call; those behind them are large, and do not count. */
static void feed(struct optest *on, const struct kind *k, const struct optest *whole, int text, int done, int n)
{
    for (int i = 0; i < k->rows; i++) {
        int64_t width = whole->call.in[i].dim[2];

        for (int64_t j = 0; j < PIECE * width; j++)
            optest_set(&on->call.in[i], text * PIECE * width + j,
                       j < n * width ? optest_get(&whole->call.in[i], (text * LENGTH + done) * width + j) : 9);
    }
    for (int j = 0; j < PIECE; j++)
        optest_set(&on->call.in[k->rows + k->params], text * PIECE + j, j < n ? done + j : 0);
    optest_set(&on->call.in[k->count], text, n);
}

/* Rows that count are those of the whole text; the others are 0. */
static void compare(const struct optest *on, const struct optest *whole, int text, int done, int n)
{
    const struct sh_operand *y = &on->call.out[0];
    const struct sh_bound bound = sh_bound_sum(y->dtype, 64);
    int64_t width = y->dim[2];

    for (int64_t j = 0; j < PIECE * width; j++) {
        double wanted = j < n * width ? optest_get(&whole->call.out[0], (text * LENGTH + done) * width + j) : 0;

        if (!(fabs(optest_get(y, text * PIECE * width + j) - wanted) <= bound.atol + bound.rtol * fabs(wanted)))
            fail_msg("text %d, row %d: not as in the whole text", text, done + (int)(j / width));
    }
}

/* Both texts begin where NaN was left; then the second one begins again. */
static void pieces(const struct kind *k, const struct sh_kernel_table *table, enum sh_dtype act)
{
    static const int n[][TEXTS] = {{70, 1}, {0, 40}, {1, 1}, {64, 0}, {1, 70}, {1, 2}, {63, 1}};
    const struct shape s = {.B = TEXTS, .K = 1, .H = 2, .D = 16, .V = 24, .C = 300, .W = 4};
    struct optest whole, on;
    int done[TEXTS] = {0}, chunk = k->params == 1 ? SH_SCAN_CHUNK : SH_DELTA_CHUNK;

    begin(&whole, k, k->whole, &s, LENGTH, act);
    optest_in_ints(&whole, k->rows + k->params, 0, 1, DIMS(TEXTS, LENGTH));
    if (k->rows == 2)
        optest_out(&whole, 1, SH_F32, DIMS(TEXTS, (LENGTH + chunk - 1) / chunk, s.H * s.D * s.V));
    optest_run(&whole, &sh_kernels_ref, 1);
    begin_on(&on, k, &s, PIECE, act);
    for (int i = 0; i < k->params; i++)
        gradient_copy(&on.call.in[k->rows + i], &whole.call.in[k->rows + i]);
    if (k->rows == 1)
        gradient_copy(&on.call.in[BIAS], &whole.call.in[BIAS]);
    for (size_t i = 0; i <= sizeof n / sizeof *n; i++) {
        bool again = i == sizeof n / sizeof *n;

        done[1] = again ? 0 : done[1];
        for (int text = 0; text < TEXTS; text++)
            feed(&on, k, &whole, text, done[text], again ? 3 * text : n[i][text]);
        optest_run(&on, table, 2);
        for (int text = 0; text < TEXTS; text++) {
            compare(&on, &whole, text, done[text], again ? 3 * text : n[i][text]);
            done[text] += again ? 0 : n[i][text];
        }
    }
    assert_int_equal(done[0], LENGTH);
    optest_end(&whole);
    optest_end(&on);
}

static void pieces_are_the_whole(void **state)
{
    (void)state;
    optest_seed(92);
    for (int i = 0; i < KINDS * ACTS; i++) {
        pieces(&kinds[i % KINDS], &sh_kernels_ref, acts[i / KINDS]);
        pieces(&kinds[i % KINDS], &sh_kernels_cpu, acts[i / KINDS]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_the_reference),
        cmocka_unit_test(pieces_are_the_whole),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
