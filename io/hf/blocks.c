#include "io/hf/blocks.h"

#include "io/hf/plain.h"
#include "io/json/json.h"
#include "src/base/log.h"

#include <stdlib.h>
#include <string.h>

#define NO_ROPE "no_rope_layers"
#define TYPES "layer_types"

/* ---- rotary positions ---- */

/* 1: the block has positions. */
static bool follows(const json_t *list, long long blocks, long long interval)
{
    for (long long i = 0; i < blocks; i++)
        if ((json_integer_value(json_array_get(list, (size_t)i)) != 0) != (interval == 0 || (i + 1) % interval != 0))
            return false;
    return true;
}

/* The first block without positions says the interval that the others must follow. */
static long long interval_of(const json_t *list, long long blocks)
{
    for (long long i = 0; i < blocks; i++)
        if (json_integer_value(json_array_get(list, (size_t)i)) == 0)
            return i + 1;
    return 0;
}

static bool are_switches(const json_t *list)
{
    size_t i;
    json_t *value;

    json_array_foreach(list, i, value)
        if (!json_is_integer(value) || json_integer_value(value) < 0 || json_integer_value(value) > 1)
            return false;
    return json_is_array(list);
}

sh_rc sh_hf_blocks_positions(struct sh_hf_reader *r)
{
    json_t *list = sh_hf_find(r->root, NO_ROPE);
    long long blocks = sh_hf_whole(r, SH_HF_LAYERS), interval;

    if (!r->f->key[SH_HF_NO_ROPE][0] || !list)
        return SH_OK;
    if (!are_switches(list) || (long long)json_array_size(list) < blocks)
        return sh_fail(SH_E_USAGE, "%s: " NO_ROPE " must have 0 or 1 for each of %lld blocks", r->place, blocks);
    if (follows(list, blocks, sh_hf_whole(r, SH_HF_NO_ROPE)))
        return SH_OK; /* beyond the last block, perhaps */
    interval = interval_of(list, blocks);
    if (!follows(list, blocks, interval))
        return sh_fail(SH_E_USAGE, "%s: " NO_ROPE ": blocks without positions have one distance here, as "
                       "no_rope_layer_interval says it", r->place);
    snprintf(r->value[SH_HF_NO_ROPE], sizeof r->value[0], "%lld", interval);
    return SH_OK;
}

/* ---- windows ---- */

static bool is_word(const json_t *value, const char *word)
{
    return json_is_string(value) && strcmp(json_string_value(value), word) == 0;
}

/* Types of blocks are two words; `*sliding`: whether one of them has a window. */
static sh_rc read_types(const struct sh_hf_reader *r, const json_t *list, bool *sliding)
{
    size_t i;
    json_t *value;

    *sliding = false;
    if (!json_is_array(list) || (long long)json_array_size(list) < sh_hf_whole(r, SH_HF_LAYERS))
        return sh_fail(SH_E_USAGE, "%s: " TYPES " must have a word for each block", r->place);
    json_array_foreach(list, i, value) {
        *sliding = *sliding || is_word(value, "sliding_attention");
        if (!is_word(value, "sliding_attention") && !is_word(value, "full_attention"))
            return sh_fail(SH_E_USAGE, "%s: " TYPES "[%zu] is not computed here; full_attention is", r->place, i);
    }
    return SH_OK;
}

/* Whether any block has the window. use_sliding_window is off where it is absent; without a list it is the blocks from
 * max_window_layers on. */
static sh_rc is_used(const struct sh_hf_reader *r, bool *used)
{
    json_t *list = sh_hf_find(r->root, TYPES), *first = sh_hf_find(r->root, "max_window_layers");
    bool on = json_is_true(sh_hf_find(r->root, "use_sliding_window")), sliding = false;

    *used = true;
    if (!r->f->layer_types)
        return SH_OK;
    if (list)
        SH_TRY(read_types(r, list, &sliding));
    if (sliding && !on)
        return sh_fail(SH_E_USAGE, "%s: " TYPES " has windows, and use_sliding_window is not true", r->place);
    if (on && !list && r->f->window[0])
        sliding = (first ? json_integer_value(first) : 28) < sh_hf_whole(r, SH_HF_LAYERS);
    else if (on && !list)
        sliding = true;
    *used = sliding;
    return SH_OK;
}

/* In tokens; 0: none. */
static sh_rc window_of(const struct sh_hf_reader *r, const json_t *said, long long *window)
{
    bool used;

    *window = 0;
    if (!r->f->window || json_is_null(said) || sh_hf_is_named("sliding_window", r->so_far->hf.ignore))
        return SH_OK;
    if (said && !json_is_integer(said))
        return sh_fail(SH_E_USAGE, "%s: sliding_window is %s, where a number is wanted", r->place, sh_json_is(said));
    SH_TRY(is_used(r, &used));
    if (used && said && json_integer_value(said) < 1)
        return sh_fail(SH_E_USAGE, "%s: sliding_window %lld leaves nothing to attend to", r->place,
                       (long long)json_integer_value(said));
    /* The class's default counts when the key is absent. */
    if (used)
        *window = said ? json_integer_value(said) : strtoll(r->f->window, NULL, 10);
    return SH_OK;
}

/* Where nobody has said how long sequences are, they are no longer than the window. */
static sh_rc shorten(const struct sh_hf_reader *r, long long window)
{
    enum { DEFAULT = 2048 }; /* of training.seq_len */
    char text[32];

    if (window >= DEFAULT || window >= sh_hf_whole(r, SH_HF_POSITIONS))
        return SH_OK;
    snprintf(text, sizeof text, "%lld", window);
    sh_log_info("%s: training.seq_len is %s, as long as the sliding window: beyond that attention is not computed here",
                r->place, text);
    return r->give(r->to, "training.seq_len", text);
}

/* Sequences of the window's length or less see no difference. */
sh_rc sh_hf_blocks_window(const struct sh_hf_reader *r)
{
    json_t *said = json_object_get(r->root, "sliding_window");
    long long seq = r->so_far->training.seq_len, window;

    SH_TRY(window_of(r, said, &window));
    if (window == 0 || (seq && window >= seq))
        return SH_OK;
    if (seq == 0)
        return shorten(r, window);
    return sh_fail(SH_E_USAGE, "%s: attention in a sliding window of %lld%s is not computed here, and training.seq_len %lld is "
                   "longer; give a training.seq_len of at most %lld", r->place, window, said ? "" : ", the class's default,",
                   seq, window);
}

/* ---- keys ---- */

/* The last three of classes whose blocks differ. */
static const char *const window_keys[] = {"sliding_window", "use_sliding_window", "max_window_layers", TYPES};
enum { WINDOW_KEYS = sizeof window_keys / sizeof *window_keys };

const char *sh_hf_blocks_window_key(int i)
{
    return i >= 0 && i < WINDOW_KEYS ? window_keys[i] : NULL;
}

bool sh_hf_blocks_is_key(const struct sh_hf_family *f, const char *key)
{
    for (int i = 0; f->window && i < (f->layer_types ? WINDOW_KEYS : 1); i++)
        if (strcmp(window_keys[i], key) == 0)
            return true;
    return f->key[SH_HF_NO_ROPE][0] && strcmp(key, NO_ROPE) == 0;
}
