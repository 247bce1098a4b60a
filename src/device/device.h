/* Where a program runs: memory, queues of work, copies, and a kernel for each operation.
 *
 * A device is one row of a table, chosen by name; a process uses one, and opens it first. Work in a queue runs in
 * order, alongside the host and other queues; events tie queues to each other and to the host. The CPU has only the
 * queue NULL: work put into it is done on the spot, and an event is a time. The executor and the communication treat
 * both devices alike.
 *
 * The arena is the one allocation of a run; it starts zeroed, so that padding is zero. On the CPU its pages are
 * allocated only when first touched. Host memory from host_create is pinned on a GPU: copies from and to it run
 * alongside everything else.
 *
 * All local. Functions without a return value stop the job when a GPU fails: a failed GPU is of no further use. */
#ifndef SH_DEVICE_DEVICE_H
#define SH_DEVICE_DEVICE_H

#include "kernels/op.h"
#include "src/base/err.h"

#include <stdbool.h>
#include <stdint.h>

struct sh_device_info {
    char name[64];      /* "NVIDIA H200" */
    int index;          /* among the GPUs that this process sees */
    char bus[24];       /* its number on the PCI bus: "00000000:1b:00.0" */
    uint64_t id;        /* of the physical device: processes of a node with the same id share it */
    int64_t free_bytes; /* of its memory, now */
};

struct sh_device {
    const char *name;
    const struct sh_kernel_table *kernels;
    bool gpu; /* has its own memory, which the host cannot read */

    /* How many GPUs this process sees; 0 with the reason in why. NULL: always there. */
    int (*count)(char why[256]);
    /* Use the GPU that falls to rank `node_rank` of the node: they are dealt out in turn. NULL: nothing to do. */
    sh_rc (*open)(int node_rank, struct sh_device_info *info);
    void (*close)(void);
    void (*attach)(void);        /* first call of another thread that will use the functions below */
    int64_t (*used_bytes)(void); /* memory in use on the device by all processes; NULL: the host's */

    /* Allocate one range of addresses: own_bytes of this process, then segment_bytes of the file segment_fd (whole
     * pages; 0 bytes: none; never on a GPU). SH_E_MEMORY if that fails. */
    sh_rc (*arena_create)(int64_t own_bytes, int64_t segment_bytes, int segment_fd, char **arena);
    void (*arena_destroy)(char *arena, int64_t bytes);  /* bytes: of both parts */
    sh_rc (*host_create)(int64_t bytes, char **memory); /* SH_E_MEMORY */
    void (*host_destroy)(char *memory, int64_t bytes);

    void *(*queue_create)(bool urgent); /* urgent: runs before others when both could run */
    void (*queue_destroy)(void *queue);
    void (*queue_drain)(void *queue); /* return when all work put into it is done */
    /* The same; SH_E_BUG with the device's own message if any of the work failed. NULL: each call is done, or fails, on
     * the spot. */
    sh_rc (*queue_check)(void *queue);

    /* Put a kernel into call->queue; the label names it in profilers. The loss of a plug-in runs on the host: this waits
     * for the queue. */
    sh_rc (*run)(const struct sh_op_call *call, const char *label);
    /* Put a copy into the queue: device or pinned memory on both sides; the two may overlap on the CPU only. */
    void (*copy)(void *queue, void *to, const void *from, int64_t bytes);
    /* Copy from host to device, after the work in the queue; `host` is any memory, and free again on return. */
    void (*put)(void *queue, void *device, const void *host, int64_t bytes);
    /* Copy from device to any host memory, after the work in the queue; complete on return. */
    void (*get)(void *queue, void *host, const void *device, int64_t bytes);

    /* An event is marked in a queue and happens when all work before the mark is done. Marking it again forgets the
     * last mark. An event that was never marked has happened. */
    void *(*event_create)(bool timed);
    void (*event_destroy)(void *event); /* NULL: nothing */
    void (*event_mark)(void *event, void *queue);
    void (*queue_after)(void *queue, void *event); /* later work in the queue waits for the event */
    bool (*event_is_done)(void *event);
    void (*event_wait)(void *event);
    int64_t (*event_ns)(void *event); /* when it happened, as sh_now_ns(); for timed events that are done */
    int64_t (*event_span_ns)(void *begin, void *end); /* from begin to end; to the microsecond, in spans of seconds */
};

/* "cpu", "ref": the CPU with the reference kernels; "cuda" in builds with it. NULL: no such device. */
const struct sh_device *sh_device_find(const char *name);

/* How many threads this rank may use if `sharing` ranks may run on the same cores: its share of them, at least 1. */
int sh_device_threads(int sharing);

/* The cores that this process may run on, as a number: ranks of a node with the same number share them. */
uint64_t sh_device_cores(void);

/* The same cores as a set: core i is bit i % 64 of set[i / 64]. */
enum { SH_DEVICE_CORE_WORDS = 16 };
void sh_device_core_set(uint64_t set[SH_DEVICE_CORE_WORDS]);

/* Use that many threads in kernels from now on. */
void sh_device_set_threads(int threads);

/* Start this program again, with the same arguments and in the same process, such that threads that wait for each other
 * sleep after a tenth of a millisecond. Returns if that is so already, if the user has set OMP_WAIT_POLICY,
 * GOMP_SPINCOUNT or KMP_BLOCKTIME, or if there is only one core. Call it before MPI and before the first thread. */
void sh_device_spin_briefly(char **argv);

/* Memory that the node may use (a container's limit counts), in bytes. */
int64_t sh_device_node_memory(void);

/* How much of it is available now without swapping; memory of other programs is taken into account. */
int64_t sh_device_node_free(void);

/* Largest resident size of this process so far, in bytes. */
int64_t sh_device_peak_rss(void);

extern const struct sh_device sh_device_cpu, sh_device_ref, sh_device_cuda; /* the rows, for sh_device_find() */

#endif
