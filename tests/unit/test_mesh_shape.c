/* The mesh's arithmetic for every rank of many shapes and every group, and the messages if something does not fit. */
#include "src/mesh/shape.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { AUTO = SH_MESH_AUTO, ALL = SH_MESH_ALL, NODE = SH_MESH_NODE };

static const struct fit {
    struct sh_mesh_request req;
    int world, shard, replicate;
} fits[] = {
    {{.shard = ALL, .replicate = AUTO, .inner = 1}, 1, 1, 1},
    {{.shard = ALL, .replicate = AUTO, .inner = 1}, 6, 6, 1},
    {{.shard = ALL, .replicate = 2, .inner = 1}, 6, 3, 2},
    {{.shard = ALL, .replicate = 6, .inner = 1}, 6, 1, 6},
    {{.shard = 2, .replicate = AUTO, .inner = 2}, 6, 2, 3},
    {{.shard = 1, .replicate = AUTO, .inner = 1}, 6, 1, 6},
    {{.shard = 3, .replicate = 3, .inner = 1}, 9, 3, 3},
    {{.shard = NODE, .replicate = AUTO, .inner = 1, .ranks_per_node = 4}, 8, 4, 2},
    {{.shard = NODE, .replicate = 2, .inner = 2, .ranks_per_node = 4}, 8, 4, 2},
    {{.shard = NODE, .replicate = AUTO, .inner = 4, .ranks_per_node = 8}, 10000, 8, 1250},
};

/* A group as seen by a rank: the rank finds its own place again, and the last member agrees on everything. */
static void check_group(struct sh_mesh_shape s, sh_group g)
{
    int size = sh_group_size(&s, g), index = sh_group_index(&s, g), last = sh_group_member(&s, g, size - 1);
    struct sh_mesh_shape other = s;

    other.rank = last;
    assert_in_range(index, 0, size - 1);
    assert_int_equal(sh_group_member(&s, g, index), s.rank);
    assert_int_equal(sh_group_size(&other, g), size);
    assert_int_equal(sh_group_index(&other, g), size - 1);
    assert_int_equal(sh_group_member(&other, g, index), s.rank);
    /* Its place on the other axes is the same. */
    assert_int_equal(sh_group_index(&other, sh_group_others(&s, g)), sh_group_index(&s, sh_group_others(&s, g)));
    assert_int_equal(size * sh_group_size(&s, sh_group_others(&s, g)), sh_mesh_ranks(&s));
}

static void check_rank(const struct fit *f, int rank)
{
    struct sh_mesh_shape s;
    assert_int_equal(sh_mesh_shape_make(&f->req, f->world, rank, &s), SH_OK);
    assert_int_equal(sh_group_size(&s, s.shard), f->shard);
    assert_int_equal(sh_group_size(&s, s.replicate), f->replicate);
    assert_int_equal(sh_group_size(&s, s.inner), f->req.inner);
    assert_int_equal(sh_mesh_ranks(&s), f->world);
    assert_int_equal(sh_group_index(&s, sh_group_world(&s)), rank);
    assert_int_equal(sh_group_index(&s, s.data), rank);
    assert_int_equal(sh_group_index(&s, s.shard), rank % f->shard);
    assert_int_equal(sh_group_index(&s, s.inner), rank % f->shard % f->req.inner);
    assert_int_equal(sh_group_index(&s, s.replicate), rank / f->shard);
    assert_int_equal(sh_group_member(&s, s.shard, 0), rank - rank % f->shard);
    assert_int_equal(sh_group_member(&s, s.replicate, 0), rank % f->shard);
    for (sh_group g = 0; g <= sh_group_world(&s); g++)
        check_group(s, g);
}

static void test_fits(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof fits / sizeof fits[0]; i++)
        for (int rank = 0; rank < fits[i].world; rank++)
            check_rank(&fits[i], rank);
}

/* clang-format off */
static const struct misfit {
    struct sh_mesh_request req;
    int world;
    const char *text;
} misfits[] = {
    {{.shard = 2, .replicate = 3, .inner = 1}, 4,
     "mesh: replicate 3 x shard 2 = 6 ranks, but the job has 4; choose mesh.shard=2 mesh.replicate=2"},
    {{.shard = 1, .replicate = 1, .inner = 1}, 4,
     "mesh: replicate 1 x shard 1 = 1 ranks, but the job has 4; choose mesh.shard=1 mesh.replicate=4"},
    {{.shard = 100000, .replicate = 100000, .inner = 1}, 4,
     "mesh: replicate 100000 x shard 100000 = 10000000000 ranks, but the job has 4; choose mesh.shard=4 mesh.replicate=1"},
    {{.shard = 4, .replicate = AUTO, .inner = 1}, 6,
     "mesh: mesh.shard=4 does not divide the job's 6 ranks; choose mesh.shard=3 (or start a multiple of 4 ranks)"},
    {{.shard = ALL, .replicate = AUTO, .inner = 1, .pipeline = 4}, 6,
     "mesh: parallelism.pipeline_parallel_degree=4 does not divide the job's 6 ranks; choose 2 (or start a multiple of 4 ranks)"},
    {{.shard = 4, .replicate = AUTO, .inner = 1, .pipeline = 2}, 12,
     "mesh: mesh.shard=4 does not divide the job's 6 stage ranks; choose mesh.shard=3 (or start a multiple of 8 ranks)"},
    {{.shard = 3, .replicate = AUTO, .inner = 1}, 1,
     "mesh: mesh.shard=3 does not divide the job's 1 rank; choose mesh.shard=1 (or start a multiple of 3 ranks)"},
    {{.shard = ALL, .replicate = 4, .inner = 1}, 6,
     "mesh: mesh.replicate=4 does not divide the job's 6 ranks; choose mesh.replicate=3 (or start a multiple of 4 ranks)"},
    {{.shard = NODE, .replicate = AUTO, .inner = 1, .ranks_per_node = 4}, 6,
     "mesh: mesh.shard=node is 4 ranks, which does not divide the job's 6 ranks; start the same number of ranks on each "
     "node or choose mesh.shard=3"},
    {{.shard = NODE, .replicate = 3, .inner = 1, .ranks_per_node = 4}, 8,
     "mesh: replicate 3 x shard 4 = 12 ranks, but the job has 8; choose mesh.replicate=2 or auto"},
    {{.shard = NODE, .replicate = AUTO, .inner = 1}, 6,
     "mesh: mesh.shard=node, but the ranks of a node are not known; set mesh.ranks_per_node"},
    {{.shard = 4, .replicate = AUTO, .inner = 3}, 8,
     "mesh: reshard_after_forward over 3 ranks does not divide the shard axis of 4; choose 2"},
    {{.shard = -7, .replicate = AUTO, .inner = 1}, 8, "mesh: mesh.shard=-7; choose all, node or a number of ranks >= 1"},
    {{.shard = ALL, .replicate = 0, .inner = 1}, 8, "mesh: mesh.replicate=0; choose auto or a number >= 1"},
    {{.shard = ALL, .replicate = AUTO, .inner = 0}, 8,
     "mesh: reshard_after_forward over 0 ranks; choose a number >= 1"},
    {{.shard = 6, .replicate = AUTO, .inner = 1, .expert = 4}, 12,
     "mesh: parallelism.expert_parallel_degree=4 does not divide the shard axis of 6; choose 2"},
    {{.shard = 8, .replicate = AUTO, .inner = 2, .expert = 4}, 8,
     "mesh: parallelism.expert_parallel_degree=4 does not divide reshard_after_forward over 2 ranks; choose 2"},
    {{.shard = 6, .replicate = AUTO, .inner = 1, .context = 4}, 12,
     "mesh: parallelism.context_parallel_degree=4 does not divide the shard axis of 6; choose 2"},
    {{.shard = 1, .replicate = AUTO, .inner = 1, .context = 4}, 6,
     "mesh: parallelism.context_parallel_degree=4 does not divide the replicate axis of 6; choose 2"},
    {{.shard = 8, .replicate = AUTO, .inner = 1, .context = 4, .expert = 4}, 8,
     "mesh: parallelism.expert_parallel_degree=4 does not divide the shard axis of 2; choose 2"},
    {{.shard = 8, .replicate = AUTO, .inner = 2, .context = 2, .expert = 2}, 8,
     "mesh: parallelism.context_parallel_degree=2 times expert_parallel_degree=2 does not divide reshard_after_forward over 2 ranks; choose a multiple of 4"},
    {{.shard = ALL, .replicate = AUTO, .inner = 1, .tensor = 4}, 6,
     "mesh: parallelism.tensor_parallel_degree=4 does not divide the job's 6 ranks; choose 2 (or start a multiple of 4 ranks)"},
    {{.shard = 3, .replicate = AUTO, .inner = 1, .tensor = 2}, 8,
     "mesh: mesh.shard=3 does not divide the job's 4 tensor groups; choose mesh.shard=2 (or start a multiple of 6 ranks)"},
    {{.shard = 2, .replicate = 4, .inner = 1, .tensor = 2}, 8,
     "mesh: replicate 4 x shard 2 = 8 tensor groups, but the job has 4; choose mesh.shard=2 mesh.replicate=2"},
    {{.shard = NODE, .replicate = AUTO, .inner = 1, .tensor = 4, .ranks_per_node = 2}, 8,
     "mesh: mesh.shard=node with parallelism.tensor_parallel_degree=4, but a node has 2 ranks; choose a number for mesh.shard"},
};
/* clang-format on */

/* Ranks with other parts of the same matrices are neighbours, and no other axis counts them. */
static void test_tensor(void **state)
{
    const struct sh_mesh_request req = {
        .shard = NODE, .replicate = AUTO, .inner = 2, .context = 2, .tensor = 2, .ranks_per_node = 8};
    struct sh_mesh_shape s;

    (void)state;
    assert_int_equal(sh_mesh_shape_make(&req, 16, 13, &s), SH_OK);
    assert_int_equal(sh_group_size(&s, s.tensor), 2);
    assert_int_equal(sh_group_member(&s, s.tensor, 0), 12);
    assert_int_equal(sh_group_size(&s, s.shard), 4);
    assert_int_equal(sh_group_member(&s, s.shard, 1), 11);
    assert_int_equal(sh_group_size(&s, s.replicate), 2);
    assert_int_equal(sh_group_size(&s, s.data),
                     4); /* half of each group has the same sequences, and another half the same rows */
    assert_int_equal(sh_group_size(&s, s.rows), 16);
    assert_int_equal(sh_group_index(&s, s.tensor | s.shard), 5);
}

/* Where nothing is sharded the ranks that share sequences are replicas; else they are the first of a shard group. */
/* Stages are whole jobs of ranks side by side, the first one first. */
static void test_pipeline(void **state)
{
    const struct sh_mesh_request req = {.shard = 3, .replicate = AUTO, .inner = 1, .pipeline = 2};
    struct sh_mesh_shape s;

    (void)state;
    assert_int_equal(sh_mesh_shape_make(&req, 12, 7, &s), SH_OK);
    assert_int_equal(sh_group_size(&s, s.pipeline), 2);
    assert_int_equal(sh_group_index(&s, s.pipeline), 1);
    assert_int_equal(sh_group_member(&s, s.pipeline, 0), 1);
    assert_int_equal(sh_group_member(&s, s.shard, 2), 8);
    assert_int_equal(sh_group_size(&s, s.replicate), 2);
    assert_int_equal(sh_group_size(&s, s.data), 6);
    assert_false(sh_mesh_speaks(&s)); /* rank 1 has the same sequences */
}

static void test_context(void **state)
{
    const struct sh_mesh_request whole = {.shard = 1, .replicate = AUTO, .inner = 1, .context = 2};
    const struct sh_mesh_request cut = {.shard = 4, .replicate = AUTO, .inner = 2, .context = 2};
    char name[SH_GROUP_NAME];
    struct sh_mesh_shape s;

    (void)state;
    assert_int_equal(sh_mesh_shape_make(&whole, 8, 5, &s), SH_OK);
    assert_int_equal(sh_group_size(&s, s.replicate), 8);
    assert_int_equal(sh_group_size(&s, s.shard), 1);
    assert_int_equal(sh_group_size(&s, s.data), 4);
    assert_int_equal(sh_group_index(&s, s.data), 2);
    assert_false(sh_mesh_speaks(&s));
    assert_int_equal(sh_mesh_shape_make(&cut, 8, 5, &s), SH_OK);
    assert_int_equal(sh_group_size(&s, s.replicate), 2);
    assert_int_equal(sh_group_size(&s, s.shard), 4);
    assert_int_equal(sh_group_size(&s, s.inner), 2);
    assert_int_equal(sh_group_size(&s, s.data), 4);
    assert_int_equal(sh_group_size(&s, s.rows), 8);
    assert_int_equal(sh_group_member(&s, s.context, 0), 4);
    assert_string_equal(sh_group_name(&s, s.context, name), "context");
}

static void test_misfits(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof misfits / sizeof misfits[0]; i++) {
        struct sh_mesh_shape s, before;
        memset(&s, 0x5a, sizeof s);
        before = s;
        assert_int_equal(sh_mesh_shape_make(&misfits[i].req, misfits[i].world, 0, &s), SH_E_USAGE);
        assert_string_equal(sh_error_text(), misfits[i].text);
        assert_memory_equal(&s, &before, sizeof s);
    }
}

static void test_bad_rank(void **state)
{
    (void)state;
    struct sh_mesh_request req = {.shard = ALL, .replicate = AUTO, .inner = 1};
    struct sh_mesh_shape s;
    assert_int_equal(sh_mesh_shape_make(&req, 4, 4, &s), SH_E_BUG);
    assert_int_equal(sh_mesh_shape_make(&req, 0, 0, &s), SH_E_BUG);
}

static void test_names(void **state)
{
    enum { TENSOR = 1, CONTEXT = 2, EXPERT = 4, INNER = 8, OUTER = 16, REPLICATE = 32, PIPELINE = 64 };
    static const struct {
        sh_group group;
        const char *name;
    } rows[] = {{0, ""},
                {TENSOR, "tensor"},
                {CONTEXT, "context"},
                {INNER, "inner"},
                {OUTER, "outer"},
                {INNER | OUTER, "inner+outer"},
                {EXPERT, "expert"},
                {CONTEXT | EXPERT | INNER | OUTER, "shard"},
                {CONTEXT | INNER | OUTER, "expert_shard"},
                {REPLICATE, "replicate"},
                {PIPELINE, "pipeline"},
                {EXPERT | INNER | OUTER | REPLICATE, "data"},
                {TENSOR | CONTEXT | EXPERT | INNER | OUTER, "tensor_shard"},
                {TENSOR | CONTEXT | EXPERT | INNER | OUTER | REPLICATE, "rows"},
                {CONTEXT | INNER | OUTER | REPLICATE | PIPELINE, "context+inner+outer+replicate+pipeline"},
                {127, "world"}};
    struct sh_mesh_request req = {.shard = 1, .replicate = 1, .inner = 1};
    struct sh_mesh_shape s;
    char text[SH_GROUP_NAME];

    (void)state;
    assert_int_equal(sh_mesh_shape_make(&req, 1, 0, &s), SH_OK); /* groups of one rank have names too */
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        assert_string_equal(sh_group_name(&s, rows[i].group, text), rows[i].name);
    for (s.n = 0; s.n < SH_AXES_MAX; s.n++)
        s.axis[s.n] = (struct sh_axis){"fifteen letters", 1, 1};
    assert_int_equal(strlen(sh_group_name(&s, 0xfe, text)), SH_GROUP_NAME - 1); /* as much as fits */
}

/* Axes in the order of the text, of which only those that cut something are named. */
static void test_text(void **state)
{
    static const struct {
        int size[SH_AXES]; /* tensor, context, expert, inner, outer, replicate, pipeline */
        const char *text;
    } rows[] = {
        {{1, 1, 1, 1, 1, 1, 1}, "1 rank"},
        {{1, 1, 1, 2, 4, 2, 1}, "2 x 8 ranks (replicate x shard)"},
        {{1, 1, 2, 1, 2, 2, 1}, "2 x 4 ranks (replicate x shard), experts over 2"},
        {{1, 2, 2, 1, 2, 1, 1}, "2 context x 4 data (1 x 8 ranks, replicate x shard), experts over 2"},
        {{8, 2, 1, 2, 2, 2, 16}, "16 stages x 8 tensor x 2 context x 8 data (2 x 8 ranks, replicate x shard)"},
        {{8, 2, 4, 1, 2, 1, 16},
         "16 stages x 8 tensor x 2 context x 8 data (1 x 16 ranks, replicate x shard), experts over 4"},
        {{1024, 1024, 128, 1, 1, 1, 8}, /* the longest, with 2^30 ranks */
         "8 stages x 1024 tensor x 1024 context x 128 data (1 x 131072 ranks, replicate x shard), experts over 128"},
    };
    char text[SH_MESH_TEXT];

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct sh_mesh_shape s = sh_mesh_shape_of(rows[i].size, 0);

        assert_string_equal(sh_mesh_text(&s, text), rows[i].text);
    }
}

/* Every axis has 2 ranks. */
static void test_every_axis(void **state)
{
    static const int two[SH_AXES] = {2, 2, 2, 2, 2, 2, 2};
    const struct sh_mesh_shape any = sh_mesh_shape_of(two, 0);
    const struct {
        sh_group group;
        int size, index, member[8]; /* of rank 45, whose place on context, outer and pipeline is 0; the first 8 */
    } rows[] = {
        {1u << SH_AXIS_TENSOR, 2, 1, {44, 45}},
        {1u << SH_AXIS_CONTEXT, 2, 0, {45, 47}},
        {any.expert, 2, 1, {41, 45}},
        {any.inner, 2, 1, {37, 45}},
        {any.shard, 16, 6, {33, 35, 37, 39, 41, 43, 45, 47}},
        {any.replicate, 2, 1, {13, 45}},
        {any.data, 16, 11, {1, 5, 9, 13, 17, 21, 25, 29}},
        {any.rows, 64, 45, {0, 1, 2, 3, 4, 5, 6, 7}},
        {any.pipeline, 2, 0, {45, 109}},
    };
    int speak = 0;

    (void)state;
    assert_int_equal(sh_mesh_ranks(&any), 128);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct sh_mesh_shape s = sh_mesh_shape_of(two, 45);

        assert_int_equal(sh_group_size(&s, rows[i].group), rows[i].size);
        assert_int_equal(sh_group_index(&s, rows[i].group), rows[i].index);
        for (int m = 0; m < rows[i].size && m < 8; m++)
            assert_int_equal(sh_group_member(&s, rows[i].group, m), rows[i].member[m]);
        assert_int_equal(sh_group_widened(&s, rows[i].group), rows[i].group); /* no axis has size 1 */
    }
    for (int rank = 0; rank < 128; rank++) {
        struct sh_mesh_shape s = sh_mesh_shape_of(two, rank);

        speak += sh_mesh_speaks(&s);
        assert_int_equal(sh_mesh_speaks(&s), rank % 4 == 0 && rank < 64);
        for (int i = 0; i < SH_AXES; i++)
            assert_int_equal(sh_group_index(&s, 1u << i), rank >> i & 1);
        for (sh_group g = 0; g <= sh_group_world(&s); g++)
            check_group(s, g);
    }
    assert_int_equal(speak, sh_group_size(&any, any.data));
}

/* Groups of the same ranks become one if they differ in axes of size 1 only. */
static void test_widened(void **state)
{
    static const int sizes[][SH_AXES] = {{1, 1, 1, 2, 3, 2, 1}, {1, 1, 1, 1, 1, 1, 1}, {2, 1, 1, 1, 3, 1, 1}};

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct sh_mesh_shape s = sh_mesh_shape_of(sizes[i], 0);

        for (sh_group g = 0; g <= sh_group_world(&s); g++) {
            sh_group wide = sh_group_widened(&s, g);

            assert_int_equal(sh_group_size(&s, wide), sh_group_size(&s, g));
            assert_int_equal(wide & g, g);
            assert_int_equal(wide == sh_group_world(&s), sh_group_size(&s, g) == sh_mesh_ranks(&s));
        }
    }
}

/* Axes that no option makes yet: experts inside the shards of the other parameters, between replicas. 2 x 2 x 3 x 2
 * ranks, by hand. */
static void test_more_axes(void **state)
{
    enum { EP = 1, INNER = 2, OUTER = 4, REPLICATE = 8, RANKS = 24 };
    struct sh_mesh_shape s = {.n = 4,
                              .axis = {{"ep", 2, 1}, {"inner", 2, 2}, {"outer", 3, 4}, {"replicate", 2, 12}},
                              .shard = EP | INNER | OUTER,
                              .inner = EP | INNER,
                              .replicate = REPLICATE,
                              .data = EP | INNER | OUTER | REPLICATE};
    static const struct {
        sh_group group;
        int rank, size, index, member[6];
    } rows[] = {
        {EP, 17, 2, 1, {16, 17}},
        {INNER, 17, 2, 0, {17, 19}},
        {INNER | OUTER, 17, 6, 2, {13, 15, 17, 19, 21, 23}}, /* the shards of experts */
        {EP | REPLICATE, 17, 4, 3, {4, 5, 16, 17}},
        {EP | INNER, 7, 4, 3, {4, 5, 6, 7}},
        {OUTER, 7, 3, 1, {3, 7, 11}},
        {0, 7, 1, 0, {7}},
    };
    char text[SH_GROUP_NAME];

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        s.rank = rows[i].rank;
        assert_int_equal(sh_group_size(&s, rows[i].group), rows[i].size);
        assert_int_equal(sh_group_index(&s, rows[i].group), rows[i].index);
        for (int m = 0; m < rows[i].size; m++)
            assert_int_equal(sh_group_member(&s, rows[i].group, m), rows[i].member[m]);
    }
    for (s.rank = 0; s.rank < RANKS; s.rank++)
        for (sh_group g = 0; g <= sh_group_world(&s); g++)
            check_group(s, g);
    /* Whichever axes have different data, each part of it has one rank that speaks for it. */
    for (s.data = 0; s.data <= sh_group_world(&s); s.data++) {
        int speak[RANKS] = {0}, parts = 0;

        for (s.rank = 0; s.rank < RANKS; s.rank++)
            speak[sh_group_index(&s, s.data)] += sh_mesh_speaks(&s);
        for (int i = 0; i < RANKS; i++)
            parts += speak[i] == 1;
        s.rank = 0;
        assert_int_equal(parts, sh_group_size(&s, s.data));
    }
    assert_string_equal(sh_group_name(&s, EP, text), "ep");
    assert_string_equal(sh_group_name(&s, INNER | OUTER, text), "inner+outer");
    assert_string_equal(sh_group_name(&s, s.shard, text), "shard");
}

/* Blocks of neighbours in a group that are always on one node: a power of two that divides the node's part of the
 * group. */
static void test_blocks(void **state)
{
    static const struct {
        int world, shard, node, of_shard, of_replicate, of_world;
    } rows[] = {{64, 64, 16, 16, 1, 16}, {64, 64, 24, 8, 1, 8}, /* runs of 24, 24 and 16 */
                {96, 96, 48, 16, 1, 16}, {60, 60, 15, 1, 1, 1}, {60, 60, 20, 4, 1, 4}, {64, 4, 16, 4, 4, 16},
                {64, 32, 8, 8, 1, 8},    {8, 8, 8, 8, 1, 8},    {6, 3, 2, 1, 1, 2}};
    struct sh_mesh_shape s;

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct sh_mesh_request req = {.shard = rows[i].shard, .replicate = AUTO, .inner = 1};

        assert_int_equal(sh_mesh_shape_make(&req, rows[i].world, 0, &s), SH_OK);
        assert_int_equal(sh_group_block(&s, s.shard, rows[i].node), rows[i].of_shard);
        assert_int_equal(sh_group_block(&s, s.replicate, rows[i].node), rows[i].of_replicate);
        assert_int_equal(sh_group_block(&s, sh_group_world(&s), rows[i].node), rows[i].of_world);
        assert_int_equal(sh_group_block(&s, 0, rows[i].node), 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fits),      cmocka_unit_test(test_misfits),    cmocka_unit_test(test_bad_rank),
        cmocka_unit_test(test_names),     cmocka_unit_test(test_every_axis), cmocka_unit_test(test_widened),
        cmocka_unit_test(test_tensor),    cmocka_unit_test(test_pipeline),   cmocka_unit_test(test_context),
        cmocka_unit_test(test_more_axes), cmocka_unit_test(test_blocks),     cmocka_unit_test(test_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
