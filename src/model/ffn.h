/* The feed-forward part of model.ffn: its parameters and its operations. Inside src/model, and for src/plugin; local. */
#ifndef SH_MODEL_FFN_H
#define SH_MODEL_FFN_H

#include "src/config/read/ffn.h"
#include "src/program/emit.h"

/* The tensors of each step's parameters; SH_NONE: it has none. */
struct sh_ffn_weights {
    int w[SH_FFN_STEPS], b[SH_FFN_STEPS];
};

/* Check that each operation is there, that sums are of equal widths, and that the result is as wide as the model. Call it
 * when plug-ins are open. Errors: SH_E_USAGE, naming the statement. */
sh_rc sh_ffn_check(const struct sh_model *m);

/* Columns of all values together, and elements of all matrices of a block: at most INT64_MAX. */
int64_t sh_ffn_widths(const struct sh_model *m);
int64_t sh_ffn_params(const struct sh_model *m);

/* Declare the parameters of block e->block in the newest unit: "mlp.NAME.weight" [width,in], or [in,width] as the family
 * stores matrices, with a bias where its feed-forward part has them. */
void sh_ffn_declare(struct sh_emit *e, const struct sh_model *m, struct sh_ffn_weights *out);

/* [N,C] -> [N,C] */
int sh_ffn_emit(struct sh_emit *e, const struct sh_model *m, const struct sh_ffn_weights *w, struct sh_emit_norm how,
                int x);

#endif
