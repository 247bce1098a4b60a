#include "io/foreign/hf/config/granite.h"

#include "io/foreign/hf/config/hybrid.h"
#include "io/json/json.h"
#include "src/config/family.h"
#include "src/config/layers.h"

#include <string.h>

#define TYPES "layer_types"
#define EXPAND "mamba_expand"
#define POSITIONS "position_embedding_type"
#define LIMIT "time_step_limit"

/* Words of the list as IBM's files have them, which transformers reads in all versions, and as its version 5.24 has them. */
static const char *const words[2][2] = {{"attention", "full_attention"}, {"mamba", "linear_attention"}};

static bool is_one_of(const json_t *value, const char *const pair[2])
{
    const char *word = json_string_value(value);

    return word && (strcmp(word, pair[0]) == 0 || strcmp(word, pair[1]) == 0);
}

/* Without a list all blocks have Mamba-2. */
static bool is_linear(const struct sh_hf_reader *r, long long i)
{
    const json_t *list = sh_hf_find(r->root, TYPES);

    return !list || is_one_of(json_array_get(list, (size_t)i), words[1]);
}

/* Whether attention has positions. */
static bool turns(const struct sh_hf_reader *r)
{
    const char *word = json_string_value(sh_hf_find(r->root, POSITIONS));

    return word && strcmp(word, "rope") == 0;
}

unsigned sh_hf_granite_kind(const struct sh_hf_reader *r, long long i)
{
    return is_linear(r, i) ? SH_LAYER_LINEAR : turns(r) ? 0 : SH_LAYER_NOPE;
}

static sh_rc check_blocks(const struct sh_hf_reader *r)
{
    static const char *const none[2] = {"nope", "none"};
    const json_t *list = sh_hf_find(r->root, TYPES), *positions = sh_hf_find(r->root, POSITIONS), *value;
    size_t i;

    if (list && (!json_is_array(list) || (long long)json_array_size(list) != sh_hf_whole(r, SH_HF_LAYERS)))
        return sh_fail(SH_E_USAGE, "%s: " TYPES " must have a word for each block", r->place);
    json_array_foreach(list, i, value)
    {
        if (!is_one_of(value, words[0]) && !is_one_of(value, words[1]))
            return sh_fail(SH_E_USAGE, "%s: " TYPES "[%zu] is not computed here; attention and mamba are", r->place, i);
    }
    if (positions && !turns(r) && !is_one_of(positions, none))
        return sh_fail(SH_E_USAGE, "%s: " POSITIONS " must be rope, nope or null", r->place);
    return SH_OK;
}

/* The class takes no other sizes of heads than those that fill a multiple of the stream. */
static sh_rc read_heads(struct sh_hf_reader *r)
{
    enum { MOST = 1 << 20 };
    const json_t *said = sh_hf_find(r->root, EXPAND);
    long long heads = sh_hf_whole(r, SH_HF_LINEAR_VALUES), dim = sh_hf_whole(r, SH_HF_DIM);
    long long expand = said ? json_integer_value(said) : 2, width = sh_hf_whole(r, SH_HF_LINEAR_VALUE_DIM);
    bool counted = heads >= 1 && heads <= MOST && dim >= 1 && dim <= MOST && expand >= 1 && expand <= MOST;

    if (counted && strcmp(r->value[SH_HF_LINEAR_VALUE_DIM], "auto") == 0)
        width = expand * dim / heads;
    if (!counted || width < 1 || width > MOST || heads * width != expand * dim)
        return sh_fail(SH_E_USAGE,
                       "%s: mamba_n_heads %lld x mamba_d_head %lld must be " EXPAND
                       " %lld x hidden_size %lld, and each "
                       "of these at most %d",
                       r->place, heads, width, expand, dim, MOST);
    snprintf(r->value[SH_HF_LINEAR_VALUE_DIM], sizeof r->value[0], "%lld", width);
    return SH_OK;
}

/* Steps are raised to the lower end; there is no upper one here. */
static sh_rc read_limit(struct sh_hf_reader *r)
{
    const json_t *limit = sh_hf_find(r->root, LIMIT), *least = json_array_get(limit, 0);

    if (limit &&
        (json_array_size(limit) != 2 || !json_is_number(least) || !sh_hf_is_infinite(json_array_get(limit, 1))))
        return sh_fail(SH_E_USAGE,
                       "%s: " LIMIT " must be a number and Infinity: there is no upper limit of a step here", r->place);
    if (limit && json_number_value(least) > 0)
        snprintf(r->value[SH_HF_LEAST_STEP], sizeof r->value[0], "%.17g", json_number_value(least));
    return SH_OK;
}

static bool any_is_linear(const struct sh_hf_reader *r)
{
    const json_t *list = sh_hf_find(r->root, TYPES);
    size_t i = 0;

    while (list && i < json_array_size(list) && !is_linear(r, (long long)i))
        i++;
    return !list || i < json_array_size(list);
}

sh_rc sh_hf_granite_read(struct sh_hf_reader *r)
{
    static const int none[] = {SH_HF_CHOSEN, SH_HF_EXPERT_FFN, SH_HF_SHARED_FFN};

    if (!r->f->granite)
        return SH_OK;
    SH_TRY(check_blocks(r));
    SH_TRY(read_heads(r));
    SH_TRY(read_limit(r));
    for (int v = SH_HF_LINEAR_KEYS; v <= SH_HF_LEAST_STEP && !any_is_linear(r); v++)
        strcpy(r->value[v], "0");
    if (sh_hf_whole(r, SH_HF_EXPERTS) != 0)
        return SH_OK;
    /* The shared expert is then the feed-forward part. */
    strcpy(r->value[SH_HF_FFN], r->value[SH_HF_SHARED_FFN]);
    strcpy(r->value[SH_HF_ROUTE_NORM], "false");
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        strcpy(r->value[none[i]], "0");
    return SH_OK;
}

bool sh_hf_granite_is_key(const struct sh_hf_family *f, const char *key)
{
    static const char *const keys[] = {TYPES, EXPAND, POSITIONS, LIMIT, "mamba_chunk_size"};

    for (size_t i = 0; i < sizeof keys / sizeof *keys && f->granite; i++)
        if (strcmp(keys[i], key) == 0)
            return true;
    return false;
}

/* Columns that Mamba-2 makes of a token. */
static long long columns_of(const struct sh_model *m)
{
    return (long long)m->linear_value_heads * m->linear_value_dim;
}

sh_rc sh_hf_granite_can_write(const struct sh_hf_family *f, const struct sh_model *m)
{
    if (!f->granite || columns_of(m) % m->dim == 0)
        return SH_OK;
    return sh_fail(SH_E_USAGE,
                   "model.linear_value_dim: transformers' %s has heads that together are a multiple of model.dim %d "
                   "wide, so the model is not exported",
                   f->type, m->dim);
}

const char *sh_hf_granite_key(const struct sh_model *m, int value)
{
    if (value >= SH_HF_LINEAR_KEYS && value <= SH_HF_LINEAR_CONV && m->linear_value_heads == 0)
        return NULL;
    return m->n_experts == 0 && (value == SH_HF_EXPERT_FFN || value == SH_HF_SHARED_FFN) ? "model.ffn_dim"
                                                                                         : sh_hf_family_key(value);
}

/* A model without sizes of Mamba-2 says the smallest that the class takes. */
void sh_hf_granite_print(const struct sh_hf_family *f, const struct sh_config *cfg, FILE *out)
{
    const struct sh_model *m = &cfg->model;

    if (!f->granite)
        return;
    for (int i = 0; i < m->n_layers; i++)
        fprintf(out, "%s\"%s\"", i ? ", " : ",\n  \"" TYPES "\": [", words[sh_family_has_delta(m, i)][0]);
    fprintf(out, "],\n  \"" POSITIONS "\": \"%s\"", sh_family_has_rope(m) ? "rope" : "nope");
    fprintf(out, ",\n  \"" EXPAND "\": %lld", m->linear_value_heads ? columns_of(m) / m->dim : 1);
    if (m->linear_value_heads == 0)
        fputs(",\n  \"mamba_n_heads\": 1", out);
    if (m->linear_least_step != 0)
        fprintf(out, ",\n  \"" LIMIT "\": [%.17g, {\"__float__\": \"Infinity\"}]", m->linear_least_step);
}
