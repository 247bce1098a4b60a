/* What config.json of a Granite 4 says about its blocks, of which some have Mamba-2. Inside io/foreign/hf only; local. */
#ifndef IO_HF_GRANITE_H
#define IO_HF_GRANITE_H

#include "io/foreign/hf/config/reader.h"

#include <stdio.h>

/* Check the list of blocks, their positions and the limits of a step, and set r->value of what follows from other keys: the
 * width of a head, the least step, and without experts the widths of feed-forward parts. Nothing for other families.
 * Errors: SH_E_USAGE with the key: what is not computed here, or sizes that the class refuses. */
sh_rc sh_hf_granite_read(struct sh_hf_reader *r);

/* The bits of block i (src/config/layers.h), after sh_hf_granite_read(). */
unsigned sh_hf_granite_kind(const struct sh_hf_reader *r, long long i);

bool sh_hf_granite_is_key(const struct sh_hf_family *f, const char *key);

/* Whether the class can have the sizes of Mamba-2; SH_E_USAGE if not. Nothing for other families. */
sh_rc sh_hf_granite_can_write(const struct sh_hf_family *f, const struct sh_model *m);

/* Our key for a value of this class, which may depend on the model; NULL: the member is left out. */
const char *sh_hf_granite_key(const struct sh_model *m, int value);

/* The members of a config.json, each after a comma; nothing for other families. */
void sh_hf_granite_print(const struct sh_hf_family *f, const struct sh_config *cfg, FILE *out);

#endif
