/* Continue texts, each in one row of the run's cache of keys and values. A run opened with sh_run_open_cached() has the
 * number of rows that it was asked for; each rank of the data group has its own rows. */
#ifndef SH_GENERATE_CONTINUE_H
#define SH_GENERATE_CONTINUE_H

#include "src/base/err.h"
#include "src/text/base/ids.h"
#include "src/text/generate/sampling.h"

struct sh_run;

enum sh_text_state {
    SH_TEXT_GOES_ON,
    SH_TEXT_ENDED,   /* by the model, with a token that ends texts */
    SH_TEXT_STOPPED, /* by `added` */
    SH_TEXT_FULL     /* it has all tokens that were asked for */
};

struct sh_text {
    uint64_t index;    /* among all texts; random numbers depend on it */
    struct sh_ids ids; /* of the prompt, at least one, then of added tokens; a token that ends the text is not added */
    size_t prompt;     /* number of ids in the prompt */
    enum sh_text_state state;

    /* Private to continue.c: ids[from] is at position 0 of the cache, which holds the ids before ids[fed]. */
    size_t from, fed;
};

/* The time that the steps took. */
struct sh_continue_time {
    double read, write; /* seconds of the steps that read prompts, and of the steps of one token per row */
    long long steps;    /* number of the latter */
};

struct sh_continue {
    struct sh_sampling sampling;
    size_t tokens;                              /* most tokens to add to a text */
    bool (*ends)(const void *ctx, uint32_t id); /* whether a token ends the text */
    /* Called after each token, and at the end of a text with its state already set; may set SH_TEXT_STOPPED. */
    sh_rc (*added)(void *ctx, struct sh_text *text);
    void *ctx;                     /* passed to both */
    struct sh_continue_time *time; /* (optional) the times are added to it */
};

/* The tokens from which a text continues that outgrows a cache of so many positions: half as many. Local. */
size_t sh_continue_kept(int positions);

/* Continue the texts until those of all ranks are complete; all ranks run the same sections. A rank may have fewer
 * texts than rows, or none. A text that outgrows the cache continues from its last sh_continue_kept() tokens.
 * Collective, agreed.
 *   texts  [n] of this rank
 * Cost:   reads the prompts in pieces, then computes one token of every row per step.
 * Errors: those of `added`; SH_E_NUMERIC: a logit is not finite. Such a text ends; the others continue. */
sh_rc sh_continue_texts(struct sh_run *r, struct sh_text *texts, int n, const struct sh_continue *how);

#endif
