/* Machine files: reading them on top of the preset of their device, and writing points to them. */
#include "src/cost/machine.h"

#include "src/base/file.h"
#include "src/base/mem.h"
#include "src/base/string/str.h"
#include "src/config/read/flat.h"
#include "src/cost/preset.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_BYTES = 16 << 20, MOST_RANKS = 1 << 24 };

/* A file is read twice: the first pass looks only for device.kind, since the preset must be set before the keys that
 * overwrite it. */
struct reader {
    struct sh_machine *m;
    const char *name;
    bool given[SH_MACHINE_KEYS_MAX];
    bool kind_only; /* the first pass: which preset */
    int point_line;
};

/* Errors name file and line, as for configurations: machine files are written by hand. */
static sh_rc fail_at(const struct reader *r, const struct sh_flat_pair *pair, const char *text)
{
    return sh_fail(SH_E_USAGE, "%s:%d: %s: %s", r->name, pair->line, pair->path, text);
}

/* The range is that of the key, so that a wrong unit (GB for bytes) is refused instead of giving a wrong prediction. */
static sh_rc read_number(const struct reader *r, const struct sh_flat_pair *pair, double min, double max,
                         const char *unit, double *out)
{
    char *end, text[160];
    double value = strtod(pair->text, &end);

    if (end == pair->text || *end || !isfinite(value) || value < min || value > max) {
        snprintf(text, sizeof text, "expected a number in %g .. %g%s%s, got %.40s", min, max, *unit ? " " : "", unit,
                 pair->text);
        return fail_at(r, pair, text);
    }
    *out = value;
    return SH_OK;
}

/* "points" may be meant too. */
static sh_rc no_such_key(const struct reader *r, const struct sh_flat_pair *pair)
{
    const char *names[SH_MACHINE_KEYS_MAX + 1], *near;
    int n = 0;

    for (int i = 0; i < sh_machine_n_keys; i++)
        names[n++] = sh_machine_keys[i].name;
    names[n++] = "points";
    near = sh_str_nearest(pair->path, n, names);
    return sh_fail(SH_E_USAGE, "%s:%d: %s: no such key%s%s; sherd help --machine lists all", r->name, pair->line,
                   pair->path, near ? "; nearest is " : "", near ? near : "");
}

/* --- points --- */

/* A point consists of doubles and short texts, so one table of offsets reads and prints it. */
#define COUNT(field) offsetof(struct sh_machine_point, field)
static const struct point_field {
    const char *name;
    size_t offset, text; /* text: bytes of a char[]; 0: a number */
} point_fields[] = {
    {"kind", COUNT(kind), 32},     {"type", COUNT(type), 12},        {"axis", COUNT(axis), 16},
    {"beside", COUNT(beside), 32}, {"figure", COUNT(figure), 48},    {"ranks", COUNT(ranks), 0},
    {"nodes", COUNT(nodes), 0},    {"bytes", COUNT(bytes), 0},       {"seconds", COUNT(seconds), 0},
    {"value", COUNT(value), 0},    {"slowdown", COUNT(slowdown), 0}, {"rounds", COUNT(rounds), 0},
    {"spread", COUNT(spread), 0},
};
enum { POINT_FIELDS = sizeof point_fields / sizeof *point_fields };

/* Points arrive in the order of the file, field by field; each field comes with the number of its point. */
static struct sh_machine_point *point_at(struct sh_machine *m, int i)
{
    while (m->n_points <= i) {
        m->points = sh_grow(m->points, m->n_points, &m->cap_points, sizeof *m->points);
        memset(&m->points[m->n_points++], 0, sizeof *m->points);
    }
    return &m->points[i];
}

/* A list inside the mapping: "dims[0]", "dims[1]", ... in this order. */
static sh_rc read_dim(const struct reader *r, const struct sh_flat_pair *pair, struct sh_machine_point *p)
{
    if (p->n_dims == SH_POINT_DIMS)
        return fail_at(r, pair, "more dimensions than any operation has");
    return read_number(r, pair, 1, 1e18, "", &p->dims[p->n_dims++]);
}

/* 0 is allowed because some numbers are optional; judge_point() checks the whole point. */
static sh_rc read_point_field(const struct reader *r, const struct sh_flat_pair *pair, const char *field,
                              struct sh_machine_point *p)
{
    if (!strncmp(field, "dims[", 5))
        return read_dim(r, pair, p);
    for (int i = 0; i < POINT_FIELDS; i++) {
        const struct point_field *f = &point_fields[i];

        if (strcmp(f->name, field))
            continue;
        if (!f->text)
            return read_number(r, pair, 0, 1e24, "", (double *)((char *)p + f->offset));
        if (strlen(pair->text) >= f->text)
            return fail_at(r, pair, "too long; no text of a point is that long");
        strcpy((char *)p + f->offset, pair->text);
        return SH_OK;
    }
    return fail_at(r, pair, "a point has no such field");
}

/* "points[3].kind" */
static sh_rc read_point(struct reader *r, const struct sh_flat_pair *pair)
{
    char *end;
    long i = strtol(pair->path + strlen("points["), &end, 10);

    if (end[0] != ']' || end[1] != '.' || i < 0 || i > 1 << 20)
        return fail_at(r, pair, "expected a list of mappings, as sherd bench --machine writes it");
    r->point_line = pair->line;
    return read_point_field(r, pair, end + 2, point_at(r->m, (int)i));
}

/* The kind of a point follows from its fields. A number that is divided by must not be zero. */
static sh_rc judge_point(const struct reader *r, struct sh_machine_point *p)
{
    int key = sh_machine_key_find(p->figure);

    if (*p->figure) {
        if (key < 0 || sh_machine_keys[key].text)
            return sh_fail(SH_E_USAGE, "%s: points: figure %s: no such key", r->name, p->figure);
        p->what = SH_POINT_FIGURE;
        if (p->value < sh_machine_keys[key].min || p->value > sh_machine_keys[key].max)
            return sh_fail(SH_E_USAGE, "%s: points: figure %s: value %g is not in %g .. %g", r->name, p->figure,
                           p->value, sh_machine_keys[key].min, sh_machine_keys[key].max);
        return SH_OK;
    }
    if (!strcmp(p->kind, "step") && p->n_dims == SH_WORK_DIMS && p->value >= 0.01 && p->value <= 100) {
        p->what = SH_POINT_STEP;
        return SH_OK;
    }
    p->what = *p->beside ? SH_POINT_BESIDE : p->n_dims ? SH_POINT_OP : SH_POINT_COLL;
    if (!*p->kind || (p->what != SH_POINT_BESIDE && p->seconds <= 0) ||
        (p->what == SH_POINT_COLL &&
         (p->ranks < 2 || p->ranks > MOST_RANKS || p->nodes < 1 || p->nodes > p->ranks || p->bytes < 1)))
        return sh_fail(
            SH_E_USAGE,
            "%s: points: one of kind %s lacks fields: an operation needs dims and seconds; a collective needs 2 ranks or "
            "more, their nodes, bytes and seconds",
            r->name, *p->kind ? p->kind : "(none)");
    return SH_OK;
}

/* The newest point wins: later figures overwrite earlier ones. */
static sh_rc judge_points(struct reader *r)
{
    for (int i = 0; i < r->m->n_points; i++) {
        struct sh_machine_point *p = &r->m->points[i];
        int key;

        SH_TRY(judge_point(r, p));
        if (p->what != SH_POINT_FIGURE)
            continue;
        key = sh_machine_key_find(p->figure);
        *sh_machine_figure(r->m, key) = p->value;
        r->m->from[key] = SH_FROM_MEASUREMENT;
    }
    return SH_OK;
}

/* --- keys --- */

/* One figure or text, in the range of its key. A key may be given once, as in a configuration. */
static sh_rc read_key(struct reader *r, const struct sh_flat_pair *pair)
{
    int key = sh_machine_key_find(pair->path);
    const struct sh_machine_key *k = &sh_machine_keys[key < 0 ? 0 : key];
    char *at = (char *)r->m + k->offset;

    if (key < 0)
        return no_such_key(r, pair);
    if (r->given[key])
        return fail_at(r, pair, "given twice");
    r->given[key] = true;
    r->m->from[key] = SH_FROM_FILE;
    if (!k->text)
        return read_number(r, pair, k->min, k->max, k->unit, (double *)at);
    if (strlen(pair->text) >= (size_t)k->max)
        return fail_at(r, pair, "the text is too long");
    strcpy(at, pair->text);
    return SH_OK;
}

/* The preset must be known before the other keys overwrite it. */
static sh_rc read_kind(struct reader *r, const struct sh_flat_pair *pair)
{
    char names[SH_PRESET_NAMES];

    if (strcmp(pair->path, "device.kind"))
        return SH_OK;
    if (sh_preset_device(pair->text, strlen(pair->text), r->m))
        return SH_OK;
    return sh_fail(SH_E_USAGE, "%s:%d: device.kind: %.40s is not one of %s", r->name, pair->line, pair->text,
                   sh_preset_names(names));
}

/* Called for each value of the file, in order. */
static sh_rc give(void *to, const struct sh_flat_pair *pair)
{
    struct reader *r = to;

    if (r->kind_only)
        return read_kind(r, pair);
    if (!strncmp(pair->path, "points[", strlen("points[")))
        return read_point(r, pair);
    return read_key(r, pair);
}

/* The caller's machine is changed only if the whole file is right. */
sh_rc sh_machine_parse(const char *text, size_t bytes, const char *name, struct sh_machine *out)
{
    struct sh_machine m = {0};
    struct reader r = {.m = &m, .name = name, .kind_only = true};
    sh_rc rc = sh_flat_read(text, bytes, name, give, &r);

    if (rc == SH_OK && !m.device.kind[0])
        rc = sh_fail(SH_E_USAGE, "%s: no device.kind; its preset gives everything that the file does not", name);
    r.kind_only = false;
    if (rc == SH_OK)
        rc = sh_flat_read(text, bytes, name, give, &r);
    if (rc == SH_OK)
        rc = judge_points(&r);
    if (rc != SH_OK) {
        sh_machine_close(&m);
        return rc;
    }
    *out = m;
    return SH_OK;
}

/* A name that is not a file is a preset, so `--machine h100-80` needs no file. */
sh_rc sh_machine_load(const char *name_or_file, struct sh_machine *out)
{
    char *text;
    size_t bytes;
    sh_rc rc;

    if (access(name_or_file, F_OK) != 0)
        return sh_machine_preset(name_or_file, out);
    SH_TRY(sh_read_file(name_or_file, MOST_BYTES, &text, &bytes));
    rc = sh_machine_parse(text, bytes, name_or_file, out);
    free(text);
    return rc;
}

sh_rc sh_machine_load_for(const char *name_or_file, int64_t ranks, struct sh_machine *out)
{
    SH_TRY(sh_machine_load(name_or_file, out));
    if (ranks > 1 && access(name_or_file, F_OK) != 0)
        sh_preset_take_node(out);
    return SH_OK;
}

void sh_machine_close(struct sh_machine *m)
{
    free(m->points);
    m->points = NULL;
    m->n_points = m->cap_points = 0;
}

/* --- writing --- */

/* Compares exactly: dimensions are whole numbers, both in a file and in a call. */
static bool same_dims(const struct sh_machine_point *a, const struct sh_machine_point *b)
{
    return a->n_dims == b->n_dims && !memcmp(a->dims, b->dims, (size_t)a->n_dims * sizeof *a->dims);
}

/* Whether both are measurements of the same thing. */
static bool same_point(const struct sh_machine_point *a, const struct sh_machine_point *b)
{
    return a->what == b->what && !strcmp(a->kind, b->kind) && !strcmp(a->type, b->type) && !strcmp(a->axis, b->axis) &&
           !strcmp(a->beside, b->beside) && !strcmp(a->figure, b->figure) && a->ranks == b->ranks &&
           a->nodes == b->nodes && a->bytes == b->bytes && same_dims(a, b);
}

/* Whether this field is the result of the point, which is written even if it is 0. */
static bool is_asked(const struct sh_machine_point *p, const char *at)
{
    return (p->what == SH_POINT_FIGURE && at == (const char *)&p->value) ||
           (p->what == SH_POINT_BESIDE && at == (const char *)&p->slowdown);
}

/* One line per point: people compare it with others of its kind. */
void sh_machine_print_point(const struct sh_machine_point *p, FILE *out)
{
    const char *between = "";

    fputs("  - {", out);
    for (int i = 0; i < POINT_FIELDS; i++) {
        const char *at = (const char *)p + point_fields[i].offset;

        if (point_fields[i].text && *at)
            fprintf(out, "%s%s: %s", between, point_fields[i].name, at);
        else if (!point_fields[i].text && (*(const double *)at > 0 || is_asked(p, at)))
            fprintf(out, "%s%s: %.10g", between, point_fields[i].name, *(const double *)at);
        else
            continue;
        between = ", ";
    }
    for (int i = 0; i < p->n_dims; i++)
        fprintf(out, "%s%.10g%s", i ? ", " : ", dims: [", p->dims[i], i + 1 == p->n_dims ? "]" : "");
    fputs("}", out);
}

/* The text up to the list of points, which is the last section; the whole text if there is no list. */
static sh_rc head_of(const char *path, const char *text, size_t *bytes)
{
    const char *at = !strncmp(text, "points:", 7) ? text : strstr(text, "\npoints:");

    if (!at)
        return SH_OK;
    at += *at == '\n';
    *bytes = (size_t)(at - text);
    for (at = strchr(at, '\n'); at && *++at; at = strchr(at, '\n'))
        if (*at != ' ' && *at != '-' && *at != '#' && *at != '\n')
            return sh_fail(SH_E_USAGE,
                           "%s: points must be the last section, because measurements are appended at the end", path);
    return SH_OK;
}

/* Old points keep their order, and new ones go to the end: the diff of a file under version control then shows what was
 * measured. */
static void write_points(const struct sh_machine *m, const struct sh_machine_point *points, int n, bool fit, FILE *out)
{
    fputs("points:\n", out);
    for (int i = 0; i < m->n_points; i++) {
        bool replaced = fit && m->points[i].what == SH_POINT_STEP;

        for (int k = 0; k < n; k++)
            replaced |= same_point(&m->points[i], &points[k]);
        if (replaced)
            continue;
        sh_machine_print_point(&m->points[i], out);
        fputc('\n', out);
    }
    for (int k = 0; k < n; k++) {
        sh_machine_print_point(&points[k], out);
        fputc('\n', out);
    }
}

/* The head of the file is kept byte for byte, comments included. A file that cannot be parsed is not overwritten. */
static sh_rc rewrite(const char *path, const char *text, size_t bytes, const struct sh_machine_point *points, int n,
                     bool fit)
{
    struct sh_machine m;
    char *whole;
    size_t length = bytes, written;
    sh_rc rc = sh_machine_parse(text, bytes, path, &m);
    FILE *out;

    SH_TRY(rc);
    rc = head_of(path, text, &length);
    if (rc == SH_OK) {
        out = sh_memstream(&whole, &written);
        fwrite(text, 1, length, out);
        if (length && text[length - 1] != '\n')
            fputc('\n', out);
        write_points(&m, points, n, fit, out);
        fclose(out);
        rc = sh_write_file_atomic(path, whole, written);
        free(whole);
    }
    sh_machine_close(&m);
    return rc;
}

/* A new file starts with only a name and the preset; everything else is measured. */
static sh_rc add(const char *path, const char *kind, const struct sh_machine_point *points, int n, bool fit)
{
    char *text;
    size_t bytes;
    sh_rc rc;

    if (access(path, F_OK) == 0)
        SH_TRY(sh_read_file(path, MOST_BYTES, &text, &bytes));
    else {
        text = sh_strfmt("machine: {name: %s}\ndevice: {kind: %s}\n", "measured", kind);
        bytes = strlen(text);
    }
    rc = rewrite(path, text, bytes, points, n, fit);
    free(text);
    return rc;
}

sh_rc sh_machine_add_points(const char *path, const char *kind, const struct sh_machine_point *points, int n)
{
    return add(path, kind, points, n, false);
}

sh_rc sh_machine_add_fit(const char *path, const char *kind, const struct sh_machine_point *points, int n)
{
    return add(path, kind, points, n, true);
}
