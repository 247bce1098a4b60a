/* Rotary positions, and how they are stretched. */
#include "src/config/check/check.h"

#include "src/base/string/str.h"
#include "src/config/family.h"
#include "src/config/read/place.h"

/* Rotary positions turn part of a head or all of it. */
sh_rc sh_config_check_rotary(struct sh_config_state *state)
{
    const struct sh_model *m = &state->cfg.model;
    const struct sh_family *f = sh_family_of(m->family);

    if (!sh_family_has_rope(m) && (m->rotary_dim || m->rope_factor != 0))
        return sh_config_refuse(state, m->rotary_dim ? "model.rotary_dim" : "model.rope_factor",
                                "%s has no rotary positions%s; leave it out", f->name,
                                f->scan && !f->single ? " unless model.layer_types has full in place of full_nope"
                                                      : "");
    if (m->rotary_dim % 2 != 0)
        return sh_config_refuse(state, "model.rotary_dim", "%d is odd; rotary positions turn pairs of elements",
                                m->rotary_dim);
    if (m->rotary_dim > sh_family_global_dim(m))
        return sh_config_refuse(state, "model.rotary_dim", "%d is more than model.%s %d", m->rotary_dim,
                                m->global_head_dim ? "global_head_dim" : "head_dim", sh_family_global_dim(m));
    return SH_OK;
}

/* A list of longrope has one positive number for each pair of elements that turns. */
static sh_rc check_list(struct sh_config_state *state, const char *key, const char *text)
{
    const struct sh_model *m = &state->cfg.model;
    int wanted = (m->rotary_dim ? m->rotary_dim : m->head_dim) / 2, n = sh_str_numbers(text, NULL, 0);
    if (n < 0)
        return sh_config_refuse(state, key, "must be numbers above 0, separated by commas");
    if (n != wanted)
        return sh_config_refuse(state, key, "has %d numbers, but %d pairs of elements turn", n, wanted);
    return SH_OK;
}

static sh_rc check_longrope(struct sh_config_state *state)
{
    enum { MOST = 128 }; /* SH_ROPE_DIVISORS of kernels/op.h */
    const struct sh_model *m = &state->cfg.model;
    SH_TRY(check_list(state, "model.rope_short_factor", m->rope_short_factor));
    SH_TRY(check_list(state, "model.rope_long_factor", m->rope_long_factor));
    if ((m->rotary_dim ? m->rotary_dim : m->head_dim) / 2 > MOST)
        return sh_config_refuse(state, "model.rope_type", "longrope turns at most %d pairs of elements", MOST);
    if (m->rope_original_max_len < 2)
        return sh_config_refuse(state, "model.rope_original_max_len", "%d: longrope needs at least 2",
                                m->rope_original_max_len);
    return SH_OK;
}

/* Ranges: a formula divides by these values or takes their logarithms. */
sh_rc sh_config_check_rope(struct sh_config_state *state)
{
    const struct sh_config *c = &state->cfg;
    /* 0 is off, and learned positions have no rotation to scale. */
    if (c->model.rope_factor == 0 || sh_family_of(c->model.family)->learned_positions)
        return SH_OK;
    if (c->model.rope_factor < 1)
        return sh_config_refuse(state, "model.rope_factor", "%g would shorten the context; give 0 or at least 1",
                                c->model.rope_factor);
    if (c->model.rope_original_max_len == 0 && c->model.rope_type != SH_ROPE_LINEAR)
        return sh_config_refuse(state, "model.rope_original_max_len", "needed with model.rope_factor");
    if (c->model.rope_type == SH_ROPE_LLAMA3 && c->model.rope_high_freq_factor <= c->model.rope_low_freq_factor)
        return sh_config_refuse(state, "model.rope_high_freq_factor", "%g must be above model.rope_low_freq_factor %g",
                                c->model.rope_high_freq_factor, c->model.rope_low_freq_factor);
    if (c->model.rope_type == SH_ROPE_YARN && c->model.rope_beta_fast <= c->model.rope_beta_slow)
        return sh_config_refuse(state, "model.rope_beta_fast", "%g must be above model.rope_beta_slow %g",
                                c->model.rope_beta_fast, c->model.rope_beta_slow);
    if (c->model.rope_type == SH_ROPE_YARN && c->model.rope_theta <= 1)
        return sh_config_refuse(state, "model.rope_theta", "%g: all frequencies are one, which yarn cannot tell apart",
                                c->model.rope_theta);
    return c->model.rope_type == SH_ROPE_LONG ? check_longrope(state) : SH_OK;
}
