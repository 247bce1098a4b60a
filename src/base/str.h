/* Words and numbers for people: near names for messages, sizes and counts in short form. Local, no state. */
#ifndef SH_BASE_STR_H
#define SH_BASE_STR_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Single-character insertions, deletions and replacements between two words; letters of either case are equal. */
int sh_str_distance(const char *a, const char *b);

/* The name nearest to `word` among n (the first of equals), or NULL when none is near enough to be meant. */
const char *sh_str_nearest(const char *word, int n, const char *const *names);

enum { SH_STR_SHORT = 24 };

/* "512 B", "1.5 GiB", with powers of 1024; returns out. */
const char *sh_str_bytes(int64_t bytes, char out[SH_STR_SHORT]);

/* The same of a sum that may be beyond 2^63. */
const char *sh_str_sum_of_bytes(double bytes, char out[SH_STR_SHORT]);

/* "512", "1.24 B", with powers of 1000: K, M, B (10^9), T; returns out. */
const char *sh_str_count(int64_t count, char out[SH_STR_SHORT]);

/* "1 step", "2 steps": a count with its noun; returns out. */
const char *sh_str_plural(int64_t n, const char *noun, char out[SH_STR_SHORT]);

/* "42 s", "12 m 5 s", "1 h 12 m", "3 d 4 h": whole seconds, the two largest units; returns out. */
const char *sh_str_duration(double seconds, char out[SH_STR_SHORT]);

/* Words of `text` in lines of at most `width` columns, the last one ended.
 *   column  printed in the first line already; < indent: it is filled up with blanks
 *   indent  of all lines */
void sh_str_wrap(FILE *out, int width, int column, int indent, const char *text);

/* Numbers above 0 with commas between, and blanks around them: how many, -1 where it is no such list.
 *   out  the first `most` of them; NULL with 0 */
int sh_str_numbers(const char *text, double *out, int most);

/* A label of at most 12 characters and its words (511 characters) from column 13 on, in as many lines as they need. */
void sh_str_say(FILE *out, const char *label, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#endif
