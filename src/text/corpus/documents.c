/* The number of documents is known only at the end, and there may be many offsets. So tokens are written as they come;
 * offsets and mask go to unnamed (unlinked) files and are copied after the tokens at the end. Memory: three buffers. */
#include "src/text/corpus/documents.h"

#include "io/data/format.h"
#include "io/file/file.h"
#include "src/base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* One mebibyte per stream: cluster file systems want long writes. */
enum { BUFFER_BYTES = 1 << 20 };

enum { TOKENS, MASK, NUMBERS, OFFSETS, STREAMS };

struct stream {
    int fd;              /* its own, except for TOKENS; -1: none */
    char *path;          /* for messages */
    int64_t at, written; /* where it begins in its file; bytes written */
    size_t buffered;
    unsigned char *buffer; /* [BUFFER_BYTES] */
};

struct sh_document_writer {
    struct sh_new_file file;
    struct sh_document_header header;
    struct stream stream[STREAMS];
    unsigned char bits; /* of the mask byte that is being filled */
};

/* NULL is fine. Unnamed files disappear when their descriptors are closed. */
void sh_document_writer_abandon(struct sh_document_writer *w)
{
    if (!w)
        return;
    for (int i = TOKENS; i < STREAMS; i++) {
        if (i != TOKENS && w->stream[i].fd >= 0)
            close(w->stream[i].fd);
        free(w->stream[i].path);
        free(w->stream[i].buffer);
    }
    sh_new_file_abandon(&w->file);
    free(w);
}

/* Create the unnamed file in the folder of the output, where there must be room for the whole output anyway. */
static sh_rc open_spool(struct sh_document_writer *w, struct stream *s, const char *what)
{
    s->path = sh_strfmt("%s.%s", w->file.temp, what);
    SH_TRY(sh_file_create(s->path, &s->fd));
    unlink(s->path);
    return SH_OK;
}

/* Write at an explicit offset, so nothing depends on a descriptor's file position. */
static sh_rc flush(struct stream *s)
{
    SH_TRY(sh_file_write(s->fd, s->path, s->buffer, (int64_t)s->buffered, s->at + s->written));
    s->written += (int64_t)s->buffered;
    s->buffered = 0;
    return SH_OK;
}

/* n is the size of a token, an offset or a byte, which always fits an empty buffer. */
static sh_rc put(struct stream *s, const void *bytes, size_t n)
{
    if (s->buffered + n > BUFFER_BYTES)
        SH_TRY(flush(s));
    memcpy(s->buffer + s->buffered, bytes, n);
    s->buffered += n;
    return SH_OK;
}

/* Two bytes hold ids up to 65535. The header is written last: a file without one is not mistaken for a complete one. */
sh_rc sh_document_writer_open(const char *path, int vocab_size, uint64_t tokenizer, int masked, const char *template,
                              struct sh_document_writer **out)
{
    struct sh_document_writer *w = sh_calloc(1, sizeof *w);
    int64_t begin = 0;
    sh_rc rc;

    w->header = (struct sh_document_header){.magic = SH_DOCUMENT_MAGIC,
                                            .version = SH_DOCUMENT_VERSION,
                                            .token_bytes = vocab_size <= 65536 ? 2 : 4,
                                            .flags = masked ? SH_DOCUMENT_MASK : 0,
                                            .tokens_at = SH_DOCUMENT_ALIGN,
                                            .tokenizer = tokenizer,
                                            .vocab_size = vocab_size};
    snprintf(w->header.chat_template, sizeof w->header.chat_template, "%s", template ? template : "");
    for (int i = TOKENS; i < STREAMS; i++)
        w->stream[i] = (struct stream){.fd = -1, .buffer = sh_calloc(BUFFER_BYTES, 1)};
    SH_TRY_OUT(sh_new_file_create(path, 0640, &w->file));
    w->stream[TOKENS].fd = w->file.fd;
    w->stream[TOKENS].path = sh_strdup(w->file.temp);
    w->stream[TOKENS].at = SH_DOCUMENT_ALIGN;
    SH_TRY_OUT(open_spool(w, &w->stream[OFFSETS], "offsets"));
    if (masked)
        SH_TRY_OUT(open_spool(w, &w->stream[MASK], "mask"));
    SH_TRY_OUT(put(&w->stream[OFFSETS], &begin, sizeof begin));
    *out = w;
    return SH_OK;
out:
    sh_document_writer_abandon(w);
    return rc;
}

void sh_document_writer_flag(struct sh_document_writer *w, int flag)
{
    w->header.flags |= flag;
}

void sh_document_writer_width(struct sh_document_writer *w, int width)
{
    w->header.flags |= SH_DOCUMENT_NUMBERS;
    w->header.width = width > 1 ? width : 0;
}

sh_rc sh_document_writer_numbers(struct sh_document_writer *w, const void *numbers, size_t bytes)
{
    struct stream *s = &w->stream[NUMBERS];

    if (s->fd < 0)
        SH_TRY(open_spool(w, s, "numbers"));
    for (size_t at = 0; at < bytes; at += sizeof(double))
        SH_TRY(put(s, (const char *)numbers + at, sizeof(double)));
    return SH_OK;
}

/* Little-endian: the low bytes come first, and so do the low bits. */
static sh_rc put_token(struct sh_document_writer *w, uint32_t id, unsigned char counts)
{
    int bit = (int)(w->header.tokens++ % 8);

    SH_TRY(put(&w->stream[TOKENS], &id, (size_t)w->header.token_bytes));
    if (!(w->header.flags & SH_DOCUMENT_MASK))
        return SH_OK;
    w->bits |= (unsigned char)(counts << bit);
    if (bit < 7)
        return SH_OK;
    SH_TRY(put(&w->stream[MASK], &w->bits, 1));
    w->bits = 0;
    return SH_OK;
}

/* The documents of a call consist of its tokens: the first one begins where the documents of earlier calls end. */
sh_rc sh_document_writer_put(struct sh_document_writer *w, const uint32_t *ids, const unsigned char *mask, size_t n,
                             const uint32_t *lengths, size_t documents)
{
    int64_t at = w->header.tokens;

    SH_REQUIRE((mask != NULL) == ((w->header.flags & SH_DOCUMENT_MASK) != 0) || n == 0);
    for (size_t i = 0; i < n; i++)
        SH_TRY(put_token(w, ids[i], mask ? mask[i] : 0));
    for (size_t i = 0, first = 0; i < documents; first += lengths[i++]) {
        /* The first token of a document is never a target. */
        for (size_t k = 1; mask && k < lengths[i]; k++)
            w->header.learned += mask[first + k];
        at += lengths[i];
        SH_TRY(put(&w->stream[OFFSETS], &at, sizeof at));
    }
    SH_REQUIRE(at == w->header.tokens);
    w->header.documents += (int64_t)documents;
    return SH_OK;
}

static int64_t round_up(int64_t n)
{
    return (n + SH_DOCUMENT_ALIGN - 1) / SH_DOCUMENT_ALIGN * SH_DOCUMENT_ALIGN;
}

/* Append a stream to the output. *at: where it begins in the output. */
static sh_rc append(struct sh_document_writer *w, struct stream *from, int64_t *end, int64_t *at)
{
    struct stream *to = &w->stream[TOKENS];

    SH_TRY(flush(from));
    *at = round_up(*end);
    for (int64_t done = 0; done < from->written;) {
        int64_t some = from->written - done < BUFFER_BYTES ? from->written - done : BUFFER_BYTES;
        SH_TRY(sh_file_read(from->fd, from->path, from->buffer, some, done));
        SH_TRY(sh_file_write(to->fd, to->path, from->buffer, some, *at + done));
        done += some;
    }
    *end = *at + from->written;
    return SH_OK;
}

/* The tokens are flushed already. Offsets come last because they are never empty: an empty last section would need
 * special treatment. */
static sh_rc finish(struct sh_document_writer *w)
{
    struct stream *mask = &w->stream[MASK], *tokens = &w->stream[TOKENS];
    unsigned char header[SH_TOKEN_HEADER_BYTES] = {0};
    int64_t end;

    SH_TRY(flush(tokens));
    end = tokens->at + tokens->written;
    if (w->header.flags & SH_DOCUMENT_MASK) {
        if (w->header.tokens % 8)
            SH_TRY(put(mask, &w->bits, 1));
        SH_TRY(append(w, mask, &end, &w->header.mask_at));
    }
    if (w->header.flags & SH_DOCUMENT_NUMBERS)
        SH_TRY(append(w, &w->stream[NUMBERS], &end, &w->header.numbers_at));
    SH_TRY(append(w, &w->stream[OFFSETS], &end, &w->header.offsets_at));
    memcpy(header, &w->header, sizeof w->header);
    return sh_file_write(w->file.fd, w->file.temp, header, sizeof header, 0);
}

/* Frees the writer, also when it fails. */
sh_rc sh_document_writer_commit(struct sh_document_writer *w)
{
    sh_rc rc;

    SH_TRY_OUT(finish(w));
    rc = sh_new_file_commit(&w->file);
out:
    sh_document_writer_abandon(w);
    return rc;
}

sh_rc sh_document_write(const char *path, int vocab_size, uint64_t tokenizer, const uint32_t *ids,
                        const unsigned char *mask, const uint32_t *lengths, size_t documents)
{
    struct sh_document_writer *w;
    size_t n = 0;

    for (size_t i = 0; i < documents; i++)
        n += lengths[i];
    SH_TRY(sh_document_writer_open(path, vocab_size, tokenizer, mask != NULL, NULL, &w));
    sh_rc rc = sh_document_writer_put(w, ids, mask, n, lengths, documents);
    if (rc != SH_OK) {
        sh_document_writer_abandon(w);
        return rc;
    }
    return sh_document_writer_commit(w);
}
