/* Collectives on channels: ordered queues that run alongside the computation.
 *
 * A channel is a stream of the program over a group of ranks, with its own communicator, so that channels never wait
 * for each other. There is exactly one for each stream and group that the program names. Collectives of one channel run
 * in the order in which they were started, which is the same on all ranks.
 * Backends: `self` (one rank: nothing is sent), `mpi` (a progress thread works through the queues) and `nccl` (between
 * GPUs).
 * Order: create, { start, wait or join } ..., destroy. These are called by one thread.
 *
 * Operands lie in host memory or on a GPU. Operands on a GPU come with the queue that produces them: the collective
 * runs after the work that is in the queue at the start, and sh_comm_join() makes later work in the queue wait for the
 * result; the host continues. nccl sends from GPU to GPU, and leaves operands in host memory to mpi; mpi copies
 * operands on a GPU through pinned host memory, for which the host waits in the join.
 *
 * From the first start on the progress thread is the only caller of MPI, until any function of mesh.h takes MPI back
 * (sh_mesh_own_mpi: waits for all tickets). Code that calls MPI or HDF5 by itself calls sh_mesh_own_mpi() first.
 *
 * A collective that takes longer than timeout_seconds stops the job: its ranks are asked what they are doing, one line
 * names those that have not entered it and what they say they are doing (sh_comm_note), or "no answer" after two
 * seconds, and each rank that can writes its newest records to report_dir/rank-N.flight.txt. A rank answers while it
 * computes between collectives; one that has taken MPI back (a checkpoint, sh_agree) or is itself stopped does not. */
#ifndef SH_COMM_COMM_H
#define SH_COMM_COMM_H

#include "src/base/number/dtype.h"
#include "src/base/err.h"
#include "src/device/device.h"
#include "src/mesh/mesh.h"
#include "src/program/program.h"

#include <stdint.h>

struct sh_comm;

/* Groups of more ranks than this communicate in two levels: through memory within a node, and between nodes by messages
 * that each serve a whole node. */
enum { SH_COMM_LEVELS_ABOVE = 32 };
/* If a rank's part is at most this large, MPI's own all-gather carries gathers and, between CPUs, the operands of
 * all_reduces; its all-to-all carries equal parts. */
enum { SH_COMM_SMALL_BYTES = 4 << 10 };

struct sh_comm_options {
    double
        timeout_seconds; /* a collective that takes longer stops the job with SH_E_COMM and a report of who is missing;
                            0: no limit */
    int history;         /* collectives kept for that report */
    const char *report_dir;            /* where rank-N.flight.txt goes; NULL: standard error only */
    const struct sh_device *device;    /* open; the device on which operands with a queue lie. NULL: there are none */
    const struct sh_group_use *groups; /* [n_groups] that are open in the mesh; they outlive the channels */
    int n_groups;
    const struct sh_stream *streams; /* [n_streams] those of the program, which outlives the channels too */
    int n_streams;
    const struct sh_program
        *program;         /* nccl runs each of its collectives once in create, because it takes memory when it
                                         first uses an algorithm. NULL: one element on each channel instead */
    const char *backend;  /* NULL or "auto": nccl between GPUs if available, else mpi; "mpi", "nccl" */
    bool inline_progress; /* collectives advance only in sh_comm_wait(), in the caller's thread; CPUs. Without a time
                             limit they run one by one, in the order of their start on all channels, which must be the
                             same on all their ranks: the caller waits inside MPI, from then on in sh_agree() too; only a
                             group that communicates in two levels polls memory. Messages are under way from their start
                             on, so that two ranks may send to each other first */
    bool share_gpu;       /* ranks of a node share a GPU: for tests; NCCL is told that each rank is a separate host */
    int ranks_per_node;   /* neighbouring ranks that can share memory: an error if they cannot; 0: none can, so that
                             everything goes by message */
    int levels_above;     /* for tests: replaces SH_COMM_LEVELS_ABOVE; 0: does not */
    int nccl_max_ctas;    /* blocks of a GPU that one collective of NCCL may take; 0: NCCL's default */
};

/* Memory shared by this rank and its neighbours on the node, as this rank has mapped it (struct sh_segment of
 * src/program): [base, peers) holds what groups of ranks have in common, then comes a part for each rank. */
struct sh_comm_segment {
    char *base, *peers;
    int64_t peer_bytes; /* of each rank's part */
    int ranks, rank;    /* neighbours in the job; this rank's place among them */
};

/* The parts of an ALL_TO_ALL, if they are not equal: rank i has rows[i][j] rows of row_elems elements for rank j, or none.
 * They lie end to end in the order of the group, without gaps, unless `at` says otherwise. All ranks have all numbers, as
 * one all_gather makes them, so that no rank can expect other parts than come.
 * The numbers are in host memory and read when the collective begins: they may be the result of `after`. If the operands
 * have a queue they are read at the start, so that the host must know them by then. A number that does not fit ends the
 * job with SH_E_BUG before anything is sent. If no rank has rows, none sends or waits.
 * Rows may have a home, an operand in which the parts of a rank lie in the order of the group, but with gaps, and begin
 * at the rows at[i][j]; `at` of a part without rows is not looked at. The home is send, or recv if the rows go back: then
 * rank j sends to i the rows[i][j] rows that it once got, which lie end to end by i in its send. With `others` the rows of a
 * rank for itself keep their place in recv, but are not copied there.
 *
 * Or the parts are those of two ways to cut one array: rank i has elements [i count, (i + 1) count) of it in send, and gets
 * [cuts[i], cuts[i + 1]) in recv; or back. Elements outside all cuts stay where they are.
 *
 * Or, with `sharers`, ranks give each other what each has made: of every run of so many ranks in the order of the group, place
 * i has [cuts[i], cuts[i + 1]), and all of the run get it. In place. */
struct sh_coll_parts {
    const int64_t *cuts; /* [size + 1], or [sharers + 1], in place of rows; NULL: they are counted */
    int sharers;         /* a divisor of size; 0: see above */
    const int32_t *rows; /* [size][size] */
    const int32_t *at;   /* [size][size]; NULL: parts lie end to end at home too */
    bool back, others;
    int64_t row_elems;
    int64_t send_room, recv_room; /* elements for which there is room; equal on all ranks, except with cuts */
};

/* clang-format off */
struct sh_coll {
    enum sh_op_kind kind;   /* ALL_GATHER: recv = all shards; in place when send == recv + index*count
                               REDUCE_SCATTER: send [size*count] -> recv [count]; sum in a binary tree
                               over the ranks of the group (sum.h); nccl sums in its own order
                               ALL_REDUCE: recv [count] in place; the same sum, same bits on every rank of the group
                               ALL_TO_ALL: send [size*count], a part for each rank -> recv [size*count], the parts from
                               each; or as `parts` says. In place only with sharers; what recv holds outside the parts is left alone
                               SEND, RECEIVE: `count` elements to or from one member. On one stream a rank sends to one
                               member only, or receives from one only, and the other side does so as often and with the
                               same counts; mpi, operands in host memory */
    int stream;
    sh_group group;         /* named in the options with this stream */
    enum sh_dtype dtype;    /* ALL_GATHER, ALL_TO_ALL any; reductions f32, f64, bf16. bf16 is summed in f32 and
                               rounded once, except that nccl rounds each addition to bf16 */
    const void *send;
    void *recv;
    int peer;               /* SEND, RECEIVE: the other's place in the group */
    int64_t count;          /* elements of one rank's part; with `parts`, the most that a part has, equal on all ranks */
    const struct sh_coll_parts *parts; /* like the buffers, unchanged until it is complete; NULL: all are equal */
    int64_t after;          /* ticket that must be complete before this one starts; 0: none */
    void *queue;            /* of the device, if send and recv lie there; NULL: they are in host memory */
    const char *label;      /* for reports and traces; must outlive the job */
};
/* clang-format on */

struct sh_coll_record { /* what happened, for traces and the flight recorder */
    int64_t ticket;
    enum sh_op_kind kind;
    int stream;
    sh_group group;
    int64_t bytes; /* of one rank's part; the most that one may have, if they are not equal */
    const char *label;
    int64_t posted_ns, start_ns, end_ns; /* sh_now_ns(); 0: not yet */
};

/* Choose `self` for one rank, else the backend that opt->backend names. Mesh, device and report_dir must outlive it.
 * Collective over the job.
 * Errors: SH_E_COMM; SH_E_USAGE for a backend that is not available.
 * Memory: up to 8 MiB for each channel that carries reductions, part of it shared with the node if the channel
 * communicates in two levels; none grows later. With mpi on GPUs also pinned buffers as large as the operands in flight
 * at once, allocated in the first step; with nccl what NCCL takes. */
sh_rc sh_comm_create(const struct sh_mesh *mesh, const struct sh_comm_options *opt, struct sh_comm **out);
void sh_comm_destroy(struct sh_comm *c); /* collective; all tickets waited for */
const char *sh_comm_name(const struct sh_comm *c);
/* The same for people: "nccl 2.29.7, ports fail over". Returns text. */
enum { SH_COMM_TEXT = 128 };
const char *sh_comm_describe(const struct sh_comm *c, char text[SH_COMM_TEXT]);
const char *sh_comm_group_name(const struct sh_comm *c, sh_group group); /* the group must be named */
int sh_comm_group_size(const struct sh_comm *c, sh_group group);
int sh_comm_place(const struct sh_comm *c, sh_group group); /* this rank's in the group */

/* How many neighbouring ranks of a named group communicate with the others as one (SH_COMM_LEVELS_ABOVE); 1: each for
 * itself. Local. */
int sh_comm_block(const struct sh_comm *c, sh_group group);

/* From now on collectives whose buffers lie in the segment work in place: an all_gather in the common part is a
 * barrier, reductions of a rank's part read its peers' parts at the same offset. Collective; between create and the
 * first start. */
void sh_comm_set_segment(struct sh_comm *c, const struct sh_comm_segment *w);

/* Queue a collective; the caller must not touch the buffers until it is complete. Returns a ticket > 0. Collective over
 * the group: each rank starts the same ones in the same order. */
sh_rc sh_comm_start(struct sh_comm *c, const struct sh_coll *coll, int64_t *ticket);

/* Return when the ticket is complete. Local. Errors do not return: a stalled or failed collective stops the job. */
sh_rc sh_comm_wait(struct sh_comm *c, int64_t ticket);

/* Make work that is put into the queue from now on wait for the ticket of a collective that was started with a queue.
 * Call it once per ticket. Errors: as above. */
sh_rc sh_comm_join(struct sh_comm *c, int64_t ticket, void *queue);

/* The record of a ticket while it is among the newest `history` ones; false: too old. Local. */
bool sh_comm_record(struct sh_comm *c, int64_t ticket, struct sh_coll_record *out);

/* What this rank is doing now, for the report of a stall of another rank ("step 12 forward layers.3 attention").
 * The text must stay valid; cheap (one pointer store). */
void sh_comm_note(struct sh_comm *c, int64_t step, const char *doing);

/* Write the newest records to report_dir/rank-N.flight.txt, for failures that sh_comm does not see itself; no effect
 * without a report_dir. Best effort: a report that cannot be written is not an error. Local. */
void sh_comm_write_flight(struct sh_comm *c);

#endif
