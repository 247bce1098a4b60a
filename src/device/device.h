/* Where a program runs: memory, copies to and from it, and a kernel for each operation.
 *
 * A device is one row of a table, chosen by name. The arena is the one allocation of a run; it starts zeroed, so that
 * padding is zero, and its pages are the process's only when first touched. Local. */
#ifndef SH_DEVICE_DEVICE_H
#define SH_DEVICE_DEVICE_H

#include "kernels/op.h"
#include "src/base/err.h"

#include <stdint.h>

struct sh_device {
    const char *name;
    const struct sh_kernel_table *kernels;
    /* One range of addresses: own_bytes of this process, then segment_bytes of the file segment_fd (whole pages; 0 bytes:
     * none). SH_E_MEMORY when it cannot be had. */
    sh_rc (*arena_create)(int64_t own_bytes, int64_t segment_bytes, int segment_fd, char **arena);
    void (*arena_destroy)(char *arena, int64_t bytes); /* of both */
    void (*put)(void *device, const void *host, int64_t bytes); /* host to device */
    void (*get)(void *host, const void *device, int64_t bytes); /* device to host */
};

/* "cpu", or "ref": the CPU with the reference kernels. NULL: no such device. */
const struct sh_device *sh_device_find(const char *name);

/* Threads for one of `sharing` ranks that may run on the same cores as this one: its share of them, at least 1. */
int sh_device_threads(int sharing);

/* The cores that this process may run on, as a number: ranks of a node with the same number share them. */
uint64_t sh_device_cores(void);

/* Use that many threads in kernels from now on. */
void sh_device_set_threads(int threads);

/* Memory that the node may use (a container's limit counts), in bytes. */
int64_t sh_device_node_memory(void);

/* Largest resident size of this process so far, in bytes. */
int64_t sh_device_peak_rss(void);

#endif
