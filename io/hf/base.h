/* The model that a checkpoint of adapters was trained on, read block by block with what the adapters add. Inside io/hf; local. */
#ifndef IO_HF_BASE_H
#define IO_HF_BASE_H

#include "io/checkpoint/index.h"
#include "io/hf/names.h"
#include "src/config/config.h"

struct sh_hf_pair;

struct sh_hf_base {
    char *path;                    /* of the base */
    const char *of;                /* the checkpoint of adapters */
    const struct sh_ckpt_set *set; /* the model's tensors */
    uint64_t noted, sum;           /* of its numbers: as the checkpoint has it, and of those read so far */
    bool packed;                   /* it was computed with as packed in four bits where set->packed says so */
    bool as_packed;                /* and what is read is that too */
    bool rounded;                  /* it was computed with as bfloat16 has it */
    bool w_in_out;
    double scale;
    struct sh_hf_pair *pair;   /* [tensors of the set] */
    struct sh_st_index folder; /* of a folder of transformers */
    struct sh_hf_match match;
    int *fd; /* [folder.n_files] */
    char **file;
    struct sh_ckpt_index checkpoint; /* or of a checkpoint */
    int64_t *place;                  /* [tensors of the set] in it */
    int checkpoint_fd;
};

/* `path`: a folder of transformers or a checkpoint; NULL: as the checkpoint of adapters `of` says. `as_packed`: see above. All
 * adapters are read.
 * Errors: SH_E_USAGE: `of` has no adapters, or its base was not packed; the base is only there packed, and wanted otherwise;
 * SH_E_DATA: something cannot be read or does not fit. Close it in any case. */
sh_rc sh_hf_base_open(const char *of, const char *path, bool as_packed, const struct sh_config *cfg,
                      const struct sh_ckpt_set *set, struct sh_hf_base *out);
void sh_hf_base_close(struct sh_hf_base *b);

/* As sh_hf_stream's read. Each block is to be read once. */
sh_rc sh_hf_base_read(struct sh_hf_base *b, int tensor, int64_t first, int64_t n, float *out, void *spare);

/* When all of it was read. Errors: SH_E_DATA: the adapters were trained on other numbers. */
sh_rc sh_hf_base_check(const struct sh_hf_base *b);

#endif
