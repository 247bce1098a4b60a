/* The mesh over MPI: this job's ranks as named axes, a communicator for each requested group of them, and agreement
 * among all ranks.
 * Order: sh_mesh_start (once, before any other MPI call), sh_mesh_create, sh_mesh_open, ..., sh_mesh_destroy,
 * sh_mesh_stop.
 *
 * One thread at a time calls MPI. Once collectives have been started (src/comm), that is the progress thread; every
 * function here first takes MPI back for the caller, which waits until all started collectives are complete. Code that
 * calls MPI or MPI-IO itself calls sh_mesh_own_mpi() first, and then owns MPI until the next sh_comm_start().
 *
 * Exit status: after an agreed error all ranks leave through sh_mesh_stop() with the same status (the class), which
 * mpirun and srun pass on. Open MPI's mpirun adds its own lines to any status but 0; `mpirun -q` suppresses them. A job
 * stopped by sh_stop() also ends with the class, through MPI_Abort. If a rank is killed by a signal, the launcher turns
 * the signal into the job's status. */
#ifndef SH_MESH_MESH_H
#define SH_MESH_MESH_H

#include "src/base/err.h"
#include "src/mesh/shape.h"

#include <mpi.h>
#include <stdbool.h>

/* Have sh_mesh_start() call this before it starts MPI: for a library that must come first. There is room for one such
 * call. */
void sh_mesh_before_start(sh_rc (*call)(void));

/* Start MPI (serialized threads) with the environment that Sherd needs, and make sh_stop() take the whole job down. A
 * job whose launcher and MPI do not match (N singletons instead of N ranks) is refused with the cure. Call
 * sh_mesh_stop() afterwards even if this fails. Collective over the job. */
sh_rc sh_mesh_start(int *argc, char ***argv);
void sh_mesh_stop(void); /* MPI_Finalize; collective */

/* Whether the MPI library lets threads take turns in calling it (MPI_THREAD_SERIALIZED). After sh_mesh_start; local. */
bool sh_mesh_threads_may_call(void);

/* SH_E_USAGE when a launcher's variables (SLURM_STEP_NUM_TASKS, PMI_SIZE, ...) say that more ranks were started than
 * the one that MPI sees. Only the first of these ranks keeps the text, so that a job says it once. Part of
 * sh_mesh_start; local. */
sh_rc sh_mesh_launch_check(int world);

/* The border to MPI: any code except MPI_SUCCESS becomes SH_E_COMM with the call and MPI's own message. Local.
 *   SH_MPI(MPI_Bcast(...)); */
#define SH_MPI(call) SH_TRY(sh_mesh_mpi_check(__FILE__, __LINE__, #call, (call)))
sh_rc sh_mesh_mpi_check(const char *file, int line, const char *call, int mpi_rc);

/* From here on, calls on this communicator return their errors. Local. Errors: SH_E_COMM. */
sh_rc sh_mesh_return_errors(MPI_Comm comm);

/* The MPI that was loaded, in its own words: "MPICH Version: 5.0.2". Local; before MPI is started, too. */
enum { SH_MESH_LIBRARY = 80 };
void sh_mesh_library(char text[SH_MESH_LIBRARY]);

/* Make the calling thread the only caller of MPI (see above). No effect if it already is. Local. */
void sh_mesh_own_mpi(void);

/* For src/comm: the function that takes MPI back; NULL when there is nobody to take it from. */
void sh_mesh_own_mpi_hook(void (*take)(void *arg), void *arg);

/* clang-format off */
struct sh_mesh {
    struct sh_mesh_shape shape;
    int rank, world;
    int node, n_nodes;            /* this rank's node; nodes in the job */
    int node_rank, node_size;     /* this rank's place on its node, and the ranks there, as MPI found them */
    char host[64];
    struct sh_mesh_group {
        sh_group axes;
        MPI_Comm comm;            /* members in the order of their places */
    } *groups;                    /* those that are open */
    int n_groups, cap_groups;
};
/* clang-format on */

/* This rank and the number of ranks of the job; a process that never starts MPI is one rank. Local. */
void sh_mesh_world(int *rank, int *world);

/* Number of ranks on this node and on the smallest node, before the mesh is known (threads, memory limits).
 * Collective. */
sh_rc sh_mesh_nodes(int *node_rank, int *node_size, int *smallest);

/* How many ranks on this node, this one included, gave the same value (for instance the cores they may run on).
 * Collective. */
sh_rc sh_mesh_alike_on_node(unsigned long long value, int *alike);

/* Replace words[n] by the bitwise or of the words that the ranks of this node gave. Collective. */
sh_rc sh_mesh_or_on_node(uint64_t *words, int n);

/* Create the mesh. Collective over the job. req->ranks_per_node 0: nodes as MPI finds them. Errors: those of
 * sh_mesh_shape_make; agreed. */
sh_rc sh_mesh_create(const struct sh_mesh_request *req, struct sh_mesh **out);
void sh_mesh_destroy(struct sh_mesh *mesh); /* collective */

/* Make the communicator of a group, once. Collective over the group; all ranks open the same ones in the same order. */
sh_rc sh_mesh_open(struct sh_mesh *mesh, sh_group group);

/* The communicator of an open group; MPI_COMM_NULL: it is not open. Local. */
MPI_Comm sh_mesh_comm(const struct sh_mesh *mesh, sh_group group);

/* All ranks learn the class of the lowest failing rank, SH_OK when none failed. Only that rank keeps its text (with
 * "rank N: " in front when the job has more than one rank); the others' text is cleared. An agreed failure may be
 * agreed on again. Collective over the job. */
sh_rc sh_agree(sh_rc rc);

/* Print the agreed error once for the job (by the rank that has the text) and return the exit status. Collective; a
 * job that fails ends with this status in any case, within minutes, even if a rank never comes. */
int sh_mesh_report(sh_rc rc);

/* The work is done, and only closing is left: if that takes longer than `seconds` (0: some minutes), on this rank or on
 * others, the job ends with `status` all the same. Local; from here to the end of the process. */
void sh_mesh_end_within(double seconds, sh_rc status);

/* What has been closed so far took its time; the rest has the whole time again. Local. */
void sh_mesh_end_goes_on(void);

/* This rank has closed everything and only waits for others: part of sh_mesh_report. A failure gets a limit if there is
 * none; after a success others may still be at work. Local. */
void sh_mesh_end_waits(sh_rc status);

/* All ranks of the job are done, and only MPI_Finalize is left: if the library does not come back from it within 20
 * seconds, and a second more for each 50 ranks, this process ends with the status of the report. Local. */
void sh_mesh_end_finalizes(int ranks);

/* End the job, from any thread: what sh_stop() does once MPI is up. May return. Local. */
void sh_mesh_abort(int exit_status);

/* Whether that may call MPI: between MPI_Init and MPI_Finalize. Otherwise it does nothing. Local. */
void sh_mesh_abort_by_mpi(bool is_up);

/* How long the functions from here on wait for other ranks before they name the missing ones and stop the job with
 * SH_E_COMM; 0 (the default): for ever. Set it around work that must not take long: a training step, not a save.
 * Local. */
void sh_mesh_timeout(double seconds);

/* Let those functions wait inside MPI while no limit is set: for a library in which each test of a request is
 * expensive. Off by default: ranks test and sleep in between, and leave their cores to others. Local. */
void sh_mesh_wait_in_mpi(bool yes);
bool sh_mesh_waits_in_mpi(void); /* now: asked for, and no limit is set */

/* Read what ranks that waited said to each other in time for nobody: MPI must not be ended with messages on their
 * way (MPICH 5 then lets one rank go and leaves the others in MPI_Finalize). Part of sh_mesh_stop. Collective over
 * the job. */
sh_rc sh_mesh_hear_all(void);

/* Wait for a request of a collective over all ranks, under the same limit. */
sh_rc sh_mesh_wait(MPI_Request *request);

/* Wait for a message to or from one rank, under the same limit. */
sh_rc sh_mesh_wait_for(int rank, MPI_Request *request);

/* Small host-side helpers, collective over the job, outside of program runs. They, sh_agree() and sh_mesh_barrier()
 * need no MPI for one rank. The functions without a return value stop the job when MPI fails, since peers wait in
 * the same call. */
sh_rc sh_mesh_bcast(void *data, long bytes, int root);
sh_rc sh_mesh_max(double *values, int n);
sh_rc sh_mesh_sum_i64(long long *values, int n);
/* Gather each rank's `bytes`, one after the other: all [world][bytes] on rank 0, unused elsewhere. A tree, so that rank
 * 0 handles O(log world) messages. */
sh_rc sh_mesh_gather(const void *mine, int bytes, void *all);
bool sh_mesh_same(unsigned long long hash); /* true on all ranks when all gave the same value */
void sh_mesh_barrier(void);

/* Ask other ranks, or this one, for data that they alone can find, and give them what they ask for, until all ranks have
 * everything. A rank has a few pieces under way at a time, so any number of asks takes little memory.
 *   give  fill `out` with what a rank asked for; take: what this rank asked for is there. Neither calls MPI
 * Collective over the job. */
enum { SH_MESH_TRADE_BYTES = 1 << 22 };
struct sh_mesh_ask {
    int rank;
    int64_t what[3]; /* understood by give() of that rank */
    int64_t bytes;   /* at most SH_MESH_TRADE_BYTES */
};
struct sh_mesh_trade {
    const struct sh_mesh_ask *ask;
    int64_t n;
    void (*give)(void *arg, const int64_t what[3], int64_t bytes, void *out);
    void (*take)(void *arg, int64_t ask, const void *data);
    void *arg;
};
sh_rc sh_mesh_trade(const struct sh_mesh_trade *t);

/* Each rank sends to one rank and receives from one; the numbers of bytes may differ between pairs. Collective over the
 * job. */
sh_rc sh_mesh_shift(const void *out, int64_t out_bytes, int to, void *in, int64_t in_bytes, int from);

/* Test every open group with known values: gradient = function of the rank. Takes milliseconds. Collective.
 * Errors: SH_E_COMM naming group, expected and found. */
sh_rc sh_mesh_self_test(const struct sh_mesh *mesh);

#endif
