/* Checkpoints on failing storage: for each injected fault a save (or a load) either succeeds, and the file (or the
 * state) is right to the bit, or it is refused with one error class on all ranks and one text; earlier checkpoints are
 * untouched and nothing unfinished is left. One start of the job injects many faults:
 *
 *     ckpt_faults JOB FOLDER FIRST BUDGET SECONDS [TEXT]
 *
 * runs a job of the table below and injects BUDGET faults, evenly spread over those with TEXT in their description,
 * from place FIRST of these on; a stage of a save that hangs must be stopped after SECONDS. test_ckpt_faults.py starts
 * it, and starts it again after a fault that ended the job. On standard output: `at PLACE FAULT` before each one,
 * `bad PLACE FAULT: WHY`, `done ...` at the end. */
#include "tests/fault/plan.h"
#include "tests/mpi/ckpt_case.h"

#include "src/mesh/mesh.h"

#include <mpi.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BEFORE = 7, NEW = 8 };

struct file {
    char path[256];
    unsigned long long hash;
    long bytes;
};

struct job {
    const char *name;
    sh_rc (*run)(void);
    bool commits; /* a success leaves a new file */
    enum sh_cfg_io io_method;
    enum fault_end end; /* faults of this and higher ends must not cause a failure */
    int writers;        /* per node; 0: auto */
};

static const struct job *job;
static const char *folder;
static struct file before, after; /* the checkpoint that must stay; the expected new one */
static const struct fault *now;
static const char *wanted = "";
static double seconds;
static int place, bad, succeeded, refused, unmet;

static void name_file(struct file *f, int step)
{
    snprintf(f->path, sizeof f->path, "%s/step-%08d.h5", folder, step);
}

static void take_hash(struct file *f)
{
    f->hash = file_hash(f->path, &f->bytes);
}

static bool is_same(const struct file *f)
{
    long bytes;
    unsigned long long hash = file_hash(f->path, &bytes);
    return hash == f->hash && bytes == f->bytes;
}

static void complain(const char *what)
{
    bad++;
    printf("bad %d %s: %s\n", place, now->text, what);
    fflush(stdout);
}

static sh_rc save(int64_t step)
{
    struct sh_ckpt_set set = make_set(CUT_REPLICAS, true);
    struct sh_ckpt_meta meta = test_meta(step);
    struct sh_ckpt_options options = {
        .io_method = job->io_method, .hints = "", .timeout_seconds = seconds, .writers_per_node = job->writers};
    int64_t bytes;
    sh_rc rc = sh_ckpt_save(folder, &set, &meta, &options, &bytes);
    free_set(&set);
    return rc;
}

static sh_rc save_async(void)
{
    struct sh_ckpt_set set = make_set(CUT_REPLICAS, true);
    struct sh_ckpt_meta meta = test_meta(NEW);
    struct sh_ckpt_options options = {
        .io_method = SH_IO_DIRECT, .hints = "", .timeout_seconds = seconds, .writers_per_node = job->writers};
    struct sh_ckpt_async *behind = NULL;
    int64_t bytes;
    bool done;
    sh_rc rc = sh_ckpt_async_begin(folder, &set, &meta, &options, &behind);
    if (rc == SH_OK)
        rc = sh_ckpt_async_poll(behind, true, &done, &bytes);
    sh_ckpt_async_end(behind);
    free_set(&set);
    return rc;
}

static sh_rc save_new(void)
{
    return save(NEW);
}

/* A load that succeeds with wrong values is the worst outcome of all, so it has its own class. */
static sh_rc load(enum ckpt_cut cut, bool share)
{
    struct sh_ckpt_load_options options = {.timeout_seconds = seconds, .share = share};
    struct sh_ckpt_load_report report;
    struct sh_ckpt_set set = make_set(cut, false);
    struct sh_ckpt_meta meta = {0};
    sh_rc rc = sh_ckpt_load(before.path, &set, &options, &meta, &report);
    if (rc == SH_OK && (wrong_elements(&set) != 0 || meta.step != BEFORE))
        rc = sh_fail(SH_E_BUG, "loaded, but the state is wrong");
    sh_ckpt_meta_free(&meta);
    free_set(&set);
    return rc;
}

static sh_rc load_before(void)
{
    return load(CUT_REPLICAS, false);
}

static sh_rc load_shared(void)
{
    return load(CUT_EVERYTHING, true);
}

/* The new file may exist only if it is complete: either the save succeeded, or only the last step failed, which makes
 * the name durable. */
static void judge_folder(sh_rc rc)
{
    bool there = access(after.path, F_OK) == 0;
    if (!is_same(&before))
        complain("the checkpoint before is not what it was");
    if (there && !is_same(&after))
        complain("a bad checkpoint was committed");
    if (job->commits && rc == SH_OK && !there)
        complain("the save succeeded, but there is no file");
    if (files_in_folder() != 1 + there)
        complain("something unfinished was left behind");
}

/* All ranks must have the same class, and exactly one of them the text. */
static void judge_result(sh_rc rc, bool met)
{
    long long sums[] = {rc == SH_OK, rc == SH_E_DATA, sh_error_text()[0] != '\0', met};
    CHECK(sh_mesh_sum_i64(sums, sizeof sums / sizeof sums[0]) == SH_OK);
    if (sh_error_text()[0] && (rc != SH_E_DATA || now->end >= job->end))
        complain(sh_error_text());
    if (test_rank != 0)
        return;
    if (sums[0] != test_world && sums[1] != test_world)
        complain("the ranks have different classes, or one that is not about data");
    if (rc == SH_OK && now->end == OWN_MUST_FAIL && job->end == OWN_MUST_PASS)
        complain("the failure was not noticed");
    if (sums[2] != (rc == SH_OK ? 0 : 1))
        complain("not one text");
    unmet += sums[3] == 0;
    succeeded += rc == SH_OK;
    refused += rc != SH_OK;
}

/* Collective. */
static void inject(void)
{
    sh_error_clear();
    sh_mesh_barrier();
    if (now->rank == test_rank)
        shim_start(folder, NULL, now->plan);
    sh_rc rc = job->run();
    shim_stop();
    judge_result(rc, now->rank == test_rank && shim_met());
    if (test_rank == 0) {
        judge_folder(rc);
        unlink(after.path);
    }
}

/* Remove the new checkpoint, because a save looks at an existing file of its name. Collective. */
static void remove_new(void)
{
    if (test_rank == 0)
        unlink(after.path);
    sh_mesh_barrier();
}

/* Return the counts of calls of all ranks in a clean run, on all ranks. */
static long (*count_calls(void))[SHIM_CALLS]
{
    long own[SHIM_CALLS], (*all)[SHIM_CALLS] = calloc((size_t)test_world, sizeof *all);
    remove_new();
    shim_start(folder, NULL, (struct shim_plan){.fault = SHIM_NOTHING});
    CHECK(job->run() == SH_OK);
    shim_stop();
    remove_new();
    for (int c = 0; c < SHIM_CALLS; c++)
        own[c] = shim_count((enum shim_call)c);
    MPI_Allgather(own, SHIM_CALLS, MPI_LONG, all, SHIM_CALLS, MPI_LONG, MPI_COMM_WORLD);
    return all;
}

static void tell_counts(const long (*count)[SHIM_CALLS])
{
    for (int r = 0; test_rank == 0 && r < test_world; r++) {
        printf("rank %d:", r);
        for (int c = 0; c < SHIM_CALLS; c++)
            printf(" %s %ld", shim_call_name[c], count[r][c]);
        printf("\n");
    }
}

static int keep_wanted(struct fault *list, int n)
{
    int kept = 0;
    for (int i = 0; i < n; i++)
        if (strstr(list[i].text, wanted))
            list[kept++] = list[i];
    return kept;
}

static void tell_place(void)
{
    if (test_rank == 0)
        printf("at %d %s\n", place, now->text);
    fflush(stdout);
}

/* Inject `budget` of the faults, evenly spread over the list. */
static void inject_all(int first, int budget)
{
    struct fault *list;
    long(*count)[SHIM_CALLS] = count_calls();
    int n = fault_list((const long(*)[SHIM_CALLS])count, test_world, &list);
    n = keep_wanted(list, n);
    int taken = budget < n ? budget : n;
    tell_counts((const long(*)[SHIM_CALLS])count);
    for (place = first; place < taken; place++) {
        now = &list[(long)place * n / taken];
        tell_place();
        inject();
    }
    if (test_rank == 0)
        printf("done %d of %d: %d succeeded, %d refused, %d not met\n", taken, n, succeeded, refused, unmet);
    free(list);
    free(count);
}

static void make_references(void)
{
    name_file(&before, BEFORE);
    name_file(&after, NEW);
    CHECK(save(BEFORE) == SH_OK && save(NEW) == SH_OK);
    take_hash(&before);
    take_hash(&after);
    sh_mesh_barrier();
}

static const struct job jobs[] = {
    {"save-mpiio", save_new, true, SH_IO_MPIIO, MUST_PASS, 0},
    {"save-direct", save_new, true, SH_IO_DIRECT, OWN_MUST_PASS, EVERY_RANK},
    {"save-async", save_async, true, SH_IO_DIRECT, OWN_MUST_PASS, EVERY_RANK},
    {"save-passed", save_new, true, SH_IO_DIRECT, OWN_MUST_PASS, 1}, /* to one writer */
    {"async-passed", save_async, true, SH_IO_DIRECT, OWN_MUST_PASS, 1},
    {"load", load_before, false, SH_IO_AUTO, OWN_MUST_PASS, EVERY_RANK},
    {"load-shared", load_shared, false, SH_IO_AUTO, OWN_MUST_PASS, EVERY_RANK},
};

static const struct job *find_job(const char *name)
{
    for (size_t i = 0; i < sizeof jobs / sizeof jobs[0]; i++)
        if (strcmp(jobs[i].name, name) == 0)
            return &jobs[i];
    return NULL;
}

int main(int argc, char **argv)
{
    CHECK(sh_mesh_start(&argc, &argv) == SH_OK);
    MPI_Comm_rank(MPI_COMM_WORLD, &test_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &test_world);
    CHECK(argc >= 6);
    job = find_job(argv[1]);
    CHECK(job);
    folder = argv[2];
    seconds = atof(argv[5]);
    wanted = argc > 6 ? argv[6] : "";
    use_small_model();
    use_folder(folder);
    make_references();
    inject_all(atoi(argv[3]), atoi(argv[4]));
    CHECK(save(NEW) == SH_OK && is_same(&after));
    sh_mesh_stop();
    return bad != 0;
}
