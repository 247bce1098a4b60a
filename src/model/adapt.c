/* Adapters of a stack of matrices, such as q, k and v as one: which parts are adapted, and the two small matrices of
 * each. The stack has one A, [parts x rank, in], and one B, whose rows are those of the parts one after the other, so
 * that the kernels make few products. */
#include "src/model/adapt.h"

#include "src/program/saved.h"

#include <math.h>

/* Routers, and what weighs the shared expert, have none: their product is part of another operation. */
static bool adapts(const struct sh_adapters *a, enum sh_param_role role)
{
    const struct sh_param_info *info = sh_param_info(role);

    return a->targets & 1u << role && (info->linear || info->experts);
}

bool sh_adapt_any(const struct sh_adapters *a, const struct sh_adapt *s)
{
    for (int i = 0; i < s->n; i++)
        if (adapts(a, s->which[i]))
            return true;
    return false;
}

/* One of the two matrices of a product, [rows,columns] or [E,rows,columns]; the tensor of the first one declared stands
 * for a whole stack. */
static int declare(struct sh_emit *e, const struct sh_adapt *s, int i, enum sh_param_role role, int64_t rows,
                   int64_t columns, enum sh_init init, float bound)
{
    char name[SH_NAME_MAX];
    int t;

    sh_family_param_name(s->family, e->block, s->module[i], role, name, sizeof name);
    if (s->experts) {
        t = sh_emit_param(e, role, name, 3, DIMS(s->experts, rows, columns), init, bound);
        if (s->held.n)
            sh_emit_hold(e, t, 0, 1, &s->held);
        return t;
    }
    t = sh_emit_param(e, role, name, 2, DIMS(rows, columns), init, bound);
    /* A has the inputs of the product, B its outputs. */
    if (s->n_bands[i] && s->by_inputs == (role == SH_PARAM_LORA_A))
        sh_emit_hold(e, t, role == SH_PARAM_LORA_A, s->n_bands[i], s->band[i]);
    return t;
}

/* Outputs of a product that this rank has. */
static int width_of(const struct sh_adapt *s, int i)
{
    int64_t n = s->by_inputs || !s->n_bands[i] ? s->out[i] : 0;

    for (int k = 0; k < s->n_bands[i] && !s->by_inputs; k++)
        n += s->band[i][k].n;
    return (int)n;
}

/* All A lie end to end, followed by all B. A starts as in PEFT: Kaiming's uniform with a = sqrt(5), which is uniform
 * within 1 / sqrt(columns); B starts at 0, so that a run starts with the unchanged model. */
struct sh_emit_lora sh_adapt_stack(struct sh_emit *e, const struct sh_adapters *a, const struct sh_adapt *s)
{
    struct sh_emit_lora l = {.a = SH_NONE, .b = SH_NONE, .scale = a->scale};
    enum sh_param_role role_a = s->experts ? SH_PARAM_EXPERT_LORA_A : SH_PARAM_LORA_A;
    enum sh_param_role role_b = s->experts ? SH_PARAM_EXPERT_LORA_B : SH_PARAM_LORA_B;
    int from[SH_LORA_PARTS];

    for (int i = 0, first = 0; i < s->n; first += width_of(s, i++)) {
        if (!adapts(a, s->which[i]))
            continue;
        from[l.parts] = i;
        l.first[l.parts] = first;
        l.width[l.parts++] = width_of(s, i);
    }
    for (int p = 0; p < l.parts; p++) {
        int t = declare(e, s, from[p], role_a, a->rank, s->in, SH_INIT_UNIFORM, 1.0f / sqrtf((float)s->in));

        l.a = p ? l.a : t;
    }
    for (int p = 0; p < l.parts; p++) {
        int t = declare(e, s, from[p], role_b, s->out[from[p]], a->rank, SH_INIT_ZERO, 0);

        l.b = p ? l.b : t;
    }
    if (l.parts > 1) {
        l.a = sh_emit_stack(e, l.a, l.parts);
        l.b = sh_emit_stack(e, l.b, l.parts);
    }
    return l;
}

static bool trains(enum sh_param_role role, bool labels)
{
    return sh_param_info(role)->adapter || (labels && role == SH_PARAM_HEAD);
}

/* Call after all units are declared. Adapters have their own units, so the first parameter of a unit speaks for all of
 * it. Other ranks may hold what is saved. */
void sh_adapt_freeze(struct sh_program *p, bool labels)
{
    for (int i = 0; i < p->n_saved; i++)
        p->saved[i].trainable = trains(p->saved[i].role, labels);
    for (int i = 0; i < p->n_units; i++)
        if (!trains(sh_saved_of(p, &p->params[p->units[i].first_param])->role, labels))
            sh_program_freeze(p, i);
}
