/* Letters of a row stand for sizes. The first operand with a dim that is a letter alone defines the letter, and all
 * other operands are compared with that. The check pass and the costs of operations thus read one table (op.c). */
#include "kernels/shape.h"

#include <stdio.h>
#include <string.h>

/* --- letters --- */

/* An absent operand has no dimensions; a scalar has one, of size 1. */
static bool absent(const struct sh_operand *t)
{
    return t->ndim == 0;
}

static int64_t elems(const struct sh_operand *t)
{
    int64_t n = 1;

    for (int i = 0; i < t->ndim; i++)
        n *= t->dim[i];
    return n;
}

/* Dim i in the row's order; what turns has its last two the other way round. */
static int64_t dim_of(const struct sh_op_call *call, const struct sh_operand_row *row, const struct sh_operand *t,
                      int i)
{
    if (row->any_shape)
        return elems(t);
    return t->dim[row->turns && call->attr->linear.w_in_out && i >= row->ndim - 2 ? 2 * row->ndim - 3 - i : i];
}

static bool same_ndim(const struct sh_operand_row *row, const struct sh_operand *t)
{
    return row->any_shape || row->ndim == t->ndim;
}

/* The first operand that defines a letter binds it; a different size for it later is a misfit. */
static void say(struct sh_letters *letters, char letter, int64_t value)
{
    int64_t *at = &letters->value[(unsigned char)letter & 127];

    if (letter && *at < 0)
        *at = value;
}

static void letters_of(const struct sh_op_call *call, const struct sh_operand_row *row, const struct sh_operand *t,
                       struct sh_letters *letters)
{
    for (int i = 0; i < row->ndim && !absent(t) && same_ndim(row, t); i++)
        say(letters, sh_formula_letter(&row->dim[i]), dim_of(call, row, t, i));
}

/* Attributes come first: only they give the number of heads. */
void sh_shape_letters(const struct sh_op_call *call, struct sh_letters *letters)
{
    const struct sh_op_shape *s = sh_op_shape(call->kind);

    memset(letters, 0xff, sizeof *letters);
    for (const struct sh_attr_field *f = sh_op_info(call->kind)->attrs; f && f->name; f++)
        say(letters, f->letter, (int64_t)sh_attr_value(call->attr, f));
    for (int i = 0; i < s->n_in; i++)
        letters_of(call, &s->in[i], &call->in[i], letters);
    for (int i = 0; i < s->n_out; i++)
        letters_of(call, &s->out[i], &call->out[i], letters);
}

/* The operand that a term refers to by number. */
static const struct sh_operand *operand_of(const struct sh_op_call *call, int number)
{
    return number < SH_OP_MAX_IN ? &call->in[number] : &call->out[number - SH_OP_MAX_IN];
}

/* -1 if no operand defines one of the letters. A term tied to an absent operand is 0. */
double sh_formula_value(const struct sh_formula *f, const struct sh_letters *letters, const struct sh_op_call *call)
{
    double sum = 0;

    for (int i = 0; i < f->n; i++) {
        const struct sh_formula_term *term = &f->term[i];
        double product = term->factor;

        if (term->only_with >= 0 && absent(operand_of(call, term->only_with)))
            continue;
        for (const char *c = term->letters; *c; c++) {
            if (letters->value[(unsigned char)*c & 127] < 0)
                return -1;
            product *= (double)letters->value[(unsigned char)*c & 127];
        }
        sum += product;
    }
    return sum;
}

/* --- comparing --- */

struct fit {
    const struct sh_op_call *call;
    struct sh_letters letters;
    int bound[SH_TYPE_RULES]; /* dtype of the operands of act, sum, master or any; -1: none seen yet */
};

/* Each dimension is a formula over letters that were bound before. */
static bool right_dims(const struct fit *fit, const struct sh_operand_row *row, const struct sh_operand *t)
{
    if (!same_ndim(row, t))
        return false;
    for (int i = 0; i < row->ndim; i++)
        if (sh_formula_value(&row->dim[i], &fit->letters, fit->call) != (double)dim_of(fit->call, row, t, i))
            return false;
    return !row->least || dim_of(fit->call, row, t, 0) >= fit->letters.value[(unsigned char)row->least & 127];
}

/* Whether a rule may be bound to this type at all. */
static bool allowed(enum sh_type_rule rule, enum sh_dtype dtype)
{
    static const unsigned allow[SH_TYPE_RULES] = {
        [SH_TYPE_ACT] = 1u << SH_F32 | 1u << SH_BF16 | 1u << SH_F16,
        [SH_TYPE_SUM] = 1u << SH_F32 | 1u << SH_BF16 | 1u << SH_F64,
        [SH_TYPE_MASTER] = 1u << SH_F32 | 1u << SH_BF16,
        [SH_TYPE_ANY] = (1u << SH_DTYPES) - 1,
        [SH_TYPE_FLOAT] = 1u << SH_F32 | 1u << SH_BF16 | 1u << SH_F16,
        [SH_TYPE_STATE] = 1u << SH_F32 | 1u << SH_BF16,
    };

    return allow[rule] >> dtype & 1u;
}

/* The first operand of a rule binds it; later ones must have the same type. float and state bind nothing. */
static bool right_type(struct fit *fit, const struct sh_operand_row *row, enum sh_dtype dtype)
{
    int *bound = &fit->bound[row->type];

    if (row->type == SH_TYPE_FIXED)
        return dtype == row->dtype;
    if (row->type != SH_TYPE_FLOAT && row->type != SH_TYPE_STATE && *bound >= 0)
        return (int)dtype == *bound;
    *bound = (int)dtype;
    return allowed(row->type, dtype);
}

/* An operand marked "opt:bf16" is present if and only if the master is bfloat16: it is the other half of the master. */
static bool right_presence(const struct fit *fit, const struct sh_operand_row *row, const struct sh_operand *t)
{
    if (row->with_bf16)
        return absent(t) == (fit->bound[SH_TYPE_MASTER] != SH_BF16);
    return !absent(t) || row->optional;
}

static const char *describe(const struct sh_operand_row *row, const struct sh_operand *t, char text[SH_MISFIT_TEXT])
{
    size_t n = (size_t)snprintf(text, SH_MISFIT_TEXT, "%s is ", row->name);

    if (absent(t))
        n += (size_t)snprintf(text + n, SH_MISFIT_TEXT - n, "absent");
    else
        for (int i = 0; i < t->ndim; i++)
            n += (size_t)snprintf(text + n, SH_MISFIT_TEXT - n, "%s%lld", i ? "," : "[", (long long)t->dim[i]);
    if (!absent(t))
        n += (size_t)snprintf(text + n, SH_MISFIT_TEXT - n, "] %s", sh_dtype_name(t->dtype));
    snprintf(text + n, SH_MISFIT_TEXT - n, ", which is not %.*s", row->text_len, row->text);
    return text;
}

static bool fits(struct fit *fit, const struct sh_operand_row *row, const struct sh_operand *t)
{
    if (!right_presence(fit, row, t))
        return false;
    return absent(t) || (right_dims(fit, row, t) && right_type(fit, row, t->dtype));
}

/* A loss of logits has a second number for squares of lse, and more of a teacher. */
static bool right_numbers(const struct sh_op_call *call)
{
    bool head = call->kind == SH_OP_HEAD_LOSS || call->kind == SH_OP_HEAD_LOSS_GRAD;
    bool rest = call->kind == SH_OP_LOSS_REST;

    return !(head || rest) || call->out[0].dim[0] == (head                            ? sh_head_numbers(call->attr)
                                                      : call->attr->part.squares != 0 ? 2
                                                                                      : 1);
}

/* Each label of a row has a number. */
static bool right_labels(const struct sh_op_call *call)
{
    bool head = call->kind == SH_OP_HEAD_LOSS || call->kind == SH_OP_HEAD_LOSS_GRAD;
    const struct sh_operand *y = &call->in[5];

    return !head || !call->attr->head.multi_label ||
           (absent(&call->in[4]) && y->ndim > 0 && y->dim[y->ndim - 1] == call->in[1].dim[0]);
}

/* Inputs first, since their letters define the outputs. */
const char *sh_shape_misfit(const struct sh_op_call *call, char text[SH_MISFIT_TEXT])
{
    const struct sh_op_shape *s = sh_op_shape(call->kind);
    struct fit fit = {.call = call};

    memset(fit.bound, 0xff, sizeof fit.bound);
    sh_shape_letters(call, &fit.letters);
    for (int i = 0; i < s->n_in; i++)
        if (!fits(&fit, &s->in[i], &call->in[i]))
            return describe(&s->in[i], &call->in[i], text);
    if (!right_labels(call))
        return describe(&s->in[5], &call->in[5], text);
    for (int i = 0; i < s->n_out; i++) {
        if (!fits(&fit, &s->out[i], &call->out[i]) || (i == 0 && !right_numbers(call)))
            return describe(&s->out[i], &call->out[i], text);
        if (sh_op_adds(call, i) && !s->out[i].adds) {
            snprintf(text, SH_MISFIT_TEXT, "%s cannot be added to", s->out[i].name);
            return text;
        }
    }
    return NULL;
}
