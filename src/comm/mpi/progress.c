#include "src/comm/mpi/progress.h"

#include "src/base/time.h"

#include <sched.h>
#include <time.h>

/* Ranks often share cores with each other and with the threads that compute. A thread that spins takes time from the
 * very work that it waits for, so it yields for a moment (small collectives complete then) and after that sleeps,
 * longer and longer. The moment is several times what a part of a large collective takes: with 30 us instead of 100 us,
 * 4 MiB through Open MPI's shared memory took 2300 us instead of 420 us on two busy cores. Collectives between GPUs do
 * not wait for this thread: it only watches, and each look takes a lock of the driver that launches need too. */
enum {
    YIELD_NS = 100 * 1000,
    SLEEP_MIN_NS = 20 * 1000,
    SLEEP_MAX_NS = 200 * 1000,
    YIELDS = 16,                /* if channels block: looks at shared memory before the caller sleeps between them */
    IDLE_NS = 20 * 1000 * 1000, /* between looks for questions of other ranks when nothing is in flight */
};

/* With the lock held; a new collective wakes it early. */
static void sleep_until_work(struct sh_comm *c, int64_t ns)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    at.tv_nsec += (long)ns;
    at.tv_sec += at.tv_nsec / 1000000000;
    at.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&c->work, &c->lock, &at);
}

static bool any_open(const struct sh_comm *c)
{
    return c->oldest_open <= c->newest;
}

/* Let go of MPI while nothing is open and the caller wants it. False: quit. With the lock held. */
static bool park(struct sh_mpi *m)
{
    struct sh_comm *c = m->c;
    while (!any_open(c) && m->main_owns && !m->quit) {
        m->parked = true;
        pthread_cond_broadcast(&c->done);
        pthread_cond_wait(&c->work, &c->lock);
    }
    return !m->quit;
}

/* The head of a queue becomes the running collective of its channel once the one that it follows is complete. */
static bool pick(struct sh_mpi *m, struct sh_channel *ch)
{
    struct sh_comm *c = m->c;
    if (ch->current != 0 || ch->first == 0)
        return false;
    struct sh_comm_item *item = sh_comm_item(c, ch->first);
    if (!sh_comm_is_complete(c, item->coll.after))
        return false;
    if (item->events != NULL && !c->opt.device->event_is_done(item->events->begin))
        return false;
    ch->current = ch->first;
    ch->first = item->next;
    ch->entered++;
    ch->coll = item->coll;
    ch->done = item->events != NULL && item->stage == NULL ? item->events->done : NULL;
    ch->start_ns = item->record.start_ns = sh_now_ns();
    return true;
}

/* Collectives on a GPU are timed by its own clock. */
static void take_times(const struct sh_device *device, struct sh_comm_item *item)
{
    item->record.start_ns = device->event_ns(item->events->begin);
    item->record.end_ns = item->record.start_ns + device->event_span_ns(item->events->begin, item->events->done);
}

/* Wakes any thread that waits for the ticket. */
static void finish(struct sh_mpi *m, struct sh_channel *ch)
{
    pthread_mutex_lock(&m->c->lock);
    sh_comm_set_complete(m->c, ch->current);
    if (ch->done != NULL)
        take_times(m->c->opt.device, sh_comm_item(m->c, ch->current));
    pthread_mutex_unlock(&m->c->lock);
    ch->current = 0;
}

/* One step of one channel: start what may start, or drive what runs. The lock is not held during a step, so that
 * collectives can be started meanwhile. */
static sh_rc advance(struct sh_mpi *m, struct sh_channel *ch, bool *moved)
{
    pthread_mutex_lock(&m->c->lock);
    bool fresh = pick(m, ch);
    pthread_mutex_unlock(&m->c->lock);
    if (fresh) {
        *moved = true;
        SH_TRY(sh_channel_begin(ch));
    }
    if (ch->current == 0)
        return SH_OK;
    bool done = false;
    SH_TRY(ch->algo->step(ch, moved, &done));
    if (done)
        finish(m, ch);
    return SH_OK;
}

/* Each channel in turn, so that a large collective on one does not hold up the others. */
static sh_rc advance_all(struct sh_mpi *m, bool *moved)
{
    for (int i = 0; i < m->n_channels; i++)
        SH_TRY(advance(m, &m->channel[i], moved));
    return sh_stall_look(m);
}

/* Launched by the device's own library: MPI has no part in it. */
static bool is_on_device(const struct sh_comm_item *item)
{
    return item->events != NULL && item->stage == NULL;
}

bool sh_mpi_only_on_device(const struct sh_mpi *m)
{
    for (int i = 0; i < m->n_channels; i++) {
        const struct sh_channel *ch = &m->channel[i];
        if (ch->current != 0 && !is_on_device(sh_comm_item(m->c, ch->current)))
            return false;
        if (ch->first != 0 && !is_on_device(sh_comm_item(m->c, ch->first)))
            return false;
    }
    return true;
}

/* Nothing moved. With the lock held. */
static void back_off(struct sh_mpi *m)
{
    int64_t idle = sh_now_ns() - m->idle_since_ns;
    if (!any_open(m->c)) {
        sleep_until_work(m->c, IDLE_NS);
    } else if (sh_mpi_only_on_device(m)) {
        sleep_until_work(m->c, SLEEP_MAX_NS);
    } else if (idle < YIELD_NS) {
        pthread_mutex_unlock(&m->c->lock);
        sched_yield();
        pthread_mutex_lock(&m->c->lock);
    } else {
        int64_t ns = idle / 4;
        ns = ns < SLEEP_MIN_NS ? SLEEP_MIN_NS : ns;
        sleep_until_work(m->c, ns < SLEEP_MAX_NS ? ns : SLEEP_MAX_NS);
    }
}

/* All channels once, then a pause if nothing moved. With the lock held, which is released meanwhile. */
static void work(struct sh_mpi *m)
{
    struct sh_comm *c = m->c;
    bool moved = false;
    pthread_mutex_unlock(&c->lock);
    sh_rc rc = advance_all(m, &moved);
    if (rc != SH_OK)
        sh_stop(rc); /* the caller waits, and its peers are in collectives: there is nobody to return to */
    pthread_mutex_lock(&c->lock);
    if (moved)
        m->idle_since_ns = sh_now_ns();
    else
        back_off(m);
}

/* The thread's body: it works while there is work, then backs off, and parks when the main thread wants MPI. */
void *sh_mpi_run(void *arg)
{
    struct sh_mpi *m = arg;
    struct sh_comm *c = m->c;
    if (c->events != NULL)
        c->opt.device->attach();
    pthread_mutex_lock(&c->lock);
    while (park(m))
        work(m);
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* The channel that runs a ticket, or has it next in its queue. */
static struct sh_channel *channel_of(const struct sh_mpi *m, int64_t ticket)
{
    int i = 0;
    while (m->channel[i].current != ticket && m->channel[i].first != ticket)
        i++;
    return &m->channel[i];
}

/* If channels block, there is only one reason that nothing moved: it is up to neighbours who share memory
 * (algo_levels.c), and MPI cannot wait for those. Looks are counted instead of timed, since the clock of a simulated
 * job may stand still. */
static void pause_between_looks(int idle)
{
    if (idle <= YIELDS)
        sched_yield();
    else
        nanosleep(&(struct timespec){.tv_nsec = SLEEP_MIN_NS}, NULL);
}

/* With the lock held, which is released meanwhile. */
static void run_to_end(struct sh_mpi *m, int64_t ticket)
{
    struct sh_comm *c = m->c;
    struct sh_channel *ch = channel_of(m, ticket);
    sh_rc rc = SH_OK;
    int idle = 0;
    while (rc == SH_OK && !sh_comm_is_complete(c, ticket)) {
        bool moved = false;
        pthread_mutex_unlock(&c->lock);
        rc = advance(m, ch, &moved);
        idle = moved ? 0 : idle + 1;
        if (idle > 0)
            pause_between_looks(idle);
        pthread_mutex_lock(&c->lock);
    }
    if (rc != SH_OK)
        sh_stop(rc);
}

/* The first ticket from the oldest one on that is open and no message; there is one. */
static int64_t oldest_collective(struct sh_comm *c)
{
    int64_t ticket = c->oldest_open;
    while (sh_comm_is_complete(c, ticket) || sh_comm_item(c, ticket)->message)
        ticket++;
    return ticket;
}

/* Wait for a message, which neighbours may start in another order; or run the oldest collective to its end. All ranks start
 * collectives in one order, so none waits here for a rank that waits in a later one. With the lock held, which is released
 * meanwhile. */
static void work_off(struct sh_mpi *m, int64_t ticket)
{
    struct sh_comm *c = m->c;
    sh_rc rc = SH_OK;
    if (sh_comm_item(c, ticket)->message) {
        rc = sh_channel_wait_message(c, ticket);
    } else {
        ticket = oldest_collective(c);
        sh_mpi_work_until(m, sh_comm_item(c, ticket)->coll.after);
        run_to_end(m, ticket);
    }
    if (rc != SH_OK)
        sh_stop(rc);
}

void sh_mpi_start_message(struct sh_mpi *m, const struct sh_channel *ch, int64_t ticket)
{
    struct sh_comm_item *item = sh_comm_item(m->c, ticket);
    sh_rc rc;
    sh_mpi_work_until(m, item->coll.after);
    rc = sh_channel_start_message(ch, item);
    if (rc != SH_OK)
        sh_stop(rc);
}

/* The caller's previous work was not idle time of the channels: peers are in the same collective soon. */
void sh_mpi_work_until(struct sh_mpi *m, int64_t ticket)
{
    m->idle_since_ns = sh_now_ns();
    while (!sh_comm_is_complete(m->c, ticket))
        if (m->c->blocks)
            work_off(m, ticket);
        else
            work(m);
}
