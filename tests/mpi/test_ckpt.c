/* The file has the same bytes whatever the ranks, the cut and the I/O method that saved it, and the same values
 * whatever the ranks and the cut that load it.
 * test_ckpt REFERENCE: also compare with the file that an earlier run, on other ranks or another MPI, left as REFERENCE
 * (written if it is missing). tests/mpi/run compares the runs on 1, 2, 3, ... ranks in this way. */
#include "tests/mpi/ckpt_case.h"

#include "src/mesh/mesh.h"

#include <fcntl.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char path[256], path_of_eight[256];

static void load_and_compare(enum ckpt_cut cut, bool share)
{
    struct sh_ckpt_set set = make_set(cut, false);
    struct sh_ckpt_meta meta, expected = test_meta(7);
    struct sh_ckpt_load_options options = {.timeout_seconds = 200, .share = share};
    struct sh_ckpt_load_report report;
    CHECK(sh_ckpt_load(path, &set, &options, &meta, &report) == SH_OK && !report.damaged);
    CHECK(wrong_elements(&set) == 0);
    CHECK(meta.step == 7 && meta.samples == expected.samples && meta.tokens == expected.tokens);
    CHECK(meta.updates == expected.updates);
    CHECK(strcmp(meta.config, expected.config) == 0 && strcmp(meta.guard, "") == 0);
    sh_ckpt_meta_free(&meta);
    free_set(&set);
}

/* Save, and return the hash of the file, which depends on how the file was verified, because the file records that. */
static unsigned long long save(const char *folder, enum ckpt_cut cut, enum sh_cfg_verify verify)
{
    struct sh_ckpt_set set = make_set(cut, true);
    struct sh_ckpt_meta meta = test_meta(7);
    int64_t bytes = 0;
    long found;
    struct sh_ckpt_options options = {.io_method = (int)cut % 2 ? SH_IO_DIRECT : SH_IO_MPIIO,
                                      .timeout_seconds = 200,
                                      .verify = verify,
                                      .hints = (int)cut % 4 ? "" : "cb_nodes=1,romio_cb_write=disable"};
    CHECK(sh_ckpt_save(folder, &set, &meta, &options, &bytes) == SH_OK);
    free_set(&set);
    sh_mesh_barrier();
    unsigned long long hash = file_hash(path, &found);
    CHECK(found == bytes);
    CHECK(files_in_folder() == 1);
    sh_mesh_barrier();
    return hash;
}

/* The same in the background of other work. */
static void save_async(const char *folder, bool wait, unsigned long long expected)
{
    struct sh_ckpt_set set = make_set(CUT_CRUMBS, true);
    struct sh_ckpt_meta meta = test_meta(7);
    struct sh_ckpt_options options = {.hints = "", .timeout_seconds = 200};
    struct sh_ckpt_async *b;
    int64_t bytes = 0;
    bool done = false;
    long found;
    CHECK(sh_ckpt_async_check(folder, &options) == SH_OK);
    CHECK(sh_ckpt_async_begin(folder, &set, &meta, &options, &b) == SH_OK);
    while (!done)
        CHECK(sh_ckpt_async_poll(b, wait, &done, &bytes) == SH_OK);
    sh_ckpt_async_end(b);
    free_set(&set);
    sh_mesh_barrier();
    CHECK(file_hash(path, &found) == expected && found == bytes && files_in_folder() == 1);
    sh_mesh_barrier();
}

/* A save that is abandoned half-way leaves nothing behind, and earlier files are untouched. */
static void abandon(const char *folder, unsigned long long expected)
{
    struct sh_ckpt_set set = make_set(CUT_FLAT, true);
    struct sh_ckpt_meta meta = test_meta(8);
    struct sh_ckpt_options options = {.hints = ""};
    struct sh_ckpt_async *b;
    int64_t bytes;
    bool done;
    long found;
    CHECK(sh_ckpt_async_begin(folder, &set, &meta, &options, &b) == SH_OK);
    CHECK(sh_ckpt_async_poll(b, false, &done, &bytes) == SH_OK);
    sh_ckpt_async_end(b);
    free_set(&set);
    if (test_rank == 0 && done)
        CHECK(unlink(strcat(strcpy(path_of_eight, folder), "/step-00000008.h5")) == 0);
    sh_mesh_barrier();
    CHECK(file_hash(path, &found) == expected && files_in_folder() == 1);
    sh_mesh_barrier();
}

/* A rank that its job has given up for lost may still write, but no file of its gets a name. */
static void taken_over(const char *folder, unsigned long long expected)
{
    struct sh_ckpt_set set = make_set(CUT_FLAT, true);
    struct sh_ckpt_meta meta = test_meta(8);
    struct sh_ckpt_options options = {.hints = "", .threads = 1};
    struct sh_ckpt_lock *lock = NULL;
    char file[300];
    int64_t bytes;
    long found;
    snprintf(file, sizeof file, "%s/.lock", folder);
    if (test_rank == 0)
        CHECK(sh_ckpt_lock(folder, &lock) == SH_OK && sh_ckpt_lock_check(lock, folder) == SH_OK && unlink(file) == 0);
    options.lock = lock;
    check_fails(sh_ckpt_save(folder, &set, &meta, &options, &bytes), SH_E_COMM, ".lock has been replaced or removed");
    sh_ckpt_unlock(lock);
    free_set(&set);
    CHECK(file_hash(path, &found) == expected && files_in_folder() == 1);
    sh_mesh_barrier();
}

/* The bytes are the same for every cut, so loading the first two files, one shared and one not, in all ways covers all
 * files: the other files are loaded with two cuts each, with SHERD_LONG in all. */
static void load_cuts(enum ckpt_cut saved)
{
    bool all = saved <= CUT_FLAT || getenv("SHERD_LONG");
    for (int load = 0; load < CUTS; load++)
        if (all || load == (int)saved || load == (int)saved + 1)
            load_and_compare((enum ckpt_cut)load, saved % 2 == 0);
}

static void every_cut(const char *folder)
{
    unsigned long long first = save(folder, CUT_FIRST_RANK, SH_VERIFY_DISK);
    unsigned long long expected[] = {[SH_VERIFY_DISK] = first,
                                     [SH_VERIFY_CACHE] = save(folder, CUT_FIRST_RANK, SH_VERIFY_CACHE),
                                     [SH_VERIFY_OFF] = save(folder, CUT_FIRST_RANK, SH_VERIFY_OFF)};
    for (int cut = CUT_LAST_RANK; cut < CUT_EVERYTHING; cut++) {
        CHECK(save(folder, (enum ckpt_cut)cut, (enum sh_cfg_verify)(cut / 2 % 3)) == expected[cut / 2 % 3]);
        load_cuts((enum ckpt_cut)cut);
    }
    save_async(folder, false, first);
    save_async(folder, true, first);
    abandon(folder, first);
    taken_over(folder, first);
}

/* Bytes that this process has asked the kernel to read so far. */
static long long bytes_read(void)
{
    long long n = -1;
    FILE *f = fopen("/proc/self/io", "r");
    if (f && fscanf(f, "rchar: %lld", &n) != 1)
        n = -1;
    if (f)
        fclose(f);
    return n;
}

/* Each rank loads its own part, or all ranks load everything: together they read the file once. */
static void read_once(enum ckpt_cut cut, bool share)
{
    long bytes;
    long long before = bytes_read(), after;
    load_and_compare(cut, share);
    after = before < 0 ? 0 : bytes_read() - before;
    CHECK(sh_mesh_sum_i64(&after, 1) == SH_OK && file_hash(path, &bytes));
    CHECK(before < 0 || (double)after <= 1.02 * (double)bytes);
}

/* One rank reads the damaged block, and all must learn about it. */
static void shared_damage(void)
{
    struct sh_ckpt_load_options options = {.share = true};
    struct sh_ckpt_load_report report;
    struct sh_ckpt_set set = make_set(CUT_EVERYTHING, false);
    struct sh_ckpt_meta meta;
    FILE *f = test_rank == 0 ? fopen(path, "r+b") : NULL;
    int byte = 0;
    CHECK(!f || (fseek(f, -3000, SEEK_END) == 0 && (byte = fgetc(f)) != EOF && fseek(f, -3000, SEEK_END) == 0));
    CHECK(!f || (fputc(byte ^ 16, f) != EOF && fflush(f) == 0));
    sh_mesh_barrier();
    check_fails(sh_ckpt_load(path, &set, &options, &meta, &report), SH_E_DATA, "block");
    CHECK(report.damaged);
    CHECK(!f || (fseek(f, -3000, SEEK_END) == 0 && fputc(byte, f) != EOF && fclose(f) == 0));
    sh_mesh_barrier();
    free_set(&set);
}

static void only_some_states(void)
{
    struct sh_ckpt_set set = make_set(CUT_FLAT, false);
    struct sh_ckpt_meta meta;
    for (int i = 0; i < set.n_pieces; i++) {
        struct sh_ckpt_piece *p = (struct sh_ckpt_piece *)&set.pieces[i];
        free(p->data[EXP_AVG].whole);
        p->data[EXP_AVG] = (struct sh_floats){0};
    }
    CHECK(load_set(path, &set, &meta) == SH_OK);
    CHECK(wrong_elements(&set) == 0);
    sh_ckpt_meta_free(&meta);
    free_set(&set);
}

/* The states of another optimizer come back, and a run with AdamW takes only the parameters from the file. */
static void other_states(const char *folder)
{
    static const char *const names[] = {"momentum"}, *const bases[] = {"sum: 0123456789abcdef\npath: /models/a\n", ""};
    char file[300], *text;
    struct sh_ckpt_load_options options = {.share = true};
    struct sh_ckpt_load_report report;
    struct sh_ckpt_meta meta = test_meta(3);
    size_t length;
    int64_t bytes;
    snprintf(file, sizeof file, "%s/other/step-00000003.h5", folder);
    char *end = strrchr(file, '/');
    for (int n = 0; n < 2; n++) {
        test_states = sh_ckpt_states_of(names, n);
        meta.base = (char *)(uintptr_t)bases[n];
        struct sh_ckpt_set saved = make_set(CUT_CRUMBS, true), own = make_set(CUT_FLAT, false);
        *end = '\0';
        CHECK(save_set(file, &saved, &meta, &bytes) == SH_OK);
        *end = '/';
        CHECK(sh_ckpt_load(file, &own, &options, &meta, &report) == SH_OK && wrong_elements(&own) == 0);
        CHECK(strcmp(meta.base, bases[n]) == 0);
        sh_ckpt_meta_free(&meta);
        meta = test_meta(3);
        free_set(&saved);
        free_set(&own);
    }
    test_states = sh_ckpt_states_1;
    struct sh_ckpt_set adam = make_set(CUT_FLAT, false);
    check_fails(sh_ckpt_load(file, &adam, &options, &meta, &report), SH_E_DATA, "has no optimizer/exp_avg, which");
    CHECK(!report.damaged);
    adam.states.n = 1;
    CHECK(sh_ckpt_load(file, &adam, &options, &meta, &report) == SH_OK && wrong_elements(&adam) == 0);
    sh_ckpt_meta_free(&meta);
    free_set(&adam);
    FILE *out = open_memstream(&text, &length);
    CHECK(sh_ckpt_info(file, SH_CKPT_INFO_TENSORS | SH_CKPT_INFO_CONFIG, out) == SH_OK &&
          sh_ckpt_verify(file, out) == SH_OK);
    CHECK(sh_ckpt_diff(file, path, 0, out) == SH_E_DATA);
    sh_error_clear();
    fclose(out);
    CHECK(strstr(text, "checkpoint 2.1,") && strstr(text, "for each: model optimizer/momentum\n"));
    CHECK(strstr(text, "optimizer/momentum: in ") && strstr(text, "optimizer/exp_avg_sq: in "));
    CHECK(!strstr(text, "model/"));
    free(text);
    sh_mesh_barrier();
    if (test_rank == 0) {
        unlink(file);
        *end = '\0';
        rmdir(file);
    }
    sh_mesh_barrier();
}

/* Calls that one process can make without a mesh. */
static void serial_calls(const char *folder)
{
    struct sh_ckpt_meta meta;
    char *newest, *text;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    CHECK(sh_ckpt_read_meta(path, &meta) == SH_OK && meta.step == 7);
    sh_ckpt_meta_free(&meta);
    CHECK(sh_ckpt_info(path, SH_CKPT_INFO_TENSORS | SH_CKPT_INFO_CONFIG, out) == SH_OK &&
          sh_ckpt_verify(path, out) == SH_OK);
    fclose(out);
    CHECK(strstr(text, "layers.1.deep.weight f32 [2,3,5,7]") && strstr(text, "all digests match"));
    free(text);
    CHECK(sh_ckpt_newest(folder, &newest) == SH_OK && strcmp(newest, path) == 0);
    free(newest);
    CHECK(sh_ckpt_newest_before(folder, 7, &newest) == SH_OK && !newest);
    CHECK(sh_ckpt_newest("/nowhere/at/all", &newest) == SH_OK && !newest);
}

/* Names are ordered as numbers, and unfinished or foreign files are ignored. */
static void newest_by_step(const char *folder)
{
    static const char *const names[] = {"step-00000009.h5",
                                        "step-00000100.h5",
                                        "step-123456789.h5",
                                        "step-00000100.h5.bak",
                                        ".step-99999999.h5.12ab.tmp",
                                        "step-9999999999999999999999.h5",
                                        "step-5.h5"};
    char name[300], *newest;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(name, sizeof name, "%s/%s", folder, names[i]);
        fclose(fopen(name, "w"));
    }
    CHECK(sh_ckpt_newest(folder, &newest) == SH_OK && strstr(newest, "/step-123456789.h5"));
    free(newest);
    CHECK(sh_ckpt_newest_before(folder, 100, &newest) == SH_OK && strstr(newest, "/step-00000009.h5"));
    free(newest);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(name, sizeof name, "%s/%s", folder, names[i]);
        unlink(name);
    }
}

/* A step that is saved again gets a new file: a reader of the old one continues to read the old one. */
static void never_in_place(const char *folder)
{
    struct sh_ckpt_set set = make_set(CUT_FLAT, true);
    struct sh_ckpt_meta meta = test_meta(7);
    struct stat before, after;
    int64_t bytes;
    meta.tokens++;
    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0 && fstat(fd, &before) == 0);
    sh_mesh_barrier();
    CHECK(save_set(folder, &set, &meta, &bytes) == SH_OK);
    CHECK(stat(path, &after) == 0 && after.st_ino != before.st_ino);
    CHECK(fstat(fd, &after) == 0 && after.st_size == before.st_size && after.st_nlink == 0);
    CHECK(memcmp(&after.st_mtim, &before.st_mtim, sizeof before.st_mtim) == 0);
    close(fd);
    free_set(&set);
}

/* Missing parent folders are created, and files get no more permissions than wanted even if the umask allows all. */
static void modes(const char *folder)
{
    char deep[256], file[300];
    struct sh_ckpt_set set = make_set(CUT_FLAT, true);
    struct sh_ckpt_meta meta = test_meta(1);
    struct stat st;
    int64_t bytes;
    mode_t old = umask(0);
    snprintf(deep, sizeof deep, "%s/a/b", folder);
    snprintf(file, sizeof file, "%s/step-00000001.h5", deep);
    CHECK(save_set(deep, &set, &meta, &bytes) == SH_OK);
    umask(old);
    CHECK(stat(deep, &st) == 0 && (st.st_mode & 0777) == 0750);
    CHECK(stat(file, &st) == 0 && (st.st_mode & 0777) == 0640);
    free_set(&set);
}

static void compare_with_reference(const char *reference)
{
    char command[700];
    long bytes;
    if (test_rank != 0)
        return;
    if (access(reference, F_OK) != 0) {
        snprintf(command, sizeof command, "cp '%s' '%s'", path, reference);
        CHECK(system(command) == 0);
    }
    CHECK(file_hash(path, &bytes) == file_hash(reference, &bytes));
}

/* A run would take over the guard's state only after the load, too late for an older checkpoint. */
static void guard_is_read(const char *folder)
{
    static const char *const guards[] = {"\xff\xe2\x80\xa8", "1 0x1p+0 0x1p+0 0; loss_scale 3 0 1"};
    struct sh_ckpt_set set = make_set(CUT_FLAT, true);
    struct sh_ckpt_meta meta = test_meta(7);
    int64_t bytes;
    for (int i = 0; i < 2; i++) {
        meta.guard = (char *)(uintptr_t)guards[i];
        check_fails(save_set(folder, &set, &meta, &bytes), SH_E_DATA, "in the checkpoint is not readable");
    }
    meta.guard = (char *)"1 0x1p+0 0x1p+0 0; loss_scale 0x1p+1 0 1";
    CHECK(save_set(folder, &set, &meta, &bytes) == SH_OK);
    free_set(&set);
}

int main(int argc, char **argv)
{
    CHECK(sh_mesh_start(&argc, &argv) == SH_OK);
    MPI_Comm_rank(MPI_COMM_WORLD, &test_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &test_world);
    const char *folder = make_folder();
    snprintf(path, sizeof path, "%s/step-00000007.h5", folder);
    every_cut(folder);
    read_once(CUT_FLAT, false);
    read_once(CUT_EVERYTHING, true);
    read_once(CUT_REPLICAS, true);
    shared_damage();
    only_some_states();
    other_states(folder);
    if (test_rank == 0) {
        serial_calls(folder);
        newest_by_step(folder);
    }
    sh_mesh_barrier();
    if (argc > 1)
        compare_with_reference(argv[1]);
    else if (getenv("RANKS")) /* the runner gives each number of ranks its own folder next to the others */
        compare_with_reference("../reference.h5");
    never_in_place(folder);
    modes(folder);
    guard_is_read(folder);
    remove_folder();
    if (test_rank == 0)
        printf("test_ckpt: %d ranks: ok\n", test_world);
    sh_mesh_stop();
    return 0;
}
