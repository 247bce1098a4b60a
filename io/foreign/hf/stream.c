#include "io/foreign/hf/stream.h"

#include "io/checkpoint/digest.h"
#include "io/file/file.h"
#include "io/move/pool.h"
#include "src/base/hash.h"
#include "src/base/mem.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* A block of a tensor. */
struct job {
    int tensor;
    int64_t block;
    uint64_t sum; /* checksum of its bytes as written */
};

struct copy {
    const struct sh_hf_stream *s;
    struct sh_st_writing w;
    struct job *job;
    int64_t n;
};

enum { BLOCK_BYTES = SH_CKPT_BLOCK_ELEMS * 4, THREADS = 4 };

static const struct sh_st_entry *entry_of(const struct copy *c, const struct job *j)
{
    return &c->w.layout.index.entry[j->tensor];
}

/* Return the block's offset in the output file, whose elements may have another size. */
static int64_t place_of(const struct copy *c, const struct job *j)
{
    const struct sh_st_entry *e = entry_of(c, j);
    return e->at + j->block * SH_CKPT_BLOCK_ELEMS * sh_st_type_bytes(e->type);
}

/* The buffer has room for a block of floats and a block in the file's type. */
static sh_rc copy_block(void *arg, int64_t i, char *buffer)
{
    struct copy *c = arg;
    struct job *j = &c->job[i];
    const struct sh_st_entry *e = entry_of(c, j);
    const struct sh_file_direct *f = &c->w.file[e->file];
    int64_t first = j->block * SH_CKPT_BLOCK_ELEMS, n = sh_ckpt_block_elems(e->elems, j->block), bad;
    float *from = (float *)(void *)buffer;
    char *to = buffer + BLOCK_BYTES;
    SH_TRY(c->s->read(c->s->arg, j->tensor, first, n, from, to));
    bad = sh_move_narrow(c->s->options->type, (struct sh_floats){.whole = from}, n, to);
    /* float16 has the smallest range of the three types, so only there can a number be too large. */
    if (bad < n)
        return sh_fail(SH_E_NUMERIC,
                       "%s: element %lld of %s is %g, and float16 ends at 65504; export as bfloat16 or float32",
                       c->s->from, (long long)(first + bad), e->name, (double)from[bad]);
    j->sum = sh_hash64(to, (size_t)(n * sh_st_type_bytes(e->type)));
    return sh_file_write(f->fd, f->path, to, n * sh_st_type_bytes(e->type), place_of(c, j));
}

/* Read through direct I/O if possible, so the bytes come from the disk and not from the cache. */
static sh_rc compare_block(void *arg, int64_t i, char *buffer)
{
    const struct copy *c = arg;
    const struct job *j = &c->job[i];
    const struct sh_st_entry *e = entry_of(c, j);
    const struct sh_file_direct *f = &c->w.file[e->file];
    int64_t bytes = sh_ckpt_block_elems(e->elems, j->block) * sh_st_type_bytes(e->type), at = place_of(c, j);
    SH_TRY(sh_file_direct_read(f, buffer, at, at + bytes));
    if (sh_hash64(buffer + (at - sh_file_align_down(at)), (size_t)bytes) == j->sum)
        return SH_OK;
    return sh_fail(SH_E_DATA, "%s: bytes of %s are not what was written: is the disk sound?", f->path, e->name);
}

/* Make one job per block. */
static sh_rc lay_out(struct copy *c)
{
    const struct sh_hf_stream *s = c->s;
    int cap = 0, n = 0;
    SH_TRY(sh_st_writing_begin(&c->w, s->folder, s->tensor, s->n, s->file ? INT64_MAX : s->options->max_shard_bytes,
                               (int)s->options->verify));
    if (s->file)
        snprintf(c->w.layout.index.file[0].name, sizeof c->w.layout.index.file[0].name, "%s", s->file);
    for (int i = 0; i < s->n; i++)
        for (int64_t b = 0; b < sh_ckpt_blocks(s->tensor[i].elems); b++) {
            c->job = sh_grow(c->job, n, &cap, sizeof *c->job);
            c->job[n++] = (struct job){.tensor = i, .block = b};
        }
    c->n = n;
    return SH_OK;
}

/* In order: create, copy in parallel, sync, compare, describe, publish. */
static sh_rc copy_all(struct copy *c)
{
    SH_TRY(lay_out(c));
    SH_TRY(sh_st_writing_create(&c->w));
    /* Opened before the pool starts: sh_st_writing_open() is for one thread. */
    for (int i = 0; i < c->w.layout.index.n_files; i++)
        SH_TRY(sh_st_writing_open(&c->w, i));
    SH_TRY(sh_move_pool_run(c->n, THREADS, 2 * BLOCK_BYTES, copy_block, c));
    SH_TRY(sh_st_writing_sync(&c->w));
    /* With verify=off the written data is trusted. */
    if (c->s->options->verify != SH_VERIFY_OFF)
        SH_TRY(sh_move_pool_run(c->n, THREADS, BLOCK_BYTES + 2 * SH_FILE_ALIGN, compare_block, c));
    SH_TRY(c->s->beside(c->s->arg, &c->w));
    return sh_st_writing_commit(&c->w);
}

sh_rc sh_hf_stream_out(const struct sh_hf_stream *s)
{
    struct copy c = {.s = s};
    sh_rc rc = copy_all(&c);
    sh_st_writing_end(&c.w);
    free(c.job);
    return rc;
}
