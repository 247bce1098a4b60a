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

/* Sums over the rows that count, which any engine makes in the order of the rows: the second one for attr->head.squares. */
struct sh_head_sums {
    double loss, squares;
};

/* Row i; squares: NULL: there are none. */
static inline void sh_head_add(struct sh_head_sums *sums, const double *loss, const double *squares, int64_t i)
{
    sums->loss += loss[i];
    sums->squares += squares ? squares[i] : 0;
}

/* To out[0], which may have a second number. */
static inline void sh_head_store(const struct sh_op_call *call, bool squares, struct sh_head_sums sums)
{
    double *out = call->out[0].data;
    bool add = sh_op_adds(call, 0);

    out[0] = add ? out[0] + sums.loss : sums.loss;
    if (squares)
        out[1] = add ? out[1] + sums.squares : sums.squares;
}

/* Run a call of either kind. Errors: SH_E_BUG if the scratch is too small. */
sh_rc sh_panel_head_run(const struct sh_op_call *call, struct sh_head_sums *sums);

#endif
