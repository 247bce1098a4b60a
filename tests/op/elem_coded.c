/* Codes of eight bits in blocks of 64 elements: updates whose states are in them, of runs that need not respect blocks, and
 * parameters as ranks gather them. */
#include "kernels/states.h"
#include "src/base/number/code8_law.h"
#include "tests/op/elem.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ELEMS = SH_CODE8_ELEMS, BLOCK = SH_CODE8_BLOCK_BYTES };

static unsigned char *block_of(const struct optest *t, int o, int64_t element)
{
    return (unsigned char *)t->call.out[o].data + sh_code8_bytes(element);
}

void elem_begin_coded(struct optest *t, enum sh_op_kind kind, int64_t n)
{
    elem_begin_update(t, kind, n);
    for (int o = 1; o < elem_written(kind); o++) {
        free(t->call.out[o].data);
        optest_out(t, o, SH_U8, DIMS(n / ELEMS, BLOCK));
        for (int64_t i = 0; i < n; i += ELEMS) {
            float x[ELEMS];

            for (int k = 0; k < ELEMS; k++)
                x[k] = (float)(o == 1 ? optest_int(-99, 99) : optest_int(1, 99)) / 64;
            sh_code8_put(block_of(t, o, i), sh_state_law(o - 1), ELEMS, x);
        }
    }
    t->scalars.seed = 3;
    t->scalars.update = 9;
    t->attr.runs.count = 2;
    t->runs[0] = (struct sh_decay_run){.end = n / 2 - 7, .decay = true, .tensor = 1, .origin = -3};
    t->runs[1] = (struct sh_decay_run){.begin = n / 2 - 7, .end = n - 20, .tensor = 2, .origin = n / 2 - 7};
}

void elem_make_exact_coded(struct optest *t)
{
    t->scalars.beta1 = t->scalars.beta2 = 0.5f;
    t->scalars.weight_decay = 0;
    for (int64_t i = 0; i < optest_elems(&t->call.in[0]); i++)
        optest_set(&t->call.in[0], i, (double)optest_int(-256, 256) / 32);
}

/* Of a state: numbers that differ by more than a step of its codes, those that differ at all, and scales. */
static void compare(const struct optest *a, const struct optest *b, int o, double rtol, int *far, int *off)
{
    int64_t n = a->call.out[0].dim[0];

    for (int64_t i = 0; i < n; i += ELEMS) {
        const unsigned char *x = block_of(a, o, i), *y = block_of(b, o, i);
        float scale[2];

        memcpy(&scale[0], x + ELEMS, sizeof *scale);
        memcpy(&scale[1], y + ELEMS, sizeof *scale);
        assert_true(scale[0] == scale[1] || fabsf(scale[0] - scale[1]) <= (float)rtol * scale[0]);
        for (int k = 0; k < ELEMS; k++) {
            int d = o == 1 ? abs((signed char)x[k] - (signed char)y[k]) : abs(x[k] - y[k]);

            *far += d > 1;
            *off += d > 0;
        }
    }
}

void elem_check_coded(struct optest *before, int64_t most)
{
    struct optest ref, one;
    int far = 0, off = 0;

    optest_copy(&ref, before);
    optest_copy(&one, before);
    ref.call.runs = one.call.runs = before->call.runs;
    optest_run(&ref, &sh_kernels_ref, 1);
    elem.run(&one, elem.table, 0);
    optest_within(&ref, &one, 0, 1e-5, 1e-6);
    for (int o = 1; o < elem_written(before->call.kind); o++)
        compare(&ref, &one, o, most ? 1e-6 : 0, &far, &off);
    assert_int_equal(far, 0);
    assert_true(off <= most);
    if (before->call.runs == before->runs)
        elem_variants(before, &one);
    optest_end(&ref);
    optest_end(&one);
    optest_end(before);
}

/* Parameters in halves: the same bits, of states too. */
static void check_halves(const struct optest *t, int shift)
{
    struct optest whole, halves, joined;

    optest_copy(&whole, t);
    optest_split_params(&halves, t);
    optest_shift(&halves, shift);
    elem.run(&whole, elem.table, 0);
    elem.run(&halves, elem.table, 0);
    optest_join_params(&joined, &halves);
    for (int o = 0; o < elem_written(t->call.kind); o++)
        optest_same(&whole, &joined, o);
    optest_end(&whole);
    optest_end(&halves);
    optest_end(&joined);
}

/* More runs than a kernel takes at once, in order: of one to five elements with gaps, a long one, those again. */
static void check_many_runs(enum sh_op_kind kind)
{
    enum { N = 2048, RUNS = 500 };
    static struct sh_decay_run runs[RUNS];
    struct optest t;
    int count = 0;

    elem_begin_coded(&t, kind, N);
    elem_make_exact_coded(&t);
    for (int64_t at = 3, n; at < N - 300; at += n + count % 2) {
        n = at > N / 2 && at < N / 2 + 6 ? 297 : 1 + count % 5;
        runs[count] = (struct sh_decay_run){
            .begin = at, .end = at + n, .decay = count % 3, .tensor = (uint64_t)count, .origin = at - count % 7};
        count++;
    }
    assert_true(count > 256 && count <= RUNS);
    t.attr.runs.count = count;
    t.call.runs = runs;
    elem_check_coded(&t, elem.exact_codes ? 0 : 2 + N / 100);
}

/* An infinity becomes the scale of its block, and what is beside it 0, or the least square. */
static void check_infinite(enum sh_op_kind kind)
{
    struct optest t;

    elem_begin_coded(&t, kind, 192);
    elem_make_exact_coded(&t);
    optest_set(&t.call.in[0], 70, INFINITY);
    elem_check_coded(&t, elem.exact_codes ? 0 : 3);
}

/* A block that is of no run, after one that is of two, keeps its bits; numbers too small for a scale become 0. */
static void check_left_alone(enum sh_op_kind kind)
{
    unsigned char bytes[BLOCK];
    struct optest t, was;

    for (int i = 0; i < BLOCK; i++)
        bytes[i] = (unsigned char)(7 * i + 1);
    elem_begin_coded(&t, kind, 256);
    t.runs[0].end = 20;
    t.runs[1] = (struct sh_decay_run){.begin = 200, .end = 256, .tensor = 2, .origin = 200};
    for (int64_t i = 200; i < 256; i++)
        optest_set(&t.call.in[0], i, 0);
    for (int o = 1; o < elem_written(kind); o++) {
        if (elem.exact_codes) /* not what a law makes */
            memcpy(block_of(&t, o, 64), bytes, BLOCK);
        memset(block_of(&t, o, 192), 0, BLOCK);
        memcpy(block_of(&t, o, 192) + ELEMS, &(float){0x1p-91f}, 4);
        memset(block_of(&t, o, 192) + 9, 127, 1);
    }
    optest_copy(&was, &t);
    elem.run(&t, elem.table, 0);
    for (int o = 1; o < elem_written(kind); o++) {
        assert_memory_equal(block_of(&t, o, 64), block_of(&was, o, 64), BLOCK);
        for (int i = 0; i < BLOCK; i++)
            assert_int_equal(block_of(&t, o, 192)[i], 0);
    }
    optest_end(&was);
    optest_end(&t);
}

void elem_update_of_codes(void **state)
{
    static const enum sh_op_kind kinds[] = {SH_OP_ADAMW_CODED, SH_OP_LION_CODED};
    static const int64_t lengths[] = {64, 128, 192, 1024, 2048 + 64, 8192 + 64};

    (void)state;
    optest_seed(17);
    for (int i = 0; i < (elem.few ? 6 : 12); i++) {
        struct optest t, exact;
        int64_t n = lengths[i / 2];

        elem_begin_coded(&t, kinds[i % 2], n);
        optest_copy(&exact, &t);
        elem_make_exact_coded(&exact);
        check_halves(&t, 0);
        check_halves(&t, 3);
        elem_check_coded(&t, 2 + n / 100);
        elem_check_coded(&exact, elem.exact_codes ? 0 : 2 + n / 100);
    }
    for (int i = 0; i < 2; i++) {
        check_infinite(kinds[i]);
        check_left_alone(kinds[i]);
        if (!elem.few)
            check_many_runs(kinds[i]);
    }
}

/* What a block makes of numbers too small for a scale, of an infinity, and of a NaN. */
static void poke(struct optest *t)
{
    for (int k = 0; k < ELEMS; k++)
        optest_set(&t->call.in[0], k, k % 2 ? 0x1p-91 : -0x1p-92);
    optest_set(&t->call.in[0], 70, -INFINITY);
    optest_set(&t->call.in[0], 140, (double)NAN);
}

/* Parameters to codes and back: the reference's bits, in both types of activations. */
void elem_codes(void **state)
{
    static const int64_t lengths[] = {64, 192, 1024, 4096 + 64, 65536 + 64};

    (void)state;
    optest_seed(19);
    for (int i = 0; i < (elem.few ? 6 : 10); i++) {
        enum sh_dtype type = i % 2 == 0 ? SH_F32 : elem.half ? SH_F16 : SH_BF16;
        struct optest t, right, back;
        int64_t n = lengths[i / 2];

        optest_begin(&t, SH_OP_ENCODE);
        optest_in(&t, 0, type, DIMS(n));
        optest_out(&t, 0, SH_U8, DIMS(n / ELEMS, BLOCK));
        optest_copy(&right, &t);
        optest_run(&right, &sh_kernels_ref, 1);
        optest_begin(&back, SH_OP_DECODE);
        optest_in(&back, 0, SH_U8, DIMS(n / ELEMS, BLOCK));
        memcpy(back.call.in[0].data, right.call.out[0].data, (size_t)sh_code8_bytes(n));
        optest_out(&back, 0, type, DIMS(n));
        if (n > 192)
            poke(&t);
        optest_end(&right);
        elem_check(&t, TERMS(0));
        elem_check(&back, TERMS(0));
    }
}
