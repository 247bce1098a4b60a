/* The CUDA kernels that need no library against the reference: f32 and bf16, odd shapes, += on and off, optional
 * operands absent; and the same bits in any order of threads, for shifted addresses, and in place where the table
 * allows it. */
#include "kernels/cuda/cuda.h"
#include "kernels/exact.h"
#include "kernels/mixsum.h"
#include "src/base/hash.h"
#include "src/base/mem.h"
#include "src/base/rng.h"
#include "tests/gpu/optest_device.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Not sh_kernels_cuda: its functions are there in builds with a GPU only. */
static int64_t work_bytes(const struct sh_op_call *call, int threads)
{
    (void)threads;
    switch (call->kind) {
    case SH_OP_EMBED_BWD: return sh_cuda_embed_bwd_work_bytes(call);
    case SH_OP_NORM_BWD:
    case SH_OP_NORM_BWD_BIAS: return sh_cuda_norm_bwd_work_bytes(call);
    case SH_OP_BIAS_BWD:
    case SH_OP_GELU_BWD_BIAS: return sh_cuda_bias_bwd_work_bytes(call);
    default: return 0;
    }
}

static const struct sh_kernel_table table = {
    .name = "cuda",
    .run = {
        [SH_OP_EMBED] = sh_cuda_embed,
        [SH_OP_EMBED_BWD] = sh_cuda_embed_bwd,
        [SH_OP_NORM] = sh_cuda_norm,
        [SH_OP_NORM_BWD] = sh_cuda_norm_bwd,
        [SH_OP_BIAS_BWD] = sh_cuda_bias_bwd,
        [SH_OP_ROPE_TABLE] = sh_cuda_rope_table,
        [SH_OP_ROPE] = sh_cuda_rope,
        [SH_OP_GELU] = sh_cuda_gelu,
        [SH_OP_GELU_BWD] = sh_cuda_gelu_bwd,
        [SH_OP_ADD_NORM] = sh_cuda_norm,
        [SH_OP_NORM_BWD_BIAS] = sh_cuda_norm_bwd,
        [SH_OP_GELU_BWD_BIAS] = sh_cuda_gelu_bwd_bias,
        [SH_OP_SWIGLU] = sh_cuda_swiglu,
        [SH_OP_SWIGLU_BWD] = sh_cuda_swiglu_bwd,
        [SH_OP_ADD] = sh_cuda_add,
        [SH_OP_CAST] = sh_cuda_cast,
        [SH_OP_COPY] = sh_cuda_copy,
        [SH_OP_ACCUMULATE] = sh_cuda_accumulate,
        [SH_OP_SUMSQ] = sh_cuda_sumsq,
        [SH_OP_EXACT_ROUND] = sh_cuda_exact_round,
        [SH_OP_ADAMW] = sh_cuda_adamw,
    },
    .work_bytes = work_bytes,
};

static const enum sh_dtype acts[] = {SH_F32, SH_BF16};
enum { ACTS = 2 };

/* Lengths around vectors, blocks and grids; matrices around warps, blocks, and what a thread has of a row. With
 * SHERD_FEW_SHAPES in the environment only the first of each, for programs that a sanitizer makes slow. */
static const int64_t lengths[] = {1, 7, 32, 1023, 1024, 8195};
static const int64_t matrices[][2] = {{1, 1}, {3, 17}, {65, 33}, {21, 768}, {2, 3001}, {2, 8232}};
static int n_lengths = 6, n_matrices = 6;

static void same_outputs(const struct optest *a, const struct optest *b)
{
    for (int o = 0; o < SH_OP_MAX_OUT; o++)
        if (a->call.out[o].data)
            optest_same(a, b, o);
}

static bool may_alias(const struct optest *t)
{
    const struct sh_op_info *info = sh_op_info(t->call.kind);
    return info->inplace_in >= 0 && t->call.in[info->inplace_in].data;
}

enum variant { BACKWARD, SHUFFLED, SHIFTED, IN_PLACE, VARIANTS };

static void run_variant(const struct optest *before, const struct optest *one, enum variant v)
{
    struct optest t;
    if (v == IN_PLACE && !may_alias(before))
        return;
    optest_copy(&t, before);
    if (v == SHIFTED)
        optest_shift(&t, 3);
    if (v == IN_PLACE)
        optest_alias(&t, sh_op_info(t.call.kind)->inplace_in, sh_op_info(t.call.kind)->inplace_out);
    optest_device_order(v == BACKWARD || v == IN_PLACE ? 1 : v == SHUFFLED ? 2 : 0);
    optest_device_run(&t, &table);
    optest_device_order(0);
    same_outputs(one, &t);
    optest_end(&t);
}

/* Run `before` in all ways and free it. terms: as optest_close wants them, for each output; 0 for exactly the same. */
static void check(struct optest *before, const double terms[SH_OP_MAX_OUT])
{
    struct optest ref, one;
    optest_copy(&ref, before);
    optest_copy(&one, before);
    optest_run(&ref, &sh_kernels_ref, 1);
    optest_device_run(&one, &table);
    for (int o = 0; o < SH_OP_MAX_OUT; o++) {
        if (!ref.call.out[o].data)
            continue;
        if (terms[o] == 0)
            optest_same(&ref, &one, o);
        else if (ref.call.out[o].dtype == SH_F64) /* positive numbers summed in f64, each time in another order */
            optest_within(&ref, &one, o, 0, terms[o] * 0x1p-53);
        else
            optest_close(&ref, &one, o, terms[o]);
    }
    for (int v = 0; v < VARIANTS; v++)
        run_variant(before, &one, v);
    optest_end(&ref);
    optest_end(&one);
    optest_end(before);
}

#define TERMS(...) (const double[SH_OP_MAX_OUT]){__VA_ARGS__}

static void check_norm(enum sh_dtype act, int64_t N, int64_t C, bool rms, bool bias)
{
    struct optest t;
    optest_begin(&t, SH_OP_NORM);
    t.attr.rms = rms;
    t.attr.eps = 1e-2f;
    optest_in(&t, 0, act, DIMS(N, C));
    optest_in(&t, 1, act, DIMS(C));
    if (bias)
        optest_in(&t, 2, act, DIMS(C));
    optest_out(&t, 0, act, DIMS(N, C));
    optest_out(&t, 1, SH_F32, DIMS(N));
    if (!rms)
        optest_out(&t, 2, SH_F32, DIMS(N));
    check(&t, TERMS(64, 64, 64));
}

/* rstd is a normal number here, and dx the sum of as many terms as a row has, divided by their number. */
static void check_norm_bwd(enum sh_dtype act, int64_t N, int64_t C, bool rms, bool all)
{
    struct optest t;
    optest_begin(&t, SH_OP_NORM_BWD);
    t.attr.rms = rms;
    optest_in(&t, 0, act, DIMS(N, C));
    optest_in(&t, 1, act, DIMS(N, C));
    optest_in(&t, 2, act, DIMS(C));
    optest_in(&t, 3, SH_F32, DIMS(N));
    if (!rms)
        optest_in(&t, 4, SH_F32, DIMS(N));
    if (all)
        optest_in(&t, 5, act, DIMS(N, C));
    optest_out(&t, 0, act, DIMS(N, C));
    optest_out(&t, 1, SH_F32, DIMS(C));
    if (all) {
        optest_out(&t, 2, SH_F32, DIMS(C));
        optest_add_to(&t, 1);
        optest_add_to(&t, 2);
    }
    check(&t, TERMS(400, 8 * (double)N, 2 * (double)N));
}

static void norm(void **state)
{
    (void)state;
    optest_seed(1);
    for (int m = 0; m < n_matrices; m++) {
        for (int a = 0; a < ACTS; a++) {
            for (int kind = 0; kind < 4; kind++) {
                check_norm(acts[a], matrices[m][0], matrices[m][1], kind & 1, kind & 2);
                check_norm_bwd(acts[a], matrices[m][0], matrices[m][1], kind & 1, kind & 2);
            }
        }
    }
}

static void norm_refuses(void **state)
{
    (void)state;
    struct optest t;
    optest_begin(&t, SH_OP_NORM);
    optest_in(&t, 0, SH_F32, DIMS(1, 32769));
    optest_in(&t, 1, SH_F32, DIMS(32769));
    optest_out(&t, 0, SH_F32, DIMS(1, 32769));
    assert_int_equal(sh_cuda_norm(&t.call), SH_E_USAGE);
    optest_end(&t);
}

/* Tokens of which `common` in 256 are one and the same, as in text. */
static void add_tokens(struct optest *t, int i, int64_t V, int64_t B, int64_t T, int common)
{
    optest_in_ints(t, i, 0, V, DIMS(B, T));
    for (int64_t k = 0; k < B * T; k++)
        if (optest_int(0, 256) < common)
            optest_set(&t->call.in[i], k, (double)(V / 3));
}

static void check_embed_bwd(enum sh_dtype act, const int64_t *s, bool add, bool tokens, bool positions)
{
    int64_t B = s[0], T = s[1], C = s[2], V = s[3];
    struct optest t;
    optest_begin(&t, SH_OP_EMBED_BWD);
    optest_in(&t, 0, act, DIMS(B, T, C));
    add_tokens(&t, 1, V, B, T, (int)s[4]);
    if (tokens)
        optest_out(&t, 0, SH_F32, DIMS(V, C));
    if (positions)
        optest_out(&t, 1, SH_F32, DIMS(T + 2, C));
    for (int o = 0; o < 2 && add; o++)
        if (t.call.out[o].data)
            optest_add_to(&t, o);
    check(&t, TERMS((double)(B * T), (double)B));
}

static void check_embed(enum sh_dtype act, const int64_t *s, bool positions)
{
    int64_t B = s[0], T = s[1], C = s[2], V = s[3];
    struct optest t;
    optest_begin(&t, SH_OP_EMBED);
    add_tokens(&t, 0, V, B, T, (int)s[4]);
    optest_in(&t, 1, act, DIMS(V, C));
    if (positions)
        optest_in(&t, 2, act, DIMS(T + 2, C));
    optest_out(&t, 0, act, DIMS(B, T, C));
    check(&t, TERMS(4));
}

/* B, T, C, V, how common one token is: alone, few, many, only that one; with more tokens than a block scans, and than one thread of it. */
static void embed(void **state)
{
    (void)state;
    static const int64_t shapes[][5] = {
        {1, 1, 1, 1, 0}, {2, 17, 65, 50, 0}, {3, 100, 40, 1500, 80}, {1, 300, 264, 9, 256}, {3, 5, 1025, 2, 0},
        {2, 40, 8, 2050, 40}};
    optest_seed(2);
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        for (int a = 0; a < ACTS; a++) {
            for (int on = 0; on < 2; on++) {
                check_embed(acts[a], shapes[s], on);
                check_embed_bwd(acts[a], shapes[s], on, true, true);
            }
            check_embed_bwd(acts[a], shapes[s], false, true, false);
            check_embed_bwd(acts[a], shapes[s], true, false, true);
        }
    }
}

/* Nothing is read or written outside the table; what the token stands for cannot be used. */
static void embed_outside(void **state)
{
    (void)state;
    struct optest t;
    optest_seed(2);
    optest_begin(&t, SH_OP_EMBED);
    optest_in_ints(&t, 0, 0, 7, DIMS(1, 3));
    optest_set(&t.call.in[0], 1, 7);
    optest_set(&t.call.in[0], 2, -1);
    optest_in(&t, 1, SH_F32, DIMS(7, 3));
    optest_out(&t, 0, SH_F32, DIMS(1, 3, 3));
    optest_device_run(&t, &table);
    for (int i = 0; i < 9; i++)
        assert_int_equal(isnan(optest_get(&t.call.out[0], i)), i >= 3);
    optest_end(&t);

    optest_begin(&t, SH_OP_EMBED_BWD);
    optest_in(&t, 0, SH_F32, DIMS(1, 2, 3));
    optest_in_ints(&t, 1, 7, 8, DIMS(1, 2));
    optest_out(&t, 0, SH_F32, DIMS(7, 3));
    optest_device_run(&t, &table);
    for (int i = 0; i < 21; i++)
        assert_true(optest_get(&t.call.out[0], i) == 0);
    optest_end(&t);
}

static void check_rope(enum sh_dtype act, const int *s, bool inverse)
{
    int64_t B = s[0], T = s[1], D = s[4], row = (s[2] + 2 * s[3]) * D;
    struct optest t;
    optest_begin(&t, SH_OP_ROPE);
    t.attr.heads = s[2];
    t.attr.kv_heads = s[3];
    t.attr.head_dim = s[4];
    t.attr.inverse = inverse;
    optest_in(&t, 0, act, DIMS(B, T, row));
    optest_in(&t, 1, SH_F32, DIMS(T, D));
    optest_out(&t, 0, act, DIMS(B, T, row));
    check(&t, TERMS(16));
}

static void rope(void **state)
{
    (void)state;
    static const int shapes[][5] = {
        {1, 1, 1, 1, 2}, {2, 3, 4, 2, 6}, {2, 5, 33, 3, 64}, {1, 3, 8, 1, 256}, {2, 2, 3, 1, 24}}; /* B, T, H, K, D */
    optest_seed(3);
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int a = 0; a < ACTS; a++)
            for (int inverse = 0; inverse < 2; inverse++)
                check_rope(acts[a], shapes[s], inverse);
}

/* Angles reach hundreds; cos and sin of them are computed in double, so that one rounding to f32 is all. */
static void rope_table(void **state)
{
    (void)state;
    static const struct sh_op_attr attrs[] = {
        {.rope_theta = 10000},
        {.rope_theta = 500000, .rope_factor = 8, .rope_low_freq = 1, .rope_high_freq = 4, .rope_original_len = 256},
    };
    for (int i = 0; i < 2; i++) {
        struct optest t;
        optest_begin(&t, SH_OP_ROPE_TABLE);
        t.attr = attrs[i];
        optest_out(&t, 0, SH_F32, DIMS(1 + 300 * i, 128));
        check(&t, TERMS(1));
    }
}

/* Inputs with deviation 3, so that the flat ends of the curves are met. */
static void check_gelu(enum sh_dtype act, int64_t n)
{
    struct optest t;
    optest_begin(&t, SH_OP_GELU);
    optest_in(&t, 0, act, DIMS(n));
    optest_scale(&t.call.in[0], 3);
    optest_out(&t, 0, act, DIMS(n));
    check(&t, TERMS(4));

    optest_begin(&t, SH_OP_GELU_BWD);
    optest_in(&t, 0, act, DIMS(n));
    optest_in(&t, 1, act, DIMS(n));
    optest_scale(&t.call.in[1], 3);
    optest_out(&t, 0, act, DIMS(n));
    check(&t, TERMS(64));
}

static void check_swiglu(enum sh_dtype act, int64_t N, int64_t F)
{
    struct optest t;
    optest_begin(&t, SH_OP_SWIGLU);
    optest_in(&t, 0, act, DIMS(N, 2 * F));
    optest_scale(&t.call.in[0], 3);
    optest_out(&t, 0, act, DIMS(N, F));
    check(&t, TERMS(16));

    optest_begin(&t, SH_OP_SWIGLU_BWD);
    optest_in(&t, 0, act, DIMS(N, F));
    optest_in(&t, 1, act, DIMS(N, 2 * F));
    optest_scale(&t.call.in[1], 3);
    optest_out(&t, 0, act, DIMS(N, 2 * F));
    check(&t, TERMS(64));
}

static void act(void **state)
{
    (void)state;
    optest_seed(4);
    for (int a = 0; a < ACTS; a++) {
        for (int l = 0; l < n_lengths; l++)
            check_gelu(acts[a], lengths[l]);
        for (int m = 0; m < n_matrices; m++)
            check_swiglu(acts[a], matrices[m][0], matrices[m][1]);
    }
}

static void check_bias(enum sh_dtype act, int64_t N, int64_t O, bool add)
{
    struct optest t;
    optest_begin(&t, SH_OP_BIAS_BWD);
    optest_in(&t, 0, act, DIMS(N, O));
    optest_out(&t, 0, SH_F32, DIMS(O));
    if (add)
        optest_add_to(&t, 0);
    check(&t, TERMS(2 * (double)N));
}

static void bias(void **state)
{
    (void)state;
    optest_seed(5);
    for (int a = 0; a < ACTS; a++) {
        for (int m = 0; m < n_matrices; m++)
            for (int add = 0; add < 2; add++)
                check_bias(acts[a], matrices[m][0], matrices[m][1], add);
        check_bias(acts[a], 500, 40, true);
        check_bias(acts[a], 5 * 512 + 3, 40, false); /* several rows at once, and one */
    }
}

static void begin_norm_bwd(struct optest *t, enum sh_op_kind kind, enum sh_dtype act, int64_t N, int64_t C, bool rms)
{
    optest_begin(t, kind);
    t->attr.rms = rms;
    for (int i = 0; i < 2; i++)
        optest_in(t, i, act, DIMS(N, C));
    optest_in(t, 2, act, DIMS(C));
    optest_in(t, 3, SH_F32, DIMS(N));
    if (!rms)
        optest_in(t, 4, SH_F32, DIMS(N));
    if (N % 2)
        optest_in(t, 5, act, DIMS(N, C));
    optest_out(t, 0, act, DIMS(N, C));
    for (int o = 1; o < (rms ? 2 : 3); o++)
        optest_out(t, o, SH_F32, DIMS(C));
}

static void begin_gelu_bwd(struct optest *t, enum sh_op_kind kind, enum sh_dtype act, int64_t N, int64_t F)
{
    optest_begin(t, kind);
    for (int i = 0; i < 2; i++)
        optest_in(t, i, act, DIMS(N, F));
    optest_scale(&t->call.in[1], 3);
    optest_out(t, 0, act, DIMS(N, F));
}

static void copy_values(const struct sh_operand *to, const struct sh_operand *from)
{
    for (int64_t i = 0; to->data && i < optest_elems(to); i++)
        optest_set(to, i, optest_get(from, i));
}

/* `fused` gives the bits of `first`, then BIAS_BWD of what comes out of it, in all ways; frees both. */
static void check_bias_behind(struct optest *first, struct optest *fused, bool add)
{
    const struct sh_operand *dx = &first->call.out[0];
    int o = sh_op_info(first->call.kind)->n_out;
    struct optest bias, one, pair;

    optest_begin(&bias, SH_OP_BIAS_BWD);
    optest_in(&bias, 0, dx->dtype, DIMS(dx->dim[0], dx->dim[1]));
    optest_out(&bias, 0, SH_F32, DIMS(dx->dim[1]));
    optest_out(fused, o, SH_F32, DIMS(dx->dim[1]));
    if (add) {
        optest_add_to(&bias, 0);
        optest_add_to(fused, o);
    }
    for (int i = 0; i < SH_OP_MAX_IN; i++)
        copy_values(&first->call.in[i], &fused->call.in[i]);
    copy_values(&bias.call.out[0], &fused->call.out[o]);
    optest_copy(&one, fused);
    optest_device_run(&one, &table);
    optest_device_run(first, &table);
    copy_values(&bias.call.in[0], &first->call.out[0]);
    optest_device_run(&bias, &table);
    pair = *first;
    pair.call.out[o] = bias.call.out[0];
    same_outputs(&pair, &one);
    for (int v = 0; v < VARIANTS; v++)
        run_variant(fused, &one, v);
    optest_end(&one);
    optest_end(first);
    optest_end(&bias);
    optest_end(fused);
}

/* ADD_NORM gives the bits of ADD, then NORM of the sum. */
static void check_add_norm(enum sh_dtype act, int64_t N, int64_t C, bool rms, bool bias)
{
    struct optest add, norm, fused, one, pair;

    optest_begin(&add, SH_OP_ADD);
    optest_begin(&norm, SH_OP_NORM);
    optest_begin(&fused, SH_OP_ADD_NORM);
    norm.attr.rms = fused.attr.rms = rms;
    norm.attr.eps = fused.attr.eps = 1e-2f;
    optest_in(&norm, 0, act, DIMS(N, C));
    for (int i = 0; i < 2; i++) {
        optest_in(&add, i, act, DIMS(N, C));
        optest_in(&fused, i, act, DIMS(N, C));
        copy_values(&add.call.in[i], &fused.call.in[i]);
        optest_out(&fused, i, act, DIMS(N, C));
        optest_out(i ? &norm : &add, 0, act, DIMS(N, C));
    }
    for (int i = 1; i < 2 + bias; i++) {
        optest_in(&norm, i, act, DIMS(C));
        optest_in(&fused, i + 1, act, DIMS(C));
        copy_values(&norm.call.in[i], &fused.call.in[i + 1]);
    }
    for (int i = 1; i < 3 - rms; i++) {
        optest_out(&norm, i, SH_F32, DIMS(N));
        optest_out(&fused, i + 1, SH_F32, DIMS(N));
    }
    optest_copy(&one, &fused);
    optest_device_run(&one, &table);
    optest_device_run(&add, &table);
    copy_values(&norm.call.in[0], &add.call.out[0]);
    optest_device_run(&norm, &table);
    pair = fused;
    pair.call.out[0] = add.call.out[0];
    for (int o = 0; o < 3; o++)
        pair.call.out[o + 1] = norm.call.out[o];
    same_outputs(&pair, &one);
    for (int v = 0; v < VARIANTS; v++)
        run_variant(&fused, &one, v);
    optest_end(&one);
    optest_end(&add);
    optest_end(&norm);
    optest_end(&fused);
}

static void add_norm(void **state)
{
    (void)state;
    optest_seed(13);
    for (int i = 0; i < n_matrices * ACTS * 4; i++)
        check_add_norm(acts[i % ACTS], matrices[i / 8][0], matrices[i / 8][1], i / 2 % 2, i / 4 % 2);
}

static void bias_behind(void **state)
{
    (void)state;
    optest_seed(12);
    for (int i = 0; i < n_matrices * ACTS * 2; i++) {
        enum sh_dtype act = acts[i % ACTS];
        int64_t N = matrices[i / 4][0], C = matrices[i / 4][1];
        struct optest first, fused;

        begin_norm_bwd(&first, SH_OP_NORM_BWD, act, N, C, i / 2 % 2);
        begin_norm_bwd(&fused, SH_OP_NORM_BWD_BIAS, act, N, C, i / 2 % 2);
        check_bias_behind(&first, &fused, i / 2 % 2);
        if (i / 4 == 2)
            N = 5 * 512 + 3; /* several rows at once, and one */
        begin_gelu_bwd(&first, SH_OP_GELU_BWD, act, N, C);
        begin_gelu_bwd(&fused, SH_OP_GELU_BWD_BIAS, act, N, C);
        check_bias_behind(&first, &fused, i / 2 % 2);
    }
}

/* y from one or two vectors of n, of the given types. terms 0: no rounding at all. */
static void check_vector(enum sh_op_kind kind, enum sh_dtype in, enum sh_dtype out, int64_t n, double terms)
{
    struct optest t;
    optest_begin(&t, kind);
    for (int i = 0; i < sh_op_info(kind)->n_in; i++)
        optest_in(&t, i, in, DIMS(n));
    optest_out(&t, 0, out, DIMS(n));
    if (sh_op_info(kind)->rw_out)
        optest_add_to(&t, 0);
    check(&t, TERMS(terms));
}

static void vector(void **state)
{
    (void)state;
    optest_seed(6);
    for (int l = 0; l < n_lengths; l++) {
        for (int a = 0; a < ACTS; a++) {
            check_vector(SH_OP_ADD, acts[a], acts[a], lengths[l], 1);
            check_vector(SH_OP_COPY, acts[a], acts[a], lengths[l], 0);
            check_vector(SH_OP_CAST, acts[a], acts[1 - a], lengths[l], 0);
        }
        check_vector(SH_OP_COPY, SH_F64, SH_F64, lengths[l], 0);
        check_vector(SH_OP_ACCUMULATE, SH_F32, SH_F32, lengths[l], 0);
    }
}

/* The reference's accumulator and its rounding, bit for bit, over floats of all sizes. */
static void check_exact(int64_t n, int exponents, bool add, double odd)
{
    struct optest t, round;
    optest_begin(&t, SH_OP_SUMSQ);
    optest_in(&t, 0, SH_F32, DIMS(n));
    for (int64_t i = 0; i < n && exponents; i++)
        optest_set(&t.call.in[0], i, ldexp(optest_get(&t.call.in[0], i), (int)optest_int(-exponents, exponents)));
    if (odd != 0)
        optest_set(&t.call.in[0], n / 2, odd);
    optest_out(&t, 0, SH_F64, DIMS(SH_EXACT_ELEMS));
    for (int i = 0; i < SH_EXACT_ELEMS; i++)
        optest_set(&t.call.out[0], i, i < SH_EXACT_DIGITS ? (double)optest_int(0, (int64_t)1 << 33) : 0);
    t.attr.accumulate = add;

    optest_begin(&round, SH_OP_EXACT_ROUND);
    optest_in(&round, 0, SH_F64, DIMS(SH_EXACT_ELEMS));
    for (int i = 0; i < SH_EXACT_ELEMS; i++)
        optest_set(&round.call.in[0], i,
                   i == SH_EXACT_DIGITS                 ? odd
                   : i < n % (SH_EXACT_DIGITS - 1) ? (double)optest_int(0, (int64_t)1 << 40)
                                                   : 0);
    optest_out(&round, 0, SH_F64, DIMS(1));
    check(&round, TERMS(0));
    check(&t, TERMS(0));
}

static void exact(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1, 8, 63, 64, 65, 257, 5000, 20000};
    optest_seed(9);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        check_exact(sizes[i], 0, false, 0);
        check_exact(sizes[i], 70, true, 0);
        check_exact(sizes[i], 126, i % 2, 0);
    }
    check_exact(300, 1, true, INFINITY);
    check_exact(0x1000, 1, true, (double)0x1.fffffep127f);
}

/* The digits of an accumulator that nothing was added to, and rounding of all lengths of it. */
static void exact_rounds(void **state)
{
    (void)state;
    optest_seed(10);
    for (int n = 0; n <= SH_EXACT_DIGITS; n++) {
        struct optest t;
        optest_begin(&t, SH_OP_EXACT_ROUND);
        optest_in(&t, 0, SH_F64, DIMS(SH_EXACT_ELEMS));
        for (int i = 0; i < SH_EXACT_ELEMS; i++)
            optest_set(&t.call.in[0], i, i < n ? (double)optest_int(0, (int64_t)1 << (i % 33)) : 0);
        optest_out(&t, 0, SH_F64, DIMS(1));
        check(&t, TERMS(0));
    }
}

static void begin_adamw(struct optest *t, int64_t n)
{
    optest_begin(t, SH_OP_ADAMW);
    t->scalars = (struct sh_op_scalars){.lr = 1e-2f, .beta1 = 0.9f, .beta2 = 0.95f, .adam_eps = 1e-8f,
        .weight_decay = 0.1f, .beta1_pow = 0.81, .beta2_pow = 0.9025, .grad_scale = 0.5f};
    optest_in(t, 0, SH_F32, DIMS(n));
    for (int o = 0; o < 3; o++) {
        optest_out(t, o, SH_F32, DIMS(n));
        optest_add_to(t, o);
    }
    for (int64_t i = 0; i < n; i++)
        optest_set(&t->call.out[2], i, fabs(optest_get(&t->call.out[2], i)));
    t->attr.run_count = 3;
    t->runs[0] = (struct sh_decay_run){0, n / 3, true};
    t->runs[1] = (struct sh_decay_run){n / 2, n - n / 9 - n / 20, false};
    t->runs[2] = (struct sh_decay_run){n - n / 9 - n / 20, n - n / 9, true};
}

static void adamw(void **state)
{
    (void)state;
    optest_seed(7);
    for (int l = 0; l < n_lengths; l++) {
        struct optest t;
        begin_adamw(&t, lengths[l]);
        check(&t, TERMS(64, 8, 8));
    }
}

/* In halves, parameters get the bits that they get in one array, from any address. */
static void adamw_in_halves(void **state)
{
    (void)state;
    optest_seed(9);
    for (int i = 0; i < 2 * n_lengths; i++) {
        struct optest whole, halves, joined;
        begin_adamw(&whole, lengths[i / 2]);
        optest_split_params(&halves, &whole);
        if (i % 2)
            optest_shift(&halves, 3);
        optest_device_run(&whole, &table);
        optest_device_run(&halves, &table);
        optest_join_params(&joined, &halves);
        for (int o = 0; o < 3; o++)
            optest_same(&whole, &joined, o);
        optest_end(&whole);
        optest_end(&halves);
        optest_end(&joined);
    }
}

/* More runs than one launch takes; every third element belongs to none and keeps its bits. */
static void adamw_has_many_runs(void **state)
{
    enum { N = 600, RUNS = N / 3 };
    static struct sh_decay_run runs[RUNS];
    struct optest ref, cuda;

    (void)state;
    optest_seed(11);
    begin_adamw(&ref, N);
    for (int i = 0; i < RUNS; i++)
        runs[i] = (struct sh_decay_run){3 * i, 3 * i + 2, i % 2};
    ref.attr.run_count = RUNS;
    ref.call.runs = runs;
    optest_copy(&cuda, &ref);
    cuda.call.runs = runs;
    optest_run(&ref, &sh_kernels_ref, 1);
    optest_device_run(&cuda, &table);
    for (int o = 0; o < 3; o++)
        optest_close(&ref, &cuda, o, 64);
    for (int o = 0; o < 3; o++)
        for (int i = 2; i < N; i += 3)
            assert_true(optest_get(&ref.call.out[o], i) == optest_get(&cuda.call.out[o], i));
    optest_end(&ref);
    optest_end(&cuda);
}

/* A NaN, an Inf or a huge number among ordinary ones comes out as in the reference. */
static void check_survives(enum sh_op_kind kind, enum sh_dtype type, int64_t in_len, int64_t out_len, double odd)
{
    struct optest t;
    const struct sh_op_info *info = sh_op_info(kind);
    optest_begin(&t, kind);
    for (int i = 0; i < info->n_in; i++)
        optest_in(&t, i, type, DIMS(2, i == info->n_in - 1 ? in_len : out_len));
    optest_set(&t.call.in[info->n_in - 1], 5, odd);
    optest_out(&t, 0, type, DIMS(2, info->n_in == 1 ? out_len : in_len));

    struct optest ref;
    optest_copy(&ref, &t);
    optest_run(&ref, &sh_kernels_ref, 1);
    optest_device_run(&t, &table);
    optest_close(&ref, &t, 0, 256);
    optest_end(&ref);
    optest_end(&t);
}

/* Any stretch of a stream, to any address, as the CPU makes it; and nothing around it. */
static void check_initial(int64_t first, int64_t n, uint64_t key, int shift, bool halves)
{
    enum { MOST = 1032 };
    float want[MOST], found[MOST];
    size_t bytes = (size_t)(n + 2) * sizeof *found;
    float *device = device_alloc(bytes, (size_t)shift * sizeof *found);
    struct sh_floats out = sh_floats_in(device, n + 2, halves), here = sh_floats_in(found, n + 2, halves);

    assert_true(n + 2 <= MOST);
    memset(found, 0x11, bytes);
    device_put(device, found, bytes);
    assert_int_equal(sh_cuda_fill_normal(key, first, n, 0.02f, sh_floats_at(out, 1), NULL), SH_OK);
    device_get(found, device, bytes);
    device_free(device);
    sh_rng_fill_normal(key, first, n, 0.02f, want);
    for (int64_t i = -1; i <= n; i++) {
        float value, outside = sh_floats_join(0x1111, 0x1111);
        sh_floats_get(sh_floats_at(here, i + 1), 1, &value);
        assert_memory_equal(&value, i < 0 || i == n ? &outside : &want[i], sizeof value);
    }
}

static void initial_values(void **state)
{
    static const int64_t firsts[] = {0, 1, 7, 4000000000, (int64_t)1 << 40};
    (void)state;
    for (int i = 0; i < 5 * n_lengths; i++) {
        int64_t n = lengths[i % n_lengths] < 1030 ? lengths[i % n_lengths] : 1030, first = firsts[i / n_lengths];
        uint64_t key = sh_rng_key((uint64_t)i, "model.norm.weight");
        check_initial(first, n, key, i % 4, false);
        check_initial(first, n, key, i % 4, true);
    }
}

/* Sums of parts, of any length and place, as the CPU makes them. */
static void check_mixsum(int64_t n, int shift, bool halves)
{
    enum { MOST = 2 * SH_MIXSUM_PART + 100 };
    static float memory[MOST];
    uint64_t found[3] = {1, 1, 1}, place = sh_mix64((uint64_t)n), *sums = (uint64_t *)device_alloc(sizeof found, 0);
    float *device = device_alloc((size_t)n * sizeof *memory + 4, (size_t)shift * sizeof *memory);
    struct sh_floats here = sh_floats_in(memory, n, halves);

    assert_true(n <= MOST);
    for (uint32_t i = 0; i < (uint32_t)n; i++)
        memcpy(&memory[i], &(uint32_t){i * 2654435761u}, sizeof *memory);
    device_put(device, memory, (size_t)n * sizeof *memory);
    device_put(sums, found, sizeof found);
    assert_int_equal(sh_cuda_mixsum(sh_floats_in(device, n, halves), n, place, sums, NULL), SH_OK);
    device_get(found, sums, sizeof found);
    device_free(device);
    device_free(sums);
    for (int64_t at = 0, i = 0; i < 3; i++, at += SH_MIXSUM_PART) {
        int64_t left = n - at < SH_MIXSUM_PART ? n - at : SH_MIXSUM_PART;

        assert_true(found[i] == (left <= 0 ? 1 : sh_mixsum(sh_floats_at(here, at), left, place + (uint64_t)at * SH_MIXSUM_STEP)));
    }
}

static void mixsum(void **state)
{
    static const int64_t counts[] = {0, 1, 3, 4, 31, 1024, 5000, SH_MIXSUM_PART, SH_MIXSUM_PART + 1, 2 * SH_MIXSUM_PART + 96};
    (void)state;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        for (int shift = 0; shift < 2; shift++) {
            check_mixsum(counts[i], shift, false);
            check_mixsum(counts[i], shift, true);
        }
}

static uint64_t take_slot(uint64_t *slots)
{
    uint64_t found[2];

    assert_int_equal(sh_cuda_take_slots(slots, 2, NULL), SH_OK);
    device_get(found, slots, sizeof found);
    assert_int_equal(found[0], 0);
    return found[1];
}

/* n numbers with `bad` of them not finite, the largest among the others; the count, and that a second look begins anew. */
static void check_damage(int64_t n, bool halves, size_t shift)
{
    enum { MOST = 5000 };
    static float host[MOST];
    float *room = sh_calloc((size_t)n + 1, sizeof *room);
    struct sh_floats here = sh_floats_in(room, n, halves), x;
    size_t bytes = (size_t)n * sizeof(float);
    char *device = device_alloc(bytes, shift);
    uint64_t *slots = device_alloc(2 * sizeof *slots, 0), bad = 0;

    assert_true(n <= MOST);
    for (int64_t i = 0; i < n; i++) {
        static const float odd[] = {FLT_MAX, -FLT_MAX, INFINITY, -INFINITY, NAN, 0};
        host[i] = odd[sh_mix64((uint64_t)i + 1) % 6];
        bad += !isfinite(host[i]);
    }
    sh_floats_put(here, n, host);
    device_put(device, room, bytes);
    x = sh_floats_in((float *)(void *)device, n, halves);
    for (int order = 0; order < OPTEST_ORDERS; order++) {
        optest_device_order(order);
        assert_int_equal(sh_cuda_count_bad(x, n, 1, NULL), SH_OK);
        assert_int_equal(take_slot(slots), bad);
    }
    optest_device_order(0);
    device_free(slots);
    device_free(device);
    free(room);
}

/* As the comment of the kernel says it. */
static uint64_t sum_words(const unsigned char *x, int64_t bytes)
{
    uint64_t sum = 0, word;

    for (int64_t i = 0; i < (bytes + 7) / 8; i++) {
        memcpy(&word, x + 8 * i, bytes - 8 * i < 8 ? 0 : 8);
        if (bytes - 8 * i < 8)
            word = 0;
        for (int64_t b = 8 * i; bytes - 8 * i < 8 && b < bytes; b++)
            word = word << 8 | x[b];
        sum += sh_mix64(word ^ sh_mix64((uint64_t)i + 1));
    }
    return sum;
}

static void check_sum(int64_t bytes)
{
    unsigned char *host = sh_calloc((size_t)bytes + 1, 1);
    void *device = device_alloc((size_t)bytes, 0);
    uint64_t *slots = device_alloc(2 * sizeof *slots, 0);

    for (int64_t i = 0; i < bytes; i++)
        host[i] = (unsigned char)sh_mix64((uint64_t)i + 1);
    device_put(device, host, (size_t)bytes);
    for (int order = 0; order < OPTEST_ORDERS; order++) {
        optest_device_order(order);
        assert_int_equal(sh_cuda_sum_words(device, bytes, 1, NULL), SH_OK);
        assert_true(take_slot(slots) == sum_words(host, bytes));
    }
    optest_device_order(0);
    device_free(slots);
    device_free(device);
    free(host);
}

static void damage(void **state)
{
    static const int64_t n[] = {0, 1, 3, 4, 64, 1023, 5000};

    (void)state;
    for (size_t i = 0; i < sizeof n / sizeof *n; i++) {
        check_damage(n[i], false, 0);
        check_damage(n[i], true, 0);
        check_damage(n[i], false, 4);
        check_sum(n[i]);
        check_sum(8 * n[i] + 2);
    }
}

static void not_finite(void **state)
{
    (void)state;
    static const double odd[] = {NAN, INFINITY, -INFINITY, 1e20, -1e20, 100, -100};
    optest_seed(8);
    for (size_t i = 0; i < 2 * sizeof odd / sizeof *odd; i++) {
        check_survives(SH_OP_GELU, acts[i % 2], 33, 33, odd[i / 2]);
        check_survives(SH_OP_GELU_BWD, acts[i % 2], 33, 33, odd[i / 2]);
        check_survives(SH_OP_SWIGLU, acts[i % 2], 66, 33, odd[i / 2]);
        check_survives(SH_OP_SWIGLU_BWD, acts[i % 2], 66, 33, odd[i / 2]);
        check_survives(SH_OP_ADD, acts[i % 2], 33, 33, odd[i / 2]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norm),   cmocka_unit_test(norm_refuses), cmocka_unit_test(embed),
        cmocka_unit_test(embed_outside), cmocka_unit_test(rope),  cmocka_unit_test(rope_table),
        cmocka_unit_test(act),    cmocka_unit_test(bias),         cmocka_unit_test(bias_behind),  cmocka_unit_test(add_norm),
        cmocka_unit_test(vector),
        cmocka_unit_test(damage), cmocka_unit_test(exact),  cmocka_unit_test(exact_rounds), cmocka_unit_test(adamw),
        cmocka_unit_test(adamw_in_halves), cmocka_unit_test(adamw_has_many_runs), cmocka_unit_test(not_finite),
        cmocka_unit_test(initial_values), cmocka_unit_test(mixsum),
    };
    if (!optest_device_there())
        return 0;
    if (getenv("SHERD_FEW_SHAPES"))
        n_lengths = n_matrices = 3;
    return cmocka_run_group_tests_name("cuda_elem", tests, NULL, NULL);
}
