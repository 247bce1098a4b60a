/* Damaged files, files of another model and faults during a save: one error for all ranks, and nothing lost. */
#include "tests/mpi/ckpt_case.h"

#include "io/checkpoint/file/edge.h"
#include "src/mesh/mesh.h"

#include <fcntl.h>
#include <mpi.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DATA_BEGIN = 94208 }; /* in the test model's file; everything before is metadata */

static char path[256];
static long bytes;
static unsigned long long good_hash;
static uint64_t random_state = 12345; /* the same on all ranks */

static long random_below(long n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (long)((random_state >> 20) % (uint64_t)n);
}

static enum sh_cfg_io io_method = SH_IO_MPIIO;
static bool behind;

static sh_rc save_async(const char *folder, const struct sh_ckpt_set *set, const struct sh_ckpt_meta *meta,
                        const struct sh_ckpt_options *options)
{
    struct sh_ckpt_async *b = NULL;
    int64_t written;
    bool done = false;
    sh_rc rc = sh_ckpt_async_begin(folder, set, meta, options, &b);
    while (rc == SH_OK && !done)
        rc = sh_ckpt_async_poll(b, false, &done, &written);
    sh_ckpt_async_end(b);
    return rc;
}

static sh_rc save_step(const char *folder, int64_t step)
{
    struct sh_ckpt_options options = {.io_method = io_method, .hints = "", .writers_per_node = EVERY_RANK};
    struct sh_ckpt_set set = make_set(CUT_FLAT, true);
    struct sh_ckpt_meta meta = test_meta(step);
    int64_t written;
    sh_rc rc = behind ? save_async(folder, &set, &meta, &options)
                      : sh_ckpt_save(folder, &set, &meta, &options, &written);
    free_set(&set);
    return rc;
}

/* Load over known values; after any failure they are garbage, after a success they must be right. */
static sh_rc load_path(const char *file)
{
    struct sh_ckpt_set set = make_set(CUT_FLAT, false);
    struct sh_ckpt_meta meta = {0};
    sh_rc rc = load_set(file, &set, &meta);
    CHECK(rc != SH_OK || wrong_elements(&set) == 0);
    sh_ckpt_meta_free(&meta);
    free_set(&set);
    return rc;
}

static void flip(long at, int bit)
{
    unsigned char byte;
    int fd = open(path, O_RDWR);
    CHECK(pread(fd, &byte, 1, at) == 1);
    byte ^= (unsigned char)(1 << bit);
    CHECK(pwrite(fd, &byte, 1, at) == 1);
    close(fd);
}

/* One process changes bits, one at a time, and verifies the file. Returns how many changes were refused. */
static int flips_alone(int n, long begin, long end)
{
    int refused = 0;
    FILE *out = fopen("/dev/null", "w");
    for (int i = 0; i < n; i++) {
        long at = begin + random_below(end - begin);
        int bit = (int)random_below(8);
        flip(at, bit);
        sh_rc rc = sh_ckpt_verify(path, out);
        CHECK(rc == SH_OK || (rc == SH_E_DATA && sh_error_text()[0]));
        refused += rc != SH_OK;
        flip(at, bit);
    }
    fclose(out);
    return refused;
}

/* Every byte is covered by a digest, even bytes that HDF5 leaves unused in its own structures. The file is the same on
 * any number of ranks, and one process reads the same from it: on more than one rank a few samples are enough. */
static void flips(void)
{
    int n = test_world == 1 || getenv("SHERD_LONG") ? 100 : 10;
    if (test_rank == 0) {
        CHECK(flips_alone(n, DATA_BEGIN, bytes) == n);
        CHECK(flips_alone(n, 0, 8192) == n);
        CHECK(flips_alone(n / 2, 8192, DATA_BEGIN) == n / 2);
        CHECK(flips_alone(n, bytes - 400, bytes) == n);
    }
    sh_mesh_barrier();
    CHECK(load_path(path) == SH_OK);
}

static void flips_met_by_all(void)
{
    for (int i = 0; i < 10; i++) {
        long at = DATA_BEGIN + (bytes - 4096 - DATA_BEGIN) / 10 * i + i;
        if (test_rank == 0)
            flip(at, i % 8);
        sh_mesh_barrier();
        check_fails(load_path(path), SH_E_DATA, "does not match its digest");
        if (test_rank == 0)
            flip(at, i % 8);
        sh_mesh_barrier();
    }
}

static void resize(long to)
{
    CHECK(test_rank != 0 || truncate(path, to) == 0);
    sh_mesh_barrier();
}

static void cut_and_lengthened(const char *folder)
{
    static const long lengths[] = {0, 1, 35, 36, 512, 4096, DATA_BEGIN, 1000000};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        resize(lengths[i]);
        check_fails(load_path(path), SH_E_DATA, path);
        CHECK(save_step(folder, 7) == SH_OK);
    }
    resize(bytes - 1);
    check_fails(load_path(path), SH_E_DATA, "truncated or extended");
    resize(bytes + 4096);
    check_fails(load_path(path), SH_E_DATA, "truncated or extended");
    CHECK(save_step(folder, 7) == SH_OK && load_path(path) == SH_OK);
}

/* Two blocks of the same tensor are swapped: each element is a valid one, but in the wrong place. */
static void swapped_pages(void)
{
    if (test_rank == 0) {
        char a[4096], b[4096];
        int fd = open(path, O_RDWR);
        CHECK(pread(fd, a, 4096, DATA_BEGIN) == 4096 && pread(fd, b, 4096, DATA_BEGIN + 4096) == 4096);
        CHECK(pwrite(fd, b, 4096, DATA_BEGIN) == 4096 && pwrite(fd, a, 4096, DATA_BEGIN + 4096) == 4096);
        close(fd);
    }
    sh_mesh_barrier();
    check_fails(load_path(path), SH_E_DATA, "model/wte.weight, block 0 (elements 0 to 1048575)");
}

static sh_rc load_tensors(const struct sh_ckpt_tensor *tensors, int n)
{
    struct sh_ckpt_set set = {.states = sh_ckpt_states_1, .tensors = tensors, .n_tensors = n};
    struct sh_ckpt_meta meta = {0};
    sh_rc rc = load_set(path, &set, &meta);
    sh_ckpt_meta_free(&meta);
    return rc;
}

static void another_model(void)
{
    struct sh_ckpt_tensor t[16];
    memcpy(t, test_tensors, (size_t)test_n_tensors * sizeof *t);
    CHECK(load_tensors(t, test_n_tensors) == SH_OK);
    check_fails(load_tensors(t, test_n_tensors - 1), SH_E_DATA,
                "1 tensors more than this model, the first of them head.weight");
    t[2].name = "layers.0.attn.bias";
    check_fails(load_tensors(t, test_n_tensors), SH_E_DATA, "has no tensor layers.0.attn.bias [127,64]");
    t[2].name = test_tensors[2].name;
    t[2].dim[0] = 64;
    t[2].dim[1] = 127;
    check_fails(load_tensors(t, test_n_tensors), SH_E_DATA,
                "layers.0.attn.weight has shape [127,64], but this model needs [64,127]");
    t[2] = test_tensors[5];
    t[5] = test_tensors[2];
    CHECK(load_tensors(t, test_n_tensors) == SH_OK); /* another order is the same model */
}

static void no_checkpoint(const char *folder)
{
    char file[300];
    snprintf(file, sizeof file, "%s/none.h5", folder);
    check_fails(load_path(file), SH_E_DATA, "No such file");
    check_fails(load_path(folder), SH_E_DATA, "is a directory");
    if (test_rank == 0) {
        FILE *f = fopen(file, "w");
        fprintf(f, "%0200d", 0);
        fclose(f);
    }
    sh_mesh_barrier();
    check_fails(load_path(file), SH_E_DATA, "is not an HDF5 file");
    check_fails(save_step(file, 8), SH_E_DATA, "a file has this name");
    snprintf(file, sizeof file, "%s/none.h5/deeper", folder);
    check_fails(save_step(file, 8), SH_E_DATA, "a file has this name");
    sh_mesh_barrier();
    snprintf(file, sizeof file, "%s/none.h5", folder);
    CHECK(test_rank != 0 || unlink(file) == 0);
    sh_mesh_barrier();
}

static void limit_file_size(rlim_t limit)
{
    struct rlimit r;
    getrlimit(RLIMIT_FSIZE, &r);
    r.rlim_cur = limit;
    CHECK(setrlimit(RLIMIT_FSIZE, &r) == 0);
}

static void check_untouched(void)
{
    long now;
    sh_mesh_barrier();
    CHECK(files_in_folder() == 1);
    CHECK(file_hash(path, &now) == good_hash && now == bytes);
    sh_mesh_barrier();
}

/* A limit on the length of files acts like a full disk. Rank 0 notices it when it reserves space; another rank in the
 * middle of its writes. */
static void no_space(const char *folder)
{
    for (int rank = -1; rank < test_world; rank++) {
        bool mine = rank < 0 || rank == test_rank;
        if (mine)
            limit_file_size(1 << 20);
        sh_rc rc = save_step(folder, 8);
        if (mine)
            limit_file_size(RLIM_INFINITY);
        check_fails(rc, SH_E_DATA, "");
        check_untouched();
    }
}

/* The pieces of all ranks must cover all elements: here a rank forgets one. */
static void uncovered(const char *folder)
{
    struct sh_ckpt_set set = make_set(CUT_FLAT, true);
    struct sh_ckpt_meta meta = test_meta(8);
    int64_t written = -1;
    int all = set.n_pieces;
    if (test_rank == test_world - 1)
        set.n_pieces = 1;
    check_fails(save_set(folder, &set, &meta, &written), SH_E_BUG, NULL);
    CHECK(written == -1);
    set.n_pieces = all;
    free_set(&set);
    check_untouched();
}

/* Every rank reads both parts of a block, the second part twice. A part that differs from the replica's copy is an
 * error, even though the first copies add up to the digest. */
static void replicas_that_read_otherwise(void)
{
    enum { ELEMS = 10 };
    const struct sh_ckpt_tensor tensor = {.name = "a", .ndim = 1, .dim = {ELEMS}, .elems = ELEMS};
    const struct sh_ckpt_set set = {.states = sh_ckpt_states_1, .tensors = &tensor, .n_tensors = 1};
    struct sh_ckpt_meta meta = {.step = 7};
    struct sh_ckpt_index x;

    CHECK(sh_ckpt_index_make(&set, &meta, &x) == SH_OK);
    x.digest[SH_CKPT_MODEL][0] = 3;
    for (int wrong = 0; wrong < 2; wrong++) {
        struct sh_ckpt_part part[] = {{0, 0, 4, 1}, {0, 4, ELEMS, 2}, {0, 4, ELEMS, wrong && test_rank == 0 ? 9 : 2}};
        struct sh_ckpt_parts mine = {.part = part, .n = 3};
        sh_rc rc = sh_agree(sh_ckpt_edge_check(&mine, &x, -1, "a file", test_world));

        CHECK(rc == (wrong ? SH_E_DATA : SH_OK));
        CHECK(!wrong || test_rank != 0 || strstr(sh_error_text(), "a file: model/a, block 0"));
        sh_error_clear();
    }
    sh_ckpt_index_free(&x);
}

int main(int argc, char **argv)
{
    CHECK(sh_mesh_start(&argc, &argv) == SH_OK);
    MPI_Comm_rank(MPI_COMM_WORLD, &test_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &test_world);
    signal(SIGXFSZ, SIG_IGN);
    const char *folder = make_folder();
    snprintf(path, sizeof path, "%s/step-00000007.h5", folder);
    CHECK(save_step(folder, 7) == SH_OK);
    good_hash = file_hash(path, &bytes);
    no_checkpoint(folder);
    no_space(folder);
    io_method = SH_IO_DIRECT;
    no_space(folder);
    behind = true;
    no_space(folder);
    behind = false;
    uncovered(folder);
    another_model();
    flips();
    flips_met_by_all();
    check_untouched();
    cut_and_lengthened(folder);
    check_untouched();
    swapped_pages();
    replicas_that_read_otherwise();
    remove_folder();
    if (test_rank == 0)
        printf("test_ckpt_damage: %d ranks: ok\n", test_world);
    sh_mesh_stop();
    return 0;
}
