/* Continue texts, each in a row of the run's cache of keys and values. A run opened with sh_run_open_cached() has as many
 * rows as it was asked for; the ranks of the data group have rows of their own. */
#ifndef SH_RUN_CONTINUE_H
#define SH_RUN_CONTINUE_H

#include "io/token/ids.h"
#include "src/base/err.h"
#include "src/run/sampling.h"

struct sh_run;

enum sh_text_state {
    SH_TEXT_GOES_ON,
    SH_TEXT_ENDED,   /* by the model: a token that ends texts */
    SH_TEXT_STOPPED, /* by `added` */
    SH_TEXT_FULL     /* as many tokens as were asked for */
};

struct sh_text {
    uint64_t index;    /* of all texts: random numbers depend on it */
    struct sh_ids ids; /* of the prompt, one at least; then what was added. A token that ends the text is not */
    size_t prompt;     /* ids of the prompt */
    enum sh_text_state state;

    /* continue.c's: ids[from] is position 0 of the cache, which has those before ids[fed]. */
    size_t from, fed;
};

/* What the steps took. */
struct sh_continue_time {
    double read, write; /* seconds of steps that read prompts, and of those of one token a row */
    long long steps;    /* of the latter */
};

struct sh_continue {
    struct sh_sampling sampling;
    size_t tokens;                              /* added to a text at most */
    bool (*ends)(const void *ctx, uint32_t id); /* whether a token ends the text */
    /* After each token that was added, and with the state set after the last; may set SH_TEXT_STOPPED. */
    sh_rc (*added)(void *ctx, struct sh_text *text);
    void *ctx;                     /* of both */
    struct sh_continue_time *time; /* added to; NULL: not asked for */
};

/* Until none of the texts of any rank goes on: all ranks run the same sections. Ranks may have less texts than rows, or
 * none. A text that is longer than the cache goes on from its last half, which is said once. Collective, agreed.
 *   texts  [n] of this rank
 * Cost:   the prompts in pieces, then a token of all rows a step.
 * Errors: those of `added`; SH_E_NUMERIC: a logit is not finite. Such a text ends, the others go on. */
sh_rc sh_run_continue(struct sh_run *r, struct sh_text *texts, int n, const struct sh_continue *how);

#endif
