/* Muon. The momentum is elementwise, on a rank's chunk of a unit, and leaves the step in place of the gradient. Whole
 * matrices then travel to the ranks that own them, become orthogonal there, and travel back into the chunks:
 *
 *   for each unit     MUON_MOMENTUM
 *   for each unit     ALL_TO_ALL  chunk -> the rank's matrices, in a part of one buffer
 *   for each unit     ORTHO, unless a replica makes its matrices
 *                     ALL_TO_ALL  between replicas, each of which has made those of some units: a part of the buffer
 *   for each unit     ORTHO_ROWS if the owners keep a state of rows; ALL_TO_ALL  back
 *   for each unit     MUON_APPLY
 *
 * If no replica makes matrices of another, those of a unit return while ORTHO is at work on the next.
 * Over one rank of a group there is no buffer. Each replica then makes some matrices of each unit, in its chunk, and these
 * travel while ORTHO is at work on the next.
 *
 * What a matrix becomes is a function of its elements alone, so it does not matter who owns it. */
#include "kernels/muon.h"
#include "src/base/mem.h"
#include "src/optim/owners.h"
#include "src/optim/update.h"

#include <stdlib.h>

void sh_optim_muon(const struct sh_update *u)
{
    const struct sh_unit *unit = &u->p->units[u->unit];
    struct sh_op op = sh_program_op(SH_OP_MUON_MOMENTUM);

    if (u->of == SH_RUNS_OTHERS) {
        sh_optim_elements(u, SH_OP_ADAMW, unit->grad_shard);
        return;
    }
    op.out[0] = unit->grad_shard;
    op.out[1] = unit->state[0];
    op.attr.runs.of = SH_RUNS_MATRICES;
    op.phase = SH_PHASE_UPDATE;
    op.unit = u->unit;
    sh_program_append(u->p, op);
}

enum { MOST_PEERS = 256 }; /* ranks that own matrices, if nobody says how many */

/* A unit's rows in the tables of the program. maker: of the replicas that share the work, the one that makes the unit's
 * matrices; SH_NONE: each makes those between two cuts, if any share. */
struct owned {
    int first_matrix, n_matrices, first_cut, view, maker;
    int64_t most_short, most_long;
};

static double flops_of(const struct sh_program *p, int first, int n)
{
    double flops = 0;

    for (int i = first; i < first + n; i++)
        flops += sh_matrix_flops(&p->matrices[i], 1);
    return flops;
}

/* Add the matrices of a unit.
 *   work, begin, end  out  [params] of each parameter that has some
 * Returns their number. */
static int add_matrices(const struct sh_update_wave *w, int unit, double *work, int64_t *begin, int64_t *end)
{
    const struct sh_unit *u = &w->p->units[unit];
    int64_t rows = 0;
    int n = 0;

    for (int i = u->first_param; i < u->first_param + u->n_params; i++) {
        const struct sh_param *param = &w->p->params[i];
        int first = w->p->n_matrices;

        if (!sh_optim_has(w->p, SH_RUNS_MATRICES, param))
            continue;
        sh_matrices_add(w->p, param, w->model, w->ortho);
        for (int k = first; k < w->p->n_matrices; k++)
            w->p->matrices[k].row += rows;
        rows += sh_matrices_rows(w->p, param, w->model);
        work[n] = flops_of(w->p, first, w->p->n_matrices - first);
        begin[n] = param->unit_elems;
        end[n++] = param->unit_elems + param->elems;
    }
    return n;
}

/* Whether replicas should share the work: it is divided among all of them, and so is what a rank has to send. */
static bool pays(const struct sh_update_wave *all, const double *work, int n)
{
    double flops = 0, bytes = 0;

    for (int i = 0; i < n; i++)
        flops += all->ortho->steps * work[i];
    for (int i = 0; i < all->n; i++) {
        const struct sh_unit *u = &all->p->units[all->unit[i]];

        for (int k = u->first_param; k < u->first_param + u->n_params; k++)
            if (sh_optim_has(all->p, SH_RUNS_MATRICES, &all->p->params[k]))
                bytes += (double)all->p->params[k].elems * sh_dtype_bytes(SH_F32);
    }
    return flops > bytes * all->ortho->worth;
}

/* So many that each has something to make in a wave of all units, even if somebody allows more. */
static int sharers_of(const struct sh_update_wave *all, const double *work, int n, int replicas)
{
    int things = all->ranks > 1 ? all->ranks * all->n : n, most = all->ortho->owners ? all->ortho->owners : MOST_PEERS;

    if (!all->ortho->owners && !pays(all, work, n))
        return 1;
    return sh_owners_sharers(all->ranks, replicas, things < most ? things : most);
}

int sh_optim_wave_units(const struct sh_update_wave *all, int *sharers)
{
    struct sh_program *p = all->p;
    double *work = sh_calloc((size_t)p->n_params + 1, sizeof *work);
    int64_t *none = sh_calloc((size_t)p->n_params + 1, sizeof *none);
    int *n = sh_calloc((size_t)all->n + 1, sizeof *n), before = p->n_matrices, of_all = 0, wave;

    for (int i = 0; i < all->n; i++) {
        n[i] = add_matrices(all, all->unit[i], work + of_all, none, none);
        of_all += n[i];
    }
    p->n_matrices = before; /* they are added again with their unit */
    *sharers = sharers_of(all, work, of_all, *sharers);
    if (all->ranks > 1) /* as many units for each of the replicas */
        wave = *sharers * sh_owners_wave(work, n, all->n, sh_owners_of(all->ranks, all->ortho->owners));
    else
        wave = sh_owners_wave(work, n, all->n, *sharers);
    free(work);
    free(none);
    free(n);
    return wave < all->n ? wave : all->n;
}

/* How many places own matrices of a unit: ranks, or the replicas of the only one. */
static int places_of(const struct sh_update_wave *w)
{
    return w->ranks > 1 ? w->ranks : w->sharers;
}

/* Cut the unit where places begin to own matrices. */
static void add_cuts(const struct sh_update_wave *w, const int *place, const int64_t *begin, const int64_t *end, int n)
{
    for (int r = 0, k = 0; r <= places_of(w); r++) {
        while (k < n && place[k] < r)
            k++;
        sh_program_add_cut(w->p, k < n ? begin[k] : end[n - 1]);
    }
}

static void note_sides(const struct sh_program *p, struct owned *o)
{
    for (int i = o->first_matrix; i < o->first_matrix + o->n_matrices; i++) {
        int64_t a = sh_matrix_short(&p->matrices[i]), b = sh_matrix_long(&p->matrices[i]);

        o->most_short = a > o->most_short ? a : o->most_short;
        o->most_long = b > o->most_long ? b : o->most_long;
    }
}

/* The owners of matrices keep the means of their rows, as each replica does. The parameters of the unit of moments are those
 * that have matrices, in their order. */
static void keep_moments(const struct sh_update_wave *w, int unit, const int *place, int n)
{
    int64_t *begin = sh_calloc((size_t)n + 1, sizeof *begin), *end = sh_calloc((size_t)n + 1, sizeof *end);
    struct sh_unit *u = &w->p->units[unit];

    for (int i = 0; i < n; i++) {
        begin[i] = w->p->params[u->first_param + i].unit_elems;
        end[i] = begin[i] + w->p->params[u->first_param + i].elems;
    }
    u->first_cut = w->p->n_cuts;
    if (w->ranks > 1) {
        add_cuts(w, place, begin, end, n);
    } else { /* each replica keeps all, whoever makes the matrices */
        sh_program_add_cut(w->p, 0);
        sh_program_add_cut(w->p, u->elems);
    }
    sh_optim_keep_moments(w->p, unit, w->ranks);
    free(begin);
    free(end);
}

/* Place n matrices on owners. If not all ranks are, these lie evenly among them: on several nodes, if the ranks do. */
static void place_all(const struct sh_update_wave *w, const double *work, int n, double *load, int *place)
{
    int all = places_of(w), owners = sh_owners_of(all, w->ranks > 1 ? w->ortho->owners : 0);

    sh_owners_place(work, n, owners, load, place);
    for (int i = 0; i < n; i++)
        place[i] = place[i] * all / owners;
}

/* Share the matrices of a unit among the owners, which have `load` already; `elems`: what each rank holds. */
static struct owned share(const struct sh_update_wave *w, int unit, double *load, int64_t *elems)
{
    int n = w->p->units[unit].n_params, *place = sh_calloc((size_t)n + 1, sizeof *place);
    double *work = sh_calloc((size_t)n + 1, sizeof *work);
    int64_t *begin = sh_calloc((size_t)n + 1, sizeof *begin), *end = sh_calloc((size_t)n + 1, sizeof *end);
    struct owned o = {.first_matrix = w->p->n_matrices, .first_cut = w->p->n_cuts, .view = SH_NONE, .maker = SH_NONE};

    n = add_matrices(w, unit, work, begin, end);
    o.n_matrices = w->p->n_matrices - o.first_matrix;
    note_sides(w->p, &o);
    place_all(w, work, n, load, place);
    add_cuts(w, place, begin, end, n);
    if (w->p->units[unit].moments != SH_NONE)
        keep_moments(w, w->p->units[unit].moments, place, n);
    for (int r = 0; w->ranks > 1 && r < w->ranks; r++)
        elems[r] += w->p->cuts[o.first_cut + r + 1] - w->p->cuts[o.first_cut + r];
    free(place);
    free(work);
    free(begin);
    free(end);
    return o;
}

/* Room for what the rank with most elements owns, and a view for each unit. */
static void add_room(const struct sh_update_wave *w, const int64_t *elems, struct owned *o)
{
    int64_t most = 0, none = 0;
    struct sh_tensor t;
    int room;

    for (int r = 0; r < w->ranks; r++)
        most = elems[r] > most ? elems[r] : most;
    t = sh_tensor_make(SH_MEM_GRAD_FULL, SH_F32, 1, &most, "%.40s.matrices", w->p->units[w->unit[0]].name);
    room = sh_program_add_tensor(w->p, &t);
    for (int i = 0; i < w->n; i++) {
        t = sh_tensor_make(SH_MEM_GRAD_FULL, SH_F32, 1, &none, "%.40s.owned", w->p->units[w->unit[i]].name);
        t.base = room;
        o[i].view = sh_program_add_tensor(w->p, &t);
    }
}

static void exchange(const struct sh_update_wave *w, int unit, const struct owned *o, bool back)
{
    const struct sh_unit *u = &w->p->units[unit];
    struct sh_op op = sh_program_op(SH_OP_ALL_TO_ALL);

    op.in[0] = back ? o->view : u->grad_shard;
    op.out[0] = back ? u->grad_shard : o->view;
    op.attr.accumulate = back; /* what is no matrix stays */
    op.attr.group = u->shard;
    op.attr.exchange.back = back;
    op.attr.exchange.wave = w->number;
    op.attr.exchange.first_cut = o->first_cut;
    op.attr.exchange.cuts = w->ranks + 1;
    op.stream = SH_STREAM_REDUCE;
    op.phase = SH_PHASE_UPDATE;
    op.unit = unit;
    sh_program_append_waited(w->p, op);
}

/* Replicas give each other what they have made of a tensor. */
static void exchange_made(const struct sh_update_wave *w, int unit, int tensor, int first_cut)
{
    struct sh_op op = sh_program_op(SH_OP_ALL_TO_ALL);

    op.in[0] = op.out[0] = tensor;
    op.attr.accumulate = true;
    op.attr.group = w->p->units[unit].replicate;
    op.attr.exchange.wave = w->number;
    op.attr.exchange.first_cut = first_cut;
    op.attr.exchange.cuts = w->ranks * (w->sharers + 1);
    op.attr.exchange.sharers = w->sharers;
    op.stream = SH_STREAM_REPLICATE;
    op.phase = SH_PHASE_UPDATE;
    op.unit = unit;
    sh_program_append_waited(w->p, op);
}

/* Give units to replicas, in their order: those of one lie side by side in the buffer. */
static void choose_makers(const struct sh_update_wave *w, struct owned *o)
{
    double *work = sh_calloc((size_t)w->n, sizeof *work), *load = sh_calloc((size_t)w->sharers, sizeof *load);
    double *none = sh_calloc((size_t)w->p->n_params + 1, sizeof *none);
    int *maker = sh_calloc((size_t)w->n, sizeof *maker), before = w->p->n_matrices;
    int64_t *at = sh_calloc((size_t)w->p->n_params + 1, sizeof *at);

    for (int i = 0; i < w->n; i++) {
        int n = add_matrices(w, w->unit[i], none, at, at);

        for (int k = 0; k < n; k++)
            work[i] += none[k];
    }
    w->p->n_matrices = before; /* they are added again with their unit */
    sh_owners_place(work, w->n, w->sharers, load, maker);
    for (int i = 0; i < w->n; i++)
        o[i].maker = maker[i];
    free(work);
    free(load);
    free(none);
    free(maker);
    free(at);
}

/* One exchange for all units in the buffer, which is cut where the units of another replica begin. */
static void exchange_units(const struct sh_update_wave *w, const struct owned *o)
{
    int first = w->p->n_cuts;

    for (int s = 0; s < w->ranks; s++) {
        int64_t at = 0;

        for (int r = 0, i = 0; r <= w->sharers; r++) {
            for (; i < w->n && o[i].maker < r; i++)
                at += w->p->cuts[o[i].first_cut + s + 1] - w->p->cuts[o[i].first_cut + s];
            sh_program_add_cut(w->p, at);
        }
    }
    exchange_made(w, w->unit[0], w->p->tensors[o[0].view].base, first);
}

static void make_orthogonal(const struct sh_update_wave *w, int unit, const struct owned *o)
{
    struct sh_op op = sh_program_op(SH_OP_ORTHO);

    op.out[0] = o->view == SH_NONE ? w->p->units[unit].grad_shard : o->view;
    op.attr.ortho.kind = (int)w->ortho->kind;
    op.attr.ortho.steps = w->ortho->steps;
    op.attr.ortho.narrow = w->ortho->narrow;
    op.attr.ortho.first = op.attr.ortho.first_all = o->first_matrix;
    op.attr.ortho.count = op.attr.ortho.count_all = o->n_matrices;
    op.attr.ortho.first_cut = places_of(w) > 1 ? o->first_cut : SH_NONE;
    op.attr.ortho.sharers = w->sharers;
    op.attr.ortho.maker = o->maker;
    op.attr.ortho.wave = w->number;
    op.attr.ortho.most_short = o->most_short;
    op.attr.ortho.most_long = o->most_long;
    op.phase = SH_PHASE_UPDATE;
    op.unit = unit;
    sh_program_append(w->p, op);
}

static void even_rows(const struct sh_update_wave *w, int unit, const struct owned *o)
{
    const struct sh_unit *u = &w->p->units[unit];
    struct sh_op op = sh_program_op(SH_OP_ORTHO_ROWS);

    if (u->moments == SH_NONE)
        return;
    op.out[0] = o->view == SH_NONE ? u->grad_shard : o->view;
    op.out[1] = w->p->units[u->moments].compute;
    op.attr.ortho.first = op.attr.ortho.first_all = o->first_matrix;
    op.attr.ortho.count = op.attr.ortho.count_all = o->n_matrices;
    op.attr.ortho.first_cut = o->view == SH_NONE ? SH_NONE : o->first_cut;
    op.attr.ortho.sharers = 1;
    op.attr.ortho.maker = SH_NONE;
    op.attr.ortho.wave = w->number;
    op.attr.ortho.first_row_cut = o->view == SH_NONE ? SH_NONE : w->p->units[u->moments].first_cut;
    op.attr.ortho.most_long = o->most_long;
    op.phase = SH_PHASE_UPDATE;
    op.unit = unit;
    sh_program_append(w->p, op);
}

/* Make matrices, each replica its own, and give the others what they lack. */
static void share_made(const struct sh_update_wave *w, const struct owned *o)
{
    for (int i = 0; i < w->n; i++) {
        make_orthogonal(w, w->unit[i], &o[i]);
        if (w->ranks == 1)
            exchange_made(w, w->unit[i], w->p->units[w->unit[i]].grad_shard, o[i].first_cut);
    }
    if (w->ranks > 1)
        exchange_units(w, o);
}

/* Matrices that are made by their owners alone are made here, unit by unit. */
static void bring_back(const struct sh_update_wave *w, int unit, const struct owned *o)
{
    if (w->sharers == 1)
        make_orthogonal(w, unit, o);
    even_rows(w, unit, o);
    if (w->ranks > 1)
        exchange(w, unit, o, true);
}

static void apply(const struct sh_update_wave *w, int unit)
{
    const struct sh_unit *u = &w->p->units[unit];
    struct sh_op op = sh_program_op(SH_OP_MUON_APPLY);

    op.in[0] = u->grad_shard;
    op.out[0] = u->master == SH_NONE ? u->compute : u->master;
    op.out[1] = u->remainder;
    op.attr.runs.of = SH_RUNS_MATRICES;
    op.phase = SH_PHASE_UPDATE;
    op.unit = unit;
    sh_program_append(w->p, op);
}

void sh_optim_muon_finish(const struct sh_update_wave *w)
{
    struct owned *o = sh_calloc((size_t)w->n, sizeof *o);
    double *load = sh_calloc((size_t)(w->ranks * w->sharers), sizeof *load);
    bool by_unit = w->ranks > 1 && w->sharers > 1;
    int64_t *elems = sh_calloc((size_t)w->ranks, sizeof *elems);

    if (by_unit)
        choose_makers(w, o);
    for (int i = 0; i < w->n; i++) {
        int maker = by_unit ? o[i].maker : SH_NONE;

        o[i] = share(w, w->unit[i], load + (by_unit ? maker * w->ranks : 0), elems);
        o[i].maker = maker;
    }
    if (w->ranks > 1)
        add_room(w, elems, o);
    for (int i = 0; w->ranks > 1 && i < w->n; i++)
        exchange(w, w->unit[i], &o[i], false);
    if (w->sharers > 1)
        share_made(w, o);
    for (int i = 0; i < w->n; i++)
        bring_back(w, w->unit[i], &o[i]);
    for (int i = 0; i < w->n; i++)
        apply(w, w->unit[i]);
    free(o);
    free(load);
    free(elems);
}

/* The matrices of an operation that lie between two cuts, or none; they are listed in the order of the unit. */
static void take_matrices(const struct sh_program *p, struct sh_op *op, const struct sh_mesh_shape *mesh)
{
    const struct sh_unit *u = &p->units[op->unit];
    int mine = sh_group_index(mesh, u->replicate) % op->attr.ortho.sharers, maker = op->attr.ortho.maker;
    bool whole = sh_group_size(mesh, u->shard) == 1;
    const int64_t *cut = p->cuts + op->attr.ortho.first_cut + (whole ? mine : sh_group_index(mesh, u->shard));
    int64_t begin = cut[0], end = maker == SH_NONE || maker == mine ? cut[1] : cut[0];
    int first = op->attr.ortho.first_all, last = first + op->attr.ortho.count_all;

    while (first < last && p->matrices[first].at < begin)
        first++;
    while (last > first && p->matrices[last - 1].at >= end)
        last--;
    op->attr.ortho.first = first;
    op->attr.ortho.count = last - first;
    op->attr.ortho.origin = whole ? 0 : begin;
}

static bool has_matrices(enum sh_op_kind kind)
{
    return kind == SH_OP_ORTHO || kind == SH_OP_ORTHO_ROWS;
}

/* Units follow one another in the room of a wave. An exchange into it comes before all else that has the view. */
void sh_optim_place_owned(struct sh_program *p, const struct sh_mesh_shape *mesh)
{
    int room = SH_NONE;
    int64_t used = 0;

    for (int i = 0; i < p->n_ops; i++) {
        struct sh_op *op = &p->ops[i];
        const int64_t *cuts = sh_program_cuts(p, op);

        if (cuts && op->attr.exchange.sharers) {
            op->attr.exchange.run = sh_group_index(mesh, p->units[op->unit].shard);
        } else if (cuts && !op->attr.exchange.back) {
            struct sh_tensor *view = &p->tensors[op->out[0]];
            int here = sh_group_index(mesh, op->attr.group);

            used = view->base == room ? used : 0;
            room = view->base;
            view->base_elems = used;
            view->dim[0] = cuts[here + 1] - cuts[here];
            used += view->dim[0];
        } else if (has_matrices(op->kind) && op->attr.ortho.first_cut != SH_NONE) {
            int here = sh_group_index(mesh, p->units[op->unit].shard);

            take_matrices(p, op, mesh);
            if (op->kind == SH_OP_ORTHO_ROWS)
                op->attr.ortho.row_origin = p->cuts[op->attr.ortho.first_row_cut + here];
        }
    }
}
