/* Generate text: a model continues prompts. Order: sh_prompts_read() or sh_prompts_one(), sh_prompts_encode() or
 * _render(), sh_run_open_cached() with sh_generate_cache(), load a checkpoint, sh_generate_run(). */
#ifndef SH_GENERATE_GENERATE_H
#define SH_GENERATE_GENERATE_H

#include "io/json/json.h"
#include "src/config/config.h"
#include "src/plan/cache.h"
#include "src/text/generate/sampling.h"
#include "src/text/token/token.h"

#include <stdio.h>

struct sh_run;
struct sh_template;

struct sh_prompt {
    json_t *line; /* of the file; NULL: the prompt is from the command line */
    char *text;   /* NULL: the prompt is a chat, its messages are in `line` */
    size_t bytes;
    struct sh_ids ids;
};

struct sh_prompts {
    struct sh_prompt *p;
    int n, cap;
};

/* Read a file: each line is an object with "prompt", or with "messages" if `chat`; its other members are copied to the
 * output. All ranks read the same file.
 * Local. Errors: SH_E_DATA "FILE: line 3: ...": not JSON, not an object, neither member is there, or the prompt is
 * empty; also a file without lines. */
sh_rc sh_prompts_read(const char *path, bool chat, struct sh_prompts *out);
void sh_prompts_one(const char *text, struct sh_prompts *out);
void sh_prompts_free(struct sh_prompts *of);

/* Encode the prompts, including what the tokenizer puts in front of a text. Local. Errors: those of sh_encode(), with
 * the number of the prompt. */
sh_rc sh_prompts_encode(const struct sh_tokenizer *tok, struct sh_prompts *of);

/* Encode chats as template `t` renders them, up to where the answer begins.
 *   strange  whether messages may contain the texts of special tokens
 * Local. Errors: those of sh_chat_prompt() and sh_marks_encode(), with the conversation's number, counted from 1. */
sh_rc sh_prompts_render(const struct sh_tokenizer *tok, const struct sh_template *t, bool strange,
                        struct sh_prompts *of);

struct sh_generate {
    const struct sh_tokenizer *tok;
    struct sh_sampling sampling;
    int tokens;       /* most tokens to add; a model that ends the text stops earlier */
    const char *stop; /* the text ends before this string; NULL: none */
    int rows;         /* prompts at a time per rank */
    int positions;    /* most positions of a text; 0: model.max_seq_len */
    enum sh_parallel parallel;
};

/* A hash of the prompts' tokens, equal if the tokens are. Local. */
uint64_t sh_prompts_hash(const struct sh_prompts *of);

/* The cache that the run needs: no more positions than the longest text takes. The numbers are the same for any number
 * of ranks, because the bits of a text depend on them. Local. */
struct sh_request_cache sh_generate_cache(const struct sh_generate *g, const struct sh_prompts *prompts,
                                          const struct sh_config *cfg);

/* Continue the prompts.
 *   out   rank 0's; NULL: print the one prompt and its text on standard output as the text grows. Else write one line
 *         for each prompt, in their order: the line of the file, and
 *         "text"   what follows the prompt          "tokens"  how many were added
 *         "ids"    of the prompt and added tokens    "end"     "eos", "stop" or "length"
 * Prompt i belongs to rank i % ranks of the data group. Collective, agreed. Errors: those of sh_continue_texts();
 * SH_E_DATA: the file cannot be written. */
sh_rc sh_generate_run(struct sh_run *r, const struct sh_generate *g, struct sh_prompts *prompts, FILE *out);

#endif
