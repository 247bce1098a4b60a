/* Shared by the MPI test programs: checks that count failures, and one line per test for the whole job. */
#ifndef TESTS_MPI_MPITEST_H
#define TESTS_MPI_MPITEST_H

#include "src/mesh/mesh.h"

#include <stdio.h>

static long long failures; /* of this rank, in the running test */
static int bad_tests;

/* Only the first few failures are printed: a wrong sum is wrong in every element. */
#define CHECK(cond)                                                                          \
    do {                                                                                     \
        if (!(cond) && failures++ < 5)                                                       \
            fprintf(stderr, "rank %d: %s:%d: %s\n", test_rank(), __FILE__, __LINE__, #cond); \
    } while (0)
#define CHECK_OK(call)                                                                                 \
    do {                                                                                               \
        if ((call) != SH_OK && failures++ < 5)                                                         \
            fprintf(stderr, "rank %d: %s:%d: %s\n", test_rank(), __FILE__, __LINE__, sh_error_text()); \
    } while (0)

static inline int test_rank(void)
{
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    return rank;
}

static inline int test_world(void)
{
    int world;
    MPI_Comm_size(MPI_COMM_WORLD, &world);
    return world;
}

/* Collective: ends one test. */
static inline void test_end(const char *name)
{
    if (sh_mesh_sum_i64(&failures, 1) != SH_OK)
        failures = 1;
    if (test_rank() == 0)
        printf("%s %s\n", failures == 0 ? "ok" : "FAIL", name);
    fflush(stdout);
    bad_tests += failures != 0;
    failures = 0;
}

/* The request for a mesh replicate x shard with groups of `inner`, for loops over all meshes that fit the job. */
static inline struct sh_mesh_request test_request(int shard, int inner)
{
    return (struct sh_mesh_request){.shard = shard, .replicate = test_world() / shard, .inner = inner};
}

#endif
