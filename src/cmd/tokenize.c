#include "src/cmd/cmd.h"

#include "io/token/tail.h"
#include "io/token/token.h"
#include "src/base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void say_replaces(const char *path)
{
    if (path && access(path, F_OK) == 0)
        sh_log_info("replaces %s", path);
}

/* The validation part of an earlier call may lie beside a file that now has all of the text. */
static sh_rc warn_of_held_out(const char *output)
{
    char *other;

    SH_TRY(sh_token_find_tail(output, &other));
    if (other)
        sh_log_warn("%s holds the end of %s: a model trained on this one has seen all of that one; --val holds text out",
                    other, output);
    free(other);
    return SH_OK;
}

sh_rc sh_cmd_tokenize(const struct sh_cmd *cmd, const struct sh_cmd_args *args)
{
    struct sh_token_options opt = {.inputs = args->positional,
                                   .n_inputs = args->n_positional,
                                   .output = sh_cmd_option(cmd, args, "-o"),
                                   .val_output = sh_cmd_option(cmd, args, "--val")};
    struct sh_token_report report;

    if (!opt.n_inputs)
        return sh_fail(SH_E_USAGE, "sherd tokenize: which text? give one or more files");
    if (!opt.output)
        return sh_fail(SH_E_USAGE, "sherd tokenize: where to? give -o FILE");
    if (sh_cmd_option(cmd, args, "--val-fraction") && !opt.val_output)
        return sh_fail(SH_E_USAGE, "sherd tokenize: --val-fraction needs --val FILE");
    SH_TRY(sh_cmd_number(cmd, args, "--val-fraction", 1e-9, 0.999999, opt.val_output ? 0.1 : 0, &opt.val_fraction));
    say_replaces(opt.output);
    say_replaces(opt.val_output);
    SH_TRY(sh_token_file(&opt, &report));
    printf("%lld bytes -> %lld tokens in %s", (long long)report.bytes, (long long)report.tokens, opt.output);
    if (opt.val_output)
        printf(", %lld in %s", (long long)report.val_tokens, opt.val_output);
    printf("; vocabulary %d\n", report.vocab_size);
    if (opt.val_output)
        printf("train with: --training.dataset_path=%s --validation.enable=true --validation.dataset_path=%s\n", opt.output,
               opt.val_output);
    return warn_of_held_out(opt.output);
}
