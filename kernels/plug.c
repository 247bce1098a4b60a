#include "kernels/plug.h"

#include "kernels/shape.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* One of the rows that plug-ins have brought: kind SH_OP_KINDS + its place. */
struct plug {
    const char *name;
    const struct sherd_op *row;      /* NULL: it is a loss */
    const struct sherd_loss *loss;   /* NULL: it is an operation */
    const struct sherd_number *rows; /* of its numbers */
    double number[SH_OP_NUMBERS];
    struct sh_attr_field attrs[SH_OP_NUMBERS + 2]; /* the last: the end */
};

static struct plug plugs[SH_OP_PLUGS];
static int n_plugs;

_Static_assert((int)SH_OP_NUMBERS == (int)SHERD_NUMBERS, "as many as a row has");

/* ---- what a row must be ---- */

static bool is_name(const char *name)
{
    size_t n = 0;

    while (name && (isalnum((unsigned char)name[n]) || name[n] == '_'))
        n++;
    return n > 0 && n < 32 && !name[n];
}

/* Operands of the compute type that keep their rows; the width may change. */
static bool is_row_of_act(const struct sh_operand_row *o)
{
    bool rows = o->any_shape || (o->ndim == 2 && sh_formula_letter(&o->dim[0]) == 'N' && o->dim[1].n == 1);

    return rows && o->type == SH_TYPE_ACT && !o->optional && !o->adds && !o->inout && !o->turns && !o->least;
}

static const char *wrong_shape(const struct sherd_op *row)
{
    struct sh_op_shape s;

    if (!row->shape || !sh_shape_read(row->shape, row->flops, &s))
        return "it has no shape that can be read";
    if (s.n_out != 1 || s.n_in < 1 || s.n_in > (row->backward ? 1 : 2))
        return row->backward ? "it takes one input, such as gate and up side by side in [N,2F], and makes one output"
                             : "a backward takes dy, or dy and x, and makes dx; another operation names its .backward";
    for (int i = 0; i < s.n_in; i++)
        if (!is_row_of_act(&s.in[i]))
            return "an input is not rows of the compute type: [N,F] act, [N,2F] act, or [n] act if its shape does not matter";
    return is_row_of_act(&s.out[0]) ? NULL : "the output is not rows of the compute type: [N,F] act or [n] act";
}

static const char *wrong_number(const struct sherd_number *rows, bool backward)
{
    if (backward && rows[0].name)
        return "it names no .backward, so it is the backward of another row, and has the numbers of that row";
    for (int i = 0; i < SHERD_NUMBERS && rows[i].name; i++) {
        const struct sherd_number *n = &rows[i];

        if (!is_name(n->name))
            return "the name of a number has other characters than letters, digits and _";
        for (int k = 0; k < i; k++)
            if (!strcmp(rows[k].name, n->name))
                return "two numbers have one name";
        if (!isfinite(n->min) || !isfinite(n->max) || !(n->value >= n->min && n->value <= n->max))
            return "a number's default is not within its bounds: {name, default, least, most}";
    }
    return NULL;
}

/* Which of a row's texts cannot be read, and from where on. NULL: both can. */
static const char *unreadable(const struct sherd_op *row, char text[SH_PLUG_TEXT])
{
    const char *stop = row->shape ? sh_shape_stop(row->shape, row->flops) : NULL;
    bool in_flops = stop && sh_shape_stop(row->shape, NULL) == NULL;

    if (!stop)
        return NULL;
    snprintf(text, SH_PLUG_TEXT, "its %s cannot be read, from \"%.60s\" on; it should be like \"%s",
             in_flops ? "flops" : "shape", stop,
             in_flops ? "9NF\"" : "gu [N,2F] act -> h [N,F] act\", with names of at most 7 letters and digits");
    return text;
}

const char *sh_plug_wrong(const struct sherd_op *row, char text[SH_PLUG_TEXT])
{
    const char *wrong;
    struct sh_op_shape s;

    if (!is_name(row->name))
        return "a name has 1 to 31 letters, digits and _";
    if (unreadable(row, text))
        return text;
    wrong = wrong_shape(row);
    if (!wrong)
        wrong = wrong_number(row->number, !row->backward);
    if (!wrong && !row->ref)
        wrong = "it has no ref kernel, which says what is right";
    if (!wrong && sh_shape_read(row->shape, row->flops, &s) && (row->in_place < 0 || row->in_place > s.n_in))
        wrong = "in_place is no input, counted from 1";
    return wrong;
}

const char *sh_plug_loss_wrong(const struct sherd_loss *row)
{
    const char *wrong = wrong_number(row->number, false);

    if (!is_name(row->name))
        return "a name has 1 to 31 letters, digits and _";
    if (!wrong && !row->target == !row->pair)
        wrong = "a loss has one function, target or pair";
    return wrong;
}

/* ---- adding ---- */

static struct sh_attr_field field_of(const char *name, size_t at)
{
    return (struct sh_attr_field){
        .name = name, .type = SH_ATTR_DOUBLE, .at = offsetof(struct sh_op_attr, plug) + at}; /* without a letter */
}

/* Fields of attr->plug by the names of the row; pairs have one more. */
static const struct sh_attr_field *fields_of(struct plug *p)
{
    int n = 0;

    for (; n < SH_OP_NUMBERS && p->rows[n].name; n++) {
        p->number[n] = p->rows[n].value;
        p->attrs[n] = field_of(p->rows[n].name, (size_t)n * sizeof(double));
    }
    if (p->loss && p->loss->pair)
        p->attrs[n] = field_of("reward", SH_OP_NUMBERS * sizeof(double));
    return p->attrs;
}

static const struct sherd_op *row_named(const struct sherd_op *rows, int n, const char *name)
{
    for (int i = 0; i < n; i++)
        if (rows[i].name && !strcmp(rows[i].name, name))
            return &rows[i];
    return NULL;
}

static sh_rc check_name(const char *name)
{
    if (sh_plug_find(name) != SH_OP_ROOM)
        return sh_fail(SH_E_USAGE, "%s: another row of a plug-in has this name", name);
    for (enum sh_op_kind k = 0; k < SH_OP_KINDS; k++)
        if (!strcmp(sh_op_info(k)->name, name))
            return sh_fail(SH_E_USAGE, "%s: an operation of Sherd has this name", name);
    return SH_OK;
}

static const char *name_of(const char *name)
{
    return name ? name : "(no name)";
}

/* The row itself, then its place among the others. */
static sh_rc check_row(const struct sherd_op *rows, int n, int i)
{
    char text[SH_PLUG_TEXT];
    const char *wrong = sh_plug_wrong(&rows[i], text);
    const struct sherd_op *backward;

    if (wrong)
        return sh_fail(SH_E_USAGE, "%s: %s", name_of(rows[i].name), wrong);
    SH_TRY(check_name(rows[i].name));
    if (row_named(rows, i, rows[i].name))
        return sh_fail(SH_E_USAGE, "%s: another operation has this name", rows[i].name);
    if (!rows[i].backward)
        return SH_OK;
    backward = row_named(rows, n, rows[i].backward);
    if (!backward || backward->backward)
        return sh_fail(SH_E_USAGE, "%s: its backward, %s, is no row without a backward in this file", rows[i].name,
                       rows[i].backward);
    for (int j = 0; j < i; j++)
        if (rows[j].backward && !strcmp(rows[j].backward, rows[i].backward))
            return sh_fail(SH_E_USAGE, "%s: %s is the backward of %s too; a backward has one operation", rows[i].name,
                           rows[i].backward, rows[j].name);
    return SH_OK;
}

/* A backward has the numbers of its operation, so that both kinds have the same attributes. */
static void add_row(const struct sherd_op *row, const struct sh_attr_field *attrs, enum sh_op_kind backward)
{
    struct sh_op_info info = {.name = row->name,
                              .shape = row->shape,
                              .flops = row->flops,
                              .forward = row->backward != NULL,
                              .backward = row->backward ? backward : 0,
                              .costly = row->costly != 0,
                              .inplace_in = row->in_place - 1,
                              .inplace_out = row->in_place ? 0 : -1,
                              .attrs = attrs};

    sh_op_add(SH_OP_KINDS + n_plugs++, &info);
}

/* Kinds in the order of the rows, so that a backward's is known before it is added. */
static void add_rows(const struct sherd_op *rows, int n)
{
    int first = n_plugs;

    for (int i = 0; i < n; i++)
        plugs[first + i] = (struct plug){.name = rows[i].name, .row = &rows[i], .rows = rows[i].number};
    for (int i = 0; i < n; i++) {
        int of = i, back = 0;

        for (int j = 0; j < n; j++) {
            if (rows[j].backward && !strcmp(rows[j].backward, rows[i].name))
                of = j;
            if (rows[i].backward && !strcmp(rows[i].backward, rows[j].name))
                back = j;
        }
        add_row(&rows[i], fields_of(&plugs[first + of]), SH_OP_KINDS + first + back);
    }
}

static sh_rc check_loss(const struct sherd_plugin *p, int i)
{
    const char *wrong = sh_plug_loss_wrong(&p->losses[i]);
    bool again = !wrong && row_named(p->ops, p->n_ops, p->losses[i].name);

    if (wrong)
        return sh_fail(SH_E_USAGE, "%s: %s", name_of(p->losses[i].name), wrong);
    for (int j = 0; j < i; j++)
        again |= !strcmp(p->losses[j].name, p->losses[i].name);
    if (again)
        return sh_fail(SH_E_USAGE, "%s: another row has this name", p->losses[i].name);
    return check_name(p->losses[i].name);
}

/* What they read and make is as of the first of their kind, PAIR_LOSS; a loss of targets has rows in place of pairs. */
static void add_loss(const struct sherd_loss *loss)
{
    struct plug *p = &plugs[n_plugs];
    struct sh_op_info info = *sh_op_info(SH_OP_PAIR_LOSS);

    *p = (struct plug){.name = loss->name, .loss = loss, .rows = loss->number};
    info.name = loss->name;
    if (loss->target) {
        info.shape = "logprob [N] f32, targets [N] i32 -> weight [N] f32, loss [1] f64 +=";
        info.flops = "16N";
    }
    info.attrs = fields_of(p);
    sh_op_add(SH_OP_KINDS + n_plugs++, &info);
}

sh_rc sh_plug_add(const struct sherd_plugin *library)
{
    int n = library->n_ops + library->n_losses;

    if (!n)
        return sh_fail(SH_E_USAGE, "it has no rows: n_ops and n_losses are 0");
    if (library->n_ops < 0 || library->n_losses < 0 || n < 1 || n > SH_OP_PLUGS - n_plugs)
        return sh_fail(SH_E_USAGE, "%d operations and losses; there is room for 1 to %d more", n,
                       SH_OP_PLUGS - n_plugs);
    for (int i = 0; i < library->n_ops; i++)
        SH_TRY(check_row(library->ops, library->n_ops, i));
    for (int i = 0; i < library->n_losses; i++)
        SH_TRY(check_loss(library, i));
    add_rows(library->ops, library->n_ops);
    for (int i = 0; i < library->n_losses; i++)
        add_loss(&library->losses[i]);
    return SH_OK;
}

/* ---- using ---- */

enum sh_op_kind sh_plug_find(const char *name)
{
    for (int i = 0; i < n_plugs; i++)
        if (!strcmp(plugs[i].name, name))
            return SH_OP_KINDS + i;
    return SH_OP_ROOM;
}

static const struct plug *plug_of(enum sh_op_kind kind)
{
    return kind < SH_OP_KINDS || (int)kind >= SH_OP_KINDS + n_plugs ? NULL : &plugs[kind - SH_OP_KINDS];
}

const struct sherd_op *sh_plug_row(enum sh_op_kind kind)
{
    const struct plug *p = plug_of(kind);

    return p ? p->row : NULL;
}

const struct sherd_loss *sh_plug_loss(enum sh_op_kind kind)
{
    const struct plug *p = plug_of(kind);

    return p ? p->loss : NULL;
}

const struct sherd_number *sh_plug_number_rows(enum sh_op_kind kind)
{
    const struct plug *p = plug_of(kind);

    return p ? p->rows : NULL;
}

void sh_plug_set(enum sh_op_kind kind, int i, double value)
{
    plugs[kind - SH_OP_KINDS].number[i] = value;
}

void sh_plug_numbers(enum sh_op_kind kind, struct sh_op_attr *attr)
{
    if (plug_of(kind))
        memcpy(attr->plug.number, plug_of(kind)->number, sizeof attr->plug.number);
}

/* As kernels of plug-ins get it. */
static struct sherd_call view(const struct sh_op_call *call)
{
    struct sherd_call c = {
        .number = call->attr->plug.number, .work = call->work, .work_bytes = call->work_bytes, .queue = call->queue};

    memcpy(c.in, call->in, sizeof c.in);
    memcpy(c.out, call->out, sizeof c.out);
    return c;
}

static sh_rc run(sherd_kernel kernel, const struct sh_op_call *call)
{
    struct sherd_call c = view(call);
    int failed = kernel(&c);

    if (failed)
        return sh_fail(SH_E_DATA, "operation %s of a plug-in: its kernel returned %d", sh_plug_row(call->kind)->name,
                       failed);
    return SH_OK;
}

sh_rc sh_plug_ref(const struct sh_op_call *call)
{
    return run(sh_plug_row(call->kind)->ref, call);
}

sh_rc sh_plug_cpu(const struct sh_op_call *call)
{
    const struct sherd_op *row = sh_plug_row(call->kind);

    return run(row->cpu ? row->cpu : row->ref, call);
}

sh_rc sh_plug_cuda(const struct sh_op_call *call)
{
    const struct sherd_op *row = sh_plug_row(call->kind);

    if (!row || !row->cuda)
        return sh_fail(SH_E_USAGE, "%s of a plug-in has no cuda kernel", sh_op_info(call->kind)->name);
    return run(row->cuda, call);
}

int64_t sh_plug_work_bytes(const struct sh_op_call *call)
{
    struct sherd_call c = view(call);
    const struct sherd_op *row = sh_plug_row(call->kind);

    return row && row->work_bytes ? row->work_bytes(&c) : 0;
}
