/* What tests of recurrences over documents share: the gated delta rule and the state-space dual form (kernels/delta.h,
 * scan.h). A failed check fails the cmocka test. */
#ifndef SH_TESTS_OP_DELTA_H
#define SH_TESTS_OP_DELTA_H

#include "kernels/bound.h"
#include "tests/op/optest.h"

enum { DELTA_ACTS = 3 };
extern const enum sh_dtype delta_acts[DELTA_ACTS];

/* K heads of keys, or groups; H heads with states of D by V. */
struct delta_shape {
    int B, T, K, H, D, V;
    int begin[6]; /* of documents after the first, in the first sequence; 0: no more */
};

/* Begin a call with attributes of that shape. */
void delta_begin(struct optest *t, enum sh_op_kind kind, const struct delta_shape *s, double eps);

/* Input i: where the document of each row begins, [B,T]. */
void delta_docs(struct optest *t, int i, const struct delta_shape *s);

/* Inputs of a backward whose call has begun: the gradient of output 0 of the forward f, then f's inputs [0, n), then what f
 * kept in output 1 if `keeps`. Its first `like` outputs are of the types and sizes of f's inputs. */
void delta_give(struct optest *t, const struct optest *f, int n, bool keeps, int like);

/* Input i: rows [first, first + n) of an operand [1,T,..] of another call. */
void delta_take_rows(struct optest *t, int i, const struct sh_operand *from, int first, int n);

/* Begin the backward of f, whose sums over rows are of type `sums`. */
typedef void (*delta_back)(struct optest *t, const struct optest *f, enum sh_dtype sums, const struct delta_shape *s);

/* How outputs of a forward and its backward agree with the reference's: bounds, how many; the first output of the backward
 * to which it may add; and whether the forward may write over its first input. */
struct delta_bounds {
    struct sh_bound made[2], back[4];
    int n_made, n_back, adds;
    bool in_place;
};

/* A device: what compares outputs [0, n) of a call with the reference's (agree.h), for the first `acts` of delta_acts; few:
 * only some shapes. */
struct delta_device {
    void (*check)(const struct optest *t, int n, const struct sh_bound *bound, int alias_in, int alias_out);
    int acts;
    bool few;
};

/* Both there and in the reference, and the backward once more adding to its sums. Ends f. */
void delta_agree(const struct delta_device *on, struct optest *f, const struct delta_shape *s, delta_back begin,
                 const struct delta_bounds *bounds);

/* Outputs [0, n) of the backward against differences of inputs [0, n) of the forward f, in the reference. Output n, if there is
 * one, against input `other` of f; 0: there is none. Ends both. */
void delta_gradients(struct optest *f, struct optest *back, int n, int other);

#endif
