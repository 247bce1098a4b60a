/* Compares two checkpoints: numbers of the run, configurations by key, tensors by distance. Differing files count as a
 * failure, so that a script can use the exit status. */
#include "io/checkpoint/checkpoint.h"

#include "io/checkpoint/file/digest.h"
#include "io/checkpoint/file/index.h"
#include "io/file/file.h"
#include "src/base/mem.h"
#include "src/base/string/str.h"
#include "src/config/config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* One of the two checkpoints compared. */
struct side {
    const char *path;
    struct sh_ckpt_index index;
    int fd;
    float *buffer; /* [SH_CKPT_BLOCK_ELEMS] */
};

/* Two distances, since neither is enough alone: 1e-3 is much for a weight of 1e-2 and nothing for one of 100. */
struct distance {
    double most, relative; /* |a-b|, and |a-b| over the larger of |a| and |b| */
    int64_t elems;         /* elements whose bits differ */
    int64_t tensor;        /* index in the first file */
    int state;
};

struct diff {
    struct side a, b;
    FILE *out;
    int64_t found;                       /* number of differences */
    int64_t only[2][SH_CKPT_STATES_MAX]; /* of each state that both have: how many tensors have it in a, in b only */
    struct distance *far;                /* [n_far] one for each tensor and state that differ */
    int64_t n_far;
};

/* If this fails, close_side() must still be called. */
static sh_rc open_side(struct side *s)
{
    s->buffer = sh_calloc(SH_CKPT_BLOCK_ELEMS, sizeof *s->buffer);
    SH_TRY(sh_ckpt_index_read(s->path, &s->index));
    return sh_ckpt_index_open_data(&s->index, s->path, &s->fd);
}

/* Also works for a side that is only partly open. */
static void close_side(struct side *s)
{
    if (s->fd >= 0)
        close(s->fd);
    free(s->buffer);
    sh_ckpt_index_free(&s->index);
}

/* Prints lines like "step: 100 -> 200". */
static void diff_meta(struct diff *d)
{
    const struct sh_ckpt_meta *a = &d->a.index.meta, *b = &d->b.index.meta;
    const struct {
        const char *name;
        int64_t a, b;
    } numbers[] = {{"step", a->step, b->step},
                   {"updates", a->updates, b->updates},
                   {"samples", a->samples, b->samples},
                   {"tokens", a->tokens, b->tokens}};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        if (numbers[i].a == numbers[i].b)
            continue;
        fprintf(d->out, "%s: %lld -> %lld\n", numbers[i].name, (long long)numbers[i].a, (long long)numbers[i].b);
        d->found++;
    }
}

/* A configuration that this program cannot read, for example of a later version, is only compared as text. */
static void diff_config(struct diff *d)
{
    const char *ta = d->a.index.meta.config, *tb = d->b.index.meta.config;
    struct sh_config a, b;
    if (strcmp(ta, tb) == 0)
        return;
    d->found++;
    fprintf(d->out, "configuration differs:\n");
    if (sh_config_parse(ta, strlen(ta), d->a.path, 0, NULL, &a) == SH_OK &&
        sh_config_parse(tb, strlen(tb), d->b.path, 0, NULL, &b) == SH_OK)
        sh_config_diff(&a, &b, SH_OF_ALL, d->out);
    else
        fprintf(d->out, "(not by key: %s)\n", sh_error_text());
    sh_error_clear();
}

static void add_distance(const float *a, const float *b, int64_t n, struct distance *d)
{
    /* Compares bits, not values: a NaN then equals itself, and -0 differs from 0. */
    for (int64_t i = 0; i < n; i++) {
        if (memcmp(a + i, b + i, sizeof *a) == 0)
            continue;
        double gap = fabs((double)a[i] - (double)b[i]), size = fmax(fabs((double)a[i]), fabs((double)b[i]));
        if (isnan(gap))
            gap = INFINITY; /* a NaN on one side */
        d->elems++;
        d->most = fmax(d->most, gap);
        d->relative = fmax(d->relative, size > 0 ? (isinf(gap) ? INFINITY : gap / size) : 0);
    }
}

/* Reads block by block through two buffers. Digests are not checked; that is for `sherd ckpt verify`. */
static sh_rc measure(struct diff *d, int state, int other, const struct sh_ckpt_entry *a, const struct sh_ckpt_entry *b,
                     struct distance *far)
{
    for (int64_t at = 0; at < a->elems; at += SH_CKPT_BLOCK_ELEMS) {
        int64_t n = a->elems - at < SH_CKPT_BLOCK_ELEMS ? a->elems - at : SH_CKPT_BLOCK_ELEMS;
        SH_TRY(sh_file_read(d->a.fd, d->a.path, d->a.buffer, n * 4, a->offset[state] + at * 4));
        SH_TRY(sh_file_read(d->b.fd, d->b.path, d->b.buffer, n * 4, b->offset[other] + at * 4));
        add_distance(d->a.buffer, d->b.buffer, n, far);
    }
    return SH_OK;
}

static sh_rc diff_state(struct diff *d, int state, const struct sh_ckpt_entry *a, const struct sh_ckpt_entry *b)
{
    int other = sh_ckpt_states_find(&d->b.index.states, d->a.index.states.name[state]);
    struct distance far = {.tensor = a - d->a.index.entry, .state = state};
    if (other < 0) /* reported by diff_states() */
        return SH_OK;
    if (!sh_ckpt_has(a, state) || !sh_ckpt_has(b, other)) {
        d->found += sh_ckpt_has(a, state) != sh_ckpt_has(b, other);
        d->only[0][state] += sh_ckpt_has(a, state);
        d->only[1][state] += sh_ckpt_has(b, other);
        return SH_OK;
    }
    SH_TRY(measure(d, state, other, a, b, &far));
    if (far.elems > 0) {
        d->far = sh_realloc(d->far, (size_t)(d->n_far + 1), sizeof *d->far);
        d->far[d->n_far++] = far;
        d->found++;
    }
    return SH_OK;
}

/* Sorts the largest first, and equal ones in the order of the file. */
static int compare_distance(const void *pa, const void *pb)
{
    const struct distance *a = pa, *b = pb;
    if (a->most != b->most)
        return a->most < b->most ? 1 : -1;
    if (a->tensor != b->tensor)
        return a->tensor < b->tensor ? -1 : 1;
    return a->state - b->state;
}

/* A line for a state, since of large models hundreds of matrices may lack it. */
static void print_only(const struct diff *d)
{
    for (int s = 0; s < d->a.index.states.n; s++)
        for (int side = 0; side < 2; side++)
            if (d->only[side][s])
                fprintf(d->out, "%s of %lld tensors: in %s only\n", d->a.index.states.name[s],
                        (long long)d->only[side][s], side ? d->b.path : d->a.path);
}

static void print_distances(struct diff *d, int64_t most)
{
    int64_t n = most > 0 && most < d->n_far ? most : d->n_far;
    if (d->n_far > 1)
        qsort(d->far, (size_t)d->n_far, sizeof *d->far, compare_distance);
    for (int64_t i = 0; i < n; i++) {
        const struct distance *far = &d->far[i];
        const struct sh_ckpt_entry *a = &d->a.index.entry[far->tensor];
        fprintf(d->out, "%s/%s: %lld of %lld elements, max |a-b| %.3g, max relative %.3g\n",
                d->a.index.states.name[far->state], a->name, (long long)far->elems, (long long)a->elems, far->most,
                far->relative);
    }
    if (n < d->n_far)
        fprintf(d->out, "and %lld more with smaller differences\n", (long long)(d->n_far - n));
}

/* The order of tensors may differ between the files; the hint makes the usual case a single comparison. */
static sh_rc diff_tensor(struct diff *d, const struct sh_ckpt_entry *a, int64_t hint)
{
    char have[100], other[100];
    int64_t i = sh_ckpt_index_find(&d->b.index, a->name, hint);
    const struct sh_ckpt_entry *b = i >= 0 ? &d->b.index.entry[i] : NULL;
    if (b && b->ndim == a->ndim && memcmp(a->dim, b->dim, (size_t)a->ndim * sizeof *a->dim) == 0) {
        for (int s = 0; s < d->a.index.states.n; s++)
            SH_TRY(diff_state(d, s, a, b));
        return SH_OK;
    }
    d->found++;
    fprintf(d->out, "%s: %s -> %s\n", a->name, sh_str_shape(a->ndim, a->dim, have),
            b ? sh_str_shape(b->ndim, b->dim, other) : "missing");
    return SH_OK;
}

/* Prints states that only one file has. diff_tensors() calls it for both directions. */
static void diff_states(struct diff *d, const struct sh_ckpt_states *a, const struct sh_ckpt_states *b,
                        const char *path)
{
    for (int s = 0; s < a->n; s++)
        if (sh_ckpt_states_find(b, a->name[s]) < 0) {
            fprintf(d->out, "%s: in %s only\n", a->name[s], path);
            d->found++;
        }
}

/* Compares all tensors of a with b, then prints those that only b has. */
static sh_rc diff_tensors(struct diff *d)
{
    diff_states(d, &d->a.index.states, &d->b.index.states, d->a.path);
    diff_states(d, &d->b.index.states, &d->a.index.states, d->b.path);
    char shape[100];
    for (int64_t i = 0; i < d->a.index.n; i++)
        SH_TRY(diff_tensor(d, &d->a.index.entry[i], i));
    for (int64_t i = 0; i < d->b.index.n; i++) {
        const struct sh_ckpt_entry *b = &d->b.index.entry[i];
        if (sh_ckpt_index_find(&d->a.index, b->name, i) >= 0)
            continue;
        fprintf(d->out, "%s: missing -> %s\n", b->name, sh_str_shape(b->ndim, b->dim, shape));
        d->found++;
    }
    return SH_OK;
}

/* Returns SH_E_DATA if the files differ, so that a script can tell by the exit status. */
sh_rc sh_ckpt_diff(const char *a, const char *b, int64_t most, FILE *out)
{
    struct diff d = {.a = {.path = a, .fd = -1}, .b = {.path = b, .fd = -1}, .out = out};
    sh_rc rc;
    SH_TRY_OUT(open_side(&d.a));
    SH_TRY_OUT(open_side(&d.b));
    diff_meta(&d);
    diff_config(&d);
    SH_TRY_OUT(diff_tensors(&d));
    print_only(&d);
    print_distances(&d, most);
    if (d.found > 0)
        rc = sh_fail(SH_E_DATA, "%s and %s differ in %lld places", a, b, (long long)d.found);
out:
    close_side(&d.a);
    close_side(&d.b);
    free(d.far);
    return rc;
}
