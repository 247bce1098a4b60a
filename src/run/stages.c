#include "src/run/stages.h"

#include "src/base/mem.h"
#include "src/pass/pipeline/links.h"
#include "src/run/run.h"

#include <stdlib.h>

static int stages_of(const struct sh_run *r)
{
    return sh_group_size(&r->mesh->shape, r->mesh->shape.pipeline);
}

static int place_of(const struct sh_run *r)
{
    return sh_group_index(&r->mesh->shape, r->mesh->shape.pipeline);
}

/* Numbers of a stage: the halves of its hash, each with its negative, so that the largest of all ranks show whether they
 * are equal. Halves are exact as doubles; those of other stages are smaller than any. */
enum { HIGH, HIGH_NEGATIVE, LOW, LOW_NEGATIVE, NUMBERS };

static sh_rc check_hashes(const struct sh_run *r)
{
    int stages = stages_of(r), n = stages * NUMBERS, differs = SH_NONE;
    double *all = sh_calloc((size_t)n, sizeof *all), *mine = all + (ptrdiff_t)place_of(r) * NUMBERS;
    uint64_t hash = sh_pass_hash(r->p);
    sh_rc rc;

    for (int i = 0; i < n; i++)
        all[i] = -1e18;
    mine[HIGH] = (double)(hash >> 32);
    mine[LOW] = (double)(hash & UINT32_MAX);
    mine[HIGH_NEGATIVE] = -mine[HIGH];
    mine[LOW_NEGATIVE] = -mine[LOW];
    rc = sh_mesh_max(all, n);
    for (int s = 0; s < stages && rc == SH_OK; s++)
        if (all[s * NUMBERS + HIGH] != -all[s * NUMBERS + HIGH_NEGATIVE] ||
            all[s * NUMBERS + LOW] != -all[s * NUMBERS + LOW_NEGATIVE])
            differs = s;
    free(all);
    if (differs == SH_NONE)
        return rc;
    return sh_fail(SH_E_BUG,
                   "the ranks of stage %d have planned different collectives; are all of them the same build with the "
                   "same configuration?",
                   differs);
}

/* The lists of the other stages with this rank's place in its own. */
static sh_rc gather_links(const struct sh_run *r, const struct sh_link *mine, int *n, struct sh_link *all, int most)
{
    MPI_Comm comm = sh_mesh_comm(r->mesh, r->mesh->shape.pipeline);
    struct sh_link *own = all + (ptrdiff_t)place_of(r) * most;
    int bytes = most * (int)sizeof *all;

    for (int i = 0; i < n[place_of(r)]; i++)
        own[i] = mine[i];
    SH_MPI(MPI_Allgather(MPI_IN_PLACE, bytes, MPI_BYTE, all, bytes, MPI_BYTE, comm));
    return SH_OK;
}

static sh_rc gather_counts(const struct sh_run *r, int *n, int *most)
{
    MPI_Comm comm = sh_mesh_comm(r->mesh, r->mesh->shape.pipeline);

    SH_MPI(MPI_Allgather(MPI_IN_PLACE, 1, MPI_INT, n, 1, MPI_INT, comm));
    for (int s = 0; s < stages_of(r); s++)
        *most = n[s] > *most ? n[s] : *most;
    return SH_OK;
}

static sh_rc check_links(const struct sh_run *r)
{
    int stages = stages_of(r), *n = sh_calloc((size_t)stages, sizeof *n), most = 1;
    const struct sh_link **lists = sh_calloc((size_t)stages, sizeof *lists);
    struct sh_link *mine, *all = NULL;
    sh_rc rc;

    n[place_of(r)] = sh_links_of(r->p, &mine);
    rc = gather_counts(r, n, &most);
    if (rc == SH_OK) {
        all = sh_calloc((size_t)stages * (size_t)most, sizeof *all);
        rc = gather_links(r, mine, n, all, most);
    }
    for (int s = 0; s < stages; s++)
        lists[s] = all + (ptrdiff_t)s * most;
    if (rc == SH_OK)
        rc = sh_links_check(lists, n, stages);
    free(n);
    free(lists);
    free(mine);
    free(all);
    return rc;
}

sh_rc sh_stages_agree(const struct sh_run *r)
{
    sh_mesh_own_mpi();
    SH_TRY(sh_agree(check_hashes(r)));
    return stages_of(r) == 1 ? SH_OK : sh_agree(check_links(r));
}
