#include "io/foreign/hf/stacked.h"

#include "src/config/family.h"

#include <stdio.h>
#include <string.h>

static const enum sh_param_role roles[] = {SH_PARAM_EXPERT_LORA_A, SH_PARAM_EXPERT_LORA_B};

struct sh_hf_stacks sh_hf_stacks_of(const struct sh_config *cfg)
{
    const struct sh_family *f = sh_family_of(cfg->model.family);
    struct sh_hf_stacks s = {.module = f->experts, .experts = cfg->model.n_experts};
    char bad[SH_FAMILY_WORD];
    unsigned targets;

    if (sh_family_targets(&cfg->model, cfg->lora.target_modules, cfg->lora.target_parameters, &targets, bad))
        return s;
    s.up = targets & 1u << SH_PARAM_EXPERT_UP ? f->expert_up : NULL;
    s.down = targets & 1u << SH_PARAM_EXPERT_DOWN ? f->expert_down : NULL;
    return s;
}

/* The ends of a tensor's name in the run and in the file, both with a dot in front.
 *   which  in  0: gate_up_proj, 1: down_proj
 *   role   in  index into roles[]
 * False: the stack is not adapted. */
enum { END = 128 };
static bool ends_of(const struct sh_hf_stacks *s, int which, int role, char here[END], char there[END])
{
    const char *stack = which ? s->down : s->up, *ending = sh_param_info(roles[role])->ending;

    if (!stack)
        return false;
    snprintf(here, END, ".%s.%s", stack, ending);
    snprintf(there, END, ".%s%s.%s", s->module, !which && s->down ? ".base_layer" : "", ending);
    return true;
}

/* Put `to` in place of the name's end `from`. False: the name has another end, or becomes too long. */
static bool swap_end(char *name, size_t size, const char *from, const char *to)
{
    size_t n = strlen(name), end = strlen(from);

    if (n < end || strcmp(name + n - end, from) != 0 || n - end + strlen(to) >= size)
        return false;
    memcpy(name + n - end, to, strlen(to) + 1);
    return true;
}

/* The role, as an index into roles[], of a tensor whose name is changed; -1: it is not one of these. */
static int rename_end(const struct sh_hf_stacks *s, char *name, size_t size, bool to_file)
{
    char here[END], there[END];

    for (int i = 0; i < 4; i++)
        if (ends_of(s, i / 2, i % 2, here, there) &&
            swap_end(name, size, to_file ? here : there, to_file ? there : here))
            return i % 2;
    return -1;
}

void sh_hf_stacked_to_file(const struct sh_hf_stacks *s, char *name, size_t size, int *ndim, int64_t dim[4])
{
    int role = *ndim == 3 ? rename_end(s, name, size, true) : -1;

    if (role < 0)
        return;
    *ndim = 2;
    if (role == 0) {
        dim[0] *= dim[1];
        dim[1] = dim[2];
    } else {
        int64_t experts = dim[0];

        dim[0] = dim[1];
        dim[1] = dim[2] * experts;
    }
}

/* A shape that does not divide stays, and is refused when it is compared with the run's. */
void sh_hf_stacked_from_file(const struct sh_hf_stacks *s, struct sh_st_entry *e)
{
    int role = e->ndim == 2 ? rename_end(s, e->name, sizeof e->name, false) : -1;
    int64_t E = s->experts;

    if (role < 0 || e->dim[role] % E)
        return;
    e->ndim = 3;
    if (role == 0)
        memcpy(e->dim, (const int64_t[]){E, e->dim[0] / E, e->dim[1]}, 3 * sizeof *e->dim);
    else
        memcpy(e->dim, (const int64_t[]){E, e->dim[0], e->dim[1] / E}, 3 * sizeof *e->dim);
}

bool sh_hf_stacked_is_turned(const struct sh_hf_stacks *s, const char *name)
{
    char copy[SH_ST_NAME_MAX + 1];

    snprintf(copy, sizeof copy, "%s", name);
    return rename_end(s, copy, sizeof copy, true) == 1;
}

void sh_hf_stacked_turn(const int64_t dim[3], const float *b, int64_t first, int64_t n, float *file)
{
    for (int64_t at = first; at < first + n; at++)
        *file++ = b[at % dim[0] * dim[1] * dim[2] + at / dim[0]];
}

void sh_hf_stacked_turn_back(const int64_t dim[3], const float *file, float *b)
{
    for (int64_t e = 0; e < dim[0]; e++)
        for (int64_t i = 0; i < dim[1] * dim[2]; i++)
            *b++ = file[i * dim[0] + e];
}
