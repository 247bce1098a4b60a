/* Cuts text into pieces that no merge crosses: the pre-tokenizer of a tokenizer.json as a list of steps, each of which
 * cuts the pieces of the previous one. Any thread may read the steps; each thread needs its own scratch. */
#ifndef IO_TOKEN_SPLIT_H
#define IO_TOKEN_SPLIT_H

#include "src/base/err.h"
#include "src/text/base/place.h"
#include "src/text/token/pairs.h"

#include <stdbool.h>
#include <stddef.h>

enum sh_split_kind {
    SH_SPLIT_PATTERN,   /* at matches of a regular expression */
    SH_SPLIT_STRING,    /* at a fixed string */
    SH_SPLIT_DIGITS,    /* at each number (Unicode: N*) */
    SH_SPLIT_MARKS,     /* before each run of a fixed string */
    SH_SPLIT_PAIRS,     /* between two characters that are not in a set of pairs */
    SH_SPLIT_PREFIX,    /* no cut: puts a space before a piece that does not begin with one */
    SH_SPLIT_METASPACE, /* no cut: puts a fixed string in place of each space, and before the piece */
};

enum sh_split_how {
    SH_SPLIT_ISOLATED,
    SH_SPLIT_REMOVED,
    SH_SPLIT_CONTIGUOUS,
    SH_SPLIT_WITH_PREVIOUS,
    SH_SPLIT_WITH_NEXT
};

enum sh_split_prepend { SH_PREPEND_NEVER, SH_PREPEND_FIRST, SH_PREPEND_ALWAYS };

struct sh_split {
    enum sh_split_kind kind;
    enum sh_split_how how;
    bool invert;
    char *text; /* STRING, MARKS, METASPACE; owned */
    size_t bytes;
    enum sh_split_prepend prepend;
    struct sh_pairs *pairs; /* PAIRS: the pairs that stay together; owned */
    void *code;             /* PATTERN: compiled */
    bool jit;
};

/* Compile a regular expression of a tokenizer (pattern.h). Errors: SH_E_DATA: the expression cannot be translated, does
 * not compile or matches the empty string; Sherd was built without PCRE2. */
sh_rc sh_split_pattern(const char *pattern, size_t bytes, struct sh_split *out);
void sh_split_free(struct sh_split *s);

/* Whether pieces stay valid until sh_split() returns; if not, a later piece may overwrite an earlier one. */
bool sh_split_lasts(const struct sh_split *steps, int n);

struct sh_split_scratch;

struct sh_split_scratch *sh_split_scratch_create(int steps);
void sh_split_scratch_destroy(struct sh_split_scratch *s); /* NULL is fine */

/* where: [bytes] origins of the piece; NULL: not wanted */
typedef sh_rc (*sh_split_sink)(void *ctx, const unsigned char *piece, size_t bytes, const struct sh_span *where);

/* Pass the pieces of text [bytes], UTF-8, to a sink in order; none is empty.
 *   where  in  [bytes] origins of the text; NULL: not wanted
 *   first  in  whether this is the beginning of the whole text
 * Errors: those of the sink; SH_E_DATA: an expression needs more steps than PCRE2 allows. */
sh_rc sh_split(const struct sh_split *steps, int n, struct sh_split_scratch *s, const unsigned char *text, size_t bytes,
               const struct sh_span *where, bool first, sh_split_sink sink, void *ctx);

#endif
