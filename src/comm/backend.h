/* Internal to src/comm: what all backends share, and the table that defines each of them. */
#ifndef SH_COMM_BACKEND_H
#define SH_COMM_BACKEND_H

#include "src/comm/comm.h"

#include <pthread.h>
#include <stdatomic.h>

enum { SH_COMM_ON_DEVICE = 512 }; /* collectives with a queue that may be open at once */

/* The events of a collective with a queue. A ticket owns them until the ticket SH_COMM_ON_DEVICE later takes them
 * over. */
struct sh_comm_events {
    void *ready; /* in the caller's queue: the operands are ready */
    void *begin; /* before the collective itself; the progress thread watches the collective from then on */
    void *done;  /* after it (nccl only) */
};

struct sh_stage;
struct sh_message;

/* A ticket's place in the ring. Complete when record.end_ns is set; then it may be overwritten by a later ticket. */
struct sh_comm_item {
    struct sh_coll coll;
    struct sh_coll_record record;
    int64_t next;                  /* the next ticket of the same channel; 0: none yet */
    struct sh_comm_events *events; /* NULL: operands in host memory */
    struct sh_stage *stage;        /* mpi: where the operands are in the meantime; NULL: where they were */
    struct sh_message *message;    /* mpi, if channels block: a message that is under way; else NULL */
};

struct sh_comm_ops;

struct sh_comm {
    const struct sh_comm_ops *ops;
    const struct sh_mesh *mesh;
    struct sh_comm_options opt;
    struct sh_comm_segment segment;
    bool blocks; /* inline, without a time limit: channels wait inside MPI */
    void *backend;
    void *copies;                  /* queue for copies of the mpi backend on a GPU */
    struct sh_comm_events *events; /* [SH_COMM_ON_DEVICE], NULL without a GPU */
    struct sh_stage *stages;       /* all stages */

    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t work;  /* wakes the progress thread: a collective was started, MPI is wanted back, the end */
    pthread_cond_t done;  /* wakes the caller: a collective is complete, MPI is given back */
    struct sh_comm_item *ring;
    int64_t capacity;    /* of the ring, in tickets */
    int64_t newest;      /* tickets are 1, 2, ... newest */
    int64_t oldest_open; /* all tickets before it are complete */

    _Atomic int64_t step; /* sh_comm_note */
    _Atomic(const char *) doing;
};

struct sh_comm_ops {
    const char *name;
    sh_rc (*create)(struct sh_comm *c);               /* collective */
    void (*destroy)(struct sh_comm *c);               /* collective; all tickets are complete */
    void (*start)(struct sh_comm *c, int64_t ticket); /* the ring holds the collective; called with the lock held */

    /* For backends with a queue; called without the lock, by the caller's thread. NULL: nothing to do. */
    sh_rc (*launch)(struct sh_comm *c, struct sh_comm_item *item); /* before start */
    sh_rc (*join)(struct sh_comm *c, int64_t ticket, void *queue);

    /* Work until the ticket is complete. Called with the lock held, releases it meanwhile. NULL: another thread
     * works. */
    void (*wait)(struct sh_comm *c, int64_t ticket);

    sh_rc (*available)(void);                  /* local; NULL: always */
    void (*describe)(char text[SH_COMM_TEXT]); /* sh_comm_describe(); NULL: the name */
    sh_rc (*look)(struct sh_comm *c);       /* called by the progress thread now and then: is all well? NULL: nothing to
                                               ask */
    void (*set_segment)(struct sh_comm *c); /* c->segment is there; before the first start. (opt) */
    int (*block)(const struct sh_comm *c, sh_group group); /* sh_comm_block(). (opt) */
};

extern const struct sh_comm_ops sh_comm_self;
extern const struct sh_comm_ops sh_comm_mpi;
extern const struct sh_comm_ops sh_comm_nccl; /* in builds with it */

/* The ring (record.c). All with the lock held. */
struct sh_comm_item *sh_comm_item(struct sh_comm *c, int64_t ticket);
int64_t sh_comm_push(struct sh_comm *c, const struct sh_coll *coll);
bool sh_comm_is_complete(struct sh_comm *c, int64_t ticket);
void sh_comm_set_complete(struct sh_comm *c, int64_t ticket); /* wakes the caller */
void sh_comm_wait_locked(struct sh_comm *c, int64_t ticket);  /* releases the lock while it waits */

/* Run a collective over a group of one rank, or of no elements: a copy at most, in a queue (NULL: host memory). Errors:
 * those of sh_part_find(). */
sh_rc sh_comm_run_alone(const struct sh_comm *c, const struct sh_coll *coll, void *queue);

/* Device memory (staging.c): events; and for mpi, copies of a collective's operands to pinned host memory and back. */
void sh_comm_device_open(struct sh_comm *c);
void sh_comm_device_close(struct sh_comm *c);
sh_rc sh_stage_out(struct sh_comm *c, struct sh_comm_item *item);
sh_rc sh_stage_back(struct sh_comm *c, int64_t ticket, void *queue);

#endif
