/* Collectives among simulated ranks; simulate.h says how unkind they are. Operations are named by their index in the
 * program of the rank; all belong to the section that runs.
 *
 * A meeting is where the ranks of a group come together: the collectives at one place of their queues, of one stream over
 * that group. What a rank asks about others is counted there, so that many ranks cost what they do and no more. */
#ifndef SH_TESTS_UNIT_SIMULATE_COLL_H
#define SH_TESTS_UNIT_SIMULATE_COLL_H

#include "tests/unit/simulate.h"

enum { SIM_POISON = 0xff }; /* each byte: NaN in every float type, -1 in integers */

struct sim_member {
    int rank, op, after; /* after: SH_NONE or another operation of the rank */
};

struct sim_meeting {
    enum sh_op_kind kind;
    int64_t bytes;             /* of what each of them receives */
    int size, started;         /* ranks */
    struct sim_member *member; /* [size] in the order of the group; NULL: nobody meets here */
    int looked_at;             /* members that wait for nothing before */
    bool complete;
    char *all; /* what all of them receive, once it is complete; NULL: each something else */
};

/* A collective from its start to the end of the section. */
struct sim_flight {
    struct sim_meeting *meeting;
    bool started, waited;
    char *sent;         /* until the meeting is complete */
    uint64_t sent_hash; /* of it */
    int64_t sent_bytes;
    char *received; /* where the meeting has not one for all */
};

/* Find out who meets whom in a section, which all ranks are about to run; and forget it. */
void sim_meetings_open(struct sim *s, int section);
void sim_meetings_close(struct sim *s);

/* Keep what is sent, and poison what will be received; a part sent from its own place stays. */
void sim_coll_start(struct sim_rank *r, int i);

/* Whether everyone whom collective i needs has started it, and what must be complete before can be so. */
bool sim_coll_can_complete(const struct sim *s, const struct sim_rank *r, int i);

/* Hand out the result, unless another collective under way goes on with it. It can complete. */
void sim_coll_finish(struct sim_rank *r, int i, const struct sh_section *section);

#endif
