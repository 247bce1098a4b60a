#include "src/optim/mup.h"

#include <math.h>

struct factors {
    double init, lr, eps, weight_decay;
};

static bool has_factors(enum sh_param_role role, double width, struct factors *f)
{
    if (sh_param_info(role)->matrix)
        *f = (struct factors){1 / sqrt(width), 1 / width, 1 / width, width};
    else if (role == SH_PARAM_HEAD)
        *f = (struct factors){1 / width, 1 / width, 1, width};
    else
        return false;
    return true;
}

static double or_usual(double number, double usual)
{
    return isnan(number) ? usual : number;
}

/* The numbers of a group, or of the run, times the factors. */
static struct sh_group_numbers numbers_of(const struct sh_program *p, int group, const struct sh_mup *mup,
                                          const struct factors *f)
{
    struct sh_group_numbers n = {.lr = NAN, .weight_decay = NAN, .beta1 = NAN, .beta2 = NAN, .eps = NAN};

    if (group)
        n = p->numbers[group - 1];
    n.lr = or_usual(n.lr, 1) * f->lr;
    n.eps = or_usual(n.eps, mup->eps) * f->eps;
    n.weight_decay = or_usual(n.weight_decay, mup->weight_decay) * f->weight_decay;
    return n;
}

/* Tensors of one group and one kind share their numbers: their runs stay neighbours of one group, which is one call of
 * the kernel.
 *   first  of the numbers that are ours */
static int find_or_add(struct sh_program *p, int first, const struct sh_group_numbers *n)
{
    for (int i = first; i < p->n_numbers; i++) {
        const struct sh_group_numbers *o = &p->numbers[i];

        if (o->pattern == n->pattern && o->lr == n->lr && o->eps == n->eps && o->weight_decay == n->weight_decay)
            return i + 1;
    }
    sh_program_add_numbers(p, *n);
    return p->n_numbers;
}

void sh_mup_assign(struct sh_program *p, const struct sh_mup *mup, bool muon)
{
    int first = p->n_numbers;

    for (int i = 0; i < p->n_saved; i++) {
        struct sh_saved *s = &p->saved[i];
        bool adamw = s->group && p->numbers[s->group - 1].adamw;
        struct sh_group_numbers n;
        struct factors f;

        if (!s->trainable || !has_factors(s->role, mup->width, &f))
            continue;
        s->init_std = (float)((double)s->init_std * f.init);
        if (muon && !adamw && sh_param_info(s->role)->matrix)
            continue;
        n = numbers_of(p, s->group, mup, &f);
        s->group = find_or_add(p, first, &n);
    }
}
