/* Makes the plan of the run and checks the host memory that it pins, like sh_run_open(), except for the one choice of
 * recomputation that all ranks share there, which may take less. */
#include "src/tools/doctor/doctor.h"

#include "src/cost/budget.h"
#include "src/plan/pinned.h"
#include "src/plan/request.h"
#include "src/run/run.h"

/* sharing: ranks that may run on the same cores. */
static sh_rc plan(const struct sh_doctor *d, int sharing, struct sh_doctor_need *out)
{
    int threads = d->cfg->training.threads ? d->cfg->training.threads : sh_device_threads(sharing);
    struct sh_build build;
    struct sh_program *p = NULL;
    char why[256];
    int64_t rows = INT64_MAX;
    int file;
    bool gpu;
    sh_rc rc;

    rc = sh_request_gpu(d->cfg, false, &gpu, why);
    if (rc == SH_OK)
        rc =
            sh_request_build(d->cfg, &d->at, &d->mesh->shape, SH_TO_TRAIN, threads, d->cfg->memory.limit_bytes, &build);
    if (rc == SH_OK) {
        build.host_limit_bytes = sh_topology_host_room(d->cfg, &d->at, sh_device_node_memory(), d->at.node_size);
        rc = sh_budget_fit(d->cfg, &d->at, NULL, &build);
    }
    if (rc == SH_OK)
        rc = sh_pass_widen(&build, &rows);
    if (rc == SH_OK)
        rc = sh_pass_build(&build, &p);
    if (rc == SH_OK) {
        file = sh_program_file_tier(p);
        out->arena_bytes = p->arena_bytes;
        out->file_bytes = file == SH_NONE ? 0 : p->tiers[file].bytes;
    }
    if (rc == SH_OK)
        rc = sh_pinned_check(p, d->at.node_size, sh_device_node_free(), "the free memory of their node is");
    sh_program_destroy(p);
    return rc;
}

/* Collective: ranks may differ in cores, and therefore in their plans. */
sh_rc sh_doctor_plan(const struct sh_doctor *d, struct sh_doctor_need *need, struct sh_doctor_row *row, bool *failed)
{
    int sharing;

    /* The threads determine scratch memory, and the cores determine the threads. */
    SH_TRY(sh_mesh_alike_on_node(sh_device_cores(), &sharing));
    return sh_doctor_any_failed(d, plan(d, sharing, need), row, failed);
}
