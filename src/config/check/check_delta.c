/* Blocks with the gated delta rule: their sizes, and what they cannot be cut into. A state goes from row to row, so a rank
 * has whole sequences, and all heads. */
#include "src/config/check/check.h"

#include "src/config/family.h"
#include "src/config/layers.h"
#include "src/config/read/place.h"

/* Whether a user gave it: a folder may have sizes of blocks that it has none of. */
static bool is_typed(struct sh_config_state *state, const char *key)
{
    enum sh_config_source source = sh_config_place_of(state, key)->source;

    return source == SH_SOURCE_FILE || source == SH_SOURCE_OPTION;
}

/* The keys that say how large they are. */
static sh_rc check_sizes(struct sh_config_state *state, bool family, bool has)
{
    const struct sh_model *m = &state->cfg.model;
    const struct {
        const char *key;
        int value;
    } rows[] = {{"model.linear_key_heads", m->linear_key_heads},
                {"model.linear_value_heads", m->linear_value_heads},
                {"model.linear_key_dim", m->linear_key_dim},
                {"model.linear_value_dim", m->linear_value_dim},
                {"model.linear_conv_size", m->linear_conv_size}};

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (has && rows[i].value == 0)
            return sh_config_refuse(state, rows[i].key, "blocks with the gated delta rule need it");
        if (rows[i].value != 0 && (!family || (!has && is_typed(state, rows[i].key))))
            return sh_config_refuse(state, rows[i].key, "no block of the model has the gated delta rule; leave it out");
    }
    if (has && m->linear_value_heads % m->linear_key_heads)
        return sh_config_refuse(state, "model.linear_value_heads", "%d is not a multiple of model.linear_key_heads %d",
                                m->linear_value_heads, m->linear_key_heads);
    return SH_OK;
}

sh_rc sh_config_check_delta(struct sh_config_state *state)
{
    const struct sh_config *c = &state->cfg;
    const struct sh_family *f = sh_family_of(c->model.family);
    bool has = sh_layers_any(&c->model, SH_LAYER_LINEAR);
    const struct {
        const char *key;
        int value;
    } cuts[] = {{"parallelism.context_parallel_degree", c->parallelism.context_parallel_degree},
                {"parallelism.tensor_parallel_degree", c->parallelism.tensor_parallel_degree},
                {"training.row_leaves", c->training.row_leaves}};

    if (has && !f->delta)
        return sh_config_refuse(state, "model.layer_types",
                                "%s has no blocks with the gated delta rule; leave out linear", f->name);
    SH_TRY(check_sizes(state, f->delta != NULL, has));
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts && has; i++)
        if (cuts[i].value > 1)
            return sh_config_refuse(
                state, cuts[i].key,
                "%d: the gated delta rule of %s needs whole sequences and all heads on a rank; give 1, "
                "and shard over all ranks",
                cuts[i].value, f->name);
    return SH_OK;
}
