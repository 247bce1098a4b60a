#include "src/run/stages.h"

#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/string/str.h"
#include "src/pass/pipeline/deal.h"
#include "src/pass/pipeline/stages.h"
#include "src/pass/pipeline/links.h"
#include "src/run/run.h"

#include <xxhash.h>

#include <stdio.h>
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

/* Each rank deals the blocks for itself, and borders have the same rows wherever they are. */
static sh_rc check_deal(const struct sh_run *r)
{
    int *begin;
    struct sh_pipe_deal d = sh_pipe_deal_of(&r->build, &begin);
    bool same = sh_mesh_same(XXH3_64bits(begin, ((size_t)(d.stages * d.chunks) + 1) * sizeof *begin));

    sh_pipe_deal_free(&d, begin);
    return same ? SH_OK
                : sh_fail(SH_E_BUG,
                          "ranks have dealt other blocks to the stages; are all of them the same build with the same "
                          "configuration?");
}

sh_rc sh_stages_agree(const struct sh_run *r)
{
    sh_mesh_own_mpi();
    SH_TRY(sh_agree(check_hashes(r)));
    if (stages_of(r) == 1)
        return SH_OK;
    SH_TRY(sh_agree(check_deal(r)));
    return sh_agree(check_links(r));
}

/* Rows of r->stage_bytes: the arena, blocks that are recomputed, rows of a tile and of a chunk. */
enum { ARENA, FULL, SELECTIVE, TILE, CHUNK, FITTED };

sh_rc sh_stages_weigh(const struct sh_run *r, double **bytes)
{
    const struct sh_build *b = &r->build;
    const double own[FITTED] = {(double)r->p->arena_bytes, b->recompute.full, b->recompute.selective,
                                (double)b->tile_rows, (double)b->batch.chunk_rows};

    *bytes = NULL;
    if (stages_of(r) == 1)
        return SH_OK;
    *bytes = sh_calloc((size_t)FITTED * (size_t)stages_of(r), sizeof **bytes);
    for (int i = 0; i < FITTED; i++)
        (*bytes)[i * stages_of(r) + place_of(r)] = own[i];
    return sh_mesh_max(*bytes, FITTED * stages_of(r));
}

static struct sh_pipe_fitted fitted_of(const struct sh_run *r, int stage)
{
    const double *of = r->stage_bytes + stage;
    int n = stages_of(r);

    return (struct sh_pipe_fitted){.recompute = {.full = (int)of[FULL * n], .selective = (int)of[SELECTIVE * n]},
                                   .tile_rows = (int64_t)of[TILE * n],
                                   .chunk_rows = (int64_t)of[CHUNK * n]};
}

sh_rc sh_stages_build(const struct sh_run *r, struct sh_pipe_stages *out)
{
    struct sh_pipe_fitted *fitted;
    sh_rc rc;

    *out = (struct sh_pipe_stages){0};
    if (stages_of(r) == 1)
        return SH_OK;
    fitted = sh_calloc((size_t)stages_of(r), sizeof *fitted);
    for (int s = 0; s < stages_of(r); s++)
        fitted[s] = fitted_of(r, s);
    rc = sh_pipe_stages_build(&r->build, true, NULL, fitted, out);
    free(fitted);
    return rc;
}

enum { ROOM = 1024 };

/* ", recompute none; selective in 3 of 4 blocks": of a budget, which each stage fits for itself. */
static void say_fitted(const struct sh_run *r, const struct sh_pipe_deal *d, const int *begin, char text[ROOM])
{
    char one[SH_RECOMPUTE_TEXT];
    size_t n = 0;

    text[0] = '\0';
    for (int s = 0; r->build.fit && s < d->stages && n < ROOM; s++) {
        struct sh_recompute of = fitted_of(r, s).recompute;

        n += (size_t)snprintf(text + n, ROOM - n, "%s%s", s ? "; " : ", recompute ",
                              sh_pipe_recompute_text(d, begin, s, &of, one));
    }
}

void sh_stages_say(const struct sh_run *r)
{
    char blocks[ROOM] = "", arenas[ROOM] = "", fitted[ROOM], one[SH_STR_SHORT];
    size_t n = 0, m = 0;
    int *begin;
    struct sh_pipe_deal d;

    if (!r->stage_bytes)
        return;
    d = sh_pipe_deal_of(&r->build, &begin);
    for (int s = 0; s < d.stages && n < ROOM && m < ROOM; s++) {
        int has = 0;

        for (int c = s; c < d.stages * d.chunks; c += d.stages)
            has += begin[c + 1] - begin[c];
        n += (size_t)snprintf(blocks + n, ROOM - n, "%s%d", s ? ", " : "", has);
        m += (size_t)snprintf(arenas + m, ROOM - m, "%s%s", s ? ", " : "",
                              sh_str_bytes((int64_t)r->stage_bytes[s], one));
    }
    say_fitted(r, &d, begin, fitted);
    sh_log_info("stages of %s blocks, arenas %s%s", blocks, arenas, fitted);
    sh_pipe_deal_free(&d, begin);
}
