/* Texts that a model continues. Order: sh_prompts_read() or sh_prompts_one(), sh_prompts_encode() or _render(), sh_run_open_cached()
 * with sh_generate_cache(), a checkpoint, sh_run_generate(). */
#ifndef SH_RUN_GENERATE_H
#define SH_RUN_GENERATE_H

#include "io/json/json.h"
#include "io/token/token.h"
#include "src/config/config.h"
#include "src/plan/cache.h"
#include "src/run/sampling.h"

#include <stdio.h>

struct sh_run;
struct sh_template;

struct sh_prompt {
    json_t *line; /* of the file; NULL: the text of the command line */
    char *text;   /* NULL: its messages are */
    size_t bytes;
    struct sh_ids ids;
};

struct sh_prompts {
    struct sh_prompt *p;
    int n, cap;
};

/* Each line of a file is an object with "prompt", or in a file of chats with "messages"; what else it has goes to the output.
 * All ranks read the same file.
 * Local. Errors: SH_E_DATA "FILE: line 3: ...": no JSON, no object, none of that, an empty prompt; a file without lines. */
sh_rc sh_prompts_read(const char *path, bool chat, struct sh_prompts *out);
void sh_prompts_one(const char *text, struct sh_prompts *out);
void sh_prompts_free(struct sh_prompts *of);

/* Their tokens, with what the tokenizer puts in front of a text. Local. Errors: those of sh_encode(), with the line. */
sh_rc sh_prompts_encode(const struct sh_tokenizer *tok, struct sh_prompts *of);

/* Those of chats, as template `t` writes them, up to where the answer begins.
 *   strange  whether messages may have the texts of special tokens in them
 * Local. Errors: those of sh_chat_prompt() and sh_marks_encode(), with the conversation's number from 1. */
sh_rc sh_prompts_render(const struct sh_tokenizer *tok, const struct sh_template *t, bool strange,
                        struct sh_prompts *of);

struct sh_generate {
    const struct sh_tokenizer *tok;
    struct sh_sampling sampling;
    int tokens;       /* at most: a model that ends the text stops before */
    const char *stop; /* the text ends before it; NULL: none */
    int rows;         /* prompts at a time on a rank */
    int positions;    /* of a text at most; 0: model.max_seq_len */
    enum sh_parallel parallel;
};

/* Equal where the tokens are. Local. */
uint64_t sh_prompts_hash(const struct sh_prompts *of);

/* What the run must have room for: no more positions than the longest text takes. The same on any number of ranks, as the
 * bits of a text depend on these numbers. Local. */
struct sh_request_cache sh_generate_cache(const struct sh_generate *g, const struct sh_prompts *prompts,
                                          const struct sh_config *cfg);

/* Continue them.
 *   out   rank 0's; NULL: the one prompt and its text on standard output, as it comes. Else a line for each prompt, in their
 *         order: the line of the file, and
 *         "text"   what follows the prompt          "tokens"  how many were added
 *         "ids"    of the prompt and what was added "end"     "eos", "stop" or "length"
 * Prompt i is rank i % ranks'. Collective, agreed. Errors: those of sh_run_continue(); SH_E_DATA: the file. */
sh_rc sh_run_generate(struct sh_run *r, const struct sh_generate *g, struct sh_prompts *prompts, FILE *out);

#endif
