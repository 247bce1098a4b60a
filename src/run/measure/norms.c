#include "src/run/measure/norms.h"

#include "src/base/mem.h"
#include "src/base/number/exact.h"
#include "src/base/string/str.h"
#include "src/base/time.h"
#include "src/run/run.h"
#include "src/run/save/map.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { GRADIENT, PARAMETER, UPDATE, KINDS };
enum { PIECE = 1 << 16 }; /* elements read at a time: whole blocks */

/* ---- rows ---- */

/* Characters of a name up to the first part that is a number, or all of them. */
static int block_chars(const char *name)
{
    for (const char *at = strchr(name, '.'); at; at = strchr(at + 1, '.')) {
        size_t digits = strspn(at + 1, "0123456789");

        if (digits && (at[1 + digits] == '.' || !at[1 + digits]))
            return (int)(at + 1 + digits - name);
    }
    return (int)strlen(name);
}

static void make_rows(struct sh_norms *n, const struct sh_run *r)
{
    const struct sh_program *p = r->p;
    bool blocks = r->cfg.metrics.norms == SH_NORMS_BLOCKS;

    n->row_of = sh_calloc((size_t)p->n_saved, sizeof *n->row_of);
    n->name = sh_calloc((size_t)p->n_saved, sizeof *n->name);
    for (int i = 0; i < p->n_saved; i++) {
        const char *name = p->saved[i].name;
        int chars = blocks ? block_chars(name) : (int)strlen(name), row;

        n->row_of[i] = SH_NONE;
        if (!p->saved[i].trainable || p->saved[i].role == SH_PARAM_MOMENT)
            continue;
        for (row = blocks ? 0 : n->rows; row < n->rows; row++)
            if (!strncmp(n->name[row], name, (size_t)chars) && !n->name[row][chars])
                break;
        if (row == n->rows)
            n->name[n->rows++] = sh_strfmt("%.*s", chars, name);
        n->row_of[i] = row;
    }
    n->squares = sh_calloc((size_t)n->rows * KINDS, sizeof *n->squares);
    n->norm = sh_calloc((size_t)n->rows * KINDS, sizeof *n->norm);
}

/* ---- squares of what this rank writes ---- */

/* x: elements of the unit from `at` on. A block of it lies on one rank, and the part of a parameter in it, too. */
static void add_blocks(struct sh_exact *sum, const float *x, int64_t at, int64_t n)
{
    int64_t head = (SH_EXACT_BLOCK - at % SH_EXACT_BLOCK) % SH_EXACT_BLOCK;

    head = head < n ? head : n;
    sh_exact_add_squares(sum, x, head);
    sh_exact_add_squares(sum, x + head, n - head);
}

static void add(struct sh_norms *n, const struct sh_program *p, int unit, struct sh_range range, const float *x,
                int kind)
{
    const struct sh_unit *u = &p->units[unit];

    for (int i = u->first_param; i < u->first_param + u->n_params; i++) {
        struct sh_range cut = sh_map_cut(range, &p->params[i]);
        int row = n->row_of[p->params[i].saved];

        if (row != SH_NONE && cut.begin < cut.end)
            add_blocks(&n->squares[kind * n->rows + row], x + cut.begin - range.begin, cut.begin, cut.end - cut.begin);
    }
}

static void add_gradients(struct sh_norms *n, struct sh_run *r, int unit)
{
    const struct sh_map_unit *m = &r->map->unit[unit];
    const float *data = sh_exec_data(r->exec, r->p->units[unit].grad_shard);

    for (struct sh_range at = m->written; at.begin < m->written.end; at.begin = at.end) {
        at.end = at.begin + PIECE < m->written.end ? at.begin + PIECE : m->written.end;
        sh_exec_get_floats(r->exec, n->piece, (struct sh_floats){.whole = (float *)data + at.begin - m->owned.begin},
                           at.end - at.begin);
        add(n, r->p, unit, at, n->piece, GRADIENT);
    }
}

struct visit {
    struct sh_norms *n;
    struct sh_run *r;
};

static void keep(const struct sh_map_stretch *s, void *arg)
{
    const struct visit *v = arg;
    float *to = v->n->before[s->unit] + s->range.begin - v->r->map->unit[s->unit].written.begin;

    sh_exec_get_floats(v->r->exec, to, s->state[SH_CKPT_MODEL], s->range.end - s->range.begin);
}

/* What was kept becomes the update. */
static void compare(const struct sh_map_stretch *s, void *arg)
{
    const struct visit *v = arg;
    float *before = v->n->before[s->unit] + s->range.begin - v->r->map->unit[s->unit].written.begin;
    int64_t all = s->range.end - s->range.begin;

    for (int64_t at = 0, n; at < all; at += n) {
        struct sh_range here = {s->range.begin + at, 0};

        n = PIECE - here.begin % SH_EXACT_BLOCK; /* the next piece begins a block */
        n = n < all - at ? n : all - at;
        here.end = here.begin + n;
        sh_exec_get_floats(v->r->exec, v->n->piece, sh_floats_at(s->state[SH_CKPT_MODEL], at), n);
        add(v->n, v->r->p, s->unit, here, v->n->piece, PARAMETER);
        for (int64_t i = 0; i < n; i++)
            before[at + i] = v->n->piece[i] - before[at + i];
        add(v->n, v->r->p, s->unit, here, before + at, UPDATE);
    }
}

/* Visit the parameters that this rank writes of each trained unit. Replicas share them as in a save. A home that cannot
 * be read ends the job. */
static void visit_parameters(struct sh_norms *n, struct sh_run *r, sh_map_look *look)
{
    struct visit v = {n, r};

    for (int i = 0; i < r->p->n_units; i++) {
        sh_rc rc = n->before[i] ? sh_map_visit(r, i, r->map->unit[i].written, 1U << SH_CKPT_MODEL, false, look, &v)
                                : SH_OK;

        if (rc != SH_OK)
            sh_stop(rc);
    }
}

/* ---- around the update ---- */

sh_rc sh_norms_check(const struct sh_run *r)
{
    for (int i = 0; r->cfg.metrics.norms != SH_NORMS_OFF && i < r->p->n_units; i++) {
        int gradient = r->p->units[i].grad_shard;

        if (gradient != SH_NONE && r->p->tiers[r->p->tensors[gradient].tier].kind == SH_TIER_FILE)
            return sh_fail(SH_E_USAGE, "metrics.norms: gradients in a file are not measured; use another "
                                       "offload.gradients, or metrics.norms=off");
    }
    return SH_OK;
}

bool sh_norms_due(const struct sh_run *r, int64_t step)
{
    int64_t every = r->cfg.metrics.log_freq;

    return r->cfg.metrics.norms != SH_NORMS_OFF && (step == 1 || step % every == 0 || step == r->cfg.training.steps);
}

void sh_norms_before_update(struct sh_norms *n, struct sh_run *r, double scale)
{
    int64_t begin = sh_now_ns();

    if (!n->row_of)
        make_rows(n, r);
    memset(n->squares, 0, (size_t)n->rows * KINDS * sizeof *n->squares);
    n->before = sh_calloc((size_t)r->p->n_units, sizeof *n->before);
    n->piece = sh_calloc(PIECE, sizeof *n->piece);
    for (int i = 0; i < r->p->n_units; i++) {
        const struct sh_unit *u = &r->p->units[i];
        struct sh_range mine = r->map->unit[i].written;

        if (!u->trainable || u->of_rows || mine.begin == mine.end)
            continue;
        if (sh_program_descends(u))
            add_gradients(n, r, i);
        n->before[i] = sh_calloc((size_t)(mine.end - mine.begin), sizeof *n->before[i]);
    }
    visit_parameters(n, r, keep);
    n->scale = scale;
    n->seconds = sh_seconds_since(begin);
}

static void forget_step(struct sh_norms *n, int units)
{
    for (int i = 0; i < units && n->before; i++)
        free(n->before[i]);
    free(n->before);
    free(n->piece);
    n->before = NULL;
    n->piece = NULL;
}

/* Digits are whole numbers below 2^32, so integers add them up; the last element is not 0 if a sum is not finite. */
static sh_rc add_ranks(struct sh_norms *n)
{
    int rows = n->rows * KINDS;
    long long *digits = sh_calloc((size_t)rows * SH_EXACT_ELEMS, sizeof *digits);
    double elems[SH_EXACT_ELEMS];
    sh_rc rc;

    for (int i = 0; i < rows; i++) {
        sh_exact_put(&n->squares[i], elems);
        for (int k = 0; k < SH_EXACT_ELEMS; k++)
            digits[i * SH_EXACT_ELEMS + k] = k < SH_EXACT_DIGITS ? (long long)elems[k] : elems[k] != 0;
    }
    rc = sh_mesh_sum_i64(digits, rows * SH_EXACT_ELEMS);
    for (int i = 0; i < rows; i++) {
        for (int k = 0; k < SH_EXACT_DIGITS; k++)
            elems[k] = (double)digits[i * SH_EXACT_ELEMS + k];
        elems[SH_EXACT_DIGITS] = digits[i * SH_EXACT_ELEMS + SH_EXACT_DIGITS] ? NAN : 0;
        sh_exact_get(&n->squares[i], elems);
        n->norm[i] = sqrt(sh_exact_round(&n->squares[i])) / (i / n->rows == GRADIENT ? n->scale : 1);
    }
    free(digits);
    return rc;
}

sh_rc sh_norms_after_update(struct sh_norms *n, struct sh_run *r, struct sh_norm_metrics *out)
{
    int64_t begin = sh_now_ns();

    visit_parameters(n, r, compare);
    forget_step(n, r->p->n_units);
    SH_TRY(add_ranks(n));
    SH_TRY(sh_largest_gather(&n->largest));
    *out = (struct sh_norm_metrics){.rows = n->rows,
                                    .name = n->name,
                                    .gradient = n->norm + GRADIENT * n->rows,
                                    .parameter = n->norm + PARAMETER * n->rows,
                                    .update = n->norm + UPDATE * n->rows,
                                    .blocks = n->largest.blocks,
                                    .block = (const char *const *)n->largest.name,
                                    .largest = n->largest.value,
                                    .seconds = n->seconds + sh_seconds_since(begin)};
    return SH_OK;
}

void sh_norms_close(struct sh_norms *n)
{
    for (int i = 0; i < n->rows; i++)
        free((char *)n->name[i]);
    free(n->name);
    free(n->row_of);
    free(n->squares);
    free(n->norm);
    sh_largest_close(&n->largest);
    *n = (struct sh_norms){0};
}
