/* Finds a validation file that is the end of a training file: a call without --val after one with it leaves such a
 * pair, and a model trained on all of the text would be validated on text that it has seen. Looks at token files in the
 * same folder and compares bytes. */
#include "src/text/corpus/tail.h"

#include "io/data/format.h"
#include "io/file/file.h"
#include "src/base/mem.h"

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LEAST_TOKENS = 16, PIECE_BYTES = 1 << 16 };

struct tokens {
    const char *path;
    int fd;
    int32_t magic;
    int64_t bytes; /* after the header */
};

/* The caller closes t->fd on success. */
static sh_rc open_tokens(const char *path, struct tokens *t)
{
    struct sh_token_header h;
    int64_t bytes;
    sh_rc rc;

    *t = (struct tokens){.path = path};
    SH_TRY(sh_file_open(path, &t->fd, &bytes));
    rc = sh_file_read(t->fd, path, &h, sizeof h, 0);
    t->magic = rc == SH_OK ? h.magic : 0;
    t->bytes = bytes - SH_TOKEN_HEADER_BYTES;
    if (rc == SH_OK && t->magic != SH_TOKEN_MAGIC_U16 && t->magic != SH_TOKEN_MAGIC_U32)
        rc = sh_fail(SH_E_DATA, "%s is not a token file", path);
    if (rc != SH_OK)
        close(t->fd);
    return rc;
}

/* Static buffers: for one thread only. Compares from the front of the tail on, so most files differ in the first
 * piece. */
static bool same_bytes(const struct tokens *whole, const struct tokens *tail)
{
    static char a[PIECE_BYTES], b[PIECE_BYTES];
    int64_t skip = whole->bytes - tail->bytes;

    for (int64_t at = 0, n; at < tail->bytes; at += n) {
        n = tail->bytes - at < PIECE_BYTES ? tail->bytes - at : PIECE_BYTES;
        if (sh_file_read(tail->fd, tail->path, b, n, SH_TOKEN_HEADER_BYTES + at) != SH_OK ||
            sh_file_read(whole->fd, whole->path, a, n, SH_TOKEN_HEADER_BYTES + skip + at) != SH_OK ||
            memcmp(a, b, (size_t)n) != 0)
            return false;
    }
    return true;
}

/* A tail is shorter than the whole, but not so short that it could match by chance. */
static bool is_tail(const struct tokens *whole, const char *path)
{
    int64_t least = LEAST_TOKENS * (whole->magic == SH_TOKEN_MAGIC_U16 ? 2 : 4);
    struct tokens t;
    bool is;

    if (open_tokens(path, &t) != SH_OK)
        return false;
    is = t.magic == whole->magic && t.bytes >= least && t.bytes < whole->bytes && same_bytes(whole, &t);
    close(t.fd);
    return is;
}

/* Files with other names are not token files here. */
static bool ends_in_bin(const char *name)
{
    size_t n = strlen(name);

    return n > 4 && !strcmp(name + n - 4, ".bin");
}

/* Return the first one found; the caller frees it. */
static char *look_through(DIR *folder, const char *prefix, int prefix_length, const struct tokens *whole)
{
    char *path = NULL;

    for (struct dirent *e; !path && (e = readdir(folder));) {
        if (!ends_in_bin(e->d_name))
            continue;
        path = sh_strfmt("%.*s%s", prefix_length, prefix, e->d_name);
        if (is_tail(whole, path))
            break;
        free(path);
        path = NULL;
    }
    sh_error_clear(); /* errors from files that are not token files */
    return path;
}

/* *other is NULL when there is none. */
sh_rc sh_corpus_find_tail(const char *path, char **other)
{
    const char *slash = strrchr(path, '/');
    int prefix = slash ? (int)(slash - path) + 1 : 0;
    char *folder = prefix ? sh_strfmt("%.*s", prefix, path) : sh_strdup(".");
    DIR *d = opendir(folder);
    struct tokens whole;
    sh_rc rc = d ? open_tokens(path, &whole)
                 : sh_fail(errno == ENOMEM ? SH_E_MEMORY : SH_E_DATA, "folder %s: %s", folder, strerror(errno));

    if (rc == SH_OK) {
        /* A file that cannot be read is not a tail. */
        *other = look_through(d, path, prefix, &whole);
        close(whole.fd);
    }
    if (d)
        closedir(d);
    free(folder);
    return rc;
}
