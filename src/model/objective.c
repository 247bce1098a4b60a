/* The table of objectives. */
#include "src/model/objective.h"

#include "src/model/model.h"
#include "src/program/emit_op.h"

static int weights(struct sh_emit *e, const struct sh_model_batch *b)
{
    return b->weighted ? sh_emit_port(e, SH_PORT_WEIGHTS) : SH_NONE;
}

static void emit_lm(struct sh_emit *e, int x, int head, int64_t chunk_rows, const struct sh_model_batch *b)
{
    sh_emit_head_loss(e, x, head, weights(e, b), chunk_rows, NULL);
}

/* The output matrix passes over the same rows twice: once for what the targets weigh. */
static void emit_answers(struct sh_emit *e, int x, int head, int64_t chunk_rows, const struct sh_model_batch *b)
{
    int weight = sh_emit_pair_loss(e, x, head, chunk_rows, &b->pairs);

    sh_emit_head_loss(e, x, head, weight, chunk_rows, NULL);
}

static void emit_distillation(struct sh_emit *e, int x, int head, int64_t chunk_rows, const struct sh_model_batch *b)
{
    sh_emit_head_loss(e, x, head, weights(e, b), chunk_rows, &b->teacher);
}

static void emit_multi_label(struct sh_emit *e, int x, int head, int64_t chunk_rows, const struct sh_model_batch *b)
{
    (void)b;
    sh_emit_labels_loss(e, x, head, chunk_rows);
}

static void emit_plugin(struct sh_emit *e, int x, int head, int64_t chunk_rows, const struct sh_model_batch *b)
{
    int weight = sh_emit_target_loss(e, x, head, chunk_rows, b->pairs.own);

    sh_emit_head_loss(e, x, head, weight, chunk_rows, NULL);
}

static const struct sh_objective objectives[] = {
    [SH_OBJECTIVE_LM] = {.name = "lm", .counts = SH_COUNTS_TARGETS, .emit = emit_lm},
    [SH_OBJECTIVE_DPO] = {.name = "dpo", .counts = SH_COUNTS_ANSWERS, .emit = emit_answers},
    [SH_OBJECTIVE_DISTILLATION] = {.name = "distillation", .counts = SH_COUNTS_TARGETS, .emit = emit_distillation},
    [SH_OBJECTIVE_REWARD] = {.name = "reward", .counts = SH_COUNTS_ANSWERS, .emit = emit_answers},
    [SH_OBJECTIVE_REGRESSION] = {.name = "regression", .counts = SH_COUNTS_ANSWERS, .emit = emit_answers},
    [SH_OBJECTIVE_MULTI_LABEL] = {.name = "multi_label", .counts = SH_COUNTS_TARGETS, .emit = emit_multi_label},
    [SH_OBJECTIVE_PLUGIN] = {.name = "plugin", .counts = SH_COUNTS_TARGETS, .emit = emit_plugin},
};

const struct sh_objective *sh_objective_named(enum sh_cfg_objective name)
{
    return &objectives[name];
}

const struct sh_objective *sh_objective_of(const struct sh_objective *o)
{
    return o ? o : &objectives[SH_OBJECTIVE_LM];
}
