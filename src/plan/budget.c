/* A choice is a part of each row of homes (homes.h) and a level of recomputation (src/pass/fit.c). Moving or
 * recomputing more never makes a step shorter. So a choice without recomputation is a lower bound for all choices with
 * the same homes and more recomputation, and for those that also move activations. Bounds are tried in order, until the
 * next one is no better than the best choice that fits.
 *
 * For given homes, the least recomputation that fits is the fastest, except if activations move: recomputed tensors
 * need not move. In that case, the levels at which the kind of kept activations changes are tried too.
 *
 * Each row is tried in a few parts; between two of them, bisection finds the smallest part that fits, since it moves
 * less. All parts of the optimizer are tried only if no choice fits. */
#include "src/plan/budget.h"

#include "src/base/mem.h"
#include "src/plan/homes.h"
#include "src/cost/rates.h"
#include "src/cost/step.h"
#include "src/tier/tier.h"

#include <math.h>
#include <stdlib.h>

/* BOUNDS: the maximum number of choices without activations and recomputation: quarters of the optimizer and one part
 * between two of them, each with and without gradients and parameters. */
enum { DEVICE, HOST, FILES, LIMITS, BOUNDS = 6 * 2 * 2 };

struct budget {
    const struct sh_config *cfg;
    struct sh_build *b;
    struct sh_machine machine;
    int ranks_per_node;
    bool shares; /* as in struct sh_cost_request */
    sh_budget_agree *agree;
};

/* A choice that was planned; the figures are those of the rank that needs most. */
struct tried {
    struct sh_homes homes;
    int level, order;
    double over[LIMITS];   /* bytes above the limits; negative: to spare */
    double seconds, moved; /* moved: bytes per step, both ways */
};

/* Choices that fit. */
struct found {
    struct tried *of;
    int n, cap;
    double least; /* seconds of the fastest */
};

/* Predictions within this factor count as equal. */
static const double alike = 1.001;
/* Bytes above a limit: of a choice that is never possible, and where there is no limit. */
static const double never = 0x1p62, no_limit = -0x1p62;

static sh_rc agree(const struct budget *g, sh_rc rc, double *most)
{
    return g->agree ? g->agree(rc, most) : rc;
}

static int stages_of(const struct budget *g)
{
    return sh_group_size(&g->b->options.mesh, g->b->options.mesh.pipeline);
}

/* *most, which is not negative, becomes the largest value of all ranks of this rank's stage. */
static sh_rc most_of_stage(const struct budget *g, double *most)
{
    const struct sh_mesh_shape *mesh = &g->b->options.mesh;
    int own = sh_group_index(mesh, mesh->pipeline);

    for (int s = 0; s < stages_of(g); s++) {
        double of = s == own ? *most : 0;

        SH_TRY(agree(g, SH_OK, &of));
        *most = s == own ? of : *most;
    }
    return SH_OK;
}

/* Choose one level of recomputation for all ranks of a stage, because they gather the same units for it. If arenas differ
 * because nodes have different numbers of threads, it is the level of the rank that needs most. Stages gather apart, and
 * what they send each other does not depend on it. */
static sh_rc fit_level(const struct budget *g, int *level)
{
    double most = *level, more;

    do {
        *level = (int)most;
        SH_TRY(agree(g, sh_pass_fit(g->b, level), NULL));
        more = -most;
        most = *level;
        SH_TRY(most_of_stage(g, &most));
        more += most;
        if (stages_of(g) > 1) /* one of them may be raised again */
            SH_TRY(agree(g, SH_OK, &more));
    } while (g->agree && more > 0);
    return SH_OK;
}

static int top_level(const struct budget *g)
{
    return 2 * g->b->model.n_layers;
}

static struct sh_cost_request request_of(const struct budget *g, const struct sh_program *p)
{
    return (struct sh_cost_request){.p = p,
                                    .mesh = &g->b->options.mesh,
                                    .machine = &g->machine,
                                    .ranks_per_node = g->ranks_per_node,
                                    .shares = g->shares,
                                    .faster = sh_cost_as_is};
}

static double above(int64_t bytes, int64_t limit)
{
    return limit ? (double)bytes - (double)limit : no_limit;
}

static double tier_above(const struct sh_program *p, int tier, int64_t limit)
{
    return tier == SH_NONE ? no_limit : above(p->tiers[tier].bytes, limit);
}

/* ---- one choice ---- */

/* Set the choice in the build. Recomputation stays as requested unless b->fit is set. */
static void put(const struct budget *g, const struct tried *t)
{
    sh_homes_put(g->cfg, &t->homes, g->b);
    if (g->b->fit)
        g->b->recompute = sh_pass_fit_level(g->b->model.n_layers, t->level);
}

static sh_rc plan(const struct budget *g, struct tried *t)
{
    struct sh_cost_request r;
    struct sh_cost_step step;
    struct sh_program *p;
    int64_t in, out;
    sh_rc rc;

    put(g, t);
    SH_TRY(sh_pass_weigh(g->b, &p));
    r = request_of(g, p);
    rc = sh_cost_step(&r, &step);
    t->over[DEVICE] = above(p->arena_bytes, g->b->limit_bytes);
    t->over[HOST] = tier_above(p, sh_program_host_tier(p), g->b->host_limit_bytes);
    t->over[FILES] = tier_above(p, sh_program_file_tier(p), g->b->file_limit_bytes);
    sh_program_moved(p, &in, &out);
    t->moved = (double)in + (double)out;
    t->seconds = step.seconds;
    sh_program_destroy(p);
    return rc;
}

/* Plan the choice, and set what it needs and what it costs, over all ranks. */
static sh_rc weigh(const struct budget *g, struct tried *t)
{
    SH_TRY(agree(g, plan(g, t), NULL));
    for (int i = 0; i < LIMITS; i++)
        SH_TRY(agree(g, SH_OK, &t->over[i]));
    SH_TRY(agree(g, SH_OK, &t->moved));
    return agree(g, SH_OK, &t->seconds);
}

static bool fits_below(const struct tried *t)
{
    return t->over[HOST] <= 0 && t->over[FILES] <= 0;
}

static bool fits(const struct tried *t)
{
    return t->over[DEVICE] <= 0 && fits_below(t);
}

static void note(const struct tried *t, struct found *all)
{
    if (!fits(t))
        return;
    all->of = sh_grow(all->of, all->n, &all->cap, sizeof *all->of);
    all->of[all->n++] = *t;
    all->least = fmin(all->least, t->seconds);
}

/* Among the choices as fast as the fastest, return the one that moves the fewest bytes, because writes wear a disk
 * out. */
static struct tried best_of(const struct found *all)
{
    const struct tried *best = NULL;

    for (int i = 0; i < all->n; i++)
        if (all->of[i].seconds <= all->least * alike && (!best || all->of[i].moved < best->moved))
            best = &all->of[i];
    return *best;
}

/* Whether more recomputation can make the choice fit. The margin is there because the last levels may need a little
 * more memory than those before them. */
static sh_rc may_fit(const struct budget *g, const struct tried *t, bool *may)
{
    struct tried top = *t;

    top.level = g->b->fit ? top_level(g) : 0;
    SH_TRY(weigh(g, &top));
    *may = top.over[DEVICE] <= (double)g->b->limit_bytes / 8;
    return SH_OK;
}

/* Set the least recomputation that fits, at least level 1, and weigh the choice. */
static sh_rc recompute_least(const struct budget *g, struct tried *t)
{
    put(g, t);
    t->level = 1;
    SH_TRY(fit_level(g, &t->level));
    return weigh(g, t);
}

/* Try the choice with the least recomputation that fits. *t was weighed without recomputation. */
static sh_rc try_fit(const struct budget *g, struct tried *t, struct found *found)
{
    bool may = g->b->fit && !fits(t);

    if (may)
        SH_TRY(may_fit(g, t, &may));
    if (may)
        SH_TRY(recompute_least(g, t));
    note(t, found);
    return SH_OK;
}

/* ---- activations ---- */

/* Try the least level that fits, and all higher ones at which the kind of kept activations changes: in the blocks that
 * move, in all blocks. */
static sh_rc try_levels(const struct budget *g, struct tried *t, struct found *found)
{
    int blocks = g->b->model.n_layers, moved = t->homes.part[SH_HOME_ACTIVATIONS];
    const int levels[] = {0, moved, blocks, blocks + moved, top_level(g)};
    int least = 0;

    put(g, t);
    SH_TRY(fit_level(g, &least));
    t->level = least;
    SH_TRY(weigh(g, t));
    note(t, found);
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++) {
        if (levels[i] <= least)
            continue;
        t->level = levels[i];
        SH_TRY(weigh(g, t));
        note(t, found);
    }
    return SH_OK;
}

/* Try the homes of `bound` with activations moved as well. */
static sh_rc try_activations(const struct budget *g, const struct tried *bound, struct found *found)
{
    for (int i = 1; i <= sh_homes_tries(g->b, SH_HOME_ACTIVATIONS); i++) {
        struct tried t = *bound;
        bool may = g->b->fit;

        t.homes.part[SH_HOME_ACTIVATIONS] = sh_homes_tried(g->b, SH_HOME_ACTIVATIONS, i);
        if (may)
            SH_TRY(may_fit(g, &t, &may));
        if (may) {
            SH_TRY(try_levels(g, &t, found));
        } else if (!g->b->fit) {
            SH_TRY(weigh(g, &t));
            note(&t, found);
        }
    }
    return SH_OK;
}

/* ---- all choices ---- */

struct bounds {
    struct tried of[BOUNDS];
    int n;
};

static void add(struct bounds *all, const struct tried *t)
{
    all->of[all->n] = *t;
    all->of[all->n].order = all->n;
    all->n++;
}

/* Find by bisection the largest part of a row for which the lower tier has room: *t has part `from` of it, and `to` is
 * too much. If nothing larger than `from` fits, *t is unchanged. */
static sh_rc find_most(const struct budget *g, enum sh_home row, int from, int to, struct tried *t)
{
    struct tried next = *t;

    while (to - from > 1) {
        int middle = (from + to) / 2;

        next.homes.part[row] = middle;
        SH_TRY(weigh(g, &next));
        if (fits_below(&next)) {
            from = middle;
            *t = next;
        } else {
            to = middle;
        }
    }
    return SH_OK;
}

/* Add the largest part of the optimizer that fits in the lower tier, between `from`, which fits, and the part of *t,
 * which does not. */
static sh_rc fill(const struct budget *g, int from, const struct tried *t, struct bounds *all)
{
    struct tried most = *t;

    most.homes.part[SH_HOME_OPTIMIZER] = from;
    SH_TRY(find_most(g, SH_HOME_OPTIMIZER, from, t->homes.part[SH_HOME_OPTIMIZER], &most));
    if (most.homes.part[SH_HOME_OPTIMIZER] > from)
        add(all, &most);
    return SH_OK;
}

/* Add parts of the optimizer, with the other homes of t, up to one that fits as it is or one that has no room in the
 * lower tier. With a GPU, a snapshot on the host takes more than the homes of the states, so moving some states may fit
 * where moving none does not. */
static sh_rc add_parts(const struct budget *g, struct tried t, struct bounds *all)
{
    bool full = false;

    for (int i = 0, from = 0; i <= sh_homes_tries(g->b, SH_HOME_OPTIMIZER) && !full; i++) {
        int part = sh_homes_tried(g->b, SH_HOME_OPTIMIZER, i);

        t.homes.part[SH_HOME_OPTIMIZER] = part;
        SH_TRY(weigh(g, &t));
        add(all, &t);
        if (fits(&t))
            return SH_OK;
        full = part > 0 && !fits_below(&t);
        if (full)
            SH_TRY(fill(g, from, &t, all));
        from = part;
    }
    return SH_OK;
}

/* A plan that already fits needs no other choice. */
static sh_rc find_bounds(const struct budget *g, struct bounds *all)
{
    for (int gradients = 0; gradients <= sh_homes_most(g->b, SH_HOME_GRADIENTS); gradients++)
        for (int params = 0; params <= sh_homes_most(g->b, SH_HOME_PARAMETERS); params++) {
            struct tried t = {.homes = {.part = {[SH_HOME_GRADIENTS] = gradients, [SH_HOME_PARAMETERS] = params}}};

            SH_TRY(add_parts(g, t, all));
            if (fits(&all->of[0]))
                return SH_OK;
        }
    return SH_OK;
}

static int by_seconds(const void *a, const void *b)
{
    const struct tried *x = a, *y = b;

    if (x->seconds != y->seconds)
        return x->seconds < y->seconds ? -1 : 1;
    return x->order - y->order;
}

static sh_rc find_fitting(const struct budget *g, const struct bounds *all, struct found *found)
{
    for (int i = 0; i < all->n; i++) {
        struct tried t = all->of[i];

        if (t.seconds > found->least * alike)
            return SH_OK;
        if (!fits_below(&t))
            continue;
        SH_TRY(try_fit(g, &t, found));
        if (!fits(&all->of[i]) && all->of[i].seconds <= found->least * alike)
            SH_TRY(try_activations(g, &all->of[i], found));
    }
    return SH_OK;
}

/* ---- between what was tried ---- */

/* Try full recomputation, which needs the least memory in every tier, with as many blocks of activations moved as have
 * room. */
static sh_rc try_most(const struct budget *g, struct tried t, struct found *found)
{
    t.level = g->b->fit ? top_level(g) : 0;
    SH_TRY(weigh(g, &t));
    if (!fits_below(&t))
        return SH_OK;
    SH_TRY(find_most(g, SH_HOME_ACTIVATIONS, 0, sh_homes_most(g->b, SH_HOME_ACTIVATIONS) + 1, &t));
    note(&t, found);
    if (!g->b->fit || !fits(&t))
        return SH_OK;
    SH_TRY(recompute_least(g, &t));
    note(&t, found);
    return SH_OK;
}

/* The limits of the device and of file or host may both hold only between two parts that were tried: so try every part
 * of the optimizer. */
static sh_rc find_between(const struct budget *g, const struct bounds *all, struct found *found)
{
    for (int i = 0; i < all->n; i++) {
        struct tried t = all->of[i];
        bool may;

        if (t.homes.part[SH_HOME_OPTIMIZER] > 0)
            continue; /* once for each choice of the other homes */
        t.homes.part[SH_HOME_OPTIMIZER] = sh_homes_most(g->b, SH_HOME_OPTIMIZER);
        t.homes.part[SH_HOME_ACTIVATIONS] = sh_homes_most(g->b, SH_HOME_ACTIVATIONS);
        SH_TRY(may_fit(g, &t, &may));
        t.homes.part[SH_HOME_ACTIVATIONS] = 0;
        for (int part = 0; may && part <= sh_homes_most(g->b, SH_HOME_OPTIMIZER); part++) {
            t.homes.part[SH_HOME_OPTIMIZER] = part;
            SH_TRY(try_most(g, t, found));
        }
    }
    return SH_OK;
}

/* ---- less of a row ---- */

/* Find by bisection the smallest part of a row that still fits and is as fast: if a part below the chosen one will do,
 * so will all parts between them. Moving less is never slower, except that slices become smaller. */
static sh_rc find_least(const struct budget *g, enum sh_home row, struct tried *best)
{
    int n = sh_homes_tries(g->b, row), step = n ? sh_homes_most(g->b, row) / n : 0;
    int below = best->homes.part[row] - (step > 1 ? step : 1);
    double most = best->seconds * alike;

    below = below > 0 ? below : 0;
    while (best->homes.part[row] - below > 1) {
        struct tried t = *best;
        int middle = (below + best->homes.part[row]) / 2;

        t.homes.part[row] = middle;
        SH_TRY(weigh(g, &t));
        if (fits(&t) && t.seconds <= most)
            *best = t;
        else
            below = middle;
    }
    return SH_OK;
}

/* ---- none fits ---- */

static double lack_of(const struct tried *t)
{
    double sum = 0;

    for (int i = 0; i < LIMITS; i++)
        sum += fmax(0, t->over[i]);
    return sum;
}

static sh_rc take_smaller(const struct budget *g, struct tried t, struct tried *best)
{
    t.level = g->b->fit ? top_level(g) : 0;
    SH_TRY(weigh(g, &t));
    if (lack_of(&t) < lack_of(best))
        *best = t;
    return SH_OK;
}

/* Find the choice that a refusal reports: among all homes with full recomputation, the one that exceeds the limits
 * least. */
static sh_rc find_smallest(const struct budget *g, const struct bounds *all, struct tried *best)
{
    for (int i = 0; i < all->n; i++)
        for (int k = 0; k <= sh_homes_tries(g->b, SH_HOME_ACTIVATIONS); k++) {
            struct tried t = all->of[i];

            t.homes.part[SH_HOME_ACTIVATIONS] = sh_homes_tried(g->b, SH_HOME_ACTIVATIONS, k);
            SH_TRY(take_smaller(g, t, best));
        }
    put(g, best);
    best->level = 0;
    SH_TRY(fit_level(g, &best->level));
    return SH_OK;
}

static sh_rc choose(const struct budget *g, const struct bounds *all, const struct found *found)
{
    struct tried best = {.over = {never, never, never}};

    if (found->n) {
        best = best_of(found);
        SH_TRY(find_least(g, SH_HOME_ACTIVATIONS, &best));
        SH_TRY(find_least(g, SH_HOME_OPTIMIZER, &best));
    } else {
        SH_TRY(find_smallest(g, all, &best));
    }
    put(g, &best);
    return SH_OK;
}

static sh_rc fit_homes(const struct budget *g)
{
    struct bounds all = {.n = 0};
    struct found found = {.least = never};
    sh_rc rc;

    SH_TRY(find_bounds(g, &all));
    qsort(all.of, (size_t)all.n, sizeof *all.of, by_seconds);
    rc = find_fitting(g, &all, &found);
    if (rc == SH_OK && !found.n)
        rc = find_between(g, &all, &found);
    if (rc == SH_OK)
        rc = choose(g, &all, &found);
    free(found.of);
    return rc;
}

/* If no limit is given, use an even share of the free space; no limit if the folder does not exist here. The free space
 * differs from start to start, but that changes the choice only if the folder is nearly full. */
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

/* Figures for a generic processor, scaled by its threads, or for a generic GPU. */
static void assume_machine(struct budget *g)
{
    enum { PRESET_CORES = 2 };
    bool gpu = g->b->snapshot_on_host;
    double threads = gpu ? 1 : (double)g->b->threads / PRESET_CORES;

    sh_cost_assume_machine(g->cfg, gpu, &g->machine);
    g->machine.peak.bfloat16 *= threads;
    g->machine.peak.float32 *= threads;
    g->machine.memory.bytes_per_second *= threads;
    sh_cost_assume_network(gpu, g->ranks_per_node, &g->machine);
}

static struct budget budget_of(const struct sh_config *cfg, const struct sh_topology *at, struct sh_build *b)
{
    struct budget g = {.cfg = cfg,
                       .b = b,
                       .shares = sh_topology_shares(cfg, at),
                       .ranks_per_node = at->ranks_per_node > 1 ? at->ranks_per_node : 1};

    assume_machine(&g);
    return g;
}

sh_rc sh_budget_fit(const struct sh_config *cfg, const struct sh_topology *at, sh_budget_agree *together,
                    struct sh_build *b)
{
    struct budget g = budget_of(cfg, at, b);
    int level = 0;

    g.agree = together;
    if (!b->fit_homes)
        return fit_level(&g, &level);
    if (!b->snapshot_on_host)
        SH_TRY(limit_file(&g, cfg->offload.nvme_path));
    return fit_homes(&g);
}

sh_rc sh_budget_seconds(const struct sh_config *cfg, const struct sh_topology *at, struct sh_build *b,
                        const struct sh_program *p, double *seconds)
{
    struct budget g = budget_of(cfg, at, b);
    struct sh_cost_request r = request_of(&g, p);
    struct sh_cost_step step;

    SH_TRY(sh_cost_step(&r, &step));
    *seconds = step.seconds;
    return SH_OK;
}
