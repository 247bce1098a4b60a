/* Inside of the double of NCCL: calls that fail on request, and take their time. */
#ifndef SH_TESTS_GPU_EMULATED_NCCL_FAULT_H
#define SH_TESTS_GPU_EMULATED_NCCL_FAULT_H

enum sh_nccl_fault { SH_NCCL_WELL, SH_NCCL_ERROR, SH_NCCL_ASYNC };

/* Begin a call: what is to become of it (SHERD_EMULATED_NCCL_FAIL), after a delay (.._DELAY). Does not return from one
 * that hangs. */
enum sh_nccl_fault sh_nccl_fault_of(const char *call);

void sh_nccl_delay(void);

#endif
