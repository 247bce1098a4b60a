/* Words and numbers for people: near names for messages, sizes and counts in short form. Local, no state. */
#ifndef SH_BASE_STR_H
#define SH_BASE_STR_H

#include <stddef.h>
#include <stdint.h>

/* Single-character insertions, deletions and replacements between two words; letters of either case are equal. */
int sh_str_distance(const char *a, const char *b);

/* The name nearest to `word` among n (the first of equals), or NULL when none is near enough to be meant. */
const char *sh_str_nearest(const char *word, int n, const char *const *names);

enum { SH_STR_SHORT = 24 };

/* "512 B", "1.5 GiB", with powers of 1024; returns out. */
const char *sh_str_bytes(int64_t bytes, char out[SH_STR_SHORT]);

/* "512", "1.24 B", with powers of 1000: K, M, B (10^9), T; returns out. */
const char *sh_str_count(int64_t count, char out[SH_STR_SHORT]);

#endif
