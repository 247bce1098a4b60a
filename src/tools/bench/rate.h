/* The best rates of this machine, measured with the device's own kernels: operations per second in a large square
 * product, bytes per second in a large copy. All ranks measure at once, as they work in training. Collective, agreed.
 * */
#ifndef SH_BENCH_RATE_H
#define SH_BENCH_RATE_H

#include "src/device/device.h"

struct sh_rate {
    const struct sh_device *device;
    int threads;
    void *queue;
    char *memory; /* operands of the product, or of the copy */
    int64_t bytes, side;
};

/* The device is open, and lent. Memory: 256 MiB of a CPU, 1 GiB of a GPU, or twice copy_bytes if that is more.
 * Errors: SH_E_MEMORY. Call sh_rate_close() even after an error. */
sh_rc sh_rate_open(const struct sh_device *device, int threads, int64_t copy_bytes, struct sh_rate *out);
void sh_rate_close(struct sh_rate *r); /* local */

/* Write zeros everywhere: only then does memory have its own pages. Local. */
void sh_rate_touch(const struct sh_device *device, void *queue, char *memory, int64_t bytes);

/* Seconds that n calls take one after the other on the slowest rank, as the mean over enough repetitions to fill 20 ms.
 * The queue of each call is r->queue. */
sh_rc sh_rate_calls(const struct sh_rate *r, const struct sh_op_call *calls, int64_t n, double *seconds);

/* [side,side] = [side,side] [side,side], with a result of the operands' type. */
sh_rc sh_rate_product(const struct sh_rate *r, enum sh_dtype dtype, double *seconds);
double sh_rate_product_flops(const struct sh_rate *r);

/* Copy n bytes, at most half of the memory: n bytes are read and n bytes written. */
sh_rc sh_rate_copy(const struct sh_rate *r, int64_t n, double *seconds);

#endif
