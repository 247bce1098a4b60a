#include "kernels/shape.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* --- reading --- */

struct reader {
    const char *at;
    struct sh_op_shape *shape;
};

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

/* The same for a whole word. */
static bool skip_word(struct reader *r, const char *word)
{
    const char *begin = r->at;

    if (skip(r, word) && !isalnum((unsigned char)*r->at))
        return true;
    r->at = begin;
    return false;
}

static bool read_name(struct reader *r, char name[SH_OPERAND_NAME])
{
    int n = 0;

    skip(r, "");
    while (isalnum((unsigned char)*r->at) && n < SH_OPERAND_NAME - 1)
        name[n++] = *r->at++;
    name[n] = '\0';
    return n > 0 && !isalnum((unsigned char)*r->at);
}

/* The operand that a term counts with. */
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

static bool read_formula(struct reader *r, struct sh_formula *f)
{
    do {
        if (f->n == SH_FORMULA_TERMS || !read_term(r, &f->term[f->n++]))
            return false;
    } while (skip(r, "+"));
    return true;
}

/* The letter that a formula is, alone; 0: it is more, or less. */
static char letter_of(const struct sh_formula *f)
{
    bool alone = f->n == 1 && f->term[0].factor == 1 && strlen(f->term[0].letters) == 1;

    return alone ? f->term[0].letters[0] : '\0';
}

/* The same where a number may stand before it. */
static char times_letter(const struct sh_formula *f)
{
    return f->n == 1 && strlen(f->term[0].letters) == 1 ? f->term[0].letters[0] : '\0';
}

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

static bool read_type(struct reader *r, struct sh_operand_row *o)
{
    static const char *const rules[SH_TYPE_RULES] = {
        [SH_TYPE_ACT] = "act", [SH_TYPE_SUM] = "sum", [SH_TYPE_ANY] = "any", [SH_TYPE_FLOAT] = "float"};

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

/* Operands up to the arrow or the end. */
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

static bool read_all(struct reader *r, const char *flops)
{
    struct sh_op_shape *s = r->shape;

    if (!read_operands(r, s->in, SH_OP_MAX_IN, &s->n_in) || !skip(r, "->") ||
        !read_operands(r, s->out, SH_OP_MAX_OUT, &s->n_out) || *r->at)
        return false;
    r->at = flops ? flops : "0";
    return read_formula(r, &s->flops) && !*r->at;
}

bool sh_shape_read(const char *text, const char *flops, struct sh_op_shape *shape)
{
    struct reader r = {.at = text, .shape = shape};
    bool right;

    *shape = (struct sh_op_shape){0};
    right = read_all(&r, flops);
    if (!right)
        *shape = (struct sh_op_shape){0};
    return right;
}

/* --- letters --- */

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

/* Dim i as the row counts them. */
static int64_t dim_of(const struct sh_op_call *call, const struct sh_operand_row *row, const struct sh_operand *t,
                      int i)
{
    if (row->any_shape)
        return elems(t);
    return t->dim[row->turns && call->attr->linear.w_in_out ? 1 - i : i];
}

static bool same_ndim(const struct sh_operand_row *row, const struct sh_operand *t)
{
    return row->any_shape || row->ndim == t->ndim;
}

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
        say(letters, letter_of(&row->dim[i]), dim_of(call, row, t, i));
}

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

/* The operand with the number that a term has for it. */
static const struct sh_operand *operand_of(const struct sh_op_call *call, int number)
{
    return number < SH_OP_MAX_IN ? &call->in[number] : &call->out[number - SH_OP_MAX_IN];
}

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
    int bound[SH_TYPE_RULES]; /* dtype of an operand that says act, sum or any; -1: none has yet */
};

static bool right_dims(const struct fit *fit, const struct sh_operand_row *row, const struct sh_operand *t)
{
    if (!same_ndim(row, t))
        return false;
    for (int i = 0; i < row->ndim; i++)
        if (sh_formula_value(&row->dim[i], &fit->letters, fit->call) != (double)dim_of(fit->call, row, t, i))
            return false;
    return !row->least || dim_of(fit->call, row, t, 0) >= fit->letters.value[(unsigned char)row->least & 127];
}

static bool allowed(enum sh_type_rule rule, enum sh_dtype dtype)
{
    bool is_float = dtype == SH_F32 || dtype == SH_BF16;

    return rule == SH_TYPE_ANY || is_float || (rule == SH_TYPE_SUM && dtype == SH_F64);
}

static bool right_type(struct fit *fit, const struct sh_operand_row *row, enum sh_dtype dtype)
{
    int *bound = &fit->bound[row->type];

    if (row->type == SH_TYPE_FIXED)
        return dtype == row->dtype;
    if (row->type != SH_TYPE_FLOAT && *bound >= 0)
        return (int)dtype == *bound;
    *bound = (int)dtype;
    return allowed(row->type, dtype);
}

static bool right_presence(const struct fit *fit, const struct sh_operand_row *row, const struct sh_operand *t)
{
    if (row->with_bf16)
        return absent(t) == (fit->bound[SH_TYPE_ACT] != SH_BF16);
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

const char *sh_shape_misfit(const struct sh_op_call *call, char text[SH_MISFIT_TEXT])
{
    const struct sh_op_shape *s = sh_op_shape(call->kind);
    struct fit fit = {.call = call};

    memset(fit.bound, 0xff, sizeof fit.bound);
    sh_shape_letters(call, &fit.letters);
    for (int i = 0; i < s->n_in; i++)
        if (!fits(&fit, &s->in[i], &call->in[i]))
            return describe(&s->in[i], &call->in[i], text);
    for (int i = 0; i < s->n_out; i++) {
        if (!fits(&fit, &s->out[i], &call->out[i]))
            return describe(&s->out[i], &call->out[i], text);
        if (sh_op_adds(call, i) && !s->out[i].adds) {
            snprintf(text, SH_MISFIT_TEXT, "%s cannot be added to", s->out[i].name);
            return text;
        }
    }
    return NULL;
}
