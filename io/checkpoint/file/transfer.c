/* Moves extents between memory and file. Extents are small if tensors are small, and start anywhere; the file is moved
 * in large pieces, past the page cache, several at a time. Each piece goes through its thread's buffer, which stays in
 * the processor's cache: the copy costs a tenth of what pages of the page cache would (measured: see
 * doc/notebook/files.md). */
#include "io/checkpoint/file/extents.h"

#include "io/checkpoint/file/digest.h"
#include "io/file/file.h"
#include "io/move/pool.h"
#include "io/move/writers.h"
#include "src/base/mem.h"
#include "src/job/job.h"

#include <stdlib.h>
#include <string.h>

enum { CHUNK_BYTES = SH_MOVE_CHUNK_BYTES, BUFFER_BYTES = CHUNK_BYTES + 2 * SH_FILE_ALIGN, TRANSFERS = 4 };
enum { CACHED_BYTES = 128 << 10 };

/* A contiguous range of the file; `first` is the extent in which it starts. If several ranks write it, `first` is this
 * rank's first extent that ends after the start of the range. */
struct chunk {
    int64_t offset, bytes;
    int first;
};

/* One of the two functions below makes the chunks, and the thread pool processes them. */
struct transfer {
    struct sh_ckpt_extents *extents;
    const struct sh_file_direct *file;
    const struct sh_ckpt_index *index;     /* reading */
    const struct sh_move_writers *writers; /* writing */
    struct chunk *chunk;
    int n, cap;
};

/* Starts a chunk of 0 bytes, which the caller lengthens. */
static void begin_chunk(struct transfer *t, int64_t offset, int first)
{
    t->chunk = sh_grow(t->chunk, t->n, &t->cap, sizeof *t->chunk);
    t->chunk[t->n++] = (struct chunk){.offset = offset, .first = first};
}

/* Whether the newest chunk ends at `at`. */
static bool continues(const struct transfer *t, int64_t at)
{
    return t->n > 0 && t->chunk[t->n - 1].offset + t->chunk[t->n - 1].bytes == at;
}

/* The end of an extent in the file. */
static int64_t end_of(const struct sh_ckpt_extent *s)
{
    return sh_ckpt_extent_at(s) + s->elems * 4;
}

/* For writes: cuts at aligned offsets of the file, wherever in an extent they are. */
static void cut_at_multiples(struct transfer *t)
{
    for (int i = 0, first = 0; i < t->writers->n_ranges; i++) {
        int64_t at = t->writers->range[i].at, end = at + t->writers->range[i].bytes;
        while (at < end) {
            /* The next multiple of CHUNK_BYTES: with 8 MiB chunks, a range at 1 MiB gets chunks of 7 MiB, then 8 MiB
             * each, all ending at aligned offsets. */
            int64_t next = at - at % CHUNK_BYTES + CHUNK_BYTES, n = (next < end ? next : end) - at;
            while (first < t->extents->n && end_of(&t->extents->extent[first]) <= at)
                first++;
            begin_chunk(t, at, first);
            t->chunk[t->n - 1].bytes = n;
            at += n;
        }
    }
}

/* For reads: whole extents, so that each is summed by one thread. */
static void cut_at_spans(struct transfer *t)
{
    for (int i = 0; i < t->extents->n; i++) {
        int64_t at = sh_ckpt_extent_at(&t->extents->extent[i]), n = t->extents->extent[i].elems * 4;
        if (!continues(t, at) || t->chunk[t->n - 1].bytes + n > CHUNK_BYTES)
            begin_chunk(t, at, i);
        t->chunk[t->n - 1].bytes += n;
    }
}

/* Copies part of an extent into the buffer and sums it while it is in the cache. Other parts may be another thread's.
 * The sum is over the state itself, so that a later change of the buffer is noticed when the file is read back. If
 * early sums of the state exist, the sum is over the buffer instead, the last place before the disk. */
static sh_rc give_part(struct sh_ckpt_extent *s, int64_t skip, int64_t bytes, char *to)
{
    uint64_t sum = 0;
    /* All at once, since fetching it moves more data than the cache holds. */
    if (s->far) {
        struct sh_floats given = {.whole = (float *)(void *)to};
        SH_TRY(sh_ckpt_extent_get(s, skip / 4, bytes / 4, given.whole));
        sum = sh_ckpt_digest_floats(s->seed, s->block, given, s->at + skip / 4, bytes / 4);
    }
    /* In pieces that stay in the cache between the copy and the sum. */
    for (int64_t at = skip; !s->far && at < skip + bytes; at += CACHED_BYTES) {
        int64_t n = skip + bytes - at < CACHED_BYTES ? skip + bytes - at : CACHED_BYTES;
        float *here = (float *)(void *)(to + (at - skip));
        struct sh_floats from = sh_floats_at(s->data, at / 4), given = {.whole = here};
        sh_floats_get(from, n / 4, here);
        sum += sh_ckpt_digest_floats(s->seed, s->block, s->early ? given : from, s->at + at / 4, n / 4);
    }
    /* If a chunk ends in an extent, several threads have parts of it. Addition commutes, so relaxed is enough. */
    __atomic_fetch_add(&s->sum, sum, __ATOMIC_RELAXED);
    return SH_OK;
}

/* Copies this rank's part of a chunk; `buffer` starts with the page in which the chunk starts. *given: its bytes. */
static sh_rc give_own(const struct transfer *t, const struct chunk *c, char *buffer, int64_t *given)
{
    int64_t end = c->offset + c->bytes, origin = sh_file_align_down(c->offset);
    *given = 0;
    for (int i = c->first; i < t->extents->n && sh_ckpt_extent_at(&t->extents->extent[i]) < end; i++) {
        struct sh_ckpt_extent *s = &t->extents->extent[i];
        int64_t at = sh_ckpt_extent_at(s), from = at > c->offset ? at : c->offset,
                to = end_of(s) < end ? end_of(s) : end;
        SH_TRY(give_part(s, from - at, to - from, buffer + (from - origin)));
        *given += to - from;
    }
    return SH_OK;
}

/* A job of the thread pool if the rank writes alone. */
static sh_rc write_chunk(void *arg, int64_t job, char *buffer)
{
    struct transfer *t = arg;
    const struct chunk *c = &t->chunk[job];
    int64_t given;
    SH_TRY(give_own(t, c, buffer, &given));
    return sh_file_direct_write(t->file, buffer, c->offset, c->offset + c->bytes);
}

/* Whether this rank has data in the chunk. */
static bool has_part(const struct transfer *t, const struct chunk *c)
{
    return c->first < t->extents->n && sh_ckpt_extent_at(&t->extents->extent[c->first]) < c->offset + c->bytes;
}

/* All ranks of the group process the same chunks in the same order, so the oldest unwritten chunk always has its slot
 * and gets all its parts. If the ring was given up, the rank that did so reports why. */
static sh_rc pass_chunk(void *arg, int64_t job, char *no_buffer)
{
    struct transfer *t = arg;
    const struct chunk *c = &t->chunk[job];
    struct sh_move_ring *ring = t->writers->ring;
    char *slot;
    (void)no_buffer;
    /* Nothing to pass and nothing to write: the ring counts bytes, so nobody waits for this rank. */
    if (!t->writers->writes && !has_part(t, c))
        return SH_OK;
    if (!(slot = sh_move_ring_enter(ring, job)))
        return SH_OK;
    int64_t given;
    sh_rc rc = give_own(t, c, slot, &given);
    if (rc != SH_OK) {
        sh_move_ring_give_up(ring);
        return rc;
    }
    sh_move_ring_add(ring, job, given);
    if (!t->writers->writes || !sh_move_ring_wait(ring, job, c->bytes))
        return SH_OK;
    rc = sh_file_direct_write(t->file, slot, c->offset, c->offset + c->bytes);
    if (rc == SH_OK)
        sh_move_ring_leave(ring, job);
    else
        sh_move_ring_give_up(ring);
    return rc;
}

/* Only a whole block has a digest; parts are compared by check_edges() in load.c. */
static sh_rc compare(const struct sh_ckpt_extent *s, const struct sh_ckpt_index *index, const char *path)
{
    const struct sh_ckpt_entry *e = s->entry;
    bool whole = s->elems == sh_ckpt_block_elems(e->elems, s->block);
    return whole && s->sum != index->digest[s->state][e->first_block + s->block]
               ? sh_ckpt_index_damaged(index, path, s->state, e, s->block)
               : SH_OK;
}

/* Sums far data through newly allocated memory; an extent is at most a block. */
static sh_rc sum_far(struct sh_ckpt_extent *s)
{
    struct sh_floats data = {.whole = sh_calloc((size_t)s->elems + 1, sizeof(float))};
    sh_rc rc = sh_ckpt_extent_get(s, 0, s->elems, data.whole);
    if (rc == SH_OK)
        s->sum = sh_ckpt_digest_floats(s->seed, s->block, data, s->at, s->elems);
    free(data.whole);
    return rc;
}

/* Sums the data in memory, for example after another replica has read it. */
static sh_rc sum_data(struct sh_ckpt_extent *s)
{
    if (s->far)
        return sum_far(s);
    s->sum = sh_ckpt_digest_floats(s->seed, s->block, s->data, s->at, s->elems);
    return SH_OK;
}

sh_rc sh_ckpt_extent_check(struct sh_ckpt_extent *s, const struct sh_ckpt_index *index, const char *path)
{
    SH_TRY(sum_data(s));
    return compare(s, index, path);
}

/* Moves an extent from the buffer to its destination, and compares. Without a destination it is only verified. */
static sh_rc take_span(const struct transfer *t, struct sh_ckpt_extent *s, const float *from)
{
    if (s->far)
        SH_TRY(sh_ckpt_extent_put(s, 0, s->elems, from));
    else if (!sh_floats_none(s->data))
        sh_floats_put(s->data, s->elems, from);
    s->sum = sh_ckpt_digest_part(s->seed, s->block, from, s->at, s->elems);
    return compare(s, t->index, t->file->path);
}

/* A load is left between two chunks if a signal asks for it: nothing is lost with it. */
static sh_rc go_on(const struct transfer *t)
{
    return t->extents->stops ? sh_job_go_on(t->file->path) : SH_OK;
}

/* A job: one large read past the page cache, then the extents in it one by one. */
static sh_rc read_chunk(void *arg, int64_t job, char *buffer)
{
    struct transfer *t = arg;
    const struct chunk *c = &t->chunk[job];
    const char *from = buffer + (c->offset - sh_file_align_down(c->offset));
    SH_TRY(go_on(t));
    SH_TRY(sh_file_direct_read(t->file, buffer, c->offset, c->offset + c->bytes));
    if (c->offset % 4 != 0) /* other programs that write HDF5 may put floats anywhere */
        from = memmove(buffer, from, (size_t)c->bytes);
    struct sh_ckpt_extent *s = &t->extents->extent[c->first];
    for (int64_t done = 0; done < c->bytes; done += s->elems * 4, s++)
        SH_TRY(take_span(t, s, (const float *)(const void *)(from + done)));
    return SH_OK;
}

/* Reads through the page cache, in pieces that are still in this core's cache when they are summed. */
static sh_rc read_span(const struct transfer *t, struct sh_ckpt_extent *s, char *buffer)
{
    int64_t n;
    s->sum = 0;
    for (int64_t at = 0; at < s->elems * 4; at += n) {
        n = s->elems * 4 - at < CACHED_BYTES ? s->elems * 4 - at : CACHED_BYTES;
        struct sh_floats data = sh_floats_at(s->data, at / 4);
        float *to = data.whole ? data.whole : (float *)(void *)buffer;
        SH_TRY(sh_file_read(t->file->fd, t->file->path, to, n, sh_ckpt_extent_at(s) + at));
        if (s->far)
            SH_TRY(sh_ckpt_extent_put(s, at / 4, n / 4, to));
        else if (!data.whole && !sh_floats_none(data))
            sh_floats_put(data, n / 4, to);
        s->sum += sh_ckpt_digest_part(s->seed, s->block, to, s->at + at / 4, n / 4);
    }
    return compare(s, t->index, t->file->path);
}

/* A job: the extents of a chunk, each with separate reads. The page cache merges them. */
static sh_rc read_cached_chunk(void *arg, int64_t job, char *buffer)
{
    struct transfer *t = arg;
    const struct chunk *c = &t->chunk[job];
    struct sh_ckpt_extent *s = &t->extents->extent[c->first];
    SH_TRY(go_on(t));
    for (int64_t done = 0; done < c->bytes; done += s->elems * 4, s++)
        SH_TRY(read_span(t, s, buffer));
    return SH_OK;
}

/* Always frees the chunks. */
static sh_rc run(struct transfer *t, int64_t buffer_bytes, sh_rc (*work)(void *arg, int64_t job, char *buffer))
{
    sh_rc rc = sh_move_pool_run(t->n, TRANSFERS, buffer_bytes, work, t);
    free(t->chunk);
    return rc;
}

/* Returns when all of this rank's data is written, by its threads or by its group's writer. The extents then have their
 * sums. */
sh_rc sh_ckpt_extents_write(struct sh_ckpt_extents *extents, const struct sh_move_writers *writers,
                            const struct sh_file_direct *file)
{
    struct transfer t = {.extents = extents, .file = file, .writers = writers};
    cut_at_multiples(&t);
    return writers->ring ? run(&t, 0, pass_chunk) : run(&t, BUFFER_BYTES, write_chunk);
}

/* Reads and sums every extent, and compares it if it is a whole block. */
sh_rc sh_ckpt_extents_read(struct sh_ckpt_extents *extents, const struct sh_file_direct *file,
                           const struct sh_ckpt_index *index)
{
    struct transfer t = {.extents = extents, .file = file, .index = index};
    cut_at_spans(&t);
    return file->direct < 0 ? run(&t, CACHED_BYTES, read_cached_chunk) : run(&t, BUFFER_BYTES, read_chunk);
}

static sh_rc sum_extent(void *arg, int64_t job, char *buffer)
{
    (void)buffer;
    return sum_data(&((struct sh_ckpt_extents *)arg)->extent[job]);
}

static sh_rc sum_zero(void *arg, int64_t job, char *buffer)
{
    static float zeros[CACHED_BYTES / 4];
    struct sh_ckpt_extent *s = &((struct sh_ckpt_extents *)arg)->extent[job];
    (void)buffer;
    for (int64_t at = 0, n; s->zero && at < s->elems; at += n) {
        n = s->elems - at < CACHED_BYTES / 4 ? s->elems - at : CACHED_BYTES / 4;
        s->sum += sh_ckpt_digest_part(s->seed, s->block, zeros, s->at + at, n);
    }
    return SH_OK;
}

/* Called before MPI-IO writes, since nothing can be summed while it does. */
sh_rc sh_ckpt_extents_sum(struct sh_ckpt_extents *extents, bool only_zero, int threads)
{
    return sh_move_pool_run(extents->n, threads, 0, only_zero ? sum_zero : sum_extent, extents);
}
