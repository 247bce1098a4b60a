/* Added tokens: texts that are found before everything else, leftmost and longest first. Local; reading from any
 * thread. */
#ifndef IO_TOKEN_ADDED_H
#define IO_TOKEN_ADDED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sh_added {
    char *content;  /* as the file has it, 0-terminated; may hold 0 */
    char *found_as; /* content, normalized where the token says so */
    uint32_t bytes, found_bytes, id;
    bool lstrip, rstrip, single_word, special, normalized;
};

/* Those that are looked for in one kind of text: as it is, or normalized. */
struct sh_added_set {
    const struct sh_added **token; /* [n], sorted by what they are found as; of equal ones the first of the file */
    int n;
    int32_t first[257]; /* by first byte: its tokens are [first[b], first[b + 1]) */
    int sole;           /* the byte with which all of them begin; -1: several */
    uint32_t longest;
};

/* Tokens are kept by address. */
void sh_added_set_make(struct sh_added_set *set, const struct sh_added *all, int n, bool normalized);
void sh_added_set_free(struct sh_added_set *set);

/* The next token in text [bytes] from *from on, which moves behind what was found.
 *   done         in   where the token before ended, white space that it took included
 *   *begin *end  out  its place, with the white space that it takes; *begin is not before `done` but for a token that
 *                     begins within the white space of the one before
 * Returns NULL: there is none. */
const struct sh_added *sh_added_next(const struct sh_added_set *set, const unsigned char *text, size_t bytes,
                                     size_t *from, size_t done, size_t *begin, size_t *end);

#endif
