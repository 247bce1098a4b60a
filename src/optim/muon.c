/* Muon. The momentum is elementwise, on a rank's chunk of a unit, and leaves the step in place of the gradient. Whole
 * matrices then travel to the ranks that own them, become orthogonal there, and travel back into the chunks:
 *
 *   for each unit     MUON_MOMENTUM
 *   for each unit     ALL_TO_ALL  chunk -> the rank's matrices, in a part of one buffer
 *   for each unit     ORTHO, and ORTHO_ROWS if the owners keep a state of rows
 *   for each unit     ALL_TO_ALL  back;  MUON_APPLY
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

/* A unit's rows in the tables of the program. */
struct owned {
    int first_matrix, n_matrices, first_cut, view;
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

int sh_optim_wave_units(const struct sh_update_wave *all)
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
    wave = sh_owners_wave(work, n, all->n, sh_owners_of(all->ranks, all->ortho->owners));
    free(work);
    free(none);
    free(n);
    return wave;
}

/* Cut the unit where ranks begin to own matrices. */
static void add_cuts(const struct sh_update_wave *w, const int *place, const int64_t *begin, const int64_t *end, int n)
{
    for (int r = 0, k = 0; r <= w->ranks; r++) {
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

/* The owners of matrices keep the means of their rows. The parameters of the unit of moments are those that have matrices,
 * in their order. */
static void keep_moments(const struct sh_update_wave *w, int unit, const int *place, int n)
{
    int64_t *begin = sh_calloc((size_t)n + 1, sizeof *begin), *end = sh_calloc((size_t)n + 1, sizeof *end);
    struct sh_unit *u = &w->p->units[unit];

    for (int i = 0; i < n; i++) {
        begin[i] = w->p->params[u->first_param + i].unit_elems;
        end[i] = begin[i] + w->p->params[u->first_param + i].elems;
    }
    u->first_cut = w->p->n_cuts;
    add_cuts(w, place, begin, end, n);
    sh_optim_keep_moments(w->p, unit, w->ranks);
    free(begin);
    free(end);
}

/* Place n matrices on owners. If not all ranks are, these lie evenly among them: on several nodes, if the ranks do. */
static void place_all(const struct sh_update_wave *w, const double *work, int n, double *load, int *place)
{
    int owners = sh_owners_of(w->ranks, w->ortho->owners);

    sh_owners_place(work, n, owners, load, place);
    for (int i = 0; i < n; i++)
        place[i] = place[i] * w->ranks / owners;
}

/* Share the matrices of a unit among the owners, which have `load` already; `elems`: what each rank holds. */
static struct owned share(const struct sh_update_wave *w, int unit, double *load, int64_t *elems)
{
    int n = w->p->units[unit].n_params, *place = sh_calloc((size_t)n + 1, sizeof *place);
    double *work = sh_calloc((size_t)n + 1, sizeof *work);
    int64_t *begin = sh_calloc((size_t)n + 1, sizeof *begin), *end = sh_calloc((size_t)n + 1, sizeof *end);
    struct owned o = {.first_matrix = w->p->n_matrices, .first_cut = w->p->n_cuts, .view = SH_NONE};

    n = add_matrices(w, unit, work, begin, end);
    o.n_matrices = w->p->n_matrices - o.first_matrix;
    note_sides(w->p, &o);
    place_all(w, work, n, load, place);
    add_cuts(w, place, begin, end, n);
    if (w->p->units[unit].moments != SH_NONE)
        keep_moments(w, w->p->units[unit].moments, place, n);
    for (int r = 0; r < w->ranks; r++)
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

static void make_orthogonal(const struct sh_update_wave *w, int unit, const struct owned *o)
{
    struct sh_op op = sh_program_op(SH_OP_ORTHO);

    op.out[0] = o->view == SH_NONE ? w->p->units[unit].grad_shard : o->view;
    op.attr.ortho.kind = (int)w->ortho->kind;
    op.attr.ortho.steps = w->ortho->steps;
    op.attr.ortho.narrow = w->ortho->narrow;
    op.attr.ortho.first = op.attr.ortho.first_all = o->first_matrix;
    op.attr.ortho.count = op.attr.ortho.count_all = o->n_matrices;
    op.attr.ortho.first_cut = o->view == SH_NONE ? SH_NONE : o->first_cut;
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
    op.attr.ortho.first_row_cut = o->view == SH_NONE ? SH_NONE : w->p->units[u->moments].first_cut;
    op.attr.ortho.most_long = o->most_long;
    op.phase = SH_PHASE_UPDATE;
    op.unit = unit;
    sh_program_append(w->p, op);
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
    double *load = sh_calloc((size_t)w->ranks, sizeof *load);
    int64_t *elems = sh_calloc((size_t)w->ranks, sizeof *elems);

    for (int i = 0; i < w->n; i++)
        o[i] = share(w, w->unit[i], load, elems);
    if (w->ranks > 1)
        add_room(w, elems, o);
    for (int i = 0; w->ranks > 1 && i < w->n; i++)
        exchange(w, w->unit[i], &o[i], false);
    for (int i = 0; i < w->n; i++)
        make_orthogonal(w, w->unit[i], &o[i]);
    for (int i = 0; i < w->n; i++)
        even_rows(w, w->unit[i], &o[i]);
    for (int i = 0; w->ranks > 1 && i < w->n; i++)
        exchange(w, w->unit[i], &o[i], true);
    for (int i = 0; i < w->n; i++)
        apply(w, w->unit[i]);
    free(o);
    free(load);
    free(elems);
}

/* The matrices of an operation that lie between two cuts. They are listed in the order of the unit. */
static void take_matrices(const struct sh_program *p, struct sh_op *op, int64_t begin, int64_t end)
{
    int first = op->attr.ortho.first_all, last = first + op->attr.ortho.count_all;

    while (first < last && p->matrices[first].at < begin)
        first++;
    while (last > first && p->matrices[last - 1].at >= end)
        last--;
    op->attr.ortho.first = first;
    op->attr.ortho.count = last - first;
    op->attr.ortho.origin = begin;
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

        if (cuts && !op->attr.exchange.back) {
            struct sh_tensor *view = &p->tensors[op->out[0]];
            int here = sh_group_index(mesh, op->attr.group);

            used = view->base == room ? used : 0;
            room = view->base;
            view->base_elems = used;
            view->dim[0] = cuts[here + 1] - cuts[here];
            used += view->dim[0];
        } else if (has_matrices(op->kind) && op->attr.ortho.first_cut != SH_NONE) {
            int here = sh_group_index(mesh, p->units[op->unit].shard), at = op->attr.ortho.first_cut + here;

            take_matrices(p, op, p->cuts[at], p->cuts[at + 1]);
            if (op->kind == SH_OP_ORTHO_ROWS)
                op->attr.ortho.row_origin = p->cuts[op->attr.ortho.first_row_cut + here];
        }
    }
}
