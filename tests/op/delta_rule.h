/* Calls of the gated delta rule and of what belongs to it (qwen3_5_text), of Mamba-2, and the cases that all devices share. */
#ifndef SH_TESTS_OP_DELTA_RULE_H
#define SH_TESTS_OP_DELTA_RULE_H

#include "tests/op/delta.h"

/* Forwards, whose inputs are random, and what goes back through them (delta_back). `kept` and `number`: the types of states
 * and of rstd. */
void delta_begin_delta(struct optest *t, enum sh_dtype act, enum sh_dtype kept, const struct delta_shape *s,
                       double decay);
void delta_begin_scan(struct optest *t, enum sh_dtype act, enum sh_dtype kept, const struct delta_shape *s,
                      double decay);
void delta_begin_conv(struct optest *t, enum sh_dtype act, const struct delta_shape *s, int C, int W, bool bias);
void delta_begin_norm(struct optest *t, enum sh_dtype act, enum sh_dtype number, const struct delta_shape *s);
void delta_begin_gate_norm(struct optest *t, enum sh_dtype act, enum sh_dtype number, const struct delta_shape *s);
void delta_begin_gate(struct optest *t, enum sh_dtype act, int n);
void delta_begin_delta_bwd(struct optest *t, const struct optest *f, enum sh_dtype sums, const struct delta_shape *s);
void delta_begin_scan_bwd(struct optest *t, const struct optest *f, enum sh_dtype sums, const struct delta_shape *s);
void delta_begin_conv_bwd(struct optest *t, const struct optest *f, enum sh_dtype sums, const struct delta_shape *s);
void delta_begin_norm_bwd(struct optest *t, const struct optest *f, enum sh_dtype sums, const struct delta_shape *s);
void delta_begin_gate_norm_bwd(struct optest *t, const struct optest *f, enum sh_dtype sums,
                               const struct delta_shape *s);
void delta_begin_gate_bwd(struct optest *t, const struct optest *f, enum sh_dtype sums, const struct delta_shape *s);

/* The device against the reference. */
void delta_rule(const struct delta_device *on);
void delta_scan(const struct delta_device *on);
void delta_convolution(const struct delta_device *on);
void delta_norms(const struct delta_device *on);
void delta_gate_norms(const struct delta_device *on);
void delta_gates(const struct delta_device *on);
void delta_gates_apart(const struct delta_device *on);

#endif
