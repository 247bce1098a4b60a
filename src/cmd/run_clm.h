/* The options of run_clm.py and Trainer as keys: `sherd run_clm`. Local. */
#ifndef SH_CMD_RUN_CLM_H
#define SH_CMD_RUN_CLM_H

#include "src/cmd/cmd.h"

/* run_clm_keys.c: keys with values, in the order in which they were first set. They have the precedence of a
 * configuration file. */
enum { SH_CLM_KEYS = 128 };
struct sh_clm_keys {
    const char *key[SH_CLM_KEYS]; /* "section.key", a constant */
    char *value[SH_CLM_KEYS];     /* owned */
    int n;
};

/* Set a key; the last value counts. The value is copied. */
void sh_clm_set(struct sh_clm_keys *keys, const char *key, const char *value);
void sh_clm_set_number(struct sh_clm_keys *keys, const char *key, int64_t value);
void sh_clm_free(struct sh_clm_keys *keys);
char *sh_clm_yaml(const struct sh_clm_keys *keys); /* freed with free() */

/* run_clm_words.c: the options that depend on nothing else, with Trainer's defaults.
 * Errors: SH_E_USAGE: an option that Sherd cannot honour. */
sh_rc sh_clm_words(const struct sh_cmd *cmd, const struct sh_cmd_args *args, struct sh_clm_keys *keys);

/* run_clm_model.c: the model, and whether it starts from weights.
 * Errors: SH_E_USAGE: no model, or more than one; those of sh_hf_config_parse(). */
sh_rc sh_clm_model(const struct sh_cmd *cmd, const struct sh_cmd_args *args, struct sh_clm_keys *keys);

/* run_clm_fsdp.c: --fsdp and --fsdp_config. Errors: SH_E_USAGE; SH_E_DATA: the file. */
sh_rc sh_clm_fsdp(const struct sh_cmd *cmd, const struct sh_cmd_args *args, struct sh_clm_keys *keys);

#endif
