/* Weights in four bits per element as bitsandbytes stores them in a folder: the codes under the weight's name, in a
 * type that only says how they are stored, and with them the tensors needed to decode them.
 *
 *   NAME                                  [n,1] of any type: as many bytes as half the weight's elements; first element
 *                                         in the upper half of a byte
 *   NAME.absmax                           F32 [blocks]: the scales; or U8, with the three of nested scales below
 *   NAME.quant_map                        F32 [16]: the numbers, which must be those of src/base/number/nf4.h
 *   NAME.quant_state.bitsandbytes__nf4    U8: JSON: quant_type, blocksize, shape; nested_blocksize, nested_offset
 *   NAME.nested_absmax, .nested_quant_map F32 [blocks / 256, rounded up], F32 [256]:
 *                                         scale of block i = nested_quant_map[absmax[i]] * nested_absmax[i / 256]
 *                                                            + nested_offset
 *
 * Source: bitsandbytes 0.50, functional.py, class QuantState. Local. */
#ifndef IO_HF_NF4_H
#define IO_HF_NF4_H

#include "io/checkpoint/checkpoint.h"
#include "io/foreign/hf/files.h"
#include "io/foreign/safetensors/index.h"
#include "io/move/types.h"

#include <stdbool.h>

enum { SH_HF_NF4_STATE_MAX = 4096 }; /* bytes of the state's JSON */

struct sh_hf_nf4 {
    const struct sh_st_entry *codes, *scales, *numbers, *state;
    const struct sh_st_entry *nested, *nested_map; /* NULL: scales are F32 */
    struct sh_move_nested table;                   /* of nested scales, once it has been read */
};

/* Whether the index has the weight `name` packed in four bits. */
bool sh_hf_nf4_is(const struct sh_st_index *index, const char *name);

/* Find the tensors that belong to `name`, which is tensor t of the model, and mark them in used [index->n].
 *   packed  in  whether the model wants the weight packed
 * Errors: SH_E_DATA: it is not wanted packed; a tensor is missing, or has another shape or type; another
 * four-bit type. */
sh_rc sh_hf_nf4_match(const char *folder, const struct sh_st_index *index, const char *name,
                      const struct sh_ckpt_tensor *t, bool packed, bool *used, struct sh_hf_nf4 *out);

/* Read the small tensors: check the state and the numbers, and put nested scales into w->table. Errors: SH_E_DATA:
 * contents that are not as above; I/O. */
sh_rc sh_hf_nf4_read(struct sh_hf_nf4 *w, const char *folder, const struct sh_ckpt_tensor *t,
                     struct sh_hf_files *files);
void sh_hf_nf4_free(struct sh_hf_nf4 *w);

#endif
