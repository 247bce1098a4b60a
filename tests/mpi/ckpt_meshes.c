/* Checkpoints of every mesh that a job's ranks can form, for test_ckpt_meshes.py.
 *
 *     ckpt_meshes FOLDER REFERENCE
 *
 * saves the state on each mesh replicate x shard in each way, as FOLDER/<replicate>x<shard>-<way>.h5, and loads
 * REFERENCE, a file that some other mesh saved (if missing: the first of these), on each. The loaded state must be
 * right to the bit. */
#include "tests/mpi/ckpt_case.h"

#include "src/mesh/mesh.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STEP = 7 };

static const char *folder;
static char reference[256];

static sh_rc save_async(const struct sh_ckpt_set *set, const struct sh_ckpt_meta *meta)
{
    struct sh_ckpt_options options = {.hints = "", .timeout_seconds = 200};
    struct sh_ckpt_async *b = NULL;
    int64_t bytes;
    bool done = false;
    sh_rc rc = sh_ckpt_async_begin(folder, set, meta, &options, &b);
    while (rc == SH_OK && !done)
        rc = sh_ckpt_async_poll(b, false, &done, &bytes);
    sh_ckpt_async_end(b);
    return rc;
}

static sh_rc save_by(enum sh_cfg_io io_method, const struct sh_ckpt_set *set, const struct sh_ckpt_meta *meta)
{
    struct sh_ckpt_options options = {.io_method = io_method, .hints = "", .timeout_seconds = 200};
    int64_t bytes;
    return sh_ckpt_save(folder, set, meta, &options, &bytes);
}

static sh_rc save_mpiio(const struct sh_ckpt_set *set, const struct sh_ckpt_meta *meta)
{
    return save_by(SH_IO_MPIIO, set, meta);
}

static sh_rc save_direct(const struct sh_ckpt_set *set, const struct sh_ckpt_meta *meta)
{
    return save_by(SH_IO_DIRECT, set, meta);
}

static const struct way {
    const char *name;
    sh_rc (*save)(const struct sh_ckpt_set *set, const struct sh_ckpt_meta *meta);
} ways[] = {{"mpiio", save_mpiio}, {"direct", save_direct}, {"async", save_async}};

static void save(int replicas, const struct way *way)
{
    struct sh_ckpt_set set = make_mesh_set(replicas, true);
    struct sh_ckpt_meta meta = test_meta(STEP);
    char path[256], name[256];
    CHECK(way->save(&set, &meta) == SH_OK);
    free_set(&set);
    snprintf(path, sizeof path, "%s/step-%08d.h5", folder, STEP);
    snprintf(name, sizeof name, "%s/%dx%d-%s.h5", folder, replicas, test_world / replicas, way->name);
    sh_mesh_barrier();
    CHECK(test_rank != 0 || rename(path, name) == 0);
    if (!reference[0])
        strcpy(reference, name);
    sh_mesh_barrier();
}

static void load(int replicas)
{
    struct sh_ckpt_set set = make_mesh_set(replicas, false);
    struct sh_ckpt_meta meta, expected = test_meta(STEP);
    CHECK(load_set(reference, &set, &meta) == SH_OK);
    CHECK(wrong_elements(&set) == 0);
    CHECK(meta.step == STEP && meta.samples == expected.samples && meta.tokens == expected.tokens);
    CHECK(meta.updates == expected.updates && strcmp(meta.config, expected.config) == 0);
    sh_ckpt_meta_free(&meta);
    free_set(&set);
}

static void every_mesh(void)
{
    for (int replicas = 1; replicas <= test_world; replicas++) {
        if (test_world % replicas != 0)
            continue;
        for (size_t w = 0; w < sizeof ways / sizeof ways[0]; w++)
            save(replicas, &ways[w]);
        load(replicas);
    }
}

int main(int argc, char **argv)
{
    CHECK(sh_mesh_start(&argc, &argv) == SH_OK);
    MPI_Comm_rank(MPI_COMM_WORLD, &test_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &test_world);
    CHECK(argc == 3);
    folder = argv[1];
    if (access(argv[2], F_OK) == 0)
        snprintf(reference, sizeof reference, "%s", argv[2]);
    sh_mesh_barrier();
    every_mesh();
    sh_mesh_stop();
    return 0;
}
