#include "src/base/log.h"

#include "src/base/screen.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* More than an error text of 4096 bytes and its prefix. */
enum { LINE_MAX_BYTES = 5120 };

static int this_rank;
static int world_size = 1;

/* Before MPI is up, a process prints as rank 0 of 1. */
void sh_log_set_rank(int rank, int world)
{
    this_rank = rank;
    world_size = world;
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
    char text[LINE_MAX_BYTES], prefix[64] = "";
    if (level != NULL && world_size > 1)
        snprintf(prefix, sizeof prefix, "sherd: rank %d: %s: ", this_rank, level);
    else if (level != NULL)
        snprintf(prefix, sizeof prefix, "sherd: %s: ", level);
    vsnprintf(text, sizeof text, fmt, ap);
    print_lines(prefix, text);
}

/* Rank 0 only: facts about the whole job are printed once. Warnings and errors come from any rank. */
void sh_log_info(const char *fmt, ...)
{
    if (this_rank != 0)
        return;
    va_list ap;
    va_start(ap, fmt);
    print_line(NULL, fmt, ap);
    va_end(ap);
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
