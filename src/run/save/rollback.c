#include "src/run/save/rollback.h"

#include "src/base/mem.h"
#include "src/run/kept/kept.h"
#include "src/run/run.h"

#include <stdlib.h>

enum { PIECE_BYTES = 1 << 16 };

/* Through a small buffer: a tensor may be larger than the memory that is left on the host. */
static void zero(struct sh_run *r, int tensor)
{
    char *zeros = sh_calloc(PIECE_BYTES, 1), *data = sh_exec_data(r->exec, tensor);
    int64_t bytes = sh_tensor_bytes(&r->p->tensors[tensor]);

    for (int64_t at = 0; at < bytes; at += PIECE_BYTES)
        sh_exec_put_at(r->exec, data + at, zeros, bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES);
    free(zeros);
}

/* Reset the state to that of a new run. A checkpoint overwrites all of it; initial values are parameters only. */
static void forget(struct sh_run *r)
{
    for (int i = 0; i < r->p->n_units; i++)
        for (int k = 0; r->p->units[i].trainable && k < r->p->n_states; k++)
            if (r->p->units[i].held && !r->p->units[i].of_rows)
                zero(r, r->p->units[i].state[k]);
    sh_exec_forget_slices(r->exec);
    r->step = r->samples = r->tokens = r->updates = 0;
    free(r->guard);
    r->guard = NULL;
}

/* Go back to the newest checkpoint, but not to its data: samples continue after those of the bad step, so that the same
 * sequences do not cause the same spike again. *first is the first sample that is left out. */
sh_rc sh_rollback(struct sh_run *r, int64_t *first)
{
    int64_t next = r->samples;

    forget(r);
    sh_kept_forget(r); /* they are of the steps to be undone */
    SH_TRY(sh_run_load_start(r, true, false));
    *first = r->samples;
    r->samples = next;
    return SH_OK;
}
