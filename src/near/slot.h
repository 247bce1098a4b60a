/* A slot: the memory that holds one generation of what a rank would write to a checkpoint. It describes itself, so that
 * a later start on any mesh can read it without the program that filled it:
 *
 *     head | rows | units | sums | text | for each trained unit: masters, then each state
 *
 * A rank has two slots. One holds the newest generation that all ranks have; the other is rewritten. The state word
 * tells a finished slot from a torn one, however the writer ended: EMPTY, FILLING while anything of it may change, DONE.
 *
 * Local, no MPI; the memory is whoever's, and shared between processes. */
#ifndef SH_NEAR_SLOT_H
#define SH_NEAR_SLOT_H

#include "src/base/number/floats.h"
#include "src/mesh/shape.h"
#include "src/program/program.h"

#include <stdatomic.h>

enum { SH_NEAR_SLOTS = 2, SH_NEAR_TEXT = 1 << 16, SH_NEAR_PAGE = 4096 };
/* No changed bit makes one of another. */
enum sh_near_state { SH_NEAR_EMPTY, SH_NEAR_FILLING = 0x46494c4c, SH_NEAR_DONE = 0x444f4e45 };

/* Where training stood. */
struct sh_near_mark {
    int64_t step, updates, samples, tokens;
    int64_t time_ns; /* when the copy began, since 1970 */
    uint64_t start;  /* a number of the start that made it: parts of two starts may be of one step */
};

/* The texts of a checkpoint's meta data. */
struct sh_near_text {
    const char *config, *guard, *notes, *base;
};

struct sh_near_head {
    char magic[8];
    uint32_t version;
    _Atomic uint32_t state;
    uint64_t layout; /* the same for all ranks of a start that cut the states alike */
    uint64_t model;  /* of the saved tensors and of the states' names */
    int32_t rank, world;
    int32_t n_rows, n_units, n_states; /* units: the trained ones; states: parameters and those of the optimizer */
    int32_t dtype[1 + SH_KEPT_MAX];    /* of the states; that of the parameters is each unit's */
    int64_t rows_at, units_at, sums_at, text_at, bytes;
    struct sh_near_mark mark;
    int64_t text_bytes;
    uint64_t self; /* of all before the arrays, with itself and `state` as 0 */
};

/* Elements [at, at + n count) of a unit's arrays are `count` runs of a saved tensor, as in sh_rng_runs. */
struct sh_near_row {
    int32_t tensor, unit; /* among the trained saved tensors; among the slot's units */
    int64_t at, first, n, stride, count;
};

struct sh_near_unit {
    int64_t at, n; /* bytes from the head to its arrays; elements of each array */
    int32_t unit;  /* of the program that filled it */
    int32_t halves;
};

/* The parts of a slot; they point into its memory. */
struct sh_near_slot {
    struct sh_near_head *head;
    struct sh_near_row *row;
    struct sh_near_unit *unit;
    uint64_t *sum; /* [n_units][n_states] */
    char *text;
};

/* Bytes of a slot of this rank, whole pages. */
int64_t sh_near_bytes(const struct sh_program *p, const struct sh_mesh_shape *shape);

/* What the trained saved tensors and the states are: a generation fits a program if this is equal. */
uint64_t sh_near_model(const struct sh_program *p);

/* Lay out an EMPTY slot in zeroed memory of sh_near_bytes(). */
void sh_near_format(void *memory, const struct sh_program *p, const struct sh_mesh_shape *shape, uint64_t layout,
                    struct sh_near_slot *out);

/* Find the parts of a slot in memory; false: it is none, or one of another version. */
bool sh_near_view(void *memory, int64_t bytes, struct sh_near_slot *out);

/* Whether something before the arrays of a DONE slot has changed: its head, which may then say anything, its rows, units,
 * sums or texts. Without it sh_near_view() takes such a slot for what it says, or for none. If so, it is EMPTY from here
 * on. */
bool sh_near_empty_damaged(void *memory, int64_t bytes);

/* State k of a unit of the slot. */
struct sh_floats sh_near_array(const struct sh_near_slot *s, int unit, int k);

/* The place of a sum (src/base/number/mixsum.h) of element `at` of that array, for a generation of `step`. */
uint64_t sh_near_place(int64_t step, int unit, int k, int64_t at);

/* begin: from here on the slot is FILLING, and its sums are 0: whoever copies adds to them. end: all arrays and sums are
 * there; the slot is DONE. Errors of end: SH_E_DATA: the texts are longer than SH_NEAR_TEXT; the slot stays FILLING. */
void sh_near_begin(const struct sh_near_slot *s);
sh_rc sh_near_end(const struct sh_near_slot *s, const struct sh_near_mark *mark, const struct sh_near_text *text);
void sh_near_empty(const struct sh_near_slot *s);

enum sh_near_state sh_near_state(const struct sh_near_slot *s);
struct sh_near_text sh_near_texts(const struct sh_near_slot *s);

/* Whether all of it is as it was written. Errors: SH_E_DATA, with rank, state and unit. */
sh_rc sh_near_check(const struct sh_near_slot *s);

/* How many nodes further a copy goes: `wanted`, or half of the nodes if that is 0 or leads back. */
int sh_near_distance(int wanted, int nodes);

/* The slot to write next: never the one that holds generation `safe`, the newest that all ranks have; -1: none is.
 *   step  what the slots hold; -1: nothing that is DONE */
int sh_near_choose(const int64_t step[SH_NEAR_SLOTS], int64_t safe);

#endif
