/* The mesh on real ranks: groups, agreement, small helpers, mismatched launchers. */
#include "tests/mpi/mpitest.h"

#include <stdlib.h>
#include <string.h>

static void check_mesh(int shard, int inner)
{
    struct sh_mesh *mesh = NULL;
    struct sh_mesh_request req = test_request(shard, inner);
    CHECK_OK(sh_mesh_create(&req, &mesh));
    if (mesh == NULL)
        return;
    for (sh_group g = 0; g <= sh_group_world(&mesh->shape); g++) {
        int rank, size;
        CHECK(sh_mesh_comm(mesh, g) == MPI_COMM_NULL);
        CHECK_OK(sh_mesh_open(mesh, g));
        CHECK_OK(sh_mesh_open(mesh, g)); /* it is */
        MPI_Comm_rank(sh_mesh_comm(mesh, g), &rank);
        MPI_Comm_size(sh_mesh_comm(mesh, g), &size);
        CHECK(rank == sh_group_index(&mesh->shape, g) && size == sh_group_size(&mesh->shape, g));
    }
    CHECK(mesh->n_groups == 1 << SH_AXES);
    CHECK(mesh->world == test_world() && mesh->rank == test_rank());
    CHECK(mesh->n_nodes == 1 && mesh->node == 0 && mesh->node_size == test_world());
    CHECK_OK(sh_mesh_self_test(mesh));
    sh_mesh_destroy(mesh);
}

static void test_groups(void)
{
    for (int shard = 1; shard <= test_world(); shard++)
        for (int inner = 1; inner <= shard; inner++)
            if (test_world() % shard == 0 && shard % inner == 0)
                check_mesh(shard, inner);
    test_end("groups of axes");
}

/* Two replicas are swapped: every communicator has the right size, and yet the mesh is wrong. */
static void test_self_test_finds(void)
{
    struct sh_mesh *mesh = NULL;
    struct sh_mesh_request req = test_request(test_world(), 1);
    CHECK_OK(sh_mesh_create(&req, &mesh));
    CHECK_OK(sh_mesh_open(mesh, mesh->shape.shard));
    MPI_Comm turned, right = mesh->groups[0].comm;
    MPI_Comm_split(MPI_COMM_WORLD, 0, -test_rank(), &turned);
    mesh->groups[0].comm = turned;
    sh_rc rc = sh_mesh_self_test(mesh);
    CHECK(rc == (test_world() > 1 ? SH_E_COMM : SH_OK));
    mesh->groups[0].comm = right;
    MPI_Comm_free(&turned);
    sh_mesh_destroy(mesh);
    test_end("self-test finds a wrong group");
}

static sh_rc send_to_nobody(void)
{
    int x = 0;
    SH_MPI(MPI_Send(&x, 1, MPI_INT, test_world(), 0, MPI_COMM_WORLD));
    return SH_OK;
}

/* Whatever library is loaded: it neither ends the job nor keeps the error to itself. */
static void test_errors_come_back(void)
{
    CHECK(send_to_nobody() == SH_E_COMM);
    sh_error_clear();
    test_end("errors of MPI come back");
}

static void test_refused(void)
{
    struct sh_mesh *mesh = NULL;
    struct sh_mesh_request req = {.shard = 5, .replicate = 7, .inner = 1};
    CHECK(sh_mesh_create(&req, &mesh) == SH_E_USAGE);
    CHECK(mesh == NULL);
    CHECK((sh_error_text()[0] != '\0') == (test_rank() == 0)); /* one rank has the text */
    test_end("a mesh that does not fit");
}

static void test_agree(void)
{
    int last = test_world() - 1;
    CHECK(sh_agree(SH_OK) == SH_OK);
    for (int who = 0; who <= last; who++) {
        sh_error_clear();
        bool fails = test_rank() >= who;
        sh_rc mine = fails ? sh_fail(test_rank() == who ? SH_E_DATA : SH_E_MEMORY, "no file") : SH_OK;
        CHECK(sh_agree(mine) == SH_E_DATA);
        char expected[64];
        snprintf(expected, sizeof expected, who == 0 ? "no file" : "rank %d: no file", who);
        CHECK(strcmp(sh_error_text(), test_rank() == who ? expected : "") == 0);
        CHECK(sh_agree(SH_E_DATA) == SH_E_DATA); /* a caller may agree again on something that has been agreed on */
        CHECK(strcmp(sh_error_text(), test_rank() == who ? expected : "") == 0);
    }
    test_end("agree");
}

static void test_helpers(void)
{
    int world = test_world(), rank = test_rank();
    char word[16] = "";
    if (rank == world - 1)
        strcpy(word, "from the last");
    CHECK_OK(sh_mesh_bcast(word, sizeof word, world - 1));
    CHECK(strcmp(word, "from the last") == 0);
    double most[2] = {rank, -rank};
    CHECK_OK(sh_mesh_max(most, 2));
    CHECK(most[0] == world - 1 && most[1] == 0);
    long long sum = rank;
    CHECK_OK(sh_mesh_sum_i64(&sum, 1));
    CHECK(sum == (long long)world * (world - 1) / 2);
    CHECK(sh_mesh_same(0xfedcba9876543210u));
    CHECK(sh_mesh_same((unsigned long long)rank) == (world == 1));
    int node_rank, node_size, smallest;
    CHECK_OK(sh_mesh_nodes(&node_rank, &node_size, &smallest));
    CHECK(node_rank == rank && node_size == world && smallest == world);
    uint64_t bits[2] = {UINT64_C(1) << rank, 8};
    CHECK_OK(sh_mesh_or_on_node(bits, 2));
    CHECK(bits[0] == (UINT64_C(1) << world) - 1 && bits[1] == 8);
    test_end("helpers");
}

static const char *const launcher[][2] = {{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
                                          {"PMI_SIZE", "PMI_RANK"},
                                          {"FLUX_JOB_SIZE", "FLUX_TASK_RANK"},
                                          {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID"}};
enum { LAUNCHERS = sizeof launcher / sizeof launcher[0] };

static sh_rc launched_with(int i, const char *size, const char *rank)
{
    setenv(launcher[i][0], size, 1);
    setenv(launcher[i][1], rank, 1);
    sh_rc rc = sh_mesh_launch_check(1);
    unsetenv(launcher[i][0]);
    unsetenv(launcher[i][1]);
    return rc;
}

static void test_launchers(void)
{
    for (int i = 0; i < LAUNCHERS; i++) /* the real launcher's */
        unsetenv(launcher[i][0]);
    for (int i = 0; i < LAUNCHERS; i++) {
        CHECK(launched_with(i, "4", "0") == SH_E_USAGE && strstr(sh_error_text(), launcher[i][0]));
        CHECK(launched_with(i, "4", "3") == SH_E_USAGE && sh_error_text()[0] == '\0');
        CHECK(launched_with(i, "1", "0") == SH_OK);
    }
    setenv("SLURM_NTASKS", "8", 1); /* a batch script that starts one process */
    CHECK(sh_mesh_launch_check(1) == SH_OK);
    setenv("SLURM_STEP_NUM_TASKS", "4", 1); /* mpirun -n 1 inside a step of 4 */
    CHECK(launched_with(0, "1", "0") == SH_OK);
    CHECK(sh_mesh_launch_check(4) == SH_OK);
    sh_error_clear();
    test_end("launchers that do not match");
}

static bool late;        /* what this rank waits for comes with the next question for messages */
static MPI_Request sent; /* to this rank itself */
static int word = 1;

int MPI_Iprobe(int from, int tag, MPI_Comm comm, int *there, MPI_Status *status)
{
    int rc = PMPI_Iprobe(from, tag, comm, there, status);

    if (late && !*there) {
        late = false;
        PMPI_Isend(&word, 1, MPI_INT, 0, 0, MPI_COMM_SELF, &sent);
    }
    return rc;
}

/* A rank is late, and a lower one waits too, so this one gives it time to speak; what is waited for comes in that time,
 * and nobody stops the job. Rank 0 plays the lower one with the message that it would send. */
static void test_late(void)
{
    enum { TAG = 77, FIRST_WAIT = 1 };
    int got = 0, wait = FIRST_WAIT, there;
    MPI_Request request;

    for (int to = 1; test_rank() == 0 && to < test_world(); to++)
        MPI_Send(&wait, 1, MPI_INT, to, TAG, MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);
    late = true;
    if (test_rank() == 0)
        MPI_Iprobe(MPI_ANY_SOURCE, TAG + 1, MPI_COMM_WORLD, &there, MPI_STATUS_IGNORE);
    MPI_Irecv(&got, 1, MPI_INT, 0, 0, MPI_COMM_SELF, &request);
    sh_mesh_timeout(0.05);
    CHECK_OK(sh_mesh_wait(&request));
    CHECK(got == 1);
    MPI_Wait(&sent, MPI_STATUS_IGNORE);
    sh_mesh_timeout(0);
    CHECK_OK(sh_mesh_hear_all());
    PMPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &there, MPI_STATUS_IGNORE);
    CHECK(!there); /* MPI must not be ended with messages on their way */
    test_end("a wait that ends while a lower rank may speak");
}

int main(int argc, char **argv)
{
    sh_rc rc = sh_mesh_start(&argc, &argv);
    if (rc == SH_OK) {
        test_late(); /* the first wait of this process */
        test_groups();
        test_self_test_finds();
        test_errors_come_back();
        test_refused();
        test_agree();
        test_helpers();
        test_launchers();
    }
    int status = sh_mesh_report(rc);
    sh_mesh_stop();
    return status != 0 ? status : bad_tests > 0;
}
