#include "src/base/log.h"
#include "src/mesh/mesh.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SPEAK_SECONDS = 2 };

#ifdef OPEN_MPI
#define SRUN_PROTOCOL "pmix"
#elif defined(I_MPI_VERSION)
#define SRUN_PROTOCOL "pmi2 (and I_MPI_PMI_LIBRARY=Slurm's libpmi2.so)"
#else
#define SRUN_PROTOCOL "pmi2"
#endif

static void (*take_mpi)(void *arg);
static void *take_mpi_arg;

void sh_mesh_own_mpi_hook(void (*take)(void *arg), void *arg)
{
    take_mpi = take;
    take_mpi_arg = arg;
}

/* Without a hook no progress thread has been started, so MPI already belongs to the caller. */
void sh_mesh_own_mpi(void)
{
    if (take_mpi != NULL)
        take_mpi(take_mpi_arg);
}

/* How launchers tell a process the number of ranks and its own rank, the variables closest to MPI first. SLURM_NTASKS
 * is not among them: it is also set in a batch script that starts one process on purpose. */
static const struct {
    const char *size, *rank;
} launchers[] = {
    {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
    {"PMI_SIZE", "PMI_RANK"},
    {"FLUX_JOB_SIZE", "FLUX_TASK_RANK"},
    {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID"},
};

/* Launchers set plain numbers; a missing variable counts as 0. */
static int number_of(const char *variable)
{
    const char *value = getenv(variable);
    return value != NULL ? atoi(value) : 0;
}

sh_rc sh_mesh_launch_check(int world)
{
    size_t i = 0, n = sizeof launchers / sizeof launchers[0];
    while (i < n && getenv(launchers[i].size) == NULL)
        i++;
    if (world > 1 || i == n || number_of(launchers[i].size) <= 1)
        return SH_OK;
    if (number_of(launchers[i].rank) > 0) {
        sh_error_clear();
        return SH_E_USAGE;
    }
    return sh_fail(
        SH_E_USAGE,
        "the launcher started %d ranks (%s), but MPI sees only one: launcher and MPI library do not match; start with "
        "srun --mpi=" SRUN_PROTOCOL ", or with the mpirun of the MPI that sherd was built with",
        number_of(launchers[i].size), launchers[i].size);
}

/* In a step of srun --mpi=none nothing tells the ranks about each other. Open MPI then ends the process, with a page of
 * text from each, so it is not called; other libraries turn into jobs of one rank, which are refused when MPI is up. */
static bool cannot_meet(void)
{
#ifdef OPEN_MPI
    return getenv("SLURM_STEP_NUM_TASKS") != NULL && getenv("PMIX_RANK") == NULL && getenv("PMI_RANK") == NULL;
#else
    return false;
#endif
}

/* Ranks that MPI does not bring together cannot wait for each other, and a launcher may end the job when the first of
 * them leaves: so the rank that says why leaves first. */
static sh_rc check_launch(int world)
{
    sh_rc rc = sh_mesh_launch_check(world);
    if (rc != SH_OK && sh_error_text()[0] == '\0')
        sleep(SPEAK_SECONDS);
    return rc;
}

static sh_rc (*before_start)(void);
static bool serialized;

void sh_mesh_before_start(sh_rc (*call)(void))
{
    before_start = call;
}

/* Without a launcher Open MPI 4 starts a daemon next to the process, so that the process could start others; that takes
 * a quarter of a short run's processor time. Without the daemon all such processes of a user share one session
 * directory in /tmp, which one of them removes while the next one makes it, and MPI_Init fails. A process alone needs
 * no session directory. */
static void start_alone(void)
{
    for (size_t i = 0; i < sizeof launchers / sizeof launchers[0]; i++)
        if (getenv(launchers[i].size) != NULL)
            return;
    if (getenv("PMIX_RANK") != NULL)
        return;
    setenv("OMPI_MCA_ess_singleton_isolated", "1", 0);
    setenv("OMPI_MCA_orte_create_session_dirs", "0", 0);
}

sh_rc sh_mesh_start(int *argc, char ***argv)
{
    /* Open MPI's shared file pointers, which Sherd does not need: those in shared memory leave a locked semaphore
     * behind when a job is killed, and the next job that opens a file of that name hangs; those in a locked file make
     * the other ranks hang when one of them cannot write that file, and leave it behind. */
    setenv("OMPI_MCA_sharedfp", "^sm,lockedfile", 0);
    start_alone();
    int provided, rank, world;
    if (cannot_meet())
        SH_TRY(check_launch(1));
    if (before_start != NULL)
        SH_TRY(before_start());
    SH_MPI(MPI_Init_thread(argc, argv, MPI_THREAD_SERIALIZED, &provided));
    sh_mesh_abort_by_mpi(true);
    sh_stop_hook(sh_mesh_abort);
    SH_TRY(sh_mesh_return_errors(MPI_COMM_WORLD));
    SH_TRY(sh_mesh_return_errors(MPI_COMM_SELF));
    SH_MPI(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
    SH_MPI(MPI_Comm_size(MPI_COMM_WORLD, &world));
    sh_log_set_rank(rank, world);
    serialized = provided >= MPI_THREAD_SERIALIZED;
    return check_launch(world);
}

bool sh_mesh_threads_may_call(void)
{
    return serialized;
}

/* Remove the hooks first: from here on a failure in MPI_Finalize must not try to abort through MPI. */
void sh_mesh_stop(void)
{
    sh_mesh_own_mpi();
    sh_stop_hook(NULL);
    sh_mesh_abort_by_mpi(false);
    int started, ranks;
    if (MPI_Initialized(&started) != MPI_SUCCESS || !started)
        return;
    if (sh_mesh_hear_all() == SH_OK && MPI_Comm_size(MPI_COMM_WORLD, &ranks) == MPI_SUCCESS)
        sh_mesh_end_finalizes(ranks);
    else
        sh_error_clear(); /* MPI_Finalize is tried all the same */
    MPI_Finalize();
}
