/* Turns a batch of text into ids: the work of each thread of `sherd tokenize`. */
#ifndef IO_TOKEN_BATCH_H
#define IO_TOKEN_BATCH_H

#include "src/text/chat/chat.h"
#include "src/text/corpus/pool.h"
#include "src/text/token/token.h"

struct sh_batch_job {
    const struct sh_tokenizer *tokenizer;
    const char *field, *separator; /* as in struct sh_token_options */
    bool no_begin, replace_invalid;
    bool documents;                     /* the lengths of documents are wanted */
    bool numbers;                       /* each document has a number, and a last token that alone is a target */
    int labels;                         /* with numbers: each document has one for each of them; 0: a single one */
    const char *names;                  /* of labels, with commas between; NULL: they have none */
    int64_t end;                        /* id that ends a document, or each stretch to learn; -1: none */
    enum sh_chat_form chat;             /* the form of conversation in a line; NONE: a line is plain text */
    const struct sh_template *template; /* of the conversation; NULL: none */
    bool special_in_text;
};

/* Take the labels that texts may have, several each: how many, or their names, with commas between; lent.
 * Errors: SH_E_USAGE: there are none, one or too many, or a name is empty, repeated or has a blank at an end. */
sh_rc sh_batch_labels(const char *labels, struct sh_batch_job *job);

/* The functions of struct sh_pool_job (sh_batch_run is the sh_batch_encode); ctx is a struct sh_batch_job. */
void *sh_batch_worker_create(const void *ctx);
void sh_batch_worker_destroy(void *worker);
sh_rc sh_batch_run(const void *ctx, void *worker, struct sh_batch *b);

/* Return the offset of the next separator line in text [bytes], searching from `from`, which is the start of a line;
 * *after is the offset just past that line. Returns `bytes` if there is no complete separator line. `last`: the text
 * ends here, so its last line needs no line end. */
size_t sh_batch_separator(const char *separator, const unsigned char *text, size_t bytes, size_t from, bool last,
                          size_t *after);

#endif
