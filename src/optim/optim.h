/* Around the update: the table of optimizers, learning rate, clipping, the loss scale, and the guard that skips a step.
 * The update itself is an operation of the program. Pure arithmetic on numbers that are the same on all ranks, so that
 * all ranks decide alike. Local. */
#ifndef SH_OPTIM_OPTIM_H
#define SH_OPTIM_OPTIM_H

#include "kernels/op.h"
#include "src/base/err.h"
#include "src/config/config.h"

#include <stdbool.h>
#include <stdint.h>

struct sh_update;
struct sh_update_wave;

/* How matrices are made orthogonal. */
struct sh_ortho {
    enum sh_cfg_coefficients kind;
    int steps;
    enum sh_cfg_muon_split split; /* what counts as one matrix */
    enum sh_cfg_adjust adjust;    /* factor of the step by the matrix's sides */
    int owners;                   /* at most so many ranks make matrices orthogonal, of a group, or of several that are
                                     replicas; 0: all of a group, and replicas if it pays */
    double worth;                 /* it pays if it saves more operations for each byte that replicas exchange */
    bool near;                    /* a group is on one node: matrices reach owners sooner than replicas */
    bool narrow;                  /* products of bf16 with sums in f32, as op.h has it */
};

/* An optimizer: a row of src/config/optim.inc. An elementwise operation reads the gradient and updates in place; the
 * operands are
 *   in   g [n] f32
 *   out  p [n], state[0] [n], ... state[n_states - 1] [n], r [n] i16 (opt: p is bf16, and r the rest of the masters)
 * where n is a rank's chunk of a unit. The states are all f32, all bf16, or all in codes (kernels/states.h). */
/* clang-format off */
struct sh_optim {
    const char *name;           /* as torch.optim spells it */
    void (*emit)(const struct sh_update *u); /* the update of a unit (src/optim/update.h) */
    enum sh_op_kind op, coded;  /* of sh_optim_each; the latter if states are in codes, which not every row has */
    bool whole;                 /* emit is called twice for a unit: for its matrices, whose gradients it may gather, and
                                   for the others */
    void (*finish)(const struct sh_update_wave *w); /* then for the matrices of several units at once; NULL: nothing */
    int n_states;               /* in addition to the master parameters */
    const char *rows;           /* a state for each row of the matrices that `finish` updates; NULL: none */
    unsigned of_others;         /* bit k: state k is not of matrices that `finish` updates */
    const char *state[SH_STATES_MAX]; /* torch's names; in checkpoints /optimizer/NAME. Zero at first */
};
/* clang-format on */

/* The emitter of elementwise optimizers: the row's operation on this rank's chunk. */
void sh_optim_each(const struct sh_update *u);

/* Muon's: AdamW of the others and the momentum of matrices; then whole matrices at their owners, and the step. */
void sh_optim_muon(const struct sh_update *u);
void sh_optim_muon_finish(const struct sh_update_wave *w);

/* The row for a value of optimizer.name. */
const struct sh_optim *sh_optim_of(int word);

/* Set the scalars that section `optimizer` gives the operation in update 1, 2, ...; each optimizer uses those of its
 * rule. The rest of *s stays. */
void sh_optim_scalars(const struct sh_config *cfg, int64_t update, struct sh_op_scalars *s);

struct sh_lr {
    double peak, min_factor; /* the rate falls to peak * min_factor */
    int64_t warmup, total;   /* steps */
    enum sh_cfg_decay decay;
    double decay_ratio;      /* WSD, POWER_TAIL: share of `total` in which the rate falls at the end */
    enum sh_cfg_decay shape; /* and how */
    double power;            /* POWER, POWER_TAIL: the exponent */
};

/* Rate of step 0, 1, ...: (step + 1) / warmup of the peak while warming up, then by kind; constant after `total`.
 * WSD (warm-up, stable, decay; Hu et al., arXiv:2404.06395): falls over the last decay_ratio * total steps. POWER: with
 * warmup W (at least 1) the rate of step s is (W / (s + 1))^power of the peak. POWER_TAIL: so up to the last decay_ratio *
 * total steps, in which it falls to min_factor times what it was before. */
double sh_lr_at(const struct sh_lr *lr, int64_t step);

/* Factor for the gradients: min(1, max_norm / norm); 1 when max_norm is 0. */
double sh_clip_scale(double norm, double max_norm);

/* The guard watches loss and gradient norm. `action` says what to do with a bad step, one that is non-finite or an
 * outlier: skip its update, go back to the newest checkpoint and leave out all data since then, or stop. */
struct sh_guard {
    enum sh_cfg_guard action;
    double z_score; /* 0: off */
    int window, max_skips, max_rollbacks;
    /* state */
    int64_t seen;    /* norms in the mean, at most window */
    double mean, m2; /* running mean and sum of squared deviations, older norms fading beyond the window */
    int skips;       /* in a row */
    int rollbacks;   /* since the newest checkpoint was saved, which is what they go back to */
};

enum sh_verdict { SH_STEP_GOOD, SH_STEP_NON_FINITE, SH_STEP_OUTLIER };

/* Judge a step and learn from good ones; any verdict but SH_STEP_GOOD calls for the action. Errors: SH_E_NUMERIC, with
 * the loss and norm seen, if the run cannot continue (the action is to stop, more than max_skips skips in a row, or
 * more than max_rollbacks to one checkpoint). */
sh_rc sh_guard_judge(struct sh_guard *g, int64_t step, double loss, double norm, enum sh_verdict *verdict);

/* State as text for the checkpoint ("seen mean m2 skips", hexadecimal floats) and back; SH_E_DATA when malformed. */
void sh_guard_save(const struct sh_guard *g, char *text, int size);
sh_rc sh_guard_load(struct sh_guard *g, const char *text);

void sh_guard_saved(struct sh_guard *g);  /* a checkpoint was saved: the rollback count starts again */
void sh_guard_forget(struct sh_guard *g); /* back to the start of a run; the rollbacks stay counted */

/* The loss scale of a run in float16: gradients are those of scale * loss, and are divided by it before anybody looks
 * at them. If they overflow all the same, the update is left out; for the guard that is not a bad step as long as the
 * scale can move. A loss that is not finite is left to the guard, because no scale helps there. */
#define SH_LOSS_SCALE_MOST 0x1p40
struct sh_loss_scale {
    double init; /* a power of two from 1 to SH_LOSS_SCALE_MOST; 1 if nothing is scaled */
    int window;  /* steps without an overflow after which it doubles; 0: it is fixed */
    /* state */
    double scale;
    int good;       /* steps since it doubled or since an overflow */
    int hysteresis; /* overflows until it is halved, that one included */
};

void sh_loss_scale_begin(struct sh_loss_scale *s); /* the state of a new run */
/* Whether the loss scale, not the guard, has to answer for this step. */
bool sh_loss_scale_overflows(const struct sh_loss_scale *s, double loss, double norm);
sh_rc sh_loss_scale_lower(struct sh_loss_scale *s, int64_t step); /* SH_E_NUMERIC: it is 1 already */
void sh_loss_scale_good(struct sh_loss_scale *s);                 /* after a step without an overflow */

/* State of a dynamic one as text for the checkpoint ("scale good hysteresis") and back; SH_E_DATA when malformed. */
void sh_loss_scale_save(const struct sh_loss_scale *s, char *text, int size);
sh_rc sh_loss_scale_load(struct sh_loss_scale *s, const char *text);

/* The two in one text, as a checkpoint stores them: the guard's, and after SH_GUARD_SCALE that of a dynamic loss scale.
 * A run without a dynamic one does not take the one that another run left. sh_guard_check() only says whether the text
 * can be read, SH_E_DATA if not; an empty one can. */
#define SH_GUARD_SCALE "; loss_scale "
sh_rc sh_guard_read(struct sh_guard *g, struct sh_loss_scale *s, const char *text);
sh_rc sh_guard_check(const char *text);

/* Widths that want the same rates (mup.h). */
struct sh_mup {
    double width;             /* 0: off */
    double eps, weight_decay; /* of the run, for parameters whose group has none */
};

#endif
