#include "io/foreign/hf/config/global.h"

#include "io/foreign/hf/config/blocks.h"
#include "io/json/json.h"
#include "src/config/family.h"

#include <limits.h>
#include <math.h>
#include <string.h>

#define HEAD_DIM "global_head_dim"
#define KV_HEADS "num_global_key_value_heads"
#define K_EQ_V "attention_k_eq_v"
#define EACH "per_layer_config"
#define PER_LAYER "hidden_size_per_layer_input"
#define WORDS "vocab_size_per_layer_input"
#define SHARED "num_kv_shared_layers"
#define DOUBLE "use_double_wide_mlp"

/* Defaults are those of Gemma4TextConfig of transformers 5.24. */
static const double CLASS_PART = 0.25;
enum { CLASS_HEAD_DIM = 512, CLASS_PER_LAYER = 256, CLASS_WORDS = 262144, MOST = 65536 };

static const char *const keys[] = {HEAD_DIM, KV_HEADS, K_EQ_V, EACH, PER_LAYER, WORDS, SHARED, DOUBLE};

/* A whole number from 0 to `most`; `absent` if there is none. */
static sh_rc number_within(const struct sh_hf_reader *r, const json_t *object, const char *key, long long absent,
                           long long most, long long *n)
{
    json_t *value = sh_hf_find(object, key);

    *n = value ? json_integer_value(value) : absent;
    if (value && (!json_is_integer(value) || *n < 0 || *n > most))
        return sh_fail(SH_E_USAGE, "%s: %s must be a whole number from 0 to %lld", r->place, key, most);
    return SH_OK;
}

static sh_rc number_of(const struct sh_hf_reader *r, const json_t *object, const char *key, long long absent,
                       long long *n)
{
    return number_within(r, object, key, absent, MOST, n);
}

static sh_rc give_number(const struct sh_hf_reader *r, const char *key, long long n)
{
    char text[32];

    snprintf(text, sizeof text, "%lld", n);
    return r->give(r->to, key, text);
}

/* What the small models have, E2B and E4B. A width without blocks that share counts for nothing in the class. */
static sh_rc read_parts(const struct sh_hf_reader *r)
{
    json_t *wide = sh_hf_find(r->root, DOUBLE);
    long long width, shared, words;

    SH_TRY(number_of(r, r->root, PER_LAYER, CLASS_PER_LAYER, &width));
    SH_TRY(number_of(r, r->root, SHARED, 0, &shared));
    SH_TRY(number_within(r, r->root, WORDS, CLASS_WORDS, INT_MAX, &words));
    if (width && words != sh_hf_whole(r, SH_HF_VOCAB))
        return sh_fail(SH_E_USAGE,
                       "%s: " WORDS " %lld%s: the table of inputs for each block has a row for each of the "
                       "%lld words here",
                       r->place, words, sh_hf_find(r->root, WORDS) ? "" : ", the class's default",
                       sh_hf_whole(r, SH_HF_VOCAB));
    if (wide && !json_is_boolean(wide))
        return sh_fail(SH_E_USAGE, "%s: " DOUBLE " is %s, not true or false", r->place, sh_json_is(wide));
    SH_TRY(give_number(r, "model.per_layer_dim", width));
    SH_TRY(give_number(r, "model.kv_shared_layers", shared));
    return r->give(r->to, "model.double_wide_ffn", shared && json_is_true(wide) ? "true" : "false");
}

struct heads {
    long long dim, kv;
};

/* One block's heads must be those that its kind has. */
static sh_rc check_block(const struct sh_hf_reader *r, const char *number, const json_t *block,
                         const struct heads *want)
{
    struct heads have;
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)block, key, value)
    {
        if (strcmp(key, "head_dim") != 0 && strcmp(key, "num_key_value_heads") != 0)
            return sh_fail(SH_E_USAGE, "%s: " EACH ".%s.%s is not known here", r->place, number, key);
    }
    SH_TRY(number_of(r, block, "head_dim", sh_hf_whole(r, SH_HF_HEAD_DIM), &have.dim));
    SH_TRY(number_of(r, block, "num_key_value_heads", sh_hf_whole(r, SH_HF_KV_HEADS), &have.kv));
    if (have.dim == want->dim && have.kv == want->kv)
        return SH_OK;
    return sh_fail(SH_E_USAGE,
                   "%s: " EACH ".%s: %lld heads of keys of %lld elements; blocks of its kind have %lld of %lld here",
                   r->place, number, have.kv, have.dim, want->kv, want->dim);
}

/* All blocks without a window have the same heads, and the others those at the top level. *full: the former. */
static sh_rc read_each(const struct sh_hf_reader *r, const json_t *each, struct heads *full)
{
    const struct heads others = {sh_hf_whole(r, SH_HF_HEAD_DIM), sh_hf_whole(r, SH_HF_KV_HEADS)};
    long long blocks = sh_hf_whole(r, SH_HF_LAYERS);
    bool first = true;
    char number[24];

    *full = others;
    if (!json_is_object(each))
        return sh_fail(SH_E_USAGE, "%s: " EACH " is %s, not an object", r->place, sh_json_is(each));
    for (long long i = 0; i < blocks && i < MOST; i++) {
        bool slides = sh_hf_blocks_slides(r, i);
        json_t *block;

        snprintf(number, sizeof number, "%lld", i);
        block = sh_hf_find(each, number);
        if (!slides && first) {
            SH_TRY(number_of(r, block, "head_dim", others.dim, &full->dim));
            SH_TRY(number_of(r, block, "num_key_value_heads", others.kv, &full->kv));
            first = false;
        }
        SH_TRY(check_block(r, number, block, slides ? &others : full));
    }
    return SH_OK;
}

sh_rc sh_hf_global_read(struct sh_hf_reader *r)
{
    json_t *each = sh_hf_find(r->root, EACH), *same = sh_hf_find(r->root, K_EQ_V);
    struct heads full;

    if (!r->f->global)
        return SH_OK;
    SH_TRY(read_parts(r));
    if (same && !json_is_boolean(same))
        return sh_fail(SH_E_USAGE, "%s: " K_EQ_V " is %s, not true or false", r->place, sh_json_is(same));
    SH_TRY(number_of(r, r->root, HEAD_DIM, CLASS_HEAD_DIM, &full.dim));
    SH_TRY(number_of(r, r->root, KV_HEADS, sh_hf_whole(r, SH_HF_KV_HEADS), &full.kv));
    if (!json_is_true(same)) /* the class does not look at it then */
        full.kv = sh_hf_whole(r, SH_HF_KV_HEADS);
    if (each)
        SH_TRY(read_each(r, each, &full));
    if (!json_is_true(same) && full.kv != sh_hf_whole(r, SH_HF_KV_HEADS))
        return sh_fail(SH_E_USAGE, "%s: " EACH " has other numbers of heads of keys, which needs " K_EQ_V " here",
                       r->place);
    r->global_dim = full.dim;
    SH_TRY(r->give(r->to, "model.keys_as_values", json_is_true(same) ? "true" : "false"));
    SH_TRY(give_number(r, "model.global_head_dim", full.dim == sh_hf_whole(r, SH_HF_HEAD_DIM) ? 0 : full.dim));
    return give_number(r, "model.global_kv_heads", full.kv == sh_hf_whole(r, SH_HF_KV_HEADS) ? 0 : full.kv);
}

/* As transformers counts: whole pairs. Rotary positions of the type default turn whole heads, whatever the part is. */
sh_rc sh_hf_global_turned(const struct sh_hf_reader *r, const json_t *rope, bool proportional)
{
    json_t *said = sh_hf_find(rope, "partial_rotary_factor");
    double part = said ? json_number_value(said) : rope ? 1 : CLASS_PART, head = (double)r->global_dim;
    long long pairs;

    if (said && !(json_is_number(said) && part > 0 && part <= 1 && (proportional || part == 1)))
        return sh_fail(SH_E_USAGE,
                       "%s: partial_rotary_factor must be a number above 0 and at most 1, and 1 without "
                       "rope_type proportional",
                       r->place);
    pairs = (long long)(part * head / 2);
    if (pairs < 1)
        return sh_fail(SH_E_USAGE, "%s: partial_rotary_factor %g leaves no pair of elements that turns", r->place,
                       part);
    return give_number(r, "model.rotary_dim", 2 * pairs >= r->global_dim ? 0 : 2 * pairs);
}

void sh_hf_global_print_rope(const struct sh_config *cfg, FILE *out)
{
    double head = sh_family_global_dim(&cfg->model), turned = cfg->model.rotary_dim, part = turned / head;

    if (turned == 0)
        part = 1;
    else if ((int)(part * head) < (int)turned)
        part = nextafter(part, 2);
    fprintf(out, "\"rope_type\": \"proportional\", \"partial_rotary_factor\": %.17g", part);
}

bool sh_hf_global_is_key(const struct sh_hf_family *f, const char *key)
{
    for (size_t i = 0; i < sizeof keys / sizeof *keys && f->global; i++)
        if (strcmp(keys[i], key) == 0)
            return true;
    return false;
}

void sh_hf_global_print(const struct sh_hf_family *f, const struct sh_config *cfg, FILE *out)
{
    const struct sh_model *m = &cfg->model;

    if (!f->global)
        return;
    fprintf(out, ",\n  \"" HEAD_DIM "\": %d", m->global_head_dim ? m->global_head_dim : m->head_dim);
    if (m->global_kv_heads)
        fprintf(out, ",\n  \"" KV_HEADS "\": %d", m->global_kv_heads);
    else
        fputs(",\n  \"" KV_HEADS "\": null", out);
    fprintf(out, ",\n  \"" K_EQ_V "\": %s", m->keys_as_values ? "true" : "false");
    fprintf(out, ",\n  \"" PER_LAYER "\": %d,\n  \"" SHARED "\": %d", m->per_layer_dim, m->kv_shared_layers);
    if (m->per_layer_dim)
        fprintf(out, ",\n  \"" WORDS "\": %d", m->vocab_size);
    if (m->double_wide_ffn)
        fputs(",\n  \"" DOUBLE "\": true", out);
}
