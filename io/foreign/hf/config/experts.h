/* What config.json says about experts, apart from their sizes: which blocks have them, and the loss that balances them.
 * Inside io/foreign/hf only; local. */
#ifndef IO_HF_EXPERTS_H
#define IO_HF_EXPERTS_H

#include "io/foreign/hf/config/reader.h"

/* Read mlp_only_layers with decoder_sparse_step, and store what follows in r->value[SH_HF_FIRST_DENSE] and
 * [SH_HF_MOE_EVERY]. A loss that balances experts is not taken over, which is logged. Nothing for families without
 * experts. Errors: SH_E_USAGE: the keys of the model cannot express which blocks have experts. */
sh_rc sh_hf_experts_read(struct sh_hf_reader *r);

#endif
