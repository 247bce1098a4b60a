/* Batches of text that threads encode in any order, and that come back in theirs. Local.
 *
 *   sh_crew_start
 *   sh_crew_room    a batch to fill, NULL while all are under way
 *   sh_crew_give    it is filled
 *   sh_crew_take    the oldest that was given: waits until it is encoded
 *   sh_crew_stop */
#ifndef IO_TOKEN_POOL_H
#define IO_TOKEN_POOL_H

#include "io/token/ids.h"
#include "io/token/text.h"
#include "src/base/err.h"

#include <stdbool.h>
#include <stdint.h>

struct sh_batch {
    struct sh_text text; /* whole documents */
    const char *name;    /* of the file */
    bool lines;          /* jsonl; else text */
    bool val;
    int64_t first;         /* line (jsonl) or byte (text) of the file that it begins with, from 0 */
    struct sh_ids ids;     /* out */
    struct sh_ids lengths; /* out: of its documents in ids, where they are wanted */
    struct sh_text mask;   /* out: a byte an id, 1: it counts as a target; of kinds that say so */
    int64_t documents, empty;
    sh_rc rc;
    char *error; /* where rc is not SH_OK */
};

/* Runs in the threads. worker: what `create` made for this one. */
typedef sh_rc (*sh_batch_encode)(const void *ctx, void *worker, struct sh_batch *b);

struct sh_crew;

struct sh_crew_job {
    sh_batch_encode encode;
    void *(*create)(const void *ctx);
    void (*destroy)(void *worker);
    const void *ctx;
    int threads;
};

/* Errors: SH_E_MEMORY: no thread. */
sh_rc sh_crew_start(const struct sh_crew_job *job, struct sh_crew **out);
void sh_crew_stop(struct sh_crew *c); /* what was not taken is lost; NULL is fine */

struct sh_batch *sh_crew_room(struct sh_crew *c);
void sh_crew_give(struct sh_crew *c);

/* NULL: none is under way; with `wait` false also: it is not encoded yet. It is the crew's again with the next call
 * that it gets.
 * Errors of it are its rc: pass them on with sh_crew_rc(). */
struct sh_batch *sh_crew_take(struct sh_crew *c, bool wait);
sh_rc sh_crew_rc(const struct sh_batch *b);

#endif
