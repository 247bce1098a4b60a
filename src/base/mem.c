#include "src/base/mem.h"

#include "src/base/err.h"

#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* There is no recovery: half of the code to handle failed allocations would never be tested. The job stops with one
 * line. */
static _Noreturn void out_of_memory(size_t n, size_t size)
{
    sh_stop(sh_fail(SH_E_MEMORY, "out of memory: no room for %zu elements of %zu bytes", n, size));
}

/* Zeroed. calloc() checks the product of n and size for overflow. */
void *sh_calloc(size_t n, size_t size)
{
    void *p = calloc(n > 0 ? n : 1, size > 0 ? size : 1); /* NULL must mean failure only */
    if (p == NULL)
        out_of_memory(n, size);
    return p;
}

/* Like realloc(), this does not zero the new bytes. */
void *sh_realloc(void *old, size_t n, size_t size)
{
    if (size > 0 && n > SIZE_MAX / size)
        out_of_memory(n, size);
    size_t bytes = n * size;
    void *p = realloc(old, bytes > 0 ? bytes : 1);
    if (p == NULL)
        out_of_memory(n, size);
    return p;
}

/* Like open_memstream(), but never NULL. */
FILE *sh_memstream(char **text, size_t *bytes)
{
    FILE *f = open_memstream(text, bytes);

    if (f == NULL)
        sh_stop(sh_fail(SH_E_MEMORY, "out of memory: no room for a text"));
    return f;
}

char *sh_strdup(const char *s)
{
    return sh_textdup(s, strlen(s));
}

char *sh_textdup(const char *text, size_t bytes)
{
    return memcpy(sh_calloc(bytes + 1, 1), text, bytes);
}

/* Formats twice: once for the length, once for the text. The caller frees it. */
char *sh_strfmt(const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int len = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (len < 0)
        sh_stop(sh_fail(SH_E_BUG, "a text could not be formatted"));
    char *s = sh_calloc((size_t)len + 1, 1);
    vsnprintf(s, (size_t)len + 1, fmt, again);
    va_end(again);
    return s;
}

/* Doubling makes n appends O(n). *cap changes with the array; the old pointer becomes invalid. */
void *sh_grow(void *array, int n, int *cap, size_t size)
{
    if (n < *cap)
        return array;
    if (*cap > INT_MAX / 2)
        out_of_memory((size_t)n + 1, size);
    *cap = *cap > 0 ? *cap * 2 : 8;
    return sh_realloc(array, (size_t)*cap, size);
}

#ifdef __SSE2__
enum { LINE = 64 };

/* Copies whole lines; `to` is aligned to a line. Streaming stores write a line without reading it first, which saves a
 * third of the traffic, and leave the caches to computation. */
static void copy_lines(char *to, const char *from, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += LINE)
        for (size_t i = at; i < at + LINE; i += sizeof(__m128i))
            _mm_stream_si128((__m128i *)(void *)(to + i), _mm_loadu_si128((const __m128i *)(const void *)(from + i)));
}

void sh_mem_stream(void *to, const void *from, size_t bytes)
{
    size_t head = (LINE - (size_t)(uintptr_t)to % LINE) % LINE, lines;

    head = head < bytes ? head : bytes;
    memcpy(to, from, head);
    lines = (bytes - head) / LINE * LINE;
    copy_lines((char *)to + head, (const char *)from + head, lines);
    memcpy((char *)to + head + lines, (const char *)from + head + lines, bytes - head - lines);
}

void sh_mem_stream_end(void)
{
    _mm_sfence();
}
#else
void sh_mem_stream(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
}

void sh_mem_stream_end(void)
{
}
#endif

/* For a single copy; callers with many pieces stream all of them before one fence. */
void sh_mem_copy_away(void *to, const void *from, size_t bytes)
{
    sh_mem_stream(to, from, bytes);
    sh_mem_stream_end();
}
