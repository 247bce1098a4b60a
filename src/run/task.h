/* What a model is asked to judge: texts of which some tokens are scored, in questions of one or several. Order:
 * sh_task_read(), sh_task_encode(), a run that scores (score.h), sh_task_print(). */
#ifndef SH_RUN_TASK_H
#define SH_RUN_TASK_H

#include "io/json/json.h"
#include "io/token/token.h"
#include "src/run/score.h"

#include <stdio.h>

enum sh_task_kind {
    SH_TASK_REQUESTS, /* lines {"context", "continuation"} */
    SH_TASK_CHOICES,  /* lines {"query", "choices", "gold"}, or HellaSwag's own; or a file of llm.c, of tokens */
    SH_TASK_TEXT      /* a text that is scored as a whole */
};

/* One context with one continuation. */
struct sh_task_choice {
    char *context, *text; /* NULL in a file of tokens */
    size_t context_bytes, text_bytes;
    size_t bytes; /* of the text without the space before a choice */
    size_t chars; /* code points of it */
    int score;    /* of scores */
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
 * Errors: SH_E_DATA with the line: not what the kind wants. */
sh_rc sh_task_read(enum sh_task_kind kind, const char *path, struct sh_task *out);
void sh_task_free(struct sh_task *t);

/* Tokens as lm_eval makes them: spaces at the end of a context go to the continuation, whose tokens are those of both
 * together past as many as the context has; a context that is empty is the token that begins texts, or ends them; of what
 * is too long the end is kept. Texts are cut in windows of `positions` tokens, each of which predicts all of its own.
 *   positions  that the model reads at most
 *   words      of the model: a file of llm.c may have others
 * Local. Errors: SH_E_DATA: a continuation that is longer than that, or has no token; those of sh_encode(). */
sh_rc sh_task_encode(const struct sh_tokenizer *tok, int positions, int words, struct sh_task *t);

/* Answers on standard output, and where `lines` is not NULL a line for each document: REQUESTS with "logprob", "is_greedy",
 * "tokens", "bytes"; CHOICES as lm_eval's samples. Local. Errors: SH_E_DATA: the file cannot be written; SH_E_NUMERIC: a log-probability is not
 * finite. */
sh_rc sh_task_print(const struct sh_task *t, FILE *lines);

/* task_bin.c: the evaluation files of llm.c: tokens of one tokenizer. */
bool sh_task_is_bin(const char *data, size_t bytes);
sh_rc sh_task_read_bin(const char *data, size_t bytes, const char *path, struct sh_task *t);

/* task_read.c, for the two above: append; ids [n] are copied. */
struct sh_task_doc *sh_task_add_doc(struct sh_task *t, json_t *line, int gold);
struct sh_task_choice *sh_task_add_choice(struct sh_task *t);
struct sh_score *sh_task_add_score(struct sh_task *t, const uint32_t *ids, size_t n, size_t first);

#endif
