/* CUDA events, and their times on the host's clock. A GPU only tells how far apart two events are, in milliseconds as a
 * float: a second in steps of 60 ns, an hour in steps of 0.25 ms. So one event, the anchor, is tied to the host's
 * clock, and again whenever the host has just waited for a queue and the last anchor is old; spans are timed without
 * it. */
#include "src/base/time.h"
#include "src/device/cuda.h"

#include <pthread.h>

/* Within a second a float of milliseconds still resolves 60 ns. */
#define OLD_NS ((int64_t)1e9)

static struct {
    pthread_mutex_t lock; /* the communication's thread asks for times too */
    cudaEvent_t event[2]; /* the one in use, and the next */
    int now;
    int64_t ns;
} anchor = {.lock = PTHREAD_MUTEX_INITIALIZER};

void sh_cudart_event_open(void)
{
    for (int i = 0; i < 2; i++)
        anchor.event[i] = sh_cudart_event_create(true);
    sh_cudart_event_anchor(NULL);
}

void sh_cudart_event_close(void)
{
    for (int i = 0; i < 2; i++)
        sh_cudart_event_destroy(anchor.event[i]);
}

/* Two events in turn: the old anchor stays valid for other threads until the new one has happened. */
void sh_cudart_event_anchor(void *queue)
{
    int next = !anchor.now;

    sh_cudart_must(cudaEventRecord(anchor.event[next], queue), "record an event");
    sh_cudart_must(cudaEventSynchronize(anchor.event[next]), "wait for a queue");
    pthread_mutex_lock(&anchor.lock);
    anchor.ns = sh_now_ns();
    anchor.now = next;
    pthread_mutex_unlock(&anchor.lock);
}

/* The host is about to wait anyway, so a new anchor costs nothing here, and `last` is in the same queue. */
void sh_cudart_event_rest(void *queue, void *last)
{
    if (sh_now_ns() - anchor.ns > OLD_NS)
        sh_cudart_event_anchor(queue);
    else
        sh_cudart_event_wait(last);
}

/* Events without times are cheaper; only traces need them timed. */
void *sh_cudart_event_create(bool timed)
{
    cudaEvent_t event;

    sh_cudart_must(cudaEventCreateWithFlags(&event, timed ? cudaEventDefault : cudaEventDisableTiming),
                   "create an event");
    return event;
}

void sh_cudart_event_destroy(void *event)
{
    if (event)
        cudaEventDestroy(event);
}

void sh_cudart_event_mark(void *event, void *queue)
{
    sh_cudart_must(cudaEventRecord(event, queue), "record an event");
}

/* The host does not wait: the order is kept by the GPU. */
void sh_cudart_queue_after(void *queue, void *event)
{
    sh_cudart_must(cudaStreamWaitEvent(queue, event, 0), "make a queue wait for an event");
}

/* Never waits: the communication's thread polls it in a loop. */
bool sh_cudart_event_is_done(void *event)
{
    cudaError_t rc = cudaEventQuery(event);

    if (rc == cudaErrorNotReady)
        cudaGetLastError(); /* some runtimes keep it, and the next launch would report it as its own */
    else
        sh_cudart_must(rc, "query an event");
    return rc == cudaSuccess;
}

void sh_cudart_event_wait(void *event)
{
    sh_cudart_must(cudaEventSynchronize(event), "wait for an event");
}

int64_t sh_cudart_event_span_ns(void *begin, void *end)
{
    float ms;

    sh_cudart_must(cudaEventElapsedTime(&ms, begin, end), "time an event");
    return (int64_t)((double)ms * 1e6);
}

/* Under the lock, else event and time could belong to two different anchors. */
int64_t sh_cudart_event_ns(void *event)
{
    int64_t ns;

    pthread_mutex_lock(&anchor.lock);
    ns = anchor.ns + sh_cudart_event_span_ns(anchor.event[anchor.now], event);
    pthread_mutex_unlock(&anchor.lock);
    return ns;
}
