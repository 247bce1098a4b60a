/* A Hugging Face folder into a checkpoint file of step 0, block by block: 33 MiB beside the indices, whatever its size. */
#ifndef IO_HF_IMPORT_H
#define IO_HF_IMPORT_H

#include "io/checkpoint/checkpoint.h"

struct sh_hf_import_options {
    enum sh_cfg_trust trust;
    bool allow_nan; /* take numbers that are not finite as they are */
};

/* `set` has the model's tensors and no pieces; `meta` is that of step 0. The moments are zero. Writes
 * FOLDER/step-00000000.h5, which must not be there. Local, serial. Errors: as sh_hf_load() and sh_ckpt_save(); SH_E_USAGE:
 * the folder has a checkpoint of that name. */
sh_rc sh_hf_import(const char *from, const char *family, const struct sh_hf_import_options *options,
                   const struct sh_ckpt_set *set, const struct sh_ckpt_meta *meta, const char *folder, char **path);

#endif
