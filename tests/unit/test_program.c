/* The program array itself: rows, views, calls, the printer, and the emitters that write it. */
#include "src/mesh/shape.h"
#include "src/program/emit.h"
#include "src/run/measure/walk.h"
#include "src/run/run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static int add_tensor(struct sh_program *p, int64_t rows, int64_t columns)
{
    struct sh_tensor t = sh_tensor_make(SH_MEM_ACT, SH_F32, 2, DIMS(rows, columns), "t%d", p->n_tensors);

    return sh_program_add_tensor(p, &t);
}

static void rows_keep_their_index_while_arrays_grow(void **state)
{
    struct sh_program *p = sh_program_create(SH_BF16);

    (void)state;
    for (int i = 0; i < 1000; i++) {
        struct sh_op op = sh_program_op(SH_OP_ADD);
        char name[16];

        assert_int_equal(add_tensor(p, i, 2), i);
        op.in[0] = i;
        assert_int_equal(sh_program_add_op(p, &op), i);
        snprintf(name, sizeof name, "unit %d", i);
        assert_int_equal(sh_program_add_unit(p, name), i);
        assert_int_equal(sh_program_add_section(p, SH_SECTION_EVAL, i), i);
    }
    for (int i = 0; i < 1000; i++) {
        assert_int_equal(p->tensors[i].dim[0], i);
        assert_int_equal(p->ops[i].in[0], i);
        assert_int_equal(p->units[i].compute, SH_NONE);
        assert_int_equal(p->sections[i].repeat, i);
    }
    sh_program_destroy(p);
}

static void an_operation_starts_empty(void **state)
{
    (void)state;
    for (int kind = 0; kind < SH_OP_KINDS; kind++) {
        struct sh_op op = sh_program_op((enum sh_op_kind)kind);

        assert_int_equal(op.kind, kind);
        for (int k = 0; k < SH_OP_MAX_IN; k++)
            assert_int_equal(op.in[k], SH_NONE);
        for (int k = 0; k < SH_OP_MAX_OUT; k++)
            assert_int_equal(op.out[k], SH_NONE);
        assert_int_equal(op.work, SH_NONE);
        assert_int_equal(op.block, SH_NONE);
        assert_int_equal(op.unit, SH_NONE);
        assert_int_equal(op.attr.after, SH_NONE);
    }
}

static void long_names_are_cut(void **state)
{
    struct sh_tensor t = sh_tensor_make(SH_MEM_ACT, SH_F32, 1, DIMS(1), "%0100d", 7);

    (void)state;
    assert_int_equal(strlen(t.name), SH_NAME_MAX - 1);
}

static void sizes(void **state)
{
    static const struct {
        enum sh_dtype dtype;
        int ndim;
        int64_t dim[SH_MAX_DIMS], elems, bytes;
    } table[] = {
        {SH_F32, 1, {7}, 7, 28},
        {SH_BF16, 2, {3, 5}, 15, 30},
        {SH_F64, 3, {2, 3, 4}, 24, 192},
        {SH_I32, 2, {0, 9}, 0, 0},
        {SH_BF16, 4, {1 << 10, 1 << 10, 1 << 10, 4}, INT64_C(1) << 32, INT64_C(1) << 33},
    };

    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct sh_tensor t = sh_tensor_make(SH_MEM_ACT, table[i].dtype, table[i].ndim, table[i].dim, "t");

        assert_int_equal(sh_tensor_elems(&t), table[i].elems);
        assert_int_equal(sh_tensor_bytes(&t), table[i].bytes);
    }
}

static void views_of_views_have_one_root(void **state)
{
    struct sh_program *p = sh_program_create(SH_F32);
    struct sh_emit e = {.p = p, .batch = 2, .seq = 3, .block = SH_NONE};
    int root = add_tensor(p, 6, 4), view = sh_emit_view(&e, root, 3, DIMS(2, 3, 4)),
        again = sh_emit_view(&e, view, 1, DIMS(24));

    (void)state;
    assert_int_equal(sh_tensor_root(p, root), root);
    assert_int_equal(sh_tensor_root(p, view), root);
    assert_int_equal(sh_tensor_root(p, again), root);
    assert_int_equal(p->tensors[again].ndim, 1);
    assert_int_equal(sh_tensor_elems(&p->tensors[again]), 24);
    sh_program_destroy(p);
}

static void a_call_has_shapes_and_places(void **state)
{
    struct sh_program *p = sh_program_create(SH_F32);
    struct sh_op op = sh_program_op(SH_OP_LINEAR);
    struct sh_op_call call;
    char arena[1024], other[1024];
    struct sh_bases bases = {{arena, other}};

    (void)state;
    op.in[0] = add_tensor(p, 2, 3);
    op.in[1] = add_tensor(p, 4, 3);
    op.out[0] = add_tensor(p, 2, 4);
    op.work = add_tensor(p, 1, 5);
    for (int t = 0; t < p->n_tensors; t++)
        p->tensors[t].offset_bytes = 256 * t;
    p->tensors[op.in[1]].tier = sh_program_add_tier(p, "host", SH_TIER_HOST);
    sh_program_call(p, &op, &bases, &call);
    assert_int_equal(call.kind, SH_OP_LINEAR);
    assert_ptr_equal(call.attr, &op.attr);
    assert_ptr_equal(call.in[0].data, arena);
    assert_ptr_equal(call.in[1].data, other + 256);
    assert_int_equal(call.in[1].dim[0], 4);
    assert_null(call.in[2].data); /* no bias */
    assert_ptr_equal(call.out[0].data, arena + 512);
    assert_ptr_equal(call.work, arena + 768);
    assert_int_equal(call.work_bytes, 20);
    assert_null(call.runs);
    sh_program_call(p, &op, NULL, &call); /* only shapes, before anything has a place */
    assert_null(call.in[0].data);
    assert_null(call.work);
    assert_int_equal(call.in[0].dim[1], 3);
    sh_program_destroy(p);
}

static void a_call_has_its_runs_of_decay(void **state)
{
    struct sh_program *p = sh_program_create(SH_F32);
    struct sh_op op = sh_program_op(SH_OP_ADAMW);
    struct sh_op_call call;

    (void)state;
    sh_program_add_run(p, (struct sh_decay_run){.begin = 0, .end = 1, .decay = true});
    op.attr.runs.first = sh_program_add_run(p, (struct sh_decay_run){.begin = 5, .end = 9, .decay = false});
    op.attr.runs.count = 1;
    sh_program_call(p, &op, NULL, &call);
    assert_int_equal(call.runs->begin, 5);
    assert_int_equal(call.runs->end, 9);
    sh_program_destroy(p);
}

static void sections_are_found_by_kind(void **state)
{
    struct sh_program *p = sh_program_create(SH_F32);

    (void)state;
    sh_program_add_section(p, SH_SECTION_INIT, 0);
    sh_program_add_section(p, SH_SECTION_ONLY, 1);
    assert_ptr_equal(sh_program_section(p, SH_SECTION_ONLY), &p->sections[1]);
    assert_null(sh_program_section(p, SH_SECTION_EVAL));
    sh_program_destroy(p);
}

/* In a tree of 8 leaves, 1 and 5 differ, because 5 is a level higher; 2 and 4 have the same place. */
static void micro_steps_have_sections(void **state)
{
    static const enum sh_section_kind kinds[] = {SH_SECTION_INIT, SH_SECTION_FIRST, SH_SECTION_MIDDLE, SH_SECTION_LAST,
                                                 SH_SECTION_NORM};
    static const int first[] = {0, 0, 1, 4, 0}, repeat[] = {0, 1, 3, 1, 1}, plain[] = {1, 2, 2, 2, 3, SH_NONE},
                     shorter[] = {1, 2, 3};
    static const int leaf[] = {0, 1, 2, 3}, tree[] = {0, 1, 2, 3, 2, SH_NONE, SH_NONE, SH_NONE};
    struct sh_program *p = sh_program_create(SH_F32);

    (void)state;
    for (int i = 0; i < 5; i++) {
        sh_program_add_section(p, kinds[i], repeat[i]);
        p->sections[i].micro_step = first[i];
    }
    for (int m = 0; m < 6; m++)
        assert_int_equal(sh_program_micro_step(p, m), plain[m]);
    for (int m = 0; m < 3; m++) /* of a shorter step, and of the shortest, which needs a section of its own */
        assert_int_equal(sh_program_micro_step_of(p, m, 3), shorter[m]);
    assert_int_equal(sh_program_micro_step_of(p, 0, 1), SH_NONE);
    sh_program_add_section(p, SH_SECTION_ONLY, 0);
    assert_int_equal(sh_program_micro_step_of(p, 0, 1), 5);
    assert_int_equal(sh_program_micro_step(p, 0), 1);
    sh_program_destroy(p);
    p = sh_program_create(SH_F32);
    p->tree_sums = true;
    for (int i = 0; i < 4; i++) {
        sh_program_add_section(p, i ? SH_SECTION_MIDDLE : SH_SECTION_FIRST, 1);
        p->sections[i].micro_step = leaf[i];
    }
    for (int m = 0; m < 8; m++)
        assert_int_equal(sh_program_micro_step(p, m), tree[m]);
    sh_program_add_section(p, SH_SECTION_LAST, 0);
    p->sections[4].micro_step = 1;
    assert_int_equal(sh_program_micro_step_of(p, 1, 2), 4);
    assert_int_equal(sh_program_micro_step_of(p, 1, 4), 1);
    sh_program_destroy(p);
}

static void every_word_has_a_name(void **state)
{
    (void)state;
    for (int i = 0; i < SH_MEM_KINDS; i++)
        assert_non_null(sh_program_mem_name((enum sh_mem)i));
    for (int i = 0; i < SH_STREAMS; i++)
        assert_true(sh_streams[i].name[0]);
    for (int i = SH_PHASE_INIT; i <= SH_PHASE_UPDATE; i++)
        assert_non_null(sh_phase_name((enum sh_phase)i));
    for (int i = 0; i < SH_SECTION_KINDS; i++)
        assert_non_null(sh_section_name((enum sh_section_kind)i));
    for (int i = 0; i < SH_OP_KINDS; i++)
        assert_non_null(sh_op_info((enum sh_op_kind)i)->name);
}

/* Three consecutive matrices are read as one; a unit counts the parameters declared in it. */
static void neighbours_are_read_as_one_matrix(void **state)
{
    struct sh_program *p = sh_program_create(SH_BF16);
    struct sh_emit e = {.p = p, .batch = 1, .seq = 4, .block = SH_NONE};
    int q, stack, x, y;

    (void)state;
    sh_emit_unit(&e, "u");
    q = sh_emit_param(&e, SH_PARAM_Q, "q", 2, DIMS(8, 6), SH_INIT_NORMAL, 1);
    sh_emit_param(&e, SH_PARAM_K, "k", 2, DIMS(2, 6), SH_INIT_NORMAL, 1);
    sh_emit_param(&e, SH_PARAM_V, "v", 2, DIMS(2, 6), SH_INIT_NORMAL, 1);
    stack = sh_emit_stack(&e, q, 3);
    assert_int_equal(p->tensors[stack].dim[0], 12);
    assert_int_equal(p->tensors[stack].dim[1], 6);
    assert_int_equal(p->tensors[stack].param, p->tensors[q].param);
    assert_int_equal(p->tensors[stack].dtype, SH_BF16);
    assert_int_equal(p->units[0].elems, 72);
    assert_int_equal(p->params[2].unit_elems, 60);
    x = add_tensor(p, 4, 6);
    y = sh_emit_linear(&e, x, stack, SH_NONE, false);
    assert_int_equal(p->tensors[y].dim[0], 4);
    assert_int_equal(p->tensors[y].dim[1], 12);
    sh_program_destroy(p);
}

static void printed(void **state)
{
    struct sh_program *p = sh_program_create(SH_F32);
    struct sh_op op = sh_program_op(SH_OP_ADD), wait = sh_program_op(SH_OP_WAIT);
    char *text = NULL;
    size_t bytes;
    FILE *f = open_memstream(&text, &bytes);

    (void)state;
    sh_program_add_section(p, SH_SECTION_MIDDLE, 3);
    op.in[0] = op.in[1] = add_tensor(p, 2, 3);
    op.out[0] = add_tensor(p, 2, 3);
    op.attr.accumulate = 1;
    op.phase = SH_PHASE_BACKWARD;
    sh_program_add_op(p, &op);
    wait.attr.waits_for = 17;
    sh_program_add_op(p, &wait);
    p->sections[0].n_ops = 2;
    sh_program_print(p, f);
    fclose(f);
    assert_non_null(strstr(text, "section middle micro-step x 3: 2 operations\n"));
    assert_non_null(strstr(text, "backward  add            t1[2,3]f32 +=  <-  t0[2,3]f32 t0[2,3]f32\n"));
    assert_non_null(strstr(text, "wait           for 17\n"));
    free(text);
    sh_program_destroy(p);
}

/* Return the operation as a line of a program that has no other operation. */
static char *line_of(const struct sh_op *op)
{
    struct sh_program *p = sh_program_create(SH_F32);
    char *text = NULL;
    size_t bytes;
    FILE *f = open_memstream(&text, &bytes);
    const struct sh_mesh_shape mesh = {
        .n = 2, .axis = {{"shard", 2, 1}, {"replicate", 2, 2}}, .shard = 1, .replicate = 2};

    sh_program_use_group(p, &mesh, mesh.replicate, SH_STREAM_REPLICATE);
    sh_program_add_section(p, SH_SECTION_MIDDLE, 1);
    sh_program_add_op(p, op);
    p->sections[0].n_ops = 1;
    sh_program_print(p, f);
    fclose(f);
    sh_program_destroy(p);
    return text;
}

static void attributes_are_printed(void **state)
{
    static const struct {
        enum sh_op_kind kind;
        struct sh_op_attr attr;
        const char *says;
    } table[] = {
        {SH_OP_NORM, {.after = SH_NONE, .norm = {.eps = 1e-5f, .rms = true}}, "norm            eps 1e-05  rms\n"},
        {SH_OP_LINEAR_BWD_W, {.after = SH_NONE, .linear.w_in_out = true}, "linear_bwd_w    w_in_out\n"},
        {SH_OP_ROPE,
         {.after = SH_NONE, .attn = {.heads = 8, .kv_heads = 2, .head_dim = 64, .inverse = true}},
         "  heads 8  kv_heads 2  head_dim 64  inverse\n"},
        {SH_OP_ROPE_TABLE, {.after = SH_NONE, .rope = {.theta = 500000}}, "  theta 500000\n"},
        {SH_OP_HEAD_LOSS, {.after = SH_NONE, .head.chunk_rows = 4096}, "  chunk_rows 4096\n"},
        {SH_OP_ADAMW, {.after = SH_NONE, .runs = {7, 2, SH_RUNS_ALL}}, "  first 7  count 2\n"},
        {SH_OP_ALL_REDUCE, {.after = 3, .group = 2}, "  over replicate  after 3\n"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct sh_op op = sh_program_op(table[i].kind);
        char *text;

        op.attr = table[i].attr;
        text = line_of(&op);
        if (!strstr(text, table[i].says))
            fail_msg("%s has no '%s'", text, table[i].says);
        free(text);
    }
}

/* Their number is read from memory that may be wrong, and what is read by it must stay inside of the tensor. */
static void live_rows_stay_inside_of_a_tensor(void **state)
{
    static const int said[] = {-3, 0, 2, 4, 5, INT32_MAX}, rows[] = {0, 0, 2, 4, 4, 4};
    struct sh_program *p = sh_program_create(SH_F32);
    int wave[] = {1, SH_NONE}, live[] = {0, 0};
    struct sh_run r = {.p = p};
    struct sh_walk_rows w = {.r = &r, .wave = wave, .live = live};
    struct sh_op op = sh_program_op(SH_OP_ADD);
    struct sh_walk_part part[2];

    (void)state;
    add_tensor(p, 4, 8);
    add_tensor(p, 3, 1);
    for (int i = 0; i < 6; i++) {
        live[1] = said[i];
        sh_walk_rows_parts(&w, &op, 0, part);
        assert_int_equal(part[0].begin, 0);
        assert_int_equal(part[0].end, 8 * rows[i]);
        sh_walk_rows_parts(&w, &op, 1, part);
        assert_int_equal(part[0].end, 3);
    }
    sh_program_destroy(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_keep_their_index_while_arrays_grow),
        cmocka_unit_test(an_operation_starts_empty),
        cmocka_unit_test(long_names_are_cut),
        cmocka_unit_test(sizes),
        cmocka_unit_test(live_rows_stay_inside_of_a_tensor),
        cmocka_unit_test(views_of_views_have_one_root),
        cmocka_unit_test(a_call_has_shapes_and_places),
        cmocka_unit_test(a_call_has_its_runs_of_decay),
        cmocka_unit_test(sections_are_found_by_kind),
        cmocka_unit_test(micro_steps_have_sections),
        cmocka_unit_test(every_word_has_a_name),
        cmocka_unit_test(neighbours_are_read_as_one_matrix),
        cmocka_unit_test(printed),
        cmocka_unit_test(attributes_are_printed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
