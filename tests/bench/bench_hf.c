/* Loading and exporting a folder of transformers against plain programs that move the same bytes, side by side. Not a
 * test.
 *
 *     mpirun -n 1 tests/bench/bench_hf [FOLDER [MIB [ROUNDS]]]      default: . 1024 5; needs 3 times MIB of memory
 *
 * Each round runs, in turn: bytes written plainly and synced, an export in bfloat16 without its read-back; the files
 * read plainly, a load; both reads again with an empty page cache. With several ranks all of them write and read,
 * plainly too. Prints the medians, and plain time over ours: the bars are 0.9 for the export and 0.8 for the load. */
#include "io/file/file.h"
#include "io/foreign/hf/export.h"
#include "io/foreign/hf/load.h"
#include "src/base/file.h"
#include "src/base/mem.h"
#include "src/base/time.h"
#include "src/mesh/mesh.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { TENSORS = 16, COLUMNS = 4096, MOST_ROUNDS = 64, CHUNK = 1 << 20 };

static int rank, ranks;
static int64_t rows; /* of one tensor */
static struct sh_ckpt_tensor tensor[TENSORS];
static struct sh_ckpt_piece piece[TENSORS];
static char name[TENSORS][32];
static float *data;
static char chunk[CHUNK];

/* This must not fail: there would be nothing to measure. */
static void need(sh_rc rc)
{
    if (rc != SH_OK)
        sh_stop(rc);
}

/* Each rank has the same rows of each tensor. */
static struct sh_ckpt_set make_set(void)
{
    int64_t first = rows * rank / ranks, mine = rows * (rank + 1) / ranks - first;

    data = sh_calloc((size_t)(TENSORS * mine) * COLUMNS, sizeof *data);
    for (int64_t i = 0; i < TENSORS * mine * COLUMNS; i++)
        data[i] = (float)(i & 1023);
    for (int t = 0; t < TENSORS; t++) {
        snprintf(name[t], sizeof name[t], "model.t%02d.weight", t);
        tensor[t] =
            (struct sh_ckpt_tensor){.name = name[t], .ndim = 2, .dim = {rows, COLUMNS}, .elems = rows * COLUMNS};
        piece[t] = (struct sh_ckpt_piece){.tensor = t,
                                          .begin = first * COLUMNS,
                                          .elems = mine * COLUMNS,
                                          .data = {{.whole = data + t * mine * COLUMNS}}};
    }
    return (struct sh_ckpt_set){.tensors = tensor, .n_tensors = TENSORS, .pieces = piece, .n_pieces = TENSORS};
}

/* This rank's part of that many bytes. */
static int64_t part(int64_t bytes, int r)
{
    return bytes / ranks * r;
}

static void write_plainly(const char *path, int64_t bytes)
{
    int fd = open(path, O_CREAT | O_WRONLY, 0600);

    if (fd < 0)
        need(sh_fail(SH_E_DATA, "open %s", path));
    for (int64_t at = part(bytes, rank); at < part(bytes, rank + 1); at += CHUNK)
        need(sh_file_write(fd, path, chunk, CHUNK, at));
    fsync(fd);
    close(fd);
}

static void read_plainly(const char *path, int64_t bytes)
{
    int fd = open(path, O_RDONLY);

    for (int64_t at = part(bytes, rank); fd >= 0 && at < part(bytes, rank + 1); at += CHUNK)
        if (pread(fd, chunk, CHUNK, at) <= 0)
            break;
    close(fd);
}

/* After fsync the pages are clean and can be dropped. */
static void forget(const char *path)
{
    int fd = open(path, O_RDONLY);

    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *seconds, int n)
{
    qsort(seconds, (size_t)n, sizeof *seconds, by_value);
    return seconds[n / 2];
}

enum { WRITE, EXPORT, READ, LOAD, READ_COLD, LOAD_COLD, KINDS };

/* What one kind took in each round: wall time of the slowest rank, and processor time of this one, which says more on
 * a busy machine. */
struct times {
    double wall[MOST_ROUNDS], processor[MOST_ROUNDS];
};

static double processor_seconds(void)
{
    struct rusage u;

    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

/* Time since the last call; NULL: start from now. The barrier's own waiting uses processor time, so the barrier comes
 * after. */
static void lap(struct times *to, int i)
{
    static int64_t last;
    static double used;
    double now = processor_seconds();

    sh_mesh_barrier();
    if (to) {
        to->wall[i] = (double)(sh_now_ns() - last) / 1e9;
        to->processor[i] = now - used;
    }
    last = sh_now_ns();
    used = processor_seconds();
}

static void run_round(const char *top, int64_t bytes, const struct sh_ckpt_set *set, const struct sh_config *cfg,
                      struct times times[KINDS], int i)
{
    const struct sh_hf_export options = {
        .type = SH_MOVE_BF16, .max_shard_bytes = INT64_MAX, .verify = SH_VERIFY_OFF, .source = ""};
    const struct sh_ckpt_load_options how = {.trust = SH_TRUST_ANY};
    char *plain = sh_strfmt("%s/plain", top), *folder = sh_strfmt("%s/hf-%d", top, i);
    char *file = sh_strfmt("%s/model.safetensors", folder);

    lap(NULL, i);
    write_plainly(plain, bytes);
    lap(&times[WRITE], i);
    need(sh_hf_export(folder, cfg, set, &options));
    lap(&times[EXPORT], i);
    for (int cold = 0; cold < 2; cold++) {
        if (cold)
            forget(file);
        lap(NULL, i);
        read_plainly(file, bytes);
        lap(&times[cold ? READ_COLD : READ], i);
        if (cold)
            forget(file);
        lap(NULL, i);
        need(sh_hf_load(folder, "llama", set, &how, NULL));
        lap(&times[cold ? LOAD_COLD : LOAD], i);
    }
    if (rank == 0)
        unlink(plain);
    free(plain);
    free(file);
    free(folder);
}

static void report(struct times times[KINDS], int rounds, int64_t bytes)
{
    static const struct {
        const char *what;
        int plain, ours;
        double bar;
    } rows_[] = {
        {"export", WRITE, EXPORT, 0.9}, {"load, warm", READ, LOAD, 0.8}, {"load, cold", READ_COLD, LOAD_COLD, 0.8}};

    for (size_t k = 0; k < sizeof rows_ / sizeof *rows_; k++) {
        struct times *a = &times[rows_[k].plain], *b = &times[rows_[k].ours];
        double plain = median(a->wall, rounds), ours = median(b->wall, rounds), gb = (double)bytes / 1e9;
        printf("%-11s %6.2f GB/s, plainly %6.2f GB/s: %.2f of it, bar %.1f %s; processors %.2f s/GB, plainly %.2f\n",
               rows_[k].what, gb / ours, gb / plain, plain / ours, rows_[k].bar,
               plain / ours >= rows_[k].bar ? "met" : "missed", median(b->processor, rounds) * ranks / gb,
               median(a->processor, rounds) * ranks / gb);
    }
}

int main(int argc, char **argv)
{
    static const char *const arguments[] = {"model.name=debug"};
    static struct times times[KINDS];
    struct sh_config cfg;

    need(sh_mesh_start(&argc, &argv));
    sh_mesh_world(&rank, &ranks);
    const char *top = argc > 1 ? argv[1] : ".";
    int64_t mib = argc > 2 ? atoll(argv[2]) : 1024;
    int rounds = argc > 3 ? atoi(argv[3]) : 5;
    if (mib < 1 || rounds < 1 || rounds > MOST_ROUNDS)
        need(sh_fail(SH_E_USAGE, "bench_hf [FOLDER [MIB [ROUNDS]]], at most %d rounds", MOST_ROUNDS));
    rows = mib * (1 << 20) / 2 / COLUMNS / TENSORS;
    int64_t bytes = rows * TENSORS * COLUMNS * 2;
    need(sh_config_load(NULL, 1, arguments, &cfg));
    struct sh_ckpt_set set = make_set();
    char *folder = sh_strfmt("%s/bench_hf", top);
    need(sh_agree(rank == 0 ? sh_mkdir_p(folder) : SH_OK));
    for (int i = 0; i < rounds; i++)
        run_round(folder, bytes, &set, &cfg, times, i);
    if (rank == 0)
        report(times, rounds, bytes);
    free(folder);
    free(data);
    sh_mesh_stop();
    return 0;
}
