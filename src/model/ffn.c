/* Products of model.ffn have two roles. One whose product is added to the residual stream, perhaps with others, is `down`:
 * its initial values are smaller. All others are `up`. */
#include "src/model/ffn.h"

#include "kernels/plug.h"
#include "kernels/shape.h"
#include "src/base/number/size.h"
#include "src/config/family.h"

#include <math.h>
#include <string.h>

/* The text was read when the configuration was checked. */
static struct sh_ffn statements_of(const struct sh_model *m)
{
    struct sh_ffn f;

    return sh_config_ffn(m->ffn, &f) == SH_OK ? f : (struct sh_ffn){0};
}

/* Of rows [N,F], or of any shape. */
static bool keeps_rows(enum sh_op_kind kind)
{
    const struct sh_operand_row *x = &sh_op_shape(kind)->in[0];

    return x->any_shape || x->ndim == 2;
}

/* The kind of an operation of one value without attributes: of Sherd, or of an open plug-in; SH_OP_ROOM: there is none. */
static enum sh_op_kind kind_of(const char *name)
{
    for (enum sh_op_kind k = 0; k < SH_OP_KINDS; k++) {
        const struct sh_op_info *info = sh_op_info(k);

        if (info->forward && info->backward && !info->attrs && !info->async && keeps_rows(k) &&
            !strcmp(info->name, name))
            return k;
    }
    return sh_plug_find(name);
}

/* Columns of what an operation of one value makes. A plug-in that is not open, as in tools that only count, halves 2F. */
static int64_t columns_after(const struct sh_model *m, const char *name, int64_t columns)
{
    enum sh_op_kind kind = kind_of(name);

    if (kind == SH_OP_ROOM)
        return columns == 2 * (int64_t)m->ffn_dim ? columns / 2 : columns;
    return columns / sh_emit_columns(kind);
}

/* [steps + 1] columns of all values. */
static void list_columns(const struct sh_ffn *f, const struct sh_model *m, int64_t columns[SH_FFN_STEPS + 1])
{
    columns[0] = m->dim;
    for (int i = 0; i < f->n; i++) {
        const struct sh_ffn_step *s = &f->step[i];
        int64_t in = columns[s->in[0]];

        columns[i + 1] = s->kind == SH_FFN_LINEAR      ? sh_config_ffn_width(s, m)
                         : s->kind == SH_FFN_OPERATION ? columns_after(m, s->name, in)
                                                       : in;
    }
}

/* ---- what a model must be ---- */

enum { WIDEST = 1 << 28 };

static sh_rc check_operation(const struct sh_ffn_step *s, int64_t columns)
{
    enum sh_op_kind kind = kind_of(s->name);

    if (kind == SH_OP_ROOM)
        return sh_fail(SH_E_USAGE,
                       "model.ffn: '%s': no plug-in of plugin.files has an operation '%s'; linear, norm, add, swiglu, "
                       "geglu, gelu, gelu_erf and squared_relu are Sherd's",
                       s->made, s->name);
    if (columns % sh_emit_columns(kind))
        return sh_fail(SH_E_USAGE, "model.ffn: '%s': %s takes gate and up, and %lld columns are odd", s->made, s->name,
                       (long long)columns);
    return SH_OK;
}

sh_rc sh_ffn_check(const struct sh_model *m)
{
    struct sh_ffn f = statements_of(m);
    int64_t columns[SH_FFN_STEPS + 1];

    list_columns(&f, m, columns);
    for (int i = 0; i < f.n; i++) {
        const struct sh_ffn_step *s = &f.step[i];
        int64_t a = columns[s->in[0]], b = columns[s->in[1]];

        if (columns[i + 1] > WIDEST)
            return sh_fail(SH_E_USAGE, "model.ffn: '%s' has %lld columns, more than %d", s->made,
                           (long long)columns[i + 1], WIDEST);
        if (s->kind == SH_FFN_OPERATION)
            SH_TRY(check_operation(s, a));
        if (s->kind == SH_FFN_ADD && a != b)
            return sh_fail(SH_E_USAGE, "model.ffn: '%s': adds %lld and %lld columns; give both one width", s->made,
                           (long long)a, (long long)b);
    }
    if (f.n && columns[f.n] != m->dim)
        return sh_fail(SH_E_USAGE,
                       "model.ffn: the result '%s' has %lld columns, and the residual stream model.dim=%d; end in a "
                       "product of width C",
                       f.step[f.n - 1].made, (long long)columns[f.n], m->dim);
    return SH_OK;
}

int64_t sh_ffn_widths(const struct sh_model *m)
{
    struct sh_ffn f = statements_of(m);
    int64_t columns[SH_FFN_STEPS + 1], sum = 0;

    list_columns(&f, m, columns);
    for (int i = 1; i <= f.n; i++)
        sum = sh_size_add(sum, columns[i]);
    return sum;
}

int64_t sh_ffn_params(const struct sh_model *m)
{
    struct sh_ffn f = statements_of(m);
    int64_t columns[SH_FFN_STEPS + 1], sum = 0;

    list_columns(&f, m, columns);
    for (int i = 0; i < f.n; i++)
        if (f.step[i].kind == SH_FFN_LINEAR)
            sum = sh_size_add(sum, sh_size_mul(columns[f.step[i].in[0]], columns[i + 1]));
    return sum;
}

/* ---- emitting ---- */

static int declare(struct sh_emit *e, const struct sh_model *m, const char *name, enum sh_param_role role, int ndim,
                   const int64_t *dim)
{
    const struct sh_family *f = sh_family_of(m->family);
    bool ones = role == SH_PARAM_NORM && !f->norm_plus_one, matrix = ndim == 2;
    double std = matrix ? m->init_std : 0;
    char module[SH_FFN_WORD + 4], full[SH_NAME_MAX];

    if (sh_param_info(role)->residual)
        std /= sqrtf(2.0f * (float)m->n_layers);
    snprintf(module, sizeof module, "mlp.%s", name);
    sh_family_param_name(f, e->block, module, role, full, sizeof full);
    return sh_emit_param(e, role, full, ndim, dim,
                         matrix ? SH_INIT_NORMAL
                         : ones ? SH_INIT_ONE
                                : SH_INIT_ZERO,
                         (float)std);
}

void sh_ffn_declare(struct sh_emit *e, const struct sh_model *m, struct sh_ffn_weights *out)
{
    const struct sh_family *f = sh_family_of(m->family);
    struct sh_ffn ffn = statements_of(m);
    int64_t columns[SH_FFN_STEPS + 1];

    list_columns(&ffn, m, columns);
    for (int i = 0; i < ffn.n; i++) {
        const struct sh_ffn_step *s = &ffn.step[i];
        enum sh_param_role role = s->residual ? SH_PARAM_DOWN : SH_PARAM_UP;
        int64_t in = columns[s->in[0]], n = columns[i + 1];
        bool bias = s->kind == SH_FFN_LINEAR ? sh_family_linear_bias(m, role) : f->layer_norm && !f->norm_no_bias;

        out->w[i] = out->b[i] = SH_NONE;
        if (s->kind == SH_FFN_LINEAR)
            out->w[i] = declare(e, m, s->name, role, 2, f->w_in_out ? DIMS(in, n) : DIMS(n, in));
        else if (s->kind == SH_FFN_NORM)
            out->w[i] = declare(e, m, s->name, SH_PARAM_NORM, 1, &n);
        if (out->w[i] != SH_NONE && bias)
            out->b[i] = declare(e, m, s->name, SH_PARAM_BIAS, 1, &n);
    }
}

/* Tools that only count need the shapes alone of a plug-in that is not open. */
static enum sh_op_kind stand_in(const struct sh_emit *e, const struct sh_model *m, int x)
{
    return e->p->tensors[x].dim[1] == 2 * (int64_t)m->ffn_dim ? SH_OP_SWIGLU : SH_OP_GELU;
}

int sh_ffn_emit(struct sh_emit *e, const struct sh_model *m, const struct sh_ffn_weights *w, struct sh_emit_norm how,
                int x)
{
    struct sh_ffn f = statements_of(m);
    int value[SH_FFN_STEPS + 1] = {x};

    for (int i = 0; i < f.n; i++) {
        const struct sh_ffn_step *s = &f.step[i];
        int in = value[s->in[0]];
        enum sh_op_kind kind;

        switch (s->kind) {
        case SH_FFN_LINEAR:
            value[i + 1] = sh_emit_linear(e, in, w->w[i], w->b[i], sh_family_of(m->family)->w_in_out);
            break;
        case SH_FFN_NORM: value[i + 1] = sh_emit_norm(e, in, w->w[i], w->b[i], how); break;
        case SH_FFN_ADD: value[i + 1] = sh_emit_add(e, in, value[s->in[1]]); break;
        case SH_FFN_OPERATION:
            kind = kind_of(s->name);
            value[i + 1] = sh_emit_pointwise(e, kind != SH_OP_ROOM ? kind : stand_in(e, m, in), in);
            break;
        }
    }
    return value[f.n];
}
