#include "io/checkpoint/stream.h"

#include "io/checkpoint/create.h"
#include "io/checkpoint/h5.h"
#include "io/checkpoint/index.h"
#include "io/checkpoint/pack.h"
#include "io/file/file.h"
#include "io/move/pool.h"
#include "src/base/mem.h"
#include "src/base/temp.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Blocks are read, converted and written by THREADS threads, each with its own block and as much scratch. */
enum { BLOCK_BYTES = SH_CKPT_BLOCK_ELEMS * 4, THREADS = 4 };

/* A block of a tensor's parameters is one job of the thread pool. */
struct job {
    int tensor;
    int64_t block;
};

/* A checkpoint written from a stream of blocks. */
struct stream {
    char *path, *temp; /* temp NULL: no file yet */
    struct sh_ckpt_index index, written;
    sh_ckpt_stream_read read;
    void *arg;
    struct job *job;
    int64_t n;
    int fd, memory;
    struct sh_ckpt_lock *lock;
};

/* Lists all blocks of all tensors, in the order of the file. */
static void list_jobs(struct stream *s)
{
    int cap = 0, n = 0;
    for (int i = 0; i < s->index.n; i++)
        for (int64_t b = 0; b < sh_ckpt_blocks(s->index.entry[i].elems); b++) {
            s->job = sh_grow(s->job, n, &cap, sizeof *s->job);
            s->job[n++] = (struct job){i, b};
        }
    s->n = n;
}

/* The moments are zero already in a new file; their sums are not. */
static sh_rc write_block(void *arg, int64_t i, char *buffer)
{
    struct stream *s = arg;
    const struct job *j = &s->job[i];
    const struct sh_ckpt_entry *e = &s->index.entry[j->tensor];
    float *data = (float *)(void *)buffer;
    int64_t n = sh_ckpt_block_elems(e->elems, j->block), first = j->block * SH_CKPT_BLOCK_ELEMS;
    SH_TRY(s->read(s->arg, j->tensor, first, n, data, buffer + BLOCK_BYTES));
    SH_TRY(sh_file_write(s->fd, s->temp, data, n * 4, e->offset[SH_CKPT_MODEL] + first * 4));
    for (int k = 0; k < s->index.states.n; k++) {
        uint64_t seed = sh_ckpt_digest_seed(s->index.meta.step, k, e->name);
        s->index.digest[k][e->first_block + j->block] = sh_ckpt_digest_part(seed, j->block, data, 0, n);
        if (k == SH_CKPT_MODEL)
            memset(data, 0, (size_t)n * sizeof *data);
    }
    return SH_OK;
}

/* lstat(): a dangling link would be in the way, too. */
static sh_rc refuse_existing(const struct stream *s)
{
    struct stat st;
    if (lstat(s->path, &st) != 0)
        return SH_OK;
    return sh_fail(SH_E_USAGE, "%s exists already; name another folder, or delete it", s->path);
}

/* Creates the file like a save of one rank: temporary name, space reserved, structures in memory. */
static sh_rc create(struct stream *s)
{
    char *temp = sh_output_temp_name(s->path);
    sh_rc rc = sh_file_create(temp, &s->fd);
    if (rc == SH_OK) {
        s->temp = temp;
        sh_temp_add(temp, s->fd);
    } else
        free(temp);
    return rc == SH_OK ? sh_ckpt_create(s->temp, s->fd, &s->index, &s->memory) : rc;
}

/* Reads all data back from the disk and compares it with the digests computed while writing. */
static sh_rc verify(struct stream *s)
{
    SH_TRY(sh_ckpt_index_read(s->temp, &s->written));
    if (!sh_ckpt_packed_same(&s->written, &s->index))
        return sh_fail(SH_E_DATA, "%s: the index read back differs from what was written", s->temp);
    return sh_ckpt_index_verify(&s->written, s->fd, s->temp, 0, 1, true);
}

/* Follows the order of a save, in one process: lock, create, write and sum in parallel, sign, sync, verify, publish. */
static sh_rc write_file(struct stream *s, const char *folder)
{
    SH_TRY(sh_ckpt_h5_start());
    SH_TRY(sh_file_make_folder(folder));
    SH_TRY(sh_ckpt_lock(folder, &s->lock));
    SH_TRY(refuse_existing(s));
    SH_TRY(create(s));
    list_jobs(s);
    SH_TRY(sh_move_pool_run(s->n, THREADS, 2 * BLOCK_BYTES, write_block, s));
    SH_TRY(sh_ckpt_sign(s->temp, s->fd, s->memory, &s->index));
    SH_TRY(sh_file_sync(s->fd, s->temp));
    SH_TRY(verify(s));
    return sh_output_publish(s->fd, s->temp, s->path);
}

/* Also called after a failure at any point; a file that is not committed is deleted. */
static void close_file(struct stream *s, bool committed)
{
    if (s->memory >= 0)
        close(s->memory);
    if (s->fd >= 0)
        close(s->fd);
    if (s->temp && !committed)
        (void)unlink(s->temp);
    if (s->temp)
        sh_temp_drop(s->temp);
    sh_ckpt_unlock(s->lock);
    sh_ckpt_index_free(&s->index);
    sh_ckpt_index_free(&s->written);
    free(s->job);
    free(s->temp);
}

/* Writes a checkpoint whose parameters come from elsewhere, block by block, so that a model larger than memory can be
 * converted. Local. The caller frees *path. */
sh_rc sh_ckpt_stream(const char *folder, const struct sh_ckpt_set *set, const struct sh_ckpt_meta *meta,
                     sh_ckpt_stream_read read, void *arg, char **path)
{
    struct stream s = {.read = read, .arg = arg, .fd = -1, .memory = -1};
    struct sh_ckpt_meta noted = *meta;
    char *notes =
        sh_strfmt("%scheckpoint.verify: %s\n", meta->notes ? meta->notes : "", sh_ckpt_verify_name[SH_VERIFY_DISK]);
    noted.notes = notes;
    sh_rc rc = sh_ckpt_index_make(set, &noted, &s.index);
    free(notes);
    SH_TRY(rc);
    s.path = sh_strfmt("%s/step-%08lld.h5", folder, (long long)meta->step);
    rc = write_file(&s, folder);
    close_file(&s, rc == SH_OK);
    if (rc == SH_OK)
        *path = s.path;
    else
        free(s.path);
    return rc;
}
