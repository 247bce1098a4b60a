/* `sherd ckpt VERB`: work with checkpoint files outside a run. No MPI: one process, which may run on a login node. */
#include "src/cmd/cmd.h"

#include "src/base/log.h"

#include "io/checkpoint/checkpoint.h"
#include "io/file/outside.h"
#include "src/run/save/newest.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Tensors shown in a diff, unless all are requested: a training step changes every tensor. */
enum { DIFFERENCES = 5 };

/* A NULL ends `options` if there are fewer than eleven. */
struct verb {
    const char *name, *arguments;
    int n_arguments;         /* negative: at least as many */
    const char *options[12]; /* options of the command's table that apply to this verb */
    sh_rc (*run)(const struct sh_cmd_args *args);
};

/* Looks in the table of the command; before a verb runs, options that it does not take have been refused. */
static const char *option(const struct sh_cmd_args *args, const char *name)
{
    return sh_cmd_option(sh_cmd_find("ckpt"), args, name);
}

/* "owner" by default: a file of another user is refused before any of it is read. */
static sh_rc read_trust(const struct sh_cmd_args *args, enum sh_cfg_trust *trust)
{
    const char *word = option(args, "--trust");

    *trust = word && !strcmp(word, "any") ? SH_TRUST_ANY : SH_TRUST_OWNER;
    if (word && strcmp(word, "owner") && strcmp(word, "any"))
        return sh_fail(SH_E_USAGE, "sherd ckpt: --trust must be owner or any, not %s", word);
    return SH_OK;
}

/* Finds the file that is meant, and checks its owner before it is read. */
static sh_rc find(const struct sh_cmd_args *args, int positional, char **file)
{
    enum sh_cfg_trust trust;
    sh_rc rc;

    SH_TRY(read_trust(args, &trust));
    SH_TRY(sh_newest_find(args->positional[positional], file));
    rc = sh_ckpt_trusted(*file, trust);
    if (rc != SH_OK) {
        free(*file);
        *file = NULL;
    }
    return rc;
}

/* Reads only the index, so it is quick for any size. */
static sh_rc run_info(const struct sh_cmd_args *args)
{
    char *file;
    sh_rc rc;

    SH_TRY(find(args, 1, &file));
    rc = sh_ckpt_info(file,
                      (option(args, "--tensors") ? SH_CKPT_INFO_TENSORS : 0U) |
                          (option(args, "--config") ? SH_CKPT_INFO_CONFIG : 0U),
                      stdout);
    free(file);
    return rc;
}

/* Reads every byte; exit status 3 if a block is damaged. */
static sh_rc run_verify(const struct sh_cmd_args *args)
{
    char *file;
    sh_rc rc;

    SH_TRY(find(args, 1, &file));
    rc = sh_ckpt_verify(file, stdout);
    free(file);
    return rc;
}

/* Prints to memory first: an empty folder is an error, which is known only at the end. */
static sh_rc list(const char *folder, bool quick)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *f = open_memstream(&text, &bytes);
    sh_rc rc;

    if (!f)
        return sh_fail(SH_E_MEMORY, "list %s: %s", folder, strerror(errno));
    rc = sh_ckpt_list(folder, quick, f);
    fclose(f);
    /* A script that lists the wrong folder should see it. */
    if (rc == SH_OK && bytes == 0)
        rc = sh_newest_none(folder);
    fputs(text, stdout);
    free(text);
    return rc;
}

/* FOLDER may be that of a run or that of its checkpoints. */
static sh_rc run_ls(const struct sh_cmd_args *args)
{
    char *folder;
    sh_rc rc;

    SH_TRY(sh_newest_folder(args->positional[1], &folder));
    rc = list(folder, option(args, "--quick") != NULL);
    free(folder);
    return rc;
}

/* -1 is a result, not a failure: scripts ask before the first checkpoint exists. */
static sh_rc run_latest(const struct sh_cmd_args *args)
{
    char *path = NULL, *folder;
    sh_rc rc;

    SH_TRY(sh_newest_folder(args->positional[1], &folder));
    SH_TRY_OUT(sh_newest_whole(folder, &path));
    if (!path && sh_outside_refuse(folder) != SH_OK)
        sh_log_warn("%s", sh_error_text());
    sh_error_clear();
    printf("%lld\n", path ? (long long)sh_ckpt_step_of(path) : -1LL);
out:
    free(path);
    free(folder);
    return rc;
}

/* The library decides the exit status: SH_E_DATA if the files differ. */
static sh_rc run_diff(const struct sh_cmd_args *args)
{
    char *a = NULL, *b = NULL;
    sh_rc rc;

    SH_TRY_OUT(find(args, 1, &a));
    SH_TRY_OUT(find(args, 2, &b));
    rc = sh_ckpt_diff(a, b, option(args, "--all") ? 0 : DIFFERENCES, stdout);
out:
    free(a);
    free(b);
    return rc;
}

/* All files are found, and their owners checked, before any of them is read. */
static sh_rc run_average(const struct sh_cmd_args *args)
{
    char *files[SH_CMD_MAX_ARGS] = {NULL};
    int n = args->n_positional - 1;
    sh_rc rc;

    for (int i = 0; i < n; i++)
        SH_TRY_OUT(find(args, i + 1, &files[i]));
    rc = sh_cmd_ckpt_average(args, files, n);
out:
    for (int i = 0; i < n; i++)
        free(files[i]);
    return rc;
}

/* One tensor of one state, as .npy. */
static sh_rc extract(const struct sh_cmd_args *args, const char *state, const char *out)
{
    char *file;
    sh_rc rc;

    SH_TRY(find(args, 1, &file));
    rc = sh_ckpt_extract(file, args->positional[2], state, out);
    free(file);
    return rc;
}

/* Without --state, the parameters themselves. */
static sh_rc run_extract(const struct sh_cmd_args *args)
{
    const char *state = option(args, "--state"), *out = option(args, "-o");

    if (!out)
        return sh_fail(SH_E_USAGE, "sherd ckpt extract: where should it go? give -o OUT.npy");
    return extract(args, state ? state : "model", out);
}

/* Without --keep-latest nothing is deleted: a default here would cost somebody a model. */
static sh_rc run_prune(const struct sh_cmd_args *args)
{
    const struct sh_cmd *cmd = sh_cmd_find("ckpt");
    int64_t latest, every;
    char *folder;
    sh_rc rc;

    SH_TRY(sh_cmd_whole(cmd, args, "--keep-latest", 1, 1000000000, 0, &latest));
    SH_TRY(sh_cmd_whole(cmd, args, "--keep-every", 1, 1000000000000, 0, &every));
    if (latest == 0)
        return sh_fail(SH_E_USAGE, "sherd ckpt prune: how many should stay? give --keep-latest K");
    SH_TRY(sh_newest_folder(args->positional[1], &folder));
    rc = sh_ckpt_prune(folder, &(struct sh_ckpt_keep){.latest = (int)latest, .every = every},
                       option(args, "--dry-run") != NULL, stdout);
    free(folder);
    return rc;
}

/* The file is found, and its owner checked, before anything is written. */
static sh_rc run_export(const struct sh_cmd_args *args)
{
    char *file;
    sh_rc rc;

    SH_TRY(find(args, 1, &file));
    rc = sh_cmd_ckpt_export(args, file);
    free(file);
    return rc;
}

static sh_rc run_import(const struct sh_cmd_args *args)
{
    enum sh_cfg_trust trust;

    SH_TRY(read_trust(args, &trust));
    return sh_cmd_ckpt_import(args, trust);
}

static const struct verb verbs[] = {
    {"info", "FILE", 1, {"--tensors", "--config", "--trust"}, run_info},
    {"verify", "FILE", 1, {"--trust"}, run_verify},
    {"ls", "FOLDER", 1, {"--quick"}, run_ls},
    {"latest", "FOLDER", 1, {NULL}, run_latest},
    {"diff", "FILE FILE", 2, {"--all", "--trust"}, run_diff},
    {"average", "FILE FILE... -o FOLDER", -2, {"-o", "--weights", "--trust"}, run_average},
    {"extract", "FILE TENSOR -o OUT.npy", 2, {"-o", "--state", "--trust"}, run_extract},
    {"prune", "FOLDER --keep-latest K", 1, {"--keep-latest", "--keep-every", "--dry-run"}, run_prune},
    {"export",
     "FILE -o DIR|--adapter DIR",
     1,
     {"-o", "--dtype", "--max-shard-size", "--hf", "--verify", "--trust", "--adapter", "--merge", "--merge-base",
      "--base", "--moments", "--state"},
     run_export},
    {"import", "DIR -o FOLDER", 1, {"-o", "--ignore", "--allow-nan", "--weights-only", "--trust"}, run_import},
};

/* An option of another verb is refused, not ignored: --keep-latest with ls would look as if it had an effect. */
static sh_rc check_options(const struct verb *v, const struct sh_cmd_args *args)
{
    const struct sh_cmd_option *row = sh_cmd_find("ckpt")->options;

    for (int i = 0; row[i].name; i++) {
        bool known = !args->values[i];

        for (size_t k = 0; k < sizeof v->options / sizeof *v->options && v->options[k]; k++)
            known = known || !strcmp(v->options[k], row[i].name);
        if (!known)
            return sh_fail(SH_E_USAGE, "sherd ckpt %s: %s has no effect here; see sherd ckpt --help", v->name,
                           row[i].name);
    }
    return SH_OK;
}

/* The verb itself is positional 0, so one more is expected. */
static sh_rc run_verb(const struct verb *v, const struct sh_cmd_args *args)
{
    int n = args->n_positional - 1;

    if (v->n_arguments < 0 ? n < -v->n_arguments : n != v->n_arguments)
        return sh_fail(SH_E_USAGE, "sherd ckpt %s: usage: sherd ckpt %s %s", v->name, v->name, v->arguments);
    SH_TRY(check_options(v, args));
    return v->run(args);
}

/* There is no default verb: each of them does something different to files. */
sh_rc sh_cmd_ckpt(const struct sh_cmd *cmd, const struct sh_cmd_args *args)
{
    (void)cmd;
    if (args->n_positional == 0)
        return sh_fail(
            SH_E_USAGE,
            "sherd ckpt: what to do? info, verify, ls, latest, diff, average, extract, prune, export or import; see sherd ckpt --help");
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++)
        if (!strcmp(verbs[i].name, args->positional[0]))
            return run_verb(&verbs[i], args);
    return sh_fail(
        SH_E_USAGE,
        "sherd ckpt: no verb %s; there are info, verify, ls, latest, diff, average, extract, prune, export and import",
        args->positional[0]);
}
