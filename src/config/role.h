/* Roles of parameters, one row each. Code that treats some parameters differently from others (initial values, weight
 * decay, adapters, packing, names in files) asks for the role, not for a name or a number of dimensions. Local. */
#ifndef SH_CONFIG_ROLE_H
#define SH_CONFIG_ROLE_H

#include <stdbool.h>

enum sh_param_role {
    SH_PARAM_Q, /* the linear products of a block; if q holds k and v too, or up the gate, it counts as one product */
    SH_PARAM_K,
    SH_PARAM_V,
    SH_PARAM_O,
    SH_PARAM_GATE,
    SH_PARAM_UP,
    SH_PARAM_DOWN,
    SH_PARAM_Q_A, /* of latent attention: from the stream to vectors of queries, of keys and values, and from these to heads */
    SH_PARAM_Q_B,
    SH_PARAM_KV_A,
    SH_PARAM_KV_B,
    SH_PARAM_LINEARS,                   /* number of linear products; a set of them has bits 1 << role */
    SH_PARAM_ROUTER = SH_PARAM_LINEARS, /* the products of a block with experts */
    SH_PARAM_EXPERT_UP,                 /* holds the gate too */
    SH_PARAM_EXPERT_DOWN,
    SH_PARAM_SHARED_GATE, /* of the expert that every token has */
    SH_PARAM_SHARED_UP,
    SH_PARAM_SHARED_DOWN,
    SH_PARAM_SHARED_WEIGHT,
    SH_PARAM_DELTA_QKV, /* of a block with the gated delta rule: queries, keys and values; the gate of its norm; b; a */
    SH_PARAM_DELTA_Z,
    SH_PARAM_DELTA_B,
    SH_PARAM_DELTA_A,
    SH_PARAM_DELTA_O,
    SH_PARAM_PER_LAYER_GATE, /* of inputs for each block: from the stream to one's width, back, and for all blocks at once */
    SH_PARAM_PER_LAYER_OUT,
    SH_PARAM_PER_LAYER_IN,
    SH_PARAM_PRODUCTS,                  /* number of all products */
    SH_PARAM_EMBED = SH_PARAM_PRODUCTS, /* one row per word */
    SH_PARAM_POSITIONS,                 /* one row per position */
    SH_PARAM_HEAD,                      /* the output matrix, if it is not the embedding */
    SH_PARAM_NORM,                      /* factors of a norm */
    SH_PARAM_BIAS,                      /* of a linear product or a norm */
    SH_PARAM_ROUTER_BIAS,               /* added to scores for the choice of experts; moved by their loads */
    SH_PARAM_LORA_A,                    /* the two matrices beside a linear product */
    SH_PARAM_LORA_B,
    SH_PARAM_EXPERT_LORA_A, /* the two beside a product of experts, for each expert */
    SH_PARAM_EXPERT_LORA_B,
    SH_PARAM_EXPERT_BIAS,     /* [E,O], of a product of experts */
    SH_PARAM_MOMENT,          /* no parameter: the means of squares of a matrix's rows, which an optimizer keeps */
    SH_PARAM_SINK,            /* a number for each head, in the softmax of its attention */
    SH_PARAM_CONV,            /* [C,1,W], a convolution over time of each column */
    SH_PARAM_DECAY,           /* logarithm of the decay of each head's state */
    SH_PARAM_STEP,            /* added to what the decay depends on, for each head */
    SH_PARAM_LAYER_SCALE,     /* one factor on what a block makes, which training never changes */
    SH_PARAM_GATED_NORM,      /* factors of a norm that a gate multiplies, never 1 + weight */
    SH_PARAM_SKIP,            /* how much of a value each head passes by its state */
    SH_PARAM_PER_LAYER_EMBED, /* one row per word, with a part for each block */
    SH_PARAM_ROLES
};

struct sh_param_info {
    const char *ending; /* of its name, after the module: "weight" */
    bool
        vector; /* one dimension, for each expert if it has them: no weight decay unless optimizer.decay_all is set, and never packed */
    bool residual; /* its product is added to the residual stream, so its initial values are smaller */
    bool experts;  /* [E,O,I] or [E,I,O]: a matrix for each expert, of which a token has some; or a vector */
    bool linear;   /* a linear product as PEFT means it: a module that all-linear adapts */
    bool matrix;   /* of a product between hidden features: what an optimizer of whole matrices takes */
    bool packs;    /* a matrix that a frozen base in four bits keeps packed */
    bool still;    /* no gradient changes it: it has no decay and no states of an optimizer */
    bool adapter;  /* trained alongside frozen parameters */
};

const struct sh_param_info *sh_param_info(enum sh_param_role role);

#endif
