/* Finds token files that hold the end of another one: validation text that has become training text. Local. */
#ifndef IO_TOKEN_TAIL_H
#define IO_TOKEN_TAIL_H

#include "src/base/err.h"

/* Look in the folder of `path` for a token file with a header whose tokens, at least 16, are the last tokens of `path`.
 * *other: its path, to be freed; NULL: there is none. Files that cannot be read are skipped.
 * Errors: SH_E_DATA: `path` or its folder cannot be read. */
sh_rc sh_corpus_find_tail(const char *path, char **other);

#endif
