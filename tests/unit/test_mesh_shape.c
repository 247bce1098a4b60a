/* The mesh's arithmetic for every rank of many shapes, and the words of what does not fit. */
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

/* Every axis through the eyes of every rank: own place is found again, members are ordered and agree on the group. */
static void check_rank(const struct fit *f, int rank)
{
    struct sh_mesh_shape s;
    assert_int_equal(sh_mesh_shape_make(&f->req, f->world, rank, &s), SH_OK);
    assert_int_equal(s.size[SH_AXIS_SHARD], f->shard);
    assert_int_equal(s.size[SH_AXIS_REPLICATE], f->replicate);
    assert_int_equal(s.size[SH_AXIS_INNER], f->req.inner);
    assert_int_equal(s.size[SH_AXIS_WORLD], f->world);
    assert_int_equal(s.index[SH_AXIS_REPLICATE] * f->shard + s.index[SH_AXIS_SHARD], rank);
    for (int axis = 0; axis < SH_AXES; axis++) {
        assert_in_range(s.index[axis], 0, s.size[axis] - 1);
        assert_int_equal(sh_mesh_axis_member(&s, (enum sh_axis)axis, s.index[axis]), rank);
        int last = sh_mesh_axis_member(&s, (enum sh_axis)axis, s.size[axis] - 1);
        struct sh_mesh_shape other;
        assert_int_equal(sh_mesh_shape_make(&f->req, f->world, last, &other), SH_OK);
        assert_int_equal(other.index[axis], s.size[axis] - 1);
        assert_int_equal(sh_mesh_axis_member(&other, (enum sh_axis)axis, s.index[axis]), rank);
    }
}

static void test_fits(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof fits / sizeof fits[0]; i++)
        for (int rank = 0; rank < fits[i].world; rank++)
            check_rank(&fits[i], rank);
}

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
};

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
    (void)state;
    assert_string_equal(sh_axis_name(SH_AXIS_SHARD), "shard");
    assert_string_equal(sh_axis_name(SH_AXIS_WORLD), "world");
    assert_string_equal(sh_axis_name(SH_AXES), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fits),
        cmocka_unit_test(test_misfits),
        cmocka_unit_test(test_bad_rank),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
