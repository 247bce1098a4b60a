/* `sherd diff A [B]`: the first tensor in which two runs part, by their files of debug.fingerprint. No MPI. */
#include "src/cmd/cmd.h"

#include "src/base/string/str.h"
#include "src/tools/diff/compare.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double TOLERANCE = 10; /* times what came in and one rounding; runs that agree came to 2.9 */

static void print_numbers(const char *path, const struct sh_print *p)
{
    printf("  %-24s sum %016llx  norm %.9g  largest %.6g", path, (unsigned long long)p->sum, p->norm, p->largest);
    if (p->bad)
        printf("  not finite: %lld", (long long)p->bad);
    printf("\n");
}

static void print_inputs(const struct sh_diff *d, const struct sh_print *p)
{
    for (size_t i = 0; i < json_array_size(p->in); i++) {
        const char *name = json_string_value(json_array_get(p->in, i));
        const struct sh_print *a = sh_prints_find(d->a, p->step, name), *b = sh_prints_find(d->b, p->step, name);

        if (a && b && a->sum == b->sum)
            printf("  reads %s, which is equal\n", name);
        else if (a && b)
            printf("  reads %s, which differs by %.2g\n", name, sh_diff_relative(a, b));
        else
            printf("  reads %s, which only %s has\n", name, a ? d->a->path : d->b->path);
    }
}

/* Who made a micro-step: a rank, and its node. Of ranks that share one it is the first. */
static json_int_t maker(const struct sh_prints_file *f, const struct sh_print *p, int64_t leaf, const char **host)
{
    json_int_t rank = json_integer_value(json_array_get(json_array_get(p->leaves, (size_t)leaf), 1));
    const char *name = json_string_value(json_array_get(f->head.hosts, (size_t)rank));

    *host = name ? name : "?";
    return rank;
}

/* The first micro-step in which two runs differ, and who made it in each. */
struct parting {
    int64_t leaf, count;
    json_int_t rank[2];
    const char *host[2];
};

/* false: micro-steps are not told apart. */
static bool find_leaf(const struct sh_diff *d, struct parting *p)
{
    p->leaf = sh_diff_leaf(d, &p->count);
    if (!p->count)
        return false;
    p->rank[0] = maker(d->a, d->first_a, p->leaf, &p->host[0]);
    p->rank[1] = maker(d->b, d->first_b, p->leaf, &p->host[1]);
    return true;
}

static void print_leaf(const struct sh_diff *d)
{
    int64_t many = d->a->head.local_batch;
    struct parting p;

    if (!find_leaf(d, &p))
        return;
    printf(
        "  in %lld of %lld micro-steps, first in that of sequences %lld to %lld of the step, by rank %lld on %s and rank %lld on "
        "%s\n",
        (long long)p.count, (long long)json_array_size(d->first_a->leaves), (long long)(p.leaf * many),
        (long long)(p.leaf * many + many - 1), (long long)p.rank[0], p.host[0], (long long)p.rank[1], p.host[1]);
}

/* A state that differs before a step was changed by the update of the step before, or when the run began. */
static void print_parting(const struct sh_diff *d)
{
    const struct sh_print *a = d->first_a, *b = d->first_b;

    printf("step %lld: %s%s%s%s\n", (long long)a->step,
           d->by_bits ? "first difference: " : "first difference beyond rounding: ", a->name,
           a->kind ? ", made by " : "", a->kind ? a->kind : "");
    print_numbers(d->a->path, a);
    print_numbers(d->b->path, b);
    printf("  they differ by about %.2g of the norm\n", sh_diff_relative(a, b));
    print_leaf(d);
    print_inputs(d, a);
    if (d->before)
        printf("  all %d records before it are equal%s\n", d->before, d->by_bits ? "" : " up to rounding");
    if (!a->kind && strncmp(a->name, "gradient ", 9) && strcmp(a->name, "tokens"))
        printf("  it is what the run began with, or what the steps before step %lld made of it\n", (long long)a->step);
    printf("  %d of %d records of this step differ\n", d->differing, d->compared);
}

static void print_state(const struct sh_diff *d)
{
    if (d->state)
        printf("before step %lld states differ by up to %.2g: %s\n", (long long)d->state->step, d->state_most,
               d->state->name);
}

static void print_skipped(const struct sh_diff *d)
{
    char steps[SH_STR_SHORT];

    if (d->only_a)
        printf("only in %s: %d records, the first of them %s\n", d->a->path, d->only_a, d->first_only_a->name);
    if (d->only_b)
        printf("only in %s: %d records, the first of them %s\n", d->b->path, d->only_b, d->first_only_b->name);
    if (!d->first_a)
        printf("%s in %s: equal %s\n", sh_str_plural(d->total, "record", steps),
               d->steps == 1 ? "1 step" : "the steps of both", d->by_bits ? "to the last bit" : "up to rounding");
}

/* JSON has no NaN or Inf. */
static json_t *relative(const struct sh_diff *d)
{
    double by = sh_diff_relative(d->first_a, d->first_b);

    return isfinite(by) ? json_real(by) : json_null();
}

static void add_leaf(const struct sh_diff *d, json_t *out)
{
    struct parting p;

    if (find_leaf(d, &p))
        json_object_update_new(out, json_pack("{s:I, s:I, s:[II], s:[ss]}", "leaf", (json_int_t)p.leaf, "leaves",
                                              (json_int_t)p.count, "ranks", p.rank[0], p.rank[1], "hosts", p.host[0],
                                              p.host[1]));
}

static void print_json(const struct sh_diff *d)
{
    json_t *out = json_pack("{s:b, s:b, s:i, s:i, s:i}", "equal", !d->first_a, "bits", d->by_bits, "records", d->total,
                            "only_a", d->only_a, "only_b", d->only_b);

    if (d->first_a)
        json_object_update_new(out, json_pack("{s:I, s:s, s:s?, s:o, s:i}", "step", (json_int_t)d->first_a->step,
                                              "name", d->first_a->name, "kind", d->first_a->kind, "relative",
                                              relative(d), "differing", d->differing));
    if (d->first_a)
        add_leaf(d, out);
    json_dumpf(out, stdout, JSON_INDENT(1) | JSON_PRESERVE_ORDER);
    printf("\n");
    json_decref(out);
}

/* One file: what was computed again in the backward against what it was in the forward. */
static sh_rc check_one(const struct sh_prints_file *f)
{
    int again, differing = sh_diff_recomputed(f, &again);

    if (!again)
        return sh_fail(SH_E_USAGE, "sherd diff: %s has nothing that was computed twice; give a second file", f->path);
    if (differing)
        return sh_fail(SH_E_DATA, "%s: %d of %d tensors that were computed again are not what they were", f->path,
                       differing, again);
    printf("%d tensors were computed again, each to the same bits\n", again);
    return SH_OK;
}

static sh_rc compare(struct sh_diff *d, bool json)
{
    SH_TRY(sh_diff_find(d));
    if (json)
        print_json(d);
    else {
        if (d->why[0])
            printf("%s\n", d->why);
        print_state(d);
        if (d->first_a)
            print_parting(d);
        print_skipped(d);
    }
    return d->first_a ? sh_fail(SH_E_DATA, "%s and %s differ from step %lld on", d->a->path, d->b->path,
                                (long long)d->first_a->step)
                      : SH_OK;
}

sh_rc sh_cmd_diff(const struct sh_cmd *cmd, const struct sh_cmd_args *args)
{
    struct sh_prints_file a = {0}, b = {0};
    struct sh_diff d = {.a = &a, .b = &b};
    bool json = sh_cmd_option(cmd, args, "--json") != NULL;
    sh_rc rc = SH_OK;

    if (args->n_positional < 1 || args->n_positional > 2)
        return sh_fail(SH_E_USAGE, "sherd diff: give two files that debug.fingerprint wrote, or one");
    SH_TRY(sh_cmd_number(cmd, args, "--tolerance", 1, 1e9, TOLERANCE, &d.tolerance));
    d.estimates = sh_cmd_option(cmd, args, "--tolerance") != NULL;
    if (args->n_positional == 1 && (json || d.estimates))
        return sh_fail(SH_E_USAGE, "sherd diff: %s compares two files", json ? "--json" : "--tolerance");
    SH_TRY_OUT(sh_prints_read(args->positional[0], &a));
    if (args->n_positional == 1) {
        rc = check_one(&a);
        goto out;
    }
    SH_TRY_OUT(sh_prints_read(args->positional[1], &b));
    rc = compare(&d, json);
out:
    sh_prints_free(&a);
    sh_prints_free(&b);
    return rc;
}
