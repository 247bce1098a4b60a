#include "src/cmd/cmd.h"

#include "io/token/token.h"

#include <stdio.h>

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
    SH_TRY(sh_token_file(&opt, &report));
    printf("%lld bytes -> %lld tokens in %s", (long long)report.bytes, (long long)report.tokens, opt.output);
    if (opt.val_output)
        printf(", %lld in %s", (long long)report.val_tokens, opt.val_output);
    printf("; vocabulary %d\n", report.vocab_size);
    return SH_OK;
}
