/* Adapter folders in PEFT's format: adapter_config.json and adapter_model.safetensors. Local. */
#ifndef IO_HF_ADAPTER_H
#define IO_HF_ADAPTER_H

#include "src/config/config.h"

#define SH_HF_ADAPTER_CONFIG "adapter_config.json"
#define SH_HF_ADAPTER_FILE "adapter_model.safetensors"
#define SH_HF_ADAPTER_PREFIX "base_model.model." /* before the names of the model's modules */

/* Whether PEFT takes the adapters of a run for what they are; otherwise they are exported merged only. */
bool sh_hf_adapter_fits(const struct sh_config *cfg);

/* Make the adapter_config.json of a run with cfg->lora; *text is freed with free(). Errors: SH_E_USAGE: the adapters do not fit.
 *   base  in  the model that the file names as its base; NULL, "": none */
sh_rc sh_hf_adapter_write(const struct sh_config *cfg, const char *base, char **text);

/* Check that a folder's adapters are what cfg->lora says. Names and shapes are compared when the tensors are read.
 * Errors: SH_E_DATA: adapter_config.json is missing or damaged; another rank or scale, with the key; any feature that
 * is not implemented here, by name. */
sh_rc sh_hf_adapter_check(const char *folder, const struct sh_config *cfg);

#endif
