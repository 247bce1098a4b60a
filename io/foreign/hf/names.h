/* Matches the tensors of a folder with those of a model. Both use transformers' names, but existing files differ in
 * three ways: they lack the base prefix (saved by the class without an output matrix), they have buffers that follow
 * from the configuration, or a tied model has its output matrix, a copy of the embedding. Local. */
#ifndef IO_HF_NAMES_H
#define IO_HF_NAMES_H

#include "io/checkpoint/checkpoint.h"
#include "io/foreign/hf/files.h"
#include "io/foreign/hf/nf4.h"
#include "io/foreign/safetensors/index.h"
#include "io/move/types.h"

struct sh_hf_match {
    const struct sh_st_entry **entry; /* [tensors of the set] */
    struct sh_hf_nf4 **nf4;           /* [tensors of the set] the packed form in the folder; NULL: it is not packed */
    int n, n_packed;
    const struct sh_st_entry *copy; /* output matrix of a tied model, to be compared with `of`; NULL: none */
    const struct sh_st_entry *of;
};

/* `family`: of the model. Errors: SH_E_DATA with name and cure: a tensor is missing, has another shape, has a type that
 * parameters cannot have, or does not belong to the model. */
sh_rc sh_hf_match(const char *folder, const struct sh_st_index *index, const struct sh_ckpt_set *set,
                  const char *family, struct sh_hf_match *out);

/* Compare share `part` of `parts` of the output matrix of a tied model, if there is one, with the embedding. Errors:
 * SH_E_DATA: they differ. */
sh_rc sh_hf_copy_compare(const char *folder, const struct sh_hf_match *m, struct sh_hf_files *files, int part,
                         int parts);

void sh_hf_match_free(struct sh_hf_match *m);

#endif
