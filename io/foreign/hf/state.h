/* A state folder: what a training run of another program left, in files that need no program to read. It is a folder of
 * transformers with all numbers in float32, the moments of AdamW beside the weights under the same names
 * (exp_avg.safetensors, exp_avg_sq.safetensors), and state.json. doc/checkpoint-format.md describes it; sherd-import
 * makes it of checkpoints of other trainers, and sherd-export checkpoints of other trainers of it. Local. */
#ifndef IO_HF_STATE_H
#define IO_HF_STATE_H

#include "io/checkpoint/checkpoint.h"
#include "io/foreign/hf/spread.h"
#include "io/foreign/safetensors/index.h"
#include "io/json/json.h"
#include "src/config/config.h"

#define SH_HF_STATE_FILE "state.json"

/* How the files of the states begin: sh_ckpt_states_1 without its group. */
enum { SH_HF_STATES = 3 };
extern const char *const sh_hf_state_stem[SH_HF_STATES];

struct sh_hf_state {
    int64_t step, updates, samples, tokens; /* samples, tokens -1: not known */
    double lr, beta1, beta2, eps, weight_decay;
    char *source;  /* what it was made of, for the notes */
    json_t *decay; /* object, a key for each tensor of the folder that decays */
};

/* Whether the folder has state.json. */
bool sh_hf_state_is(const char *folder);

/* Read state.json. Errors: SH_E_DATA: a key that is missing or unknown, or a value that it cannot have, by name. */
sh_rc sh_hf_state_read(const char *folder, struct sh_hf_state *out);
void sh_hf_state_free(struct sh_hf_state *s);

/* Find which value of optimizer.decay_all lets the same parameters decay here as there.
 *   of     in   names the state in messages
 *   entry  in   [spread->n] the folder's tensors
 * Errors: SH_E_DATA: neither does; names a tensor. */
sh_rc sh_hf_state_decays(const char *of, const struct sh_hf_state *s, const struct sh_hf_spread *spread,
                         const struct sh_st_entry *const *entry, bool *all);

/* Make the text of state.json of a checkpoint, freed with free().
 *   cfg, meta  in  of the checkpoint
 *   spread     in  the folder's tensors */
char *sh_hf_state_text(const struct sh_config *cfg, const struct sh_ckpt_meta *meta, const struct sh_hf_spread *spread);

#endif
