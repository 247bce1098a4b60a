/* The table of operations. Letters: B batch, T sequence, N = B*T rows, C channels, H heads, K key-value heads, D head
 * dim, F feed-forward, V vocabulary, P positions, I and O inputs and outputs of a product, b blocks; in LORA P parts,
 * R rank, M columns of the stack; E experts, k chosen, M rows of experts. Additions and multiplications are counted from the formulas in kernels/ref, with an
 * exponential, a division or a root as one. */
#include "kernels/op.h"

#include "src/base/number/exact.h"
#include "src/base/number/nf4.h"
#include "kernels/shape.h"

#include <pthread.h>

/* Output 0 may take the storage of input i. Allowed only if every kernel reads an element no later than just before
 * it writes the same index. */
#define OVER(i) .inplace_in = (i), .inplace_out = 0
#define APART .inplace_in = -1, .inplace_out = -1

#define FIELD(row, field) LETTER(row, field, 0)
/* clang-format off */
#define LETTER(row, field, sign)                                                                             \
    {.name = #field, .letter = sign,                                                                         \
     .type = _Generic(((struct sh_op_attr *)0)->row.field, bool: SH_ATTR_BOOL, int: SH_ATTR_INT,             \
                      int64_t: SH_ATTR_I64, float: SH_ATTR_FLOAT, double: SH_ATTR_DOUBLE),                   \
     .at = offsetof(struct sh_op_attr, row.field)}

static const struct sh_attr_field norm_attrs[] = {FIELD(norm, eps), FIELD(norm, rms), FIELD(norm, plus_one), {0}};
static const struct sh_attr_field linear_attrs[] = {FIELD(linear, w_in_out), {0}};
static const struct sh_attr_field rotation_attrs[] = {
    LETTER(attn, heads, 'H'), LETTER(attn, kv_heads, 'K'), LETTER(attn, head_dim, 'D'), LETTER(attn, rotary_dim, 'R'),
    FIELD(attn, inverse), FIELD(attn, pairs), {0}};
static const struct sh_attr_field attention_attrs[] = {
    LETTER(attn, heads, 'H'), LETTER(attn, kv_heads, 'K'), LETTER(attn, head_dim, 'D'), FIELD(attn, scale), FIELD(attn, any_order), FIELD(attn, window), FIELD(attn, cap), {0}};
static const struct sh_attr_field rows_attrs[] = {
    LETTER(attn, heads, 'H'), LETTER(attn, kv_heads, 'K'), LETTER(attn, head_dim, 'D'), LETTER(attn, runs, 'U'),
    FIELD(attn, first[0]), FIELD(attn, first[1]), FIELD(attn, scale), FIELD(attn, window), FIELD(attn, cap), {0}};
static const struct sh_attr_field kv_attrs[] = {
    LETTER(attn, heads, 'H'), LETTER(attn, kv_heads, 'K'), LETTER(attn, head_dim, 'D'), {0}};
static const struct sh_attr_field cache_attrs[] = {
    LETTER(attn, heads, 'H'), LETTER(attn, kv_heads, 'K'), LETTER(attn, head_dim, 'D'), FIELD(attn, scale), FIELD(attn, window), FIELD(attn, cap), {0}};
static const struct sh_attr_field table_attrs[] = {FIELD(rope, theta), FIELD(rope, factor), FIELD(rope, low_freq),
                                                   FIELD(rope, high_freq), FIELD(rope, original_len), FIELD(rope, ramp_first),
                                                   FIELD(rope, ramp_last), FIELD(rope, scale), FIELD(rope, divisors), FIELD(rope, turned), {0}};
static const struct sh_attr_field qk_attrs[] = {
    LETTER(qk, heads, 'H'), LETTER(qk, kv_heads, 'K'), LETTER(qk, head_dim, 'D'), LETTER(qk, q_width, 'I'),
    LETTER(qk, k_width, 'J'), LETTER(qk, groups, 'G'), FIELD(qk, eps), FIELD(qk, plus_one), {0}};
static const struct sh_attr_field qk_means_attrs[] = {
    LETTER(qk, heads, 'H'), LETTER(qk, kv_heads, 'K'), LETTER(qk, head_dim, 'D'), LETTER(qk, q_width, 'I'),
    LETTER(qk, k_width, 'J'), FIELD(qk, plus_one), FIELD(qk, ranks), {0}};
static const struct sh_attr_field regroup_attrs[] = {
    LETTER(regroup, heads, 'H'), LETTER(regroup, head_dim, 'D'), FIELD(regroup, inverse), {0}};
static const struct sh_attr_field latent_attrs[] = {
    LETTER(latent, heads, 'H'), LETTER(latent, plain, 'P'), LETTER(latent, turned, 'R'), LETTER(latent, value, 'V'), {0}};
static const struct sh_attr_field value_attrs[] = {
    LETTER(values, heads, 'H'), LETTER(values, kv_heads, 'K'), LETTER(values, head_dim, 'D'), LETTER(values, kv_in, 'J'),
    FIELD(values, eps), {0}};
static const struct sh_attr_field split_attrs[] = {
    LETTER(split, ranks, 'P'), LETTER(split, heads, 'H'), LETTER(split, kv_here, 'J'), LETTER(split, kv_heads, 'K'),
    LETTER(split, head_dim, 'D'), {0}};
static const struct sh_attr_field delta_attrs[] = {
    LETTER(delta, key_heads, 'K'), LETTER(delta, heads, 'H'), LETTER(delta, key_dim, 'D'), LETTER(delta, value_dim, 'V'),
    FIELD(delta, eps), {0}};
static const struct sh_attr_field scan_attrs[] = {
    LETTER(delta, key_heads, 'K'), LETTER(delta, heads, 'H'), LETTER(delta, key_dim, 'D'), LETTER(delta, value_dim, 'V'),
    FIELD(delta, least), {0}};
static const struct sh_attr_field scale_attrs[] = {FIELD(scale, by), {0}};
static const struct sh_attr_field part_attrs[] = {FIELD(part, first), FIELD(part, cap), FIELD(part, squares), {0}};
static const struct sh_attr_field embed_attrs[] = {FIELD(part, first), FIELD(part, all), {0}};
static const struct sh_attr_field head_attrs[] = {FIELD(head, chunk_rows), FIELD(head, temperature), FIELD(head, alpha), FIELD(head, form),
                                                   FIELD(head, raw), FIELD(head, multi_label), FIELD(head, cap), FIELD(head, squares), {0}};
static const struct sh_attr_field logits_attrs[] = {FIELD(part, first), FIELD(part, all), FIELD(part, cap), {0}};
static const struct sh_attr_field lora_attrs[] = {
    LETTER(lora, parts, 'P'), FIELD(lora, first[0]), FIELD(lora, width[0]), FIELD(lora, first[1]), FIELD(lora, width[1]),
    FIELD(lora, first[2]), FIELD(lora, width[2]), FIELD(lora, scale), {0}};
static const struct sh_attr_field route_attrs[] = {
    LETTER(route, experts, 'E'), LETTER(route, chosen, 'k'), FIELD(route, sigmoid), FIELD(route, norm), FIELD(route, scale),
    FIELD(route, groups), FIELD(route, top_groups), FIELD(route, aux), FIELD(route, z), FIELD(route, step),
    FIELD(route, forced), {0}};
static const struct sh_attr_field wave_attrs[] = {FIELD(wave, wave), FIELD(wave, place), FIELD(wave, room), {0}};
static const struct sh_attr_field exchange_attrs[] = {
    FIELD(exchange, row_elems), FIELD(exchange, back), FIELD(exchange, others), FIELD(exchange, expected), FIELD(exchange, wave),
    FIELD(exchange, first_cut), FIELD(exchange, cuts), FIELD(exchange, sharers), FIELD(exchange, run),
    FIELD(exchange, sequences), {0}};
static const struct sh_attr_field link_attrs[] = {FIELD(link, peer), FIELD(link, micro), {0}};
static const struct sh_attr_field sink_attrs[] = {LETTER(attn, heads, 'H'), LETTER(attn, head_dim, 'D'), {0}};
static const struct sh_attr_field row_attrs[] = {
    FIELD(rows, w_in_out), FIELD(rows, expected), FIELD(rows, limit), FIELD(rows, alpha), FIELD(rows, choose), {0}};
static const struct sh_attr_field pair_attrs[] = {
    FIELD(pair, loss), FIELD(pair, beta), FIELD(pair, smoothing), FIELD(pair, gamma), FIELD(pair, sft),
    FIELD(pair, desirable), FIELD(pair, undesirable), FIELD(pair, center), {0}};
static const struct sh_attr_field run_attrs[] = {FIELD(runs, first), FIELD(runs, count), FIELD(runs, of), {0}};
static const struct sh_attr_field ortho_attrs[] = {
    FIELD(ortho, kind), FIELD(ortho, steps), FIELD(ortho, first), FIELD(ortho, count), FIELD(ortho, first_all),
    FIELD(ortho, count_all), FIELD(ortho, first_cut), FIELD(ortho, sharers), FIELD(ortho, maker), FIELD(ortho, wave),
    FIELD(ortho, origin), FIELD(ortho, most_short), FIELD(ortho, most_long), FIELD(ortho, narrow), {0}};
static const struct sh_attr_field ortho_row_attrs[] = {
    FIELD(ortho, first), FIELD(ortho, count), FIELD(ortho, first_all), FIELD(ortho, count_all), FIELD(ortho, first_cut),
    FIELD(ortho, sharers), FIELD(ortho, wave), FIELD(ortho, origin), FIELD(ortho, most_long), FIELD(ortho, first_row_cut), FIELD(ortho, row_origin), {0}};

/* As a double, for printing and for the letters of shapes; sizes are below 2^53. */
double sh_attr_value(const struct sh_op_attr *attr, const struct sh_attr_field *field)
{
    const void *at = (const char *)attr + field->at;

    switch (field->type) {
    case SH_ATTR_BOOL: return *(const bool *)at;
    case SH_ATTR_INT: return *(const int *)at;
    case SH_ATTR_I64: return (double)*(const int64_t *)at;
    case SH_ATTR_FLOAT: return (double)*(const float *)at;
    case SH_ATTR_DOUBLE: return *(const double *)at;
    }
    return 0;
}

static const struct sh_op_info rows[SH_OP_KINDS] = {
    [SH_OP_EMBED] =
        {.shape = "tokens [B,T] i32, wte [V,C] act of BTC, wpe [P>=T,C] act opt of TC, docs [B,T] i32 opt "
                  "-> x [B,T,C] act",
         .flops = "BTC", .forward = true, .attrs = embed_attrs, APART},
    [SH_OP_EMBED_BWD] =
        {.shape = "dx [B,T,C] act, tokens [B,T] i32, docs [B,T] i32 opt "
                  "-> dwte [V,C] f32 += opt of BTC, dwpe [P>=T,C] f32 += opt",
         .flops = "2BTC", .attrs = embed_attrs, APART},
    [SH_OP_NORM] =
        {.shape = "x [N,C] act, w [C] act, b [C] act opt -> y [N,C] act, rstd [N] f32, mean [N] f32 opt",
         .flops = "7NC", .forward = true, .attrs = norm_attrs, APART},
    [SH_OP_NORM_BWD] =
        {.shape = "dy [N,C] act, x [N,C] act, w [C] act, rstd [N] f32, mean [N] f32 opt, dres [N,C] act opt "
                  "-> dx [N,C] act, dw [C] f32 += opt, db [C] f32 += opt",
         .flops = "14NC", .attrs = norm_attrs, OVER(5)},
    [SH_OP_LINEAR] =
        {.shape = "x [N,I] act, w [O,I] act turns, b [O] act opt -> y [N,O] act",
         .flops = "2NIO + NO:b", .forward = true, .costly = true, .attrs = linear_attrs, APART},
    [SH_OP_LINEAR_BWD_X] =
        {.shape = "dy [N,O] act, w [O,I] act turns, dres [N,I] act opt -> dx [N,I] act",
         .flops = "2NIO", .attrs = linear_attrs, OVER(2)},
    [SH_OP_LINEAR_BWD_W] =
        {.shape = "dy [N,O] act, x [N,I] act -> dw [O,I] f32 += turns",
         .flops = "2NIO", .attrs = linear_attrs, APART},
    [SH_OP_BIAS_BWD] = {.shape = "dy [N,O] act -> db [O] f32 +=", .flops = "NO", APART},
    [SH_OP_BIAS] = {.shape = "x [N,O] act, b [O] act -> y [N,O] act", .flops = "NO", .forward = true, OVER(0)},
    [SH_OP_ROPE_TABLE] = {.shape = "-> cs [T,R] f32", .flops = "2TR", .attrs = table_attrs, APART},
    [SH_OP_ROPE] =
        {.shape = "qkv [B,T,HD+2KD] act, cs [P>=T,R] f32 of TR, docs [B,T] i32 opt, at [B,T] i32 opt -> turned [B,T,HD+2KD] act",
         .flops = "3BTHD + 6BTKD", .forward = true, .attrs = rotation_attrs, OVER(0)},
    [SH_OP_ATTENTION] =
        {.shape = "qkv [B,T,HD+2KD] act, docs [B,T] i32 opt -> o [B,T,HD] act, lse [B,H,T] f32",
         .flops = "2BHTTD + 2BHTD + 3BHTT + 3BHT", .forward = true, .costly = true, .attrs = attention_attrs, APART},
    [SH_OP_ATTENTION_BWD] =
        {.shape = "do [B,T,HD] act, qkv [B,T,HD+2KD] act, o [B,T,HD] act, lse [B,H,T] f32, docs [B,T] i32 opt "
                  "-> dqkv [B,T,HD+2KD] act",
         .flops = "5BHTTD + 5BHTD + 3BHTT + 3BHT", .attrs = attention_attrs, APART},
    [SH_OP_GELU] =
        {.shape = "x [n] act -> y [n] act",
         .flops = "9n", .forward = true, .backward = SH_OP_GELU_BWD, APART},
    [SH_OP_GELU_BWD] = {.shape = "dy [n] act, x [n] act -> dx [n] act", .flops = "17n", OVER(0)},
    [SH_OP_SWIGLU] =
        {.shape = "gu [N,2F] act -> h [N,F] act",
         .flops = "5NF", .forward = true, .backward = SH_OP_SWIGLU_BWD, APART},
    [SH_OP_SWIGLU_BWD] = {.shape = "dh [N,F] act, gu [N,2F] act -> dgu [N,2F] act", .flops = "12NF", APART},
    [SH_OP_ADD] =
        {.shape = "a [n] act, b [n] act -> y [n] act",
         .flops = "n", .forward = true, .costly = true, OVER(0)},
    [SH_OP_ADD_NORM] =
        {.shape = "a [N,C] act, b [N,C] act, w [C] act, bias [C] act opt "
                  "-> s [N,C] act, y [N,C] act, rstd [N] f32, mean [N] f32 opt",
         .flops = "8NC", .fused = true, .attrs = norm_attrs, .inplace_in = 1, .inplace_out = 1},
    [SH_OP_NORM_BWD_BIAS] =
        {.shape = "dy [N,C] act, x [N,C] act, w [C] act, rstd [N] f32, mean [N] f32 opt, dres [N,C] act opt "
                  "-> dx [N,C] act, dw [C] f32 += opt, db [C] f32 += opt, dbias [C] f32 +=",
         .flops = "15NC", .fused = true, .attrs = norm_attrs, OVER(5)},
    [SH_OP_GELU_BWD_BIAS] =
        {.shape = "dy [N,F] act, x [N,F] act -> dx [N,F] act, db [F] f32 +=",
         .flops = "18NF", .fused = true, OVER(0)},
    [SH_OP_HEAD_LOSS] =
        {.shape = "x [N,C] act, w [V,C] act, targets [N] i32, weight [N] f32 opt, words [N,K] i32 opt, "
                  "teacher [N,K] f32 opt -> loss [s] f64 +=",
         .flops = "2NCV", .forward = true, .together = true, .attrs = head_attrs, APART},
    [SH_OP_HEAD_LOSS_GRAD] =
        {.shape = "x [N,C] act, w [V,C] act, targets [N] i32, weight [N] f32 opt, words [N,K] i32 opt, "
                  "teacher [N,K] f32 opt -> loss [s] f64 +=, dx [N,C] act, dw [V,C] f32 += opt",
         .flops = "4NCV + 2NCV:dw", .together = true, .attrs = head_attrs, APART},
    [SH_OP_SCORE_REST] = {.shape = "stats [P,N,3] f32, words [P,N] i32, targets [N] i32 -> logprob [N] f32, word [N] i32",
                          .flops = "4NP", .stops = true, APART},
    [SH_OP_LOSS_PART] = {.shape = "z [N,V] act, targets [N] i32 -> stat [N,3] f32, word [N] i32 opt",
                         .flops = "4NV", .together = true, .attrs = part_attrs, APART},
    [SH_OP_LOSS_REST] =
        {.shape = "z [N,V] act, stats [P,N,3] f32, targets [N] i32 -> loss [s] f64 +=, dz [N,V] act opt",
         .flops = "4NV:dz", .together = true, .attrs = part_attrs, .inplace_in = 0, .inplace_out = 1},
    [SH_OP_HEAD_SCORE] =
        {.shape = "x [N,C] act, w [V,C] act, targets [N] i32 -> logprob [N] f32, word [N] i32, "
                  "words [N,K] i32 opt, best [N,K] f32 opt",
         .flops = "2NCV", .stops = true, .attrs = head_attrs, APART},
    [SH_OP_LOGITS] = {.shape = "x [B,T,C] act of BC, w [V,C] act -> logits [B,W] f32", .flops = "2BCV",
                      .attrs = logits_attrs, APART},
    [SH_OP_CAST] = {.shape = "a [n] float -> y [n] float", APART},
    [SH_OP_COPY] = {.shape = "a [n] any -> y [n] any", APART},
    [SH_OP_ACCUMULATE] = {.shape = "a [n] f32 -> y [n] f32 inout", .flops = "n", APART},
    [SH_OP_SUMSQ] = {.shape = "a [n] f32 -> s [22] f64 +=", .flops = "2n", APART},
    [SH_OP_EXACT_ROUND] = {.shape = "s [22] f64 -> y [1] f64", .flops = "66", APART},
    [SH_OP_ADAMW] =
        {.shape = "g [n] f32 -> p [n] master inout, m [n] state inout, v [n] state inout, r [n] i16 inout opt:bf16",
         .flops = "15n", .attrs = run_attrs, .runs = true, APART},
    [SH_OP_SGD] =
        {.shape = "g [n] f32 -> p [n] master inout, m [n] state inout, r [n] i16 inout opt:bf16",
         .flops = "7n", .attrs = run_attrs, .runs = true, APART},
    [SH_OP_LION] =
        {.shape = "g [n] f32 -> p [n] master inout, m [n] state inout, r [n] i16 inout opt:bf16",
         .flops = "11n", .attrs = run_attrs, .runs = true, APART},
    [SH_OP_ADAMW_CODED] =
        {.shape = "g [64b] f32 -> p [64b] master inout, m [b,68] u8 inout, v [b,68] u8 inout, r [64b] i16 inout opt:bf16",
         .flops = "4160b", .attrs = run_attrs, .runs = true, APART},
    [SH_OP_LION_CODED] =
        {.shape = "g [64b] f32 -> p [64b] master inout, m [b,68] u8 inout, r [64b] i16 inout opt:bf16",
         .flops = "1920b", .attrs = run_attrs, .runs = true, APART},
    [SH_OP_UNPACK] =
        {.shape = "packed [b,36] u8, first [g] i32 opt -> w [64b] master", .flops = "64b", .attrs = row_attrs, APART},
    [SH_OP_KV_PUT] =
        {.shape = "qkv [B,T,HD+2KD] act of 2BTKD, at [B,T] i32, count [B] i32 -> kv [B,S,2KD] act inout of 2BTKD",
         .attrs = cache_attrs, APART},
    [SH_OP_ATTENTION_CACHE] =
        {.shape = "qkv [B,T,HD+2KD] act of BTHD, kv [B,S,2KD] act, at [B,T] i32, count [B] i32 "
                  "-> o [B,T,HD] act, lse [B,H,T] f32 opt",
         .flops = "4BTSHD + 3BTSH", .attrs = cache_attrs, APART},
    [SH_OP_PICK] = {.shape = "x [B,T,C] act of BC, count [B] i32 -> y [B,C] act", APART},
    [SH_OP_QK_NORM] =
        {.shape = "qkv [N,HD+2KD] act, wq [I] act, wk [J] act, mean [N,2] f32 opt -> y [N,HD+2KD] act, rstd [N,G] f32",
         .flops = "5NHD + 5NKD", .forward = true, .attrs = qk_attrs, OVER(0)},
    [SH_OP_QK_NORM_BWD] =
        {.shape = "dy [N,HD+2KD] act, qkv [N,HD+2KD] act, wq [I] act, wk [J] act, rstd [N,G] f32, mean [N,2] f32 opt "
                  "-> dqkv [N,HD+2KD] act, dwq [I] f32 += opt, dwk [J] f32 += opt",
         .flops = "12NHD + 12NKD", .attrs = qk_attrs, OVER(0)},
    [SH_OP_QK_MEANS] =
        {.shape = "a [N,HD+2KD] act, b [N,HD+2KD] act, wq [I] act opt, wk [J] act opt -> mean [N,2] f32",
         .flops = "2NHD + 2NKD + NHD:wq + NKD:wk", .stops = true, .attrs = qk_means_attrs, APART},
    [SH_OP_GEGLU] =
        {.shape = "gu [N,2F] act -> h [N,F] act",
         .flops = "10NF", .forward = true, .backward = SH_OP_GEGLU_BWD, APART},
    [SH_OP_GEGLU_BWD] = {.shape = "dh [N,F] act, gu [N,2F] act -> dgu [N,2F] act", .flops = "27NF", APART},
    [SH_OP_SCALE] = {.shape = "x [n] act -> y [n] act", .flops = "n", .forward = true, .attrs = scale_attrs, OVER(0)},
    [SH_OP_LORA] =
        {.shape = "y [N,M] act, x [N,I] act, a [PR,I] act, b [O,R] act -> z [N,M] act, u [N,PR] act",
         .flops = "2NIPR + 2NOR", .forward = true, .costly = true, .attrs = lora_attrs, OVER(0)},
    [SH_OP_LORA_BWD] =
        {.shape = "dy [N,M] act, x [N,I] act, u [N,PR] act, a [PR,I] act, b [O,R] act, dres [N,I] act opt "
                  "-> dx [N,I] act opt, da [PR,I] f32 +=, db [O,R] f32 +=",
         .flops = "4NOR + 2NIPR + 2NIPR:dx", .attrs = lora_attrs, OVER(5)},
    [SH_OP_GELU_ERF] =
        {.shape = "x [n] act -> y [n] act", .flops = "4n", .forward = true, .backward = SH_OP_GELU_ERF_BWD, APART},
    [SH_OP_GELU_ERF_BWD] = {.shape = "dy [n] act, x [n] act -> dx [n] act", .flops = "9n", OVER(0)},
    [SH_OP_REGROUP] =
        {.shape = "x [N,3HD] act -> y [N,3HD] act", .forward = true, .attrs = regroup_attrs, APART},
    [SH_OP_SPLIT_HEADS] =
        {.shape = "x [B,T,PHD+2KD] act -> y [B,P,T,HD+2JD] act",
         .forward = true, .backward = SH_OP_JOIN_HEADS, .attrs = split_attrs, APART},
    [SH_OP_JOIN_HEADS] =
        {.shape = "x [B,P,T,HD+2JD] act -> y [B,T,PHD+2KD] act",
         .forward = true, .backward = SH_OP_SPLIT_HEADS, .attrs = split_attrs, APART},
    [SH_OP_SPLIT_KV] =
        {.shape = "x [N,HD+2KD] act -> q [N,HD] act, kv [N,2KD] act", .forward = true, .attrs = kv_attrs, APART},
    [SH_OP_JOIN_KV] =
        {.shape = "q [N,HD] act, kv [N,2KD] act -> x [N,HD+2KD] act", .forward = true, .attrs = kv_attrs, APART},
    [SH_OP_FROM_PIECES] =
        {.shape = "x [P,2B,M,W] act -> y [B,2PM,W] act", .forward = true, .backward = SH_OP_TO_PIECES, APART},
    [SH_OP_TO_PIECES] = {.shape = "x [B,2PM,W] act -> y [P,2B,M,W] act", .forward = true, .backward = SH_OP_FROM_PIECES, APART},
    [SH_OP_ATTENTION_ROWS] =
        {.shape = "q [UB,M,HD] act, kv [B,T,2KD] act, docs [UB,M] i32 opt -> o [UB,M,HD] act, lse [UB,H,M] f32",
         .flops = "2UBHMTD + 2UBHMD + 3UBHMT + 3UBHM", .forward = true, .costly = true, .attrs = rows_attrs, APART},
    [SH_OP_ATTENTION_ROWS_BWD] =
        {.shape = "do [UB,M,HD] act, q [UB,M,HD] act, kv [B,T,2KD] act, o [UB,M,HD] act, lse [UB,H,M] f32, "
                  "docs [UB,M] i32 opt -> dq [UB,M,HD] act, dkv [B,T,2KD] act",
         .flops = "5UBHMTD + 5UBHMD + 3UBHMT + 3UBHM", .attrs = rows_attrs, APART},
    [SH_OP_ROUTE] =
        {.shape = "x [N,C] act, w [E,C] act, bias [E] f32 opt, b [E] act opt "
                  "-> weight [N,k] f32, expert [N,k] i32, score [N,E] f32, lse [N] f32 opt",
         .flops = "2NCE + 4NE", .chooses = true, .forward = true, .attrs = route_attrs, APART},
    [SH_OP_ROUTE_BWD] =
        {.shape = "dweight [N,k] f32, expert [N,k] i32, score [N,E] f32, lse [N] f32 opt, x [N,C] act, w [E,C] act, "
                  "dres [N,C] act opt -> dx [N,C] act opt, dw [E,C] f32 += opt, db [E] f32 += opt",
         .flops = "2NCE:dx + 2NCE:dw + 6NE", .together = true, .attrs = route_attrs, OVER(6)},
    [SH_OP_ROUTE_PLAN] =
        {.shape = "expert [N,k] i32 -> order [Nk] i32, place [N,k] i32, first [E+1] i32",
         .chooses = true, .stops = true, .attrs = route_attrs, APART},
    [SH_OP_ROUTE_LOAD] = {.shape = "first [E+1] i32 -> load [E] f64 +=", .flops = "E", APART},
    [SH_OP_ROUTE_LOSS] =
        {.shape = "score [N,E] f32, first [E+1] i32, lse [N] f32 opt -> loss [2] f64 +=",
         .flops = "2NE", .stops = true, .attrs = route_attrs, APART},
    [SH_OP_PAIR_LOSS] =
        {.shape = "logprob [B,T] f32, targets [B,T] i32, docs [B,T] i32, ref [B,T] f64 opt, label [B,T] i32 opt "
                  "-> weight [B,T] f32, sum [B,T] f64, loss [s] f64 +=",
         .flops = "2BT", .stops = true, .together = true, .attrs = pair_attrs, APART},
    [SH_OP_ROUTE_BIAS] =
        {.shape = "load [E] f64 -> bias [E] f32 inout", .flops = "4E", .attrs = route_attrs, APART},
    [SH_OP_ROUTE_WAVE] =
        {.shape = "first [P,G] i32 -> parts [2,P,P] i32, groups [g] i32, used [2] f64 += opt", .chooses = true, .attrs = wave_attrs, APART},
    [SH_OP_ROW_GATHER] =
        {.shape = "x [N,C] any, order [M] i32, at [1] i32 opt, first [g] i32 opt -> xs [M,C] any, near [R,C] any opt",
         .forward = true, APART},
    [SH_OP_ROW_SUM] =
        {.shape = "ys [Nk,C] act, place [N,k] i32, addend [N,C] act opt, near [R,C] act opt of C, at [1] i32 opt, "
                  "first [g] i32 opt -> y [N,C] act",
         .flops = "NkC", .forward = true, OVER(2)},
    [SH_OP_EXPERT_LINEAR] =
        {.shape = "x [M,I] act, first [g] i32, w [E,O,I] act turns -> y [M,O] act", .flops = "2MIO", .costly = true, .forward = true,
         .attrs = row_attrs, APART},
    [SH_OP_EXPERT_LINEAR_BWD_X] =
        {.shape = "dy [M,O] act, first [g] i32, w [E,O,I] act turns -> dx [M,I] act", .flops = "2MIO", .attrs = row_attrs, APART},
    [SH_OP_EXPERT_LINEAR_BWD_W] =
        {.shape = "dy [M,O] act, x [M,I] act, first [g] i32 -> dw [E,O,I] f32 += turns", .flops = "2MIO", .attrs = row_attrs, APART},
    [SH_OP_SWIGLU_ROWS] =
        {.shape = "gu [M,2F] act, weight [n] f32, order [M] i32 opt, first [g] i32 opt -> h [M,F] act", .flops = "6MF", .forward = true,
         .attrs = row_attrs, APART},
    [SH_OP_SWIGLU_ROWS_BWD] =
        {.shape = "dh [M,F] act, gu [M,2F] act, weight [n] f32, order [M] i32 opt, first [g] i32 opt, more [n] f32 opt "
                  "-> dgu [M,2F] act, dweight [n] f32",
         .flops = "16MF", .attrs = row_attrs, APART},
    [SH_OP_SQUARED_RELU_ROWS] =
        {.shape = "x [M,F] act, weight [n] f32, order [M] i32 opt, first [g] i32 opt -> h [M,F] act", .flops = "3MF", .forward = true,
         .attrs = row_attrs, APART},
    [SH_OP_SQUARED_RELU_ROWS_BWD] =
        {.shape = "dh [M,F] act, x [M,F] act, weight [n] f32, order [M] i32 opt, first [g] i32 opt, more [n] f32 opt "
                  "-> dx [M,F] act, dweight [n] f32",
         .flops = "7MF", .attrs = row_attrs, APART},
    [SH_OP_ROW_ADD] =
        {.shape = "a [M,C] act, b [M,C] act, first [g] i32 -> y [M,C] act", .flops = "MC", .attrs = row_attrs, OVER(0)},
    [SH_OP_MUON_MOMENTUM] =
        {.shape = "-> u [n] f32 inout, m [n] state inout", .flops = "6n", .attrs = run_attrs, .runs = true, APART},
    [SH_OP_ORTHO] = {.shape = "-> u [n] f32 inout", .attrs = ortho_attrs, APART},
    [SH_OP_ORTHO_ROWS] = {.shape = "-> u [n] f32 inout, v [r] f32 inout", .attrs = ortho_row_attrs, APART},
    [SH_OP_MUON_APPLY] =
        {.shape = "u [n] f32 -> p [n] master inout, r [n] i16 inout opt:bf16",
         .flops = "3n", .attrs = run_attrs, .runs = true, APART},
    [SH_OP_EMA] =
        {.shape = "p [n] float, r [n] i16 opt -> e [n] f32 inout", .flops = "3n", .attrs = scale_attrs, APART},
    [SH_OP_FETCH] = {.shape = "home [n] any -> copy [n] any", .moves = true, APART},
    [SH_OP_EVICT] = {.shape = "copy [n] any -> home [n] any", .moves = true, APART},
    [SH_OP_ALL_GATHER] =
        {.shape = "shard [n] any -> full [m>=n] any",
         .async = true, .forward = true, .backward = SH_OP_REDUCE_SCATTER, APART},
    [SH_OP_REDUCE_SCATTER] =
        {.shape = "full [m>=n] sum -> shard [n] sum",
         .flops = "m", .async = true, .forward = true, .costly = true, .backward = SH_OP_ALL_GATHER, APART},
    [SH_OP_ALL_REDUCE] = {.shape = "-> y [n] sum inout", .flops = "n", .async = true, APART},
    [SH_OP_ALL_TO_ALL] =
        {.shape = "x [n] any, parts [2,P,P] i32 opt -> y [m] any +=",
         .async = true, .forward = true, .costly = true, .backward = SH_OP_ALL_TO_ALL, .attrs = exchange_attrs, APART},
    [SH_OP_SEND] = {.shape = "x [n] any ->", .async = true, .forward = true, .attrs = link_attrs, APART},
    [SH_OP_RECEIVE] = {.shape = "-> y [n] any", .async = true, .forward = true, .attrs = link_attrs, APART},
    [SH_OP_SINK] =
        {.shape = "o [B,T,HD] act, lse [B,H,T] f32, sink [H] act -> y [B,T,HD] act, total [B,H,T] f32",
         .flops = "BTHD + 5BTH", .forward = true, .costly = true, .attrs = sink_attrs, OVER(0)},
    [SH_OP_SINK_BWD] =
        {.shape = "dy [B,T,HD] act, y [B,T,HD] act, total [B,H,T] f32, sink [H] act -> dsink [H] f32 +=",
         .flops = "2BTHD + 3BTH", .attrs = sink_attrs, APART},
    [SH_OP_EXPERT_BIAS] =
        {.shape = "x [M,O] act, first [g] i32, b [E,O] act, weight [n] f32 opt, order [M] i32 opt -> y [M,O] act",
         .flops = "2MO", .forward = true, .attrs = row_attrs, OVER(0)},
    [SH_OP_EXPERT_BIAS_BWD] =
        {.shape = "dy [M,O] act, first [g] i32, b [E,O] act opt, weight [n] f32 opt, order [M] i32 opt "
                  "-> db [E,O] f32 += opt, dweight [n] f32 opt",
         .flops = "2MO:db + 2MO:dweight", .attrs = row_attrs, APART},
    [SH_OP_SHORT_CONV] =
        {.shape = "x [B,T,C] act, w [C,1,W] act, docs [B,T] i32 opt, b [C] act opt -> y [B,T,C] act",
         .flops = "2BTCW + 4BTC", .forward = true, APART},
    [SH_OP_SHORT_CONV_BWD] =
        {.shape = "dy [B,T,C] act, x [B,T,C] act, w [C,1,W] act, docs [B,T] i32 opt, b [C] act opt "
                  "-> dx [B,T,C] act, dw [C,1,W] f32 += opt, db [C] f32 += opt",
         .flops = "4BTCW + 8BTC + 2BTCW:dw", APART},
    /* Chunks of 64 rows: two products of D and three of V by 64, and four of D by V. */
    [SH_OP_GATED_DELTA] =
        {.shape = "x [B,T,2KD+HV] act, ba [B,T,2H] act, alog [H] act, dt [H] act, docs [B,T] i32 opt "
                  "-> o [B,T,HV] act, state [B,S,HDV] f32",
         .flops = "128BTHD + 128BTHV + 6BTHDV", .forward = true, .costly = true, .attrs = delta_attrs, APART},
    [SH_OP_GATED_DELTA_BWD] =
        {.shape = "do [B,T,HV] act, x [B,T,2KD+HV] act, ba [B,T,2H] act, alog [H] act, dt [H] act, docs [B,T] i32 opt, "
                  "state [B,S,HDV] f32 -> dx [B,T,2KD+HV] act, dba [B,T,2H] act, dalog [H] f32 += opt, ddt [H] f32 += opt",
         .flops = "512BTHD + 384BTHV + 14BTHDV", .attrs = delta_attrs, APART},
    [SH_OP_GATED_NORM] =
        {.shape = "x [N,HV] act, z [N,HV] act, w [V] act -> y [N,HV] act, rstd [N,H] f32",
         .flops = "10NHV", .forward = true, .attrs = delta_attrs, OVER(0)},
    [SH_OP_GATED_NORM_BWD] =
        {.shape = "dy [N,HV] act, x [N,HV] act, z [N,HV] act, w [V] act, rstd [N,H] f32 "
                  "-> dx [N,HV] act, dz [N,HV] act, dw [V] f32 += opt",
         .flops = "24NHV", .attrs = delta_attrs, APART},
    [SH_OP_GATE] = {.shape = "x [n] act, z [n] act -> y [n] act", .flops = "5n", .forward = true, OVER(0)},
    [SH_OP_GATE_BWD] = {.shape = "dy [n] act, x [n] act, z [n] act -> dx [n] act, dz [n] act", .flops = "9n", APART},
    [SH_OP_SPLIT_GATE] =
        {.shape = "x [N,2HD+2KD] act -> qkv [N,HD+2KD] act, gate [N,HD] act", .forward = true, .attrs = kv_attrs, APART},
    [SH_OP_JOIN_GATE] = {.shape = "qkv [N,HD+2KD] act, gate [N,HD] act -> x [N,2HD+2KD] act", .attrs = kv_attrs, APART},
    [SH_OP_ENCODE] = {.shape = "a [64b] float -> codes [b,68] u8", .flops = "384b", APART},
    [SH_OP_DECODE] = {.shape = "codes [b,68] u8 -> w [64b] float", .flops = "128b", APART},
    [SH_OP_LATENT_HEADS] =
        {.shape = "q [N,HP+HR] act, kv [N,HP+HV] act, turned [N,R] act -> qkv [N,3HP+3HR] act",
         .forward = true, .attrs = latent_attrs, APART},
    [SH_OP_LATENT_HEADS_BWD] =
        {.shape = "dqkv [N,3HP+3HR] act -> dq [N,HP+HR] act opt, dkv [N,HP+HV] act opt, dturned [N,R] act opt",
         .flops = "NHR:dturned", .attrs = latent_attrs, APART},
    [SH_OP_LATENT_VALUES] =
        {.shape = "o [N,HP+HR] act -> y [N,HV] act",
         .forward = true, .backward = SH_OP_LATENT_VALUES_BWD, .attrs = latent_attrs, APART},
    [SH_OP_LATENT_VALUES_BWD] = {.shape = "dy [N,HV] act -> do [N,HP+HR] act", .attrs = latent_attrs, APART},
    [SH_OP_SHORT_CONV_CACHE] =
        {.shape = "x [B,T,C] act, w [C,1,W] act, at [B,T] i32, bias [C] act opt, count [B] i32 -> y [B,T,C] act, tail [B,L,C] act inout opt",
         .flops = "2BTCW + 4BTC", APART},
    [SH_OP_GATED_DELTA_CACHE] =
        {.shape = "x [B,T,2KD+HV] act, ba [B,T,2H] act, alog [H] act, dt [H] act, at [B,T] i32, count [B] i32 "
                  "-> o [B,T,HV] act, state [B,HDV] f32 inout",
         .flops = "7BTHDV", .attrs = delta_attrs, APART},
    /* Chunks of 128 rows: products of 128 by V and by D, and of D by V, those by B and C for each group. */
    [SH_OP_SCAN] =
        {.shape = "x [B,T,HV+2KD] act, dt [B,T,H] act, heads [3H] act, docs [B,T] i32 opt -> o [B,T,HV] act, state [B,S,HDV] f32",
         .flops = "256BTKD + 256BTHV + 4BTHDV", .forward = true, .costly = true, .attrs = scan_attrs, APART},
    [SH_OP_SCAN_BWD] =
        {.shape = "do [B,T,HV] act, x [B,T,HV+2KD] act, dt [B,T,H] act, heads [3H] act, docs [B,T] i32 opt, "
                  "state [B,S,HDV] f32 -> dx [B,T,HV+2KD] act, ddt [B,T,H] act, dheads [3H] f32 += opt",
         .flops = "768BTKD + 512BTHV + 10BTHDV", .attrs = scan_attrs, APART},
    [SH_OP_GATE_NORM] =
        {.shape = "x [N,HV] act, z [N,HV] act, w [HV] act -> y [N,HV] act, rstd [N,H] f32",
         .flops = "10NHV", .forward = true, .attrs = delta_attrs, OVER(0)},
    [SH_OP_GATE_NORM_BWD] =
        {.shape = "dy [N,HV] act, x [N,HV] act, z [N,HV] act, w [HV] act, rstd [N,H] f32 "
                  "-> dx [N,HV] act, dz [N,HV] act, dw [HV] f32 += opt",
         .flops = "26NHV", .attrs = delta_attrs, APART},
    [SH_OP_SQUARED_RELU] = {.shape = "x [n] act -> y [n] act", .flops = "2n", .forward = true, .backward = SH_OP_SQUARED_RELU_BWD, APART},
    [SH_OP_SQUARED_RELU_BWD] = {.shape = "dy [n] act, x [n] act -> dx [n] act", .flops = "3n", OVER(0)},
    [SH_OP_VALUE_NORM] =
        {.shape = "x [N,HD+JD] act -> y [N,HD+2KD] act, rstd [N,K] f32", .flops = "4NKD", .forward = true,
         .attrs = value_attrs, APART},
    [SH_OP_VALUE_NORM_BWD] =
        {.shape = "dy [N,HD+2KD] act, x [N,HD+JD] act, rstd [N,K] f32 -> dx [N,HD+JD] act", .flops = "8NKD",
         .attrs = value_attrs, APART},
    [SH_OP_SCALE_BY] = {.shape = "x [n] act, s [1] f32 -> y [n] act", .flops = "n", .forward = true, OVER(0)},
    [SH_OP_SCAN_CACHE] =
        {.shape = "x [B,T,HV+2KD] act, dt [B,T,H] act, heads [3H] act, at [B,T] i32, count [B] i32 "
                  "-> o [B,T,HV] act, state [B,HDV] f32 inout",
         .flops = "5BTHDV", .attrs = scan_attrs, APART},
    [SH_OP_WAIT] = {.shape = "->", .marker = true, APART},
    [SH_OP_RELEASE] = {.shape = "unit [n] any ->", .marker = true, APART},
};
_Static_assert(SH_NF4_ELEMS == 64 && SH_NF4_BLOCK_BYTES == 36, "as the row of UNPACK says");
_Static_assert(SH_EXACT_ELEMS == 22, "as the rows of SUMSQ and EXACT_ROUND say");

/* Names come from the list of kinds, so printed programs and traces cannot disagree with it. */
#define NAME(KIND, name) [SH_OP_##KIND] = #name,
static const char *const names[SH_OP_KINDS] = {SH_OP_LIST(NAME, NAME, NAME)};

/* Rows are parsed once, on first use. Any thread may be the first: a bench or a test asks without a run. */
static struct sh_op_info table[SH_OP_ROOM];
static struct sh_op_shape shapes[SH_OP_ROOM];
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Turn the text of a shape into masks of operands, which the passes query. A text that cannot be parsed leaves its
 * row without operands. */
static void read_row(enum sh_op_kind kind)
{
    struct sh_op_info *row = &table[kind];
    struct sh_op_shape *shape = &shapes[kind];

    if (!row->shape || !sh_shape_read(row->shape, row->flops, shape))
        return;
    row->n_in = shape->n_in;
    row->n_out = shape->n_out;
    for (int i = 0; i < shape->n_in; i++)
        row->opt_in |= (unsigned)shape->in[i].optional << i;
    for (int i = 0; i < shape->n_out; i++) {
        row->opt_out |= (unsigned)shape->out[i].optional << i;
        row->add_out |= (unsigned)shape->out[i].adds << i;
        row->rw_out |= (unsigned)shape->out[i].inout << i;
    }
}

static void read_rows(void)
{
    for (int kind = 0; kind < SH_OP_KINDS; kind++) {
        table[kind] = rows[kind];
        table[kind].name = names[kind];
        read_row((enum sh_op_kind)kind);
    }
}

void sh_op_add(enum sh_op_kind kind, const struct sh_op_info *row)
{
    table[kind] = *row;
    read_row(kind);
}

const struct sh_op_info *sh_op_info(enum sh_op_kind kind)
{
    pthread_once(&once, read_rows);
    return &table[kind];
}

bool sh_op_has_rows(enum sh_op_kind kind)
{
    return sh_op_info(kind)->attrs == row_attrs;
}

const struct sh_op_shape *sh_op_shape(enum sh_op_kind kind)
{
    pthread_once(&once, read_rows);
    return &shapes[kind];
}
