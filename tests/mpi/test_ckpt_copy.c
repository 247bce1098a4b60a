/* Changes behind the back of a save: a bit flips in the copy of the state, whose checksums were computed from the state
 * during the copy; the file itself is swapped for a link after it was read back. With every I/O method the save fails
 * and nothing is committed. */
#include "io/file/file.h"
#include "src/mesh/mesh.h"
#include "tests/mpi/ckpt_case.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STEP = 7, SLICES = 3 };

static const struct io_method {
    const char *name;
    bool async;
    struct sh_ckpt_options options;
} methods[] = {
    {"direct", false, {.hints = "", .threads = 1, .io_method = SH_IO_DIRECT, .writers_per_node = EVERY_RANK}},
    {"direct, never read back",
     false,
     {.hints = "", .threads = 1, .io_method = SH_IO_DIRECT, .writers_per_node = EVERY_RANK, .verify = SH_VERIFY_OFF}},
    {"direct, passed to one writer",
     false,
     {.hints = "", .threads = 1, .io_method = SH_IO_DIRECT, .writers_per_node = 1}},
    {"MPI-IO", false, {.hints = "", .threads = 1, .io_method = SH_IO_MPIIO}},
    {"async", true, {.hints = "", .threads = 1, .io_method = SH_IO_DIRECT}},
};
enum { METHODS = sizeof methods / sizeof *methods };

/* Copy a piece in slices that end anywhere, as threads take them. */
static void copy_piece(const struct sh_ckpt_piece *from, const struct sh_ckpt_piece *to, int s)
{
    const char *name = test_tensors[from->tensor].name;
    for (int64_t i = 0, at = 0; i < SLICES; i++) {
        int64_t end = from->elems * (i + 1) / SLICES;
        sh_ckpt_piece_copy(to, name, STEP, s, at, end - at, from->data[s]);
        at = end;
    }
}

static struct sh_ckpt_set copy_set(const struct sh_ckpt_set *state)
{
    struct sh_ckpt_set copy = make_set(CUT_FLAT, true); /* has the same layout */
    for (int i = 0; i < copy.n_pieces; i++)
        for (int s = 0; s < sh_ckpt_states_1.n; s++) {
            struct sh_ckpt_piece *p = (struct sh_ckpt_piece *)&copy.pieces[i];
            memset(sh_floats_array(p->data[s], 0), 0, (size_t)p->elems * 4);
            p->early[s] = calloc((size_t)sh_ckpt_piece_blocks(p) + 1, sizeof *p->early[s]);
            copy_piece(&state->pieces[i], p, s);
        }
    return copy;
}

static void free_copy(struct sh_ckpt_set *copy)
{
    for (int i = 0; i < copy->n_pieces; i++)
        for (int s = 0; s < sh_ckpt_states_1.n; s++)
            free(copy->pieces[i].early[s]);
    free_set(copy);
}

/* Flip one bit of the last element, in the last state, of the last rank that has any elements; otherwise of rank 0. */
static void flip(const struct sh_ckpt_set *copy)
{
    for (int i = copy->n_pieces - 1; i >= 0; i--)
        if (copy->pieces[i].elems > 0) {
            unsigned char *last = sh_floats_array(copy->pieces[i].data[EXP_AVG_SQ], 0);
            last[copy->pieces[i].elems * 4 - 1] ^= 0x10;
            return;
        }
}

static sh_rc save(const char *folder, const struct io_method *io_method, const struct sh_ckpt_set *set)
{
    struct sh_ckpt_meta meta = test_meta(STEP);
    struct sh_ckpt_async *b;
    int64_t bytes;
    bool done = false;
    if (!io_method->async)
        return sh_ckpt_save(folder, set, &meta, &io_method->options, &bytes);
    sh_rc rc = sh_ckpt_async_begin(folder, set, &meta, &io_method->options, &b);
    if (rc != SH_OK)
        return rc;
    while (rc == SH_OK && !done)
        rc = sh_ckpt_async_poll(b, true, &done, &bytes);
    sh_ckpt_async_end(b);
    return rc;
}

static bool swaps; /* whether the temporary file is swapped before its rename */

sh_rc __real_sh_output_publish(int fd, const char *temp, const char *path);
sh_rc __wrap_sh_output_publish(int fd, const char *temp, const char *path);
sh_rc __wrap_sh_output_publish(int fd, const char *temp, const char *path)
{
    CHECK(!swaps || (unlink(temp) == 0 && symlink("/etc/passwd", temp) == 0));
    return __real_sh_output_publish(fd, temp, path);
}

static unsigned long long hash_and_delete(const char *path)
{
    unsigned long long hash;
    long bytes;
    sh_mesh_barrier();
    hash = file_hash(path, &bytes);
    sh_mesh_barrier();
    CHECK(test_rank != 0 || unlink(path) == 0);
    sh_mesh_barrier();
    return hash;
}

static void by_method(const char *folder, const char *path, const struct io_method *io_method,
                      const struct sh_ckpt_set *state)
{
    struct sh_ckpt_set copy = copy_set(state);
    CHECK(wrong_elements(&copy) == 0);
    CHECK(save(folder, io_method, state) == SH_OK);
    unsigned long long expected = hash_and_delete(path);
    CHECK(save(folder, io_method, &copy) == SH_OK && hash_and_delete(path) == expected);
    swaps = true;
    check_fails(save(folder, io_method, &copy), SH_E_DATA, "is no longer the file that was written");
    swaps = false;
    if (test_rank == test_world / 2)
        flip(&copy);
    check_fails(save(folder, io_method, &copy), SH_E_DATA, "changed between the copy of the state and the file");
    sh_mesh_barrier();
    CHECK(files_in_folder() == 0);
    sh_mesh_barrier();
    free_copy(&copy);
}

int main(int argc, char **argv)
{
    char path[300];
    CHECK(sh_mesh_start(&argc, &argv) == SH_OK);
    MPI_Comm_rank(MPI_COMM_WORLD, &test_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &test_world);
    if (test_world != 2) /* two ranks use tensors of several blocks */
        use_small_model();
    const char *folder = make_folder();
    snprintf(path, sizeof path, "%s/step-%08d.h5", folder, STEP);
    struct sh_ckpt_set state = make_set(CUT_FLAT, true);
    for (int i = 0; i < METHODS; i++)
        by_method(folder, path, &methods[i], &state);
    free_set(&state);
    remove_folder();
    if (test_rank == 0)
        printf("test_ckpt_copy: %d ranks: ok\n", test_world);
    sh_mesh_stop();
    return 0;
}
