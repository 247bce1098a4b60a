/* Reads what config.json says about individual blocks: sliding windows, and blocks without rotary positions. Inside
 * io/foreign/hf only; local. */
#ifndef IO_HF_BLOCKS_H
#define IO_HF_BLOCKS_H

#include "io/foreign/hf/config/reader.h"

/* Read no_rope_layers, and store the interval that it follows in r->value[SH_HF_NO_ROPE]. Errors: SH_E_USAGE: it does
 * not follow any interval. */
sh_rc sh_hf_blocks_positions(struct sh_hf_reader *r);

/* Set model.attention_window, window_first_layer and full_attention_interval if any block has a window.
 * Errors: SH_E_USAGE: these keys cannot express which blocks have the window, and it matters for sequences of
 * training.seq_len. */
sh_rc sh_hf_blocks_window(const struct sh_hf_reader *r);

bool sh_hf_blocks_is_key(const struct sh_hf_family *f, const char *key);

/* Key i of those that describe a window, NULL after the last. */
const char *sh_hf_blocks_window_key(int i);

#endif
