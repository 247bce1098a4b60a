/* Evaluation tasks: texts of which some tokens are scored, as questions with one or several answers. Order:
 * sh_task_read(), sh_task_encode(), a run that scores (score.h), sh_task_print(). */
#ifndef SH_SCORE_TASK_H
#define SH_SCORE_TASK_H

#include "io/json/json.h"
#include "src/text/score/score.h"
#include "src/text/token/token.h"

#include <stdio.h>

enum sh_task_kind {
    SH_TASK_REQUESTS, /* lines {"context", "continuation"} */
    SH_TASK_CHOICES,  /* lines {"query", "choices", "gold"}, or HellaSwag's own; or a token file of llm.c */
    SH_TASK_TEXT      /* a text that is scored as a whole */
};

/* One context with one continuation. */
struct sh_task_choice {
    char *context, *text; /* NULL in a file of tokens */
    size_t context_bytes, text_bytes;
    size_t bytes; /* of the text without the space before a choice */
    size_t chars; /* code points of it */
    int score;    /* index in scores */
};

struct sh_task_doc {
    json_t *line; /* of the file; NULL: it has none */
    int first, n; /* choices */
    int gold;     /* the right one; -1: requests */
};

struct sh_task {
    enum sh_task_kind kind;
    struct sh_task_doc *doc;
    int n_docs, cap_docs;
    struct sh_task_choice *choice;
    int n_choices, cap_choices;
    struct sh_score *score;
    int n_scores, cap_scores;
    bool tokens;        /* from a file of llm.c */
    int64_t text_bytes; /* TEXT */
};

/* Read a file; all ranks read the same. Local.
 * Errors: SH_E_DATA with the line: it is not what the kind expects. */
sh_rc sh_task_read(enum sh_task_kind kind, const char *path, struct sh_task *out);
void sh_task_free(struct sh_task *t);

/* Make tokens as lm_eval does. Spaces at the end of a context go to the continuation. The tokens of a continuation are
 * those of context and continuation together, less as many as the context alone has. An empty context becomes the token
 * that begins texts, or else the one that ends them. If a context is too long, its end is kept. Texts are cut into
 * windows of `positions` tokens, each of which predicts all of its own.
 *   positions  most that the model reads
 *   words      vocabulary size of the model; the tokens of an llm.c file may lie beyond it
 * Local. Errors: SH_E_DATA: a continuation is longer than `positions`, or has no token; those of sh_encode(). */
sh_rc sh_task_encode(const struct sh_tokenizer *tok, int positions, int words, struct sh_task *t);

/* Print the results of CHOICES and TEXT on standard output. If `lines` is not NULL, write one line per document to it:
 * for REQUESTS with "logprob", "is_greedy", "tokens", "bytes"; for CHOICES like lm_eval's samples. Local. Errors:
 * SH_E_DATA: the file cannot be written; SH_E_NUMERIC: a log-probability is not finite. */
sh_rc sh_task_print(const struct sh_task *t, FILE *lines);

/* task_bin.c: the evaluation files of llm.c: tokens of one tokenizer. */
bool sh_task_is_bin(const char *data, size_t bytes);
sh_rc sh_task_read_bin(const char *data, size_t bytes, const char *path, struct sh_task *t);

/* task_list.c, for the two above: append to a task; ids [n] are copied. */
struct sh_task_doc *sh_task_add_doc(struct sh_task *t, json_t *line, int gold);
struct sh_task_choice *sh_task_add_choice(struct sh_task *t);
struct sh_score *sh_task_add_score(struct sh_task *t, const uint32_t *ids, size_t n, size_t first);

#endif
