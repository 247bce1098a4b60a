/* Calls of attention and of the head, shared by the tests of all devices. Each function starts a call that is ready
 * to run; end it with optest_end(). */
#ifndef SH_TESTS_OP_CALLS_H
#define SH_TESTS_OP_CALLS_H

#include "tests/op/optest.h"

struct attention_shape {
    int64_t batch, seq;
    int heads, kv_heads, dim;
    bool docs;  /* documents of random lengths, many of one token */
    int window; /* 0: none */
};
/* The soft cap of the scores of all calls that are made from now on; 0: none. */
extern float attention_cap;
void attention_forward(struct optest *t, enum sh_dtype act, struct attention_shape s);

/* The backward for the results of the reference's forward. */
void attention_backward(struct optest *t, enum sh_dtype act, struct attention_shape s);
/* The backward for the results of a forward that has run. */
void attention_backward_of(struct optest *t, const struct optest *fwd, struct attention_shape s);

/* Runs of queries of a place among P, of all sequences: two pieces of `rows` rows each, from either half. */
struct runs_shape {
    int batch, ranks, place, rows, heads, kv_heads, dim, window;
    bool docs;
};
void runs_forward(struct optest *t, enum sh_dtype act, struct runs_shape s);
/* For the results of the reference's forward. */
void runs_backward(struct optest *t, enum sh_dtype act, struct runs_shape s);

struct head_shape {
    int64_t batch, seq, dim, vocab, chunk_rows;
    bool add_loss, add_dw; /* continue from earlier values */
    bool weighted;         /* rows count -1, -1/2, 0, 1/2 or 1 times */
    int64_t words;         /* of a teacher, or to find by HEAD_SCORE; 0: none; -1: raw; -N: so, and N to find */
};

/* HEAD_LOSS or HEAD_LOSS_GRAD. Logits are of size 1, so that many classes count; one target in five is masked. */
void head_loss(struct optest *t, enum sh_op_kind kind, enum sh_dtype act, struct head_shape s);

/* Give the teacher of such a call another form, of temperature 1, with different words of probability 0.8 to 0.9 in all.
 * It must name fewer words than there are. */
void head_form(struct optest *t, int form);

/* Let squares of lse come to the loss. */
void head_squares(struct optest *t, double z);

/* Make the logits of such a call, without a teacher, labels of which a row may have several, or a part of one. */
void head_multi_label(struct optest *t);

/* Make HEAD_LOSS_GRAD produce no gradient of w, as if w were frozen. */
void head_frozen(struct optest *t);

/* Another call with the same results as one with weights. ones: t's weights become 1, and `other` has none; else rows
 * of weight 0 have no target in `other`. */
void head_alike(struct optest *t, bool ones, struct optest *other);

/* Mask all targets of such a call. */
void head_nothing_counts(struct optest *t);

/* HEAD_SCORE of the same shape, one target in five masked. */
void head_score(struct optest *t, enum sh_dtype act, struct head_shape s);

void head_logits(struct optest *t, enum sh_dtype act, struct head_shape s, int64_t position);
/* Of some words of more, at position 0. */
void head_logits_of_part(struct optest *t, enum sh_dtype act, struct head_shape s);

/* A stack of `columns` columns; some stretches of it are adapted. */
struct lora_shape {
    int64_t rows, columns, in, rank;
    int parts, first[SH_LORA_PARTS], width[SH_LORA_PARTS];
};
enum { LORA_SHAPES = 7 };
extern const struct lora_shape lora_shapes[LORA_SHAPES];

/* LORA, and LORA_BWD: with dx or without it, as below the first trained parameter; with dres; continuing from earlier
 * sums. */
void lora_forward(struct optest *t, enum sh_dtype act, const struct lora_shape *s);
void lora_backward(struct optest *t, enum sh_dtype act, const struct lora_shape *s, bool dx, bool dres, bool add);

/* |a - b| <= bound + 2^-6 |a| in bf16, 2^-18 |a| in f32, for output o of either call: operands are of size 1, and the
 * summed values of one of them have been rounded once, to the compute type. */
double lora_bound(const struct optest *t, int o);
double lora_relative(const struct optest *t);

#endif
