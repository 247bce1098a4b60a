/* Calls of attention and of the head, shared by the tests of all devices. Each function begins a call that is ready to run;
 * end it with optest_end(). */
#ifndef SH_TESTS_OP_CALLS_H
#define SH_TESTS_OP_CALLS_H

#include "tests/op/optest.h"

struct attention_shape {
    int64_t batch, seq;
    int heads, kv_heads, dim;
    bool docs;  /* documents of random lengths, many of one token */
    int window; /* 0: none */
};
void attention_forward(struct optest *t, enum sh_dtype act, struct attention_shape s);

/* The backward of what the reference's forward gives. */
void attention_backward(struct optest *t, enum sh_dtype act, struct attention_shape s);

struct head_shape {
    int64_t batch, seq, dim, vocab, chunk_rows;
    bool add_loss, add_dw; /* go on from earlier values */
};

/* HEAD_LOSS or HEAD_LOSS_GRAD. Logits are of size 1, so that many classes count; one target in five is masked. */
void head_loss(struct optest *t, enum sh_op_kind kind, enum sh_dtype act, struct head_shape s);

/* Let HEAD_LOSS_GRAD make no gradient of w, as where w is frozen. */
void head_frozen(struct optest *t);

/* Mask all targets of such a call. */
void head_nothing_counts(struct optest *t);

/* HEAD_SCORE of the same, one target in five masked. */
void head_score(struct optest *t, enum sh_dtype act, struct head_shape s);

void head_logits(struct optest *t, enum sh_dtype act, struct head_shape s, int64_t position);

/* A stack of `columns` columns of which some stretches are adapted. */
struct lora_shape {
    int64_t rows, columns, in, rank;
    int parts, first[SH_LORA_PARTS], width[SH_LORA_PARTS];
};
enum { LORA_SHAPES = 7 };
extern const struct lora_shape lora_shapes[LORA_SHAPES];

/* LORA, and LORA_BWD: with dx or without, as below the first trained parameter; with dres; going on from earlier sums. */
void lora_forward(struct optest *t, enum sh_dtype act, const struct lora_shape *s);
void lora_backward(struct optest *t, enum sh_dtype act, const struct lora_shape *s, bool dx, bool dres, bool add);

/* |a - b| <= bound + 2^-6 |a| in bf16, 2^-18 |a| in f32, for output o of either: operands are of size 1, and what is summed
 * has been rounded once in one of them, to the compute type. */
double lora_bound(const struct optest *t, int o);
double lora_relative(const struct optest *t);

#endif
