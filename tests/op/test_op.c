/* The table of operations: complete, consistent with the devices' tables, and costs worked out by hand. */
#include "kernels/rows.h"
#include "src/base/file.h"
#include "src/base/mem.h"

#include <ctype.h>
#include <glob.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void rows_are_complete(void **state)
{
    (void)state;
    for (int k = 0; k < SH_OP_KINDS; k++) {
        const struct sh_op_info *info = sh_op_info((enum sh_op_kind)k);
        struct sh_op_shape shape;
        assert_non_null(info->name);
        assert_non_null(info->shape);
        assert_true(sh_shape_read(info->shape, info->flops, &shape));
        assert_int_equal(shape.n_in, info->n_in);
        assert_int_equal(shape.n_out, info->n_out);
        assert_true(info->n_in + info->n_out > 0 || k == SH_OP_WAIT);
        assert_true(info->n_in <= SH_OP_MAX_IN && info->n_out <= SH_OP_MAX_OUT);
        assert_int_equal(info->opt_in >> info->n_in, 0);
        assert_int_equal((info->opt_out | info->rw_out) >> info->n_out, 0);
        assert_true(info->inplace_in < info->n_in && info->inplace_out < info->n_out);
        assert_int_equal(info->inplace_in < 0, info->inplace_out < 0);
        for (int other = 0; other < k; other++)
            assert_string_not_equal(info->name, sh_op_info((enum sh_op_kind)other)->name);
    }
}

static void devices_have_all_kernels(void **state)
{
    (void)state;
    const struct sh_kernel_table *const devices[] = {&sh_kernels_ref, &sh_kernels_cpu};
    const char *const names[] = {"ref", "cpu"};
    for (int d = 0; d < 2; d++) {
        for (int k = 0; k < SH_OP_KINDS; k++) {
            const struct sh_op_info *info = sh_op_info((enum sh_op_kind)k);
            bool without = sh_op_starts(info) || info->marker || (info->fused && devices[d] == &sh_kernels_ref);
            if ((devices[d]->run[k] == NULL) != without)
                fail_msg("%s has %s kernel for %s", names[d], without ? "a" : "no", info->name);
        }
    }
}

#define KERNEL_NAME(KIND, name) [SH_OP_##KIND] = #KIND,
static const char *const kernel_names[SH_OP_KINDS] = {SH_OP_LIST(KERNEL_NAME, KERNEL_NAME, SH_OP_SKIP)};

/* Whether SH_OP_KIND is a whole word of the file. */
static bool names_kind(const char *path, enum sh_op_kind kind)
{
    char *word = sh_strfmt("SH_OP_%s", kernel_names[kind]), *text = NULL;
    size_t n = strlen(word), bytes;
    bool found = false;

    assert_int_equal(sh_read_file(path, 1 << 20, &text, &bytes), SH_OK);
    for (const char *at = text; !found && (at = strstr(at, word)); at += n)
        found = at[n] != '_' && !isalnum((unsigned char)at[n]);
    free(text);
    free(word);
    return found;
}

/* How many of the files that match name the kind. This file, which runs no kernel, does not count. */
static int files_with(const char *pattern, enum sh_op_kind kind)
{
    const char *top = getenv("SHERD_SRCDIR");
    char *where = sh_strfmt("%s/tests/op/%s", top ? top : ".", pattern);
    glob_t found;
    int n = 0;

    assert_int_equal(glob(where, 0, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc; i++)
        n += !strstr(found.gl_pathv[i], "/test_op.c") && names_kind(found.gl_pathv[i], kind);
    globfree(&found);
    free(where);
    return n;
}

/* A new kernel without a test is noticed here: some case runs each kind, and test_ref.c compares each kind that is
 * another's backward by its row with finite differences. */
static void each_kernel_has_a_case(void **state)
{
    (void)state;
    for (int k = 0; k < SH_OP_KINDS; k++) {
        enum sh_op_kind backward = sh_op_info((enum sh_op_kind)k)->backward;

        if (kernel_names[k] && !files_with("*.c", (enum sh_op_kind)k))
            fail_msg("no case in tests/op runs SH_OP_%s; elem.c has those of elementwise kinds", kernel_names[k]);
        if (backward && kernel_names[backward] && !files_with("test_ref.c", backward))
            fail_msg("test_ref.c does not compare SH_OP_%s with finite differences", kernel_names[backward]);
    }
}

/* All of an operand is parsed: anything that is not in the notation makes the row void. */
static void texts_are_read(void **state)
{
    /* clang-format off */
    static const char *const wrong[] = {
        "", "x [N] act", "x [N] act y [N] act ->", "x [N act ->", "x N] act ->", "x [N] actor ->", "x [N] ->",
        "[N] act ->", "x [] act ->", "x [N,] act ->", "x [A,B,C,D,E] act ->", "x [N] act maybe ->", "x [N] act of ->",
        "x [A+B+C+D+E] act ->", "alongname [N] act ->", "x [N] act, ->", "-> x [N] act, -> ",
        "a [n] u8, b [n] u8, c [n] u8, d [n] u8, e [n] u8, f [n] u8, g [n] u8, h [n] u8 ->",
    };
    /* clang-format on */
    struct sh_op_shape s;
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        if (sh_shape_read(wrong[i], NULL, &s) || s.n_in || s.n_out)
            fail_msg("'%s' was read", wrong[i]);
    assert_true(sh_shape_read("->", NULL, &s));
    assert_false(sh_shape_read("x [N] act ->", "2N:y", &s));
    assert_false(sh_shape_read("x [N] act ->", "2N+", &s));
    assert_true(sh_shape_read("p [b,36] u8 -> w [64b] act", NULL, &s));
    assert_true(!s.in[0].any_shape && s.out[0].any_shape && s.out[0].dim[0].term[0].factor == 64 &&
                s.in[0].dtype == SH_U8);
    assert_true(sh_shape_read("x [P>=T,HD+2KD] act opt of 3TC, y [T] i32 -> z [n] sum inout", "12NTC + N:y", &s));
    assert_true(s.in[0].optional && !s.in[1].optional && s.out[0].inout && s.out[0].any_shape && !s.in[1].any_shape);
    assert_int_equal(s.in[0].least, 'T');
    assert_int_equal(s.in[0].dim[1].n, 2);
    assert_int_equal(s.in[0].dim[1].term[1].factor, 2);
    assert_string_equal(s.in[0].dim[1].term[1].letters, "KD");
    assert_int_equal(s.in[0].touched.term[0].factor, 3);
    assert_int_equal(s.in[1].dtype, SH_I32);
    assert_int_equal(s.flops.term[0].factor, 12);
    assert_int_equal(s.flops.term[1].only_with, 1);
}

static struct sh_operand shape(enum sh_dtype dtype, int ndim, int64_t d0, int64_t d1, int64_t d2)
{
    return (struct sh_operand){.dtype = dtype, .ndim = ndim, .dim = {d0, d1, d2}};
}

static void check_cost(const struct sh_op_call *call, double flops, double bytes)
{
    struct sh_op_cost cost = sh_op_cost(call);
    assert_true(cost.flops == flops);
    assert_true(cost.bytes == bytes);
}

static void linear_costs(void **state)
{
    (void)state;
    struct sh_op_attr attr = {0};
    struct sh_op_call call = {.kind = SH_OP_LINEAR,
                              .attr = &attr,
                              .in = {shape(SH_BF16, 2, 10, 3, 0), shape(SH_BF16, 2, 4, 3, 0)},
                              .out = {shape(SH_BF16, 2, 10, 4, 0)}};
    check_cost(&call, 2 * 10 * 3 * 4, 2 * (30 + 12 + 40));
    call.in[2] = shape(SH_BF16, 1, 4, 0, 0);
    check_cost(&call, 2 * 10 * 3 * 4 + 40, 2 * (30 + 12 + 4 + 40));

    struct sh_op_call dw = {.kind = SH_OP_LINEAR_BWD_W,
                            .attr = &attr,
                            .in = {shape(SH_F32, 2, 10, 4, 0), shape(SH_F32, 2, 10, 3, 0)},
                            .out = {shape(SH_F32, 2, 4, 3, 0)}};
    check_cost(&dw, 2 * 10 * 3 * 4, 4 * (40 + 30 + 12));
    attr.accumulate = 1;
    check_cost(&dw, 2 * 10 * 3 * 4, 4 * (40 + 30 + 2 * 12));
}

/* B 2, T 3, H 4, K 2, D 5: 2*4*6 pairs, each with two products of length 5 forward and five backward. */
static void attention_costs(void **state)
{
    (void)state;
    struct sh_op_attr attr = {.attn.heads = 4, .attn.kv_heads = 2, .attn.head_dim = 5};
    struct sh_operand qkv = shape(SH_F32, 3, 2, 3, 40), o = shape(SH_F32, 3, 2, 3, 20), lse = shape(SH_F32, 3, 2, 4, 3);
    struct sh_op_call fwd = {.kind = SH_OP_ATTENTION, .attr = &attr, .in = {qkv}, .out = {o, lse}};
    struct sh_op_call bwd = {.kind = SH_OP_ATTENTION_BWD, .attr = &attr, .in = {o, qkv, o, lse}, .out = {qkv}};
    check_cost(&fwd, 48 * (4 * 5 + 6), 4 * (240 + 120 + 24));
    check_cost(&bwd, 48 * (10 * 5 + 6), 4 * (120 + 240 + 120 + 24 + 240));
    attr.attn.window = 2; /* 5 pairs of 6: one query has lost one key */
    check_cost(&fwd, 40 * (4 * 5 + 6), 4 * (240 + 120 + 24));
    attr.attn.window = 3;
    check_cost(&fwd, 48 * (4 * 5 + 6), 4 * (240 + 120 + 24));
}

/* 3 of 12 rows are expected: the weights and the ends of groups count whole. E 2, I 5, O 7, F 4. */
static void expected_rows_cost(void **state)
{
    (void)state;
    struct sh_op_attr attr = {0};
    struct sh_operand x = shape(SH_BF16, 2, 12, 5, 0), y = shape(SH_BF16, 2, 12, 7, 0),
                      gu = shape(SH_BF16, 2, 12, 8, 0);
    struct sh_operand first = shape(SH_I32, 1, 9, 0, 0), w = shape(SH_BF16, 3, 2, 7, 5), dw = shape(SH_F32, 3, 2, 7, 5);
    struct sh_operand h = shape(SH_BF16, 2, 12, 4, 0), weight = shape(SH_F32, 2, 12, 1, 0), absent = {0};
    const struct {
        struct sh_op_call call;
        double flops, fixed, rows; /* per row; bytes: of what counts whole, and per row */
    } costs[] = {
        {{.kind = SH_OP_EXPERT_LINEAR, .in = {x, first, w}, .out = {y}}, 70, 36 + 140, 24},
        {{.kind = SH_OP_EXPERT_LINEAR_BWD_X, .in = {y, first, w}, .out = {x}}, 70, 36 + 140, 24},
        {{.kind = SH_OP_EXPERT_LINEAR_BWD_W, .in = {y, x, first}, .out = {dw}}, 70, 36 + 280, 24},
        {{.kind = SH_OP_SWIGLU_ROWS, .in = {gu, weight, absent, first}, .out = {h}}, 24, 36 + 48, 24},
        {{.kind = SH_OP_SWIGLU_ROWS_BWD, .in = {h, gu, weight, absent, first}, .out = {gu, weight}}, 64, 36 + 96, 40},
        {{.kind = SH_OP_SQUARED_RELU_ROWS, .in = {h, weight, absent, first}, .out = {h}}, 12, 36 + 48, 16},
        {{.kind = SH_OP_SQUARED_RELU_ROWS_BWD, .in = {h, h, weight, absent, first}, .out = {h, weight}},
         28,
         36 + 96,
         24},
    };
    char text[SH_MISFIT_TEXT];

    for (size_t i = 0; i < sizeof costs / sizeof *costs; i++)
        for (int64_t expected = 0; expected <= 15; expected += 3) { /* 0, and more than there are: all */
            struct sh_op_call call = costs[i].call;
            double rows = expected && expected < 12 ? (double)expected : 12;
            attr.rows.expected = expected;
            call.attr = &attr;
            assert_null(sh_shape_misfit(&call, text));
            check_cost(&call, rows * costs[i].flops, costs[i].fixed + rows * costs[i].rows);
        }
}

/* By their letters alone: no list is kept anywhere else. */
static void local_kinds(void **state)
{
    static const enum sh_op_kind local[] = {
        SH_OP_NORM,        SH_OP_NORM_BWD, SH_OP_LINEAR,        SH_OP_LINEAR_BWD_X,  SH_OP_LINEAR_BWD_W,
        SH_OP_BIAS_BWD,    SH_OP_GELU,     SH_OP_GELU_BWD,      SH_OP_SWIGLU,        SH_OP_SWIGLU_BWD,
        SH_OP_ADD,         SH_OP_ADD_NORM, SH_OP_NORM_BWD_BIAS, SH_OP_GELU_BWD_BIAS, SH_OP_QK_NORM,
        SH_OP_QK_NORM_BWD, SH_OP_GEGLU,    SH_OP_GEGLU_BWD,     SH_OP_SCALE,         SH_OP_LORA,
        SH_OP_LORA_BWD,    SH_OP_GELU_ERF, SH_OP_GELU_ERF_BWD,  SH_OP_REGROUP,       SH_OP_BIAS};
    static const enum sh_op_kind together[] = {
        SH_OP_EMBED,      SH_OP_EMBED_BWD,      SH_OP_ROPE,       SH_OP_ATTENTION,     SH_OP_ATTENTION_BWD,
        SH_OP_HEAD_LOSS,  SH_OP_HEAD_LOSS_GRAD, SH_OP_LOSS_PART,  SH_OP_LOSS_REST,     SH_OP_ROUTE_BWD,
        SH_OP_ROUTE_LOSS, SH_OP_ROUTE_PLAN,     SH_OP_ROW_GATHER, SH_OP_EXPERT_LINEAR, SH_OP_EXPERT_LINEAR_BWD_W,
        SH_OP_SUMSQ,      SH_OP_UNPACK,         SH_OP_ALL_GATHER, SH_OP_FETCH,         SH_OP_WAIT,
        SH_OP_RELEASE,    SH_OP_ROPE_TABLE,     SH_OP_PICK};

    (void)state;
    for (size_t i = 0; i < sizeof local / sizeof *local; i++)
        if (!sh_rows_are_local(local[i]))
            fail_msg("%s is not local", sh_op_info(local[i])->name);
    for (size_t i = 0; i < sizeof together / sizeof *together; i++)
        if (sh_rows_are_local(together[i]))
            fail_msg("%s is local", sh_op_info(together[i])->name);
}

/* What a kernel is called with, one after the other. */
static struct {
    const char *dy, *dx, *dw;
    int64_t rows;
    unsigned accumulate;
} seen[4];
static int n_seen;

static sh_rc note(const struct sh_op_call *call)
{
    assert_int_equal(call->attr->row_block, 0);
    assert_int_equal(call->in[0].dim[0], call->out[0].dim[0]);
    seen[n_seen].dy = call->in[0].data;
    seen[n_seen].dx = call->out[0].data;
    seen[n_seen].dw = call->out[1].data;
    seen[n_seen].rows = call->in[0].dim[0];
    seen[n_seen++].accumulate = call->attr->accumulate;
    return n_seen == 4 ? sh_fail(SH_E_BUG, "enough") : SH_OK;
}

static int64_t rows_as_bytes(const struct sh_op_call *call, int threads)
{
    (void)threads;
    return 1000 - call->in[0].dim[0]; /* the shortest block needs most */
}

static int64_t added_rows_as_bytes(const struct sh_op_call *call, int threads)
{
    (void)threads;
    return call->in[0].dim[0] + (call->attr->accumulate ? 100 : 0);
}

static int64_t bare_rows_as_bytes(const struct sh_op_call *call, int threads)
{
    (void)threads;
    return call->in[0].dim[0] + (call->attr->accumulate ? 0 : 100);
}

/* The first block is not added to another, all others are, and the last may be shorter than each. */
static void check_scratch(struct sh_op_call *call, struct sh_op_attr *attr)
{
    const struct sh_kernel_table longest = {.work_bytes = added_rows_as_bytes},
                                 first = {.work_bytes = bare_rows_as_bytes};

    assert_int_equal(sh_rows_work_bytes(&longest, call, 1), 104);
    assert_int_equal(sh_rows_work_bytes(&first, call, 1), 104);
    attr->row_block = 8;
    assert_int_equal(sh_rows_work_bytes(&longest, call, 1), 102);
    assert_int_equal(sh_rows_work_bytes(&first, call, 1), 108);
}

/* 10 rows of 3 in blocks of 4: rows move on, parameters and their gradients stay, and later blocks are added. */
static void sums_are_chains_of_blocks(void **state)
{
    struct sh_op_attr attr = {.row_block = 4};
    char dy[60], x[60], dx[60], w[12], dw[12], rstd[40];
    struct sh_op_call call = {.kind = SH_OP_NORM_BWD,
                              .attr = &attr,
                              .in = {shape(SH_BF16, 2, 10, 3, 0), shape(SH_BF16, 2, 10, 3, 0),
                                     shape(SH_BF16, 1, 3, 0, 0), shape(SH_F32, 1, 10, 0, 0)},
                              .out = {shape(SH_BF16, 2, 10, 3, 0), shape(SH_F32, 1, 3, 0, 0)}};
    const struct sh_kernel_table table = {.work_bytes = rows_as_bytes};

    (void)state;
    call.in[0].data = dy;
    call.in[1].data = x;
    call.in[2].data = w;
    call.in[3].data = rstd;
    call.out[0].data = dx;
    call.out[1].data = dw;
    n_seen = 0;
    assert_int_equal(sh_rows_run(note, &call), SH_OK);
    assert_int_equal(n_seen, 3);
    for (int i = 0; i < 3; i++) {
        assert_ptr_equal(seen[i].dy, dy + 24L * i);
        assert_ptr_equal(seen[i].dx, dx + 24L * i);
        assert_ptr_equal(seen[i].dw, dw);
        assert_int_equal(seen[i].rows, i < 2 ? 4 : 2);
        assert_int_equal(seen[i].accumulate, i ? 2 : 0); /* not db, which is absent */
    }
    assert_int_equal(sh_rows_work_bytes(&table, &call, 1), 998);
    check_scratch(&call, &attr);
    attr.row_block = 4;
    check_cost(&call, 14 * 30, 2 * (30 + 30 + 3 + 30) + 4 * 10 + 4 * 3 * 5);
    attr.row_block = 10; /* a block, or more than one that makes no sum, is one call */
    assert_int_equal(sh_rows_to_divide(&call), 0);
    attr.row_block = 4;
    call.out[1].ndim = 0;
    assert_int_equal(sh_rows_to_divide(&call), 0);
    assert_int_equal(sh_rows_work_bytes(&table, &call, 1), 990);
    call.out[1].ndim = 1;
    attr.row_block = 2; /* an error ends it */
    n_seen = 0;
    assert_int_equal(sh_rows_run(note, &call), SH_E_BUG);
    assert_int_equal(n_seen, 4);
}

static void other_costs(void **state)
{
    (void)state;
    struct sh_op_attr attr = {0};
    struct sh_operand n = shape(SH_F32, 1, 100, 0, 0), absent = {0};
    struct sh_op_call adamw = {.kind = SH_OP_ADAMW, .attr = &attr, .in = {n}, .out = {n, n, n, absent}};
    struct sh_op_call halves = {.kind = SH_OP_ADAMW,
                                .attr = &attr,
                                .in = {n},
                                .out = {shape(SH_BF16, 1, 100, 0, 0), n, n, shape(SH_I16, 1, 100, 0, 0)}};
    struct sh_op_call embed = {
        .kind = SH_OP_EMBED,
        .attr = &attr,
        .in = {shape(SH_I32, 2, 2, 3, 0), shape(SH_F32, 2, 1000, 8, 0), shape(SH_F32, 2, 64, 8, 0)},
        .out = {shape(SH_F32, 3, 2, 3, 8)}};
    struct sh_operand x = shape(SH_BF16, 2, 10, 4, 0), w = shape(SH_BF16, 1, 4, 0, 0), f = shape(SH_F32, 1, 4, 0, 0);
    struct sh_operand stat = shape(SH_F32, 1, 10, 0, 0);
    struct sh_op_call add_norm = {.kind = SH_OP_ADD_NORM, .attr = &attr, .in = {x, x, w}, .out = {x, x, stat}};
    struct sh_op_call gelu = {.kind = SH_OP_GELU_BWD_BIAS, .attr = &attr, .in = {x, x}, .out = {x, f}};
    struct sh_op_call wait = {.kind = SH_OP_WAIT, .attr = &attr};
    check_cost(&adamw, 15 * 100, 28 * 100);
    check_cost(&halves, 15 * 100, 28 * 100);
    check_cost(&embed, 48, 4 * (6 + 48 + 24 + 48));
    check_cost(&add_norm, (1 + 7) * 40, 4 * 80 + 8 + 40);
    check_cost(&gelu, (17 + 1) * 40, 3 * 80 + 16);
    struct sh_op_call unpack = {
        .kind = SH_OP_UNPACK, .attr = &attr, .in = {shape(SH_U8, 2, 6, 36, 0)}, .out = {shape(SH_BF16, 2, 4, 96, 0)}};
    char text[SH_MISFIT_TEXT];
    check_cost(&unpack, 384, 6 * 36 + 2 * 384);
    assert_null(sh_shape_misfit(&unpack, text));
    unpack.out[0].dim[1] = 95;
    assert_string_equal(sh_shape_misfit(&unpack, text), "w is [4,95] bf16, which is not w [64b] master");
    check_cost(&wait, 0, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_complete),
        cmocka_unit_test(texts_are_read),
        cmocka_unit_test(devices_have_all_kernels),
        cmocka_unit_test(linear_costs),
        cmocka_unit_test(attention_costs),
        cmocka_unit_test(other_costs),
        cmocka_unit_test(each_kernel_has_a_case),
        cmocka_unit_test(expected_rows_cost),
        cmocka_unit_test(local_kinds),
        cmocka_unit_test(sums_are_chains_of_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
