#include "src/pass/build.h"

#include "src/base/mem.h"
#include "src/layout/layout.h"
#include "src/optim/update.h"
#include "src/pass/pipeline/deal.h"
#include "src/program/saved.h"

#include <stdlib.h>
#include <string.h>

/* A row of the list of passes. `training`: left out for micro-steps that are only evaluated. */
struct row {
    const char *name;
    sh_pass *run;
    bool training;
};

#define ROW(name, training) {#name, sh_pass_##name, training},
static const struct row passes[] = {SH_PASS_LIST(ROW)};
enum { PASSES = sizeof passes / sizeof *passes };

static int find(const char *name)
{
    for (int i = 0; i < PASSES; i++)
        if (!strcmp(passes[i].name, name))
            return i;
    return SH_NONE;
}

/* Run passes [first, last] in their order. */
static sh_rc run(const struct sh_build *b, int first, int last, bool training, struct sh_program *p)
{
    for (int i = first; i <= last; i++)
        if (training || !passes[i].training)
            SH_TRY(passes[i].run(b, p));
    return SH_OK;
}

/* The row of the unit of this name; SH_NONE: the model has none. */
static int find_unit(const struct sh_program *micro, const char *name)
{
    int i = micro->n_units - 1;

    while (i >= 0 && strcmp(micro->units[i].name, name))
        i--;
    return i < 0 ? SH_NONE : i;
}

/* Mark the units for which the build has special requests. */
static void mark_units(const struct sh_build *b, struct sh_program *micro)
{
    int unit;

    for (const char *const *name = b->frozen; name && *name; name++)
        if ((unit = find_unit(micro, *name)) != SH_NONE)
            sh_program_freeze(micro, unit);
    for (const struct sh_unit_groups *g = b->groups; g && g->unit; g++)
        if ((unit = find_unit(micro, g->unit)) != SH_NONE) {
            micro->units[unit].shard = g->shard;
            micro->units[unit].replicate = g->replicate;
        }
}

/* Units that hold some experts have other elements on each rank with experts of its own. Sums that are a tree
 * over micro-steps, whatever the mesh, keep apart what comes from different ranks. */
static void spread_units(const struct sh_build *b, struct sh_program *micro)
{
    const struct sh_mesh_shape *mesh = &b->options.mesh;
    int ranks = sh_group_size(mesh, mesh->expert);

    for (int i = 0; ranks > 1 && i < micro->n_units; i++) {
        struct sh_unit *u = &micro->units[i];
        const struct sh_param *first = &micro->params[u->first_param];

        if (!first->n_bands || !sh_param_info(sh_saved_of(micro, first)->role)->experts)
            continue;
        u->shard = mesh->shard & ~mesh->expert;
        u->replicate = mesh->replicate;
        u->split = mesh->expert;
        u->leaves = b->options.reproducible ? ranks : 1;
    }
}

/* Whether a parameter is one of those that come first: that AdamW updates and not Muon, or whose states are not in codes. */
static bool is_first(const struct sh_build *b, const struct sh_program *p, const struct sh_param *param)
{
    return b->options.optim->finish ? sh_optim_has(p, SH_RUNS_OTHERS, param)
                                    : sh_param_info(sh_saved_of(p, param)->role)->vector;
}

/* Move these parameters of a unit in front of the others, so that a state of theirs alone is a beginning of the unit.
 * Others keep their order: those that lay side by side still do. The list of saved tensors does not change.
 *   place  [params] where each parameter is now */
static void put_first(const struct sh_build *b, struct sh_program *p, struct sh_unit *u, int *place)
{
    struct sh_param *old = sh_calloc((size_t)u->n_params + 1, sizeof *old);
    int n = u->first_param;
    int64_t elems = 0;

    memcpy(old, p->params + u->first_param, (size_t)u->n_params * sizeof *old);
    for (int first = 1; first >= 0; first--)
        for (int i = 0; i < u->n_params; i++)
            if (is_first(b, p, &old[i]) == first) {
                place[u->first_param + i] = n;
                p->params[n] = old[i];
                p->params[n++].unit_elems = elems;
                elems += old[i].elems;
            }
    free(old);
}

static void order_params(const struct sh_build *b, struct sh_program *p)
{
    int *place = sh_calloc((size_t)p->n_params + 1, sizeof *place);

    for (int i = 0; i < p->n_units; i++)
        put_first(b, p, &p->units[i], place);
    for (int t = 0; t < p->n_tensors; t++)
        if (p->tensors[t].param != SH_NONE)
            p->tensors[t].param = place[p->tensors[t].param];
    free(place);
}

/* Whether the vectors of a unit, which come first, and the whole unit fill blocks of codes; if `each`, all its parameters
 * do, too. */
static bool has_whole_blocks(const struct sh_program *p, const struct sh_unit *u, bool each)
{
    int64_t vectors = 0, parts = 0;

    for (int i = u->first_param; i < u->first_param + u->n_params; i++) {
        vectors += sh_param_info(sh_saved_of(p, &p->params[i])->role)->vector ? p->params[i].elems : 0;
        parts += each ? p->params[i].elems % SH_LAYOUT_ALIGN : 0;
    }
    return !parts && vectors % SH_LAYOUT_ALIGN == 0 && u->elems % SH_LAYOUT_ALIGN == 0;
}

/* Numbers that share a scale are 64 neighbours of a unit. One rank has experts at the end of their block's unit; on several
 * ranks they are a unit of their own, and keep their neighbours only if what lies before them fills whole blocks. */
static sh_rc check_blocks(const struct sh_build *b, const struct sh_program *p)
{
    bool gathers = b->options.gather_coded, states = b->options.training && b->options.state_dtype == SH_U8;

    for (int i = 1; b->options.reproducible && i < p->n_units; i++) {
        const struct sh_unit *u = &p->units[i], *before = u - 1;

        if (u->leaves == 1 || (!gathers && !(states && u->trainable)) ||
            (has_whole_blocks(p, u, true) &&
             (before->trainable != u->trainable || before->balances || has_whole_blocks(p, before, false))))
            continue;
        return sh_fail(
            SH_E_USAGE,
            "%s=int8: 64 neighbours share a scale, and with parallelism.expert_parallel_degree=%d %s has other "
            "neighbours than on one rank, because sizes are not multiples of 64; leave out int8, or "
            "training.reproducible=mesh",
            gathers ? "parallelism.gather_dtype" : "optimizer.state_dtype", u->leaves, u->name);
    }
    return SH_OK;
}

/* The first pass: the model's forward on logical tensors. Of the ranks it knows only where experts, parts of matrices and
 * layers are, and how many have a part of each sequence. */
sh_rc sh_pass_model(const struct sh_build *b, struct sh_program *micro)
{
    struct sh_model_batch batch = b->batch;
    int *begin;
    struct sh_pipe_deal deal = sh_pipe_deal_of(b, &begin);

    batch.parts = sh_group_size(&b->options.mesh, b->options.mesh.context);
    batch.leaves = b->options.row_leaves;
    batch.tensor.ranks = sh_group_size(&b->options.mesh, b->options.mesh.tensor);
    batch.tensor.place = sh_group_index(&b->options.mesh, b->options.mesh.tensor);
    batch.runs = b->options.gather ? 2 : 1;
    batch.spread.ranks = sh_group_size(&b->options.mesh, b->options.mesh.expert);
    batch.spread.place = sh_group_index(&b->options.mesh, b->options.mesh.expert);

    batch.stage = (struct sh_model_stage){deal.stages, sh_group_index(&b->options.mesh, b->options.mesh.pipeline),
                                          deal.chunks, begin};
    batch.reports = b->options.training;
    batch.out = b->score ? SH_MODEL_SCORE : b->logits ? SH_MODEL_LOGITS : SH_MODEL_LOSS;
    sh_model_emit(&b->model, &batch, micro);
    sh_pipe_deal_free(&deal, begin);
    spread_units(b, micro);
    for (int i = 0; i < micro->n_units && batch.leaves > 1; i++)
        micro->units[i].row_leaves = batch.leaves / batch.parts;
    mark_units(b, micro);
    if (b->options.training && (b->options.optim->finish || b->options.state_dtype == SH_U8))
        order_params(b, micro);
    return check_blocks(b, micro);
}

/* The passes before shard, on a separate program. shard calls this twice: for the forward, which is evaluated, and for
 * the training step. */
sh_rc sh_pass_micro_step(const struct sh_build *b, bool training, struct sh_program **out)
{
    *out = sh_program_create(b->act);
    return run(b, 0, find("shard") - 1, training, *out);
}

/* Passes before shard work on the micro-step alone, so their result is shown as a micro-step; later passes need all
 * before them. */
static sh_rc build(const struct sh_build *b, int last, struct sh_program **out)
{
    int shard = find("shard");
    sh_rc rc;

    *out = sh_program_create(b->act);
    if (last < shard)
        rc = run(b, 0, last, b->options.training, *out);
    else
        rc = run(b, shard, last, true, *out);
    if (rc != SH_OK) {
        sh_program_destroy(*out);
        *out = NULL;
    }
    return rc;
}

/* For `sherd plan --after PASS`. */
sh_rc sh_pass_build_until(const struct sh_build *b, const char *after, struct sh_program **out)
{
    int last = after ? find(after) : PASSES - 1;

#define NAME(name, training) " " #name
    if (last == SH_NONE)
        return sh_fail(SH_E_USAGE, "there is no pass %s; the passes are, in this order:%s", after, SH_PASS_LIST(NAME));
    return build(b, last, out);
}

/* A search makes hundreds of plans, and the check takes a third of the time of each. */
sh_rc sh_pass_weigh(const struct sh_build *b, struct sh_program **out)
{
    return build(b, find("check") - 1, out);
}
