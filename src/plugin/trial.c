#include "src/plugin/trial.h"

#include "src/base/hash.h"
#include "src/base/mem.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    GUARD = 2048,
    ALIGN = 64,
    WORK = 0xff
}; /* bytes on both sides of an operand; what scratch is filled with: NaN */

/* From -1 to 1, times 0.3, 1, 4 or 30: both near zero and where an activation is flat, or cut off. One in 16 is 0, as
 * derivatives of targets that do not count are. */
static double value_of(int operand, int64_t row, int64_t column)
{
    static const double scales[] = {0.3, 1, 4, 30};
    uint64_t h = sh_mix64(sh_mix64((uint64_t)row * 1000003 + (uint64_t)column + 1) ^ (uint64_t)(operand + 1) * 977);

    return h >> 2 & 15 ? ((double)(h >> 11) / 4503599627370496.0 - 1) * scales[h & 3] : 0;
}

static double rounded(double x, enum sh_dtype to)
{
    switch (to) {
    case SH_BF16: return (double)sh_bf16_to_f32(sh_f32_to_bf16((float)x));
    case SH_F16: return (double)sh_f16_to_f32(sh_f32_to_f16((float)x));
    case SH_F32: return (double)(float)x;
    default: return x;
    }
}

static double guard_of(enum sh_trial_guard guard)
{
    static const double guards[SH_GUARDS] = {[SH_GUARD_LARGE] = 30000, [SH_GUARD_SMALL] = -30000};

    return guard == SH_GUARD_NAN ? NAN : guards[guard];
}

/* ---- shapes ---- */

static bool is_any_shape(const struct sh_operand_row *o)
{
    return o->any_shape;
}

/* A letter of any shape, such as n, counts rows times the width. */
static void set_letters(struct sh_trial *t)
{
    for (int c = 0; c < 128; c++)
        t->letters.value[c] = islower(c) ? t->size.rows * t->size.width : t->size.width + c % 3;
    t->letters.value['N'] = t->size.rows;
}

static const struct sh_operand_row *row_of(const struct sh_trial *t, int which)
{
    return which == SH_TRIAL_OUT ? &t->shape.out[0] : which < t->shape.n_in ? &t->shape.in[which] : NULL;
}

static int64_t columns_of(const struct sh_trial *t, const struct sh_operand_row *o)
{
    const struct sh_op_call none = {0};

    if (is_any_shape(o))
        return (int64_t)sh_formula_value(&o->dim[0], &t->letters, &none) / t->size.rows;
    return (int64_t)sh_formula_value(&o->dim[1], &t->letters, &none);
}

static struct sh_operand *operand_of(struct sh_trial *t, int which)
{
    return !row_of(t, which) ? NULL : which == SH_TRIAL_OUT ? &t->call.out[0] : &t->call.in[which];
}

/* ---- memory ---- */

static int64_t memory_bytes(const struct sh_operand *o)
{
    return 2 * GUARD + sh_operand_elems(o) * sh_dtype_bytes(o->dtype);
}

/* What the memory is before the call: guards, and the values of an input between them. */
static void fill(struct sh_trial *t, int which, char *memory)
{
    struct sh_operand *o = operand_of(t, which), all = *o;
    int64_t each = sh_dtype_bytes(o->dtype), n = memory_bytes(o), at = GUARD / each;

    all.data = memory;
    sh_operand_set(&all, 0, guard_of(t->size.guard));
    for (int64_t done = each; done < n; done *= 2)
        memcpy(memory + done, memory, (size_t)(done < n - done ? done : n - done));
    if (which == SH_TRIAL_OUT)
        return;
    for (int64_t r = 0; r < o->dim[0]; r++)
        for (int64_t c = 0; c < o->dim[1]; c++)
            sh_operand_set(&all, at++,
                           rounded(value_of(t->size.first_operand + which, t->size.first_row + r, c), t->size.rounded));
}

/* An output that takes the memory of an input has none of its own. */
static bool has_memory(const struct sh_trial *t, int which)
{
    return row_of(t, which) && !(which == SH_TRIAL_OUT && t->size.in_place && t->row->in_place);
}

/* The offset of the next part, between guards. */
static int64_t reserve(struct sh_trial *t, int64_t bytes, int64_t shift)
{
    int64_t at = t->bytes + shift + GUARD;

    t->bytes = (at + bytes + GUARD + ALIGN - 1) / ALIGN * ALIGN;
    return at;
}

/* Scratch is asked for as a plan does, which has no data yet. */
static void place_all(struct sh_trial *t)
{
    int64_t at[SH_TRIAL_OPERANDS] = {0}, work = 0;

    if (t->row->work_bytes)
        t->call.work_bytes = t->row->work_bytes(&t->call);
    for (int i = 0; i < SH_TRIAL_OPERANDS; i++)
        if (has_memory(t, i))
            at[i] = reserve(t, memory_bytes(operand_of(t, i)) - 2 * GUARD,
                            (int64_t)t->size.shift * sh_dtype_bytes(t->size.act));
    if (t->call.work_bytes > 0)
        work = reserve(t, t->call.work_bytes, 0);
    t->memory = aligned_alloc(ALIGN, (size_t)t->bytes);
    if (!t->memory)
        abort();
    for (int i = 0; i < SH_TRIAL_OPERANDS; i++)
        if (has_memory(t, i)) {
            operand_of(t, i)->data = t->memory + at[i];
            fill(t, i, t->memory + at[i] - GUARD);
        }
    if (!has_memory(t, SH_TRIAL_OUT))
        t->call.out[0].data = t->call.in[t->row->in_place - 1].data;
    if (work) {
        t->call.work = t->memory + work;
        memset(t->memory + work - GUARD, WORK, 2 * GUARD + (size_t)t->call.work_bytes);
    }
}

void sh_trial_make(const struct sherd_op *row, const double *number, const struct sh_trial_size *size,
                   struct sh_trial *out)
{
    *out = (struct sh_trial){.row = row, .size = *size, .call.number = number};
    sh_shape_read(row->shape, row->flops, &out->shape);
    set_letters(out);
    for (int i = 0; i < SH_TRIAL_OPERANDS; i++)
        if (row_of(out, i))
            *operand_of(out, i) = (struct sh_operand){
                .dtype = size->act, .ndim = 2, .dim = {size->rows, columns_of(out, row_of(out, i))}};
    place_all(out);
}

void sh_trial_free(struct sh_trial *t)
{
    free(t->memory);
}

/* ---- comparing ---- */

static bool is_spoiled(struct sh_trial *t, int which)
{
    const struct sh_operand *o = operand_of(t, which);
    char *made = sh_calloc(1, (size_t)memory_bytes(o)), *now = (char *)o->data - GUARD;
    size_t inside = (size_t)memory_bytes(o) - 2 * GUARD;
    bool written = which == SH_TRIAL_OUT || (t->size.in_place && which == t->row->in_place - 1);
    bool spoiled;

    fill(t, which, made);
    spoiled = memcmp(made, now, GUARD) != 0 || memcmp(made + GUARD + inside, now + GUARD + inside, GUARD) != 0 ||
              (!written && memcmp(made + GUARD, now + GUARD, inside) != 0);
    free(made);
    return spoiled;
}

static bool is_work_spoiled(const struct sh_trial *t)
{
    const unsigned char *work = t->call.work;
    bool spoiled = false;

    for (int64_t i = 0; work && i < GUARD; i++)
        spoiled |= work[i - GUARD] != WORK || work[t->call.work_bytes + i] != WORK;
    return spoiled;
}

const char *sh_trial_spoiled(struct sh_trial *t)
{
    if (is_work_spoiled(t))
        return "work";
    for (int i = 0; i < SH_TRIAL_OPERANDS; i++)
        if (has_memory(t, i) && is_spoiled(t, i))
            return row_of(t, i)->name;
    return NULL;
}

bool sh_trial_same_row(struct sh_trial *a, int64_t row_a, struct sh_trial *b, int64_t row_b)
{
    const struct sh_operand *x = &a->call.out[0], *y = &b->call.out[0];
    int64_t bytes = x->dim[1] * sh_dtype_bytes(x->dtype);

    return memcmp((char *)x->data + row_a * bytes, (char *)y->data + row_b * bytes, (size_t)bytes) == 0;
}

bool sh_trial_same(struct sh_trial *a, struct sh_trial *b)
{
    bool same = true;

    for (int64_t r = 0; r < a->size.rows; r++)
        same &= sh_trial_same_row(a, r, b, r);
    return same;
}
