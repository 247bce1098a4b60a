/* A save in the foreground runs the stages one after the other; one in the background runs those that are local in a
 * thread, and the rest between two steps. HDF5 is mostly not built for threads, but can be used by one thread after the
 * other, and training itself does not use it. Its serial driver calls no MPI. */
#include "io/checkpoint/save.h"

#include "io/checkpoint/file/io_method.h"
#include "src/base/mem.h"
#include "src/base/temp.h"
#include "src/mesh/mesh.h"

#include <stdlib.h>
#include <unistd.h>

struct sh_ckpt_async {
    struct sh_ckpt_saving s;
    bool committed; /* all stages are done, on all ranks */
};

static void give_up(void *arg)
{
    sh_move_writers_give_up(&((struct sh_ckpt_saving *)arg)->writers);
}

/* Nothing is done yet. Always close with close_saving(). */
static void open_saving(struct sh_ckpt_saving *s, const char *folder, const struct sh_ckpt_set *set,
                        const struct sh_ckpt_meta *meta, const struct sh_ckpt_options *options)
{
    *s = (struct sh_ckpt_saving){
        .folder = folder, .set = *set, .meta = meta, .options = *options, .fd = -1, .memory = -1};
    s->stages = (struct sh_move_stages){
        .stage = sh_ckpt_stages, .n = sh_ckpt_n_stages, .arg = s, .seconds = s->times.seconds, .give_up = give_up};
    sh_mesh_world(&s->rank, &s->world);
    sh_move_stages_open(&s->stages, sh_strfmt("checkpoint of step %lld in %s", (long long)meta->step, folder),
                        options->timeout_seconds);
}

/* Collective if not committed. Rank 0 deletes the temporary file of a failed save. */
static void close_saving(struct sh_ckpt_saving *s, bool committed)
{
    sh_move_stages_join(&s->stages);
    sh_move_deadline_enter(s->stages.deadline, "closing the file");
    if (s->fd >= 0)
        close(s->fd);
    if (s->memory >= 0)
        close(s->memory);
    if (!committed && s->rank == 0 && s->temp[0])
        unlink(s->temp);
    if (s->temp[0])
        sh_temp_drop(s->temp);
    sh_move_deadline_wait(s->stages.deadline);
    if (!committed)
        sh_mesh_barrier(); /* a rank that returned earlier could end the job before the file is gone */
    sh_move_stages_close(&s->stages);
    if (committed && s->options.times)
        *s->options.times = s->times;
    sh_move_writers_free(&s->writers);
    sh_ckpt_extents_free(&s->extents);
    sh_ckpt_index_free(&s->index);
    sh_ckpt_index_free(&s->written);
}

sh_rc sh_ckpt_save(const char *folder, const struct sh_ckpt_set *set, const struct sh_ckpt_meta *meta,
                   const struct sh_ckpt_options *options, int64_t *bytes)
{
    struct sh_ckpt_saving s;
    open_saving(&s, folder, set, meta, options);
    sh_rc rc = sh_move_stages_run(&s.stages);
    if (rc == SH_OK)
        *bytes = s.bytes;
    close_saving(&s, rc == SH_OK);
    return rc;
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

/* On failure everything is undone and *out is untouched. */
sh_rc sh_ckpt_async_begin(const char *folder, const struct sh_ckpt_set *set, const struct sh_ckpt_meta *meta,
                          const struct sh_ckpt_options *options, struct sh_ckpt_async **out)
{
    struct sh_ckpt_async *b = sh_calloc(1, sizeof *b);
    bool done;
    open_saving(&b->s, folder, set, meta, options);
    b->s.options.io_method = SH_IO_DIRECT;
    /* Only one thread: more would take cores from the training. */
    b->s.options.threads = 1;
    sh_rc rc = sh_move_stages_poll(&b->s.stages, false, &done);
    if (rc == SH_OK)
        *out = b;
    else
        sh_ckpt_async_end(b);
    return rc;
}

sh_rc sh_ckpt_async_poll(struct sh_ckpt_async *b, bool wait, bool *done, int64_t *bytes)
{
    SH_TRY(sh_move_stages_poll(&b->s.stages, wait, done));
    b->committed = *done;
    *bytes = *done ? b->s.bytes : 0; /* until then the thread may be writing it */
    return SH_OK;
}

/* Also for a save that failed or was never finished: its temporary file is deleted. */
void sh_ckpt_async_end(struct sh_ckpt_async *b)
{
    if (!b)
        return;
    close_saving(&b->s, b->committed);
    free(b);
}
