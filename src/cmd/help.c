/* The help as text, man page and Markdown, all from the tables of commands, options and keys: there is no second list
 * that could diverge. */
#include "src/cmd/cmd.h"

#include "src/base/string/str.h"
#include "src/config/read/give.h"
#include "src/cost/machine.h"

#include <string.h>

enum { WIDTH = 80, INDENT = 6, OPTION_INDENT = 29 };

/* The help texts of options start at the same column; a long name shifts only its own line. */
static void print_option(FILE *out, const struct sh_cmd_option *o)
{
    int column = fprintf(out, "%*s%s%s%s ", INDENT, "", o->name, o->value ? " " : "", o->value ? o->value : "");

    sh_str_wrap(out, WIDTH, column, OPTION_INDENT, o->help);
}

/* One command: its usage line, its summary, its options. */
void sh_cmd_help_of(FILE *out, const struct sh_cmd *c)
{
    fprintf(out, "  sherd %s%s%s%s\n", c->name, c->arguments[0] ? " " : "", c->arguments,
            c->config ? " [--section.key=value ...]" : "");
    sh_str_wrap(out, WIDTH, 0, INDENT, c->summary);
    for (const struct sh_cmd_option *o = sh_cmd_listed(c->options); o->name; o = sh_cmd_listed(o + 1))
        print_option(out, o);
}

/* The numbers are those of sh_rc; one text for --help and the man page. */
#define EXIT_STATUS                                                                                                    \
    "0 done, 2 usage, 3 data, 4 memory, 5 communication, 6 numbers, 7 replicas differ, 70 a bug in Sherd, 75 stopped " \
    "on request: run the same command to resume."

/* What fits on a screen: what there is to do, and where more is said. */
void sh_cmd_help_short(FILE *out)
{
    static const char *const groups[] = {"prepare", "train", "look", "checkpoints", "measure", "and"};

    fputs("Sherd trains language models with sharded data parallelism over MPI.\n\nusage: sherd COMMAND ...\n\n", out);
    for (int g = SH_CMD_PREPARE; g <= SH_CMD_HELP; g++) {
        const char *group = groups[g];

        for (const struct sh_cmd *c = sh_commands; c->name; c++)
            if ((int)c->group == g) {
                fprintf(out, "%-12s %-9s %s\n", group, c->name, c->brief);
                group = "";
            }
    }
    fputs("\n"
          "sherd help WORD       of a command, of all, or of a key such as training.steps\n"
          "sherd help --config   keys of a CONFIG, a YAML file or the name of an example\n",
          out);
}

/* 80 columns, the width of a classic terminal. */
static void help_text(FILE *out)
{
    fputs("Sherd trains language models with sharded data parallelism over MPI.\n\n"
          "usage: sherd COMMAND ...\n"
          "CONFIG is a YAML file, or the name of an example, such as gpt2-124m.\n"
          "A key on the command line takes precedence over CONFIG. Twice on it is an error.\n\n",
          out);
    for (const struct sh_cmd *c = sh_commands; c->name; c++)
        sh_cmd_help_of(out, c);
    fputs("\n  sherd --version\n\n", out);
    sh_str_wrap(out, WIDTH, 0, 0, "Exit status: " EXIT_STATUS);
}

/* Sections of the man page that the tables do not cover. */
static const char more_roff[] =
    ".SH ENVIRONMENT\n"
    ".TP\n.B SHERD_END_TIME\nThe end of the job, in seconds since 1970; if unset, SLURM_JOB_END_TIME. Training saves "
    "and stops before it; see job.stop_before_limit_seconds.\n"
    ".TP\n.B SHERD_LAUNCHED\nWhen the launcher was called, in seconds since 1970; if unset, the start of the process. "
    "start_seconds in metrics.jsonl count from it.\n"
    ".TP\n.B SHERD_START\nThe number of the start in this batch job, which keep-going.sbatch sets: keepers say in which start a rank "
    "has died, and let in no rank of an earlier one.\n"
    ".TP\n.B SHERD_LOST_NODES\nNames of nodes, separated by spaces, that this batch job has lost or left out. A lock "
    "held by one of the job's ranks on such a node is taken over.\n"
    ".SH FILES\nBelow job.dump_folder, ./outputs by default:\n"
    ".TP\n.B config.yaml\nall keys of the run, resolved\n"
    ".TP\n.B metrics.jsonl\none JSON object per step, validation, checkpoint and start\n"
    ".TP\n.B checkpoint/step\\-*.h5\ncheckpoints, HDF5\n"
    ".TP\n.B progress.json\nhow far the run got, and how and why it ended\n"
    ".SH SIGNALS\nSIGINT, SIGTERM and SIGUSR1 make training save and exit with status 75. mpirun itself then exits with "
    "1; progress.json has the 75.\n"
    ".SH EXAMPLES\n.nf\n"
    "sherd tokenize book.txt \\-o train.bin \\-\\-val val.bin\n"
    "mpirun \\-n 2 sherd train gpt2\\-bytes\n"
    "mpirun \\-n 2 sherd eval \\-\\-checkpoint outputs \\-\\-data val.bin\n"
    "sherd generate \\-\\-checkpoint outputs \\-\\-prompt \"Once \"\n"
    "sherd plan llama3.1\\-70b \\-\\-ranks 512\n.fi\n"
    ".SH SEE ALSO\n.BR sherd\\-config (5)\n";

/* Dashes of options are escaped: in roff a bare one is a hyphen, which cannot be searched or copied as a minus. */
static void help_roff(FILE *out)
{
    fputs(
        ".TH SHERD 1\n.nh\n.ad l\n.SH NAME\nsherd \\- train language models with sharded data parallelism over MPI\n.SH SYNOPSIS\n",
        out);
    for (const struct sh_cmd *c = sh_commands; c->name; c++)
        fprintf(out, ".B sherd %s\n%s%s\n.br\n", c->name, c->arguments,
                c->config ? " [\\-\\-section.key=value ...]" : "");
    fputs(".SH COMMANDS\n.I CONFIG\nis a YAML file, or the name of an example, such as gpt2\\-124m.\n", out);
    for (const struct sh_cmd *c = sh_commands; c->name; c++) {
        fprintf(out, ".TP\n.B %s\n%s.\n", c->name, c->summary);
        for (const struct sh_cmd_option *o = sh_cmd_listed(c->options); o->name; o = sh_cmd_listed(o + 1))
            fprintf(out, ".RS\n.TP\n.B \\%s %s\n%s.\n.RE\n", o->name, o->value ? o->value : "", o->help);
    }
    fputs(".SH EXIT STATUS\n" EXIT_STATUS "\n", out);
    fputs(more_roff, out);
}

/* For the documentation, which is generated from this output. */
static void help_markdown(FILE *out)
{
    for (const struct sh_cmd *c = sh_commands; c->name; c++) {
        fprintf(out, "## `sherd %s %s`\n\n%s.\n\n", c->name, c->arguments, c->summary);
        for (const struct sh_cmd_option *o = sh_cmd_listed(c->options); o->name; o = sh_cmd_listed(o + 1))
            fprintf(out, "- `%s%s%s`: %s\n", o->name, o->value ? " " : "", o->value ? o->value : "", o->help);
        fputs(c->options->name ? "\n" : "", out);
    }
}

/* The forms in the order of the enumeration. */
static void help_in(FILE *out, enum sh_config_help form)
{
    static void (*const forms[])(FILE *) = {[SH_HELP_TEXT] = help_text,
                                            [SH_HELP_ROFF] = help_roff,
                                            [SH_HELP_MARKDOWN] = help_markdown,
                                            [SH_HELP_BASH] = sh_cmd_complete_bash,
                                            [SH_HELP_ZSH] = sh_cmd_complete_zsh};
    forms[form](out);
}

/* NULL is text. */
static sh_rc find_form(const char *name, enum sh_config_help *form)
{
    static const char *const names[] = {[SH_HELP_TEXT] = "text",
                                        [SH_HELP_ROFF] = "roff",
                                        [SH_HELP_MARKDOWN] = "markdown",
                                        [SH_HELP_BASH] = "bash",
                                        [SH_HELP_ZSH] = "zsh"};

    *form = SH_HELP_TEXT;
    for (int i = 0; name && i <= SH_HELP_ZSH; i++)
        if (!strcmp(names[i], name)) {
            *form = (enum sh_config_help)i;
            return SH_OK;
        }
    return name ? sh_fail(SH_E_USAGE, "sherd help: no format %s; there are text, roff, markdown, bash and zsh", name)
                : SH_OK;
}

/* `sherd help train`, another way to write `sherd train --help`, `sherd help training.steps`, and `sherd help all`. */
static sh_rc help_of_one(const struct sh_cmd *cmd, const struct sh_cmd_args *args)
{
    const struct sh_cmd *one = sh_cmd_find(args->positional[0]);

    if (args->n_positional > 1)
        return sh_fail(SH_E_USAGE, "sherd help: one command at a time, not %s as well", args->positional[1]);
    /* Refused rather than ignored. */
    if (sh_cmd_option(cmd, args, "--format") || sh_cmd_option(cmd, args, "--config") ||
        sh_cmd_option(cmd, args, "--machine"))
        return sh_fail(SH_E_USAGE, "sherd help: --format and --config apply to the whole help, not to %s alone",
                       args->positional[0]);
    if (!strcmp(args->positional[0], "all"))
        help_text(stdout);
    else if (one)
        sh_cmd_help_of(stdout, one);
    else if (!sh_config_help_key(stdout, args->positional[0]))
        return strchr(args->positional[0], '.') ? sh_config_no_such_key(args->positional[0])
                                                : sh_cmd_unknown(args->positional[0]);
    return SH_OK;
}

/* Exit status 2, with the nearest command. MPI starts the ranks, whatever program does so elsewhere. */
sh_rc sh_cmd_unknown(const char *word)
{
    static const char *const launchers[] = {"torchrun", "accelerate", "deepspeed", "python", "python3"};
    const char *names[SH_CMD_MAX_ARGS], *near;
    int n = 0;

    for (size_t i = 0; i < sizeof launchers / sizeof launchers[0]; i++)
        if (!strcmp(word, launchers[i]))
            return sh_fail(
                SH_E_USAGE,
                "no command %s: sherd is the program, and mpirun or srun starts its ranks: mpirun -n 8 sherd run_clm ...",
                word);
    for (; sh_commands[n].name; n++)
        names[n] = sh_commands[n].name;
    near = sh_str_nearest(word, n, names);
    return sh_fail(SH_E_USAGE, "no command %s%s%s; see sherd --help", word, near ? "; nearest is " : "",
                   near ? near : "");
}

/* The keys of machine files or, for one machine, its figures. */
static sh_rc help_of_machine(const char *name)
{
    struct sh_machine m;

    if (!name[0]) {
        sh_machine_help(stdout);
        return SH_OK;
    }
    SH_TRY(sh_machine_load(name, &m));
    sh_machine_print(&m, stdout);
    fputs(m.n_points ? "points:\n" : "", stdout);
    for (int i = 0; i < m.n_points; i++) {
        sh_machine_print_point(&m.points[i], stdout);
        putchar('\n');
    }
    sh_machine_close(&m);
    return SH_OK;
}

/* --config prints the keys of the configuration instead of the commands. */
sh_rc sh_cmd_help_run(const struct sh_cmd *cmd, const struct sh_cmd_args *args)
{
    enum sh_config_help form;

    if (args->n_positional)
        return help_of_one(cmd, args);
    SH_TRY(find_form(sh_cmd_option(cmd, args, "--format"), &form));
    if (form >= SH_HELP_BASH && sh_cmd_option(cmd, args, "--config"))
        return sh_fail(SH_E_USAGE,
                       "sherd help: --format=bash and zsh complete commands and keys together; leave --config out");
    if (sh_cmd_option(cmd, args, "--machine"))
        return help_of_machine(sh_cmd_option(cmd, args, "--machine"));
    if (sh_cmd_option(cmd, args, "--config"))
        sh_config_help(stdout, form);
    else if (sh_cmd_option(cmd, args, "--format"))
        help_in(stdout, form);
    else
        sh_cmd_help_short(stdout);
    return SH_OK;
}
