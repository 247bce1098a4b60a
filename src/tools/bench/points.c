/* Measurements of a bench, as points of a machine file (src/cost/machine.h). A bench collects points in a list while it
 * runs and writes them once at its end, so that a bench that fails leaves the file unchanged. */
#include "src/tools/bench/points.h"

#include "src/base/mem.h"
#include "src/plan/request.h"
#include "src/run/run.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The point is zeroed: fields that do not apply to its kind are not printed. */
static struct sh_machine_point *add(struct sh_bench_points *l, enum sh_point_what what, const char *kind)
{
    l->of = sh_grow(l->of, l->n, &l->cap, sizeof *l->of);
    l->of[l->n] = (struct sh_machine_point){.what = what};
    snprintf(l->of[l->n].kind, sizeof l->of->kind, "%s", kind);
    return &l->of[l->n++];
}

/* The median is used, since one disturbed round must not change a figure; spread is (most - least) / median, which
 * tells a reader whether the rounds agreed. */
static void set_seconds(struct sh_machine_point *p, const double *seconds, int rounds)
{
    double least = seconds[0], most = seconds[0];

    for (int i = 1; i < rounds; i++) {
        least = seconds[i] < least ? seconds[i] : least;
        most = seconds[i] > most ? seconds[i] : most;
    }
    p->seconds = sh_bench_median(seconds, rounds);
    p->rounds = rounds;
    p->spread = (most - least) / p->seconds;
}

/* The layers of a model repeat their shapes, and one point for each is enough. The newest point, p, is not compared
 * with itself. */
static bool is_there(const struct sh_bench_points *l, const struct sh_machine_point *p)
{
    for (int i = 0; i < l->n - 1; i++)
        if (l->of[i].what == SH_POINT_OP && !strcmp(l->of[i].kind, p->kind) && !strcmp(l->of[i].type, p->type) &&
            l->of[i].n_dims == p->n_dims && !memcmp(l->of[i].dims, p->dims, (size_t)p->n_dims * sizeof *p->dims))
            return true;
    return false;
}

/* A clock that is too coarse gives 0 seconds, whose ratio to a formula would be no correction: such a point is
 * dropped. */
void sh_bench_points_op(struct sh_bench_points *l, const struct sh_op_call *call, enum sh_dtype act,
                        const double *seconds, int rounds)
{
    struct sh_machine_point *p = add(l, SH_POINT_OP, sh_op_info(call->kind)->name);

    snprintf(p->type, sizeof p->type, "%s", sh_price_type(sh_price_act(call, act)));
    p->n_dims = sh_price_dims(call, p->dims);
    set_seconds(p, seconds, rounds);
    if (is_there(l, p) || p->seconds <= 0)
        l->n--;
}

void sh_bench_points_coll(struct sh_bench_points *l, enum sh_op_kind kind, const char *axis,
                          const struct sh_coll_place *at, double whole_bytes, const double *seconds, int rounds)
{
    struct sh_machine_point *p = add(l, SH_POINT_COLL, sh_op_info(kind)->name);

    /* Shared memory is a separate transport and not an axis: its seconds would distort the prices of the network. */
    snprintf(p->axis, sizeof p->axis, "%s", at->segment ? "segment" : axis);
    p->ranks = at->ranks;
    p->nodes = at->nodes;
    p->bytes = whole_bytes;
    set_seconds(p, seconds, rounds);
}

/* Records how much slower a step computes while this kind of collective runs. */
void sh_bench_points_beside(struct sh_bench_points *l, enum sh_op_kind kind, double slowdown)
{
    struct sh_machine_point *p = add(l, SH_POINT_BESIDE, sh_op_info(kind)->name);

    snprintf(p->beside, sizeof p->beside, "step");
    p->slowdown = slowdown;
}

/* Adds a key of the file itself. It is written as a point, so that the text of the file's author stays as it is. */
void sh_bench_points_figure(struct sh_bench_points *l, const char *key, double value)
{
    struct sh_machine_point *p = add(l, SH_POINT_FIGURE, "");

    snprintf(p->figure, sizeof p->figure, "%s", key);
    p->value = value;
}

/* A new file needs the preset on which everything else is based, and this program cannot know which GPU preset fits. */
sh_rc sh_bench_points_check(const struct sh_bench_options *options, const struct sh_config *cfg)
{
    struct sh_machine m;
    char why[256];
    bool gpu;

    if (!options->machine)
        return SH_OK;
    SH_TRY(sh_request_gpu(cfg, false, &gpu, why));
    if (access(options->machine, F_OK) != 0)
        return gpu ? sh_fail(SH_E_USAGE,
                             "%s: no such file; start it with the preset of its devices, such as \"device: {kind: "
                             "h100-80}\" (sherd help --machine)",
                             options->machine)
                   : SH_OK;
    SH_TRY(sh_machine_load(options->machine, &m));
    sh_machine_close(&m);
    if (sh_machine_is_gpu(&m) != gpu)
        return sh_fail(SH_E_USAGE, "%s: a machine of %s, but this job computes on %s", options->machine, m.device.kind,
                       gpu ? "GPUs" : "CPUs");
    return SH_OK;
}

/* On a CPU the ranks of a node are its devices, which no preset can know. Always leaves the list empty. */
sh_rc sh_bench_points_write(struct sh_bench_points *l, const struct sh_bench_options *options, const struct sh_run *r)
{
    sh_rc rc = SH_OK;

    if (options->machine && !r->device->gpu)
        sh_bench_points_figure(l, "node.devices", r->mesh->node_size);
    if (options->machine)
        rc = sh_machine_add_points(options->machine, "cpu", l->of, l->n);
    free(l->of);
    *l = (struct sh_bench_points){0};
    return rc;
}
