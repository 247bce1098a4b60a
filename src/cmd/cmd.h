/* The commands: each is one row and one file. */
#ifndef SH_CMD_CMD_H
#define SH_CMD_CMD_H

#include "io/checkpoint/checkpoint.h"
#include "src/base/err.h"
#include "src/base/file.h"
#include "src/base/problems.h"
#include "src/config/config.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { SH_CMD_MAX_ARGS = 64, SH_CMD_MAX_OPTIONS = 256 };

/* An option of a command besides --section.key=value: "--name VALUE" or "--name=VALUE", or a flag. */
struct sh_cmd_option {
    const char *name; /* "--tokens" */
    const char
        *value;       /* the name of its value in the help, "N"; NULL: a flag. "[N]": the value may be left out; "N...":
                          it may be several words, which are joined by commas */
    const char *help; /* NULL: it is known, and not listed */
    const char *key;  /* (optional) the configuration key that it sets */
    const char *also; /* (optional) another key that it sets, with the value: "section.key=value" */
};

struct sh_cmd_args;

/* What a user wants to do; the order is that of the short help. HELP: commands about the program itself. */
enum sh_cmd_group { SH_CMD_PREPARE, SH_CMD_TRAIN, SH_CMD_LOOK, SH_CMD_CHECKPOINTS, SH_CMD_MEASURE, SH_CMD_HELP };

struct sh_cmd {
    const char *name, *arguments, *summary;
    const char *brief; /* the summary in one line of the short help */
    enum sh_cmd_group group;
    const struct sh_cmd_option *options; /* ends with a NULL name */
    bool config;                         /* takes CONFIG.yaml and --section.key=value */
    bool mpi;                            /* runs as a job: MPI is up when `run` is called, and ranks agree on the rc */
    bool collects;                       /* `run` reports the problems of the arguments, together with its own */
    bool stops;                          /* SIGUSR1, SIGTERM and SIGINT ask it to stop: see sh_job_heard() */
    /* If `mpi` is set, `run` is collective and must return the same class on all ranks. */
    sh_rc (*run)(const struct sh_cmd *cmd, const struct sh_cmd_args *args);
};

/* The next option from this row on that the help lists, or the last row, whose name is NULL. */
const struct sh_cmd_option *sh_cmd_listed(const struct sh_cmd_option *option);

/* The parsed command line. */
struct sh_cmd_args {
    const char *positional[SH_CMD_MAX_ARGS];
    int n_positional;
    const char *overrides[SH_CMD_MAX_ARGS]; /* as sh_config_load() takes them */
    int n_overrides;
    const char *values[SH_CMD_MAX_OPTIONS]; /* by row of the options; NULL: not given; "": given without a value */
    char *joined[SH_CMD_MAX_ARGS + SH_CMD_MAX_OPTIONS]; /* storage of "--section.key value", and of several words */
    int n_joined;
    struct sh_problems problems;
};

extern const struct sh_cmd sh_commands[]; /* ends with a NULL name */
const struct sh_cmd *sh_cmd_find(const char *name);

/* argv[0] is the name of the command. Errors: SH_E_USAGE, a line for each wrong word, with the nearest valid one. */
sh_rc sh_cmd_parse(const struct sh_cmd *cmd, int argc, char **argv, struct sh_cmd_args *args);
void sh_cmd_args_free(struct sh_cmd_args *args);

/* The value of an option, NULL if it was not given. */
const char *sh_cmd_option(const struct sh_cmd *cmd, const struct sh_cmd_args *args, const char *name);
/* The same as a number within [min, max]; `none` if it was not given. Errors: SH_E_USAGE. */
sh_rc sh_cmd_whole(const struct sh_cmd *cmd, const struct sh_cmd_args *args, const char *name, int64_t min, int64_t max,
                   int64_t none, int64_t *out);
/* The same in bytes: a number, or one with a unit as in configurations (sh_config_size). */
sh_rc sh_cmd_bytes(const struct sh_cmd *cmd, const struct sh_cmd_args *args, const char *name, int64_t min, int64_t max,
                   int64_t none, int64_t *out);
sh_rc sh_cmd_number(const struct sh_cmd *cmd, const struct sh_cmd_args *args, const char *name, double min, double max,
                    double none, double *out);

/* --state: which state of a checkpoint is read as the parameters; NULL: the parameters. Errors: SH_E_USAGE: another word
 * than model and ema. */
sh_rc sh_cmd_state(const struct sh_cmd *cmd, const struct sh_cmd_args *args, const char **state);

/* The configuration of the command line: its file, or the one inside the checkpoint if no file is named, and the
 * overrides. */
sh_rc sh_cmd_config(const struct sh_cmd_args *args, const char *checkpoint, struct sh_config *cfg);

/* Set a key, "section.key=value", in place of what the arguments give it; the text is lent. Errors: SH_E_USAGE: too many. */
sh_rc sh_cmd_set(struct sh_cmd_args *args, const char *pair);

/* Whether the arguments set model.hf_assets_path, which can replace a CONFIG. Local. */
bool sh_cmd_names_folder(const struct sh_cmd_args *args);

/* The file that CONFIG names: that file if it exists, else the example of that name, with or without .yaml. Examples
 * are in the source tree for a program that was not installed, in $(datadir)/sherd/examples for one that was. *path is
 * freed with free(). Local. Errors: SH_E_DATA: there is neither; the message lists the examples. */
sh_rc sh_cmd_find_config(const char *given, char **path);

/* The file that --checkpoint names: itself, or the newest valid one in a folder. *path is freed with free().
 * Collective. */
sh_rc sh_cmd_checkpoint(const struct sh_cmd *cmd, const struct sh_cmd_args *args, char **path);

/* output.c: the output of a command for the job: a file that appears once it is complete, or standard output. Only rank
 * 0 has it; `out` is NULL on other ranks. Local. close: commits the file, or deletes it if rc is a failure. Returns rc
 * or its own failure; safe without an open. */
struct sh_cmd_output {
    struct sh_new_file file;
    FILE *out;
};
sh_rc sh_cmd_output_open(const char *path, struct sh_cmd_output *o); /* NULL: standard output */
sh_rc sh_cmd_output_close(struct sh_cmd_output *o, sh_rc rc);

/* eval_task.c: whether the arguments ask to evaluate the texts of a file, and that evaluation. */
bool sh_cmd_eval_is_task(const struct sh_cmd *cmd, const struct sh_cmd_args *args);
sh_rc sh_cmd_eval_task(const struct sh_cmd *cmd, const struct sh_cmd_args *args);

void sh_cmd_help_short(FILE *out);                        /* a line for each command */
void sh_cmd_help_of(FILE *out, const struct sh_cmd *cmd); /* one command, as text */
void sh_cmd_complete_bash(FILE *out); /* a script to source, or to install as the shell's completion */
void sh_cmd_complete_zsh(FILE *out);
void sh_cmd_version(FILE *out);
sh_rc sh_cmd_unknown(const char *word); /* SH_E_USAGE, with the nearest command */

/* src/tools/ckpt/average.c: the mean of `n` files, whose owners have been checked. */
sh_rc sh_cmd_ckpt_average(const struct sh_cmd_args *args, char *const *files, int n);

/* src/tools/ckpt/foreign.c: export a checkpoint to a folder of transformers, and import one from it. */
sh_rc sh_cmd_ckpt_export(const struct sh_cmd_args *args, const char *file);
sh_rc sh_cmd_ckpt_import(const struct sh_cmd_args *args, enum sh_cfg_trust trust);

/* data.c: print the first document of a file, decoded by its tokenizer; text that is trained on is in angle
 * brackets. */
sh_rc sh_cmd_data_first(const char *path, const char *tokenizer);

/* train.c: the steps of `train` with its configuration. settle: refuses a configuration without data, and resolves keys
 * that depend on the data. Local. print_config: on rank 0's standard output. Every rank calls it, with the same
 * configuration. train_with: the run. Collective. */
sh_rc sh_cmd_settle(struct sh_config *cfg);
sh_rc sh_cmd_print_config(const struct sh_config *cfg);
sh_rc sh_cmd_train_with(const struct sh_config *cfg);

sh_rc sh_cmd_train(const struct sh_cmd *cmd, const struct sh_cmd_args *args);
sh_rc sh_cmd_drill(const struct sh_cmd *cmd, const struct sh_cmd_args *args);
sh_rc sh_cmd_keep(const struct sh_cmd *cmd, const struct sh_cmd_args *args);
sh_rc sh_cmd_run_clm(const struct sh_cmd *cmd, const struct sh_cmd_args *args);
sh_rc sh_cmd_config_run(const struct sh_cmd *cmd, const struct sh_cmd_args *args);
sh_rc sh_cmd_plan(const struct sh_cmd *cmd, const struct sh_cmd_args *args);
sh_rc sh_cmd_doctor(const struct sh_cmd *cmd, const struct sh_cmd_args *args);
sh_rc sh_cmd_tokenize(const struct sh_cmd *cmd, const struct sh_cmd_args *args);
sh_rc sh_cmd_data(const struct sh_cmd *cmd, const struct sh_cmd_args *args);
sh_rc sh_cmd_generate(const struct sh_cmd *cmd, const struct sh_cmd_args *args);
sh_rc sh_cmd_eval(const struct sh_cmd *cmd, const struct sh_cmd_args *args);
sh_rc sh_cmd_ckpt(const struct sh_cmd *cmd, const struct sh_cmd_args *args);
sh_rc sh_cmd_report(const struct sh_cmd *cmd, const struct sh_cmd_args *args);
sh_rc sh_cmd_plugin(const struct sh_cmd *cmd, const struct sh_cmd_args *args);
sh_rc sh_cmd_diff(const struct sh_cmd *cmd, const struct sh_cmd_args *args);
sh_rc sh_cmd_audit(const struct sh_cmd *cmd, const struct sh_cmd_args *args);
sh_rc sh_cmd_check(const struct sh_cmd *cmd, const struct sh_cmd_args *args);
sh_rc sh_cmd_study(const struct sh_cmd *cmd, const struct sh_cmd_args *args);
sh_rc sh_cmd_bench(const struct sh_cmd *cmd, const struct sh_cmd_args *args);
sh_rc sh_cmd_help_run(const struct sh_cmd *cmd, const struct sh_cmd_args *args);
sh_rc sh_cmd_version_run(const struct sh_cmd *cmd, const struct sh_cmd_args *args);

/* Check by a hash that all ranks have read the same, since they must go through the same steps. Collective, agreed.
 *   what  "prompts". Errors: SH_E_DATA. */
sh_rc sh_cmd_same_on_all(const char *what, uint64_t hash);

#endif
