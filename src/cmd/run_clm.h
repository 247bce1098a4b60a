/* The options of run_clm.py and Trainer as keys: `sherd run_clm`. src/config/trainer.inc has what each stands for. Local. */
#ifndef SH_CMD_RUN_CLM_H
#define SH_CMD_RUN_CLM_H

#include "src/cmd/cmd.h"

/* One start: its options, and the keys so far, in the order in which they were first set. They have the precedence of a
 * configuration file. */
struct sh_clm_key {
    char *name, *value; /* "section.key"; owned */
    char *option;       /* that set it; NULL: no option did */
};
struct sh_clm {
    const struct sh_cmd *cmd;
    const struct sh_cmd_args *args;
    struct sh_clm_key *keys;
    int n_keys, most_keys;
    struct sh_problems problems;
    char *ignored; /* options without effect here, ", " after each; NULL: none */
};

/* The value of an option, NULL if it was not given. */
const char *sh_clm_option(const struct sh_clm *c, const char *name);

/* run_clm_keys.c. set: the last value counts. default: a value for a key that has none. choose: on behalf of an
 * option; two that differ are refused. */
void sh_clm_set(struct sh_clm *c, const char *key, const char *value);
void sh_clm_set_number(struct sh_clm *c, const char *key, int64_t value);
void sh_clm_default(struct sh_clm *c, const char *key, const char *value);
sh_rc sh_clm_choose(struct sh_clm *c, const char *option, const char *key, const char *value);
const char *sh_clm_get(const struct sh_clm *c, const char *key); /* NULL: not set */
char *sh_clm_yaml(const struct sh_clm *c);                       /* freed with free() */
void sh_clm_free(struct sh_clm *c);

/* run_clm_words.c: all options that depend on nothing else, with Trainer's defaults for those that are not given. Notes
 * problems. Errors: others than SH_E_USAGE. */
sh_rc sh_clm_words(struct sh_clm *c);
sh_rc sh_clm_truth(const struct sh_clm *c, const char *option,
                   bool *on); /* false if it is not given, true after a failure */

/* run_clm_model.c: the model, and whether it starts from weights.
 * Errors: SH_E_USAGE: no model, or more than one, or it is no folder; those of sh_hf_config_parse(). */
sh_rc sh_clm_model(struct sh_clm *c);

#endif
