/* Which part of its units a rank holds, and which of these elements lie in memory. */
#include "src/run/run.h"
#include "src/run/shards.h"

/* The elements of a unit that this rank holds. The shard axis splits them; all replicas hold the same. */
struct sh_range sh_shards_owned(const struct sh_run *r, const struct sh_unit *u)
{
    const struct sh_mesh_shape *m = &r->mesh->shape;

    return sh_layout_owned(u->elems, sh_group_size(m, u->shard), sh_group_index(m, u->shard));
}

struct sh_range sh_shards_range(const struct sh_param *param)
{
    return (struct sh_range){param->unit_elems, param->unit_elems + param->elems};
}

/* State 0 is the parameters; the optimizer's follow. */
int sh_shards_states(const struct sh_run *r)
{
    return 1 + r->p->n_states;
}

const char *sh_shards_state_name(const struct sh_run *r, int k)
{
    return k == SH_CKPT_MODEL ? "parameters" : r->p->state[k - 1].name;
}

static bool in_halves(const struct sh_run *r, int k)
{
    return k == SH_CKPT_MODEL && r->p->act == SH_BF16;
}

int sh_shards_whole(const struct sh_unit *u)
{
    return u->master == SH_NONE ? u->compute : u->master;
}

bool sh_shards_far(const struct sh_run *r, const struct sh_unit *u, int k)
{
    return u->n_slices && (k != SH_CKPT_MODEL || in_halves(r, k));
}

/* How states are stored. Parameters: in bfloat16 as compute copy and remainder, in float16 as separate masters; frozen
 * ones as the compute copy alone, or packed. A state of the optimizer: whole, or upper halves alone. */
struct sh_floats sh_shards_state(const struct sh_run *r, const struct sh_unit *u, int k)
{
    if (sh_shards_far(r, u, k))
        sh_stop(sh_fail(SH_E_BUG, "%s of %s do not lie in memory as a whole", sh_shards_state_name(r, k), u->name));
    if (k == SH_CKPT_MODEL && u->packed)
        return (struct sh_floats){.packed = sh_exec_data(r->exec, u->compute)};
    if (k == SH_CKPT_MODEL && r->p->act == SH_BF16)
        return (struct sh_floats){.high = sh_exec_data(r->exec, u->compute),
                                  .low = u->trainable ? sh_exec_data(r->exec, u->remainder) : NULL};
    if (k != SH_CKPT_MODEL && r->p->state[k - 1].dtype == SH_BF16)
        return (struct sh_floats){.high = sh_exec_data(r->exec, u->state[k - 1])};
    return (struct sh_floats){.whole =
                                  sh_exec_data(r->exec, k == SH_CKPT_MODEL ? sh_shards_whole(u) : u->state[k - 1])};
}
