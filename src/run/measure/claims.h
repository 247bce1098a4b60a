/* Claims of states: metrics.state_digest_every. After every so many steps rank 0 appends a digest of the state, 8 bytes, to
 * claims.jsonl in the run's folder, so that whoever has a checkpoint of the run can do its steps again and compare
 * (`sherd audit`). A digest is a sum over all trained parameters and optimizer states, by their names and places
 * (src/base/number/mixsum.h): any changed bit changes it, and the mesh does not. Frozen parameters are left out.
 *
 * Cost, at these steps only: the state is read once, on a GPU through its host, and one number is reduced. */
#ifndef SH_MEASURE_CLAIMS_H
#define SH_MEASURE_CLAIMS_H

#include "src/base/err.h"

#include <stdbool.h>
#include <stdint.h>

struct sh_run;

#define SH_CLAIMS_FILE "claims.jsonl"

/* Begin the claims of this process with a line that says what made them. Rank 0; local. Errors: SH_E_DATA. */
sh_rc sh_claims_begin(const struct sh_run *r);

/* Whether there is one after the step that makes `step`. Local, the same on all ranks. */
bool sh_claims_due(const struct sh_run *r, int64_t step);

/* Write that of the state as it is; no update is pending. Collective. Errors: SH_E_DATA. */
sh_rc sh_claims_step(struct sh_run *r);

#endif
