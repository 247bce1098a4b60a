/* Blocks whose heads have a state in place of attention, by the gated delta rule or as in Mamba-2. Inside src/model only; local. */
#ifndef SH_MODEL_DELTA_H
#define SH_MODEL_DELTA_H

#include "src/model/part.h"

/* Whether the block being emitted is one, and one of Mamba-2. */
bool sh_model_has_delta(const struct decoder *d);
bool sh_model_has_scan(const struct decoder *d);

/* Declare what it has beside its products: the convolution, the numbers of each head, the norm behind them. */
void sh_model_delta_declare(struct decoder *d, struct branch *b);

/* Between the norms of the branch. [N,C] -> [N,C] */
int sh_model_delta(struct decoder *d, int x, const struct branch *b);
int sh_model_scan(struct decoder *d, int x, const struct branch *b);

#endif
