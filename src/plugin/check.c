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

const struct sh_plugin_check sh_plugin_checks[] = {
    {"text", "the row can be read, its letters are defined, and its backward, if it has one, is of the same tensors",
     true},
    {"gradient", "the backward, or the slope, is the derivative, by differences in float64", true},
    {"numbers", "each number changes what is made", true},
    {"types", "each kernel in float32, bfloat16 and float16 gives what ref gives in float64", false},
    {"outside", "nothing outside of operands is read or written, and the whole output is written", false},
    {"nan", "a NaN in the input, or in dy, reaches the output", true},
    {"bits", "equal bits in a second call, with 1 to 3 threads, at shifted addresses, and for parts of the rows", true},
    {"in place", "equal bits in the memory of an input, where the row says so", false},
    {"process", "a call leaks no memory, and leaves threads, rounding and subnormal numbers as they are", true},
    {"flops", "the operations that the row declares take a time that they can take", false},
    {NULL, NULL, false},
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

/* A row that cannot be read is not run, nor one whose backward cannot. */
static int check_row(const struct sherd_plugin *p, int i, bool brief, FILE *out)
{
    struct sh_subject s = subject_of(p, i, brief);
    char text[SH_PLUG_TEXT];
    const char *unreadable = sh_plug_wrong(s.row, text);
    int failed = 0, threads = omp_get_max_threads();

    if (!unreadable && s.row->backward && !s.backward)
        unreadable = "its backward is no row of this file";
    if (!unreadable && s.backward)
        unreadable = sh_plug_wrong(s.backward, text);
    if (unreadable) {
        fprintf(out, "%s: text: %s\n", s.row->name ? s.row->name : "(no name)", unreadable);
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
        fprintf(out, "%s: %s: %s\n", s.row->name, row->check, s.wrong);
        failed++;
        if (c == 0) /* the others need what the text says */
            break;
    }
    omp_set_num_threads(threads);
    return failed;
}

static int check_loss(const struct sherd_loss *loss, bool brief, FILE *out)
{
    char text[SH_PLUG_TEXT], where_wrong[SH_LOSS_WRONG];
    const char *unreadable = sh_plug_loss_wrong(loss, text);
    int failed = 0;

    if (unreadable) {
        fprintf(out, "%s: text: %s\n", loss->name ? loss->name : "(no name)", unreadable);
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
        fprintf(out, "%s: %s: %s\n", loss->name, row->check, where_wrong);
        failed++;
    }
    return failed;
}

int sh_plugin_check(const struct sherd_plugin *library, FILE *out)
{
    int failed = 0;

    sh_trying_watched(true);
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
