#include "src/base/log.h"

#include "src/base/string/screen.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* More than an error text of 8192 bytes and its prefix. */
enum { LINE_MAX_BYTES = 9216 };
enum { USUAL_COLUMNS = 80, INDENT = 4 };

static int this_rank;
static int world_size = 1;

/* Before MPI is up, a process prints as rank 0 of 1. */
void sh_log_set_rank(int rank, int world)
{
    this_rank = rank;
    world_size = world;
}

/* Some terminals begin a new row when the last column is filled, so it stays free. */
int sh_log_columns(void)
{
    struct winsize size;

    if (!isatty(STDERR_FILENO))
        return 0;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0)
        return USUAL_COLUMNS - 1;
    return size.ws_col > 1 ? size.ws_col - 1 : 1;
}

/* NO_COLOR as on no-color.org: any value but an empty one. */
bool sh_log_styled(void)
{
    const char *off = getenv("NO_COLOR"), *term = getenv("TERM");

    return isatty(STDERR_FILENO) && !(off && off[0]) && term && strcmp(term, "dumb") != 0;
}

/* The bytes of `text` that fit into so many columns and end before a blank; up to the first blank if none fit. Bytes
 * that continue a character of UTF-8 take no column. */
static size_t fitting(const char *text, int columns)
{
    size_t length = strlen(text), fits = 0;
    int column = 0;

    for (size_t i = 0; i <= length; i++) {
        if ((text[i] == ' ' || i == length) && (column <= columns || !fits))
            fits = i;
        column += ((unsigned char)text[i] & 0xc0) != 0x80;
    }
    return fits;
}

/* Replaces a blank before each word that does not fit by a line end and an indent, as far as there is room. */
static void wrap(const char *text, int columns, char out[LINE_MAX_BYTES])
{
    int used = 0, indent = 0;

    while (*text && used < LINE_MAX_BYTES) {
        size_t n = fitting(text, columns - indent);

        used += snprintf(out + used, (size_t)(LINE_MAX_BYTES - used), "%s%*s%.*s", indent ? "\n" : "", indent, "",
                         (int)n, text);
        text += n + strspn(text + n, " ");
        indent = columns > 2 * INDENT ? INDENT : 0;
    }
}

/* Each line of the text gets the prefix; all lines go out in one write. The text may quote a file or an argument. */
static void print_lines(const char *prefix, const char *text)
{
    char all[LINE_MAX_BYTES], clean[SH_SCREEN_MOST * LINE_MAX_BYTES];
    size_t room = sizeof all - 1, used = 0; /* the last byte is kept for the newline */
    while (used < room) {
        size_t length = strcspn(text, "\n");
        int n = snprintf(all + used, room - used, "%s%.*s", prefix, (int)length, text);
        used = used + (size_t)n < room ? used + (size_t)n : room - 1;
        all[used++] = '\n';
        if (text[length] == '\0')
            break;
        text += length + 1;
    }
    /* One write keeps the lines of many ranks whole on a shared stderr. */
    size_t taken, bytes = sh_screen_clean(all, used, clean, &taken);
    fwrite(clean, 1, bytes, stderr);
    fwrite(all + taken, 1, used - taken, stderr);
}

/* The line names the rank only in jobs of several ranks: with one it would be noise. */
static void print_line(const char *level, const char *fmt, va_list ap)
{
    char text[LINE_MAX_BYTES], prefix[64];
    if (world_size > 1)
        snprintf(prefix, sizeof prefix, "sherd: rank %d: %s: ", this_rank, level);
    else
        snprintf(prefix, sizeof prefix, "sherd: %s: ", level);
    vsnprintf(text, sizeof text, fmt, ap);
    print_lines(prefix, text);
}

/* Rank 0 only: facts about the whole job are printed once. Warnings and errors come from any rank. */
void sh_log_info(const char *fmt, ...)
{
    char text[LINE_MAX_BYTES], wrapped[LINE_MAX_BYTES];
    int columns = sh_log_columns();
    va_list ap;

    if (this_rank != 0)
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (columns && !strchr(text, '\n'))
        wrap(text, columns, wrapped);
    print_lines("", columns && !strchr(text, '\n') ? wrapped : text);
}

void sh_log_warn(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    print_line("warning", fmt, ap);
    va_end(ap);
}

void sh_log_error(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    print_line("error", fmt, ap);
    va_end(ap);
}

/* The line that says why the job ends, without a rank: sh_agree() has put the rank into the text. */
void sh_log_end(const char *text)
{
    print_lines("sherd: error: ", text);
}
