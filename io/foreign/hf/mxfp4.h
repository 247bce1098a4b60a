/* Stacks of experts in MXFP4, as the published folders of gpt-oss have them; they are unpacked while they are read.
 *
 *   NAME_blocks  U8 [E,O,I/32,16]  codes of 32 neighbouring inputs, two in a byte, the first in its lower half: a sign and
 *                                  one of 0, 0.5, 1, 1.5, 2, 3, 4, 6
 *   NAME_scales  U8 [E,O,I/32]     x = code 2^(scale - 127)
 *
 * They are stored by outputs, while NAME itself is [E,I,O], so what was packed is told by its name, and never by its shape.
 * Source: OCP Microscaling Formats (MX) 1.0, section 5; transformers 5.24, integrations/mxfp4.py. Local. */
#ifndef IO_HF_MXFP4_H
#define IO_HF_MXFP4_H

#include "io/checkpoint/checkpoint.h"
#include "io/foreign/hf/files.h"
#include "io/foreign/safetensors/index.h"

#include <stdbool.h>

struct sh_hf_mxfp4 {
    const struct sh_st_entry *blocks, *scales; /* NULL: the tensor is not packed */
};

/* Whether the index has the blocks of `name`, and not `name` itself. */
bool sh_hf_mxfp4_is(const struct sh_st_index *index, const char *name);

/* Find both tensors of `name`, which is tensor t [E,I,O] of the model, and mark them in used [index->n]. Errors: SH_E_DATA:
 * one is missing, or has another shape or type. */
sh_rc sh_hf_mxfp4_match(const char *folder, const struct sh_st_index *index, const char *name,
                        const struct sh_ckpt_tensor *t, bool *used, struct sh_hf_mxfp4 *out);

/* Elements [first, first + n) of t, from any thread if the files are open. Each call reads whole experts. */
sh_rc sh_hf_mxfp4_read(const struct sh_hf_mxfp4 *w, struct sh_hf_files *files, const struct sh_ckpt_tensor *t,
                       int64_t first, int64_t n, float *out);

#endif
