/* Text on its way to a terminal. Names, messages and texts come from files and arguments, which may be a stranger's:
 * control characters would move the cursor or answer for the user, bidirectional ones would show a name as another.
 * Each becomes \xNN or \uNNNN once, where a line is printed: log lines by src/base/log.c, the rest by standard output
 * itself, which sh_screen_open() replaces. Local. */
#ifndef SH_BASE_SCREEN_H
#define SH_BASE_SCREEN_H

#include <stdbool.h>
#include <stddef.h>

enum { SH_SCREEN_MOST = 6 }; /* bytes that one byte of a text can become */

/* Write the text with its control characters made visible, line feeds and tabs apart; returns the bytes written.
 *   out    out  [SH_SCREEN_MOST * bytes]
 *   taken  out  how many bytes were read: fewer than `bytes` if the text ends inside a character */
size_t sh_screen_clean(const char *text, size_t bytes, char *out, size_t *taken);

/* From here on all that is written to stdout is cleaned. Call once, first thing in main(); false: no memory. */
bool sh_screen_open(void);

/* What follows is the product of a command (generated text), not a line about it: cleaned on a terminal only. */
void sh_screen_product(void);

/* Flush stdout; false, with errno, if anything written to it since the start was lost. */
bool sh_screen_flush(void);

#endif
