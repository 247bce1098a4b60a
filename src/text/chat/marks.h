/* Encodes a text of which some stretches are learned, and makes the mask. A token is learned if it touches a stretch:
 * from the token with the stretch's first character to the token with its last; white space that an added token takes
 * belongs to that token. Merges cross the borders of stretches,
 * because a model reads the text as a whole. Local. */
#ifndef IO_TOKEN_MARKS_H
#define IO_TOKEN_MARKS_H

#include "src/text/chat/template.h"
#include "src/text/token/token.h"

struct sh_marks; /* scratch memory of one thread */

struct sh_marks *sh_marks_create(const struct sh_tokenizer *t);
void sh_marks_destroy(struct sh_marks *m); /* NULL is fine */

/* Append the ids of a chat, and one byte per id to `mask`.
 *   encoder   of a tokenizer of the kind tokenizer.json
 *   stop      id with which each stretch must end
 *   strange   whether the text may contain special tokens other than those that the template wrote
 *   across    increased by the learned ids that stand for text before their stretch as well; NULL: not counted
 * Errors: SH_E_DATA: as for sh_encode(); a stretch that does not end with `stop`; a special token in the text. */
sh_rc sh_marks_encode(struct sh_marks *m, struct sh_encoder *encoder, const struct sh_chat *chat, int64_t stop,
                      bool strange, struct sh_ids *ids, struct sh_text *mask, int64_t *across);

/* Whether a word is a special token. */
bool sh_marks_is_special(const struct sh_tokenizer *t, uint32_t id);

#endif
