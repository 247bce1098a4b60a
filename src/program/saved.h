/* Which elements of its saved tensor a parameter holds. Initial values, files, digests and random bits are functions of
 * the saved tensor's name and the element's place in it, so that they do not depend on who holds what:
 *
 *     for (at = first; at < end; at += run.n)
 *         run = sh_saved_run(p, param, at, end - at);    elements [at, at + run.n) are [run.first, run.first + run.n)
 *
 * Local, no failure. */
#ifndef SH_PROGRAM_SAVED_H
#define SH_PROGRAM_SAVED_H

#include "src/base/number/rng.h"
#include "src/layout/layout.h"
#include "src/mesh/shape.h"
#include "src/program/program.h"

const struct sh_saved *sh_saved_of(const struct sh_program *p, const struct sh_param *param);

/* The runs of the saved tensor that the parameter's elements from `at` on are, of at most n of them: one run as long as
 * possible, and the runs after it at once if they are as long and equally far apart. A parameter that is the whole
 * tensor is one run. */
struct sh_rng_runs sh_saved_run(const struct sh_program *p, const struct sh_param *param, int64_t at, int64_t n);

/* Whether each run of a whole parameter begins at a multiple of `elems` and has a multiple of them, in both. */
bool sh_saved_divides(const struct sh_program *p, const struct sh_param *param, int64_t elems);

/* What this rank owns of a unit; replicas own the same. */
struct sh_range sh_program_owned(const struct sh_program *p, const struct sh_unit *u, const struct sh_mesh_shape *mesh);

/* Check all parameters: bands lie in their dimension, in order and without overlap, and fill what is held of it; other
 * dimensions are those of the saved tensor. Errors: SH_E_BUG with the name. */
sh_rc sh_saved_check(const struct sh_program *p);

#endif
