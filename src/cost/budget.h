/* The fastest plan within its limits: how much is recomputed, and what has its home below the device. By trying, a real plan
 * each. The choice depends on the build and the configuration, offload.rates included, and on the free space where no limit
 * of the file is given; on nothing that was measured here: so `sherd plan` finds what `sherd train` does. */
#ifndef SH_COST_BUDGET_H
#define SH_COST_BUDGET_H

#include "src/pass/build.h"
#include "src/plan/topology.h"

/* For ranks that choose together: all fail where one does, and *most becomes the largest of all. Collective. */
typedef sh_rc sh_budget_agree(sh_rc rc, double *most);

/* Where b->fit, set b->recompute as sh_pass_fit() does; where b->fit_homes, also b->offload, what goes with it in b->options,
 * and on CPUs b->file_limit_bytes. Of the choices that keep the limits of arena, host and file the one whose step is predicted
 * to be the shortest; where there is none, the one that lacks the fewest bytes of all limits together, which sh_pass_build()
 * then refuses. Without the two nothing happens.
 *   at        ranks of a node share its disk
 *   together  NULL: one process alone
 * Cost: a plan where everything fits; else up to 10 plans on CPUs and 20 on GPUs, and for each choice that is not ruled out
 * by its price that of sh_pass_fit() and a few plans more. Errors: those of the passes; of `together`. */
sh_rc sh_budget_fit(const struct sh_config *cfg, const struct sh_topology *at, sh_budget_agree *together,
                    struct sh_build *b);

/* Seconds of a step of p as they were weighed, with b as sh_budget_fit() left it: on a machine of no special make. Local.
 * Errors: SH_E_BUG. */
sh_rc sh_budget_seconds(const struct sh_config *cfg, const struct sh_topology *at, struct sh_build *b,
                        const struct sh_program *p, double *seconds);

#endif
