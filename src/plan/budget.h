/* The fastest plan within its limits: how much is recomputed, and which tensors live in a lower tier. It is found by
 * trial, each a real plan. The choice depends on the build and the configuration, offload.rates included, and on the
 * free space if no limit for the file is given. It depends on nothing measured on this machine, so `sherd plan` chooses
 * the same as `sherd train`. */
#ifndef SH_PLAN_BUDGET_H
#define SH_PLAN_BUDGET_H

#include "src/pass/build.h"
#include "src/plan/topology.h"

/* For ranks that choose together: all fail if one fails, and *most becomes the largest value of all ranks.
 * Collective. */
typedef sh_rc sh_budget_agree(sh_rc rc, double *most);

/* If b->fit, set b->recompute as sh_pass_fit() does; if b->fit_homes, also set b->offload, the options in b->options
 * that go with it, and on CPUs b->file_limit_bytes. Among the choices within the limits of arena, host and file, take
 * the one with the shortest predicted step. If there is none, take the one that exceeds all limits together by the
 * fewest bytes; sh_pass_build() then refuses it. If neither is set, nothing happens.
 *   at        ranks of a node share its disk
 *   together  NULL: one process alone
 * Cost: one plan if everything fits; else up to 10 plans on CPUs and 20 on GPUs, plus the cost of sh_pass_fit() and a
 * few more plans for each choice that is not ruled out by its price. Errors: those of the passes and of `together`. */
sh_rc sh_budget_fit(const struct sh_config *cfg, const struct sh_topology *at, sh_budget_agree *together,
                    struct sh_build *b);

/* The predicted seconds of a step of p that sh_budget_fit() compared, with b as that call left it: on a generic
 * machine. Local.
 * Errors: SH_E_BUG. */
sh_rc sh_budget_seconds(const struct sh_config *cfg, const struct sh_topology *at, struct sh_build *b,
                        const struct sh_program *p, double *seconds);

#endif
