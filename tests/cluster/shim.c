/* Preloaded into the ranks of a job on the test cluster (tests/cluster/run). It makes a rank stand still at a chosen place of
 * training, so that the rank or its node can be killed just there, and gives one node a wrong clock or a slow network.
 *
 *   SHERD_TEST_PLAN=FILE     "PHASE RANK UPDATES": in `sherd train`, this rank stops in PHASE after so many updates and writes
 *                            "PID HOST" to FILE.here. Phases: start forward reduce checkpoint update.
 *   SHERD_TEST_REPLICAS=N    size of the replicate axis, by which a reduction over replicas is known
 *   SHERD_TEST_CLOCK=HOST    its clock is ahead
 *   SHERD_TEST_SLOW=HOST     its large messages are late */
#include <dlfcn.h>
#include <hdf5.h>
#include <mpi.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { PATH_BYTES = 4096, AHEAD_SECONDS = 5, LARGE_BYTES = 65536, LATE_NS = 200000000 };

static struct {
    bool on;
    char file[PATH_BYTES], phase[16];
    long updates;
} plan;
static atomic_long powers; /* two of them an update */

static bool this_is(const char *variable)
{
    char host[64] = "";
    const char *wanted = getenv(variable);

    return wanted && gethostname(host, sizeof host - 1) == 0 && !strcmp(host, wanted);
}

static bool trains(void)
{
    char words[256] = "";
    FILE *f = fopen("/proc/self/cmdline", "r");

    if (f) {
        if (fread(words, 1, sizeof words - 1, f) == 0)
            words[0] = '\0';
        fclose(f);
    }
    return !strcmp(words + strlen(words) + 1, "train");
}

__attribute__((constructor)) static void read_plan(void)
{
    const char *file = getenv("SHERD_TEST_PLAN"), *mine = getenv("SLURM_PROCID");
    FILE *f = file && mine && trains() ? fopen(file, "r") : NULL;
    int rank;

    if (!f)
        return;
    plan.on = fscanf(f, "%15s %d %ld", plan.phase, &rank, &plan.updates) == 3 && rank == atoi(mine);
    snprintf(plan.file, sizeof plan.file, "%s", file);
    fclose(f);
}

/* Stand still when the plan says so, until this process is killed. */
static void pass(const char *phase)
{
    char here[PATH_BYTES + 8], host[64] = "";
    FILE *f;

    if (!plan.on || strcmp(phase, plan.phase) != 0 || powers / 2 < plan.updates)
        return;
    gethostname(host, sizeof host - 1);
    snprintf(here, sizeof here, "%s.here", plan.file);
    f = fopen(here, "w");
    if (!f)
        abort();
    fprintf(f, "%d %s\n", getpid(), host);
    fclose(f);
    for (;;)
        pause();
}

/* The function of that name behind this one. */
#define NEXT(name) ((__typeof__(&(name)))dlsym(RTLD_NEXT, #name))

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
    int rc = PMPI_Init_thread(argc, argv, required, provided);

    pass("start");
    return rc;
}

/* The first logarithm after an update is in a forward: attention's, of the sums of its rows. Products would be those of a
 * library on some processors only. */
float logf(float x);
float logf(float x)
{
    pass("forward");
    return NEXT(logf)(x);
}

static void pass_collective(MPI_Comm comm)
{
    const char *replicas = getenv("SHERD_TEST_REPLICAS");
    int size;

    if (plan.on && replicas && PMPI_Comm_size(comm, &size) == MPI_SUCCESS && size == atoi(replicas))
        pass("reduce");
}

int MPI_Iallgather(const void *send, int n, MPI_Datatype type, void *recv, int m, MPI_Datatype recv_type, MPI_Comm comm,
                   MPI_Request *request)
{
    pass_collective(comm);
    return PMPI_Iallgather(send, n, type, recv, m, recv_type, comm, request);
}

int MPI_Isend(const void *data, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *request)
{
    pass_collective(comm);
    return PMPI_Isend(data, n, type, to, tag, comm, request);
}

int MPI_Send(const void *data, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm)
{
    if (n >= LARGE_BYTES && this_is("SHERD_TEST_SLOW"))
        nanosleep(&(struct timespec){.tv_nsec = LATE_NS}, NULL);
    return PMPI_Send(data, n, type, to, tag, comm);
}

herr_t H5Dwrite(hid_t set, hid_t type, hid_t memory, hid_t file, hid_t how, const void *data)
{
    pass("checkpoint");
    return NEXT(H5Dwrite)(set, type, memory, file, how, data);
}

/* The other way to a checkpoint. */
ssize_t pwrite(int fd, const void *data, size_t n, off_t at)
{
    pass("checkpoint");
    return syscall(SYS_pwrite64, fd, data, n, at);
}

ssize_t pwrite64(int fd, const void *data, size_t n, off64_t at)
{
    pass("checkpoint");
    return syscall(SYS_pwrite64, fd, data, n, at);
}

/* Only the update takes powers of numbers below one: the decays of Adam. */
double pow(double x, double y);
double pow(double x, double y)
{
    if (x > 0 && x < 1) {
        powers++;
        pass("update");
    }
    return NEXT(pow)(x, y);
}

int clock_gettime(clockid_t clock, struct timespec *t)
{
    int rc = (int)syscall(SYS_clock_gettime, clock, t);

    if (rc == 0 && clock == CLOCK_REALTIME && this_is("SHERD_TEST_CLOCK"))
        t->tv_sec += AHEAD_SECONDS;
    return rc;
}
