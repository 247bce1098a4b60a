/* The decoder of a tokenizer.json as a list of steps that turn words into text. Local; any thread may read
 * the steps. */
#ifndef IO_TOKEN_DECODE_H
#define IO_TOKEN_DECODE_H

#include "src/text/base/text.h"

#include <stdbool.h>
#include <stdint.h>

enum sh_decode_kind {
    SH_DECODE_BYTE_LEVEL,
    SH_DECODE_REPLACE,
    SH_DECODE_BYTES,
    SH_DECODE_FUSE,
    SH_DECODE_STRIP,
    SH_DECODE_METASPACE
};

struct sh_decode {
    enum sh_decode_kind kind;
    char *from, *to; /* REPLACE: both; STRIP, METASPACE: `from`, one character; owned */
    size_t from_bytes, to_bytes;
    size_t start, stop; /* STRIP: most characters removed at the front and at the end */
    bool prepended;     /* METASPACE: the encoder put a mark in front of the text: drop the marks of the first word */
};

void sh_decode_free(struct sh_decode *d);

/* A list of strings, stored end to end. */
struct sh_strings {
    struct sh_text text;
    size_t *end; /* [n]: where each string ends */
    size_t n, room;
};

void sh_strings_put(struct sh_strings *p, const void *text, size_t bytes);
void sh_strings_free(struct sh_strings *p);

/* Replace `words` by the pieces of the text; concatenated, the pieces are the text. */
void sh_decode(const struct sh_decode *steps, int n, struct sh_strings *words);

#endif
