#include "src/base/str.h"

#include "src/base/mem.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

enum { WORD_MAX = 96 };

static int min_int(int a, int b)
{
    return a < b ? a : b;
}

static int differ(char a, char b)
{
    return tolower((unsigned char)a) != tolower((unsigned char)b);
}

/* Words beyond WORD_MAX count by that prefix: they are nobody's names. */
int sh_str_distance(const char *a, const char *b)
{
    int row[WORD_MAX + 1];
    int len_a = (int)strnlen(a, WORD_MAX), len_b = (int)strnlen(b, WORD_MAX);
    for (int j = 0; j <= len_b; j++)
        row[j] = j;
    for (int i = 1; i <= len_a; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= len_b; j++) {
            int replaced = diagonal + differ(a[i - 1], b[j - 1]);
            diagonal = row[j];
            row[j] = min_int(replaced, 1 + min_int(row[j], row[j - 1]));
        }
    }
    return row[len_b];
}

const char *sh_str_nearest(const char *word, int n, const char *const *names)
{
    const char *nearest = NULL;
    int best = INT_MAX;
    for (int i = 0; i < n; i++) {
        int distance = sh_str_distance(word, names[i]);
        int near_enough = 1 + (int)strlen(names[i]) / 3;
        if (distance < best && distance <= near_enough) {
            best = distance;
            nearest = names[i];
        }
    }
    return nearest;
}

static const char *scaled(int64_t value, double base, const char *const unit[], int units, int digits, char *out)
{
    double v = (double)value;
    int u = 0;
    while (u < units - 1 && (v >= base || v <= -base)) {
        v /= base;
        u++;
    }
    const char *space = unit[u][0] != '\0' ? " " : "";
    snprintf(out, SH_STR_SHORT, "%.*f%s%s", u > 0 ? digits : 0, v, space, unit[u]);
    return out;
}

const char *sh_str_bytes(int64_t bytes, char out[SH_STR_SHORT])
{
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    return scaled(bytes, 1024, unit, 6, 1, out);
}

const char *sh_str_count(int64_t count, char out[SH_STR_SHORT])
{
    static const char *const unit[] = {"", "K", "M", "B", "T"};
    return scaled(count, 1000, unit, 5, 2, out);
}

/* Bytes of the character that begins here, 0 when it is none that may be shown. Longer forms than needed, halves of
 * surrogates and what lies past U+10FFFF are no UTF-8; below U+00A0 all but ASCII are controls. */
static size_t shown_bytes(const unsigned char *s)
{
    static const uint32_t least[] = {0, 0, 0xa0, 0x800, 0x10000};
    size_t n = s[0] < 0x80 ? 1 : (s[0] & 0xe0) == 0xc0 ? 2 : (s[0] & 0xf0) == 0xe0 ? 3 : (s[0] & 0xf8) == 0xf0 ? 4 : 0;
    uint32_t code = s[0];
    if (n == 1)
        return s[0] >= 0x20 && s[0] != 0x7f;
    if (n == 0)
        return 0;
    code &= 0x7fu >> n;
    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80) /* the end of the text too */
            return 0;
        code = code << 6 | (s[i] & 0x3fu);
    }
    return code >= least[n] && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff) ? n : 0;
}

bool sh_str_is_clean(const char *text)
{
    const unsigned char *s = (const unsigned char *)text;
    size_t n = 1;
    for (; *s && n > 0; s += n)
        n = shown_bytes(s);
    return n > 0;
}

char *sh_str_clean(const char *text, const char *keep)
{
    const unsigned char *s = (const unsigned char *)text;
    char *out = sh_calloc(4 * strlen(text) + 1, 1), *to = out;
    while (*s) {
        size_t n = strchr(keep, *s) ? 1 : shown_bytes(s);
        if (n == 0)
            to += sprintf(to, "\\x%02x", *s++);
        for (size_t i = 0; i < n; i++)
            *to++ = (char)*s++;
    }
    return out;
}
