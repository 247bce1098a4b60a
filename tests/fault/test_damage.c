/* Thousands of damaged checkpoints: one bit flipped, the file cut short, blocks zeroed or swapped. Loading (by all
 * ranks) and verifying (like `sherd ckpt verify`) must agree: both refuse the file with SH_E_DATA and one text, or both
 * succeed, and then everything that was loaded is right to the bit. No damage goes unnoticed. A crash or a hang ends
 * the test. */
#include "tests/mpi/ckpt_case.h"

#include "src/base/mem.h"
#include "src/mesh/mesh.h"

#include <fcntl.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { STEP = 7, BLOCK_BYTES = 4096, LIMIT_SECONDS = 600 };

static const char *folder;
static char path[256];
static unsigned char *good; /* the file's bytes */
static long bytes;
static int fd; /* of the file, on rank 0 */
static FILE *nowhere;
static uint64_t random_state; /* the same on all ranks */

static long random_below(long n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (long)((random_state >> 20) % (uint64_t)n);
}

static void put(const void *data, long n, long at)
{
    CHECK(pwrite(fd, data, (size_t)n, at) == n);
}

/* The first eighth has nearly everything that HDF5 itself needs; half of the places are chosen there. */
static long random_place(void)
{
    return random_below(2) ? random_below(bytes / 8) : random_below(bytes);
}

static void flip(char text[100])
{
    long at = random_place(), bit = random_below(8);
    unsigned char byte = (unsigned char)(good[at] ^ 1 << bit);
    snprintf(text, 100, "bit %ld of byte %ld flipped", bit, at);
    if (test_rank == 0)
        put(&byte, 1, at);
}

static void cut(char text[100])
{
    long to = random_below(bytes);
    snprintf(text, 100, "cut to %ld bytes", to);
    CHECK(test_rank != 0 || ftruncate(fd, to) == 0);
}

/* Choose blocks that are not empty and not equal. */
static void zero_or_swap(char text[100])
{
    static const unsigned char zeros[BLOCK_BYTES];
    long n = bytes / BLOCK_BYTES, a, b;
    bool swaps = random_below(2) != 0;
    do {
        a = random_below(n) * BLOCK_BYTES;
        b = random_below(n) * BLOCK_BYTES;
    } while (memcmp(good + a, swaps ? good + b : zeros, BLOCK_BYTES) == 0);
    snprintf(text, 100, "block at %ld %s %ld", a, swaps ? "swapped with that at" : "zeroed, not that at", b);
    if (test_rank != 0)
        return;
    put(swaps ? good + b : zeros, BLOCK_BYTES, a);
    if (swaps)
        put(good + a, BLOCK_BYTES, b);
}

static void repair(void)
{
    if (test_rank == 0)
        put(good, bytes, 0);
    sh_mesh_barrier();
}

static bool meta_is_right(const struct sh_ckpt_meta *meta)
{
    struct sh_ckpt_meta expected = test_meta(STEP);
    return meta->step == expected.step && meta->samples == expected.samples && meta->tokens == expected.tokens &&
           meta->updates == expected.updates && strcmp(meta->config, expected.config) == 0 &&
           strcmp(meta->guard, expected.guard) == 0;
}

/* *wrong: the number of ranks that loaded something other than what was saved. Collective. */
static sh_rc load(long long *wrong)
{
    struct sh_ckpt_set set = make_set(CUT_FLAT, false);
    struct sh_ckpt_meta meta = {0};
    sh_rc rc = load_set(path, &set, &meta);
    *wrong = rc == SH_OK && (wrong_elements(&set) != 0 || !meta_is_right(&meta));
    sh_ckpt_meta_free(&meta);
    free_set(&set);
    CHECK(sh_mesh_sum_i64(wrong, 1) == SH_OK);
    return rc;
}

/* The damage is refused. Collective. */
static void judge(const char *text)
{
    long long wrong;
    sh_rc verified = SH_OK;
    alarm(LIMIT_SECONDS);
    sh_mesh_barrier();
    if (test_rank == 0)
        verified = sh_ckpt_verify(path, nowhere);
    sh_error_clear();
    sh_rc rc = load(&wrong);
    alarm(0);
    bool fine = rc == SH_E_DATA;
    if (test_rank == 0 && (!fine || verified != rc))
        fprintf(stderr, "%s: load %d, verify %d, %lld ranks have something wrong: %s\n", text, (int)rc, (int)verified,
                wrong, sh_error_text());
    CHECK(fine && (test_rank != 0 || verified == rc));
    check_fails(rc, SH_E_DATA, NULL);
}

/* How many of each kind in a short and in a long run. Most run on few ranks, because only the time depends on the
 * number of ranks. */
static const struct kind {
    const char *name;
    void (*damage)(char text[100]);
    int few, many;
} kinds[] = {
    {"flips", flip, 1000, 20000},
    {"cuts", cut, 100, 2000},
    {"zeroed or swapped blocks", zero_or_swap, 50, 200},
};

static int share(int n)
{
    static const int percent[] = {[1] = 60, [2] = 34, [3] = 2, [4] = 2, [6] = 2};
    return n * (test_world < 7 ? percent[test_world] : 0) / 100;
}

static void damage_often(const struct kind *k)
{
    int n = share(getenv("SHERD_LONG") ? k->many : k->few);
    for (int i = 0; i < n; i++) {
        char text[100];
        k->damage(text);
        judge(text);
        repair();
    }
    if (test_rank == 0)
        printf("%d %s on %d ranks: all refused\n", n, k->name, test_world);
}

static void take_file(void)
{
    struct stat st;
    int64_t written;
    struct sh_ckpt_set set = make_set(CUT_FLAT, true);
    struct sh_ckpt_meta meta = test_meta(STEP);
    snprintf(path, sizeof path, "%s/step-%08d.h5", folder, STEP);
    CHECK(save_set(folder, &set, &meta, &written) == SH_OK);
    free_set(&set);
    sh_mesh_barrier();
    CHECK(stat(path, &st) == 0);
    bytes = (long)st.st_size;
    good = sh_calloc((size_t)bytes, 1);
    fd = open(path, test_rank == 0 ? O_RDWR : O_RDONLY);
    CHECK(pread(fd, good, (size_t)bytes, 0) == bytes);
    sh_mesh_barrier();
}

int main(int argc, char **argv)
{
    CHECK(sh_mesh_start(&argc, &argv) == SH_OK);
    MPI_Comm_rank(MPI_COMM_WORLD, &test_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &test_world);
    random_state = (uint64_t)test_world;
    nowhere = fopen("/dev/null", "w");
    use_small_model();
    folder = make_folder();
    take_file();
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        damage_often(&kinds[i]);
    close(fd);
    free(good);
    fclose(nowhere);
    remove_folder();
    sh_mesh_stop();
    return 0;
}
