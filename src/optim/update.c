#include "src/optim/update.h"

#include "src/program/saved.h"

bool sh_optim_takes(const struct sh_program *p, enum sh_runs_of of, const struct sh_saved *s)
{
    bool matrix = sh_param_info(s->role)->matrix && !(s->group && p->numbers[s->group - 1].adamw);

    return of == SH_RUNS_ALL || of >= SH_RUNS_WIDE || (of == SH_RUNS_MATRICES) == matrix;
}

bool sh_optim_has(const struct sh_program *p, enum sh_runs_of of, const struct sh_param *param)
{
    return sh_optim_takes(p, of, sh_saved_of(p, param));
}

bool sh_optim_keeps(const struct sh_program *p, const struct sh_optim *optim, int k, const struct sh_saved *s)
{
    return s->role != SH_PARAM_MOMENT && !(optim->of_others >> k & 1u && sh_optim_takes(p, SH_RUNS_MATRICES, s));
}

/* Elements of the chunk for which there are all states. */
static int64_t elems_of_states(const struct sh_program *p, const struct sh_unit *unit)
{
    int64_t n = unit->chunk;

    for (int k = 0; k < p->n_optim_states; k++)
        n = p->tensors[unit->state[k]].dim[0] < n ? p->tensors[unit->state[k]].dim[0] : n;
    return n;
}

/* The first n elements of a tensor. */
static int beginning(struct sh_program *p, int t, int64_t n)
{
    struct sh_tensor v;

    if (t == SH_NONE || p->tensors[t].dim[0] == n)
        return t;
    v = sh_tensor_make(p->tensors[t].mem, p->tensors[t].dtype, 1, &n, "%.60s", p->tensors[t].name);
    v.base = t;
    v.persistent = p->tensors[t].persistent;
    v.tier = p->tensors[t].tier;
    return sh_program_add_tensor(p, &v);
}

/* Update the first n elements of the chunk, whose states are given. The shard pass adds the runs, which leave all others
 * alone. */
static void append(const struct sh_update *u, enum sh_op_kind kind, enum sh_runs_of of, int grad, const int *state,
                   int64_t n)
{
    const struct sh_unit unit = u->p->units[u->unit];
    struct sh_op op = sh_program_op(kind);

    op.in[0] = beginning(u->p, grad, n);
    op.out[0] = beginning(u->p, unit.master == SH_NONE ? unit.compute : unit.master, n);
    for (int k = 0; k < u->p->n_optim_states; k++)
        op.out[1 + k] = kind == u->optim->coded ? state[k] : beginning(u->p, state[k], n);
    op.out[1 + u->p->n_optim_states] = beginning(u->p, unit.remainder, n);
    op.attr.runs.of = of;
    op.phase = SH_PHASE_UPDATE;
    op.unit = u->unit;
    sh_program_append(u->p, op);
}

void sh_optim_elements(const struct sh_update *u, enum sh_op_kind kind, int grad)
{
    const struct sh_unit unit = u->p->units[u->unit];

    append(u, kind, u->of, grad, unit.state, elems_of_states(u->p, &unit));
}

void sh_optim_each(const struct sh_update *u)
{
    const struct sh_unit unit = u->p->units[u->unit];

    if (u->p->state[0].dtype != SH_U8) {
        sh_optim_elements(u, u->optim->op, unit.grad_shard);
        return;
    }
    if (unit.wide)
        append(u, u->optim->op, SH_RUNS_WIDE, unit.grad_shard, unit.wide_state,
               u->p->tensors[unit.wide_state[0]].dim[0]);
    if (unit.wide < unit.elems)
        append(u, u->optim->coded, SH_RUNS_CODED, unit.grad_shard, unit.state, unit.chunk);
}

/* The unit is left out of the collective, since passes take a unit's gathers for those of its parameters. */
int sh_optim_gather(const struct sh_update *u, int chunk)
{
    const struct sh_unit *unit = &u->p->units[u->unit];
    int64_t elems = unit->chunk * u->chunks;
    struct sh_tensor whole = sh_tensor_make(SH_MEM_GRAD_FULL, SH_F32, 1, &elems, "%.40s.whole", unit->name);
    int t;

    if (u->chunks == 1)
        return chunk;
    t = sh_program_add_tensor(u->p, &whole);
    sh_program_append_collective(u->p, SH_OP_ALL_GATHER, SH_STREAM_GATHER, unit->shard, SH_NONE, chunk, t, SH_NONE,
                                 SH_PHASE_UPDATE);
    return t;
}

/* On another rank it starts elsewhere (sh_pass_rank). */
int sh_optim_own(const struct sh_update *u, int whole)
{
    const struct sh_unit *unit = &u->p->units[u->unit];
    struct sh_tensor own = sh_tensor_make(u->p->tensors[whole].mem, SH_F32, 1, &unit->chunk, "%.40s.own", unit->name);

    if (u->chunks == 1)
        return whole;
    own.base = whole;
    own.base_elems = unit->chunk * u->index;
    own.persistent = u->p->tensors[whole].persistent;
    return sh_program_add_tensor(u->p, &own);
}
