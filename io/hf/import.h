/* A Hugging Face folder into a checkpoint file of step 0, block by block: 33 MiB beside the indices, whatever its size. */
#ifndef IO_HF_IMPORT_H
#define IO_HF_IMPORT_H

#include "io/checkpoint/checkpoint.h"

/* `set` has the model's tensors and no pieces; `meta` is that of step 0. The moments are zero. Writes
 * FOLDER/step-00000000.h5, which must not be there. Local, serial. Errors: as sh_hf_load() and sh_ckpt_save(); SH_E_USAGE:
 * the folder has a checkpoint of that name. */
sh_rc sh_hf_import(const char *from, const char *family, enum sh_cfg_trust trust, const struct sh_ckpt_set *set,
                   const struct sh_ckpt_meta *meta, const char *folder, char **path);

#endif
