/* `sherd check CONFIG --operations`: one step of the configuration on made-up tokens, each operation compared. */
#include "src/cmd/cmd.h"

#include "src/base/file.h"
#include "src/base/mem.h"
#include "src/base/string/str.h"
#include "src/config/family.h"
#include "src/config/layers.h"
#include "src/optim/groups.h"
#include "src/optim/update.h"
#include "src/plan/request.h"
#include "src/plugin/plugin.h"
#include "src/program/saved.h"
#include "src/run/run.h"
#include "src/tools/bench/folder.h"
#include "src/tools/operations/operations.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    TOKENS = 64,
    LAYERS = 2,
    LOSS_SCALE = 1024,
    SETTINGS = SH_BENCH_SHORTER + 2
}; /* of a sequence, of a model, and at first, if they are more */

/* Files in the folder, all of which are deleted. */
enum { TOKENS_FILE, TEACHER_FILE };
static const char *const files[] = {"tokens.bin",    "teacher.top", "reference.bin", "tokens.bin.weight",
                                    "metrics.jsonl", "config.yaml", "progress.json"};

/* What a block is, as a bit. */
static uint64_t kind_of(const struct sh_model *m, int block)
{
    return 1ULL << (2 * sh_layers_kind(m, block) + sh_family_has_experts(m, block));
}

/* So many neighbouring blocks, wherever they begin, have one with experts, if the model has any. */
static int with_experts(const struct sh_model *m)
{
    int most = 0, run = 0;

    for (int i = 0; i < m->n_layers; i++) {
        run = sh_family_has_experts(m, i) ? 0 : run + 1;
        most = run > most ? run : most;
    }
    return most < m->n_layers ? most + 1 : 1;
}

/* The fewest blocks, of the first ones, that have all the kinds that the model has, and on each stage one, with experts if
 * there are some; but not fewer than `least`. */
static int enough_layers(const struct sh_config *c, int least)
{
    const struct sh_model *m = &c->model;
    int stages = c->parallelism.pipeline_parallel_degree, each = stages > 1 ? stages * with_experts(m) : LAYERS, n = 0;
    uint64_t all = 0, seen = 0;

    least = each > least ? each : least;
    for (int i = 0; i < m->n_layers; i++)
        all |= kind_of(m, i);
    while (n < m->n_layers && (n < least || seen != all))
        seen |= kind_of(m, n++);
    return n;
}

/* Settings for a model of so few blocks; where blocks share keys and values, as many of these follow. Returns how many. */
static int shrink(const struct sh_config *asked, int least, char text[][SH_BENCH_SETTING])
{
    const struct sh_model *m = &asked->model;
    int layers = enough_layers(asked, least), shared = m->kv_shared_layers < layers ? m->kv_shared_layers : layers, n;

    if (layers + shared > m->n_layers) {
        layers = m->n_layers - m->kv_shared_layers;
        shared = m->kv_shared_layers;
    }
    n = sh_bench_shorten(asked, TOKENS, text);
    snprintf(text[n++], SH_BENCH_SETTING, "model.n_layers=%d", layers + shared);
    if (shared)
        snprintf(text[n++], SH_BENCH_SETTING, "model.kv_shared_layers=%d", shared);
    return n;
}

/* The forward of a model, by the names of whose parameters groups are made. */
static struct sh_program *forward(const struct sh_config *c)
{
    struct sh_program *p = sh_program_create(SH_F32);

    sh_model_emit(
        &c->model,
        &(struct sh_model_batch){.batch = 1, .seq = 1, .out = SH_MODEL_LOSS, .adapters = sh_request_adapters(c)}, p);
    return p;
}

/* How many of the first blocks it takes until one has a matrix that an optimizer of whole matrices updates, since groups may
 * leave it those of later blocks alone. */
static int until_matrices(const struct sh_program *p)
{
    int block = -1;

    for (int i = 0; i < p->n_params && block < 0; i++) {
        const struct sh_saved *s = sh_saved_of(p, &p->params[i]);

        if (s->trainable && sh_optim_takes(p, SH_RUNS_MATRICES, s))
            sscanf(p->units[p->params[i].unit].name, "layers.%d", &block);
    }
    return block + 1;
}

/* Look at groups in the whole model: a pattern that is in none of its names is refused, as in a run.
 *   least  out  blocks that a smaller model needs */
static sh_rc check_groups(const struct sh_config *asked, int *least)
{
    const struct sh_optim *optim = sh_optim_of(asked->optimizer.name);
    struct sh_program *p;
    sh_rc rc;

    *least = 0;
    if (!asked->optimizer.groups[0])
        return SH_OK;
    SH_TRY(sh_plugin_open(asked, false));
    p = forward(asked);
    rc = sh_groups_assign(p, optim, asked->optimizer.groups);
    if (rc == SH_OK && optim->whole)
        *least = until_matrices(p);
    sh_program_destroy(p);
    return rc;
}

/* Groups of parameters of blocks that are left out are left out too. */
static void trim_groups(struct sh_config *cfg)
{
    struct sh_program *p;

    if (!cfg->optimizer.groups[0])
        return;
    p = forward(cfg);
    sh_groups_trim(p, cfg->optimizer.groups);
    sh_program_destroy(p);
}

/* Read the configuration twice: the second time with what makes it small, so that all that follows from it does.
 *   asked  out  as it was */
static sh_rc configure(const struct sh_cmd_args *args, bool full, struct sh_config *asked, struct sh_config *cfg)
{
    struct sh_cmd_args small = *args;
    char text[SETTINGS][SH_BENCH_SETTING];
    int n, least;

    SH_TRY(sh_cmd_config(args, NULL, asked));
    *cfg = *asked;
    if (full)
        return SH_OK;
    SH_TRY(check_groups(asked, &least));
    n = shrink(asked, least, text);
    for (int i = 0; i < n; i++)
        SH_TRY(sh_cmd_set(&small, text[i]));
    SH_TRY(sh_cmd_config(&small, NULL, cfg));
    trim_groups(cfg);
    return SH_OK;
}

static char *path_of(const struct sh_config *cfg, int file)
{
    return sh_path_join(cfg->job.dump_folder, files[file]);
}

static void set_path(char to[SH_CONFIG_PATH_MAX], const struct sh_config *cfg, int file)
{
    char *path = path_of(cfg, file);

    snprintf(to, SH_CONFIG_PATH_MAX, "%s", path);
    free(path);
}

/* One micro-step of one sequence on each rank, unless a tree of sums needs more. Nothing else than the step. */
static void prepare(struct sh_config *cfg)
{
    sh_bench_only_steps(cfg, files[TOKENS_FILE], 1);
    if (cfg->objective.name == SH_OBJECTIVE_DISTILLATION)
        set_path(cfg->objective.teacher_path, cfg, TEACHER_FILE);
    sh_made_up_prepare(cfg);
    cfg->training.local_batch_size = 1;
    cfg->training.global_batch_size = -1;
    /* Another order of the same operations, which needs neither more micro-steps nor more blocks. */
    if (cfg->parallelism.pipeline_parallel_schedule == SH_SCHEDULE_INTERLEAVED)
        cfg->parallelism.pipeline_parallel_schedule = SH_SCHEDULE_1F1B;
    cfg->parallelism.pipeline_parallel_layers_per_stage = 0;
    cfg->parallelism.pipeline_parallel_first_stage_less_layers = SH_LESS_AUTO;
    cfg->parallelism.pipeline_parallel_last_stage_less_layers = SH_LESS_AUTO;
    cfg->offload.activations = SH_OFFLOAD_NONE; /* those of so few rows fill no page; moves are no operations */
    /* A dynamic scale has not come down yet; that of a single target would overflow inside of an operation. */
    if (cfg->training.loss_scale_init > LOSS_SCALE)
        cfg->training.loss_scale_init = LOSS_SCALE;
    cfg->metrics.norms = SH_NORMS_OFF;
    cfg->debug.find_nan = false;
    cfg->debug.fingerprint[0] = '\0';
    cfg->profiling.trace[0] = '\0';
}

static void print_kinds(const struct sh_operations *c)
{
    printf("%-24s %10s %10s\n", "operation", "compared", "of bound");
    for (int k = 0; k < SH_OP_ROOM; k++)
        if (c->operations[k])
            printf("%-24s %10lld %10.2g%s\n", sh_op_info((enum sh_op_kind)k)->name, (long long)c->operations[k],
                   c->share[k], c->share[k] > 1 ? "  WRONG" : "");
}

static void print_size(const struct sh_operations *c, const struct sh_config *asked, const struct sh_config *cfg)
{
    int64_t n = 0;

    for (int k = 0; k < SH_OP_ROOM; k++)
        n += c->operations[k];
    printf("%lld operations of a step of %s on %s in %s, rank 0 of %d, by the kernels' reference in float64: ",
           (long long)n, cfg->model.name, c->r->device->name, sh_dtype_name(c->r->p->act),
           sh_mesh_ranks(&c->r->mesh->shape));
    printf("%d of %d layers, 1 sequence of %d of %d tokens a rank\n", cfg->model.n_layers, asked->model.n_layers,
           cfg->training.seq_len, asked->training.seq_len);
}

/* Local. Each rank that has a wrong operation says so. */
static sh_rc judge(const struct sh_operations *c)
{
    char wrong[SH_STR_SHORT];
    int64_t shown = c->wrong < SH_OPERATIONS_LISTED ? c->wrong : SH_OPERATIONS_LISTED;

    SH_TRY(c->rc);
    for (int64_t i = 0; i < shown; i++)
        fprintf(stderr, "rank %d on %s: %s\n", c->r->mesh->rank, c->r->mesh->host, c->text[i]);
    if (!c->wrong)
        return SH_OK;
    return sh_fail(SH_E_NUMERIC,
                   "rank %d on %s got %s wrong; its processor or a library is to blame, or a kernel of Sherd",
                   c->r->mesh->rank, c->r->mesh->host, sh_str_plural(c->wrong, "operation", wrong));
}

static sh_rc check(const struct sh_config *asked, const struct sh_config *cfg)
{
    struct sh_operations c = {0};
    struct sh_run *r = NULL;
    sh_rc rc = sh_run_open(cfg, SH_TO_TRAIN, &r);

    if (rc == SH_OK)
        rc = sh_agree(r->mesh->rank == 0 ? sh_made_up_write(r) : SH_OK);
    if (rc == SH_OK) {
        r->passing = true;
        sh_operations_begin(&c, r);
        rc = sh_run_train(r);
        sh_operations_end(&c);
    }
    if (rc == SH_OK && r->mesh->rank == 0) {
        print_kinds(&c);
        print_size(&c, asked, cfg);
    }
    if (rc == SH_OK)
        rc = sh_agree(judge(&c));
    sh_run_close(r);
    return rc;
}

static sh_rc read_arguments(const struct sh_cmd *cmd, const struct sh_cmd_args *args, struct sh_config *asked,
                            struct sh_config *cfg)
{
    if (!sh_cmd_option(cmd, args, "--operations"))
        return sh_fail(SH_E_USAGE, "sherd check: what to check? --operations; see sherd check --help");
    return configure(args, sh_cmd_option(cmd, args, "--full") != NULL, asked, cfg);
}

/* Collective. Everything is written into a new folder, which is deleted at the end. */
sh_rc sh_cmd_check(const struct sh_cmd *cmd, const struct sh_cmd_args *args)
{
    const char *folder = sh_cmd_option(cmd, args, "--folder");
    struct sh_config *asked = sh_calloc(2, sizeof *asked), *cfg = asked + 1;
    sh_rc rc = sh_agree(read_arguments(cmd, args, asked, cfg));

    if (rc == SH_OK)
        rc = sh_bench_folder_make(cfg, folder ? folder : ".");
    if (rc == SH_OK) {
        prepare(cfg);
        rc = check(asked, cfg);
        for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
            char *path = path_of(cfg, (int)i);

            sh_bench_folder_drop(path);
            free(path);
        }
        sh_bench_folder_delete(cfg);
    }
    free(asked);
    return rc;
}
