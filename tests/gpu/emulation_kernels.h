/* Kernels with known faults, for test_emulation.c. */
#ifndef SH_TESTS_GPU_EMULATION_KERNELS_H
#define SH_TESTS_GPU_EMULATION_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* y [n] = x [n] reversed within each block of 256, through shared memory, with its barrier or without. */
void emulation_reverse(uint32_t *y, const uint32_t *x, int n, bool barrier);
/* The same with shuffles within warps of 32. */
void emulation_reverse_warps(uint32_t *y, const uint32_t *x, int n);
/* y[0] = the sum of 0 .. threads - 1 over all `blocks`, with atomics; `ordered`: instead each block doubles y[0] and
 * adds its number, so the result depends on the order of blocks. */
void emulation_sum(uint32_t *y, int blocks, bool ordered);

/* Each of these ends the program in some way. */
enum emulation_fault {
    EMULATION_HALF_WARP,   /* half of a warp has ended, the others shuffle */
    EMULATION_TWO_PLACES,  /* two barriers, half of the block at each */
    EMULATION_WARP_BLOCK,  /* a lane at the block's barrier, the rest of its warp in a shuffle */
    EMULATION_PART_MASK,   /* a shuffle of sixteen lanes */
    EMULATION_ODD_BLOCK,   /* a block of 33 threads */
    EMULATION_BIG_SHARED,  /* a megabyte of shared memory */
    EMULATION_PAST_SHARED, /* one element past shared memory: for the address sanitizer */
    EMULATION_BAD_VECTOR,  /* 16 bytes that start in the middle of 16: for the sanitizer */
    EMULATION_FAULTS
};
void emulation_fault(enum emulation_fault fault);

/* Shared memory at the start of a kernel: whether all of it is NaN. */
bool emulation_shared_is_poisoned(void);

#ifdef __cplusplus
}
#endif
#endif
