/* Loading needs no memory except the rank's own shard and a fixed buffer. The kernel is the witness, twice: the load
 * succeeds with room for SPARE_BYTES in addition to the program and its shard (RLIMIT_DATA, which counts all private
 * memory, touched or not), and the peak resident size grows by no more than that. On one and two ranks, and on all with
 * SHERD_LONG=1, each rank also loads the whole file, so that its shard is several times SPARE_BYTES.
 * Under tests/mpi/run the first job saves one file, which the jobs of all numbers of ranks load. */
#include "tests/mpi/ckpt_case.h"

#include "src/mesh/mesh.h"

#include <fcntl.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { STEP = 7, SPARE_BYTES = 64 << 20 };

/* Read a line of /proc/self/status, in bytes. */
static int64_t status(const char *name)
{
    char line[256];
    long long kilobytes = -1;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, name, strlen(name)) == 0)
            sscanf(line + strlen(name), ": %lld", &kilobytes);
    if (f)
        fclose(f);
    CHECK(kilobytes >= 0);
    return kilobytes * 1024;
}

static rlim_t limit_data(rlim_t bytes)
{
    struct rlimit r;
    CHECK(getrlimit(RLIMIT_DATA, &r) == 0);
    rlim_t before = r.rlim_cur;
    r.rlim_cur = bytes;
    CHECK(setrlimit(RLIMIT_DATA, &r) == 0);
    return before;
}

/* Reset VmHWM to the current resident size. */
static void forget_peak(void)
{
    int fd = open("/proc/self/clear_refs", O_WRONLY);
    CHECK(fd >= 0 && write(fd, "5", 1) == 1);
    close(fd);
}

static bool can_have(size_t bytes)
{
    void *volatile data = malloc(bytes);
    free(data);
    return data != NULL;
}

static void load(const char *path, enum ckpt_cut cut)
{
    struct sh_ckpt_set set = make_set(cut, false);
    struct sh_ckpt_meta meta;
    int64_t resident = status("VmRSS");
    rlim_t before = limit_data((rlim_t)(status("VmData") + SPARE_BYTES));
    CHECK(!can_have(SPARE_BYTES + (1 << 20)));
    forget_peak();
    CHECK(load_set(path, &set, &meta) == SH_OK);
    long long grown = status("VmHWM") - resident;
    limit_data(before);
    CHECK(meta.step == STEP && wrong_elements(&set) == 0);
    CHECK(grown <= SPARE_BYTES);
    MPI_Allreduce(MPI_IN_PLACE, &grown, 1, MPI_LONG_LONG, MPI_MAX, MPI_COMM_WORLD);
    if (test_rank == 0)
        printf("%d ranks, %s: at most %lld KiB beside the shard\n", test_world,
               cut == CUT_FLAT ? "each its part" : "each all", grown / 1024);
    sh_ckpt_meta_free(&meta);
    free_set(&set);
}

static void save(const char *folder)
{
    struct sh_ckpt_set set = make_set(CUT_FLAT, true);
    struct sh_ckpt_meta meta = test_meta(STEP);
    int64_t bytes;
    CHECK(save_set(folder, &set, &meta, &bytes) == SH_OK);
    CHECK(bytes > 200000000);
    free_set(&set);
}

int main(int argc, char **argv)
{
#ifdef __SANITIZE_ADDRESS__
    printf("nothing is measured: the address sanitizer takes memory of its own\n");
    return 0;
#endif
    CHECK(sh_mesh_start(&argc, &argv) == SH_OK);
    MPI_Comm_rank(MPI_COMM_WORLD, &test_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &test_world);
    bool runner = getenv("RANKS") != NULL;
    const char *folder = runner ? ".." : make_folder();
    char path[300];
    use_big_model();
    snprintf(path, sizeof path, "%s/step-%08d.h5", folder, STEP);
    bool there = access(path, F_OK) == 0;
    sh_mesh_barrier();
    if (!there)
        save(folder);
    load(path, CUT_FLAT);
    if (test_world <= 2 || getenv("SHERD_LONG"))
        load(path, CUT_EVERYTHING);
    if (!runner)
        remove_folder();
    sh_mesh_stop();
    return 0;
}
