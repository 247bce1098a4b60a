/* Fingerprints of steps: debug.fingerprint. In the steps that debug.fingerprint_steps lists, rank 0 writes a record of each
 * tensor of the step into a file of JSON lines: what the state was, what each operation made, and the gradients, each as
 * a sketch (src/base/number/sketch.h). Records have no trace of the mesh, so `sherd diff` finds the first tensor in which
 * two runs part. Other steps cost nothing. */
#ifndef SH_WATCH_FINGERPRINT_H
#define SH_WATCH_FINGERPRINT_H

#include "src/base/err.h"
#include <stdint.h>

struct sh_batches;
struct sh_run;
struct sh_fingerprint_step; /* of a step that is being recorded */

struct sh_fingerprint {
    struct sh_fingerprint_step *recording; /* NULL: none is */
    int64_t written;                       /* steps in the file */
};

/* Refuse what cannot be recorded, more micro-steps than can be told apart, and a file that cannot be made. Rank 0 looks. Local.
 * Errors: SH_E_USAGE, SH_E_DATA. */
sh_rc sh_fingerprint_check(const struct sh_run *r, const struct sh_batches *batches);

/* Around the step that makes r->step + 1 of `batch` sequences. Before: a pending update is carried out first. Collective.
 * Errors: SH_E_DATA. */
sh_rc sh_fingerprint_before_step(struct sh_fingerprint *f, struct sh_run *r, int64_t batch);
sh_rc sh_fingerprint_after_step(struct sh_fingerprint *f, struct sh_run *r);

/* Micro-step m has sequences from number `first` of the run on; their tokens are on the device. Local. */
void sh_fingerprint_micro_step(struct sh_fingerprint *f, int m, int64_t first);

/* Gradients are whole, and no update has begun, which may overwrite them. Local. */
void sh_fingerprint_before_update(struct sh_fingerprint *f);

void sh_fingerprint_close(struct sh_fingerprint *f); /* local */

#endif
