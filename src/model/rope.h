/* Rotary positions of a model, as the emitter takes them. Inside src/model only; local. */
#ifndef SH_MODEL_ROPE_H
#define SH_MODEL_ROPE_H

#include "src/config/model.h"
#include "src/program/emit.h"

/* How many elements of a head the table is for; and of one in a block with a window. */
int sh_model_rotary_dim(const struct sh_model *m);
int sh_model_rotary_dim_local(const struct sh_model *m);

/* What DeepSeek multiplies scores by if positions are stretched; 0: nothing. */
float sh_model_sharper(const struct sh_model *m);

/*   length  of sequences, or of the cache; it decides which list of longrope applies */
struct sh_emit_rope sh_model_rope(const struct sh_model *m, int length);
struct sh_emit_rope
sh_model_rope_local(const struct sh_model *m); /* for blocks with a window, if they have their own */

#endif
