#include "tests/op/elem.h"

#include "src/base/number/nf4.h"
#include "src/base/number/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ACTS = 2 };

/* Types of activations; `half` is for a second time, when float32 has been tested. */
#define acts ((const enum sh_dtype[ACTS]){SH_F32, elem.half ? SH_F16 : SH_BF16})

struct elem elem;

static void same_outputs(const struct optest *a, const struct optest *b)
{
    for (int o = 0; o < SH_OP_MAX_OUT; o++)
        if (a->call.out[o].data)
            optest_same(a, b, o);
}

static bool may_alias(const struct optest *t)
{
    const struct sh_op_info *info = sh_op_info(t->call.kind);
    return info->inplace_in >= 0 && t->call.in[info->inplace_in].data && t->call.out[info->inplace_out].data;
}

enum variant { SECOND_WAY, THIRD_WAY, SHIFTED, IN_PLACE, VARIANTS };

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
    elem.run(&t, elem.table, v == SECOND_WAY || v == IN_PLACE ? 1 : v == THIRD_WAY ? 2 : 0);
    same_outputs(one, &t);
    optest_end(&t);
}

/* Runs with few shapes look for races between threads, which show in any thread order, so they skip the variants of
 * thread order. */
void elem_variants(const struct optest *before, const struct optest *one)
{
    for (int v = elem.few ? SHIFTED : 0; v < VARIANTS; v++)
        run_variant(before, one, (enum variant)v);
}

void elem_check(struct optest *before, const double terms[SH_OP_MAX_OUT])
{
    struct optest ref, one;
    optest_copy(&ref, before);
    optest_copy(&one, before);
    optest_run(&ref, &sh_kernels_ref, 1);
    elem.run(&one, elem.table, 0);
    for (int o = 0; o < SH_OP_MAX_OUT; o++) {
        if (!ref.call.out[o].data)
            continue;
        if (terms[o] == 0)
            optest_same(&ref, &one, o);
        else if (ref.call.out[o].dtype == SH_F64) /* positive numbers summed in f64, each time in a different order */
            optest_within(&ref, &one, o, 0, terms[o] * 0x1p-53);
        else
            optest_close(&ref, &one, o, terms[o]);
    }
    elem_variants(before, &one);
    optest_end(&ref);
    optest_end(&one);
    optest_end(before);
}

static void check_norm(enum sh_dtype act, int64_t N, int64_t C, bool rms, bool bias, bool plus_one)
{
    struct optest t;
    optest_begin(&t, SH_OP_NORM);
    t.attr.norm.rms = rms;
    t.attr.norm.plus_one = plus_one;
    t.attr.norm.eps = 1e-2f;
    optest_in(&t, 0, act, DIMS(N, C));
    optest_in(&t, 1, act, DIMS(C));
    if (bias)
        optest_in(&t, 2, act, DIMS(C));
    optest_out(&t, 0, act, DIMS(N, C));
    optest_out(&t, 1, SH_F32, DIMS(N));
    if (!rms)
        optest_out(&t, 2, SH_F32, DIMS(N));
    elem_check(&t, TERMS(64, 64, 64));
}

/* rstd is up to 1/sqrt(eps) = 10 for rows of one element; dw and db are sums over N rows. */
static void check_norm_bwd(enum sh_dtype act, int64_t N, int64_t C, bool rms, bool all, bool frozen, bool plus_one)
{
    struct optest t;
    optest_begin(&t, SH_OP_NORM_BWD);
    t.attr.norm.rms = rms;
    t.attr.norm.plus_one = plus_one;
    optest_in(&t, 0, act, DIMS(N, C));
    optest_in(&t, 1, act, DIMS(N, C));
    optest_in(&t, 2, act, DIMS(C));
    optest_in(&t, 3, SH_F32, DIMS(N));
    if (!rms)
        optest_in(&t, 4, SH_F32, DIMS(N));
    if (all)
        optest_in(&t, 5, act, DIMS(N, C));
    optest_out(&t, 0, act, DIMS(N, C));
    if (!frozen)
        optest_out(&t, 1, SH_F32, DIMS(C));
    if (all && !frozen) {
        optest_out(&t, 2, SH_F32, DIMS(C));
        optest_add_to(&t, 1);
        optest_add_to(&t, 2);
    }
    elem_check(&t, TERMS(400, 8 * (double)N, 2 * (double)N));
}

void elem_norm(void **state)
{
    (void)state;
    optest_seed(1);
    for (int m = 0; m < elem.n_matrices; m++) {
        for (int a = elem.half; a < ACTS; a++) {
            for (int kind = 0; kind < 5; kind++) { /* the last: Gemma's */
                check_norm(acts[a], elem.matrices[m][0], elem.matrices[m][1], kind % 4 != 2 && kind, kind & 2,
                           kind == 4);
                check_norm_bwd(acts[a], elem.matrices[m][0], elem.matrices[m][1], kind % 4 != 2 && kind, kind & 2,
                               false, kind == 4);
            }
            check_norm_bwd(acts[a], elem.matrices[m][0], elem.matrices[m][1], a, true, true, false);
        }
    }
}

struct qk_shape {
    int64_t N;
    int heads, kv_heads, head_dim;
    bool wide, plus_one; /* a weight for all heads; 1 + w */
};

static void begin_qk_norm(struct optest *t, enum sh_op_kind kind, enum sh_dtype act, struct qk_shape s, int weights)
{
    optest_begin(t, kind);
    t->attr.qk.heads = s.heads;
    t->attr.qk.kv_heads = s.kv_heads;
    t->attr.qk.head_dim = s.head_dim;
    t->attr.qk.plus_one = s.plus_one;
    t->attr.qk.eps = 1e-2f;
    for (int i = 0; i < weights; i++)
        optest_in(t, i, act, DIMS(s.N, (int64_t)(s.heads + 2 * s.kv_heads) * s.head_dim));
    optest_in(t, weights, act, DIMS((int64_t)(s.wide ? s.heads : 1) * s.head_dim));
    optest_in(t, weights + 1, act, DIMS((int64_t)(s.wide ? s.kv_heads : 1) * s.head_dim));
    optest_out(t, 0, act, DIMS(s.N, (int64_t)(s.heads + 2 * s.kv_heads) * s.head_dim));
}

static void check_qk_norm(enum sh_dtype act, struct qk_shape s, bool add, bool frozen)
{
    int64_t groups = s.wide ? 2 : s.heads + s.kv_heads, most = s.N * (s.wide ? 1 : s.heads);
    struct optest t;

    begin_qk_norm(&t, SH_OP_QK_NORM, act, s, 1);
    optest_out(&t, 1, SH_F32, DIMS(s.N, groups));
    elem_check(&t, TERMS(64, 64));

    begin_qk_norm(&t, SH_OP_QK_NORM_BWD, act, s, 2);
    optest_in(&t, 4, SH_F32, DIMS(s.N, groups));
    for (int o = 1; o < 3 && !frozen; o++) {
        optest_out(&t, o, SH_F32, t.call.in[1 + o].ndim, t.call.in[1 + o].dim);
        if (add)
            optest_add_to(&t, o);
    }
    elem_check(&t, TERMS(400, 8 * (double)most, 8 * (double)most));
}

/* Heads of one element, heads around the vectors of a GPU, more rows than parts of a sum, wide rows. */
void elem_qk_norm(void **state)
{
    (void)state;
    static const struct qk_shape shapes[] = {{1, 1, 1, 1, false, false},   {3, 4, 2, 6, false, true},
                                             {70, 3, 1, 16, false, false}, {5, 33, 3, 64, false, false},
                                             {2, 2, 2, 130, false, true},  {3, 4, 2, 6, true, false},
                                             {66, 3, 1, 8, true, true},    {2, 16, 4, 128, true, false}};
    optest_seed(10);
    for (size_t s = 0; s < (elem.few ? 3 : sizeof shapes / sizeof *shapes); s++)
        for (int a = elem.half; a < ACTS; a++)
            for (int kind = 0; kind < 3; kind++)
                check_qk_norm(acts[a], shapes[s], kind == 1, kind == 2);
}

/* Norms of all heads together, of which three other ranks have some too: what is given is the mean of all. */
static void begin_elsewhere(struct optest *t, enum sh_op_kind kind, enum sh_dtype act, struct qk_shape s)
{
    bool backward = kind == SH_OP_QK_NORM_BWD;
    int mean = backward ? 5 : 3;

    begin_qk_norm(t, kind, act, s, backward ? 2 : 1);
    optest_in(t, mean, SH_F32, DIMS(s.N, 2));
    if (!backward) {
        optest_out(t, 1, SH_F32, DIMS(s.N, 2));
        for (int64_t i = 0; i < 2 * s.N; i++)
            optest_set(&t->call.in[mean], i, fabs(optest_get(&t->call.in[mean], i)));
        return;
    }
    optest_in(t, 4, SH_F32, DIMS(s.N, 2));
    for (int o = 1; o < 3; o++)
        optest_out(t, o, SH_F32, t->call.in[1 + o].ndim, t->call.in[1 + o].dim);
}

/* This rank's part of the means of squares, which have no weights, or of products with weights. */
static void check_means(enum sh_dtype act, struct qk_shape s, bool weights)
{
    struct optest t;

    optest_begin(&t, SH_OP_QK_MEANS);
    t.attr.qk.heads = s.heads;
    t.attr.qk.kv_heads = s.kv_heads;
    t.attr.qk.head_dim = s.head_dim;
    t.attr.qk.q_width = s.heads * s.head_dim;
    t.attr.qk.k_width = s.kv_heads * s.head_dim;
    t.attr.qk.plus_one = s.plus_one;
    t.attr.qk.ranks = 4;
    for (int i = 0; i < 2; i++)
        optest_in(&t, i, act, DIMS(s.N, (int64_t)(s.heads + 2 * s.kv_heads) * s.head_dim));
    if (weights) {
        optest_in(&t, 2, act, DIMS(t.attr.qk.q_width));
        optest_in(&t, 3, act, DIMS(t.attr.qk.k_width));
    }
    optest_out(&t, 0, SH_F32, DIMS(s.N, 2));
    elem_check(&t, TERMS(64));
}

/* Rows that fill vectors and those that do not, less than a warp reads at a time and more. */
void elem_qk_elsewhere(void **state)
{
    (void)state;
    static const struct qk_shape shapes[] = {
        {37, 3, 2, 10, true, true}, {1, 1, 1, 1, true, false}, {9, 4, 2, 16, true, false}, {3, 16, 4, 128, true, true}};
    struct optest t;

    optest_seed(12);
    for (size_t s = 0; s < (elem.few ? 2 : sizeof shapes / sizeof *shapes); s++)
        for (int a = elem.half; a < ACTS; a++) {
            check_means(acts[a], shapes[s], false);
            check_means(acts[a], shapes[s], true);
            begin_elsewhere(&t, SH_OP_QK_NORM, acts[a], shapes[s]);
            elem_check(&t, TERMS(64, 64));
            begin_elsewhere(&t, SH_OP_QK_NORM_BWD, acts[a], shapes[s]);
            elem_check(&t, TERMS(400, 8 * (double)shapes[s].N, 8 * (double)shapes[s].N));
        }
}

/* Tokens; `common` in 256 of them are the same one, as in text. */
static void add_tokens(struct optest *t, int i, int64_t V, int64_t B, int64_t T, int common)
{
    optest_in_ints(t, i, 0, V, DIMS(B, T));
    for (int64_t k = 0; k < B * T; k++)
        if (optest_int(0, 256) < common)
            optest_set(&t->call.in[i], k, (double)(V / 3));
}

/* Documents of random lengths: for each place, the first position of its document. */
static void add_docs(struct optest *t, int i, int64_t B, int64_t T)
{
    optest_in_ints(t, i, 0, 1, DIMS(B, T));
    for (int64_t k = 0, first = 0; k < B * T; k++) {
        first = k % T == 0 || optest_int(0, 4) == 0 ? k % T : first;
        optest_set(&t->call.in[i], k, (double)first);
    }
}

/* Words may be spread over ranks: this one has V of about twice as many, from the middle of its neighbours' on. */
static int64_t words_of_ranks(struct optest *t, int64_t V, bool spread)
{
    t->attr.part.first = spread ? V / 3 : 0;
    t->attr.part.all = spread ? 2 * V + 1 : 0;
    return spread ? 2 * V + 1 : V;
}

static void check_embed_bwd(enum sh_dtype act, const int64_t *s, bool add, bool tokens, bool positions, bool docs,
                            bool spread)
{
    int64_t B = s[0], T = s[1], C = s[2], V = s[3];
    struct optest t;
    optest_begin(&t, SH_OP_EMBED_BWD);
    optest_in(&t, 0, act, DIMS(B, T, C));
    add_tokens(&t, 1, words_of_ranks(&t, V, spread), B, T, (int)s[4]);
    if (docs)
        add_docs(&t, 2, B, T);
    if (tokens)
        optest_out(&t, 0, SH_F32, DIMS(V, C));
    if (positions)
        optest_out(&t, 1, SH_F32, DIMS(T + 2, C));
    for (int o = 0; o < 2 && add; o++)
        if (t.call.out[o].data)
            optest_add_to(&t, o);
    elem_check(&t, TERMS((double)(B * T), (double)(docs ? B * T : B)));
}

static void check_embed(enum sh_dtype act, const int64_t *s, bool positions, bool docs, bool spread)
{
    int64_t B = s[0], T = s[1], C = s[2], V = s[3];
    struct optest t;
    optest_begin(&t, SH_OP_EMBED);
    add_tokens(&t, 0, words_of_ranks(&t, V, spread), B, T, (int)s[4]);
    optest_in(&t, 1, act, DIMS(V, C));
    if (positions)
        optest_in(&t, 2, act, DIMS(T + 2, C));
    if (docs)
        add_docs(&t, 3, B, T);
    optest_out(&t, 0, act, DIMS(B, T, C));
    elem_check(&t, TERMS(4));
}

static void embed_in_all_ways(enum sh_dtype act, const int64_t *shape)
{
    for (int on = elem.few; on < 2; on++) {
        check_embed(act, shape, on, false, false);
        check_embed(act, shape, on, false, true);
        check_embed_bwd(act, shape, on, true, true, false, false);
        check_embed_bwd(act, shape, on, true, false, false, true);
        check_embed_bwd(act, shape, on, on, true, true, false);
    }
    check_embed(act, shape, true, true, false);
    check_embed_bwd(act, shape, false, true, false, false, false);
    check_embed_bwd(act, shape, true, false, true, false, false);
}

/* B, T, C, V, how common one token is: alone, few, many, only that one; with more tokens than threads that scan. */
void elem_embed(void **state)
{
    (void)state;
    static const int64_t shapes[][5] = {
        {1, 1, 1, 1, 0},        {2, 17, 65, 50, 0},
        {2, 40, 8, 2050, 40}, /* a larger vocabulary than one scan block of CUDA takes */
        {3, 100, 40, 1500, 80}, {1, 300, 264, 9, 256},
        {3, 5, 1025, 2, 0}};
    optest_seed(2);
    for (size_t s = 0; s < (elem.few ? 2 : sizeof shapes / sizeof *shapes); s++)
        for (int a = elem.half; a < ACTS; a++)
            embed_in_all_ways(acts[a], shapes[s]);
    for (int a = elem.half; a < ACTS && elem.few; a++)
        check_embed_bwd(acts[a], shapes[2], true, true, true, false, false);
}

static void check_rope(enum sh_dtype act, const int *s, bool inverse, bool docs, bool pairs)
{
    int64_t B = s[0], T = s[1], D = s[4], row = (s[2] + 2 * s[3]) * D;
    struct optest t;
    optest_begin(&t, SH_OP_ROPE);
    t.attr.attn.heads = s[2];
    t.attr.attn.kv_heads = s[3];
    t.attr.attn.head_dim = s[4];
    t.attr.attn.inverse = inverse;
    t.attr.attn.pairs = pairs;
    optest_in(&t, 0, act, DIMS(B, T, row));
    optest_in(&t, 1, SH_F32, DIMS(T, s[5]));
    if (docs)
        add_docs(&t, 2, B, T);
    optest_out(&t, 0, act, DIMS(B, T, row));
    elem_check(&t, TERMS(16));
}

void elem_rope(void **state)
{
    (void)state;
    static const int shapes[][6] = {
        {1, 1, 1, 1, 2, 2},     {2, 3, 4, 2, 6, 6},   {2, 5, 33, 3, 64, 64},
        {1, 3, 8, 1, 256, 256}, {2, 2, 3, 1, 24, 24}, {1, 2, 3, 1, 1024, 1024},
        {2, 3, 4, 2, 6, 2},     {2, 5, 3, 3, 64, 16}, {1, 3, 2, 1, 80, 20}}; /* B, T, H, K, D, R */
    optest_seed(3);
    for (size_t s = 0; s < (elem.few ? 3 : sizeof shapes / sizeof *shapes); s++)
        for (int a = elem.half; a < ACTS; a++)
            for (int i = 0; i < 8; i++)
                check_rope(acts[a], shapes[s], i & 1, i & 2, i & 4);
}

/* Angles reach hundreds; cos and sin of them are computed in double, so that one rounding to f32 is all. */
void elem_rope_table(void **state)
{
    (void)state;
    static const struct sh_op_attr attrs[] = {
        {.rope.theta = 10000},
        {.rope.theta = 500000, .rope.factor = 8, .rope.low_freq = 1, .rope.high_freq = 4, .rope.original_len = 256},
        {.rope.theta = 10000, .rope.factor = 4, .rope.ramp_first = 20, .rope.ramp_last = 46, .rope.scale = 1.25},
        {.rope.theta = 10000, .rope.scale = 1.25, .rope.divisors = 64},
        {.rope.theta = 10000, .rope.turned = 16},
    };
    double divisor[64];
    for (int i = 0; i < 64; i++)
        divisor[i] = 1 + 0.25 * i;
    for (size_t i = 0; i < sizeof attrs / sizeof *attrs; i++) {
        struct optest t;
        optest_begin(&t, SH_OP_ROPE_TABLE);
        t.attr = attrs[i];
        t.call.divisors = attrs[i].rope.divisors ? divisor : NULL;
        optest_out(&t, 0, SH_F32, DIMS(1 + 300 * (int64_t)i, 128));
        elem_check(&t, TERMS(1));
    }
}

/* Inputs with deviation 3, so that they reach the flat ends of the curves. */
static void check_gelu(enum sh_op_kind forward, enum sh_op_kind backward, enum sh_dtype act, int64_t n)
{
    struct optest t;
    optest_begin(&t, forward);
    optest_in(&t, 0, act, DIMS(n));
    optest_scale(&t.call.in[0], 3);
    optest_out(&t, 0, act, DIMS(n));
    elem_check(&t, TERMS(4));

    optest_begin(&t, backward);
    optest_in(&t, 0, act, DIMS(n));
    optest_in(&t, 1, act, DIMS(n));
    optest_scale(&t.call.in[1], 3);
    optest_out(&t, 0, act, DIMS(n));
    elem_check(&t, TERMS(64));
}

static void check_gated(enum sh_op_kind forward, enum sh_op_kind backward, enum sh_dtype act, int64_t N, int64_t F)
{
    struct optest t;
    optest_begin(&t, forward);
    optest_in(&t, 0, act, DIMS(N, 2 * F));
    optest_scale(&t.call.in[0], 3);
    optest_out(&t, 0, act, DIMS(N, F));
    elem_check(&t, TERMS(64));

    optest_begin(&t, backward);
    optest_in(&t, 0, act, DIMS(N, F));
    optest_in(&t, 1, act, DIMS(N, 2 * F));
    optest_scale(&t.call.in[1], 3);
    optest_out(&t, 0, act, DIMS(N, 2 * F));
    elem_check(&t, TERMS(256));
}

void elem_act(void **state)
{
    (void)state;
    optest_seed(4);
    for (int a = elem.half; a < ACTS; a++) {
        for (int l = 0; l < elem.n_lengths; l++) {
            check_gelu(SH_OP_GELU, SH_OP_GELU_BWD, acts[a], elem.lengths[l]);
            check_gelu(SH_OP_GELU_ERF, SH_OP_GELU_ERF_BWD, acts[a], elem.lengths[l]);
            check_gelu(SH_OP_SQUARED_RELU, SH_OP_SQUARED_RELU_BWD, acts[a], elem.lengths[l]);
        }
        for (int m = 0; m < elem.n_matrices; m++) {
            check_gated(SH_OP_SWIGLU, SH_OP_SWIGLU_BWD, acts[a], elem.matrices[m][0], elem.matrices[m][1]);
            check_gated(SH_OP_GEGLU, SH_OP_GEGLU_BWD, acts[a], elem.matrices[m][0], elem.matrices[m][1]);
        }
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
    elem_check(&t, TERMS(2 * (double)N));
}

static void check_add_bias(enum sh_dtype act, int64_t N, int64_t O)
{
    struct optest t;
    optest_begin(&t, SH_OP_BIAS);
    optest_in(&t, 0, act, DIMS(N, O));
    optest_in(&t, 1, act, DIMS(O));
    optest_out(&t, 0, act, DIMS(N, O));
    elem_check(&t, TERMS(1));
}

void elem_bias(void **state)
{
    (void)state;
    optest_seed(5);
    for (int a = elem.half; a < ACTS; a++) {
        for (int m = 0; m < elem.n_matrices; m++)
            for (int add = 0; add < 2; add++)
                check_bias(acts[a], elem.matrices[m][0], elem.matrices[m][1], add);
        for (int m = 0; m < elem.n_matrices; m++)
            check_add_bias(acts[a], elem.matrices[m][0], elem.matrices[m][1]);
        check_add_bias(acts[a], 3, 1024 + 5); /* more than one piece of a row */
        check_bias(acts[a], 500, 40, true);
        check_bias(acts[a], 5 * 512 + 3, 40, false); /* several rows of a part at once, and one */
    }
}

/* Targets before, among and after this rank's words, and none; or it has the first words, and all losses. */
static void add_targets(struct optest *t, int i, int64_t N, int64_t V)
{
    t->attr.part.first = N % 2 ? V : 0;
    optest_in_ints(t, i, -2, 3 * V, DIMS(N));
    for (int64_t n = 0; n < N; n += 4)
        optest_set(&t->call.in[i], n, (double)(V + n % V));
}

static void check_loss_part(enum sh_dtype act, int64_t N, int64_t V, bool word, float cap)
{
    struct optest t;
    optest_begin(&t, SH_OP_LOSS_PART);
    t.attr.part.cap = cap;
    optest_in(&t, 0, act, DIMS(N, V));
    add_targets(&t, 1, N, V);
    optest_out(&t, 0, SH_F32, DIMS(N, 3));
    if (word)
        optest_out(&t, 1, SH_I32, DIMS(N));
    elem_check(&t, TERMS(16 + (double)V));
}

/* Every second row has equal largest logits on all ranks, of which the first counts. */
static void check_score_rest(int64_t N, int64_t V, int64_t P)
{
    struct optest t;
    optest_begin(&t, SH_OP_SCORE_REST);
    optest_in(&t, 0, SH_F32, DIMS(P, N, 3));
    for (int64_t i = 0; i < P * N; i++) {
        optest_set(&t.call.in[0], 3 * i + 1, 1 + (double)V * fabs(optest_get(&t.call.in[0], 3 * i + 1)));
        if (i % N % 2)
            optest_set(&t.call.in[0], 3 * i, 0.5);
    }
    optest_in_ints(&t, 1, 0, (int)V, DIMS(P, N));
    add_targets(&t, 2, N, V);
    optest_out(&t, 0, SH_F32, DIMS(N));
    optest_out(&t, 1, SH_I32, DIMS(N));
    elem_check(&t, TERMS(64));
}

static void check_loss_rest(enum sh_dtype act, int64_t N, int64_t V, int64_t P, bool gradient, float cap, double z)
{
    struct optest t;
    optest_begin(&t, SH_OP_LOSS_REST);
    t.attr.part.cap = cap;
    t.attr.part.squares = z;
    t.scalars.loss_scale = 0.25;
    optest_in(&t, 0, act, DIMS(N, V));
    optest_in(&t, 1, SH_F32, DIMS(P, N, 3));
    for (int64_t i = 1; i < 3 * P * N; i += 3) /* sums of exponentials */
        optest_set(&t.call.in[1], i, 1 + (double)V * fabs(optest_get(&t.call.in[1], i)));
    add_targets(&t, 2, N, V);
    optest_out(&t, 0, SH_F64, DIMS(z == 0 ? 1 : 2));
    if (gradient) {
        optest_out(&t, 1, act, DIMS(N, V));
        optest_add_to(&t, 0);
    }
    elem_check(&t, TERMS(64 + (double)N, 64));
}

/* Of words that are spread over ranks. */
void elem_loss(void **state)
{
    static const int64_t shapes[][3] = {{1, 1, 1}, {5, 33, 2}, {7, 1024 + 5, 4}, {40, 3000, 3}};

    (void)state;
    optest_seed(21);
    for (size_t s = 0; s < (elem.few ? 2 : sizeof shapes / sizeof *shapes); s++)
        for (int a = elem.half; a < ACTS; a++) {
            check_loss_part(acts[a], shapes[s][0], shapes[s][1], false, 0);
            check_loss_part(acts[a], shapes[s][0], shapes[s][1], true, 0);
            check_score_rest(shapes[s][0], shapes[s][1], shapes[s][2]);
            for (int gradient = 0; gradient < 2; gradient++)
                check_loss_rest(acts[a], shapes[s][0], shapes[s][1], shapes[s][2], gradient, 0, gradient ? 0 : 0.0625);
        }
}

/* More than one piece of a row. */
void elem_capped_loss(void **state)
{
    (void)state;
    optest_seed(36);
    for (int a = elem.half; a < ACTS; a++) {
        check_loss_part(acts[a], 6, 1024 + 5, true, 0.75f);
        check_loss_rest(acts[a], 6, 1024 + 5, 2, true, 0.75f, 0);
        check_loss_rest(acts[a], 6, 1024 + 5, 2, true, 0, 0.0625);
        check_loss_rest(acts[a], 5, 300, 3, true, 0.75f, 0.0625);
        check_loss_rest(acts[a], 5, 33, 2, false, 0.75f, 0);
    }
}

/* Heads, and elements per head. */
void elem_regroup(void **state)
{
    (void)state;
    static const int shapes[][3] = {{1, 1, 1}, {3, 4, 6}, {5, 3, 64}, {70, 2, 5}};
    optest_seed(12);
    for (int i = 0; i < 4 * ACTS * 2; i++) {
        const int *s = shapes[i / 4];
        struct optest t;
        optest_begin(&t, SH_OP_REGROUP);
        t.attr.regroup.heads = s[1];
        t.attr.regroup.head_dim = s[2];
        t.attr.regroup.inverse = i & 1;
        optest_in(&t, 0, acts[i / 2 % 2], DIMS(s[0], 3 * s[1] * s[2]));
        optest_out(&t, 0, acts[i / 2 % 2], DIMS(s[0], 3 * s[1] * s[2]));
        elem_check(&t, TERMS(0));
    }
}

/* All heads of a row, and the parts of ranks: as many key-value heads as ranks, more, fewer, none. */
void elem_heads(void **state)
{
    (void)state;
    static const struct {
        int P, B, T, H, J, K, D;
    } shapes[] = {{1, 1, 1, 1, 1, 1, 1}, {2, 3, 5, 2, 1, 2, 6}, {4, 1, 3, 1, 1, 2, 64}, {4, 2, 7, 2, 1, 1, 5},
                  {2, 2, 3, 3, 0, 0, 8}, {2, 2, 3, 4, 2, 4, 3}, {6, 1, 9, 1, 1, 2, 16}};
    optest_seed(15);
    for (int i = 0; i < (int)(sizeof shapes / sizeof *shapes) * ACTS * 2; i++) {
        int P = shapes[i / 4].P, B = shapes[i / 4].B, T = shapes[i / 4].T, H = shapes[i / 4].H, J = shapes[i / 4].J;
        int K = shapes[i / 4].K, D = shapes[i / 4].D, copies = K ? P * J / K : 1;
        enum sh_dtype act = acts[i / 2 % 2];
        bool joins = i & 1;
        struct optest t;

        optest_begin(&t, joins ? SH_OP_JOIN_HEADS : SH_OP_SPLIT_HEADS);
        t.attr.split.ranks = P, t.attr.split.heads = H, t.attr.split.kv_here = J;
        t.attr.split.kv_heads = K, t.attr.split.head_dim = D;
        (joins ? optest_in : optest_out)(&t, 0, act, DIMS(B, P, T, (H + 2 * J) * D));
        (joins ? optest_out : optest_in)(&t, 0, act, DIMS(B, T, (P * H + 2 * K) * D));
        elem_check(&t, TERMS(joins && copies > 1 ? copies : 0));
    }
}

/* Queries apart from keys and values, and pieces of sequences in the order of ranks, there and back. */
void elem_pieces(void **state)
{
    static const int shapes[][4] = {{3, 2, 5, 6}, {2, 1, 4, 64}, {1, 3, 2, 16}}; /* P, B, M and D */
    enum { H = 3, K = 2 };

    (void)state;
    optest_seed(33);
    for (int i = 0; i < (int)(sizeof shapes / sizeof *shapes) * ACTS * 4; i++) {
        int P = shapes[i / 8][0], B = shapes[i / 8][1], M = shapes[i / 8][2], D = shapes[i / 8][3], back = i & 1;
        enum sh_dtype act = acts[i / 2 % 2];
        struct optest t;

        if (i & 4) {
            optest_begin(&t, back ? SH_OP_TO_PIECES : SH_OP_FROM_PIECES);
            (back ? optest_out : optest_in)(&t, 0, act, DIMS(P, 2 * B, M, D));
            (back ? optest_in : optest_out)(&t, 0, act, DIMS(B, 2 * P * M, D));
        } else {
            optest_begin(&t, back ? SH_OP_JOIN_KV : SH_OP_SPLIT_KV);
            t.attr.attn.heads = H, t.attr.attn.kv_heads = K, t.attr.attn.head_dim = D;
            (back ? optest_out : optest_in)(&t, 0, act, DIMS(M, (H + 2 * K) * D));
            (back ? optest_in : optest_out)(&t, 0, act, DIMS(M, H * D));
            (back ? optest_in : optest_out)(&t, 1, act, DIMS(M, 2 * K * D));
        }
        elem_check(&t, TERMS(0, 0));
    }
}

/* y from one or two vectors of n, of the given types. terms 0: no rounding at all. */
static void check_vector(enum sh_op_kind kind, enum sh_dtype in, enum sh_dtype out, int64_t n, double terms)
{
    struct optest t;
    optest_begin(&t, kind);
    if (kind == SH_OP_SCALE)
        t.attr.scale.by = 45.25f;
    for (int i = 0; i < sh_op_info(kind)->n_in; i++)
        optest_in(&t, i, in, DIMS(n));
    optest_out(&t, 0, out, DIMS(n));
    if (sh_op_info(kind)->rw_out)
        optest_add_to(&t, 0);
    elem_check(&t, TERMS(terms));
}

void elem_vector(void **state)
{
    (void)state;
    optest_seed(6);
    for (int l = 0; l < elem.n_lengths; l++) {
        for (int a = 0; a < ACTS; a++) {
            check_vector(SH_OP_ADD, acts[a], acts[a], elem.lengths[l], 1);
            check_vector(SH_OP_SCALE, acts[a], acts[a], elem.lengths[l], 1);
            check_vector(SH_OP_COPY, acts[a], acts[a], elem.lengths[l], 0);
            check_vector(SH_OP_CAST, acts[a], acts[1 - a], elem.lengths[l], 0);
        }
        check_vector(SH_OP_COPY, SH_F64, SH_F64, elem.lengths[l], 0);
        check_vector(SH_OP_COPY, SH_U8, SH_U8, elem.lengths[l], 0);
        check_vector(SH_OP_ACCUMULATE, SH_F32, SH_F32, elem.lengths[l], 0);
    }
}

const enum sh_op_kind elem_updates[ELEM_UPDATES] = {SH_OP_ADAMW, SH_OP_SGD, SH_OP_LION};

int elem_written(enum sh_op_kind update)
{
    return sh_op_info(update)->n_out - 1;
}

void elem_begin_update(struct optest *t, enum sh_op_kind kind, int64_t n)
{
    optest_begin(t, kind);
    t->scalars = (struct sh_op_scalars){.lr = 1e-2f,
                                        .beta1 = 0.9f,
                                        .beta2 = 0.95f,
                                        .adam_eps = 1e-8f,
                                        .weight_decay = 0.1f,
                                        .beta1_pow = 0.81,
                                        .beta2_pow = 0.9025,
                                        .grad_scale = 0.5f};
    optest_in(t, 0, SH_F32, DIMS(n));
    for (int o = 0; o < elem_written(kind); o++) {
        optest_out(t, o, SH_F32, DIMS(n));
        optest_add_to(t, o);
    }
    for (int64_t i = 0; kind == SH_OP_ADAMW && i < n; i++)
        optest_set(&t->call.out[2], i, fabs(optest_get(&t->call.out[2], i)));
    t->attr.runs.count = 3;
    t->runs[0] = (struct sh_decay_run){.begin = 0, .end = n / 3, .decay = true};
    t->runs[1] = (struct sh_decay_run){.begin = n / 2, .end = n - n / 9 - n / 20, .decay = false};
    t->runs[2] = (struct sh_decay_run){.begin = n - n / 9 - n / 20, .end = n - n / 9, .decay = true};
}

void elem_update(void **state)
{
    (void)state;
    optest_seed(7);
    for (int i = 0; i < ELEM_UPDATES * elem.n_lengths; i++) {
        struct optest t;
        elem_begin_update(&t, elem_updates[i % ELEM_UPDATES], elem.lengths[i / ELEM_UPDATES]);
        elem_check(&t, TERMS(64, 8, 8));
    }
}

void elem_narrow_states(struct optest *t)
{
    for (int o = 1; o < elem_written(t->call.kind); o++) {
        struct sh_operand was = t->call.out[o];

        optest_out(t, o, SH_BF16, was.ndim, was.dim);
        for (int64_t i = 0; i < optest_elems(&was); i++)
            optest_set(&t->call.out[o], i, optest_get(&was, i));
        free(was.data);
    }
    t->scalars.seed = 11;
    t->scalars.update = 7;
    for (int r = 0; r < t->attr.runs.count; r++) {
        t->runs[r].tensor = sh_rng_name(r ? "b" : "a");
        t->runs[r].origin = t->runs[r].begin - 5000000001 * r;
    }
}

void elem_make_exact(struct optest *t)
{
    const struct sh_operand *out = t->call.out;

    t->scalars.beta1 = t->scalars.beta2 = 0.5f;
    t->scalars.weight_decay = 0;
    for (int64_t i = 0; i < optest_elems(&out[0]); i++) {
        optest_set(&t->call.in[0], i, (double)optest_int(-256, 256) / 32);
        optest_set(&out[1], i, (double)optest_int(-128, 128) / 64);
        if (t->call.kind == SH_OP_ADAMW)
            optest_set(&out[2], i, (double)optest_int(0, 256) / 64);
    }
}

/* If a device rounds differently to f32, the same random bits may take the value to the other neighbour in bf16. */
void elem_update_of_bf16_states(void **state)
{
    (void)state;
    optest_seed(8);
    for (int i = 0; i < ELEM_UPDATES * elem.n_lengths; i++) {
        struct optest t, exact;
        elem_begin_update(&t, elem_updates[i % ELEM_UPDATES], elem.lengths[i / ELEM_UPDATES]);
        elem_narrow_states(&t);
        optest_copy(&exact, &t);
        elem_make_exact(&exact);
        elem_check(&t, TERMS(64, 8, 8));
        elem_check(&exact, TERMS(64, 0, 0));
    }
}

/* Parameters in halves get the same bits as in one array, also at addresses between vectors. */
static void check_halves(const struct optest *t, int way, int shift)
{
    struct optest whole, halves, joined;
    optest_copy(&whole, t);
    optest_split_params(&halves, t);
    optest_shift(&halves, shift);
    elem.run(&whole, elem.table, way);
    elem.run(&halves, elem.table, way);
    optest_join_params(&joined, &halves);
    for (int o = 0; o < elem_written(t->call.kind); o++)
        optest_same(&whole, &joined, o);
    optest_end(&whole);
    optest_end(&halves);
    optest_end(&joined);
}

void elem_update_in_halves(void **state)
{
    (void)state;
    optest_seed(9);
    for (int i = 0; i < ELEM_UPDATES * elem.n_lengths; i++) {
        int64_t n = elem.lengths[i / ELEM_UPDATES];
        struct optest t;
        elem_begin_update(&t, elem_updates[i % ELEM_UPDATES], n);
        if (n > 8) { /* too large for bf16, too small for a normal number, not a number */
            optest_set(&t.call.out[0], 0, 3.4028234e38);
            optest_set(&t.call.out[0], 1, -1e-44);
            if (t.call.kind != SH_OP_SGD) /* its decay makes inf - inf of it, and a NaN may get other bits */
                optest_set(&t.call.out[0], 2, -INFINITY);
        }
        check_halves(&t, 0, 0);
        check_halves(&t, 2, 3);
        check_halves(&t, 2, 5);
        optest_end(&t);
    }
}

/* A NaN, an Inf or a huge number among ordinary ones comes out as in the reference. */
static void check_survives(enum sh_op_kind kind, enum sh_dtype act, int64_t in_len, int64_t out_len, double odd)
{
    struct optest ref, device;
    const struct sh_op_info *info = sh_op_info(kind);
    optest_begin(&ref, kind);
    for (int i = 0; i < info->n_in; i++)
        optest_in(&ref, i, act, DIMS(2, i == info->n_in - 1 ? in_len : out_len));
    optest_set(&ref.call.in[info->n_in - 1], 5, odd);
    optest_out(&ref, 0, act, DIMS(2, info->n_in == 1 ? out_len : in_len));
    optest_copy(&device, &ref);
    optest_run(&ref, &sh_kernels_ref, 1);
    elem.run(&device, elem.table, 0);
    /* When an infinite number meets a zero, the reference has NaN; a compiler that regroups (GCC 14) may produce the
     * limit, which is finite. NaN itself must stay NaN. */
    if (isinf(odd) && isnan(optest_get(&ref.call.out[0], 5)) && isfinite(optest_get(&device.call.out[0], 5))) {
        optest_set(&ref.call.out[0], 5, 0);
        optest_set(&device.call.out[0], 5, 0);
    }
    optest_close(&ref, &device, 0, 256);
    optest_end(&ref);
    optest_end(&device);
}

void elem_not_finite(void **state)
{
    (void)state;
    static const double odd[] = {NAN, INFINITY, -INFINITY, 1e20, -1e20, 100, -100};
    optest_seed(8);
    for (size_t i = 0; i < ACTS * (sizeof odd / sizeof *odd); i++) {
        enum sh_dtype act = acts[i % ACTS];
        double x = odd[i / ACTS];
        if (elem.half && act == SH_F32)
            continue;
        check_survives(SH_OP_GELU, act, 33, 33, x);
        check_survives(SH_OP_GELU_BWD, act, 33, 33, x);
        check_survives(SH_OP_SWIGLU, act, 66, 33, x);
        check_survives(SH_OP_SWIGLU_BWD, act, 66, 33, x);
        check_survives(SH_OP_GEGLU, act, 66, 33, x);
        check_survives(SH_OP_GELU_ERF, act, 33, 33, x);
        check_survives(SH_OP_GELU_ERF_BWD, act, 33, 33, x);
        check_survives(SH_OP_GEGLU_BWD, act, 66, 33, x);
        check_survives(SH_OP_ADD, act, 33, 33, x);
    }
}

/* Give operand `to` the values of `from`. */
static void same_values(const struct sh_operand *to, const struct sh_operand *from)
{
    for (int64_t i = 0; to->data && i < optest_elems(to); i++)
        optest_set(to, i, optest_get(from, i));
}

/* A fused kind has the bits of its pair, in all variants. The fused call is ready to run; `first` and `second` have
 * its shapes, and receive its values. Frees all three. */
static void check_pair(struct optest *first, struct optest *second, struct optest *fused)
{
    const struct sh_op_info *a = sh_op_info(first->call.kind), *b = sh_op_info(second->call.kind);
    struct optest one;

    optest_copy(&one, fused);
    elem.run(&one, elem.table, 0);
    for (int i = 0; i < a->n_in; i++)
        same_values(&first->call.in[i], &fused->call.in[i]);
    for (int i = 1; i < b->n_in; i++)
        same_values(&second->call.in[i], &fused->call.in[a->n_in + i - 1]);
    for (int o = 0; o < a->n_out; o++)
        same_values(&first->call.out[o], &fused->call.out[o]);
    for (int o = 0; o < b->n_out; o++)
        same_values(&second->call.out[o], &fused->call.out[a->n_out + o]);
    elem.run(first, elem.table, 0);
    same_values(&second->call.in[0], &first->call.out[0]);
    elem.run(second, elem.table, 0);
    for (int o = 0; o < a->n_out + b->n_out; o++) {
        struct optest pair = *fused;

        pair.call.out[o] = o < a->n_out ? first->call.out[o] : second->call.out[o - a->n_out];
        if (fused->call.out[o].data)
            optest_same(&pair, &one, o);
    }
    elem_variants(fused, &one);
    optest_end(&one);
    optest_end(first);
    optest_end(second);
    optest_end(fused);
}

static void check_add_norm(enum sh_dtype act, int64_t N, int64_t C, bool rms, bool bias)
{
    struct optest add, norm, fused;

    optest_begin(&add, SH_OP_ADD);
    optest_begin(&norm, SH_OP_NORM);
    optest_begin(&fused, SH_OP_ADD_NORM);
    norm.attr.norm.rms = fused.attr.norm.rms = rms;
    norm.attr.norm.eps = fused.attr.norm.eps = 1e-2f;
    for (int i = 0; i < 2; i++) {
        optest_in(&add, i, act, DIMS(N, C));
        optest_in(&fused, i, act, DIMS(N, C));
        optest_out(&fused, i, act, DIMS(N, C));
    }
    optest_out(&add, 0, act, DIMS(N, C));
    optest_in(&norm, 0, act, DIMS(N, C));
    optest_out(&norm, 0, act, DIMS(N, C));
    for (int i = 0; i < 1 + bias; i++) {
        optest_in(&norm, 1 + i, act, DIMS(C));
        optest_in(&fused, 2 + i, act, DIMS(C));
    }
    for (int i = 0; i < 2 - rms; i++) {
        optest_out(&norm, 1 + i, SH_F32, DIMS(N));
        optest_out(&fused, 2 + i, SH_F32, DIMS(N));
    }
    check_pair(&add, &norm, &fused);
}

static void begin_norm_bwd(struct optest *t, enum sh_op_kind kind, enum sh_dtype act, int64_t N, int64_t C, bool rms,
                           bool frozen)
{
    optest_begin(t, kind);
    t->attr.norm.rms = rms;
    for (int i = 0; i < 2; i++)
        optest_in(t, i, act, DIMS(N, C));
    optest_in(t, 2, act, DIMS(C));
    optest_in(t, 3, SH_F32, DIMS(N));
    if (!rms)
        optest_in(t, 4, SH_F32, DIMS(N));
    optest_in(t, 5, act, DIMS(N, C));
    optest_out(t, 0, act, DIMS(N, C));
    for (int o = 1; o < (rms ? 2 : 3) && !frozen; o++)
        optest_out(t, o, SH_F32, DIMS(C));
}

static void begin_gelu_bwd(struct optest *t, enum sh_op_kind kind, enum sh_dtype act, int64_t N, int64_t F)
{
    optest_begin(t, kind);
    optest_in(t, 0, act, DIMS(N, F));
    optest_in(t, 1, act, DIMS(N, F));
    optest_scale(&t->call.in[1], 3);
    optest_out(t, 0, act, DIMS(N, F));
}

/* In `fused`, the bias's output follows the outputs of `first`. */
static void check_bias_behind(struct optest *first, struct optest *fused, bool add)
{
    const struct sh_operand *dx = &first->call.out[0];
    int o = sh_op_info(first->call.kind)->n_out;
    struct optest bias;

    optest_begin(&bias, SH_OP_BIAS_BWD);
    optest_in(&bias, 0, dx->dtype, DIMS(dx->dim[0], dx->dim[1]));
    optest_out(&bias, 0, SH_F32, DIMS(dx->dim[1]));
    optest_out(fused, o, SH_F32, DIMS(dx->dim[1]));
    if (add) {
        optest_add_to(&bias, 0);
        optest_add_to(fused, o);
    }
    check_pair(first, &bias, fused);
}

static bool has(enum sh_op_kind kind)
{
    return elem.table->run[kind] != NULL;
}

void elem_fused(void **state)
{
    (void)state;
    optest_seed(9);
    for (int i = 0; i < elem.n_matrices * ACTS * 4; i++) {
        enum sh_dtype act = acts[i % ACTS];
        int64_t N = elem.matrices[i / 8][0], C = elem.matrices[i / 8][1];
        bool one = i / 2 % 2, two = i / 4 % 2;
        struct optest first, fused;

        if (elem.half && act == SH_F32)
            continue;
        if (has(SH_OP_ADD_NORM))
            check_add_norm(act, N, C, one, two);
        if (has(SH_OP_NORM_BWD_BIAS)) {
            for (int frozen = 0; frozen < 2; frozen++) {
                begin_norm_bwd(&first, SH_OP_NORM_BWD, act, N, C, one, frozen);
                begin_norm_bwd(&fused, SH_OP_NORM_BWD_BIAS, act, N, C, one, frozen);
                check_bias_behind(&first, &fused, two);
            }
        }
        if (has(SH_OP_GELU_BWD_BIAS)) {
            begin_gelu_bwd(&first, SH_OP_GELU_BWD, act, N, C);
            begin_gelu_bwd(&fused, SH_OP_GELU_BWD_BIAS, act, N, C);
            check_bias_behind(&first, &fused, two);
        }
    }
}

/* Scales of blocks of random codes; one is zero, one is subnormal. */
static void fill_scales(const struct sh_operand *packed)
{
    unsigned char *block = packed->data;
    for (int64_t b = 0; b < packed->dim[0]; b++, block += SH_NF4_BLOCK_BYTES) {
        float scale = b == 1 ? 0 : b == 2 ? 1e-39f : (float)fabs(optest_normal());
        memcpy(block + SH_NF4_CODE_BYTES, &scale, sizeof scale);
    }
}

/* Three groups for each of four experts, of which one has no rows, and another one in its last group only. */
void elem_unpack_some(void **state)
{
    static const int32_t first[] = {0, 2, 2, 2, 5, 5, 5, 5, 6, 6, 6, 9, 9};
    enum { E = 4, ELEMS = 3 * 64 };
    struct optest t;

    (void)state;
    optest_seed(14);
    for (int a = elem.half; a < ACTS; a++) {
        optest_begin(&t, SH_OP_UNPACK);
        optest_in(&t, 0, SH_U8, DIMS(E * ELEMS / SH_NF4_ELEMS, SH_NF4_BLOCK_BYTES));
        fill_scales(&t.call.in[0]);
        optest_in_ints(&t, 1, 0, 1, DIMS(sizeof first / sizeof *first));
        memcpy(t.call.in[1].data, first, sizeof first);
        optest_out(&t, 0, acts[a], DIMS(E, 3, 64));
        elem_check(&t, TERMS(0));
    }
}

/* A matrix in all kinds of shapes, but always of whole blocks. */
void elem_unpack(void **state)
{
    static const int64_t shapes[][2] = {{1, 64}, {3, 64}, {64, 33}, {128, 768}, {8, 8008}};
    (void)state;
    optest_seed(13);
    for (size_t s = 0; s < (elem.few ? 3 : sizeof shapes / sizeof *shapes); s++)
        for (int a = elem.half; a < ACTS; a++) {
            struct optest t;
            optest_begin(&t, SH_OP_UNPACK);
            optest_in(&t, 0, SH_U8, DIMS(shapes[s][0] * shapes[s][1] / SH_NF4_ELEMS, SH_NF4_BLOCK_BYTES));
            fill_scales(&t.call.in[0]);
            optest_out(&t, 0, acts[a], DIMS(shapes[s][0], shapes[s][1]));
            elem_check(&t, TERMS(0));
        }
}
