/* One thread reads the next range of samples while the step computes. The states: EMPTY (nothing was asked for, or the
 * read failed), ASKED (the thread is reading), FULL (the range can be taken), STOPPED. The asker moves EMPTY or FULL to
 * ASKED, the thread moves ASKED to FULL or EMPTY, so each field has one owner at any time and only `state` needs the
 * lock. */
#include "io/data/ahead.h"

#include "src/base/mem.h"
#include "src/base/thread.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum state { EMPTY, ASKED, FULL, STOPPED };

/* The arrays are reused from range to range; `docs` says whether the third one was filled. */
struct sh_data_ahead {
    sh_data_fill fill;
    sh_data_counter count;
    const void *source;
    int seq_len;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    enum state state;       /* under lock; all other fields belong to the thread while ASKED, otherwise to the asker */
    int64_t first, n, room; /* room: samples that fit in each array */
    bool docs;
    int64_t to_count, unmasked; /* samples from `first` on; how many of their targets count */
    int32_t *rows[3];           /* tokens, targets, docs [room,T] */
};

static void set_state(struct sh_data_ahead *a, enum state state)
{
    pthread_mutex_lock(&a->lock);
    a->state = state;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
}

/* Seconds that a stop waits for a read under way. What it reads is not wanted any more, so this is enough to tell a slow
 * disk from one that does not answer. */
enum { STOP_SECONDS = 5 };

/* Wait while the state is ASKED (for the thread: while it is not); returns the new state. */
static enum state wait_state(struct sh_data_ahead *a, bool while_asked)
{
    pthread_mutex_lock(&a->lock);
    while (a->state != STOPPED && (a->state == ASKED) == while_asked)
        pthread_cond_wait(&a->changed, &a->lock);
    enum state state = a->state;
    pthread_mutex_unlock(&a->lock);
    return state;
}

/* A failure leaves EMPTY and no error text: errors are kept per thread, so the asker reads again itself and gets the
 * error there. */
static void *work(void *arg)
{
    struct sh_data_ahead *a = arg;
    while (wait_state(a, false) != STOPPED) {
        sh_rc rc = a->fill(a->source, a->first, a->n, a->rows[0], a->rows[1], a->docs ? a->rows[2] : NULL);
        if (rc == SH_OK && a->to_count)
            rc = a->count(a->source, a->first, a->to_count, &a->unmasked);
        set_state(a, rc == SH_OK ? FULL : EMPTY);
    }
    return NULL;
}

/* Call when the thread has ended, or was never started. */
static void destroy(struct sh_data_ahead *a)
{
    pthread_cond_destroy(&a->changed);
    pthread_mutex_destroy(&a->lock);
    for (int i = 0; i < 3; i++)
        free(a->rows[i]);
    free(a);
}

sh_rc sh_data_ahead_start(sh_data_fill fill, sh_data_counter count, const void *source, int seq_len,
                          struct sh_data_ahead **out)
{
    struct sh_data_ahead *a = sh_calloc(1, sizeof *a);
    a->fill = fill;
    a->count = count;
    a->source = source;
    a->seq_len = seq_len;
    pthread_mutex_init(&a->lock, NULL);
    sh_thread_cond_init(&a->changed);
    sh_rc rc = sh_thread_start(&a->thread, "read data ahead", work, a, 0);
    if (rc == SH_OK)
        *out = a;
    else
        destroy(a);
    return rc;
}

/* Whether the thread is idle, and so ends as soon as it is told to. */
static bool becomes_idle(struct sh_data_ahead *a)
{
    const struct timespec until = sh_thread_time_in(STOP_SECONDS);
    int error = 0;
    pthread_mutex_lock(&a->lock);
    while (a->state == ASKED && error == 0)
        error = pthread_cond_timedwait(&a->changed, &a->lock, &until);
    bool idle = a->state != ASKED;
    pthread_mutex_unlock(&a->lock);
    return idle;
}

bool sh_data_ahead_stop(struct sh_data_ahead *a)
{
    if (!a)
        return true;
    if (!becomes_idle(a)) {
        pthread_detach(a->thread);
        return false;
    }
    set_state(a, STOPPED);
    pthread_join(a->thread, NULL);
    destroy(a);
    return true;
}

/* The arrays only grow, to the size of the largest range so far. */
static void make_room(struct sh_data_ahead *a, int64_t n)
{
    if (n <= a->room)
        return;
    for (int i = 0; i < 3; i++)
        a->rows[i] = sh_realloc(a->rows[i], (size_t)n, (size_t)a->seq_len * sizeof(int32_t));
    a->room = n;
}

void sh_data_ahead_ask(struct sh_data_ahead *a, int64_t first, int64_t n, bool docs, int64_t count)
{
    wait_state(a, true);
    make_room(a, n);
    /* The thread is idle here, so the fields may be written without the lock. */
    a->first = first;
    a->n = n;
    a->docs = docs;
    a->to_count = count;
    set_state(a, ASKED);
}

/* Succeeds only for exactly the range that was asked for: after a rollback or a skipped step the caller wants another
 * one, and gets false. */
bool sh_data_ahead_take(struct sh_data_ahead *a, int64_t first, int64_t n, int32_t *tokens, int32_t *targets,
                        int32_t *docs)
{
    if (wait_state(a, true) != FULL || a->first != first || a->n != n || (docs && !a->docs))
        return false;
    size_t bytes = (size_t)n * (size_t)a->seq_len * sizeof(int32_t);
    memcpy(tokens, a->rows[0], bytes);
    memcpy(targets, a->rows[1], bytes);
    if (docs)
        memcpy(docs, a->rows[2], bytes);
    return true;
}

bool sh_data_ahead_targets(struct sh_data_ahead *a, int64_t first, int64_t n, int64_t *unmasked)
{
    /* The count may cover more samples than were read: all micro-steps of this rank, not only one. */
    if (wait_state(a, true) != FULL || a->first != first || a->to_count != n)
        return false;
    *unmasked = a->unmasked;
    return true;
}
