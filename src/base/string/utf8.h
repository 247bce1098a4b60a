/* UTF-8, one code point at a time. Local, no state. */
#ifndef SH_BASE_UTF8_H
#define SH_BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

enum { SH_UTF8_MOST = 4 }; /* bytes of a code point */

/* The code point that starts at p, in text that is UTF-8; *n: its number of bytes. */
static inline uint32_t sh_utf8_get(const unsigned char *p, size_t *n)
{
    uint32_t c = p[0];

    if (c < 0x80)
        return *n = 1, c;
    if (c < 0xe0)
        return *n = 2, (c & 31) << 6 | (p[1] & 63);
    if (c < 0xf0)
        return *n = 3, (c & 15) << 12 | (uint32_t)(p[1] & 63) << 6 | (p[2] & 63);
    return *n = 4, (c & 7) << 18 | (uint32_t)(p[1] & 63) << 12 | (uint32_t)(p[2] & 63) << 6 | (p[3] & 63);
}

/* Number of bytes of the last code point in a text that is UTF-8 and not empty. */
static inline size_t sh_utf8_last(const unsigned char *text, size_t bytes)
{
    size_t n = 1;

    while (n < bytes && (text[bytes - n] & 0xc0) == 0x80)
        n++;
    return n;
}

/* Encode a code point; returns its number of bytes, 1 to 4. */
size_t sh_utf8_put(uint32_t code, unsigned char out[SH_UTF8_MOST]);

/* The offset of the first byte that is not UTF-8 (overlong forms, surrogates and code points beyond 0x10ffff are not),
 * or `bytes` if all are. */
size_t sh_utf8_check(const unsigned char *text, size_t bytes);

/* How many bytes, from the place that sh_utf8_check() returns, become one U+FFFD: the longest prefix of a code point,
 * at least 1. */
size_t sh_utf8_wrong(const unsigned char *text, size_t bytes);

#endif
