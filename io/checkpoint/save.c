#include "io/checkpoint/checkpoint.h"

#include "io/checkpoint/create.h"
#include "io/checkpoint/digest.h"
#include "io/checkpoint/h5.h"
#include "io/checkpoint/index.h"
#include "io/checkpoint/write.h"
#include "io/file/file.h"
#include "src/base/deadline.h"
#include "src/base/mem.h"
#include "src/mesh/mesh.h"

#include <fcntl.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_BYTES = 4096 };

struct save {
    const char *folder;
    const struct sh_ckpt_set *set;
    const struct sh_ckpt_meta *meta;
    int rank, world;
    char path[PATH_BYTES], temp[PATH_BYTES]; /* temp "": nothing created yet */
    int fd;                                  /* of temp, open from before the first write: see sync_data */
    struct sh_ckpt_index index;              /* as asked for, and all digests */
    struct sh_ckpt_index written;            /* as found in the file */
    int64_t bytes;
};

static sh_rc check_pieces(const struct sh_ckpt_set *set)
{
    for (int i = 0; i < set->n_pieces; i++) {
        const struct sh_ckpt_piece *p = &set->pieces[i];
        SH_REQUIRE(p->tensor >= 0 && p->tensor < set->n_tensors);
        SH_REQUIRE(p->begin >= 0 && p->elems >= 0 && p->begin + p->elems <= set->tensors[p->tensor].elems);
        for (int s = 0; s < SH_CKPT_STATES; s++)
            SH_REQUIRE(p->data[s] || p->elems == 0);
    }
    return SH_OK;
}

static sh_rc prepare(struct save *s)
{
    int n = snprintf(s->path, sizeof s->path, "%s/step-%08lld.h5", s->folder, (long long)s->meta->step);
    if (n >= PATH_BYTES - 64)
        return sh_fail(SH_E_DATA, "checkpoint folder: its name has more than %d bytes", PATH_BYTES - 64);
    SH_TRY(sh_ckpt_h5_start());
    SH_TRY(sh_ckpt_index_make(s->set, s->meta, &s->index));
    SH_TRY(check_pieces(s->set));
    return s->rank == 0 ? sh_file_make_folder(s->folder) : SH_OK;
}

static void digest_pieces(struct save *s, long long *covered)
{
    for (int i = 0; i < s->set->n_pieces; i++) {
        const struct sh_ckpt_piece *p = &s->set->pieces[i];
        const struct sh_ckpt_entry *e = &s->index.entry[p->tensor];
        covered[p->tensor] += p->elems;
        for (int k = 0; k < SH_CKPT_STATES; k++)
            sh_ckpt_digest_add(sh_ckpt_digest_seed(s->meta->step, k, e->name), p->data[k], p->begin, p->elems,
                               s->index.digest[k] + e->first_block);
    }
}

/* From memory, before anything is written: what is compared at the end covers the whole way to the disk. */
static sh_rc digest_all(struct save *s)
{
    long long *covered = sh_calloc((size_t)s->index.n + 1, sizeof *covered);
    digest_pieces(s, covered);
    sh_rc rc = sh_mesh_sum_i64(covered, (int)s->index.n);
    for (int k = 0; k < SH_CKPT_STATES && rc == SH_OK; k++)
        rc = sh_mesh_sum_i64((long long *)s->index.digest[k], (int)s->index.n_blocks);
    for (int64_t i = 0; i < s->index.n && rc == SH_OK; i++)
        if (covered[i] != s->index.entry[i].elems)
            rc = sh_fail(SH_E_BUG, "checkpoint: the ranks hold %lld of the %lld elements of %s", covered[i],
                         (long long)s->index.entry[i].elems, s->index.entry[i].name);
    free(covered);
    return rc;
}

static sh_rc create_file(struct save *s)
{
    int fd;
    if (s->rank != 0)
        return SH_OK;
    char *temp = sh_file_temp_name(s->path);
    sh_rc rc = sh_file_create(temp, &fd);
    if (rc == SH_OK)
        strcpy(s->temp, temp); /* a suffix of less than the 64 bytes that prepare() kept free */
    free(temp);
    SH_TRY(rc);
    rc = sh_ckpt_create(s->temp, fd, &s->index);
    close(fd);
    return rc;
}

static sh_rc open_file(struct save *s)
{
    SH_TRY(sh_mesh_bcast(s->temp, sizeof s->temp, 0));
    int64_t bytes;
    sh_rc rc = sh_file_open(s->temp, &s->fd, &bytes);
    if (rc != SH_OK)
        return sh_fail_prefix(rc, "the checkpoint folder must be the same on all nodes: ");
    s->bytes = bytes;
    return SH_OK;
}

static sh_rc write_data(struct save *s)
{
    return sh_ckpt_write_pieces(s->temp, s->set);
}

/* After the close, since HDF5 writes once more while closing; by every rank, since each node has its own part in
 * memory; on a file descriptor from before the writes, since a new one may not learn of an earlier failure to write
 * back. */
static sh_rc sync_data(struct save *s)
{
    return sh_file_sync(s->fd, s->temp);
}

static sh_rc read_index(struct save *s)
{
    if (s->rank != 0)
        return SH_OK;
    SH_TRY(sh_ckpt_index_read(s->temp, &s->written));
    if (sh_ckpt_index_digest(&s->written) != sh_ckpt_index_digest(&s->index))
        return sh_fail(SH_E_DATA, "%s: read back, its meta data is not what was written", s->temp);
    return SH_OK;
}

/* The part of the next rank, which another process and mostly another node wrote, from the disk if the kernel can. */
static sh_rc verify_data(struct save *s)
{
    SH_TRY(sh_ckpt_index_share(&s->written, s->rank));
    posix_fadvise(s->fd, 0, 0, POSIX_FADV_DONTNEED);
    return sh_ckpt_index_verify(&s->written, s->fd, s->temp, (s->rank + 1) % s->world, s->world);
}

static sh_rc publish(struct save *s)
{
    return s->rank == 0 ? sh_file_publish(s->temp, s->path) : SH_OK;
}

/* Each stage gives a result of this rank alone and meets the same collectives whatever that is; the next stage begins
 * when all ranks have passed. */
static const struct {
    sh_rc (*run)(struct save *s);
    const char *doing;
} stages[] = {
    {prepare, "checkpoint: preparing to save"},
    {digest_all, "checkpoint: computing digests"},
    {create_file, "checkpoint: laying out the file"},
    {open_file, "checkpoint: opening the file on all ranks"},
    {write_data, "checkpoint: writing the tensors"},
    {sync_data, "checkpoint: fsync"},
    {read_index, "checkpoint: reading the index back"},
    {verify_data, "checkpoint: reading the tensors back"},
    {publish, "checkpoint: giving the file its name"},
};

static sh_rc run_stage(struct save *s, size_t i)
{
    sh_ckpt_stage_begin(s->set, s->rank, stages[i].doing);
    sh_rc rc = sh_agree(stages[i].run(s));
    sh_deadline_end();
    return rc;
}

static void clean(struct save *s, sh_rc rc)
{
    if (s->fd >= 0)
        close(s->fd);
    if (rc != SH_OK && s->rank == 0 && s->temp[0])
        unlink(s->temp);
    if (rc != SH_OK)
        sh_mesh_barrier(); /* a rank that returned earlier could end the job before the file is gone */
    sh_ckpt_index_free(&s->index);
    sh_ckpt_index_free(&s->written);
}

sh_rc sh_ckpt_save(const char *folder, const struct sh_ckpt_set *set, const struct sh_ckpt_meta *meta, int64_t *bytes)
{
    struct save s = {.folder = folder, .set = set, .meta = meta, .fd = -1};
    sh_rc rc = SH_OK;
    MPI_Comm_rank(MPI_COMM_WORLD, &s.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &s.world);
    for (size_t i = 0; i < sizeof stages / sizeof stages[0] && rc == SH_OK; i++)
        rc = run_stage(&s, i);
    if (rc == SH_OK)
        *bytes = s.bytes;
    clean(&s, rc);
    return rc;
}
