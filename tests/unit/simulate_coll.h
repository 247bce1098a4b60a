/* Collectives among simulated ranks; simulate.h says how unkind they are. Operations are named by their index in the
 * program of the rank; all belong to the section that runs. */
#ifndef SH_TESTS_UNIT_SIMULATE_COLL_H
#define SH_TESTS_UNIT_SIMULATE_COLL_H

#include "tests/unit/simulate.h"

enum { SIM_MAX_RANKS = 16 }; /* of an axis */
enum { SIM_POISON = 0xff };  /* each byte: NaN in every float type, -1 in integers */

/* A collective from its start to the end of the section, since others make their results from what this rank sent. */
struct sim_flight {
    bool started, waited;
    char *sent;
    int64_t sent_bytes;
};

/* Keep what is sent, and poison what will be received; a part sent from its own place stays. */
void sim_coll_start(struct sim_rank *r, int i);

/* Whether everyone whom collective i needs has started it, and what must be complete before can be so. */
bool sim_coll_can_complete(const struct sim *s, const struct sim_rank *r, int i, const struct sh_section *section);

/* Hand out the result, unless another collective under way goes on with it. */
void sim_coll_finish(const struct sim *s, struct sim_rank *r, int i, const struct sh_section *section);

#endif
