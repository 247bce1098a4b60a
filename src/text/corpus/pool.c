/* A pool of threads that encode batches and keep them in order. Batches cycle through a ring of slots: EMPTY; filled by
 * the caller and GIVEN; UNDER_WAY in a thread; DONE; taken by the caller in the order in which they were given. `put`,
 * `begun` and `taken` count batches, and taken <= begun <= put <= taken + slots. So the output has the order of the
 * input whatever the threads do, and memory is bounded by the slots. */
#include "src/text/corpus/pool.h"

#include "src/base/thread.h"

#include <stdlib.h>

enum state { EMPTY, GIVEN, UNDER_WAY, DONE };

/* A slot's buffers are reused by later batches. */
struct slot {
    struct sh_batch batch;
    enum state state;
};

struct sh_pool {
    struct sh_pool_job job;
    pthread_mutex_t lock;
    pthread_cond_t given, done;
    struct slot *slot; /* [slots]: batch i is in slot i % slots */
    int64_t slots, put, begun, taken;
    bool stopping, taking; /* taking: the slot before `taken` still belongs to the caller */
    pthread_t *thread;
    int n_threads;
};

/* Wait for the next batch that no thread has started; NULL: there will be none. */
static struct slot *begin_next(struct sh_pool *c)
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

/* A failure is stored in the batch; the thread continues, and the caller gets the failure when the batch's
 * turn comes. */
static void end_one(struct sh_pool *c, struct slot *s)
{
    pthread_mutex_lock(&c->lock);
    s->state = DONE;
    pthread_cond_signal(&c->done);
    pthread_mutex_unlock(&c->lock);
}

/* The worker is created in its own thread, so its memory is near that thread. */
static void *work(void *arg)
{
    struct sh_pool *c = arg;
    void *worker = c->job.create(c->job.ctx);

    for (struct slot *s; (s = begin_next(c)) != NULL; end_one(c, s)) {
        s->batch.rc = c->job.encode(c->job.ctx, worker, &s->batch);
        /* The text of an error belongs to the thread that failed; the caller is another thread. */
        if (s->batch.rc != SH_OK)
            s->batch.error = sh_strdup(sh_error_text());
    }
    c->job.destroy(worker);
    return NULL;
}

sh_rc sh_pool_start(const struct sh_pool_job *job, struct sh_pool **out)
{
    struct sh_pool *c = sh_calloc(1, sizeof *c);

    c->job = *job;
    /* Two batches for each thread, so that none waits while the caller writes, and two more for the caller. */
    c->slots = 2 * (int64_t)job->threads + 2;
    c->slot = sh_calloc((size_t)c->slots, sizeof *c->slot);
    c->thread = sh_calloc((size_t)job->threads, sizeof *c->thread);
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->given, NULL);
    pthread_cond_init(&c->done, NULL);
    for (int i = 0; i < job->threads; i++) {
        sh_rc rc = sh_thread_start(&c->thread[i], "tokenize", work, c, 0);
        if (rc != SH_OK) {
            sh_pool_stop(c);
            return rc;
        }
        c->n_threads++;
    }
    *out = c;
    return SH_OK;
}

/* NULL is fine. Batches that no thread has started are dropped; those under way are finished. */
void sh_pool_stop(struct sh_pool *c)
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
        free(c->slot[i].batch.numbers.at);
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

/* Free the slot that the caller took last; its buffers stay for the next batch in this slot. */
static void give_back(struct sh_pool *c)
{
    if (!c->taking)
        return;
    struct slot *s = &c->slot[(c->taken - 1) % c->slots];
    free(s->batch.error);
    s->batch = (struct sh_batch){.text = s->batch.text,
                                 .ids = s->batch.ids,
                                 .lengths = s->batch.lengths,
                                 .mask = s->batch.mask,
                                 .numbers = s->batch.numbers};
    s->batch.text.n = s->batch.ids.n = s->batch.lengths.n = s->batch.mask.n = s->batch.numbers.n = 0;
    s->state = EMPTY;
    c->taking = false;
}

/* Returns NULL if all slots are in use: take one first. Also gives back the batch that was taken last. */
struct sh_batch *sh_pool_room(struct sh_pool *c)
{
    give_back(c);
    return c->put - c->taken < c->slots ? &c->slot[c->put % c->slots].batch : NULL;
}

/* Gives the batch that sh_pool_room() returned; from here on it belongs to the pool. */
void sh_pool_give(struct sh_pool *c)
{
    pthread_mutex_lock(&c->lock);
    c->slot[c->put++ % c->slots].state = GIVEN;
    pthread_cond_signal(&c->given);
    pthread_mutex_unlock(&c->lock);
}

/* Returns the oldest batch, which is the caller's until the next call of room or take. NULL: none was given, or it is
 * not done and `wait` is false. */
struct sh_batch *sh_pool_take(struct sh_pool *c, bool wait)
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

/* Sets the error in the caller's thread, where the caller looks for it. */
sh_rc sh_pool_rc(const struct sh_batch *b)
{
    return b->rc == SH_OK ? SH_OK : sh_fail(b->rc, "%s", b->error);
}
