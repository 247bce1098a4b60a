/* Added tokens: strings that are matched before anything else is done to the text, leftmost and longest first. Local;
 * any thread may read. */
#ifndef IO_TOKEN_ADDED_H
#define IO_TOKEN_ADDED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sh_added {
    char *content;  /* as in the file, 0-terminated; may contain 0 bytes */
    char *found_as; /* the string to match: content, normalized if the token asks for it */
    uint32_t bytes, found_bytes, id;
    bool lstrip, rstrip, single_word, special, normalized;
};

/* The added tokens that are matched in one kind of text: raw or normalized. */
struct sh_added_set {
    const struct sh_added **token; /* [n], sorted by found_as; equal ones in the order of the file */
    int n;
    int32_t first[257]; /* tokens that begin with byte b are [first[b], first[b + 1]) */
    int sole;           /* the byte with which all tokens begin; -1: there are several */
    uint32_t longest;
};

/* The set keeps pointers into `all`, so `all` must stay where it is. */
void sh_added_set_make(struct sh_added_set *set, const struct sh_added *all, int n, bool normalized);
void sh_added_set_free(struct sh_added_set *set);

/* Find the next token in text [bytes], searching from *from on; *from moves past the match.
 *   done         in   where the previous token ended, including the white space it took
 *   *begin *end  out  the match, including the white space it takes; *begin is not before `done`, unless the token
 *                     begins within the white space that the previous one took
 * Returns NULL if there is none. */
const struct sh_added *sh_added_next(const struct sh_added_set *set, const unsigned char *text, size_t bytes,
                                     size_t *from, size_t done, size_t *begin, size_t *end);

#endif
