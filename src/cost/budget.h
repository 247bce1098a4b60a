/* The least slow plan within its limits: how much is recomputed, and what has its home in a file. By trying, a real plan
 * each. The choice depends on the build and the configuration, offload.rates included, and on the free space where no limit
 * of the file is given; on nothing that was measured here: so `sherd plan` finds what `sherd train` does. */
#ifndef SH_COST_BUDGET_H
#define SH_COST_BUDGET_H

#include "src/pass/build.h"
#include "src/plan/topology.h"

/* For ranks that choose together: all fail where one does, and *most becomes the largest of all. Collective. */
typedef sh_rc sh_budget_agree(sh_rc rc, double *most);

/* Where b->fit, set b->recompute as sh_pass_fit() does; where b->fit_homes, b->offload and b->file_limit_bytes too. Of the
 * choices whose arena and file are within their limits the one whose step is predicted to be the shortest; where there is
 * none, the one with the smallest arena, which sh_pass_build() then refuses. Without the two nothing happens.
 *   at        ranks of a node share its disk
 *   together  NULL: one process alone
 * Cost: up to 7 times that of sh_pass_fit(), and as many plans. Errors: those of the passes; of `together`. */
sh_rc sh_budget_fit(const struct sh_config *cfg, const struct sh_topology *at, sh_budget_agree *together,
                    struct sh_build *b);

#endif
