/* Families of models: a row each (family.inc), which says how a family differs from the others and what Hugging Face calls
 * its tensors. One decoder (src/model/decoder.c) makes them all by these switches. A family whose difference no switch
 * describes needs one more, which the decoder reads. Local. */
#ifndef SH_CONFIG_FAMILY_H
#define SH_CONFIG_FAMILY_H

#include "src/config/model.h"
#include "src/config/role.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sh_family {
    const char *name;         /* of model.family, and model_type in config.json */
    const char *architecture; /* the class of transformers */

    bool layer_norm;                       /* LayerNorm with bias; else RMSNorm */
    bool learned_positions;                /* a vector for each position beside the embedding; else rotary positions */
    bool norm_plus_one;                    /* norms multiply by 1 + weight, which begins at 0 */
    bool norm_after;                       /* of each branch, before its sum; else of its input */
    bool parallel;                         /* both branches have the input of the block */
    bool qkv_by_head;                      /* rows of the stacked matrix: q, k and v of each head */
    bool scaled_embedding;                 /* times the root of the width */
    bool gelu;                             /* feed-forward: GELU (tanh form) of one product; else SwiGLU of two */
    bool gelu_erf;                         /* GELU by the normal distribution instead of its tanh form */
    bool geglu;                            /* GELU for the gate instead of SiLU */
    bool wide_qk_norm;                     /* one norm for all queries and one for all keys; else one for each head */
    bool qkv_bias, o_bias, mlp_bias;       /* products with biases */
    bool attention_bias_key, mlp_bias_key; /* or as model.attention_bias and mlp_bias say */
    int no_rope_layer_interval;            /* what the key is where it is not given; 0: there is no such key */
    bool w_in_out;                         /* matrices are stored [in,out]; else [out,in] */
    bool one_width; /* heads fill the stream and are all alike: n_kv_heads = n_heads, head_dim = dim / n_heads */

    /* Tensors, without ".weight" and ".bias". `block` is followed by its number and one of the next; k and v NULL: q has
     * all three, one after the other; gate NULL with SwiGLU: up has both, gate first. */
    const char *wte, *wpe, *block, *final_norm, *head;
    const char *norm1, *q, *k, *v, *o, *norm2, *gate, *up, *down;
    const char *q_norm, *k_norm; /* NULL: none */
    const char *after1, *after2; /* norms of the branches before their sums, beside norm1 and norm2; NULL: none */
};

/* Of a linear product of a block: its module below the block, as "self_attn.q_proj", NULL where the family has it
 * not; its inputs and outputs; whether it has a bias. */
const char *sh_family_linear_name(const struct sh_family *f, enum sh_param_role which);
void sh_family_linear_dims(const struct sh_model *m, enum sh_param_role which, int64_t *in, int64_t *out);
bool sh_family_linear_bias(const struct sh_model *m, enum sh_param_role which);

/* The full name of a parameter of `module`, as "transformer.h.3.attn.c_proj.weight".
 *   block  in   below which the module is; negative: it is outside of all
 *   name   out  [size] */
void sh_family_param_name(const struct sh_family *f, int block, const char *module, enum sh_param_role role, char *name,
                          size_t size);

/* What lora.target_modules means, as bits 1 << enum sh_param_role: "all-linear", or modules or the ends of their names
 * ("q_proj", "self_attn.q_proj") with commas or blanks between.
 *   bad  out  [SH_FAMILY_WORD] where it is false: the word that names nothing */
enum { SH_FAMILY_WORD = 64 };
bool sh_family_targets(const struct sh_family *f, const char *text, unsigned *targets, char bad[SH_FAMILY_WORD]);

/* The row of a value of model.family. */
const struct sh_family *sh_family_of(int word);

#endif
