/* A decoder while it is emitted, and what all kinds of its parts use. Inside src/model only; local. */
#ifndef SH_MODEL_PART_H
#define SH_MODEL_PART_H

#include "src/model/ffn.h"
#include "src/model/model.h"

/* A decoder while it is emitted: the family's row gives the structure, the model the sizes. Indices are those of
 * tensors of the program. */
struct decoder {
    struct sh_emit e;
    const struct sh_model *m;     /* as the block being emitted sees it, or the whole */
    const struct sh_model *whole; /* all blocks' */
    struct sh_model of_block;     /* what m points to in blocks that see another */
    const struct sh_family *f;
    const struct sh_adapters *adapters;
    struct sh_model_spread spread;
    struct sh_model_cut tensor;
    struct sh_model_stage stage;
    struct sh_emit_heads heads;
    struct sh_emit_delta delta;
    struct sh_emit_scan scan;
    struct sh_emit_route route;
    bool reports;
    int first_report; /* number of the first block with experts that this rank computes; SH_NONE: none yet */
    int router_bias, layer_scale; /* of the block; SH_NONE */
    int wte, wpe, final_norm_w, final_norm_b, head, rope, rope_local;
};

struct weights {
    int w, b;
    struct sh_emit_lora lora;
};

/* Products of one input that are computed as one: n roles from `first` on. */
struct stack {
    enum sh_param_role first;
    int n;
};

enum {
    IN,
    OUT,
    Q_LATENT,
    KV_LATENT,
    KV_HEADS,
    ROUTER = 0,
    EXPERT_UP,
    EXPERT_DOWN,
    SHARED_UP,
    SHARED_DOWN,
    SHARED_WEIGHT,
    STACKS
};
enum { DELTA_QKV, DELTA_Z, DELTA_BA, DELTA_OUT };

struct branch {
    const struct part *part;
    struct weights norm, stack[STACKS], after;
    int q_norm, k_norm, sink, conv, conv_bias, a_log, dt, per_head, gated_norm;
    struct sh_ffn_weights own; /* of model.ffn */
};

enum { ATTENTION, FEED_FORWARD, BRANCHES };

/* A kind of a branch: its products in the order of the forward, and what it computes between the norms. */
struct part {
    bool (*fits)(const struct decoder *d); /* whether the block being emitted has it; NULL: it has */
    struct stack stack[STACKS];
    int (*emit)(struct decoder *d, int x, const struct branch *b); /* [N,C] -> [N,C] */
};

/* Declare a parameter of `module` in the newest unit. The role gives the initial value and the end of the name. Returns its
 * tensor [dim...]. */
int sh_model_declare(struct decoder *d, enum sh_param_role role, const char *module, int ndim, const int64_t *dim);

/* A product with its adapters, if it has any. [N,I] -> [N,O] */
int sh_model_linear(struct decoder *d, int x, struct weights l);

#endif
