/* What an optimizer's row emits: the update of one unit on one rank. Local; its operations are appended to the newest
 * section of the program. */
#ifndef SH_OPTIM_UPDATE_H
#define SH_OPTIM_UPDATE_H

#include "src/config/model.h"
#include "src/mesh/shape.h"
#include "src/optim/matrices.h"
#include "src/optim/optim.h"
#include "src/program/program.h"

struct sh_update {
    struct sh_program *p;
    const struct sh_model *model;
    const struct sh_optim *optim;
    int unit;
    enum sh_runs_of of; /* which of the unit's parameters; all, unless the row asks for whole matrices */
    int chunks, index;  /* into how many chunks the unit is cut; which of them is this rank's */
};

/* Whether the update is of this parameter, or may be of some of its elements; or of this saved tensor, whoever has it. */
bool sh_optim_takes(const struct sh_program *p, enum sh_runs_of of, const struct sh_saved *s);
bool sh_optim_has(const struct sh_program *p, enum sh_runs_of of, const struct sh_param *param);

/* Whether state k of the program, 0 for the optimizer's first, is of a saved tensor: Muon has no mean of squares of matrices. */
bool sh_optim_keeps(const struct sh_program *p, const struct sh_optim *optim, int k, const struct sh_saved *s);

/* Append an elementwise update of those parameters in this rank's chunk, from `grad` [chunk] f32. */
void sh_optim_elements(const struct sh_update *u, enum sh_op_kind kind, int grad);

/* Neighbouring units whose matrices are updated at once; all are cut over the same ranks. */
struct sh_update_wave {
    struct sh_program *p;
    const struct sh_model *model;
    const struct sh_ortho *ortho;
    const int *unit;
    int n, ranks;
    int sharers; /* replicas that share the work on the matrices of a rank: neighbours in their group; 1: each does all */
    int number; /* of the wave, from 0 on */
};

/* How many units a wave should have, given one with all of them; and how many of so many replicas share the work.
 *   sharers  in: replicas; out: a divisor of them */
int sh_optim_wave_units(const struct sh_update_wave *all, int *sharers);

/* Set which matrices this rank has, and where they lie, in all waves of a program: it was built for another rank, or has
 * just been built. */
void sh_optim_place_owned(struct sh_program *p, const struct sh_mesh_shape *mesh);

/* Add a unit for the state of rows beside each trained unit with matrices, if the row has such a state; and its memory, once
 * `first_cut` of the unit is known. */
void sh_optim_add_moments(struct sh_program *p, const struct sh_optim *optim, const struct sh_model *m);
void sh_optim_keep_moments(struct sh_program *p, int unit, int ranks);

/* The chunks [chunk] f32 of all ranks, end to end as in the unit; and of such a whole unit this rank's chunk. */
int sh_optim_gather(const struct sh_update *u, int chunk);
int sh_optim_own(const struct sh_update *u, int whole);

#endif
