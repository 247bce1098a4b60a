/* Internal to the cuda device: what its files share. */
#ifndef SH_DEVICE_CUDA_H
#define SH_DEVICE_CUDA_H

#include "src/device/device.h"

#include <cuda_runtime.h>

/* A call that must succeed, or the job stops: sh_cudart_must(cudaStreamSynchronize(s), "wait for a queue"); */
void sh_cudart_must(cudaError_t rc, const char *what);

/* Start an operation (cuda_run.c). The label is its name in Nsight Systems. */
sh_rc sh_cudart_run(const struct sh_op_call *call, const char *label);

/* Run the loss of a plug-in, which is a function of the host (cuda_host.c). Waits for the queue. */
sh_rc sh_cudart_run_on_host(const struct sh_op_call *call);

/* Copies between the device and any host memory, through pinned pieces (cuda_copy.c). One thread. */
sh_rc sh_cudart_copy_open(void);
void sh_cudart_copy_close(void);
void sh_cudart_put(void *queue, void *device, const void *host, int64_t bytes);
void sh_cudart_get(void *queue, void *host, const void *device, int64_t bytes);

/* Events (cuda_event.c). */
void sh_cudart_event_open(void);
void sh_cudart_event_close(void);
void sh_cudart_event_anchor(void *queue);           /* wait for what is in the queue, and tie its clock to the host's */
void sh_cudart_event_rest(void *queue, void *last); /* wait for the queue's last event, and renew the anchor if it is
                                                       due */
void *sh_cudart_event_create(bool timed);
void sh_cudart_event_destroy(void *event);
void sh_cudart_event_mark(void *event, void *queue);
void sh_cudart_queue_after(void *queue, void *event);
bool sh_cudart_event_is_done(void *event);
void sh_cudart_event_wait(void *event);
int64_t sh_cudart_event_ns(void *event);
int64_t sh_cudart_event_span_ns(void *begin, void *end);

#endif
