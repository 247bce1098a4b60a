#include "src/pass/pipeline/stages.h"

#include "src/base/mem.h"
#include "src/pass/build.h"

#include <stdlib.h>

sh_rc sh_pipe_stages_build(const struct sh_build *b, bool weigh, struct sh_program *own, struct sh_pipe_stages *out)
{
    int n = sh_group_size(&b->options.mesh, b->options.mesh.pipeline), each = sh_mesh_ranks(&b->options.mesh) / n;
    struct sh_build one = *b;

    *out = (struct sh_pipe_stages){
        .n = n, .p = sh_calloc((size_t)n, sizeof *out->p), .mesh = sh_calloc((size_t)n, sizeof *out->mesh)};
    out->p[sh_group_index(&b->options.mesh, b->options.mesh.pipeline)] = own;
    one.limit_bytes = 0;
    for (int i = 0; i < n; i++) {
        one.options.mesh.rank = i * each;
        out->mesh[i] = one.options.mesh;
        if (!out->p[i])
            SH_TRY((weigh ? sh_pass_weigh : sh_pass_build)(&one, &out->p[i]));
    }
    return SH_OK;
}

void sh_pipe_stages_free(struct sh_pipe_stages *s)
{
    for (int i = 0; i < s->n; i++)
        sh_program_destroy(s->p[i]);
    free(s->p);
    free(s->mesh);
    *s = (struct sh_pipe_stages){0};
}

int sh_pipe_stages_largest(const struct sh_pipe_stages *s)
{
    int most = 0;

    for (int i = 1; i < s->n; i++)
        most = s->p[i]->arena_bytes > s->p[most]->arena_bytes ? i : most;
    return most;
}
