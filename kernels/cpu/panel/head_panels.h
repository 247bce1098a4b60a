/* The head on processors that multiply packed panels (panel.h), in bf16. kernels/cpu/head.c works by matrix products
 * and passes over rows of logits; this works on squares of 32 x 32 logits that never leave the caches. Local; opens
 * parallel regions. */
#ifndef SH_PANEL_HEAD_PANELS_H
#define SH_PANEL_HEAD_PANELS_H

#include "kernels/op.h"

/* Scratch of HEAD_LOSS or HEAD_LOSS_GRAD with `threads` threads. With gradients, most of it is 2 bytes per logit of
 * attr->head.chunk_rows rows. */
int64_t sh_panel_head_work_bytes(const struct sh_op_call *call, int threads);

/* What the loss of a row counts; 0: the row is skipped. */
static inline float sh_panel_head_weight(const struct sh_op_call *call, int64_t row)
{
    const int32_t *targets = call->in[2].data;
    const float *weight = call->in[3].data;

    return targets[row] < 0 ? 0 : weight ? weight[row] : 1;
}

/* Sums over the rows that count, which any engine makes in the order of the rows. */
struct sh_panel_head_sums {
    double of[SH_HEAD_NUMBERS];
};

/* Loss and squares of row i; squares: NULL: there are none. */
static inline void sh_panel_head_add(struct sh_panel_head_sums *sums, const double *loss, const double *squares,
                                     int64_t i)
{
    sums->of[SH_HEAD_SUM] += loss[i];
    sums->of[SH_HEAD_SQUARES] += squares ? squares[i] : 0;
}

/* As many as out[0] has. */
static inline void sh_panel_head_store(const struct sh_op_call *call, struct sh_panel_head_sums sums)
{
    double *out = call->out[0].data;

    for (int64_t k = 0; k < call->out[0].dim[0]; k++)
        out[k] = sh_op_adds(call, 0) ? out[k] + sums.of[k] : sums.of[k];
}

/* Run a call of either kind. Errors: SH_E_BUG if the scratch is too small. */
sh_rc sh_panel_head_run(const struct sh_op_call *call, struct sh_panel_head_sums *sums);

#endif
