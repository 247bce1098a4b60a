/* Events of CUDA, and their times on the host's clock: a GPU tells only how far two events are apart, in milliseconds
 * as a float, so one of them is tied to the host's clock now and then, when the GPU is idle. */
#include "src/base/time.h"
#include "src/device/cuda.h"

#include <pthread.h>

static struct {
    pthread_mutex_t lock; /* the communication's thread asks for times too */
    cudaEvent_t event;
    int64_t ns;
} anchor = {.lock = PTHREAD_MUTEX_INITIALIZER};

void sh_cuda_event_open(void)
{
    anchor.event = sh_cuda_event_create(true);
    sh_cuda_event_anchor();
}

void sh_cuda_event_close(void)
{
    sh_cuda_event_destroy(anchor.event);
    anchor.event = NULL;
}

void sh_cuda_event_anchor(void)
{
    pthread_mutex_lock(&anchor.lock);
    sh_cuda_must(cudaEventRecord(anchor.event, NULL), "record an event");
    sh_cuda_must(cudaEventSynchronize(anchor.event), "wait for an event");
    anchor.ns = sh_now_ns();
    pthread_mutex_unlock(&anchor.lock);
}

void *sh_cuda_event_create(bool timed)
{
    cudaEvent_t event;

    sh_cuda_must(cudaEventCreateWithFlags(&event, timed ? cudaEventDefault : cudaEventDisableTiming),
                 "create an event");
    return event;
}

void sh_cuda_event_destroy(void *event)
{
    if (event)
        cudaEventDestroy(event);
}

void sh_cuda_event_mark(void *event, void *queue)
{
    sh_cuda_must(cudaEventRecord(event, queue), "record an event");
}

void sh_cuda_queue_after(void *queue, void *event)
{
    sh_cuda_must(cudaStreamWaitEvent(queue, event, 0), "let a queue wait for an event");
}

bool sh_cuda_event_is_done(void *event)
{
    cudaError_t rc = cudaEventQuery(event);

    if (rc != cudaErrorNotReady)
        sh_cuda_must(rc, "ask for an event");
    return rc == cudaSuccess;
}

void sh_cuda_event_wait(void *event)
{
    sh_cuda_must(cudaEventSynchronize(event), "wait for an event");
}

int64_t sh_cuda_event_ns(void *event)
{
    float ms;
    int64_t ns;

    pthread_mutex_lock(&anchor.lock);
    sh_cuda_must(cudaEventElapsedTime(&ms, anchor.event, event), "time an event");
    ns = anchor.ns + (int64_t)((double)ms * 1e6);
    pthread_mutex_unlock(&anchor.lock);
    return ns;
}
