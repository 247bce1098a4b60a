/* From ids back to text. Each id is a word; the decoder of the file is a list of steps, and each step maps a list of
 * strings to a list of strings. The last list is joined. A stream of ids may end within a character, so invalid UTF-8
 * becomes U+FFFD instead of an error. */
#include "src/text/token/steps/decode.h"

#include "src/base/string/utf8.h"
#include "src/text/token/model.h"

#include <stdlib.h>

static const char unreadable[] = "\xef\xbf\xbd"; /* U+FFFD */

/* Zeroed afterwards, so that a second call does nothing. */
void sh_decode_free(struct sh_decode *d)
{
    free(d->from);
    free(d->to);
    *d = (struct sh_decode){0};
}

/* End the last piece here. */
static void end_piece(struct sh_strings *p)
{
    if (p->n == p->room) {
        p->room = p->room ? 2 * p->room : 64;
        p->end = sh_realloc(p->end, p->room, sizeof *p->end);
    }
    p->end[p->n++] = p->text.n;
}

/* Copies the text. */
void sh_strings_put(struct sh_strings *p, const void *text, size_t bytes)
{
    sh_text_put(&p->text, text, bytes);
    end_piece(p);
}

void sh_strings_free(struct sh_strings *p)
{
    free(p->text.at);
    free(p->end);
    *p = (struct sh_strings){0};
}

/* Lent until the next string is added. */
static const unsigned char *piece(const struct sh_strings *p, size_t i, size_t *bytes)
{
    size_t begin = i ? p->end[i - 1] : 0;

    *bytes = p->end[i] - begin;
    return p->text.at + begin;
}

/* Copy text; invalid UTF-8 becomes U+FFFD, one for each maximal prefix of a character. */
static void put_readable(struct sh_text *out, const unsigned char *text, size_t bytes)
{
    while (bytes > 0) {
        size_t right = sh_utf8_check(text, bytes);
        sh_text_put(out, text, right);
        if (right == bytes)
            break;
        size_t wrong = sh_utf8_wrong(text + right, bytes - right);
        sh_text_put(out, unreadable, 3);
        text += right + wrong;
        bytes -= right + wrong;
    }
}

/* Put the bytes that one word stands for; a word with characters outside the alphabet stands for its own text. */
static void put_bytes(struct sh_text *out, const unsigned char *word, size_t bytes)
{
    size_t before = out->n;

    for (size_t i = 0, n; i < bytes; i += n) {
        int byte = sh_code_to_byte(sh_utf8_get(word + i, &n));
        unsigned char c = (unsigned char)byte;
        /* An added token, for example; no part of it is read as bytes. */
        if (byte < 0) {
            out->n = before;
            sh_text_put(out, word, bytes);
            return;
        }
        sh_text_put(out, &c, 1);
    }
}

/* Decode the bytes of all words together, because a character may be spread over several words. So this step leaves one
 * string. */
static void byte_level(const struct sh_decode *d, const struct sh_strings *in, struct sh_strings *out)
{
    struct sh_text all = {0};

    (void)d;
    for (size_t i = 0; i < in->n; i++) {
        size_t n;
        const unsigned char *word = piece(in, i, &n);
        put_bytes(&all, word, n);
    }
    put_readable(&out->text, all.at, all.n);
    end_piece(out);
    free(all.at);
}

/* Replace within each string: a text that is spread over two strings is not found. */
static void replace(const struct sh_decode *d, const struct sh_strings *in, struct sh_strings *out)
{
    for (size_t i = 0; i < in->n; i++) {
        size_t n;
        const unsigned char *p = piece(in, i, &n), *at;
        /* Not memmem with an empty remainder, whose pointer may be NULL. */
        while (n > 0 && (at = memmem(p, n, d->from, d->from_bytes)) != NULL) {
            sh_text_put(&out->text, p, (size_t)(at - p));
            sh_text_put(&out->text, d->to, d->to_bytes);
            n -= (size_t)(at - p) + d->from_bytes;
            p = at + d->from_bytes;
        }
        sh_text_put(&out->text, p, n);
        end_piece(out);
    }
}

/* The value of a hexadecimal digit; -1: not a digit. */
static int hex(unsigned char c)
{
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

/* The byte of "<0x41>"; also accepts "<0x+4>" and the like, as parsers of numbers do. -1: another word. */
static int byte_of_word(const unsigned char *p, size_t n)
{
    if (n != 6 || memcmp(p, "<0x", 3) != 0 || p[5] != '>' || hex(p[4]) < 0)
        return -1;
    if (p[3] == '+')
        return hex(p[4]);
    return hex(p[3]) < 0 ? -1 : hex(p[3]) * 16 + hex(p[4]);
}

/* Consecutive bytes form one text; if that is not UTF-8, each byte is unreadable. */
static void flush_bytes(struct sh_text *row, struct sh_strings *out)
{
    if (row->n && sh_utf8_check(row->at, row->n) == row->n)
        sh_strings_put(out, row->at, row->n);
    else
        for (size_t i = 0; i < row->n; i++)
            sh_strings_put(out, unreadable, 3);
    row->n = 0;
}

/* ByteFallback: words such as <0x41> are bytes; any other word ends a run of them. */
static void bytes(const struct sh_decode *d, const struct sh_strings *in, struct sh_strings *out)
{
    struct sh_text row = {0};

    (void)d;
    for (size_t i = 0; i < in->n; i++) {
        size_t n;
        const unsigned char *word = piece(in, i, &n);
        int byte = byte_of_word(word, n);
        unsigned char c = (unsigned char)byte;
        if (byte >= 0) {
            sh_text_put(&row, &c, 1);
            continue;
        }
        flush_bytes(&row, out);
        sh_strings_put(out, word, n);
    }
    flush_bytes(&row, out);
    free(row.at);
}

/* Join all strings into one, for steps that look at the beginning or the end of the whole text. */
static void fuse(const struct sh_decode *d, const struct sh_strings *in, struct sh_strings *out)
{
    (void)d;
    sh_strings_put(out, in->text.at, in->text.n);
}

/* Whether a string ends with d->from, the character that strip removes. */
static bool ends_with(const unsigned char *p, size_t n, const struct sh_decode *d)
{
    return n >= d->from_bytes && memcmp(p + n - d->from_bytes, d->from, d->from_bytes) == 0;
}

/* Remove up to `start` characters at the front and `stop` at the end of each string. */
static void strip(const struct sh_decode *d, const struct sh_strings *in, struct sh_strings *out)
{
    for (size_t i = 0; i < in->n; i++) {
        size_t n;
        const unsigned char *p = piece(in, i, &n);
        for (size_t k = 0; k < d->start && n >= d->from_bytes && memcmp(p, d->from, d->from_bytes) == 0; k++) {
            p += d->from_bytes;
            n -= d->from_bytes;
        }
        for (size_t k = 0; k < d->stop && ends_with(p, n, d); k++)
            n -= d->from_bytes;
        sh_strings_put(out, p, n);
    }
}

/* Turn the mark back into a space. In the first string the encoder may have put it there; then it is removed. */
static void metaspace(const struct sh_decode *d, const struct sh_strings *in, struct sh_strings *out)
{
    for (size_t i = 0; i < in->n; i++) {
        size_t n;
        const unsigned char *p = piece(in, i, &n), *at;
        while (n > 0 && (at = memmem(p, n, d->from, d->from_bytes)) != NULL) {
            sh_text_put(&out->text, p, (size_t)(at - p));
            if (i > 0 || !d->prepended)
                sh_text_put(&out->text, " ", 1);
            n -= (size_t)(at - p) + d->from_bytes;
            p = at + d->from_bytes;
        }
        sh_text_put(&out->text, p, n);
        end_piece(out);
    }
}

/* Each step makes a new list and frees the previous one; `words` ends up as the last list. */
void sh_decode(const struct sh_decode *steps, int n, struct sh_strings *words)
{
    static void (*const kinds[])(const struct sh_decode *, const struct sh_strings *, struct sh_strings *) = {
        [SH_DECODE_BYTE_LEVEL] = byte_level, [SH_DECODE_REPLACE] = replace,
        [SH_DECODE_BYTES] = bytes,           [SH_DECODE_FUSE] = fuse,
        [SH_DECODE_STRIP] = strip,           [SH_DECODE_METASPACE] = metaspace,
    };

    for (int i = 0; i < n; i++) {
        struct sh_strings out = {0};
        kinds[steps[i].kind](&steps[i], words, &out);
        sh_strings_free(words);
        *words = out;
    }
}
