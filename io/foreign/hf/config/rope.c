/* Rotary positions in a config.json. There are three generations of files, and all are read:
 *
 *     {"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 2}}
 *     {"rope_theta": 1e4, "rope_scaling": {"rope_type": "linear", "factor": 2}}
 *     {"rope_parameters": {"rope_theta": 1e4, "rope_type": "linear", "factor": 2}} */
#include "io/foreign/hf/config/rope.h"

#include "io/foreign/hf/config/global.h"
#include "io/foreign/hf/config/plain.h"
#include "io/json/json.h"
#include "src/base/mem.h"
#include "src/base/string/str.h"
#include "src/config/family.h"
#include "src/config/read/text.h"
#include "src/config/words.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LLAMA3 = 1 << SH_ROPE_LLAMA3, LINEAR = 1 << SH_ROPE_LINEAR, YARN = 1 << SH_ROPE_YARN, LONG = 1 << SH_ROPE_LONG };

/* Types in transformers. A type without a bit leaves frequencies unchanged: `dynamic` only affects positions beyond
 * max_position_embeddings, and no training sequence is longer. */
static const struct type {
    const char *name;
    unsigned bit;
    const char *refused;
} types[] = {
    {"default", 0, NULL},
    {"dynamic", 0, NULL},
    {"llama3", LLAMA3, NULL},
    {"linear", LINEAR, NULL},
    {"yarn", YARN, NULL},
    {"longrope", LONG, NULL},
    {"proportional", 0, "it turns a part of the head by the frequencies of the whole"}, /* last; global.h reads it */
};
enum { TYPES = sizeof types / sizeof *types };

/* The numbers of a type and their keys here. `off`: the value if the type has no such number; `absent`: the value if
 * the type has it and the file does not; NULL: it must be in the file. */
static const struct number {
    const char *key, *ours, *off, *absent;
    unsigned types;
    bool real;
} numbers[] = {
    {"factor", "model.rope_factor", "0", NULL, LLAMA3 | LINEAR | YARN | LONG, true},
    {"low_freq_factor", "model.rope_low_freq_factor", "1", NULL, LLAMA3, true},
    {"high_freq_factor", "model.rope_high_freq_factor", "4", NULL, LLAMA3, true},
    {"original_max_position_embeddings", "model.rope_original_max_len", "0", "", LLAMA3 | YARN | LONG, false},
    {"beta_fast", "model.rope_beta_fast", "32", "32", YARN, true},
    {"beta_slow", "model.rope_beta_slow", "1", "1", YARN, true},
    {"attention_factor", "model.rope_attention_factor", "0", "0", YARN | LONG, true},
    {"truncate", "model.rope_truncate", "true", "true", YARN, false},
};
enum { NUMBERS = sizeof numbers / sizeof *numbers };

/* The lists of longrope. */
static const struct list {
    const char *key, *ours;
} lists[] = {{"short_factor", "model.rope_short_factor"}, {"long_factor", "model.rope_long_factor"}};
enum { LISTS = sizeof lists / sizeof *lists };
#define LENGTH "original_max_position_embeddings"
#define BETA "llama_4_scaling_beta"
#define PARTIAL "partial_rotary_factor"
#define LOCAL_THETA "rope_local_base_freq"
/* The kinds of blocks in rope_parameters. */
#define FULL "full_attention"
#define LOCAL "sliding_attention"

/* ---- reading ---- */

struct rope {
    const char *where; /* rope_parameters, an object in it, or rope_scaling */
    json_t *object;
    json_t *newer, *older; /* the two spellings, if present */
    json_t *local;         /* for blocks with a window, in the newer spelling */
    const struct type *type;
};

static const char *type_name(const json_t *object)
{
    /* Older files have "type" for rope_type. */
    json_t *said = sh_hf_find(object, "rope_type") ? sh_hf_find(object, "rope_type") : sh_hf_find(object, "type");

    return said ? json_string_value(said) : "default";
}

/* The names that phi3 used before transformers had the type longrope. */
static bool is_alias(const char *name)
{
    return strcmp(name, "su") == 0 || strcmp(name, "yarn") == 0;
}

/* A family may have fewer types than transformers: a type that its class does not compute is refused here, where the
 * name is known. */
static sh_rc read_type(const struct sh_hf_reader *r, struct rope *rope)
{
    const char *name = type_name(rope->object);
    char shown[SH_CONFIG_SHOWN];

    if (!name)
        return sh_fail(SH_E_USAGE, "%s: %s.rope_type is not a string", r->place, rope->where);
    for (int i = 0; i < TYPES; i++)
        if (strcmp(types[i].name, r->f->length && is_alias(name) ? "longrope" : name) == 0)
            rope->type = &types[i];
    if (!rope->type)
        return sh_fail(SH_E_USAGE,
                       "%s: %s.rope_type %s is not known here; default, dynamic, linear, llama3, yarn and longrope are",
                       r->place, rope->where, sh_config_text_shown(name, shown));
    if (r->f->global && !rope->object) /* the class's default */
        rope->type = &types[TYPES - 1];
    if (r->f->global && rope->type != &types[0] && rope->type != &types[TYPES - 1])
        return sh_fail(SH_E_USAGE, "%s: %s.rope_type %s: for %s there are default and proportional", r->place,
                       rope->where, name, r->f->type);
    if (rope->type->refused && !r->f->global)
        return sh_fail(SH_E_USAGE, "%s: %s.rope_type %s is not computed here: %s", r->place, rope->where, name,
                       rope->type->refused);
    if (r->f->length && rope->type->bit != LONG && rope->type != &types[0])
        return sh_fail(SH_E_USAGE, "%s: %s.rope_type %s: for %s there are default and longrope", r->place, rope->where,
                       name, r->f->type);
    if (r->f->latent && rope->type->bit != YARN && rope->type != &types[0])
        return sh_fail(SH_E_USAGE, "%s: %s.rope_type %s: for %s default and yarn are computed here", r->place,
                       rope->where, name, r->f->type);
    if (r->f->local_theta && rope->type->bit == LONG)
        return sh_fail(SH_E_USAGE, "%s: %s.rope_type %s is not computed here for %s", r->place, rope->where, name,
                       r->f->type);
    return SH_OK;
}

/* Set the number of rotated elements of a head. The part is in the object or, in older files, at the top level.
 * rope_dim() in transformers truncates the product. */
static sh_rc give_rotary_dim(struct sh_hf_reader *r, const struct rope *rope)
{
    json_t *said = sh_hf_find(rope->object, PARTIAL) ? sh_hf_find(rope->object, PARTIAL)
                                                     : sh_hf_find(r->root, r->f->partial);
    double head = (double)sh_hf_whole(r, SH_HF_HEAD_DIM), part = said ? json_number_value(said) : r->f->part;
    char text[64];

    if (r->f->global)
        return sh_hf_global_turned(r, rope->object, rope->type == &types[TYPES - 1]);
    if (said && !r->f->partial && !(json_is_number(said) && part == 1))
        return sh_fail(SH_E_USAGE, "%s: " PARTIAL " is not computed here for %s", r->place, r->f->type);
    if ((said && !json_is_number(said)) || part < 0 || part > 1)
        return sh_fail(SH_E_USAGE, "%s: " PARTIAL " must be a number from 0 to 1", r->place);
    if (r->f->latent) /* which counts them */
        return r->give(r->to, "model.rotary_dim", r->value[SH_HF_TURNED_DIM]);
    if (part == 0) /* no key, and the class has no default */
        part = 1;
    snprintf(text, sizeof text, "%d", part == 1 || head > 65536 ? 0 : (int)(head * part));
    if (part < 1 && (int)(head * part) < 2)
        return sh_fail(SH_E_USAGE, "%s: " PARTIAL " %g leaves no pair of elements that turns", r->place, part);
    return r->give(r->to, "model.rotary_dim", text);
}

/* `dynamic` may have numbers, such as factor, which change nothing at training lengths. */
static bool is_number_of(const struct type *type, const char *key)
{
    unsigned bits = strcmp(type->name, "dynamic") == 0 ? LLAMA3 | LINEAR : type->bit;

    for (int i = 0; i < NUMBERS; i++)
        if (strcmp(numbers[i].key, key) == 0)
            return (numbers[i].types & bits) != 0;
    for (int i = 0; i < LISTS; i++)
        if (strcmp(lists[i].key, key) == 0)
            return bits == LONG;
    return (bits & YARN) && (strcmp(key, "mscale") == 0 || strcmp(key, "mscale_all_dim") == 0);
}

/* How a factor on queries grows, of which only the part is computed where it is 1; src/model/size.c refuses the rest. */
static sh_rc check_beta(const struct sh_hf_reader *r, const struct rope *rope)
{
    json_t *beta = sh_hf_find(rope->object, BETA);

    if (!r->f->beta)
        return SH_OK;
    if (rope->type->bit != YARN || !sh_hf_find(rope->object, LENGTH))
        return sh_fail(SH_E_USAGE, "%s: %s: for %s there is yarn, with " LENGTH, r->place, rope->where, r->f->type);
    if (!json_is_number(beta) || json_number_value(beta) != strtod(r->f->beta, NULL))
        return sh_fail(SH_E_USAGE, "%s: %s." BETA " must be %s", r->place, rope->where, r->f->beta);
    return SH_OK;
}

/* Keys with a neutral value (0, 1, empty, false) cannot change anything, so they pass. */
static sh_rc check_keys(const struct sh_hf_reader *r, const struct rope *rope)
{
    char shown[SH_CONFIG_SHOWN];
    const char *key;
    json_t *value;

    json_object_foreach(rope->object, key, value)
    {
        bool known = strcmp(key, "rope_type") == 0 || strcmp(key, "type") == 0 || strcmp(key, "rope_theta") == 0 ||
                     strcmp(key, PARTIAL) == 0;
        /* The three positions of a word are equal without images, so it does not matter which turns what. */
        known |= r->f->images && (strcmp(key, "mrope_section") == 0 || strcmp(key, "mrope_interleaved") == 0);
        known |= r->f->beta && (strcmp(key, BETA) == 0 || strcmp(key, "max_position_embeddings") == 0);
        if (!known && !is_number_of(rope->type, key) && !sh_hf_plain_value(value))
            return sh_fail(SH_E_USAGE, "%s: %s.%s is not computed here", r->place, rope->where,
                           sh_config_text_shown(key, shown));
    }
    return SH_OK;
}

/* YaRN's temperature for models that express it by two other numbers (DeepSeek's): the quotient of the two. */
static void read_scale(const struct rope *rope, char out[64])
{
    double a = json_number_value(sh_hf_find(rope->object, "mscale"));
    double b = json_number_value(sh_hf_find(rope->object, "mscale_all_dim"));
    double length = log(fmax(json_number_value(sh_hf_find(rope->object, "factor")), 1));

    if (a != 0 && b != 0)
        snprintf(out, 64, "%.17g", (0.1 * a * length + 1) / (0.1 * b * length + 1));
}

/* A class may have the length as an attribute at the top level; then that takes precedence. */
static json_t *find_number(const struct sh_hf_reader *r, const struct rope *rope, const struct number *n)
{
    json_t *front = strcmp(n->key, LENGTH) == 0 ? sh_hf_find(r->root, n->key) : NULL;

    return front ? front : sh_hf_find(rope->object, n->key);
}

/* Return the original length from the file, or the value that its absence means. */
static double original_length(const struct sh_hf_reader *r, const struct rope *rope)
{
    json_t *front = sh_hf_find(r->root, LENGTH), *inside = sh_hf_find(rope->object, LENGTH);

    if (front || (inside && !r->f->length))
        return json_number_value(front ? front : inside);
    return r->f->length ? strtod(r->f->length, NULL) : (double)sh_hf_whole(r, SH_HF_POSITIONS);
}

/* Compute a missing factor: the model's positions divided by those it was first trained with, but at least 1. */
static sh_rc longer_by(const struct sh_hf_reader *r, const struct rope *rope, char out[64])
{
    double first = original_length(r, rope), factor = first > 0 ? (double)sh_hf_whole(r, SH_HF_POSITIONS) / first : 1;

    snprintf(out, 64, "%.17g", factor < 1 ? 1 : factor);
    return SH_OK;
}

/* For some numbers transformers treats 0 as absent; for the others 0 is refused. */
static sh_rc read_number(const struct sh_hf_reader *r, const struct rope *rope, const struct number *n, char out[64])
{
    json_t *value = find_number(r, rope, n);
    bool zero = json_is_number(value) && json_number_value(value) == 0;

    if (zero && n->absent && strncmp(n->key, "beta", 4) == 0) /* transformers treats it as absent */
        value = NULL;
    else if (zero) /* 0 would mean none here */
        return sh_fail(SH_E_USAGE, "%s: %s.%s is 0", r->place, rope->where, n->key);
    if (strcmp(n->key, LENGTH) == 0 && r->f->length && !sh_hf_find(r->root, LENGTH)) {
        snprintf(out, 64, "%s", r->f->length);
        return SH_OK;
    }
    if (value)
        return sh_hf_text_of(r, n->key, value, out);
    if (rope->type->bit == LONG && strcmp(n->key, "factor") == 0)
        return longer_by(r, rope, out);
    if (!n->absent)
        return sh_fail(SH_E_USAGE, "%s: %s has no %s", r->place, rope->where, n->key);
    snprintf(out, 64, "%s", n->absent[0] ? n->absent : r->value[SH_HF_POSITIONS]);
    if (strcmp(n->key, "attention_factor") == 0)
        read_scale(rope, out);
    return SH_OK;
}

/* A value that is not a number is printed as one that the check of the list refuses. */
static void print_number(FILE *out, const char *comma, const json_t *value)
{
    if (json_is_number(value))
        fprintf(out, "%s%.17g", comma, json_number_value(value));
    else
        fprintf(out, "%s?", comma);
}

/* Set a list as text with commas. Its values are checked where all keys are: config/check.c. */
static sh_rc give_list(struct sh_hf_reader *r, const struct rope *rope, const struct list *list)
{
    json_t *values = sh_hf_find(rope->object, list->key), *value;
    bool wanted = rope->type->bit == LONG;
    char *text = NULL;
    size_t bytes, i;
    sh_rc rc;

    if (wanted && !json_is_array(values))
        return sh_fail(SH_E_USAGE, "%s: %s.%s: longrope wants a list of numbers", r->place, rope->where, list->key);
    FILE *out = sh_memstream(&text, &bytes);
    if (wanted)
        json_array_foreach(values, i, value) print_number(out, i ? "," : "", value);
    fclose(out);
    rc = r->give(r->to, list->ours, text);
    free(text);
    return rc;
}

/* Other classes use it in the quotient alone. */
static sh_rc give_sharper(struct sh_hf_reader *r, const struct rope *rope)
{
    json_t *value = r->f->latent && rope->type->bit == YARN ? sh_hf_find(rope->object, "mscale_all_dim") : NULL;
    char text[64] = "0";

    if (value)
        SH_TRY(sh_hf_text_of(r, "mscale_all_dim", value, text));
    return r->give(r->to, "model.rope_mscale_all_dim", text);
}

static sh_rc give_numbers(struct sh_hf_reader *r, const struct rope *rope)
{
    char text[64];

    SH_TRY(give_sharper(r, rope));

    for (int i = 0; i < NUMBERS; i++) {
        snprintf(text, sizeof text, "%s", numbers[i].off);
        if (numbers[i].types & rope->type->bit)
            SH_TRY(read_number(r, rope, &numbers[i], text));
        SH_TRY(r->give(r->to, numbers[i].ours, text));
    }
    for (int i = 0; i < LISTS; i++)
        SH_TRY(give_list(r, rope, &lists[i]));
    return r->give(r->to, "model.rope_type", rope->type->bit ? rope->type->name : "llama3");
}

/* Whether an object has all values of another one. */
static bool says(const json_t *object, json_t *other)
{
    const char *key;
    json_t *value;

    json_object_foreach(other, key, value)
    {
        json_t *here = sh_hf_find(object, key);
        bool number = json_is_number(value) && json_is_number(here);
        bool equal = number ? json_number_value(value) == json_number_value(here) : json_equal(value, here);
        /* The type has two names, and in the older spelling theta is at the top level. */
        if (strcmp(key, "type") != 0 && strcmp(key, "rope_type") != 0 && strcmp(key, "rope_theta") != 0 &&
            strcmp(key, PARTIAL) != 0 && !equal)
            return false;
    }
    return true;
}

/* If both spellings are there, some versions of transformers use the older one, some the newer one. */
static sh_rc check_both(const struct sh_hf_reader *r, const struct rope *rope)
{
    json_t *newer = rope->newer, *older = rope->older;
    const char *a = type_name(newer), *b = type_name(older);

    if (!json_is_object(newer) || !json_is_object(older) || json_object_size(older) == 0)
        return SH_OK;
    if (a && b && strcmp(a, b) == 0 && says(newer, older) && says(older, newer))
        return SH_OK;
    return sh_fail(SH_E_USAGE,
                   "%s: rope_parameters and rope_scaling differ, and which one counts depends on the version of "
                   "transformers; take one out",
                   r->place);
}

static sh_rc check_object(const struct sh_hf_reader *r, const char *where, const json_t *value)
{
    if (!value || json_is_object(value))
        return SH_OK;
    return sh_fail(SH_E_USAGE, "%s: %s is %s, not an object", r->place, where, sh_json_is(value));
}

/* In classes whose blocks with a window have their own frequencies, there is an object for each kind of block. */
static sh_rc split_newer(const struct sh_hf_reader *r, struct rope *rope)
{
    char shown[SH_CONFIG_SHOWN];
    const char *key;
    json_t *value;

    json_object_foreach(rope->newer, key, value)
    {
        if (strcmp(key, FULL) != 0 && strcmp(key, LOCAL) != 0)
            return sh_fail(SH_E_USAGE, "%s: rope_parameters.%s: for %s there are " FULL " and " LOCAL " in it",
                           r->place, sh_config_text_shown(key, shown), r->f->type);
    }
    rope->local = sh_hf_find(rope->newer, LOCAL);
    rope->newer = sh_hf_find(rope->newer, FULL);
    SH_TRY(check_object(r, "rope_parameters." LOCAL, rope->local));
    return check_object(r, "rope_parameters." FULL, rope->newer);
}

/* Find the object that applies to the blocks without a window. */
static sh_rc find_object(const struct sh_hf_reader *r, struct rope *rope)
{
    rope->newer = sh_hf_find(r->root, "rope_parameters");
    rope->older = sh_hf_find(r->root, "rope_scaling");
    SH_TRY(check_object(r, "rope_parameters", rope->newer));
    if (r->f->local_theta)
        SH_TRY(split_newer(r, rope));
    if (!rope->newer)
        SH_TRY(check_object(r, "rope_scaling", rope->older));
    rope->object = rope->newer ? rope->newer : rope->older;
    rope->where = !rope->newer ? "rope_scaling" : r->f->local_theta ? "rope_parameters." FULL : "rope_parameters";
    return check_both(r, rope);
}

/* Read the base of blocks with a window, the only rotary number that may differ for them. */
static sh_rc read_local(struct sh_hf_reader *r, const struct rope *rope)
{
    struct rope local = {.where = "rope_parameters." LOCAL, .object = rope->local, .type = &types[0]};
    json_t *theta = sh_hf_find(rope->local, "rope_theta");
    const char *type = type_name(rope->local);

    r->local_theta[0] = '\0';
    if (!r->f->local_theta)
        return SH_OK;
    if (!type || strcmp(type, "default") != 0)
        return sh_fail(SH_E_USAGE,
                       "%s: %s.rope_type must be default: frequencies of blocks with a window are not scaled here",
                       r->place, local.where);
    SH_TRY(check_keys(r, &local));
    theta = theta || r->f->lists_only ? theta : sh_hf_find(r->root, LOCAL_THETA);
    if (theta)
        return sh_hf_text_of(r, LOCAL_THETA, theta, r->local_theta);
    snprintf(r->local_theta, sizeof r->local_theta, "%s", r->f->local_theta);
    return SH_OK;
}

sh_rc sh_hf_rope_read(struct sh_hf_reader *r)
{
    struct rope rope = {0};
    json_t *theta;

    if (!r->f->absent[SH_HF_THETA])
        return SH_OK;
    SH_TRY(find_object(r, &rope));
    if (r->f->rope_given && !rope.object)
        return sh_fail(SH_E_USAGE,
                       "%s: it has neither rope_parameters nor rope_scaling; for %s these are not plain by default, so "
                       "say them",
                       r->place, r->f->type);
    SH_TRY(read_local(r, &rope));
    /* The theta among the rotary parameters is the newer spelling, and wins over the one at the top level. */
    if ((theta = sh_hf_find(rope.object, "rope_theta")))
        SH_TRY(sh_hf_text_of(r, "rope_theta", theta, r->value[SH_HF_THETA]));
    SH_TRY(r->give(r->to, sh_hf_family_key(SH_HF_THETA), r->value[SH_HF_THETA]));
    SH_TRY(read_type(r, &rope));
    SH_TRY(check_beta(r, &rope));
    SH_TRY(check_keys(r, &rope));
    SH_TRY(give_rotary_dim(r, &rope));
    return give_numbers(r, &rope);
}

bool sh_hf_rope_is_key(const struct sh_hf_family *f, const char *key)
{
    const char *const keys[] = {"rope_parameters", "rope_scaling", LENGTH, f->partial ? f->partial : LENGTH,
                                f->local_theta && !f->lists_only ? LOCAL_THETA : LENGTH};

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcmp(keys[i], key) == 0)
            return f->absent[SH_HF_THETA] != NULL;
    return false;
}

/* ---- writing ---- */

char *sh_hf_number(const struct sh_config *cfg, const char *key, bool real)
{
    /* A key that cannot be read is written as null, which makes transformers use its default. */
    char *text, *longer;

    if (sh_config_get(cfg, key, &text) != SH_OK)
        return sh_strdup("null");
    if (!real || strpbrk(text, ".e"))
        return text;
    longer = sh_strfmt("%s.0", text);
    free(text);
    return longer;
}

/* A model trained within max_position_embeddings extrapolates beyond it in the same way as its source. */
static char *print_dynamic(const json_t *source)
{
    json_t *rope = sh_hf_find(source, "rope_parameters");
    const char *type;

    rope = sh_hf_find(rope, FULL) ? sh_hf_find(rope, FULL) : rope ? rope : sh_hf_find(source, "rope_scaling");
    type = type_name(rope);
    if (!type || strcmp(type, "dynamic") != 0 || !json_is_number(sh_hf_find(rope, "factor")))
        return NULL;
    return sh_strfmt("\"factor\": %.17g, \"rope_type\": \"dynamic\"", json_number_value(sh_hf_find(rope, "factor")));
}

/* The quotient, or the next larger number if the truncated product with the head would lose the last element. */
double sh_hf_rope_part(const struct sh_config *cfg)
{
    double head = cfg->model.head_dim, part = cfg->model.rotary_dim / head;

    if (cfg->model.rotary_dim == 0 || sh_family_of(cfg->model.family)->kv_a ||
        sh_family_of(cfg->model.family)->global_heads)
        return 1;
    return (int)(part * head) < cfg->model.rotary_dim ? nextafter(part, 2) : part;
}

static void print_lists(const struct sh_model *m, FILE *out)
{
    enum { MOST = sizeof m->rope_short_factor / 2 };
    const char *const text[LISTS] = {m->rope_short_factor, m->rope_long_factor};
    double *value = sh_calloc(MOST, sizeof *value);

    for (int i = 0; i < LISTS; i++) {
        int n = sh_str_numbers(text[i], value, MOST);
        fprintf(out, "\"%s\": [", lists[i].key);
        for (int k = 0; k < n; k++)
            fprintf(out, "%s%.17g", k ? ", " : "", value[k]);
        fputs("], ", out);
    }
    free(value);
}

/* Both numbers of DeepSeek, of which other readers take the quotient as the factor on cos and sin. */
static void print_sharper(const struct sh_model *m, FILE *out)
{
    double b = m->rope_mscale_all_dim, length = 0.1 * log(m->rope_factor);
    double factor = m->rope_attention_factor > 0 ? m->rope_attention_factor : length + 1;
    double a = factor == 1 || length == 0 ? b : (factor * (b * length + 1) - 1) / length;

    if (b == 0)
        return;
    fprintf(out, "\"mscale_all_dim\": %.17g, ", b);
    if (a > 0)
        fprintf(out, "\"mscale\": %.17g, ", a);
}

char *sh_hf_rope_print(const struct sh_config *cfg, const json_t *source)
{
    const struct sh_model *m = &cfg->model;
    const struct sh_hf_family *row;
    char *text = NULL, *type;
    size_t bytes;
    FILE *f;

    if (m->rope_factor == 0)
        return print_dynamic(source);
    f = sh_memstream(&text, &bytes);
    for (int i = 0; i < NUMBERS; i++) {
        char *value = sh_hf_number(cfg, numbers[i].ours, numbers[i].real);
        bool derived = strcmp(numbers[i].key, "attention_factor") == 0 && m->rope_attention_factor == 0;
        if ((numbers[i].types & 1u << m->rope_type) && !derived)
            fprintf(f, "\"%s\": %s, ", numbers[i].key, value);
        free(value);
    }
    if (m->rope_type == SH_ROPE_LONG)
        print_lists(m, f);
    print_sharper(m, f);
    if (sh_hf_family_to_write(sh_family_of(m->family)->name, &row) == SH_OK && row->beta)
        fprintf(f, "\"" BETA "\": %s, ", row->beta);
    if (sh_config_get(cfg, "model.rope_type", &type) == SH_OK) {
        fprintf(f, "\"rope_type\": \"%s\"", type);
        free(type);
    }
    fclose(f);
    return text;
}
