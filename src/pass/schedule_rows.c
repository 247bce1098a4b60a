/* A collective that exchanges rows, or whole matrices for an update, stands between the operation that makes them and the
 * one that needs them, so nothing would run alongside it. Two kinds of operations do:
 *
 *   - what follows and touches neither side: the wait sinks to the first operation that does
 *   - in the backward, products that make gradients of weights and come before it in its block: they are put off until
 *     it has started, since nothing needs them before the unit is reduced. If others start right after it, they come
 *     after those. Exchanges of heads before and behind attention have half of them each
 *
 *   before   dw dx X w  attention'        (of the output projection; X exchanges dx)
 *   after    dx X dw w  attention'
 *
 * Exchanges in tiles stand beside the tiles of a product already (stripes.c). */
#include "src/pass/schedule_rows.h"

#include "src/base/mem.h"

#include <stdlib.h>
#include <string.h>

struct rows {
    const struct sh_program *p;
    const struct sh_op *ops;
    int *order, n; /* the result */
    int *held, n_held;
    int *waits, n_waits; /* sinking */
};

static bool exchanges(const struct sh_program *p, const struct sh_op *op)
{
    return sh_op_info(op->kind)->async && (op->unit == SH_NONE || sh_program_cuts(p, op)) && !sh_program_is_message(op);
}

/* The operation whose result a wait brings; any other operation is itself. */
static const struct sh_op *effect(const struct rows *r, int i)
{
    return r->ops[i].kind == SH_OP_WAIT ? &r->ops[r->ops[i].attr.waits_for] : &r->ops[i];
}

/* The first byte of a tensor, from that of its storage. */
static int64_t begin_of(const struct sh_program *p, int t)
{
    const struct sh_tensor *v = &p->tensors[t];

    return v->base == SH_NONE ? 0 : begin_of(p, v->base) + v->base_elems * sh_dtype_bytes(v->dtype);
}

static bool is_view(const struct sh_program *p, int t, int of)
{
    while (t != SH_NONE && t != of)
        t = p->tensors[t].base;
    return t == of;
}

/* Whether a tensor is one of the others, is a view of one or the other way round, or has bytes of one: gradients of a
 * unit are views of one storage. A view without elements here has some on another rank, and the order is the same on
 * all. */
static bool has(const struct sh_program *p, const int *tensors, int n, int t)
{
    int64_t begin = begin_of(p, t), end = begin + sh_tensor_bytes(&p->tensors[t]);

    for (int k = 0; k < n; k++)
        if (tensors[k] != SH_NONE &&
            (is_view(p, t, tensors[k]) || is_view(p, tensors[k], t) ||
             (sh_tensor_root(p, tensors[k]) == sh_tensor_root(p, t) && begin_of(p, tensors[k]) < end &&
              begin < begin_of(p, tensors[k]) + sh_tensor_bytes(&p->tensors[tensors[k]]))))
            return true;
    return false;
}

/* Whether an operation reads or, if `also_reads` is false, only whether it writes one of the tensors. A release ends
 * the life of what it names. */
static bool touches(const struct rows *r, const struct sh_op *op, const int *tensors, int n, bool also_reads)
{
    for (int k = 0; k < n; k++)
        if (tensors[k] != SH_NONE &&
            (has(r->p, op->out, SH_OP_MAX_OUT, tensors[k]) ||
             ((also_reads || op->kind == SH_OP_RELEASE) && has(r->p, op->in, SH_OP_MAX_IN, tensors[k]))))
            return true;
    return false;
}

/* Whether the two may not change places. */
static bool meet(const struct rows *r, int a, int b)
{
    const struct sh_op *first = effect(r, a), *second = effect(r, b);

    return touches(r, second, first->out, SH_OP_MAX_OUT, true) || touches(r, second, first->in, SH_OP_MAX_IN, false);
}

/* It makes gradients of parameters and nothing else. */
static bool makes_weight_gradients(const struct rows *r, const struct sh_op *op)
{
    bool any = false;

    for (int k = 0; k < SH_OP_MAX_OUT; k++) {
        enum sh_mem mem = op->out[k] == SH_NONE ? SH_MEM_KINDS : r->p->tensors[sh_tensor_root(r->p, op->out[k])].mem;

        if (mem != SH_MEM_KINDS && mem != SH_MEM_GRAD_FULL && mem != SH_MEM_GRAD)
            return false;
        any = any || mem != SH_MEM_KINDS;
    }
    return any && op->phase == SH_PHASE_BACKWARD && op->unit == SH_NONE;
}

/* Whether an exchange starts after old[at], in the block of operation i and before anything that meets that. */
static bool may_wait(const struct rows *r, int i, const int *old, int at, int n)
{
    while (++at < n) {
        const struct sh_op *next = &r->ops[old[at]];

        if (meet(r, i, old[at]) || (next->block != r->ops[i].block && next->unit == SH_NONE))
            return false;
        if (exchanges(r->p, next))
            return true;
    }
    return false;
}

static bool may_be_held(const struct rows *r, const int *old, int at, int n)
{
    return makes_weight_gradients(r, &r->ops[old[at]]) && may_wait(r, old[at], old, at, n);
}

static void put(struct rows *r, int i)
{
    r->order[r->n++] = i;
}

/* End the sinking of all waits up to the last that meets operation i; SH_NONE: of all. */
static void settle(struct rows *r, int i)
{
    int n = i == SH_NONE ? r->n_waits : 0;

    for (int k = 0; i != SH_NONE && k < r->n_waits; k++)
        if (meet(r, r->waits[k], i))
            n = k + 1;
    for (int k = 0; k < n; k++)
        put(r, r->waits[k]);
    r->n_waits -= n;
    memmove(r->waits, r->waits + n, (size_t)r->n_waits * sizeof *r->waits);
}

/* Whether an operation is made between two exchanges that follow each other: a wait, or a tile of a product that is
 * made in turns with the exchange old[at] (stripes.c). */
static bool is_between(const struct rows *r, const struct sh_op *exchange, int i)
{
    const struct sh_op *op = &r->ops[i];

    return op->kind == SH_OP_WAIT ? exchanges(r->p, effect(r, i))
                                  : exchange->tiles && op->tiles == exchange->tiles && !exchanges(r->p, op);
}

/* Whether another exchange starts right after old[at], and may do so before what is held. */
static bool another_follows(const struct rows *r, const int *old, int at, int n)
{
    const struct sh_op *exchange = &r->ops[old[at]];

    do
        at++;
    while (at < n && is_between(r, exchange, old[at]));
    if (at == n || !exchanges(r->p, &r->ops[old[at]]))
        return false;
    for (int k = 0; k < r->n_held; k++)
        if (meet(r, r->held[k], old[at]))
            return false;
    return true;
}

/* Elements of the gradients that an operation makes, to which its time is proportional. */
static int64_t work_of(const struct rows *r, int i)
{
    int64_t n = 0;

    for (int k = 0; k < SH_OP_MAX_OUT; k++)
        n += r->ops[i].out[k] == SH_NONE ? 0 : sh_tensor_elems(&r->p->tensors[r->ops[i].out[k]]);
    return n;
}

/* How many of those that are held run alongside the exchange old[at]. Attention stands between two exchanges of heads,
 * and nothing else could run alongside the second: that has the later half of the work, which keeps less in memory. */
static int alongside(const struct rows *r, const int *old, int at, int n)
{
    int64_t all = 0, done = 0;
    int k = 0;

    if (r->ops[old[at]].kind != SH_OP_ALL_TO_ALL || sh_program_counts_rows(&r->ops[old[at]]))
        return r->n_held;
    for (int i = 0; i < r->n_held; i++)
        all += work_of(r, r->held[i]);
    while (k < r->n_held && (2 * done < all || !may_wait(r, r->held[k], old, at, n)))
        done += work_of(r, r->held[k++]);
    return k;
}

static void take(struct rows *r, const int *old, int at, int n)
{
    int i = old[at], now;

    if (r->ops[i].kind == SH_OP_WAIT && exchanges(r->p, effect(r, i))) {
        r->waits[r->n_waits++] = i;
        return;
    }
    if (may_be_held(r, old, at, n)) {
        r->held[r->n_held++] = i;
        return;
    }
    settle(r, i);
    put(r, i);
    if (!exchanges(r->p, &r->ops[i]) || another_follows(r, old, at, n))
        return;
    now = alongside(r, old, at, n);
    for (int k = 0; k < now; k++) {
        settle(r, r->held[k]);
        put(r, r->held[k]);
    }
    r->n_held -= now;
    memmove(r->held, r->held + now, (size_t)r->n_held * sizeof *r->held);
}

void sh_schedule_rows(const struct sh_program *p, const struct sh_op *ops, int *order, int n)
{
    struct rows r = {.p = p, .ops = ops, .order = order};
    int *old, any = 0;

    for (int i = 0; i < n; i++)
        any |= exchanges(p, &ops[i]);
    if (!any)
        return;
    old = sh_calloc((size_t)n, sizeof *old);
    r.held = sh_calloc((size_t)n, sizeof *r.held);
    r.waits = sh_calloc((size_t)n, sizeof *r.waits);
    memcpy(old, order, (size_t)n * sizeof *old);
    for (int at = 0; at < n; at++)
        take(&r, old, at, n);
    settle(&r, SH_NONE);
    free(old);
    free(r.held);
    free(r.waits);
}
