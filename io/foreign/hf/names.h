/* Matches the tensors of a folder with those of a model. Both use transformers' names, but existing files differ in
 * four ways: they lack the base prefix (saved by the class without an output matrix), they have buffers that follow
 * from the configuration, a tied model has its output matrix, a copy of the embedding, or several matrices are one
 * tensor of the model (spread.h). Local. */
#ifndef IO_HF_NAMES_H
#define IO_HF_NAMES_H

#include "io/checkpoint/checkpoint.h"
#include "io/foreign/hf/files.h"
#include "io/foreign/hf/mxfp4.h"
#include "io/foreign/hf/nf4.h"
#include "io/foreign/hf/spread.h"
#include "io/foreign/safetensors/index.h"
#include "io/move/types.h"

struct sh_hf_match {
    struct sh_hf_spread spread;       /* the tensors of the set as the folder has them */
    const struct sh_st_entry **entry; /* [spread.n] */
    struct sh_hf_nf4 **nf4;           /* [spread.n] the packed form in the folder; NULL: it is not packed */
    int n_packed;
    struct sh_hf_mxfp4 *mxfp4; /* [spread.n] the same of stacks of experts, which are unpacked; entry: the blocks */
    const struct sh_st_entry *copy; /* output matrix of a tied model, to be compared with `of`; NULL: none */
    const struct sh_st_entry *of;
    bool lacks_labels;                 /* the folder has no matrix of labels; its entry is NULL */
    const struct sh_st_entry *dropped; /* output matrix of words, which is left out then; NULL: none */
};

/* `family`: of the model. may_lack: the folder holds a language model, which has no score.weight. Errors: SH_E_DATA with name
 * and cure: a tensor is missing, has another shape, has a type that parameters cannot have, or does not belong to the model. */
sh_rc sh_hf_match(const char *folder, const struct sh_st_index *index, const struct sh_ckpt_set *set,
                  const char *family, bool may_lack, struct sh_hf_match *out);

/* Read elements [first, first + n) of tensor i of the set, from any thread if all files are open. Not for packed ones.
 *   cure  in  of a number that is not finite, for the end of the message; NULL: any number may be there
 * Errors: SH_E_DATA. */
sh_rc sh_hf_match_read(const struct sh_hf_match *m, struct sh_hf_files *files, int tensor, int64_t first, int64_t n,
                       const char *cure, float *out);

/* Compare share `part` of `parts` of the output matrix of a tied model, if there is one, with the embedding. Errors:
 * SH_E_DATA: they differ. */
sh_rc sh_hf_copy_compare(const char *folder, const struct sh_hf_match *m, struct sh_hf_files *files, int part,
                         int parts);

void sh_hf_match_free(struct sh_hf_match *m);

#endif
