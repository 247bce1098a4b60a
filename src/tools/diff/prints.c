#include "src/tools/diff/prints.h"

#include "src/base/mem.h"

#include "io/json/json.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool take_whole(const json_t *line, const char *key, int64_t least, int64_t *out)
{
    const json_t *value = json_object_get(line, key);

    *out = json_integer_value(value);
    return json_is_integer(value) && *out >= least;
}

static bool take_number(const json_t *value, double *out)
{
    *out = json_number_value(value);
    return json_is_number(value) && isfinite(*out);
}

static bool take_text(const json_t *line, const char *key, const char **out)
{
    *out = json_string_value(json_object_get(line, key));
    return *out != NULL;
}

static bool take_sum(const json_t *line, uint64_t *out)
{
    const char *text;
    char *end;

    if (!take_text(line, "sum", &text) || strlen(text) != 16 || text[strspn(text, "0123456789abcdef")])
        return false;
    *out = strtoull(text, &end, 16);
    return true;
}

static bool are_texts(const json_t *list)
{
    bool all = json_is_array(list);

    for (size_t i = 0; all && i < json_array_size(list); i++)
        all = json_is_string(json_array_get(list, i));
    return all;
}

/* Pairs of a sum and a rank. */
static bool are_leaves(const json_t *list)
{
    bool all = json_is_array(list);

    for (size_t i = 0; all && i < json_array_size(list); i++) {
        const json_t *pair = json_array_get(list, i), *rank = json_array_get(pair, 1);

        all = json_is_string(json_array_get(pair, 0)) && json_is_integer(rank) && json_integer_value(rank) >= 0;
    }
    return all;
}

static bool take_print(const json_t *line, struct sh_print *p)
{
    const json_t *signs = json_object_get(line, "signs");
    bool good = take_whole(line, "step", 1, &p->step) && take_text(line, "name", &p->name) && take_sum(line, &p->sum) &&
                take_whole(line, "bad", 0, &p->bad) && take_number(json_object_get(line, "largest"), &p->largest) &&
                take_number(json_object_get(line, "norm"), &p->norm) && json_array_size(signs) == SH_SKETCH_SIGNS;

    for (size_t i = 0; good && i < SH_SKETCH_SIGNS; i++)
        good = take_number(json_array_get(signs, i), &p->sign[i]);
    p->kind = json_string_value(json_object_get(line, "kind"));
    p->in = json_object_get(line, "in");
    p->more = json_is_true(json_object_get(line, "more"));
    p->leaves = json_object_get(line, "leaves");
    return good && (!p->in || are_texts(p->in)) && (!p->leaves || are_leaves(p->leaves));
}

const char *sh_prints_axis_name(enum sh_prints_axis axis)
{
    static const char *const names[SH_PRINTS_AXES] = {"tensor", "context", "expert", "pipeline", "replicate"};

    return names[axis];
}

/* What files of earlier versions do not say stays 0. */
static bool take_known(const json_t *line, const char *key, int64_t *out)
{
    return !json_object_get(line, key) || take_whole(line, key, 1, out);
}

static bool take_mesh(const json_t *line, struct sh_prints_head *h)
{
    bool good = take_known(line, "row_leaves", &h->row_leaves) && take_known(line, "pieces", &h->pieces);

    for (int i = 0; i < SH_PRINTS_AXES; i++)
        good = good && take_known(line, sh_prints_axis_name(i), &h->axis[i]);
    return good;
}

static bool take_head(const json_t *line, struct sh_prints_head *h)
{
    int64_t version;

    if (json_object_get(line, "tiles") &&
        !(take_whole(line, "tiles", 1, &h->tiles) && take_whole(line, "tile_rows", 0, &h->tile_rows)))
        return false;
    h->balance = json_string_value(json_object_get(line, "balance"));
    h->hosts = json_object_get(line, "hosts");
    if (h->hosts && !are_texts(h->hosts))
        return false;
    h->coded = json_is_true(json_object_get(line, "coded"));
    h->reproducible = json_is_true(json_object_get(line, "reproducible"));
    return take_mesh(line, h) && take_whole(line, "fingerprint", 1, &version) && version == 1 &&
           take_text(line, "device", &h->device) && take_text(line, "dtype", &h->dtype) &&
           take_text(line, "base", &h->base) && take_whole(line, "ranks", 1, &h->ranks) &&
           take_whole(line, "seq_len", 1, &h->seq_len) && take_whole(line, "local_batch", 1, &h->local_batch) &&
           take_whole(line, "global_batch", 1, &h->global_batch);
}

/* number: of the line, from 1 on. */
static sh_rc take_line(struct sh_prints_file *f, const char *text, size_t bytes, int number)
{
    struct sh_print print = {0};
    char *place = sh_strfmt("%s:%d", f->path, number);
    json_t *line = NULL;
    sh_rc rc = sh_json_parse(text, bytes, place, &line);

    if (rc == SH_OK) {
        f->lines = sh_grow(f->lines, f->n_lines, &f->most_lines, sizeof *f->lines);
        f->lines[f->n_lines++] = line;
        if (number == 1 && !take_head(line, &f->head))
            rc = sh_fail(SH_E_DATA, "%s: not the head of a file that debug.fingerprint writes", place);
        else if (number > 1 && !take_print(line, &print))
            rc = sh_fail(SH_E_DATA, "%s: not a record of a fingerprint", place);
        else if (number > 1 && f->n && print.step < f->print[f->n - 1].step)
            rc = sh_fail(SH_E_DATA, "%s: step %lld comes after step %lld", place, (long long)print.step,
                         (long long)f->print[f->n - 1].step);
    }
    if (rc == SH_OK && number > 1) {
        f->print = sh_grow(f->print, f->n, &f->most, sizeof *f->print);
        f->print[f->n++] = print;
    }
    free(place);
    return rc;
}

/* The head has the names of all nodes, and a record the micro-steps: lines have no largest length. */
static sh_rc take_lines(struct sh_prints_file *f, FILE *in)
{
    char *text = NULL;
    size_t room = 0;
    ssize_t bytes;
    sh_rc rc = SH_OK;

    for (int number = 1; rc == SH_OK && (bytes = getline(&text, &room, in)) > 0; number++)
        rc = strlen(text) == (size_t)bytes && text[bytes - 1] == '\n'
                 ? take_line(f, text, (size_t)bytes, number)
                 : sh_fail(SH_E_DATA, "%s:%d: the line is cut short, or not text", f->path, number);
    if (rc == SH_OK && ferror(in))
        rc = sh_fail(SH_E_DATA, "read %s: %s", f->path, strerror(errno));
    if (rc == SH_OK && !f->n)
        rc = sh_fail(SH_E_DATA, "%s: there is no fingerprint of a step in it", f->path);
    free(text);
    return rc;
}

static int compare_prints(const struct sh_print *a, int64_t step, const char *name)
{
    return a->step != step ? (a->step > step) - (a->step < step) : strcmp(a->name, name);
}

static int by_step_and_name(const void *a, const void *b, void *arg)
{
    const struct sh_prints_file *f = arg;
    const struct sh_print *other = &f->print[*(const int *)b];

    return compare_prints(&f->print[*(const int *)a], other->step, other->name);
}

static sh_rc sort(struct sh_prints_file *f)
{
    f->by_name = sh_calloc((size_t)f->n, sizeof *f->by_name);
    for (int i = 0; i < f->n; i++)
        f->by_name[i] = i;
    qsort_r(f->by_name, (size_t)f->n, sizeof *f->by_name, by_step_and_name, f);
    for (int i = 1; i < f->n; i++)
        if (!by_step_and_name(&f->by_name[i - 1], &f->by_name[i], f))
            return sh_fail(SH_E_DATA, "%s: step %lld has \"%s\" twice", f->path,
                           (long long)f->print[f->by_name[i]].step, f->print[f->by_name[i]].name);
    return SH_OK;
}

sh_rc sh_prints_read(const char *path, struct sh_prints_file *out)
{
    FILE *in = fopen(path, "r");
    sh_rc rc;

    *out = (struct sh_prints_file){.path = path};
    if (!in)
        return sh_fail(SH_E_DATA, "open %s: %s", path, strerror(errno));
    rc = take_lines(out, in);
    fclose(in);
    return rc == SH_OK ? sort(out) : rc;
}

void sh_prints_free(struct sh_prints_file *f)
{
    for (int i = 0; i < f->n_lines; i++)
        json_decref(f->lines[i]);
    free(f->lines);
    free(f->print);
    free(f->by_name);
    *f = (struct sh_prints_file){0};
}

const struct sh_print *sh_prints_find(const struct sh_prints_file *f, int64_t step, const char *name)
{
    int begin = 0, end = f->n;

    while (begin < end) {
        int middle = begin + (end - begin) / 2, order = compare_prints(&f->print[f->by_name[middle]], step, name);

        if (!order)
            return &f->print[f->by_name[middle]];
        if (order < 0)
            begin = middle + 1;
        else
            end = middle;
    }
    return NULL;
}

int sh_prints_from(const struct sh_prints_file *f, int64_t step)
{
    int i = 0;

    while (i < f->n && f->print[i].step < step)
        i++;
    return i;
}
