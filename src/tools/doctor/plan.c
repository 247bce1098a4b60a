/* Makes the plan of the run and checks the host memory that it pins, like sh_run_open(), except for the one choice of
 * recomputation that all ranks share there, which may take less. */
#include "src/tools/doctor/doctor.h"

#include "src/near/slot.h"
#include "src/plan/make.h"
#include "src/plan/pinned.h"
#include "src/run/run.h"

#include <string.h>

static sh_rc note_groups(const struct sh_program *p, struct sh_doctor_need *out)
{
    SH_REQUIRE(p->n_groups <= SH_DOCTOR_GROUPS);
    memcpy(out->groups, p->groups, (size_t)p->n_groups * sizeof *p->groups);
    memcpy(out->streams, p->streams, sizeof p->streams);
    out->n_groups = p->n_groups;
    out->n_streams = p->n_streams;
    for (int i = 0; i < p->n_ops; i++) {
        int group = sh_program_find_group(p->groups, p->n_groups, p->ops[i].attr.group);

        if (p->ops[i].kind == SH_OP_ALL_TO_ALL && group != SH_NONE)
            out->exchanges[group] = true;
    }
    return SH_OK;
}

/* sharing: ranks that may run on the same cores. */
static sh_rc plan(const struct sh_doctor *d, int sharing, struct sh_doctor_need *out)
{
    struct sh_plan_request ask = {.cfg = d->cfg,
                                  .at = &d->at,
                                  .mesh = &d->mesh->shape,
                                  .purpose = SH_TO_TRAIN,
                                  .threads = d->cfg->training.threads,
                                  .limit_bytes = d->cfg->memory.limit_bytes,
                                  .node_bytes = sh_device_node_memory(),
                                  .node_ranks = d->at.node_size};
    struct sh_build build;
    struct sh_program *p;
    int file;
    sh_rc rc;

    if (!ask.threads)
        ask.threads = sh_device_threads(sharing);
    rc = sh_plan_make(&ask, &build, &p);
    if (rc == SH_OK) {
        file = sh_program_file_tier(p);
        out->arena_bytes = p->arena_bytes;
        out->slot_bytes = sh_near_bytes(p, &d->mesh->shape);
        out->file_bytes = file == SH_NONE ? 0 : p->tiers[file].bytes;
        rc = note_groups(p, out);
        if (rc == SH_OK)
            rc = sh_pinned_check(p, d->at.node_size, sh_device_node_free(), "the free memory of their node is");
    }
    sh_program_destroy(p);
    return rc;
}

/* Collective: ranks may differ in cores, and therefore in their plans. */
sh_rc sh_doctor_plan(const struct sh_doctor *d, struct sh_doctor_need *need, struct sh_doctor_row *row, bool *failed)
{
    int sharing;

    /* The threads determine scratch memory, and the cores determine the threads. */
    SH_TRY(sh_mesh_alike_on_node(sh_device_cores(), &sharing));
    SH_TRY(sh_doctor_any_failed(d, plan(d, sharing, need), row, failed));
    /* The blocks of one stage may have exchanges that those of another have not. */
    SH_MPI(MPI_Allreduce(MPI_IN_PLACE, need->exchanges, SH_DOCTOR_GROUPS, MPI_C_BOOL, MPI_LOR, MPI_COMM_WORLD));
    return SH_OK;
}
