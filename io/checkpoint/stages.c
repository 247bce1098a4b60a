#include "io/checkpoint/save.h"

#include "io/checkpoint/file/create.h"
#include "io/checkpoint/file/h5.h"
#include "io/checkpoint/file/io_method.h"
#include "io/checkpoint/file/pack.h"
#include "io/checkpoint/folder/misnamed.h"
#include "io/checkpoint/write.h"
#include "io/file/file.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/temp.h"
#include "src/mesh/mesh.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Checks the caller's promises before anything is created: a piece past its tensor would overwrite its neighbour. */
static sh_rc check_pieces(const struct sh_ckpt_set *set)
{
    for (int i = 0; i < set->n_pieces; i++) {
        const struct sh_ckpt_piece *p = &set->pieces[i];
        SH_REQUIRE(p->tensor >= 0 && p->tensor < set->n_tensors);
        SH_REQUIRE(p->begin >= 0 && p->elems >= 0 && p->begin + p->elems <= set->tensors[p->tensor].elems);
        unsigned states = set->tensors[p->tensor].states;
        for (int s = 0; s < set->states.n; s++)
            SH_REQUIRE((states && !(states >> s & 1u)) || !sh_floats_none(p->data[s]) || (p->far[s] && set->far) ||
                       set->zero[s] || p->elems == 0);
    }
    return SH_OK;
}

/* How the file was verified determines how far it can be trusted, so the save notes it. */
static void note_verify(struct sh_ckpt_meta *meta, enum sh_cfg_verify verify)
{
    char *notes = meta->notes;
    meta->notes = sh_strfmt("%scheckpoint.verify: %s\n", notes, sh_ckpt_verify_name[verify]);
    free(notes);
}

/* Prepares index, names, HDF5 and the folder. The temporary name needs up to 64 bytes more than the path; they are kept
 * free here. */
static sh_rc prepare(void *arg)
{
    struct sh_ckpt_saving *s = arg;
    SH_TRY(sh_ckpt_index_make(&s->set, s->meta, &s->index));
    note_verify(&s->index.meta, s->options.verify);
    int n = snprintf(s->path, sizeof s->path, "%s/step-%08lld.h5", s->folder, (long long)s->index.meta.step);
    if (n >= SH_CKPT_PATH_BYTES - 64)
        return sh_fail(SH_E_DATA, "checkpoint folder: its name has more than %d bytes", SH_CKPT_PATH_BYTES - 64);
    SH_TRY(sh_ckpt_h5_start());
    SH_TRY(check_pieces(&s->set));
    return s->rank == 0 ? sh_mkdir_private(s->folder) : SH_OK;
}

/* Collective, like sh_ckpt_io_method_choose(). */
static sh_rc choose_io_method(void *arg)
{
    struct sh_ckpt_saving *s = arg;
    return sh_ckpt_io_method_choose(s->folder, &s->options, &s->io_method);
}

/* A promise of all callers together, checked before there is a file. */
static sh_rc compare_pieces(void *arg)
{
    return sh_ckpt_set_covers(&((struct sh_ckpt_saving *)arg)->set);
}

/* Lists the extents that this rank writes. */
static sh_rc list_spans(void *arg)
{
    struct sh_ckpt_saving *s = arg;
    return sh_ckpt_extents_of_set(&s->extents, &s->set, &s->index, NULL);
}

/* What is not written has its sum from here. Sums are computed from memory, and with MPI-IO before the data is
 * handed over, so that the comparison at the end covers the whole way to the disk. */
static sh_rc sum_blocks(void *arg)
{
    struct sh_ckpt_saving *s = arg;
    bool all = s->io_method == SH_IO_MPIIO, zero = false;
    for (int k = 0; k < s->set.states.n; k++)
        zero = zero || s->set.zero[k];
    SH_REQUIRE(!all || !zero);
    return all || zero ? sh_ckpt_extents_sum(&s->extents, zero, s->options.threads) : SH_OK;
}

/* Called once all ranks have written everything that they hold, and so have all their sums. */
static sh_rc add_digests(void *arg)
{
    struct sh_ckpt_saving *s = arg;
    sh_rc changed = sh_ckpt_extents_compare(&s->extents);
    for (int i = 0; i < s->extents.n; i++) {
        const struct sh_ckpt_extent *extent = &s->extents.extent[i];
        s->index.digest[extent->state][extent->entry->first_block + extent->block] += extent->sum;
    }
    for (int k = 0; k < s->index.states.n; k++)
        SH_TRY(sh_mesh_sum_i64((long long *)s->index.digest[k], (int)s->index.n_blocks));
    return changed;
}

/* With hints MPI-IO creates the file, so this is not a part of the layout, which may run in a thread. */
static sh_rc create_file(void *arg)
{
    struct sh_ckpt_saving *s = arg;
    int fd;
    char *temp = sh_output_temp_name(s->path);
    sh_rc rc = sh_ckpt_io_method_create(temp, s->options.hints, &fd);
    if (rc == SH_OK)
        strcpy(s->temp, temp); /* the suffix is shorter than the 64 bytes that prepare() kept free */
    if (rc == SH_OK)
        sh_temp_add(temp, -1);
    free(temp);
    if (rc == SH_OK)
        close(fd);
    return rc;
}

/* Rank 0. create_file() has created the file; it is laid out here, on the writing thread if the save is asynchronous.
 */
static sh_rc lay_out(void *arg)
{
    struct sh_ckpt_saving *s = arg;
    struct sh_ckpt_index *x = &s->index;
    int fd;
    SH_TRY(sh_file_reopen(s->temp, &fd, &s->bytes));
    sh_rc rc = sh_ckpt_create(s->temp, fd, x, &s->memory);
    close(fd);
    return rc;
}

/* Collective. Every rank opens the file by the name that rank 0 chose: if the folder is a different one on some node,
 * this is noticed here, before data is written. */
static sh_rc open_file(void *arg)
{
    struct sh_ckpt_saving *s = arg;
    SH_TRY(sh_mesh_bcast(s->temp, sizeof s->temp, 0));
    SH_TRY(sh_mesh_bcast(&s->index.file_bytes, sizeof s->index.file_bytes, 0));
    SH_TRY(sh_mesh_bcast(s->index.entry, (long)((size_t)s->index.n * sizeof *s->index.entry), 0)); /* its offsets */
    sh_rc rc = sh_file_reopen(s->temp, &s->fd, &s->bytes);
    return rc == SH_OK ? SH_OK : sh_fail_prefix(rc, "the checkpoint folder must be the same on all nodes: ");
}

/* Only for direct writes; MPI-IO chooses its own aggregators. */
static sh_rc choose_writers(void *arg)
{
    struct sh_ckpt_saving *s = arg;
    struct sh_move_range *own;
    sh_rc rc;
    int n;

    if (s->io_method != SH_IO_DIRECT)
        return SH_OK;
    n = sh_ckpt_extents_ranges(&s->extents, &own);
    rc = sh_move_writers_choose(&s->writers, own, n, s->options.writers_per_node, s->options.ranks_per_node);
    free(own);
    return rc;
}

/* Collective only in time: each rank writes its own pieces through its own handle. */
static sh_rc write_mpiio(void *arg)
{
    struct sh_ckpt_saving *s = arg;
    if (s->io_method != SH_IO_MPIIO)
        return SH_OK;
    return sh_ckpt_write_pieces(s->temp, &s->set, &s->index, s->options.hints);
}

/* Sums the data on the way, while the disk is busy with the previous piece. */
static sh_rc write_direct(void *arg)
{
    struct sh_ckpt_saving *s = arg;
    struct sh_file_direct file;
    if (s->io_method != SH_IO_DIRECT)
        return SH_OK;
    /* If the data will be read back from the cache, it has to be in it; otherwise it bypasses the page cache, which it
     * would only fill. */
    if (s->options.verify == SH_VERIFY_CACHE)
        sh_file_cached_open(s->temp, s->fd, &file);
    else
        sh_file_direct_open(s->temp, s->fd, true, &file);
    sh_rc rc = sh_ckpt_extents_write(&s->extents, &s->writers, &file);
    sh_file_direct_close(&file);
    return rc;
}

/* Rank 0: writes digests, structures and index once all data is written. */
static sh_rc sign(void *arg)
{
    struct sh_ckpt_saving *s = arg;
    return sh_ckpt_sign(s->temp, s->fd, s->memory, &s->index);
}

/* After the close, on every rank, since each node has its own part in memory; on a file descriptor opened before the
 * writes, since a newer one may not learn of an earlier failure to write back. */
static sh_rc sync_data(void *arg)
{
    struct sh_ckpt_saving *s = arg;
    return sh_file_sync(s->fd, s->temp);
}

/* Reads the index like a stranger's, and past the page cache if the data is read that way, too. */
static sh_rc read_index(void *arg)
{
    struct sh_ckpt_saving *s = arg;
    if (s->options.verify == SH_VERIFY_DISK)
        posix_fadvise(s->fd, 0, 0, POSIX_FADV_DONTNEED);
    SH_TRY(sh_ckpt_index_read(s->temp, &s->written));
    if (!sh_ckpt_packed_same(&s->written, &s->index))
        return sh_fail(SH_E_DATA, "%s: the index read back differs from what was written", s->temp);
    return SH_OK;
}

/* Collective: every rank verifies a part, and needs the index from the file, not from memory. */
static sh_rc share_index(void *arg)
{
    struct sh_ckpt_saving *s = arg;
    return sh_ckpt_index_share(&s->written, s->temp, s->rank);
}

/* Verifies the part of the next rank, which another process and usually another node wrote. */
static sh_rc verify_data(void *arg)
{
    struct sh_ckpt_saving *s = arg;
    if (s->options.verify == SH_VERIFY_OFF)
        return SH_OK;
    return sh_ckpt_index_verify(&s->written, s->fd, s->temp, (s->rank + 1) % s->world, s->world,
                                s->options.verify == SH_VERIFY_DISK);
}

/* Publishes the file open as s->fd: it was written, synced and read back through it. */
static sh_rc publish(void *arg)
{
    struct sh_ckpt_saving *s = arg;
    SH_TRY(sh_ckpt_lock_check(s->options.lock, s->folder));
    SH_TRY(sh_ckpt_set_aside(s->path, s->index.meta.step));
    return sh_output_publish(s->fd, s->temp, s->path);
}

/* The new checkpoint exists and stays: an old one that cannot be deleted is not a failure of the save. */
static sh_rc retain(void *arg)
{
    struct sh_ckpt_saving *s = arg;
    if (sh_ckpt_retain(s->folder, &s->options.keep, s->index.meta.step) == SH_OK)
        return SH_OK;
    sh_log_warn("old checkpoints are not deleted: %s", sh_error_text());
    sh_error_clear();
    return SH_OK;
}

/* The stages of a save, in order. Until "renaming" the file has a temporary name, so a failure at any stage
 * leaves the older checkpoints unchanged. */
const struct sh_move_stage sh_ckpt_stages[] = {
    {.name = "preparing", .phase = SH_CKPT_LAYOUT, .run = prepare},
    {.name = "comparing what the ranks hold", .phase = SH_CKPT_LAYOUT, .run = compare_pieces},
    {.name = "choosing how to write", .phase = SH_CKPT_LAYOUT, .run = choose_io_method},
    {.name = "listing what to write", .phase = SH_CKPT_LAYOUT, .local = true, .run = list_spans},
    {.name = "creating the file", .phase = SH_CKPT_LAYOUT, .rank0 = true, .run = create_file},
    {.name = "laying out the file", .phase = SH_CKPT_LAYOUT, .local = true, .rank0 = true, .run = lay_out},
    {.name = "opening the file", .phase = SH_CKPT_LAYOUT, .run = open_file},
    {.name = "choosing who writes", .phase = SH_CKPT_LAYOUT, .run = choose_writers},
    {.name = "summing blocks", .phase = SH_CKPT_SUMS, .local = true, .run = sum_blocks},
    {.name = "writing through MPI-IO", .phase = SH_CKPT_WRITE, .run = write_mpiio},
    {.name = "writing", .phase = SH_CKPT_WRITE, .local = true, .run = write_direct},
    {.name = "adding the sums", .phase = SH_CKPT_SUMS, .run = add_digests},
    {.name = "signing", .phase = SH_CKPT_SUMS, .local = true, .rank0 = true, .run = sign},
    {.name = "fsync", .phase = SH_CKPT_SYNC, .local = true, .run = sync_data},
    {.name = "reading the index back", .phase = SH_CKPT_VERIFY, .local = true, .rank0 = true, .run = read_index},
    {.name = "sharing the index", .phase = SH_CKPT_VERIFY, .run = share_index},
    {.name = "reading the data back", .phase = SH_CKPT_VERIFY, .local = true, .run = verify_data},
    {.name = "renaming", .phase = SH_CKPT_COMMIT, .local = true, .rank0 = true, .run = publish},
    {.name = "deleting old checkpoints", .phase = SH_CKPT_COMMIT, .local = true, .rank0 = true, .run = retain},
};
const int sh_ckpt_n_stages = sizeof sh_ckpt_stages / sizeof sh_ckpt_stages[0];
