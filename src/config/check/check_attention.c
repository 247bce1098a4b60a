/* Attention: its heads and latent vectors, blocks with windows, and what a family settles of them. */
#include "src/config/check/check.h"

#include "src/config/family.h"
#include "src/config/layers.h"
#include "src/config/read/place.h"

/* Grouped-query attention shares each key-value head among the same number of query heads. */
sh_rc sh_config_check_heads(struct sh_config_state *state)
{
    const struct sh_config *c = &state->cfg;
    if (c->model.n_heads % c->model.n_kv_heads != 0 && !sh_family_of(c->model.family)->one_width)
        return sh_config_refuse(state, "model.n_kv_heads", "%d does not divide model.n_heads %d", c->model.n_kv_heads,
                                c->model.n_heads);
    if (!sh_family_of(c->model.family)->learned_positions && c->model.head_dim % 2 != 0)
        return sh_config_refuse(state, "model.head_dim", "%d is odd; %s", c->model.head_dim,
                                sh_family_has_rope(&c->model) ? "rotary positions turn pairs of elements"
                                                              : "give an even size");
    return SH_OK;
}

/* Latent attention has widths of its own, and no other attention has them. */
sh_rc sh_config_check_latent(struct sh_config_state *state)
{
    const struct sh_model *m = &state->cfg.model;
    const struct sh_family *f = sh_family_of(m->family);
    const struct {
        const char *key;
        double value;
        bool needed;
    } rows[] = {{"model.kv_lora_rank", m->kv_lora_rank, true},
                {"model.v_head_dim", m->v_head_dim, true},
                {"model.q_lora_rank", m->q_lora_rank, false},
                {"model.rope_mscale_all_dim", m->rope_mscale_all_dim, false}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (!f->kv_a && rows[i].value != 0)
            return sh_config_refuse(state, rows[i].key,
                                    "%s has no latent attention; leave it out, or give model.family=deepseek_v3",
                                    f->name);
        if (f->kv_a && rows[i].needed && rows[i].value == 0)
            return sh_config_refuse(state, rows[i].key, "needed with model.family=%s; give it", f->name);
    }
    if (!f->kv_a)
        return SH_OK;
    if (m->rotary_dim == 0)
        return sh_config_refuse(state, "model.rotary_dim", "needed with model.family=%s; give it", f->name);
    if (m->v_head_dim > m->head_dim)
        return sh_config_refuse(state, "model.v_head_dim", "%d is more than model.head_dim %d", m->v_head_dim,
                                m->head_dim);
    if (m->n_kv_heads != m->n_heads)
        return sh_config_refuse(state, "model.n_kv_heads", "%s needs as many as model.n_heads, %d, not %d", f->name,
                                m->n_heads, m->n_kv_heads);
    if (m->rope_mscale_all_dim != 0 && (m->rope_factor == 0 || m->rope_type != SH_ROPE_YARN))
        return sh_config_refuse(state, "model.rope_mscale_all_dim",
                                "has no effect without model.rope_type=yarn and model.rope_factor; leave it out");
    return SH_OK;
}

/* Keys for features that the family does not have. */
sh_rc sh_config_check_family(struct sh_config_state *state)
{
    const struct sh_config *c = &state->cfg;
    const struct sh_family *f = sh_family_of(c->model.family);
    /* Queries, keys and values share one matrix, so all three have the same width. */
    if (f->one_width && c->model.n_kv_heads != c->model.n_heads)
        return sh_config_refuse(state, "model.n_kv_heads", "%s needs as many as model.n_heads, %d, not %d", f->name,
                                c->model.n_heads, c->model.n_kv_heads);
    if (f->one_width && (int64_t)c->model.head_dim * c->model.n_heads != c->model.dim)
        return sh_config_refuse(state, "model.head_dim", "%d * model.n_heads %d is not model.dim %d, as %s needs",
                                c->model.head_dim, c->model.n_heads, c->model.dim, f->name);
    bool attention = c->model.attention_bias && !f->attention_bias_key;
    if (attention || (c->model.mlp_bias && !f->mlp_bias_key))
        return sh_config_refuse(state, attention ? "model.attention_bias" : "model.mlp_bias",
                                "model.family=%s settles which products have biases; leave it out", f->name);
    if (f->learned_positions && sh_layers_any(&c->model, SH_LAYER_NOPE))
        return sh_config_refuse(state, "model.layer_types", "%s has no rotary positions that a block could lack",
                                f->name);
    return SH_OK;
}

/* Whether a user gave model.layer_types; the keys that it replaces may leave no block with a window. */
static bool typed_layers(struct sh_config_state *state)
{
    return sh_config_place_of(state, "model.layer_types")->source != SH_SOURCE_DEFAULT;
}

/* Blocks with a window need its size, and the other way round. */
sh_rc sh_config_check_window(struct sh_config_state *state)
{
    const struct sh_model *m = &state->cfg.model;
    if (m->attention_window == 0 && sh_layers_any(m, SH_LAYER_SLIDING))
        return sh_config_refuse(state, "model.layer_types", "blocks with a window need model.attention_window");
    if (m->attention_window && (typed_layers(state) || sh_family_of(m->family)->delta) &&
        !sh_layers_any(m, SH_LAYER_SLIDING))
        return sh_config_refuse(state, "model.attention_window", "model.layer_types has no block with a window");
    if (m->rope_local_base_freq != 0 && m->attention_window == 0)
        return sh_config_refuse(state, "model.rope_local_base_freq", "needs model.attention_window");
    if (m->rope_local_base_freq != 0 && sh_family_of(m->family)->learned_positions)
        return sh_config_refuse(state, "model.rope_local_base_freq", "%s has no rotary positions; leave it out",
                                sh_family_of(m->family)->name);
    if (m->rope_local_base_freq > 0 && m->rope_local_base_freq < 1)
        return sh_config_refuse(state, "model.rope_local_base_freq", "%g is below 1; give 0 or at least 1",
                                m->rope_local_base_freq);
    return SH_OK;
}
