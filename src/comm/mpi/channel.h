/* Internal to the mpi backend: a channel (one stream over one group), and the algorithms that run a collective on it.
 * Only the progress thread touches a channel, except its queue, which the lock of struct sh_comm guards. */
#ifndef SH_COMM_CHANNEL_H
#define SH_COMM_CHANNEL_H

#include "src/comm/backend.h"

enum { SH_DIRECT_ROUNDS = 2 }; /* rounds of the direct algorithm in flight: one is summed while the next one arrives */

/* A stretch of the collective that is exchanged in one go. */
struct sh_direct_round {
    int64_t index; /* rounds of one slot are SH_DIRECT_ROUNDS apart */
    enum { SH_ROUND_IDLE, SH_ROUND_SCATTER, SH_ROUND_GATHER } phase;
    MPI_Request *request; /* [2 * (size - 1)] */
    int n_requests;
    char *staging; /* [size - 1][stage_bytes] */
};

struct sh_direct {
    int64_t part_elems; /* of one rank in one round */
    int64_t rounds;
    struct sh_direct_round round[SH_DIRECT_ROUNDS];
};

struct sh_levels;
struct sh_part_extent;

/* clang-format off */
struct sh_channel {
    int stream;
    sh_group group;
    MPI_Comm comm;           /* MPI_COMM_NULL when size == 1 */
    int rank, size;          /* in the group */

    int64_t first, last;     /* queue of tickets; first == 0: empty */
    int64_t entered;         /* collectives started so far, the running one included */
    int64_t current;         /* ticket of the running one; 0: none */
    int64_t start_ns;        /* when the running one started */

    const struct sh_comm *c;
    struct sh_coll coll;     /* the running one */
    void *done;              /* of the running one: the event of its completion; NULL: algo tells */
    const struct sh_algo *algo;
    int64_t stage_bytes;     /* staging of one source in one round */
    int64_t staging_bytes;
    char *staging;
    const void **source;     /* [size]: operands of a sum, by rank */
    MPI_Request *request;    /* of all rounds */
    struct sh_direct direct;
    struct sh_part_extent *to, *from; /* [size]: the parts of an ALL_TO_ALL; NULL: there was none yet */

    const struct sh_comm_segment *segment; /* NULL: some of the ranks are outside it, or there is none */
    int *place;              /* [size]: places of the group's ranks in the segment */
    int segment_phase;
    int64_t segment_done;    /* elements of this rank's part that are summed */
    struct sh_levels *levels; /* NULL: each rank communicates for itself, not for its node */
};
/* clang-format on */

/* The first row that fits runs the collective; all ranks choose the same one, since they see the same sizes. */
struct sh_algo {
    const char *name;
    bool (*fits)(const struct sh_channel *ch, const struct sh_coll *coll);
    sh_rc (*begin)(struct sh_channel *ch);
    /* Test once what has arrived and continue from there. Waits only if channels block, and even then never for what
     * neighbours do in shared memory. *moved: anything happened. */
    sh_rc (*step)(struct sh_channel *ch, bool *moved, bool *done);
};

extern const struct sh_algo sh_algo_device; /* runs on a GPU by itself */
extern const struct sh_algo sh_algo_alone;
extern const struct sh_algo sh_algo_small;
extern const struct sh_algo sh_algo_direct;
extern const struct sh_algo sh_algo_segment;
extern const struct sh_algo sh_algo_levels;
extern const struct sh_algo sh_algo_message;

/* If channels block, messages have no turn in their channel: nobody would go on with one while the caller waits in a
 * collective, and its neighbour waits for it. All of it is under way from its start on. With the lock held, which the wait
 * releases meanwhile. Errors: SH_E_COMM. */
bool sh_channel_is_message(const struct sh_coll *coll);
sh_rc sh_channel_start_message(const struct sh_channel *ch, struct sh_comm_item *item);
sh_rc sh_channel_wait_message(struct sh_comm *c, int64_t ticket);

/* Open a channel. Collective over the group, whose communicator is duplicated. Errors: SH_E_COMM; close the channel
 * even then. */
sh_rc sh_channel_open(struct sh_channel *ch, int stream, sh_group group, const struct sh_comm *c);
void sh_channel_close(struct sh_channel *ch);

/* Use a segment for operands that lie in it, if all ranks of the channel share it. Local; the segment is lent. */
void sh_channel_set_segment(struct sh_channel *ch, const struct sh_mesh *mesh, const struct sh_comm_segment *w);

/* Choose the algorithm for ch->coll and start it. Errors: SH_E_COMM. */
sh_rc sh_channel_begin(struct sh_channel *ch);

/* Set ch->to and ch->from for ch->coll, an ALL_TO_ALL. Errors: those of sh_part_find(). */
sh_rc sh_channel_find_parts(struct sh_channel *ch);

/* Test whether a request is complete. If channels block, return only when it is. Errors: SH_E_COMM. */
sh_rc sh_channel_look(const struct sh_channel *ch, MPI_Request *request, int *arrived);

/* Of n channels, the one whose running collective started first; NULL: none is running. */
struct sh_channel *sh_channel_oldest(struct sh_channel *ch, int n);

#endif
