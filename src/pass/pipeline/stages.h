/* The programs of all stages of a pipeline, one rank of each: for prices, which know what each stage waits for. Local. */
#ifndef SH_PASS_PIPELINE_STAGES_H
#define SH_PASS_PIPELINE_STAGES_H

#include "src/mesh/shape.h"
#include "src/pass/pass.h"
#include "src/program/program.h"

struct sh_build;
struct sh_pipe_deal;

struct sh_pipe_stages {
    int n;                          /* 0: not made */
    struct sh_program **p;          /* [n] */
    struct sh_mesh_shape *mesh;     /* [n] of the first rank of each */
    struct sh_recompute *recompute; /* [n] of all blocks of the model */
};

/* What a stage has chosen to fit its limit: rows of tiles and of chunks of logits, and what it recomputes if b->fit. */
struct sh_pipe_fitted {
    struct sh_recompute recompute;
    int64_t tile_rows, chunk_rows;
};

/* Build them. `weigh`: whatever the limits, and without the pass that checks. *out is freed by the caller, whatever is returned.
 *   own     the program of b's rank, which *out takes over; NULL: built like the others
 *   fitted  [n] what the stages have chosen; NULL: each but b's own is fitted here, as one whose ranks have b's threads
 * Errors: those of the passes; SH_E_MEMORY names the stage. */
sh_rc sh_pipe_stages_build(const struct sh_build *b, bool weigh, struct sh_program *own,
                           const struct sh_pipe_fitted *fitted, struct sh_pipe_stages *out);
void sh_pipe_stages_free(struct sh_pipe_stages *s);

/* What a stage of `deal` recomputes, of its own blocks alone. */
const char *sh_pipe_recompute_text(const struct sh_pipe_deal *deal, const int *begin, int stage,
                                   const struct sh_recompute *of, char text[SH_RECOMPUTE_TEXT]);

/* The stage whose rank takes most. */
int sh_pipe_stages_largest(const struct sh_pipe_stages *s);

#endif
