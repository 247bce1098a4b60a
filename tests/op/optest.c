#include "tests/op/optest.h"

#include "kernels/op.h"

#include <math.h>
#include <omp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ALIGN = 64, GUARD = 64, GUARD_BYTE = 0xA5, POISON_BYTE = 0xFF }; /* poison: NaN in floats, -1 in integers */

static uint64_t stream;

void optest_seed(uint64_t seed)
{
    stream = seed;
}

/* splitmix64: Steele, Lea, Flood, OOPSLA 2014. */
static uint64_t next(void)
{
    uint64_t z = stream += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* The sum of 12 uniform numbers has variance 1: normal enough, and without a tail that tolerances would have to allow
 * for. 11 of them have 16 bits, a whole number of steps of the last one, so that a sum has all the bits of its type. */
double optest_normal(void)
{
    double sum = (double)(next() >> 11) * 0x1p-53 - 6;
    uint64_t bits = 0;
    for (int i = 0; i < 11; i++, bits >>= 16) {
        bits = i % 4 ? bits : next();
        sum += (double)(bits & 0xffff) * 0x1p-16;
    }
    return sum;
}

int64_t optest_int(int64_t lo, int64_t hi)
{
    return lo + (int64_t)(next() % (uint64_t)(hi - lo));
}

int64_t optest_elems(const struct sh_operand *operand)
{
    int64_t n = 1;
    for (int i = 0; i < operand->ndim; i++)
        n *= operand->dim[i];
    return n;
}

static size_t bytes_of(const struct sh_operand *operand)
{
    return (size_t)optest_elems(operand) * (size_t)sh_dtype_bytes(operand->dtype);
}

double optest_get(const struct sh_operand *operand, int64_t i)
{
    switch (operand->dtype) {
    case SH_BF16: return sh_bf16_to_f32(((const sh_bf16 *)operand->data)[i]);
    case SH_F16: return sh_f16_to_f32(((const sh_f16 *)operand->data)[i]);
    case SH_F64: return ((const double *)operand->data)[i];
    case SH_I32: return ((const int32_t *)operand->data)[i];
    case SH_I16: return ((const int16_t *)operand->data)[i];
    case SH_U8: return ((const uint8_t *)operand->data)[i];
    default: return ((const float *)operand->data)[i];
    }
}

void optest_set(const struct sh_operand *operand, int64_t i, double value)
{
    switch (operand->dtype) {
    case SH_BF16: ((sh_bf16 *)operand->data)[i] = sh_f32_to_bf16((float)value); break;
    case SH_F16: ((sh_f16 *)operand->data)[i] = sh_f32_to_f16((float)value); break;
    case SH_F64: ((double *)operand->data)[i] = value; break;
    case SH_I32: ((int32_t *)operand->data)[i] = (int32_t)value; break;
    case SH_I16: ((int16_t *)operand->data)[i] = (int16_t)value; break;
    case SH_U8: ((uint8_t *)operand->data)[i] = (uint8_t)value; break;
    default: ((float *)operand->data)[i] = (float)value;
    }
}

void optest_scale(const struct sh_operand *operand, double factor)
{
    for (int64_t i = 0; i < optest_elems(operand); i++)
        optest_set(operand, i, optest_get(operand, i) * factor);
}

static struct sh_operand *operand_at(struct optest *t, int slot)
{
    return slot < SH_OP_MAX_IN ? &t->call.in[slot] : &t->call.out[slot - SH_OP_MAX_IN];
}

static void *poisoned(size_t bytes)
{
    size_t room = (bytes + GUARD + ALIGN - 1) / ALIGN * ALIGN;
    char *p = aligned_alloc(ALIGN, room);
    assert_non_null(p);
    memset(p, POISON_BYTE, bytes);
    memset(p + bytes, GUARD_BYTE, room - bytes);
    return p;
}

static void check_guard(const void *data, size_t bytes)
{
    for (size_t i = 0; i < GUARD; i++)
        assert_int_equal(((const unsigned char *)data)[bytes + i], GUARD_BYTE);
}

static struct sh_operand *make(struct optest *t, int slot, enum sh_dtype dtype, int ndim, const int64_t *dim)
{
    struct sh_operand *o = operand_at(t, slot);
    *o = (struct sh_operand){.dtype = dtype, .ndim = ndim};
    memcpy(o->dim, dim, (size_t)ndim * sizeof *dim);
    o->data = t->owned[slot] = poisoned(bytes_of(o));
    return o;
}

static void point_inside(struct optest *t)
{
    t->call.attr = &t->attr;
    t->call.scalars = &t->scalars;
    t->call.runs = t->runs;
}

void optest_begin(struct optest *t, enum sh_op_kind kind)
{
    *t = (struct optest){.call.kind = kind};
    point_inside(t);
}

void optest_end(struct optest *t)
{
    for (int slot = 0; slot < SH_OP_MAX_IN + SH_OP_MAX_OUT; slot++)
        free(t->owned[slot]);
}

void optest_copy(struct optest *to, const struct optest *from)
{
    *to = *from;
    point_inside(to);
    for (int slot = 0; slot < SH_OP_MAX_IN + SH_OP_MAX_OUT; slot++) {
        struct sh_operand *o = operand_at(to, slot), old = *o;
        to->owned[slot] = NULL;
        if (old.data)
            memcpy(make(to, slot, old.dtype, old.ndim, old.dim)->data, old.data, bytes_of(&old));
    }
}

void optest_in(struct optest *t, int i, enum sh_dtype dtype, int ndim, const int64_t *dim)
{
    struct sh_operand *o = make(t, i, dtype, ndim, dim);
    for (int64_t k = 0; k < optest_elems(o); k++)
        optest_set(o, k, dtype == SH_I32 ? 0 : dtype == SH_U8 ? (double)optest_int(0, 256) : optest_normal());
}

void optest_in_ints(struct optest *t, int i, int64_t lo, int64_t hi, int ndim, const int64_t *dim)
{
    struct sh_operand *o = make(t, i, SH_I32, ndim, dim);
    for (int64_t k = 0; k < optest_elems(o); k++)
        optest_set(o, k, (double)optest_int(lo, hi));
}

void optest_out(struct optest *t, int i, enum sh_dtype dtype, int ndim, const int64_t *dim)
{
    make(t, SH_OP_MAX_IN + i, dtype, ndim, dim);
}

void optest_add_to(struct optest *t, int i)
{
    for (int64_t k = 0; k < optest_elems(&t->call.out[i]); k++)
        optest_set(&t->call.out[i], k, optest_normal());
    if (!((sh_op_info(t->call.kind)->rw_out >> i) & 1u))
        t->attr.accumulate |= 1u << i;
}

/* The output of an update that holds the low halves: the last one. */
static int low_of(const struct optest *t)
{
    return sh_op_info(t->call.kind)->n_out - 1;
}

static struct sh_floats params_of(const struct optest *t)
{
    void *low = t->call.out[low_of(t)].data, *p = t->call.out[0].data;

    return low ? (struct sh_floats){.high = p, .low = low} : (struct sh_floats){.whole = p};
}

static void copy_with_params(struct optest *to, const struct optest *from, enum sh_dtype params)
{
    const struct sh_operand *p = &from->call.out[0];
    optest_copy(to, from);
    for (int slot = SH_OP_MAX_IN; slot <= SH_OP_MAX_IN + low_of(from); slot += low_of(from)) {
        free(to->owned[slot]);
        to->owned[slot] = NULL;
        *operand_at(to, slot) = (struct sh_operand){0};
    }
    optest_out(to, 0, params, p->ndim, p->dim);
    if (params == SH_BF16)
        optest_out(to, low_of(from), SH_I16, p->ndim, p->dim);
}

void optest_split_params(struct optest *to, const struct optest *from)
{
    copy_with_params(to, from, SH_BF16);
    sh_floats_put(params_of(to), optest_elems(&from->call.out[0]), from->call.out[0].data);
}

void optest_join_params(struct optest *to, const struct optest *from)
{
    copy_with_params(to, from, SH_F32);
    sh_floats_get(params_of(from), optest_elems(&from->call.out[0]), to->call.out[0].data);
}

void optest_alias(struct optest *t, int in, int out)
{
    free(t->owned[SH_OP_MAX_IN + out]);
    t->owned[SH_OP_MAX_IN + out] = NULL;
    t->call.out[out].data = t->call.in[in].data;
}

void optest_shift(struct optest *t, int elems)
{
    for (int slot = 0; slot < SH_OP_MAX_IN + SH_OP_MAX_OUT; slot++) {
        struct sh_operand *o = operand_at(t, slot);
        /* Bytes stand for larger units in packed form, which start at words. */
        size_t by = (size_t)elems * (size_t)(o->dtype == SH_U8 ? 4 : sh_dtype_bytes(o->dtype));
        if (!t->owned[slot])
            continue;
        char *p = poisoned(bytes_of(o) + by);
        memcpy(p + by, o->data, bytes_of(o));
        free(t->owned[slot]);
        t->owned[slot] = p;
        o->data = p + by;
    }
}

static void check_guards(struct optest *t)
{
    for (int slot = 0; slot < SH_OP_MAX_IN + SH_OP_MAX_OUT; slot++)
        if (t->owned[slot])
            check_guard(operand_at(t, slot)->data, bytes_of(operand_at(t, slot)));
}

void optest_run(struct optest *t, const struct sh_kernel_table *device, int threads)
{
    int64_t bytes = device->work_bytes ? device->work_bytes(&t->call, threads) : 0;
    t->call.work = poisoned((size_t)bytes);
    t->call.work_bytes = bytes;
    omp_set_num_threads(threads);
    sh_rc rc = device->run[t->call.kind](&t->call);
    if (rc != SH_OK)
        fail_msg("%s on %s: %s", sh_op_info(t->call.kind)->name, device->name, sh_error_text());
    check_guard(t->call.work, (size_t)bytes);
    free(t->call.work);
    check_guards(t);
}

void optest_close(const struct optest *a, const struct optest *b, int i, double terms)
{
    struct sh_bound bound = sh_bound_sum(a->call.out[i].dtype, terms);

    optest_within(a, b, i, bound.atol, bound.rtol);
}

void optest_within(const struct optest *a, const struct optest *b, int i, double atol, double rtol)
{
    const struct sh_operand *x = &a->call.out[i], *y = &b->call.out[i];
    for (int64_t k = 0; k < optest_elems(x); k++) {
        double u = optest_get(x, k), v = optest_get(y, k);
        if (!sh_bound_holds((struct sh_bound){atol, rtol}, u, v))
            fail_msg("%s output %d element %lld: %.9g and %.9g differ by %.3g, bound %.3g",
                     sh_op_info(a->call.kind)->name, i, (long long)k, u, v, fabs(u - v), atol + rtol * fabs(u));
    }
}

void optest_same(const struct optest *a, const struct optest *b, int i)
{
    assert_memory_equal(a->call.out[i].data, b->call.out[i].data, bytes_of(&a->call.out[i]));
}
