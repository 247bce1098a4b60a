/* Adapters of a block's linear products: their parameters, which the decoder declares in a unit beside the block's.
 * Inside src/model only; local. */
#ifndef SH_MODEL_ADAPT_H
#define SH_MODEL_ADAPT_H

#include "src/config/family.h"
#include "src/model/model.h"
#include "src/program/emit.h"

/* n products of one input that are computed as one: queries, keys and values; gate and up. */
struct sh_adapt {
    int n;
    const struct sh_family *family;
    enum sh_param_role which[SH_LORA_PARTS];
    const char *module[SH_LORA_PARTS];
    int64_t in, out[SH_LORA_PARTS];
    int n_bands[SH_LORA_PARTS]; /* of the outputs, or the inputs, that this rank has; 0: it has all */
    struct sh_band band[SH_LORA_PARTS][SH_BANDS_MAX];
    bool by_inputs;
    int experts;         /* they are stacks of so many matrices, each with its own adapters; 0: they are single ones */
    struct sh_band held; /* of these, the ones that this rank has; n is 0 if it has all */
};

/* Whether any of these products is adapted. */
bool sh_adapt_any(const struct sh_adapters *a, const struct sh_adapt *s);

/* Declare the requested adapters of these products in the newest unit; parts is 0 if none is requested. */
struct sh_emit_lora sh_adapt_stack(struct sh_emit *e, const struct sh_adapters *a, const struct sh_adapt *s);

/* Freeze all units except those of adapters and, with labels, that of their matrix (modules_to_save of PEFT). */
void sh_adapt_freeze(struct sh_program *p, bool labels);

#endif
