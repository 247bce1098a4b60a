/* Collectives in the channels and the kind of memory that training uses, alternating with MPI's own calls. */
#include "src/tools/bench/bench.h"

#include "src/base/mem.h"
#include "src/base/string/str.h"
#include "src/base/time.h"
#include "src/mesh/segment.h"
#include "src/run/run.h"
#include "src/tools/bench/folder.h"
#include "src/tools/bench/points.h"
#include "src/tools/bench/rate.h"
#include "src/tools/bench/rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Sizes grow by 8: latency at one end, bandwidth at the other, few rows between. */
enum { GROWTH = 8, OPERANDS = 2, PAGE = 4096, IN_FLIGHT = 128 /* in a queue; channels limit it */ };
/* Without --max-bytes: large enough to reach full bandwidth. */
static const int64_t usual_bytes = 1ll << 30;
static const double least_seconds = 0.02;

/* The kinds, each with MPI's own call. A wave of rows is an exchange whose parts are counted, and lies in the segment. */
static const struct collective {
    enum sh_op_kind kind;
    const char *name, *mpi; /* NULL: a wave, beside the call of the row before */
} collectives[] = {
    {SH_OP_ALL_GATHER, "all_gather", "MPI_Allgather"},
    {SH_OP_REDUCE_SCATTER, "reduce_scatter", "MPI_Reduce_scatter_block"},
    {SH_OP_ALL_REDUCE, "all_reduce", "MPI_Allreduce"},
    {SH_OP_ALL_TO_ALL, "all_to_all", "MPI_Alltoall"},
    {SH_OP_ALL_TO_ALL, "wave of rows", NULL},
};
enum { COLLECTIVES = sizeof collectives / sizeof *collectives };

static bool is_wave(const struct collective *c)
{
    return !c->mpi;
}

static const char formulas[] = "GB/s: bytes of the whole operand over the time; bus GB/s: that times (n-1)/n, for "
                               "all_reduce 2(n-1)/n, n ranks of the axis";

/* One measurement. The rows of copies have no collective. */
struct test {
    const struct collective *coll; /* NULL: a copy */
    bool plain;                    /* by MPI's own call */
    const struct sh_group_use *group;
    int64_t elems; /* of the whole operand, f32; divisible by the group's size */
};

enum { GROUPS = 4 };

struct bench {
    struct sh_run *r;
    struct sh_group_use groups[GROUPS]; /* with the streams that training uses */
    const struct sh_bench_options *options;
    struct sh_comm *comm;
    struct sh_rate rate;
    int ranks_per_node;        /* ranks that can share memory; 0: none */
    struct sh_segment segment; /* ranks == 0: none; each part as large as the largest operand */
    int64_t max_bytes, own_bytes;
    char *arena; /* two operands of this rank, then the segment */
    void *queue;
    int32_t *rows; /* [world][world] of a wave: one each, as long as a part */
    struct sh_coll_parts parts;
    struct test *tests; /* [list.n] */
    struct sh_bench_list list;
};

/* Rounds up to whole pages, so that operands do not share one. */
static int64_t round_up(int64_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

/* Returns the largest operand that fits half of the memory: each rank has two operands, one in the segment, its part of
 * the group's, and the two of the copies. */
static int64_t room(const struct bench *b)
{
    const struct sh_run *r = b->r;
    int64_t all = sh_device_node_memory() / r->mesh->node_size;

    if (r->device->gpu)
        all = r->gpu.info.free_bytes / r->gpu.sharing;
    return all / 2 / (2 * OPERANDS + 2);
}

/* Collective: the rank with the least room decides, through a maximum of negated numbers. A size that the user asked
 * for is refused rather than reduced, since the results would carry a wrong label. */
static sh_rc choose_max_bytes(struct bench *b)
{
    double least = -(double)room(b);

    SH_TRY(sh_mesh_max(&least, 1));
    /* 0: not given. */
    b->max_bytes = b->options->max_bytes;
    if (b->max_bytes > (int64_t)-least)
        return sh_agree(sh_fail(SH_E_USAGE,
                                "sherd bench comm: --max-bytes=%lld is too large: half of the memory has room for "
                                "operands of %lld bytes",
                                (long long)b->max_bytes, (long long)-least));
    if (!b->max_bytes)
        b->max_bytes = usual_bytes < (int64_t)-least ? usual_bytes : (int64_t)-least;
    return sh_agree(SH_OK);
}

/* World comes last: it is measured only if it differs from the groups of training. */
static sh_rc open_groups(struct bench *b)
{
    enum { SHARDS = 1u << SH_STREAM_GATHER | 1u << SH_STREAM_REDUCE, REPLICAS = 1u << SH_STREAM_REPLICATE };
    const struct sh_mesh_shape *m = &b->r->mesh->shape;
    const struct sh_group_use groups[GROUPS] = {{.axes = m->shard, .streams = SHARDS},
                                                {.axes = m->replicate, .streams = REPLICAS},
                                                {.axes = m->inner, .streams = SHARDS},
                                                {.axes = sh_group_world(m), .streams = REPLICAS}};

    for (int i = 0; i < GROUPS; i++) {
        b->groups[i] = groups[i];
        sh_group_name(m, groups[i].axes, b->groups[i].name);
        SH_TRY(sh_mesh_open(b->r->mesh, groups[i].axes));
    }
    return SH_OK;
}

/* Ranks of this rank's group. */
static int size_of(const struct bench *b, const struct sh_group_use *group)
{
    return sh_group_size(&b->r->mesh->shape, group->axes);
}

/* Only the shard group gathers a unit into operands in the segment. */
static bool is_shard(const struct bench *b, const struct sh_group_use *group)
{
    return group->axes == b->r->mesh->shape.shard;
}

/* Finds the nodes again as for the run's plan, since the run does not keep where its ranks are. Collective. */
static sh_rc find_nodes(struct bench *b)
{
    struct sh_topology at;

    SH_TRY(sh_topology_find(&b->r->cfg, b->r->device->gpu, &at));
    b->ranks_per_node = sh_topology_shares(&b->r->cfg, &at) ? at.ranks_per_node : 0;
    return SH_OK;
}

/* Replaces the job's channels and memory by those of this file. */
static sh_rc open_comm(struct bench *b)
{
    struct sh_run *r = b->r;
    const char *name = sh_comm_name(r->comm);
    struct sh_comm_options opt = {.timeout_seconds = r->cfg.comm.train_timeout_seconds,
                                  .history = r->cfg.comm.trace_buf_size,
                                  .device = r->device,
                                  .backend = !strcmp(name, "self") ? NULL : name,
                                  .share_gpu = r->gpu.sharing > 1,
                                  .inline_progress = r->cfg.comm.progress == SH_PROGRESS_INLINE,
                                  .ranks_per_node = b->ranks_per_node,
                                  .nccl_max_ctas = r->cfg.comm.nccl_max_ctas};

    /* Two sets of channels would share the network's resources. */
    sh_comm_destroy(r->comm);
    r->comm = NULL;
    sh_exec_destroy(r->exec);
    r->exec = NULL;
    SH_TRY(open_groups(b));
    opt.groups = b->groups;
    opt.n_groups = GROUPS;
    opt.streams = sh_streams;
    opt.n_streams = SH_STREAMS;
    return sh_comm_create(r->mesh, &opt, &b->comm);
}

/* Memory is touched before anything is timed: the first write to a page costs a fault, which is not the network's. */
static sh_rc open_memory(struct bench *b)
{
    const struct sh_segment *planned = &b->r->p->segment;
    int64_t bytes = round_up(b->max_bytes);
    int fd = -1;
    sh_rc rc;

    b->own_bytes = OPERANDS * bytes;
    if (planned->ranks) {
        b->segment = *planned;
        b->segment.group_bytes = b->segment.peer_bytes = bytes;
        SH_TRY(sh_segment_create(b->r->mesh, b->segment.ranks, sh_program_segment_bytes(&b->segment), &fd));
    }
    rc = b->r->device->arena_create(b->own_bytes, sh_program_segment_bytes(&b->segment), fd, &b->arena);
    if (fd >= 0)
        close(fd);
    SH_TRY(sh_agree(rc));
    b->queue = b->r->device->queue_create(false);
    if (b->segment.ranks) {
        char *base = b->arena + b->own_bytes;
        struct sh_comm_segment w = {.base = base,
                                    .peers = base + sh_program_segment_peer_at(&b->segment, 0),
                                    .peer_bytes = b->segment.peer_bytes,
                                    .ranks = b->segment.ranks,
                                    .rank = b->segment.rank};

        sh_comm_set_segment(b->comm, &w);
    }
    sh_rate_touch(b->r->device, b->queue, b->arena, b->own_bytes);
    if (b->segment.ranks)
        sh_rate_touch(b->r->device, b->queue,
                      b->arena + b->own_bytes + sh_program_segment_peer_at(&b->segment, b->segment.rank),
                      b->segment.peer_bytes);
    return sh_rate_open(b->r->device, b->r->threads, b->max_bytes, &b->rate);
}

/* Chunks gathered over the shard group are in place already: the gather is only a barrier. */
static bool is_barrier(const struct bench *b, const struct collective *c, const struct sh_group_use *group)
{
    return b->segment.ranks && c->kind == SH_OP_ALL_GATHER && is_shard(b, group);
}

/* A barrier moves no bytes, so it has no rate. */
static void add_test(struct bench *b, const struct test *t, const char *name)
{
    int row = sh_bench_add(&b->list, "%s", name);

    b->tests = sh_realloc(b->tests, (size_t)b->list.n, sizeof *b->tests);
    b->tests[row] = *t;
    if (t->coll && !t->plain && is_barrier(b, t->coll, t->group))
        return;
    b->list.times[row].bytes = t->elems * (int64_t)sizeof(float);
    if (t->coll)
        b->list.times[row].bus = sh_coll_received(t->coll->kind, size_of(b, t->group), 1);
}

/* Adds the row and, as a baseline, one for the same with MPI's own call. Elements are rounded down to a multiple of the
 * group's size. */
static void add_collective(struct bench *b, const struct collective *c, const struct sh_group_use *group, int64_t bytes,
                           int copy)
{
    int size = size_of(b, group);
    struct test t = {.coll = c, .group = group, .elems = bytes / (int64_t)sizeof(float) / size * size};
    bool plain = !b->r->device->gpu; /* MPI's own call takes operands in host memory */
    char name[96], text[SH_STR_SHORT];

    snprintf(name, sizeof name, "%s%s %s %s", c->name, is_barrier(b, c, group) ? " (a barrier)" : "", group->name,
             sh_str_bytes(bytes, text));
    add_test(b, &t, name);
    b->list.rows[b->list.n - 1].also = b->list.rows[copy].name;
    if (plain && is_wave(c))
        b->list.rows[b->list.n - 1].against = b->list.rows[b->list.n - 2].name;
    if (!plain || is_wave(c))
        return;
    t.plain = true;
    snprintf(name, sizeof name, "%s %s %s", c->mpi, group->name, text);
    add_test(b, &t, name);
    b->list.rows[b->list.n - 2].against = b->list.rows[b->list.n - 1].name;
}

/* A group of one rank sends nothing, and a group with the same ranks as an earlier one would be measured twice. */
static bool is_measured(const struct bench *b, const struct sh_group_use *group)
{
    for (const struct sh_group_use *g = b->groups; g < group; g++)
        if (size_of(b, g) == size_of(b, group) && (g->axes & group->axes))
            return false;
    return size_of(b, group) > 1;
}

/* Adds one copy of that size, then each collective on each group: the copy shows what memory alone would allow. */
static void add_size(struct bench *b, int64_t bytes)
{
    struct test copy = {.elems = bytes / (int64_t)sizeof(float)};
    char name[64], text[SH_STR_SHORT];
    int row = b->list.n;

    snprintf(name, sizeof name, "%s %s", b->r->device->gpu ? "copy" : "memcpy", sh_str_bytes(bytes, text));
    add_test(b, &copy, name);
    for (int g = 0; g < GROUPS; g++)
        for (int i = 0; is_measured(b, &b->groups[g]) && i < COLLECTIVES; i++)
            add_collective(b, &collectives[i], &b->groups[g], bytes, row);
}

/* Places operands where training does: sums in this rank's part of the segment, gathers in the group's. */
static void place(const struct bench *b, const struct test *t, struct sh_coll *coll)
{
    char *own = b->arena, *other = b->arena + b->own_bytes / OPERANDS, *base = b->arena + b->own_bytes;
    bool shared = b->segment.ranks > 0 && !t->plain;
    char *peer = shared ? base + sh_program_segment_peer_at(&b->segment, b->segment.rank) : own;
    int index = sh_group_index(&b->r->mesh->shape, t->group->axes);

    /* Elements of one rank's part. */
    coll->count = t->elems / size_of(b, t->group);
    if (t->coll->kind == SH_OP_ALL_GATHER) {
        coll->recv = shared && is_shard(b, t->group) ? base + sh_program_segment_group_at(&b->segment, b->segment.rank)
                                                     : other;
        coll->send = (char *)coll->recv + index * coll->count * (int64_t)sizeof(float);
    } else if (t->coll->kind == SH_OP_REDUCE_SCATTER) {
        coll->send = peer;
        coll->recv = other;
    } else if (t->coll->kind == SH_OP_ALL_TO_ALL) {
        coll->send = is_wave(t->coll) ? peer : own;
        coll->recv = other;
    } else {
        coll->recv = peer;
        coll->count = t->elems;
    }
}

static int stream_of(const struct test *t)
{
    if (t->group->streams >> SH_STREAM_REPLICATE & 1)
        return SH_STREAM_REPLICATE;
    return t->coll->kind == SH_OP_ALL_GATHER ? SH_STREAM_GATHER : SH_STREAM_REDUCE;
}

/* On a GPU the call is only queued; time_calls() drains the queue. On the CPU it is complete on return. */
static sh_rc call_sherd(struct bench *b, const struct test *t)
{
    struct sh_coll coll = {.kind = t->coll->kind,
                           .stream = stream_of(t),
                           .group = t->group->axes,
                           .dtype = SH_F32,
                           .queue = b->queue,
                           .label = "bench"};
    int64_t ticket;

    place(b, t, &coll);
    b->parts =
        (struct sh_coll_parts){.rows = b->rows, .row_elems = coll.count, .send_room = t->elems, .recv_room = t->elems};
    coll.parts = is_wave(t->coll) ? &b->parts : NULL;
    SH_TRY(sh_comm_start(b->comm, &coll, &ticket));
    return b->queue ? sh_comm_join(b->comm, ticket, b->queue) : sh_comm_wait(b->comm, ticket);
}

/* In place where the channels are, so that MPI has no extra copy to make. */
static sh_rc call_mpi(struct bench *b, const struct test *t)
{
    MPI_Comm comm = sh_mesh_comm(b->r->mesh, t->group->axes);
    struct sh_coll at = {.kind = t->coll->kind};
    int count;

    place(b, t, &at);
    count = (int)at.count; /* fits, up to SH_BENCH_MOST_BYTES */
    if (at.kind == SH_OP_ALL_GATHER)
        SH_MPI(MPI_Allgather(MPI_IN_PLACE, 0, MPI_FLOAT, at.recv, count, MPI_FLOAT, comm));
    else if (at.kind == SH_OP_REDUCE_SCATTER)
        SH_MPI(MPI_Reduce_scatter_block(at.send, at.recv, count, MPI_FLOAT, MPI_SUM, comm));
    else if (at.kind == SH_OP_ALL_TO_ALL)
        SH_MPI(MPI_Alltoall(at.send, count, MPI_FLOAT, at.recv, count, MPI_FLOAT, comm));
    else
        SH_MPI(MPI_Allreduce(MPI_IN_PLACE, at.recv, count, MPI_FLOAT, MPI_SUM, comm));
    return SH_OK;
}

/* Seconds of one call on the slowest rank, the mean of n in a row. A failure inside stops the job, since peers wait. */
static sh_rc time_calls(struct bench *b, const struct test *t, int64_t n, double *seconds)
{
    sh_rc rc = SH_OK;
    int64_t begin;

    sh_mesh_own_mpi();
    sh_mesh_barrier();
    begin = sh_now_ns();
    for (int64_t i = 1; i <= n && rc == SH_OK; i++) {
        rc = t->plain ? call_mpi(b, t) : call_sherd(b, t);
        /* Limits the work in the queue: a GPU accepts only so much before the host has to wait. */
        if (i % IN_FLIGHT == 0)
            b->r->device->queue_drain(b->queue);
    }
    if (rc != SH_OK)
        sh_stop(rc);
    b->r->device->queue_drain(b->queue);
    *seconds = sh_seconds_since(begin);
    SH_TRY(sh_mesh_max(seconds, 1));
    *seconds /= (double)n;
    return SH_OK;
}

/* Makes one call to find out how long it takes, then as many as fill 20 ms: a single short call is mostly clock and
 * scheduling. */
static sh_rc time_test(struct bench *b, const struct test *t, double *seconds)
{
    if (!t->coll)
        return sh_rate_copy(&b->rate, t->elems * (int64_t)sizeof(float), seconds);
    SH_TRY(time_calls(b, t, 1, seconds));
    return time_calls(b, t, *seconds < least_seconds ? (int64_t)(least_seconds / *seconds) + 1 : 1, seconds);
}

/* A group communicates through the segment if it is the shard group or if the segment holds all ranks. */
static bool in_segment(const struct bench *b, const struct test *t)
{
    return b->segment.ranks && (t->coll->kind != SH_OP_ALL_TO_ALL || is_wave(t->coll)) &&
           (is_shard(b, t->group) || b->segment.ranks == sh_mesh_ranks(&b->r->mesh->shape));
}

/* Writes points of Sherd's own rows only; outside the segment a wave of rows is an all_to_all like others. */
static sh_rc write_points(const struct bench *b)
{
    struct sh_bench_points points = {0};
    int node = b->r->mesh->node_size;

    for (int i = 0; i < b->list.n; i++) {
        const struct test *t = &b->tests[i];
        struct sh_coll_place at;

        if (!t->coll || t->plain || (is_wave(t->coll) && !in_segment(b, t)))
            continue;
        at = sh_coll_place(&b->r->mesh->shape, t->group->axes, node);
        at.segment = in_segment(b, t);
        sh_bench_points_coll(&points, t->coll->kind, t->group->name, &at, (double)t->elems * sizeof(float),
                             b->list.times[i].seconds, b->options->repeat);
    }
    return sh_bench_points_write(&points, b->options, b->r);
}

/* Returns a line for each group that communicates in two levels. Freed with free(). */
static char *levels_of(const struct bench *b)
{
    char *text;
    size_t bytes;
    FILE *out = sh_memstream(&text, &bytes);

    for (const struct sh_group_use *g = b->groups; g < b->groups + GROUPS; g++)
        if (is_measured(b, g) && sh_comm_block(b->comm, g->axes) > 1)
            fprintf(out, "\n%s: %d ranks in two levels, blocks of %d ranks that share memory", g->name, size_of(b, g),
                    sh_comm_block(b->comm, g->axes));
    fclose(out);
    return text;
}

/* Rank 0. The head explains the figures, since the file is read without this source. */
static sh_rc report(const struct bench *b)
{
    const struct sh_mesh_shape *m = &b->r->mesh->shape;
    const char *memory =
        b->segment.ranks
            ? "operands of sums, gathered units and waves of rows in memory shared by the ranks of a node; a "
              "gather on the shard axis is a barrier and moves nothing"
            : "operands in each rank's own memory";
    char *levels = levels_of(b);
    char *head =
        sh_strfmt("collectives of float32 on %d x %d ranks (replicate x shard), backend %s, %d rounds\n%s%s%s\n%s",
                  sh_group_size(m, m->replicate), sh_group_size(m, m->shard), sh_comm_name(b->comm), b->options->repeat,
                  memory, levels, sh_mesh_ranks(m) == 1 ? "\none rank: nothing is sent" : "", formulas);
    sh_rc rc = sh_bench_report("comm", head, b->list.rows, b->list.times, b->list.n, b->options->repeat, b->options);

    free(head);
    free(levels);
    return rc == SH_OK ? write_points(b) : rc;
}

static int32_t *ones(int n)
{
    int32_t *rows = sh_calloc((size_t)n * (size_t)n, sizeof *rows);

    for (int64_t i = 0; i < (int64_t)n * n; i++)
        rows[i] = 1;
    return rows;
}

/* Rounds outside, rows inside: a disturbance of a few seconds hits one round of all rows rather than all
 * rounds of one row. */
static sh_rc measure(struct bench *b)
{
    SH_TRY(choose_max_bytes(b));
    SH_TRY(find_nodes(b));
    SH_TRY(open_comm(b));
    SH_TRY(open_memory(b));
    b->rows = ones(b->r->mesh->world);
    for (int64_t bytes = SH_BENCH_LEAST_BYTES; bytes <= b->max_bytes; bytes *= GROWTH)
        add_size(b, bytes);
    for (int k = 0; k < b->options->repeat; k++)
        for (int i = 0; i < b->list.n; i++)
            SH_TRY(time_test(b, &b->tests[i], &b->list.times[i].seconds[k]));
    return sh_agree(b->r->mesh->rank == 0 ? report(b) : SH_OK);
}

/* Also called after a failure anywhere: whatever was not opened is NULL. */
static void close_all(struct bench *b)
{
    sh_rate_close(&b->rate);
    if (b->comm)
        sh_comm_destroy(b->comm);
    if (b->arena) {
        b->r->device->queue_destroy(b->queue);
        b->r->device->arena_destroy(b->arena, b->own_bytes + sh_program_segment_bytes(&b->segment));
    }
    sh_run_close(b->r);
    sh_bench_list_free(&b->list);
    free(b->tests);
    free(b->rows);
}

/* Opens a run as training does, for the same mesh, device and segment, then replaces its channels by those of this
 * file. */
sh_rc sh_bench_comm(const struct sh_config *asked, const struct sh_bench_options *options)
{
    struct sh_config cfg = *asked;
    struct bench b = {.options = options};
    sh_rc rc;

    /* Options first: an unreadable file to compare with should not cost a measurement. */
    SH_TRY(sh_agree(sh_bench_check("comm", options)));
    SH_TRY(sh_bench_folder_make(&cfg, options->folder));
    rc = sh_run_open(&cfg, SH_TO_TRAIN, &b.r);
    if (rc == SH_OK)
        rc = measure(&b);
    close_all(&b);
    sh_bench_folder_delete(&cfg);
    return rc;
}
