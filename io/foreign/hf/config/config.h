/* Translates config.json of transformers into keys of `model` and back. Local. */
#ifndef IO_HF_CONFIG_H
#define IO_HF_CONFIG_H

#include "io/json/json.h"
#include "src/config/config.h"

enum { SH_HF_CONFIG_MAX = 1 << 20 }; /* bytes */

/* The hook of src/config: give each key of `model` the value in FOLDER/config.json, or the default of the model's class
 * if the file does not say. Both spellings are read: rope_parameters and dtype, and the older rope_theta with
 * rope_scaling. An unknown key with a value is refused by name, unless model.hf_ignore names it; dropouts are ignored,
 * which is logged.
 * Errors: SH_E_DATA: no folder, no file, not JSON; SH_E_USAGE: a model that is not supported here, with the reason. */
sh_rc sh_hf_config_read(const struct sh_config *so_far, const char *place, sh_config_give_value give, void *to);

/* The same for text in memory; so_far->hf.assets_path is not used. */
sh_rc sh_hf_config_parse(const char *text, size_t bytes, const struct sh_config *so_far, const char *place,
                         sh_config_give_value give, void *to);

/* Whether there is a folder, or a file, of that name. Local. Errors: SH_E_DATA: no; for a name of the Hub the message has
 * the command that downloads it. */
sh_rc sh_hf_config_find(const char *folder);

/* Whether the first class that FOLDER/config.json names predicts tokens; false also if it cannot be read. Local. */
bool sh_hf_config_predicts(const char *folder);

/* Check that config.json can describe the model. Errors: SH_E_USAGE: the family's config.json has no way to express
 * something, e.g. which blocks have a window. */
sh_rc sh_hf_config_can_write(const struct sh_config *cfg);

/* Make the config.json of a model with weights of `dtype` ("bfloat16"), in both spellings; freed with free(). Token ids
 * and the like, which `cfg` does not have, are copied from `source`, the path of another config.json; NULL: there is
 * none, and the ids are null. Errors: those of sh_hf_config_can_write(); SH_E_DATA: `source` exists and cannot
 * be read. */
sh_rc sh_hf_config_write(const struct sh_config *cfg, const char *dtype, const char *source, char **text);

/* The same, with the text of the other config.json as a checkpoint keeps it; NULL: none. */
sh_rc sh_hf_config_write_kept(const struct sh_config *cfg, const char *dtype, const char *kept, char **text);

#endif
