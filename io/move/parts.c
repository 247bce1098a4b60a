#include "io/move/parts.h"

#include "io/move/pool.h"
#include "src/base/hash.h"
#include "src/base/mem.h"
#include "src/job/job.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK_BYTES = 8 << 20, BUFFER_BYTES = CHUNK_BYTES + 2 * SH_FILE_ALIGN, TRANSFERS = 4 };
enum { READ_BYTES = 256 << 10, FAR_BYTES = SH_MOVE_FAR_ELEMS * 4 };
enum { TURN = 4 }; /* chunks that a replica reads before handing them on */

/* Orders by file, then by offset, so that neighbours in the file become one chunk. */
static int by_place(const void *a, const void *b)
{
    const struct sh_move_part *x = a, *y = b;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return (x->at > y->at) - (x->at < y->at);
}

/* Bytes of a part in the file, not in memory. */
static int64_t bytes_of(const struct sh_move_part *p)
{
    return p->elems * sh_move_type_bytes(p->type);
}

/* Number of elements in memory that n elements of the file become. */
static int64_t in_memory(enum sh_move_type t, int64_t n)
{
    return t < SH_MOVE_TYPES ? n : n * SH_NF4_ELEMS;
}

/* Cuts a part into pieces that fit a chunk. */
static void cut(const struct sh_move_part *p, struct sh_move_parts *out, int *cap)
{
    int64_t most = p->far ? SH_MOVE_FAR_ELEMS : CHUNK_BYTES / sh_move_type_bytes(p->type);
    for (int64_t done = 0, n; done < p->elems; done += n) {
        n = p->elems - done < most ? p->elems - done : most;
        out->part = sh_grow(out->part, out->n, cap, sizeof *out->part);
        struct sh_move_part *piece = &out->part[out->n++];
        *piece = *p;
        piece->at += done * sh_move_type_bytes(p->type);
        piece->elems = n;
        piece->first += done;
        piece->data = sh_floats_at(p->data, in_memory(p->type, done));
    }
}

/* Whether a part continues a chunk that still has room for it. Far data takes the rest of the buffer. */
static bool joins(const struct sh_move_chunk *c, const struct sh_move_part *p)
{
    return c->file == p->file && c->at + c->bytes == p->at &&
           c->bytes + bytes_of(p) <= CHUNK_BYTES - (p->far ? FAR_BYTES : 0);
}

/* Joins parts [first, first + n) that lie next to each other into a chunk. An overlap is a bug of the caller. */
static sh_rc join(struct sh_move_parts *out)
{
    int cap = 0;
    for (int i = 0; i < out->n; i++) {
        const struct sh_move_part *p = &out->part[i], *before = i > 0 ? p - 1 : p;
        SH_REQUIRE(before == p || before->file != p->file || before->at + bytes_of(before) <= p->at);
        if (out->n_chunks == 0 || !joins(&out->chunk[out->n_chunks - 1], p)) {
            out->chunk = sh_grow(out->chunk, out->n_chunks, &cap, sizeof *out->chunk);
            out->chunk[out->n_chunks++] = (struct sh_move_chunk){.file = p->file, .first = i, .at = p->at};
        }
        out->chunk[out->n_chunks - 1].n++;
        out->chunk[out->n_chunks - 1].bytes += bytes_of(p);
    }
    return SH_OK;
}

/* Cuts, sorts and joins what a rank has to move: a part is a stretch of one tensor, a chunk one transfer. On success
 * *out belongs to the caller. */
sh_rc sh_move_parts_make(const struct sh_move_part *part, int n, struct sh_move_parts *out)
{
    struct sh_move_parts p = {0};
    int cap = 0;
    for (int i = 0; i < n; i++)
        cut(&part[i], &p, &cap);
    if (p.n > 0) /* else there is no array */
        qsort(p.part, (size_t)p.n, sizeof *p.part, by_place);
    sh_rc rc = join(&p);
    if (rc == SH_OK)
        *out = p;
    else
        sh_move_parts_free(&p);
    return rc;
}

/* Also works for parts that were never made. */
void sh_move_parts_free(struct sh_move_parts *p)
{
    free(p->part);
    free(p->chunk);
    *p = (struct sh_move_parts){0};
}

struct transfer {
    struct sh_move_parts *parts;
    const struct sh_file_direct *files;
    int64_t first; /* chunk */
    const struct sh_move_replicas *replicas;
};

/* `at` counts from the part's first element; the message gives the element's number in the tensor. */
static sh_rc not_finite(const struct sh_file_direct *f, const struct sh_move_part *p, int64_t at)
{
    return sh_fail(SH_E_DATA, "%s: element %lld of %s is not a finite number", f->path, (long long)(p->first + at),
                   p->name);
}

/* Converts elements [first, first + n) of a part from the file's form. Returns the first that is not finite, or n. */
static int64_t take(const struct sh_move_part *p, const char *from, int64_t first, int64_t n)
{
    struct sh_floats to = sh_floats_at(p->data, in_memory(p->type, first));
    return p->type < SH_MOVE_TYPES ? sh_move_widen(p->type, from, n, to)
                                   : sh_move_join(p->type, from, p->first + first, n, p->nested, to);
}

/* Weights that are not finite are refused at once: in training they would show up only steps later. */
static sh_rc read_part(const struct sh_file_direct *f, const struct sh_move_part *p, char *buffer)
{
    int64_t size = sh_move_type_bytes(p->type), n, bad;
    for (int64_t done = 0; done < p->elems; done += n) {
        int64_t at = p->at + done * size;
        n = p->elems - done < READ_BYTES / size ? p->elems - done : READ_BYTES / size;
        SH_TRY(sh_file_direct_read(f, buffer, at, at + n * size));
        bad = take(p, buffer + (at - sh_file_align_down(at)), done, n);
        if (bad < n)
            return not_finite(f, p, done + bad);
    }
    return SH_OK;
}

/* Ask the kernel for the whole chunk at once, then take it from the page cache in short reads: the data is still in the
 * processor's cache when it is widened. */
static sh_rc read_chunk(void *arg, int64_t job, char *buffer)
{
    const struct transfer *t = arg;
    const struct sh_move_chunk *c = &t->parts->chunk[t->first + job];
    SH_TRY(sh_job_go_on(t->files[c->file].path));
    (void)posix_fadvise(t->files[c->file].fd, c->at, c->bytes, POSIX_FADV_WILLNEED); /* a hint */
    for (int i = c->first; i < c->first + c->n; i++)
        SH_TRY(read_part(&t->files[c->file], &t->parts->part[i], buffer));
    return SH_OK;
}

/* The value in the message tells an outlier from a model that has a larger range. */
static sh_rc too_large(const struct sh_file_direct *f, const struct sh_move_part *p, struct sh_floats data, int64_t at)
{
    float x;
    sh_floats_get(sh_floats_at(data, at), 1, &x);
    return sh_fail(SH_E_NUMERIC,
                   "%s: element %lld of %s is %g, but float16 ends at 65504; export as bfloat16 or float32", f->path,
                   (long long)(p->first + at), p->name, (double)x);
}

/* Narrow the parts into the buffer, hash what goes to the disk, and write it. */
static sh_rc write_chunk(void *arg, int64_t job, char *buffer)
{
    const struct transfer *t = arg;
    struct sh_move_chunk *c = &t->parts->chunk[job];
    const struct sh_file_direct *f = &t->files[c->file];
    char *begin = buffer + (c->at - sh_file_align_down(c->at)), *to = begin;
    SH_TRY(sh_job_go_on(f->path));
    for (const struct sh_move_part *p = &t->parts->part[c->first]; p < &t->parts->part[c->first + c->n]; p++) {
        struct sh_floats data = p->data;
        if (p->far) {
            data.whole = (float *)(void *)(buffer + BUFFER_BYTES - FAR_BYTES);
            SH_TRY(p->far->get(p->far->arg, p->number, p->first, p->elems, data.whole));
        }
        int64_t bad = sh_move_narrow(p->type, data, p->elems, to);
        if (bad < p->elems)
            return too_large(f, p, data, bad);
        to += bytes_of(p);
    }
    c->sum = sh_hash64(begin, (size_t)c->bytes);
    return sh_file_direct_write(f, buffer, c->at, c->at + c->bytes);
}

/* Reads a chunk back and compares its hash with that of what was written. */
static sh_rc compare_chunk(void *arg, int64_t job, char *buffer)
{
    const struct transfer *t = arg;
    const struct sh_move_chunk *c = &t->parts->chunk[job];
    const struct sh_move_part *p = &t->parts->part[c->first];
    const struct sh_file_direct *f = &t->files[c->file];
    SH_TRY(sh_job_go_on(f->path));
    SH_TRY(sh_file_direct_read(f, buffer, c->at, c->at + c->bytes));
    if (sh_hash64(buffer + (c->at - sh_file_align_down(c->at)), (size_t)c->bytes) == c->sum)
        return SH_OK;
    return sh_fail(SH_E_DATA, "%s: bytes %lld to %lld, with %s, are not what was written: is the disk sound?", f->path,
                   (long long)c->at, (long long)(c->at + c->bytes - 1), p->name);
}

/* Chunks [first, first + n), TRANSFERS at a time. */
static sh_rc run(struct sh_move_parts *p, const struct sh_file_direct *files, int first, int n,
                 sh_rc (*work)(void *arg, int64_t job, char *buffer))
{
    struct transfer t = {.parts = p, .files = files, .first = first};
    return sh_move_pool_run(n, TRANSFERS, BUFFER_BYTES, work, &t);
}

sh_rc sh_move_parts_read(struct sh_move_parts *p, const struct sh_file_direct *files)
{
    return run(p, files, 0, p->n_chunks, read_chunk);
}

sh_rc sh_move_parts_write(struct sh_move_parts *p, const struct sh_file_direct *files)
{
    return run(p, files, 0, p->n_chunks, write_chunk);
}

sh_rc sh_move_parts_compare(struct sh_move_parts *p, const struct sh_file_direct *files)
{
    return run(p, files, 0, p->n_chunks, compare_chunk);
}

static sh_rc read_turn(void *arg, int first, int n)
{
    const struct transfer *t = arg;
    return run(t->parts, t->files, first, n, read_chunk);
}

/* Sends each part of a chunk from `root`, which has read it, to all replicas. */
static sh_rc hand_chunk(void *arg, int i, int root)
{
    const struct transfer *t = arg;
    const struct sh_move_chunk *c = &t->parts->chunk[i];
    for (const struct sh_move_part *p = &t->parts->part[c->first]; p < &t->parts->part[c->first + c->n]; p++)
        SH_TRY(sh_move_replicas_broadcast(t->replicas, root, p->data, p->elems));
    return SH_OK;
}

sh_rc sh_move_parts_read_together(struct sh_move_parts *p, const struct sh_file_direct *files,
                                  const struct sh_move_replicas *r)
{
    struct transfer t = {.parts = p, .files = files, .replicas = r};
    return sh_move_replicas_read(r, p->n_chunks, TURN, read_turn, hand_chunk, &t);
}

/* A hash of what this rank reads: ranks with the same one are replicas. */
uint64_t sh_move_parts_wish(const struct sh_move_parts *p)
{
    uint64_t wanted = 0;
    for (int i = 0; i < p->n; i++) {
        const struct sh_move_part *s = &p->part[i];
        int64_t what[] = {s->file, s->at, s->elems, s->type, sh_floats_bytes(s->data, SH_NF4_ELEMS)};
        wanted = sh_mix64(wanted ^ sh_hash64(what, sizeof what));
    }
    return wanted;
}
