/* `sherd plugin check FILE`: tries what the operations of a plug-in promise. No MPI. */
#include "src/cmd/cmd.h"

#include "src/base/mem.h"
#include "src/plugin/check.h"
#include "src/plugin/plugin.h"
#include "src/plugin/trial_gpu.h"

#include "kernels/plug.h"

#include <stdlib.h>
#include <string.h>

static sh_rc trust_of(const char *word, enum sh_cfg_trust *trust)
{
    *trust = word && !strcmp(word, "any") ? SH_TRUST_ANY : SH_TRUST_OWNER;
    if (!word || !strcmp(word, "any") || !strcmp(word, "owner"))
        return SH_OK;
    return sh_fail(SH_E_USAGE, "sherd plugin: --trust %s: owner or any", word);
}

/* The GPU, if there are kernels for one. */
static sh_rc open_device(const char *word, const struct sherd_plugin *library)
{
    if (!word)
        return SH_OK;
    if (strcmp(word, "cuda") != 0)
        return sh_fail(SH_E_USAGE, "%s: cuda is the only word", word);
    if (!library->n_ops)
        return sh_fail(SH_E_USAGE, "the plug-in has only losses, which run on the host: leave it out");
    return sh_trial_gpu_open();
}

static void print_row(const struct sherd_op *row)
{
    printf("%s: %s; kernels ref%s%s\n", row->name ? row->name : "(no name)", row->shape ? row->shape : "(no shape)",
           row->cpu ? ", cpu" : "", row->cuda ? ", cuda" : "");
}

static void print_loss(const struct sherd_loss *loss)
{
    printf("%s: a loss of %s\n", loss->name ? loss->name : "(no name)", loss->pair ? "pairs" : "targets");
}

/* What holds, then what does not, and whether names are free. */
static sh_rc check(const struct sh_plugin *p)
{
    size_t bytes;
    char *text;
    FILE *lines = sh_memstream(&text, &bytes);
    int failed = sh_plugin_check(p->library, lines);
    int tried = (p->library->n_ops ? SH_PLUGIN_OPS : 0) | (p->library->n_losses ? SH_PLUGIN_LOSSES : 0) |
                (sh_trial_gpu_is_open() ? SH_PLUGIN_GPUS : 0);

    fclose(lines);
    for (int i = 0; i < p->library->n_ops; i++)
        print_row(&p->library->ops[i]);
    for (int i = 0; i < p->library->n_losses; i++)
        print_loss(&p->library->losses[i]);
    for (const struct sh_plugin_check *c = sh_plugin_checks; c->name; c++) {
        char *mark = sh_strfmt(": %s: ", c->name);

        if (c->of & tried)
            printf("  %-4s %-9s %s\n", strstr(text, mark) ? "FAIL" : "ok", c->name, c->what);
        free(mark);
    }
    printf("%s", text);
    free(text);
    if (failed)
        return sh_fail(SH_E_DATA, "%s: %d check%s failed", p->path, failed, failed > 1 ? "s" : "");
    return sh_plug_add(p->library);
}

sh_rc sh_cmd_plugin(const struct sh_cmd *cmd, const struct sh_cmd_args *args)
{
    enum sh_cfg_trust trust;
    struct sh_plugin p;
    sh_rc rc;

    if (args->n_positional != 2 || strcmp(args->positional[0], "check") != 0)
        return sh_fail(SH_E_USAGE, "sherd plugin: expected check FILE; see sherd plugin --help");
    SH_TRY(trust_of(sh_cmd_option(cmd, args, "--trust"), &trust));
    SH_TRY(sh_plugin_read(args->positional[1], trust, &p));
    rc = open_device(sh_cmd_option(cmd, args, "--device"), p.library);
    rc = rc == SH_OK ? check(&p) : sh_fail_prefix(rc, "sherd plugin: --device ");
    sh_trial_gpu_close();
    free(p.path);
    return rc;
}
