/* Log-probabilities of given tokens. */
#ifndef SH_RUN_SCORE_H
#define SH_RUN_SCORE_H

#include "src/base/err.h"
#include "src/config/config.h"
#include "src/plan/cache.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sh_run;

/* A text of which the tokens [first, n) are asked for; each is predicted from all before it. */
struct sh_score {
    uint32_t *ids;   /* [n], those of the caller */
    size_t n, first; /* 1 <= first <= n */
    double logprob;  /* out: the sum over them */
    bool greedy;     /* out: each is the likeliest one */
};

/* Equal where the texts are, and what of them is asked for. Local. */
uint64_t sh_score_hash(const struct sh_score *texts, int n);

/* What sh_run_open_scoring() is to be asked for: `rows` of such texts at a time on a rank, or of several short ones. Local. */
struct sh_request_score sh_score_request(const struct sh_score *texts, int n, int rows, const struct sh_config *cfg);

/* Texts are laid end to end in rows, each seeing itself only, and the rows dealt out to the ranks; models with learned
 * positions have one in a row. The same on all ranks, which all get the answers. Collective, agreed. Cost: a forward over
 * all tokens. */
sh_rc sh_run_score(struct sh_run *r, struct sh_score *texts, int n);

#endif
