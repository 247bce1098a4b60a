#include "src/run/watch/replay.h"

#include "src/base/file.h"
#include "src/base/hash.h"
#include "src/base/isa.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/time.h"
#include "src/run/kept/kept.h"
#include "src/run/run.h"

#include <stdlib.h>
#include <string.h>

bool sh_replay_due(const struct sh_run *r, int64_t step)
{
    int64_t every = r->cfg.fault.replay_every;

    return every && step % every == 0;
}

/* ---- what is compared ---- */

/* Mark the storage that each rank has for itself. */
static void mark_own(const struct sh_program *p, bool *own)
{
    for (int i = 0; i < p->n_tensors; i++)
        own[i] = p->tensors[i].persistent && p->tensors[i].mem != SH_MEM_DATA && p->tensors[i].mem != SH_MEM_CONST;
    for (int i = 0; i < p->n_units; i++)
        if (p->units[i].full != SH_NONE)
            own[sh_tensor_root(p, p->units[i].full)] = false;
}

/* Ranks that add up parts of the same numbers; and all that make micro-steps with each other: the others at their places
 * compute them as they do, sums included. */
static sh_group adding(const struct sh_mesh_shape *shape)
{
    return shape->tensor | shape->context;
}

static sh_group joined(const struct sh_mesh_shape *shape)
{
    return adding(shape) | shape->expert | shape->pipeline;
}

/* Whether output k is computed from a rank's own storage, directly or not. A gather brings the same to all. */
static bool depends(const struct sh_program *p, const struct sh_op *op, int k, const bool *own,
                    const struct sh_mesh_shape *shape)
{
    bool found = (op->attr.accumulate >> k & 1) && own[sh_tensor_root(p, op->out[k])];

    if (op->kind == SH_OP_ALL_GATHER)
        return false;
    for (int i = 0; i < SH_OP_MAX_IN; i++)
        found = found || (op->in[i] != SH_NONE && own[sh_tensor_root(p, op->in[i])]);
    return found || ((op->kind == SH_OP_REDUCE_SCATTER || op->kind == SH_OP_ALL_REDUCE) &&
                     sh_group_size(shape, op->attr.group & ~joined(shape)) > 1);
}

/* Parts of parameters that a rank keeps for itself are not compared, nor matrices that may be left out, nor a unit's
 * gradient after its sum over ranks of one micro-step: it ends in padding. */
static bool can_count(const struct sh_program *p, const struct sh_op *op, int tensor)
{
    enum sh_mem mem = p->tensors[sh_tensor_root(p, tensor)].mem;

    return p->streams[op->stream].runs == SH_RUNS_KERNELS && !sh_op_info(op->kind)->marker &&
           !(op->kind == SH_OP_UNPACK && op->in[1] != SH_NONE) && !(op->kind == SH_OP_SCALE && op->unit != SH_NONE) &&
           op->phase != SH_PHASE_UPDATE &&
           (mem == SH_MEM_ACT || mem == SH_MEM_ACT_GRAD || mem == SH_MEM_GRAD || mem == SH_MEM_GRAD_FULL ||
            mem == SH_MEM_CONST);
}

static void mark_section(const struct sh_program *p, const struct sh_section *section,
                         const struct sh_mesh_shape *shape, bool *counts)
{
    bool *own = sh_calloc((size_t)p->n_tensors, sizeof *own);

    mark_own(p, own);
    for (int i = section->first_op; i < section->first_op + section->n_ops; i++) {
        const struct sh_op *op = &p->ops[i];

        for (int k = 0; k < SH_OP_MAX_OUT; k++)
            if (op->out[k] != SH_NONE) {
                bool is_own = depends(p, op, k, own, shape);

                counts[i * SH_OP_MAX_OUT + k] = !is_own && can_count(p, op, op->out[k]);
                own[sh_tensor_root(p, op->out[k])] = is_own;
            }
    }
    free(own);
}

/* ---- who is compared ---- */

/* Of what decides on the bits of a kernel: the GPU, or the processor and the instructions that are used. */
static long long kind_of(const struct sh_run *r)
{
    char instructions[SH_ISA_TEXT], *text = NULL;
    const char *line = NULL;
    uint64_t hash;

    if (r->device->gpu)
        return (long long)sh_hash64(r->gpu.info.name, strlen(r->gpu.info.name));
    sh_isa_describe(instructions);
    hash = sh_hash64(instructions, strlen(instructions));
    if (sh_read_file("/proc/cpuinfo", 1 << 24, &text, NULL) == SH_OK)
        line = strstr(text, "model name");
    else
        sh_error_clear();
    hash = sh_mix64(hash ^ (line ? sh_hash64(line, strcspn(line, "\n")) : 0));
    free(text);
    return (long long)hash;
}

static sh_rc check(const struct sh_replay *s)
{
    const struct sh_run *r = s->r;

    if (r->build.batch.any_order)
        return sh_fail(SH_E_USAGE,
                       "fault.replay_every: with training.deterministic=false a GPU's bits change from run to "
                       "run; leave one of them out");
    if (r->device->gpu && sh_group_size(&r->mesh->shape, adding(&r->mesh->shape)) > 2)
        return sh_fail(SH_E_USAGE,
                       "fault.replay_every: on GPUs more than 2 ranks of one micro-step may sum in another order than "
                       "the next ones do; leave it out");
    if (s->ring.next[r->mesh->rank] < 0)
        return sh_fail(
            SH_E_USAGE,
            "fault.replay_every: no other rank%s a processor like that of %s, so nobody can compute the "
            "same bits; start more ranks, or leave it out",
            sh_group_size(&r->mesh->shape, joined(&r->mesh->shape)) > 1 ? " that makes another micro-step has" : " has",
            r->mesh->host);
    return SH_OK;
}

/* Ranks that make one micro-step, in the order of their places, side by side. */
static int *side_by_side(const struct sh_mesh_shape *shape, int n)
{
    sh_group together = joined(shape);
    int each = sh_group_size(shape, together), *rank = sh_calloc((size_t)n, sizeof *rank);
    struct sh_mesh_shape at = *shape;

    for (at.rank = 0; at.rank < n; at.rank++)
        rank[sh_group_index(&at, sh_group_others(&at, together)) * each + sh_group_index(&at, together)] = at.rank;
    return rank;
}

static sh_rc pair(struct sh_replay *s)
{
    const struct sh_run *r = s->r;
    int n = r->mesh->world, *rank = side_by_side(&r->mesh->shape, n);
    long long *all = sh_calloc(2 * (size_t)n, sizeof *all);
    sh_rc rc;

    all[r->mesh->rank] = kind_of(r);
    all[n + r->mesh->rank] = r->mesh->node;
    rc = sh_mesh_sum_i64(all, 2 * n);
    s->together = sh_group_size(&r->mesh->shape, joined(&r->mesh->shape));
    if (rc == SH_OK)
        sh_job_ring_of_groups(n, s->together, rank, all, all + n, &s->ring);
    free(all);
    free(rank);
    return rc;
}

sh_rc sh_replay_open(struct sh_replay *s, struct sh_run *r)
{
    const struct sh_program *p = r->p;
    int64_t bytes = 0;

    if (!r->cfg.fault.replay_every)
        return SH_OK;
    *s = (struct sh_replay){.r = r, .began = sh_now_ns()};
    SH_TRY(pair(s));
    SH_TRY(sh_agree(check(s)));
    s->counts = sh_calloc((size_t)p->n_ops * SH_OP_MAX_OUT, sizeof *s->counts);
    for (int i = 0; i < p->n_sections; i++)
        if (sh_program_is_micro_step(&p->sections[i])) {
            mark_section(p, &p->sections[i], &r->mesh->shape, s->counts);
            s->most = p->sections[i].n_ops > s->most ? p->sections[i].n_ops : s->most;
        }
    for (int i = 0; i < p->n_ops * SH_OP_MAX_OUT; i++)
        if (s->counts[i]) {
            int64_t here = sh_tensor_bytes(&p->tensors[p->ops[i / SH_OP_MAX_OUT].out[i % SH_OP_MAX_OUT]]);

            bytes = here > bytes ? here : bytes;
        }
    sh_walk_rows_make(&s->rows, r);
    s->ops = sh_calloc((size_t)s->most * SH_JOB_ROUNDS, sizeof *s->ops);
    s->copy = r->device->gpu ? sh_calloc((size_t)bytes, 1) : NULL;
    return SH_OK;
}

void sh_replay_close(struct sh_replay *s)
{
    sh_job_ring_free(&s->ring);
    if (s->r)
        sh_walk_rows_free(&s->rows);
    free(s->counts);
    free(s->ops);
    free(s->copy);
    *s = (struct sh_replay){0};
}

/* ---- a round ---- */

/* What is compared of an output: a sum of whole gradients of a unit ends in padding, which nothing writes. */
static void parts_of(const struct sh_replay *s, const struct sh_op *op, int tensor, struct sh_walk_part part[2])
{
    const struct sh_program *p = s->r->p;
    bool whole = op->unit != SH_NONE && (op->kind == SH_OP_ACCUMULATE || op->kind == SH_OP_COPY);

    sh_walk_rows_parts(&s->rows, op, tensor, part);
    if (whole && part[0].end > p->units[op->unit].elems)
        part[0].end = p->units[op->unit].elems;
}

static void add_output(struct sh_replay *s, int op, int k)
{
    const struct sh_program *p = s->r->p;
    int tensor = p->ops[op].out[k];
    int64_t size = sh_dtype_bytes(p->tensors[tensor].dtype);
    long long *sum = &s->now[op - s->section->first_op];
    struct sh_walk_part part[2];

    parts_of(s, &p->ops[op], tensor, part);
    for (int i = 0; i < 2; i++) {
        const char *data = (const char *)sh_exec_data(s->r->exec, tensor) + part[i].begin * size;
        int64_t bytes = (part[i].end - part[i].begin) * size;

        if (i > 0 && bytes == 0)
            continue;
        if (s->copy) {
            sh_exec_get_at(s->r->exec, s->copy, data, bytes);
            data = s->copy;
        }
        *sum = (long long)(sh_mix64((uint64_t)*sum ^ sh_hash64(data, (size_t)bytes)) + 1);
    }
}

/* Called by the executor around each operation. */
static void look(void *arg, int op, bool done)
{
    struct sh_replay *s = arg;

    if (done)
        sh_walk_rows_note(&s->rows, op);
    for (int k = 0; done && k < SH_OP_MAX_OUT; k++)
        if (s->counts[op * SH_OP_MAX_OUT + k])
            add_output(s, op, k);
}

struct rounds {
    sh_replay_run *run;
    void *arg;
    long long *sums; /* [SH_JOB_ROUNDS][world], of all ranks once they are collected */
};

static long long *ops_of(const struct sh_replay *s, enum sh_job_round round)
{
    return s->ops + (int64_t)round * s->most;
}

/* Where operation i of the section stands in a step of one stage: what it reads of other ranks comes before it. */
static int64_t place_of(const struct sh_replay *s, int i)
{
    int op = s->section->first_op + i;

    return sh_walk_place(s->r, op, s->r->p->ops[op].micro);
}

/* Put the sum of a round's operations up to a place in this rank's. */
static void add_up(const struct sh_replay *s, enum sh_job_round round, int64_t last, long long *sums)
{
    const long long *of = ops_of(s, round);
    uint64_t all = 0;

    for (int i = 0; i < s->section->n_ops; i++)
        if (place_of(s, i) <= last)
            all = sh_mix64(all ^ (uint64_t)of[i]) + 1;
    sums[(int64_t)round * s->ring.n + s->r->mesh->rank] = (long long)all;
}

static void run_round(struct sh_replay *s, const struct rounds *r, enum sh_job_round round, int rank)
{
    s->now = ops_of(s, round);
    memset(s->now, 0, (size_t)s->section->n_ops * sizeof *s->now);
    sh_exec_set_look(s->r->exec, SH_LOOKS, look, s);
    r->run(r->arg, rank, s->section);
    sh_exec_set_look(s->r->exec, SH_LOOKS, NULL, NULL);
    add_up(s, round, INT64_MAX, r->sums);
}

/* ---- a difference ---- */

enum { HOST = sizeof((struct sh_mesh *)0)->host };

struct verdict {
    bool *blamed, unstable;
    int n_blamed;
    long long
        *first; /* [world] 1 + the first operation in which a rank differs from the next one on that one's data, in
                         the order of places */
    char *host; /* [world][HOST] */
};

/* 1 + the operation of the first place whose sums differ; 0: none. */
static int differs_at(const struct sh_replay *s, const long long *a, const long long *b)
{
    int first = 0;

    for (int i = 0; i < s->section->n_ops; i++)
        if (a[i] != b[i] && (!first || place_of(s, i) < place_of(s, first - 1)))
            first = i + 1;
    return first;
}

/* What the next rank found on its own data comes from there. */
static sh_rc find_first(struct sh_replay *s, struct verdict *v)
{
    int n = s->ring.n, me = s->r->mesh->rank, before = 0;
    size_t bytes = (size_t)s->section->n_ops * sizeof *s->ops;
    long long *theirs = sh_calloc(bytes, 1);
    sh_rc rc;

    while (s->ring.next[before] != me)
        before++;
    rc = sh_mesh_shift(ops_of(s, SH_JOB_OWN), (int64_t)bytes, before, theirs, (int64_t)bytes, s->ring.next[me]);
    v->first[me] = differs_at(s, theirs, ops_of(s, SH_JOB_NEXT));
    free(theirs);
    SH_TRY(rc);
    SH_TRY(sh_mesh_gather(s->r->mesh->host, HOST, v->host));
    SH_TRY(sh_mesh_bcast(v->host, (long)n * HOST, 0));
    return sh_mesh_sum_i64(v->first, n);
}

/* The first operation of all differences that this rank, which is blamed, has a part in; SH_NONE: it did not show in the
 * first rounds. */
static int first_of(const struct sh_replay *s, const struct verdict *v)
{
    int me = s->r->mesh->rank;
    long long first = 0;

    for (int i = 0; i < s->ring.n; i++)
        if (v->first[i] && (i == me || s->ring.next[i] == me) &&
            (!first || place_of(s, (int)v->first[i] - 1) < place_of(s, (int)first - 1)))
            first = v->first[i];
    return first ? s->section->first_op + (int)first - 1 : SH_NONE;
}

/* The first place at which this rank differs from the next one, or from itself; 1e18: none. */
static double first_place(const struct sh_replay *s, const struct verdict *v)
{
    int at[] = {(int)v->first[s->r->mesh->rank], differs_at(s, ops_of(s, SH_JOB_OWN), ops_of(s, SH_JOB_OWN_AGAIN)),
                differs_at(s, ops_of(s, SH_JOB_NEXT), ops_of(s, SH_JOB_NEXT_AGAIN))};
    double first = 1e18;

    for (size_t i = 0; i < sizeof at / sizeof at[0]; i++)
        if (at[i] && (double)place_of(s, at[i] - 1) < first)
            first = (double)place_of(s, at[i] - 1);
    return first;
}

/* Of ranks that make a micro-step together, what one has made goes into what the others make. So rounds are compared up
 * to the first place where any differs: from there it has yet to travel. */
static sh_rc only_first(const struct sh_replay *s, const struct verdict *v, long long *sums)
{
    double first = -first_place(s, v);

    SH_TRY(sh_mesh_max(&first, 1));
    memset(sums, 0, (size_t)s->ring.n * SH_JOB_ROUNDS * sizeof *sums);
    for (int round = 0; round < SH_JOB_ROUNDS; round++)
        add_up(s, (enum sh_job_round)round, (int64_t)-first, sums);
    return sh_mesh_sum_i64(sums, SH_JOB_ROUNDS * s->ring.n);
}

/* At most four ranks by name. */
static void print_ranks(const struct sh_replay *s, const struct verdict *v, FILE *out)
{
    enum { SHOWN = 4 };
    int n = 0;

    for (int i = 0; i < s->ring.n; i++)
        if (v->blamed[i] && n++ < SHOWN)
            fprintf(out, "%srank %d on %s", n > 1 ? ", " : "", i, v->host + (int64_t)i * HOST);
    if (n > SHOWN)
        fprintf(out, " and %d more", n - SHOWN);
}

/* Whether two differ and nobody else could have decided: who would be the third is one of them. */
static bool is_pair(const struct sh_replay *s, const struct verdict *v)
{
    bool alone = v->n_blamed > 1;

    for (int i = 0; i < s->ring.n; i++)
        alone = alone && (!v->blamed[i] || s->ring.third[i] == i);
    return alone;
}

static sh_rc report(const struct sh_replay *s, const struct verdict *v)
{
    bool pair = is_pair(s, v);
    char label[SH_OP_LABEL] = "", *text = NULL;
    size_t bytes;
    int first = first_of(s, v);
    FILE *out = open_memstream(&text, &bytes);
    sh_rc rc;

    if (!out)
        return sh_fail(SH_E_REPLICA, "step %lld: replays differ; no memory to say more", (long long)s->r->step);
    if (first != SH_NONE)
        sh_program_label(s->r->p, &s->r->p->ops[first], label);
    fprintf(out, "step %lld, run again: from the same sequences ", (long long)s->r->step);
    print_ranks(s, v, out);
    fprintf(out, v->n_blamed == 1 ? " makes other numbers" : " make other numbers");
    fprintf(out, v->unstable ? " each time" : pair ? " than each other" : " than others");
    if (label[0])
        fprintf(out, ", first in %s", label);
    fprintf(out, "; %s has failed silently: leave %s out and ",
            pair ? "memory or a processor of one of them" : "memory or a processor",
            v->n_blamed == 1 ? "that node" : "those nodes");
    if (s->good)
        fprintf(out, "continue from a checkpoint of step %lld or before", (long long)s->good);
    else
        fprintf(out, "start again: no replay of this start has passed, so no checkpoint is sure to be right");
    fclose(out);
    sh_kept_accuse(s->r, s->good);
    rc = sh_fail(SH_E_REPLICA, "%s", text);
    free(text);
    return rc;
}

/* Those to blame fail, so that the line comes from one of them. Collective, agreed. */
static sh_rc judge(struct sh_replay *s, long long *sums)
{
    size_t n = (size_t)s->ring.n;
    struct verdict v = {
        .blamed = sh_calloc(n, sizeof *v.blamed), .first = sh_calloc(n, sizeof *v.first), .host = sh_calloc(n, HOST)};
    sh_rc rc = find_first(s, &v);

    if (rc == SH_OK && s->together > 1)
        rc = only_first(s, &v, sums);
    v.n_blamed = sh_job_replay_blame(&s->ring, sums, v.blamed, &v.unstable);
    if (rc == SH_OK)
        rc = sh_agree(v.blamed[s->r->mesh->rank] ? report(s, &v) : SH_OK);
    free(v.blamed);
    free(v.first);
    free(v.host);
    return rc;
}

/* A third rank computes the same, and the two again. */
static sh_rc ask_a_third(struct sh_replay *s, const struct rounds *r)
{
    int me = s->r->mesh->rank;
    int64_t first = (int64_t)SH_JOB_THIRD * s->ring.n;
    sh_rc rc;

    run_round(s, r, SH_JOB_THIRD, s->ring.third[me]);
    run_round(s, r, SH_JOB_OWN_AGAIN, me);
    run_round(s, r, SH_JOB_NEXT_AGAIN, s->ring.next[me]);
    rc = sh_mesh_sum_i64(r->sums + first, (SH_JOB_ROUNDS - SH_JOB_THIRD) * s->ring.n);
    return rc == SH_OK ? judge(s, r->sums) : rc;
}

/* ---- all ---- */

/* Once, so that the user knows what it costs. */
static void say_cost(struct sh_replay *s, int64_t begun)
{
    double seconds = sh_seconds_since(begun), all = sh_seconds_since(s->began);

    if (s->began && s->r->mesh->rank == 0)
        sh_log_info(
            "step %lld  run again by two ranks each, equal to the last bit; %.2f s, %.1f %% of the time since the "
            "start",
            (long long)s->r->step, seconds, 100 * seconds / all);
    s->began = 0;
}

sh_rc sh_replay_step(struct sh_replay *s, const struct sh_section *section, sh_replay_run *run, void *arg)
{
    int n = s->ring.n, me = s->r->mesh->rank;
    struct rounds r = {run, arg, sh_calloc((size_t)n * SH_JOB_ROUNDS, sizeof *r.sums)};
    int64_t begun = sh_now_ns();
    sh_rc rc;

    s->section = section;
    run_round(s, &r, SH_JOB_OWN, me);
    run_round(s, &r, SH_JOB_NEXT, s->ring.next[me]);
    sh_exec_take_time(s->r->exec);
    rc = sh_mesh_sum_i64(r.sums, SH_JOB_THIRD * n);
    if (rc == SH_OK && sh_job_replay_differs(&s->ring, r.sums))
        rc = ask_a_third(s, &r);
    else if (rc == SH_OK) {
        s->good = s->r->step;
        say_cost(s, begun);
    }
    free(r.sums);
    return rc;
}
