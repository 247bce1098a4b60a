/* Parses JSON from untrusted sources within limits: size, depth, and no duplicate key in an object. The result is
 * jansson's own tree, freed with json_decref(). Local, any thread. */
#ifndef IO_JSON_JSON_H
#define IO_JSON_JSON_H

#include "src/base/err.h"

#include <jansson.h>
#include <stddef.h>

/* jansson recurses to walk trees, and to free them. */
enum { SH_JSON_DEPTH = 64 };

/* As json_loadb(), but an integer beyond 64 bits is read as a real instead of refused. */
json_t *sh_json_decode(const char *text, size_t bytes, size_t flags, json_error_t *error);

/* Parse one value of any type, with nothing but white space around it. An integer beyond 64 bits is a real.
 *   name  in   the name used in messages: a path or "PATH: line 7"
 *   *out  out  freed with json_decref()
 * A string may contain "\u0000": use json_string_length() for strings from outside.
 * Errors: SH_E_DATA "NAME: line 3, column 14: ...": not JSON, not UTF-8, lone surrogates, a number too large for a
 * double, a duplicate key in an object, deeper than SH_JSON_DEPTH. SH_E_MEMORY. */
sh_rc sh_json_parse(const char *text, size_t bytes, const char *name, json_t **out);

/* The same for a regular file of at most max_bytes. */
sh_rc sh_json_load(const char *path, size_t max_bytes, json_t **out);

/* "an object", "a string", "null", ...: the type of a value, for messages; NULL is "missing". */
const char *sh_json_is(const json_t *value);

#endif
