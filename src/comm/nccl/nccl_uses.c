#include "src/comm/nccl/nccl_uses.h"

#include "src/base/mem.h"

static bool is_same(const struct sh_coll *a, const struct sh_coll *b)
{
    return a->kind == b->kind && a->stream == b->stream && a->group == b->group && a->dtype == b->dtype &&
           a->count == b->count && a->peer == b->peer;
}

static void add(struct sh_coll *uses, int *n, struct sh_coll use)
{
    for (int i = 0; i < *n; i++)
        if (is_same(&uses[i], &use))
            return;
    uses[(*n)++] = use;
}

int sh_nccl_uses(const struct sh_program *p, const struct sh_mesh_shape *mesh, struct sh_coll **uses)
{
    int n = 0;

    *uses = p ? sh_calloc((size_t)p->n_ops + 1, sizeof **uses) : NULL;
    for (int i = 0; p && i < p->n_ops; i++) {
        const struct sh_op *op = &p->ops[i];
        struct sh_coll use = {.kind = op->kind, .stream = op->stream, .group = op->attr.group};
        bool message = sh_program_is_message(op);

        if (!sh_op_info(op->kind)->async || sh_group_size(mesh, use.group) == 1)
            continue;
        use.dtype = p->tensors[sh_program_result(op)].dtype;
        /* One element is enough to connect all, or the two. */
        use.count = op->kind == SH_OP_ALL_TO_ALL || message ? 1 : sh_program_part_elems(p, op, 1);
        if (message)
            use.peer = sh_group_index(mesh, use.group) + op->attr.link.peer;
        add(*uses, &n, use);
    }
    return n;
}
