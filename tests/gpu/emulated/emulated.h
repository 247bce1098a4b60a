/* Shared by the doubles (cudart.c, cublaslt.c, nccl.c, cuda_on_cpu.cc). Valid C and C++.
 *
 * The environment controls them, so that the program under test is the one that users run:
 *   SHERD_EMULATED_GPUS          how many GPUs there are; none if unset
 *   SHERD_EMULATED_MIB           the memory of each; 16 GiB if unset
 *   SHERD_EMULATED_SHARED_KIB    the shared memory that a block may have; an H100's if unset
 *   SHERD_EMULATED_HIDDEN        1: each process sees one GPU, which no other process sees
 *   SHERD_EMULATED_CAPABILITY    their compute capability, 75 for 7.5, for which the program has no code; 9.0 with code
 *                                if unset
 *   SHERD_EMULATED_SEED          the seed of everything that is drawn at random
 *   SHERD_EMULATED_DROP          N: the Nth cudaStreamWaitEvent of a process is dropped
 *   SHERD_EMULATED_FAULT         N: the Nth kernel of a process uses an invalid address; once it has run, every wait
 *                                for the device returns that error
 *   SHERD_EMULATED_PINNED_MIB    the host memory that a process may pin; no limit if unset
 *   SHERD_EMULATED_COPY_FAIL     N: the Nth copy of a process is refused
 *   SHERD_EMULATED_CLOCK_SECONDS for cudaEventElapsedTime, anything recorded before the first kernel is that much older
 *   SHERD_EMULATED_LT_FASTEST    which of cuBLASLt's 3 answers takes no time; the others take 50 ms more
 *   SHERD_EMULATED_LT_VERSION    what cublasLtGetVersion returns
 *   SHERD_EMULATED_LT_FAIL       N: the Nth grouped product of a process fails. There are some from version 13.2 on, and
 *                                cublasLtGetVersion returns that of the headers unless told otherwise
 *   SHERD_EMULATED_LT_REFUSE     "WHAT HOW": the products that cuBLASLt has no kernel for, `bias` for those with a bias,
 *                                `grouped`, `all`, or N for the Nth that it is asked about; it returns no answer (`none`), one
 *                                that it marks as unusable (`unusable`), a status of "not supported" (`status`), or
 *                                another error (`error`)
 *   SHERD_EMULATED_COUNTERS      a file to which each process adds a line about what it has done
 *   SHERD_EMULATED_FOLDER        where the ranks meet; /dev/shm if unset
 *   SHERD_EMULATED_NCCL_FAIL     "CALL RANK COUNT WHAT": the COUNTth call of that name on that rank (* for all ranks)
 *                                fails with an `error`, does not return (`hang`), or returns and fails later (`async`)
 *   SHERD_EMULATED_NCCL_DELAY    microseconds: a call takes up to that much longer, at random
 *   SHERD_EMULATED_NCCL_VERSION  what ncclGetVersion returns
 *   SHERD_EMULATED_NCCL_MIB      what a communicator takes of the GPU's memory at its first collective of each kind that
 *                                moves more than a KiB */
#ifndef SH_TESTS_GPU_EMULATED_H
#define SH_TESTS_GPU_EMULATED_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Put work into a stream; it runs once, and frees its argument. */
void sh_emulated_put(void *stream, void (*work)(void *arg), void *arg);

/* The same for work that waits for other ranks. With NCCL_LAUNCH_ORDER_IMPLICIT it starts after all such work that
 * was put into any stream before. */
void sh_emulated_put_in_order(void *stream, void (*work)(void *arg), void *arg);

/* For doubles of kernels and products, which also work without the others: put the work into a stream, and return the
 * error that a launch would find, 0 for none. NULL: the work is done on the spot. */
extern int (*sh_emulated_launch)(void *stream, void (*work)(void *arg), void *arg);

/* For doubles of products, in programs whose double of the runtime has it: device memory was written. */
void sh_emulated_written(const void *at, size_t bytes);

/* What a process has done so far. When it ends, a line is added to the file SHERD_EMULATED_COUNTERS. */
enum sh_emulated_counter {
    SH_EMULATED_LAUNCHES,    /* of kernels and products */
    SH_EMULATED_WAITS,       /* by a host thread for the device */
    SH_EMULATED_HOST_BYTES,  /* copied from the device */
    SH_EMULATED_QUERIES,     /* of events */
    SH_EMULATED_THREADS,     /* created by NCCL */
    SH_EMULATED_OTHER,       /* products by a kernel other than cuBLASLt's first answer */
    SH_EMULATED_PINNED,      /* bytes of host memory, whether given back or not */
    SH_EMULATED_CONNECTIONS, /* CUDA_DEVICE_MAX_CONNECTIONS at the first call of the runtime */
    SH_EMULATED_COUNTERS
};
void sh_emulated_count(enum sh_emulated_counter which, int64_t n);
int64_t sh_emulated_counted(enum sh_emulated_counter which);

/* The number of the stream within the process; 0: the default stream. */
int sh_emulated_stream_number(void *stream);

/* The next work put into the stream accesses this memory. label: used in order.h's messages, must stay valid. */
void sh_emulated_access(void *stream, const void *at, int64_t bytes, int write, const char *label);

/* A number from the environment; 0 if unset. */
long sh_emulated_number(const char *name);

/* 0 to sides - 1, from the seed. Any thread. */
unsigned sh_emulated_dice(unsigned sides);

#ifdef __cplusplus
}
#endif
#endif
