/* The head on processors that multiply packed panels (panel.h), in bf16. kernels/cpu/head.c works by matrix products
 * and passes over rows of logits; this works on squares of 32 x 32 logits that never leave the caches. Local; opens
 * parallel regions. */
#ifndef SH_PANEL_HEAD_PANELS_H
#define SH_PANEL_HEAD_PANELS_H

#include "kernels/op.h"

/* Scratch of HEAD_LOSS or HEAD_LOSS_GRAD with `threads` threads. With gradients, most of it is 2 bytes per logit of
 * attr->head.chunk_rows rows. */
int64_t sh_panel_head_work_bytes(const struct sh_op_call *call, int threads);

/* Run a call of either kind; *loss: the sum over rows with a target. Errors: SH_E_BUG if the scratch is too small. */
sh_rc sh_panel_head_run(const struct sh_op_call *call, double *loss);

#endif
