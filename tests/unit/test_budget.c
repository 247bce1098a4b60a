/* The budget over recomputation and homes: the choice is the fastest of all that fit, moves no more than necessary,
 * keeps both limits, and is the same on all ranks. */
#include "src/plan/budget.h"

#include "src/base/mem.h"
#include "src/config/rates.h"
#include "src/cost/rates.h"
#include "src/cost/step.h"
#include "src/plan/request.h"
#include "src/tier/tier.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LAYERS = 4, LEVELS = 2 * LAYERS + 1, PARTS = 17, RANKS = 2 };

static const char SLOW[] = "offload.rates=file=2e7/1e7,mixed=1e7,host=2e8/1e8",
                  FAST[] = "offload.rates=file=4e10/4e10,host=9e11/9e11";

static const struct sh_topology cpus = {.world = RANKS, .ranks_per_node = RANKS, .in_blocks = true},
                                gpus = {.world = RANKS, .ranks_per_node = RANKS, .in_blocks = true, .gpu = true};
static const struct sh_topology *at = &cpus;

/* A choice to try, and its result. */
struct choice {
    int level, part, gradients, params, act;
};
struct plan {
    double arena, file, host, seconds;
};

/* `fit`: what the budget may choose. The limits are those of the configuration. */
static struct sh_build build_within(struct sh_config *cfg, const char *rates, bool recompute, int64_t limit,
                                    int64_t host)
{
    char limit_text[64], host_text[64], layers[32];
    const char *words[] = {"model.family=llama",
                           layers,
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
                           at->gpu ? "training.device=cuda" : "training.device=cpu",
                           "offload.mode=memory_budget",
                           at->gpu ? host_text : "offload.nvme_path=.",
                           limit_text,
                           rates,
                           "activation_checkpoint.mode=memory_budget"};
    struct sh_mesh_shape mesh;
    struct sh_build b;

    snprintf(layers, sizeof layers, "model.n_layers=%d", LAYERS);
    snprintf(limit_text, sizeof limit_text, "memory.limit_bytes=%lld", (long long)limit);
    snprintf(host_text, sizeof host_text, "memory.host_limit_bytes=%lld", (long long)host);
    if (sh_config_load(NULL, (int)(sizeof words / sizeof *words) - !recompute, words, cfg) != SH_OK)
        fail_msg("%s", sh_error_text());
    assert_int_equal(sh_request_mesh(cfg, at, &mesh), SH_OK);
    assert_int_equal(sh_request_build(cfg, at, &mesh, SH_TO_TRAIN, 2, limit, &b), SH_OK);
    assert_true(b.fit_homes && b.fit == recompute);
    return b;
}

static struct sh_build build(struct sh_config *cfg, const char *rates, bool recompute, int64_t limit)
{
    return build_within(cfg, rates, recompute, limit, 0);
}

static struct plan priced(const struct sh_config *cfg, const struct sh_build *b, const struct sh_program *p)
{
    struct sh_machine m;
    struct sh_cost_request r = {
        .mesh = &b->options.mesh, .machine = &m, .ranks_per_node = RANKS, .faster = sh_cost_as_is};
    struct sh_cost_step step;
    int file = sh_program_file_tier(p), host = sh_program_host_tier(p);

    sh_cost_assume_machine(cfg, at->gpu, &m); /* with two threads, as in these plans */
    r.p = p;
    assert_int_equal(sh_cost_step(&r, &step), SH_OK);
    return (struct plan){(double)p->arena_bytes, file == SH_NONE ? 0 : (double)p->tiers[file].bytes,
                         host == SH_NONE ? 0 : (double)p->tiers[host].bytes, step.seconds};
}

static struct plan plan_of(const struct sh_config *cfg, const struct sh_build *b)
{
    struct sh_program *p;
    struct plan out;

    assert_int_equal(sh_pass_build_until(b, NULL, &p), SH_OK);
    out = priced(cfg, b, p);
    sh_program_destroy(p);
    return out;
}

static struct sh_recompute of_level(int i)
{
    return (struct sh_recompute){.full = i > LAYERS ? i - LAYERS : 0, .selective = i > LAYERS ? LAYERS : i};
}

/* A choice as if a configuration asked for it; with a GPU there is a copy for saves only if the states are on it. */
static struct sh_build chosen(struct sh_build b, const struct choice *c)
{
    b.recompute = of_level(c->level);
    b.offload.optimizer_16 = c->part;
    b.offload.carry = c->part > 0;
    b.offload.gradients = c->gradients;
    b.offload.parameters = b.options.fetched = c->params;
    b.offload.act_blocks = c->act;
    b.options.snapshot = at->gpu && c->part == 0;
    return b;
}

static struct plan plan_choice(const struct sh_config *cfg, struct sh_build b, const struct choice *c)
{
    b = chosen(b, c);
    return plan_of(cfg, &b);
}

static const char *const rates_tried[] = {SLOW, FAST, "offload.rates=file=2e9/1e9,host=5e9/4e9"};
enum { MOST = LEVELS * 5 * 2 * 2 * (LAYERS - 1), RATES = sizeof rates_tried / sizeof *rates_tried };

/* Plan a choice, and price it at all rates. */
static void plan_at_rates(const struct sh_config cfg[RATES], struct sh_build b, const struct choice *c, int n,
                          struct plan plans[RATES][MOST])
{
    struct sh_program *p;

    b = chosen(b, c);
    assert_int_equal(sh_pass_build_until(&b, NULL, &p), SH_OK);
    for (int i = 0; i < RATES; i++)
        plans[i][n] = priced(&cfg[i], &b, p);
    sh_program_destroy(p);
}

/* Plan every possible choice, with quarters of the states. Returns how many. */
static int plan_all(const struct sh_config cfg[RATES], const struct sh_build *b, struct choice *choices,
                    struct plan plans[RATES][MOST])
{
    int n = 0;

    for (int level = 0; level < LEVELS; level++)
        for (int part = 0; part < PARTS; part += 4)
            for (int gradients = 0; gradients < 2; gradients++)
                for (int params = 0; params < (at->gpu ? 2 : 1); params++)
                    for (int act = 0; act <= LAYERS - 2; act++) {
                        choices[n] = (struct choice){level, part, gradients, params, act};
                        plan_at_rates(cfg, *b, &choices[n], n, plans);
                        n++;
                    }
    return n;
}

/* Limits in bytes; a CPU has no host limit and a GPU no file limit. */
struct limits {
    double arena, host, file;
};

static bool fits(const struct limits *l, const struct plan *p)
{
    return p->arena <= l->arena && p->file <= l->file && p->host <= l->host;
}

static int level_of(const struct sh_build *b)
{
    int level = 0;

    while (level < LEVELS && memcmp(&b->recompute, &(struct sh_recompute[]){of_level(level)}, sizeof b->recompute) != 0)
        level++;
    assert_true(level < LEVELS);
    return level;
}

static struct choice choice_of(const struct sh_build *b)
{
    return (struct choice){level_of(b), b->offload.optimizer_16, b->offload.gradients, b->offload.parameters,
                           b->offload.act_blocks};
}

/* Compare the budget's choice with all others; the mode may forbid some. Returns whether anything fits. */
static bool check_choice(const struct sh_config *cfg, const struct sh_build *b, const struct choice *choices,
                         const struct plan *plans, int n, int levels, const struct limits *l)
{
    const double near = 0.994; /* a thousandth counts as equal, and larger slices are fewer */
    struct choice mine = choice_of(b);
    struct plan its = plan_of(cfg, b);
    bool any = false;

    for (int i = 0; i < n; i++) {
        if (choices[i].level >= levels || !fits(l, &plans[i]))
            continue;
        any = true;
        if (plans[i].seconds < its.seconds * near)
            fail_msg(
                "level %d, %d/16, gradients %d, parameters %d, activations of %d take %g s; level %d, %d/16, %d, %d, "
                "%d %g s",
                mine.level, mine.part, mine.gradients, mine.params, mine.act, its.seconds, choices[i].level,
                choices[i].part, choices[i].gradients, choices[i].params, choices[i].act, plans[i].seconds);
    }
    assert_true(mine.level < levels && (!any || fits(l, &its)));
    if (any && mine.part > 0) {
        struct plan less;

        mine.part--;
        less = plan_choice(cfg, *b, &mine);
        assert_false(fits(l, &less) && less.seconds <= its.seconds);
    }
    return any;
}

/* shares: positions between the smallest choice and the one that leaves everything on the device. */
static bool check_limits(const char *rates, bool recompute, const struct choice *choices, const struct plan *plans,
                         int n, struct limits l)
{
    struct sh_config cfg;
    struct sh_build b = build_within(&cfg, rates, recompute, (int64_t)l.arena, at->gpu ? (int64_t)l.host : 0);

    b.file_limit_bytes = at->gpu ? 0 : (int64_t)l.file;
    assert_int_equal(sh_budget_fit(&cfg, at, NULL, &b), SH_OK);
    return check_choice(&cfg, &b, choices, plans, n, recompute ? LEVELS : 1, &l);
}

static struct limits most_of(const struct plan *plans, int n)
{
    struct limits most = {0, 0, 0};

    for (int i = 0; i < n; i++)
        most = (struct limits){fmax(most.arena, plans[i].arena), fmax(most.host, plans[i].host),
                               fmax(most.file, plans[i].file)};
    return most;
}

static double least_arena(const struct plan *plans, int n)
{
    double least = INFINITY;

    for (int i = 0; i < n; i++)
        least = fmin(least, plans[i].arena);
    return least;
}

/* Combine thirds of the range of the choices on the device with none, half and all of the bytes that may be wanted in
 * the tier below it; every second pair, with SHERD_LONG all. */
static void check_rates(const char *rates, const struct choice *choices, const struct plan *plans, int n, int *fitting)
{
    struct limits most = most_of(plans, n);
    double least = least_arena(plans, n);
    int every = getenv("SHERD_LONG") ? 1 : 2;

    for (int share = 0; share <= 3; share++)
        for (int below = share % every; below <= 2; below += every)
            for (int recompute = 0; recompute < 2; recompute++)
                *fitting += check_limits(rates, recompute, choices, plans, n,
                                         (struct limits){floor(least + share / 3.0 * (plans[0].arena - least)),
                                                         floor(1 + below / 2.0 * most.host),
                                                         floor(1 + below / 2.0 * most.file)});
}

static void the_fastest_that_fits(void **state)
{
    static struct choice choices[MOST];
    static struct plan plans[RATES][MOST];
    static struct sh_config cfg[RATES];
    struct sh_build b;
    int fitting = 0, n;

    at = *state;
    for (int i = 0; i < RATES; i++)
        b = build(&cfg[i], rates_tried[i], true, 1);
    n = plan_all(cfg, &b, choices, plans);
    for (int i = 0; i < RATES; i++)
        check_rates(rates_tried[i], choices, plans[i], n, &fitting);
    at = &cpus;
    assert_true(fitting > 15); /* otherwise nothing was compared */
}

/* The bytes of a copy for saves, the bytes of all homes, and values in between: each limit decides by itself, and in
 * the other's place it would decide differently. */
static void each_limit_decides(void **state)
{
    struct sh_config cfg;
    struct sh_build b, other;
    struct sh_program *p = NULL;
    struct plan whole, half;

    (void)state;
    at = &gpus;
    b = build(&cfg, FAST, false, 1);
    whole = plan_choice(&cfg, b, &(struct choice){.part = 0});
    half = plan_choice(&cfg, b, &(struct choice){.part = 8});
    /* Only the device's limit. */
    b = build_within(&cfg, FAST, false, (int64_t)half.arena, (int64_t)(2 * whole.host));
    assert_int_equal(sh_budget_fit(&cfg, at, NULL, &b), SH_OK);
    assert_true(plan_of(&cfg, &b).arena <= half.arena && sh_pass_homes_text(&b, (char[SH_HOMES_TEXT]){0})[0]);
    /* The host's limit: everything fits on the device, but the copy for saves takes more than the states would. */
    other = build_within(&cfg, FAST, false, (int64_t)whole.arena, (int64_t)whole.host - 1);
    assert_int_equal(sh_budget_fit(&cfg, at, NULL, &other), SH_OK);
    assert_true(other.offload.optimizer_16 > 0 && plan_of(&cfg, &other).host < whole.host);
    /* Both limits: what the device has no room for does not fit on the host either. The refusal names both. */
    b = build_within(&cfg, FAST, false, (int64_t)half.arena, 1000);
    assert_int_equal(sh_budget_fit(&cfg, at, NULL, &b), SH_OK);
    assert_int_equal(sh_pass_build(&b, &p), SH_E_MEMORY);
    sh_program_destroy(p);
    assert_non_null(strstr(sh_error_text(), "no plan fits; the smallest is "));
    assert_non_null(strstr(sh_error_text(), " bytes over memory.host_limit_bytes = 1000 B, since it needs "));
    /* If the choice is made by hand, the limit applies nevertheless. */
    b = build_within(&cfg, FAST, false, (int64_t)1e12, 1000);
    b.fit_homes = false;
    assert_int_equal(sh_pass_build(&b, &p), SH_E_MEMORY);
    sh_program_destroy(p);
    assert_non_null(
        strstr(sh_error_text(), "of pinned host memory per rank, more than memory.host_limit_bytes = 1000 B; "));
    at = &cpus;
}

/* The same limit, which can be met either way; a disk that costs nothing, and one that costs more
 * than recomputation. */
static void the_disk_decides(void **state)
{
    struct sh_config cfg;
    struct sh_build b = build(&cfg, FAST, true, 1);
    int64_t limit;

    (void)state;
    limit = (int64_t)((plan_of(&cfg, &b).arena + plan_choice(&cfg, b, &(struct choice){.part = 16}).arena) / 2);
    b = build(&cfg, FAST, true, limit);
    assert_int_equal(sh_budget_fit(&cfg, at, NULL, &b), SH_OK);
    assert_true(level_of(&b) == 0 && sh_pass_homes_text(&b, (char[SH_HOMES_TEXT]){0})[0]);
    b = build(&cfg, SLOW, true, limit);
    assert_int_equal(sh_budget_fit(&cfg, at, NULL, &b), SH_OK);
    assert_true(level_of(&b) > 0 && b.offload.optimizer_16 == 0);
}

/* Limits that just hold half of the states, a share that the search tries: no more is taken; the refusal names both. */
static void both_limits_hold(void **state)
{
    struct sh_config cfg;
    struct sh_build b = build(&cfg, FAST, false, 1);
    struct sh_program *p = NULL;
    struct choice half = {.part = 8, .gradients = 1, .act = LAYERS - 2},
                  all = {.part = 16, .gradients = 1, .act = LAYERS - 2};
    struct plan halves = plan_choice(&cfg, b, &half), least = plan_choice(&cfg, b, &all);

    (void)state;
    for (int less = 0; less < 2; less++) {
        int64_t limit = less ? (int64_t)least.arena / 2 : (int64_t)halves.arena;

        b = build(&cfg, FAST, false, limit);
        b.file_limit_bytes = (int64_t)halves.file;
        assert_int_equal(sh_budget_fit(&cfg, at, NULL, &b), SH_OK);
        assert_true(less || plan_of(&cfg, &b).file <= halves.file);
        assert_int_equal(sh_pass_build(&b, &p), less ? SH_E_MEMORY : SH_OK);
        sh_program_destroy(p);
    }
    assert_non_null(strstr(sh_error_text(), "no plan fits; the smallest is "));
    assert_non_null(strstr(sh_error_text(), " bytes over memory.limit_bytes = "));
    assert_non_null(strstr(sh_error_text(), "offload.nvme_limit_bytes"));
    assert_null(strstr(sh_error_text(), "offload.optimizer=nvme"));
    /* Without a choice to make, the limit applies nevertheless. */
    b = build(&cfg, FAST, false, (int64_t)2e9);
    b.fit_homes = false;
    b.offload.optimizer_16 = 7;
    b.file_limit_bytes = (int64_t)halves.file / 4;
    assert_int_equal(sh_pass_build(&b, &p), SH_E_MEMORY);
    sh_program_destroy(p);
    assert_non_null(strstr(sh_error_text(), "in a file per rank, more than offload.nvme_limit_bytes = "));
}

/* Limits that hold a share of the states between two that are tried, together with activations: more of either does not
 * fit. */
static void both_limits_hold_between(void **state)
{
    struct sh_config cfg;
    struct sh_build b = build(&cfg, FAST, false, 1);
    struct plan between = plan_choice(&cfg, b, &(struct choice){.part = 7, .act = 1}), its;

    (void)state;
    b = build(&cfg, FAST, false, (int64_t)between.arena);
    b.file_limit_bytes = (int64_t)between.file;
    assert_int_equal(sh_budget_fit(&cfg, at, NULL, &b), SH_OK);
    its = plan_of(&cfg, &b);
    if (its.arena > between.arena || its.file > between.file)
        fail_msg("%d/16, activations of %d blocks: %g over %g, %g over %g in a file", b.offload.optimizer_16,
                 b.offload.act_blocks, its.arena, between.arena, its.file, between.file);
}

/* Another rank, which needs this much recomputation, or whose file is full. */
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
    return sh_budget_fit(cfg, at, another_rank, b);
}

static void ranks_choose_together(void **state)
{
    struct sh_config cfg;
    struct sh_build b = build(&cfg, SLOW, true, 1), alone;
    double whole = plan_of(&cfg, &b).arena;
    int all;

    (void)state;
    alone = b = build(&cfg, SLOW, true, (int64_t)(0.95 * whole));
    assert_int_equal(sh_budget_fit(&cfg, at, NULL, &alone), SH_OK);
    assert_int_equal(fit_with(&b, &cfg, 0, 1e18, 0), SH_OK);
    assert_memory_equal(&b.recompute, &alone.recompute, sizeof b.recompute);
    assert_int_equal(b.offload.optimizer_16, alone.offload.optimizer_16);
    all = calls;
    /* Without recomputation there is a choice: with it, none is below the level that the other rank needs. */
    alone = b = build(&cfg, SLOW, true, 64 + (int64_t)plan_choice(&cfg, b, &(struct choice){.level = 1}).arena);
    assert_int_equal(sh_budget_fit(&cfg, at, NULL, &alone), SH_OK);
    assert_int_equal(level_of(&alone), 1);
    assert_int_equal(fit_with(&b, &cfg, 5, 1e18, 0), SH_OK);
    assert_int_equal(level_of(&b), 5);
    /* All ranks learn about a failure wherever it is. */
    for (int i = 1; i <= all; i++) {
        b = build(&cfg, SLOW, true, (int64_t)(0.95 * whole));
        assert_int_equal(fit_with(&b, &cfg, 0, 1e18, i), SH_E_COMM);
    }
}

/* A full file costs a few more tries, wherever its limit is; each try has eight meetings, and the first one more.
 * Without recomputation to choose there are at most ten choices of homes and twenty of activations, and as many for a
 * refusal, before which each share of the states is tried with halves of the activations. */
static void a_full_file_is_found_soon(void **state)
{
    enum { TRIES = 2 * (12 + 24) + 8, PARTLY = 2 * (1 + PARTS * 3), MEETINGS = 6 };
    struct sh_config cfg;

    (void)state;
    for (int i = 2; i < 2 * (PARTS - 1); i++) {
        struct sh_build b = build(&cfg, FAST, false, 1);
        int part = i / 2, less = i % 2; /* less memory than any choice needs that keeps its file within the limit */
        struct plan most = plan_choice(&cfg, b, &(struct choice){.part = part}), mine;

        b = build(&cfg, FAST, false, (int64_t)most.arena - less);
        b.file_limit_bytes = (int64_t)most.file;
        assert_int_equal(fit_with(&b, &cfg, 0, 1e18, 0), SH_OK);
        mine = plan_of(&cfg, &b);
        assert_true(less || (mine.file <= most.file && mine.arena <= most.arena));
        assert_in_range(calls, 1, (TRIES + less * PARTLY) * MEETINGS + 1);
    }
}

/* Without a limit the ranks of a node share the free space of the folder evenly, within what others may write in the
 * meantime; a folder that is not here sets no limit. */
static void free_space_is_shared(void **state)
{
    enum { SHARING = 16 };
    struct sh_topology many = {.world = SHARING, .ranks_per_node = SHARING, .in_blocks = true};
    struct sh_config cfg;
    struct sh_build b = build(&cfg, FAST, false, (int64_t)2e9);
    double each = (double)sh_tier_free_bytes(".") / SHARING;

    (void)state;
    assert_int_equal(sh_budget_fit(&cfg, &many, NULL, &b), SH_OK);
    assert_true((double)b.file_limit_bytes > each / 2 && (double)b.file_limit_bytes < each * 2);
    snprintf(cfg.offload.nvme_path, sizeof cfg.offload.nvme_path, "/nowhere");
    b.file_limit_bytes = 0;
    assert_int_equal(sh_budget_fit(&cfg, &many, NULL, &b), SH_OK);
    assert_int_equal(b.file_limit_bytes, 0);
}

static void rates_are_read(void **state)
{
    static const struct {
        const char *text;
        int bad; /* -1: none */
        struct sh_config_rates rates;
    } rows[] = {{"", -1, {0, 0, 0, 0, 0}},
                {"file=3e9/2e9", -1, {3e9, 2e9, 0, 0, 0}},
                {"file=3e9/2e9,mixed=1e9", -1, {3e9, 2e9, 1e9, 0, 0}},
                {"mixed=1e9,file=1/2", -1, {1, 2, 1e9, 0, 0}},
                {"host=4/5", -1, {0, 0, 0, 4, 5}},
                {"host=4/5,file=1/2,mixed=3", -1, {1, 2, 3, 4, 5}},
                {"mixed=1e9", 0, {0, 0, 0, 0, 0}},
                {"file=3e9", 0, {0, 0, 0, 0, 0}},
                {"file=3e9/", 0, {0, 0, 0, 0, 0}},
                {"file=3e9/0", 0, {0, 0, 0, 0, 0}},
                {"file=-1/1", 0, {0, 0, 0, 0, 0}},
                {"file=nan/1e9", 0, {0, 0, 0, 0, 0}},
                {"file=inf/1e9", 0, {0, 0, 0, 0, 0}},
                {"file=1e9/1e9x", 0, {0, 0, 0, 0, 0}},
                {"file=1e9/1e9,", 0, {0, 0, 0, 0, 0}},
                {"file=1/1,file=1/1", 9, {0, 0, 0, 0, 0}},
                {"host=1", 0, {0, 0, 0, 0, 0}},
                {"mixed=1,host=1/1", 0, {0, 0, 0, 0, 0}},
                {"host=1/1,host=1/1", 9, {0, 0, 0, 0, 0}},
                {"disk=1/1", 0, {0, 0, 0, 0, 0}}};

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

/* When reads and writes alternate, the bytes of both move at the rate `mixed`. */
static void mixed_is_what_both_reach(void **state)
{
    struct sh_config cfg;
    struct sh_machine m;

    (void)state;
    build(&cfg, "offload.rates=file=3e9/1e9,mixed=1.2e9", true, 1);
    sh_cost_assume_machine(&cfg, false, &m);
    assert_true(fabs(2 / (1 / m.scratch.read + 1 / m.scratch.write) / 1.2e9 - 1) < 1e-12);
    assert_true(fabs(m.scratch.read / m.scratch.write / 3 - 1) < 1e-12);
}

/* Either direction of either link has its own place. */
static void rates_reach_the_machine(void **state)
{
    struct sh_config cfg;
    struct sh_machine m;

    (void)state;
    build(&cfg, "offload.rates=file=1e9/2e9,host=3e9/4e9", true, 1);
    sh_cost_assume_machine(&cfg, true, &m);
    assert_true(m.scratch.read == 1e9 && m.scratch.write == 2e9 && m.host.read == 3e9 && m.host.write == 4e9);
    assert_true(fabs(sh_price_host_move(&m, SH_OP_FETCH, 6e9).seconds - 2) < 1e-12);
    assert_true(fabs(sh_price_host_move(&m, SH_OP_EVICT, 6e9).seconds - 1.5) < 1e-12);
    build(&cfg, "offload.rates=file=1e9/2e9", true, 1);
    sh_cost_assume_machine(&cfg, true, &m);
    assert_true(m.host.read == 20e9 && m.host.write == 20e9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(the_fastest_that_fits, (void *)&cpus),
        {"the_fastest_that_fits_gpus", the_fastest_that_fits, NULL, NULL, (void *)&gpus},
        cmocka_unit_test(the_disk_decides),
        cmocka_unit_test(each_limit_decides),
        cmocka_unit_test(rates_reach_the_machine),
        cmocka_unit_test(both_limits_hold),
        cmocka_unit_test(both_limits_hold_between),
        cmocka_unit_test(ranks_choose_together),
        cmocka_unit_test(free_space_is_shared),
        cmocka_unit_test(rates_are_read),
        cmocka_unit_test(mixed_is_what_both_reach),
        cmocka_unit_test(a_full_file_is_found_soon),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
