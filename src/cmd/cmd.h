/* The commands: one row and one file each. */
#ifndef SH_CMD_CMD_H
#define SH_CMD_CMD_H

#include "io/checkpoint/checkpoint.h"
#include "src/base/err.h"
#include "src/base/file.h"
#include "src/config/config.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { SH_CMD_MAX_ARGS = 64 };

/* An option of a command besides --section.key=value: "--name VALUE" or "--name=VALUE", or a flag. */
struct sh_cmd_option {
    const char *name;  /* "--tokens" */
    const char *value; /* what it is called in the help, "N"; NULL: a flag */
    const char *help;
    const char *key;  /* (optional) the configuration key that it sets */
    const char *also; /* (optional) and another with its value, "section.key=value" */
    bool bare;        /* the value may be left out */
};

struct sh_cmd_args;

struct sh_cmd {
    const char *name, *arguments, *summary;
    const struct sh_cmd_option *options; /* ends with a NULL name */
    bool config;                         /* takes CONFIG.yaml and --section.key=value */
    bool mpi;                            /* runs as a job: MPI is up when `run` is called, and the rc is agreed */
    bool stops;                          /* SIGUSR1, SIGTERM and SIGINT ask it to stop: sh_job_heard() tells */
    /* Where `mpi` is set, `run` is collective and must return the same class on all ranks. */
    sh_rc (*run)(const struct sh_cmd *cmd, const struct sh_cmd_args *args);
};

/* What stood on the command line. */
struct sh_cmd_args {
    const char *positional[SH_CMD_MAX_ARGS];
    int n_positional;
    const char *overrides[SH_CMD_MAX_ARGS]; /* "section.key=value" */
    int n_overrides;
    const char *values[SH_CMD_MAX_ARGS]; /* by row of the options; NULL: not given; "" without a value */
    char *joined[SH_CMD_MAX_ARGS];       /* storage of "--section.key value" and of options that set a key */
    int n_joined;
};

extern const struct sh_cmd sh_commands[]; /* ends with a NULL name */
const struct sh_cmd *sh_cmd_find(const char *name);

/* argv[0] is the command's name. Errors: SH_E_USAGE with the word that is wrong and the nearest that is right. */
sh_rc sh_cmd_parse(const struct sh_cmd *cmd, int argc, char **argv, struct sh_cmd_args *args);
void sh_cmd_args_free(struct sh_cmd_args *args);

/* The value of an option, NULL when it was not given. */
const char *sh_cmd_option(const struct sh_cmd *cmd, const struct sh_cmd_args *args, const char *name);
/* As a number within [min, max]; `none` when it was not given. Errors: SH_E_USAGE. */
sh_rc sh_cmd_whole(const struct sh_cmd *cmd, const struct sh_cmd_args *args, const char *name, int64_t min, int64_t max,
                   int64_t none, int64_t *out);
/* The same in bytes: a number, or one with a unit as configurations have it (sh_config_size). */
sh_rc sh_cmd_bytes(const struct sh_cmd *cmd, const struct sh_cmd_args *args, const char *name, int64_t min, int64_t max,
                   int64_t none, int64_t *out);
sh_rc sh_cmd_number(const struct sh_cmd *cmd, const struct sh_cmd_args *args, const char *name, double min, double max,
                    double none, double *out);

/* The configuration of the command line: its file, or the one inside the checkpoint when none is named, and the
 * overrides. */
sh_rc sh_cmd_config(const struct sh_cmd_args *args, const char *checkpoint, struct sh_config *cfg);

/* Whether the arguments set model.hf_assets_path, which stands for a CONFIG. Local. */
bool sh_cmd_names_folder(const struct sh_cmd_args *args);

/* The file that CONFIG stands for: itself where there is one, else the example of that name, with or without .yaml:
 * in the source tree for a program that was not installed, in $(datadir)/sherd/examples for one that was. *path is freed
 * with free(). Local. Errors: SH_E_DATA: neither, with the names that there are. */
sh_rc sh_cmd_find_config(const char *given, char **path);

/* What --checkpoint means: the file, or the newest valid one of a folder. *path is freed with free(). Collective. */
sh_rc sh_cmd_checkpoint(const struct sh_cmd *cmd, const struct sh_cmd_args *args, char **path);

/* output.c: what a command writes for the job: a file that appears when it is complete, or standard output. Rank 0 has it;
 * `out` is NULL on others. Local.
 * close: commits the file, or where rc is a failure deletes it. Returns rc or its own failure; fine without an open. */
struct sh_cmd_output {
    struct sh_new_file file;
    FILE *out;
};
sh_rc sh_cmd_output_open(const char *path, struct sh_cmd_output *o); /* NULL: standard output */
sh_rc sh_cmd_output_close(struct sh_cmd_output *o, sh_rc rc);

/* eval_task.c: whether the arguments ask for texts of a file, and their evaluation. */
bool sh_cmd_eval_is_task(const struct sh_cmd *cmd, const struct sh_cmd_args *args);
sh_rc sh_cmd_eval_task(const struct sh_cmd *cmd, const struct sh_cmd_args *args);

void sh_cmd_help(FILE *out, enum sh_config_help form);
void sh_cmd_help_of(FILE *out, const struct sh_cmd *cmd); /* one command, as text */
void sh_cmd_complete_bash(FILE *out); /* a script to source, or to install for the shell's completion */
void sh_cmd_complete_zsh(FILE *out);
void sh_cmd_version(FILE *out);
sh_rc sh_cmd_unknown(const char *word); /* SH_E_USAGE, with the nearest command */

/* ckpt_hf.c: a checkpoint to a folder of transformers, and back. */
sh_rc sh_cmd_ckpt_export(const struct sh_cmd_args *args, const char *file);
sh_rc sh_cmd_ckpt_import(const struct sh_cmd_args *args, enum sh_cfg_trust trust);

/* data.c: the first document of a file, as its tokenizer has it; what is trained stands in angle brackets. */
sh_rc sh_cmd_data_first(const char *path, const char *tokenizer);

/* train.c: what `train` does with its configuration.
 * settle: refuses one without data, and resolves what the data decide. Local.
 * print_config: on rank 0's standard output. Every rank calls it, with the same configuration.
 * train_with: the run. Collective. */
sh_rc sh_cmd_settle(struct sh_config *cfg);
sh_rc sh_cmd_print_config(const struct sh_config *cfg);
sh_rc sh_cmd_train_with(const struct sh_config *cfg);

sh_rc sh_cmd_train(const struct sh_cmd *cmd, const struct sh_cmd_args *args);
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
sh_rc sh_cmd_bench(const struct sh_cmd *cmd, const struct sh_cmd_args *args);
sh_rc sh_cmd_help_run(const struct sh_cmd *cmd, const struct sh_cmd_args *args);
sh_rc sh_cmd_version_run(const struct sh_cmd *cmd, const struct sh_cmd_args *args);

/* Whether all ranks have read the same, by its hash: they go through the same steps. Collective, agreed.
 *   what  "prompts". Errors: SH_E_DATA. */
sh_rc sh_cmd_same_on_all(const char *what, uint64_t hash);

#endif
