/* Which text a configuration may contain: UTF-8 without control characters. Values go into logs, checkpoints, metrics
 * and HTML pages; characters that could move a cursor or end a line there are refused at the door. */
#include "src/config/read/text.h"

#include <stdint.h>
#include <string.h>

/* Number of bytes in the character that starts with `lead`; 0 if no character does, as with the overlong leads C0 and
 * C1. */
static int sequence_bytes(unsigned char lead)
{
    if (lead < 0x80)
        return 1;
    if (lead >= 0xc2 && lead < 0xe0)
        return 2;
    if (lead >= 0xe0 && lead < 0xf0)
        return 3;
    return lead >= 0xf0 && lead < 0xf5 ? 4 : 0;
}

/* Decode one character; returns its number of bytes, or 0 if it is not UTF-8 (RFC 3629). */
static int decode(const char *s, size_t room, uint32_t *code)
{
    /* The smallest code that needs n bytes. A smaller one in n bytes is an overlong form, which could hide a character
     * from a filter. */
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    int n = sequence_bytes((unsigned char)s[0]);
    if (n == 0 || (size_t)n > room)
        return 0;
    uint32_t c = n == 1 ? (unsigned char)s[0] : (unsigned char)s[0] & (0x7fu >> n);
    for (int i = 1; i < n; i++) {
        if (((unsigned char)s[i] & 0xc0u) != 0x80)
            return 0;
        c = c << 6 | ((unsigned char)s[i] & 0x3fu);
    }
    *code = c;
    return c >= least[n] && c <= 0x10ffff && (c < 0xd800 || c > 0xdfff) ? n : 0;
}

/* Excludes the separators that some readers take for line ends, and byte order marks in the middle. */
static bool allowed(uint32_t c)
{
    /* C0, delete and C1; the C1 codes are escape sequences on old terminals. */
    bool control = c < 0x20 || (c >= 0x7f && c < 0xa0);
    bool separator = c == 0x2028 || c == 0x2029;
    bool not_a_character = c == 0xfeff || c == 0xfffe || c == 0xffff;
    return !control && !separator && !not_a_character;
}

/* The offset of the first bad byte, `bytes` if there is none. layout: tabs and line ends are allowed too. */
size_t sh_config_text_bad(const char *s, size_t bytes, bool layout)
{
    size_t at = 0;
    while (at < bytes) {
        uint32_t c;
        int n = decode(s + at, bytes - at, &c);
        bool laid_out = layout && (c == '\t' || c == '\n' || c == '\r');
        if (n == 0 || !(laid_out || allowed(c)))
            return at;
        at += (size_t)n;
    }
    return bytes;
}

/* For a terminal: printable ASCII, cut to the size of `out`. */
const char *sh_config_text_shown(const char *s, char out[SH_CONFIG_SHOWN])
{
    const size_t most = SH_CONFIG_SHOWN - 4; /* room for "..." and the end */
    size_t len = strlen(s), n = 0;
    while (n < len && n < most) {
        out[n] = (unsigned char)s[n] < 0x20 || (unsigned char)s[n] > 0x7e ? '?' : s[n];
        n++;
    }
    strcpy(out + n, n < len ? "..." : "");
    return out;
}
