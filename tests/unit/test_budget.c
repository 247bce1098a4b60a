/* The budget over recomputation and homes: the choice is the fastest of all that fit, moves no more than that needs, keeps
 * both limits, and is one of all ranks. */
#include "src/cost/budget.h"

#include "src/base/mem.h"
#include "src/config/rates.h"
#include "src/cost/rates.h"
#include "src/cost/step.h"
#include "src/plan/request.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LAYERS = 3, LEVELS = 2 * LAYERS + 1, PARTS = 17, RANKS = 2 };

static const char SLOW[] = "offload.rates=file=2e7/1e7,mixed=1e7", FAST[] = "offload.rates=file=4e10/4e10";

static const struct sh_topology at = {.world = RANKS, .ranks_per_node = RANKS, .in_blocks = true};

struct plan {
    double arena, file, seconds;
};

/* `fit`: what the budget may choose. */
static struct sh_build build(struct sh_config *cfg, const char *rates, bool recompute, int64_t limit)
{
    char limit_text[64];
    const char *words[] = {"model.family=llama",
                           "model.n_layers=3",
                           "model.dim=64",
                           "model.n_heads=4",
                           "model.n_kv_heads=4",
                           "model.head_dim=16",
                           "model.ffn_dim=192",
                           "model.vocab_size=512",
                           "model.max_seq_len=128",
                           "training.seq_len=128",
                           "training.local_batch_size=2",
                           "training.global_batch_size=16",
                           "parallelism.sharding_strategy=full_shard",
                           "training.device=cpu",
                           "checkpoint.enable=false",
                           "offload.mode=memory_budget",
                           "offload.nvme_path=.",
                           limit_text,
                           rates,
                           "activation_checkpoint.mode=memory_budget"};
    struct sh_mesh_shape mesh;
    struct sh_build b;

    snprintf(limit_text, sizeof limit_text, "memory.limit_bytes=%lld", (long long)limit);
    if (sh_config_load(NULL, (int)(sizeof words / sizeof *words) - !recompute, words, cfg) != SH_OK)
        fail_msg("%s", sh_error_text());
    assert_int_equal(sh_request_mesh(cfg, &at, &mesh), SH_OK);
    assert_int_equal(sh_request_build(cfg, &at, &mesh, SH_TO_TRAIN, 2, limit, &b), SH_OK);
    assert_true(b.fit_homes && b.fit == recompute);
    return b;
}

static struct plan plan_of(const struct sh_config *cfg, const struct sh_build *b)
{
    struct sh_machine m;
    struct sh_cost_request r = {
        .mesh = &b->options.mesh, .machine = &m, .ranks_per_node = RANKS, .faster = sh_cost_as_is};
    struct sh_cost_step step;
    struct sh_program *p;
    struct plan out;
    int file;

    sh_cost_assume_rates(cfg, &m); /* of two threads, as these plans have */
    assert_int_equal(sh_pass_build_until(b, NULL, &p), SH_OK);
    r.p = p;
    assert_int_equal(sh_cost_step(&r, &step), SH_OK);
    file = sh_program_file_tier(p);
    out = (struct plan){(double)p->arena_bytes, file == SH_NONE ? 0 : (double)p->tiers[file].bytes, step.seconds};
    sh_program_destroy(p);
    return out;
}

static struct sh_recompute of_level(int i)
{
    return (struct sh_recompute){.full = i > LAYERS ? i - LAYERS : 0, .selective = i > LAYERS ? LAYERS : i};
}

/* Every choice there is. */
static void plan_all(const struct sh_config *cfg, struct sh_build b, struct plan all[LEVELS][PARTS])
{
    for (int level = 0; level < LEVELS; level++)
        for (int part = 0; part < PARTS; part++) {
            b.recompute = of_level(level);
            b.offload.optimizer_16 = part;
            all[level][part] = plan_of(cfg, &b);
        }
}

static bool fits(const struct sh_build *b, struct plan p, double file_limit)
{
    return p.arena <= (double)b->limit_bytes && p.file <= file_limit;
}

static int level_of(const struct sh_build *b)
{
    int level = 0;

    while (level < LEVELS && memcmp(&b->recompute, &(struct sh_recompute[]){of_level(level)}, sizeof b->recompute) != 0)
        level++;
    assert_true(level < LEVELS);
    return level;
}

/* Against all others; the mode and the file may forbid some. */
static void check_choice(const struct sh_build *b, struct plan all[LEVELS][PARTS], int levels, double file_limit)
{
    int level = level_of(b), part = b->offload.optimizer_16;
    const double near = 0.995; /* larger slices are fewer, which may be worth some microseconds */
    struct plan mine = all[level][part];

    assert_true(level < levels && fits(b, mine, file_limit));
    for (int i = 0; i < levels; i++)
        for (int k = 0; k < PARTS; k += 4)
            if (fits(b, all[i][k], file_limit) && all[i][k].seconds < mine.seconds * near)
                fail_msg("level %d with %d/16 takes %g s, %d with %d/16 %g s", level, part, mine.seconds, i, k,
                         all[i][k].seconds);
    if (part > 0)
        assert_false(fits(b, all[level][part - 1], file_limit));
}

static void check_limit(const char *rates, bool recompute, double share, struct plan all[LEVELS][PARTS])
{
    int levels = recompute ? LEVELS : 1;
    double least = all[levels - 1][16].arena;
    struct sh_config cfg;
    struct sh_build b;

    b = build(&cfg, rates, recompute, (int64_t)(least + share * (all[0][0].arena - least)));
    assert_int_equal(sh_budget_fit(&cfg, &at, NULL, &b), SH_OK);
    check_choice(&b, all, levels, 1e18);
    assert_true(share < 1 || (level_of(&b) == 0 && b.offload.optimizer_16 == 0));
}

static void the_fastest_that_fits(void **state)
{
    static const char *const rates[] = {SLOW, FAST, "offload.rates=", "offload.rates=file=2e9/1e9"};
    static struct plan all[LEVELS][PARTS];

    (void)state;
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) {
        struct sh_config cfg;
        struct sh_build b = build(&cfg, rates[i], true, 1);

        plan_all(&cfg, b, all);
        for (int share = 0; share <= 8; share++)
            for (int recompute = 0; recompute < 2; recompute++)
                check_limit(rates[i], recompute, share / 8.0, all);
    }
}

/* The same limit, which either way meets; a disk that costs nothing, and one that costs more than computing again. */
static void the_disk_decides(void **state)
{
    struct sh_config cfg;
    struct sh_build b = build(&cfg, FAST, true, 1), moved = b;
    int64_t limit;

    (void)state;
    moved.offload.optimizer_16 = 16;
    limit = (int64_t)((plan_of(&cfg, &b).arena + plan_of(&cfg, &moved).arena) / 2);
    b = build(&cfg, FAST, true, limit);
    assert_int_equal(sh_budget_fit(&cfg, &at, NULL, &b), SH_OK);
    assert_true(level_of(&b) == 0 && b.offload.optimizer_16 > 0);
    b = build(&cfg, SLOW, true, limit);
    assert_int_equal(sh_budget_fit(&cfg, &at, NULL, &b), SH_OK);
    assert_true(level_of(&b) > 0 && b.offload.optimizer_16 == 0);
}

/* What the file may take is used to its last sixteenth, and no further; the refusal names both. */
static void both_limits_hold(void **state)
{
    struct sh_config cfg;
    struct sh_build b = build(&cfg, FAST, false, 1);
    struct sh_program *p = NULL;
    struct plan sixths;

    (void)state;
    b.offload.optimizer_16 = 6;
    sixths = plan_of(&cfg, &b);
    for (int less = 0; less < 2; less++) {
        int64_t limit = (int64_t)sixths.arena - less;

        b = build(&cfg, FAST, false, limit);
        b.file_limit_bytes = (int64_t)sixths.file;
        assert_int_equal(sh_budget_fit(&cfg, &at, NULL, &b), SH_OK);
        assert_int_equal(b.offload.optimizer_16, 6);
        assert_int_equal(sh_pass_build(&b, &p), less ? SH_E_MEMORY : SH_OK);
        sh_program_destroy(p);
    }
    assert_non_null(strstr(sh_error_text(), "more than memory.limit_bytes = "));
    assert_non_null(strstr(sh_error_text(), " of optimizer states in a file (offload.nvme_limit_bytes allows "));
    assert_null(strstr(sh_error_text(), "offload.optimizer=nvme"));
    /* Without a choice it is a limit all the same. */
    b = build(&cfg, FAST, false, (int64_t)2e9);
    b.fit_homes = false;
    b.offload.optimizer_16 = 7;
    b.file_limit_bytes = (int64_t)sixths.file;
    assert_int_equal(sh_pass_build(&b, &p), SH_E_MEMORY);
    sh_program_destroy(p);
    assert_non_null(strstr(sh_error_text(), "in a file per rank, more than offload.nvme_limit_bytes = "));
}

/* Another rank: it needs as much recomputation as this, or has a file that is full. */
static double other_level, other_room;
static int calls, fails_at;

static sh_rc another_rank(sh_rc rc, double *most)
{
    if (rc == SH_OK && ++calls == fails_at)
        rc = sh_fail(SH_E_COMM, "a peer");
    if (most && *most >= 0 && *most < LEVELS && *most < other_level)
        *most = other_level;
    if (most && *most < -other_room)
        *most = -other_room;
    return rc;
}

static sh_rc fit_with(struct sh_build *b, const struct sh_config *cfg, double level, double room, int fails)
{
    calls = 0;
    fails_at = fails;
    other_level = level;
    other_room = room;
    return sh_budget_fit(cfg, &at, another_rank, b);
}

static void ranks_choose_together(void **state)
{
    struct sh_config cfg;
    struct sh_build b = build(&cfg, SLOW, true, 1), alone;
    double whole = plan_of(&cfg, &b).arena;
    int all;

    (void)state;
    alone = b = build(&cfg, SLOW, true, (int64_t)(0.95 * whole));
    assert_int_equal(sh_budget_fit(&cfg, &at, NULL, &alone), SH_OK);
    assert_int_equal(fit_with(&b, &cfg, 0, 1e18, 0), SH_OK);
    assert_memory_equal(&b.recompute, &alone.recompute, sizeof b.recompute);
    assert_int_equal(b.offload.optimizer_16, alone.offload.optimizer_16);
    all = calls;
    /* Without recomputation there is a choice: with it, none is below what the other needs. */
    alone = b = build(&cfg, SLOW, true, (int64_t)(0.95 * whole));
    assert_int_equal(fit_with(&b, &cfg, level_of(&alone) + 5, 1e18, 0), SH_OK);
    assert_true(level_of(&b) >= 5);
    /* All learn of a failure wherever it is. */
    for (int i = 1; i <= all; i++) {
        b = build(&cfg, SLOW, true, (int64_t)(0.95 * whole));
        assert_int_equal(fit_with(&b, &cfg, 0, 1e18, i), SH_E_COMM);
    }
}

/* A file that is full costs two more tries, wherever its limit is; each meets the others seven times, and the first once more. */
static void a_full_file_is_found_soon(void **state)
{
    enum { TRIES = 9, MEETINGS = 7 };
    struct sh_config cfg;

    (void)state;
    for (int i = 2; i < 2 * (PARTS - 1); i++) {
        struct sh_build b = build(&cfg, FAST, false, 1);
        struct plan most;
        int part = i / 2, less = i % 2; /* less memory than any choice needs whose file is within its limit */

        b.offload.optimizer_16 = part;
        b.offload.carry = true;
        most = plan_of(&cfg, &b);
        b = build(&cfg, FAST, false, (int64_t)most.arena - less);
        b.file_limit_bytes = (int64_t)most.file;
        assert_int_equal(fit_with(&b, &cfg, 0, 1e18, 0), SH_OK);
        assert_int_equal(b.offload.optimizer_16, part);
        assert_in_range(calls, 1, TRIES * MEETINGS + 1);
    }
}

static void rates_are_read(void **state)
{
    static const struct {
        const char *text;
        int bad; /* -1: it is right */
        struct sh_config_rates rates;
    } rows[] = {{"", -1, {0, 0, 0}},
                {"file=3e9/2e9", -1, {3e9, 2e9, 0}},
                {"file=3e9/2e9,mixed=1e9", -1, {3e9, 2e9, 1e9}},
                {"mixed=1e9,file=1/2", -1, {1, 2, 1e9}},
                {"mixed=1e9", 0, {0, 0, 0}},
                {"file=3e9", 0, {0, 0, 0}},
                {"file=3e9/", 0, {0, 0, 0}},
                {"file=3e9/0", 0, {0, 0, 0}},
                {"file=-1/1", 0, {0, 0, 0}},
                {"file=nan/1e9", 0, {0, 0, 0}},
                {"file=inf/1e9", 0, {0, 0, 0}},
                {"file=1e9/1e9x", 0, {0, 0, 0}},
                {"file=1e9/1e9,", 0, {0, 0, 0}},
                {"file=1/1,file=1/1", 9, {0, 0, 0}},
                {"file=1/1,host=1/1", 9, {0, 0, 0}},
                {"disk=1/1", 0, {0, 0, 0}}};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct sh_config_rates r;
        const char *bad;
        bool right = sh_config_rates(rows[i].text, &r, &bad);

        if (right != (rows[i].bad < 0) || (right && memcmp(&r, &rows[i].rates, sizeof r) != 0) ||
            (!right && bad != rows[i].text + rows[i].bad))
            fail_msg("%s", rows[i].text);
    }
}

/* In turn, bytes of both ways go at the rate of `mixed`. */
static void mixed_is_what_both_reach(void **state)
{
    struct sh_config cfg;
    struct sh_machine m;

    (void)state;
    build(&cfg, "offload.rates=file=3e9/1e9,mixed=1.2e9", true, 1);
    sh_cost_assume_rates(&cfg, &m);
    assert_true(fabs(2 / (1 / m.scratch.read + 1 / m.scratch.write) / 1.2e9 - 1) < 1e-12);
    assert_true(fabs(m.scratch.read / m.scratch.write / 3 - 1) < 1e-12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_fastest_that_fits),
        cmocka_unit_test(the_disk_decides),
        cmocka_unit_test(both_limits_hold),
        cmocka_unit_test(ranks_choose_together),
        cmocka_unit_test(rates_are_read),
        cmocka_unit_test(mixed_is_what_both_reach),
        cmocka_unit_test(a_full_file_is_found_soon),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
