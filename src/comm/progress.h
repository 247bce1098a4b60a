/* Inside of the mpi backend: the thread that works the channels off, and the watch over stalls.
 *
 * Who calls MPI: while tickets are open, the progress thread only. When none is, it still answers questions of other ranks
 * (watch), until the caller takes MPI back; `main_owns` asks for it, `parked` says that the thread has let go. The next
 * start hands MPI over again, or sh_mpi_lend(). So there is never more than one thread in MPI.
 *
 * With inline_progress there is no such thread: MPI is the caller's always, who works the channels off in its waits and, before
 * it calls MPI for something else, until nothing is open. Questions of other ranks are answered then only. Where channels
 * block, there are none: a rank that waits inside of MPI could not answer. */
#ifndef SH_COMM_PROGRESS_H
#define SH_COMM_PROGRESS_H

#include "src/comm/channel.h"

enum { SH_DOING_MAX = 96, SH_WATCH_HOST_MAX = 32, SH_WATCH_ANSWERS = 16 };

/* Same program on all ranks, so these travel as bytes. */
struct sh_watch_ask {
    int32_t channel;
    int64_t sequence; /* the collective: its sequence number on its channel */
    int64_t told;     /* the sender is about to report and to stop the job */
};

struct sh_watch_answer {
    struct sh_watch_ask ask;
    int64_t entered; /* collectives of that channel that the rank has entered; NO_ANSWER: none came yet */
    int64_t step;
    int64_t waits; /* it has not entered that collective, but waits in another one: not the cause */
    char doing[SH_DOING_MAX];
};
enum { SH_WATCH_NO_ANSWER = -1 };

struct sh_watch {
    MPI_Comm comm;                   /* a copy of the world */
    char (*host)[SH_WATCH_HOST_MAX]; /* [world] */
    int64_t next_look_ns, next_flight_ns;
    int64_t quiet_until_ns; /* another rank reports; 0: none has said so */
    bool lower_reports;     /* and it is a lower one than this */

    /* The inquiry into one collective; channel == NULL: none. */
    struct sh_channel *channel;
    int64_t ticket, begin_ns;
    struct sh_watch_ask ask;
    struct sh_watch_answer *answer; /* [world], by world rank */

    /* Messages on their way; their buffers are theirs until they have left. */
    MPI_Request *asking; /* [world] */
    struct sh_watch_ask *asked;
    MPI_Request answering[SH_WATCH_ANSWERS];
    struct sh_watch_answer answered[SH_WATCH_ANSWERS];
};

struct sh_mpi {
    struct sh_comm *c;
    struct sh_channel *channel; /* [n_channels] one for each stream and group in use; the same on all ranks */
    int n_channels;
    struct sh_watch watch;
    pthread_t thread;
    bool started;
    bool quit, main_owns, parked; /* under c->lock */
    sh_rc failed;                 /* the caller, who waits for the end; with its text. Under c->lock */
    char failure[1024];
    int64_t idle_since_ns; /* of the progress thread: when something moved last */
};

/* The body of the thread; arg: struct sh_mpi. */
void *sh_mpi_run(void *arg);

/* Without a thread: the caller works all channels off until the ticket is complete. With the lock held. */
void sh_mpi_work_until(struct sh_mpi *m, int64_t ticket);

/* Let the progress thread have MPI while the caller is about to be in a library that waits for peers by other ways; any
 * function of mesh.h takes it back (mpi.c). */
void sh_mpi_lend(struct sh_mpi *m);

/* A failure of the caller that peers may not have, who then wait for this rank in a place that they cannot leave. Of all
 * ranks that fail at once, one says so; the job ends. The error's text is the calling thread's. */
void sh_mpi_fail(struct sh_mpi *m, sh_rc rc) __attribute__((noreturn));

/* Messages between the ranks' watches (watch.c). open and close are collective over the job; the others are called by
 * the progress thread and never wait. */
sh_rc sh_watch_open(struct sh_mpi *m);
void sh_watch_close(struct sh_mpi *m);
sh_rc sh_watch_send_ask(struct sh_mpi *m, int world_rank);
/* Reads all that has come. Questions are answered and then passed to `asked`. */
typedef sh_rc sh_watch_asked(struct sh_mpi *m, const struct sh_watch_ask *ask, int from);
sh_rc sh_watch_read(struct sh_mpi *m, sh_watch_asked *asked);

/* Look for questions, answers and collectives that take too long; fails when one does (stall.c). Cheap when called
 * often: it looks every few milliseconds only. */
sh_rc sh_stall_look(struct sh_mpi *m);

/* Whether all that is open, and comes to the front of its channel next, is done by GPUs without MPI. With the lock held. */
bool sh_mpi_only_on_device(const struct sh_mpi *m);

#endif
