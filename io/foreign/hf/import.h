/* Converts a Hugging Face folder into a checkpoint file of step 0, block by block. Memory: 33 MiB in addition to the
 * indices, whatever the size of the model. */
#ifndef IO_HF_IMPORT_H
#define IO_HF_IMPORT_H

#include "io/checkpoint/checkpoint.h"

struct sh_hf_import_options {
    enum sh_cfg_trust trust;
    bool allow_nan; /* accept numbers that are not finite */
};

/* `set` has the model's tensors and no pieces; `meta` is that of step 0. The moments are zero. Writes
 * FOLDER/step-00000000.h5, which must not exist. Local, serial. Errors: as sh_hf_load() and sh_ckpt_save(); SH_E_USAGE:
 * the folder already has a checkpoint of that name. */
sh_rc sh_hf_import(const char *from, const char *family, const struct sh_hf_import_options *options,
                   const struct sh_ckpt_set *set, const struct sh_ckpt_meta *meta, const char *folder, char **path);

#endif
