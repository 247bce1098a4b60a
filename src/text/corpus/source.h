/* Text files as streams: plain, .gz, .zst; and standard input, plain. Local. */
#ifndef IO_TOKEN_SOURCE_H
#define IO_TOKEN_SOURCE_H

#include "src/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sh_source;

/* Open a file; its name's suffix says whether it is packed. "-" is standard input, which can be read once. *bytes: size
 * of the file as stored; -1: not known.
 * Errors: SH_E_DATA: as for sh_file_open(); a form that is not read (Parquet, Arrow, others); the message says how to
 * make jsonl of it. */
sh_rc sh_source_open(const char *path, struct sh_source **out, int64_t *bytes);
void sh_source_close(struct sh_source *s); /* NULL is fine */

/* The name to use for the path in messages; lent. */
const char *sh_source_name(const char *path);
bool sh_source_is_input(const char *path); /* standard input */

bool sh_source_packed(const char *path); /* whether it would be unpacked */

/* Start reading at byte `at`; only for files that are not packed. */
void sh_source_skip(struct sh_source *s, int64_t at);

/* Read up to `room` bytes of text; *n 0: end of the text. *taken: bytes of the file read so far.
 * Errors: SH_E_DATA: the file is damaged or was cut short. */
sh_rc sh_source_read(struct sh_source *s, void *to, size_t room, size_t *n, int64_t *taken);

#endif
