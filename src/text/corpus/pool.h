/* A pool of threads that encode batches of text in any order; the caller gets the batches back in the order in which it
 * gave them. Local.
 *
 *   sh_pool_start
 *   sh_pool_room    get a batch to fill; NULL while all are under way
 *   sh_pool_give    hand the filled batch to the pool
 *   sh_pool_take    take back the oldest batch given: waits until it is encoded
 *   sh_pool_stop */
#ifndef IO_TOKEN_POOL_H
#define IO_TOKEN_POOL_H

#include "src/base/err.h"
#include "src/text/base/ids.h"
#include "src/text/base/text.h"

#include <stdbool.h>
#include <stdint.h>

struct sh_batch {
    struct sh_text text; /* whole documents */
    const char *name;    /* of the file */
    bool lines;          /* true: jsonl; false: plain text */
    bool val;
    int64_t first;          /* line (jsonl) or byte (text) of the file at which the batch begins, counted from 0 */
    struct sh_ids ids;      /* out */
    struct sh_ids lengths;  /* out: lengths of the documents, in ids, if wanted */
    struct sh_text mask;    /* out: one byte per id, 1: the id counts as a target; only for kinds that have a mask */
    struct sh_text numbers; /* out: a double of each document, for kinds that have them */
    int64_t documents, empty;
    int64_t across; /* learned tokens that begin in what is not learned */
    sh_rc rc;
    char *error; /* the message, if rc is not SH_OK */
};

/* Runs in the pool's threads. worker: what `create` returned for this thread. */
typedef sh_rc (*sh_batch_encode)(const void *ctx, void *worker, struct sh_batch *b);

struct sh_pool;

struct sh_pool_job {
    sh_batch_encode encode;
    void *(*create)(const void *ctx);
    void (*destroy)(void *worker);
    const void *ctx;
    int threads;
};

/* Errors: SH_E_MEMORY: a thread cannot be started. */
sh_rc sh_pool_start(const struct sh_pool_job *job, struct sh_pool **out);
void sh_pool_stop(struct sh_pool *c); /* batches that were not taken are lost; NULL is fine */

struct sh_batch *sh_pool_room(struct sh_pool *c);
void sh_pool_give(struct sh_pool *c);

/* Returns NULL if no batch is under way or, with `wait` false, if the oldest one is not encoded yet. The batch belongs
 * to the pool again from the next call on the pool.
 * An error of the batch is in its rc: pass it on with sh_pool_rc(). */
struct sh_batch *sh_pool_take(struct sh_pool *c, bool wait);
sh_rc sh_pool_rc(const struct sh_batch *b);

#endif
