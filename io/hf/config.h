/* config.json of transformers: to keys of `model`, and from them. Local. */
#ifndef IO_HF_CONFIG_H
#define IO_HF_CONFIG_H

#include "io/json/json.h"
#include "src/config/config.h"

enum { SH_HF_CONFIG_MAX = 1 << 20 }; /* bytes */

/* The hook of src/config: give each key of `model` what FOLDER/config.json says, or the default of its class where it says
 * nothing. Both spellings are read: rope_parameters and dtype, and the older rope_theta with rope_scaling.
 * A key that is not known and has a value is refused by name, but those that model.hf_ignore names; dropouts are left out,
 * which is said.
 * Errors: SH_E_DATA: no folder, no file, no JSON; SH_E_USAGE: a model that is not computed here, with the reason. */
sh_rc sh_hf_config_read(const struct sh_config *so_far, const char *place, sh_config_give_value give, void *to);

/* The same of text in memory; so_far->hf.assets_path is not looked at. */
sh_rc sh_hf_config_parse(const char *text, size_t bytes, const struct sh_config *so_far, const char *place,
                         sh_config_give_value give, void *to);

/* Errors: SH_E_USAGE: config.json of the family cannot say which blocks have a window. */
sh_rc sh_hf_config_can_write(const struct sh_config *cfg);

/* The text for a model with weights of `dtype` ("bfloat16"), in both spellings, freed with free(). Ids of tokens and the
 * like, which `cfg` does not have, are those of `source`, another config.json; NULL: none, and the ids are null.
 * Errors: those of sh_hf_config_can_write(); SH_E_DATA: `source` is there and cannot be read. */
sh_rc sh_hf_config_write(const struct sh_config *cfg, const char *dtype, const char *source, char **text);

/* The same with the text of that other config.json, as a checkpoint keeps it; NULL: none. */
sh_rc sh_hf_config_write_kept(const struct sh_config *cfg, const char *dtype, const char *kept, char **text);

#endif
