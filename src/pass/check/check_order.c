/* Each read has a write before it, each collective and move one wait, each gathered unit a release; while a collective
 * or move is under way nothing touches what it writes or changes what it reads; and a slice that was fetched and
 * changed is put back. */
#include "src/pass/check/check.h"

/* Where a tensor ends, in bytes from the start of its storage. */
static int64_t end_of(const struct sh_check *c, int t)
{
    int64_t end = sh_tensor_bytes(&c->p->tensors[t]);

    for (; c->p->tensors[t].base != SH_NONE; t = c->p->tensors[t].base)
        end += c->p->tensors[t].base_elems * sh_dtype_bytes(c->p->tensors[t].dtype);
    return end;
}

/* Activations and their gradients, which tiles write in parts; other storage has parts that nothing writes. */
static bool is_filled_in_parts(const struct sh_check *c, int root)
{
    enum sh_mem mem = c->p->tensors[root].mem;

    return mem == SH_MEM_ACT || mem == SH_MEM_ACT_GRAD;
}

/* Persistent tensors keep their values from section to section. */
static bool has_value(const struct sh_check *c, int t)
{
    int root = sh_tensor_root(c->p, t);

    return c->p->tensors[root].persistent ||
           (c->written[root] && (!is_filled_in_parts(c, root) || end_of(c, t) <= c->filled[root]));
}

/* An operation that adds to its output reads it. An operation that follows a collective (`after`) gets its value from
 * that one, which is still under way. */
static sh_rc check_reads(const struct sh_check *c, int i)
{
    const struct sh_op *op = sh_check_op(c, i);
    unsigned adds = op->attr.accumulate | sh_op_info(op->kind)->rw_out;

    for (int k = 0; k < SH_OP_MAX_IN; k++)
        if (op->in[k] != SH_NONE && !has_value(c, op->in[k]))
            return sh_check_broken(c, i, "reads what nothing has written");
    for (int k = 0; k < SH_OP_MAX_OUT; k++)
        if (op->out[k] != SH_NONE && (adds >> k & 1u) && op->attr.after == SH_NONE && !has_value(c, op->out[k]))
            return sh_check_broken(c, i, "adds to what nothing has written");
    return SH_OK;
}

/* A tensor that lives only as a gathered unit: it has a value from its gather to its release, and at no other time. */
static bool is_gathered_unit(const struct sh_check *c, int root)
{
    return c->p->tensors[root].mem == SH_MEM_GATHERED && !c->p->tensors[root].persistent;
}

/* A gathered unit is read between the wait for its gather and its release, and at no other time. */
static sh_rc check_gathered(const struct sh_check *c, int i)
{
    const struct sh_op *op = sh_check_op(c, i);

    for (int k = 0; k < SH_OP_MAX_IN; k++) {
        int root = op->in[k] == SH_NONE ? SH_NONE : sh_tensor_root(c->p, op->in[k]);

        if (root != SH_NONE && is_gathered_unit(c, root) && !c->gathered[root])
            return sh_check_broken(c, i, "reads a unit that is not gathered");
    }
    return SH_OK;
}

/* Count a collective's operands as under way, or as no longer under way. */
static void count(struct sh_check *c, const struct sh_op *collective, int change)
{
    for (int k = 0; k < SH_OP_MAX_OUT; k++)
        if (collective->out[k] != SH_NONE)
            c->makes[sh_tensor_root(c->p, collective->out[k])] += change;
    for (int k = 0; k < SH_OP_MAX_IN; k++)
        if (collective->in[k] != SH_NONE)
            c->sends[sh_tensor_root(c->p, collective->in[k])] += change;
}

static int64_t begin_of(const struct sh_check *c, int t)
{
    return end_of(c, t) - sh_tensor_bytes(&c->p->tensors[t]);
}

/* Whether a tensor has bytes of one of the others. */
static bool has(const struct sh_check *c, const int *tensors, int n, int t)
{
    for (int k = 0; k < n; k++)
        if (tensors[k] != SH_NONE && sh_tensor_root(c->p, tensors[k]) == sh_tensor_root(c->p, t) &&
            begin_of(c, tensors[k]) < end_of(c, t) && begin_of(c, t) < end_of(c, tensors[k]))
            return true;
    return false;
}

/* Whether some collective under way makes bytes of a tensor, or sends bytes of it: exchanges in tiles have parts of one
 * storage. The counts by storage say at once that there is none. */
static bool is_used(const struct sh_check *c, int t, bool made)
{
    if (!(made ? c->makes : c->sends)[sh_tensor_root(c->p, t)])
        return false;
    for (int i = 0; i < c->n_open; i++) {
        const struct sh_op *op = sh_check_op(c, c->open[i]);

        if (c->under_way[c->open[i]] && has(c, made ? op->out : op->in, made ? SH_OP_MAX_OUT : SH_OP_MAX_IN, t))
            return true;
    }
    return false;
}

/* Whether the operation touches the result of a collective under way, or writes what a collective still reads. */
static bool meets(const struct sh_check *c, const struct sh_op *op)
{
    for (int k = 0; k < SH_OP_MAX_IN; k++)
        if (op->in[k] != SH_NONE && is_used(c, op->in[k], true))
            return true;
    for (int k = 0; k < SH_OP_MAX_OUT; k++)
        if (op->out[k] != SH_NONE && (is_used(c, op->out[k], true) || is_used(c, op->out[k], false)))
            return true;
    return false;
}

/* A collective may touch the operands of the one that it follows. */
static sh_rc check_under_way(struct sh_check *c, int i)
{
    const struct sh_op *op = sh_check_op(c, i);
    int before = sh_op_info(op->kind)->async ? op->attr.after : SH_NONE;
    bool follows = before != SH_NONE && c->under_way[before], broken;

    if (op->kind == SH_OP_WAIT)
        return SH_OK;
    if (follows)
        c->under_way[before] = false;
    broken = meets(c, op);
    if (follows)
        c->under_way[before] = true;
    return broken ? sh_check_broken(c, i, "touches an operand of a collective that is under way") : SH_OK;
}

/* False: it was not under way. */
static bool end_collective(struct sh_check *c, int collective)
{
    if (!c->under_way[collective])
        return false;
    c->under_way[collective] = false;
    for (int i = 0; i < c->n_open; i++)
        if (c->open[i] == collective)
            c->open[i] = c->open[--c->n_open];
    count(c, sh_check_op(c, collective), -1);
    return true;
}

/* Parts are written in their order: one beyond a gap does not count. */
static void fill(struct sh_check *c, int t, int root)
{
    int64_t end = end_of(c, t), begin = end - sh_tensor_bytes(&c->p->tensors[t]);

    if (begin <= c->filled[root] && end > c->filled[root])
        c->filled[root] = end;
}

/* By storage: a write to a view gives the whole tensor a value, unless it is one that is written in parts. What a carried
 * update leaves in persistent tensors is of the step before. */
static void mark_written(struct sh_check *c, const struct sh_op *op)
{
    bool carried = sh_program_carried(c->section, op);

    for (int k = 0; k < SH_OP_MAX_OUT; k++)
        if (op->out[k] != SH_NONE) {
            int root = sh_tensor_root(c->p, op->out[k]);

            c->written[root] |= !carried || !c->p->tensors[root].persistent;
            fill(c, op->out[k], root);
            c->changed[root] |= c->home[root] != SH_NONE;
        }
}

/* Nothing changes it until the wait, so the data that leaves is what was written last. */
static sh_rc start_move(struct sh_check *c, int i)
{
    const struct sh_op *op = sh_check_op(c, i);
    int from = op->in[0], to = op->out[0];

    if (op->kind == SH_OP_FETCH) {
        c->home[to] = from;
        c->changed[to] = false;
        return SH_OK;
    }
    if (c->home[from] != SH_NONE && c->home[from] != to)
        return sh_check_broken(c, i, "puts a slice back in another one's home");
    c->changed[from] = false;
    return SH_OK;
}

/* Where its value comes from: itself, or the home of a copy. */
static int source_of(const struct sh_check *c, int tensor)
{
    int root = sh_tensor_root(c->p, tensor);

    return c->home[root] == SH_NONE ? root : sh_tensor_root(c->p, c->home[root]);
}

/* A carried operation belongs to the update of the step before: it comes before the unit's first use, and takes a
 * gradient that this step has not touched. */
static sh_rc check_carried(struct sh_check *c, int i)
{
    const struct sh_op *op = sh_check_op(c, i);

    if (!sh_program_carried(c->section, op)) {
        for (int k = 0; k < SH_OP_MAX_IN; k++)
            if (op->in[k] != SH_NONE)
                c->used[sh_tensor_root(c->p, op->in[k])] = true;
        return SH_OK;
    }
    if (!sh_op_info(op->kind)->runs)
        return SH_OK;
    if (c->written[source_of(c, op->in[0] == SH_NONE ? op->out[0] : op->in[0])])
        return sh_check_broken(c, i, "takes the gradient of a later step");
    if (c->used[source_of(c, op->out[0])])
        return sh_check_broken(c, i, "updates what was already used");
    return SH_OK;
}

/* Record the effects of operation i. */
static sh_rc take_effect(struct sh_check *c, int i)
{
    const struct sh_op *op = sh_check_op(c, i);

    if (sh_op_info(op->kind)->moves)
        SH_TRY(start_move(c, i));
    if (sh_op_starts(sh_op_info(op->kind))) {
        c->under_way[i] = true;
        c->open[c->n_open++] = i;
        count(c, op, 1);
        return SH_OK; /* its result exists only after the wait */
    }
    if (op->kind == SH_OP_RELEASE)
        c->gathered[sh_tensor_root(c->p, op->in[0])] = false;
    if (op->kind == SH_OP_WAIT) {
        const struct sh_op *done = sh_check_op(c, op->attr.waits_for);
        int made = sh_tensor_root(c->p, sh_program_result(done));

        if (!end_collective(c, op->attr.waits_for))
            return sh_check_broken(c, i, "waits for a collective a second time");
        c->gathered[made] = is_gathered_unit(c, made);
        if (done->kind == SH_OP_FETCH) {
            c->written[made] = true;
            fill(c, done->out[0], made);
            return SH_OK;
        }
        op = done;
    }
    mark_written(c, op);
    return SH_OK;
}

/* Walks the section once, in the order of the program. The state that it keeps is the content of a rank's memory at
 * that operation. */
sh_rc sh_check_order(struct sh_check *c)
{
    for (int i = 0; i < c->section->n_ops; i++) {
        if (!c->pending && sh_program_carried(c->section, sh_check_op(c, i)))
            continue;
        SH_TRY(check_carried(c, i));
        SH_TRY(check_gathered(c, i));
        SH_TRY(check_reads(c, i));
        SH_TRY(check_under_way(c, i));
        SH_TRY(take_effect(c, i));
    }
    for (int i = 0; i < c->section->n_ops; i++)
        if (c->under_way[i])
            return sh_check_broken(c, i, "is never waited for");
    for (int t = 0; t < c->p->n_tensors; t++)
        if (c->gathered[t])
            return sh_check_broken(c, c->section->n_ops - 1, "a gathered unit is never released");
    for (int t = 0; t < c->p->n_tensors; t++)
        if (c->changed[t])
            return sh_check_broken(c, c->section->n_ops - 1, "what was fetched and changed is never put back");
    return SH_OK;
}
