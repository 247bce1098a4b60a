/* What config.json says of single blocks: sliding windows, and blocks without rotary positions. Inside io/hf only; local. */
#ifndef IO_HF_BLOCKS_H
#define IO_HF_BLOCKS_H

#include "io/hf/reader.h"

/* no_rope_layers as the interval that it follows, into r->value[SH_HF_NO_ROPE]. Errors: SH_E_USAGE: it follows none. */
sh_rc sh_hf_blocks_positions(struct sh_hf_reader *r);

/* Give model.attention_window, window_first_layer and full_attention_interval where a block has a window.
 * Errors: SH_E_USAGE: these keys cannot say which blocks have it, and a sequence of training.seq_len would see it. */
sh_rc sh_hf_blocks_window(const struct sh_hf_reader *r);

bool sh_hf_blocks_is_key(const struct sh_hf_family *f, const char *key);

/* Key i that a window is written with, NULL behind the last. */
const char *sh_hf_blocks_window_key(int i);

#endif
