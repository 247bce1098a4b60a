/* Prepares text from a file for a terminal. Local, no state. */
#ifndef IO_CHECKPOINT_CLEAN_H
#define IO_CHECKPOINT_CLEAN_H

#include <stdbool.h>

/* Whether a name can be printed unchanged: not empty, UTF-8, no control characters (U+0080..U+009F are some, too). */
bool sh_ckpt_name_is_clean(const char *name);

/* The same text with \xNN for each byte that cannot be printed, in one line or, with `lines`, keeping its line feeds
 * and tabs. Freed with free(). */
char *sh_ckpt_clean(const char *text, bool lines);

#endif
