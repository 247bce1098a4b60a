/* A batch of text to ids: what each thread of `sherd tokenize` does. */
#ifndef IO_TOKEN_BATCH_H
#define IO_TOKEN_BATCH_H

#include "io/token/chat.h"
#include "io/token/crew.h"
#include "io/token/token.h"

struct sh_batch_job {
    const struct sh_tokenizer *tokenizer;
    const char *field, *separator; /* as of struct sh_token_options */
    bool no_begin, replace_invalid;
    bool documents;                     /* lengths are wanted */
    int64_t end;                        /* id that ends a document, of conversations each learned stretch; -1: none */
    enum sh_chat_form chat;             /* a line is a conversation; NONE: a text */
    const struct sh_template *template; /* of it; NULL: none */
    bool special_in_text;
};

/* sh_batch_encode and what belongs to it; ctx is a struct sh_batch_job. */
void *sh_batch_worker_create(const void *ctx);
void sh_batch_worker_destroy(void *worker);
sh_rc sh_batch_run(const void *ctx, void *worker, struct sh_batch *b);

/* Where the next separator line begins in text [bytes], from `from`, which is the begin of a line; *after: behind
 * it. Returns `bytes`: there is none that has ended. `last`: the text ends here, so that its last line needs no
 * line end. */
size_t sh_batch_separator(const char *separator, const unsigned char *text, size_t bytes, size_t from, bool last,
                          size_t *after);

#endif
