#include "io/checkpoint/file/index.h"

#include "io/checkpoint/file/digest.h"
#include "io/checkpoint/file/extents.h"
#include "io/file/file.h"
#include "src/base/mem.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Every rank compares the length with rank 0's: nodes that see different files must not mix them. The caller closes
 * *fd. */
sh_rc sh_ckpt_index_open_data(const struct sh_ckpt_index *index, const char *path, int *fd)
{
    int64_t bytes;
    int f;
    SH_TRY(sh_file_open(path, &f, &bytes));
    if (bytes != index->file_bytes) {
        close(f);
        return sh_fail(SH_E_DATA, "%s has %lld bytes here and %lld on rank 0; is its folder the same on all nodes?",
                       path, (long long)bytes, (long long)index->file_bytes);
    }
    *fd = f;
    return SH_OK;
}

sh_rc sh_ckpt_index_read_block(const struct sh_ckpt_index *index, int fd, const char *path, int state,
                               const struct sh_ckpt_entry *e, int64_t block, float *buffer, int64_t *elems)
{
    int64_t begin = block * SH_CKPT_BLOCK_ELEMS;
    int64_t n = sh_ckpt_block_elems(e->elems, block);
    uint64_t seed = sh_ckpt_digest_seed(index->meta.step, state, e->name);
    SH_TRY(sh_file_read(fd, path, buffer, n * 4, e->offset[state] + begin * 4));
    if (sh_ckpt_digest_part(seed, block, buffer, 0, n) != index->digest[state][e->first_block + block])
        return sh_ckpt_index_damaged(index, path, state, e, block);
    *elems = n;
    return SH_OK;
}

/* A whole block needs no buffer of its own. */
sh_rc sh_ckpt_index_read_range(const struct sh_ckpt_index *index, int fd, const char *path, int state,
                               const struct sh_ckpt_entry *e, int64_t at, int64_t n, float *out)
{
    float *buffer = NULL;
    sh_rc rc = SH_OK;
    for (int64_t done = 0, here; done < n && rc == SH_OK; done += here) {
        int64_t block = (at + done) / SH_CKPT_BLOCK_ELEMS, skip = (at + done) % SH_CKPT_BLOCK_ELEMS;
        int64_t all = sh_ckpt_block_elems(e->elems, block);
        here = all - skip < n - done ? all - skip : n - done;
        if (here < all && !buffer)
            buffer = sh_calloc(SH_CKPT_BLOCK_ELEMS, sizeof *buffer);
        rc = sh_ckpt_index_read_block(index, fd, path, state, e, block, here < all ? buffer : out + done, &all);
        if (rc == SH_OK && here < all)
            memcpy(out + done, buffer + skip, (size_t)here * sizeof *out);
    }
    free(buffer);
    return rc;
}

/* Verifies share `part` of `parts` equal ones, so that ranks can divide the work. Reads from the disk, not from the
 * page cache, which would only prove that memory is good. */
sh_rc sh_ckpt_index_verify(const struct sh_ckpt_index *index, int fd, const char *path, int part, int parts,
                           bool from_disk)
{
    struct sh_ckpt_extents extents = {0};
    struct sh_file_direct file;
    if (from_disk)
        sh_file_direct_open(path, fd, false, &file);
    else
        sh_file_cached_open(path, fd, &file);
    if (from_disk && file.direct < 0)
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED); /* from the disk if the kernel can */
    sh_ckpt_extents_of_share(&extents, index, part, parts);
    sh_rc rc = sh_ckpt_extents_read(&extents, &file, index);
    sh_ckpt_extents_free(&extents);
    sh_file_direct_close(&file);
    return rc;
}
