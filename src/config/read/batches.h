/* Sequences of a training step, by the step: the form of training.batch_schedule, "0:256, 2000:512"; data.length_schedule has
 * lengths of sequences in their place. Pure, local. */
#ifndef SH_READ_BATCHES_H
#define SH_READ_BATCHES_H

#include "src/base/err.h"

#include <stdint.h>

enum { SH_BATCHES_MAX = 16 };

/* Phase i lasts from step at[i].step, counted from 0, to the next one's. */
struct sh_batches {
    int n;
    struct {
        int64_t step, sequences;
    } at[SH_BATCHES_MAX];
};

/* Read the text; "": no phases. Errors: SH_E_USAGE, naming the part. */
sh_rc sh_batches_read(const char *text, struct sh_batches *out);

/* Sequences of a step; of the largest; and of all steps before `step`. With at least one phase. */
int64_t sh_batches_of(const struct sh_batches *b, int64_t step);
int64_t sh_batches_most(const struct sh_batches *b);
int64_t sh_batches_before(const struct sh_batches *b, int64_t step);

#endif
