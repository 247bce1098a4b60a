/* A fluid simulation, not a discrete one: computation and collectives have work left, in seconds, and rates at which it
 * decreases.
 *
 *   - the compute stream takes its operations in order; a collective goes to the queue of its stream and group when the
 *     compute stream meets it, and starts when that queue and attr.after allow
 *   - a wait blocks the compute stream until its collective is complete
 *   - while a collective is active, computation runs at 1 / (1 + slowdown)
 *   - transfers over one link share it evenly; latencies are not shared
 *   - a move between memory and a file is like a collective on a separate link, and slows nothing down
 *
 * A section starts and ends with nothing in flight, since each collective has its wait in the same section. So a
 * section is simulated once and counted as often as a step runs it.
 *
 * Stages of a pipeline have a clock each. One runs until it waits for a message that the other side has not started;
 * then the others run. A message slows no computation and shares no link but as its price says: it is small. */
#include "src/cost/step.h"

#include "src/base/mem.h"
#include "src/cost/meet.h"
#include "src/cost/prices.h"
#include "src/pass/pipeline/stages.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CHANNELS = SH_STREAMS_MAX * 8 };

/* The collectives of one stream and group, which run one at a time. */
struct channel {
    int stream;
    sh_group group;
    int *queue; /* [cap] operations of the section */
    int first, n, cap;
    double latency, transfer; /* what is left of the active one */
    double begin;
    bool moves;
};

struct sim {
    const struct sh_cost_request *r;
    struct sh_prices prices;
    struct sh_meets *meets; /* NULL: one stage */
    int stage;
    int section, run, at; /* the section, how often it was run before, the operation in it that is next */
    const struct sh_section *s;
    struct sh_cost_trace *trace; /* NULL: none */
    struct channel channels[CHANNELS];
    int n_channels, n_moving;
    bool *complete; /* [operations of the section] */
    int *met;       /* [operations of the section] the number of a meeting */
    bool blocked;   /* it waits for a stage that has not come as far */
    double now, begin, weight;
    double exposed_by[SH_COST_CLASSES][2]; /* of the first call of the step, of the last */
    struct sh_cost_step *out;
};

/* The slow-down of computation during a collective of this kind, measured for the kind if there is a measurement. */
static double slowdown_of(const struct sim *s, enum sh_op_kind kind)
{
    return s->prices.slowdown[sh_cost_class_of(kind)];
}

/* Operations are numbered within the section, like waits_for and after. */
static const struct sh_op *op_at(const struct sim *s, int i)
{
    return &s->r->p->ops[s->s->first_op + i];
}

static const struct sh_price *price_at(const struct sim *s, int i)
{
    return &s->prices.of[s->prices.index[s->s->first_op + i]];
}

/* Created at the first collective; a section has few channels. */
static struct channel *channel_of(struct sim *s, const struct sh_op *op)
{
    for (int i = 0; i < s->n_channels; i++)
        if (s->channels[i].stream == op->stream && s->channels[i].group == op->attr.group)
            return &s->channels[i];
    s->channels[s->n_channels] = (struct channel){.stream = op->stream, .group = op->attr.group};
    return &s->channels[s->n_channels++];
}

/* The link of the head of the queue, which is active or next. */
static int link_of(const struct sim *s, const struct channel *c)
{
    return price_at(s, c->queue[c->first])->link;
}

/* Whether the link carries one collective at a time, and another one is active on it or was met earlier. */
static bool link_is_taken(const struct sim *s, const struct channel *c)
{
    for (int i = 0; s->r->machine->overlap.serial > 0 && i < s->n_channels; i++) {
        const struct channel *o = &s->channels[i];

        if (o != c && o->n && link_of(s, o) == link_of(s, c) && (o->moves || o->queue[o->first] < c->queue[c->first]))
            return true;
    }
    return false;
}

/* Whether the head of a queue may start: the operation that it follows is complete, and the link is free. */
static bool may_start(const struct sim *s, const struct channel *c)
{
    int after = c->n ? op_at(s, c->queue[c->first])->attr.after : SH_NONE;

    return c->n && !c->moves && (after == SH_NONE || s->complete[after]) && !link_is_taken(s, c);
}

/* Called after each event: one completion may release several queues. */
static void start_ready(struct sim *s)
{
    for (int i = 0; i < s->n_channels; i++) {
        struct channel *c = &s->channels[i];

        if (!may_start(s, c))
            continue;
        c->moves = true;
        c->begin = s->now;
        c->latency = price_at(s, c->queue[c->first])->latency;
        c->transfer = price_at(s, c->queue[c->first])->transfer;
        s->n_moving++;
    }
}

/* Without a trace this does nothing. */
static void note_event(const struct sim *s, int i, double begin)
{
    sh_cost_trace_op(s->trace, i, begin, s->now, price_at(s, i));
}

/* Queues only grow within a section; `first` moves past what is done. */
static void finish(struct sim *s, struct channel *c)
{
    int i = c->queue[c->first];

    note_event(s, i, c->begin);
    s->complete[i] = true;
    c->moves = false;
    c->first++;
    c->n--;
    s->n_moving--;
}

/* The number of transfers that share a link with this one, itself included. */
static int sharing(const struct sim *s, const struct channel *c)
{
    int link = link_of(s, c), n = 0;

    for (int i = 0; i < s->n_channels; i++) {
        const struct channel *o = &s->channels[i];

        n += o->moves && o->latency <= 0 && link_of(s, o) == link;
    }
    return n;
}

/* The seconds left at the present rates, which hold until the next event. */
static double left_of(const struct sim *s, const struct channel *c)
{
    return c->latency > 0 ? c->latency : c->transfer * sharing(s, c);
}

/* Let time pass for collectives, at most `most` and up to the next change of rates. Returns how much passed. */
static double move(struct sim *s, double most)
{
    double left[CHANNELS], step = most;

    for (int i = 0; i < s->n_channels; i++) {
        left[i] = s->channels[i].moves ? left_of(s, &s->channels[i]) : INFINITY;
        step = fmin(step, left[i]);
    }
    s->now += step;
    for (int i = 0; i < s->n_channels; i++) {
        struct channel *c = &s->channels[i];

        if (!c->moves)
            continue;
        if (c->latency > 0)
            c->latency = left[i] <= step ? 0 : c->latency - step;
        else
            c->transfer = left[i] <= step ? 0 : c->transfer * (1 - step / left[i]);
        if (c->latency <= 0 && c->transfer <= 0)
            finish(s, c);
    }
    start_ready(s);
    return step;
}

/* If several are active, the largest slow-down counts. */
static double slowdown_now(const struct sim *s)
{
    double most = 0;

    for (int i = 0; i < s->n_channels; i++)
        if (s->channels[i].moves)
            most = fmax(most, slowdown_of(s, op_at(s, s->channels[i].queue[s->channels[i].first])->kind));
    return most;
}

/* Computes in stretches between events: while something is active, a stretch of `passed` seconds does passed / slow of
 * the work. The bound of 1e-15 s drops what rounding leaves. */
static void compute(struct sim *s, int i)
{
    const struct sh_price *price = price_at(s, i);
    struct sh_cost_row *row = &s->out->row[sh_cost_class_of(op_at(s, i)->kind)];
    double left = price->seconds, begin = s->now;

    while (left > 0 && s->n_moving) {
        double slow = 1 + slowdown_now(s), passed = move(s, left * slow);

        row->slowed += s->weight * passed * (1 - 1 / slow);
        left -= passed / slow;
        if (left < 1e-15)
            left = 0;
    }
    s->now += left;
    row->alone += s->weight * price->seconds;
    row->flops += s->weight * price->flops;
    row->bytes += s->weight * price->bytes;
    row->calls += (int64_t)s->weight;
    note_event(s, i, begin);
}

/* The computation does not wait here: it only signals that the operands are ready. */
static void enqueue(struct sim *s, int i)
{
    const struct sh_op *op = op_at(s, i);
    const struct sh_price *price = price_at(s, i);
    struct sh_cost_row *row = &s->out->row[sh_cost_class_of(op->kind)];
    struct channel *c;

    row->alone += s->weight * price->seconds;
    row->latency += s->weight * price->latency;
    row->bytes += s->weight * price->bytes;
    row->calls += (int64_t)s->weight;
    if (s->meets && sh_meets_at(s->r->mesh, op)) {
        s->met[i] = sh_meets_start(s->meets, s->stage, op, s->now, price->seconds);
        return;
    }
    c = channel_of(s, op);
    if (c->first + c->n == c->cap) {
        c->cap = c->cap ? 2 * c->cap : 64;
        c->queue = sh_realloc(c->queue, (size_t)c->cap, sizeof *c->queue);
    }
    c->queue[c->first + c->n++] = i;
    start_ready(s);
}

/* Note where in the step the exposed seconds are, because the remedies differ. */
static void note_exposed(struct sim *s, int waited, double seconds)
{
    const struct sh_op *op = op_at(s, waited);
    enum sh_cost_class class = sh_cost_class_of(op->kind);
    int at = s->prices.place[s->s->first_op + waited];

    s->out->row[class].exposed += s->weight * seconds;
    if (at & SH_PLACE_FIRST)
        s->exposed_by[class][0] += s->weight * seconds;
    if (at & SH_PLACE_LAST)
        s->exposed_by[class][1] += s->weight * seconds;
}

/* Of the time until another stage comes, the seconds of the message itself are exposed; the rest is its fault. */
static void meet(struct sim *s, int i, int waited)
{
    const struct sh_price *price = price_at(s, waited);
    double end, seconds, begin = s->now;

    s->blocked = !sh_meets_end(s->meets, s->stage, op_at(s, waited), s->met[waited], &end);
    if (s->blocked)
        return;
    while (s->now < end && s->n_moving)
        move(s, end - s->now);
    s->now = fmax(s->now, end);
    seconds = s->now - begin;
    note_exposed(s, waited, fmin(seconds, price->seconds));
    s->out->bubble += s->weight * fmax(0, seconds - price->seconds);
    note_event(s, waited, end - price->seconds);
    note_event(s, i, begin);
}

/* Nothing is computed during a wait: all of this time is exposed. */
static sh_rc wait_for(struct sim *s, int i)
{
    int waited = op_at(s, i)->attr.waits_for;
    double begin = s->now;

    while (!s->complete[waited]) {
        double passed;

        SH_REQUIRE(s->n_moving); /* otherwise nothing would ever complete it */
        passed = move(s, INFINITY);
        SH_REQUIRE(isfinite(passed));
    }
    note_exposed(s, waited, s->now - begin);
    note_event(s, i, begin);
    return SH_OK;
}

static sh_rc run_op(struct sim *s, int i)
{
    const struct sh_op *op = op_at(s, i);

    if (op->kind == SH_OP_WAIT && s->meets && sh_meets_at(s->r->mesh, op_at(s, op->attr.waits_for)))
        meet(s, i, op->attr.waits_for);
    else if (op->kind == SH_OP_WAIT)
        return wait_for(s, i);
    else if (sh_op_starts(sh_op_info(op->kind)))
        enqueue(s, i);
    else if (!sh_op_info(op->kind)->marker)
        compute(s, i);
    return SH_OK;
}

static void open_section(struct sim *s)
{
    s->n_channels = s->n_moving = 0;
    s->begin = s->now;
    memset(s->complete, 0, (size_t)s->s->n_ops * sizeof *s->complete);
    sh_cost_trace_section(s->trace, s->s, s->now);
}

/* To its end, where all queues are empty, as each collective has a wait; or until it is blocked. */
static sh_rc run_section(struct sim *s)
{
    if (s->at == 0)
        open_section(s);
    for (; s->at < s->s->n_ops; s->at++) {
        SH_TRY(run_op(s, s->at));
        if (s->blocked)
            return SH_OK;
    }
    return SH_OK;
}

/* Queues belong to one section: they hold the numbers of its operations. */
static void free_channels(struct sim *s)
{
    for (int i = 0; i < CHANNELS; i++) {
        free(s->channels[i].queue);
        s->channels[i].queue = NULL;
    }
}

static void close_section(struct sim *s)
{
    free_channels(s);
    sh_cost_trace_section_end(s->trace, s->now);
    s->out->seconds += s->weight * (s->now - s->begin);
    s->at = 0;
    s->run++;
}

/* With a trace every repetition is simulated, so that the rows are those of a real step; and where stages meet, so that
 * all count alike. Returns at the end of the step, or when it is blocked. */
static sh_rc run_step(struct sim *s)
{
    const struct sh_program *p = s->r->p;

    for (s->blocked = false; s->section < p->n_sections; s->section++, s->run = 0) {
        bool each = s->r->trace || s->meets;
        int repeat = p->sections[s->section].repeat, times = each ? repeat : repeat > 0;

        s->s = &p->sections[s->section];
        s->weight = times ? (double)repeat / times : 0;
        while (s->run < times) {
            SH_TRY(run_section(s));
            if (s->blocked)
                return SH_OK;
            close_section(s);
        }
    }
    return SH_OK;
}

/* Blom's estimate of the largest of k normal numbers, from extreme value theory (Cramer 1946, 28.6). */
double sh_cost_slowest(double k)
{
    double a = sqrt(2 * log(k));

    return k < 2 ? 0 : fmax(0, a - (log(log(k)) + log(4 * M_PI)) / (2 * a));
}

/* Called before anything is priced: without a network, division by its rate would make a step infinitely long. */
sh_rc sh_cost_check_network(const struct sh_machine *m, int ranks, int ranks_per_node)
{
    SH_REQUIRE(ranks_per_node > 0);
    if (ranks <= ranks_per_node || m->network.bytes_per_second > 0)
        return SH_OK;
    return sh_fail(
        SH_E_USAGE,
        "%s: %d ranks are more than the %d of a node, but the machine has no network; give network.bytes_per_second, "
        "or a preset with one, such as h100-80x8-ndr400",
        m->name, ranks, ranks_per_node);
}

/* Nodes differ in speed, and a step waits for the slowest of them, and a stage for the last one; the host's share is
 * added to each step. */
static void sum_up(struct sim *s, double last)
{
    struct sh_cost_step *out = s->out;
    const struct sh_machine *m = s->r->machine;
    double nodes = ceil((double)sh_mesh_ranks(s->r->mesh) / s->r->ranks_per_node);

    for (int c = 0; c < SH_COST_CLASSES; c++) {
        out->row[c].first = s->exposed_by[c][0] > out->row[c].exposed / 2;
        out->row[c].last = s->exposed_by[c][1] > out->row[c].exposed / 2;
    }
    if (s->meets) {
        out->bubble += last - s->now;
        out->seconds = last;
    }
    out->spread = out->seconds * m->spread.node * sh_cost_slowest(nodes) / s->r->faster.spread;
    out->host = m->host.step_seconds / s->r->faster.host;
    out->seconds += out->spread + out->host;
}

/* The marks of complete operations have room for the longest section and are reused by all sections. */
static void open_stage(struct sim *s, const struct sh_cost_request *r, struct sh_meets *meets, int stage,
                       struct sh_cost_step *out)
{
    int most = 1;

    *s = (struct sim){.r = r, .out = out, .meets = meets, .stage = stage};
    memset(out, 0, sizeof *out);
    sh_prices_make(r, &s->prices);
    for (int i = 0; i < r->p->n_sections; i++)
        most = r->p->sections[i].n_ops > most ? r->p->sections[i].n_ops : most;
    s->complete = sh_calloc((size_t)most, sizeof *s->complete);
    s->met = meets ? sh_calloc((size_t)most, sizeof *s->met) : NULL;
    s->trace = sh_cost_trace_begin(r);
}

static void close_stage(struct sim *s)
{
    free_channels(s);
    sh_cost_trace_end(s->trace, s->now);
    free(s->complete);
    free(s->met);
    sh_prices_free(&s->prices);
}

/* In turn, each until it is blocked. That they do not block each other for ever is checked by the passes (links.h). */
static sh_rc run_all(struct sim *of, int n)
{
    bool any = true;
    int left = n;

    while (any && left) {
        any = false;
        left = n;
        for (int i = 0; i < n; i++) {
            double before = of[i].now;
            int section = of[i].section, at = of[i].at;

            SH_TRY(run_step(&of[i]));
            any |= of[i].section != section || of[i].at != at || of[i].now > before;
            left -= of[i].section == of[i].r->p->n_sections;
        }
    }
    SH_REQUIRE(!left);
    return SH_OK;
}

static sh_rc simulate(const struct sh_cost_request *requests, int n, struct sh_cost_step *out)
{
    struct sh_meets *meets = n > 1 ? sh_meets_create(n) : NULL;
    struct sim *of = sh_calloc((size_t)n, sizeof *of);
    double last = 0;
    sh_rc rc;

    for (int i = 0; i < n; i++)
        open_stage(&of[i], &requests[i], meets, i, &out[i]);
    rc = run_all(of, n);
    for (int i = 0; i < n; i++)
        last = fmax(last, of[i].now);
    for (int i = 0; i < n; i++) {
        sum_up(&of[i], last);
        close_stage(&of[i]);
    }
    free(of);
    sh_meets_free(meets);
    return rc;
}

sh_rc sh_cost_stages(const struct sh_cost_request *r, struct sh_cost_step *out)
{
    int n = r->stages->n;
    struct sh_cost_request *of = sh_calloc((size_t)n, sizeof *of);
    sh_rc rc = sh_cost_check_network(r->machine, sh_mesh_ranks(r->mesh), r->ranks_per_node);

    for (int i = 0; i < n; i++) {
        of[i] = *r;
        of[i].p = r->stages->p[i];
        of[i].mesh = &r->stages->mesh[i];
        of[i].trace = i == sh_group_index(r->mesh, r->mesh->pipeline) ? r->trace : NULL;
    }
    if (rc == SH_OK)
        rc = simulate(of, n, out);
    free(of);
    return rc;
}

sh_rc sh_cost_step(const struct sh_cost_request *r, struct sh_cost_step *out)
{
    struct sh_cost_step *each;
    sh_rc rc;

    SH_TRY(sh_cost_check_network(r->machine, sh_mesh_ranks(r->mesh), r->ranks_per_node));
    if (!r->stages)
        return simulate(r, 1, out);
    each = sh_calloc((size_t)r->stages->n, sizeof *each);
    rc = sh_cost_stages(r, each);
    *out = each[sh_group_index(r->mesh, r->mesh->pipeline)];
    free(each);
    return rc;
}
