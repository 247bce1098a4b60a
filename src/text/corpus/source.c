/* Reads a text file, packed or not, from front to back. The name's suffix decides the form. Forms that are not read are
 * rows as well; their open function says what to do with such a file. */
#include "src/text/corpus/source.h"

#include "io/file/file.h"
#include "sherd_config.h"
#include "src/base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#ifdef HAVE_ZLIB
#include <zlib.h>
#endif
#ifdef HAVE_ZSTD
#include <zstd.h>
#endif

enum { PACKED_BYTES = 1 << 18 };

struct form {
    const char *suffix;
    sh_rc (*open)(struct sh_source *s);
    sh_rc (*read)(struct sh_source *s, void *to, size_t room, size_t *n);
    void (*close)(struct sh_source *s);
};

/* `at` counts bytes of the file as stored, still packed; progress is measured in those. */
struct sh_source {
    const struct form *form;
    char *path;
    int fd;
    int64_t at, bytes; /* of the file */
    void *packer;
    bool within;       /* in a packed stream that has not ended */
    size_t begin, end; /* of the unused bytes in the buffer */
    unsigned char packed[PACKED_BYTES];
};

/* *n 0: the end. Never reads past the size that the file had when it was opened. */
static sh_rc read_plain(struct sh_source *s, void *to, size_t room, size_t *n)
{
    *n = (int64_t)room < s->bytes - s->at ? room : (size_t)(s->bytes - s->at);
    SH_TRY(sh_file_read(s->fd, s->path, to, (int64_t)*n, s->at));
    s->at += (int64_t)*n;
    return SH_OK;
}

/* Read from a pipe: it ends when nothing more comes. */
static sh_rc read_input(struct sh_source *s, void *to, size_t room, size_t *n)
{
    ssize_t got;

    do
        got = read(s->fd, to, room);
    while (got < 0 && errno == EINTR);
    if (got < 0)
        return sh_fail(SH_E_DATA, "read %s: %s", s->path, strerror(errno));
    *n = (size_t)got;
    s->at += got;
    return SH_OK;
}

#if defined HAVE_ZLIB || defined HAVE_ZSTD

/* Read more packed bytes if all of the buffer is used. */
static sh_rc refill(struct sh_source *s)
{
    if (s->begin < s->end)
        return SH_OK;
    s->begin = 0;
    return read_plain(s, s->packed, PACKED_BYTES, &s->end);
}

/* A download that was cut short would otherwise pass as a shorter text. */
static sh_rc refuse_end(const struct sh_source *s)
{
    return sh_fail(SH_E_DATA, "%s ends in the middle of its packed text: it was cut short; copy it again", s->path);
}

static sh_rc refuse_damage(const struct sh_source *s, const char *what)
{
    return sh_fail(SH_E_DATA, "%s does not unpack (%s); is it what its name says? copy it again", s->path, what);
}

#endif

#ifdef HAVE_ZLIB

static sh_rc open_gz(struct sh_source *s)
{
    z_stream *z = sh_calloc(1, sizeof *z);

    s->packer = z;
    return inflateInit2(z, 15 + 16) == Z_OK ? SH_OK : sh_fail(SH_E_MEMORY, "no memory for zlib");
}

/* Zeros may follow a stream, as tar and tapes pad it; gzip passes over them, too. */
static void skip_padding(struct sh_source *s)
{
    while (!s->within && s->begin < s->end && s->packed[s->begin] == 0)
        s->begin++;
}

/* A file may consist of several gzip streams, one after the other. */
static sh_rc read_gz(struct sh_source *s, void *to, size_t room, size_t *n)
{
    z_stream *z = s->packer;

    z->next_out = to;
    z->avail_out = (uInt)(room < 1 << 30 ? room : 1 << 30);
    uInt all = z->avail_out;
    while (z->avail_out == all) {
        do {
            SH_TRY(refill(s));
            skip_padding(s);
        } while (s->begin == s->end && s->at < s->bytes);
        /* The file has ended: that is fine between streams, not within one. */
        if (s->end == s->begin) {
            *n = 0;
            return s->within ? refuse_end(s) : SH_OK;
        }
        /* A new stream begins where the last one ended. */
        if (!s->within)
            inflateReset(z);
        s->within = true;
        z->next_in = s->packed + s->begin;
        z->avail_in = (uInt)(s->end - s->begin);
        int rc = inflate(z, Z_NO_FLUSH);
        s->begin = s->end - z->avail_in;
        if (rc != Z_OK && rc != Z_STREAM_END && rc != Z_BUF_ERROR)
            return refuse_damage(s, z->msg ? z->msg : "zlib");
        s->within = rc != Z_STREAM_END;
    }
    *n = all - z->avail_out;
    return SH_OK;
}

/* Only called if open_gz() has set the packer. */
static void close_gz(struct sh_source *s)
{
    inflateEnd(s->packer);
    free(s->packer);
}

#else

static sh_rc open_gz(struct sh_source *s)
{
    return sh_fail(SH_E_DATA, "%s is packed, and this Sherd was built without zlib (Debian: zlib1g-dev); unpack it",
                   s->path);
}

#endif

#ifdef HAVE_ZSTD

/* Windows up to the largest that zstd has (--long=31): its own limit of 128 MiB is for readers of strangers' streams,
 * and a window takes memory only as far as the text is long. */
static sh_rc open_zst(struct sh_source *s)
{
    enum { LARGEST_WINDOW = 31 };

    s->packer = ZSTD_createDStream();
    if (!s->packer || ZSTD_isError(ZSTD_DCtx_setParameter(s->packer, ZSTD_d_windowLogMax, LARGEST_WINDOW)))
        return sh_fail(SH_E_MEMORY, "no memory for zstd");
    return SH_OK;
}

/* Like read_gz(); consecutive frames need no reset. */
static sh_rc read_zst(struct sh_source *s, void *to, size_t room, size_t *n)
{
    ZSTD_outBuffer out = {to, room, 0};

    while (out.pos == 0) {
        SH_TRY(refill(s));
        if (s->end == s->begin) {
            *n = 0;
            return s->within ? refuse_end(s) : SH_OK;
        }
        ZSTD_inBuffer in = {s->packed, s->end, s->begin};
        size_t left = ZSTD_decompressStream(s->packer, &out, &in);
        s->begin = in.pos;
        if (ZSTD_isError(left))
            return refuse_damage(s, ZSTD_getErrorName(left));
        s->within = left != 0;
    }
    *n = out.pos;
    return SH_OK;
}

static void close_zst(struct sh_source *s)
{
    ZSTD_freeDStream(s->packer);
}

#else

static sh_rc open_zst(struct sh_source *s)
{
    return sh_fail(SH_E_DATA, "%s is packed, and this Sherd was built without zstd (Debian: libzstd-dev); unpack it",
                   s->path);
}

#endif

/* Columns and types would need their own reader; pandas is usually installed where such files are. */
static sh_rc refuse_table(struct sh_source *s)
{
    return sh_fail(SH_E_DATA,
                   "%s is a table; make jsonl of it: python3 -c \"import pandas; "
                   "pandas.read_parquet('FILE').to_json('FILE.jsonl', "
                   "orient='records', lines=True, force_ascii=False)\" (Arrow: read_feather)",
                   s->path);
}

static sh_rc refuse_packed(struct sh_source *s)
{
    return sh_fail(SH_E_DATA, "%s is packed in a form that is not read; unpack it, or pack it with gzip or zstd",
                   s->path);
}

#ifndef HAVE_ZLIB
#define read_gz NULL
#define close_gz NULL
#endif
#ifndef HAVE_ZSTD
#define read_zst NULL
#define close_zst NULL
#endif

/* The last row has the empty suffix, with which every name ends, so a search always ends. */
static const struct form forms[] = {
    {".gz", open_gz, read_gz, close_gz},    {".zst", open_zst, read_zst, close_zst},
    {".parquet", refuse_table, NULL, NULL}, {".arrow", refuse_table, NULL, NULL},
    {".feather", refuse_table, NULL, NULL}, {".xz", refuse_packed, NULL, NULL},
    {".bz2", refuse_packed, NULL, NULL},    {".zip", refuse_packed, NULL, NULL},
    {"", NULL, read_plain, NULL},
};

static const struct form standard_input = {.suffix = "-", .read = read_input};

bool sh_source_is_input(const char *path)
{
    return strcmp(path, standard_input.suffix) == 0;
}

const char *sh_source_name(const char *path)
{
    return sh_source_is_input(path) ? "standard input" : path;
}

/* Find the form by suffix, ignoring case. */
static const struct form *form_of(const char *path)
{
    const struct form *f = forms;
    size_t n = strlen(path);

    for (;; f++) {
        size_t end = strlen(f->suffix);
        if (n >= end && !strcasecmp(path + n - end, f->suffix))
            return f;
    }
}

/* Also true for forms that are refused. */
bool sh_source_packed(const char *path)
{
    return form_of(path)->open != NULL;
}

/* The descriptor is duplicated, so closing is the same for all files. */
static sh_rc open_input(struct sh_source *s)
{
    s->fd = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0);
    s->bytes = -1;
    return s->fd >= 0 ? SH_OK : sh_fail(SH_E_DATA, "open %s: %s", s->path, strerror(errno));
}

/* *bytes: the size of the file as stored. */
sh_rc sh_source_open(const char *path, struct sh_source **out, int64_t *bytes)
{
    struct sh_source *s = sh_calloc(1, sizeof *s);
    sh_rc rc;

    s->form = sh_source_is_input(path) ? &standard_input : form_of(path);
    s->path = sh_strdup(sh_source_name(path));
    /* 0 would be a valid descriptor. */
    s->fd = -1;
    if (sh_source_is_input(path))
        SH_TRY_OUT(open_input(s));
    else
        SH_TRY_OUT(sh_file_open(path, &s->fd, &s->bytes));
    if (s->form->open)
        SH_TRY_OUT(s->form->open(s));
    *bytes = s->bytes;
    *out = s;
    return SH_OK;
out:
    sh_source_close(s);
    return rc;
}

/* NULL is fine. */
void sh_source_close(struct sh_source *s)
{
    if (!s)
        return;
    if (s->packer && s->form->close)
        s->form->close(s);
    if (s->fd >= 0)
        close(s->fd);
    free(s->path);
    free(s);
}

/* For plain text only; call before the first read. */
void sh_source_skip(struct sh_source *s, int64_t at)
{
    s->at = at < s->bytes ? at : s->bytes;
}

/* Reads up to `room` bytes, 0 at the end. *taken: bytes of the file used so far. */
sh_rc sh_source_read(struct sh_source *s, void *to, size_t room, size_t *n, int64_t *taken)
{
    SH_TRY(s->form->read(s, to, room, n));
    *taken = s->at;
    return SH_OK;
}
