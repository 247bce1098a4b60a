/* What config.json says of single blocks: sliding windows, and blocks without rotary positions. Inside io/hf only; local. */
#ifndef IO_HF_BLOCKS_H
#define IO_HF_BLOCKS_H

#include "io/hf/reader.h"

/* no_rope_layers as the interval that it follows, into r->value[SH_HF_NO_ROPE]. Errors: SH_E_USAGE: it follows none. */
sh_rc sh_hf_blocks_positions(struct sh_hf_reader *r);

/* Give training.seq_len the window's length where nobody has said it and its default is longer.
 * Errors: SH_E_USAGE: a sequence of training.seq_len would see a window. */
sh_rc sh_hf_blocks_window(const struct sh_hf_reader *r);

bool sh_hf_blocks_is_key(const struct sh_hf_family *f, const char *key);

/* Key i that a window is written with, NULL behind the last. */
const char *sh_hf_blocks_window_key(int i);

#endif
