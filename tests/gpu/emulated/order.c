#include "tests/gpu/emulated/order.h"

#include "src/base/err.h"
#include "src/base/mem.h"

#include <pthread.h>
#include <string.h>

/* Something an actor did: the actor's count at that time, and what it was. */
struct doing {
    int64_t tick; /* 0: none */
    const char *label;
};

/* Bytes [begin, end) with one history. */
struct stretch {
    uintptr_t begin, end;
    int writer;
    struct doing write, read[SH_ORDER_ACTORS]; /* reads since the write, the last of each actor */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct sh_order_clock clocks[SH_ORDER_ACTORS];
static struct sh_order_clock known; /* what threads know when they begin */
static bool in_use[SH_ORDER_ACTORS];
static __thread int host = -1; /* the calling thread's actor */
static pthread_key_t ending;   /* for threads that have an actor */

static struct stretch *stretches; /* sorted, none overlap */
static int n_stretches, cap_stretches;

static int new_actor(void)
{
    for (int i = 0; i < SH_ORDER_ACTORS; i++)
        if (!in_use[i]) {
            in_use[i] = true;
            return i;
        }
    sh_stop(sh_fail(SH_E_BUG, "order: more than %d streams and threads", SH_ORDER_ACTORS));
}

/* For a thread that ends: nobody needs what it has waited for any more. */
static void end_thread(void *actor)
{
    sh_order_actor_end((int)(intptr_t)actor - 1);
}

static void make_key(void)
{
    if (pthread_key_create(&ending, end_thread) != 0)
        sh_stop(sh_fail(SH_E_BUG, "order: no key for threads"));
}

static void join(struct sh_order_clock *a, const struct sh_order_clock *b)
{
    for (int i = 0; i < SH_ORDER_ACTORS; i++)
        a->at[i] = a->at[i] > b->at[i] ? a->at[i] : b->at[i];
}

static int this_thread(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, make_key);
    if (host < 0) {
        host = new_actor();
        join(&clocks[host], &known);
        pthread_setspecific(ending, (void *)(intptr_t)(host + 1));
    }
    return host;
}

static void step(int actor)
{
    join(&clocks[actor], &clocks[this_thread()]);
    clocks[actor].at[actor]++;
}

int sh_order_actor(void)
{
    pthread_mutex_lock(&lock);
    int actor = new_actor();
    pthread_mutex_unlock(&lock);
    return actor;
}

/* Its count continues, so that a later actor with the same number is not taken for it. */
void sh_order_actor_end(int actor)
{
    pthread_mutex_lock(&lock);
    in_use[actor] = false;
    pthread_mutex_unlock(&lock);
}

void sh_order_mark(int actor, struct sh_order_clock *event)
{
    pthread_mutex_lock(&lock);
    step(actor);
    *event = clocks[actor];
    pthread_mutex_unlock(&lock);
}

void sh_order_after(int actor, const struct sh_order_clock *event)
{
    pthread_mutex_lock(&lock);
    step(actor);
    join(&clocks[actor], event);
    pthread_mutex_unlock(&lock);
}

void sh_order_wait(const struct sh_order_clock *event)
{
    pthread_mutex_lock(&lock);
    join(&clocks[this_thread()], event);
    pthread_mutex_unlock(&lock);
}

void sh_order_wait_for_all(const struct sh_order_clock *event)
{
    sh_order_wait(event);
    pthread_mutex_lock(&lock);
    join(&known, event);
    pthread_mutex_unlock(&lock);
}

static void must_know(int actor, const char *label, bool write, int other, const struct doing *d, bool wrote)
{
    if (d->tick && clocks[actor].at[other] < d->tick)
        sh_stop(sh_fail(SH_E_BUG, "order: '%s' %s memory that '%s' %s, and no event lets the one wait for the other",
                        label, write ? "writes" : "reads", d->label, wrote ? "writes" : "reads"));
}

static void judge(const struct stretch *s, int actor, bool write, const char *label)
{
    must_know(actor, label, write, s->writer, &s->write, true);
    for (int i = 0; write && i < SH_ORDER_ACTORS; i++)
        must_know(actor, label, write, i, &s->read[i], false);
}

static void insert(int at, struct stretch s)
{
    stretches = sh_grow(stretches, n_stretches, &cap_stretches, sizeof *stretches);
    memmove(stretches + at + 1, stretches + at, (size_t)(n_stretches - at) * sizeof *stretches);
    stretches[at] = s;
    n_stretches++;
}

static void delete (int first, int n)
{
    memmove(stretches + first, stretches + first + n, (size_t)(n_stretches - first - n) * sizeof *stretches);
    n_stretches -= n;
}

/* The first stretch that ends after an address. */
static int find(uintptr_t address)
{
    int low = 0, high = n_stretches;

    while (low < high) {
        int middle = (low + high) / 2;

        if (stretches[middle].end > address)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* If an address is inside a stretch, make a stretch start there. */
static void cut(uintptr_t address)
{
    int i = find(address);

    if (i == n_stretches || stretches[i].begin >= address)
        return;
    insert(i, stretches[i]);
    stretches[i].end = stretches[i + 1].begin = address;
}

/* Cover [begin, end) with whole stretches, fresh ones where there were none; returns the first. */
static int cover(uintptr_t begin, uintptr_t end)
{
    int i;

    cut(begin);
    cut(end);
    for (i = find(begin); begin < end; i++) {
        uintptr_t next = i < n_stretches && stretches[i].begin < end ? stretches[i].begin : end;

        if (begin < next)
            insert(i, (struct stretch){.begin = begin, .end = next});
        begin = stretches[i].end;
    }
    return find(stretches[i - 1].end - 1);
}

static void access(int actor, uintptr_t begin, uintptr_t end, bool write, const char *label)
{
    struct doing now = {.tick = clocks[actor].at[actor], .label = label};
    int last = cover(begin, end), first = find(begin);

    for (int i = first; i <= last; i++) {
        judge(&stretches[i], actor, write, label);
        stretches[i].read[actor] = now;
    }
    if (!write)
        return;
    delete (first + 1, last - first);
    stretches[first] = (struct stretch){.begin = begin, .end = end, .writer = actor, .write = now};
}

void sh_order_access(int actor, const void *at, int64_t bytes, int write, const char *label)
{
    if (bytes <= 0)
        return;
    pthread_mutex_lock(&lock);
    step(actor);
    access(actor, (uintptr_t)at, (uintptr_t)at + (uintptr_t)bytes, write, label);
    pthread_mutex_unlock(&lock);
}

void sh_order_forget(const void *at, int64_t bytes)
{
    uintptr_t begin = (uintptr_t)at, end = begin + (uintptr_t)bytes;

    if (bytes <= 0)
        return;
    pthread_mutex_lock(&lock);
    int last = cover(begin, end), first = find(begin);
    delete (first, last - first + 1);
    pthread_mutex_unlock(&lock);
}
