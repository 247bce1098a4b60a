/* The arrays of a program grow while passes append to them, so indices and not pointers refer from one row to another:
 * a pointer into an array is good only until the next append to it. SH_NONE stands for "no row". */
#include "src/program/program.h"

#include "src/base/number/exact.h"
#include "src/base/mem.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

int sh_program_add_tier(struct sh_program *p, const char *name, int kind)
{
    struct sh_tier *tier = &p->tiers[p->n_tiers];

    tier->kind = kind;
    snprintf(tier->name, sizeof tier->name, "%s", name);
    return p->n_tiers++;
}

int sh_program_add_stream(struct sh_program *p, const char *name, int runs)
{
    struct sh_stream *stream = &p->streams[p->n_streams];

    SH_REQUIRE(p->n_streams < SH_STREAMS_MAX);
    stream->runs = runs;
    snprintf(stream->name, sizeof stream->name, "%s", name);
    return p->n_streams++;
}

/* Tier 0 and the first streams are in each program, so passes can rely on their numbers. */
struct sh_program *sh_program_create(enum sh_dtype act)
{
    struct sh_program *p = sh_calloc(1, sizeof *p);

    p->act = act;
    p->unrolled = 1;
    sh_program_add_tier(p, "device", SH_TIER_DEVICE);
    memcpy(p->streams, sh_streams, sizeof sh_streams);
    p->n_streams = SH_STREAMS;
    for (int port = 0; port < SH_PORTS; port++)
        p->port[port] = SH_NONE;
    return p;
}

void sh_program_destroy(struct sh_program *p)
{
    if (!p)
        return;
    free(p->tensors);
    free(p->ops);
    free(p->saved);
    free(p->params);
    free(p->units);
    free(p->slices);
    free(p->sections);
    free(p->runs);
    free(p->divisors);
    free(p->numbers);
    free(p->matrices);
    free(p->cuts);
    free(p->groups);
    free(p);
}

/* Evaluates to the index of the new row. `row` is copied after the array has grown: it must not point
 * into the array. */
#define APPEND(array, n, cap, row) ((array) = sh_grow((array), (n), &(cap), sizeof *(array)), (array)[n] = (row), (n)++)

int sh_program_add_tensor(struct sh_program *p, const struct sh_tensor *t)
{
    return APPEND(p->tensors, p->n_tensors, p->cap_tensors, *t);
}

/* Results stay until they are read; whether inputs do is the shard pass's choice. */
int sh_program_add_port(struct sh_program *p, enum sh_port port, int64_t B, int64_t T, int64_t V)
{
    const int64_t value[] = {
        ['B'] = B, ['T'] = T, ['N'] = B * T, ['V'] = V, ['R'] = V, ['E'] = SH_EXACT_ELEMS, ['1'] = 1};
    const struct sh_port_row *row = sh_port_row(port);
    int64_t dim[SH_MAX_DIMS];
    int ndim = 0;
    struct sh_tensor t;

    for (; row->dims[ndim]; ndim++)
        dim[ndim] = value[(int)row->dims[ndim]];
    t = sh_tensor_make(row->in ? SH_MEM_DATA : SH_MEM_CONST, row->dtype, ndim, dim, "%s", row->name);
    t.persistent = !row->in;
    return p->port[port] = sh_program_add_tensor(p, &t);
}

int *sh_program_nones(int n)
{
    int *a = sh_calloc((size_t)n + 1, sizeof *a);

    for (int i = 0; i < n; i++)
        a[i] = SH_NONE;
    return a;
}

int sh_program_add_op(struct sh_program *p, const struct sh_op *op)
{
    return APPEND(p->ops, p->n_ops, p->cap_ops, *op);
}

/* The operations behind the section move. */
void sh_program_set_ops(struct sh_program *p, int section, const struct sh_op *ops, int n)
{
    int first = p->sections[section].first_op, end = first + p->sections[section].n_ops, more = n - (end - first);
    int n_tail = p->n_ops - end;
    struct sh_op *tail = sh_calloc((size_t)n_tail + 1, sizeof *tail);

    for (int i = 0; i < n_tail; i++)
        tail[i] = p->ops[end + i];
    p->n_ops = first;
    for (int i = 0; i < n; i++)
        sh_program_add_op(p, &ops[i]);
    for (int i = 0; i < n_tail; i++)
        sh_program_add_op(p, &tail[i]);
    p->sections[section].n_ops = n;
    for (int i = 0; i < p->n_sections; i++)
        p->sections[i].first_op += i != section && p->sections[i].first_op >= end ? more : 0;
    free(tail);
}

int sh_program_add_saved(struct sh_program *p, const struct sh_saved *saved)
{
    return APPEND(p->saved, p->n_saved, p->cap_saved, *saved);
}

int sh_program_add_param(struct sh_program *p, const struct sh_param *param)
{
    return APPEND(p->params, p->n_params, p->cap_params, *param);
}

int sh_program_add_run(struct sh_program *p, struct sh_decay_run run)
{
    return APPEND(p->runs, p->n_runs, p->cap_runs, run);
}

int sh_program_add_divisor(struct sh_program *p, double divisor)
{
    return APPEND(p->divisors, p->n_divisors, p->cap_divisors, divisor);
}

int sh_program_add_numbers(struct sh_program *p, struct sh_group_numbers numbers)
{
    return APPEND(p->numbers, p->n_numbers, p->cap_numbers, numbers);
}

int sh_program_add_matrix(struct sh_program *p, struct sh_matrix matrix)
{
    return APPEND(p->matrices, p->n_matrices, p->cap_matrices, matrix);
}

int sh_program_add_cut(struct sh_program *p, int64_t elems)
{
    return APPEND(p->cuts, p->n_cuts, p->cap_cuts, elems);
}

/* Takes the parameters that are appended next, until another unit starts. Tensors that only some strategies have
 * (remainder, master, snapshot, gradients) start as SH_NONE; the shard pass makes them. */
int sh_program_add_unit(struct sh_program *p, const char *name)
{
    struct sh_unit u = {.first_param = p->n_params,
                        .trainable = true,
                        .leaves = 1,
                        .row_leaves = 1,
                        .beside = SH_NONE,
                        .moments = SH_NONE,
                        .first_cut = SH_NONE,
                        .compute = SH_NONE,
                        .codes = SH_NONE,
                        .remainder = SH_NONE,
                        .master = SH_NONE,
                        .full = SH_NONE,
                        .snapshot = SH_NONE,
                        .grad_shard = SH_NONE,
                        .grad_full = SH_NONE};

    for (int i = 0; i < SH_KEPT_MAX; i++)
        u.state[i] = u.wide_state[i] = SH_NONE;
    for (int i = 0; i < SH_GRAD_LEVELS; i++)
        u.grad_level[i] = SH_NONE;
    snprintf(u.name, sizeof u.name, "%s", name);
    return APPEND(p->units, p->n_units, p->cap_units, u);
}

int sh_program_add_slice(struct sh_program *p, const struct sh_slice *slice)
{
    return APPEND(p->slices, p->n_slices, p->cap_slices, *slice);
}

/* A unit is trained or frozen as a whole, so its parameters get the same flag. */
/* Parameter `from` becomes the next one of the newest of `to`'s units. */
static void put_param(struct sh_unit *u, struct sh_param *to, const struct sh_param *from, int unit)
{
    *to = *from;
    to->unit = unit;
    to->unit_elems = u->elems;
    u->elems += from->elems;
    u->n_params++;
}

void sh_program_move_params(struct sh_program *p, const bool *moves, int to)
{
    struct sh_param *old = sh_calloc((size_t)p->n_params + 1, sizeof *old);
    int *place = sh_calloc((size_t)p->n_params + 1, sizeof *place), n = 0;

    memcpy(old, p->params, (size_t)p->n_params * sizeof *old);
    for (int unit = 0; unit < p->n_units; unit++) {
        struct sh_unit *u = &p->units[unit];

        u->first_param = n;
        u->elems = u->n_params = 0;
        for (int i = 0; i < p->n_params; i++)
            if ((moves[i] ? to : old[i].unit) == unit) {
                put_param(u, &p->params[n], &old[i], unit);
                place[i] = n++;
            }
    }
    for (int t = 0; t < p->n_tensors; t++)
        if (p->tensors[t].param != SH_NONE)
            p->tensors[t].param = place[p->tensors[t].param];
    free(old);
    free(place);
}

void sh_program_freeze(struct sh_program *p, int unit)
{
    struct sh_unit *u = &p->units[unit];

    u->trainable = false;
    for (int i = u->first_param; i < u->first_param + u->n_params; i++) {
        p->params[i].trainable = false;
        p->saved[p->params[i].saved].trainable = false;
    }
}

/* Takes the operations that are appended next; the caller counts them in n_ops. */
int sh_program_add_section(struct sh_program *p, enum sh_section_kind kind, int repeat)
{
    struct sh_section s = {.kind = kind, .first_op = p->n_ops, .repeat = repeat};

    return APPEND(p->sections, p->n_sections, p->cap_sections, s);
}

/* Append to the newest section. */
void sh_program_append(struct sh_program *p, struct sh_op op)
{
    sh_program_add_op(p, &op);
    p->sections[p->n_sections - 1].n_ops++;
}

/* The schedule pass moves them apart. */
int sh_program_append_waited(struct sh_program *p, struct sh_op op)
{
    struct sh_op wait = sh_program_op(SH_OP_WAIT);
    int index = p->sections[p->n_sections - 1].n_ops;

    sh_program_append(p, op);
    wait.unit = op.unit;
    wait.block = op.block;
    wait.phase = op.phase;
    wait.attr.waits_for = index;
    sh_program_append(p, wait);
    return index;
}

int sh_program_append_collective(struct sh_program *p, enum sh_op_kind kind, int stream, sh_group group, int unit,
                                 int in, int out, int after, enum sh_phase phase)
{
    struct sh_op op = sh_program_op(kind);

    op.stream = stream;
    op.attr.group = group;
    op.attr.after = after;
    op.in[0] = in;
    op.out[0] = out;
    op.unit = unit;
    op.phase = phase;
    return sh_program_append_waited(p, op);
}

/* Masks compare as numbers: two sets of axes are the same group wherever they were made. */
int sh_program_find_group(const struct sh_group_use *groups, int n, sh_group group)
{
    for (int i = 0; i < n; i++)
        if (groups[i].axes == group)
            return i;
    return SH_NONE;
}

/* The stream is noted even if the group is known: a communicator belongs to a pair of both. */
void sh_program_use_group(struct sh_program *p, const struct sh_mesh_shape *mesh, sh_group group, int stream)
{
    struct sh_group_use use = {.axes = group};
    int row = sh_program_find_group(p->groups, p->n_groups, group);

    if (row == SH_NONE) {
        sh_group_name(mesh, group, use.name);
        row = APPEND(p->groups, p->n_groups, p->cap_groups, use);
    }
    p->groups[row].streams |= 1u << stream;
}

/* Zero would be a valid index (tensor 0), so every operand and reference starts as SH_NONE. */
struct sh_op sh_program_op(enum sh_op_kind kind)
{
    struct sh_op op = {.kind = kind, .work = SH_NONE, .block = SH_NONE, .unit = SH_NONE};

    op.attr.after = SH_NONE;
    for (int i = 0; i < SH_OP_MAX_IN; i++)
        op.in[i] = SH_NONE;
    for (int i = 0; i < SH_OP_MAX_OUT; i++)
        op.out[i] = SH_NONE;
    return op;
}

struct sh_tensor sh_tensor_make(enum sh_mem mem, enum sh_dtype dtype, int ndim, const int64_t *dim, const char *fmt,
                                ...)
{
    struct sh_tensor t = {.mem = mem,
                          .dtype = dtype,
                          .ndim = ndim,
                          .base = SH_NONE,
                          .param = SH_NONE,
                          .grad_of = SH_NONE,
                          .offset_bytes = SH_NONE};
    va_list ap;

    for (int i = 0; i < ndim; i++)
        t.dim[i] = dim[i];
    va_start(ap, fmt);
    vsnprintf(t.name, sizeof t.name, fmt, ap);
    va_end(ap);
    return t;
}

/* The node's segment: first a part for each group of group_ranks neighbouring ranks, then one of peer_bytes for each
 * rank. All ranks compute the same offsets from the same numbers. */
int64_t sh_program_segment_group_at(const struct sh_segment *w, int rank)
{
    return rank / w->group_ranks * w->group_bytes;
}

int64_t sh_program_segment_peer_at(const struct sh_segment *w, int rank)
{
    return sh_program_segment_group_at(w, w->ranks) + rank * w->peer_bytes;
}

int64_t sh_program_segment_bytes(const struct sh_segment *w)
{
    return w->ranks ? sh_program_segment_peer_at(w, w->ranks) : 0;
}

static int find_tier(const struct sh_program *p, int kind)
{
    for (int i = 0; i < p->n_tiers; i++)
        if ((int)p->tiers[i].kind == kind)
            return i;
    return SH_NONE;
}

/* There is at most one file tier. */
int sh_program_file_tier(const struct sh_program *p)
{
    return find_tier(p, SH_TIER_FILE);
}

int sh_program_host_tier(const struct sh_program *p)
{
    return find_tier(p, SH_TIER_HOST);
}

bool sh_program_moves(const struct sh_program *p)
{
    for (int i = 0; i < p->n_streams; i++)
        if (p->streams[i].runs == SH_RUNS_MOVES)
            return true;
    return false;
}

/* Counted from the operations that the run executes, so that plan and run have the same figure. */
void sh_program_moved(const struct sh_program *p, int64_t *in_bytes, int64_t *out_bytes)
{
    *in_bytes = *out_bytes = 0;
    for (int s = 0; s < p->n_sections; s++)
        for (int i = p->sections[s].first_op; i < p->sections[s].first_op + p->sections[s].n_ops; i++)
            if (sh_op_info(p->ops[i].kind)->moves)
                *(p->ops[i].kind == SH_OP_FETCH ? in_bytes : out_bytes) +=
                    p->sections[s].repeat * sh_tensor_bytes(&p->tensors[p->ops[i].in[0]]);
}

int64_t sh_tensor_elems(const struct sh_tensor *t)
{
    int64_t n = 1;

    for (int i = 0; i < t->ndim; i++)
        n *= t->dim[i];
    return n;
}

int64_t sh_tensor_bytes(const struct sh_tensor *t)
{
    return sh_tensor_elems(t) * sh_dtype_bytes(t->dtype);
}

bool sh_program_counts_rows(const struct sh_op *op)
{
    return op->kind == SH_OP_ALL_TO_ALL && op->in[1] != SH_NONE;
}

int sh_program_exchanges(const struct sh_op *op)
{
    return op->kind == SH_OP_ALL_TO_ALL && op->attr.exchange.sequences ? op->attr.exchange.sequences : 1;
}

const int64_t *sh_program_cuts(const struct sh_program *p, const struct sh_op *op)
{
    return op->kind == SH_OP_ALL_TO_ALL && op->attr.exchange.cuts ? p->cuts + op->attr.exchange.first_cut : NULL;
}

int64_t sh_program_part_elems(const struct sh_program *p, const struct sh_op *op, int ranks)
{
    int64_t elems = sh_tensor_elems(&p->tensors[op->kind == SH_OP_ALL_GATHER ? op->in[0] : sh_program_result(op)]),
            sent;

    if (sh_program_counts_rows(op)) {
        sent = sh_tensor_elems(&p->tensors[op->in[0]]);
        return sent < elems ? sent : elems;
    }
    if (sh_program_cuts(p, op)) /* the chunk, which is equal on all ranks */
        return sh_tensor_elems(&p->tensors[op->attr.exchange.back ? op->out[0] : op->in[0]]);
    return op->kind == SH_OP_ALL_TO_ALL ? elems / sh_program_exchanges(op) / ranks : elems;
}

/* A view of a view is a view of the root, at an offset in bytes. */
int sh_tensor_root(const struct sh_program *p, int tensor)
{
    while (p->tensors[tensor].base != SH_NONE)
        tensor = p->tensors[tensor].base;
    return tensor;
}

const struct sh_section *sh_program_section(const struct sh_program *p, enum sh_section_kind kind)
{
    for (int i = 0; i < p->n_sections; i++)
        if (p->sections[i].kind == kind)
            return &p->sections[i];
    return NULL;
}

int sh_program_find_section(const struct sh_program *p, enum sh_section_kind kind)
{
    const struct sh_section *s = sh_program_section(p, kind);

    return s ? (int)(s - p->sections) : SH_NONE;
}

bool sh_program_is_micro_step(const struct sh_section *s)
{
    return s->kind >= SH_SECTION_FIRST && s->kind <= SH_SECTION_ONLY;
}

/* An update inside a micro-step is the update of the step before. */
bool sh_program_carried(const struct sh_section *s, const struct sh_op *op)
{
    return sh_program_is_micro_step(s) && op->phase == SH_PHASE_UPDATE;
}

/* UPDATE then stays as a section, for callers that need the update done at once. */
bool sh_program_carries(const struct sh_program *p)
{
    const struct sh_section *update = sh_program_section(p, SH_SECTION_UPDATE);

    return update && !update->repeat;
}

/* In a binary tree of sums, micro-step m writes level popcount(m) of a stack, and each trailing one of m completes a
 * pair. Micro-steps that agree in both numbers run the same operations on the same buffers: 1 (01) and 2 (10) differ, 5
 * (101) and 9 (1001) are alike. */
static bool same_place(unsigned m, unsigned n)
{
    return __builtin_popcount(m) == __builtin_popcount(n) && __builtin_ctz(~m) == __builtin_ctz(~n);
}

int sh_program_micro_step(const struct sh_program *p, int m)
{
    for (int i = 0; i < p->n_sections; i++) {
        const struct sh_section *s = &p->sections[i];
        bool covers = p->tree_sums ? same_place((unsigned)s->micro_step, (unsigned)m)
                                   : s->micro_step <= m && m < s->micro_step + s->repeat;

        if (sh_program_is_micro_step(s) && s->repeat && covers)
            return i;
    }
    return SH_NONE;
}

int sh_program_micro_step_of(const struct sh_program *p, int m, int n)
{
    enum sh_section_kind kind = n == 1 ? SH_SECTION_ONLY : SH_SECTION_LAST;

    if (m < n - 1)
        return sh_program_micro_step(p, m);
    for (int i = 0; i < p->n_sections; i++)
        if (p->sections[i].kind == kind && (!p->tree_sums || p->sections[i].micro_step == m))
            return i;
    return SH_NONE;
}

/* Without bases the call has only shapes, which is all that prices and checks need. */
static void operand(const struct sh_program *p, int tensor, const struct sh_bases *b, struct sh_operand *out)
{
    const struct sh_tensor *t;

    if (tensor == SH_NONE)
        return;
    t = &p->tensors[tensor];
    out->data = b && b->tier[t->tier] ? b->tier[t->tier] + t->offset_bytes : NULL;
    out->dtype = t->dtype;
    out->ndim = t->ndim;
    for (int i = 0; i < t->ndim; i++)
        out->dim[i] = t->dim[i];
}

void sh_program_call(const struct sh_program *p, const struct sh_op *op, const struct sh_bases *b,
                     struct sh_op_call *call)
{
    *call = (struct sh_op_call){.kind = op->kind, .attr = &op->attr};
    if (sh_op_info(op->kind)->runs)
        call->runs = p->runs + op->attr.runs.first;
    if (sh_op_info(op->kind)->runs && p->n_numbers)
        call->groups = p->numbers;
    if (op->kind == SH_OP_ROPE_TABLE && op->attr.rope.divisors)
        call->divisors = p->divisors + op->attr.rope.first_divisor;
    if (op->kind == SH_OP_ORTHO || op->kind == SH_OP_ORTHO_ROWS)
        call->matrices = p->matrices + op->attr.ortho.first;
    for (int i = 0; i < SH_OP_MAX_IN; i++)
        operand(p, op->in[i], b, &call->in[i]);
    for (int i = 0; i < SH_OP_MAX_OUT; i++)
        operand(p, op->out[i], b, &call->out[i]);
    if (op->work != SH_NONE) {
        call->work = b ? b->tier[p->tensors[op->work].tier] + p->tensors[op->work].offset_bytes : NULL;
        call->work_bytes = sh_tensor_bytes(&p->tensors[op->work]);
    }
}
