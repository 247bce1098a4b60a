/* An asynchronous save. Its thread runs one local stage at a time: memory, HDF5 on rank 0, writes, fsync, reads.
 * The caller does everything that needs MPI, and every agreement, between two steps. HDF5 is mostly not built for
 * threads, but can be used by one thread after the other: a stage's thread is joined before the next starts, and
 * training itself does not use HDF5. Its serial driver calls no MPI. */
#include "io/checkpoint/save.h"

#include "io/checkpoint/io_method.h"
#include "src/base/mem.h"
#include "src/base/thread.h"
#include "src/mesh/mesh.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_BYTES = 2048 };

/* clang-format off */
struct sh_ckpt_async {
    struct sh_ckpt_saving s;
    int stage;              /* the next stage, or the one that the thread runs */
    bool running;           /* a thread was started but not yet joined */
    pthread_t thread;
    bool committed;         /* all stages are done, on all ranks */
    atomic_bool done;       /* set last by the thread; then rc and text may be read */
    sh_rc rc;
    char text[TEXT_BYTES];  /* errors are kept per thread */
};
/* clang-format on */

/* The thread's body: runs one stage and leaves its result. `done` is stored last, so a thread that sees it also sees rc
 * and text. */
static void *run_stage(void *arg)
{
    struct sh_ckpt_async *b = arg;
    b->rc = sh_ckpt_saving_run_alone(&b->s, b->stage);
    if (b->rc != SH_OK)
        snprintf(b->text, sizeof b->text, "%s", sh_error_text());
    sh_move_deadline_rest(b->s.deadline);
    atomic_store(&b->done, true);
    return NULL;
}

/* If no thread can be created, the stage has failed, so that all ranks learn of it when they agree; others on the node
 * may wait for data that it would have passed on. */
static void start_stage(struct sh_ckpt_async *b)
{
    atomic_store(&b->done, false);
    sh_move_deadline_enter(b->s.deadline, sh_ckpt_stages[b->stage].name);
    sh_rc rc = sh_thread_start(&b->thread, "write a checkpoint in the background", run_stage, b, 0);
    b->running = rc == SH_OK; /* b->rc is the thread's from here on */
    if (b->running)
        return;
    sh_move_writers_give_up(&b->s.writers);
    b->rc = rc;
    snprintf(b->text, sizeof b->text, "%s", sh_error_text());
    atomic_store(&b->done, true);
}

static void join(struct sh_ckpt_async *b)
{
    if (b->running)
        pthread_join(b->thread, NULL);
    b->running = false;
}

/* All ranks agree on a stage before the next starts. The thread's text first becomes this thread's error. */
static sh_rc finish_stage(struct sh_ckpt_async *b)
{
    join(b);
    b->stage++;
    return sh_agree(b->rc == SH_OK ? SH_OK : sh_fail(b->rc, "%s", b->text));
}

/* Without `wait` the ranks count the busy ones: none continues before all can. With it each rank joins its own thread,
 * and no count is needed. */
static sh_rc all_done(struct sh_ckpt_async *b, bool wait, bool *done)
{
    if (wait)
        join(b);
    long long busy = !atomic_load(&b->done);
    if (!wait)
        SH_TRY(sh_mesh_sum_i64(&busy, 1));
    *done = busy == 0;
    return SH_OK;
}

/* The ranks meet: are all done with the stage, and with what result? */
static sh_rc meet(struct sh_ckpt_async *b, bool wait, bool *done)
{
    sh_move_deadline_meet(b->s.deadline, true);
    sh_rc rc = all_done(b, wait, done);
    if (rc == SH_OK && *done)
        rc = finish_stage(b);
    sh_move_deadline_meet(b->s.deadline, false);
    return rc;
}

/* Runs stages until one is in progress or all are done. Collective ones run here, on the caller's thread, which is the
 * only one that may call MPI.
 *  start  true: the next local stage has no thread yet; false: it was started by an earlier call */
static sh_rc go_on(struct sh_ckpt_async *b, bool wait, bool start)
{
    bool done = true;
    while (b->stage < sh_ckpt_n_stages && done) {
        if (!sh_ckpt_stages[b->stage].local) {
            SH_TRY(sh_ckpt_saving_run(&b->s, b->stage++));
            continue;
        }
        if (start)
            start_stage(b);
        start = true;
        SH_TRY(meet(b, wait, &done));
    }
    return SH_OK;
}

/* Called before training: the writing thread cannot use MPI-IO, so a file system that may lose direct writes is
 * refused. Collective. */
sh_rc sh_ckpt_async_check(const char *folder, const struct sh_ckpt_options *options)
{
    enum sh_cfg_io io_method = SH_IO_AUTO;
    SH_TRY(sh_agree(sh_ckpt_io_method_choose(folder, options, &io_method)));
    if (io_method == SH_IO_DIRECT)
        return SH_OK;
    return sh_agree(sh_fail(SH_E_USAGE,
                            "%s: saving in the background writes without MPI-IO, but this file system is not known "
                            "to allow that from several nodes; set checkpoint.async_mode=disabled, or "
                            "checkpoint.io=direct if you know that it does",
                            folder));
}

/* Collective. On failure everything is undone and *out is untouched. The set's data must not change until the end. */
sh_rc sh_ckpt_async_begin(const char *folder, const struct sh_ckpt_set *set, const struct sh_ckpt_meta *meta,
                          const struct sh_ckpt_options *options, struct sh_ckpt_async **out)
{
    struct sh_ckpt_async *b = sh_calloc(1, sizeof *b);
    sh_rc rc = sh_ckpt_saving_open(&b->s, folder, set, meta, options);
    b->s.options.io_method = SH_IO_DIRECT;
    /* Only one thread: more would take cores from the training. */
    b->s.options.threads = 1;
    if (rc == SH_OK)
        rc = go_on(b, false, true);
    if (rc == SH_OK)
        *out = b;
    else
        sh_ckpt_async_end(b);
    return rc;
}

/* Collective. Between two steps the ranks check whether the stage is over, and start the next one. With `wait` it
 * returns when all stages are done. */
sh_rc sh_ckpt_async_poll(struct sh_ckpt_async *b, bool wait, bool *done, int64_t *bytes)
{
    SH_TRY(go_on(b, wait, false));
    *done = b->committed = b->stage == sh_ckpt_n_stages;
    *bytes = *done ? b->s.bytes : 0; /* until then the thread may be writing it */
    return SH_OK;
}

/* Also for a save that failed or was never finished: its temporary file is deleted. */
void sh_ckpt_async_end(struct sh_ckpt_async *b)
{
    if (!b)
        return;
    join(b);
    sh_ckpt_saving_close(&b->s, b->committed);
    free(b);
}
