/* The search compared with brute force: on small jobs nothing that fits is faster than its result, the result fits, and
 * the plan of the configuration that it writes has the predicted time. */
#include "src/tools/predict/search/search.h"

#include "src/cost/step.h"
#include "src/pass/pipeline/stages.h"
#include "src/plan/request.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS = 8, NODE = 4 };

static struct sh_config config(int global)
{
    struct sh_config cfg;
    char batch[64];
    const char *const args[] = {"model.family=llama",
                                "model.n_layers=4",
                                "model.dim=256",
                                "model.n_heads=4",
                                "model.ffn_dim=1024",
                                "model.vocab_size=4096",
                                "model.max_seq_len=512",
                                "training.seq_len=512",
                                batch,
                                "training.mixed_precision_param=bfloat16",
                                "training.device=cuda"};

    snprintf(batch, sizeof batch, "training.global_batch_size=%d", global);
    assert_int_equal(sh_config_load(NULL, sizeof args / sizeof *args, args, &cfg), SH_OK);
    return cfg;
}

static struct sh_machine machine(void)
{
    struct sh_machine m;

    assert_int_equal(sh_machine_preset("a100-40x4-hdr200", &m), SH_OK);
    m.network.bytes_per_second = 1e9; /* so meshes differ in speed */
    return m;
}

/* The plan of the configuration, as `sherd plan` makes it; seconds INFINITY: not possible, or it does not fit. */
struct planned {
    double seconds;
    int64_t bytes, chunk_rows;
};

static struct planned plan_of(const struct sh_config *cfg, const struct sh_machine *m, int64_t limit)
{
    struct sh_topology at = {.world = RANKS, .ranks_per_node = NODE, .in_blocks = true, .gpu = true, .on_paper = true};
    struct sh_mesh_shape mesh;
    struct sh_build b;
    struct sh_cost_request r = {.mesh = &mesh, .machine = m, .ranks_per_node = NODE, .faster = sh_cost_as_is};
    struct sh_cost_step step = {.seconds = INFINITY};
    struct planned out = {0};
    struct sh_program *p = NULL;
    struct sh_pipe_stages stages = {0};
    int64_t rows = INT64_MAX;
    int level = 0;

    if (sh_request_mesh(cfg, &at, &mesh) == SH_OK &&
        sh_request_build(cfg, &at, &mesh, SH_TO_TRAIN, 1, limit, &b) == SH_OK && sh_pass_fit(&b, &level) == SH_OK &&
        sh_pass_widen(&b, &rows) == SH_OK && sh_pass_build(&b, &p) == SH_OK) {
        r.p = p;
        if (sh_group_size(&mesh, mesh.pipeline) > 1) {
            assert_int_equal(sh_pipe_stages_build(&b, false, NULL, NULL, &stages), SH_OK);
            r.stages = &stages;
        }
        assert_int_equal(sh_cost_step(&r, &step), SH_OK);
        sh_pipe_stages_free(&stages);
        out = (struct planned){.bytes = p->arena_bytes, .chunk_rows = b.batch.chunk_rows};
    }
    sh_program_destroy(p);
    sh_error_clear();
    out.seconds = step.seconds;
    return out;
}

static double seconds_of(const struct sh_config *cfg, const struct sh_machine *m, int64_t limit)
{
    return plan_of(cfg, m, limit).seconds;
}

/* Pareto: no result that is as fast or faster takes as little memory. */
static void check_pareto(const struct sh_search_found *found, int n, int marked[2])
{
    for (int i = 0; i < n; i++) {
        int64_t least = INT64_MAX;

        for (int k = 0; k < i; k++)
            least = found[k].bytes < least ? found[k].bytes : least;
        assert_int_equal(found[i].pareto, found[i].bytes < least);
        marked[found[i].pareto]++;
    }
}

/* The best of every strategy, mesh, micro-batch and degree of recomputation. */
static double brute_force(const struct sh_config *asked, const struct sh_machine *m, int64_t limit)
{
    double best = INFINITY;

    for (int strategy = SH_NO_SHARD; strategy <= SH_HYBRID_SHARD_ZERO2; strategy++)
        for (int shard = 1; shard <= RANKS; shard *= 2)
            for (int batch = 1; batch <= asked->training.global_batch_size / RANKS; batch *= 2)
                for (int mode = 0; mode < 4; mode++) {
                    static const int modes[] = {SH_RECOMPUTE_NONE, SH_RECOMPUTE_SELECTIVE, SH_RECOMPUTE_FULL,
                                                SH_RECOMPUTE_MEMORY_BUDGET};
                    struct sh_config cfg = *asked;

                    cfg.parallelism.sharding_strategy = strategy;
                    cfg.mesh.shard = shard;
                    cfg.mesh.replicate = RANKS / shard;
                    cfg.mesh.ranks_per_node = NODE;
                    cfg.training.local_batch_size = batch;
                    cfg.activation_checkpoint.mode = modes[mode];
                    best = fmin(best, seconds_of(&cfg, m, limit));
                }
    return best;
}

/* Trained as a whole; with one optimizer state fewer; with adapters, which leave most of the model in two bytes per
 * element. */
static const struct way {
    int optimizer, rank;
    int limits[4]; /* MiB; 0: no more */
} ways[] = {{SH_OPTIM_ADAMW, 0, {4096, 200, 120, 90}}, {SH_OPTIM_LION, 0, {120, 70}}, {SH_OPTIM_ADAMW, 4, {120, 70}}};

static void compare_with_brute_force(const struct way *way)
{
    static const int batches[] = {8, 32};
    struct sh_machine m = machine();
    int found_some = 0, pareto[2] = {0};
    size_t step = getenv("SHERD_TEST_FEW") ? 3 : 1; /* the first and the last limit, or the first */

    for (size_t l = 0; l < sizeof way->limits / sizeof *way->limits && way->limits[l]; l += step)
        for (size_t i = 0; i < sizeof batches / sizeof *batches; i++) {
            struct sh_config cfg = config(batches[i]), best;
            int64_t limit = (int64_t)way->limits[l] << 20;
            struct sh_search s = {
                .cfg = &cfg, .machine = &m, .ranks = RANKS, .ranks_per_node = NODE, .limit_bytes = limit};
            struct sh_search_found found[SH_SEARCH_MOST];
            double least;
            int n, marked = 0;

            cfg.optimizer.name = way->optimizer;
            cfg.lora.rank = way->rank;
            least = brute_force(&cfg, &m, limit);
            assert_int_equal(sh_search_run(&s, found, &n), SH_OK);
            assert_true((n > 0) == isfinite(least));
            found_some += n > 0;
            if (n && found[0].seconds > least * (1 + 1e-9))
                fail_msg("limit %lld, %d sequences: %g s found, %g s possible", (long long)limit, batches[i],
                         found[0].seconds, least);
            for (int k = 0; k < n; k++) {
                assert_true(found[k].bytes <= limit);
                assert_true(k == 0 || found[k].seconds >= found[k - 1].seconds);
                marked += found[k].best;
                assert_true(!found[k].best || found[k].seconds <= 1.02 * found[0].seconds);
                sh_search_apply(&s, &found[k], &best);
                assert_true(fabs(seconds_of(&best, &m, limit) - found[k].seconds) < 1e-12);
            }
            assert_int_equal(marked, n > 0);
            check_pareto(found, n, pareto);
        }
    assert_true(found_some >= 2 && pareto[false] > 0 && pareto[true] > found_some);
}

static void search_is_as_good_as_brute_force(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        compare_with_brute_force(&ways[i]);
}

/* On CPUs a job that does not fit in memory may fit with a file; the messages say what the machine has. */
static void a_file_makes_room(void **state)
{
    struct sh_config cfg = config(8);
    struct sh_machine m;
    struct sh_search s = {.cfg = &cfg, .machine = &m, .ranks = RANKS, .ranks_per_node = NODE, .limit_bytes = 26 << 20};
    struct sh_search_found found[SH_SEARCH_MOST];
    int n;

    (void)state;
    assert_int_equal(sh_machine_preset("cpux4-eth100", &m), SH_OK);
    cfg.training.device = SH_DEVICE_CPU;
    cfg.training.mixed_precision_param = SH_F32; /* its kernels need the same scratch on any CPU */
    cfg.model.ffn_dim = 1023;                    /* has no equal parts for ranks that share matrices */
    cfg.offload.buffer_count = 2;
    assert_int_equal(sh_search_run(&s, found, &n), SH_OK);
    assert_int_equal(n, 0);
    cfg.offload.mode = SH_OFFLOAD_BUDGET;
    snprintf(cfg.offload.nvme_path, sizeof cfg.offload.nvme_path, "/nowhere");
    assert_int_equal(sh_search_run(&s, found, &n), SH_OK);
    assert_true(n > 0 && found[0].bytes <= s.limit_bytes);
    assert_non_null(strstr(found[0].recompute, " in a file"));
}

/* On GPUs with less memory than the chunks of parameters need, the chunks may be in host memory. */
static void the_hosts_memory_makes_room(void **state)
{
    struct sh_config cfg = config(8);
    struct sh_machine m = machine();
    struct sh_search s = {
        .cfg = &cfg, .machine = &m, .ranks = 2, .ranks_per_node = 2, .limit_bytes = 112 << 20, .quick = true};
    struct sh_search_found found[SH_SEARCH_MOST];
    int n;

    (void)state;
    cfg.model.n_layers = 128;
    cfg.training.loss_chunk_rows = 64;
    cfg.offload.optimizer = cfg.offload.gradients = SH_OFFLOAD_CPU;
    cfg.offload.buffer_count = 2;
    assert_int_equal(sh_search_run(&s, found, &n), SH_OK);
    assert_int_equal(n, 0);
    cfg.offload.parameters = SH_OFFLOAD_CPU;
    assert_int_equal(sh_search_run(&s, found, &n), SH_OK);
    assert_true(n > 0 && found[0].bytes <= s.limit_bytes);
    assert_non_null(strstr(found[0].recompute, "parameters in host memory"));
}

/* With a limit, the rows of logits follow from it: bytes and seconds of a result are those of the plan of its keys. */
static void rows_of_logits_are_those_of_the_plan(void **state)
{
    struct sh_config cfg = config(32), best;
    struct sh_machine m = machine();
    struct sh_search s = {.cfg = &cfg, .machine = &m, .ranks = RANKS, .ranks_per_node = NODE};
    struct sh_search_found found[SH_SEARCH_MOST];
    int n, wider = 0;

    (void)state;
    cfg.training.seq_len = cfg.model.max_seq_len = 2048;
    cfg.memory.limit_bytes = 1ll << 40; /* more than the machine has: the search has its own limit */
    s.limit_bytes = 500 << 20;
    assert_int_equal(sh_search_run(&s, found, &n), SH_OK);
    assert_true(n > 0);
    for (int i = 0; i < n; i++) {
        struct planned p;

        sh_search_apply(&s, &found[i], &best);
        assert_int_equal(best.memory.limit_bytes, s.limit_bytes);
        p = plan_of(&best, &m, best.memory.limit_bytes);
        assert_true(fabs(p.seconds - found[i].seconds) < 1e-12 && p.bytes == found[i].bytes);
        wider += p.chunk_rows > 2048;
    }
    assert_true(wider > 0 && wider < n);
}

static void batches_that_do_not_divide_are_refused(void **state)
{
    struct sh_config cfg = config(8);
    struct sh_machine m = machine();
    struct sh_search s = {.cfg = &cfg, .machine = &m, .ranks = RANKS, .ranks_per_node = NODE, .limit_bytes = 1ll << 30};
    struct sh_search_found found[SH_SEARCH_MOST];
    int n;

    (void)state;
    cfg.training.global_batch_size = 9;
    assert_int_equal(sh_search_run(&s, found, &n), SH_OK);
    for (int i = 0; i < n; i++)
        assert_int_equal(found[i].context * found[i].tensor, RANKS);
    cfg.training.reproducible = SH_REPRODUCIBLE_MESH; /* so none share one */
    assert_int_equal(sh_search_run(&s, found, &n), SH_E_USAGE);
    assert_non_null(strstr(sh_error_text(), "9 is not a multiple of 8 ranks"));
}

/* Rank 0 is priced, so no degree is proposed of which others have groups on more nodes: 4 of 12 ranks in nodes of 6. */
static void groups_lie_alike_to_nodes(void **state)
{
    struct sh_config cfg = config(8);
    struct sh_machine m = machine();
    struct sh_search s = {.cfg = &cfg, .machine = &m, .ranks = 12, .ranks_per_node = 6, .limit_bytes = 1ll << 30};
    struct sh_search_found found[SH_SEARCH_MOST];
    int n;

    (void)state;
    cfg.training.global_batch_size = 3;
    assert_int_equal(sh_search_run(&s, found, &n), SH_E_USAGE);
    assert_non_null(strstr(sh_error_text(), "3 is not a multiple of 12 ranks, however many of a node's 6 or of whole"));
    s.ranks_per_node = 4;
    assert_int_equal(sh_search_run(&s, found, &n), SH_OK);
    assert_true(n > 0);
}

/* Fewer sequences than ranks: these share them or their matrices, as few as possible unless more are faster; what is found is planned as
 * found. Where the configuration says how many, no fewer do. */
static void ranks_share_sequences(void **state)
{
    struct sh_config cfg = config(8), best;
    struct sh_machine m = machine();
    struct sh_search s = {.cfg = &cfg, .machine = &m, .ranks = RANKS, .ranks_per_node = NODE, .limit_bytes = 1ll << 30};
    struct sh_search_found found[SH_SEARCH_MOST];
    int n, least = RANKS;

    (void)state;
    cfg.training.global_batch_size = 4;
    assert_int_equal(sh_search_run(&s, found, &n), SH_OK);
    assert_true(n > 0);
    for (int i = 0; i < n; i++) {
        int share = found[i].context * found[i].tensor;

        least = share < least ? share : least;
        sh_search_apply(&s, &found[i], &best);
        assert_int_equal(best.training.global_batch_size, 4);
        assert_int_equal(best.parallelism.context_parallel_degree, found[i].context);
        assert_true(fabs(seconds_of(&best, &m, s.limit_bytes) - found[i].seconds) < 1e-12);
    }
    assert_int_equal(least, 2);
    cfg.parallelism.context_parallel_degree = 4;
    assert_int_equal(sh_search_run(&s, found, &n), SH_OK);
    assert_true(n > 0);
    for (int i = 0; i < n; i++)
        assert_int_equal(found[i].context, 4);
}

/* Layers over stages, with parts of matrices: what is found is planned as found, whatever was priced by shorter steps. */
static void stages_are_priced_as_planned(void **state)
{
    struct sh_config cfg = config(64), best;
    struct sh_machine m = machine();
    struct sh_search s = {.cfg = &cfg,
                          .machine = &m,
                          .ranks = RANKS,
                          .ranks_per_node = NODE,
                          .limit_bytes = 1ll << 30,
                          .may_stage = true};
    struct sh_search_found found[SH_SEARCH_MOST];
    int n, staged = 0;

    (void)state;
    m.network.bytes_per_second = 1e8; /* so gathers are to be avoided */
    assert_int_equal(sh_search_run(&s, found, &n), SH_OK);
    for (int i = 0; i < n; i++) {
        if (found[i].pipeline == 1)
            continue;
        staged++;
        sh_search_apply(&s, &found[i], &best);
        assert_int_equal(best.parallelism.pipeline_parallel_degree, found[i].pipeline);
        assert_int_equal(best.parallelism.tensor_parallel_degree, found[i].tensor);
        assert_int_equal(best.training.global_batch_size, 64);
        if (fabs(seconds_of(&best, &m, s.limit_bytes) / found[i].seconds - 1) > 0.01)
            fail_msg("%d stages, matrices over %d: found %g s, planned %g s", found[i].pipeline, found[i].tensor,
                     found[i].seconds, seconds_of(&best, &m, s.limit_bytes));
    }
    assert_true(staged > 1);
    s.may_stage = false;
    assert_int_equal(sh_search_run(&s, found, &n), SH_OK);
    for (int i = 0; i < n; i++)
        assert_int_equal(found[i].pipeline, 1);
}

/* Long sequences that do not fit whole: tiles where they make the difference. */
static void long_sequences_go_in_tiles(void **state)
{
    struct sh_config cfg = config(8), best;
    struct sh_machine m = machine();
    struct sh_search s = {.cfg = &cfg, .machine = &m, .ranks = RANKS, .ranks_per_node = NODE};
    struct sh_search_found found[SH_SEARCH_MOST];
    int64_t whole;
    int n, tiled = 0;

    (void)state;
    cfg.model.ffn_dim = 8192;
    cfg.training.seq_len = cfg.model.max_seq_len = 32768;
    best = cfg;
    best.training.local_batch_size = 1;
    best.activation_checkpoint.mode = SH_RECOMPUTE_FULL;
    best.mesh.shard = RANKS;
    best.mesh.replicate = 1;
    best.mesh.ranks_per_node = NODE;
    whole = plan_of(&best, &m, 0).bytes;
    s.limit_bytes = whole - 1;
    assert_int_equal(sh_search_run(&s, found, &n), SH_OK);
    for (int i = 0; i < n; i++) {
        sh_search_apply(&s, &found[i], &best);
        assert_int_equal(best.training.tile_rows, found[i].tiles ? SH_TILE_ROWS_AUTO : 0);
        assert_true(fabs(seconds_of(&best, &m, s.limit_bytes) - found[i].seconds) < 1e-12);
        tiled += found[i].tiles;
    }
    assert_true(tiled > 0);
}

static void more_than_a_node_wants_a_network(void **state)
{
    struct sh_config cfg = config(8);
    struct sh_machine m = machine();
    struct sh_search s = {.cfg = &cfg, .machine = &m, .ranks = RANKS, .ranks_per_node = NODE, .limit_bytes = 1ll << 30};
    struct sh_search_found found[SH_SEARCH_MOST];
    int n;

    (void)state;
    m.network.bytes_per_second = 0;
    assert_int_equal(sh_search_run(&s, found, &n), SH_E_USAGE);
    assert_non_null(strstr(sh_error_text(), "8 ranks are more than the 4 of a node, but the machine has no network"));
    s.ranks = NODE;
    assert_int_equal(sh_search_run(&s, found, &n), SH_OK);
    assert_true(n > 0);
}

/* The search changes the numerics if that is allowed, and only then; the numerics that were asked for still count as
 * the simpler choice. */
static void numbers_change_where_they_may(void **state)
{
    struct sh_config cfg = config(8), best;
    struct sh_machine m = machine();
    struct sh_search s = {.cfg = &cfg,
                          .machine = &m,
                          .ranks = RANKS,
                          .ranks_per_node = NODE,
                          .limit_bytes = 1ll << 32,
                          .may_round = true,
                          .may_grow = true};
    struct sh_search_found found[SH_SEARCH_MOST];
    int n, rounded = 0, grown = 0;

    (void)state;
    cfg.training.global_batch_size = 12; /* not divisible by 8 ranks */
    assert_int_equal(sh_search_run(&s, found, &n), SH_OK);
    for (int i = 0; i < n; i++) {
        sh_search_apply(&s, &found[i], &best);
        rounded += best.training.mixed_precision_reduce == SH_PRECISION_BFLOAT16;
        grown += best.training.global_batch_size > 16;
        assert_true(best.training.global_batch_size % 16 == 0 && best.training.global_batch_size <= 64);
        assert_true(i == 0 || found[i].tokens_per_second <= found[i - 1].tokens_per_second);
        assert_true(fabs(seconds_of(&best, &m, s.limit_bytes) - found[i].seconds) < 1e-12);
    }
    assert_true(rounded > 0 && grown > 0 && found[0].reduce == SH_PRECISION_BFLOAT16);
    cfg.training.global_batch_size = 16;
    s.may_grow = false;
    for (int may = 0; may < 2;
         may++) { /* first not allowed; then allowed, but a rounded sum would differ from mesh to mesh */
        s.may_round = may;
        cfg.training.reproducible = may ? SH_REPRODUCIBLE_MESH : cfg.training.reproducible;
        assert_int_equal(sh_search_run(&s, found, &n), SH_OK);
        for (int i = 0; i < n; i++) {
            assert_true(found[i].reduce == SH_PRECISION_FLOAT32);
            assert_int_equal(found[i].local_batch * found[i].micro_steps * RANKS, 16);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(search_is_as_good_as_brute_force),
        cmocka_unit_test(batches_that_do_not_divide_are_refused),
        cmocka_unit_test(groups_lie_alike_to_nodes),
        cmocka_unit_test(ranks_share_sequences),
        cmocka_unit_test(stages_are_priced_as_planned),
        cmocka_unit_test(long_sequences_go_in_tiles),
        cmocka_unit_test(more_than_a_node_wants_a_network),
        cmocka_unit_test(a_file_makes_room),
        cmocka_unit_test(the_hosts_memory_makes_room),
        cmocka_unit_test(numbers_change_where_they_may),
        cmocka_unit_test(rows_of_logits_are_those_of_the_plan),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
