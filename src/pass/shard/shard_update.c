/* The section of the update: the optimizer's operations for each unit, and for several at once if its row makes whole
 * matrices. */
#include "src/base/mem.h"
#include "src/optim/update.h"
#include "src/pass/shard/shard.h"
#include "src/program/saved.h"

#include <stdlib.h>

/* Units whose matrices wait for each other. */
struct wave {
    const struct sh_build *b;
    struct sh_program *out;
    int *unit;
    int n, most; /* of them, and at most */
    int number, sharers;
};

static bool has_params(const struct sh_program *p, const struct sh_unit *u, enum sh_runs_of of)
{
    for (int i = u->first_param; i < u->first_param + u->n_params; i++)
        if (sh_optim_has(p, of, &p->params[i]))
            return true;
    return false;
}

/* The operations of the optimizer's row for one unit. */
static void emit_update(const struct sh_build *b, struct sh_program *out, int unit)
{
    const struct sh_pass_options *opt = &b->options;
    struct sh_update u = {.p = out,
                          .optim = opt->optim,
                          .unit = unit,
                          .chunks = sh_shard_chunks(opt, &out->units[unit]),
                          .index = sh_shard_index(opt, &out->units[unit])};

    if (!opt->optim->whole) {
        opt->optim->emit(&u);
        return;
    }
    for (u.of = SH_RUNS_OTHERS; u.of <= SH_RUNS_MATRICES; u.of++)
        if (has_params(out, &out->units[unit], u.of))
            opt->optim->emit(&u);
}

/* The biases of one router; `load`: the first of its loads in what routers report. The same on all ranks, since the
 * loads are. */
static void move_biases(struct sh_program *out, int unit, int64_t load, float step)
{
    struct sh_op op = sh_program_op(SH_OP_ROUTE_BIAS);
    const char *name = out->units[unit].name;
    int64_t experts = out->units[unit].elems;

    op.attr.route.experts = (int)experts;
    op.attr.route.step = step;
    op.in[0] = sh_shard_view(out, out->port[SH_PORT_ROUTERS], load, 1, &experts, name);
    op.out[0] = sh_shard_view(out, out->units[unit].compute, 0, 1, &experts, name);
    op.phase = SH_PHASE_UPDATE;
    op.unit = unit;
    sh_program_append(out, op);
}

/* What follows from a unit's new masters: their mean over steps, and what is computed with. */
static void follow(const struct sh_pass_options *opt, struct sh_program *out, int unit)
{
    const struct sh_unit *u = &out->units[unit];
    struct sh_op op = sh_program_op(SH_OP_EMA);

    op.in[0] = u->master == SH_NONE ? u->compute : u->master;
    op.in[1] = u->remainder;
    op.attr.scale.by = (float)(1 - opt->ema_decay);
    op.phase = SH_PHASE_UPDATE;
    op.unit = unit;
    if (out->n_states > out->n_optim_states) {
        op.out[0] = u->state[out->n_optim_states];
        sh_program_append(out, op);
    }
    if (sh_program_descends(u))
        sh_shard_refresh(opt, out, unit, SH_PHASE_UPDATE);
}

/* The next place of loads in what routers report: a stage has those of its own blocks only. */
static int64_t load_after(const struct sh_program *p, int64_t before)
{
    int64_t next = INT64_MAX;

    for (int i = 0; i < p->n_ops; i++) {
        int64_t at = p->ops[i].kind == SH_OP_ROUTE_LOAD ? p->tensors[p->ops[i].out[0]].base_elems : before;

        next = at > before && at < next ? at : next;
    }
    return next;
}

static struct sh_update_wave wave_of(const struct wave *w)
{
    int replicas = w->n ? sh_shard_replicas(&w->b->options, &w->out->units[w->unit[0]]) : 1;

    return (struct sh_update_wave){.p = w->out,
                                   .model = &w->b->model,
                                   .ortho = &w->b->options.ortho,
                                   .unit = w->unit,
                                   .n = w->n,
                                   .ranks = w->n ? sh_shard_chunks(&w->b->options, &w->out->units[w->unit[0]]) : 1,
                                   .sharers = replicas % w->sharers ? 1 : w->sharers,
                                   .number = w->number};
}

/* Finish the units of the wave. */
static void end_wave(struct wave *w)
{
    struct sh_update_wave all = wave_of(w);

    if (w->n == 0)
        return;
    w->b->options.optim->finish(&all);
    for (int i = 0; i < w->n; i++)
        follow(&w->b->options, w->out, w->unit[i]);
    w->n = 0;
    w->number++;
}

static bool waits(const struct wave *w, int unit)
{
    return w->b->options.optim->finish && has_params(w->out, &w->out->units[unit], SH_RUNS_MATRICES);
}

/* Put a unit in the wave, or finish it. Units of a wave are cut over the same ranks. */
static void end_unit(struct wave *w, int unit)
{
    if (!waits(w, unit)) {
        follow(&w->b->options, w->out, unit);
        return;
    }
    w->unit[w->n++] = unit;
    if (w->n == w->most)
        end_wave(w);
}

/* Set how many units a wave has, and how many replicas share their work: from all that have matrices. */
static void set_size(struct wave *w)
{
    struct sh_update_wave all;

    w->most = w->sharers = 1;
    for (int i = 0; i < w->out->n_units; i++)
        if (sh_program_descends(&w->out->units[i]) && waits(w, i))
            w->unit[w->n++] = i;
    all = wave_of(w);
    if (w->n) {
        w->sharers = sh_shard_replicas(&w->b->options, &w->out->units[w->unit[0]]);
        w->most = sh_optim_wave_units(&all, &w->sharers);
    }
    w->n = 0;
}

/* Other numbers that no gradient changes are never moved. */
static bool balances_experts(const struct sh_program *p, const struct sh_unit *u)
{
    return u->balances && sh_saved_of(p, &p->params[u->first_param])->role == SH_PARAM_ROUTER_BIAS;
}

/* A trained unit's update is on the rank's chunk only. A resident full copy is gathered right after, so that the next
 * step finds it. */
void sh_shard_update(const struct sh_build *b, struct sh_program *out)
{
    const struct sh_pass_options *opt = &b->options;
    struct wave w = {.b = b, .out = out, .unit = sh_calloc((size_t)out->n_units + 1, sizeof *w.unit)};
    int64_t load = -1;

    set_size(&w);
    sh_program_add_section(out, SH_SECTION_UPDATE, 1);
    for (int i = 0; i < out->n_units; i++) {
        bool router = balances_experts(out, &out->units[i]);

        load = router ? load_after(out, load) : load;
        if (router && out->units[i].trainable && b->batch.balance.step > 0) {
            move_biases(out, i, load, b->batch.balance.step);
            follow(opt, out, i);
        }
        if (!sh_program_descends(&out->units[i]))
            continue;
        if (w.n && waits(&w, i) &&
            (out->units[i].shard != out->units[w.unit[0]].shard ||
             out->units[i].replicate != out->units[w.unit[0]].replicate))
            end_wave(&w);
        emit_update(b, out, i);
        end_unit(&w, i);
    }
    end_wave(&w);
    for (int i = 0; i < out->n_units; i++)
        if (out->units[i].of_rows) {
            struct sh_unit u = out->units[i];

            sh_shard_snapshot(opt, out, &u);
            out->units[i] = u;
        }
    sh_optim_place_owned(out, &opt->mesh);
    sh_shard_renew_runs(opt, out);
    free(w.unit);
}
