/* Sequences that continue from a cache: rows in which some, all or none of the tokens are valid, at positions
 * anywhere in the cache. And sinks, for which such attention too gives its sums. */
#include "tests/op/elem.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* B, T, H, K, D, S: a single token, one with many keys, uneven prompts, keys around the blocks' edges. */
static const int shapes[][6] = {
    {1, 1, 1, 1, 2, 1},    {3, 1, 4, 2, 6, 40},    {2, 5, 6, 1, 64, 9},    {1, 1, 8, 2, 128, 700},
    {4, 7, 3, 3, 33, 258}, {2, 70, 4, 2, 16, 300}, {1, 3, 2, 1, 256, 131}, {1, 2, 70, 1, 8, 257},
};
enum { SHAPES = sizeof shapes / sizeof *shapes, FEW = 3 };

/* How many of them are tried. */
static int n_shapes(void)
{
    return elem.few ? FEW : SHAPES;
}

#define acts ((const enum sh_dtype[]){SH_F32, elem.half ? SH_F16 : SH_BF16})

static void begin(struct optest *t, enum sh_op_kind kind, const int *s)
{
    optest_begin(t, kind);
    t->attr.attn.heads = s[2];
    t->attr.attn.kv_heads = s[3];
    t->attr.attn.head_dim = s[4];
    t->attr.attn.scale = 1.0f / sqrtf((float)s[4]);
}

static int64_t row_of(const int *s)
{
    return (int64_t)(s[2] + 2 * s[3]) * s[4];
}

/* Neighbouring positions from a random one on, of which as many are valid as the sequence takes. */
static void put_positions(struct optest *t, int in, const int *s)
{
    optest_in_ints(t, in, 0, 1, DIMS(s[0], s[1]));
    for (int64_t b = 0; b < s[0]; b++) {
        int64_t first = optest_int(0, s[5] - s[1] + 1 > 1 ? s[5] - s[1] + 1 : 1);
        for (int64_t i = 0; i < s[1]; i++)
            optest_set(&t->call.in[in], b * s[1] + i, (double)(first + i < s[5] ? first + i : s[5] - 1));
    }
}

/* The first row has all its tokens, the second none, the others some. */
static void put_counts(struct optest *t, int in, const int *s)
{
    optest_in_ints(t, in, 0, s[1] + 1, DIMS(s[0]));
    optest_set(&t->call.in[in], 0, s[1]);
    if (s[0] > 1)
        optest_set(&t->call.in[in], 1, 0);
}

/* Rows of a longer table, in any order. */
void elem_rope_at(void **state)
{
    (void)state;
    optest_seed(31);
    for (int i = elem.half; i < 2 * n_shapes(); i += 1 + elem.half) {
        const int *s = shapes[i / 2];
        struct optest t;
        if (s[4] % 2 || s[1] > s[5])
            continue;
        begin(&t, SH_OP_ROPE, s);
        optest_in(&t, 0, acts[i % 2], DIMS(s[0], s[1], row_of(s)));
        optest_in(&t, 1, SH_F32, DIMS(s[5], s[4]));
        put_positions(&t, 3, s);
        optest_out(&t, 0, acts[i % 2], DIMS(s[0], s[1], row_of(s)));
        elem_check(&t, TERMS(16));
    }
}

/* Copies the rows and touches nothing next to them. */
void elem_kv_put(void **state)
{
    (void)state;
    optest_seed(32);
    for (int i = elem.half; i < 2 * n_shapes(); i += 1 + elem.half) {
        const int *s = shapes[i / 2];
        struct optest t;
        begin(&t, SH_OP_KV_PUT, s);
        optest_in(&t, 0, acts[i % 2], DIMS(s[0], s[1], row_of(s)));
        put_positions(&t, 1, s);
        put_counts(&t, 2, s);
        optest_out(&t, 0, acts[i % 2], DIMS(s[0], s[5], 2 * s[3] * s[4]));
        optest_add_to(&t, 0);
        elem_check(&t, TERMS(0));
    }
}

/* A score is a sum of D products, the weights of a query sum to 1 over its keys. sums: for a sink. */
static void check_attention(enum sh_dtype act, const int *s, int window, float cap, bool sums)
{
    struct optest t;
    begin(&t, SH_OP_ATTENTION_CACHE, s);
    t.attr.attn.window = window;
    t.attr.attn.cap = cap;
    optest_in(&t, 0, act, DIMS(s[0], s[1], row_of(s)));
    optest_in(&t, 1, act, DIMS(s[0], s[5], 2 * s[3] * s[4]));
    put_positions(&t, 2, s);
    put_counts(&t, 3, s);
    optest_out(&t, 0, act, DIMS(s[0], s[1], s[2] * s[4]));
    if (sums)
        optest_out(&t, 1, SH_F32, DIMS(s[0], s[2], s[1]));
    elem_check(&t, TERMS(s[4] + s[5], 4.0 * (s[4] + s[5])));
}

void elem_attention_cache(void **state)
{
    (void)state;
    optest_seed(33);
    for (int i = elem.half; i < 2 * n_shapes(); i += 1 + elem.half) {
        const int *s = shapes[i / 2];
        check_attention(acts[i % 2], s, 0, 0, false);
        check_attention(acts[i % 2], s, 1 + s[5] / 3, 0, true);
    }
}

void elem_capped_cache(void **state)
{
    (void)state;
    optest_seed(35);
    for (int i = 0; i < 2 * n_shapes(); i++)
        check_attention(acts[i % 2], shapes[i / 2], i % 3 ? 1 + shapes[i / 2][5] / 3 : 0, 0.75f, i % 3 == 1);
}

void elem_pick(void **state)
{
    (void)state;
    optest_seed(34);
    for (int i = elem.half; i < 2 * n_shapes(); i += 1 + elem.half) {
        const int *s = shapes[i / 2];
        struct optest t;
        optest_begin(&t, SH_OP_PICK);
        optest_in(&t, 0, acts[i % 2], DIMS(s[0], s[1], s[4]));
        put_counts(&t, 1, s);
        optest_out(&t, 0, acts[i % 2], DIMS(s[0], s[4]));
        elem_check(&t, TERMS(0));
    }
}

/* Of B, T, H, D: short heads, of which a warp has several rows; one longer than a warp; more rows than parts. */
static const int sunk[][4] = {{2, 5, 3, 8}, {1, 33, 4, 64}, {3, 1, 1, 1300}, {1, 1, 7, 5}, {3, 701, 2, 24}};

static void begin_sink(struct optest *t, enum sh_op_kind kind, const int *s)
{
    optest_begin(t, kind);
    t->attr.attn.heads = s[2];
    t->attr.attn.head_dim = s[3];
}

/* The first query has no keys. */
static void check_sink(enum sh_dtype act, const int *s)
{
    struct optest t;
    begin_sink(&t, SH_OP_SINK, s);
    optest_in(&t, 0, act, DIMS(s[0], s[1], s[2] * s[3]));
    optest_in(&t, 1, SH_F32, DIMS(s[0], s[2], s[1]));
    optest_scale(&t.call.in[1], 3);
    optest_in(&t, 2, act, DIMS(s[2]));
    optest_set(&t.call.in[1], 0, -INFINITY);
    for (int d = 0; d < s[3]; d++)
        optest_set(&t.call.in[0], d, 0);
    optest_out(&t, 0, act, DIMS(s[0], s[1], s[2] * s[3]));
    optest_out(&t, 1, SH_F32, DIMS(s[0], s[2], s[1]));
    elem_check(&t, TERMS(8, 32));
}

/* No sink is larger than a sum with it. */
static void check_sink_bwd(enum sh_dtype act, const int *s, bool add)
{
    struct optest t;
    begin_sink(&t, SH_OP_SINK_BWD, s);
    for (int i = 0; i < 2; i++)
        optest_in(&t, i, act, DIMS(s[0], s[1], s[2] * s[3]));
    optest_in(&t, 2, SH_F32, DIMS(s[0], s[2], s[1]));
    for (int64_t i = 0; i < optest_elems(&t.call.in[2]); i++)
        optest_set(&t.call.in[2], i, optest_get(&t.call.in[2], i) + 2);
    optest_in(&t, 3, act, DIMS(s[2]));
    optest_out(&t, 0, SH_F32, DIMS(s[2]));
    if (add)
        optest_add_to(&t, 0);
    elem_check(&t, TERMS(8.0 * s[0] * s[1] * s[3]));
}

void elem_sink(void **state)
{
    (void)state;
    optest_seed(36);
    for (int i = elem.half; i < 2 * (elem.few ? FEW : (int)(sizeof sunk / sizeof *sunk)); i += 1 + elem.half) {
        check_sink(acts[i % 2], sunk[i / 2]);
        check_sink_bwd(acts[i % 2], sunk[i / 2], false);
        check_sink_bwd(acts[i % 2], sunk[i / 2], true);
    }
}
