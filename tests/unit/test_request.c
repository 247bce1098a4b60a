/* The mesh that a configuration asks for at a place, what is said of it, and who holds one copy together. */
#include "src/run/request.h"

#include "src/pass/build.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define NODES(ranks, per_node)                                            \
    {                                                                     \
        .world = (ranks), .ranks_per_node = (per_node), .in_blocks = true \
    }
#define ONCE(n) "no_shard (the " #n " of a node hold it once in shared memory)"

/* segment: ranks that share memory. */
static const struct {
    struct sh_place at;
    const char *set;
    int replicate, shard, segment;
    const char *text;
} table[] = {
    {NODES(1, 1), NULL, 1, 1, 0, "no_shard"},
    {NODES(2, 2), NULL, 1, 2, 2, ONCE(2)},
    {NODES(3, 3), NULL, 1, 3, 3, ONCE(3)},
    {NODES(12, 4), NULL, 3, 4, 4, ONCE(4)},
    {NODES(10000, 8), NULL, 1250, 8, 8, ONCE(8)},
    /* a rank a node has nobody to share with */
    {NODES(4, 1), NULL, 4, 1, 0, "no_shard"},
    /* the last node is not full; nodes are not known; neighbours are not on one node; GPUs */
    {NODES(6, 4), NULL, 6, 1, 0, "no_shard"},
    {NODES(4, 0), NULL, 4, 1, 0, "no_shard"},
    {{.world = 4, .ranks_per_node = 4}, NULL, 4, 1, 0, "no_shard"},
    {{.world = 4, .ranks_per_node = 4, .in_blocks = true, .gpu = true}, NULL, 4, 1, 0, "no_shard"},
    /* as asked for; replicas of one node reduce in its memory all the same */
    {NODES(4, 4), "comm.shared_memory=off", 4, 1, 0, "no_shard"},
    {NODES(4, 4), "mesh.shard=1", 4, 1, 4, "no_shard"},
    {NODES(4, 4), "mesh.replicate=4", 4, 1, 4, "no_shard"},
    {NODES(4, 2), "mesh.replicate=4", 4, 1, 0, "no_shard"},
    /* the other strategies have the mesh that they had */
    {NODES(4, 2), "parallelism.sharding_strategy=shard_optim", 1, 4, 0, "shard_optim"},
    {NODES(4, 2), "parallelism.sharding_strategy=hybrid_shard", 2, 2, 2, "hybrid_shard"},
};

/* no_shard, unless `set` says otherwise. */
static void load(const char *set, struct sh_config *cfg)
{
    const char *const words[] = {"model.name=debug", set, "parallelism.sharding_strategy=no_shard"};
    const char *const alone[] = {words[0], words[2]};
    bool other = set && strstr(set, "sharding_strategy");

    assert_int_equal(sh_config_load(NULL, set && !other ? 3 : 2, set ? words : alone, cfg), SH_OK);
}

static void meshes(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        char text[SH_STRATEGY_TEXT];
        struct sh_config cfg;
        struct sh_mesh_shape mesh;
        struct sh_build build;

        load(table[i].set, &cfg);
        assert_int_equal(sh_request_mesh(&cfg, &table[i].at, &mesh), SH_OK);
        assert_int_equal(sh_request_build(&cfg, &table[i].at, &mesh, SH_TO_TRAIN, 1, 0, &build), SH_OK);
        int replicas = sh_group_size(&mesh, mesh.replicate), shard = sh_group_size(&mesh, mesh.shard);

        if (replicas != table[i].replicate || shard != table[i].shard ||
            build.options.segment_ranks != table[i].segment)
            fail_msg("row %d: %d x %d, %d share", (int)i, replicas, shard, build.options.segment_ranks);
        assert_string_equal(sh_request_strategy_text(&cfg, &mesh, text), table[i].text);
    }
}

/* What the run connects is what the plan was made for. */
static void axes_are_those_of_the_plan(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        for (int rank = 0; rank < table[i].at.world && rank < 16; rank++) {
            struct sh_place at = table[i].at;
            struct sh_config cfg;
            struct sh_mesh_shape planned, connected;
            struct sh_mesh_request axes;

            at.rank = rank;
            load(table[i].set, &cfg);
            axes = sh_request_axes(&cfg, &at);
            assert_int_equal(sh_request_mesh(&cfg, &at, &planned), SH_OK);
            assert_int_equal(sh_mesh_shape_make(&axes, at.world, rank, &connected), SH_OK);
            assert_memory_equal(&planned, &connected, sizeof planned);
        }
}

static void refused(void **state)
{
    static const struct sh_place at = NODES(4, 4);
    static const struct {
        const char *set, *text;
    } rows[] = {
        {"mesh.shard=4", "takes no mesh.shard but 1, and it is 4"},
        {"mesh.shard=node", "takes no mesh.shard but 1, and it is 4"},
        {"mesh.replicate=2", "replicate 2 x shard 1 = 2 ranks, but the job has 4"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct sh_config cfg;
        struct sh_mesh_shape mesh;

        load(rows[i].set, &cfg);
        assert_int_equal(sh_request_mesh(&cfg, &at, &mesh), SH_E_USAGE);
        if (!strstr(sh_error_text(), rows[i].text))
            fail_msg("row %d: %s", (int)i, sh_error_text());
        sh_error_clear();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(meshes),
        cmocka_unit_test(axes_are_those_of_the_plan),
        cmocka_unit_test(refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
