/* The model types that folders of transformers hold, one row each: the defaults of the class for keys that config.json
 * lacks, and the family here that computes the same. A type that no family computes is in the table too, with the
 * reason.
 * Local. */
#ifndef IO_HF_FAMILY_H
#define IO_HF_FAMILY_H

#include "src/base/err.h"

#include <stdbool.h>
#include <stddef.h>

/* The values of `model` that config.json has under another name. */
/* clang-format off */
enum sh_hf_value {
    SH_HF_LAYERS, SH_HF_DIM, SH_HF_HEADS, SH_HF_KV_HEADS, SH_HF_HEAD_DIM, SH_HF_FFN, SH_HF_VOCAB, SH_HF_POSITIONS, SH_HF_EPS,
    SH_HF_INIT, SH_HF_TIED, SH_HF_ATTENTION_BIAS, SH_HF_MLP_BIAS, SH_HF_NO_ROPE, SH_HF_SCALAR, SH_HF_EXPERTS, SH_HF_CHOSEN,
    SH_HF_EXPERT_FFN, SH_HF_SHARED_FFN, SH_HF_ROUTE_NORM, SH_HF_MOE_EVERY, SH_HF_FIRST_DENSE,
    SH_HF_LINEAR_KEYS, SH_HF_LINEAR_VALUES, SH_HF_LINEAR_KEY_DIM, SH_HF_LINEAR_VALUE_DIM, SH_HF_LINEAR_CONV, SH_HF_LEAST_STEP,
    SH_HF_EMBED_BY, SH_HF_RESIDUAL_BY, SH_HF_LOGITS_BY, SH_HF_SCORES_CAP, SH_HF_LOGITS_CAP,
    SH_HF_Q_RANK, SH_HF_KV_RANK, SH_HF_TURNED_DIM, SH_HF_PLAIN_DIM, SH_HF_VALUE_DIM, SH_HF_ROUTE_SCALE, SH_HF_GROUPS,
    SH_HF_TOP_GROUPS, SH_HF_SHARED, SH_HF_FIRST_EXPERTS,
    SH_HF_THETA, SH_HF_VALUES
};
/* clang-format on */

/* A key that must have one of these words (or true, false, null, or a number) as its value, or be absent; the first word is
 * the default. */
struct sh_hf_must {
    const char *key, *words[4], *why;
};

/* A tensor that folders have under another name, or as a matrix for each expert: modules of a block. */
struct sh_hf_form {
    const char *here;     /* ours */
    const char *there[2]; /* theirs; with a # for the number of an expert: its matrices, end to end */
    const char *kept; /* the whole name, after the block, of what transformers 5 keeps in memory; may be in files too */
};

enum { SH_HF_FORMS = 3 };

struct sh_hf_family {
    const char *type;                 /* model_type */
    const char *family;               /* model.family */
    const char *refused;              /* why there is no family; NULL: there is one */
    const char *prefix;               /* prefix of tensor names, absent in a folder of the base model */
    const char *head;                 /* name of the output matrix; NULL: lm_head.weight */
    const char *key[SH_HF_VALUES][2]; /* first found wins; none: the class has no such key */
    const char *absent[SH_HF_VALUES]; /* the class's default. "=": follows from SH_HF_DIM and SH_HF_HEADS; NULL: off,
                                         or not given */
    bool scores_by;                   /* the key of SH_HF_SCALAR is the factor on scores, 1 / root of our value */
    bool logits_by;                   /* the key of SH_HF_LOGITS_BY is the factor on logits, 1 / our value */
    const char *window;   /* sliding_window if that key is absent, "" for none; NULL: the class has no such key */
    bool layer_types;     /* a window only with use_sliding_window, and in the blocks that layer_types names */
    const char *pattern;  /* sliding_window_pattern if that key is absent; it says which blocks have no window if
                                layer_types does not; NULL: the class has no such key */
    bool lists_only;      /* it has no such key all the same, nor rope_local_base_freq */
    bool full_nope;       /* with a window, blocks without it have no positions */
    const char *interval; /* full_attention_interval if that key is absent: only every so many blocks have attention if
                                layer_types does not say which; NULL: all have */
    bool window_set;      /* the class cannot compute without a window */
    bool images; /* the language model of one that reads images: rope_parameters may say how these have positions */
    const char *local_theta; /* rope_local_base_freq if that key is absent, for blocks with a window; NULL: all blocks
                                have the same frequencies */
    const char *partial;     /* top-level key for the rotated part of a head, outside rope_parameters; NULL: none */
    double part;             /* that part if no key says it; 0: all */
    /* original_max_position_embeddings if no key says it, for the class whose rotary positions are default or longrope;
     * NULL: max_position_embeddings. */
    const char *length;
    bool rope_given;  /* its rotary positions are not plain by default, so a file must have them */
    const char *beta; /* llama_4_scaling_beta, which must be there, in yarn; NULL: the class has no such number */
    bool latent;  /* latent attention, a router by sigmoid with biases, and blocks after the last that predict further
                         words, which are left out */
    bool global;  /* blocks without a window have other heads, as global.h says; the last block is one of them */
    bool hybrid;  /* each block has one branch, as hybrid.h says */
    bool granite; /* some blocks have Mamba-2, as granite.h says */
    const char *there; /* prefix of names in files, in place of `prefix`; NULL: the same */
    bool mxfp4;        /* its experts may be packed (io/foreign/hf/mxfp4.h) */
    struct sh_hf_form form[SH_HF_FORMS];
    struct sh_hf_must must[8];
    const char *dropout[4]; /* dropout keys of the class; written as 0 if there is no source */
    const char *plain[10];  /* keys without effect on the mathematics, in addition to those of all classes */
};

/* Return the key of `model` for a value; NULL: it becomes a part of another value. */
const char *sh_hf_family_key(int value);

/* Return the row of a model_type, NULL if there is none. */
const struct sh_hf_family *sh_hf_family_of_type(const char *type);

/* The row as which a model of `family` is written. SH_E_USAGE: transformers has no such model. */
sh_rc sh_hf_family_to_write(const char *family, const struct sh_hf_family **row);

/* Row i, NULL after the last. */
const struct sh_hf_family *sh_hf_family_row(int i);

#endif
