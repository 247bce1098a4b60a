/* The parameters of a Hugging Face folder into a model: each rank reads its own ranges of its files, and those that want
 * the same read it together. */
#ifndef IO_HF_LOAD_H
#define IO_HF_LOAD_H

#include "io/checkpoint/checkpoint.h"
#include "src/config/config.h"

/* Fill data[SH_CKPT_MODEL] of the set's pieces. 16-bit types are widened exactly. Beside the data 33 MiB.
 *   family  in  of the model: names differ in their first part
 * Collective, agreed. Errors: SH_E_DATA: a file that is damaged or not trusted; a tensor that is missing, too many, of
 * another shape or type, or with a number that is not finite, by name; a tied model whose output matrix is another one. */
sh_rc sh_hf_load(const char *folder, const char *family, const struct sh_ckpt_set *set,
                 const struct sh_ckpt_load_options *options);

/* The same of a folder of adapters as PEFT saves them, which must be what cfg->lora says. Errors: as above, and those of
 * sh_hf_adapter_check(). */
sh_rc sh_hf_load_adapter(const char *folder, const struct sh_config *cfg, const struct sh_ckpt_set *set,
                         const struct sh_ckpt_load_options *options);

#endif
