/* What a name in a checkpoint may look like. Local, no state. */
#ifndef IO_CHECKPOINT_CLEAN_H
#define IO_CHECKPOINT_CLEAN_H

#include <stdbool.h>

/* Whether a name can be printed unchanged: not empty, UTF-8, no control characters (U+0080..U+009F are some, too). */
bool sh_ckpt_name_is_clean(const char *name);

#endif
