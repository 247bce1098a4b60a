/* Writes a token file: a header of llm.c, then ids of two or four bytes. The number of tokens is known only at the end,
 * so room is left for the header, and it is written last. The file has its name only when it is complete. */
#include "src/text/corpus/bin.h"

#include "io/data/format.h"
#include "io/file/file.h"
#include "src/base/mem.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BUFFER_BYTES = 1 << 20 };

/* A buffer of one MiB collects ids into a few large writes. */
struct sh_bin_writer {
    struct sh_new_file file;
    int token_bytes; /* 2 or 4 */
    int64_t tokens;  /* put so far */
    int64_t written; /* bytes in the file, the header included */
    size_t buffered; /* bytes in the buffer */
    unsigned char buffer[BUFFER_BYTES];
};

/* NULL is fine. The unfinished file is deleted; an older file of the same name stays. */
void sh_bin_writer_abandon(struct sh_bin_writer *w)
{
    if (!w)
        return;
    sh_new_file_abandon(&w->file);
    free(w);
}

/* Two bytes hold ids up to 65535, which is a vocabulary of 65536. */
sh_rc sh_bin_writer_open(const char *path, int vocab_size, struct sh_bin_writer **out)
{
    struct sh_bin_writer *w = sh_calloc(1, sizeof *w);
    w->token_bytes = vocab_size <= 65536 ? 2 : 4;
    w->written = SH_TOKEN_HEADER_BYTES;
    sh_rc rc = sh_new_file_create(path, 0640, &w->file);
    if (rc != SH_OK) {
        free(w);
        return rc;
    }
    *out = w;
    return SH_OK;
}

/* Write the buffer after the bytes already written; the space for the header at the start of the file is skipped. */
static sh_rc flush(struct sh_bin_writer *w)
{
    SH_TRY(sh_file_write(w->file.fd, w->file.temp, w->buffer, (int64_t)w->buffered, w->written));
    w->written += (int64_t)w->buffered;
    w->buffered = 0;
    return SH_OK;
}

/* Put ids, for which there is room, into the buffer, little-endian: the low bytes come first. */
static void put_ids(struct sh_bin_writer *w, const uint32_t *ids, size_t n)
{
    unsigned char *to = w->buffer + w->buffered;

    if (w->token_bytes == 4)
        memcpy(to, ids, n * 4);
    else
        for (size_t i = 0; i < n; i++) {
            uint16_t id = (uint16_t)ids[i];
            memcpy(to + 2 * i, &id, 2);
        }
    w->buffered += n * (size_t)w->token_bytes;
}

sh_rc sh_bin_writer_put(struct sh_bin_writer *w, const uint32_t *ids, size_t n)
{
    /* The count in the header has 31 bits. */
    if (n > (size_t)(SH_TOKEN_COUNT_MAX - w->tokens))
        return sh_fail(SH_E_DATA,
                       "%s would have more than %d tokens, the limit of its format; write several files and "
                       "give training.dataset_path as a pattern",
                       w->file.path, SH_TOKEN_COUNT_MAX);
    while (n > 0) {
        size_t room = (BUFFER_BYTES - w->buffered) / (size_t)w->token_bytes, some = n < room ? n : room;
        put_ids(w, ids, some);
        ids += some;
        n -= some;
        w->tokens += (int64_t)some;
        if (w->buffered == BUFFER_BYTES)
            SH_TRY(flush(w));
    }
    return SH_OK;
}

/* Write the header; its unused bytes are zero. */
static sh_rc write_header(struct sh_bin_writer *w)
{
    bool narrow = w->token_bytes == 2;
    struct sh_token_header header = {
        .magic = narrow ? SH_TOKEN_MAGIC_U16 : SH_TOKEN_MAGIC_U32,
        .version = narrow ? SH_TOKEN_VERSION_U16 : SH_TOKEN_VERSION_U32,
        .tokens = (int32_t)w->tokens,
    };
    unsigned char bytes[SH_TOKEN_HEADER_BYTES] = {0};
    memcpy(bytes, &header, sizeof header);
    return sh_file_write(w->file.fd, w->file.temp, bytes, sizeof bytes, 0);
}

/* Frees the writer, also when it fails. */
sh_rc sh_bin_writer_commit(struct sh_bin_writer *w)
{
    sh_rc rc;
    SH_TRY_OUT(flush(w));
    SH_TRY_OUT(write_header(w));
    rc = sh_new_file_commit(&w->file);
out:
    sh_bin_writer_abandon(w);
    return rc;
}

/* All ids at once, for tests and small files. */
sh_rc sh_bin_write(const char *path, int vocab_size, const uint32_t *ids, size_t n)
{
    struct sh_bin_writer *w;
    SH_TRY(sh_bin_writer_open(path, vocab_size, &w));
    sh_rc rc = sh_bin_writer_put(w, ids, n);
    if (rc != SH_OK) {
        sh_bin_writer_abandon(w);
        return rc;
    }
    return sh_bin_writer_commit(w);
}
