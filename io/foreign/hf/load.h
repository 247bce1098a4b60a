/* Loads the parameters of a Hugging Face folder into a model: each rank reads its own ranges of the files, and ranks
 * that need the same data share the reading. */
#ifndef IO_HF_LOAD_H
#define IO_HF_LOAD_H

#include "io/checkpoint/checkpoint.h"
#include "src/config/config.h"

/* Fill data[SH_CKPT_MODEL] of the set's pieces. 16-bit types are widened exactly. Memory: 33 MiB in addition to the
 * data.
 *   family  in  of the model: the first part of tensor names differs between families
 * Collective, agreed. Errors: SH_E_DATA: a file that is damaged or not trusted; a tensor that is missing or unexpected,
 * has another shape or type, or contains a number that is not finite, by name; a tied model whose output matrix differs
 * from the embedding.
 *   lacks_labels  out  whether the folder is one of a language model, without the matrix of labels that the set has: it
 *                      stays unchanged, and the output matrix of words is left out. NULL: that is an error */
sh_rc sh_hf_load(const char *folder, const char *family, const struct sh_ckpt_set *set,
                 const struct sh_ckpt_load_options *options, bool *lacks_labels);

/* The same for an adapter folder of PEFT, whose adapters must be what cfg->lora says. Errors: as above, and those of
 * sh_hf_adapter_check(). */
sh_rc sh_hf_load_adapter(const char *folder, const struct sh_config *cfg, const struct sh_ckpt_set *set,
                         const struct sh_ckpt_load_options *options);

#endif
