/* Each check tries one promise of a row and stops at the first call that breaks it. */
#include "src/plugin/check_op.h"

#include "src/base/mem.h"
#include "src/base/time.h"
#include "src/plugin/check.h"
#include "src/plugin/process.h"
#include "src/plugin/trial_gpu.h"
#include "src/plugin/trying.h"

#include <math.h>
#include <omp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    int64_t rows, width;
} sizes[] = {{3, 5}, {7, 9},  {1, 1},    {13, 17}, {1, 2},  {2, 1},    {5, 3},
             {4, 8}, {2, 33}, {4099, 2}, {1, 515}, {31, 7}, {65549, 2}};
enum { SIZES = sizeof sizes / sizeof sizes[0] - 1, LARGE = SIZES, BRIEF_SIZES = 2, SMALL = 300, THREADS = 3 };
static const enum sh_dtype acts[] = {SH_F32, SH_BF16, SH_F16};
enum { ACTS = sizeof acts / sizeof acts[0] };

static int sizes_of(const struct sh_subject *s)
{
    return s->brief ? BRIEF_SIZES : SIZES;
}

static struct sh_trial_size size_of(int i, enum sh_dtype act)
{
    return (struct sh_trial_size){.rows = sizes[i].rows, .width = sizes[i].width, .act = act, .rounded = act};
}

void sh_subject_take_numbers(struct sh_subject *s, int size)
{
    for (int k = 0; k < SHERD_NUMBERS; k++) {
        const struct sherd_number *n = &s->forward->number[k];
        double more = n->value + 0.25 * fabs(n->value) + 0.125;

        s->number[k] = size % 3 == 0   ? n->value
                       : size % 3 == 2 ? n->min + (n->value - n->min) / 4
                       : more < n->max ? more
                                       : (n->min + n->value) / 2;
    }
}

/* Keeps the first. Returns false, for the caller to return. */
__attribute__((format(printf, 2, 3))) static bool wrong(struct sh_subject *s, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    if (!s->wrong[0])
        vsnprintf(s->wrong, sizeof s->wrong, fmt, args);
    va_end(args);
    return false;
}

/* "cpu, x [3,10] bf16", for messages. */
enum { WHERE = 64 };
static const char *where(const struct sh_trial *t, sherd_kernel kernel, char text[WHERE])
{
    const struct sh_operand *x = &t->call.in[t->shape.n_in - 1];

    snprintf(text, WHERE, "%s, %s [%lld,%lld] %s",
             kernel == t->row->ref   ? "ref"
             : kernel == t->row->cpu ? "cpu"
                                     : "cuda",
             t->shape.in[t->shape.n_in - 1].name, (long long)x->dim[0], (long long)x->dim[1], sh_dtype_name(x->dtype));
    return text;
}

/* A kernel's failure is a result, too; that of a GPU is the last. */
static bool run_late(struct sh_subject *s, struct sh_trial *t, sherd_kernel kernel, bool late)
{
    char text[WHERE];
    int rc;

    sh_trying_call(where(t, kernel, text));
    if (!sh_trial_gpu_is_open() || kernel != t->row->cuda)
        rc = kernel(&t->call);
    else if (sh_trial_gpu_run(t, late, &rc) != SH_OK)
        sh_trying_end(sh_error_text());
    return rc == 0 || wrong(s, "the kernel returned %d (%s)", rc, where(t, kernel, text));
}

static bool run(struct sh_subject *s, struct sh_trial *t, sherd_kernel kernel)
{
    return run_late(s, t, kernel, false);
}

static double out_of(const struct sh_trial *t, int64_t i)
{
    return sh_operand_get(&t->call.out[0], i);
}

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
        return wrong(s, "no dim is the letter %c alone, so nothing says what it is", letter);
    return shape->flops.n > 0 && shape->flops.term[0].letters[0]
               ? true
               : wrong(
                     s,
                     "flops is missing, or does not grow with the operands: count additions and multiplications, as in 9NF");
}

static bool check_text(struct sh_subject *s)
{
    struct sh_op_shape f, b;

    if (sh_trial_gpu_is_open() && !s->row->cuda)
        return wrong(s, "it has no cuda kernel");
    if (!sh_shape_read(s->row->shape, s->row->flops, &f) || !check_letters(s, &f))
        return false;
    if (!s->backward)
        return s->row == s->forward ? wrong(s, "it names no backward, and no row names it as one") : true;
    if (!sh_shape_read(s->backward->shape, s->backward->flops, &b))
        return false;
    if (!alike(&f.out[0], &b.in[0]) || !alike(&f.in[0], &b.out[0]) || (b.n_in > 1 && !alike(&f.in[0], &b.in[1])))
        return wrong(s, "the dims of %s are not those of dy, x -> dx for this shape", s->backward->name);
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
        sum += sh_operand_get(&g->back.call.in[0], i) * (out_of(&g->y, i) - g->at[i]);
    return sum;
}

/* Where the slopes to both sides differ there is a kink, or a jump, and no derivative. At 0, where many functions have
 * one, anything between both is right. */
static bool check_element(struct sh_subject *s, struct slopes *g, int64_t j)
{
    double h = 1e-6 * fmax(1, fabs(g->x[j])), up = weighed(g, j, h), down = weighed(g, j, -h);
    double slope = (up - down) / (2 * h), dx = out_of(&g->back, j);
    double left = -down / h, right = up / h;
    const struct sh_operand *x = &g->y.call.in[0];

    if (g->x[j] != 0 && !(fabs(left - right) <= 1e-3 * (1 + fabs(left) + fabs(right)))) {
        g->skipped++;
        return true;
    }
    if (fabs(dx - slope) <= 1e-6 * (1 + fabs(slope)) + (g->x[j] != 0 ? 0 : fabs(left - right) / 2))
        return true;
    return wrong(s, "%s gives %.7g where the difference of ref is %.7g (element [%lld,%lld] of %s, %.5g)",
                 s->backward->name, dx, slope, (long long)(j / x->dim[1]), (long long)(j % x->dim[1]),
                 g->y.shape.in[0].name, g->x[j]);
}

static bool check_slopes(struct sh_subject *s, struct slopes *g)
{
    bool right = run(s, &g->back, s->backward->ref);

    if (right && sh_operand_elems(&g->back.call.out[0]) != g->n)
        return wrong(s, "%s makes another number of elements than x has", s->backward->name);
    if (!run(s, &g->y, s->row->ref))
        return false;
    g->x = sh_calloc((size_t)g->n, sizeof *g->x);
    g->at = sh_calloc((size_t)sh_operand_elems(&g->y.call.out[0]), sizeof *g->at);
    for (int64_t i = 0; i < sh_operand_elems(&g->y.call.out[0]); i++)
        g->at[i] = out_of(&g->y, i);
    for (int64_t j = 0; j < g->n; j++)
        g->x[j] = sh_operand_get(&g->y.call.in[0], j);
    if (s->brief || g->n < SMALL)
        for (int64_t j = 0; right && j < g->n; j++)
            right = check_element(s, g, j);
    free(g->x);
    free(g->at);
    return right && g->skipped * 10 > g->n + 10 ? wrong(s, "ref jumps in more than a tenth of its elements") : right;
}

/* Whether the ref of a row makes about the same in both types, which one that reads float alone does not. */
static bool knows_types(struct sh_subject *s, const struct sherd_op *row)
{
    struct sh_trial_size size = size_of(0, SH_F32), in_f64 = size;
    struct sh_trial t, exact;
    double largest = 0;
    bool right, same = true;

    in_f64.act = SH_F64;
    sh_trial_make(row, s->number, &size, &t);
    sh_trial_make(row, s->number, &in_f64, &exact);
    right = run(s, &t, row->ref) && run(s, &exact, row->ref);
    for (int64_t i = 0; i < sh_operand_elems(&exact.call.out[0]); i++)
        largest = fmax(largest, fabs(out_of(&exact, i)));
    for (int64_t i = 0; right && i < sh_operand_elems(&exact.call.out[0]); i++)
        if (isnan(out_of(&t, i)))
            right = wrong(s, "ref of %s makes NaN, does not write all of its output, or reads it (element %lld)",
                          row->name, (long long)i);
    for (int64_t i = 0; i < sh_operand_elems(&exact.call.out[0]); i++)
        same &= fabs(out_of(&t, i) - out_of(&exact, i)) <= 1e-3 * largest;
    sh_trial_free(&t);
    sh_trial_free(&exact);
    return right && !same
               ? wrong(
                     s,
                     "ref of %s makes other numbers in float64 than in float32: sh_operand_get() and sh_operand_set() know the types",
                     row->name)
               : right;
}

/* x of the operation is that of its backward, and dy is something else. */
static bool check_gradient(struct sh_subject *s)
{
    bool right = !s->backward || (knows_types(s, s->row) && knows_types(s, s->backward));

    for (int i = 0; s->backward && right && i < sizes_of(s); i++) {
        struct sh_trial_size size = size_of(i, SH_F64), of_x = size;
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

    for (int i = 0; i < sizes_of(s) && !found; i++)
        for (int k = 0; k < 2 && rows[k]; k++) {
            struct sh_trial_size size = size_of(i, SH_F64);
            double others[SHERD_NUMBERS];
            struct sh_trial t, other;

            sh_subject_take_numbers(s, 1);
            memcpy(others, s->number, sizeof others);
            sh_subject_take_numbers(s, 0);
            memcpy(others, s->number, (size_t)number * sizeof *others);
            memcpy(others + number + 1, s->number + number + 1, (size_t)(SHERD_NUMBERS - number - 1) * sizeof *others);
            sh_trial_make(rows[k], s->number, &size, &t);
            sh_trial_make(rows[k], others, &size, &other);
            found |= run(s, &t, rows[k]->ref) && run(s, &other, rows[k]->ref) && !sh_trial_same(&t, &other);
            sh_trial_free(&t);
            sh_trial_free(&other);
        }
    return found;
}

/* Whether ref makes numbers of a row when one number of the operation is `value`, which a configuration may give. */
static bool is_finite(struct sh_subject *s, int number, double value)
{
    struct sh_trial_size size = size_of(0, SH_F64);
    struct sh_trial t;
    bool right, finite = true;

    sh_subject_take_numbers(s, 0);
    s->number[number] = value;
    sh_trial_make(s->row, s->number, &size, &t);
    right = run(s, &t, s->row->ref);
    for (int64_t i = 0; i < sh_operand_elems(&t.call.out[0]); i++)
        finite &= isfinite(out_of(&t, i)) != 0;
    sh_trial_free(&t);
    return right && !finite ? wrong(s, "what ref makes is not finite if %s is %g, which its bounds allow",
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
            return wrong(s, "%s changes nothing that ref makes", n->name);
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
    char text[WHERE];

    for (int64_t i = 0; i < n; i++)
        largest = fmax(largest, fabs(out_of(exact, i)));
    for (int64_t i = 0; i < n; i++) {
        double a = out_of(t, i), b = out_of(exact, i);

        if (!(fabs(a - b) <= near(t->size.act, b, largest)))
            return wrong(s, "%.7g where ref in float64 has %.7g (element %lld; %s)", a, b, (long long)i,
                         where(t, kernel, text));
    }
    return true;
}

/* A kernel in each type against the reference in f64, on numbers of that type. */
static bool check_type(struct sh_subject *s, int i, enum sh_dtype act, sherd_kernel kernel)
{
    struct sh_trial_size size = size_of(i, act), in_f64 = size;
    struct sh_trial t, exact;
    bool right;

    in_f64.act = SH_F64;
    sh_trial_make(s->row, s->number, &size, &t);
    sh_trial_make(s->row, s->number, &in_f64, &exact);
    right = run(s, &t, kernel) && run(s, &exact, s->row->ref) && agree(s, &t, &exact, kernel);
    sh_trial_free(&t);
    sh_trial_free(&exact);
    return right;
}

/* Calls f(s, size, act, kernel) for each of them, until one is false. Nothing runs in float16 on GPUs. */
typedef bool try_call(struct sh_subject *s, int size, enum sh_dtype act, sherd_kernel kernel);

static bool for_each(struct sh_subject *s, try_call *f)
{
    bool right = true;

    for (int i = 0; i < sizes_of(s); i++)
        for (int a = 0; a < ACTS; a++) {
            sh_subject_take_numbers(s, i);
            right = right && f(s, i, acts[a], s->row->ref);
            if (s->row->cpu)
                right = right && f(s, i, acts[a], s->row->cpu);
            if (sh_trial_gpu_is_open() && acts[a] != SH_F16)
                right = right && f(s, i, acts[a], s->row->cuda);
        }
    return right;
}

/* And as many rows as neither 16 bits nor the blocks of a grid count. */
static bool check_types(struct sh_subject *s)
{
    const sherd_kernel kernels[] = {s->row->ref, s->row->cpu, sh_trial_gpu_is_open() ? s->row->cuda : NULL};
    bool right = for_each(s, check_type);

    for (size_t k = 0; k < sizeof kernels / sizeof kernels[0]; k++)
        right = right && (!kernels[k] || check_type(s, LARGE, SH_F32, kernels[k]));
    return right;
}

/* ---- outside ---- */

static bool is_whole(struct sh_subject *s, struct sh_trial *t, sherd_kernel kernel)
{
    const char *spoiled = sh_trial_spoiled(t);
    char text[WHERE];

    if (spoiled)
        return wrong(s, "writes to %s outside of the output and of its scratch (%s)", spoiled, where(t, kernel, text));
    for (int64_t i = 0; t->size.guard == SH_GUARD_NAN && i < sh_operand_elems(&t->call.out[0]); i++)
        if (isnan(out_of(t, i)))
            return wrong(s, "element %lld of the output is not written, or follows from memory outside (%s)",
                         (long long)i, where(t, kernel, text));
    return true;
}

/* The same bits whatever lies around operands, and in the output before. */
static bool check_outside_of(struct sh_subject *s, int i, enum sh_dtype act, sherd_kernel kernel)
{
    struct sh_trial t[SH_GUARDS];
    char text[WHERE];
    bool right = true;

    for (int g = 0; g < SH_GUARDS; g++) {
        struct sh_trial_size size = size_of(i, act);

        size.guard = g;
        sh_trial_make(s->row, s->number, &size, &t[g]);
        right = right && run(s, &t[g], kernel) && is_whole(s, &t[g], kernel);
        if (right && !sh_trial_same(&t[0], &t[g]))
            right = wrong(s, "the result follows from memory outside of the inputs (%s)", where(&t[g], kernel, text));
    }
    for (int g = 0; g < SH_GUARDS; g++)
        sh_trial_free(&t[g]);
    return right;
}

static bool check_outside(struct sh_subject *s)
{
    return for_each(s, check_outside_of);
}

/* ---- NaN ---- */

static bool has_nan(const struct sh_trial *t)
{
    bool found = false;

    for (int64_t i = 0; i < sh_operand_elems(&t->call.out[0]); i++)
        found |= isnan(out_of(t, i)) != 0;
    return found;
}

/* Whether the output of ref follows from element j of the first input at all. */
static bool depends(struct sh_trial *t, struct sh_trial *other, int64_t j)
{
    struct sh_operand *x = &other->call.in[0];
    const double was = sh_operand_get(x, j), tries[] = {was + 1, was - 1, -was, 0.5};
    bool found = false;

    for (int k = 0; k < 4 && !found; k++) {
        sh_operand_set(x, j, tries[k]);
        found = t->row->ref(&other->call) == 0 && !sh_trial_same(t, other);
    }
    sh_operand_set(x, j, was);
    return found;
}

/* x of an operation and dy of a backward: what is lost here, nobody sees. */
static bool check_nan_of(struct sh_subject *s, int i, enum sh_dtype act, sherd_kernel kernel)
{
    struct sh_trial_size size = size_of(i, act);
    struct sh_trial t, other;
    char text[WHERE];
    bool right = true;

    sh_trial_make(s->row, s->number, &size, &t);
    sh_trial_make(s->row, s->number, &size, &other);
    right = run(s, &t, s->row->ref);
    for (int64_t j = 0, n = sh_operand_elems(&t.call.in[0]); right && j < n; j += n < SMALL ? 1 : n / 8) {
        double was = sh_operand_get(&other.call.in[0], j);

        if (!depends(&t, &other, j))
            continue;
        sh_operand_set(&other.call.in[0], j, NAN);
        right = run(s, &other, kernel);
        if (right && !has_nan(&other))
            right = wrong(
                s,
                "a NaN at element %lld of %s, in place of %.5g, does not reach the output; where it does not follow from x, store 0 * x (%s)",
                (long long)j, t.shape.in[0].name, was, where(&t, kernel, text));
        sh_operand_set(&other.call.in[0], j, was);
    }
    sh_trial_free(&t);
    sh_trial_free(&other);
    return right;
}

static bool check_nan(struct sh_subject *s)
{
    return for_each(s, check_nan_of);
}

/* ---- bits ---- */

/* One more call that must give the bits of `t`, or of its row `first_row`. */
static bool same_bits(struct sh_subject *s, struct sh_trial *t, const struct sh_trial_size *size, sherd_kernel kernel,
                      const char *what)
{
    struct sh_trial other;
    char text[WHERE];
    bool right, same = true;

    sh_trial_make(s->row, s->number, size, &other);
    right = run(s, &other, kernel);
    for (int64_t r = 0; right && r < size->rows; r++)
        same &= sh_trial_same_row(t, size->first_row + r, &other, r);
    sh_trial_free(&other);
    return right && !same ? wrong(s, "other bits %s (%s)", what, where(t, kernel, text)) : right;
}

/* Parts of the rows, as ranks, micro-steps and tiles have them. */
static bool check_parts(struct sh_subject *s, struct sh_trial *t, sherd_kernel kernel)
{
    int64_t rows = t->size.rows;
    bool right = true;

    for (int64_t first = 0; first < rows; first += rows < 100 ? 1 : rows / 4)
        for (int64_t n = 1; n <= rows - first; n = n < rows - first && 2 * n > rows - first ? rows - first : 2 * n) {
            struct sh_trial_size part = t->size;

            part.first_row = first;
            part.rows = n;
            right = right && same_bits(s, t, &part, kernel, "when a call has only some of the rows");
        }
    return right;
}

static bool check_bits_of(struct sh_subject *s, int i, enum sh_dtype act, sherd_kernel kernel)
{
    static const int shifts[] = {1, 3, 5};
    struct sh_trial_size size = size_of(i, act), again = size;
    struct sh_trial t;
    bool right;

    omp_set_num_threads(1);
    sh_trial_make(s->row, s->number, &size, &t);
    right = run(s, &t, kernel);
    for (int threads = 1; threads <= THREADS; threads++) {
        omp_set_num_threads(threads);
        right = right && same_bits(s, &t, &size, kernel,
                                   threads == 1 || kernel == s->row->cuda ? "in a second call"
                                                                          : "with another number of threads");
    }
    for (int k = 0; k < 3; k++) {
        again.shift = shifts[k];
        right = right && same_bits(s, &t, &again, kernel, "at other addresses");
    }
    omp_set_num_threads(1);
    right = right && check_parts(s, &t, kernel);
    sh_trial_free(&t);
    return right;
}

/* So many rows that threads meet. */
static bool check_threads(struct sh_subject *s, sherd_kernel kernel)
{
    const struct sh_trial_size size = size_of(LARGE, SH_F32);
    struct sh_trial t;
    bool right;

    sh_trial_make(s->row, s->number, &size, &t);
    right = run(s, &t, kernel);
    omp_set_num_threads(THREADS);
    for (int i = 0; i < 4; i++)
        right = right && same_bits(s, &t, &size, kernel, "with another number of threads");
    omp_set_num_threads(1);
    sh_trial_free(&t);
    return right;
}

static bool check_bits(struct sh_subject *s)
{
    return for_each(s, check_bits_of) && (s->brief || !s->row->cpu || check_threads(s, s->row->cpu));
}

/* ---- in place ---- */

static bool check_in_place_of(struct sh_subject *s, int i, enum sh_dtype act, sherd_kernel kernel)
{
    struct sh_trial_size size = size_of(i, act), over = size;
    struct sh_trial t, in_place;
    char text[WHERE];
    bool right;

    over.in_place = true;
    sh_trial_make(s->row, s->number, &size, &t);
    sh_trial_make(s->row, s->number, &over, &in_place);
    right = t.call.in[s->row->in_place - 1].dim[1] == t.call.out[0].dim[1]
                ? true
                : wrong(s, "the output has not the size of the input whose memory it may take");
    right = right && run(s, &t, kernel) && run(s, &in_place, kernel);
    if (right && !sh_trial_same(&t, &in_place))
        right = wrong(s, "other bits when the output takes the memory of an input (%s)", where(&t, kernel, text));
    sh_trial_free(&t);
    sh_trial_free(&in_place);
    return right;
}

static bool check_in_place(struct sh_subject *s)
{
    return s->row->in_place ? for_each(s, check_in_place_of) : true;
}

/* ---- queue ---- */

static bool is_all_nan(const struct sh_trial *t)
{
    bool all = true;

    for (int64_t i = 0; i < sh_operand_elems(&t->call.out[0]); i++)
        all &= isnan(out_of(t, i)) != 0;
    return all;
}

/* Operands come to the GPU only after the kernel was called: work in another stream finds NaN. */
static bool check_queue(struct sh_subject *s)
{
    struct sh_trial_size size = size_of(0, SH_F32);
    struct sh_trial t, late;
    char text[WHERE];
    bool right;

    if (!sh_trial_gpu_is_open())
        return true;
    sh_trial_make(s->row, s->number, &size, &t);
    sh_trial_make(s->row, s->number, &size, &late);
    right = run(s, &t, s->row->cuda) && run_late(s, &late, s->row->cuda, true);
    if (right && (is_all_nan(&late) || !sh_trial_same(&t, &late)))
        right = wrong(s, "it does not wait for the work that is in call->queue (%s)", where(&t, s->row->cuda, text));
    sh_trial_free(&t);
    sh_trial_free(&late);
    return right;
}

/* ---- process ---- */

struct repeated {
    const struct sh_trial *t;
    sherd_kernel kernel;
};

static void call_again(const void *of)
{
    const struct repeated *r = of;

    r->kernel(&r->t->call);
}

static bool check_process(struct sh_subject *s)
{
    const sherd_kernel kernels[] = {s->row->ref, s->row->cpu};
    const struct sh_trial_size size = size_of(SIZES - 1, SH_F32);
    const char *done = NULL;
    char text[WHERE];

    for (int k = 0; k < 2 && kernels[k] && !done; k++) {
        struct sh_trial t;

        sh_subject_take_numbers(s, 0);
        sh_trial_make(s->row, s->number, &size, &t);
        if (!run(s, &t, kernels[k]))
            return false;
        done = sh_plugin_done_to_process(call_again, &(struct repeated){&t, kernels[k]});
        where(&t, kernels[k], text);
        sh_trial_free(&t);
    }
    return done ? wrong(s, "%s (%s)", done, text) : true;
}

/* ---- flops ---- */

/* Seconds of the fastest of a few calls. */
static double seconds_of(const struct sh_trial *t, sherd_kernel kernel)
{
    double best = INFINITY;

    for (int i = 0; i < 5; i++) {
        int64_t begin = sh_now_ns();

        kernel(&t->call);
        best = fmin(best, (double)(sh_now_ns() - begin) * 1e-9);
    }
    return best;
}

/* Operations a second of what Sherd has for SWIGLU. */
static double usual_rate(const struct sh_trial_size *size, bool ref)
{
    static const struct sherd_op swiglu = {
        .name = "swiglu", .shape = "gu [N,2F] act -> h [N,F] act", .flops = "5NF", .backward = ""};
    static const struct sh_op_attr attr;
    struct sh_op_call call = {.kind = SH_OP_SWIGLU, .attr = &attr};
    double best = INFINITY;
    struct sh_trial t;

    sh_trial_make(&swiglu, NULL, size, &t);
    call.in[0] = t.call.in[0];
    call.out[0] = t.call.out[0];
    for (int i = 0; i < 5; i++) {
        int64_t begin = sh_now_ns();

        if ((ref ? &sh_kernels_ref : &sh_kernels_cpu)->run[SH_OP_SWIGLU](&call) != SH_OK)
            break;
        best = fmin(best, (double)(sh_now_ns() - begin) * 1e-9);
    }
    sh_trial_free(&t);
    return 5.0 * (double)sh_operand_elems(&call.out[0]) / best;
}

/* What a step is predicted to take follows from this number. */
static bool check_flops(struct sh_subject *s)
{
    enum { TIMES = 30 };
    const struct sh_trial_size size = {.rows = 64, .width = 1024, .act = SH_F32, .rounded = SH_F32};
    const struct sh_op_call none = {0};
    const sherd_kernel kernel = s->row->cpu ? s->row->cpu : s->row->ref;
    double rate, fast = usual_rate(&size, false), slow = usual_rate(&size, true);
    struct sh_trial t;
    bool right;

    sh_trial_make(s->row, s->number, &size, &t);
    right = run(s, &t, kernel);
    rate = sh_formula_value(&t.shape.flops, &t.letters, &none) / seconds_of(&t, kernel);
    sh_trial_free(&t);
    if (!right || (rate < TIMES * fast && rate > slow / TIMES))
        return right;
    return wrong(s, "by its flops it would do %.2g operations a second; swiglu does %.2g, and %.2g by its ref kernel",
                 rate, fast, slow);
}

const struct sh_op_check sh_op_checks[SH_OP_CHECKS] = {
    {"text", true, check_text},        {"gradient", true, check_gradient},  {"numbers", false, check_numbers},
    {"types", false, check_types},     {"outside", true, check_outside},    {"nan", false, check_nan},
    {"bits", true, check_bits},        {"in place", false, check_in_place}, {"queue", false, check_queue},
    {"process", false, check_process}, {"flops", false, check_flops},
};
