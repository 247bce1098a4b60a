/* A pool of threads that encode batches, in order. Batches go around a ring of slots: EMPTY, filled by the caller and
 * GIVEN, UNDER_WAY in a thread, DONE, taken by the caller in the order in which they were given. `put`, `begun` and
 * `taken` count batches, and taken <= begun <= put <= taken + slots. So output has the order of the input whatever the
 * threads do, and memory is bounded by the slots. */
#include "io/token/crew.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

enum state { EMPTY, GIVEN, UNDER_WAY, DONE };

/* Its buffers are used again by later batches. */
struct slot {
    struct sh_batch batch;
    enum state state;
};

struct sh_crew {
    struct sh_crew_job job;
    pthread_mutex_t lock;
    pthread_cond_t given, done;
    struct slot *slot; /* [slots]: batch i is in slot i % slots */
    int64_t slots, put, begun, taken;
    bool stopping, taking; /* taking: the slot before `taken` is the caller's still */
    pthread_t *thread;
    int n_threads;
};

/* The next batch that nobody has begun; NULL: there will be none. */
static struct slot *begin_next(struct sh_crew *c)
{
    struct slot *s = NULL;

    pthread_mutex_lock(&c->lock);
    while (!c->stopping && c->begun == c->put)
        pthread_cond_wait(&c->given, &c->lock);
    if (!c->stopping) {
        s = &c->slot[c->begun++ % c->slots];
        s->state = UNDER_WAY;
    }
    pthread_mutex_unlock(&c->lock);
    return s;
}

/* A failure is in the batch; the thread goes on, and the caller meets it in its turn. */
static void end_one(struct sh_crew *c, struct slot *s)
{
    pthread_mutex_lock(&c->lock);
    s->state = DONE;
    pthread_cond_signal(&c->done);
    pthread_mutex_unlock(&c->lock);
}

/* The worker is made in its thread, so that its memory is near to it. */
static void *work(void *arg)
{
    struct sh_crew *c = arg;
    void *worker = c->job.create(c->job.ctx);

    for (struct slot *s; (s = begin_next(c)) != NULL; end_one(c, s)) {
        s->batch.rc = c->job.encode(c->job.ctx, worker, &s->batch);
        /* The text of an error belongs to the thread that failed; the caller is another one. */
        if (s->batch.rc != SH_OK)
            s->batch.error = sh_strdup(sh_error_text());
    }
    c->job.destroy(worker);
    return NULL;
}

/* With all signals blocked: they are for the thread that reads and writes. */
static sh_rc start_thread(struct sh_crew *c)
{
    sigset_t all, old;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int err = pthread_create(&c->thread[c->n_threads], NULL, work, c);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (err)
        return sh_fail(SH_E_MEMORY, "start thread %d of %d: %s", c->n_threads + 1, c->job.threads, strerror(err));
    c->n_threads++;
    return SH_OK;
}

sh_rc sh_crew_start(const struct sh_crew_job *job, struct sh_crew **out)
{
    struct sh_crew *c = sh_calloc(1, sizeof *c);

    c->job = *job;
    /* Two batches for each thread, so that none waits while the caller writes, and two more for the caller. */
    c->slots = 2 * (int64_t)job->threads + 2;
    c->slot = sh_calloc((size_t)c->slots, sizeof *c->slot);
    c->thread = sh_calloc((size_t)job->threads, sizeof *c->thread);
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->given, NULL);
    pthread_cond_init(&c->done, NULL);
    for (int i = 0; i < job->threads; i++) {
        sh_rc rc = start_thread(c);
        if (rc != SH_OK) {
            sh_crew_stop(c);
            return rc;
        }
    }
    *out = c;
    return SH_OK;
}

/* NULL is fine. Batches that nobody has begun are dropped; those under way are finished. */
void sh_crew_stop(struct sh_crew *c)
{
    if (!c)
        return;
    pthread_mutex_lock(&c->lock);
    c->stopping = true;
    pthread_cond_broadcast(&c->given);
    pthread_mutex_unlock(&c->lock);
    for (int i = 0; i < c->n_threads; i++)
        pthread_join(c->thread[i], NULL);
    for (int64_t i = 0; i < c->slots; i++) {
        free(c->slot[i].batch.text.at);
        free(c->slot[i].batch.ids.id);
        free(c->slot[i].batch.lengths.id);
        free(c->slot[i].batch.mask.at);
        free(c->slot[i].batch.error);
    }
    pthread_cond_destroy(&c->given);
    pthread_cond_destroy(&c->done);
    pthread_mutex_destroy(&c->lock);
    free(c->slot);
    free(c->thread);
    free(c);
}

/* What the caller took last is free now; its buffers stay for the next batch in this slot. */
static void give_back(struct sh_crew *c)
{
    if (!c->taking)
        return;
    struct slot *s = &c->slot[(c->taken - 1) % c->slots];
    free(s->batch.error);
    s->batch = (struct sh_batch){
        .text = s->batch.text, .ids = s->batch.ids, .lengths = s->batch.lengths, .mask = s->batch.mask};
    s->batch.text.n = s->batch.ids.n = s->batch.lengths.n = s->batch.mask.n = 0;
    s->state = EMPTY;
    c->taking = false;
}

/* NULL: all slots are in use, take one first. Also gives back what was taken last. */
struct sh_batch *sh_crew_room(struct sh_crew *c)
{
    give_back(c);
    return c->put - c->taken < c->slots ? &c->slot[c->put % c->slots].batch : NULL;
}

/* The batch that sh_crew_room() returned; from here on it is the pool's. */
void sh_crew_give(struct sh_crew *c)
{
    pthread_mutex_lock(&c->lock);
    c->slot[c->put++ % c->slots].state = GIVEN;
    pthread_cond_signal(&c->given);
    pthread_mutex_unlock(&c->lock);
}

/* The oldest batch, the caller's until the next call of room or take. NULL: none was given, or it is not done and
 * `wait` is false. */
struct sh_batch *sh_crew_take(struct sh_crew *c, bool wait)
{
    struct slot *s = &c->slot[c->taken % c->slots];

    give_back(c);
    if (c->taken == c->put)
        return NULL;
    pthread_mutex_lock(&c->lock);
    /* Only the oldest counts: output keeps the order of the input. */
    while (wait && s->state != DONE)
        pthread_cond_wait(&c->done, &c->lock);
    bool done = s->state == DONE;
    pthread_mutex_unlock(&c->lock);
    if (!done)
        return NULL;
    c->taken++;
    c->taking = true;
    return &s->batch;
}

/* In the caller's thread, so that the text is where the caller's errors are. */
sh_rc sh_crew_rc(const struct sh_batch *b)
{
    return b->rc == SH_OK ? SH_OK : sh_fail(b->rc, "%s", b->error);
}
