/* One call of a plug-in's kernel on operands that are made up, with guards around each. Local. */
#ifndef SH_PLUGIN_TRIAL_H
#define SH_PLUGIN_TRIAL_H

#include "include/sherd/plugin.h"
#include "kernels/shape.h"

enum { SH_TRIAL_OPERANDS = 3, SH_TRIAL_OUT = 2 }; /* two inputs at most, and the output */

/* What is around operands, and in the output before the call. */
enum sh_trial_guard { SH_GUARD_NAN, SH_GUARD_LARGE, SH_GUARD_SMALL, SH_GUARDS };

/* How to make one. */
struct sh_trial_size {
    int64_t rows, width; /* N; of another letter about the width */
    enum sh_dtype act;
    enum sh_dtype rounded; /* values are rounded to this type first */
    int shift;             /* elements that operands begin after an address of 64 bytes */
    enum sh_trial_guard guard;
    int64_t first_row; /* row i has the values of row first_row + i */
    int first_operand; /* input i has the values of input first_operand + i */
    bool in_place;     /* as the row says that it may */
};

struct sh_trial {
    const struct sherd_op *row;
    struct sh_trial_size size;
    struct sh_op_shape shape;
    struct sh_letters letters;
    struct sherd_call call;
    char *memory; /* operands and scratch, each with its guards */
    int64_t bytes;
};

/* Operands with values from (operand, element), and an output of guards. number: the numbers of the row, which stay
 * where they are. Freed with sh_trial_free(). */
void sh_trial_make(const struct sherd_op *row, const double *number, const struct sh_trial_size *size,
                   struct sh_trial *out);
void sh_trial_free(struct sh_trial *t);

/* The name of an operand whose guards, or whose values if it is an input, are not those that were made; "work":
 * the guards of its scratch; NULL: none. */
const char *sh_trial_spoiled(struct sh_trial *t);

/* The bytes of one row of the output are equal. */
bool sh_trial_same_row(struct sh_trial *a, int64_t row_a, struct sh_trial *b, int64_t row_b);
bool sh_trial_same(struct sh_trial *a, struct sh_trial *b);

#endif
