/* Part of the double of NCCL: calls that fail on request, and delays. */
#ifndef SH_TESTS_GPU_EMULATED_NCCL_FAULT_H
#define SH_TESTS_GPU_EMULATED_NCCL_FAULT_H

enum sh_nccl_fault { SH_NCCL_WELL, SH_NCCL_ERROR, SH_NCCL_ASYNC };

/* Start a call: returns what is to happen to it (SHERD_EMULATED_NCCL_FAIL), after a delay (.._DELAY). Does not return
 * from a call that hangs. */
enum sh_nccl_fault sh_nccl_fault_of(const char *call);

void sh_nccl_delay(void);

#endif
