#include "tests/unit/simulate_coll.h"

#include "src/base/hash.h"
#include "src/base/mem.h"
#include "src/comm/sum.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { QUEUES = 32 };

/* The collectives of one stream over one group, in one order on all its ranks; stages have different ones. */
struct queue {
    int stream;
    sh_group group;
    int first, n; /* number of collectives in earlier queues, and in this one */
};

struct queues {
    int n;
    struct queue of[QUEUES];
};

static int64_t bytes_of(const struct sim_rank *r, int tensor)
{
    return sh_tensor_bytes(&r->p->tensors[tensor]);
}

/* Bytes of a collective's result; if ranks own different parts, those of a chunk, which is equal on all. */
static int64_t result_bytes(const struct sim_rank *r, const struct sh_op *op)
{
    if (!sh_program_cuts(r->p, op))
        return bytes_of(r, op->out[0]);
    return sh_program_part_elems(r->p, op, 1) * sh_dtype_bytes(r->p->tensors[op->out[0]].dtype);
}

/* Whether replicas give each other what they have made, in place. */
static bool shares(const struct sh_op *op)
{
    return op->kind == SH_OP_ALL_TO_ALL && op->attr.exchange.sharers;
}

static bool is_collective(const struct sim_rank *r, int i)
{
    return sh_op_info(r->p->ops[i].kind)->async;
}

static int queue_of(const struct queues *q, const struct sh_op *op)
{
    int i = 0;

    while (i < q->n && (q->of[i].stream != op->stream || q->of[i].group != op->attr.group))
        i++;
    return i;
}

/* Messages meet at one place in the order of their stream, but have no more than two sides. */
static bool meets(const struct sim_rank *r, int i)
{
    return is_collective(r, i) && !sh_program_is_message(&r->p->ops[i]);
}

/* Of all stages: a queue has as many places as any of them needs. */
static struct queues list_queues(const struct sim *s, int section)
{
    struct queues q = {0};
    int before = 0;

    for (int rank = 0; rank < s->world; rank++) {
        const struct sim_rank *r = &s->ranks[rank];
        const struct sh_section *own = &r->p->sections[section];
        int n[QUEUES] = {0};

        for (int i = own->first_op; i < own->first_op + own->n_ops; i++) {
            const struct sh_op *op = &r->p->ops[i];
            int k = queue_of(&q, op);

            if (!meets(r, i))
                continue;
            assert_in_range(k, 0, QUEUES - 1);
            q.n = k < q.n ? q.n : k + 1;
            n[k]++;
            q.of[k] = (struct queue){op->stream, op->attr.group, 0, n[k] > q.of[k].n ? n[k] : q.of[k].n};
        }
    }
    for (int k = 0; k < q.n; before += q.of[k++].n)
        q.of[k].first = before;
    return q;
}

/* Operation i of a rank joins its meeting. All members must ask for the same collective. */
static void come(struct sim *s, int rank, int i, const struct sh_section *section, struct sim_meeting *m)
{
    struct sim_rank *r = &s->ranks[rank];
    const struct sh_op *op = &r->p->ops[i];

    if (!m->member) {
        m->size = sh_group_size(&r->mesh, op->attr.group);
        m->kind = op->kind;
        m->bytes = result_bytes(r, op);
        m->member = sh_calloc((size_t)m->size, sizeof *m->member);
    }
    assert_int_equal(m->kind, op->kind);
    assert_int_equal(m->bytes, result_bytes(r, op));
    m->member[sh_group_index(&r->mesh, op->attr.group)] =
        (struct sim_member){rank, i, op->attr.after == SH_NONE ? SH_NONE : section->first_op + op->attr.after};
    r->flights[i].meeting = m;
}

/* A group is identified by the first of its ranks. */
static void come_to_all(struct sim *s, int rank, int section, const struct queues *q)
{
    struct sim_rank *r = &s->ranks[rank];
    const struct sh_section *own = &r->p->sections[section];
    int met[QUEUES] = {0};

    for (int i = own->first_op; i < own->first_op + own->n_ops; i++) {
        int k = queue_of(q, &r->p->ops[i]), first;

        if (!meets(r, i))
            continue;
        if (k == q->n || met[k] == q->of[k].n)
            fail_msg("operation %d of rank %d meets nothing on rank 0", i - own->first_op, rank);
        first = sh_group_member(&r->mesh, q->of[k].group, 0);
        come(s, rank, i, own, &s->meetings[(q->of[k].first + met[k]++) * s->world + first]);
    }
    for (int k = 0; k < q->n && sh_group_size(&r->mesh, r->mesh.pipeline) == 1; k++)
        assert_int_equal(met[k], q->of[k].n);
}

void sim_meetings_open(struct sim *s, int section)
{
    struct queues q = list_queues(s, section);

    s->n_meetings = (q.n ? q.of[q.n - 1].first + q.of[q.n - 1].n : 0) * s->world;
    s->meetings = sh_calloc((size_t)s->n_meetings + 1, sizeof *s->meetings);
    for (int rank = 0; rank < s->world; rank++)
        come_to_all(s, rank, section, &q);
}

void sim_meetings_close(struct sim *s)
{
    for (int i = 0; i < s->n_meetings; i++) {
        free(s->meetings[i].member);
        free(s->meetings[i].all);
    }
    free(s->meetings);
    s->meetings = NULL;
    s->n_meetings = 0;
}

static struct sim_flight *flight_of(const struct sim *s, const struct sim_member *m, int op)
{
    return &s->ranks[m->rank].flights[op];
}

/* The input of a member: what it sent, or, if an all_reduce continues with an earlier result, what it has received by
 * then. */
static const char *given(const struct sim *s, const struct sim_meeting *m, int member)
{
    const struct sim_member *who = &m->member[member];
    const struct sim_flight *before;

    if (m->kind != SH_OP_ALL_REDUCE || who->after == SH_NONE)
        return flight_of(s, who, who->op)->sent;
    before = flight_of(s, who, who->after);
    return before->meeting->all ? before->meeting->all : before->received;
}

static char *gathered(const struct sim *s, const struct sim_meeting *m)
{
    char *all = sh_calloc((size_t)m->bytes + 1, 1);
    int64_t part = flight_of(s, m->member, m->member->op)->sent_bytes;

    assert_true(part * m->size <= m->bytes);
    for (int k = 0; k < m->size; k++)
        memcpy(all + k * part, given(s, m, k), (size_t)part);
    return all;
}

/* Return the sum of the members' inputs from byte `at` on, by the rule of src/comm. */
static char *sum(const struct sim *s, const struct sim_meeting *m, const char *const *gifts, int64_t at)
{
    const struct sim_rank *r = &s->ranks[m->member->rank];
    enum sh_dtype dtype = r->p->tensors[r->p->ops[m->member->op].out[0]].dtype;
    const void **source = sh_calloc((size_t)m->size, sizeof *source);
    char *out = sh_calloc((size_t)m->bytes + 1, 1);

    for (int k = 0; k < m->size; k++)
        source[k] = gifts[k] + at;
    sh_comm_sum(dtype, out, source, m->size, m->bytes / sh_dtype_bytes(dtype));
    free(source);
    return out;
}

/* Where the rows of place i for place j begin, and how many there are: at home, or end to end in the memory of place j,
 * by source. All ranks have the same counts. */
static int64_t begin_of(const struct sim_meeting *m, const int32_t *parts, int i, int j, bool at_home, int64_t *n)
{
    int64_t begin = 0;

    *n = parts[i * m->size + j];
    for (int source = 0; source < i; source++)
        begin += parts[source * m->size + j];
    return at_home ? parts[(m->size + i) * m->size + j] : begin;
}

/* What the member at place k has after an exchange of rows: those of no part are what they were. */
static char *carried(const struct sim *s, const struct sim_meeting *m, const char *const *gifts, int k)
{
    struct sim_flight *f = flight_of(s, &m->member[k], m->member[k].op);
    const struct sim_rank *r = &s->ranks[m->member[k].rank];
    const struct sh_op *op = &r->p->ops[m->member[k].op];
    int64_t row = op->attr.exchange.row_elems * sh_dtype_bytes(r->p->tensors[op->out[0]].dtype), n;
    char *out = f->before;
    bool back = op->attr.exchange.back;

    f->before = NULL;
    for (int other = 0; other < m->size; other++) {
        int i = back ? k : other, j = back ? other : k; /* the rows of i for j travel */
        int64_t from = begin_of(m, f->parts, i, j, !back, &n), to = begin_of(m, f->parts, i, j, back, &n);

        assert_memory_equal(f->parts, flight_of(s, &m->member[other], m->member[other].op)->parts,
                            (size_t)(2 * m->size * m->size) * sizeof *f->parts);
        assert_true(n >= 0 && (to + n) * row <= m->bytes);
        assert_true((from + n) * row <= flight_of(s, &m->member[other], m->member[other].op)->sent_bytes);
        if (other != k || !op->attr.exchange.others)
            memcpy(out + to * row, gifts[other] + from * row, (size_t)(n * row));
    }
    return out;
}

/* What a rank gives the replicas with which it shares matrices, as a part of its operand. */
static char *own_share(const struct sim_rank *r, const struct sh_op *op, int64_t *bytes)
{
    int n = op->attr.exchange.sharers, mine = sh_group_index(&r->mesh, op->attr.group) % n;
    const int64_t *cuts = sh_program_cuts(r->p, op) + op->attr.exchange.run * (n + 1);
    int64_t size = sh_dtype_bytes(r->p->tensors[op->out[0]].dtype);

    assert_int_equal(op->in[0], op->out[0]);
    assert_int_equal(op->attr.exchange.cuts, (n + 1) * sh_group_size(&r->mesh, r->p->units[op->unit].shard));
    assert_int_equal(op->attr.exchange.run, sh_group_index(&r->mesh, r->p->units[op->unit].shard));
    *bytes = (cuts[mine + 1] - cuts[mine]) * size;
    return r->arena + r->p->tensors[op->in[0]].offset_bytes + cuts[mine] * size;
}

/* What the member at place k has when each of its run has given what it has made. */
static char *shared(const struct sim *s, const struct sim_meeting *m, const char *const *gifts, int k)
{
    struct sim_flight *f = flight_of(s, &m->member[k], m->member[k].op);
    const struct sim_rank *mine = &s->ranks[m->member[k].rank];
    const struct sh_op *op = &mine->p->ops[m->member[k].op];
    int n = op->attr.exchange.sharers;
    char *out = f->before;

    f->before = NULL;
    assert_int_equal(m->size % n, 0);
    for (int other = k / n * n; other < k / n * n + n; other++) {
        const struct sim_rank *r = &s->ranks[m->member[other].rank];
        int64_t bytes, at;

        at = own_share(r, &r->p->ops[m->member[other].op], &bytes) -
             (r->arena + r->p->tensors[r->p->ops[m->member[other].op].in[0]].offset_bytes);
        assert_true(at >= 0 && at + bytes <= bytes_of(mine, op->out[0]));
        memcpy(out + at, gifts[other], (size_t)bytes);
    }
    return out;
}

/* What the member at place k has after an exchange by cuts, between equal chunks of an array and other parts of it. */
static char *recut(const struct sim *s, const struct sim_meeting *m, const char *const *gifts, int k)
{
    struct sim_flight *f = flight_of(s, &m->member[k], m->member[k].op);
    const struct sim_rank *r = &s->ranks[m->member[k].rank];
    const struct sh_op *op = &r->p->ops[m->member[k].op];
    const int64_t *cuts = sh_program_cuts(r->p, op);
    int64_t size = sh_dtype_bytes(r->p->tensors[op->out[0]].dtype), chunk = m->bytes / size, copied = 0;
    bool back = op->attr.exchange.back;
    char *out = f->before;

    f->before = NULL;
    assert_int_equal(op->attr.exchange.cuts, m->size + 1);
    for (int other = 0; other < m->size; other++) {
        int i = back ? k : other, j = back ? other : k; /* elements in the chunk of i, between the cuts of j */
        int64_t begin = cuts[j] > i * chunk ? cuts[j] : i * chunk;
        int64_t end = cuts[j + 1] < (i + 1) * chunk ? cuts[j + 1] : (i + 1) * chunk;
        int64_t in_chunk = begin - i * chunk, in_part = begin - cuts[j];

        if (begin >= end)
            continue;
        memcpy(out + (back ? in_chunk : in_part) * size, gifts[other] + (back ? in_part : in_chunk) * size,
               (size_t)((end - begin) * size));
        copied += end - begin;
    }
    assert_true(back || copied == cuts[k + 1] - cuts[k]);
    return out;
}

/* What the member at place k receives: its part of what each member sent. */
static char *exchanged(const struct sim *s, const struct sim_meeting *m, const char *const *gifts, int k)
{
    const struct sim_member *who = &m->member[k];
    const struct sh_op *op = &s->ranks[who->rank].p->ops[who->op];
    int64_t part = m->bytes / m->size, sequences;
    char *out;

    if (flight_of(s, &m->member[k], m->member[k].op)->parts)
        return carried(s, m, gifts, k);
    if (shares(op))
        return shared(s, m, gifts, k);
    if (sh_program_cuts(s->ranks[who->rank].p, op))
        return recut(s, m, gifts, k);
    out = sh_calloc((size_t)m->bytes + 1, 1);
    sequences = op->attr.exchange.sequences ? op->attr.exchange.sequences : 1;
    part /= sequences;
    for (int64_t n = 0; n < sequences; n++)
        for (int i = 0; i < m->size; i++)
            memcpy(out + (n * m->size + i) * part, gifts[i] + (n * m->size + k) * part, (size_t)part);
    return out;
}

/* Compute each rank's result from what all sent at their starts; the sent data is not needed afterwards. */
static void make_results(const struct sim *s, struct sim_meeting *m)
{
    const char **gifts = sh_calloc((size_t)m->size, sizeof *gifts);

    for (int k = 0; k < m->size; k++)
        gifts[k] = given(s, m, k);
    if (m->kind == SH_OP_ALL_GATHER)
        m->all = gathered(s, m);
    else if (m->kind == SH_OP_ALL_REDUCE)
        m->all = sum(s, m, gifts, 0);
    for (int k = 0; k < m->size && !m->all; k++)
        flight_of(s, &m->member[k], m->member[k].op)->received =
            m->kind == SH_OP_ALL_TO_ALL ? exchanged(s, m, gifts, k) : sum(s, m, gifts, k * m->bytes);
    for (int k = 0; k < m->size; k++) {
        struct sim_flight *f = flight_of(s, &m->member[k], m->member[k].op);

        free(f->sent);
        f->sent = NULL;
    }
    free(gifts);
}

static bool can_complete(const struct sim *s, struct sim_meeting *m)
{
    if (m->complete || m->started < m->size)
        return m->complete;
    for (; m->looked_at < m->size; m->looked_at++) {
        const struct sim_member *who = &m->member[m->looked_at];

        if (who->after != SH_NONE && !can_complete(s, flight_of(s, who, who->after)->meeting))
            return false;
    }
    m->complete = true;
    make_results(s, m);
    return true;
}

/* The other side of message i, or NULL if it has not started it: of its messages on that stream, the one at the same
 * place. */
static struct sim_flight *other_side(const struct sim *s, const struct sim_rank *r, int i,
                                     const struct sh_section *section)
{
    const struct sh_op *op = &r->p->ops[i];
    sh_group group = op->attr.group;
    const struct sim_rank *to =
        &s->ranks[sh_group_member(&r->mesh, group, sh_group_index(&r->mesh, group) + op->attr.link.peer)];
    const struct sh_section *its = &to->p->sections[section - r->p->sections];
    int before = 0;

    for (int k = section->first_op; k < i; k++)
        before += r->p->ops[k].stream == op->stream && sh_program_is_message(&r->p->ops[k]);
    for (int k = its->first_op; k < its->first_op + its->n_ops; k++) {
        const struct sh_op *other = &to->p->ops[k];

        if (!sh_program_is_message(other) || other->stream != op->stream || before--)
            continue;
        assert_int_equal(other->kind == SH_OP_SEND, op->kind == SH_OP_RECEIVE);
        assert_int_equal(other->attr.link.micro, op->attr.link.micro);
        assert_int_equal(other->attr.link.peer, -op->attr.link.peer);
        return to->flights[k].started ? &to->flights[k] : NULL;
    }
    fail_msg("operation %d has no other side", i - section->first_op);
    return NULL;
}

bool sim_coll_can_complete(const struct sim *s, const struct sim_rank *r, int i, const struct sh_section *section)
{
    if (sh_program_is_message(&r->p->ops[i]))
        return other_side(s, r, i, section) != NULL;
    return can_complete(s, r->flights[i].meeting);
}

/* What is sent must not change until the wait; what arrives is what the other side had at its start. */
static void start_message(struct sim_rank *r, int i)
{
    const struct sh_op *op = &r->p->ops[i];
    struct sim_flight *f = &r->flights[i];
    int t = sh_program_result(op);
    char *at = r->arena + r->p->tensors[t].offset_bytes;

    assert_false(f->started);
    f->started = true;
    f->sent_bytes = bytes_of(r, t);
    if (op->kind == SH_OP_RECEIVE) {
        memset(at, SIM_POISON, (size_t)f->sent_bytes);
        return;
    }
    f->sent = sh_calloc((size_t)f->sent_bytes + 1, 1);
    memcpy(f->sent, at, (size_t)f->sent_bytes);
    f->sent_hash = sh_hash64(at, (size_t)f->sent_bytes);
}

static void finish_message(const struct sim *s, struct sim_rank *r, int i, const struct sh_section *section)
{
    const struct sh_op *op = &r->p->ops[i];
    struct sim_flight *f = &r->flights[i], *other = other_side(s, r, i, section);
    char *at = r->arena + r->p->tensors[sh_program_result(op)].offset_bytes;

    assert_false(f->waited);
    f->waited = true;
    assert_int_equal(f->sent_bytes, other->sent_bytes);
    if (op->kind == SH_OP_RECEIVE)
        memcpy(at, other->sent, (size_t)f->sent_bytes);
    else if (sh_hash64(at, (size_t)f->sent_bytes) != f->sent_hash)
        fail_msg("operation %d: what is sent changed under way", i - section->first_op);
}

void sim_coll_start(struct sim_rank *r, int i)
{
    const struct sh_op *op = &r->p->ops[i];
    struct sim_flight *f = &r->flights[i];
    int from = op->kind == SH_OP_ALL_REDUCE ? op->out[0] : op->in[0];
    char *in, *out;

    if (sh_program_is_message(op)) {
        start_message(r, i);
        return;
    }
    in = r->arena + r->p->tensors[from].offset_bytes;
    out = r->arena + r->p->tensors[op->out[0]].offset_bytes;
    assert_false(f->started);
    f->started = true;
    f->meeting->started++;
    f->sent_bytes = bytes_of(r, from);
    if (shares(op))
        in = own_share(r, op, &f->sent_bytes);
    f->sent = sh_calloc((size_t)f->sent_bytes + 1, 1);
    memcpy(f->sent, in, (size_t)f->sent_bytes);
    f->sent_hash = sh_hash64(in, (size_t)f->sent_bytes);
    if (op->kind == SH_OP_ALL_TO_ALL && op->in[1] != SH_NONE) {
        f->parts = sh_calloc((size_t)bytes_of(r, op->in[1]), 1);
        memcpy(f->parts, r->arena + r->p->tensors[op->in[1]].offset_bytes, (size_t)bytes_of(r, op->in[1]));
    }
    if (f->parts || sh_program_cuts(r->p, op)) {
        f->before = sh_calloc((size_t)bytes_of(r, op->out[0]) + 1, 1);
        memset(f->before, SIM_POISON, (size_t)bytes_of(r, op->out[0]));
        if (op->attr.accumulate)
            memcpy(f->before, out, (size_t)bytes_of(r, op->out[0]));
    }
    memset(out, SIM_POISON, (size_t)bytes_of(r, op->out[0]));
    if (in >= out && in < out + bytes_of(r, op->out[0]) && (op->kind == SH_OP_ALL_GATHER || shares(op)))
        memcpy(in, f->sent, (size_t)f->sent_bytes);
}

/* Whether another collective continues with the result of i. */
static bool goes_on(const struct sim_rank *r, int i, const struct sh_section *section)
{
    for (int k = i + 1; k < section->first_op + section->n_ops; k++)
        if (r->flights[k].started && r->p->ops[k].attr.after == i - section->first_op)
            return true;
    return false;
}

void sim_coll_finish(const struct sim *s, struct sim_rank *r, int i, const struct sh_section *section)
{
    const struct sh_op *op = &r->p->ops[i];
    struct sim_flight *f = &r->flights[i];
    const char *in = NULL;
    int64_t bytes;

    if (sh_program_is_message(op)) {
        finish_message(s, r, i, section);
        return;
    }
    if (shares(op))
        in = own_share(r, op, &bytes);
    else if (op->kind != SH_OP_ALL_REDUCE)
        in = r->arena + r->p->tensors[op->in[0]].offset_bytes;
    assert_false(f->waited);
    f->waited = true;
    if (in && sh_hash64(in, (size_t)f->sent_bytes) != f->sent_hash)
        fail_msg("%s, operation %d: what is sent changed under way", sh_section_name(section->kind),
                 i - section->first_op);
    if (!goes_on(r, i, section))
        memcpy(r->arena + r->p->tensors[op->out[0]].offset_bytes, f->meeting->all ? f->meeting->all : f->received,
               (size_t)(op->kind == SH_OP_ALL_GATHER ? f->meeting->size * f->sent_bytes
                        : sh_program_cuts(r->p, op)  ? bytes_of(r, op->out[0])
                                                     : f->meeting->bytes));
}
