/* Shared by the files of the check pass. */
#ifndef SH_PASS_CHECK_H
#define SH_PASS_CHECK_H

#include "src/pass/memory/lifetime.h"
#include "src/pass/pass.h"

struct sh_check {
    const struct sh_program *p;
    const struct sh_section *section;
    struct sh_life *life; /* [tensors] */
    bool *written;        /* [tensors] by storage root */
    int64_t *filled;      /* [tensors] by storage root, of activations: bytes from the first on that have a value */
    bool *gathered;       /* [tensors] by storage root: gathered and not yet released */
    bool *under_way;      /* [operations of the section] a collective or move started and not yet waited for */
    int *open, n_open;    /* [operations of the section] the first n_open: numbers of those under way, in no order */
    int *makes, *sends;   /* [tensors] by storage root: collectives and moves under way that write it, that read it */
    int *home;            /* [tensors] by storage root: what it was fetched from; SH_NONE: nothing */
    bool *changed;        /* [tensors] by storage root: fetched, and written since it was last put back */
    bool *used;           /* [tensors] by storage root: read by the micro-step itself, not by what is carried into it */
    bool pending;         /* the section is checked with the update that is carried into it; else without */
};

/* Operation i of the section (check_report.c). */
const struct sh_op *sh_check_op(const struct sh_check *c, int i);

/* SH_E_BUG that names section and operation. */
sh_rc sh_check_broken(const struct sh_check *c, int i, const char *what);

/* Order of reads, writes and collectives in one section (check_order.c). */
sh_rc sh_check_order(struct sh_check *c);

/* Places in the arena: views inside their base; no two living tensors of a section in one place (check_place.c). */
sh_rc sh_check_views(const struct sh_program *p);
sh_rc sh_check_homes(const struct sh_program *p); /* in tiers other than the device: none overlaps another or leaves its
                                                     tier */
sh_rc sh_check_overlap(const struct sh_check *c);

#endif
