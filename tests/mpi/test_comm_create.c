/* A backend that cannot be made on one rank: all ranks are told, and none waits for a thread of another. */
#include "src/comm/comm.h"
#include "tests/mpi/mpitest.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

static bool no_threads; /* on this rank, for now */

int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *), void *arg)
{
    int (*next)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    void *symbol = dlsym(RTLD_NEXT, "pthread_create");

    memcpy(&next, &symbol, sizeof next);
    if (!no_threads)
        return next(thread, attr, start, arg);
    usleep(100 * 1000); /* the others' threads have come to rest by then */
    return EAGAIN;
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
    CHECK((strstr(sh_error_text(), "communication thread") != NULL) == (test_rank() == who));
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
    sh_mesh_destroy(mesh);
    sh_mesh_stop();
    return bad_tests != 0;
}
