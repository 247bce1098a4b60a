/* Calls of tests/op/optest.h on a GPU: one source of tests for the emulated kernels and for a real device. What follows
 * is host memory when SH_CUDA_EMULATED is defined, and CUDA's otherwise. What fails, fails the cmocka test. */
#ifndef SH_TESTS_GPU_OPTEST_DEVICE_H
#define SH_TESTS_GPU_OPTEST_DEVICE_H

#include "tests/op/optest.h"

#include <stddef.h>

/* Whether there is a device, for the beginning of main(); says in TAP what is skipped when there is none. */
bool optest_device_there(void);

/* bytes of device memory, `shift` bytes behind a multiple of 256. Wrong addresses next to it are found by
 * device_free(), and at once by the address sanitizer. */
void *device_alloc(size_t bytes, size_t shift);
void device_free(void *p);
void device_put(void *device, const void *host, size_t bytes);
/* What was enqueued before is done when it returns. */
void device_get(void *host, const void *device, size_t bytes);

/* Run t->call on the device's default stream: operands are copied there (each as far from an alignment of 64 bytes as
 * it is here, and in one place where they are in one place here), and outputs back. Scratch starts as NaN. */
void optest_device_run(struct optest *t, const struct sh_kernel_table *device);

/* The orders of threads that the emulation knows, of which 0 is the usual one. A kernel must give the same bits in
 * all; on a real device they are runs of their own. */
enum { OPTEST_ORDERS = 3 };
void optest_device_order(int order);

#endif
