/* Parser for the texts of the operation table (op.c): operands with their shapes and types, and formulas over the
 * same letters.
 *
 *   "x [N,I] act, w [O,I] act turns, b [O] act opt -> y [N,O] act"
 *
 * An operand is NAME [DIMS] TYPE and flags; inputs come before the arrow.
 *   dims   formulas: sums of products of a number and letters, e.g. N, 2F, HD+2KD. A letter is the same number in all
 *          operands of a call. Its value comes from a dim that is the letter alone, or from an attribute (struct
 *          sh_attr_field). P>=T: P, which must be at least T. [n], a small letter: any shape with n elements; [64b]:
 *          any shape with 64 b elements
 *   type   f32 bf16 f64 i32 i16 u8. act: f32, bf16 or f16; sum: f32, f64 or bf16; master: f32 or bf16; any: any type;
 *          each of these four is the same type for all operands that name it. float: f32, bf16 or f16; state: f32 or
 *          bf16
 *   flags  opt: may be absent; opt:bf16: present if the master is bf16, and only then
 *          +=: added to if attr->accumulate says so; inout: its earlier value always counts
 *          turns: its two dims are swapped if attr->linear.w_in_out
 *          of FORMULA: the call touches only that many of its elements
 * A term in a formula of operations may end in :NAME; it then counts only if that operand is present.
 *
 * Local; the table is parsed once, by the first caller. */
#ifndef SH_KERNELS_SHAPE_H
#define SH_KERNELS_SHAPE_H

#include "kernels/op.h"

enum { SH_FORMULA_TERMS = 4, SH_FORMULA_LETTERS = 8, SH_OPERAND_NAME = 8 };

struct sh_formula {
    int n; /* terms; 0: there is none */
    struct sh_formula_term {
        int factor;
        char letters[SH_FORMULA_LETTERS];
        int only_with; /* input i: i; output i: SH_OP_MAX_IN + i; -1: counts always */
    } term[SH_FORMULA_TERMS];
};

enum sh_type_rule {
    SH_TYPE_FIXED,
    SH_TYPE_ACT,
    SH_TYPE_SUM,
    SH_TYPE_MASTER,
    SH_TYPE_ANY,
    SH_TYPE_FLOAT,
    SH_TYPE_STATE,
    SH_TYPE_RULES
};

/* clang-format off */
struct sh_operand_row {
    char name[SH_OPERAND_NAME];
    const char *text;              /* the operand in the text of its row, text_len characters */
    int text_len;
    int ndim;
    struct sh_formula dim[SH_MAX_DIMS];
    char least;                    /* dim[0] is at least this letter; 0: no limit */
    enum sh_type_rule type;
    enum sh_dtype dtype;           /* FIXED */
    bool any_shape;                /* dim[0] is the number of elements */
    bool optional, with_bf16;      /* the latter: see opt:bf16 */
    bool adds, inout, turns;
    struct sh_formula touched;
};
/* clang-format on */

struct sh_op_shape {
    int n_in, n_out;
    struct sh_operand_row in[SH_OP_MAX_IN], out[SH_OP_MAX_OUT];
    struct sh_formula flops;
};

/* Parse a row's texts; flops may be NULL. False: they are not in the notation above. `shape` keeps pointers into
 * `text`. */
bool sh_shape_read(const char *text, const char *flops, struct sh_op_shape *shape);

/* Where reading such a text stops; NULL: it can be read to its end. */
const char *sh_shape_stop(const char *text, const char *flops);

/* The letter, if the formula is one letter alone with factor 1; otherwise 0 (shape_read.c). */
char sh_formula_letter(const struct sh_formula *f);

/* The row of a kind. It has no operands if its text cannot be parsed. */
const struct sh_op_shape *sh_op_shape(enum sh_op_kind kind);

/* The values of a call's letters; -1: nothing defines the letter. An operand without dims is absent. */
struct sh_letters {
    int64_t value[128];
};
void sh_shape_letters(const struct sh_op_call *call, struct sh_letters *letters);

/* The value; negative, which no dim is, if a letter has no value. */
double sh_formula_value(const struct sh_formula *f, const struct sh_letters *letters, const struct sh_op_call *call);

/* NULL if the call's operands match the table; otherwise text, which names the one that does not. */
enum { SH_MISFIT_TEXT = 192 };
const char *sh_shape_misfit(const struct sh_op_call *call, char text[SH_MISFIT_TEXT]);

#endif
