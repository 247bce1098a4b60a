/* Stages of a pipeline: what each takes, and how long they wait for each other. */
#include "src/tools/predict/command.h"

#include "src/base/string/str.h"
#include "src/pass/pipeline/deal.h"
#include "src/pass/pipeline/order.h"

#include <stdio.h>

sh_rc sh_predict_make_stages(struct sh_predict *l, bool weigh)
{
    return sh_group_size(&l->mesh, l->mesh.pipeline) > 1
               ? sh_pipe_stages_build(&l->build, weigh, NULL, NULL, &l->stages)
               : SH_OK;
}

int64_t sh_predict_bytes(const struct sh_predict *l)
{
    return (l->stages.n ? l->stages.p[sh_pipe_stages_largest(&l->stages)] : l->p)->arena_bytes;
}

/* Computation and what it waits for inside the stage; messages; and what is left: other stages. */
static void say_times(const struct sh_cost_step *step)
{
    double exposed = 0;
    char text[3][SH_STR_SHORT];

    for (int c = 0; c < SH_COST_CLASSES; c++)
        exposed += step->row[c].exposed;
    printf(" %12s %12s %12s %7.1f %%", sh_predict_seconds(step->seconds - step->bubble - exposed, text[0]),
           sh_predict_seconds(exposed, text[1]), sh_predict_seconds(step->bubble, text[2]),
           100 * step->bubble / (step->seconds - step->bubble));
}

/* "layers.0 .. layers.1, layers.8 .. layers.9, embed" */
static void name_stage(const struct sh_pipe_deal *d, const int *begin, int stage, char *text, size_t size)
{
    size_t at = 0;

    for (int c = stage; c < d->stages * d->chunks && at < size; c += d->stages)
        at += (size_t)snprintf(text + at, size - at, "%slayers.%d .. layers.%d", c > stage ? ", " : "", begin[c],
                               begin[c + 1] - 1);
    if (at < size)
        snprintf(text + at, size - at, "%s%s", stage == 0 ? ", embed" : "", stage == d->stages - 1 ? ", head" : "");
}

static void say_stage(const struct sh_predict *l, const struct sh_pipe_deal *d, const int *begin, int stage)
{
    const struct sh_program *p = l->stages.p[stage];
    char name[256], bytes[SH_STR_SHORT], recompute[SH_RECOMPUTE_TEXT];

    name_stage(d, begin, stage, name, sizeof name);
    printf("  %d: %-37s %15lld %13s", stage, name, (long long)p->arena_bytes, sh_str_bytes(p->arena_bytes, bytes));
    if (l->each)
        say_times(&l->each[stage]);
    if (l->build.fit)
        printf("  recompute %s", sh_pipe_recompute_text(d, begin, stage, &l->stages.recompute[stage], recompute));
    putchar('\n');
}

/* Rows of a micro-step, or their gradients. */
static int64_t message_bytes(const struct sh_program *p)
{
    for (int i = 0; i < p->n_ops; i++)
        if (sh_program_is_message(&p->ops[i]))
            return sh_tensor_bytes(&p->tensors[sh_program_result(&p->ops[i])]);
    return 0;
}

/* All stages together: idle time over busy time. */
static double bubble_of(const struct sh_predict *l)
{
    double idle = 0, busy = 0;

    for (int s = 0; s < l->stages.n; s++) {
        idle += l->each[s].bubble;
        busy += l->each[s].seconds - l->each[s].bubble;
    }
    return idle / busy;
}

void sh_predict_say_stages(const struct sh_predict *l)
{
    const struct sh_pass_options *o = &l->build.options;
    int n = l->stages.n;
    struct sh_pipe pipe = {n, o->micro_steps, o->chunks, o->weights_apart};
    char bytes[SH_STR_SHORT];
    struct sh_pipe_deal d;
    int *begin;

    if (n == 0)
        return;
    d = sh_pipe_deal_of(&l->build, &begin);
    printf("\nstages                                       arena of a rank%s\n",
           l->each ? "                      busy      exposed  waits for other stages" : "");
    for (int s = 0; s < n; s++)
        say_stage(l, &d, begin, s);
    printf("  the stage with the most work has %.1f %% more operations than the mean\n",
           100 * ((double)sh_pipe_most(&d, begin) * n / (double)d.sums[d.layers + 1] - 1));
    sh_pipe_deal_free(&d, begin);
    printf("  waits for other stages, if all are equally fast: %.1f %% of the time that a stage works\n",
           100 * sh_pipe_bubble(&pipe));
    if (l->each)
        printf("  waits for other stages, as predicted: %.1f %% of the time that they work\n", 100 * bubble_of(l));
    printf("  a message has the rows of a micro-step, or their gradients: %s\n",
           sh_str_bytes(message_bytes(l->stages.p[0]), bytes));
}
