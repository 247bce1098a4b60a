/* Token files that hold the end of another one: validation text that has become training text. Local. */
#ifndef IO_TOKEN_TAIL_H
#define IO_TOKEN_TAIL_H

#include "src/base/err.h"

/* Look beside `path` for a token file with a header whose tokens, 16 at least, are the last ones of `path`.
 * *other: its path, to be freed; NULL: there is none. Files that cannot be read are passed over.
 * Errors: SH_E_DATA: of `path` and its folder. */
sh_rc sh_token_find_tail(const char *path, char **other);

#endif
