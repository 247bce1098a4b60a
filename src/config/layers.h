/* The blocks of a model that differ from each other: model.layer_types. The text is a pattern that repeats over the
 * blocks, runs of words separated by commas, such as "5*sliding,full" or "3*full,full_nope". Local. */
#ifndef SH_CONFIG_LAYERS_H
#define SH_CONFIG_LAYERS_H

#include "src/config/model.h"

#include <stdbool.h>
#include <stddef.h>

/* Bits of a block. Words: full, sliding, full_nope, sliding_nope; linear, which has no attention, and mlp and moe, which
 * have a feed-forward part or experts alone, have their bit alone. */
enum { SH_LAYER_SLIDING = 1, SH_LAYER_NOPE = 2, SH_LAYER_LINEAR = 4, SH_LAYER_MLP = 8, SH_LAYER_MOE = 16 };

/* The bits of block `block`, counted from 0. Without a text all blocks are alike: they have positions, and the window if
 * the model has one. */
unsigned sh_layers_kind(const struct sh_model *m, int block);

/* Whether a text can be read. Besides our words those of transformers can be, full_attention, sliding_attention and linear_attention.
 *   bad  out  [size] the word that is wrong; "": there is none at all */
bool sh_layers_check(const char *text, char *bad, size_t size);

/* Print the kinds of [n] blocks with the shortest pattern that is seen twice, or else all of them.
 * Returns false if the text is longer than a model can hold. */
bool sh_layers_print(const unsigned char *kinds, int n, char *text, size_t size);

/* Whether any of the model's blocks has the bit. */
bool sh_layers_any(const struct sh_model *m, unsigned bit);

#endif
