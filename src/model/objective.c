/* The table of objectives. */
#include "src/model/objective.h"

static void emit_lm(struct sh_emit *e, int x, int head, int64_t chunk_rows)
{
    sh_emit_head_loss(e, x, head, SH_NONE, chunk_rows);
}

enum { LM };
static const struct sh_objective objectives[] = {
    [LM] = {.name = "lm", .counts = SH_COUNTS_TARGETS, .emit = emit_lm},
};

const struct sh_objective *sh_objective_of(const struct sh_objective *o)
{
    return o ? o : &objectives[LM];
}
