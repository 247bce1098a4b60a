/* Which tensor of a folder is which of a model. Names are transformers' in both; what differs in files that were seen:
 * without the base prefix (saved by the class without output matrix), with buffers that follow from the configuration, and a
 * tied model with its output matrix, a copy of the embedding. Local. */
#ifndef IO_HF_NAMES_H
#define IO_HF_NAMES_H

#include "io/checkpoint/checkpoint.h"
#include "io/hf/nf4.h"
#include "io/move/types.h"
#include "io/safetensors/index.h"

struct sh_hf_match {
    const struct sh_st_entry **entry; /* [tensors of the set] */
    struct sh_hf_nf4 **nf4;           /* [tensors of the set] what of it is packed in the folder; NULL: it is numbers */
    int n, n_packed;
    const struct sh_st_entry *copy; /* of a tied model: an output matrix, to be compared with `of`; NULL: none */
    const struct sh_st_entry *of;
};

/* `family`: of the model. Errors: SH_E_DATA with name and cure: a tensor is missing, has another shape or a type that is no
 * parameter's, or is not the model's. */
sh_rc sh_hf_match(const char *folder, const struct sh_st_index *index, const struct sh_ckpt_set *set,
                  const char *family, struct sh_hf_match *out);

/* The failure of a tied model whose output matrix is another one. */
sh_rc sh_hf_copy_differs(const char *folder, const struct sh_hf_match *m);

/* Of a parameter. */
enum sh_move_type sh_hf_move_type(const struct sh_st_entry *e);
void sh_hf_match_free(struct sh_hf_match *m);

#endif
