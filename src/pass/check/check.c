#include "src/pass/check/check.h"

#include "kernels/shape.h"
#include "src/base/mem.h"

#include <stdlib.h>
#include <string.h>

/* Indices come from passes, and a bad one would read past the end of the table. */
static bool names_tensor(const struct sh_check *c, int t)
{
    return t >= 0 && t < c->p->n_tensors;
}

/* A row of operands against the table of operations. */
static bool fits(const struct sh_check *c, const int *operand, int room, int n, unsigned optional)
{
    for (int k = 0; k < room; k++) {
        bool may_miss = k >= n || (optional >> k & 1u);

        if (operand[k] == SH_NONE ? !may_miss : k >= n || !names_tensor(c, operand[k]))
            return false;
    }
    return true;
}

/* Kernels and collectives reach only the device's memory; a view is where its base is. */
static bool within_reach(const struct sh_check *c, const int *operand, int room)
{
    for (int k = 0; k < room; k++)
        if (operand[k] != SH_NONE && c->p->tensors[sh_tensor_root(c->p, operand[k])].tier != 0)
            return false;
    return true;
}

/* A move has the device at one end and another tier at the other, and moves whole storage of the device. The other end
 * may be a part of a tensor. */
static bool goes_between_tiers(const struct sh_check *c, const struct sh_op *op)
{
    const struct sh_tensor *in = &c->p->tensors[op->in[0]], *out = &c->p->tensors[op->out[0]];

    return (in->tier == 0) != (out->tier == 0) && (out->tier == 0) == (op->kind == SH_OP_FETCH) &&
           (in->tier ? out : in)->base == SH_NONE;
}

/* Whether the stream runs operations of this kind. */
static bool in_its_stream(const struct sh_check *c, const struct sh_op *op)
{
    const struct sh_op_info *info = sh_op_info(op->kind);
    int runs = info->async ? SH_RUNS_COLLECTIVES : info->moves ? SH_RUNS_MOVES : SH_RUNS_KERNELS;

    return op->stream >= 0 && op->stream < c->p->n_streams && (int)c->p->streams[op->stream].runs == runs;
}

static sh_rc check_operands(const struct sh_check *c, int i)
{
    const struct sh_op *op = sh_check_op(c, i);
    const struct sh_op_info *info = sh_op_info(op->kind);

    if (!fits(c, op->in, SH_OP_MAX_IN, info->n_in, info->opt_in))
        return sh_check_broken(c, i, "an input is missing, or there are too many");
    if (!fits(c, op->out, SH_OP_MAX_OUT, info->n_out, info->opt_out))
        return sh_check_broken(c, i, "an output is missing, or there are too many");
    if (op->work != SH_NONE && !names_tensor(c, op->work))
        return sh_check_broken(c, i, "its scratch is not a tensor");
    if (!in_its_stream(c, op))
        return sh_check_broken(c, i, "its stream does not run operations of its kind");
    if (info->moves)
        return goes_between_tiers(c, op) ? SH_OK : sh_check_broken(c, i, "does not move between the device and a tier");
    if (!within_reach(c, op->in, SH_OP_MAX_IN) || !within_reach(c, op->out, SH_OP_MAX_OUT))
        return sh_check_broken(c, i, "an operand does not lie on the device");
    return SH_OK;
}

/* Shapes and types against the table of operations: kernels trust them. */
static sh_rc check_shapes(const struct sh_check *c, int i)
{
    char misfit[SH_MISFIT_TEXT];
    struct sh_op_call call;

    sh_program_call(c->p, sh_check_op(c, i), NULL, &call);
    return sh_shape_misfit(&call, misfit) ? sh_check_broken(c, i, misfit) : SH_OK;
}

/* References to other operations: a wait names its collective or move, a collective the one that it follows. */
static sh_rc check_partners(const struct sh_check *c, int i)
{
    const struct sh_op *op = sh_check_op(c, i);

    if (op->kind == SH_OP_WAIT) {
        int of = op->attr.waits_for;

        if (of < 0 || of >= i || !sh_op_starts(sh_op_info(sh_check_op(c, of)->kind)))
            return sh_check_broken(c, i, "does not wait for a collective before it");
    }
    if (sh_op_info(op->kind)->async && op->attr.after != SH_NONE) {
        int after = op->attr.after;

        if (after < 0 || after >= i || !sh_op_info(sh_check_op(c, after)->kind)->async)
            return sh_check_broken(c, i, "does not follow a collective before it");
    }
    return SH_OK;
}

/* The port that an operand is, or is a view of; SH_PORTS: none. */
static int port_of(const struct sh_program *p, int t)
{
    for (; t != SH_NONE; t = p->tensors[t].base)
        for (int port = 0; port < SH_PORTS; port++)
            if (p->port[port] == t)
                return port;
    return SH_PORTS;
}

/* The rows of ports say which sections use them, and which ones operations may write. */
static sh_rc check_ports(const struct sh_check *c, int i)
{
    const struct sh_op *op = sh_check_op(c, i);

    for (int k = 0; k < SH_OP_MAX_IN + SH_OP_MAX_OUT; k++) {
        int port = port_of(c->p, k < SH_OP_MAX_IN ? op->in[k] : op->out[k - SH_OP_MAX_IN]);

        if (port == SH_PORTS)
            continue;
        if (!(sh_port_row(port)->sections >> c->section->kind & 1))
            return sh_check_broken(c, i, "uses a port of other sections");
        if (k >= SH_OP_MAX_IN && sh_port_row(port)->in)
            return sh_check_broken(c, i, "writes what the host fills");
    }
    return SH_OK;
}

/* What the previous section wrote or gathered does not count: sections run in any number and order. */
static void forget(struct sh_check *c)
{
    size_t n = (size_t)c->p->n_tensors;

    memset(c->written, 0, n * sizeof *c->written);
    memset(c->filled, 0, n * sizeof *c->filled);
    memset(c->gathered, 0, n * sizeof *c->gathered);
    memset(c->makes, 0, n * sizeof *c->makes);
    memset(c->sends, 0, n * sizeof *c->sends);
    memset(c->under_way, 0, (size_t)c->section->n_ops * sizeof *c->under_way);
    c->n_open = 0;
    memset(c->changed, 0, n * sizeof *c->changed);
    memset(c->used, 0, n * sizeof *c->used);
    for (int t = 0; t < c->p->n_tensors; t++)
        c->home[t] = SH_NONE;
}

static bool carries(const struct sh_check *c)
{
    for (int i = 0; i < c->section->n_ops; i++)
        if (sh_program_carried(c->section, sh_check_op(c, i)))
            return true;
    return false;
}

/* Check one section. If an update is carried into it, it must be right without the update too. */
static sh_rc check_section(struct sh_check *c)
{
    for (int i = 0; i < c->section->n_ops; i++) {
        SH_TRY(check_operands(c, i));
        SH_TRY(check_shapes(c, i));
        SH_TRY(check_partners(c, i));
        SH_TRY(check_ports(c, i));
    }
    sh_lifetime_of_section(c->p, c->section, c->life);
    for (int pending = carries(c); pending >= 0; pending--) {
        forget(c);
        c->pending = pending;
        SH_TRY(sh_check_order(c));
    }
    return sh_check_overlap(c);
}

/* The last pass, and the only one that changes nothing. It turns a bug of any pass into an error with the operation's
 * number instead of wrong numbers in a run. */
sh_rc sh_pass_check(const struct sh_build *b, struct sh_program *p)
{
    struct sh_check c = {.p = p};
    sh_rc rc = sh_check_views(p);
    (void)b;
    c.life = sh_calloc((size_t)p->n_tensors + 1, sizeof *c.life);
    c.written = sh_calloc((size_t)p->n_tensors + 1, sizeof *c.written);
    c.filled = sh_calloc((size_t)p->n_tensors + 1, sizeof *c.filled);
    c.gathered = sh_calloc((size_t)p->n_tensors + 1, sizeof *c.gathered);
    c.under_way = sh_calloc((size_t)p->n_ops + 1, sizeof *c.under_way);
    c.open = sh_calloc((size_t)p->n_ops + 1, sizeof *c.open);
    c.makes = sh_calloc((size_t)p->n_tensors + 1, sizeof *c.makes);
    c.sends = sh_calloc((size_t)p->n_tensors + 1, sizeof *c.sends);
    c.home = sh_calloc((size_t)p->n_tensors + 1, sizeof *c.home);
    c.changed = sh_calloc((size_t)p->n_tensors + 1, sizeof *c.changed);
    c.used = sh_calloc((size_t)p->n_tensors + 1, sizeof *c.used);
    for (int i = 0; i < p->n_sections && rc == SH_OK; i++) {
        c.section = &p->sections[i];
        rc = check_section(&c);
    }
    if (rc == SH_OK)
        rc = sh_check_homes(p);
    free(c.life);
    free(c.written);
    free(c.filled);
    free(c.gathered);
    free(c.under_way);
    free(c.open);
    free(c.makes);
    free(c.sends);
    free(c.home);
    free(c.changed);
    free(c.used);
    return rc;
}
