/* Preloaded into ranks: MPI_Init_thread stands still, so that a test can send signals while a run starts.
 *
 *   LATE_FOLDER=DIR    rank R makes DIR/before.R and waits for DIR/go-before, starts MPI, makes DIR/after.R and waits for
 *                      DIR/go-after
 *   LATE_LOAD=1        it also makes DIR/load.R and waits for DIR/go-load before main; not under a launcher, which would
 *                      wait too */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static const char *rank_here(void)
{
    const char *openmpi = getenv("OMPI_COMM_WORLD_RANK"), *mpich = getenv("PMI_RANK");

    return openmpi ? openmpi : mpich ? mpich : "0";
}

static void wait_at(const char *place)
{
    const char *folder = getenv("LATE_FOLDER");
    char here[4096], go[4096];
    FILE *f;

    if (!folder)
        return;
    snprintf(here, sizeof here, "%s/%s.%s", folder, place, rank_here());
    snprintf(go, sizeof go, "%s/go-%s", folder, place);
    f = fopen(here, "w");
    if (!f)
        abort();
    fclose(f);
    while (access(go, F_OK) != 0)
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
}

/* Before main: that of the program is the only code of its own that has run. */
__attribute__((constructor)) static void load(void)
{
    if (getenv("LATE_LOAD"))
        wait_at("load");
}

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
    int rc;

    wait_at("before");
    rc = PMPI_Init_thread(argc, argv, required, provided);
    wait_at("after");
    return rc;
}
