/* The kinds of models that folders of transformers hold, a row each: what its class takes absent keys of config.json to
 * mean, and which family here computes the same. A kind that no family computes is in the table too, with the reason.
 * Local. */
#ifndef IO_HF_FAMILY_H
#define IO_HF_FAMILY_H

#include <stdbool.h>
#include <stddef.h>

/* A value of `model` that config.json has under a name of its own. */
/* clang-format off */
enum sh_hf_value {
    SH_HF_LAYERS, SH_HF_DIM, SH_HF_HEADS, SH_HF_KV_HEADS, SH_HF_HEAD_DIM, SH_HF_FFN, SH_HF_VOCAB, SH_HF_POSITIONS, SH_HF_EPS,
    SH_HF_INIT, SH_HF_TIED, SH_HF_ATTENTION_BIAS, SH_HF_MLP_BIAS, SH_HF_NO_ROPE, SH_HF_SCALAR, SH_HF_THETA, SH_HF_VALUES
};
/* clang-format on */

/* A key that must be one of these words (or true, false), or absent where the class's default is the first of them. */
struct sh_hf_must {
    const char *key, *words[4], *why;
};

struct sh_hf_family {
    const char *type;                 /* model_type */
    const char *family;               /* model.family */
    const char *refused;              /* why there is none */
    const char *prefix;               /* of tensors' names, which a folder of the base model lacks */
    const char *head;                 /* the output matrix; NULL: lm_head.weight */
    const char *key[SH_HF_VALUES][2]; /* first found wins; none: the class has no such key */
    const char *absent[SH_HF_VALUES]; /* the class's default. "=": as SH_HF_DIM and SH_HF_HEADS say it; NULL: off */
    const char *window;  /* sliding_window when that key is absent, "" for none; NULL: the class has no such key */
    bool layer_types;    /* a window only with use_sliding_window, and in the blocks that layer_types names */
    const char *pattern; /* sliding_window_pattern when that key is absent, which says the blocks without a window where
                                layer_types does not; NULL: the class has no such key */
    const char *local_theta; /* rope_local_base_freq when that key is absent, for blocks with a window; NULL: all blocks
                                have the same frequencies */
    const char *partial;     /* key for the part of a head that turns, beside rope_parameters; NULL: none */
    double part;             /* where no key says it; 0: all */
    /* original_max_position_embeddings where no key says it, of the class whose rotary positions are default or longrope;
     * NULL: max_position_embeddings. */
    const char *length;
    struct sh_hf_must must[6];
    const char *dropout[4]; /* of the class; 0 is written for them where there is no source */
    const char *plain[8];   /* names that say nothing about the mathematics, beside those of all classes */
};

/* The key of `model` for a value. */
const char *sh_hf_family_key(int value);

/* The row of a model_type, NULL: none; and the one that a model of `family` is written as. */
const struct sh_hf_family *sh_hf_family_of_type(const char *type);
const struct sh_hf_family *sh_hf_family_to_write(const char *family);

/* Row i, NULL behind the last. */
const struct sh_hf_family *sh_hf_family_row(int i);

#endif
