#include "src/pass/pipeline/stages.h"

#include "src/base/mem.h"
#include "src/pass/build.h"
#include "src/pass/pipeline/deal.h"

#include <stdlib.h>

/* What a rank of another stage finds for itself. */
static sh_rc fit_other(struct sh_build *b)
{
    int64_t most = INT64_MAX;
    int level = 0;

    SH_TRY(sh_pass_fit(b, &level));
    return sh_pass_widen(b, &most);
}

static void put_fitted(struct sh_build *b, const struct sh_pipe_fitted *fitted)
{
    b->batch.chunk_rows = fitted->chunk_rows;
    b->tile_rows = fitted->tile_rows;
    if (b->fit)
        b->recompute = fitted->recompute;
}

static sh_rc build_stage(const struct sh_build *b, int stage, int first_rank, bool weigh,
                         const struct sh_pipe_fitted *fitted, struct sh_pipe_stages *out)
{
    struct sh_build one = *b;
    sh_rc rc = SH_OK;

    one.options.mesh.rank = first_rank;
    out->mesh[stage] = one.options.mesh;
    if (fitted)
        put_fitted(&one, &fitted[stage]);
    else if (stage != sh_group_index(&b->options.mesh, b->options.mesh.pipeline))
        SH_TRY(fit_other(&one));
    out->recompute[stage] = one.recompute;
    if (!out->p[stage])
        rc = (weigh ? sh_pass_weigh : sh_pass_build)(&one, &out->p[stage]);
    return rc == SH_OK ? SH_OK : sh_fail_prefix(rc, "stage %d: ", stage);
}

sh_rc sh_pipe_stages_build(const struct sh_build *b, bool weigh, struct sh_program *own,
                           const struct sh_pipe_fitted *fitted, struct sh_pipe_stages *out)
{
    int n = sh_group_size(&b->options.mesh, b->options.mesh.pipeline), each = sh_mesh_ranks(&b->options.mesh) / n;

    *out = (struct sh_pipe_stages){.n = n,
                                   .p = sh_calloc((size_t)n, sizeof *out->p),
                                   .mesh = sh_calloc((size_t)n, sizeof *out->mesh),
                                   .recompute = sh_calloc((size_t)n, sizeof *out->recompute)};
    out->p[sh_group_index(&b->options.mesh, b->options.mesh.pipeline)] = own;
    for (int i = 0; i < n; i++)
        SH_TRY(build_stage(b, i, i * each, weigh, fitted, out));
    return SH_OK;
}

void sh_pipe_stages_free(struct sh_pipe_stages *s)
{
    for (int i = 0; i < s->n; i++)
        sh_program_destroy(s->p[i]);
    free(s->p);
    free(s->mesh);
    free(s->recompute);
    *s = (struct sh_pipe_stages){0};
}

const char *sh_pipe_recompute_text(const struct sh_pipe_deal *deal, const int *begin, int stage,
                                   const struct sh_recompute *of, char text[SH_RECOMPUTE_TEXT])
{
    struct sh_recompute own = {0};
    int blocks = 0;

    for (int c = stage; c < deal->stages * deal->chunks; c += deal->stages)
        for (int i = begin[c]; i < begin[c + 1]; i++, blocks++) {
            own.full += i < of->full;
            own.selective += i < of->selective;
        }
    return sh_recompute_text(&own, blocks, text);
}

int sh_pipe_stages_largest(const struct sh_pipe_stages *s)
{
    int most = 0;

    for (int i = 1; i < s->n; i++)
        most = s->p[i]->arena_bytes > s->p[most]->arena_bytes ? i : most;
    return most;
}
