/* Families of models, one row each (family.inc): how a family differs from the others, and what Hugging Face calls its
 * tensors. One decoder (src/model/decoder.c) builds them all by these switches. A family that differs in a way that no
 * switch describes needs a new switch, which the decoder reads. Local. */
#ifndef SH_CONFIG_FAMILY_H
#define SH_CONFIG_FAMILY_H

#include "src/config/model.h"
#include "src/config/role.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sh_family {
    const char *name;         /* value of model.family, and model_type in config.json */
    const char *architecture; /* the class in transformers */
    const char *labels;       /* that for labels of texts; NULL: there is none */

    bool layer_norm;        /* LayerNorm with bias; else RMSNorm */
    bool norm_no_bias;      /* that LayerNorm has none */
    bool learned_positions; /* a vector per position, added to the embedding; else rotary positions */
    bool norm_plus_one;     /* norms multiply by 1 + weight; the weight starts at 0 */
    bool norm_after;        /* norms of each branch's output, before it is added; else of its input */
    bool rope_pairs;        /* neighbours in a head turn together; else an element and that half a head on */
    bool first_length;      /* queries have a factor, 1 within model.rope_original_max_len; beyond it is refused */
    bool parallel;          /* both branches take the input of the block */
    bool qkv_by_head;       /* the stacked matrix has rows of q, k and v head by head */
    bool scaled_embedding;  /* the embedding is multiplied by the square root of the width */
    bool gelu;              /* feed-forward and experts: GELU (tanh form) of one product; else SwiGLU of two */
    bool gelu_erf;          /* GELU by the normal distribution instead of its tanh form */
    bool geglu;             /* GELU for the gate instead of SiLU */
    bool relu2;             /* the square of what is above 0 instead of GELU */
    bool
        single; /* a block has attention, or what stands in its place, or a feed-forward part (layer_types mlp), or experts
                    (moe) */
    bool wide_qk_norm;                     /* one norm for all queries and one for all keys; else one for each head */
    bool qkv_bias, o_bias, mlp_bias;       /* products with biases */
    bool attention_bias_key, mlp_bias_key; /* these follow model.attention_bias and mlp_bias */
    bool expert_bias;                      /* the products of router and experts have biases */
    bool experts_in_out; /* stacks of experts are stored [E,in,out], gate and up alternate in them, and their names have
                            no ".weight" and end in "_bias" */
    float glu_limit, glu_alpha; /* of the gate and up of experts (kernels/op.h, SWIGLU_ROWS); 0: none */
    bool route_norm;            /* default of the key */
    bool dense_too;             /* without model.n_experts, no block has experts; else all have */
    double least_step;          /* default of model.linear_least_step */
    const char *layer_types;    /* default of the key if it is not by windows and positions; NULL: it is */
    int no_rope_layer_interval; /* default of the key; 0: the family has no such key */
    bool w_in_out;              /* matrices are stored [in,out]; else [out,in] */
    bool one_width; /* the heads fill the stream and are equal: n_kv_heads = n_heads, head_dim = dim / n_heads */

    /* Names of tensors, without ".weight" and ".bias". `block` is followed by the number of the block and one of the
     * names below. k and v NULL: q holds all three, one after the other. gate NULL with SwiGLU: up holds both, gate
     * first; so does the shared one's. up NULL: no block is without experts. */
    const char *wte, *wpe, *block, *final_norm, *head;
    const char *q, *k, *v, *o, *gate, *up, *down;
    const char *q_norm, *k_norm; /* of queries and keys, or with kv_a of latent vectors; NULL: none */
    /* Latent attention, with q for queries without a latent vector; NULL: none. */
    const char *q_a, *q_b, *kv_a, *kv_b;
    const char *sinks; /* the module that has a number for each head in its softmax; NULL: none */
    bool
        global_heads; /* blocks without a window may have other heads (model.global_head_dim), and their rotary positions
                            turn the first of all pairs of a head; scores are not divided */
    bool value_norm;  /* values are normalized, without a weight */
    /* With model.per_layer_dim: the table and the product that make an input for each block, and the norm of both; in a
     * block the product that gates it and the one back. NULL: none. */
    const char *per_layer_embed, *per_layer_in, *per_layer_norm, *per_layer_gate, *per_layer_out;
    bool layer_scale;    /* what a block makes is multiplied by a number of its own, "layer_scalar" */
    bool attention_gate; /* q has a gate behind each head's query, for what that head makes */
    const char *delta;   /* the module of blocks with the gated delta rule (layer_types linear); NULL: none */
    bool scan;           /* that module is Mamba-2's state space; delta_qkv makes gates, values, groups and steps */
    const char *delta_qkv, *delta_z, *delta_b, *delta_a, *delta_o, *delta_conv, *delta_norm; /* and those in it */
    const char *norm[3];  /* of the attention branch, the feed-forward branch and that of the block's own input; second
                             NULL: one for both; third NULL: none */
    const char *after[3]; /* norms of the branches' outputs, in addition; NULL: none */

    /* With experts: the router; up [E,2F,C], gate and up of each expert, or [E,F,C] with gelu; down [E,C,F]; the expert that every token has,
     * and the product whose sigmoid weighs it. NULL: none. */
    const char *router, *expert_up, *expert_down;
    const char
        *experts; /* the module of transformers 5 that has both stacks, as gate_up_proj, or up_proj, and down_proj */
    const char *shared_gate, *shared_up, *shared_down, *shared_weight;
};

/* Whether this block, counted from 0, has the heads of model.global_head_dim; and the width of these. */
bool sh_family_is_global(const struct sh_model *m, int block);
int sh_family_global_dim(const struct sh_model *m);

/* Whether this block, counted from 0, reads the keys and values of another, the last one of its kind that has its own
 * (model.kv_shared_layers); which one, SH_NONE if there is none; and whether a later block reads its. */
bool sh_family_shares_kv(const struct sh_model *m, int block);
int sh_family_kv_source(const struct sh_model *m, int block);
bool sh_family_is_kv_source(const struct sh_model *m, int block);

/* Whether the output matrix is the embedding; labels have a matrix of their own, also if words would share it. */
bool sh_family_is_tied(const struct sh_model *m);

/* Whether this block, counted from 0, has experts. */
bool sh_family_has_experts(const struct sh_model *m, int block);

/* Whether any block may have experts; and whether positions turn in any block. */
bool sh_family_takes_experts(const struct sh_model *m);
bool sh_family_has_rope(const struct sh_model *m);

/* Whether this block has attention, or what stands in its place; and a feed-forward part. */
bool sh_family_has_mixer(const struct sh_model *m, int block);
bool sh_family_has_ffn(const struct sh_model *m, int block);

/* Whether this block has a state in place of attention, by the gated delta rule or as in Mamba-2; columns of its queries, keys
 * and values. */
bool sh_family_has_delta(const struct sh_model *m, int block);
int64_t sh_family_delta_columns(const struct sh_model *m);

/* How many of the first `blocks` blocks have experts. */
int sh_family_blocks_with_experts(const struct sh_model *m, int blocks);

/* A product of a block: the name of its module below the block, such as "self_attn.q_proj", or NULL if the family does
 * not have it; its numbers of inputs and outputs, of one expert if there are several; whether it has a bias. */
const char *sh_family_linear_name(const struct sh_family *f, enum sh_param_role which);
void sh_family_linear_dims(const struct sh_model *m, enum sh_param_role which, int64_t *in, int64_t *out);
bool sh_family_linear_bias(const struct sh_model *m, enum sh_param_role which);

/* What PEFT calls a stack of experts, such as "mlp.experts.down_proj". */
enum { SH_FAMILY_WORD = 64 };
void sh_family_stack_name(const struct sh_family *f, enum sh_param_role which, char name[SH_FAMILY_WORD]);

/* The full name of a parameter of `module`, such as "transformer.h.3.attn.c_proj.weight".
 *   block  in   that holds the module; negative: the module is outside all blocks
 *   name   out  [size] */
void sh_family_param_name(const struct sh_family *f, int block, const char *module, enum sh_param_role role, char *name,
                          size_t size);

/* Read lora.target_modules and lora.target_parameters into bits 1 << enum sh_param_role. Words are modules, or stacks of
 * experts, or the ends of their names ("q_proj", "self_attn.q_proj"; "experts.down_proj"), separated by commas or blanks;
 * the module "all-linear" stands for all modules. Returns NULL, or the key that is wrong.
 *   bad  out  [SH_FAMILY_WORD] the word that names nothing in this model; "": nothing is named at all */
const char *sh_family_targets(const struct sh_model *m, const char *modules, const char *parameters, unsigned *targets,
                              char bad[SH_FAMILY_WORD]);

/* The row for a value of model.family. */
const struct sh_family *sh_family_of(int word);

#endif
