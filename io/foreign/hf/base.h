/* Reads the base model of an adapter checkpoint block by block and adds the adapters' product to it. A matrix of labels,
 * which was trained beside adapters, is the checkpoint's. Inside io/foreign/hf; local. */
#ifndef IO_HF_BASE_H
#define IO_HF_BASE_H

#include "io/checkpoint/file/index.h"
#include "io/foreign/hf/names.h"
#include "src/config/config.h"

struct sh_hf_pair;

struct sh_hf_base {
    char *path;                    /* of the base */
    const char *of;                /* the adapter checkpoint */
    int state;                     /* of it, which has the adapters */
    const struct sh_ckpt_set *set; /* the model's tensors */
    uint64_t noted, sum;           /* checksums of its numbers: from the checkpoint, and of those read so far */
    bool packed;                   /* training used it packed in four bits, where set->packed says so */
    bool as_packed;                /* the numbers returned are the packed ones too */
    bool rounded;                  /* training used it rounded to bfloat16 */
    bool w_in_out, experts_in_out;
    double scale;
    struct sh_hf_pair *pair;   /* [tensors of the set] */
    struct sh_st_index folder; /* if the base is a folder of transformers */
    struct sh_hf_match match;
    struct sh_hf_files files;
    struct sh_ckpt_index checkpoint; /* if the base is a checkpoint */
    int64_t *place;                  /* [tensors of the set] the tensor's number in it */
    int checkpoint_fd;
};

/* `state`: of the checkpoint, in place of its adapters; NULL: these. `path`: a folder of transformers or a checkpoint; NULL: the base that the adapter checkpoint `of` names. `as_packed`:
 * see above. Reads all adapters.
 * Errors: SH_E_USAGE: its base was not packed, though as_packed is set; the base exists only packed, and as_packed is
 * not set; SH_E_DATA: `of` has no adapters; something cannot be read or does not fit. Always close it, also after an
 * error. */
sh_rc sh_hf_base_open(const char *of, const char *state, const char *path, bool as_packed, const struct sh_config *cfg,
                      const struct sh_ckpt_set *set, struct sh_hf_base *out);
void sh_hf_base_close(struct sh_hf_base *b);

/* Read elements [first, first + n) of a tensor, a block of SH_CKPT_BLOCK_ELEMS or the last one, each exactly once; from
 * any thread. */
sh_rc sh_hf_base_read(struct sh_hf_base *b, int tensor, int64_t first, int64_t n, float *out);

/* Check the sum after everything was read. Errors: SH_E_DATA: the adapters were trained on other numbers. */
sh_rc sh_hf_base_check(const struct sh_hf_base *b);

#endif
