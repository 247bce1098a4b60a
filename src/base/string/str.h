/* Words and numbers for people: similar names for messages, and sizes and counts in short form. Local, no state. */
#ifndef SH_BASE_STR_H
#define SH_BASE_STR_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* The number of single-character insertions, deletions and replacements between two words; case is ignored. */
int sh_str_distance(const char *a, const char *b);

/* The name nearest to `word` among n (the first of equals), or NULL if none is near enough to be meant. */
const char *sh_str_nearest(const char *word, int n, const char *const *names);

/* Append a word to a list in `out`, after the separator if it is not the first; what does not fit is cut. */
void sh_str_add(char *out, size_t size, const char *separator, const char *word);

enum { SH_STR_SHORT = 24 };

/* "512 B", "1.5 GiB", with powers of 1024; returns out. */
const char *sh_str_bytes(int64_t bytes, char out[SH_STR_SHORT]);

/* The same for a sum that may exceed 2^63. */
const char *sh_str_sum_of_bytes(double bytes, char out[SH_STR_SHORT]);

/* "512", "1.24 B", with powers of 1000: K, M, B (10^9), T; returns out. */
const char *sh_str_count(int64_t count, char out[SH_STR_SHORT]);

/* "1 step", "2 steps": a count with its noun; returns out. */
const char *sh_str_plural(int64_t n, const char *noun, char out[SH_STR_SHORT]);

/* "[50257,768]", "[]": a shape of at most 4 dims; returns out. */
enum { SH_STR_SHAPE = 100 };
const char *sh_str_shape(int ndim, const int64_t *dim, char out[SH_STR_SHAPE]);

/* "42 s", "12 m 5 s", "1 h 12 m", "3 d 4 h": whole seconds, the two largest units; returns out. */
const char *sh_str_duration(double seconds, char out[SH_STR_SHORT]);

/* Print the words of `text` in lines of at most `width` columns; the last line ends with a newline.
 *   column  already printed on the first line; if less than indent, filled up with blanks
 *   indent  of all lines */
void sh_str_wrap(FILE *out, int width, int column, int indent, const char *text);

/* Read numbers above 0, separated by commas and perhaps blanks. Returns how many, or -1 if the text is not such a list.
 *   out  the first `most` of them; NULL with 0 */
int sh_str_numbers(const char *text, double *out, int most);

/* Print a label of at most 12 characters, and its text (up to 511 characters) from column 13 on, in as many lines as it
 * needs. */
void sh_str_say(FILE *out, const char *label, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Whether a list of numbers and ranges from 1 on has n: "2,100-102". -1: it is no such list. */
int sh_str_lists(const char *list, int64_t n);

#endif
