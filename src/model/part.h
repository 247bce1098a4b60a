/* A decoder while it is emitted, and what all kinds of its parts use. Inside src/model only; local. */
#ifndef SH_MODEL_PART_H
#define SH_MODEL_PART_H

#include "src/model/adapt.h"
#include "src/model/ffn.h"

struct weights {
    int w, b;
    struct sh_emit_lora lora;
};

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
    int wte, wpe, head, rope, rope_local;
    int kv[2], cache[2]; /* for later blocks: of those with a window, and without one */
    int *input;          /* [n_layers] what each block reads besides the stream, freed at the end; NULL: nothing */
    struct weights final_norm;
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

enum { ATTENTION, FEED_FORWARD, INPUT, BRANCHES };

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

/* w [C], b [C], SH_NONE if the family does not have them; the norm itself, and x times a multiplier, of which 0 is off:
 * [N,C] -> [N,C] */
struct weights sh_model_declare_norm(struct decoder *d, const char *module);
struct sh_emit_norm sh_model_norm_kind(const struct decoder *d);
int sh_model_norm(struct decoder *d, int x, struct weights n);
int sh_model_scaled(struct decoder *d, int x, double by);
enum sh_op_kind sh_model_activation(const struct decoder *d); /* the family's */

/* stack.c: those of a stack that the family has; their parameters: w [sum of O,I] or [E,O,I], b [sum of O] or SH_NONE. */
struct sh_adapt sh_model_products(const struct decoder *d, struct stack stack);
struct weights sh_model_declare_stack(struct decoder *d, struct stack stack);

/* attention.c: what attention has beside its products. heads: norms of latent vectors, and sinks. */
void sh_model_declare_qk_norm(struct decoder *d, struct branch *b);
void sh_model_declare_heads(struct decoder *d, struct branch *b);

/* delta.c: heads with a state in place of attention, by the gated delta rule or as in Mamba-2. Whether the block being
 * emitted has them, and those of Mamba-2; what it has beside its products: the convolution, numbers of each head, a norm. */
bool sh_model_has_delta(const struct decoder *d);
bool sh_model_has_scan(const struct decoder *d);
void sh_model_delta_declare(struct decoder *d, struct branch *b);

/* Between the norms of a branch, of attention.c, delta.c and experts.c. [N,C] -> [N,C] */
int sh_model_attention(struct decoder *d, int x, const struct branch *b);
int sh_model_latent_attention(struct decoder *d, int x, const struct branch *b);
int sh_model_delta(struct decoder *d, int x, const struct branch *b);
int sh_model_scan(struct decoder *d, int x, const struct branch *b);
int sh_model_experts(struct decoder *d, int x, const struct branch *b);

/* inputs.c: what blocks read besides the stream: declare and make that of all blocks from the embedding [N,C]; whether there
 * is any; and what a block makes of the stream and of its own. */
void sh_model_make_inputs(struct decoder *d, int x);
bool sh_model_has_inputs(const struct decoder *d);
int sh_model_gate_input(struct decoder *d, int x, const struct branch *b); /* [N,C] -> [N,C] */

/* branch.c: the block e.block, whose rows come from the one before; of another stage, only its parameters are listed. */
int sh_model_emit_block(struct decoder *d, int x); /* [N,C] -> [N,C] */

#endif
