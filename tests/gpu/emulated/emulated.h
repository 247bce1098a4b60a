/* What the doubles share (cudart.c, cublaslt.c, nccl.c, cuda_on_cpu.cc). Valid C and C++.
 *
 * They are told what to do by the environment, so that the program under test is the one that users run:
 *   SHERD_EMULATED_GPUS          how many there are; none when it is not set
 *   SHERD_EMULATED_MIB           the memory of each; 16 GiB when it is not set
 *   SHERD_EMULATED_SEED          of everything that is drawn
 *   SHERD_EMULATED_DROP          the how manieth cudaStreamWaitEvent of a process is forgotten
 *   SHERD_EMULATED_FAULT         the how manieth kernel of a process uses an invalid address; from when it is done on, every
 *                                wait for the device says so
 *   SHERD_EMULATED_PINNED_MIB    the host memory that a process may pin; any when it is not set
 *   SHERD_EMULATED_COPY_FAIL     the how manieth copy of a process is refused
 *   SHERD_EMULATED_CLOCK_SECONDS what was recorded before the first kernel is so much older for cudaEventElapsedTime
 *   SHERD_EMULATED_LT_FASTEST    which of cuBLASLt's 3 answers takes no time; the others take 50 ms more
 *   SHERD_EMULATED_LT_VERSION    what cublasLtGetVersion says
 *   SHERD_EMULATED_COUNTERS      a file that each process adds a line to: what it has done
 *   SHERD_EMULATED_FOLDER        where the ranks meet; /dev/shm when it is not set
 *   SHERD_EMULATED_NCCL_FAIL     "CALL RANK COUNT WHAT": the COUNTth call of that name on that rank (* for all ranks)
 *                                fails with an `error`, does not return (`hang`), or returns and fails later (`async`)
 *   SHERD_EMULATED_NCCL_DELAY    microseconds: a call takes up to that much longer, at random
 *   SHERD_EMULATED_NCCL_VERSION  what ncclGetVersion says */
#ifndef SH_TESTS_GPU_EMULATED_H
#define SH_TESTS_GPU_EMULATED_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Put work into a stream; it runs once, and frees its argument. */
void sh_emulated_put(void *stream, void (*work)(void *arg), void *arg);

/* The same of work that waits for other ranks. With NCCL_LAUNCH_ORDER_IMPLICIT it begins behind all such work that was put
 * into any stream before. */
void sh_emulated_put_in_order(void *stream, void (*work)(void *arg), void *arg);

/* Kernels and products, by doubles that also work without the others: put them into a stream, and return the error that a
 * launch would find, 0 for none. NULL: they are done on the spot. */
extern int (*sh_emulated_launch)(void *stream, void (*work)(void *arg), void *arg);

/* What a process has done so far. At its end a line is added to the file SHERD_EMULATED_COUNTERS. */
enum sh_emulated_counter {
    SH_EMULATED_LAUNCHES,   /* of kernels and products */
    SH_EMULATED_WAITS,      /* of a host thread for the device */
    SH_EMULATED_HOST_BYTES, /* copied from the device */
    SH_EMULATED_QUERIES,    /* of events */
    SH_EMULATED_THREADS,    /* made by NCCL */
    SH_EMULATED_OTHER,      /* products by another kernel than cuBLASLt's first answer */
    SH_EMULATED_PINNED,     /* bytes of host memory, given back or not */
    SH_EMULATED_COUNTERS
};
void sh_emulated_count(enum sh_emulated_counter which, int64_t n);
int64_t sh_emulated_counted(enum sh_emulated_counter which);

/* The how manieth stream of the process this is; 0: the default one. */
int sh_emulated_stream_number(void *stream);

/* Work that is put into a stream next touches this memory. label: for the judge of order, and must stay. */
void sh_emulated_access(void *stream, const void *at, int64_t bytes, int write, const char *label);

/* A number from the environment; 0 when it is not set. */
long sh_emulated_number(const char *name);

/* 0 to sides - 1, by the seed. Any thread. */
unsigned sh_emulated_dice(unsigned sides);

#ifdef __cplusplus
}
#endif
#endif
