/* What parameters are for, a row each. Who treats some parameters otherwise than others (their beginning, weight decay,
 * adapters, packing, names in files) asks for the role, not for a name or a number of dimensions. Local. */
#ifndef SH_CONFIG_ROLE_H
#define SH_CONFIG_ROLE_H

#include <stdbool.h>

enum sh_param_role {
    SH_PARAM_Q, /* the linear products of a block: where q has k and v too, or up the gate, only that is one */
    SH_PARAM_K,
    SH_PARAM_V,
    SH_PARAM_O,
    SH_PARAM_GATE,
    SH_PARAM_UP,
    SH_PARAM_DOWN,
    SH_PARAM_LINEARS,                  /* how many those are; a set of them has bits 1 << role */
    SH_PARAM_EMBED = SH_PARAM_LINEARS, /* a row for each word */
    SH_PARAM_POSITIONS,                /* a row for each position */
    SH_PARAM_HEAD,                     /* the output matrix, where it is not the embedding */
    SH_PARAM_NORM,                     /* factors of a norm */
    SH_PARAM_BIAS,                     /* of a linear product or a norm */
    SH_PARAM_LORA_A,                   /* the two matrices beside a linear product */
    SH_PARAM_LORA_B,
    SH_PARAM_ROLES
};

struct sh_param_info {
    const char *ending; /* of its name, behind the module: "weight" */
    bool vector;        /* one dimension: no weight decay unless optimizer.decay_all says so, and never packed */
    bool residual;      /* its product is added to the residual stream, so that it begins smaller */
    bool adapter;       /* trained beside what is frozen */
};

const struct sh_param_info *sh_param_info(enum sh_param_role role);

#endif
