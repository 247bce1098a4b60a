/* Calls around attention of families with other heads (deepseek_v3, gemma4_text), and the cases that all devices share. */
#ifndef SH_TESTS_OP_HEADS_H
#define SH_TESTS_OP_HEADS_H

#include "tests/op/delta.h"

struct heads_latent {
    int rows, H, P, R, V;
};

/* outs: bit i: output i is wanted. */
void heads_begin_latent_heads(struct optest *t, enum sh_dtype act, const struct heads_latent *l);
void heads_begin_latent_heads_bwd(struct optest *t, enum sh_dtype act, const struct heads_latent *l, unsigned outs);

struct heads_values {
    int rows, H, K, D, kv_in;
};
enum { HEADS_VALUES = 6 };
extern const struct heads_values heads_values_shapes[HEADS_VALUES];

/* The backward, whose forward f has run. */
void heads_begin_value_norm(struct optest *t, enum sh_dtype act, enum sh_dtype number, const struct heads_values *v);
void heads_begin_value_norm_bwd(struct optest *t, const struct optest *f, const struct heads_values *v);

/* The device against the reference. */
void heads_latent_cases(const struct delta_device *on);
void heads_value_norms(const struct delta_device *on);
void heads_factors(const struct delta_device *on);

#endif
