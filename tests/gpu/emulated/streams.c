#include "tests/gpu/emulated/streams.h"

#include "src/base/mem.h"
#include "src/base/time.h"
#include "tests/gpu/emulated/emulated.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

enum { MORE = 16, ASKS = 4 }; /* one in MORE items is done without being asked for; one in ASKS questions counts */

struct sh_mark {
    int references;
    bool done;
    int64_t ns;
    struct sh_stream *stream;
    int64_t at; /* its number within the stream */
};

/* One of three kinds: work, a mark that is reached, a mark that is waited for. */
struct item {
    struct item *next, *next_in_order;
    void (*work)(void *arg);
    void *arg;
    struct sh_mark *reached, *awaited;
    struct sh_stream *stream;
    int64_t at;
    bool in_order, beside, begun, ended;
};

struct sh_stream {
    struct sh_stream *next;
    struct item *first, *last;
    int64_t items;  /* ever put */
    int64_t wanted; /* all up to this one should be done */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t asked = PTHREAD_COND_INITIALIZER, done = PTHREAD_COND_INITIALIZER;
static struct sh_stream *streams;
static struct item *orderly, *last_orderly; /* work that waits its turn */
static bool running;

static void give_back(struct sh_mark *m)
{
    if (m && --m->references == 0)
        free(m);
}

/* Ask for it and for everything it needs. */
static void want(struct sh_stream *s, int64_t at)
{
    int64_t before = s->wanted;

    if (at <= before)
        return;
    s->wanted = at;
    for (struct item *i = s->first; i && i->at <= at; i = i->next) {
        if (i->at <= before)
            continue;
        if (i->awaited && !i->awaited->done)
            want(i->awaited->stream, i->awaited->at);
        for (struct item *o = i->in_order && !i->begun ? orderly : NULL; o && o != i; o = o->next_in_order)
            want(o->stream, o->at);
    }
}

static bool can_run(const struct sh_stream *s)
{
    const struct item *i = s->first;

    if (i && i->begun)
        return i->ended;
    return i && i->at <= s->wanted && !(i->awaited && !i->awaited->done) && !(i->in_order && i != orderly);
}

static struct sh_stream *draw(void)
{
    struct sh_stream *found = NULL;
    unsigned n = 0;

    for (struct sh_stream *s = streams; s; s = s->next)
        if (can_run(s) && sh_emulated_dice(++n) == 0)
            found = s;
    return found;
}

static void *beside_main(void *arg)
{
    struct item *i = arg;

    i->work(i->arg);
    pthread_mutex_lock(&lock);
    i->ended = true;
    pthread_cond_signal(&asked);
    pthread_mutex_unlock(&lock);
    return NULL;
}

/* Signals are left to the program's threads. */
static void start_thread(void *(*body)(void *), void *arg)
{
    sigset_t all, before;
    pthread_t thread;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (pthread_create(&thread, NULL, body, arg) != 0)
        abort();
    pthread_detach(thread);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* Works without the lock; the item stays at the front of its stream, so nothing overtakes it. Returns whether it is done. */
static bool begin(struct item *i)
{
    i->begun = true;
    if (i->in_order)
        orderly = i->next_in_order;
    if (i->work && i->beside) {
        start_thread(beside_main, i);
        return false;
    }
    if (i->work) {
        pthread_mutex_unlock(&lock);
        i->work(i->arg);
        pthread_mutex_lock(&lock);
    }
    return true;
}

static void run_first(struct sh_stream *s)
{
    struct item *i = s->first;

    if (!i->begun && !begin(i))
        return;
    if (i->reached) {
        i->reached->done = true;
        i->reached->ns = sh_now_ns();
    }
    s->first = i->next;
    if (i->reached || !s->first)
        pthread_cond_broadcast(&done);
    give_back(i->reached);
    give_back(i->awaited);
    free(i);
}

static void *device_main(void *arg)
{
    struct sh_stream *s;

    (void)arg;
    pthread_mutex_lock(&lock);
    for (;;) {
        s = draw();
        if (s)
            run_first(s);
        else
            pthread_cond_wait(&asked, &lock);
    }
    return NULL;
}

static void start_device(void)
{
    if (!running)
        start_thread(device_main, NULL);
    running = true;
}

struct sh_stream *sh_stream_create(void)
{
    struct sh_stream *s = sh_calloc(1, sizeof *s);

    pthread_mutex_lock(&lock);
    start_device();
    s->next = streams;
    streams = s;
    pthread_mutex_unlock(&lock);
    return s;
}

static void put_in_turn(struct item *i)
{
    if (orderly)
        last_orderly->next_in_order = i;
    else
        orderly = i;
    last_orderly = i;
}

/* Called with the lock held. */
static void put(struct sh_stream *s, struct item item)
{
    struct item *i = sh_calloc(1, sizeof *i);

    *i = item;
    i->stream = s;
    i->at = ++s->items;
    if (s->first)
        s->last->next = i;
    else
        s->first = i;
    s->last = i;
    if (i->in_order)
        put_in_turn(i);
    if (sh_emulated_dice(MORE) == 0) {
        want(s, i->at);
        pthread_cond_signal(&asked);
    }
}

void sh_stream_put(struct sh_stream *s, void (*work)(void *arg), void *arg)
{
    pthread_mutex_lock(&lock);
    put(s, (struct item){.work = work, .arg = arg});
    pthread_mutex_unlock(&lock);
}

void sh_stream_put_beside(struct sh_stream *s, void (*work)(void *arg), void *arg, bool in_order)
{
    pthread_mutex_lock(&lock);
    put(s, (struct item){.work = work, .arg = arg, .in_order = in_order, .beside = true});
    pthread_mutex_unlock(&lock);
}

struct sh_mark *sh_stream_mark(struct sh_stream *s)
{
    struct sh_mark *m = sh_calloc(1, sizeof *m);

    pthread_mutex_lock(&lock);
    *m = (struct sh_mark){.references = 2, .stream = s, .at = s->items + 1};
    put(s, (struct item){.reached = m});
    pthread_mutex_unlock(&lock);
    return m;
}

void sh_stream_after(struct sh_stream *s, struct sh_mark *mark)
{
    pthread_mutex_lock(&lock);
    mark->references++;
    put(s, (struct item){.awaited = mark});
    pthread_mutex_unlock(&lock);
}

void sh_streams_rest(void)
{
    pthread_mutex_lock(&lock);
    for (struct sh_stream *s = streams; s; s = s->next)
        want(s, s->items);
    pthread_cond_signal(&asked);
    for (struct sh_stream *s = streams; s; s = s->first ? s : s->next)
        if (s->first)
            pthread_cond_wait(&done, &lock);
    pthread_mutex_unlock(&lock);
}

static void ask_for(struct sh_mark *m)
{
    want(m->stream, m->at);
    pthread_cond_signal(&asked);
}

bool sh_mark_done(struct sh_mark *m)
{
    bool is;

    pthread_mutex_lock(&lock);
    is = m->done;
    if (!is && sh_emulated_dice(ASKS) == 0)
        ask_for(m);
    pthread_mutex_unlock(&lock);
    return is;
}

bool sh_mark_wait(struct sh_mark *m)
{
    bool waited;

    pthread_mutex_lock(&lock);
    waited = !m->done;
    if (waited)
        ask_for(m);
    while (!m->done)
        pthread_cond_wait(&done, &lock);
    pthread_mutex_unlock(&lock);
    return waited;
}

int64_t sh_mark_ns(const struct sh_mark *m)
{
    return m->ns;
}

void sh_mark_put(struct sh_mark *m)
{
    pthread_mutex_lock(&lock);
    give_back(m);
    pthread_mutex_unlock(&lock);
}
