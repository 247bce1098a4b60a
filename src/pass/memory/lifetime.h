/* When a tensor of a section is alive, in operations of that section. Shared by place and check. */
#ifndef SH_PASS_LIFETIME_H
#define SH_PASS_LIFETIME_H

#include "src/program/program.h"

struct sh_life {
    int first, last; /* inclusive; first == SH_NONE: not used in the section */
};

/* Fill life[p->n_tensors], by storage root, for transient tensors of one section. A tensor that a collective touches
 * stays alive until the wait for it; a gathered unit until its release. */
void sh_lifetime_of_section(const struct sh_program *p, const struct sh_section *section, struct sh_life *life);

/* Bytes that a tensor's storage takes in the arena, alignment included; and how many of them count for this rank. */
int64_t sh_lifetime_bytes(const struct sh_tensor *t);
int64_t sh_lifetime_share(const struct sh_program *p, const struct sh_tensor *t);

/* Whether output operand inplace_out of the operation may reuse its input's storage: the input dies here and is used
 * once. */
bool sh_lifetime_inplace(const struct sh_program *p, const struct sh_section *section, const struct sh_life *life,
                         int op, int *in_root, int *out_root);

#endif
