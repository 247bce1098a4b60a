/* A trace of training, matched with its program: the k-th event of the compute stream is the k-th operation of a step,
 * so each event has the shapes of its operation. */
#include "src/tools/bench/points.h"

#include "io/json/json.h"
#include "src/base/file.h"
#include "src/base/number/median.h"
#include "src/base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const size_t most_bytes = (size_t)1 << 30;

struct event {
    double begin, end; /* seconds */
    int op;            /* of the program; SH_NONE before it is known */
    enum sh_op_kind
        beside; /* a collective that ran during most of it; SH_OP_KINDS: none; SH_OP_WAIT: during a part of it */
};

struct events {
    struct event *of;
    int n, cap;
};

/* Events of computation and of collectives are kept apart: the former become points, the latter show what ran at the
 * same time. */
struct reader {
    struct sh_bench_points *l;
    const struct sh_program *p;
    struct events compute, moved;
    int *order, n_order; /* operations of the compute stream in a step */
};

/* A trace counts in microseconds, points in seconds. */
static void add_event(struct events *l, json_t *e, int op)
{
    double begin = json_number_value(json_object_get(e, "ts")) / 1e6;

    l->of = sh_grow(l->of, l->n, &l->cap, sizeof *l->of);
    l->of[l->n++] = (struct event){begin, begin + json_number_value(json_object_get(e, "dur")) / 1e6, op, SH_OP_KINDS};
}

/* The kind of a collective is the last word of its name. */
static int kind_of(const char *name)
{
    static const enum sh_op_kind kinds[] = {SH_OP_ALL_GATHER, SH_OP_REDUCE_SCATTER, SH_OP_ALL_REDUCE, SH_OP_ALL_TO_ALL};
    const char *word = strrchr(name, ' ');

    for (size_t i = 0; word && i < sizeof kinds / sizeof *kinds; i++)
        if (!strcmp(word + 1, sh_op_info(kinds[i])->name))
            return (int)kinds[i];
    return SH_NONE;
}

/* Whether an operation has an event in the compute stream: markers and operations that only start something have
 * none. */
static bool is_computed(const struct sh_op *op)
{
    return !sh_op_starts(sh_op_info(op->kind)) && !sh_op_info(op->kind)->marker;
}

/* Lists the operations of one step, with sections repeated as often as in the step. */
static void find_order(struct reader *r)
{
    for (int s = 0; s < r->p->n_sections; s++)
        for (int k = 0; k < r->p->sections[s].repeat; k++)
            for (int i = 0; i < r->p->sections[s].n_ops; i++) {
                int op = r->p->sections[s].first_op + i;

                if (!is_computed(&r->p->ops[op]))
                    continue;
                r->order = sh_realloc(r->order, (size_t)r->n_order + 1, sizeof *r->order);
                r->order[r->n_order++] = op;
            }
}

/* The event's name must be that of the next operation in the order. */
static sh_rc add_computed(struct reader *r, json_t *e, const char *name)
{
    int op = r->order[r->compute.n % r->n_order];
    char label[SH_OP_LABEL];

    sh_program_label(r->p, &r->p->ops[op], label);
    if (strcmp(label, name))
        return sh_fail(SH_E_BUG, "the trace has %s where the program has %s", name, label);
    add_event(&r->compute, e, op);
    return SH_OK;
}

/* Reads complete events ("X") of rank 0 only; other ranks do the same work. */
static sh_rc read_event(struct reader *r, json_t *e)
{
    const char *phase = json_string_value(json_object_get(e, "ph")),
               *name = json_string_value(json_object_get(e, "name"));
    json_int_t row = json_integer_value(json_object_get(e, "tid"));

    if (!phase || strcmp(phase, "X") || !name || json_integer_value(json_object_get(e, "pid")) != 0)
        return SH_OK;
    if (row == SH_STREAM_COMPUTE)
        return add_computed(r, e, name);
    if (row < r->p->n_streams && kind_of(name) != SH_NONE)
        add_event(&r->moved, e, kind_of(name));
    return SH_OK;
}

/* Compares all pairs, since collectives are few. Both lists are in order of their start, or nearly so. */
static void find_beside(struct reader *r)
{
    for (int i = 0; i < r->compute.n; i++) {
        struct event *c = &r->compute.of[i];

        for (int k = 0; k < r->moved.n; k++) {
            const struct event *m = &r->moved.of[k];
            double begin = c->begin > m->begin ? c->begin : m->begin, end = c->end < m->end ? c->end : m->end;

            if (end <= begin || m->end - m->begin <= 0)
                continue;
            if (end - begin > 0.9 * (c->end - c->begin))
                c->beside = (enum sh_op_kind)m->op;
            else if (c->beside == SH_OP_KINDS)
                c->beside = SH_OP_WAIT;
        }
    }
}

/* Whether two operations have one price, that is, prices.c would not tell them apart. */
static bool same_point(const struct reader *r, int a, int b)
{
    double one[SH_POINT_DIMS], other[SH_POINT_DIMS];
    struct sh_op_call x, y;
    int n;

    if (r->p->ops[a].kind != r->p->ops[b].kind)
        return false;
    if (a == b)
        return true;
    sh_program_call(r->p, &r->p->ops[a], NULL, &x);
    sh_program_call(r->p, &r->p->ops[b], NULL, &y);
    n = sh_price_dims(&x, one);
    return sh_price_dims(&y, other) == n && !memcmp(one, other, (size_t)n * sizeof *one);
}

/* Ascending, for the median. */
/* Median over all events of one shape without a collective at the same time; 0: there is none. */
static double alone_seconds(const struct reader *r, int op, double *times)
{
    int n = 0;

    for (int i = 0; i < r->compute.n; i++)
        if (r->compute.of[i].beside == SH_OP_KINDS && same_point(r, r->compute.of[i].op, op))
            times[n++] = r->compute.of[i].end - r->compute.of[i].begin;
    sh_sort_doubles(n, times);
    return n ? times[n / 2] : 0;
}

/* Sums over all events beside one kind of collective: the time that they took, and that they would have taken alone. */
struct beside {
    double measured, alone;
};

/* For each distinct operation of the order: its point, and the extra time of its events beside collectives. */
static void judge(struct reader *r, struct beside beside[SH_OP_KINDS])
{
    double *times = sh_calloc((size_t)r->compute.n + 1, sizeof *times),
           *alone = sh_calloc((size_t)r->p->n_ops, sizeof *alone);

    for (int i = 0; i < r->n_order; i++) {
        int op = r->order[i], like = SH_NONE;
        struct sh_op_call call;

        for (int k = 0; k < i && like == SH_NONE; k++)
            like = same_point(r, r->order[k], op) ? r->order[k] : SH_NONE;
        alone[op] = like != SH_NONE ? alone[like] : alone_seconds(r, op, times);
        if (like != SH_NONE || alone[op] <= 0)
            continue;
        sh_program_call(r->p, &r->p->ops[op], NULL, &call);
        sh_bench_points_op(r->l, &call, r->p->act, &alone[op], 1);
    }
    for (int i = 0; i < r->compute.n; i++) {
        const struct event *e = &r->compute.of[i];

        if (e->beside == SH_OP_KINDS || e->beside == SH_OP_WAIT || alone[e->op] <= 0)
            continue;
        beside[e->beside].measured += e->end - e->begin;
        beside[e->beside].alone += alone[e->op];
    }
    free(times);
    free(alone);
}

/* A trace with fewer or more events than the steps belongs to another program, and would shift every shape by one. */
static sh_rc read_all(struct reader *r, json_t *events, const char *path, int steps)
{
    struct beside beside[SH_OP_KINDS] = {{0}};

    find_order(r);
    for (size_t i = 0; i < json_array_size(events); i++)
        SH_TRY(read_event(r, json_array_get(events, i)));
    if (r->compute.n != steps * r->n_order)
        return sh_fail(SH_E_DATA, "%s: %d events of computation, but %d steps have %d each", path, r->compute.n, steps,
                       r->n_order);
    find_beside(r);
    judge(r, beside);
    for (int k = 0; k < SH_OP_KINDS; k++)
        if (beside[k].alone > 0)
            sh_bench_points_beside(r->l, (enum sh_op_kind)k,
                                   beside[k].measured > beside[k].alone ? beside[k].measured / beside[k].alone - 1 : 0);
    return SH_OK;
}

/* The trace is read whole: a gibibyte holds a few million events. */
sh_rc sh_bench_points_trace(struct sh_bench_points *l, const char *path, const struct sh_program *p, int steps)
{
    struct reader r = {.l = l, .p = p};
    json_error_t error;
    size_t bytes;
    char *text;
    json_t *all;
    sh_rc rc;

    SH_TRY(sh_read_file(path, most_bytes, &text, &bytes));
    all = sh_json_decode(text, bytes, 0, &error);
    free(text);
    if (!all)
        return sh_fail(SH_E_DATA, "%s:%d: %s", path, error.line, error.text);
    rc = read_all(&r, json_is_array(all) ? all : json_object_get(all, "traceEvents"), path, steps);
    json_decref(all);
    free(r.compute.of);
    free(r.moved.of);
    free(r.order);
    return rc;
}
