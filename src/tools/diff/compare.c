#include "src/tools/diff/compare.h"

#include "src/base/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

double sh_diff_relative(const struct sh_print *a, const struct sh_print *b)
{
    double squares = 0, norm = fmax(a->norm, b->norm);

    for (int i = 0; i < SH_SKETCH_SIGNS; i++)
        squares += (a->sign[i] - b->sign[i]) * (a->sign[i] - b->sign[i]);
    if (a->bad != b->bad)
        return INFINITY;
    return norm > 0 ? sqrt(squares / SH_SKETCH_SIGNS) / norm : 0;
}

/* What one rounding changes, relative. */
static double rounding(const char *dtype)
{
    return !strcmp(dtype, "bf16") ? 0x1p-8 : !strcmp(dtype, "f16") ? 0x1p-11 : 0x1p-24;
}

/* A rounding of a master may move its code, by a step of at most 1/127 of a parameter. */
static double larger_rounding(const struct sh_diff *d)
{
    double codes = d->a->head.coded || d->b->head.coded ? 0x1p-8 : 0;

    return fmax(codes, fmax(rounding(d->a->head.dtype), rounding(d->b->head.dtype)));
}

/* The first axis from `begin` on, before `end`, on which the meshes differ, for all that is known. */
static int differing_axis(const struct sh_diff *d, int begin, int end)
{
    const int64_t *a = d->a->head.axis, *b = d->b->head.axis;
    int i = begin;

    while (i < end && (!a[i] || !b[i] || a[i] == b[i]))
        i++;
    return i;
}

/* Things that change bits in two runs that are both right. */
static void choose_way(struct sh_diff *d)
{
    const struct sh_prints_head *a = &d->a->head, *b = &d->b->head;
    bool tree = a->reproducible && b->reproducible;
    int axis = differing_axis(d, SH_PRINTS_TENSOR + 1, SH_PRINTS_AXES);

    d->by_bits = !d->estimates;
    if (d->estimates)
        return;
    if (strcmp(a->device, b->device) != 0)
        snprintf(d->why, sizeof d->why, "devices differ (%s, %s)", a->device, b->device);
    else if (strcmp(a->dtype, b->dtype) != 0)
        snprintf(d->why, sizeof d->why, "types differ (%s, %s)", a->dtype, b->dtype);
    else if (differing_axis(d, SH_PRINTS_TENSOR, SH_PRINTS_TENSOR + 1) == SH_PRINTS_TENSOR)
        snprintf(d->why, sizeof d->why,
                 "tensor degrees differ (%lld, %lld), so what ranks have in parts has other names",
                 (long long)a->axis[SH_PRINTS_TENSOR], (long long)b->axis[SH_PRINTS_TENSOR]);
    else if (a->ranks != b->ranks && !tree)
        snprintf(d->why, sizeof d->why, "numbers of ranks differ (%lld, %lld) without training.reproducible=mesh",
                 (long long)a->ranks, (long long)b->ranks);
    else if (axis < SH_PRINTS_AXES && !tree)
        snprintf(d->why, sizeof d->why, "%s degrees differ (%lld, %lld) without training.reproducible=mesh",
                 sh_prints_axis_name((enum sh_prints_axis)axis), (long long)a->axis[axis], (long long)b->axis[axis]);
    else if (a->local_batch != b->local_batch)
        snprintf(d->why, sizeof d->why, "micro-steps differ (%lld, %lld sequences)", (long long)a->local_batch,
                 (long long)b->local_batch);
    else if (a->row_leaves && b->row_leaves && a->row_leaves != b->row_leaves)
        snprintf(d->why, sizeof d->why, "training.row_leaves differ (%lld, %lld)", (long long)a->row_leaves,
                 (long long)b->row_leaves);
    d->by_bits = !d->why[0];
    if (!d->by_bits)
        strncat(d->why, ": compared up to rounding", sizeof d->why - strlen(d->why) - 1);
}

/* A loss of balance is no sum over rows: of other rows it is another one, by more than a rounding. */
static void note_balance(struct sh_diff *d)
{
    const char *a = d->a->head.balance, *b = d->b->head.balance;
    size_t n = strlen(d->why);

    d->balance = a && b && strcmp(a, b) != 0;
    if (d->balance)
        snprintf(
            d->why + n, sizeof d->why - n,
            "%slosses of balance (moe.aux_loss_coeff) sum other rows (%.80s; %.80s); each step is compared only up to "
            "the first gradient of a router",
            n ? "; " : "", a, b);
}

/* Nothing of different batches or lengths lies at the same place. */
static sh_rc check_heads(const struct sh_diff *d)
{
    const struct sh_prints_head *a = &d->a->head, *b = &d->b->head;

    if (a->seq_len != b->seq_len || a->global_batch != b->global_batch)
        return sh_fail(
            SH_E_USAGE,
            "sherd diff: %s has %lld sequences of %lld tokens in a step, %s %lld of %lld: nothing to compare",
            d->a->path, (long long)a->global_batch, (long long)a->seq_len, d->b->path, (long long)b->global_batch,
            (long long)b->seq_len);
    if (strcmp(a->base, b->base) != 0)
        return sh_fail(SH_E_DATA, "sherd diff: %s and %s have different frozen models", d->a->path, d->b->path);
    return SH_OK;
}

/* Parameters, and what the optimizer keeps. */
static bool is_state(const struct sh_print *p)
{
    return !p->kind && strncmp(p->name, "gradient ", 9) && strcmp(p->name, "tokens");
}

/* The largest difference of what an operation reads, and of any parameter; of all so far if one of them is not recorded. */
static double of_inputs(const struct sh_diff *d, const struct sh_print *print, double so_far)
{
    double most = d->state_most;

    if (!print->in || print->more)
        return fmax(most, so_far);
    for (size_t i = 0; i < json_array_size(print->in); i++) {
        const char *name = json_string_value(json_array_get(print->in, i));
        const struct sh_print *x = sh_prints_find(d->a, print->step, name),
                              *y = sh_prints_find(d->b, print->step, name);

        most = fmax(most, x && y ? sh_diff_relative(x, y) : so_far);
    }
    return most;
}

/* Up to rounding, states are only what a step begins with: what earlier steps made of a rounding has no bound. */
static void note_state(struct sh_diff *d, const struct sh_print *a, double relative)
{
    if (relative > d->state_most) {
        d->state_most = relative;
        d->state = a;
    }
}

/* so_far: the largest difference of the step. */
static bool differs(struct sh_diff *d, const struct sh_print *a, const struct sh_print *b, double *so_far)
{
    double relative, allowed;

    if (d->by_bits)
        return a->sum != b->sum || a->bad != b->bad;
    relative = sh_diff_relative(a, b);
    if (is_state(a)) {
        note_state(d, a, relative);
        return false;
    }
    allowed = d->tolerance * (fmax(of_inputs(d, a, *so_far), of_inputs(d, b, *so_far)) + larger_rounding(d));
    *so_far = fmax(*so_far, relative);
    return relative > allowed;
}

static void note_missing(struct sh_diff *d, const struct sh_print *print, bool in_a)
{
    const struct sh_print **first = in_a ? &d->first_only_a : &d->first_only_b;

    *(in_a ? &d->only_a : &d->only_b) += 1;
    if (!*first)
        *first = print;
}

/* Prints [begin, end) of the first file are of one step. */
static void compare_step(struct sh_diff *d, int begin, int end)
{
    double so_far = 0;

    d->differing = d->compared = 0;
    d->state_most = 0;
    d->state = NULL;
    for (int i = begin; i < end; i++) {
        const struct sh_print *a = &d->a->print[i], *b = sh_prints_find(d->b, a->step, a->name);

        if (d->balance && a->kind && !strcmp(a->kind, "route_bwd"))
            return;
        if (!b) {
            note_missing(d, a, true);
            continue;
        }
        if (differs(d, a, b, &so_far)) {
            if (!d->first_a) {
                d->before = d->total;
                d->first_a = a;
                d->first_b = b;
            }
            d->differing++;
        }
        d->compared++;
        d->total++;
    }
}

static void note_only_b(struct sh_diff *d, int64_t step)
{
    for (int i = sh_prints_from(d->b, step); i < d->b->n && d->b->print[i].step == step; i++)
        if (!sh_prints_find(d->a, step, d->b->print[i].name))
            note_missing(d, &d->b->print[i], false);
}

static void compare_steps(struct sh_diff *d)
{
    for (int begin = 0, end; begin < d->a->n && !d->first_a; begin = end) {
        int64_t step = d->a->print[begin].step;
        int other = sh_prints_from(d->b, step);

        end = sh_prints_from(d->a, step + 1);
        if (other == d->b->n || d->b->print[other].step != step)
            continue;
        d->steps++;
        compare_step(d, begin, end);
        if (!d->balance)
            note_only_b(d, step);
    }
}

/* With other tiles or pieces, or a tree in one of the runs, sums of rows are made in another order, and so may have other
 * last bits: only where they do, what is equal by bits is not all that is right. */
static bool order_explains(const struct sh_diff *d, char *why, size_t size)
{
    const struct sh_prints_head *a = &d->a->head, *b = &d->b->head;
    bool tiles = a->tiles && b->tiles;
    const struct {
        const char *what, *note;
        int64_t a, b;
        bool known;
    } rows[] = {
        {"parallelism.tensor_parallel_tiles", "", a->tiles, b->tiles, tiles},
        {"training.tile_rows", "; 0: whole blocks", a->tile_rows, b->tile_rows, tiles},
        {"pieces of a sequence on a rank", "; parallelism.context_parallel_method", a->pieces, b->pieces,
         a->pieces && b->pieces},
        {"training.reproducible", "; 1: mesh", a->reproducible, b->reproducible, true},
    };

    if (!d->first_a || !d->by_bits)
        return false;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].known && rows[i].a != rows[i].b) {
            snprintf(why, size, "%s differ (%lld, %lld%s)", rows[i].what, (long long)rows[i].a, (long long)rows[i].b,
                     rows[i].note);
            return true;
        }
    return false;
}

sh_rc sh_diff_find(struct sh_diff *d)
{
    char why[128];

    SH_TRY(check_heads(d));
    choose_way(d);
    note_balance(d);
    compare_steps(d);
    if (order_explains(d, why, sizeof why)) {
        struct sh_diff again = {.a = d->a, .b = d->b, .tolerance = d->tolerance};

        snprintf(again.why, sizeof again.why,
                 "%s, which changes last bits, first those of step %lld, %.64s: compared up to rounding", why,
                 (long long)d->first_a->step, d->first_a->name);
        *d = again;
        note_balance(d);
        compare_steps(d);
    }
    return d->steps ? SH_OK
                    : sh_fail(SH_E_USAGE, "sherd diff: %s and %s have no step in common", d->a->path, d->b->path);
}

int64_t sh_diff_leaf(const struct sh_diff *d, int64_t *count)
{
    const json_t *a = d->first_a->leaves, *b = d->first_b->leaves;
    int64_t first = -1, n = (int64_t)json_array_size(a);

    *count = 0;
    if (!d->by_bits || n != (int64_t)json_array_size(b))
        return first;
    for (int64_t i = 0; i < n; i++) {
        const char *sum = json_string_value(json_array_get(json_array_get(a, (size_t)i), 0));

        if (!strcmp(sum, json_string_value(json_array_get(json_array_get(b, (size_t)i), 0))))
            continue;
        first = first < 0 ? i : first;
        *count += 1;
    }
    return first;
}

int sh_diff_recomputed(const struct sh_prints_file *f, int *again)
{
    static const char recompute[] = "recompute ";
    int differing = 0;

    *again = 0;
    for (int i = 0; i < f->n; i++) {
        char *name = strncmp(f->print[i].name, recompute, strlen(recompute))
                         ? NULL
                         : sh_strfmt("forward %s", f->print[i].name + strlen(recompute));
        const struct sh_print *made = name ? sh_prints_find(f, f->print[i].step, name) : NULL;

        if (made) {
            *again += 1;
            differing += made->sum != f->print[i].sum;
        }
        free(name);
    }
    return differing;
}
