/* From a configuration to a plan: the one way, for a run and for everything that says beforehand what a run would
 * do. */
#ifndef SH_PLAN_MAKE_H
#define SH_PLAN_MAKE_H

#include "src/base/err.h"
#include "src/plan/cache.h"

#include <stdbool.h>
#include <stdint.h>

struct sh_build;
struct sh_config;
struct sh_mesh_shape;
struct sh_program;
struct sh_topology;

struct sh_plan_request {
    const struct sh_config *cfg;
    const struct sh_topology *at;
    const struct sh_mesh_shape *mesh; /* from sh_request_mesh() with the same topology */
    enum sh_purpose purpose;
    int threads;         /* of a rank */
    int64_t limit_bytes; /* of the arena; 0: none */
    int64_t node_bytes;  /* host memory of a node; 0: not known */
    int node_ranks;      /* that share it */
    bool weigh;          /* make it whatever its size, and leave out the pass that checks it */

    const struct sh_request_cache *cache; /* SH_TO_GENERATE: its cache of keys and values; else NULL */
    const struct sh_request_score *score; /* SH_TO_SCORE; else NULL */

    /* For ranks that plan together, as in src/plan/budget.h; NULL: one process alone. */
    sh_rc (*together)(sh_rc rc, double *most);
};

/* Choose what the configuration leaves open, and build the program.
 *   *build  out  what the passes were asked for, with all choices
 *   *p      out  destroyed by the caller, whatever is returned
 * Collective if `together` is. Cost: that of sh_budget_fit(), and a few plans more. Errors: SH_E_USAGE; SH_E_MEMORY: it
 * exceeds a limit; those of `together`. */
sh_rc sh_plan_make(const struct sh_plan_request *ask, struct sh_build *build, struct sh_program **p);

#endif
