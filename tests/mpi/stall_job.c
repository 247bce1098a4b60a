/* The job that tests/mpi/stall runs: ranks go through collectives until one of them misbehaves.
 *
 *   stall_job HOW WHO SECONDS [REPORT_DIR]
 *   HOW  stop | kill: WHO sends itself the signal; loop: never comes back; suspend: stops for 2 * SECONDS, with all
 *        others, and continues; quiet: nothing happens; fail: WHO gives up in the step; late: takes three quarters of
 *        the limit; absent: does not come to the agreement at the end of the step; again: the same, and in the step
 *        before, the other ranks had just enough patience with rank 0; wrong: WHO counts more rows than there is room
 *        for; astray: WHO places rows on top of others. With the prefix node-, pairs of ranks communicate through memory, in two levels; with parts-, they
 *        exchange counted rows instead of summing; with gpu-parts-, these lie on emulated GPUs and NCCL moves them */
#include "src/base/mem.h"
#include "src/comm/comm.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STEPS = 6, BAD_STEP = 3, ELEMS = 30000 };

static const char *how;
static int who;
static double seconds;
static bool exchanges;
static const struct sh_device *device; /* NULL: the operands are in host memory */
static void *queue;

static void loop_for_ever(void)
{
    for (;;)
        usleep(1000);
}

/* Stop this process; a child wakes it up again. */
static void stop_for(double s)
{
    pid_t parent = getpid();
    if (fork() == 0) {
        usleep((useconds_t)(s * 1e6));
        kill(parent, SIGCONT);
        _exit(0);
    }
    raise(SIGSTOP);
}

static void misbehave(int rank)
{
    if (strcmp(how, "suspend") == 0)
        stop_for(2 * seconds);
    if (rank != who)
        return;
    if (strcmp(how, "stop") == 0)
        raise(SIGSTOP);
    else if (strcmp(how, "kill") == 0)
        raise(SIGKILL);
    else if (strcmp(how, "loop") == 0)
        loop_for_ever();
    else if (strcmp(how, "late") == 0)
        usleep((useconds_t)(0.75e6 * seconds));
    else if (strcmp(how, "fail") == 0)
        sh_stop(sh_fail(SH_E_NUMERIC, "loss is not a number"));
}

/* Rank 0 of a pair has rows for both, rank 1 only for rank 0. */
static void exchange(struct sh_coll *coll, struct sh_coll_parts *parts, int32_t rows[8], bool bad)
{
    const bool wrong = bad && strcmp(how, "wrong") == 0, astray = bad && strcmp(how, "astray") == 0;
    const int32_t count[8] = {wrong ? ELEMS : 3000, 7000, 5000, 0, 0, astray ? 2999 : 4000, 100, 0};

    memcpy(rows, count, sizeof count);
    *parts =
        (struct sh_coll_parts){.rows = rows, .at = rows + 4, .row_elems = 2, .send_room = ELEMS, .recv_room = ELEMS};
    coll->kind = SH_OP_ALL_TO_ALL;
    coll->send = (const float *)coll->recv + ELEMS;
    coll->parts = parts;
    coll->queue = queue;
}

static sh_rc wait_for(struct sh_comm *comm, int64_t ticket)
{
    if (!queue)
        return sh_comm_wait(comm, ticket);
    SH_TRY(sh_comm_join(comm, ticket, queue));
    device->queue_drain(queue);
    return SH_OK;
}

static sh_rc run_step(const struct sh_mesh *mesh, struct sh_comm *comm, float *x, bool bad)
{
    struct sh_coll_parts parts;
    int32_t rows[8];
    struct sh_coll coll = {.kind = SH_OP_ALL_REDUCE,
                           .stream = SH_STREAM_REDUCE,
                           .group = mesh->shape.shard,
                           .dtype = SH_F32,
                           .recv = x,
                           .count = ELEMS,
                           .label = "layers.1"};
    int64_t first, second;
    if (exchanges)
        exchange(&coll, &parts, rows, bad);
    SH_TRY(sh_comm_start(comm, &coll, &first));
    coll.kind = SH_OP_ALL_REDUCE;
    coll.parts = NULL;
    coll.group = mesh->shape.replicate;
    coll.stream = SH_STREAM_REPLICATE;
    coll.after = first;
    SH_TRY(sh_comm_start(comm, &coll, &second));
    return wait_for(comm, second);
}

static sh_rc agree_without_one(int rank, int step)
{
    if (strcmp(how, "again") == 0 && step == BAD_STEP - 1 && rank == 0)
        usleep((useconds_t)(1e6 * (seconds + 1))); /* past the limit, but in time for the roll call */
    if (step == BAD_STEP && rank == who)
        pause();
    return sh_agree(SH_OK);
}

static sh_rc make_operands(float **x)
{
    if (!device) {
        *x = sh_calloc(ELEMS, 2 * sizeof **x);
        return SH_OK;
    }
    queue = device->queue_create(false);
    return device->arena_create(ELEMS * 2 * (int64_t)sizeof **x, 0, -1, (char **)x);
}

static void drop_operands(float *x)
{
    if (device) {
        device->queue_destroy(queue);
        device->arena_destroy((char *)x, ELEMS * 2 * (int64_t)sizeof *x);
    } else {
        free(x);
    }
}

static sh_rc open_device(struct sh_comm_options *opt, int rank)
{
    struct sh_device_info info;

    how += 4;
    device = opt->device = sh_device_find("cuda");
    opt->backend = "nccl";
    return device ? device->open(rank, &info) : sh_fail(SH_E_USAGE, "this build has no GPUs");
}

static sh_rc run(const char *report_dir)
{
    struct sh_mesh *mesh;
    struct sh_comm *comm;
    struct sh_mesh_request req = {.shard = 2, .replicate = SH_MESH_AUTO, .inner = 1};
    struct sh_comm_options opt = {.timeout_seconds = seconds, .history = 100, .report_dir = report_dir};
    if (strncmp(how, "node-", 5) == 0) {
        how += 5;
        opt.ranks_per_node = 2;
        opt.levels_above = 1;
    }
    SH_TRY(sh_mesh_create(&req, &mesh));
    if (strncmp(how, "gpu-", 4) == 0)
        SH_TRY(sh_agree(open_device(&opt, mesh->rank)));
    if (strncmp(how, "parts-", 6) == 0) {
        how += 6;
        exchanges = true;
    }
    const struct sh_group_use groups[] = {{"shard", mesh->shape.shard, 1u << SH_STREAM_REDUCE},
                                          {"replicate", mesh->shape.replicate, 1u << SH_STREAM_REPLICATE}};
    opt.groups = groups;
    opt.n_groups = 2;
    opt.streams = sh_streams;
    opt.n_streams = SH_STREAMS;
    for (int i = 0; i < opt.n_groups; i++)
        SH_TRY(sh_mesh_open(mesh, groups[i].axes));
    SH_TRY(sh_comm_create(mesh, &opt, &comm));
    sh_mesh_timeout(seconds);
    float *x;
    SH_TRY(make_operands(&x));
    for (int step = 0; step < STEPS; step++) {
        sh_comm_note(comm, step, "forward layers.1 attention");
        if (step == BAD_STEP)
            misbehave(mesh->rank);
        SH_TRY(run_step(mesh, comm, x, step == BAD_STEP && mesh->rank == who));
        if (strcmp(how, "absent") == 0 || strcmp(how, "again") == 0)
            SH_TRY(agree_without_one(mesh->rank, step));
    }
    sh_comm_destroy(comm);
    drop_operands(x);
    sh_mesh_destroy(mesh);
    return SH_OK;
}

int main(int argc, char **argv)
{
    sh_rc rc = sh_mesh_start(&argc, &argv);
    if (rc == SH_OK && argc < 4)
        rc = sh_fail(SH_E_USAGE, "stall_job HOW WHO SECONDS [REPORT_DIR]");
    if (rc == SH_OK) {
        how = argv[1];
        who = atoi(argv[2]);
        seconds = atof(argv[3]);
        rc = run(argc > 4 ? argv[4] : NULL);
    }
    int status = sh_mesh_report(sh_agree(rc));
    sh_mesh_stop();
    return status;
}
