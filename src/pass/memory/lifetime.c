#include "src/pass/memory/lifetime.h"

#include "src/base/mem.h"

#include <stdlib.h>

enum { ALIGN = 256 }; /* suits vector loads and GPUs */

int64_t sh_lifetime_bytes(const struct sh_tensor *t)
{
    return (sh_tensor_bytes(t) + ALIGN - 1) / ALIGN * ALIGN;
}

/* This rank's share of the bytes: memory that a group holds together is counted once. */
int64_t sh_lifetime_share(const struct sh_program *p, const struct sh_tensor *t)
{
    int64_t bytes = sh_lifetime_bytes(t);

    return t->space == SH_SPACE_GROUP ? (bytes + p->segment.group_ranks - 1) / p->segment.group_ranks : bytes;
}

/* Extend the life of t's storage to operation `op`. */
static void touch(const struct sh_program *p, int t, int op, struct sh_life *life)
{
    int root;

    if (t == SH_NONE)
        return;
    root = sh_tensor_root(p, t);
    if (p->tensors[root].persistent)
        return;
    if (life[root].first == SH_NONE || op < life[root].first)
        life[root].first = op;
    if (op > life[root].last)
        life[root].last = op;
}

/* Inputs, outputs and scratch. */
static void touch_all(const struct sh_program *p, const struct sh_op *op, int at, struct sh_life *life)
{
    for (int k = 0; k < SH_OP_MAX_IN; k++)
        touch(p, op->in[k], at, life);
    for (int k = 0; k < SH_OP_MAX_OUT; k++)
        touch(p, op->out[k], at, life);
    touch(p, op->work, at, life);
}

void sh_lifetime_of_section(const struct sh_program *p, const struct sh_section *section, struct sh_life *life)
{
    const struct sh_op *ops = p->ops + section->first_op;

    for (int t = 0; t < p->n_tensors; t++)
        life[t] = (struct sh_life){SH_NONE, SH_NONE};
    for (int i = 0; i < section->n_ops; i++) {
        touch_all(p, &ops[i], i, life);
        /* The operands of a collective or move are in use until the wait for it, not only at its start. */
        if (ops[i].kind == SH_OP_WAIT)
            touch_all(p, &ops[ops[i].attr.waits_for], i, life);
    }
}

/* An input that is read twice must not be overwritten by the first read's output. */
static int operand_uses(const struct sh_program *p, const struct sh_op *op, int root)
{
    int n = 0;

    for (int k = 0; k < SH_OP_MAX_IN; k++)
        n += op->in[k] != SH_NONE && sh_tensor_root(p, op->in[k]) == root;
    return n;
}

/* An output may take the storage of an input when all of these hold: the kind allows it, the input dies here, the
 * output begins here, both have the same space and size, and the input is read once. */
bool sh_lifetime_inplace(const struct sh_program *p, const struct sh_section *section, const struct sh_life *life,
                         int index, int *in_root, int *out_root)
{
    const struct sh_op *op = &p->ops[section->first_op + index];
    const struct sh_op_info *info = sh_op_info(op->kind);
    int in, out;

    if (sh_op_starts(info) || info->marker || info->inplace_in == SH_NONE)
        return false;
    in = op->in[info->inplace_in];
    out = op->out[info->inplace_out];
    if (in == SH_NONE || out == SH_NONE)
        return false;
    *in_root = sh_tensor_root(p, in);
    *out_root = sh_tensor_root(p, out);
    return !p->tensors[*in_root].persistent && !p->tensors[*out_root].persistent && *in_root != *out_root &&
           p->tensors[*in_root].space == p->tensors[*out_root].space && life[*in_root].last == index &&
           life[*out_root].first == index && operand_uses(p, op, *in_root) == 1 &&
           sh_tensor_bytes(&p->tensors[*in_root]) == sh_tensor_bytes(&p->tensors[*out_root]);
}
