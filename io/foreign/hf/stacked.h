/* Adapters of stacks of experts in PEFT's files. The run has a pair for each expert, named after the stack; PEFT wraps
 * the module that has the stacks, once for each adapted one, and has two flat matrices:
 *
 *     here                                          in the file
 *     ...experts.down_proj.lora_A.weight [E,R,I]    ...experts.lora_A.weight [E R,I]: the same bytes
 *     ...experts.down_proj.lora_B.weight [E,O,R]    ...experts.lora_B.weight [O,R E]: element r E + e of row o
 *     ...experts.gate_up_proj.lora_A.weight         ...experts.base_layer.lora_A.weight, or ...experts.lora_A.weight if
 *                                                   down_proj has no adapters
 *
 * Source: PEFT 0.21, tuners/lora/layer.py, class ParamWrapper. Inside io/foreign/hf; local. */
#ifndef IO_HF_STACKED_H
#define IO_HF_STACKED_H

#include "io/checkpoint/checkpoint.h"
#include "io/foreign/safetensors/index.h"
#include "src/config/config.h"

/* The family of a run and what it adapts. */
struct sh_hf_stacks {
    const char *module;    /* that PEFT wraps */
    const char *up, *down; /* modules of the stacks in the run; NULL: not adapted */
    int experts;
};
struct sh_hf_stacks sh_hf_stacks_of(const struct sh_config *cfg);

/* Give a tensor of a run its name and shape in the file; others stay as they are.
 *   name  in out  [size] */
void sh_hf_stacked_to_file(const struct sh_hf_stacks *s, char *name, size_t size, int *ndim, int64_t dim[4]);

/* Give a tensor of a file its name and shape in a run; others stay as they are. */
void sh_hf_stacked_from_file(const struct sh_hf_stacks *s, struct sh_st_entry *e);

/* Whether a tensor of a run is a B of experts, whose elements have another order in the file. */
bool sh_hf_stacked_is_turned(const struct sh_hf_stacks *s, const char *name);

/* Elements [first, first + n) of a file's [O,R,E] from b [E,O,R] of a run; and the whole way back. */
void sh_hf_stacked_turn(const int64_t dim[3], const float *b, int64_t first, int64_t n, float *file);
void sh_hf_stacked_turn_back(const int64_t dim[3], const float *file, float *b);

#endif
