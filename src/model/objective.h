/* Objectives: what training makes small. A row emits the loss, and operations of its own before it, in place of the
 * plain loss of the next token; nothing else of the passes or of the training loop knows which one it is. */
#ifndef SH_MODEL_OBJECTIVE_H
#define SH_MODEL_OBJECTIVE_H

#include "src/config/words.h"
#include "src/program/emit.h"

struct sh_model_batch; /* model.h: the numbers of objectives */

struct sh_objective {
    const char *name;
    /* By whose number in the global batch the sum of the loss is divided. ANSWERS: data are pairs of answers, or answers
     * with labels, as the loss takes them (sh_cfg_loss_takes()). */
    enum { SH_COUNTS_TARGETS, SH_COUNTS_ANSWERS } counts;
    /* x [N,C], head [V,C]. Sets SH_PORT_LOSS. What comes before the loss may depend on x through operations with
     * .stops only (kernels/op.h). */
    void (*emit)(struct sh_emit *e, int x, int head, int64_t chunk_rows, const struct sh_model_batch *b);
};

/* The row of a word of objective.name. */
const struct sh_objective *sh_objective_named(enum sh_cfg_objective name);

/* The objective itself; for NULL "lm", the next token. */
const struct sh_objective *sh_objective_of(const struct sh_objective *o);

#endif
