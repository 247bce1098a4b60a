/* Calls of Muon's operations, for the kernels of all devices; to run and to end as others of optest.h. */
#ifndef SH_TESTS_OP_MUON_H
#define SH_TESTS_OP_MUON_H

#include "tests/op/optest.h"

struct sh_op_scalars muon_scalars(bool nesterov);

/* MUON_MOMENTUM or MUON_APPLY of n elements in three runs, with gaps; the states in a type. */
void muon_begin(struct optest *t, enum sh_op_kind kind, int64_t n, enum sh_dtype states);

/* A matrix of rows end to end. */
struct sh_matrix muon_plain(int64_t at, int64_t out, int64_t in);

/* Matrices that lie in any way among other elements, of which there are MUON_ROOM from the hundredth on. */
enum { MUON_LAYOUTS = 6, MUON_ROOM = 1500 };
extern const struct sh_matrix muon_layouts[MUON_LAYOUTS];

/* ORTHO of n elements from `origin` on; ORTHO_ROWS of those matrices, with their rows in `of`. */
void muon_begin_matrices(struct optest *t, int kind, int64_t n, int64_t origin, const struct sh_matrix *of, int count);
void muon_begin_rows(struct optest *t, struct sh_matrix of[MUON_LAYOUTS], int64_t *rows);

#endif
