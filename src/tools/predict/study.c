/* `sherd plan --fit FOLDER --machine FILE`: fit the figures of a machine to the runs below a folder, and write them to
 * its file. */
#include "src/tools/predict/command.h"

#include "src/base/file.h"
#include "src/base/mem.h"
#include "src/base/string/str.h"
#include "src/plan/make.h"
#include "src/plan/request.h"
#include "src/tools/predict/fit.h"
#include "src/tools/report/report.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A run with its program. */
struct fitted {
    struct sh_config cfg;
    struct sh_mesh_shape mesh;
    struct sh_program *p;
    const struct sh_report_run *run;
    int node;
    bool shares;
};

/* of[i] and runs[i] are the same run: its plan, and the part that the fit reads. */
struct fit {
    struct sh_machine *m;
    struct fitted *of;
    struct sh_predict_run *runs;
    int n;
};

/* Threads per rank. If a run does not record them, its configuration counts; there 0 leaves the choice to the
 * machine. */
static int threads_of(const struct fitted *of)
{
    return of->run->threads > 0 ? of->run->threads : of->cfg.training.threads;
}

/* Plan the run as it was planned, with the node size of the machine if the run does not give one. */
static sh_rc plan_run(struct fit *f, const char *config, struct fitted *out)
{
    struct sh_topology at = {.world = out->run->ranks, .in_blocks = true, .gpu = sh_machine_is_gpu(f->m)};
    struct sh_plan_request ask = {
        .cfg = &out->cfg, .at = &at, .mesh = &out->mesh, .purpose = SH_TO_TRAIN, .weigh = true};
    struct sh_build b;

    SH_TRY(sh_config_load(config, 0, NULL, &out->cfg));
    out->node = out->cfg.mesh.ranks_per_node ? out->cfg.mesh.ranks_per_node : (int)f->m->node.devices;
    out->node = out->node < at.world ? out->node : at.world;
    at.ranks_per_node = out->node;
    out->shares = sh_topology_shares(&out->cfg, &at);
    SH_TRY(sh_request_mesh(&out->cfg, &at, &out->mesh));
    ask.threads = threads_of(out) ? threads_of(out) : 1;
    ask.limit_bytes = out->cfg.memory.limit_bytes;
    return sh_plan_make(&ask, &b, &out->p);
}

static sh_rc add_run(struct fit *f, const struct sh_report_run *run)
{
    struct fitted *one = &f->of[f->n];
    char *path = sh_path_join(run->path, "config.yaml");
    sh_rc rc;

    one->run = run;
    rc = plan_run(f, path, one);
    if (rc != SH_OK)
        rc = sh_fail_prefix(rc, "%s: ", path);
    free(path);
    SH_TRY(rc);
    f->runs[f->n] = (struct sh_predict_run){.p = one->p,
                                            .mesh = &one->mesh,
                                            .ranks_per_node = one->node,
                                            .shares = one->shares,
                                            .seconds = (double)run->global_batch * one->cfg.training.seq_len /
                                                       run->tokens_per_second};
    f->n++;
    return SH_OK;
}

/* On CPUs, a rank with two threads is a different machine from a rank with one: fitted together, the figures would suit
 * neither. Runs that do not record their threads are compatible with any. */
static sh_rc check_threads(const struct fit *f)
{
    const struct fitted *first = NULL;
    char text[SH_STR_SHORT];

    for (int i = 0; i < f->n && !sh_machine_is_gpu(f->m); i++) {
        const struct fitted *one = &f->of[i];

        if (!threads_of(one))
            continue;
        first = first ? first : one;
        if (threads_of(one) != threads_of(first))
            return sh_fail(SH_E_USAGE,
                           "sherd plan --fit: %s had %s per rank, and %s %d: one machine file holds one number "
                           "of threads; fit each to a separate file",
                           first->run->name, sh_str_plural(threads_of(first), "thread", text), one->run->name,
                           threads_of(one));
    }
    return SH_OK;
}

/* Add all runs with a measured step; the others say nothing. */
static sh_rc add_runs(struct fit *f, const char *folder, const struct sh_report *r)
{
    f->of = sh_calloc((size_t)r->n_runs + 1, sizeof *f->of);
    f->runs = sh_calloc((size_t)r->n_runs + 1, sizeof *f->runs);
    for (int i = 0; i < r->n_runs; i++)
        if (r->runs[i].ranks > 0 && r->runs[i].tokens_per_second > 0)
            SH_TRY(add_run(f, &r->runs[i]));
    if (!f->n)
        return sh_fail(SH_E_DATA, "%s: no run with a measured step", folder);
    return check_threads(f);
}

/* Before and after the fit, run by run: this shows whether the fit helps one run at the expense of another. */
static void say(const struct fit *f, const struct sh_predict_fitted *found)
{
    printf("%-32s %6s %12s %12s %12s\n", "seconds of a step", "ranks", "measured", "as it was", "as fitted");
    for (int i = 0; i < f->n; i++)
        printf("  %-30.30s %6d %12.4g %12.4g %12.4g\n", f->of[i].run->name, f->of[i].run->ranks, f->runs[i].seconds,
               f->runs[i].before, f->runs[i].after);
    printf(
        "computation x %.3f, host %.3g s, latencies x %.2f, share of the network x %.2f, crowding x %.2f; mean error %.1f %%\n",
        found->computation, found->host_seconds, found->hops, found->share, found->crowding, 100 * found->error);
    if (f->n == 1)
        puts("one run tells how fast computation is, and nothing about the rest");
}

/* Write the figures that the fit changes, and its step points. A single run determines only one unknown, so only the
 * first key is written. */
static sh_rc write_figures(const struct fit *f, const char *path)
{
    static const char *const keys[] = {"fit.computation",     "host.step_seconds", "inside.hop_seconds",
                                       "network.hop_seconds", "network.share",     "network.crowding"};
    enum { KEYS = sizeof keys / sizeof *keys };
    struct sh_machine_point *points = sh_calloc((size_t)f->m->n_points + KEYS, sizeof *points);
    int n = f->n == 1 ? 1 : KEYS;
    sh_rc rc;

    for (int i = 0; i < n; i++) {
        points[i].what = SH_POINT_FIGURE;
        snprintf(points[i].figure, sizeof points[i].figure, "%s", keys[i]);
        points[i].value = *sh_machine_figure(f->m, sh_machine_key_find(keys[i]));
        points[i].rounds = f->n;
    }
    for (int i = 0; i < f->m->n_points; i++)
        if (f->m->points[i].what == SH_POINT_STEP)
            points[n++] = f->m->points[i];
    rc = sh_machine_add_fit(path, f->m->device.kind, points, n);
    free(points);
    return rc;
}

/* The file is written after the fit has been shown, and only if the fit succeeded. */
static sh_rc fit_and_write(struct fit *f, const char *folder, const struct sh_report *r, const char *path)
{
    struct sh_predict_fitted found;

    SH_TRY(add_runs(f, folder, r));
    SH_TRY(sh_predict_fit(f->runs, f->n, f->m, &found));
    say(f, &found);
    return write_figures(f, path);
}

sh_rc sh_predict_fit_study(const char *folder, const char *path)
{
    struct sh_machine m;
    struct fit f = {.m = &m};
    struct sh_report *r = NULL;
    sh_rc rc;

    if (access(path, F_OK) != 0)
        return sh_fail(SH_E_USAGE,
                       "sherd plan --fit: --machine %s: no such file; the fit is written to it, so start one with "
                       "the preset of its devices, such as \"device: {kind: h100-80}\"",
                       path);
    SH_TRY(sh_machine_load(path, &m));
    rc = sh_report_open(folder, &r);
    if (rc == SH_OK)
        rc = fit_and_write(&f, folder, r, path);
    for (int i = 0; i < f.n; i++)
        sh_program_destroy(f.of[i].p);
    free(f.of);
    free(f.runs);
    if (r)
        sh_report_close(r);
    sh_machine_close(&m);
    return rc;
}
