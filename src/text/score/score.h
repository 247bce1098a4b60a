/* Log-probabilities of given tokens. */
#ifndef SH_SCORE_SCORE_H
#define SH_SCORE_SCORE_H

#include "src/base/err.h"
#include "src/config/config.h"
#include "src/plan/cache.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sh_run;

/* A text whose tokens [first, n) are scored; each is predicted from all tokens before it. */
struct sh_score {
    uint32_t *ids;   /* [n], owned by the caller */
    size_t n, first; /* 1 <= first <= n */
    double logprob;  /* out: sum over the scored tokens */
    bool greedy;     /* out: each of them is the likeliest */
};

/* A hash of the texts and of where scoring begins in each, equal if these are. Local. */
uint64_t sh_score_hash(const struct sh_score *texts, int n);

/* The request for sh_run_open_scoring(): `rows` rows at a time per rank, each for one of these texts or several short
 * ones. Local. */
struct sh_request_score sh_score_request(const struct sh_score *texts, int n, int rows, const struct sh_config *cfg);

/* Score the texts. They are laid end to end in rows, each text seeing only itself, and the rows are dealt out to the
 * ranks; in models with learned positions a row has one text. `texts` is the same on all ranks, and all get the
 * answers. Collective, agreed. Cost: one forward over all tokens. */
sh_rc sh_score_texts(struct sh_run *r, struct sh_score *texts, int n);

#endif
