#include "io/foreign/hf/config/blocks.h"

#include "io/foreign/hf/config/granite.h"
#include "io/foreign/hf/config/hybrid.h"
#include "io/foreign/hf/config/plain.h"
#include "io/json/json.h"
#include "src/base/mem.h"
#include "src/config/layers.h"

#include <stdlib.h>
#include <string.h>

#define NO_ROPE "no_rope_layers"
#define TYPES "layer_types"
#define PATTERN "sliding_window_pattern"
#define INTERVAL "full_attention_interval"

/* ---- rotary positions ---- */

static bool are_switches(const json_t *list)
{
    size_t i;
    json_t *value;

    json_array_foreach(list, i, value) if (!json_is_integer(value) || json_integer_value(value) < 0 ||
                                           json_integer_value(value) > 1) return false;
    return json_is_array(list);
}

static sh_rc check_positions(const struct sh_hf_reader *r)
{
    json_t *list = sh_hf_find(r->root, NO_ROPE);

    if (!r->f->key[SH_HF_NO_ROPE][0] || !list)
        return SH_OK;
    if (!are_switches(list) || (long long)json_array_size(list) < sh_hf_whole(r, SH_HF_LAYERS))
        return sh_fail(SH_E_USAGE, "%s: " NO_ROPE " must have 0 or 1 for each of %lld blocks", r->place,
                       sh_hf_whole(r, SH_HF_LAYERS));
    return SH_OK;
}

/* Whether block i has no positions. In the list, 1 means that it has them. */
static bool has_none(const struct sh_hf_reader *r, long long i)
{
    json_t *list = sh_hf_find(r->root, NO_ROPE);
    long long interval = sh_hf_whole(r, SH_HF_NO_ROPE);

    if (r->f->full_nope)
        return !json_is_null(json_object_get(r->root, "sliding_window")) && !sh_hf_blocks_slides(r, i);
    if (!r->f->key[SH_HF_NO_ROPE][0])
        return false;
    return list ? json_integer_value(json_array_get(list, (size_t)i)) == 0 : interval && (i + 1) % interval == 0;
}

/* ---- windows ---- */

static bool is_word(const json_t *value, const char *word)
{
    return json_is_string(value) && strcmp(json_string_value(value), word) == 0;
}

/* A block has one of two types. */
static sh_rc check_types(const struct sh_hf_reader *r, const json_t *list)
{
    size_t i;
    json_t *value;

    if (!json_is_array(list) || (long long)json_array_size(list) < sh_hf_whole(r, SH_HF_LAYERS))
        return sh_fail(SH_E_USAGE, "%s: " TYPES " must have a word for each block", r->place);
    json_array_foreach(list, i, value) if (
        !is_word(value, "sliding_attention") &&
        !is_word(value,
                 "full_attention")) return sh_fail(SH_E_USAGE,
                                                   "%s: " TYPES
                                                   "[%zu] is not computed here; full_attention and sliding_attention "
                                                   "are",
                                                   r->place, i);
    return SH_OK;
}

/* ---- blocks without attention ---- */

static long long interval_of(const struct sh_hf_reader *r)
{
    json_t *said = sh_hf_find(r->root, INTERVAL);

    return said ? json_integer_value(said) : strtoll(r->f->interval, NULL, 10);
}

static bool is_linear(const struct sh_hf_reader *r, long long i)
{
    json_t *list = sh_hf_find(r->root, TYPES);

    if (!r->f->interval)
        return false;
    return list ? is_word(json_array_get(list, (size_t)i), "linear_attention") : (i + 1) % interval_of(r) != 0;
}

static sh_rc check_linear(const struct sh_hf_reader *r)
{
    json_t *list = sh_hf_find(r->root, TYPES), *value;
    size_t i;

    if (!r->f->interval)
        return SH_OK;
    if (!list && interval_of(r) < 1)
        return sh_fail(SH_E_USAGE, "%s: " INTERVAL " must be a whole number from 1 on", r->place);
    if (list && (!json_is_array(list) || (long long)json_array_size(list) < sh_hf_whole(r, SH_HF_LAYERS)))
        return sh_fail(SH_E_USAGE, "%s: " TYPES " must have a word for each block", r->place);
    json_array_foreach(list, i, value)
    {
        if (!is_word(value, "linear_attention") && !is_word(value, "full_attention"))
            return sh_fail(SH_E_USAGE,
                           "%s: " TYPES "[%zu] is not computed here; full_attention and linear_attention are", r->place,
                           i);
    }
    return SH_OK;
}

/* Return sliding_window_pattern n, for classes that have it: every n-th block has no window. */
static long long pattern_of(const struct sh_hf_reader *r)
{
    json_t *said = r->f->lists_only ? NULL : sh_hf_find(r->root, PATTERN);

    return said ? json_integer_value(said) : strtoll(r->f->pattern, NULL, 10);
}

static sh_rc check_pattern(const struct sh_hf_reader *r)
{
    /* Exaone 4 has letters there, next to the list that they stand for. */
    bool unread = !r->f->pattern || (r->f->full_nope && sh_hf_find(r->root, TYPES));

    if (unread || pattern_of(r) >= 1)
        return SH_OK;
    return sh_fail(SH_E_USAGE, "%s: " PATTERN " must be a whole number from 1 on", r->place);
}

/* Whether block i has the window. The list decides. Without one, it depends on the class: all blocks except every n-th
 * by the pattern, or the blocks from max_window_layers on, or, in a class without either key, those
 * without positions. */
bool sh_hf_blocks_slides(const struct sh_hf_reader *r, long long i)
{
    json_t *list = sh_hf_find(r->root, TYPES), *first = sh_hf_find(r->root, "max_window_layers");

    if (!r->f->layer_types && !r->f->pattern)
        return true;
    if (r->f->global && i + 1 == sh_hf_whole(r, SH_HF_LAYERS)) /* whatever the list says */
        return false;
    if (list)
        return is_word(json_array_get(list, (size_t)i), "sliding_attention");
    if (r->f->pattern)
        return (i + 1) % pattern_of(r) != 0;
    if (r->f->window[0])
        return i >= (first ? json_integer_value(first) : 28);
    return has_none(r, i);
}

/* The number of blocks, up to the most that a model may have: with more, model.n_layers is refused. */
static long long blocks_of(const struct sh_hf_reader *r)
{
    enum { MOST = 10000 };
    long long blocks = sh_hf_whole(r, SH_HF_LAYERS);

    return blocks < MOST ? blocks : MOST;
}

static bool any_slides(const struct sh_hf_reader *r)
{
    for (long long i = 0; i < blocks_of(r); i++)
        if (sh_hf_blocks_slides(r, i))
            return true;
    return false;
}

/* Whether any block has the window. use_sliding_window is off if it is absent. */
static sh_rc is_used(const struct sh_hf_reader *r, bool *used)
{
    json_t *list = sh_hf_find(r->root, TYPES);
    bool on = json_is_true(sh_hf_find(r->root, "use_sliding_window")) || !r->f->layer_types;

    SH_TRY(check_pattern(r));
    if ((r->f->layer_types || r->f->pattern) && list)
        SH_TRY(check_types(r, list));
    *used = (on || list) && any_slides(r);
    if (*used && !on)
        return sh_fail(SH_E_USAGE, "%s: " TYPES " has windows, and use_sliding_window is not true", r->place);
    return SH_OK;
}

/* Read the window, in tokens; 0: none. */
static sh_rc window_of(const struct sh_hf_reader *r, const json_t *said, long long *window)
{
    bool used;

    *window = 0;
    if (r->f->window_set && json_is_null(said))
        return sh_fail(SH_E_USAGE, "%s: sliding_window is null, and transformers' %s computes nothing without a window",
                       r->place, r->f->type);
    if (!r->f->window || json_is_null(said) || sh_hf_is_named("sliding_window", r->so_far->hf.ignore))
        return SH_OK;
    if (said && !json_is_integer(said))
        return sh_fail(SH_E_USAGE, "%s: sliding_window is %s, but must be a whole number of 64 bits", r->place,
                       sh_json_is(said));
    SH_TRY(is_used(r, &used));
    if (used && said && json_integer_value(said) < 1)
        return sh_fail(SH_E_USAGE, "%s: sliding_window %lld leaves nothing to attend to", r->place,
                       (long long)json_integer_value(said));
    /* If the key is absent, the class's default applies. */
    if (used)
        *window = said ? json_integer_value(said) : strtoll(r->f->window, NULL, 10);
    return SH_OK;
}

/* If blocks with a window differ in more than the window, it cannot be left out. */
static sh_rc check_local(const struct sh_hf_reader *r)
{
    bool used = false;

    if (r->local_theta[0])
        SH_TRY(is_used(r, &used));
    if (!used)
        return r->give(r->to, "model.rope_local_base_freq", "0");
    return sh_fail(SH_E_USAGE,
                   "%s: sliding_window is null or left out, and " TYPES " has blocks with one, whose rotary positions "
                   "differ; that is not computed here",
                   r->place);
}

/* Give model.layer_types. Blocks that are alike need no text, unless the class has another default. */
static sh_rc give_kinds(const struct sh_hf_reader *r, bool window)
{
    char text[sizeof r->so_far->model.layer_types] = "";
    long long n = blocks_of(r);
    unsigned char *kinds = sh_calloc(n > 0 ? (size_t)n : 1, 1);
    bool fits;

    for (long long i = 0; i < n; i++)
        kinds[i] = r->f->hybrid    ? sh_hf_hybrid_kind(r, i)
                   : r->f->granite ? sh_hf_granite_kind(r, i)
                                   : (window && sh_hf_blocks_slides(r, i) ? SH_LAYER_SLIDING : 0) |
                                         (has_none(r, i) ? SH_LAYER_NOPE : 0) | (is_linear(r, i) ? SH_LAYER_LINEAR : 0);
    fits = sh_layers_print(kinds, (int)n, text, sizeof text);
    if (!strcmp(text, window ? "sliding" : "full") && !r->f->key[SH_HF_NO_ROPE][0] && !r->f->interval && !r->f->granite)
        text[0] = '\0';
    free(kinds);
    if (fits)
        return r->give(r->to, "model.layer_types", text);
    return sh_fail(SH_E_USAGE, "%s: " TYPES " changes from block to block more often than model.layer_types can say",
                   r->place);
}

sh_rc sh_hf_blocks_read(const struct sh_hf_reader *r)
{
    long long window;
    char text[32];

    SH_TRY(check_positions(r));
    SH_TRY(check_pattern(r));
    SH_TRY(check_linear(r));
    SH_TRY(window_of(r, json_object_get(r->root, "sliding_window"), &window));
    if (window == 0)
        SH_TRY(check_local(r));
    else
        SH_TRY(r->give(r->to, "model.rope_local_base_freq", r->local_theta[0] ? r->local_theta : "0"));
    snprintf(text, sizeof text, "%lld", window);
    if (window)
        SH_TRY(r->give(r->to, "model.attention_window", text));
    return give_kinds(r, window != 0);
}

/* ---- keys ---- */

/* The last three are for classes whose blocks differ. */
static const char *const window_keys[] = {"sliding_window", "use_sliding_window", "max_window_layers", TYPES};
enum { WINDOW_KEYS = sizeof window_keys / sizeof *window_keys };

const char *sh_hf_blocks_window_key(int i)
{
    return i >= 0 && i < WINDOW_KEYS ? window_keys[i] : NULL;
}

bool sh_hf_blocks_is_key(const struct sh_hf_family *f, const char *key)
{
    if (f->interval && (strcmp(key, TYPES) == 0 || strcmp(key, INTERVAL) == 0))
        return true;
    if (f->pattern && (strcmp(key, TYPES) == 0 || (!f->lists_only && strcmp(key, PATTERN) == 0)))
        return true;
    for (int i = 0; f->window && i < (f->layer_types ? WINDOW_KEYS : 1); i++)
        if (strcmp(window_keys[i], key) == 0)
            return true;
    return f->key[SH_HF_NO_ROPE][0] && strcmp(key, NO_ROPE) == 0;
}
