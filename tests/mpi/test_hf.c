/* All ranks write a folder of safetensors and load it: parts, replicas that read together, and a damaged file. */
#include "tests/mpi/mpitest.h"

#include "io/foreign/hf/export.h"
#include "io/foreign/hf/load.h"
#include "src/base/hash.h"
#include "src/base/mem.h"

#include <mpi.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TENSORS = 40, COLUMNS = 1000 };

static struct sh_ckpt_tensor tensor[TENSORS];
static char name[TENSORS][32];
static int64_t before[TENSORS + 1]; /* elements in the preceding tensors */

/* Tensors of many lengths, including single rows and ones that leave a rank an empty share. */
static void describe(void)
{
    for (int i = 0; i < TENSORS; i++) {
        int64_t rows = 1 + (int64_t)(sh_mix64((uint64_t)i) % 60);

        snprintf(name[i], sizeof name[i], "model.t%02d.weight", i);
        tensor[i] =
            (struct sh_ckpt_tensor){.name = name[i], .ndim = 2, .dim = {rows, COLUMNS}, .elems = rows * COLUMNS};
        before[i + 1] = before[i] + tensor[i].elems;
    }
}

/* Numbers that bfloat16 can represent. */
static float value(int64_t i)
{
    return (float)((int)(sh_mix64((uint64_t)i) % 255) - 127) / 4;
}

struct part {
    struct sh_ckpt_set set;
    struct sh_ckpt_piece piece[TENSORS];
    struct sh_floats data;
    int64_t begin, end;
};

/* Make share `k` of `n` of all elements, in one array or in halves. */
static void make_part(int k, int n, bool halves, struct part *p)
{
    *p = (struct part){.begin = before[TENSORS] * k / n, .end = before[TENSORS] * (k + 1) / n};
    p->data = sh_floats_in(sh_calloc((size_t)(p->end - p->begin) + 1, 4), p->end - p->begin, halves);
    p->set = (struct sh_ckpt_set){.tensors = tensor, .n_tensors = TENSORS, .pieces = p->piece};
    for (int i = 0; i < TENSORS; i++) {
        int64_t from = before[i] > p->begin ? before[i] : p->begin,
                to = before[i + 1] < p->end ? before[i + 1] : p->end;

        if (from < to)
            p->piece[p->set.n_pieces++] = (struct sh_ckpt_piece){.tensor = i,
                                                                 .begin = from - before[i],
                                                                 .elems = to - from,
                                                                 .data = {sh_floats_at(p->data, from - p->begin)}};
    }
}

static void free_part(struct part *p)
{
    free(sh_floats_array(p->data, 0));
}

static void check_part(const struct part *p)
{
    for (int64_t i = 0; i < p->end - p->begin; i++) {
        float x;

        sh_floats_get(sh_floats_at(p->data, i), 1, &x);
        CHECK(x == value(p->begin + i));
    }
}

static long long bytes_read(void)
{
    long long n = 0;
    FILE *f = fopen("/proc/self/io", "r");

    if (f && fscanf(f, "rchar: %lld", &n) != 1)
        n = 0;
    if (f)
        fclose(f);
    return n;
}

static sh_rc load(const char *folder, const struct part *p, bool share)
{
    const struct sh_ckpt_load_options options = {.timeout_seconds = 200, .share = share};

    return sh_hf_load(folder, "llama", &p->set, &options, NULL);
}

/* Load in `groups` groups of ranks that want the same data. Each group reads each byte once; rank 0 also reads the
 * headers. */
static void load_by(const char *folder, int groups, bool share, bool halves)
{
    int rank = test_rank(), world = test_world(), group = rank * groups / world;
    long long read = bytes_read();
    struct part p;

    make_part(group, groups, halves, &p);
    CHECK_OK(load(folder, &p, share));
    check_part(&p);
    read = bytes_read() - read;
    CHECK_OK(sh_mesh_sum_i64(&read, 1));
    if (share)
        CHECK(read < 2 * before[TENSORS] + (1 << 18));
    free_part(&p);
}

static void export_by_all(const char *folder, const struct sh_config *cfg, sh_rc want)
{
    const struct sh_hf_export options = {.type = SH_MOVE_BF16,
                                         .max_shard_bytes = 100000,
                                         .verify = SH_VERIFY_DISK,
                                         .timeout_seconds = 200,
                                         .source = ""};
    struct part p;

    make_part(test_rank(), test_world(), test_rank() % 2, &p);
    for (int64_t i = 0; i < p.end - p.begin; i++) {
        float x = value(p.begin + i);

        sh_floats_put(sh_floats_at(p.data, i), 1, &x);
    }
    CHECK(sh_hf_export(folder, cfg, &p.set, &options) == want);
    free_part(&p);
}

/* A file that ends early: all ranks learn about it. */
static void damaged(const char *folder)
{
    char path[512];

    snprintf(path, sizeof path, "%s/model.safetensors.index.json", folder);
    for (int share = 0; share < 2; share++) {
        struct part p;

        make_part(0, 1, false, &p);
        if (test_rank() == 0)
            CHECK(truncate(path, 1000) == 0);
        MPI_Barrier(MPI_COMM_WORLD);
        CHECK(load(folder, &p, share) == SH_E_DATA);
        free_part(&p);
    }
}

/* A number that is not finite is noticed by the rank that reads it: the others continue to the end and then
 * fail, too. */
static void not_finite(const char *folder)
{
    struct part p;
    const struct sh_hf_export options = {
        .type = SH_MOVE_F32, .max_shard_bytes = 100000, .timeout_seconds = 200, .source = ""};
    struct sh_config cfg;
    static const char *const arguments[] = {"model.name=debug"};

    CHECK_OK(sh_config_load(NULL, 1, arguments, &cfg));
    make_part(test_rank(), test_world(), false, &p);
    if (test_rank() == test_world() - 1)
        p.data.whole[p.end - p.begin - 1] = 1.0f / 0.0f;
    CHECK_OK(sh_hf_export(folder, &cfg, &p.set, &options));
    free_part(&p);
    make_part(0, 1, true, &p);
    CHECK(load(folder, &p, true) == SH_E_DATA);
    free_part(&p);
}

/* Peak memory of this process in KiB; `reset` starts a new peak. If the kernel does not allow a reset, the test sees
 * less. */
static long peak(bool reset)
{
    char line[128];
    long kib = 0;
    FILE *f = fopen("/proc/self/status", "r");

    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "VmHWM: %ld", &kib) == 1)
            break;
    if (f)
        fclose(f);
    f = reset ? fopen("/proc/self/clear_refs", "w") : NULL;
    if (f) {
        fputs("5", f);
        fclose(f);
    }
    return kib;
}

enum { LARGE = 3, SIDE = 4096, MOST_KIB = 64 << 10 };

/* The memory of a rank's shard is allocated and touched before; loading and exporting may take 64 MiB more. */
static void stay_small(const char *folder, const struct sh_config *cfg)
{
    const struct sh_hf_export options = {.type = SH_MOVE_BF16,
                                         .max_shard_bytes = 3 * SIDE * SIDE,
                                         .verify = SH_VERIFY_CACHE,
                                         .timeout_seconds = 200,
                                         .source = ""};
    struct sh_ckpt_tensor large[LARGE];
    struct sh_ckpt_piece piece[LARGE];
    const struct sh_ckpt_set set = {.tensors = large, .n_tensors = LARGE, .pieces = piece, .n_pieces = LARGE};
    int64_t rows = SIDE / test_world(), first = rows * test_rank(),
            mine = test_rank() == test_world() - 1 ? SIDE - first : rows;
    float *data = sh_calloc((size_t)(LARGE * mine) * SIDE, sizeof *data);

    for (int64_t i = 0; i < LARGE * mine * SIDE; i++)
        data[i] = 1;
    for (int t = 0; t < LARGE; t++) {
        large[t] = (struct sh_ckpt_tensor){.name = name[t], .ndim = 2, .dim = {SIDE, SIDE}, .elems = SIDE * SIDE};
        piece[t] = (struct sh_ckpt_piece){
            .tensor = t, .begin = first * SIDE, .elems = mine * SIDE, .data = {{.whole = data + t * mine * SIDE}}};
    }
    peak(true);
    long before_export = peak(false);
    CHECK_OK(sh_hf_export(folder, cfg, &set, &options));
    CHECK(peak(false) - before_export <= MOST_KIB);
    memset(data, 0, (size_t)(LARGE * mine) * SIDE * sizeof *data);
    const struct sh_ckpt_load_options how = {.timeout_seconds = 200, .share = true};
    peak(true);
    long before_load = peak(false);
    CHECK_OK(sh_hf_load(folder, "llama", &set, &how, NULL));
    CHECK(peak(false) - before_load <= MOST_KIB);
    CHECK(data[0] == 1 && data[LARGE * mine * SIDE - 1] == 1);
    free(data);
}

static void make_folder(char folder[64])
{
    strcpy(folder, "test_hf.XXXXXX");
    if (test_rank() == 0 && !mkdtemp(folder))
        folder[0] = '\0';
    CHECK_OK(sh_mesh_bcast(folder, 64, 0));
}

int main(int argc, char **argv)
{
    static const char *const arguments[] = {"model.name=debug"};
    char top[64], folder[128], bad[128], large[128], command[256];
    struct sh_config cfg;

    CHECK_OK(sh_mesh_start(&argc, &argv));
    describe();
    make_folder(top);
    snprintf(folder, sizeof folder, "%s/hf", top);
    snprintf(bad, sizeof bad, "%s/bad", top);
    snprintf(large, sizeof large, "%s/large", top);
    CHECK_OK(sh_config_load(NULL, 1, arguments, &cfg));
    export_by_all(folder, &cfg, SH_OK);
    test_end("export");
    sh_error_clear();
    export_by_all(folder, &cfg, SH_E_USAGE);
    test_end("export onto a folder that is there");
    for (int share = 0; share < 2; share++)
        for (int groups = 1; groups <= test_world(); groups++)
            load_by(folder, groups, share, groups % 2);
    test_end("load");
#ifndef __SANITIZE_ADDRESS__ /* which needs extra memory */
    stay_small(large, &cfg);
    test_end("64 MiB beside the shard");
#endif
    not_finite(bad);
    test_end("a number that is none");
    damaged(folder);
    test_end("damage");
    snprintf(command, sizeof command, "rm -rf %s", top);
    if (test_rank() == 0)
        CHECK(system(command) == 0);
    int status = bad_tests ? 1 : 0;
    sh_mesh_stop();
    return status;
}
