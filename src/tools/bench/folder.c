/* A folder for the files of benchmarks: made for one run of them, and empty again at its end. */
#include "src/tools/bench/folder.h"

#include "src/base/file.h"
#include "src/base/mem.h"
#include "src/base/string/str.h"
#include "src/config/read/batches.h"
#include "src/mesh/mesh.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Collective. Rank 0 makes a folder with a random name, so that two benchmarks cannot collide, and broadcasts the
 * name. */
sh_rc sh_bench_folder_make(struct sh_config *cfg, const char *folder)
{
    int rank, world, n;

    sh_mesh_world(&rank, &world);
    n = snprintf(cfg->job.dump_folder, sizeof cfg->job.dump_folder, "%s/sherd-bench-XXXXXX", folder);
    if (n >= (int)sizeof cfg->job.dump_folder)
        return sh_agree(sh_fail(SH_E_USAGE, "sherd bench: the folder's name is too long"));
    SH_TRY(sh_agree(rank == 0 && !mkdtemp(cfg->job.dump_folder)
                        ? sh_fail(SH_E_DATA, "create a folder in %s: %s", folder, strerror(errno))
                        : SH_OK));
    cfg->checkpoint.near_interval = 0; /* no keeper knows this folder */
    return sh_mesh_bcast(cfg->job.dump_folder, sizeof cfg->job.dump_folder, 0);
}

/* Collective: no rank deletes while another still reads, and none continues before the file is gone. */
void sh_bench_folder_drop(const char *path)
{
    int rank, world;

    sh_mesh_world(&rank, &world);
    sh_mesh_barrier();
    if (rank == 0)
        unlink(path);
    sh_mesh_barrier();
}

/* Deletes only an empty folder: files left by a failure stay and can be inspected. */
void sh_bench_folder_delete(const struct sh_config *cfg)
{
    rmdir(cfg->job.dump_folder);
}

void sh_bench_only_steps(struct sh_config *cfg, const char *file, int64_t steps)
{
    char *path = sh_path_join(cfg->job.dump_folder, file);

    snprintf(cfg->training.dataset_path, sizeof cfg->training.dataset_path, "%s", path);
    free(path);
    cfg->data.mix[0] = '\0';
    cfg->data.token_type = SH_TOKEN_UINT32;
    cfg->training.batch_schedule[0] = '\0'; /* global_batch_size is its largest step */
    cfg->training.steps = steps;
    cfg->lr_scheduler.warmup_steps = 0;
    cfg->lr_scheduler.total_steps = 0;
    cfg->checkpoint.enable = false;
    cfg->checkpoint.initial_load_path[0] = '\0';
    cfg->validation.enable = false;
    cfg->guard.z_score = 0;
    cfg->metrics.state_digest_every = 0;
    cfg->metrics.tensorboard[0] = '\0';
    cfg->metrics.openmetrics[0] = '\0';
    cfg->fault.replay_every = 0;
    cfg->metrics.progress = false;
}

/* Whether leaves, pieces of halves of sequences, and tiles of rows come out even. */
static bool cuts_evenly(const struct sh_config *c, int tokens)
{
    int leaves = c->training.row_leaves, parts = leaves * 2 * c->parallelism.context_parallel_degree *
                                                 c->parallelism.tensor_parallel_degree *
                                                 c->parallelism.tensor_parallel_tiles;

    return tokens % parts == 0 && tokens / leaves >= SH_ROW_LEAF_LEAST;
}

int sh_bench_shorten(const struct sh_config *asked, int tokens, char text[][SH_BENCH_SETTING])
{
    int whole = asked->training.seq_len, length;
    struct sh_batches phases = {0};

    if (whole <= tokens)
        return 0;
    while (tokens < whole && !cuts_evenly(asked, tokens))
        tokens++;
    snprintf(text[0], SH_BENCH_SETTING, "training.seq_len=%d", tokens);
    if (sh_batches_read(asked->data.length_schedule, &phases) != SH_OK || !phases.n)
        return 1;
    length = phases.at[0].sequences < tokens ? (int)phases.at[0].sequences : tokens;
    while (tokens % length)
        length--;
    snprintf(text[1], SH_BENCH_SETTING, "data.length_schedule=0:%d", length);
    return 2;
}

/* An alias has no value of its own; whatever it sets is left alone. */
static bool same_value(const char *name, const struct sh_config *a, const struct sh_config *b)
{
    char *one = NULL, *other = NULL;
    bool same = sh_config_get(a, name, &one) != SH_OK || sh_config_get(b, name, &other) != SH_OK || !strcmp(one, other);

    free(one);
    free(other);
    sh_error_clear();
    return same;
}

sh_rc sh_bench_refuse_replaced(const char *kind, const struct sh_bench_options *options, const struct sh_config *asked,
                               const struct sh_config *cfg)
{
    for (int i = 0; i < options->n_keys; i++) {
        char *name = sh_strdup(sh_config_argument_pair(options->keys[i]));
        sh_rc rc;

        name[strcspn(name, "=")] = '\0';
        rc = same_value(name, asked, cfg)
                 ? SH_OK
                 : sh_fail(SH_E_USAGE, "sherd bench %s sets %s itself: leave it out", kind, name);
        free(name);
        SH_TRY(rc);
    }
    return SH_OK;
}

sh_rc sh_bench_write_tokens(const struct sh_config *cfg, int64_t n, int64_t period)
{
    uint32_t *tokens = sh_calloc((size_t)n, sizeof *tokens);
    sh_rc rc;

    for (int64_t i = 0; i < n; i++)
        tokens[i] = (uint32_t)((period ? i % period : i) * 7919 % cfg->model.vocab_size);
    rc = sh_write_file_atomic(cfg->training.dataset_path, tokens, (size_t)n * sizeof *tokens);
    free(tokens);
    return rc;
}
