/* The map of states: which elements of parameters and optimizer states this rank holds, where each of them lies, and
 * which of them it writes. It is made once, when a run opens. Whoever saves, loads, copies, checks or compares states
 * walks over it, and asks nobody else. State 0 is the parameters; those of the optimizer follow.
 *
 * A visit goes over the rows, stretch by stretch, to look at states or to change them. A stretch whose states are in
 * memory is visited in place; one with a slice is brought to memory first, and put back if it was changed. Only between
 * sections, and with no update pending (sh_exec_settle()); else SH_E_BUG. On devices with memory of their own, the
 * addresses are the device's, or, for slices, in pinned host memory, which its kernels reach as well; a visitor must
 * use them through the executor. Local. */
#ifndef SH_SAVE_MAP_H
#define SH_SAVE_MAP_H

#include "src/base/number/floats.h"
#include "src/layout/layout.h"
#include "src/program/program.h"

struct sh_exec;
struct sh_run;

struct sh_map_stretch {
    int unit;
    struct sh_range range;                   /* of the unit's elements */
    struct sh_floats state[1 + SH_KEPT_MAX]; /* from the first of them on; none: the unit has no such state */
};

/* The rows of a unit follow each other, and cover what the rank owns of it. */
struct sh_map_row {
    struct sh_map_stretch here;  /* on the device; its arrays go on in the next row */
    int slice;                   /* has the arrays that are not here; SH_NONE: all are */
    unsigned far;                /* bit k: the array of state k is in the slice; of split masters, the lower halves */
    int64_t at[1 + SH_KEPT_MAX]; /* where it begins in the slice's extent, in bytes */
};

struct sh_map_unit {
    struct sh_range owned;                  /* replicas own the same */
    struct sh_range written;                /* the part of it that this rank saves */
    struct sh_floats copy[1 + SH_KEPT_MAX]; /* of what is written, in the snapshot; none: there is no snapshot */
    int64_t copied[1 + SH_KEPT_MAX];        /* its elements: all, or those before the first that lacks the state */
    int first_row, n_rows, n_states;        /* a frozen unit has only parameters, and one of
                                                  rows its state in their place */
    unsigned far;                           /* those of all rows */
};

struct sh_map {
    int n_states;
    const char *name[1 + SH_KEPT_MAX];
    struct sh_map_unit *unit; /* of the program */
    struct sh_map_row *row;
    int n_rows;
};

/* The program and the executor are lent until free. */
struct sh_map *sh_map_make(const struct sh_program *p, const struct sh_mesh_shape *shape, struct sh_exec *exec);
void sh_map_free(struct sh_map *map); /* NULL: nothing */

/* The elements of a parameter within a range of its unit. */
struct sh_range sh_map_cut(struct sh_range range, const struct sh_param *param);

/* Whether elements of a unit from `first` on have no state k: it counts as 0 in files. */
bool sh_map_lacks(const struct sh_program *p, int unit, int k, int64_t first);

/* Which of the states of a unit is state k of the checkpoint, whose states are those of the map, and the state of rows if
 * there is one; SH_NONE: the unit has none of it. */
int sh_map_state_at(const struct sh_program *p, int unit, int k);

/* Whether a state is in codes. Visits must then begin at whole blocks. */
bool sh_map_coded(const struct sh_program *p, int k);

/* State k of elements `of` of the unit, in codes of which the stretch has all, as floats in host memory. `of` may begin
 * and end within a block. */
void sh_map_widen(const struct sh_run *r, const struct sh_map_stretch *s, int k, struct sh_range of, float *to);

/* State k of what the rank owns of a unit, from the owned element `first` on. Not for a state that is far or coded. */
struct sh_floats sh_map_state(const struct sh_map *map, int unit, int k, int64_t first);

/* n floats from `memory` on, laid out as state k of the unit is; those in codes are whole. */
struct sh_floats sh_map_laid_out(const struct sh_program *p, int unit, int k, void *memory, int64_t n);

typedef void sh_map_look(const struct sh_map_stretch *s, void *arg);

/* Visit the stretches of `range` of a unit, in order.
 *   states  bit k: state k is read, and with `change` written; the others are none
 * From any thread; one thread at a time has a slice. Errors: SH_E_DATA of the file. */
sh_rc sh_map_visit(const struct sh_run *r, int unit, struct sh_range range, unsigned states, bool change,
                   sh_map_look *look, void *arg);

/* Visit all that the rank owns of all trained units. A failing file stops the job. */
void sh_map_visit_all(const struct sh_run *r, bool change, sh_map_look *look, void *arg);

#endif
