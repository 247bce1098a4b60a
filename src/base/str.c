#include "src/base/str.h"

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
