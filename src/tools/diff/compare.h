/* Two files of fingerprints, record by record in the order of the first one's program. An operation comes after all that
 * it reads, so the first record that differs has equal inputs. Local. */
#ifndef SH_DIFF_COMPARE_H
#define SH_DIFF_COMPARE_H

#include "src/tools/diff/prints.h"

struct sh_diff {
    const struct sh_prints_file *a, *b;
    double tolerance; /* for estimates: an output may differ by so many times what its inputs do, and one rounding */
    bool estimates;   /* asked for */

    /* Found: */
    bool by_bits;
    bool balance;                             /* losses of balance differ: no step is compared from the first gradient
                                                 of a router on */
    char why[512];                            /* why it is not by bits; "": it is, or that was asked for */
    const struct sh_print *first_a, *first_b; /* where they part; NULL: nowhere */
    const struct sh_print
        *state; /* up to rounding: of the last step, the state that differs most; NULL: all are equal */
    double state_most;
    int before;              /* records that were compared before it */
    int differing, compared; /* records of its step; of all steps if they do not part */
    int total, steps;        /* compared: records; steps that both files have */
    int only_a, only_b;      /* records of these steps that one file lacks */
    const struct sh_print *first_only_a, *first_only_b;
};

/* The norm of the difference over the larger norm, estimated. */
double sh_diff_relative(const struct sh_print *a, const struct sh_print *b);

/* Errors: SH_E_USAGE: the runs did not do the same, or have no step in common. */
sh_rc sh_diff_find(struct sh_diff *d);

/* The first micro-step in which the two differ where they part, by its number on all ranks; count: how many do, 0 if they are not told
 * apart. Ranks of runs with other micro-steps, and roundings, do not tell. */
int64_t sh_diff_leaf(const struct sh_diff *d, int64_t *count);

/* How many tensors are not what they were when they are computed again; again: of how many. */
int sh_diff_recomputed(const struct sh_prints_file *f, int *again);

#endif
