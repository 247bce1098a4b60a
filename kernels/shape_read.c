/* Parser for the notation in which rows of op.c describe their operands (shape.h). */
#include "kernels/shape.h"

#include <ctype.h>
#include <string.h>

/* The text still to be parsed, and the result. */
struct reader {
    const char *at;
    struct sh_op_shape *shape;
};

/* Skip blanks, then `what`, which may be "". */
static bool skip(struct reader *r, const char *what)
{
    size_t n = strlen(what);

    while (*r->at == ' ')
        r->at++;
    if (strncmp(r->at, what, n) != 0)
        return false;
    r->at += n;
    return true;
}

/* The same for a whole word; the reader stays in place if the word is not there. */
static bool skip_word(struct reader *r, const char *word)
{
    const char *begin = r->at;

    if (skip(r, word) && !isalnum((unsigned char)*r->at))
        return true;
    r->at = begin;
    return false;
}

/* Letters and digits, as in "dy" or "w1". False: none, or too many. */
static bool read_name(struct reader *r, char name[SH_OPERAND_NAME])
{
    int n = 0;

    skip(r, "");
    while (isalnum((unsigned char)*r->at) && n < SH_OPERAND_NAME - 1)
        name[n++] = *r->at++;
    name[n] = '\0';
    return n > 0 && !isalnum((unsigned char)*r->at);
}

/* Read the operand whose presence a term depends on. */
static bool read_only_with(struct reader *r, struct sh_formula_term *term)
{
    char name[SH_OPERAND_NAME];

    term->only_with = -1;
    if (*r->at != ':')
        return true;
    r->at++;
    if (!read_name(r, name))
        return false;
    for (int i = 0; i < r->shape->n_in; i++)
        if (!strcmp(r->shape->in[i].name, name))
            term->only_with = i;
    for (int i = 0; i < r->shape->n_out; i++)
        if (!strcmp(r->shape->out[i].name, name))
            term->only_with = SH_OP_MAX_IN + i;
    return term->only_with >= 0;
}

/* "2NIO", "I", "3": a factor, letters that are multiplied, and optionally ":b" after them. */
static bool read_term(struct reader *r, struct sh_formula_term *term)
{
    const char *begin;
    int n = 0;

    skip(r, "");
    begin = r->at;
    for (; isdigit((unsigned char)*r->at); r->at++)
        term->factor = 10 * term->factor + (*r->at - '0');
    if (r->at == begin)
        term->factor = 1;
    while (isalpha((unsigned char)*r->at) && n < SH_FORMULA_LETTERS - 1)
        term->letters[n++] = *r->at++;
    term->letters[n] = '\0';
    return r->at > begin && !isalpha((unsigned char)*r->at) && read_only_with(r, term);
}

/* Terms separated by +. */
static bool read_formula(struct reader *r, struct sh_formula *f)
{
    do {
        if (f->n == SH_FORMULA_TERMS || !read_term(r, &f->term[f->n++]))
            return false;
    } while (skip(r, "+"));
    return true;
}

/* The letter, if the formula is one letter alone; otherwise 0. */
char sh_formula_letter(const struct sh_formula *f)
{
    bool alone = f->n == 1 && f->term[0].factor == 1 && strlen(f->term[0].letters) == 1;

    return alone ? f->term[0].letters[0] : '\0';
}

/* The same, but a number may precede the letter. */
static char times_letter(const struct sh_formula *f)
{
    return f->n == 1 && strlen(f->term[0].letters) == 1 ? f->term[0].letters[0] : '\0';
}

/* "[N,2F]"; "[O>=K]": the first dimension may be larger; "[n]": any shape with n elements. */
static bool read_dims(struct reader *r, struct sh_operand_row *o)
{
    if (!skip(r, "["))
        return false;
    do {
        if (o->ndim == SH_MAX_DIMS || !read_formula(r, &o->dim[o->ndim++]))
            return false;
        if (o->ndim == 1 && skip(r, ">="))
            o->least = *r->at++;
    } while (skip(r, ","));
    o->any_shape = o->ndim == 1 && islower((unsigned char)times_letter(&o->dim[0]));
    return skip(r, "]");
}

/* The name of a type, or of a rule that binds several operands to one type. */
static bool read_type(struct reader *r, struct sh_operand_row *o)
{
    static const char *const rules[SH_TYPE_RULES] = {
        [SH_TYPE_ACT] = "act", [SH_TYPE_SUM] = "sum",     [SH_TYPE_MASTER] = "master",
        [SH_TYPE_ANY] = "any", [SH_TYPE_FLOAT] = "float", [SH_TYPE_STATE] = "state"};

    for (int t = 0; t < SH_DTYPES; t++)
        if (skip_word(r, sh_dtype_name((enum sh_dtype)t))) {
            o->dtype = (enum sh_dtype)t;
            return true;
        }
    for (int rule = SH_TYPE_ACT; rule < SH_TYPE_RULES; rule++)
        if (skip_word(r, rules[rule])) {
            o->type = (enum sh_type_rule)rule;
            return true;
        }
    return false;
}

/* Flags in any order, up to the next comma or arrow. */
static bool read_flags(struct reader *r, struct sh_operand_row *o)
{
    for (;;) {
        if (skip_word(r, "opt:bf16"))
            o->optional = o->with_bf16 = true;
        else if (skip_word(r, "opt"))
            o->optional = true;
        else if (skip(r, "+="))
            o->adds = true;
        else if (skip_word(r, "inout"))
            o->inout = true;
        else if (skip_word(r, "turns"))
            o->turns = true;
        else if (!skip_word(r, "of"))
            return true;
        else if (!read_formula(r, &o->touched))
            return false;
    }
}

/* Operands up to the arrow or the end of the text. */
static bool read_operands(struct reader *r, struct sh_operand_row *row, int room, int *n)
{
    skip(r, "");
    if (!*r->at || !strncmp(r->at, "->", 2))
        return true;
    do {
        struct sh_operand_row *o = &row[*n];

        if ((*n)++ == room)
            return false;
        skip(r, "");
        o->text = r->at;
        if (!read_name(r, o->name) || !read_dims(r, o) || !read_type(r, o) || !read_flags(r, o))
            return false;
        o->text_len = (int)(r->at - o->text);
        while (o->text_len && o->text[o->text_len - 1] == ' ')
            o->text_len--;
    } while (skip(r, ","));
    return true;
}

/* Operands, an arrow, operands, and nothing after them; then the operations as a separate formula. */
static bool read_all(struct reader *r, const char *flops)
{
    struct sh_op_shape *s = r->shape;

    if (!read_operands(r, s->in, SH_OP_MAX_IN, &s->n_in) || !skip(r, "->") ||
        !read_operands(r, s->out, SH_OP_MAX_OUT, &s->n_out) || *r->at)
        return false;
    r->at = flops ? flops : "0";
    return read_formula(r, &s->flops) && !*r->at;
}

/* A row that cannot be parsed becomes a shape without operands, which tests/op/test_op.c looks for. */
static const char *read_text(const char *text, const char *flops, struct sh_op_shape *shape)
{
    struct reader r = {.at = text, .shape = shape};

    *shape = (struct sh_op_shape){0};
    return read_all(&r, flops) ? NULL : r.at;
}

bool sh_shape_read(const char *text, const char *flops, struct sh_op_shape *shape)
{
    if (!read_text(text, flops, shape))
        return true;
    *shape = (struct sh_op_shape){0};
    return false;
}

const char *sh_shape_stop(const char *text, const char *flops)
{
    struct sh_op_shape shape;
    const char *stop = read_text(text, flops, &shape);

    return stop ? stop + strspn(stop, " ") : NULL;
}
