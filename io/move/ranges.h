/* Stretches of a file. */
#ifndef IO_MOVE_RANGES_H
#define IO_MOVE_RANGES_H

#include <stdint.h>

struct sh_move_range {
    int64_t at, bytes;
};

/* Sort ranges [n] in place and join those that touch; returns how many are left. Errors: -1: two of them overlap. */
int sh_move_ranges_join(struct sh_move_range *ranges, int n);

#endif
