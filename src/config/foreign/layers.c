/* The keys that said which blocks have a window and positions before there was model.layer_types. Checkpoints and
 * configurations of then have them. */
#include "src/config/foreign/alias.h"

#include "src/base/mem.h"
#include "src/config/family.h"
#include "src/config/layers.h"
#include "src/config/read/place.h"
#include "src/config/read/text.h"

#include <stdlib.h>
#include <string.h>

static const char main_key[] = "model.layer_types";

enum { FIRST, INTERVAL, NOPE, OLD_KEYS };

static const char *const old_keys[OLD_KEYS] = {"model.window_first_layer", "model.full_attention_interval",
                                               "model.no_rope_layer_interval"};

/* What the old keys say of a block. */
static unsigned char kind_of(const struct sh_model *m, const int value[OLD_KEYS], int block)
{
    bool full = block < value[FIRST] || (value[INTERVAL] && (block + 1) % value[INTERVAL] == 0);
    bool nope = value[NOPE] && (block + 1) % value[NOPE] == 0;

    return (m->attention_window && !full ? SH_LAYER_SLIDING : 0) | (nope ? SH_LAYER_NOPE : 0);
}

/* The values of the old keys, and whether one of them decides. A higher source wins; both in one are refused. */
static sh_rc old_values(struct sh_config_state *state, int value[OLD_KEYS], bool *decide)
{
    const int given[OLD_KEYS] = {state->alias.window_first_layer, state->alias.full_attention_interval,
                                 state->alias.no_rope_layer_interval};
    enum sh_config_source main = sh_config_place_of(state, main_key)->source;

    *decide = false;
    for (int i = 0; i < OLD_KEYS; i++) {
        enum sh_config_source from = sh_config_place_of(state, old_keys[i])->source;

        value[i] = from > main ? given[i] : 0;
        *decide = *decide || from > main;
        if (from != SH_SOURCE_DEFAULT && from == main)
            return sh_config_refuse(state, old_keys[i],
                                    "%s is given too and says the same of every block; give it alone", main_key);
    }
    if (main == SH_SOURCE_DEFAULT && sh_config_place_of(state, old_keys[NOPE])->source == SH_SOURCE_DEFAULT)
        value[NOPE] = sh_family_of(state->cfg.model.family)->no_rope_layer_interval;
    *decide = *decide || value[NOPE];
    return SH_OK;
}

/* Keys of what the model does not have. */
static sh_rc check_old(struct sh_config_state *state, const int value[OLD_KEYS])
{
    const struct sh_model *m = &state->cfg.model;
    const struct sh_family *f = sh_family_of(m->family);

    for (int i = FIRST; i <= (f->dense_too ? NOPE : INTERVAL) && f->delta; i++)
        if (value[i])
            return sh_config_refuse(state, old_keys[i],
                                    "model.layer_types says which blocks of %s have attention; give "
                                    "that, for instance %s",
                                    f->name, f->layer_types);
    for (int i = FIRST; i <= INTERVAL; i++)
        if (value[i] && !m->attention_window)
            return sh_config_refuse(state, old_keys[i], "needs model.attention_window");
    if (value[NOPE] && !f->no_rope_layer_interval)
        return sh_config_refuse(state, old_keys[NOPE], "%s has %s; leave it out", f->name,
                                f->single ? "no rotary positions" : "positions in all blocks");
    return SH_OK;
}

/* A family whose blocks have more than windows and positions says so itself. */
static void give_default(struct sh_config_state *state)
{
    struct sh_model *m = &state->cfg.model;
    const char *plain = sh_family_of(m->family)->layer_types;

    if (plain && !m->layer_types[0])
        snprintf(m->layer_types, sizeof m->layer_types, "%s", plain);
}

static sh_rc check_text(struct sh_config_state *state)
{
    const struct sh_model *m = &state->cfg.model;
    char bad[64], shown[SH_CONFIG_SHOWN];

    if (m->layer_types[0] == '\0' || sh_layers_check(m->layer_types, bad, sizeof bad))
        return SH_OK;
    return sh_config_refuse(
        state, main_key,
        "'%s' is none of full, sliding, full_nope, sliding_nope, linear, mlp and moe, nor a number of them such as "
        "3*sliding",
        sh_config_text_shown(bad, shown));
}

/* Blocks that are alike need no text, unless the family has another default. */
static bool is_plain(const struct sh_model *m, const unsigned char *kinds)
{
    unsigned plain = m->attention_window ? SH_LAYER_SLIDING : 0;

    for (int i = 0; i < m->n_layers; i++)
        if (kinds[i] != plain)
            return false;
    return sh_family_of(m->family)->no_rope_layer_interval == 0 && !sh_family_of(m->family)->layer_types;
}

static sh_rc print_kinds(struct sh_config_state *state, const int value[OLD_KEYS], bool decide, unsigned char *kinds)
{
    struct sh_model *m = &state->cfg.model;

    for (int i = 0; i < m->n_layers; i++)
        kinds[i] = decide ? kind_of(m, value, i) : (unsigned char)sh_layers_kind(m, i);
    for (int i = 0; i < m->n_layers && decide && !value[NOPE]; i++) /* keys of windows say nothing of positions */
        kinds[i] |= sh_layers_kind(m, i) & SH_LAYER_NOPE;
    memset(m->layer_types, 0, sizeof m->layer_types); /* equal texts are equal bytes */
    if (!is_plain(m, kinds) && !sh_layers_print(kinds, m->n_layers, m->layer_types, sizeof m->layer_types))
        return sh_config_refuse(state, main_key, "the runs of its %d blocks are longer than %zu bytes", m->n_layers,
                                sizeof m->layer_types - 1);
    return SH_OK;
}

sh_rc sh_config_alias_layers(struct sh_config_state *state)
{
    int value[OLD_KEYS];
    bool decide;
    unsigned char *kinds;
    sh_rc rc;

    give_default(state);
    SH_TRY(check_text(state));
    SH_TRY(old_values(state, value, &decide));
    SH_TRY(check_old(state, value));
    kinds = sh_calloc((size_t)state->cfg.model.n_layers, sizeof *kinds);
    rc = print_kinds(state, value, decide, kinds);
    free(kinds);
    return rc;
}
