/* The options of run_clm.py and Trainer as keys: `sherd run_clm`. src/config/foreign/trainer.inc has what each
 * stands for. Local, but for locate. */
#ifndef SH_RUN_CLM_CLM_H
#define SH_RUN_CLM_CLM_H

#include "src/cmd/cmd.h"

/* The keys so far, in the order in which they were first set. They have the precedence of a configuration file. */
struct sh_clm_key {
    char *name, *value; /* "section.key"; owned */
    char *option;       /* that set it; NULL: no option did */
};

/* What is done every so many steps, and the words of its strategy. */
enum { SH_CLM_LOG, SH_CLM_SAVE, SH_CLM_EVAL, SH_CLM_EVENTS };
enum sh_clm_when { SH_CLM_NEVER, SH_CLM_STEPS, SH_CLM_EPOCHS };

static const int64_t SH_CLM_MOST_STEPS = 1000000000000;

/* One start: its options and what they ask for, which the stages fill in this order. */
struct sh_clm {
    const struct sh_cmd *cmd;
    const struct sh_cmd_args *args;
    int rank, world;
    bool prints_only;
    struct sh_clm_key *keys;
    int n_keys, most_keys;
    struct sh_problems problems;
    char *ignored;          /* options without effect here, ", " after each; NULL: none */
    struct sh_config cfg;   /* of the keys so far */
    bool known[2];          /* whether each file is one that can be read, as far as its name and first line say */
    bool evaluates, splits; /* splits: the validation set is the end of the training text */
    enum sh_clm_when when[SH_CLM_EVENTS];
    double every[SH_CLM_EVENTS]; /* below 1: share of the steps; 0: not given */
    double epochs, warmup;       /* warmup: below 1 a share of the steps */
    int64_t most, accumulate, percent;
    int64_t done[2];                 /* steps and samples of earlier starts */
    char newest[SH_CONFIG_PATH_MAX]; /* checkpoint of the own folder, on rank 0; "": none */
};

/* Note a problem, so that one start reports all; other failures end the function. */
#define SH_CLM_NOTE(call) SH_TRY(sh_problems_note(&c->problems, (call)))
#define sh_clm_refuse(...) sh_fail(SH_E_USAGE, "sherd run_clm: " __VA_ARGS__)

/* words.c. option: its value, NULL if it was not given. gives: whether the command line sets a key. truth: false if the
 * option is not given, true after a failure. words: all options that depend on nothing else, with Trainer's defaults for
 * those that are not given; notes problems. Errors of words: others than SH_E_USAGE. */
const char *sh_clm_option(const struct sh_clm *c, const char *name);
bool sh_clm_gives(const struct sh_clm *c, const char *key);
sh_rc sh_clm_truth(const struct sh_clm *c, const char *option, bool *on);
sh_rc sh_clm_words(struct sh_clm *c);

/* keys.c. set: the last value counts. default: a value for a key that has none. choose: on behalf of an option; two
 * that differ are refused. load: makes c->cfg of the keys and those of the command line, which take precedence. */
void sh_clm_set(struct sh_clm *c, const char *key, const char *value);
void sh_clm_set_number(struct sh_clm *c, const char *key, int64_t value);
void sh_clm_default(struct sh_clm *c, const char *key, const char *value);
sh_rc sh_clm_choose(struct sh_clm *c, const char *option, const char *key, const char *value);
const char *sh_clm_get(const struct sh_clm *c, const char *key); /* NULL: not set */
bool sh_clm_has(const void *c, const char *key);
sh_rc sh_clm_load(struct sh_clm *c);
void sh_clm_free(struct sh_clm *c);

/* model.c: the model, and whether it starts from weights.
 * Errors: SH_E_USAGE: no model, or more than one, or it is no folder; those of sh_hf_config_parse(). */
sh_rc sh_clm_model(struct sh_clm *c);

/* data.c. check_files: by name and first line; notes problems. set_files: the keys, for a text those of the token file
 * that it will become. tokenize_all: on rank 0. count_windows: the sequences of an epoch. Errors: SH_E_USAGE: there is
 * no tokenizer, or the text is not tokenized yet; those of sh_corpus_tokenize(), sh_data_open(). */
bool sh_clm_is_text(const char *name);
sh_rc sh_clm_check_files(struct sh_clm *c);
sh_rc sh_clm_set_files(struct sh_clm *c);
sh_rc sh_clm_tokenize_all(const struct sh_clm *c);
sh_rc sh_clm_count_windows(struct sh_clm *c, int64_t *windows);

/* steps.c. read_numbers: notes problems. locate: where earlier starts stopped; collective, agreed. set_steps,
 * set_events: once the data are there; *epoch has the steps of an epoch, if any option asks for it. */
sh_rc sh_clm_read_numbers(struct sh_clm *c);
sh_rc sh_clm_locate(struct sh_clm *c);
sh_rc sh_clm_set_steps(struct sh_clm *c, int64_t *epoch);
void sh_clm_set_events(struct sh_clm *c, int64_t epoch);

#endif
