/* A backend that cannot be created on one rank: all ranks learn about it, and none waits for a thread of another. */
#include "src/base/mem.h"
#include "src/comm/comm.h"
#include "tests/mpi/mpitest.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static bool no_threads; /* on this rank, for now */

int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *), void *arg)
{
    int (*next)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    void *symbol = dlsym(RTLD_NEXT, "pthread_create");

    memcpy(&next, &symbol, sizeof next);
    if (!no_threads)
        return next(thread, attr, start, arg);
    usleep(100 * 1000); /* by then the threads of the other ranks are idle */
    return EAGAIN;
}

static bool no_memory; /* no memory to share with the other ranks of the node */

int memfd_create(const char *name, unsigned flags)
{
    int (*next)(const char *, unsigned);
    void *symbol = dlsym(RTLD_NEXT, "memfd_create");

    memcpy(&next, &symbol, sizeof next);
    if (!no_memory)
        return next(name, flags);
    errno = ENOSYS;
    return -1;
}

static int sends;

int MPI_Isend(const void *at, int count, MPI_Datatype type, int to, int tag, MPI_Comm of, MPI_Request *request)
{
    sends++;
    return PMPI_Isend(at, count, type, to, tag, of, request);
}

/* If one rank cannot share memory, shared memory is not quietly turned off for all: the failure is reported once, with
 * rank, node, reason and cure. */
static void fail_without_memory(struct sh_mesh *mesh, const struct sh_comm_options *opt, int who)
{
    char host[256] = "", rank[32];
    struct sh_comm *comm = NULL;

    gethostname(host, sizeof host - 1);
    snprintf(rank, sizeof rank, "rank %d: ", who);
    no_memory = test_rank() == who;
    CHECK(sh_comm_create(mesh, opt, &comm) == SH_E_COMM);
    no_memory = false;
    CHECK(comm == NULL);
    if (test_rank() == who) {
        CHECK(strstr(sh_error_text(), rank) && strstr(sh_error_text(), host));
        CHECK(strstr(sh_error_text(), "comm.shared_memory=off trains without this"));
        CHECK(strstr(sh_error_text(), "memfd_create") && strstr(sh_error_text(), strerror(ENOSYS)));
    } else {
        CHECK(sh_error_text()[0] == '\0');
    }
    sh_error_clear();
}

/* Pairs of ranks that communicate through memory, on two channels. */
static void test_in_levels(struct sh_mesh *mesh, int who)
{
    enum { ELEMS = 5000 };
    const struct sh_group_use world = {"world", sh_group_world(&mesh->shape),
                                       1u << SH_STREAM_REDUCE | 1u << SH_STREAM_GATHER};
    struct sh_comm_options opt = {.timeout_seconds = 600,
                                  .history = 4,
                                  .groups = &world,
                                  .n_groups = 1,
                                  .streams = sh_streams,
                                  .n_streams = SH_STREAMS,
                                  .ranks_per_node = 2,
                                  .levels_above = 1};
    struct sh_coll coll = {.kind = SH_OP_ALL_REDUCE,
                           .stream = SH_STREAM_REDUCE,
                           .group = world.axes,
                           .dtype = SH_F32,
                           .count = ELEMS,
                           .label = "sum"};
    float *x = sh_calloc(ELEMS, sizeof *x);
    struct sh_comm *comm;
    int64_t ticket;
    int n = test_world();

    if (who < n)
        fail_without_memory(mesh, &opt, who);
    CHECK_OK(sh_comm_create(mesh, &opt, &comm));
    coll.recv = x;
    for (int i = 0; i < ELEMS; i++)
        x[i] = (float)(i + test_rank());
    sends = 0;
    CHECK_OK(sh_comm_start(comm, &coll, &ticket));
    CHECK_OK(sh_comm_wait(comm, ticket));
    for (int i = 0; i < ELEMS; i++)
        CHECK(x[i] == (float)(i * n + n * (n - 1) / 2));
    CHECK(sends == 2 * (n / 2 - 1));
    sh_comm_destroy(comm);
    free(x);
    test_end(who < n ? "no memory for one node's ranks: refused" : "memory for all");
}

static void test_without_thread(struct sh_mesh *mesh, int who)
{
    const struct sh_group_use world = {"world", sh_group_world(&mesh->shape), 1u << SH_STREAM_REDUCE};
    struct sh_comm_options opt = {.timeout_seconds = 600,
                                  .history = 4,
                                  .groups = &world,
                                  .n_groups = 1,
                                  .streams = sh_streams,
                                  .n_streams = SH_STREAMS};
    struct sh_comm *comm = NULL;

    CHECK_OK(sh_mesh_open(mesh, world.axes));
    no_threads = test_rank() == who;
    CHECK(sh_comm_create(mesh, &opt, &comm) == SH_E_MEMORY);
    CHECK(comm == NULL);
    CHECK((strstr(sh_error_text(), "a thread to communicate") != NULL) == (test_rank() == who));
    no_threads = false;
    sh_error_clear();
    CHECK_OK(sh_comm_create(mesh, &opt, &comm));
    sh_comm_destroy(comm);
    test_end("no thread on one rank");
}

int main(int argc, char **argv)
{
    struct sh_mesh_request req = {.inner = 1};
    struct sh_mesh *mesh;

    CHECK_OK(sh_mesh_start(&argc, &argv));
    req.shard = test_world();
    req.replicate = 1;
    CHECK_OK(sh_mesh_create(&req, &mesh));
    if (test_world() > 1) {
        test_without_thread(mesh, 0);
        test_without_thread(mesh, test_world() - 1);
    }
    if (test_world() % 2 == 0) {
        test_in_levels(mesh, 0);
        test_in_levels(mesh, test_world() - 2);
        test_in_levels(mesh, test_world());
    }
    sh_mesh_destroy(mesh);
    sh_mesh_stop();
    return bad_tests != 0;
}
