/* Stages of a pipeline: what each takes, and how long they wait for each other. */
#include "src/tools/predict/command.h"

#include "src/base/string/str.h"
#include "src/pass/pipeline/order.h"
#include "src/plan/ranks.h"

#include <stdio.h>

static int stages_of(const struct sh_predict *l)
{
    return sh_group_size(&l->mesh, l->mesh.pipeline);
}

sh_rc sh_predict_check_stages(const struct sh_cmd *cmd, const struct sh_cmd_args *args, const struct sh_config *cfg)
{
    static const char *const options[] = {"--machine", "--search", "--longest"};

    for (size_t i = 0; cfg->parallelism.pipeline_parallel_degree > 1 && i < sizeof options / sizeof *options; i++)
        if (sh_cmd_option(cmd, args, options[i]))
            return sh_fail(
                SH_E_USAGE,
                "sherd plan: %s predicts a job whose ranks all run one program, but each stage runs its own; "
                "leave out parallelism.pipeline_parallel_degree=%d, or plan it without %s",
                options[i], cfg->parallelism.pipeline_parallel_degree, options[i]);
    return SH_OK;
}

static void say_stage(const struct sh_predict *l, int stage, const struct sh_program *p)
{
    const struct sh_pass_options *o = &l->build.options;
    struct sh_pipe_blocks blocks =
        sh_pipe_blocks(l->build.model.n_layers, stages_of(l), stage, o->first_less, o->last_less);
    char name[64], bytes[SH_STR_SHORT];

    snprintf(name, sizeof name, "%d: layers.%d .. layers.%d%s%s", stage, blocks.first, blocks.last - 1,
             stage == 0 ? ", embed" : "", stage == stages_of(l) - 1 ? ", head" : "");
    printf("  %-40s %15lld %13s\n", name, (long long)p->arena_bytes, sh_str_bytes(p->arena_bytes, bytes));
}

sh_rc sh_predict_say_stages(const struct sh_predict *l)
{
    int stages = stages_of(l), each = l->at.world / stages;
    struct sh_ranks_built *built;
    sh_rc rc = SH_OK;

    if (stages == 1)
        return SH_OK;
    SH_TRY(sh_ranks_build(&l->build, &built));
    printf("\nstages                                       arena of a rank\n");
    for (int s = 0; s < stages && rc == SH_OK; s++) {
        const struct sh_program *p;
        const struct sh_mesh_shape *mesh;

        rc = sh_ranks_get(built, s * each, &p, &mesh);
        if (rc == SH_OK)
            say_stage(l, s, p);
    }
    sh_ranks_free(built);
    if (rc == SH_OK)
        printf("  waits for other stages, if all are equally fast: %.1f %% of the time that a stage works\n",
               100 * sh_pipe_bubble(stages, l->build.options.micro_steps));
    return rc;
}
