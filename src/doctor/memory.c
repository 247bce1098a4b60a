/* The plan of the run against the memory that is free on each node now: what other programs hold counts, too. */
#include "src/doctor/doctor.h"

#include "src/base/file.h"
#include "src/base/mem.h"
#include "src/base/str.h"
#include "src/plan/request.h"
#include "src/run/run.h"

#include <stdlib.h>
#include <string.h>

/* What the kernel says can be had without swapping, or a container's limit when that is less. */
static double free_memory(void)
{
    int64_t limit = sh_device_node_memory();
    double available = (double)limit;
    char *text, *line;

    if (sh_read_file("/proc/meminfo", 65536, &text, NULL) != SH_OK) {
        sh_error_clear();
        return available;
    }
    line = strstr(text, "MemAvailable:");
    if (line)
        available = 1024.0 * strtod(line + strlen("MemAvailable:"), NULL);
    free(text);
    return available < (double)limit ? available : (double)limit;
}

/* Bytes. 0 when the GPU cannot say: then the check fails, which is right. */
static double room_for_rank(const struct sh_doctor *d)
{
    int64_t bytes;

    if (!d->device)
        return free_memory() / d->mesh->node_size;
    if (sh_topology_gpu_room(d->cfg, &d->at, &d->gpu, &bytes) == SH_OK)
        return (double)bytes;
    sh_error_clear();
    return 0;
}

/* As sh_run_open() plans it, but for the ranks' one recomputation, which may take less. sharing: ranks that may run on
 * the same cores. */
static sh_rc plan(const struct sh_doctor *d, int sharing, double *arena_bytes)
{
    int threads = d->cfg->training.threads ? d->cfg->training.threads : sh_device_threads(sharing);
    struct sh_build build;
    struct sh_program *p = NULL;
    char why[256];
    int64_t rows = INT64_MAX;
    int level = 0;
    bool gpu;
    sh_rc rc;

    rc = sh_request_gpu(d->cfg, false, &gpu, why);
    if (rc == SH_OK)
        rc =
            sh_request_build(d->cfg, &d->at, &d->mesh->shape, SH_TO_TRAIN, threads, d->cfg->memory.limit_bytes, &build);
    if (rc == SH_OK)
        rc = sh_pass_fit(&build, &level);
    if (rc == SH_OK)
        rc = sh_pass_widen(&build, &rows);
    if (rc == SH_OK)
        rc = sh_pass_build(&build, &p);
    if (rc == SH_OK)
        *arena_bytes = (double)p->arena_bytes;
    sh_program_destroy(p);
    return rc;
}

/* Collective. The largest plan of any rank is compared with the poorest node. */
sh_rc sh_doctor_memory(const struct sh_doctor *d, struct sh_doctor_row *row)
{
    double *room = sh_calloc((size_t)d->mesh->n_nodes, sizeof *room), arena = 0;
    char need[SH_STR_SHORT], have[SH_STR_SHORT];
    int poorest = 0, sharing;
    bool failed;
    sh_rc rc;

    /* Threads decide about scratch memory, and cores about threads. */
    SH_TRY_OUT(sh_mesh_alike_on_node(sh_device_cores(), &sharing));
    SH_TRY_OUT(sh_doctor_any_failed(d, plan(d, sharing, &arena), row, &failed));
    if (failed)
        goto out;
    SH_TRY_OUT(sh_mesh_max(&arena, 1));
    SH_TRY_OUT(sh_doctor_of_nodes(d, room_for_rank(d), room));
    for (int i = 1; i < d->mesh->n_nodes; i++)
        poorest = room[i] < room[poorest] ? i : poorest;
    sh_str_bytes((int64_t)arena, need);
    sh_str_bytes((int64_t)room[poorest], have);
    if (arena > room[poorest])
        sh_doctor_bad(row, SH_E_MEMORY, "the plan takes %s per rank, and %s has %s free for each of its ranks", need,
                      sh_doctor_host(d, poorest), have);
    else
        sh_doctor_good(row, "the plan takes %s per rank; free for each: at least %s", need, have);
out:
    free(room);
    return rc;
}
