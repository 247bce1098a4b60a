/* Gather and reduction over each group of ranks that the plan of the run has collectives of, and an exchange (all_to_all)
 * where the run has those, through the channels that training uses (between GPUs if it computes on them): checks the
 * numbers and measures the speed. */
#include "src/tools/doctor/doctor.h"

#include "src/base/mem.h"
#include "src/base/time.h"
#include "src/comm/comm.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* 4 MiB: large enough for bandwidth, small enough for any memory. The time limit on waiting is below that of a check.
 * */
enum { WHOLE_ELEMS = 1 << 20, REPEATS = 3, TIMEOUT_SECONDS = 50 };

/* One group at a time; the memory is shared by all. */
struct test {
    const struct sh_doctor *d;
    struct sh_comm *comm;
    const struct sh_group_use *group;
    int size, index;
    int64_t count;       /* elements of a rank's part */
    float *whole, *part; /* in host memory, both of one length: an exchange fills the second, too */
    char *memory;        /* on a GPU: both of them, one after the other */
    int64_t memory_bytes;
    void *queue;
};

/* Returns the place on the GPU that corresponds to a host buffer, or the buffer itself without a GPU. */
static float *there(const struct test *t, float *host)
{
    int64_t part_at = WHOLE_ELEMS + sh_mesh_ranks(&t->d->mesh->shape);

    return !t->memory ? host : (float *)(void *)t->memory + (host == t->part ? part_at : 0);
}

/* On the CPU there is nothing to do: the host buffer is the operand. */
static void put(const struct test *t, float *host, int64_t n)
{
    if (t->memory)
        t->d->device->put(t->queue, there(t, host), host, n * (int64_t)sizeof *host);
}

/* Like put(), in the other direction. */
static void get(const struct test *t, float *host, int64_t n)
{
    if (t->memory)
        t->d->device->get(t->queue, host, there(t, host), n * (int64_t)sizeof *host);
}

/* On a GPU the ticket joins the queue, and the host waits for the queue. */
static sh_rc wait_for(const struct test *t, int64_t ticket)
{
    if (!t->queue)
        return sh_comm_wait(t->comm, ticket);
    SH_TRY(sh_comm_join(t->comm, ticket, t->queue));
    t->d->device->queue_drain(t->queue);
    return SH_OK;
}

/* The first stream of the group's, or the last one, since most have a stream for gathers and one for sums. */
static int stream_of(unsigned streams, bool first)
{
    return first ? __builtin_ctz(streams) : 31 - __builtin_clz(streams);
}

/* Starts, waits and adds the time: latency and transfer together, as in a training step without overlap. */
static sh_rc run_one(struct test *t, enum sh_op_kind kind, double *seconds)
{
    bool gathers = kind == SH_OP_ALL_GATHER;
    float *whole = there(t, t->whole), *part = there(t, t->part);
    struct sh_coll coll = {.kind = kind,
                           .group = t->group->axes,
                           .stream = stream_of(t->group->streams, gathers),
                           .dtype = SH_F32,
                           .count = t->count,
                           .send = gathers ? part : whole,
                           .recv = gathers ? whole : part,
                           .queue = t->queue,
                           .label = "doctor"};
    int64_t ticket, begin = sh_now_ns();

    SH_TRY(sh_comm_start(t->comm, &coll, &ticket));
    SH_TRY(wait_for(t, ticket));
    *seconds += sh_seconds_since(begin);
    return SH_OK;
}

/* Small integers, which float32 adds exactly in any order: element i of what a rank has for another, or for all (0). */
static float number(int from, int to, int64_t i)
{
    return (float)(from * 7 + to * 3 + i % 13);
}

static void fill(const struct test *t, float *part, int to)
{
    for (int64_t i = 0; i < t->count; i++)
        part[i] = number(t->index, to, i);
}

/* Part r must contain the numbers that rank r wrote. */
static bool parts_right(const struct test *t, const float *parts, int to)
{
    for (int r = 0; r < t->size; r++)
        for (int64_t i = 0; i < t->count; i++)
            if (parts[r * t->count + i] != number(r, to, i))
                return false;
    return true;
}

/* Every rank sends the same whole, so the sum is `size` times it. */
static bool reduced_right(const struct test *t)
{
    for (int64_t i = 0; i < t->count; i++)
        if (t->part[i] != number(t->index, 0, i) * (float)t->size)
            return false;
    return true;
}

static sh_rc gather_and_reduce(struct test *t, double *took, bool *right)
{
    fill(t, t->part, 0);
    put(t, t->part, t->count);
    sh_mesh_barrier();
    SH_TRY(run_one(t, SH_OP_ALL_GATHER, took));
    get(t, t->whole, t->size * t->count);
    *right = *right && parts_right(t, t->whole, 0);
    SH_TRY(run_one(t, SH_OP_REDUCE_SCATTER, took));
    get(t, t->part, t->count);
    *right = *right && reduced_right(t);
    return SH_OK;
}

static sh_rc exchange(struct test *t, double *took, bool *right)
{
    for (int r = 0; r < t->size; r++)
        fill(t, t->whole + r * t->count, r);
    put(t, t->whole, t->size * t->count);
    sh_mesh_barrier();
    SH_TRY(run_one(t, SH_OP_ALL_TO_ALL, took));
    get(t, t->part, t->size * t->count);
    *right = *right && parts_right(t, t->part, t->index);
    return SH_OK;
}

/* What is timed of a group: how often a part comes from each of the others meanwhile. */
static const struct measure {
    const char *name;
    sh_rc (*run)(struct test *t, double *took, bool *right);
    int moves;
    bool of_exchanges; /* only where the run has them */
} measures[] = {{"", gather_and_reduce, 2, false}, {" exchange", exchange, 1, true}};

/* The best of several repeats; *right only if every repeat was right. */
static sh_rc time_group(struct test *t, const struct measure *m, double *seconds, bool *right)
{
    *seconds = INFINITY;
    *right = true;
    for (int k = 0; k < REPEATS; k++) {
        double took = 0;

        SH_TRY(m->run(t, &took, right));
        *seconds = took < *seconds ? took : *seconds;
    }
    return SH_OK;
}

/* Names the rank and the group: a wrong sum means a broken network, memory or MPI. */
static sh_rc wrong(const struct test *t)
{
    return sh_fail(SH_E_COMM, "rank %d got wrong numbers on the %s axis", t->d->mesh->rank, t->group->name);
}

/* Returns the first rank of another group. */
static int first_of(const struct test *t, int group)
{
    const struct sh_mesh_shape *m = &t->d->mesh->shape;

    return sh_group_member(m, sh_group_others(m, t->group->axes), group) + sh_group_member(m, t->group->axes, 0) -
           m->rank;
}

/* Append to the row; what does not fit is cut. */
__attribute__((format(printf, 2, 3))) static void say(struct sh_doctor_row *row, const char *fmt, ...)
{
    size_t used = strlen(row->text);
    va_list args;

    if (used) {
        snprintf(row->text + used, sizeof row->text - used, "; ");
        used = strlen(row->text);
    }
    va_start(args, fmt);
    vsnprintf(row->text + used, sizeof row->text - used, fmt, args);
    va_end(args);
}

/* Groups are identified by their place among the others; the first rank of each reports for its group. */
static sh_rc compare_groups(const struct test *t, const char *name, double speed, double *all,
                            struct sh_doctor_row *row)
{
    const struct sh_mesh *mesh = t->d->mesh;
    sh_group others = sh_group_others(&mesh->shape, t->group->axes);
    int groups = sh_group_size(&mesh->shape, others), group = sh_group_index(&mesh->shape, others);
    struct sh_doctor_slowest s;

    for (int i = 0; i < groups; i++)
        all[i] = -INFINITY;
    if (t->index == 0)
        all[group] = speed;
    SH_TRY(sh_doctor_fill(groups, all));
    s = sh_doctor_find_slowest(groups, all);
    /* A slow group is a note; only wrong numbers are bad. */
    if (s.state != SH_DOCTOR_GOOD) {
        row->state = SH_DOCTOR_NOTE;
        say(row, "%s%s: the group of %s has %.3g GB/s, the median %.3g", t->group->name, name,
            t->d->place[first_of(t, s.index)].host, s.speed / 1e9, s.median / 1e9);
    } else {
        say(row, "%s%s %.3g GB/s per rank (%d ranks)", t->group->name, name, s.speed / 1e9, t->size);
    }
    return SH_OK;
}

/* Wrong numbers end the check, and are agreed on, since another rank may have received right ones. */
static sh_rc test_group(struct test *t, const struct measure *m, double *all, struct sh_doctor_row *row)
{
    struct sh_doctor_row bad;
    double seconds;
    bool right, failed;

    SH_TRY(time_group(t, m, &seconds, &right));
    sh_mesh_own_mpi();
    SH_TRY(sh_doctor_any_failed(t->d, right ? SH_OK : wrong(t), &bad, &failed));
    if (failed) {
        *row = bad;
        return SH_OK;
    }
    return compare_groups(t, m->name, (double)(m->moves * t->count * 4) * (t->size - 1) / seconds, all, row);
}

/* A group of one rank has nothing to send. */
static sh_rc test_groups(struct test *t, const struct sh_doctor_need *plan, double *all, struct sh_doctor_row *row)
{
    const struct sh_mesh_shape *m = &t->d->mesh->shape;

    for (int i = 0; i < plan->n_groups && row->state != SH_DOCTOR_BAD; i++) {
        t->group = &plan->groups[i];
        t->size = sh_group_size(m, t->group->axes);
        t->index = sh_group_index(m, t->group->axes);
        t->count = WHOLE_ELEMS / t->size > 0 ? WHOLE_ELEMS / t->size : 1;
        for (size_t k = 0; k < sizeof measures / sizeof *measures && t->size > 1 && row->state != SH_DOCTOR_BAD; k++)
            if (!measures[k].of_exchanges || plan->exchanges[i])
                SH_TRY(test_group(t, &measures[k], all, row));
    }
    return SH_OK;
}

/* Adds one element per rank to the whole, since counts are rounded up to at least one. */
static sh_rc open_memory(const struct sh_doctor *d, struct test *t)
{
    size_t elems = (size_t)(WHOLE_ELEMS + sh_mesh_ranks(&d->mesh->shape));

    t->whole = sh_calloc(elems, sizeof *t->whole);
    t->part = sh_calloc(elems, sizeof *t->part);
    t->memory_bytes = 2 * (int64_t)(elems * sizeof *t->whole);
    if (!d->device)
        return SH_OK;
    SH_TRY(d->device->arena_create(t->memory_bytes, 0, -1, &t->memory));
    t->queue = d->device->queue_create(false);
    return SH_OK;
}

/* Also called after a failure halfway. */
static void close_memory(const struct sh_doctor *d, struct test *t)
{
    if (t->queue)
        d->device->queue_destroy(t->queue);
    if (t->memory)
        d->device->arena_destroy(t->memory, t->memory_bytes);
    free(t->part);
    free(t->whole);
}

/* Collective. The self-test of the mesh comes first: the speeds of wrong groups would mean nothing. */
sh_rc sh_doctor_collectives(const struct sh_doctor *d, struct sh_doctor_row *row)
{
    struct sh_doctor_need plan = {0};
    struct sh_comm_options opt = sh_topology_comm(d->cfg, &d->at, d->device, d->gpu.sharing);
    struct test t = {.d = d};
    struct sh_comm *comm = NULL;
    char text[SH_COMM_TEXT];
    double *all = sh_calloc((size_t)sh_mesh_ranks(&d->mesh->shape), sizeof *all);
    bool failed = false;
    sh_rc rc;

    if (sh_mesh_ranks(&d->mesh->shape) == 1)
        sh_doctor_good(row, "one rank");
    else
        SH_TRY_OUT(sh_doctor_plan(d, &plan, row, &failed));
    if (failed || sh_mesh_ranks(&d->mesh->shape) == 1) {
        rc = SH_OK;
        goto out;
    }
    opt.timeout_seconds = TIMEOUT_SECONDS;
    opt.groups = plan.groups;
    opt.n_groups = plan.n_groups;
    opt.streams = plan.streams;
    opt.n_streams = plan.n_streams;
    for (int i = 0; i < opt.n_groups; i++)
        SH_TRY_OUT(sh_mesh_open(d->mesh, opt.groups[i].axes));
    SH_TRY_OUT(sh_mesh_self_test(d->mesh));
    SH_TRY_OUT(sh_comm_create(d->mesh, &opt, &comm));
    t.comm = comm;
    SH_TRY_OUT(sh_agree(open_memory(d, &t)));
    SH_TRY_OUT(test_groups(&t, &plan, all, row));
    if (d->device && row->state != SH_DOCTOR_BAD)
        say(row, "GPU to GPU, %s", sh_comm_describe(comm, text));
out:
    sh_comm_destroy(comm);
    close_memory(d, &t);
    free(all);
    return rc;
}
