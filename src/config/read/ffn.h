/* A feed-forward part in the words of a configuration, the form of model.ffn: "u = linear(x, up, F); a = gelu(u); y =
 * linear(a, down, C)". x is the input, and each statement makes one value of one or two earlier ones; the last is the
 * result. All operations work row by row, so ranks, micro-steps and tiles may have some of the rows each.
 *
 * In a file it can also be a list of texts. Inside src/config, and for src/model, src/optim and src/plugin; local. */
#ifndef SH_READ_FFN_H
#define SH_READ_FFN_H

#include "src/base/err.h"
#include "src/config/model.h"

#include <stdbool.h>
#include <stdint.h>

enum { SH_FFN_STEPS = 24, SH_FFN_WORD = 32 };

enum sh_ffn_kind {
    SH_FFN_OPERATION, /* one of a value, by its name: of Sherd or of a plug-in */
    SH_FFN_LINEAR,
    SH_FFN_NORM,
    SH_FFN_ADD,
};

struct sh_ffn_step {
    enum sh_ffn_kind kind;
    int in[2];              /* values: 0 is x, and i + 1 what step i makes; of all but ADD the first only */
    char made[SH_FFN_WORD]; /* the name of what it makes */
    char name[SH_FFN_WORD]; /* of the operation, or of the parameter of LINEAR and NORM */
    char unit;              /* LINEAR: outputs are `times` C or F, or just `times` if it is 0 */
    int64_t times;
    bool residual; /* LINEAR: its product reaches the result by sums alone */
};

struct sh_ffn {
    int n; /* 0: the family's */
    struct sh_ffn_step step[SH_FFN_STEPS];
};

/* Read the text; "" has no steps. Whether widths fit needs the operations (sh_ffn_check of src/model). Errors: SH_E_USAGE,
 * naming the statement. */
sh_rc sh_config_ffn(const char *text, struct sh_ffn *out);

/* Outputs of a LINEAR. */
int64_t sh_config_ffn_width(const struct sh_ffn_step *step, const struct sh_model *m);

#endif
