#include "src/base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { LINE_MAX_BYTES = 4608 };

static int this_rank;
static int world_size = 1;

void sh_log_set_rank(int rank, int world)
{
    this_rank = rank;
    world_size = world;
}

static void print_line(const char *level, const char *fmt, va_list ap)
{
    char line[LINE_MAX_BYTES];
    size_t room = sizeof line - 1; /* the last byte is kept for the newline */
    size_t used = 0;
    if (level != NULL && world_size > 1)
        used = (size_t)snprintf(line, room, "sherd: rank %d: %s: ", this_rank, level);
    else if (level != NULL)
        used = (size_t)snprintf(line, room, "sherd: %s: ", level);
    vsnprintf(line + used, room - used, fmt, ap);
    used = strlen(line);
    line[used++] = '\n';
    fwrite(line, 1, used, stderr);
}

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
