/* Blocks with a state, by the gated delta rule or as in Mamba-2: their sizes, and what they cannot be cut into. A state goes from row to row, so a rank
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

static const char *name_of(const struct sh_family *f)
{
    return f->scan ? "Mamba-2's state space" : "the gated delta rule";
}

/* The keys that say how large they are. */
static sh_rc check_sizes(struct sh_config_state *state, const struct sh_family *f, bool has)
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
            return sh_config_refuse(state, rows[i].key, "blocks with %s need it", name_of(f));
        if (rows[i].value != 0 && (!f->delta || (!has && is_typed(state, rows[i].key))))
            return sh_config_refuse(state, rows[i].key, "no block of the model has %s; leave it out", name_of(f));
    }
    if (has && m->linear_value_heads % m->linear_key_heads)
        return sh_config_refuse(state, "model.linear_value_heads", "%d is not a multiple of model.linear_key_heads %d",
                                m->linear_value_heads, m->linear_key_heads);
    if (has && f->scan && m->linear_value_heads % 2)
        return sh_config_refuse(state, "model.linear_value_heads", "%d is odd; %s takes an even number here",
                                m->linear_value_heads, f->name);
    if (m->linear_least_step != 0 && !f->scan)
        return sh_config_refuse(state, "model.linear_least_step",
                                "only nemotron_h and granitemoehybrid have a least step; leave it out");
    return SH_OK;
}

/* Families whose blocks have one branch, and what only these have. */
static sh_rc check_single(struct sh_config_state *state, const struct sh_family *f)
{
    static const char *const key = "model.layer_types";
    const struct sh_model *m = &state->cfg.model;

    if (!f->single && sh_layers_any(m, SH_LAYER_MLP | SH_LAYER_MOE))
        return sh_config_refuse(state, key, "%s has no blocks with a feed-forward part alone; leave out %s", f->name,
                                sh_layers_any(m, SH_LAYER_MLP) ? "mlp" : "moe");
    if (!f->single)
        return SH_OK;
    if (!sh_layers_any(m, SH_LAYER_LINEAR))
        return sh_config_refuse(state, key, "%s has blocks with %s; give some as linear", f->name, name_of(f));
    for (int i = 0; i < m->n_layers; i++)
        if (sh_layers_kind(m, i) == 0 || sh_layers_kind(m, i) & SH_LAYER_SLIDING)
            return sh_config_refuse(state, key,
                                    "attention of %s has neither positions nor a window; of full and sliding blocks "
                                    "it has full_nope alone",
                                    f->name);
    if (m->tie_word_embeddings)
        return sh_config_refuse(state, "model.tie_word_embeddings", "the output matrix of %s is its own; leave it out",
                                f->name);
    return SH_OK;
}

/* Attention of blocks beside Mamba-2 that have a feed-forward part too. */
static sh_rc check_positions(struct sh_config_state *state, const struct sh_family *f)
{
    const struct sh_model *m = &state->cfg.model;
    bool turned = sh_family_has_rope(m);

    for (int i = 0; i < m->n_layers && f->scan && !f->single; i++) {
        unsigned kind = sh_layers_kind(m, i);

        if (kind & SH_LAYER_SLIDING || (turned && kind & SH_LAYER_NOPE))
            return sh_config_refuse(state, "model.layer_types",
                                    "attention of %s has no window, and positions in all blocks or in none; beside "
                                    "linear give full or full_nope, one of the two",
                                    f->name);
    }
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
    SH_TRY(check_single(state, f));
    SH_TRY(check_positions(state, f));
    SH_TRY(check_sizes(state, f, has));
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts && has; i++)
        if (cuts[i].value > 1)
            return sh_config_refuse(state, cuts[i].key,
                                    "%d: %s of %s needs whole sequences and all heads on a rank; give 1, "
                                    "and shard over all ranks",
                                    cuts[i].value, name_of(f), f->name);
    return SH_OK;
}
