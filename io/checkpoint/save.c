#include "io/checkpoint/save.h"

#include "io/checkpoint/deadline.h"
#include "src/mesh/mesh.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void clean(struct sh_ckpt_saving *s, sh_rc rc)
{
    if (s->fd >= 0)
        close(s->fd);
    if (rc != SH_OK && s->rank == 0 && s->temp[0])
        unlink(s->temp);
    if (rc != SH_OK)
        sh_mesh_barrier(); /* a rank that returned earlier could end the job before the file is gone */
    free(s->covered);
    sh_ckpt_index_free(&s->index);
    sh_ckpt_index_free(&s->written);
}

sh_rc sh_ckpt_save_as(const char *folder, const struct sh_ckpt_set *set, const struct sh_ckpt_meta *meta,
                      const struct sh_ckpt_options *options, int64_t *bytes)
{
    struct sh_ckpt_saving s = {.folder = folder, .set = *set, .options = *options, .fd = -1};
    struct sh_ckpt_deadline *deadline = sh_ckpt_deadline_start(folder, meta->step, options->timeout_seconds);
    sh_mesh_world(&s.rank, &s.world);
    sh_rc rc = sh_agree(sh_ckpt_index_make(set, meta, &s.index));
    for (int i = 0; i < sh_ckpt_n_stages && rc == SH_OK; i++) {
        sh_ckpt_deadline_enter(deadline, sh_ckpt_stages[i].name);
        rc = sh_ckpt_stages[i].run(&s);
        sh_ckpt_deadline_wait(deadline);
        rc = sh_agree(rc);
    }
    sh_ckpt_deadline_stop(deadline);
    if (rc == SH_OK)
        *bytes = s.bytes;
    clean(&s, rc);
    return rc;
}

sh_rc sh_ckpt_save(const char *folder, const struct sh_ckpt_set *set, const struct sh_ckpt_meta *meta, int64_t *bytes)
{
    return sh_ckpt_save_as(folder, set, meta, &(struct sh_ckpt_options){.hints = ""}, bytes);
}
