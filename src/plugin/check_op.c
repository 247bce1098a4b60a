/* Each check tries one promise of a row and stops at the first call that breaks it. Here are those of what a row computes. */
#include "src/plugin/check_op.h"

#include "src/base/mem.h"
#include "src/plugin/check.h"
#include "src/plugin/check_call.h"
#include "src/plugin/trial_gpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SMALL = 300 }; /* elements that are all tried; of more, some */

/* ---- text ---- */

int sh_plugin_columns(const struct sh_op_shape *s)
{
    const struct sh_formula *x = &s->in[0].dim[s->in[0].ndim - 1], *y = &s->out[0].dim[s->out[0].ndim - 1];
    bool one = s->in[0].any_shape == s->out[0].any_shape && x->n == 1 && y->n == 1 && y->term[0].factor == 1 &&
               !strcmp(x->term[0].letters, y->term[0].letters) && strlen(y->term[0].letters) == 1;

    return one && x->term[0].factor <= 2 ? x->term[0].factor : 0;
}

/* Whether an operand of the operation and one of its backward are one tensor. */
static bool alike(const struct sh_operand_row *a, const struct sh_operand_row *b)
{
    bool same = a->ndim == b->ndim;

    for (int i = 0; same && i < a->ndim; i++)
        same = a->dim[i].n == b->dim[i].n && a->dim[i].term[0].factor == b->dim[i].term[0].factor &&
               !strcmp(a->dim[i].term[0].letters, b->dim[i].term[0].letters);
    return same;
}

/* Letters of a formula that no dim alone defines. */
static char undefined(const struct sh_op_shape *s, const struct sh_formula *f)
{
    for (int i = 0; i < f->n; i++)
        for (const char *c = f->term[i].letters; *c; c++) {
            bool found = false;

            for (int k = 0; k < s->n_in + s->n_out; k++) {
                const struct sh_operand_row *o = k < s->n_in ? &s->in[k] : &s->out[k - s->n_in];

                for (int d = 0; d < o->ndim; d++)
                    found |= sh_formula_letter(&o->dim[d]) == *c;
            }
            if (!found)
                return *c;
        }
    return 0;
}

static bool check_letters(struct sh_subject *s, const struct sh_op_shape *shape)
{
    char letter = undefined(shape, &shape->flops);

    for (int k = 0; k < shape->n_in + shape->n_out; k++) {
        const struct sh_operand_row *o = k < shape->n_in ? &shape->in[k] : &shape->out[k - shape->n_in];

        for (int d = 0; d < o->ndim && !letter; d++)
            letter = undefined(shape, &o->dim[d]);
    }
    if (letter)
        return sh_subject_wrong(s, "no dim is the letter %c alone, so nothing says what it is", letter);
    return shape->flops.n > 0 && shape->flops.term[0].letters[0]
               ? true
               : sh_subject_wrong(
                     s,
                     "flops is missing, or does not grow with the operands: count additions and multiplications, as in 9NF");
}

static bool check_text(struct sh_subject *s)
{
    struct sh_op_shape f, b;

    if (sh_trial_gpu_is_open() && !s->row->cuda)
        return sh_subject_wrong(s, "it has no cuda kernel");
    if (!sh_shape_read(s->row->shape, s->row->flops, &f) || !check_letters(s, &f))
        return false;
    if (!s->backward)
        return s->row == s->forward ? sh_subject_wrong(s, "it names no backward, and no row names it as one") : true;
    if (!sh_shape_read(s->backward->shape, s->backward->flops, &b))
        return false;
    if (!alike(&f.out[0], &b.in[0]) || !alike(&f.in[0], &b.out[0]) || (b.n_in > 1 && !alike(&f.in[0], &b.in[1])))
        return sh_subject_wrong(s, "the dims of %s are not those of dy, x -> dx for this shape", s->backward->name);
    return true;
}

/* ---- gradient ---- */

struct slopes {
    struct sh_trial y, back;
    double *x, *at; /* x, and y there */
    int64_t n, skipped;
};

/* sum dy (y - y at x), for x with element j moved by h: sums of y itself would lose the digits. */
static double weighed(struct slopes *g, int64_t j, double h)
{
    double sum = 0;

    sh_operand_set(&g->y.call.in[0], j, g->x[j] + h);
    g->y.row->ref(&g->y.call);
    sh_operand_set(&g->y.call.in[0], j, g->x[j]);
    for (int64_t i = 0; i < sh_operand_elems(&g->y.call.out[0]); i++)
        sum += sh_operand_get(&g->back.call.in[0], i) * (sh_trial_out(&g->y, i) - g->at[i]);
    return sum;
}

/* Where the slopes to both sides differ there is a kink, or a jump, and no derivative. At 0, where many functions have
 * one, anything between both is right. */
static bool check_element(struct sh_subject *s, struct slopes *g, int64_t j)
{
    double h = 1e-6 * fmax(1, fabs(g->x[j])), up = weighed(g, j, h), down = weighed(g, j, -h);
    double slope = (up - down) / (2 * h), dx = sh_trial_out(&g->back, j);
    double left = -down / h, right = up / h;
    const struct sh_operand *x = &g->y.call.in[0];

    if (g->x[j] != 0 && !(fabs(left - right) <= 1e-3 * (1 + fabs(left) + fabs(right)))) {
        g->skipped++;
        return true;
    }
    if (fabs(dx - slope) <= 1e-6 * (1 + fabs(slope)) + (g->x[j] != 0 ? 0 : fabs(left - right) / 2))
        return true;
    return sh_subject_wrong(s, "%s gives %.7g where the difference of ref is %.7g (element [%lld,%lld] of %s, %.5g)",
                            s->backward->name, dx, slope, (long long)(j / x->dim[1]), (long long)(j % x->dim[1]),
                            g->y.shape.in[0].name, g->x[j]);
}

static bool check_slopes(struct sh_subject *s, struct slopes *g)
{
    bool right = sh_subject_run(s, &g->back, s->backward->ref);

    if (right && sh_operand_elems(&g->back.call.out[0]) != g->n)
        return sh_subject_wrong(s, "%s makes another number of elements than x has", s->backward->name);
    if (!sh_subject_run(s, &g->y, s->row->ref))
        return false;
    g->x = sh_calloc((size_t)g->n, sizeof *g->x);
    g->at = sh_calloc((size_t)sh_operand_elems(&g->y.call.out[0]), sizeof *g->at);
    for (int64_t i = 0; i < sh_operand_elems(&g->y.call.out[0]); i++)
        g->at[i] = sh_trial_out(&g->y, i);
    for (int64_t j = 0; j < g->n; j++)
        g->x[j] = sh_operand_get(&g->y.call.in[0], j);
    if (s->brief || g->n < SMALL)
        for (int64_t j = 0; right && j < g->n; j++)
            right = check_element(s, g, j);
    free(g->x);
    free(g->at);
    return right && g->skipped * 10 > g->n + 10 ? sh_subject_wrong(s, "ref jumps in more than a tenth of its elements")
                                                : right;
}

/* Whether the ref of a row makes about the same in both types, which one that reads float alone does not. */
static bool knows_types(struct sh_subject *s, const struct sherd_op *row)
{
    struct sh_trial_size size = sh_subject_size(0, SH_F32), in_f64 = size;
    struct sh_trial t, exact;
    double largest = 0;
    bool right, same = true;

    in_f64.act = SH_F64;
    sh_trial_make(row, s->number, &size, &t);
    sh_trial_make(row, s->number, &in_f64, &exact);
    right = sh_subject_run(s, &t, row->ref) && sh_subject_run(s, &exact, row->ref);
    for (int64_t i = 0; i < sh_operand_elems(&exact.call.out[0]); i++)
        largest = fmax(largest, fabs(sh_trial_out(&exact, i)));
    for (int64_t i = 0; right && i < sh_operand_elems(&exact.call.out[0]); i++)
        if (isnan(sh_trial_out(&t, i)))
            right =
                sh_subject_wrong(s, "ref of %s makes NaN, does not write all of its output, or reads it (element %lld)",
                                 row->name, (long long)i);
    for (int64_t i = 0; i < sh_operand_elems(&exact.call.out[0]); i++)
        same &= fabs(sh_trial_out(&t, i) - sh_trial_out(&exact, i)) <= 1e-3 * largest;
    sh_trial_free(&t);
    sh_trial_free(&exact);
    return right && !same
               ? sh_subject_wrong(
                     s,
                     "ref of %s makes other numbers in float64 than in float32: sh_operand_get() and sh_operand_set() know the types",
                     row->name)
               : right;
}

/* x of the operation is that of its backward, and dy is something else. */
static bool check_gradient(struct sh_subject *s)
{
    bool right = !s->backward || (knows_types(s, s->row) && knows_types(s, s->backward));

    for (int i = 0; s->backward && right && i < sh_subject_sizes(s); i++) {
        struct sh_trial_size size = sh_subject_size(i, SH_F64), of_x = size;
        struct slopes g = {.n = 0};

        of_x.first_operand = 1;
        sh_subject_take_numbers(s, i);
        sh_trial_make(s->row, s->number, &of_x, &g.y);
        sh_trial_make(s->backward, s->number, &size, &g.back);
        g.n = sh_operand_elems(&g.y.call.in[0]);
        right = check_slopes(s, &g);
        sh_trial_free(&g.y);
        sh_trial_free(&g.back);
    }
    return right;
}

/* ---- numbers ---- */

/* Whether ref makes something else when a number is another one: a constant in its place would be right by default. */
static bool changes(struct sh_subject *s, int number)
{
    const struct sherd_op *rows[] = {s->row, s->backward};
    bool found = false;

    for (int i = 0; i < sh_subject_sizes(s) && !found; i++)
        for (int k = 0; k < 2 && rows[k]; k++) {
            struct sh_trial_size size = sh_subject_size(i, SH_F64);
            double others[SHERD_NUMBERS];
            struct sh_trial t, other;

            sh_subject_take_numbers(s, 1);
            memcpy(others, s->number, sizeof others);
            sh_subject_take_numbers(s, 0);
            memcpy(others, s->number, (size_t)number * sizeof *others);
            memcpy(others + number + 1, s->number + number + 1, (size_t)(SHERD_NUMBERS - number - 1) * sizeof *others);
            sh_trial_make(rows[k], s->number, &size, &t);
            sh_trial_make(rows[k], others, &size, &other);
            found |= sh_subject_run(s, &t, rows[k]->ref) && sh_subject_run(s, &other, rows[k]->ref) &&
                     !sh_trial_same(&t, &other);
            sh_trial_free(&t);
            sh_trial_free(&other);
        }
    return found;
}

/* Whether ref makes numbers of a row when one number of the operation is `value`, which a configuration may give. */
static bool is_finite(struct sh_subject *s, int number, double value)
{
    struct sh_trial_size size = sh_subject_size(0, SH_F64);
    struct sh_trial t;
    bool right, finite = true;

    sh_subject_take_numbers(s, 0);
    s->number[number] = value;
    sh_trial_make(s->row, s->number, &size, &t);
    right = sh_subject_run(s, &t, s->row->ref);
    for (int64_t i = 0; i < sh_operand_elems(&t.call.out[0]); i++)
        finite &= isfinite(sh_trial_out(&t, i)) != 0;
    sh_trial_free(&t);
    return right && !finite ? sh_subject_wrong(s, "what ref makes is not finite if %s is %g, which its bounds allow",
                                               s->forward->number[number].name, value)
                            : right;
}

static bool check_numbers(struct sh_subject *s)
{
    for (int k = 0; k < SHERD_NUMBERS && s->forward->number[k].name; k++) {
        const struct sherd_number *n = &s->forward->number[k];

        if (!is_finite(s, k, n->min) || !is_finite(s, k, n->max))
            return false;
        if (s->row == s->forward && n->min < n->max && !changes(s, k))
            return sh_subject_wrong(s, "%s changes nothing that ref makes", n->name);
    }
    return true;
}

/* ---- types ---- */

/* How far results of one type may be apart that follow from the same numbers: a rounding, and sums in f32. */
static double near(enum sh_dtype act, double of, double largest)
{
    double eps = act == SH_BF16 ? 0x1.04p-8 : act == SH_F16 ? 0x1.04p-11 : 0x1p-20;

    return eps * fabs(of) + 2e-6 * largest + (act == SH_F16 ? 1e-7 : 1e-30);
}

static bool agree(struct sh_subject *s, const struct sh_trial *t, const struct sh_trial *exact, sherd_kernel kernel)
{
    int64_t n = sh_operand_elems(&t->call.out[0]);
    double largest = 0;
    char text[SH_SUBJECT_WHERE];

    for (int64_t i = 0; i < n; i++)
        largest = fmax(largest, fabs(sh_trial_out(exact, i)));
    for (int64_t i = 0; i < n; i++) {
        double a = sh_trial_out(t, i), b = sh_trial_out(exact, i);

        if (!(fabs(a - b) <= near(t->size.act, b, largest)))
            return sh_subject_wrong(s, "%.7g where ref in float64 has %.7g (element %lld; %s)", a, b, (long long)i,
                                    sh_subject_where(t, kernel, text));
    }
    return true;
}

/* A kernel in each type against the reference in f64, on numbers of that type. */
static bool check_type(struct sh_subject *s, int i, enum sh_dtype act, sherd_kernel kernel)
{
    struct sh_trial_size size = sh_subject_size(i, act), in_f64 = size;
    struct sh_trial t, exact;
    bool right;

    in_f64.act = SH_F64;
    sh_trial_make(s->row, s->number, &size, &t);
    sh_trial_make(s->row, s->number, &in_f64, &exact);
    right = sh_subject_run(s, &t, kernel) && sh_subject_run(s, &exact, s->row->ref) && agree(s, &t, &exact, kernel);
    sh_trial_free(&t);
    sh_trial_free(&exact);
    return right;
}

/* And as many rows as neither 16 bits nor the blocks of a grid count. */
static bool check_types(struct sh_subject *s)
{
    const sherd_kernel kernels[] = {s->row->ref, s->row->cpu, sh_trial_gpu_is_open() ? s->row->cuda : NULL};
    bool right = sh_subject_each(s, check_type);

    for (size_t k = 0; k < sizeof kernels / sizeof kernels[0]; k++)
        right = right && (!kernels[k] || check_type(s, SH_SUBJECT_LARGE, SH_F32, kernels[k]));
    return right;
}

const struct sh_op_check sh_op_checks[SH_OP_CHECKS] = {
    {"text", true, check_text},
    {"gradient", true, check_gradient},
    {"numbers", false, check_numbers},
    {"types", false, check_types},
    {"outside", true, sh_call_check_outside},
    {"nan", false, sh_call_check_nan},
    {"bits", true, sh_call_check_bits},
    {"in place", false, sh_call_check_in_place},
    {"queue", false, sh_call_check_queue},
    {"process", false, sh_call_check_process},
    {"flops", false, sh_call_check_flops},
};
