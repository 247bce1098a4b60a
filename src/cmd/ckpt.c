#include "src/cmd/cmd.h"

#include "io/checkpoint/checkpoint.h"

#include <stdio.h>
#include <string.h>

struct verb {
    const char *name;
    sh_rc (*run)(const char *path, FILE *out);
};

static const struct verb verbs[] = {
    {"info", sh_ckpt_info},
    {"verify", sh_ckpt_verify},
};

static sh_rc run_verb(const struct sh_cmd_args *args)
{
    if (args->n_positional != 2)
        return sh_fail(SH_E_USAGE,
                       "sherd ckpt: give what to do and one file: sherd ckpt info FILE, sherd ckpt verify FILE");
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++)
        if (!strcmp(verbs[i].name, args->positional[0]))
            return verbs[i].run(args->positional[1], stdout);
    return sh_fail(SH_E_USAGE, "sherd ckpt: no such thing as %s; there are info and verify", args->positional[0]);
}

sh_rc sh_cmd_ckpt(int argc, char **argv)
{
    struct sh_cmd_args args;
    sh_rc rc = sh_cmd_parse(sh_cmd_find("ckpt"), argc, argv, &args);

    if (rc == SH_OK)
        rc = run_verb(&args);
    sh_cmd_args_free(&args);
    return rc;
}
