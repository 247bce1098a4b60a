/* Times of the products of experts, for tests/gpu/bench: the program of test_cuda_moe.c with
 * SHERD_TIME_EXPERTS="EXPERTS WIDTH_OUT WIDTH_IN ROWS" prints a line of JSON for each operation and each way to divide the
 * rows, with microseconds of Sherd's own kernel, of each answer of cuBLASLt for grouped products, and of one dense product
 * with as many operations. By the clock of the host, over several runs that end with a wait. */
#ifndef SH_TESTS_GPU_TIME_EXPERTS_H
#define SH_TESTS_GPU_TIME_EXPERTS_H

/* The exit status. */
int time_experts(const char *sizes);

#endif
