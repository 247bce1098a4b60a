/* Adapters. */
#include "src/config/check/check.h"

#include "src/config/family.h"
#include "src/config/read/place.h"

#include <inttypes.h>
#include <string.h>

/* A word that names no product of this model. PEFT has a list of its own for stacks of experts, and so do we. */
static sh_rc refuse_target(struct sh_config_state *state, const char *key, const char *bad)
{
    const struct sh_model *m = &state->cfg.model;
    const struct sh_family *f = sh_family_of(m->family);
    bool experts = sh_family_blocks_with_experts(m, m->n_layers) > 0;
    char up[SH_FAMILY_WORD], down[SH_FAMILY_WORD];
    if (strcmp(key, "lora.target_modules") == 0)
        return sh_config_refuse(state, key,
                                "'%s' is not a linear product of %s; give all-linear, or names "
                                "such as %s%s",
                                bad, f->name, f->o,
                                experts ? "; stacks of experts are named by lora.target_parameters" : "");
    if (!experts)
        return sh_config_refuse(state, key, "%s has no experts; leave it out", f->name);
    sh_family_stack_name(f, SH_PARAM_EXPERT_UP, up);
    sh_family_stack_name(f, SH_PARAM_EXPERT_DOWN, down);
    return sh_config_refuse(state, key, "'%s' is not a stack of experts of %s; give %s,%s, or one of them", bad,
                            f->name, up, down);
}

/* Adapters that the products of the model cannot have. Loaded adapters are checked when they are loaded. */
sh_rc sh_config_check_lora(struct sh_config_state *state)
{
    const struct sh_config *c = &state->cfg;
    const struct sh_family *f = sh_family_of(c->model.family);
    char bad[SH_FAMILY_WORD];
    const char *key;
    unsigned targets;
    if (!c->lora.rank)
        return SH_OK;
    if (f->single && sh_family_takes_experts(&c->model) && c->lora.target_parameters[0])
        return sh_config_refuse(
            state, "lora.target_parameters",
            "experts of %s have no gates, and PEFT's form of their adapters is not known here; leave it "
            "out, and give lora.target_modules",
            f->name);
    key = sh_family_targets(&c->model, c->lora.target_modules, c->lora.target_parameters, &targets, bad);
    if (key)
        return refuse_target(state, key, bad);
    if (f->single && targets & 1u << SH_PARAM_DELTA_O)
        return sh_config_refuse(state, "lora.target_modules",
                                "PEFT refuses adapters of %s in %s, and so all-linear; name the others, such as "
                                "in_proj,q_proj,v_proj,up_proj",
                                sh_family_linear_name(f, SH_PARAM_DELTA_O), f->name);
    if (targets & 1u << SH_PARAM_PER_LAYER_IN)
        return sh_config_refuse(
            state, "lora.target_modules",
            "per_layer_model_projection, which all-linear means too, is in no block and has no adapter here; name "
            "others, such as q_proj,v_proj,up_proj,down_proj");
    for (int i = 0; i < SH_PARAM_PRODUCTS; i++) {
        int64_t in, out;
        sh_family_linear_dims(&c->model, i, &in, &out);
        if (targets & 1u << i && c->lora.rank > (in < out ? in : out))
            return sh_config_refuse(state, "lora.rank",
                                    "%d is above the rank of %s, which has %" PRId64 " inputs and %" PRId64 " outputs",
                                    c->lora.rank, sh_family_linear_name(f, i), in, out);
    }
    if (c->lora.adapter_path[0] && c->checkpoint.initial_load_path[0] && c->hf.assets_path[0] &&
        c->checkpoint.initial_load_in_hf)
        return sh_config_refuse(state, "lora.adapter_path",
                                "and checkpoint.initial_load_path are both adapters for the model of "
                                "model.hf_assets_path; leave one of them out");
    return SH_OK;
}
