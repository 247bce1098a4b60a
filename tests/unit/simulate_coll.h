/* Collectives among simulated ranks; simulate.h says how unkind they are. Operations are identified by their index in
 * the program of the rank; all belong to the running section.
 *
 * A meeting is where the ranks of a group come together: the collectives at one place of their queues, of one stream
 * over that group. The meeting counts what a rank needs to know about the others, so the cost of many ranks is only
 * that of the work that they do. */
#ifndef SH_TESTS_UNIT_SIMULATE_COLL_H
#define SH_TESTS_UNIT_SIMULATE_COLL_H

#include "tests/unit/simulate.h"

enum { SIM_POISON = 0xff }; /* each byte: NaN in every float type, -1 in integers */

struct sim_member {
    int rank, op, after; /* after: SH_NONE or another operation of the rank */
};

struct sim_meeting {
    enum sh_op_kind kind;
    int64_t bytes;             /* that each member receives */
    int size, started;         /* ranks */
    struct sim_member *member; /* [size] in the order of the group; NULL: nobody meets here */
    int looked_at;             /* members that do not wait for anything earlier */
    bool complete;
    char *all; /* what all members receive, once it is complete; NULL: each member receives something different */
};

/* A collective from its start to the end of the section. */
struct sim_flight {
    struct sim_meeting *meeting;
    bool started, waited;
    char *sent;         /* until the meeting is complete */
    uint64_t sent_hash; /* of it */
    int64_t sent_bytes;
    char *received; /* if the meeting does not have one result for all */
    int32_t *parts; /* of an exchange of rows, at its start */
    char *before;   /* what its result held then; poison if that does not count */
};

/* Find out who meets whom in a section, which all ranks are about to run; discard that information. */
void sim_meetings_open(struct sim *s, int section);
void sim_meetings_close(struct sim *s);

/* Keep the data that is sent, and poison the memory that will receive; a part sent from its own place is kept. */
void sim_coll_start(struct sim_rank *r, int i);

/* Whether all ranks that collective i needs have started it, and the collectives that must complete first
 * can complete. */
bool sim_coll_can_complete(const struct sim *s, const struct sim_rank *r, int i, const struct sh_section *section);

/* Hand out the result, unless another collective under way continues with it. The collective must be able
 * to complete. */
void sim_coll_finish(const struct sim *s, struct sim_rank *r, int i, const struct sh_section *section);

#endif
