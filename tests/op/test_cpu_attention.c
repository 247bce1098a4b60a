/* Attention against the reference: lengths around the blocks' edges, all ratios of heads, documents that start
 * anywhere, scores that are far apart. Bits must not depend on threads or addresses. */
#include "tests/op/agree.h"
#include "tests/op/calls.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

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
static struct agree_bound weighted(struct agree_bound b, enum sh_dtype act, double size)
{
    b.atol += act == SH_F32 ? 0 : optest_eps(act) / 2 * size;
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
    struct agree_bound o = weighted(agree_sum(act, terms), act, 2);
    agree(&t, 2, (struct agree_bound[]){o, agree_sum(SH_F32, terms)}, -1, -1);
    optest_end(&t);
}

/* dp is a sum of D products, of size sqrt(D); dk and dv sum over the queries of all heads that share the key: for
 * each head, the weights of a column sum to a small number. */
static void check_backward(enum sh_dtype act, struct attention_shape s)
{
    struct optest t;
    attention_backward(&t, act, s);
    double sharing = (double)s.heads / s.kv_heads;
    struct agree_bound bound = agree_sum(act, (double)(4 * s.dim) + (double)s.seq * sharing);
    bound = weighted(bound, act, 2 + 2 * sharing);
    agree(&t, 1, &bound, -1, -1);
    optest_end(&t);
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
    agree(&t, 2, (struct agree_bound[]){{.atol = 60 * off}, {.atol = off, .rtol = 0x1p-20}}, -1, -1);
    optest_end(&t);
}

/* A NaN in the last query affects no other row. */
static void check_nan(enum sh_dtype act)
{
    struct optest t;
    attention_forward(&t, act, (struct attention_shape){1, 140, 1, 1, 16, false, 0});
    optest_set(&t.call.in[0], 139 * 48, NAN);
    struct agree_bound o = weighted(agree_sum(act, 160), act, 2);
    agree(&t, 2, (struct agree_bound[]){o, agree_sum(SH_F32, 160)}, -1, -1);
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
        cmocka_unit_test(test_f32),
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_f16),
        cmocka_unit_test(test_large_scores),
        cmocka_unit_test(test_nan_stays_in_its_row),
        cmocka_unit_test(test_heads_apart),
    };
    return cmocka_run_group_tests_name("cpu_attention", tests, NULL, NULL);
}
