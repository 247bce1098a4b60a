#include "src/comm/nccl/nccl_uses.h"

#include "src/base/mem.h"

static bool is_same(const struct sh_coll *a, const struct sh_coll *b)
{
    return a->kind == b->kind && a->stream == b->stream && a->group == b->group && a->dtype == b->dtype &&
           a->count == b->count;
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

        if (!sh_op_info(op->kind)->async || sh_group_size(mesh, use.group) == 1)
            continue;
        use.dtype = p->tensors[op->out[0]].dtype;
        use.count = op->kind == SH_OP_ALL_TO_ALL ? 1 : sh_program_part_elems(p, op, 1); /* enough to connect all */
        add(*uses, &n, use);
    }
    return n;
}
