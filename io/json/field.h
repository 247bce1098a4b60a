/* Reads one string field of a JSON line without building a tree, for files of millions of lines. Local, no state. */
#ifndef IO_JSON_FIELD_H
#define IO_JSON_FIELD_H

#include "src/base/err.h"

#include <stddef.h>

/* Return the string that the object has under `field` at its top level. The whole line is checked: it must be JSON, at
 * most SH_JSON_DEPTH deep, with nothing but white space around it. Duplicate keys are detected only for `field` itself.
 *   line   in   [bytes], UTF-8
 *   text   out  [bytes]: the string, which may hold zero bytes; *n: its length
 * Errors: SH_E_DATA "column 14: ...": not JSON, not an object, the field is missing, appears twice or is not a string;
 * lone surrogates. */
sh_rc sh_json_field(const char *line, size_t bytes, const char *field, char *text, size_t *n);

#endif
