/* What `sherd plan` says of updates that are not the same for all parameters: groups with numbers of their own, and the
 * matrices of Muon, their owners and their share of the step. */
#include "kernels/muon.h"
#include "src/base/mem.h"
#include "src/base/string/str.h"
#include "src/config/read/groups.h"
#include "src/model/model.h"
#include "src/optim/owners.h"
#include "src/optim/update.h"
#include "src/tools/predict/command.h"

#include <math.h>
#include <stdlib.h>

static const double small_share = 0.03; /* of a step's operations: the batch with this share is named */

static const double unused_share = 0.1; /* of a rank's elements: more means without a use are named */

/* Rate times weight decay, at the rate's peak: what a step takes from an element. Rates of other optimizers differ by
 * hundreds, and a decay that fits one does not fit another. */
static double decay_of(const struct sh_config *cfg, double lr, double weight_decay)
{
    return cfg->optimizer.lr * (isnan(lr) ? 1 : lr) *
           (isnan(weight_decay) ? cfg->optimizer.weight_decay : weight_decay);
}

static void say_group(const struct sh_predict *l, const struct sh_config_group *g, int number)
{
    const struct sh_program *p = l->p;
    const char *by = "";
    int64_t elems = 0;
    char count[SH_STR_SHORT], text[256] = "";
    const struct {
        const char *what;
        double value;
    } numbers[] = {
        {"lr x", g->lr}, {"weight_decay", g->weight_decay}, {"beta1", g->beta1}, {"beta2", g->beta2}, {"eps", g->eps}};
    int n = 0, at = 0;

    for (int i = 0; i < p->n_saved; i++)
        if (p->saved[i].group && p->numbers[p->saved[i].group - 1].pattern == number) {
            elems += p->saved[i].elems;
            n++;
        }
    if (g->optimizer == SH_OPTIM_ADAMW)
        by = ", by AdamW";
    else if (g->optimizer >= 0 && sh_cfg_is_muon(g->optimizer))
        by = ", matrices by Muon";
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!isnan(numbers[i].value))
            at += snprintf(text + at, sizeof text - (size_t)at, ", %s %g", numbers[i].what, numbers[i].value);
    if (!isnan(g->weight_decay)) /* else vectors have none */
        snprintf(text + at, sizeof text - (size_t)at, " (lr x weight_decay %.3g)",
                 decay_of(&l->cfg, g->lr, g->weight_decay));
    sh_str_say(stdout, "group", "'%s': %d tensors, %s elements%s%s", g->pattern, n, sh_str_count(elems, count), text,
               by);
}

static void say_groups(const struct sh_predict *l)
{
    struct sh_config_group groups[SH_CONFIG_GROUPS_MAX];
    int n = 0;

    if (sh_config_groups(l->cfg.optimizer.groups, groups, &n) == SH_OK)
        for (int i = 0; i < n; i++)
            say_group(l, &groups[i], i + 1);
}

/* What a rank does for its matrices: GPUs make whole products. Seconds on the machine, if there is one. */
struct load {
    double flops, seconds;
};

/* The matrices of a step, by wave. A wave takes as long as its busiest rank. */
struct work {
    int matrices, waves, ranks, owners; /* ranks that share a unit, and those that own matrices */
    int replicas, sharers;              /* of them, and those that share the work */
    int64_t elems;
    double all;          /* operations of all ranks */
    struct load busiest; /* of the busiest of each wave */
};

/* Those of an ORTHO that begin between two places; they are listed in the order of the unit. */
static struct load load_between(const struct sh_predict *l, struct sh_op op, int64_t begin, int64_t end)
{
    const struct sh_matrix *x = l->p->matrices;
    int first = op.attr.ortho.first_all, last = first + op.attr.ortho.count_all, steps = op.attr.ortho.steps;
    struct load load = {0};
    struct sh_op_call call;

    while (first < last && x[first].at < begin)
        first++;
    while (last > first && x[last - 1].at >= end)
        last--;
    for (int i = first; i < last; i++)
        load.flops += sh_matrix_flops(&x[i], steps) - (l->at.gpu ? 0 : sh_matrix_copied(&x[i], steps));
    op.attr.ortho.first = first;
    op.attr.ortho.count = last - first;
    sh_program_call(l->p, &op, NULL, &call);
    if (l->priced)
        load.seconds = sh_price_op(&l->machine, &sh_cost_as_is, &call, l->p->act).seconds;
    return load;
}

/* Add the largest of n to the busiest, and empty them. */
static void end_wave(struct load *busiest, struct load *load, int n)
{
    struct load most = {0};

    for (int i = 0; i < n; i++) {
        most = (struct load){fmax(most.flops, load[i].flops), fmax(most.seconds, load[i].seconds)};
        load[i] = (struct load){0};
    }
    busiest->flops += most.flops;
    busiest->seconds += most.seconds;
}

/* Add an ORTHO to the loads of its wave. */
static void add_ortho(const struct sh_predict *l, const struct sh_op *op, struct work *w, struct load *load)
{
    const struct sh_program *p = l->p;

    for (int i = op->attr.ortho.first_all; i < op->attr.ortho.first_all + op->attr.ortho.count_all; i++) {
        w->matrices += (int)p->matrices[i].repeat;
        w->elems += p->matrices[i].repeat * p->matrices[i].out * p->matrices[i].in;
    }
    for (int r = 0; r < (op->attr.ortho.maker == SH_NONE ? w->ranks * w->sharers : w->ranks); r++) {
        bool cut = op->attr.ortho.first_cut != SH_NONE;
        const int64_t *at = cut ? p->cuts + op->attr.ortho.first_cut + r : NULL;
        struct load more = load_between(l, *op, cut ? at[0] : 0, cut ? at[1] : INT64_MAX);
        struct load *to = &load[op->attr.ortho.maker == SH_NONE ? r : op->attr.ortho.maker * w->ranks + r];

        to->flops += more.flops;
        to->seconds += more.seconds;
        w->all += more.flops;
    }
}

/* The first ORTHO of a wave begins it. */
static struct work work_of(const struct sh_predict *l, const struct sh_section *s)
{
    int most = sh_mesh_ranks(&l->mesh), wave = SH_NONE;
    struct load *load = sh_calloc((size_t)most, sizeof *load);
    struct work w = {0};

    for (int i = s->first_op; i < s->first_op + s->n_ops; i++) {
        const struct sh_op *op = &l->p->ops[i];

        if (op->kind != SH_OP_ORTHO)
            continue;
        if (op->attr.ortho.wave != wave) {
            end_wave(&w.busiest, load, most);
            wave = op->attr.ortho.wave;
            w.waves++;
        }
        w.ranks = sh_group_size(&l->mesh, l->p->units[op->unit].shard);
        w.replicas = sh_group_size(&l->mesh, l->p->units[op->unit].replicate);
        w.sharers = op->attr.ortho.sharers;
        w.owners = sh_owners_of(w.ranks, l->build.options.ortho.owners) * w.sharers;
        add_ortho(l, op, &w, load);
    }
    end_wave(&w.busiest, load, most);
    free(load);
    return w;
}

/* Means of squares that a rank keeps of elements that Muon updates, which has none: in a file they are of whole units, and
 * all ranks have room for as many as the first. Said if they are more than a tenth of the elements. */
static void say_unused(const struct sh_predict *l)
{
    const struct sh_program *p = l->p;
    bool filed = l->build.offload.optimizer_16 > 0;
    double unused = 0, all = 0;
    char bytes[SH_STR_SHORT];

    for (int i = 0; i < p->n_units; i++) {
        const struct sh_unit *u = &p->units[i];

        if (!sh_program_descends(u))
            continue;
        all += (double)u->chunk;
        unused += (double)(filed ? u->chunk : p->tensors[u->state[1]].dim[0]);
        for (int k = u->first_param; k < u->first_param + u->n_params; k++)
            if (sh_optim_has(p, SH_RUNS_OTHERS, &p->params[k]))
                unused -= (double)p->params[k].elems * (double)u->chunk / (double)u->room;
    }
    if (unused <= unused_share * all)
        return;
    sh_str_bytes((int64_t)unused * sh_dtype_bytes(p->state[1].dtype), bytes);
    sh_str_say(stdout, "muon", "%s of %s on each rank are of elements that it does not update: %s", bytes,
               p->state[1].name,
               filed ? "states in a file are of whole units"
                     : "each rank has as many as the one with most of what AdamW updates");
}

/* Bytes that this rank has from its replicas in a step. */
static int64_t shared_bytes(const struct sh_predict *l, const struct sh_section *s)
{
    int64_t bytes = 0;

    for (int i = s->first_op; i < s->first_op + s->n_ops; i++) {
        const struct sh_op *op = &l->p->ops[i];

        if (sh_program_cuts(l->p, op) && op->attr.exchange.sharers)
            bytes += (int64_t)sh_coll_received_by(l->p, &l->mesh, op);
    }
    return bytes;
}

static void say_replicas(const struct sh_predict *l, const struct sh_section *update, const struct work *w)
{
    char bytes[SH_STR_SHORT];

    if (w->sharers > 1)
        sh_str_say(stdout, "muon",
                   "%d of %d replicas share the matrices of a rank, which has %s from the others a step", w->sharers,
                   w->replicas, sh_str_bytes(shared_bytes(l, update), bytes));
    else if (w->replicas > 1 && l->cfg.optimizer.muon_ranks)
        sh_str_say(stdout, "muon", "each of %d replicas makes all matrices itself: optimizer.muon_ranks=%d",
                   w->replicas, l->cfg.optimizer.muon_ranks);
    else if (w->replicas > 1)
        sh_str_say(
            stdout, "muon",
            "each of %d replicas makes all matrices itself: they are few, or to exchange them is expected to take longer; "
            "optimizer.muon_ranks=%d lets as many share as have a block each",
            w->replicas, w->ranks * w->replicas);
}

static void say_muon(const struct sh_predict *l)
{
    const struct sh_section *update = sh_program_section(l->p, SH_SECTION_UPDATE);
    struct sh_model_flops f = sh_model_flops_of(&l->build.model, &l->build.batch);
    double of_token = f.matmul + f.attention_causal, world = sh_mesh_ranks(&l->mesh), step;
    int64_t batch = sh_request_global_batch(&l->cfg, sh_group_size(&l->mesh, l->mesh.data));
    char count[SH_STR_SHORT], others[SH_STR_SHORT], tokens[SH_STR_SHORT], units[SH_STR_SHORT];
    char balance[128] = "", of[24] = "", takes[SH_STR_SHORT + 8] = "";
    struct work w;

    if (!update || !l->build.options.optim->finish)
        return;
    w = work_of(l, update);
    step = of_token * (double)(batch * l->cfg.training.seq_len) / world + w.busiest.flops;
    if (w.owners < w.ranks * w.sharers)
        snprintf(of, sizeof of, " of %d", w.ranks * w.sharers);
    if (w.ranks * w.sharers > 1)
        snprintf(balance, sizeof balance, "; owned by %d%s ranks, in waves of %s, the busiest with %.2f of the mean",
                 w.owners, of,
                 sh_str_plural(w.waves ? (l->build.model.n_layers + w.waves - 1) / w.waves : 1, "unit", units),
                 w.busiest.flops * w.owners / w.all);
    sh_str_say(stdout, "muon", "%d matrices of %s elements, the other %s by AdamW%s", w.matrices,
               sh_str_count(w.elems, count), sh_str_count(sh_model_params(&l->build.model) - w.elems, others), balance);
    say_replicas(l, update, &w);
    if (l->priced)
        snprintf(takes, sizeof takes, ", %s alone", sh_predict_seconds(w.busiest.seconds, tokens));
    sh_str_say(
        stdout, "muon",
        "%.4g GFLOP for orthogonal matrices on the busiest rank%s: %.2g %% of a step's operations, 3 %% with %s tokens a step",
        w.busiest.flops / 1e9, takes, 100 * w.busiest.flops / step,
        sh_str_count((int64_t)(w.busiest.flops * world * (1 - small_share) / (small_share * of_token)), tokens));
    sh_str_say(stdout, "muon", "weight decay takes %.3g of each element of them a step: lr %g x weight_decay %g",
               decay_of(&l->cfg, NAN, NAN), l->cfg.optimizer.lr, l->cfg.optimizer.weight_decay);
    sh_str_say(stdout, "muon", "tensors in a checkpoint: %lld bytes, without %s of matrices",
               (long long)sh_predict_state_bytes(l, false), l->p->state[1].name);
    say_unused(l);
}

void sh_predict_say_updates(const struct sh_predict *l)
{
    say_groups(l);
    say_muon(l);
}
