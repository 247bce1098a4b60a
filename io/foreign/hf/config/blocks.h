/* Reads what config.json says about individual blocks: sliding windows, and blocks without rotary positions. Inside
 * io/foreign/hf only; local. */
#ifndef IO_HF_BLOCKS_H
#define IO_HF_BLOCKS_H

#include "io/foreign/hf/config/reader.h"

/* Set model.layer_types, and model.attention_window if any block has a window. Errors: SH_E_USAGE: a list is wrong, or
 * its blocks change too often. */
sh_rc sh_hf_blocks_read(const struct sh_hf_reader *r);

/* Whether block i has the window, if the model has one. */
bool sh_hf_blocks_slides(const struct sh_hf_reader *r, long long i);

bool sh_hf_blocks_is_key(const struct sh_hf_family *f, const char *key);

/* Key i of those that describe a window, NULL after the last. */
const char *sh_hf_blocks_window_key(int i);

#endif
