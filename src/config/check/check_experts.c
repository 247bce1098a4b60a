/* Mixtures of experts: which blocks have experts, how many a token has, and from which of them they are chosen. */
#include "src/config/check/check.h"
#include "src/config/family.h"
#include "src/config/layers.h"
#include "src/config/read/place.h"

/* Each of these keys is off at 0. */
static sh_rc check_none(struct sh_config_state *state)
{
    const struct sh_config *c = &state->cfg;
    const struct sh_family *f = sh_family_of(c->model.family);
    const struct {
        const char *key;
        double value;
    } keys[] = {
        {"model.n_experts", c->model.n_experts},
        {"model.n_experts_per_token", c->model.n_experts_per_token},
        {"model.expert_ffn_dim", c->model.expert_ffn_dim},
        {"model.shared_ffn_dim", c->model.shared_ffn_dim},
        {"model.first_dense_layers", c->model.first_dense_layers},
        {"model.moe_every", c->model.moe_every},
        {"model.router", c->model.router},
        {"moe.load_balance_coeff", c->moe.load_balance_coeff},
        {"model.router_bias", c->model.router_bias},
        {"debug.moe_force_load_balance", c->debug.moe_force_load_balance},
        {"model.route_norm", c->model.route_norm},
        {"model.route_scale", c->model.route_scale},
        {"model.route_groups", c->model.route_groups},
        {"model.route_top_groups", c->model.route_top_groups},
        {"moe.aux_loss_coeff", c->moe.aux_loss_coeff},
        {"moe.z_loss_coeff", c->moe.z_loss_coeff},
        {"parallelism.expert_parallel_degree", c->parallelism.expert_parallel_degree - 1},
        {"moe.capacity_factor", c->moe.capacity_factor != SH_CAPACITY_FACTOR ||
                                    sh_config_place_typed(sh_config_place_of(state, "moe.capacity_factor"))},
    };
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (keys[i].value != 0)
            return sh_config_refuse(state, keys[i].key,
                                    f->single && f->router ? "no block of this %s has experts; leave it out, or give "
                                                             "model.layer_types some as moe"
                                    : f->dense_too
                                        ? "%s has no experts without model.n_experts; give that, or leave this out"
                                        : "%s has no experts; leave it out, or give model.family=mixtral, qwen2_moe, "
                                          "qwen3_moe, olmoe, granitemoe, granitemoehybrid, deepseek_v3, nemotron_h or "
                                          "gpt_oss",
                                    f->name);
    return SH_OK;
}

/* Sizes of experts have no defaults. */
static sh_rc check_sizes(struct sh_config_state *state)
{
    const struct sh_model *m = &state->cfg.model;
    const struct sh_family *f = sh_family_of(m->family);
    const struct {
        const char *key;
        int value;
    } needed[] = {{"model.n_experts", m->n_experts},
                  {"model.n_experts_per_token", m->n_experts_per_token},
                  {"model.expert_ffn_dim", m->expert_ffn_dim}};
    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++)
        if (needed[i].value == 0)
            return sh_config_refuse(state, needed[i].key, "needed with model.family=%s; give it", f->name);
    if (m->n_experts_per_token > m->n_experts)
        return sh_config_refuse(state, "model.n_experts_per_token", "%d of model.n_experts %d; give at most %d",
                                m->n_experts_per_token, m->n_experts, m->n_experts);
    if (m->shared_ffn_dim && !f->shared_up)
        return sh_config_refuse(
            state, "model.shared_ffn_dim",
            "%s has no shared expert; leave it out, or give model.family=qwen2_moe, deepseek_v3, granitemoehybrid or nemotron_h",
            f->name);
    return SH_OK;
}

/* Families whose list of blocks says it. */
static sh_rc check_single(struct sh_config_state *state, const struct sh_family *f)
{
    const struct sh_model *m = &state->cfg.model;

    if (m->first_dense_layers || m->moe_every)
        return sh_config_refuse(state, m->first_dense_layers ? "model.first_dense_layers" : "model.moe_every",
                                "model.layer_types says which blocks of %s have experts (moe); leave it out", f->name);
    if (!sh_layers_any(m, SH_LAYER_MLP) && sh_config_place_typed(sh_config_place_of(state, "model.ffn_dim")))
        return sh_config_refuse(state, "model.ffn_dim",
                                "has no effect: model.layer_types has no mlp; give model.expert_ffn_dim");
    return SH_OK;
}

static sh_rc check_blocks(struct sh_config_state *state)
{
    const struct sh_model *m = &state->cfg.model;
    const struct sh_family *f = sh_family_of(m->family);
    const char *key = m->first_dense_layers ? "model.first_dense_layers" : "model.moe_every";
    int with = sh_family_blocks_with_experts(m, m->n_layers);

    if (f->single)
        return check_single(state, f);
    if (with == 0)
        return sh_config_refuse(state, key, "%d leaves none of model.n_layers %d blocks with experts; give less",
                                m->first_dense_layers ? m->first_dense_layers : m->moe_every, m->n_layers);
    if (with < m->n_layers && (!f->up || f->dense_too))
        return sh_config_refuse(state, key, "all blocks of %s have experts; leave it out", f->name);
    if (with == m->n_layers && sh_config_place_typed(sh_config_place_of(state, "model.ffn_dim")))
        return sh_config_refuse(state, "model.ffn_dim",
                                "has no effect: all blocks have experts; give "
                                "model.expert_ffn_dim");
    return SH_OK;
}

/* The best groups must have enough experts for a token. */
static sh_rc check_groups(struct sh_config_state *state)
{
    const struct sh_model *m = &state->cfg.model;
    int groups = m->route_groups, top = m->route_top_groups, divisor = groups, most;
    if (groups == 0 && top == 0)
        return SH_OK;
    if (groups == 0)
        return sh_config_refuse(state, "model.route_top_groups", "has no effect without model.route_groups");
    while (m->n_experts % divisor != 0)
        divisor--;
    if (divisor != groups)
        return sh_config_refuse(state, "model.route_groups", "%d does not divide model.n_experts %d; %d does", groups,
                                m->n_experts, divisor);
    if (top < 1 || top > groups)
        return sh_config_refuse(state, "model.route_top_groups", "%d of model.route_groups %d; give 1 to %d", top,
                                groups, groups);
    most = m->n_experts / groups * top;
    if (m->n_experts_per_token > most)
        return sh_config_refuse(state, "model.n_experts_per_token",
                                "%d, but model.route_top_groups %d of model.route_groups %d have %d of model.n_experts "
                                "%d; give at most %d, or more of the groups",
                                m->n_experts_per_token, top, groups, most, m->n_experts, most);
    return SH_OK;
}

/* Each rank has as many experts as the others. */
static sh_rc check_spread(struct sh_config_state *state)
{
    const struct sh_config *c = &state->cfg;
    int degree = c->parallelism.expert_parallel_degree, divisor = degree;
    if (degree == 1 && (c->moe.capacity_factor != SH_CAPACITY_FACTOR ||
                        sh_config_place_typed(sh_config_place_of(state, "moe.capacity_factor"))))
        return sh_config_refuse(state, "moe.capacity_factor",
                                "has no effect without parallelism.expert_parallel_degree above 1; leave it out");
    if (c->moe.capacity_factor < 1)
        return sh_config_refuse(state, "moe.capacity_factor",
                                "%g; rows are never dropped, it is the size of a wave; give at least 1",
                                c->moe.capacity_factor);
    while (c->model.n_experts % divisor != 0)
        divisor--;
    if (divisor != degree)
        return sh_config_refuse(state, "parallelism.expert_parallel_degree",
                                "%d does not divide model.n_experts %d; %d does", degree, c->model.n_experts, divisor);
    return SH_OK;
}

sh_rc sh_config_check_experts(struct sh_config_state *state)
{
    const struct sh_config *c = &state->cfg;
    if (!sh_family_takes_experts(&c->model))
        return check_none(state);
    SH_TRY(check_sizes(state));
    SH_TRY(check_blocks(state));
    SH_TRY(check_groups(state));
    SH_TRY(check_spread(state));
    if (c->moe.z_loss_coeff != 0 && c->model.router != SH_ROUTER_SOFTMAX)
        return sh_config_refuse(state, "moe.z_loss_coeff", "is for model.router=softmax; leave it out");
    if (c->moe.load_balance_coeff != 0 && !c->model.router_bias)
        return sh_config_refuse(state, "moe.load_balance_coeff",
                                "moves the biases that model.router_bias=false leaves out; leave one of the two out");
    if (c->moe.load_balance_coeff != 0 && c->lora.rank)
        return sh_config_refuse(
            state, "moe.load_balance_coeff",
            "moves biases of routers, which adapters (lora.rank) leave as they are; leave one of the two "
            "out, and give model.router_bias=true if the base has them");
    return SH_OK;
}
