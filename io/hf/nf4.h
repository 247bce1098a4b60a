/* Weights in four bits an element as bitsandbytes keeps them in a folder: the codes under the weight's name, in a type that
 * only says how they are stored, and beside it what they are codes of.
 *
 *   NAME                                  [n,1] of any type: as many bytes as half the weight's elements; first element in
 *                                         the upper half of a byte
 *   NAME.absmax                           F32 [blocks]: the scales; or U8, with the three of nested scales below
 *   NAME.quant_map                        F32 [16]: the numbers, which must be those of src/base/nf4.h
 *   NAME.quant_state.bitsandbytes__nf4    U8: JSON: quant_type, blocksize, shape; nested_blocksize, nested_offset
 *   NAME.nested_absmax, .nested_quant_map F32 [blocks / 256, rounded up], F32 [256]:
 *                                         scale of block i = nested_quant_map[absmax[i]] * nested_absmax[i / 256] + nested_offset
 *
 * Source: bitsandbytes 0.50, functional.py, class QuantState. Local. */
#ifndef IO_HF_NF4_H
#define IO_HF_NF4_H

#include "io/checkpoint/checkpoint.h"
#include "io/move/types.h"
#include "io/safetensors/index.h"

#include <stdbool.h>

enum { SH_HF_NF4_STATE_MAX = 4096 }; /* bytes of that JSON */

struct sh_hf_nf4 {
    const struct sh_st_entry *codes, *scales, *numbers, *state;
    const struct sh_st_entry *nested, *nested_map; /* NULL: scales are F32 */
    struct sh_move_nested table;                   /* of nested scales, once it was read */
};

/* Whether the index has the weight `name` so. */
bool sh_hf_nf4_is(const struct sh_st_index *index, const char *name);

/* Find what belongs to `name`, which is tensor t of the model, and mark it in used [index->n].
 *   packed  in  it is wanted so, and not as numbers
 * Errors: SH_E_DATA: not wanted so; something is missing, has another shape or type; another kind of four bits. */
sh_rc sh_hf_nf4_match(const char *folder, const struct sh_st_index *index, const char *name,
                      const struct sh_ckpt_tensor *t, bool packed, bool *used, struct sh_hf_nf4 *out);

/* The contents of what is small: the state, the numbers, and nested scales into w->table. `read` fills n bytes from `at` of
 * an entry's data on. Errors: SH_E_DATA: not as above; those of read. */
typedef sh_rc sh_hf_nf4_read_fn(void *arg, const struct sh_st_entry *e, int64_t at, int64_t n, void *to);
sh_rc sh_hf_nf4_read(struct sh_hf_nf4 *w, const char *folder, const struct sh_ckpt_tensor *t, sh_hf_nf4_read_fn *read,
                     void *arg);
void sh_hf_nf4_free(struct sh_hf_nf4 *w);

#endif
