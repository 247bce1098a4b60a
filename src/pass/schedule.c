/* Overlap, by moving operations within a section. Nothing is added or dropped, so the numbers of a run do not change.
 *
 * Gathers move up: the gather of an interval starts when the unit `prefetch` intervals before it is complete, as far as
 * the limit of gathered units alive allows. A unit that stays from the forward to the backward counts as gathered ahead
 * until the unit of the loss is released. Fetches of the update's slices move up too, and waits for their way back move
 * down.
 *
 * Waits for reductions move down: a unit's wait stands before the start of the next unit's reduction, so that a
 * reduction runs alongside one unit's backward and at most two unreduced gradients are alive. What follows a wait
 * (casts, adding to the shard, the sum over replicas) moves with it; the wait for that sum, and those of the update's
 * gathers, go to the end of the section. If shards leave the device after their sums, the wait for a sum goes no
 * further than the next unit's reduction. Waits for rows and matrices that are exchanged sink too (schedule_rows.c).
 *
 * Three units, forward_prefetch 1, backward in reverse order. G gather, w wait, F forward, B backward, R reduction, r
 * wait for it, x release; time from left to right. Unit 3 is that of the loss, and unit 2 stays through it:
 *
 *   before   G1 w F1 x  G2 w F2    G3 w F3   B3 R3 r x     B2 R2 r x  G1 w B1 R1 r x
 *   after    G1 w G2 F1 x w G3 F2     w F3   B3 R3 x    G1 B2 r3 R2 x    w B1 r2 R1 x r1
 *
 * So G2 runs alongside F1, and R3 alongside B2: r3 stands before R2, which needs the room of R3's unreduced
 * gradient. */
#include "src/base/mem.h"
#include "src/pass/build.h"
#include "src/pass/schedule_rows.h"

#include <stdlib.h>
#include <string.h>

struct list {
    int *op; /* indices of operations in the old section */
    int n;
};

struct schedule {
    const struct sh_pass_options *opt;
    const struct sh_program *p;
    const struct sh_section *section;
    const struct sh_op *old; /* the old section */
    int n, n_tensors;
    enum sh_section_kind kind;
    bool leaves; /* gradients are moved to a lower tier once they are complete (host.c) */
};

/* Operations put off, and the tensors that they make. */
struct delayed {
    struct list list;
    bool *made; /* [tensors] */
};

/* Lists have room for all operations of the section. */
static void push(struct list *l, int op)
{
    l->op[l->n++] = op;
}

static void append(struct list *to, struct list *from)
{
    for (int i = 0; i < from->n; i++)
        push(to, from->op[i]);
    from->n = 0;
}

static struct list list_for(int n)
{
    return (struct list){.op = sh_calloc((size_t)n + 1, sizeof(int))};
}

/* The kind of collective that operation i waits for; SH_OP_KINDS if i is not a wait. */
static enum sh_op_kind waited_kind(const struct schedule *s, int i)
{
    return s->old[i].kind == SH_OP_WAIT ? s->old[s->old[i].attr.waits_for].kind : SH_OP_KINDS;
}

/* The sum of a unit's shard over replicas; the loss and the norm have no unit. */
static bool is_grad_sum(const struct schedule *s, int i)
{
    return s->old[i].kind == SH_OP_ALL_REDUCE && s->old[i].unit != SH_NONE;
}

/* The reduction of a unit's gradient. Collectives without a unit exchange rows of the model: no gradient. */
static bool is_scatter(const struct schedule *s, int i)
{
    return s->old[i].kind == SH_OP_REDUCE_SCATTER && s->old[i].unit != SH_NONE;
}

/* The tensor that operation i, or the collective that it waits for, makes. */
static int made_by(const struct schedule *s, int i)
{
    const struct sh_op *op = s->old[i].kind == SH_OP_WAIT ? &s->old[s->old[i].attr.waits_for] : &s->old[i];

    return op->out[0];
}

static void put_off(const struct schedule *s, struct delayed *d, int i)
{
    push(&d->list, i);
    if (made_by(s, i) != SH_NONE)
        d->made[made_by(s, i)] = true;
}

/* Append them to `out`, in the order in which they were put off; from here on the tensors that they make exist. */
static void take_up(const struct schedule *s, struct delayed *d, struct list *out)
{
    for (int k = 0; k < d->list.n; k++)
        if (made_by(s, d->list.op[k]) != SH_NONE)
            d->made[made_by(s, d->list.op[k])] = false;
    append(out, &d->list);
}

static bool has(const struct list *l, int op)
{
    for (int i = l->n - 1; i >= 0; i--)
        if (l->op[i] == op)
            return true;
    return false;
}

/* If shards leave the device: how many of the delayed operations, from the first on, wait for a collective that is in
 * `out`, or follow such a wait. */
static int n_started(const struct schedule *s, const struct delayed *d, const struct list *out)
{
    int n = 0;

    while (s->leaves && n < d->list.n &&
           (s->old[d->list.op[n]].kind != SH_OP_WAIT || has(out, s->old[d->list.op[n]].attr.waits_for)))
        n++;
    return n;
}

/* The same for the first n of them only. */
static void take_first(const struct schedule *s, struct delayed *d, int n, struct list *out)
{
    struct list rest = {.op = d->list.op + n, .n = d->list.n - n};

    d->list.n = n;
    take_up(s, d, out);
    memmove(d->list.op, rest.op, (size_t)rest.n * sizeof *rest.op);
    d->list.n = rest.n;
}

/* Casts, additions and sums over replicas that continue with a tensor that is put off. */
static bool goes_with(const struct schedule *s, const struct delayed *d, int i)
{
    const struct sh_op *op = &s->old[i];
    bool sum = is_grad_sum(s, i) && op->attr.after == SH_NONE;
    bool local = op->unit != SH_NONE && (op->kind == SH_OP_CAST || op->kind == SH_OP_ACCUMULATE);

    return (sum || local) && d->made[sum ? op->out[0] : op->in[0]];
}

static struct delayed delayed_for(const struct schedule *s)
{
    return (struct delayed){.list = list_for(s->n), .made = sh_calloc((size_t)s->n_tensors + 1, sizeof(bool))};
}

static void free_delayed(struct delayed *d)
{
    free(d->list.op);
    free(d->made);
}

/* Move waits down. `tail` holds what must follow the newest reduce_scatter; `end` what may wait for the section's
 * end. */
static void delay_waits(const struct schedule *s, struct list *out)
{
    struct delayed tail = delayed_for(s), end = delayed_for(s);

    for (int i = 0; i < s->n; i++) {
        enum sh_op_kind waited = waited_kind(s, i);
        bool of_unit = s->old[i].unit != SH_NONE;

        if (is_scatter(s, i)) {
            int n = n_started(s, &end, out);

            take_up(s, &tail, out);
            take_first(s, &end, n, out);
            push(out, i);
        } else if (goes_with(s, &end, i) || (of_unit && waited == SH_OP_ALL_REDUCE) ||
                   (of_unit && waited == SH_OP_ALL_GATHER && s->kind == SH_SECTION_UPDATE)) {
            put_off(s, &end, i);
        } else if ((of_unit && waited == SH_OP_REDUCE_SCATTER) || goes_with(s, &tail, i)) {
            put_off(s, &tail, i);
        } else {
            if (is_grad_sum(s, i))
                take_first(s, &end, n_started(s, &end, out), out);
            push(out, i);
        }
    }
    take_up(s, &tail, out);
    take_up(s, &end, out);
    free_delayed(&tail);
    free_delayed(&end);
}

struct prefetch {
    const struct schedule *s;
    struct list *out;
    struct list gathers; /* in their order */
    bool *done;          /* [section's operations] already in `out` */
    int *copy;           /* [tensors] the first operation that copies into it, or the last that updates it here;
                            SH_NONE */
    int started, waited; /* gathers so far */
    int alive;
    int held; /* units gathered in the forward and read again after the loss; 0 once the unit of the loss is released */
};

static void put(struct prefetch *f, int op)
{
    push(f->out, op);
    f->done[op] = true;
}

/* How many gathers may be ahead, depending on the phase. */
static int distance(const struct prefetch *f, int gather)
{
    const struct sh_pass_options *opt = f->s->opt;

    return f->s->old[gather].phase == SH_PHASE_FORWARD ? opt->forward_prefetch : opt->backward_prefetch - f->held;
}

/* Gathers are started only in their order, so that all ranks start the same ones. */
static void start_next(struct prefetch *f)
{
    put(f, f->gathers.op[f->started++]);
    f->alive++;
}

/* Whether the data that a gather sends is there: with reshard_after_forward: N the backward sends what the forward
 * leaves. */
static bool has_source(const struct prefetch *f, int gather)
{
    int copy = f->copy[f->s->old[gather].in[0]];

    return copy == SH_NONE || f->done[copy];
}

/* The gather of a unit. Those of an update that is carried into the micro-step are not moved. */
static bool is_gather(const struct schedule *s, int i)
{
    return s->old[i].kind == SH_OP_ALL_GATHER && s->old[i].unit != SH_NONE &&
           !sh_program_carried(s->section, &s->old[i]);
}

/* For a carried update: it writes what is gathered, or that from which it is then cast or coded. */
static bool makes_parameters(const struct sh_op *op)
{
    return sh_op_info(op->kind)->runs || op->kind == SH_OP_CAST || op->kind == SH_OP_ENCODE;
}

/* For each unit, the last operation of an update carried into this section that makes its parameters. */
static void find_updates(const struct schedule *s, int *copy)
{
    for (int i = 0; i < s->n; i++)
        if (sh_program_carried(s->section, &s->old[i]) && makes_parameters(&s->old[i]))
            copy[sh_program_sent(&s->p->units[s->old[i].unit])] = i;
}

/* Backwards, so that the first copy into a tensor is the one that is kept. */
static int *copies_of(const struct schedule *s)
{
    int *copy = sh_calloc((size_t)s->n_tensors + 1, sizeof *copy);

    for (int t = 0; t < s->n_tensors; t++)
        copy[t] = SH_NONE;
    for (int i = s->n - 1; i >= 0; i--)
        if (s->old[i].kind == SH_OP_COPY)
            copy[s->old[i].out[0]] = i;
    find_updates(s, copy);
    return copy;
}

/* Units that the forward gathers and the backward releases, except for that of the loss. */
static int held_units(const struct schedule *s)
{
    bool *gathered = sh_calloc((size_t)s->n_tensors + 1, sizeof *gathered);
    int n = 0;

    for (int i = 0; i < s->n; i++) {
        bool forward = s->old[i].phase == SH_PHASE_FORWARD;

        if (s->old[i].kind == SH_OP_ALL_GATHER)
            gathered[s->old[i].out[0]] = forward;
        if (s->old[i].kind == SH_OP_RELEASE)
            n += gathered[s->old[i].in[0]] && !forward;
    }
    free(gathered);
    return n ? n - 1 : 0;
}

/* keep_after_forward releases nothing before the backward, so a limit on live units would end all prefetch. */
static bool may_start(const struct prefetch *f, int gather)
{
    int limit = f->s->opt->strategy.keep_after_forward ? 0 : f->s->opt->gathers_alive;

    return f->started < f->waited + distance(f, gather) && (!limit || f->alive < limit) && has_source(f, gather);
}

/* Start every gather that may start here: at most `distance` ahead of the newest complete gather, within the limit. */
static void start_ahead(struct prefetch *f)
{
    while (f->started < f->gathers.n && may_start(f, f->gathers.op[f->started]))
        start_next(f);
}

/* Take over operation i. A gather starts at the latest where it stood originally. */
static void take_over(struct prefetch *f, int i)
{
    const struct sh_op *op = &f->s->old[i];
    bool end = op->kind == SH_OP_WAIT && is_gather(f->s, op->attr.waits_for);

    if (is_gather(f->s, i)) {
        while (f->started <= f->waited)
            start_next(f);
        return;
    }
    put(f, i);
    f->waited += end;
    f->alive -= op->kind == SH_OP_RELEASE;
    if (op->kind == SH_OP_RELEASE && op->phase != SH_PHASE_FORWARD)
        f->held = 0;
    if (op->kind == SH_OP_RELEASE || op->kind == SH_OP_WAIT || sh_op_info(op->kind)->runs)
        start_ahead(f);
}

/* The second walk, over the result of delay_waits(). */
static void advance_gathers(const struct schedule *s, const struct list *in, struct list *out)
{
    struct prefetch f = {.s = s,
                         .out = out,
                         .gathers = list_for(s->n),
                         .held = held_units(s),
                         .done = sh_calloc((size_t)s->n + 1, sizeof(bool)),
                         .copy = copies_of(s)};

    for (int i = 0; i < in->n; i++)
        if (is_gather(s, in->op[i]))
            push(&f.gathers, in->op[i]);
    for (int i = 0; i < in->n; i++)
        take_over(&f, in->op[i]);
    free(f.gathers.op);
    free(f.done);
    free(f.copy);
}

/* Put the operations in their new order; indices of collectives within the section follow. */
static void apply(struct sh_op *ops, const struct sh_op *old, const struct list *order)
{
    int *place = sh_calloc((size_t)order->n + 1, sizeof *place);

    for (int i = 0; i < order->n; i++)
        place[order->op[i]] = i;
    for (int i = 0; i < order->n; i++) {
        ops[i] = old[order->op[i]];
        if (ops[i].kind == SH_OP_WAIT)
            ops[i].attr.waits_for = place[ops[i].attr.waits_for];
        if (ops[i].attr.after != SH_NONE)
            ops[i].attr.after = place[ops[i].attr.after];
    }
    free(place);
}

/* Other sections have no gathers to move: their units are gathered for good. */
static bool is_micro_step(enum sh_section_kind k)
{
    return k != SH_SECTION_INIT && k != SH_SECTION_LOSS && k != SH_SECTION_NORM && k != SH_SECTION_UPDATE;
}

/* Moves of slices; activations move where they stand. */
static bool moves_slice(const struct schedule *s, int i, enum sh_op_kind kind)
{
    const struct sh_op *op = &s->old[i];
    int copy = kind == SH_OP_FETCH ? op->out[0] : op->in[0];

    return op->kind == kind && s->p->tensors[copy].mem == SH_MEM_FETCHED;
}

/* Slices of states on their way through the device. */
struct slices {
    const struct schedule *s;
    struct list *out;
    struct list fetches; /* in their order */
    struct list evicted; /* waits for evictions, put off */
    int *stretch;        /* [section's operations] for each of those waits: the stretch in which it was put off */
    int started, taken;  /* fetches that were started, and how many of them have their eviction put off or over */
    int alive, limit;
    int block, stretches; /* block of the model's newest operation, and how many stretches of one block there were */
};

/* Wait for the oldest eviction: its memory is then free. */
static void settle(struct slices *l)
{
    push(l->out, l->evicted.op[0]);
    l->evicted.n--;
    memmove(l->evicted.op, l->evicted.op + 1, (size_t)l->evicted.n * sizeof *l->evicted.op);
    l->alive--;
}

/* Whether the next fetch may start: there is room, and what it reads is at home. An update in several parts moves a
 * slice more than once, and evictions end in the order of the fetches. */
static bool may_fetch(const struct slices *l)
{
    const int *fetch = l->fetches.op;
    int at_home = l->taken - l->evicted.n;

    if (l->started == l->fetches.n || l->alive == l->limit)
        return false;
    for (int i = at_home; i < l->started; i++)
        if (l->s->old[fetch[i]].in[0] == l->s->old[fetch[l->started]].in[0])
            return false;
    return true;
}

/* Start as many fetches as may start. */
static void fetch_ahead(struct slices *l)
{
    for (; may_fetch(l); l->alive++)
        push(l->out, l->fetches.op[l->started++]);
}

/* In a micro-step an eviction runs alongside the forward of one whole block. Its memory is then for the next
 * fetches. */
static void pass_by(struct slices *l, int i)
{
    const struct sh_op *op = &l->s->old[i];
    bool model = op->phase != SH_PHASE_UPDATE && !sh_op_starts(sh_op_info(op->kind)) && op->kind != SH_OP_WAIT &&
                 !sh_op_info(op->kind)->marker;

    if (!model || (l->stretches && op->block == l->block))
        return;
    l->block = op->block;
    l->stretches++;
    while (l->evicted.n && l->stretch[l->evicted.op[0]] + 2 <= l->stretches)
        settle(l);
    fetch_ahead(l);
}

/* A fetch starts at the latest where it stood originally. Only the wait for the newest eviction is put off further: the
 * eviction before it had a whole update to run alongside, and the memory that it frees is for the next slice. */
static void take_slice(struct slices *l, int i)
{
    if (moves_slice(l->s, i, SH_OP_FETCH)) {
        for (; l->started <= l->taken; fetch_ahead(l))
            if (!may_fetch(l))
                settle(l);
        return;
    }
    if (l->s->old[i].kind != SH_OP_WAIT || !moves_slice(l->s, l->s->old[i].attr.waits_for, SH_OP_EVICT)) {
        pass_by(l, i);
        push(l->out, i);
        return;
    }
    push(&l->evicted, i);
    l->stretch[i] = l->stretches;
    l->taken++;
    while (l->evicted.n > 1)
        settle(l);
    fetch_ahead(l);
}

/* The double buffer: with 3 slices at once and u for an update,
 *
 *   before   F1 w u1 E1 w  F2 w u2 E2 w  F3 w u3 E3 w  F4 w u4 E4 w
 *   after    F1 F2 F3  w1 u1 E1  w2 u2 E2 e1 F4  w3 u3 E3 e2  w4 u4 E4 e3 e4
 *
 * so that one slice arrives and one leaves while one is in use. */
static void move_slices(const struct schedule *s, const struct list *in, int limit, struct list *out)
{
    struct slices l = {.s = s,
                       .out = out,
                       .fetches = list_for(s->n),
                       .evicted = list_for(s->n),
                       .stretch = sh_calloc((size_t)s->n + 1, sizeof *l.stretch),
                       .limit = limit};

    for (int i = 0; i < in->n; i++)
        if (moves_slice(s, in->op[i], SH_OP_FETCH))
            push(&l.fetches, in->op[i]);
    fetch_ahead(&l);
    for (int i = 0; i < in->n; i++)
        take_slice(&l, in->op[i]);
    while (l.evicted.n)
        settle(&l);
    free(l.fetches.op);
    free(l.evicted.op);
    free(l.stretch);
}

static void schedule_section(const struct sh_build *b, struct sh_program *p, const struct sh_section *section)
{
    const struct sh_pass_options *opt = &b->options;
    struct sh_op *ops = p->ops + section->first_op;
    struct sh_op *old = sh_calloc((size_t)section->n_ops + 1, sizeof *old);
    struct schedule s = {.opt = opt,
                         .p = p,
                         .section = section,
                         .old = old,
                         .n = section->n_ops,
                         .n_tensors = p->n_tensors,
                         .kind = section->kind,
                         .leaves = b->offload.gradients};
    struct list delayed = list_for(s.n), gathered = list_for(s.n), order = list_for(s.n);

    memcpy(old, ops, (size_t)s.n * sizeof *old);
    delay_waits(&s, &delayed);
    if (is_micro_step(section->kind) || section->kind == SH_SECTION_UPDATE)
        sh_schedule_rows(p, old, delayed.op, delayed.n);
    if (is_micro_step(section->kind))
        advance_gathers(&s, &delayed, &gathered);
    else
        append(&gathered, &delayed);
    move_slices(&s, &gathered, b->offload.buffers, &order);
    apply(ops, old, &order);
    free(delayed.op);
    free(gathered.op);
    free(order.op);
    free(old);
}

sh_rc sh_pass_schedule(const struct sh_build *b, struct sh_program *p)
{
    for (int i = 0; i < p->n_sections; i++)
        schedule_section(b, p, &p->sections[i]);
    return SH_OK;
}
