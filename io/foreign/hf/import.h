/* Converts a Hugging Face folder, or a state folder, into a checkpoint file, block by block. Memory: 33 MiB in addition to the
 * indices, whatever the size of the model. */
#ifndef IO_HF_IMPORT_H
#define IO_HF_IMPORT_H

#include "io/checkpoint/checkpoint.h"

struct sh_hf_import_options {
    enum sh_cfg_trust trust;
    bool allow_nan; /* accept weights that are not finite */
    bool moments;   /* the folder is a state folder: read its moments too; otherwise they are zero */
};

/* `set` has the model's tensors and no pieces. Writes the checkpoint of meta->step into the folder, where none of that
 * step may be. Local, serial. Errors: as sh_hf_load() and sh_ckpt_save(); SH_E_USAGE:
 * the folder already has a checkpoint of that name. */
sh_rc sh_hf_import(const char *from, const char *family, const struct sh_hf_import_options *options,
                   const struct sh_ckpt_set *set, const struct sh_ckpt_meta *meta, const char *folder, char **path);

struct sh_hf_state;

/* sh_hf_state_decays() for a state folder. Errors: those, and SH_E_DATA: the weights are not those of the model. */
sh_rc sh_hf_import_decays(const char *from, const char *family, const struct sh_ckpt_set *set,
                          const struct sh_hf_state *state, bool *all);

#endif
