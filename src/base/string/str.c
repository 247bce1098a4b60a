#include "src/base/string/str.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { COLUMNS_MIN = 40, COLUMNS_MAX = 1000, COLUMNS_USUAL = 80, SAID_FROM = 13 };

/* Limited because a row of the table is on the stack. */
enum { WORD_MAX = 96 };

static int min_int(int a, int b)
{
    return a < b ? a : b;
}

/* The cost of a replacement, 0 or 1. */
static int differ(char a, char b)
{
    return tolower((unsigned char)a) != tolower((unsigned char)b);
}

/* Longer words count by their first WORD_MAX characters: no name is that long. */
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

/* NULL if no name is near: a third of the name may differ, rounded up. A wrong suggestion is worse than none. */
const char *sh_str_nearest(const char *word, int n, const char *const *names)
{
    const char *nearest = NULL;
    int best = INT_MAX;
    for (int i = 0; i < n; i++) {
        int distance = sh_str_distance(word, names[i]);
        int near_enough = ((int)strlen(names[i]) + 2) / 3;
        if (distance < best && distance <= near_enough) {
            best = distance;
            nearest = names[i];
        }
    }
    return nearest;
}

void sh_str_add(char *out, size_t size, const char *separator, const char *word)
{
    size_t used = strlen(out);
    snprintf(out + used, size - used, "%s%s", used > 0 ? separator : "", word);
}

/* Whole numbers in the smallest unit, `digits` after the point in the others. Returns out. */
static const char *scaled(double v, double base, const char *const unit[], int units, int digits, char *out)
{
    int u = 0;
    while (u < units - 1 && (v >= base || v <= -base)) {
        v /= base;
        u++;
    }
    const char *space = unit[u][0] != '\0' ? " " : "";
    snprintf(out, SH_STR_SHORT, "%.*f%s%s", u > 0 ? digits : 0, v, space, unit[u]);
    return out;
}

const char *sh_str_sum_of_bytes(double bytes, char out[SH_STR_SHORT])
{
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    return scaled(bytes, 1024, unit, 6, 1, out);
}

/* Powers of 1024, in which memory is sold and counted; sh_str_count() uses powers of 1000. */
const char *sh_str_bytes(int64_t bytes, char out[SH_STR_SHORT])
{
    return sh_str_sum_of_bytes((double)bytes, out);
}

const char *sh_str_count(int64_t count, char out[SH_STR_SHORT])
{
    static const char *const unit[] = {"", "K", "M", "B", "T"};
    return scaled((double)count, 1000, unit, 5, 2, out);
}

const char *sh_str_plural(int64_t n, const char *noun, char out[SH_STR_SHORT])
{
    snprintf(out, SH_STR_SHORT, "%lld %s%s", (long long)n, noun, n == 1 ? "" : "s");
    return out;
}

const char *sh_str_shape(int ndim, const int64_t *dim, char out[SH_STR_SHAPE])
{
    int used = snprintf(out, SH_STR_SHAPE, "[");
    for (int d = 0; d < ndim; d++)
        used += snprintf(out + used, (size_t)(SH_STR_SHAPE - used), "%s%lld", d ? "," : "", (long long)dim[d]);
    snprintf(out + used, (size_t)(SH_STR_SHAPE - used), "]");
    return out;
}

/* Two units are enough: "3 d 4 h", "12 m 5 s". Bounded, because an early estimate may be absurd. */
const char *sh_str_duration(double seconds, char out[SH_STR_SHORT])
{
    static const struct {
        const char *name;
        unsigned seconds;
    } unit[] = {{"d", 86400}, {"h", 3600}, {"m", 60}, {"s", 1}};
    enum { SECONDS = 3, YEARS_100 = 100 * 365 };
    double most = 86400.0 * YEARS_100;
    unsigned long long left = (unsigned long long)(seconds > 0 ? (seconds < most ? seconds : most) + 0.5 : 0);
    int u = 0;
    while (u < SECONDS && left < unit[u].seconds)
        u++;
    if (u == SECONDS)
        snprintf(out, SH_STR_SHORT, "%llu s", left);
    else
        snprintf(out, SH_STR_SHORT, "%llu %s %llu %s", left / unit[u].seconds % 100000, unit[u].name,
                 left % unit[u].seconds / unit[u + 1].seconds % 100, unit[u + 1].name);
    return out;
}

/* The width of lines on a stream: COLUMNS if set, else the width of the terminal, else 80. */
static int columns_of(FILE *out)
{
    const char *text = getenv("COLUMNS");
    long columns = text ? strtol(text, NULL, 10) : 0;
    struct winsize window;

    /* Standard output has no descriptor of its own; see sh_screen_open(). */
    if (columns <= 0 && ioctl(out == stdout ? STDOUT_FILENO : fileno(out), TIOCGWINSZ, &window) == 0)
        columns = window.ws_col;
    return columns >= COLUMNS_MIN && columns <= COLUMNS_MAX ? (int)columns : COLUMNS_USUAL;
}

/* `column`: the current column, for text after the name of an option. Words are never cut. */
void sh_str_wrap(FILE *out, int width, int column, int indent, const char *text)
{
    bool first = true; /* word of its line */
    column += fprintf(out, "%*s", indent > column ? indent - column : 0, "");
    while (*text != '\0') {
        int length = (int)strcspn(text, " ");
        if (!first && column + 1 + length > width) {
            column = fprintf(out, "\n%*s", indent, "") - 1;
            first = true;
        }
        column += fprintf(out, "%s%.*s", first ? "" : " ", length, text);
        first = false;
        text += length;
        text += strspn(text, " ");
    }
    fputc('\n', out);
}

int sh_str_numbers(const char *text, double *out, int most)
{
    int n = 0;

    for (const char *at = text + strspn(text, " "); n || *at; at++) {
        char *end;
        double value = strtod(at, &end);

        if (end == at || !isfinite(value) || value <= 0)
            return -1;
        if (n < most)
            out[n] = value;
        n++;
        at = end + strspn(end, " ");
        if (!*at)
            break;
        if (*at != ',')
            return -1;
    }
    return n;
}

void sh_str_say(FILE *out, const char *label, const char *fmt, ...)
{
    char text[512];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    sh_str_wrap(out, columns_of(out), fprintf(out, "%s", label), SAID_FROM, text);
}

/* A number from 1 on, without sign or blanks; moves *at behind it. -1: there is none. */
static int64_t take_number(const char **at)
{
    char *end;
    long long n;

    if (**at < '0' || **at > '9')
        return -1;
    errno = 0;
    n = strtoll(*at, &end, 10);
    *at = end;
    return errno || n < 1 ? -1 : n;
}

int sh_str_lists(const char *list, int64_t n)
{
    bool found = false;

    for (;;) {
        int64_t first = take_number(&list), last = first;

        if (*list == '-') {
            list++;
            last = take_number(&list);
        }
        if (first < 0 || last < first || (*list && *list != ','))
            return -1;
        found = found || (first <= n && n <= last);
        if (!*list++)
            return found;
    }
}
