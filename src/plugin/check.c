/* All rows of a plug-in through all checks. */
#include "src/plugin/check.h"

#include "src/base/mem.h"
#include "src/plugin/check_loss.h"
#include "src/plugin/check_op.h"
#include "src/plugin/trying.h"

#include "kernels/plug.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

enum { OPS = SH_PLUGIN_OPS, LOSSES = SH_PLUGIN_LOSSES, GPUS = SH_PLUGIN_GPUS, BOTH = OPS | LOSSES };

const struct sh_plugin_check sh_plugin_checks[] = {
    {"text", "the row can be read, its letters are defined, and its backward, if it has one, is of the same tensors",
     BOTH},
    {"gradient", "the backward, or the slope, is the derivative, by differences in float64", BOTH},
    {"sign", "the loss falls for some as the target, or the chosen answer, becomes likelier", LOSSES},
    {"numbers", "each number changes what is made, which is finite at its bounds", BOTH},
    {"types", "each kernel in float32, bfloat16 and float16 gives what ref gives in float64", OPS},
    {"outside", "nothing outside of operands is read or written, and the whole output is written", OPS},
    {"nan", "a NaN in the input, or in dy, reaches the output", BOTH},
    {"bits", "equal bits in a second call, with 1 to 3 threads, at shifted addresses, and for parts of the rows", BOTH},
    {"in place", "equal bits in the memory of an input, where the row says so", OPS},
    {"queue", "a cuda kernel puts its work into call->queue", GPUS},
    {"process", "a call leaks no memory, and leaves threads, rounding and subnormal numbers as they are", BOTH},
    {"flops", "the operations that the row declares take a time that they can take", OPS},
    {NULL, NULL, 0},
};

static const struct sherd_op *find(const struct sherd_plugin *p, const char *name)
{
    for (int i = 0; name && i < p->n_ops; i++)
        if (p->ops[i].name && !strcmp(p->ops[i].name, name))
            return &p->ops[i];
    return NULL;
}

static struct sh_subject subject_of(const struct sherd_plugin *p, int i, bool brief)
{
    struct sh_subject s = {
        .row = &p->ops[i], .forward = &p->ops[i], .backward = find(p, p->ops[i].backward), .brief = brief};

    for (int k = 0; k < p->n_ops; k++)
        if (find(p, p->ops[k].backward) == s.row)
            s.forward = &p->ops[k];
    sh_subject_take_numbers(&s, 0);
    return s;
}

static void tell(FILE *out, const char *row, const char *check, const char *what)
{
    char *line = sh_strfmt("%s: %s: %s\n", row ? row : "(no name)", check, what);

    fputs(line, out);
    sh_trying_found(line);
    free(line);
}

/* A row that cannot be read is not run, nor one whose backward cannot. */
static int check_row(const struct sherd_plugin *p, int i, bool brief, FILE *out)
{
    struct sh_subject s = subject_of(p, i, brief);
    char text[SH_PLUG_TEXT];
    const char *unreadable = sh_plug_wrong(s.row, text);
    int failed = 0, threads = omp_get_max_threads();

    if (!unreadable && s.row->backward && !s.backward)
        unreadable = "its .backward is the name of no row of this file";
    if (!unreadable && s.backward && sh_plug_wrong(s.backward, text))
        unreadable = "its backward is wrong";
    if (unreadable) {
        tell(out, s.row->name, "text", unreadable);
        return 1;
    }
    sh_trying_row(s.row->name);
    omp_set_num_threads(1); /* but where several are tried: times are then those of a core */
    for (int c = 0; c < SH_OP_CHECKS; c++) {
        const struct sh_op_check *row = &sh_op_checks[c];

        sh_trying_check(row->check);
        s.wrong[0] = '\0';
        if ((brief && !row->brief) || row->holds(&s))
            continue;
        tell(out, s.row->name, row->check, s.wrong);
        failed++;
        if (c == 0) /* the others need what the text says */
            break;
    }
    omp_set_num_threads(threads);
    return failed;
}

static int check_loss(const struct sherd_loss *loss, bool brief, FILE *out)
{
    char where_wrong[SH_LOSS_WRONG];
    const char *unreadable = sh_plug_loss_wrong(loss);
    int failed = 0;

    if (unreadable) {
        tell(out, loss->name, "text", unreadable);
        return 1;
    }
    sh_trying_row(loss->name);
    for (int c = 0; c < SH_LOSS_CHECKS; c++) {
        const struct sh_loss_check *row = &sh_loss_checks[c];

        if (brief && !row->brief)
            continue;
        sh_trying_check(row->check);
        if (row->holds(loss, where_wrong))
            continue;
        tell(out, loss->name, row->check, where_wrong);
        failed++;
    }
    return failed;
}

int sh_plugin_check(const struct sherd_plugin *library, FILE *out)
{
    int failed = 0;

    sh_trying_watched(true);
    sh_trying_row("rows");
    sh_trying_check("text");
    sh_trying_call("are there as many as n_ops says?");
    for (int i = 0; i < library->n_ops; i++)
        failed += check_row(library, i, false, out);
    for (int i = 0; i < library->n_losses; i++)
        failed += check_loss(&library->losses[i], false, out);
    sh_trying_watched(false);
    return failed;
}

sh_rc sh_plugin_check_briefly(const struct sherd_plugin *library)
{
    size_t bytes;
    char *text;
    FILE *out = sh_memstream(&text, &bytes);
    int failed = 0;
    sh_rc rc = SH_OK;

    for (int i = 0; !failed && i < library->n_ops; i++)
        failed = check_row(library, i, true, out);
    for (int i = 0; !failed && i < library->n_losses; i++)
        failed = check_loss(&library->losses[i], true, out);
    fclose(out);
    if (failed)
        rc = sh_fail(SH_E_DATA, "%.*s; `sherd plugin check` says more", (int)strcspn(text, "\n"), text);
    free(text);
    return rc;
}
