/* One text field of a line of JSON, without a tree of all the rest: for files of millions of lines. Local, no state. */
#ifndef IO_JSON_FIELD_H
#define IO_JSON_FIELD_H

#include "src/base/err.h"

#include <stddef.h>

/* The string that an object has under `field`, at its top. All of the line is checked to be JSON, at most
 * SH_JSON_DEPTH deep, with nothing but white space around it; of two equal keys only the field's own are found.
 *   line   in   [bytes], UTF-8
 *   text   out  [bytes]: the string, which may hold 0; *n: its length
 * Errors: SH_E_DATA "column 14: ...": no JSON, no object, the field is missing, twice there, or no string; lone
 * surrogates. */
sh_rc sh_json_field(const char *line, size_t bytes, const char *field, char *text, size_t *n);

#endif
