/* The section `model` of a configuration, which is all that a model is made of. */
#ifndef SH_CONFIG_MODEL_H
#define SH_CONFIG_MODEL_H

#include <stdbool.h>

struct sh_model {  /* the preset sets all of these; keys given by the user win */
    char name[64]; /* preset: debug, gpt2-124m, gpt2-1558m, llama3.2-1b, llama3.1-8b, llama3.1-70b;
                                custom: none, every dimension is given */
    int family;    /* enum sh_cfg_family: a row of src/config/family.inc */
    int n_layers, dim, n_heads, n_kv_heads, head_dim, ffn_dim, vocab_size, max_seq_len;
    double norm_eps;
    double rope_theta, rope_factor; /* factor 0: no scaling */
    int rope_type;                  /* enum sh_cfg_rope, how they are scaled: llama3 | linear | yarn | longrope */
    int rope_original_max_len;      /* llama3, yarn, longrope */
    int rotary_dim;                 /* elements of a head that turn; 0: all */
    double rope_low_freq_factor, rope_high_freq_factor; /* llama3 */
    double rope_beta_fast, rope_beta_slow,
        rope_attention_factor; /* yarn; attention_factor, of longrope too, 0: by rope_factor */
    bool rope_truncate;        /* yarn */
    char rope_short_factor[3072], rope_long_factor[3072]; /* longrope: numbers with commas between */
    double rope_local_base_freq; /* theta of blocks with a window, which nothing scales; 0: as the others */
    bool tie_word_embeddings;
    bool attention_bias, mlp_bias; /* biases of products where the family leaves the choice */
    int no_rope_layer_interval;    /* each block of that number has no rotary positions; 0: all have */
    int attention_window;          /* keys that a query sees, its own included; 0: all */
    int window_first_layer;        /* blocks before it see all */
    int full_attention_interval;   /* each block of that number sees all; 0: none does */
    int query_pre_attn_scalar;     /* scores are divided by its root; 0: head_dim */
    double init_std;
};

#endif
