/* Exports a model into a folder that transformers can open: safetensors, config.json, and the small files that
 * accompany the weights in the folder that the model came from. The folder is new, and gets its name when it is
 * complete. */
#ifndef IO_HF_EXPORT_H
#define IO_HF_EXPORT_H

#include "io/checkpoint/checkpoint.h"
#include "io/move/types.h"
#include "src/config/config.h"

struct sh_hf_export {
    enum sh_move_type type;
    int64_t max_shard_bytes;
    enum sh_cfg_verify verify; /* whether and how the weights are read back before the folder gets its name */
    double timeout_seconds;    /* for each stage; 0: no limit */
    const char *source;        /* folder with token ids, generation_config.json and tokenizer; "": none */
    const char *kept;          /* without source: text of a config.json with the token ids; NULL: none */
    const char *tokenizer;     /* without source: folder with the tokenizer and generation_config.json; NULL: none */
    bool adapter;              /* export an adapter checkpoint into a folder in PEFT's format */
    bool packed;               /* when merging: onto the base as packed in four bits, not onto its original numbers */
    const struct sh_ckpt_set
        *moments;      /* export a state folder (state.h): the moments too, in float32. The tensors of the
                                          model, with their roles; NULL: the weights alone */
    const char *state; /* of the checkpoint, in place of the parameters; NULL: the parameters */
    const char *base;  /* for adapters: folder or checkpoint of the base; NULL: the one the checkpoint names */
};

/* Export from the memory of all ranks: data[SH_CKPT_MODEL] of the set's pieces, which cover each element once. Each
 * rank writes its own ranges. Memory: 33 MiB in addition to the data. Collective, agreed: all succeed, or nothing is
 * left behind.
 * Errors: SH_E_USAGE: the folder exists; SH_E_DATA: I/O, a full disk; SH_E_NUMERIC: a value outside float16's range. */
sh_rc sh_hf_export(const char *folder, const struct sh_config *cfg, const struct sh_ckpt_set *set,
                   const struct sh_hf_export *options);

/* Export from a checkpoint file, block by block, each compared with its digest. Memory: 33 MiB in addition to the
 * indices, whatever the file's size. `cfg`: the file's own. Local, serial. Errors: as above; SH_E_DATA: the file is
 * damaged; SH_E_USAGE: moments are asked for, and the file's states are not AdamW's. */
sh_rc sh_hf_export_file(const char *checkpoint, const char *folder, const struct sh_config *cfg,
                        const struct sh_hf_export *options);

/* Export from an adapter checkpoint: the base model plus scale B A, added in double and rounded to float32 once, block
 * by block. `set` has the model's tensors and no pieces; tensors that the run had packed are marked as packed. Memory:
 * 33 MiB in addition to the indices and the adapters. Local, serial.
 * Errors: as above; SH_E_DATA: the base cannot be read, or is not the one that the adapters were trained on. */
sh_rc sh_hf_merge_file(const char *checkpoint, const char *folder, const struct sh_config *cfg,
                       const struct sh_ckpt_set *set, const struct sh_hf_export *options);

#endif
