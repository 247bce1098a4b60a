/* Attention against the reference: lengths around the blocks' edges, all ratios of heads, documents that start
 * anywhere, scores that are far apart. Bits must not depend on threads or addresses. */
#include "tests/op/agree.h"
#include "tests/op/calls.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* clang-format off */
static const struct attention_shape shapes[] = {
    {1, 1, 1, 1, 8, false, 0},    {2, 17, 2, 1, 8, true, 0},    {1, 64, 3, 3, 16, false, 0}, {2, 65, 4, 2, 10, true, 0},
    {1, 130, 4, 2, 64, true, 0},  {1, 200, 6, 2, 40, false, 0}, {2, 129, 2, 2, 128, true, 0}, {1, 70, 2, 1, 256, false, 0},
    {1, 530, 2, 1, 64, true, 0},  {3, 128, 1, 1, 32, true, 0},  {1, 193, 4, 1, 64, false, 0},
    {1, 97, 3, 3, 33, true, 0},   {2, 300, 2, 1, 128, true, 0},
    {2, 65, 2, 1, 10, false, 1}, {1, 130, 4, 2, 64, true, 7},   {1, 530, 2, 1, 64, false, 100}, {2, 300, 3, 1, 32, true, 33},
    {1, 97, 1, 1, 16, false, 96}, {1, 97, 1, 1, 16, false, 97}, {1, 400, 2, 2, 128, false, 64},
};
/* clang-format on */

/* Products of bf16 read weights, and gradients of scores, that are rounded to bf16: each is off by at most 2^-9 of
 * itself, and their sums by that fraction of what they would be if nothing cancelled, which is at most `size`. */
static struct sh_bound weighted(struct sh_bound b, enum sh_dtype act, enum sh_op_kind kind, double size)
{
    b.atol += act == SH_F32 ? 0 : sh_bound_inside(kind) * sh_bound_eps(act) / 2 * size;
    return b;
}

/* A score is a sum of D products, and its error carries over to the exponential; weights then sum to 1 over the
 * keys. */
static void check_forward(enum sh_dtype act, struct attention_shape s)
{
    struct optest t;
    attention_forward(&t, act, s);
    double terms = (double)(s.dim + s.seq);
    /* The weights of a row sum to 1. */
    struct sh_bound o = weighted(sh_bound_sum(act, terms), act, SH_OP_ATTENTION, 1);
    agree(&t, 2, (struct sh_bound[]){o, sh_bound_sum(SH_F32, terms)}, -1, -1);
    optest_end(&t);
}

/* dp is a sum of D products, of size sqrt(D); dk and dv sum over the queries of all heads that share the key: for
 * each head, the weights of a column sum to a small number. */
static void check_backward(enum sh_dtype act, struct attention_shape s)
{
    struct optest t;
    attention_backward(&t, act, s);
    double sharing = (double)s.heads / s.kv_heads;
    struct sh_bound bound = sh_bound_sum(act, (double)(4 * s.dim) + (double)s.seq * sharing);
    bound = weighted(bound, act, SH_OP_ATTENTION_BWD, (1 + sharing) / 2);
    agree(&t, 1, &bound, -1, -1);
    optest_end(&t);
}

/* A soft cap only makes scores smaller, and their gradients. */
static void capped(void **state)
{
    static const enum sh_dtype acts[] = {SH_F32, SH_BF16, SH_F16};

    (void)state;
    optest_seed(32);
    for (size_t i = 0; i < 3 * 3; i++) {
        struct attention_shape s = shapes[1 + i / 3 * 7]; /* small; tiles that documents cut; a window */
        enum sh_dtype act = acts[i % 3];
        double sharing = (double)s.heads / s.kv_heads, terms = (double)(s.dim + s.seq);
        struct sh_bound o = weighted(sh_bound_sum(act, terms), act, SH_OP_ATTENTION, 1);
        struct sh_bound d = sh_bound_sum(act, (double)(4 * s.dim) + (double)s.seq * sharing);
        struct optest f, b;

        attention_cap = 0.75f;
        attention_forward(&f, act, s);
        attention_backward(&b, act, s);
        attention_cap = 0;
        agree(&f, 2, (struct sh_bound[]){o, sh_bound_sum(SH_F32, terms)}, -1, -1);
        d = weighted(d, act, SH_OP_ATTENTION_BWD, (1 + sharing) / 2);
        agree(&b, 1, &d, -1, -1);
        optest_end(&f);
        optest_end(&b);
    }
}

/* Pieces of whole panels and others, each place, more sequences, shared key-value heads, windows, documents. */
static void runs_of_queries(void **state)
{
    static const struct runs_shape some[] = {
        {1, 2, 0, 32, 3, 1, 16, 0, false},  {2, 2, 1, 64, 4, 2, 64, 0, true}, {2, 3, 2, 17, 3, 3, 10, 0, true},
        {1, 4, 1, 96, 7, 1, 32, 40, true},  {3, 3, 1, 33, 2, 1, 8, 5, false}, {1, 1, 0, 130, 2, 2, 40, 0, false},
        {2, 2, 0, 160, 2, 1, 128, 7, true}, {1, 2, 1, 1, 5, 5, 12, 0, false},
    };
    static const enum sh_dtype acts[] = {SH_F32, SH_BF16};

    (void)state;
    optest_seed(31);
    for (int i = 0; i < 2 * (int)(sizeof some / sizeof *some); i++) {
        struct runs_shape s = some[i / 2];
        enum sh_dtype act = acts[i % 2];
        double keys = 2 * s.ranks * s.rows, sharing = (double)s.heads / s.kv_heads;
        struct sh_bound o = weighted(sh_bound_sum(act, s.dim + keys), act, SH_OP_ATTENTION_ROWS, 1), d;
        struct optest t;

        runs_forward(&t, act, s);
        agree(&t, 2, (struct sh_bound[]){o, sh_bound_sum(SH_F32, s.dim + keys)}, -1, -1);
        optest_end(&t);
        runs_backward(&t, act, s);
        d = weighted(sh_bound_sum(act, 4 * s.dim + keys * sharing), act, SH_OP_ATTENTION_ROWS_BWD, (1 + sharing) / 2);
        agree(&t, 2, (struct sh_bound[]){d, d}, -1, -1);
        optest_end(&t);
    }
}

/* What each place of a group makes of its runs is what whole sequences make, bit for bit. */
static void runs_are_sequences(void **state)
{
    enum { B = 2, P = 2, M = 64, T = 2 * P * M, H = 3, D = 16 };
    static const enum sh_dtype acts[] = {SH_F32, SH_BF16};

    (void)state;
    for (int a = 0; a < 2; a++) {
        int64_t size = sh_dtype_bytes(acts[a]);
        struct optest all;

        optest_seed(32);
        attention_forward(&all, acts[a], (struct attention_shape){B, T, H, 1, D, false, 9});
        optest_run(&all, &sh_kernels_cpu, 1);
        for (int place = 0; place < P; place++) {
            struct optest t;

            runs_forward(&t, acts[a], (struct runs_shape){B, P, place, M, H, 1, D, 9, false});
            for (int64_t n = 0; n < 2 * B * M; n++) {
                int64_t row = n / M % B * T + t.attr.attn.first[n / M / B] + n % M;
                memcpy((char *)t.call.in[0].data + n * H * D * size,
                       (char *)all.call.in[0].data + row * (H + 2) * D * size, (size_t)(H * D * size));
            }
            for (int64_t n = 0; n < B * T; n++)
                memcpy((char *)t.call.in[1].data + n * 2 * D * size,
                       (char *)all.call.in[0].data + (n * (H + 2) + H) * D * size, (size_t)(2 * D * size));
            optest_run(&t, &sh_kernels_cpu, 1);
            for (int64_t n = 0; n < 2 * B * M; n++) {
                int64_t row = n / M % B * T + t.attr.attn.first[n / M / B] + n % M;
                assert_memory_equal((char *)t.call.out[0].data + n * H * D * size,
                                    (char *)all.call.out[0].data + row * H * D * size, (size_t)(H * D * size));
            }
            optest_end(&t);
        }
        optest_end(&all);
    }
}

static void check_shapes(enum sh_dtype act)
{
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        check_forward(act, shapes[i]);
        check_backward(act, shapes[i]);
    }
}

static void test_f32(void **state)
{
    (void)state;
    optest_seed(11);
    check_shapes(SH_F32);
}

static void test_bf16(void **state)
{
    (void)state;
    optest_seed(12);
    check_shapes(SH_BF16);
}

static void test_f16(void **state)
{
    (void)state;
    optest_seed(16);
    check_shapes(SH_F16);
}

/* Scores of hundreds: exponentials overflow without the maximum, and rows' maxima grow from tile to tile. */
static void test_large_scores(void **state)
{
    (void)state;
    optest_seed(13);
    struct optest t;
    attention_forward(&t, SH_F32, (struct attention_shape){1, 600, 2, 2, 16, false, 0});
    optest_scale(&t.call.in[0], 20);
    /* Scores of size 400 are off by 400 * D * eps, and the weights by that factor. */
    double off = 400 * 16 * 0x1p-23;
    agree(&t, 2, (struct sh_bound[]){{.atol = 60 * off}, {.atol = off, .rtol = 0x1p-20}}, -1, -1);
    optest_end(&t);
}

/* A NaN in the last query affects no other row. */
static void check_nan(enum sh_dtype act)
{
    struct optest t;
    attention_forward(&t, act, (struct attention_shape){1, 140, 1, 1, 16, false, 0});
    optest_set(&t.call.in[0], 139 * 48, NAN);
    struct sh_bound o = weighted(sh_bound_sum(act, 160), act, SH_OP_ATTENTION, 1);
    agree(&t, 2, (struct sh_bound[]){o, sh_bound_sum(SH_F32, 160)}, -1, -1);
    optest_end(&t);
}

static void test_nan_stays_in_its_row(void **state)
{
    (void)state;
    optest_seed(14);
    check_nan(SH_F32);
    check_nan(SH_BF16);
    check_nan(SH_F16);
}

/* Copy `cols` columns of each row. */
static void copy_columns(const struct sh_operand *to, int64_t to_col, const struct sh_operand *from, int64_t from_col,
                         int64_t cols)
{
    for (int64_t row = 0; row < to->dim[0] * to->dim[1]; row++)
        for (int64_t i = 0; i < cols; i++)
            optest_set(to, row * to->dim[2] + to_col + i, optest_get(from, row * from->dim[2] + from_col + i));
}

/* Ranks that share a sequence compute some of the heads each: these have the bits that they have among all heads. */
static void check_part(enum sh_dtype act)
{
    enum { SEQ = 300, DIM = 40, WINDOW = 150 };
    struct optest all, half, part;
    attention_forward(&all, act, (struct attention_shape){1, SEQ, 4, 2, DIM, false, WINDOW});
    attention_forward(&half, act, (struct attention_shape){1, SEQ, 2, 1, DIM, false, WINDOW});
    copy_columns(&half.call.in[0], 0, &all.call.in[0], 2 * DIM, 2 * DIM);
    copy_columns(&half.call.in[0], 2 * DIM, &all.call.in[0], 5 * DIM, DIM);
    copy_columns(&half.call.in[0], 3 * DIM, &all.call.in[0], 7 * DIM, DIM);
    optest_run(&all, &sh_kernels_cpu, 2);
    optest_run(&half, &sh_kernels_cpu, 3);
    optest_copy(&part, &half);
    copy_columns(&part.call.out[0], 0, &all.call.out[0], 2 * DIM, 2 * DIM);
    optest_same(&part, &half, 0);
    optest_end(&part);
    optest_end(&half);
    optest_end(&all);
}

static void test_heads_apart(void **state)
{
    (void)state;
    optest_seed(17);
    check_part(SH_F32);
    check_part(SH_BF16);
    check_part(SH_F16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f32),           cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_f16),           cmocka_unit_test(capped),
        cmocka_unit_test(test_large_scores),  cmocka_unit_test(test_nan_stays_in_its_row),
        cmocka_unit_test(test_heads_apart),   cmocka_unit_test(runs_of_queries),
        cmocka_unit_test(runs_are_sequences),
    };
    return cmocka_run_group_tests_name("cpu_attention", tests, NULL, NULL);
}
