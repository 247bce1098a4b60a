#include "src/config/role.h"

/* The endings are those of transformers and, for adapters, of PEFT. */
const struct sh_param_info *sh_param_info(enum sh_param_role role)
{
    static const struct sh_param_info rows[SH_PARAM_ROLES] = {
        [SH_PARAM_Q] = {.ending = "weight", .matrix = true, .linear = true, .packs = true},
        [SH_PARAM_K] = {.ending = "weight", .matrix = true, .linear = true, .packs = true},
        [SH_PARAM_V] = {.ending = "weight", .matrix = true, .linear = true, .packs = true},
        [SH_PARAM_O] = {.ending = "weight", .matrix = true, .residual = true, .linear = true, .packs = true},
        [SH_PARAM_GATE] = {.ending = "weight", .matrix = true, .linear = true, .packs = true},
        [SH_PARAM_UP] = {.ending = "weight", .matrix = true, .linear = true, .packs = true},
        [SH_PARAM_DOWN] = {.ending = "weight", .matrix = true, .residual = true, .linear = true, .packs = true},
        [SH_PARAM_Q_A] = {.ending = "weight", .matrix = true, .linear = true, .packs = true},
        [SH_PARAM_Q_B] = {.ending = "weight", .matrix = true, .linear = true, .packs = true},
        [SH_PARAM_KV_A] = {.ending = "weight", .matrix = true, .linear = true, .packs = true},
        [SH_PARAM_KV_B] = {.ending = "weight", .matrix = true, .linear = true, .packs = true},
        [SH_PARAM_ROUTER] = {.ending = "weight"},
        [SH_PARAM_EXPERT_UP] = {.ending = "weight", .matrix = true, .experts = true, .packs = true},
        [SH_PARAM_EXPERT_DOWN] = {.ending = "weight", .matrix = true, .residual = true, .experts = true, .packs = true},
        [SH_PARAM_SHARED_GATE] = {.ending = "weight", .matrix = true, .linear = true, .packs = true},
        [SH_PARAM_SHARED_UP] = {.ending = "weight", .matrix = true, .linear = true, .packs = true},
        [SH_PARAM_SHARED_DOWN] = {.ending = "weight", .matrix = true, .residual = true, .linear = true, .packs = true},
        [SH_PARAM_SHARED_WEIGHT] = {.ending = "weight", .packs = true},
        [SH_PARAM_DELTA_QKV] = {.ending = "weight", .matrix = true, .linear = true, .packs = true},
        [SH_PARAM_DELTA_Z] = {.ending = "weight", .matrix = true, .linear = true, .packs = true},
        [SH_PARAM_DELTA_B] = {.ending = "weight", .matrix = true, .linear = true, .packs = true},
        [SH_PARAM_DELTA_A] = {.ending = "weight", .matrix = true, .linear = true, .packs = true},
        [SH_PARAM_DELTA_O] = {.ending = "weight", .matrix = true, .residual = true, .linear = true, .packs = true},
        [SH_PARAM_EMBED] = {.ending = "weight"},
        [SH_PARAM_POSITIONS] = {.ending = "weight"},
        [SH_PARAM_HEAD] = {.ending = "weight"},
        [SH_PARAM_NORM] = {.ending = "weight", .vector = true},
        [SH_PARAM_BIAS] = {.ending = "bias", .vector = true},
        [SH_PARAM_MOMENT] = {.ending = "rows", .vector = true},
        [SH_PARAM_ROUTER_BIAS] = {.ending = "e_score_correction_bias", .vector = true},
        [SH_PARAM_LORA_A] = {.ending = "lora_A.weight", .adapter = true},
        [SH_PARAM_LORA_B] = {.ending = "lora_B.weight", .adapter = true},
        [SH_PARAM_EXPERT_LORA_A] = {.ending = "lora_A.weight", .experts = true, .adapter = true},
        [SH_PARAM_EXPERT_LORA_B] = {.ending = "lora_B.weight", .experts = true, .adapter = true},
        [SH_PARAM_EXPERT_BIAS] = {.ending = "bias", .vector = true, .experts = true},
        [SH_PARAM_CONV] = {.ending = "weight"},
        [SH_PARAM_DECAY] = {.ending = "A_log", .vector = true},
        [SH_PARAM_STEP] = {.ending = "dt_bias", .vector = true},
        [SH_PARAM_GATED_NORM] = {.ending = "weight", .vector = true},
        [SH_PARAM_SINK] = {.ending = "sinks", .vector = true},
    };
    return &rows[role];
}
