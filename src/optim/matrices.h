/* The matrices of linear products that a parameter holds: by its role, whatever a file fuses. Pure, local. */
#ifndef SH_OPTIM_MATRICES_H
#define SH_OPTIM_MATRICES_H

#include "src/config/model.h"
#include "src/optim/optim.h"
#include "src/program/program.h"

/* Append the matrices of a parameter to the program's table; their places are those in the parameter's unit. */
void sh_matrices_add(struct sh_program *p, const struct sh_param *param, const struct sh_model *m,
                     const struct sh_ortho *how);

/* The dims of a saved matrix as a product, as the family has them or as model.ffn says. Experts: of one of them. */
void sh_matrices_dims(const struct sh_model *m, const struct sh_saved *s, int64_t *in, int64_t *out);

/* How many rows the parameter's matrices have together. */
int64_t sh_matrices_rows(const struct sh_program *p, const struct sh_param *param, const struct sh_model *m);

#endif
