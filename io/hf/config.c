#include "io/hf/config.h"

#include "io/hf/family.h"
#include "io/hf/plain.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/str.h"
#include "src/config/text.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Reads config.json of a model and gives the keys of our configuration their values. Unknown keys are refused if they
 * could change the mathematics. */
struct reader {
    const struct sh_config *so_far;
    const char *place;
    sh_config_give_value give;
    void *to;
    json_t *root;
    const struct sh_hf_family *f;
    char value[SH_HF_VALUES][64]; /* as text */
};

/* Keys of our configuration for the values of SH_HF_VALUES. */
static const char *const our_key[SH_HF_VALUES] = {
    [SH_HF_LAYERS] = "model.n_layers", [SH_HF_DIM] = "model.dim", [SH_HF_HEADS] = "model.n_heads",
    [SH_HF_KV_HEADS] = "model.n_kv_heads", [SH_HF_HEAD_DIM] = "model.head_dim", [SH_HF_FFN] = "model.ffn_dim",
    [SH_HF_VOCAB] = "model.vocab_size", [SH_HF_POSITIONS] = "model.max_seq_len", [SH_HF_EPS] = "model.norm_eps",
    [SH_HF_INIT] = "model.init_std", [SH_HF_TIED] = "model.tie_word_embeddings", [SH_HF_THETA] = "model.rope_theta",
};

/* ---- values ---- */

/* NULL: absent, or null, which is the same. */
static json_t *find(const json_t *object, const char *key)
{
    json_t *value = key ? json_object_get(object, key) : NULL;
    return json_is_null(value) ? NULL : value;
}

/* A number or a truth value as a configuration has it. */
static sh_rc text_of(const struct reader *r, const char *key, const json_t *value, char out[64])
{
    if (json_is_integer(value))
        snprintf(out, 64, "%lld", (long long)json_integer_value(value));
    else if (json_is_real(value))
        snprintf(out, 64, "%.17g", json_real_value(value));
    else if (json_is_boolean(value))
        strcpy(out, json_is_true(value) ? "true" : "false");
    else
        return sh_fail(SH_E_USAGE, "%s: %s is %s, where a number is wanted", r->place, key, sh_json_is(value));
    return SH_OK;
}

/* Some families have two spellings of a value; the first one wins. Absent values have the default of the family's
 * class, as transformers would take. */
static sh_rc read_value(struct reader *r, int v)
{
    for (int k = 0; k < 2; k++) {
        json_t *value = find(r->root, r->f->key[v][k]);
        if (value)
            return text_of(r, r->f->key[v][k], value, r->value[v]);
    }
    snprintf(r->value[v], sizeof r->value[v], "%s", r->f->absent[v] ? r->f->absent[v] : "");
    return SH_OK;
}

/* Only for values that were read as numbers; the configuration itself refuses the rest. */
static long long whole(const struct reader *r, int v)
{
    return strtoll(r->value[v], NULL, 10);
}

/* What follows from the width and the heads. Sizes that are none are refused with their key. */
static sh_rc derive(struct reader *r)
{
    long long dim = whole(r, SH_HF_DIM), heads = whole(r, SH_HF_HEADS);
    if (strcmp(r->value[SH_HF_KV_HEADS], "=") == 0)
        strcpy(r->value[SH_HF_KV_HEADS], r->value[SH_HF_HEADS]);
    if (strcmp(r->value[SH_HF_FFN], "=") == 0)
        snprintf(r->value[SH_HF_FFN], sizeof r->value[0], "%lld", dim > 0 && dim < 1 << 24 ? 4 * dim : 0);
    if (strcmp(r->value[SH_HF_HEAD_DIM], "=") != 0)
        return SH_OK;
    if (heads < 1 || dim % heads != 0)
        /* The message has the file's own names of both. */
        return sh_fail(SH_E_USAGE, "%s: %s %lld is not a multiple of %s %lld", r->place, r->f->key[SH_HF_DIM][0], dim,
                       r->f->key[SH_HF_HEADS][0], heads);
    snprintf(r->value[SH_HF_HEAD_DIM], sizeof r->value[0], "%lld", dim / heads);
    return SH_OK;
}

/* "=" in a default means that it follows from others; see derive(). rope_theta is given later, by give_rope(). */
static sh_rc give_values(struct reader *r)
{
    for (int v = 0; v < SH_HF_VALUES; v++)
        SH_TRY(read_value(r, v));
    SH_TRY(derive(r));
    SH_TRY(r->give(r->to, "model.family", r->f->family));
    for (int v = 0; v < SH_HF_THETA; v++)
        SH_TRY(r->give(r->to, our_key[v], r->value[v]));
    return SH_OK;
}

/* ---- rotary positions ---- */

/* transformers names them in rope_parameters; `ours` is our key. */
static const struct {
    const char *key, *ours;
} llama3_keys[] = {
    {"factor", "model.rope_factor"},
    {"low_freq_factor", "model.rope_low_freq_factor"},
    {"high_freq_factor", "model.rope_high_freq_factor"},
    {"original_max_position_embeddings", "model.rope_original_max_len"},
};
enum { LLAMA3_KEYS = sizeof llama3_keys / sizeof *llama3_keys };

/* All four values are needed: none has a default in the format. */
static sh_rc give_llama3(struct reader *r, const char *where, const json_t *rope)
{
    char text[64];
    for (int i = 0; i < LLAMA3_KEYS; i++) {
        json_t *value = find(rope, llama3_keys[i].key);
        if (!value)
            return sh_fail(SH_E_USAGE, "%s: %s has no %s", r->place, where, llama3_keys[i].key);
        if (json_is_number(value) && json_number_value(value) == 0) /* which would say none here */
            return sh_fail(SH_E_USAGE, "%s: %s.%s is 0", r->place, where, llama3_keys[i].key);
        SH_TRY(text_of(r, llama3_keys[i].key, value, text));
        SH_TRY(r->give(r->to, llama3_keys[i].ours, text));
    }
    return SH_OK;
}

/* The values of a model without: another source may have said others. */
static sh_rc give_plain_rope(struct reader *r)
{
    SH_TRY(r->give(r->to, "model.rope_factor", "0"));
    SH_TRY(r->give(r->to, "model.rope_low_freq_factor", "1"));
    SH_TRY(r->give(r->to, "model.rope_high_freq_factor", "4"));
    return r->give(r->to, "model.rope_original_max_len", "0");
}

/* Keys of rope_parameters that are understood; `factor` and those of the lengths only where frequencies are stretched. */
static bool is_rope_key(const char *key, bool llama3)
{
    static const char *const all[] = {"rope_type", "type", "rope_theta", "factor"};
    for (size_t i = 0; i < sizeof all / sizeof *all - !llama3; i++)
        if (strcmp(all[i], key) == 0)
            return true;
    for (int i = 0; llama3 && i < LLAMA3_KEYS; i++)
        if (strcmp(llama3_keys[i].key, key) == 0)
            return true;
    return false;
}

/* Keys with a neutral value (0, 1, empty, false) cannot change anything, so they pass. */
static sh_rc check_rope_keys(struct reader *r, const char *where, json_t *rope, const char *type)
{
    bool llama3 = strcmp(type, "llama3") == 0, dynamic = strcmp(type, "dynamic") == 0;
    char shown[SH_CONFIG_SHOWN];
    const char *key;
    json_t *value;
    json_object_foreach(rope, key, value) {
        bool known = is_rope_key(key, llama3) || (dynamic && is_rope_key(key, true));
        if (!known && !sh_hf_plain_value(value))
            return sh_fail(SH_E_USAGE, "%s: %s.%s is not computed here", r->place, where, sh_config_text_shown(key, shown));
    }
    return SH_OK;
}

/* `dynamic` changes what lies beyond max_position_embeddings, and no training sequence is longer. */
static sh_rc give_rope_type(struct reader *r, const char *where, json_t *rope)
{
    /* Older files say "type" for rope_type. */
    json_t *said = find(rope, "rope_type") ? find(rope, "rope_type") : find(rope, "type");
    const char *type = said ? json_string_value(said) : "default";
    char shown[SH_CONFIG_SHOWN];
    if (!type)
        return sh_fail(SH_E_USAGE, "%s: %s.rope_type is no string", r->place, where);
    bool plain = strcmp(type, "default") == 0 || strcmp(type, "dynamic") == 0;
    if (!plain && strcmp(type, "llama3") != 0)
        /* The types that are computed stand in the message. */
        return sh_fail(SH_E_USAGE, "%s: %s.rope_type %s is not computed here; default, llama3 and dynamic are", r->place,
                       where, sh_config_text_shown(type, shown));
    SH_TRY(check_rope_keys(r, where, rope, type));
    return plain ? give_plain_rope(r) : give_llama3(r, where, rope);
}

/* Where both spellings are there, the newer one wins, as for transformers 5. */
static sh_rc give_rope(struct reader *r)
{
    const char *where = find(r->root, "rope_parameters") ? "rope_parameters" : "rope_scaling";
    json_t *rope = find(r->root, where), *theta = find(rope, "rope_theta");
    if (!r->f->absent[SH_HF_THETA])
        return SH_OK;
    if (rope && !json_is_object(rope))
        return sh_fail(SH_E_USAGE, "%s: %s is %s, no object", r->place, where, sh_json_is(rope));
    /* The theta among the rotary parameters is newer than the one at the top level, and wins. */
    if (theta)
        SH_TRY(text_of(r, "rope_theta", theta, r->value[SH_HF_THETA]));
    SH_TRY(r->give(r->to, our_key[SH_HF_THETA], r->value[SH_HF_THETA]));
    return rope ? give_rope_type(r, where, rope) : give_plain_rope(r);
}

/* ---- what must be as it is here ---- */

/* Words and truth values: "false" in a must stands for the JSON value false. */
static bool is_word(const json_t *value, const char *word)
{
    if (json_is_boolean(value))
        return strcmp(word, json_is_true(value) ? "true" : "false") == 0;
    return json_is_string(value) && strcmp(json_string_value(value), word) == 0;
}

/* A key that must have one of some words, where another one would be another model. Absent means the default, which is
 * the first. */
static sh_rc check_must(const struct reader *r, const struct sh_hf_must *m)
{
    json_t *value = find(r->root, m->key);
    bool right = !value;
    for (int i = 0; i < 4 && m->words[i]; i++)
        right = right || is_word(value, m->words[i]);
    return right ? SH_OK : sh_fail(SH_E_USAGE, "%s: %s must be %s: %s", r->place, m->key, m->words[0], m->why);
}

/* Sequences of this length or less see no difference. */
static sh_rc check_window(const struct reader *r)
{
    json_t *said = json_object_get(r->root, "sliding_window");
    long long positions = whole(r, SH_HF_POSITIONS), seq = r->so_far->training.seq_len, window;
    if (!r->f->window || json_is_null(said) || sh_hf_is_named("sliding_window", r->so_far->hf.ignore))
        return SH_OK;
    if (said && !json_is_integer(said))
        return sh_fail(SH_E_USAGE, "%s: sliding_window is %s, where a number is wanted", r->place, sh_json_is(said));
    /* The class's default counts when the key is absent. */
    window = said ? json_integer_value(said) : strtoll(r->f->window, NULL, 10);
    if (seq == 0) /* its default */
        seq = positions < 2048 ? positions : 2048;
    if (window >= seq)
        return SH_OK;
    return sh_fail(SH_E_USAGE, "%s: attention in a sliding window of %lld%s is not computed here, and training.seq_len %lld is "
                   "longer; give a training.seq_len of at most %lld", r->place, window, said ? "" : ", the class's default,",
                   seq, window);
}

/* ---- keys that nobody knows ---- */

/* Each key is in one of four lists: values, musts, plain ones of the family, and rotary positions. */
static bool is_known(const struct reader *r, const char *key)
{
    for (int v = 0; v < SH_HF_VALUES; v++)
        for (int k = 0; k < 2; k++)
            if (r->f->key[v][k] && strcmp(r->f->key[v][k], key) == 0)
                return true;
    for (size_t i = 0; i < sizeof r->f->must / sizeof *r->f->must && r->f->must[i].key; i++)
        if (strcmp(r->f->must[i].key, key) == 0)
            return true;
    for (size_t i = 0; i < sizeof r->f->plain / sizeof *r->f->plain && r->f->plain[i]; i++)
        if (strcmp(r->f->plain[i], key) == 0)
            return true;
    bool rope = strcmp(key, "rope_parameters") == 0 || strcmp(key, "rope_scaling") == 0;
    /* It has been looked at by check_packing(). */
    if (strcmp(key, "quantization_config") == 0)
        return true;
    return (rope && r->f->absent[SH_HF_THETA]) || (r->f->window && strcmp(key, "sliding_window") == 0);
}

/* All unknown keys in one message, so that a user has to start once only. */
static sh_rc check_unknown(const struct reader *r)
{
    const char *ignore = r->so_far->hf.ignore, *key, *dropout = NULL;
    char shown[SH_CONFIG_SHOWN], all[512] = "";
    json_t *value;
    size_t used = 0;
    json_object_foreach(r->root, key, value) {
        /* Named dropouts are only noted; they have no part in an inference. */
        bool named = sh_hf_is_named(key, ignore);
        if (sh_hf_is_dropout(key) && !sh_hf_plain_value(value))
            dropout = key;
        if (is_known(r, key) || sh_hf_plain_key(key) || sh_hf_plain_value(value) || named)
            continue;
        if (used < sizeof all - SH_CONFIG_SHOWN - 4)
            used += (size_t)snprintf(all + used, sizeof all - used, "%s%s", used ? ", " : "", sh_config_text_shown(key, shown));
    }
    if (used)
        return sh_fail(SH_E_USAGE, "%s: not known here, and it may change the mathematics: %s; model.hf_ignore names what is to "
                       "be left out", r->place, all);
    if (dropout)
        sh_log_info("%s: its dropouts are left out: training has none here", r->place);
    return SH_OK;
}

/* ---- the file ---- */

/* With the nearest known name, since most are typed by hand or are a new version of a known one. */
static sh_rc unknown_type(const struct reader *r, const char *type)
{
    const char *names[64], *near;
    char shown[SH_CONFIG_SHOWN];
    int n = 0;
    /* The table has fewer rows than 64. */
    for (const struct sh_hf_family *f; (f = sh_hf_family_row(n)) && n < 64; n++)
        names[n] = f->type;
    near = sh_str_nearest(type, n, names);
    return sh_fail(SH_E_USAGE, "%s: model_type %s is not known here%s%s", r->place, sh_config_text_shown(type, shown),
                   near ? "; nearest is " : "", near ? near : "");
}

/* Of packed weights those of bitsandbytes in nf4 are read, for a frozen base. */
static sh_rc check_packing(const struct reader *r)
{
    json_t *said = find(r->root, "quantization_config");
    json_t *method = json_object_get(said, "quant_method"), *type = json_object_get(said, "bnb_4bit_quant_type");
    if (!said || (method && is_word(method, "bitsandbytes") && json_is_true(json_object_get(said, "load_in_4bit")) && type &&
                  is_word(type, "nf4")))
        return SH_OK;
    return sh_fail(SH_E_USAGE, "%s: quantization_config: of packed weights only bitsandbytes nf4 is read here; "
                   "save_pretrained() the model unpacked", r->place);
}

/* Code and packed weights first: with these the rest of the file does not say what is computed. */
static sh_rc choose_family(struct reader *r)
{
    const char *type = json_string_value(json_object_get(r->root, "model_type"));
    if (find(r->root, "auto_map"))
        return sh_fail(SH_E_USAGE, "%s: auto_map: the model is code in the folder, which is not run here", r->place);
    SH_TRY(check_packing(r));
    if (!type)
        return sh_fail(SH_E_USAGE, "%s: it has no model_type", r->place);
    if (!(r->f = sh_hf_family_of_type(type)))
        return unknown_type(r, type);
    if (r->f->refused)
        return sh_fail(SH_E_USAGE, "%s: model_type %s: %s", r->place, type, r->f->refused);
    return SH_OK;
}

/* Musts and unknown keys before values: they say whether the values mean what they seem to. */
static sh_rc read_root(struct reader *r)
{
    if (!json_is_object(r->root))
        return sh_fail(SH_E_DATA, "%s: it is %s, no object", r->place, sh_json_is(r->root));
    SH_TRY(choose_family(r));
    for (size_t i = 0; i < sizeof r->f->must / sizeof *r->f->must && r->f->must[i].key; i++)
        SH_TRY(check_must(r, &r->f->must[i]));
    SH_TRY(check_unknown(r));
    SH_TRY(give_values(r));
    SH_TRY(give_rope(r));
    return check_window(r);
}

/* A name like meta-llama/Llama-3.2-1B is a folder once it was downloaded. */
static sh_rc check_folder(const char *folder)
{
    struct stat st;
    if (stat(folder, &st) != 0)
        return sh_fail(SH_E_DATA, "model.hf_assets_path: %s is no folder here; nothing is downloaded: `hf download` does that",
                       folder);
    return S_ISDIR(st.st_mode) ? SH_OK : sh_fail(SH_E_DATA, "model.hf_assets_path: %s is no folder", folder);
}

static sh_rc read_and_free(struct reader *r)
{
    sh_rc rc = read_root(r);
    json_decref(r->root);
    return rc;
}

/* From memory, for tests of damaged and hostile texts. `give` is called with keys of our configuration and values as
 * text. */
sh_rc sh_hf_config_parse(const char *text, size_t bytes, const struct sh_config *so_far, const char *place,
                         sh_config_give_value give, void *to)
{
    struct reader r = {.so_far = so_far, .place = place, .give = give, .to = to};
    SH_TRY(sh_json_parse(text, bytes, place, &r.root));
    return read_and_free(&r);
}

/* From the folder of so_far->model.hf_assets_path. `so_far` is what other sources have set already. */
sh_rc sh_hf_config_read(const struct sh_config *so_far, const char *place, sh_config_give_value give, void *to)
{
    struct reader r = {.so_far = so_far, .place = place, .give = give, .to = to};
    SH_TRY(check_folder(so_far->hf.assets_path));
    SH_TRY(sh_json_load(place, SH_HF_CONFIG_MAX, &r.root));
    return read_and_free(&r);
}
