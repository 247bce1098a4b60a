#include "io/checkpoint/save.h"

#include "src/base/mem.h"
#include "src/base/time.h"
#include "src/mesh/mesh.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* How the file was verified determines how far it can be trusted, so the save notes it. */
static void note_verify(struct sh_ckpt_meta *meta, enum sh_cfg_verify verify)
{
    char *notes = meta->notes;
    meta->notes = sh_strfmt("%scheckpoint.verify: %s\n", notes, sh_ckpt_verify_name[verify]);
    free(notes);
}

/* Collective. Errors are agreed, so that all ranks or none continue with the stages. Always close with
 * sh_ckpt_saving_close(). */
sh_rc sh_ckpt_saving_open(struct sh_ckpt_saving *s, const char *folder, const struct sh_ckpt_set *set,
                          const struct sh_ckpt_meta *meta, const struct sh_ckpt_options *options)
{
    *s = (struct sh_ckpt_saving){.folder = folder, .set = *set, .options = *options, .fd = -1, .memory = -1};
    sh_mesh_world(&s->rank, &s->world);
    char *what = sh_strfmt("checkpoint of step %lld in %s", (long long)meta->step, folder);
    s->deadline = sh_move_deadline_start(what, options->timeout_seconds, s->rank);
    free(what);
    sh_rc rc = sh_ckpt_index_make(set, meta, &s->index);
    if (rc == SH_OK)
        note_verify(&s->index.meta, options->verify);
    sh_move_deadline_wait(s->deadline);
    return sh_agree(rc);
}

/* Runs a stage without an agreement; its time is added to its phase. */
sh_rc sh_ckpt_saving_run_alone(struct sh_ckpt_saving *s, int stage)
{
    int64_t begin = sh_now_ns();
    sh_rc rc = sh_ckpt_stages[stage].run(s);
    s->times.seconds[sh_ckpt_stages[stage].phase] += sh_seconds_since(begin);
    return rc;
}

/* Runs one stage with its agreement. Collective. */
sh_rc sh_ckpt_saving_run(struct sh_ckpt_saving *s, int stage)
{
    sh_move_deadline_enter(s->deadline, sh_ckpt_stages[stage].name);
    if (!sh_ckpt_stages[stage].local)
        sh_move_deadline_wait(s->deadline); /* it meets the other ranks on the way */
    sh_rc rc = sh_ckpt_saving_run_alone(s, stage);
    sh_move_deadline_wait(s->deadline);
    return sh_agree(rc);
}

/* Collective if not committed. Rank 0 deletes the temporary file of a failed save. */
void sh_ckpt_saving_close(struct sh_ckpt_saving *s, bool committed)
{
    sh_move_deadline_enter(s->deadline, "closing the file");
    if (s->fd >= 0)
        close(s->fd);
    if (s->memory >= 0)
        close(s->memory);
    if (!committed && s->rank == 0 && s->temp[0])
        unlink(s->temp);
    sh_move_deadline_wait(s->deadline);
    if (!committed)
        sh_mesh_barrier(); /* a rank that returned earlier could end the job before the file is gone */
    sh_move_deadline_stop(s->deadline);
    if (committed && s->options.times)
        *s->options.times = s->times;
    free(s->covered);
    sh_move_writers_free(&s->writers);
    sh_ckpt_extents_free(&s->extents);
    sh_ckpt_index_free(&s->index);
    sh_ckpt_index_free(&s->written);
}

/* Collective, and synchronous: all stages one after the other. */
sh_rc sh_ckpt_save_as(const char *folder, const struct sh_ckpt_set *set, const struct sh_ckpt_meta *meta,
                      const struct sh_ckpt_options *options, int64_t *bytes)
{
    struct sh_ckpt_saving s;
    sh_rc rc = sh_ckpt_saving_open(&s, folder, set, meta, options);
    for (int i = 0; i < sh_ckpt_n_stages && rc == SH_OK; i++)
        rc = sh_ckpt_saving_run(&s, i);
    if (rc == SH_OK)
        *bytes = s.bytes;
    sh_ckpt_saving_close(&s, rc == SH_OK);
    return rc;
}

sh_rc sh_ckpt_save(const char *folder, const struct sh_ckpt_set *set, const struct sh_ckpt_meta *meta, int64_t *bytes)
{
    return sh_ckpt_save_as(folder, set, meta, &(struct sh_ckpt_options){.hints = "", .threads = 1}, bytes);
}
