/* Losses of plug-ins, called for each target and for each pair. Local. */
#ifndef SH_KERNELS_PLUG_LOSS_H
#define SH_KERNELS_PLUG_LOSS_H

#include "kernels/op.h"
#include "kernels/preference.h"

/* The kernel of a loss of targets, in the order of the rows: weight = minus its derivative, 0 without a target. */
sh_rc sh_plug_target_loss(const struct sh_op_call *call);

/* Of a pair, by the call's kind: PAIR_LOSS, or a loss of pairs of a plug-in. l: the sums without the reference. */
struct sh_pair_slope sh_plug_pair_slope(const struct sh_op_call *call, struct sh_pair_answer chosen,
                                        struct sh_pair_answer rejected);

/* What an answer counts in the metrics: to a loss of a plug-in attr->plug.reward times l - ref. */
double sh_plug_pair_reward(const struct sh_op_call *call, struct sh_pair_answer a);

#endif
