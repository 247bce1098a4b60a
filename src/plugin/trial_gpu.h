/* The cuda kernels of a plug-in on the first GPU that this process sees. One thread. */
#ifndef SH_PLUGIN_TRIAL_GPU_H
#define SH_PLUGIN_TRIAL_GPU_H

#include "src/base/err.h"
#include "src/plugin/trial.h"

/* From here on checks try cuda kernels, too. Errors: SH_E_USAGE: no GPU, or a build without CUDA; SH_E_MEMORY. Close it in
 * each case. */
sh_rc sh_trial_gpu_open(void);
void sh_trial_gpu_close(void);
bool sh_trial_gpu_is_open(void);

/* Run the row's cuda kernel: the memory of the trial, guards and all, goes to the GPU, and what is there after the call
 * comes back. late: it arrives only a while after the kernel was called. *returned: by the kernel. Errors: SH_E_BUG: the
 * GPU has failed, and can do nothing any more; SH_E_MEMORY. */
sh_rc sh_trial_gpu_run(struct sh_trial *t, bool late, int *returned);

#endif
