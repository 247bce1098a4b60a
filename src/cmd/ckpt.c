#include "src/cmd/cmd.h"

#include "io/checkpoint/checkpoint.h"

#include <stdio.h>
#include <string.h>

struct verb {
    const char *name, *arguments;
    int n_arguments;
    const char *options[4]; /* of the command's table, those that mean something here */
    sh_rc (*run)(const struct sh_cmd_args *args);
};

static const char *option(const struct sh_cmd_args *args, const char *name)
{
    return sh_cmd_option(sh_cmd_find("ckpt"), args, name);
}

static sh_rc look_at_owner(const struct sh_cmd_args *args, int positional)
{
    const char *trust = option(args, "--trust");

    if (trust && strcmp(trust, "owner") && strcmp(trust, "any"))
        return sh_fail(SH_E_USAGE, "sherd ckpt: --trust %s is none of owner, any", trust);
    return sh_ckpt_trusted(args->positional[positional],
                           trust && !strcmp(trust, "any") ? SH_CKPT_TRUST_ANY : SH_CKPT_TRUST_OWNER);
}

static sh_rc run_info(const struct sh_cmd_args *args)
{
    SH_TRY(look_at_owner(args, 1));
    return sh_ckpt_info(args->positional[1], stdout);
}

static sh_rc run_verify(const struct sh_cmd_args *args)
{
    SH_TRY(look_at_owner(args, 1));
    return sh_ckpt_verify(args->positional[1], stdout);
}

static sh_rc run_ls(const struct sh_cmd_args *args)
{
    return sh_ckpt_list(args->positional[1], option(args, "--quick") != NULL, stdout);
}

static sh_rc run_diff(const struct sh_cmd_args *args)
{
    SH_TRY(look_at_owner(args, 1));
    SH_TRY(look_at_owner(args, 2));
    return sh_ckpt_diff(args->positional[1], args->positional[2], stdout);
}

static sh_rc run_extract(const struct sh_cmd_args *args)
{
    static const char *const states[SH_CKPT_STATES] = {
        [SH_CKPT_MODEL] = "model", [SH_CKPT_EXP_AVG] = "exp_avg", [SH_CKPT_EXP_AVG_SQ] = "exp_avg_sq"};
    const char *state = option(args, "--state"), *out = option(args, "-o");

    if (!out)
        return sh_fail(SH_E_USAGE, "sherd ckpt extract: where to? give -o OUT.npy");
    SH_TRY(look_at_owner(args, 1));
    for (int s = 0; s < SH_CKPT_STATES; s++)
        if (!strcmp(state ? state : states[SH_CKPT_MODEL], states[s]))
            return sh_ckpt_extract(args->positional[1], args->positional[2], (enum sh_ckpt_state)s, out);
    return sh_fail(SH_E_USAGE, "sherd ckpt extract: --state %s is none of model, exp_avg, exp_avg_sq", state);
}

static sh_rc run_prune(const struct sh_cmd_args *args)
{
    const struct sh_cmd *cmd = sh_cmd_find("ckpt");
    int64_t latest, every;

    SH_TRY(sh_cmd_whole(cmd, args, "--keep-latest", 1, 1000000000, 0, &latest));
    SH_TRY(sh_cmd_whole(cmd, args, "--keep-every", 1, 1000000000000, 0, &every));
    if (latest == 0)
        return sh_fail(SH_E_USAGE, "sherd ckpt prune: how many stay? give --keep-latest K");
    return sh_ckpt_prune(args->positional[1], &(struct sh_ckpt_keep){.latest = (int)latest, .every = every},
                         option(args, "--dry-run") != NULL, stdout);
}

static const struct verb verbs[] = {
    {"info", "FILE", 1, {"--trust"}, run_info},
    {"verify", "FILE", 1, {"--trust"}, run_verify},
    {"ls", "FOLDER", 1, {"--quick"}, run_ls},
    {"diff", "FILE FILE", 2, {"--trust"}, run_diff},
    {"extract", "FILE TENSOR -o OUT.npy", 2, {"-o", "--state", "--trust"}, run_extract},
    {"prune", "FOLDER --keep-latest K", 1, {"--keep-latest", "--keep-every", "--dry-run"}, run_prune},
};

static sh_rc check_options(const struct verb *v, const struct sh_cmd_args *args)
{
    const struct sh_cmd_option *row = sh_cmd_find("ckpt")->options;

    for (int i = 0; row[i].name; i++) {
        bool known = !args->values[i];

        for (size_t k = 0; k < sizeof v->options / sizeof *v->options && v->options[k]; k++)
            known = known || !strcmp(v->options[k], row[i].name);
        if (!known)
            return sh_fail(SH_E_USAGE, "sherd ckpt %s: %s means nothing here; see sherd --help", v->name, row[i].name);
    }
    return SH_OK;
}

static sh_rc run_verb(const struct verb *v, const struct sh_cmd_args *args)
{
    if (args->n_positional != v->n_arguments + 1)
        return sh_fail(SH_E_USAGE, "sherd ckpt %s: give it so: sherd ckpt %s %s", v->name, v->name, v->arguments);
    SH_TRY(check_options(v, args));
    return v->run(args);
}

sh_rc sh_cmd_ckpt(const struct sh_cmd *cmd, const struct sh_cmd_args *args)
{
    (void)cmd;
    if (args->n_positional == 0)
        return sh_fail(SH_E_USAGE,
                       "sherd ckpt: what to do? info, verify, ls, diff, extract or prune; see sherd --help");
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++)
        if (!strcmp(verbs[i].name, args->positional[0]))
            return run_verb(&verbs[i], args);
    return sh_fail(SH_E_USAGE, "sherd ckpt: no such thing as %s; there are info, verify, ls, diff, extract and prune",
                   args->positional[0]);
}
