/* Families whose blocks without a window have other heads than the others: the sizes of these, and what needs the same heads
 * in all blocks. */
#include "src/config/check/check.h"

#include "src/config/family.h"
#include "src/config/read/place.h"
#include "src/config/words.h"

/* Keys that other families do not have. */
static sh_rc check_others(struct sh_config_state *state)
{
    const struct sh_model *m = &state->cfg.model;
    enum { HEADS = 3 }; /* the first rows */
    const struct {
        const char *key;
        bool set;
    } rows[] = {
        {"model.global_head_dim", m->global_head_dim != 0}, {"model.global_kv_heads", m->global_kv_heads != 0},
        {"model.keys_as_values", m->keys_as_values},        {"model.kv_shared_layers", m->kv_shared_layers != 0},
        {"model.double_wide_ffn", m->double_wide_ffn},      {"model.per_layer_dim", m->per_layer_dim != 0}};

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].set)
            return sh_config_refuse(state, rows[i].key,
                                    i < HEADS ? "%s has the same heads in all blocks; leave it out, or give "
                                                "model.family=gemma4_text"
                                              : "%s has no such blocks; leave it out, or give model.family=gemma4_text",
                                    sh_family_of(m->family)->name);
    return SH_OK;
}

/* Sizes of blocks that there are not. */
static sh_rc check_there(struct sh_config_state *state)
{
    const struct sh_model *m = &state->cfg.model;

    for (int i = 0; i < m->n_layers; i++)
        if (sh_family_is_global(m, i))
            return SH_OK;
    if (m->keys_as_values)
        return sh_config_refuse(state, "model.keys_as_values", "no block is without a window; leave it out");
    if (m->global_head_dim && sh_config_place_typed(sh_config_place_of(state, "model.global_head_dim")))
        return sh_config_refuse(state, "model.global_head_dim", "no block is without a window; leave it out");
    return SH_OK;
}

/* Blocks that read keys and values of another one, and inputs for each block. */
static sh_rc check_shared(struct sh_config_state *state)
{
    const struct sh_model *m = &state->cfg.model;

    if (m->kv_shared_layers >= m->n_layers)
        return sh_config_refuse(state, "model.kv_shared_layers",
                                "%d of %d blocks leave none whose keys and values they could read", m->kv_shared_layers,
                                m->n_layers);
    for (int i = m->n_layers - m->kv_shared_layers; i < m->n_layers; i++)
        if (sh_family_kv_source(m, i) < 0)
            return sh_config_refuse(state, "model.kv_shared_layers",
                                    "block %d %s a window, and no block before the last %d %s so whose keys and values "
                                    "it could read",
                                    i, sh_family_is_global(m, i) ? "is without" : "has", m->kv_shared_layers,
                                    sh_family_is_global(m, i) ? "is" : "does");
    if (m->double_wide_ffn && !m->kv_shared_layers)
        return sh_config_refuse(state, "model.double_wide_ffn",
                                "counts only with model.kv_shared_layers, as in transformers; leave it out");
    if (m->double_wide_ffn && m->ffn[0])
        return sh_config_refuse(state, "model.double_wide_ffn",
                                "model.ffn says how wide its products are; leave it out");
    if (m->per_layer_dim % 2)
        return sh_config_refuse(state, "model.per_layer_dim", "%d is odd; rows are split into parts of an even width",
                                m->per_layer_dim);
    return SH_OK;
}

static sh_rc check_sizes(struct sh_config_state *state)
{
    const struct sh_model *m = &state->cfg.model;

    SH_TRY(check_there(state));
    if (m->global_head_dim % 2)
        return sh_config_refuse(state, "model.global_head_dim", "%d is odd; rotary positions turn pairs of elements",
                                m->global_head_dim);
    if (m->global_kv_heads && !m->keys_as_values)
        return sh_config_refuse(state, "model.global_kv_heads",
                                "counts only with model.keys_as_values, as in "
                                "transformers; give that too, or leave it out");
    if (m->global_kv_heads && m->n_heads % m->global_kv_heads)
        return sh_config_refuse(state, "model.global_kv_heads", "%d does not divide model.n_heads %d",
                                m->global_kv_heads, m->n_heads);
    if (m->rope_factor != 0)
        return sh_config_refuse(state, "model.rope_factor", "%s scales no frequencies; leave it out",
                                sh_family_of(m->family)->name);
    return SH_OK;
}

sh_rc sh_config_check_global(struct sh_config_state *state)
{
    const struct sh_config *c = &state->cfg;
    const struct {
        const char *key;
        bool there;
        const char *instead;
    } bars[] = {
        {"parallelism.context_parallel_degree", c->parallelism.context_parallel_degree > 1, "shard over all ranks"},
        {"parallelism.tensor_parallel_degree", c->parallelism.tensor_parallel_degree > 1, "shard over all ranks"},
        {"optimizer.muon_split", sh_cfg_is_muon(c->optimizer.name) && c->optimizer.muon_split == SH_MUON_SPLIT_HEADS,
         "give qkv"},
        {"mup.enable", c->optimizer.mup, "leave it out"}};

    if (!sh_family_of(c->model.family)->global_heads)
        return check_others(state);
    SH_TRY(check_sizes(state));
    SH_TRY(check_shared(state));
    for (size_t i = 0; i < sizeof bars / sizeof *bars; i++)
        if (bars[i].there)
            return sh_config_refuse(state, bars[i].key, "needs the same heads in all blocks, and %s has two kinds; %s",
                                    sh_family_of(c->model.family)->name, bars[i].instead);
    return SH_OK;
}
