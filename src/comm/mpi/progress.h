/* Internal to the mpi backend: the thread that works through the channels, and the watch for stalls.
 *
 * Who calls MPI: while tickets are open, only the progress thread. While none is, that thread still answers questions
 * of other ranks (watch), until the caller takes MPI back; `main_owns` asks for it, `parked` says that the thread has
 * let go. The next start, or sh_mpi_lend(), hands MPI over again. So there is never more than one thread in MPI.
 *
 * With inline_progress there is no such thread: MPI always belongs to the caller, which works through the channels in
 * its waits and, before it calls MPI for something else, until nothing is open. Only then are questions of other ranks
 * answered. If channels block, there are no questions: a rank that waits inside MPI could not answer. */
#ifndef SH_COMM_PROGRESS_H
#define SH_COMM_PROGRESS_H

#include "src/comm/mpi/channel.h"

enum { SH_DOING_MAX = 96, SH_WATCH_HOST_MAX = 32, SH_WATCH_ANSWERS = 16 };

/* All ranks run the same program, so these are sent as bytes. */
struct sh_watch_ask {
    int32_t channel;
    int64_t sequence; /* the collective: its sequence number on its channel */
    int64_t told;     /* the sender is about to report and stop the job */
};

struct sh_watch_answer {
    struct sh_watch_ask ask;
    int64_t entered; /* collectives of that channel that the rank has entered; NO_ANSWER: none has come yet */
    int64_t step;
    int64_t waits; /* it has not entered that collective, but waits in another one: not the cause */
    char doing[SH_DOING_MAX];
};
enum { SH_WATCH_NO_ANSWER = -1 };

struct sh_watch {
    MPI_Comm comm;                   /* a copy of the world */
    char (*host)[SH_WATCH_HOST_MAX]; /* [world] */
    int64_t next_look_ns, next_flight_ns;
    int64_t quiet_until_ns; /* another rank reports until then; 0: none has said so */
    bool lower_reports;     /* and that rank is lower than this one */

    /* The inquiry into one collective; channel == NULL: none. */
    struct sh_channel *channel;
    int64_t ticket, begin_ns;
    struct sh_watch_ask ask;
    struct sh_watch_answer *answer; /* [world], by world rank */

    /* Messages in flight; their buffers must not change until they have left. */
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
    sh_rc failed;                 /* failure of the caller, which waits for the end; with its text. Under c->lock */
    char failure[1024];
    int64_t idle_since_ns; /* of the progress thread: when something last moved */
};

/* The body of the thread; arg: struct sh_mpi. */
void *sh_mpi_run(void *arg);

/* Without a thread: the caller works through all channels until the ticket is complete. With the lock held. */
void sh_mpi_work_until(struct sh_mpi *m, int64_t ticket);

/* If channels block: a message is under way from now on, after what it follows. With the lock held. */
void sh_mpi_start_message(struct sh_mpi *m, const struct sh_channel *ch, int64_t ticket);

/* Let the progress thread have MPI while the caller is about to enter a library that waits for peers by other means;
 * any function of mesh.h takes MPI back (mpi.c). */
void sh_mpi_lend(struct sh_mpi *m);

/* Report a failure of the caller that its peers may not share; they would wait for this rank where they cannot leave.
 * If several ranks fail at once, one of them reports; the job ends. The error's text is the calling thread's. */
void sh_mpi_fail(struct sh_mpi *m, sh_rc rc) __attribute__((noreturn));

/* Messages between the ranks' watches (watch.c). open and close are collective over the job; the others are called by
 * the progress thread and never wait. */
sh_rc sh_watch_open(struct sh_mpi *m);
void sh_watch_close(struct sh_mpi *m);
sh_rc sh_watch_send_ask(struct sh_mpi *m, int world_rank);
/* Read all messages that have arrived. Questions are answered and then passed to `asked`. */
typedef sh_rc sh_watch_asked(struct sh_mpi *m, const struct sh_watch_ask *ask, int from);
sh_rc sh_watch_read(struct sh_mpi *m, sh_watch_asked *asked);

/* Look for questions, answers and collectives that take too long; fails when one does (stall.c). Cheap when called
 * often: it looks every few milliseconds only. */
sh_rc sh_stall_look(struct sh_mpi *m);

/* Whether every collective that is running, or next in its channel, is done by GPUs without MPI. With the lock held. */
bool sh_mpi_only_on_device(const struct sh_mpi *m);

#endif
