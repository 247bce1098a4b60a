#include "io/checkpoint/index.h"

#include "io/checkpoint/digest.h"
#include "io/file/file.h"
#include "src/base/mem.h"

#include <stdlib.h>
#include <unistd.h>

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

struct check {
    const struct sh_ckpt_index *index;
    int fd;
    const char *path;
    float *buffer; /* [SH_CKPT_BLOCK_ELEMS] */
};

sh_rc sh_ckpt_index_damaged(const char *path, int state, const struct sh_ckpt_entry *e, int64_t block)
{
    int64_t begin = block * SH_CKPT_BLOCK_ELEMS, elems = sh_ckpt_block_elems(e->elems, block);
    return sh_fail(SH_E_DATA,
                   "%s: %s/%s, block %lld (elements %lld to %lld) does not match its digest: the file is damaged; take an "
                   "earlier checkpoint",
                   path, sh_ckpt_state_name[state], e->name, (long long)block, (long long)begin,
                   (long long)(begin + elems - 1));
}

sh_rc sh_ckpt_index_read_block(const struct sh_ckpt_index *index, int fd, const char *path, int state,
                               const struct sh_ckpt_entry *e, int64_t block, float *buffer, int64_t *elems)
{
    int64_t begin = block * SH_CKPT_BLOCK_ELEMS;
    int64_t n = sh_ckpt_block_elems(e->elems, block);
    uint64_t seed = sh_ckpt_digest_seed(index->meta.step, state, e->name);
    SH_TRY(sh_file_read(fd, path, buffer, n * 4, e->offset[state] + begin * 4));
    if (sh_ckpt_digest_part(seed, block, buffer, 0, n) != index->digest[state][e->first_block + block])
        return sh_ckpt_index_damaged(path, state, e, block);
    *elems = n;
    return SH_OK;
}

static sh_rc check_block(const struct check *c, int state, const struct sh_ckpt_entry *e, int64_t block)
{
    int64_t elems;
    return sh_ckpt_index_read_block(c->index, c->fd, c->path, state, e, block, c->buffer, &elems);
}

/* The blocks of one tensor that begin in [begin, end), where the tensor itself begins at `at`. */
static sh_rc check_tensor(const struct check *c, int state, const struct sh_ckpt_entry *e, int64_t at, int64_t begin,
                          int64_t end)
{
    for (int64_t b = 0; b < sh_ckpt_blocks(e->elems); b++) {
        int64_t first = at + b * SH_CKPT_BLOCK_ELEMS;
        if (first >= begin && first < end)
            SH_TRY(check_block(c, state, e, b));
    }
    return SH_OK;
}

static sh_rc check_range(const struct check *c, int64_t begin, int64_t end)
{
    int64_t at = 0;
    for (int s = 0; s < SH_CKPT_STATES; s++) {
        for (int64_t i = 0; i < c->index->n; i++) {
            SH_TRY(check_tensor(c, s, &c->index->entry[i], at, begin, end));
            at += c->index->entry[i].elems;
        }
    }
    return SH_OK;
}

/* Place `part` of `parts` equal cuts of `total`, without overflow. */
static int64_t cut(int64_t total, int part, int parts)
{
    return total / parts * part + total % parts * part / parts;
}

/* All elements of all states are cut in equal parts; a block belongs to the part in which it begins. */
sh_rc sh_ckpt_index_verify(const struct sh_ckpt_index *index, int fd, const char *path, int part, int parts)
{
    struct check c = {.index = index, .fd = fd, .path = path};
    int64_t total = 0;
    for (int64_t i = 0; i < index->n; i++)
        total += index->entry[i].elems * SH_CKPT_STATES;
    c.buffer = sh_calloc(SH_CKPT_BLOCK_ELEMS, sizeof *c.buffer);
    sh_rc rc = check_range(&c, cut(total, part, parts), cut(total, part + 1, parts));
    free(c.buffer);
    return rc;
}
