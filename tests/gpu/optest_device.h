/* Calls of tests/op/optest.h on a GPU: one source of tests for the emulated kernels and for a real device. The
 * functions below use host memory if SH_CUDA_EMULATED is defined, CUDA's otherwise. A failed check fails the cmocka
 * test. */
#ifndef SH_TESTS_GPU_OPTEST_DEVICE_H
#define SH_TESTS_GPU_OPTEST_DEVICE_H

#include "tests/op/optest.h"

#include <stddef.h>

/* Whether there is a device, for the start of main(); reports a TAP skip if there is none. */
bool optest_device_there(void);

/* bytes of device memory, `shift` bytes after a multiple of 256. Wrong addresses next to it are found by
 * device_free(), and at once by the address sanitizer. */
void *device_alloc(size_t bytes, size_t shift);
void device_free(void *p);
void device_put(void *device, const void *host, size_t bytes);
/* Returns once everything enqueued before is done. */
void device_get(void *host, const void *device, size_t bytes);

/* Run t->call on the device's default stream. Operands are copied there, each at the same offset from an alignment of
 * 64 bytes as here, and sharing storage if they share it here; outputs are copied back. Scratch starts as NaN. */
void optest_device_run(struct optest *t, const struct sh_kernel_table *device);

/* The thread orders of the emulation; 0 is the usual one. A kernel must give the same bits in all of them; on a real
 * device they are just separate runs, and in the simulator of PTX the third has the order of the first. */
#ifdef SHERD_PTX
enum { OPTEST_ORDERS = 2 };
#else
enum { OPTEST_ORDERS = 3 };
#endif
void optest_device_order(int order);

#endif
