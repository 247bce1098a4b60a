#include "tests/unit/simulate.h"

#include "src/base/mem.h"
#include "src/base/rng.h"
#include "src/layout/layout.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { GUARD = 4096, GUARD_BYTE = 0xa5, POISON = 0xff };

/* A collective from its start to the end of the section, since others make their results from what this rank sent. */
struct sim_flight {
    bool started, waited;
    char *sent;
    int64_t sent_bytes;
};

void *sim_data(const struct sim *s, int rank, int tensor)
{
    return s->ranks[rank].arena + s->ranks[rank].p->tensors[tensor].offset_bytes;
}

static int64_t bytes_of(const struct sim_rank *r, int tensor)
{
    return sh_tensor_bytes(&r->p->tensors[tensor]);
}

static void create_rank(struct sim_rank *r, const struct sh_build *build)
{
    struct sh_build mine = *build;

    mine.options.mesh = r->mesh;
    if (sh_pass_build(&mine, &r->p) != SH_OK)
        fail_msg("%s", sh_error_text());
    r->memory = aligned_alloc(GUARD, (size_t)(r->p->arena_bytes + 2 * GUARD + GUARD - 1) / GUARD * GUARD);
    assert_non_null(r->memory);
    r->arena = r->memory + GUARD;
    memset(r->memory, GUARD_BYTE, (size_t)r->p->arena_bytes + 2 * GUARD);
    memset(r->arena, 0, (size_t)r->p->arena_bytes);
    r->flights = sh_calloc((size_t)r->p->n_ops + 1, sizeof *r->flights);
}

static void fill_param(const struct sim *s, int rank, const struct sh_param *param, uint64_t seed)
{
    const struct sim_rank *r = &s->ranks[rank];
    const struct sh_unit *u = &r->p->units[param->unit];
    struct sh_range own = sh_layout_owned(u->elems, r->mesh.size[SH_AXIS_SHARD], r->mesh.index[SH_AXIS_SHARD]);
    struct sh_range mine =
        sh_layout_intersect(own, (struct sh_range){param->unit_elems, param->unit_elems + param->elems});
    float *at = (float *)sim_data(s, rank, u->master) + (mine.begin - own.begin);

    if (param->init == SH_INIT_NORMAL)
        sh_rng_fill_normal(sh_rng_key(seed, param->name), mine.begin - param->unit_elems, mine.end - mine.begin,
                           param->init_std, at);
    for (int64_t i = 0; param->init == SH_INIT_ONE && i < mine.end - mine.begin; i++)
        at[i] = 1;
}

struct sim *sim_create(const struct sh_build *build, int shard, int replicate, int inner, uint64_t seed)
{
    struct sh_mesh_request req = {.shard = shard, .replicate = replicate, .inner = inner};
    struct sim *s = sh_calloc(1, sizeof *s);

    s->world = shard * replicate;
    s->kernels = build->kernels;
    s->ranks = sh_calloc((size_t)s->world, sizeof *s->ranks);
    for (int rank = 0; rank < s->world; rank++) {
        assert_int_equal(sh_mesh_shape_make(&req, s->world, rank, &s->ranks[rank].mesh), SH_OK);
        create_rank(&s->ranks[rank], build);
        assert_int_equal(sh_pass_hash(s->ranks[rank].p), sh_pass_hash(s->ranks[0].p));
        for (int i = 0; i < s->ranks[rank].p->n_params; i++)
            fill_param(s, rank, &s->ranks[rank].p->params[i], seed);
    }
    sim_run(s, SH_SECTION_INIT);
    return s;
}

void sim_destroy(struct sim *s)
{
    for (int rank = 0; rank < s->world; rank++) {
        struct sim_rank *r = &s->ranks[rank];

        for (int64_t i = 0; i < GUARD; i++)
            if ((unsigned char)r->memory[i] != GUARD_BYTE ||
                (unsigned char)r->arena[r->p->arena_bytes + i] != GUARD_BYTE)
                fail_msg("rank %d: memory beside the arena was touched", rank);
        free(r->memory);
        free(r->flights);
        sh_program_destroy(r->p);
    }
    free(s->ranks);
    free(s);
}

/* The operation of `peer` that meets operation i of `r`: the same place in the same queue. */
static int meets(const struct sim_rank *r, int i, const struct sim_rank *peer, const struct sh_section *section)
{
    const struct sh_op *op = &r->p->ops[i];
    int before = 0;

    for (int k = section->first_op; k < i; k++)
        before += sh_op_info(r->p->ops[k].kind)->comm && r->p->ops[k].stream == op->stream &&
                  r->p->ops[k].attr.axis == op->attr.axis;
    for (int k = section->first_op; k < section->first_op + section->n_ops; k++) {
        const struct sh_op *other = &peer->p->ops[k];

        if (!sh_op_info(other->kind)->comm || other->stream != op->stream || other->attr.axis != op->attr.axis ||
            before--)
            continue;
        assert_int_equal(other->kind, op->kind);
        assert_int_equal(bytes_of(peer, other->out[0]), bytes_of(r, op->out[0]));
        return k;
    }
    fail_msg("operation %d meets nothing on another rank", i - section->first_op);
    return SH_NONE;
}

static int peer_rank(const struct sim_rank *r, int i, int member)
{
    return sh_mesh_axis_member(&r->mesh, (enum sh_axis)r->p->ops[i].attr.axis, member);
}

/* Whether everyone whom collective i needs has started it, and what must be complete before can be so. */
static bool can_complete(const struct sim *s, const struct sim_rank *r, int i, const struct sh_section *section)
{
    const struct sh_op *op = &r->p->ops[i];

    for (int m = 0; m < r->mesh.size[op->attr.axis]; m++) {
        const struct sim_rank *peer = &s->ranks[peer_rank(r, i, m)];
        int k = meets(r, i, peer, section), after = peer->p->ops[k].attr.after;

        if (!peer->flights[k].started)
            return false;
        if (after != SH_NONE && !can_complete(s, peer, section->first_op + after, section))
            return false;
    }
    return true;
}

static void add(enum sh_dtype dtype, const void *from, int64_t bytes, void *to)
{
    if (dtype == SH_F64)
        for (int64_t i = 0; i < bytes / 8; i++)
            ((double *)to)[i] += ((const double *)from)[i];
    else
        for (int64_t i = 0; i < bytes / 4; i++)
            ((float *)to)[i] += ((const float *)from)[i];
}

/* Result of collective i of rank r; allocated. Sums are made in the order of the axis. */
static char *result(const struct sim *s, const struct sim_rank *r, int i, const struct sh_section *section,
                    int64_t *bytes)
{
    const struct sh_op *op = &r->p->ops[i];
    int size = r->mesh.size[op->attr.axis], index = r->mesh.index[op->attr.axis];
    bool gather = op->kind == SH_OP_ALL_GATHER, chained = op->kind == SH_OP_ALL_REDUCE && op->attr.after != SH_NONE;
    int64_t part = bytes_of(r, gather ? op->in[0] : op->out[0]);
    char *out = sh_calloc((size_t)(gather ? size * part : part) + 1, 1);

    for (int m = 0; m < size; m++) {
        const struct sim_rank *peer = &s->ranks[peer_rank(r, i, m)];
        int k = meets(r, i, peer, section);
        int64_t peer_bytes;
        char *made = chained ? result(s, peer, section->first_op + op->attr.after, section, &peer_bytes) : NULL;
        const char *sent = made ? made : peer->flights[k].sent;

        if (gather)
            memcpy(out + m * part, sent, (size_t)part);
        else
            add(r->p->tensors[op->out[0]].dtype, op->kind == SH_OP_REDUCE_SCATTER ? sent + index * part : sent, part, out);
        free(made);
    }
    *bytes = gather ? size * part : part;
    return out;
}

/* Keep what is sent, and poison what will be received; a part sent from its own place stays. */
static void start(struct sim_rank *r, int i)
{
    const struct sh_op *op = &r->p->ops[i];
    struct sim_flight *f = &r->flights[i];
    int from = op->kind == SH_OP_ALL_REDUCE ? op->out[0] : op->in[0];
    char *in = r->arena + r->p->tensors[from].offset_bytes, *out = r->arena + r->p->tensors[op->out[0]].offset_bytes;

    f->started = true;
    f->sent_bytes = bytes_of(r, from);
    f->sent = sh_calloc((size_t)f->sent_bytes + 1, 1);
    memcpy(f->sent, in, (size_t)f->sent_bytes);
    memset(out, POISON, (size_t)bytes_of(r, op->out[0]));
    if (in >= out && in < out + bytes_of(r, op->out[0]) && op->kind == SH_OP_ALL_GATHER)
        memcpy(in, f->sent, (size_t)f->sent_bytes);
}

/* Another collective that goes on with the result of i. */
static bool goes_on(const struct sim_rank *r, int i, const struct sh_section *section)
{
    for (int k = i + 1; k < section->first_op + section->n_ops; k++)
        if (r->flights[k].started && r->p->ops[k].attr.after == i - section->first_op)
            return true;
    return false;
}

static void finish(const struct sim *s, struct sim_rank *r, int i, const struct sh_section *section)
{
    const struct sh_op *op = &r->p->ops[i];
    struct sim_flight *f = &r->flights[i];
    int64_t bytes;
    char *out;

    assert_false(f->waited);
    f->waited = true;
    if (op->kind != SH_OP_ALL_REDUCE && memcmp(r->arena + r->p->tensors[op->in[0]].offset_bytes, f->sent, (size_t)f->sent_bytes))
        fail_msg("%s, operation %d: what is sent changed under way", sh_section_name(section->kind), i - section->first_op);
    if (goes_on(r, i, section))
        return;
    out = result(s, r, i, section, &bytes);
    memcpy(r->arena + r->p->tensors[op->out[0]].offset_bytes, out, (size_t)bytes);
    free(out);
}

static void compute(const struct sim *s, struct sim_rank *r, const struct sh_op *op)
{
    struct sh_op_call call;

    sh_program_call(r->p, op, r->arena, &call);
    call.scalars = &s->scalars;
    if (s->kernels->run[op->kind](&call) != SH_OK)
        fail_msg("%s", sh_error_text());
}

/* Go on until the section ends or a wait cannot be over. */
static void advance(const struct sim *s, struct sim_rank *r, const struct sh_section *section)
{
    for (; r->at < section->n_ops; r->at++) {
        int i = section->first_op + r->at, waited;
        const struct sh_op *op = &r->p->ops[i];

        if (sh_op_info(op->kind)->comm) {
            start(r, i);
        } else if (op->kind == SH_OP_WAIT) {
            waited = section->first_op + op->attr.waits_for;
            if (!can_complete(s, r, waited, section))
                return;
            finish(s, r, waited, section);
        } else if (op->kind == SH_OP_RELEASE) {
            memset(r->arena + r->p->tensors[op->in[0]].offset_bytes, POISON, (size_t)bytes_of(r, op->in[0]));
        } else {
            compute(s, r, op);
        }
    }
}

static void begin_section(struct sim_rank *r)
{
    memset(r->arena + r->p->persistent_bytes, POISON, (size_t)(r->p->arena_bytes - r->p->persistent_bytes));
    r->at = 0;
}

static void end_section(struct sim_rank *r)
{
    for (int i = 0; i < r->p->n_ops; i++) {
        assert_int_equal(r->flights[i].started, r->flights[i].waited);
        free(r->flights[i].sent);
        r->flights[i] = (struct sim_flight){0};
    }
}

void sim_run(struct sim *s, enum sh_section_kind kind)
{
    int done, before = -1;

    for (int rank = 0; rank < s->world; rank++)
        begin_section(&s->ranks[rank]);
    for (;;) {
        int n_ops = sh_program_section(s->ranks[0].p, kind)->n_ops;

        done = 0;
        for (int rank = 0; rank < s->world; rank++) {
            advance(s, &s->ranks[rank], sh_program_section(s->ranks[rank].p, kind));
            done += s->ranks[rank].at;
        }
        if (done == n_ops * s->world)
            break;
        if (done == before)
            fail_msg("%s: every rank waits for another", sh_section_name(kind));
        before = done;
    }
    for (int rank = 0; rank < s->world; rank++)
        end_section(&s->ranks[rank]);
}

int64_t sim_param_elems(const struct sim *s)
{
    int64_t n = 0;

    for (int i = 0; i < s->ranks[0].p->n_units; i++)
        n += s->ranks[0].p->units[i].elems;
    return n;
}

static void same(const void *a, const void *b, int64_t elems, const char *what)
{
    if (elems && memcmp(a, b, (size_t)elems * sizeof(float)))
        fail_msg("%s differs between ranks", what);
}

void sim_params(const struct sim *s, float *out)
{
    const struct sh_program *p = s->ranks[0].p;

    for (int i = 0; i < p->n_units; out += p->units[i++].elems) {
        for (int rank = 0; rank < s->world; rank++) {
            const struct sim_rank *r = &s->ranks[rank];
            const struct sh_unit *u = &r->p->units[i];
            struct sh_range own = sh_layout_owned(u->elems, r->mesh.size[SH_AXIS_SHARD], r->mesh.index[SH_AXIS_SHARD]);
            const float *master = sim_data(s, rank, u->master);

            if (r->mesh.index[SH_AXIS_REPLICATE] == 0)
                memcpy(out + own.begin, master, (size_t)(own.end - own.begin) * sizeof *out);
            else
                same(out + own.begin, master, own.end - own.begin, u->name);
        }
        for (int rank = 0; rank < s->world && p->act == SH_F32; rank++)
            if (s->ranks[rank].p->units[i].full != SH_NONE)
                same(out, sim_data(s, rank, s->ranks[rank].p->units[i].full), p->units[i].elems, p->units[i].name);
    }
}
