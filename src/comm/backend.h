/* Inside of src/comm: what all backends share, and the table that each one is. */
#ifndef SH_COMM_BACKEND_H
#define SH_COMM_BACKEND_H

#include "src/comm/comm.h"

#include <pthread.h>
#include <stdatomic.h>

/* A ticket's place in the ring. Complete when record.end_ns is set; then it may be overwritten by a later ticket. */
struct sh_comm_item {
    struct sh_coll coll;
    struct sh_coll_record record;
    int64_t next; /* the ticket behind it in the same channel; 0: none yet */
};

struct sh_comm_ops;

struct sh_comm {
    const struct sh_comm_ops *ops;
    const struct sh_mesh *mesh;
    struct sh_comm_options opt;
    struct sh_comm_segment segment;
    void *backend;

    pthread_mutex_t lock;   /* guards what follows */
    pthread_cond_t work;    /* to the progress thread: a collective was started, MPI is asked back, the end */
    pthread_cond_t done;    /* to the caller: a collective is complete, MPI is given back */
    struct sh_comm_item *ring;
    int64_t capacity;       /* of the ring, in tickets */
    int64_t newest;         /* tickets are 1, 2, ... newest */
    int64_t oldest_open;    /* all tickets before it are complete */

    _Atomic int64_t step;   /* sh_comm_note */
    _Atomic(const char *) doing;
};

struct sh_comm_ops {
    const char *name;
    sh_rc (*create)(struct sh_comm *c);               /* collective */
    void (*destroy)(struct sh_comm *c);               /* collective; all tickets are complete */
    void (*start)(struct sh_comm *c, int64_t ticket); /* the ring holds the collective; called with the lock held */
    void (*set_segment)(struct sh_comm *c);            /* c->segment is there; before the first start. (opt) */
};

extern const struct sh_comm_ops sh_comm_self;
extern const struct sh_comm_ops sh_comm_mpi;

/* The ring (record.c). All with the lock held. */
struct sh_comm_item *sh_comm_item(struct sh_comm *c, int64_t ticket);
int64_t sh_comm_push(struct sh_comm *c, const struct sh_coll *coll);
bool sh_comm_is_complete(struct sh_comm *c, int64_t ticket);
void sh_comm_set_complete(struct sh_comm *c, int64_t ticket); /* wakes the caller */

/* The collective on an axis of one rank, or of no elements: a copy at most. */
void sh_comm_run_alone(const struct sh_coll *coll);

#endif
