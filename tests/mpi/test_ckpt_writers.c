/* The file has the same bytes whoever writes it: each rank, or some ranks of a node for all, in the foreground and in
 * the background. The kernel's counters show who writes. */
#include "tests/mpi/ckpt_case.h"

#include "io/checkpoint/checkpoint.h"
#include "io/move/ring.h"
#include "src/base/mem.h"
#include "src/mesh/mesh.h"

#include <mpi.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { SOME_BYTES = 256 << 10 };

static char path[256];
static const char *folder;

struct want {
    int per_node, ranks_per_node;
};

/* Bytes that this process has asked the kernel to write so far; -1: not known. */
static long long bytes_written(void)
{
    long long n = -1;
    FILE *f = fopen("/proc/self/io", "r");
    if (f && fscanf(f, "rchar: %*d wchar: %lld", &n) != 1)
        n = -1;
    if (f)
        fclose(f);
    return n;
}

static sh_rc save_async(const struct sh_ckpt_set *set, const struct sh_ckpt_options *options, int64_t *bytes)
{
    struct sh_ckpt_meta meta = test_meta(7);
    struct sh_ckpt_async *b = NULL;
    bool done = false;
    sh_rc rc = sh_ckpt_async_begin(folder, set, &meta, options, &b);
    while (rc == SH_OK && !done)
        rc = sh_ckpt_async_poll(b, false, &done, bytes);
    sh_ckpt_async_end(b);
    return rc;
}

static sh_rc save(const struct sh_ckpt_set *set, struct want want, bool behind, int64_t *bytes)
{
    struct sh_ckpt_meta meta = test_meta(7);
    struct sh_ckpt_options options = {.io_method = SH_IO_DIRECT,
                                      .hints = "",
                                      .threads = 1,
                                      .timeout_seconds = 200,
                                      .writers_per_node = want.per_node,
                                      .ranks_per_node = want.ranks_per_node};
    return behind ? save_async(set, &options, bytes) : sh_ckpt_save(folder, set, &meta, &options, bytes);
}

/* Save; returns whether this rank wrote more than the structure of the file, which rank 0 always writes. */
static bool saves(const struct sh_ckpt_set *set, struct want want, bool behind, unsigned long long *hash)
{
    int64_t bytes = 0;
    long found;
    long long before = bytes_written();
    CHECK(save(set, want, behind, &bytes) == SH_OK);
    long long wrote = bytes_written() - before;
    sh_mesh_barrier();
    *hash = file_hash(path, &found);
    CHECK(found == bytes && files_in_folder() == 1);
    sh_mesh_barrier();
    return before >= 0 && wrote > SOME_BYTES;
}

/* Whether this rank is the first of a group of neighbours. */
static bool is_writer(struct want want)
{
    int first = test_rank / want.ranks_per_node * want.ranks_per_node, at = test_rank - first;
    int size = test_world - first < want.ranks_per_node ? test_world - first : want.ranks_per_node;
    int writers = want.per_node < size ? want.per_node : size;
    return at == 0 || at * writers / size != (at - 1) * writers / size;
}

static void any_number_of_writers(enum ckpt_cut cut)
{
    struct sh_ckpt_set set = make_set(cut, true);
    unsigned long long every, hash;
    saves(&set, (struct want){EVERY_RANK, 0}, false, &every);
    for (int node = 2; node <= test_world; node = node < test_world ? test_world : node + 1)
        for (int writers = 1; writers <= 2; writers++) {
            struct want want = {writers, node};
            bool wrote = saves(&set, want, (node + writers) % 2 != 0, &hash);
            CHECK(hash == every);
            CHECK(is_writer(want) || !wrote);
            CHECK(cut != CUT_FLAT || bytes_written() < 0 || wrote == is_writer(want));
        }
    saves(&set, (struct want){0, 0}, false, &hash);
    CHECK(hash == every);
    free_set(&set);
}

/* One tensor in strips of `elems`, dealt to the ranks in turn, `rounds` times. */
static struct sh_ckpt_set make_strips(struct sh_ckpt_tensor *tensor, int64_t elems, int rounds)
{
    struct sh_ckpt_piece *piece = sh_calloc((size_t)rounds, sizeof *piece);
    int64_t all = elems * rounds * test_world;
    *tensor = (struct sh_ckpt_tensor){.name = "strips", .ndim = 1, .dim = {all}, .elems = all};
    for (int i = 0; i < rounds; i++) {
        piece[i] = (struct sh_ckpt_piece){.begin = (i * test_world + test_rank) * elems, .elems = elems};
        for (int s = 0; s < sh_ckpt_states_1.n; s++) {
            float *data = piece[i].data[s].whole = sh_calloc((size_t)elems, sizeof *data);
            for (int64_t k = 0; k < elems; k++)
                data[k] = (float)((piece[i].begin + k) % 16381 * 3 + s);
        }
    }
    return (struct sh_ckpt_set){
        .states = sh_ckpt_states_1, .tensors = tensor, .n_tensors = 1, .pieces = piece, .n_pieces = rounds};
}

/* By default, only short ranges go to two writers of a node, and only if that makes the ranges twice as long. */
static void by_length(int64_t elems, int rounds, bool is_short)
{
    struct sh_ckpt_tensor tensor;
    struct sh_ckpt_set set = make_strips(&tensor, elems, rounds);
    unsigned long long every, hash;
    bool grouped = is_short && test_world >= 4;
    saves(&set, (struct want){EVERY_RANK, 0}, false, &every);
    bool wrote = saves(&set, (struct want){0, 0}, false, &hash);
    CHECK(hash == every);
    CHECK(bytes_written() < 0 || wrote == (!grouped || is_writer((struct want){2, test_world})));
    free_set(&set);
}

/* More chunks than slots, with a byte of each rank in each; then the writer gives up before it empties them. */
static void ring_goes_round(void)
{
    enum { ROUNDS = 20, FULL = ROUNDS * SH_MOVE_RING_SLOTS };
    struct sh_move_ring *ring = NULL;
    CHECK(sh_move_ring_create(MPI_COMM_WORLD, &ring) == SH_OK && ring);
    for (int job = 0; job < FULL; job++) {
        char *slot = sh_move_ring_enter(ring, job);
        CHECK(slot);
        slot[test_rank] = (char)(job + test_rank);
        sh_move_ring_add(ring, job, 1);
        CHECK(test_rank != 0 || sh_move_ring_wait(ring, job, test_world));
        for (int r = 0; test_rank == 0 && r < test_world; r++)
            CHECK(slot[r] == (char)(job + r));
        if (test_rank == 0)
            sh_move_ring_leave(ring, job);
    }
    CHECK(sh_move_ring_enter(ring, FULL));
    if (test_rank == 0)
        sh_move_ring_give_up(ring);
    CHECK(!sh_move_ring_enter(ring, FULL + SH_MOVE_RING_SLOTS) && !sh_move_ring_wait(ring, FULL, 1));
    sh_mesh_barrier();
    sh_move_ring_destroy(ring);
}

static void limit_file_size(rlim_t limit)
{
    struct rlimit r;
    getrlimit(RLIMIT_FSIZE, &r);
    r.rlim_cur = limit;
    CHECK(setrlimit(RLIMIT_FSIZE, &r) == 0);
}

/* The first rank of a group cannot have memory to share: an error if a group was asked for, otherwise no group. */
static void no_shared_memory(void)
{
    struct sh_ckpt_set set = make_set(CUT_CRUMBS, true);
    unsigned long long before, hash;
    int64_t bytes;
    long found;
    saves(&set, (struct want){EVERY_RANK, 0}, false, &before);
    limit_file_size(40 << 20); /* applies to files, too */
    if (test_world > 1)
        check_fails(save(&set, (struct want){1, 0}, false, &bytes), SH_E_COMM, "writers_per_node: memory cannot be");
    CHECK(file_hash(path, &found) == before);
    sh_mesh_barrier();
    saves(&set, (struct want){0, 0}, false, &hash);
    CHECK(hash == before);
    limit_file_size(RLIM_INFINITY);
    free_set(&set);
}

int main(int argc, char **argv)
{
    CHECK(sh_mesh_start(&argc, &argv) == SH_OK);
    signal(SIGXFSZ, SIG_IGN);
    MPI_Comm_rank(MPI_COMM_WORLD, &test_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &test_world);
    folder = make_folder();
    snprintf(path, sizeof path, "%s/step-00000007.h5", folder);
    any_number_of_writers(CUT_FLAT);
    any_number_of_writers(CUT_CRUMBS);
    by_length(1 << 20, 1, false);
    by_length((1 << 16) - 1, 8, true);
    ring_goes_round();
    no_shared_memory();
    use_small_model(); /* other pieces, but no more rounds */
    any_number_of_writers(CUT_REPLICAS);
    any_number_of_writers(CUT_LAST_RANK);
    remove_folder();
    if (test_rank == 0)
        printf("test_ckpt_writers: %d ranks: ok\n", test_world);
    sh_mesh_stop();
    return 0;
}
