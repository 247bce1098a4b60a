/* Which characters a configuration may contain, and how untrusted text is shown in a message. Local, no state. */
#ifndef SH_READ_TEXT_H
#define SH_READ_TEXT_H

#include <stdbool.h>
#include <stddef.h>

/* Offset of the first byte that is not part of an allowed UTF-8 character, or `bytes` if all are. Control characters,
 * line and paragraph separators and byte order marks are not allowed: what is loaded must come out of sh_config_print()
 * as one line that loads back. `layout` allows tab, line feed and carriage return as well. */
size_t sh_config_text_bad(const char *s, size_t bytes, bool layout);

enum { SH_CONFIG_SHOWN = 64 };

/* `s` for a one-line message: shortened, with '?' for characters that must not reach a terminal; returns out. */
const char *sh_config_text_shown(const char *s, char out[SH_CONFIG_SHOWN]);

#endif
