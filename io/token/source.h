/* Text files as streams: plain, .gz, .zst; and standard input, plain. Local. */
#ifndef IO_TOKEN_SOURCE_H
#define IO_TOKEN_SOURCE_H

#include "src/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sh_source;

/* By the end of the name; "-" is standard input, which can be read once. *bytes: of the file, as it lies there; -1: not
 * known.
 * Errors: SH_E_DATA: as of sh_file_open(); a form that is not read (Parquet, Arrow, others), with what makes jsonl
 * of it. */
sh_rc sh_source_open(const char *path, struct sh_source **out, int64_t *bytes);
void sh_source_close(struct sh_source *s); /* NULL is fine */

/* The path for messages; lent. */
const char *sh_source_name(const char *path);
bool sh_source_is_input(const char *path); /* standard input */

bool sh_source_packed(const char *path); /* whether it would be unpacked */

/* Begin at that byte; of files that are not packed. */
void sh_source_skip(struct sh_source *s, int64_t at);

/* Up to `room` bytes of text; *n 0: it ends here. *taken: bytes of the file read so far.
 * Errors: SH_E_DATA: damaged or cut short. */
sh_rc sh_source_read(struct sh_source *s, void *to, size_t room, size_t *n, int64_t *taken);

#endif
