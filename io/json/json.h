/* JSON that strangers wrote, parsed behind limits: bytes, depth, no key twice in an object. What comes back is
 * jansson's own tree, freed with json_decref(). Local, any thread. */
#ifndef IO_JSON_JSON_H
#define IO_JSON_JSON_H

#include "src/base/err.h"

#include <jansson.h>
#include <stddef.h>

/* jansson walks trees by recursion, also when it frees them. */
enum { SH_JSON_DEPTH = 64 };

/* One value of any type, with nothing but white space around it.
 *   name  in   what it is called in messages, a path or "PATH: line 7"
 *   *out  out  freed with json_decref()
 * A "\u0000" is a character of a string: take json_string_length() with strings from outside.
 * Errors: SH_E_DATA "NAME: line 3, column 14: ...": not JSON, not UTF-8, lone surrogates, a number too large for
 * its type, a key twice in one object, deeper than SH_JSON_DEPTH. SH_E_MEMORY. */
sh_rc sh_json_parse(const char *text, size_t bytes, const char *name, json_t **out);

/* The same of a regular file of at most max_bytes. */
sh_rc sh_json_load(const char *path, size_t max_bytes, json_t **out);

/* "an object", "a string", "null", ...: the type of a value in a message; NULL is "nothing". */
const char *sh_json_is(const json_t *value);

#endif
