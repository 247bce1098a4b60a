#include "src/optim/update.h"

#include "src/program/saved.h"

bool sh_optim_has(const struct sh_program *p, enum sh_runs_of of, const struct sh_param *param)
{
    const struct sh_saved *s = sh_saved_of(p, param);
    bool matrix = sh_param_info(s->role)->matrix && !(s->group && p->numbers[s->group - 1].adamw);

    return of == SH_RUNS_ALL || (of == SH_RUNS_MATRICES) == matrix;
}

/* The shard pass adds the runs, which leave all other elements of the chunk alone. */
void sh_optim_elements(const struct sh_update *u, enum sh_op_kind kind, int grad)
{
    const struct sh_unit *unit = &u->p->units[u->unit];
    struct sh_op op = sh_program_op(kind);

    op.in[0] = grad;
    op.out[0] = unit->master == SH_NONE ? unit->compute : unit->master;
    for (int k = 0; k < u->p->n_states; k++)
        op.out[1 + k] = unit->state[k];
    op.out[1 + u->p->n_states] = unit->remainder;
    op.attr.runs.of = u->of;
    op.phase = SH_PHASE_UPDATE;
    op.unit = u->unit;
    sh_program_append(u->p, op);
}

void sh_optim_each(const struct sh_update *u)
{
    sh_optim_elements(u, u->optim->op, u->p->units[u->unit].grad_shard);
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
