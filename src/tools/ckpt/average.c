/* sherd ckpt average: the mean of the parameters of checkpoints of one model. */
#include "src/cmd/cmd.h"

#include "io/checkpoint/checkpoint.h"
#include "src/base/mem.h"
#include "src/base/string/str.h"
#include "src/config/config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Lines of the notes that belong to the model. `alike`: another value means another model. */
static const struct {
    const char *name;
    bool alike;
} kept[] = {{"tokenizer", true}, {"plugins", true}, {"hf_config", false}, {"chat_template", false}};
enum { KEPT = sizeof kept / sizeof *kept };

/* Shares as people type them, 0.333,0.333,0.333 too: the sum is divided by theirs. */
static const double NEAR_1 = 0.002;

static const char *option(const struct sh_cmd_args *args, const char *name)
{
    return sh_cmd_option(sh_cmd_find("ckpt"), args, name);
}

/* Without --weights all are equal. weights: [n]. */
static sh_rc read_weights(const char *text, int n, double *weights)
{
    int given = text ? sh_str_numbers(text, weights, n) : n;
    double sum = 0;

    if (given < 0)
        return sh_fail(SH_E_USAGE,
                       "sherd ckpt average: --weights must be numbers above 0 with commas between them, not %s", text);
    if (given != n)
        return sh_fail(SH_E_USAGE, "sherd ckpt average: --weights has %d numbers for %d checkpoints", given, n);
    for (int i = 0; i < n; i++) {
        weights[i] = text ? weights[i] : 1;
        sum += weights[i];
    }
    if (text && fabs(sum - 1) > NEAR_1)
        return sh_fail(SH_E_USAGE, "sherd ckpt average: the sum of --weights must be 1, not %.6g", sum);
    return SH_OK;
}

/* Shapes do not show numbers of heads or the base of positions, so the keys of the model are compared as well. Its name
 * and initial values change nothing in what it computes. */
static sh_rc compare_keys(const char *file, const struct sh_config *a, const char *other, const struct sh_config *b)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *f = sh_memstream(&text, &bytes);
    sh_rc rc = SH_OK;

    sh_config_diff(a, b, SH_OF(MODEL), f);
    fclose(f);
    if (bytes > 0)
        rc = sh_fail(SH_E_DATA, "%s and %s are not of one model: %.*s", file, other, (int)strcspn(text, "\n"), text);
    free(text);
    return rc;
}

static sh_rc compare_config(const char *file, const struct sh_ckpt_meta *a, const char *other,
                            const struct sh_ckpt_meta *b)
{
    struct sh_config then, now;

    SH_TRY(sh_config_parse(a->config, strlen(a->config), file, 0, NULL, &then));
    SH_TRY(sh_config_parse(b->config, strlen(b->config), other, 0, NULL, &now));
    memcpy(now.model.name, then.model.name, sizeof now.model.name);
    now.model.init_std = then.model.init_std;
    return compare_keys(file, &then, other, &now);
}

static sh_rc compare_notes(const char *file, const struct sh_ckpt_meta *a, const char *other,
                           const struct sh_ckpt_meta *b)
{
    sh_rc rc = SH_OK;

    for (int i = 0; i < KEPT && rc == SH_OK; i++) {
        char *then = sh_ckpt_note(a, kept[i].name), *now = sh_ckpt_note(b, kept[i].name);
        const char *was = then ? then : "none", *is = now ? now : "none";

        if (kept[i].alike && strcmp(was, is) != 0)
            rc = sh_fail(SH_E_DATA, "%s and %s are not of one model: %s: %s -> %s", file, other, kept[i].name, was, is);
        free(then);
        free(now);
    }
    return rc;
}

static sh_rc compare(const char *file, const struct sh_ckpt_meta *first, const char *other)
{
    struct sh_ckpt_meta meta = {0};
    sh_rc rc;

    SH_TRY(sh_ckpt_read_meta(other, &meta));
    SH_TRY_OUT(compare_config(file, first, other, &meta));
    SH_TRY_OUT(compare_notes(file, first, other, &meta));
out:
    sh_ckpt_meta_free(&meta);
    return rc;
}

/* How the file was made, and what users of its tokenizer and of plug-ins need to know. */
static char *list_notes(const struct sh_ckpt_meta *first, char *const *files, const double *weights, int n)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *f = sh_memstream(&text, &bytes);

    fprintf(f, "parameters: an average:");
    for (int i = 0; i < n; i++)
        fprintf(f, " %.9g of %s%s", weights[i], files[i], i + 1 < n ? "," : "\n");
    for (int i = 0; i < KEPT; i++) {
        char *value = sh_ckpt_note(first, kept[i].name);

        if (value)
            fprintf(f, "%s: %s\n", kept[i].name, value);
        free(value);
    }
    fclose(f);
    return text;
}

/* The new file has the configuration of the first, and the counts of a model before its first step. */
static sh_rc average(char *const *files, const double *weights, int n, const char *out)
{
    struct sh_ckpt_meta first = {0}, meta = {0};
    char *path = NULL;
    sh_rc rc;

    SH_TRY(sh_ckpt_read_meta(files[0], &first));
    for (int i = 1; i < n; i++)
        SH_TRY_OUT(compare(files[0], &first, files[i]));
    meta.config = first.config;
    meta.notes = list_notes(&first, files, weights, n);
    SH_TRY_OUT(sh_ckpt_average((const char *const *)files, weights, n, &meta, out, &path));
    printf("%s\n", path);
out:
    free(meta.notes);
    free(path);
    sh_ckpt_meta_free(&first);
    return rc;
}

sh_rc sh_cmd_ckpt_average(const struct sh_cmd_args *args, char *const *files, int n)
{
    const char *out = option(args, "-o");
    double weights[SH_CMD_MAX_ARGS];

    if (!out)
        return sh_fail(SH_E_USAGE, "sherd ckpt average: where should it go? give -o FOLDER");
    SH_TRY(read_weights(option(args, "--weights"), n, weights));
    return average(files, weights, n, out);
}
