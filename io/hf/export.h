/* A model into a folder that transformers opens: safetensors, config.json, and what belongs to it in the folder that the
 * model came from. The folder is new, and has its name when it is complete. */
#ifndef IO_HF_EXPORT_H
#define IO_HF_EXPORT_H

#include "io/checkpoint/checkpoint.h"
#include "io/move/types.h"
#include "src/config/config.h"

struct sh_hf_export {
    enum sh_move_type type;
    int64_t max_shard_bytes;
    enum sh_cfg_verify verify; /* how much is read back before the folder gets its name */
    double timeout_seconds;    /* of each stage; 0: no limit */
    const char *source;        /* a folder for ids of tokens, generation_config.json and tokenizer; "": none */
    const char *kept;          /* without it: the config.json for ids of tokens, as text; NULL: none */
    const char *tokenizer;     /* without it: a folder for the tokenizer and generation_config.json; NULL: none */
    bool adapter;              /* a checkpoint of adapters into a folder as PEFT has it */
    bool packed;               /* merged: onto the base as it is packed in four bits, not as it is written down */
    const char *base;          /* of adapters: the folder or checkpoint of the model; NULL: as the checkpoint says */
};

/* From the memory of all ranks: data[SH_CKPT_MODEL] of the set's pieces, which cover each element once. Each writes its own
 * ranges. Beside the data 33 MiB. Collective, agreed: all succeed, or nothing is left behind.
 * Errors: SH_E_USAGE: the folder exists; SH_E_DATA: I/O, a full disk; SH_E_NUMERIC: a value that float16 does not have. */
sh_rc sh_hf_export(const char *folder, const struct sh_config *cfg, const struct sh_ckpt_set *set,
                   const struct sh_hf_export *options);

/* From a checkpoint file, block by block, each compared with its digest: 33 MiB beside the indices, whatever its size.
 * `cfg`: the file's own. Local, serial. Errors: as above; SH_E_DATA: the file is damaged. */
sh_rc sh_hf_export_file(const char *checkpoint, const char *folder, const struct sh_config *cfg,
                        const struct sh_hf_export *options);

/* From a checkpoint of adapters: the model that they go upon, with scale B A added in float32 and rounded once, block by
 * block. `set` has the model's tensors and no pieces; those
 * that the run had packed say so. Beside the indices and the adapters 33 MiB. Local, serial.
 * Errors: as above; SH_E_DATA: the base cannot be read, or is not the one that the adapters were trained on. */
sh_rc sh_hf_merge_file(const char *checkpoint, const char *folder, const struct sh_config *cfg,
                       const struct sh_ckpt_set *set, const struct sh_hf_export *options);

#endif
