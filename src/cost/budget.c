/* What goes away, goes in an order: rungs of a ladder, a sixteenth of a row of `homes` each. Each rung moves more bytes than
 * the one below it, and needs no more recomputation. So of the rungs of whole quarters, each with the least recomputation
 * that fits, the one that takes least time is found by its price; then the lowest sixteenth below it that needs no more
 * recomputation, since it moves less. */
#include "src/cost/budget.h"

#include "src/cost/rates.h"
#include "src/cost/step.h"
#include "src/tier/tier.h"

#include <math.h>

enum { PART = 16, QUARTER = PART / 4 };

static void put_optimizer(struct sh_build *b, int sixteenths)
{
    b->offload.optimizer_16 = sixteenths;
    b->offload.carry = b->offload.overlap && sixteenths > 0;
}

/* In this order; the next row begins where all of the one before it is away. */
static void (*const homes[])(struct sh_build *b, int sixteenths) = {put_optimizer};
enum { HOMES = sizeof homes / sizeof *homes, TOP = HOMES * PART };

struct budget {
    struct sh_build *b;
    struct sh_machine machine;
    int ranks_per_node;
    sh_budget_agree *agree;
};

/* A rung as it was planned; figures are those of the rank that needs most. */
struct tried {
    int rung, level;
    double over, file_over; /* bytes above the limits, negative: to spare */
    double arena, seconds;
    struct sh_recompute recompute;
    struct sh_offload offload;
};

static sh_rc agree(const struct budget *g, sh_rc rc, double *most)
{
    return g->agree ? g->agree(rc, most) : rc;
}

static void put(struct sh_build *b, int rung)
{
    for (int i = 0; i < HOMES; i++) {
        int part = rung - i * PART;

        homes[i](b, part < 0 ? 0 : part > PART ? PART : part);
    }
}

/* One recomputation for all ranks, which gather the same units for it: that of the rank that needs most, if arenas differ
 * because nodes have other numbers of threads. */
static sh_rc fit_level(const struct budget *g, int *level)
{
    double from, most = *level;

    do {
        *level = (int)most;
        from = most;
        SH_TRY(agree(g, sh_pass_fit(g->b, level), NULL));
        most = *level;
        SH_TRY(agree(g, SH_OK, &most));
    } while (g->agree && most > from);
    return SH_OK;
}

/* The program of b as it is, its needs and its price. */
static sh_rc weigh(const struct budget *g, struct tried *t)
{
    struct sh_cost_request r = {.mesh = &g->b->options.mesh,
                                .machine = &g->machine,
                                .ranks_per_node = g->ranks_per_node,
                                .faster = sh_cost_as_is};
    struct sh_program *p;
    struct sh_cost_step step;
    int file;
    sh_rc rc;

    SH_TRY(sh_pass_build_until(g->b, NULL, &p));
    r.p = p;
    rc = sh_cost_step(&r, &step);
    if (rc == SH_OK) {
        file = sh_program_file_tier(p);
        t->arena = (double)p->arena_bytes;
        t->over = g->b->limit_bytes ? t->arena - (double)g->b->limit_bytes : -1;
        t->file_over = file == SH_NONE || !g->b->file_limit_bytes
                           ? -1
                           : (double)p->tiers[file].bytes - (double)g->b->file_limit_bytes;
        t->seconds = step.seconds;
    }
    sh_program_destroy(p);
    return rc;
}

/* Rungs that are too much for the file are left at once. */
static bool fits(const struct tried *t)
{
    return t->over <= 0;
}

/* A rung with the least recomputation from t->level on that fits. */
static sh_rc try_rung(const struct budget *g, int rung, struct tried *t)
{
    t->rung = rung;
    put(g->b, rung);
    SH_TRY(fit_level(g, &t->level));
    SH_TRY(agree(g, weigh(g, t), NULL));
    SH_TRY(agree(g, SH_OK, &t->over));
    SH_TRY(agree(g, SH_OK, &t->file_over));
    SH_TRY(agree(g, SH_OK, &t->arena));
    t->recompute = g->b->recompute;
    t->offload = g->b->offload;
    return agree(g, SH_OK, &t->seconds);
}

/* Where neither fits, the smaller one is what a refusal is about. */
static bool is_better(const struct tried *a, const struct tried *b)
{
    if (fits(a) != fits(b))
        return fits(a);
    return fits(a) ? a->seconds < b->seconds : a->arena < b->arena;
}

/* The highest rung below one that is too much for the file. */
static sh_rc fill_file(const struct budget *g, int rung, struct tried *t)
{
    while (t->file_over > 0) {
        *t = (struct tried){0};
        SH_TRY(try_rung(g, --rung, t));
    }
    return SH_OK;
}

static sh_rc find_quarter(const struct budget *g, struct tried *best)
{
    bool full = false;

    SH_TRY(try_rung(g, 0, best));
    /* What fits without recomputation is only slower with more away. */
    for (int rung = QUARTER; rung <= TOP && !full && !(fits(best) && best->level == 0); rung += QUARTER) {
        struct tried t = {0};

        SH_TRY(try_rung(g, rung, &t));
        full = t.file_over > 0;
        if (full)
            SH_TRY(fill_file(g, rung, &t));
        if (is_better(&t, best))
            *best = t;
    }
    return SH_OK;
}

/* By halving: in (below, best] the upper ones do with as little. */
static sh_rc find_sixteenth(const struct budget *g, struct tried *best)
{
    int below = best->rung > QUARTER ? best->rung - QUARTER : 0;

    while (fits(best) && best->rung - below > 1) {
        struct tried t = {.level = best->level};
        int middle = (below + best->rung) / 2;

        SH_TRY(try_rung(g, middle, &t));
        if (fits(&t) && t.level == best->level)
            *best = t;
        else
            below = middle;
    }
    return SH_OK;
}

static sh_rc fit_homes(const struct budget *g)
{
    struct tried best = {0};

    SH_TRY(find_quarter(g, &best));
    SH_TRY(find_sixteenth(g, &best));
    g->b->recompute = best.recompute;
    g->b->offload = best.offload;
    return SH_OK;
}

/* Without a limit, an even share of what is free; none where the folder is not here. What is free is not the same at each
 * start; the choice differs then only where the folder is nearly full. */
static sh_rc limit_file(const struct budget *g, const char *folder)
{
    const double unknown = 0x1p62;
    double least = -(double)g->b->file_limit_bytes;
    int64_t room = sh_tier_free_bytes(folder);

    if (!g->b->file_limit_bytes)
        least = room == INT64_MAX ? -unknown : -fmax(1, (double)(room / g->ranks_per_node));
    SH_TRY(agree(g, SH_OK, &least));
    g->b->file_limit_bytes = least <= -unknown ? 0 : (int64_t)-least;
    return SH_OK;
}

/* Figures for a processor of no special make, by its threads; and any network where the nodes are several. */
static void assume_machine(struct budget *g, const struct sh_config *cfg)
{
    enum { PRESET_CORES = 2 };
    double threads = (double)g->b->threads / PRESET_CORES;

    sh_cost_assume_rates(cfg, &g->machine);
    g->machine.peak.bfloat16 *= threads;
    g->machine.peak.float32 *= threads;
    g->machine.memory.bytes_per_second *= threads;
    g->machine.network.bytes_per_second = 12.5e9;
}

sh_rc sh_budget_fit(const struct sh_config *cfg, const struct sh_topology *at, sh_budget_agree *together,
                    struct sh_build *b)
{
    struct budget g = {.b = b, .agree = together, .ranks_per_node = at->ranks_per_node > 1 ? at->ranks_per_node : 1};
    int level = 0;

    if (!b->fit_homes)
        return fit_level(&g, &level);
    assume_machine(&g, cfg);
    SH_TRY(limit_file(&g, cfg->offload.nvme_path));
    return fit_homes(&g);
}
