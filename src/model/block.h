/* A model as one of its blocks sees it. Inside src/model only; local. */
#ifndef SH_MODEL_BLOCK_H
#define SH_MODEL_BLOCK_H

#include "src/config/model.h"

/* The model itself if all of its blocks have the same heads; else a copy in *own with the heads of this block: head_dim,
 * n_kv_heads, and keys_as_values, which says that this block has no product of values; and with its ffn_dim. */
const struct sh_model *sh_model_of_block(const struct sh_model *m, int block, struct sh_model *own);

#endif
