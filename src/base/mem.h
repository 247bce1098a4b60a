/* Host memory for small structures. The memory of tensors comes from the arena (device.h), never from here. These calls
 * do not return NULL: if memory runs out they stop the job with SH_E_MEMORY, since there is nothing sensible to do if a
 * table of a few kilobytes does not fit. All local. */
#ifndef SH_BASE_MEM_H
#define SH_BASE_MEM_H

#include <stddef.h>
#include <stdio.h>

void *sh_calloc(size_t n, size_t size);             /* zeroed; freed with free() */
void *sh_realloc(void *old, size_t n, size_t size); /* checked n * size */
FILE *sh_memstream(char **text, size_t *bytes);     /* open_memstream(); *text freed with free() */
char *sh_strdup(const char *s);
char *sh_textdup(const char *text, size_t bytes); /* may hold zeros; ends with one more */
char *sh_strfmt(const char *fmt, ...) __attribute__((format(printf, 1, 2), nonnull(1))); /* freed with free() */

/* Make room for one more element in a growing array: if n == *cap, double it. Returns the array, which may have
 * moved. */
void *sh_grow(void *array, int n, int *cap, size_t size);

/* Copy data that is not needed again soon: around the caches if the processor can, so that the destination is not read
 * first. memcpy() does so only for blocks that would not fit in the last-level cache of all cores. */
void sh_mem_copy_away(void *to, const void *from, size_t bytes);

/* The same in pieces; other threads see the pieces only after sh_mem_stream_end(). */
void sh_mem_stream(void *to, const void *from, size_t bytes);
void sh_mem_stream_end(void);

#endif
