#include "src/run/visit.h"

#include "src/run/run.h"
#include "src/run/shards.h"

/* Where the states of a unit lie: tensors of the device, or views of an extent. */
struct place {
    const struct sh_run *r;
    const struct sh_unit *u;
    const struct sh_slice *slice; /* NULL: on the device */
    char *extent;                 /* of the slice, while it is lent */
    int64_t first, end;           /* elements of the chunk that are here */
};

/* The address of a view in the extent, or of a tensor of the device. */
static void *address(const struct place *p, int device, int view)
{
    const struct sh_program *program = p->r->p;

    if (!p->slice)
        return sh_exec_data(p->r->exec, device);
    return p->extent + program->tensors[view].base_elems * sh_dtype_bytes(program->tensors[view].dtype);
}

/* State k from the first element of the place on. Parameters are on the device, except their low halves. */
static struct sh_floats state_at(const struct place *p, int k)
{
    struct sh_floats f = {0};

    if (!p->slice && p->first == 0 && p->end == p->u->chunk && !sh_shards_far(p->r, p->u, k))
        return sh_shards_state(p->r, p->u, k);
    if (k != SH_CKPT_MODEL) {
        void *at = address(p, p->u->state[k - 1], p->slice ? p->slice->state[k - 1] : SH_NONE);

        if (p->r->p->state[k - 1].dtype == SH_BF16)
            f.high = at;
        else
            f.whole = at;
        return f;
    }
    if (p->r->p->act != SH_BF16) {
        f.whole = (float *)sh_exec_data(p->r->exec, sh_shards_whole(p->u)) + p->first;
        return f;
    }
    f.high = (sh_bf16 *)sh_exec_data(p->r->exec, p->u->compute) + p->first;
    f.low = address(p, p->u->remainder, p->slice ? p->slice->remainder : SH_NONE);
    return f;
}

/* Visit the elements of `part` that this place has. */
static void look_at(const struct place *p, struct sh_range part, unsigned states, sh_visit_look *look, void *arg)
{
    struct sh_range mine = sh_layout_intersect(part, (struct sh_range){p->first, p->end});
    struct sh_stretch s = {.first = mine.begin, .n = mine.end - mine.begin};

    for (int k = 0; k < 1 + SH_STATES_MAX; k++)
        if (states >> k & 1u)
            s.state[k] = sh_floats_at(state_at(p, k), mine.begin - p->first);
    look(&s, arg);
}

static sh_rc visit_slice(struct place p, int slice, struct sh_range part, unsigned states, bool change,
                         sh_visit_look *look, void *arg)
{
    SH_TRY(sh_exec_lend(p.r->exec, slice, change, &p.extent));
    look_at(&p, part, states, look, arg);
    sh_exec_give_back(p.r->exec);
    return SH_OK;
}

/* Whether a slice has any part of these states. */
static bool any_far(const struct sh_run *r, const struct sh_unit *u, unsigned states)
{
    for (int k = 0; k < 1 + SH_STATES_MAX; k++)
        if (states >> k & 1u && sh_shards_far(r, u, k))
            return true;
    return false;
}

static bool meet(struct sh_range part, int64_t first, int64_t end)
{
    return part.begin < end && first < part.end;
}

sh_rc sh_visit(const struct sh_run *r, const struct sh_unit *u, struct sh_range part, unsigned states, bool change,
               sh_visit_look *look, void *arg)
{
    bool sliced = any_far(r, u, states);
    struct place device = {.r = r, .u = u, .end = sliced ? u->held : u->chunk};

    SH_REQUIRE(!sh_exec_is_pending(r->exec));
    if (meet(part, 0, device.end))
        look_at(&device, part, states, look, arg);
    for (int i = u->first_slice; sliced && i < u->first_slice + u->n_slices; i++) {
        const struct sh_slice *s = &r->p->slices[i];
        struct place p = {.r = r, .u = u, .slice = s, .first = s->first, .end = s->first + s->n};

        if (meet(part, p.first, p.end))
            SH_TRY(visit_slice(p, i, part, states, change, look, arg));
    }
    return SH_OK;
}

void sh_visit_all(const struct sh_run *r, const struct sh_unit *u, bool change, sh_visit_look *look, void *arg)
{
    struct sh_range own = sh_shards_owned(r, u);
    unsigned all = (1u << sh_shards_states(r)) - 1;
    sh_rc rc = sh_visit(r, u, (struct sh_range){0, own.end - own.begin}, all, change, look, arg);

    if (rc != SH_OK)
        sh_stop(sh_fail_prefix(rc, "step %lld: ", (long long)r->step));
}
