#include "src/base/string/screen.h"

#include "src/base/string/utf8.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- what is made visible ---- */

/* C0, delete and C1; marks, embeddings, overrides and isolates of bidirectional text; separators of lines. */
static bool is_control(uint32_t c)
{
    static const struct {
        uint32_t first, last;
    } ranges[] = {{0x00, 0x1f}, {0x7f, 0x9f}, {0x61c, 0x61c}, {0x200e, 0x200f}, {0x2028, 0x202e}, {0x2066, 0x2069}};
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++)
        if (c >= ranges[i].first && c <= ranges[i].last)
            return c != '\n' && c != '\t';
    return false;
}

/* The bytes of the character at the start of the text; *code: UINT32_MAX if it is none. 0: it ends inside one. */
static size_t next_character(const unsigned char *text, size_t bytes, uint32_t *code)
{
    size_t n = bytes < SH_UTF8_MOST ? bytes : SH_UTF8_MOST;
    if (sh_utf8_check(text, n) > 0) {
        *code = sh_utf8_get(text, &n);
        return n;
    }
    *code = UINT32_MAX;
    return n < SH_UTF8_MOST && text[0] >= 0xc2 && text[0] < 0xf5 && sh_utf8_wrong(text, n) == n ? 0 : 1;
}

/* A byte that is no character is a C1 code to some terminals. The form \uNNNN means the same in JSON. */
static size_t put(const unsigned char *text, size_t n, uint32_t code, char *out)
{
    char visible[SH_SCREEN_MOST + 1];
    bool stray = code == UINT32_MAX;
    if (stray ? text[0] >= 0xa0 : !is_control(code)) {
        memcpy(out, text, n);
        return n;
    }
    int length = snprintf(visible, sizeof visible, stray || code < 0x20 ? "\\x%02x" : "\\u%04x",
                          stray ? text[0] : (unsigned)code & 0xffff);
    memcpy(out, visible, (size_t)length);
    return (size_t)length;
}

size_t sh_screen_clean(const char *text, size_t bytes, char *out, size_t *taken)
{
    const unsigned char *at = (const unsigned char *)text;
    size_t used = 0, n;
    uint32_t code;
    for (*taken = 0; *taken < bytes; *taken += n) {
        n = next_character(at + *taken, bytes - *taken, &code);
        if (n == 0)
            break;
        used += put(at + *taken, n, code, out + used);
    }
    return used;
}

/* ---- standard output ---- */

static bool is_raw;
static char kept[SH_UTF8_MOST]; /* the first bytes of a character of which stdio has not handed over the rest */
static size_t n_kept;
static int lost_errno; /* of the first write that failed; errno itself has changed by the time somebody asks */

static bool write_all(const char *data, size_t bytes)
{
    while (bytes > 0) {
        ssize_t n = write(STDOUT_FILENO, data, bytes);
        if (n < 0 && errno != EINTR) {
            lost_errno = lost_errno ? lost_errno : errno;
            return false;
        }
        data += n > 0 ? n : 0;
        bytes -= n > 0 ? (size_t)n : 0;
    }
    return true;
}

enum { PIECE = 1024 };

/* Clean what was kept and a piece, and keep what the piece ends inside of. */
static bool write_piece(const char *data, size_t bytes)
{
    char text[SH_UTF8_MOST + PIECE], clean[SH_SCREEN_MOST * sizeof text];
    size_t taken, n = n_kept + bytes;
    memcpy(text, kept, n_kept);
    memcpy(text + n_kept, data, bytes);
    size_t used = sh_screen_clean(text, n, clean, &taken);
    n_kept = n - taken;
    memcpy(kept, text + taken, n_kept);
    return write_all(clean, used);
}

/* 0 is a failure to fopencookie(). */
__attribute__((unused)) static ssize_t write_stream(void *none, const char *data, size_t bytes)
{
    (void)none;
    if (is_raw)
        return write_all(data, bytes) ? (ssize_t)bytes : 0;
    for (size_t at = 0; at < bytes; at += PIECE)
        if (!write_piece(data + at, bytes - at < PIECE ? bytes - at : PIECE))
            return 0;
    return (ssize_t)bytes;
}

/* Only glibc's stdout can be replaced; with another C library only log lines are cleaned. */
bool sh_screen_open(void)
{
#ifdef __GLIBC__
    FILE *out = fopencookie(NULL, "w", (cookie_io_functions_t){.write = write_stream});
    if (out == NULL)
        return false;
    setvbuf(out, NULL, isatty(STDOUT_FILENO) ? _IOLBF : _IOFBF, BUFSIZ);
    stdout = out;
#endif
    return true;
}

void sh_screen_product(void)
{
    fflush(stdout);
    is_raw = !isatty(STDOUT_FILENO);
}

bool sh_screen_flush(void)
{
    bool whole = fflush(stdout) == 0 && !ferror(stdout);
    whole = write_all(kept, n_kept) && whole;
    n_kept = 0;
    errno = lost_errno ? lost_errno : errno;
    return whole;
}
