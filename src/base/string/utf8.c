#include "src/base/string/utf8.h"

#include <string.h>

/* Any code below 0x110000; surrogates are not refused here. The first byte's leading ones are the top of 0xf00 >> n. */
size_t sh_utf8_put(uint32_t code, unsigned char out[SH_UTF8_MOST])
{
    if (code < 0x80) {
        out[0] = (unsigned char)code;
        return 1;
    }
    size_t n = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--, code >>= 6)
        out[i] = (unsigned char)(0x80 | (code & 63));
    out[0] = (unsigned char)((0xf00u >> n & 0xff) | code);
    return n;
}

/* What a first byte implies: returns the number of bytes of its character, and the bounds of the second byte (RFC 3629,
 * section 4). 0: it is not a first byte. */
static size_t form(unsigned char first, unsigned char *low, unsigned char *high)
{
    *low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    *high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    return first < 0x80 ? 1 : first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
}

/* Number of valid bytes of the code point at p; *whole: it is complete. */
static size_t right_bytes(const unsigned char *p, size_t bytes, int *whole)
{
    unsigned char low, high;
    size_t n = form(p[0], &low, &high), i = 1;

    while (i < n && i < bytes && p[i] >= (i == 1 ? low : 0x80) && p[i] <= (i == 1 ? high : 0xbf))
        i++;
    /* n is 0 if no character starts with this byte. */
    *whole = n > 0 && i == n;
    return i;
}

/* Eight bytes per iteration: most text is ASCII, and the check of a corpus reads every byte. */
static size_t skip_ascii(const unsigned char *text, size_t i, size_t bytes)
{
    for (uint64_t eight; i + 8 <= bytes; i += 8) {
        memcpy(&eight, text + i, 8);
        if (eight & 0x8080808080808080u)
            break;
    }
    while (i < bytes && text[i] < 0x80)
        i++;
    return i;
}

/* The offset of the first invalid byte, `bytes` if all are valid. */
size_t sh_utf8_check(const unsigned char *text, size_t bytes)
{
    size_t i = skip_ascii(text, 0, bytes);

    while (i < bytes) {
        int whole;
        size_t n = right_bytes(text + i, bytes - i, &whole);
        if (!whole)
            return i;
        i += n;
        if (i < bytes && text[i] < 0x80)
            i = skip_ascii(text, i, bytes);
    }
    return bytes;
}

/* How many bytes one replacement character stands for (Unicode, section 3.9: the longest prefix that could be
 * valid). */
size_t sh_utf8_wrong(const unsigned char *text, size_t bytes)
{
    int whole;

    return right_bytes(text, bytes, &whole);
}
