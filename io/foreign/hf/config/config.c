#include "io/foreign/hf/config/config.h"

#include "io/file/outside.h"
#include "io/foreign/hf/config/blocks.h"
#include "io/foreign/hf/config/experts.h"
#include "io/foreign/hf/config/global.h"
#include "io/foreign/hf/config/granite.h"
#include "io/foreign/hf/config/hybrid.h"
#include "io/foreign/hf/config/plain.h"
#include "io/foreign/hf/config/rope.h"
#include "src/base/file.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/string/str.h"
#include "src/config/read/text.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Reads the config.json of a model and sets the keys of our configuration. Unknown keys are refused if they could
 * change the mathematics. */

/* ---- values ---- */

/* What a class that has no such key computes. */
static const char *const off[SH_HF_VALUES] = {[SH_HF_TIED] = "false",     [SH_HF_ATTENTION_BIAS] = "false",
                                              [SH_HF_MLP_BIAS] = "false", [SH_HF_NO_ROPE] = "0",
                                              [SH_HF_SCALAR] = "0",       [SH_HF_EXPERTS] = "0",
                                              [SH_HF_CHOSEN] = "0",       [SH_HF_EXPERT_FFN] = "0",
                                              [SH_HF_SHARED_FFN] = "0",   [SH_HF_ROUTE_NORM] = "false",
                                              [SH_HF_MOE_EVERY] = "0",    [SH_HF_FIRST_DENSE] = "0",
                                              [SH_HF_EMBED_BY] = "0",     [SH_HF_RESIDUAL_BY] = "0",
                                              [SH_HF_LOGITS_BY] = "0",    [SH_HF_SCORES_CAP] = "0",
                                              [SH_HF_LOGITS_CAP] = "0",   [SH_HF_Q_RANK] = "0",
                                              [SH_HF_KV_RANK] = "0",      [SH_HF_VALUE_DIM] = "0",
                                              [SH_HF_ROUTE_SCALE] = "0",  [SH_HF_GROUPS] = "0",
                                              [SH_HF_TOP_GROUPS] = "0"};

/* Some families have two spellings of a value; the first one found wins, as in their classes. That of hybrids takes the
 * second one, so both must say the same. An absent value has the default of the family's class, as in transformers. */
static sh_rc read_value(struct sh_hf_reader *r, int v)
{
    const char *const *key = r->f->key[v];
    char said[2][64] = {"", ""};

    for (int k = 0; k < 2; k++) {
        json_t *value = sh_hf_find(r->root, key[k]);
        bool list = v == SH_HF_FIRST_DENSE; /* which experts.c reads */
        bool word = json_is_string(value) && r->f->absent[v] && !strcmp(json_string_value(value), r->f->absent[v]);
        if (value && !list && !word) /* the word that is the class's default */
            SH_TRY(sh_hf_text_of(r, key[k], value, said[k]));
    }
    if (r->f->hybrid && said[0][0] && said[1][0] && strcmp(said[0], said[1]) != 0)
        return sh_fail(SH_E_USAGE, "%s: %s is %s, and %s is %s; both are the same number, so give one", r->place,
                       key[0], said[0], key[1], said[1]);
    if (said[0][0] || said[1][0]) {
        memcpy(r->value[v], said[said[0][0] ? 0 : 1], sizeof said[0]);
        return SH_OK;
    }
    snprintf(r->value[v], sizeof r->value[v], "%s", r->f->absent[v] ? r->f->absent[v] : off[v] ? off[v] : "");
    return SH_OK;
}

/* Derive the values that follow from the width and the heads. Impossible sizes are refused with their key. */
static sh_rc derive(struct sh_hf_reader *r)
{
    long long dim = sh_hf_whole(r, SH_HF_DIM), heads = sh_hf_whole(r, SH_HF_HEADS);
    if (strcmp(r->value[SH_HF_KV_HEADS], "=") == 0)
        strcpy(r->value[SH_HF_KV_HEADS], r->value[SH_HF_HEADS]);
    if (strcmp(r->value[SH_HF_FFN], "=") == 0)
        snprintf(r->value[SH_HF_FFN], sizeof r->value[0], "%lld", dim > 0 && dim < 1 << 24 ? 4 * dim : 0);
    if (strcmp(r->value[SH_HF_HEAD_DIM], "=") != 0)
        return SH_OK;
    if (heads < 1 || dim % heads != 0)
        /* The message has the file's own names for both. */
        return sh_fail(SH_E_USAGE, "%s: %s %lld is not a multiple of %s %lld", r->place, r->f->key[SH_HF_DIM][0], dim,
                       r->f->key[SH_HF_HEADS][0], heads);
    snprintf(r->value[SH_HF_HEAD_DIM], sizeof r->value[0], "%lld", dim / heads);
    return SH_OK;
}

/* The value itself, or that whose inverse root is the factor on scores: one of a head's width as a rule. */
static sh_rc read_scalar(struct sh_hf_reader *r)
{
    enum { MOST = 65536 };
    const char *key = r->f->key[SH_HF_SCALAR][0];
    double by = strtod(r->value[SH_HF_SCALAR], NULL), n = round(1 / (by * by));
    if (!key)
        return SH_OK;
    if (!r->f->scores_by)
        return sh_hf_whole(r, SH_HF_SCALAR) >= 1
                   ? SH_OK
                   : sh_fail(SH_E_USAGE, "%s: %s must be a whole number from 1 on", r->place, key);
    if (!(by > 0 && n >= 1 && n <= MOST && fabs(by * sqrt(n) - 1) < 1e-6))
        return sh_fail(
            SH_E_USAGE,
            "%s: %s must be 1 over the root of a whole number up to %d, which model.query_pre_attn_scalar is "
            "here",
            r->place, key, MOST);
    snprintf(r->value[SH_HF_SCALAR], sizeof r->value[0], "%.0f", n);
    return SH_OK;
}

static sh_rc read_logits_scaling(struct sh_hf_reader *r)
{
    double by = strtod(r->value[SH_HF_LOGITS_BY], NULL);
    if (!r->f->logits_by)
        return SH_OK;
    if (!(by >= 1e-6 && by <= 1e6))
        return sh_fail(SH_E_USAGE, "%s: %s must be a number from 1e-6 to 1e6", r->place, r->f->key[SH_HF_LOGITS_BY][0]);
    snprintf(r->value[SH_HF_LOGITS_BY], sizeof r->value[0], "%.17g", 1 / by);
    return SH_OK;
}

/* null is no cap, and not the class's default. */
static sh_rc read_caps(struct sh_hf_reader *r)
{
    for (int v = SH_HF_SCORES_CAP; v <= SH_HF_LOGITS_CAP; v++) {
        const char *key = r->f->key[v][0];
        if (key && json_is_null(json_object_get(r->root, key)))
            strcpy(r->value[v], "0");
        else if (key && sh_hf_find(r->root, key) && !(strtod(r->value[v], NULL) > 0))
            return sh_fail(SH_E_USAGE, "%s: %s must be a number above 0, or null", r->place, key);
    }
    return SH_OK;
}

/* Numbers that are counted otherwise here: a head's elements together, and the widths of all shared experts. What is out
 * of range is refused with its key later. */
static sh_rc read_latent(struct sh_hf_reader *r)
{
    enum { MOST = 1 << 20 };
    const int of[] = {SH_HF_TURNED_DIM, SH_HF_PLAIN_DIM, SH_HF_SHARED, SH_HF_EXPERT_FFN};
    long long n[4];

    if (!r->f->latent)
        return SH_OK;
    for (int i = 0; i < 4; i++) {
        n[i] = sh_hf_whole(r, of[i]);
        if (n[i] < 0 || n[i] > MOST)
            return sh_fail(SH_E_USAGE, "%s: %s must be a whole number from 0 to %d", r->place, r->f->key[of[i]][0],
                           MOST);
    }
    if (json_is_null(json_object_get(r->root, r->f->key[SH_HF_Q_RANK][0])))
        strcpy(r->value[SH_HF_Q_RANK], "0");
    snprintf(r->value[SH_HF_HEAD_DIM], sizeof r->value[0], "%lld", n[0] + n[1]);
    snprintf(r->value[SH_HF_SHARED_FFN], sizeof r->value[0], "%lld", n[2] * n[3]);
    snprintf(r->value[SH_HF_FIRST_DENSE], sizeof r->value[0], "%s", r->value[SH_HF_FIRST_EXPERTS]);
    SH_TRY(r->give(r->to, "model.router", "sigmoid"));
    return r->give(r->to, "model.router_bias", "true");
}

/* "=" as a default means that the value follows from others; see derive(). rope_theta is set with the other rotary
 * keys. */
static sh_rc give_values(struct sh_hf_reader *r)
{
    for (int v = 0; v < SH_HF_VALUES; v++)
        SH_TRY(read_value(r, v));
    SH_TRY(sh_hf_hybrid_read(r));
    SH_TRY(sh_hf_granite_read(r));
    SH_TRY(derive(r));
    SH_TRY(read_scalar(r));
    SH_TRY(read_logits_scaling(r));
    SH_TRY(read_caps(r));
    SH_TRY(sh_hf_experts_read(r));
    SH_TRY(read_latent(r));
    SH_TRY(r->give(r->to, "model.family", r->f->family));
    for (int v = 0; v < SH_HF_THETA; v++)
        if (r->value[v][0] &&
            sh_hf_family_key(v)) /* where all blocks have experts, the class has no width of another layer */
            SH_TRY(r->give(r->to, sh_hf_family_key(v), r->value[v]));
    return SH_OK;
}

/* ---- what must be as it is here ---- */

/* Compare with a word, a number or a boolean: "false" in a must stands for the JSON value false. */
static bool is_word(const json_t *value, const char *word)
{
    if (json_is_boolean(value))
        return strcmp(word, json_is_true(value) ? "true" : "false") == 0;
    if (json_is_number(value))
        return isdigit((unsigned char)word[0]) && json_number_value(value) == strtod(word, NULL);
    return json_is_string(value) && strcmp(json_string_value(value), word) == 0;
}

/* Check a key that must have one of a few words, because any other word would be another model. An absent key means the
 * default, which is the first. */
static sh_rc check_must(const struct sh_hf_reader *r, const struct sh_hf_must *m)
{
    json_t *value = sh_hf_find(r->root, m->key);
    bool right = !value;
    for (int i = 0; i < 4 && m->words[i]; i++)
        right = right || is_word(value, m->words[i]);
    return right ? SH_OK : sh_fail(SH_E_USAGE, "%s: %s must be %s: %s", r->place, m->key, m->words[0], m->why);
}

/* ---- keys that nobody knows ---- */

/* A known key is in one of these lists: values, musts, plain keys of the family, rotary positions, and blocks. */
static bool is_known(const struct sh_hf_reader *r, const char *key)
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
    /* check_packing() has checked it. */
    if (strcmp(key, "quantization_config") == 0)
        return true;
    return sh_hf_global_is_key(r->f, key) || sh_hf_granite_is_key(r->f, key) || sh_hf_hybrid_is_key(r->f, key) ||
           sh_hf_rope_is_key(r->f, key) || sh_hf_blocks_is_key(r->f, key);
}

/* All unknown keys are in one message, so a user does not have to find them one start at a time. */
static sh_rc check_unknown(const struct sh_hf_reader *r)
{
    const char *ignore = r->so_far->hf.ignore, *key, *dropout = NULL;
    char shown[SH_CONFIG_SHOWN], all[512] = "";
    json_t *value;
    size_t used = 0;
    json_object_foreach(r->root, key, value)
    {
        /* Dropouts are only logged; they are not used in inference. */
        bool named = sh_hf_is_named(key, ignore);
        if (sh_hf_is_dropout(key) && !sh_hf_plain_value(value))
            dropout = key;
        if (is_known(r, key) || sh_hf_plain_key(key) || sh_hf_plain_value(value) || named)
            continue;
        if (used < sizeof all - SH_CONFIG_SHOWN - 4)
            used += (size_t)snprintf(all + used, sizeof all - used, "%s%s", used ? ", " : "",
                                     sh_config_text_shown(key, shown));
    }
    if (used)
        return sh_fail(SH_E_USAGE,
                       "%s: not known here, and it may change the mathematics: %s; name keys in model.hf_ignore to "
                       "leave them out",
                       r->place, all);
    if (dropout)
        sh_log_info("%s: its dropouts are ignored: training has none here", r->place);
    return SH_OK;
}

/* ---- the file ---- */

/* Suggest the nearest known name, because most unknown ones are typed by hand or are a new version of a known one. */
static sh_rc unknown_type(const struct sh_hf_reader *r, const char *type)
{
    const char *names[64], *near;
    char shown[SH_CONFIG_SHOWN];
    int n = 0;
    /* The table has fewer than 64 rows. */
    for (const struct sh_hf_family *f; (f = sh_hf_family_row(n)) && n < 64; n++)
        names[n] = f->type;
    near = sh_str_nearest(type, n, names);
    return sh_fail(SH_E_USAGE, "%s: model_type %s is not known here%s%s", r->place, sh_config_text_shown(type, shown),
                   near ? "; nearest is " : "", near ? near : "");
}

/* The only packed weights that are read are nf4 of bitsandbytes, for a frozen base, and the experts of gpt-oss, which are
 * unpacked. */
static sh_rc check_packing(const struct sh_hf_reader *r)
{
    json_t *said = sh_hf_find(r->root, "quantization_config");
    json_t *method = json_object_get(said, "quant_method"), *type = json_object_get(said, "bnb_4bit_quant_type");
    if (!said || (method && is_word(method, "bitsandbytes") && json_is_true(json_object_get(said, "load_in_4bit")) &&
                  type && is_word(type, "nf4")))
        return SH_OK;
    if (method && is_word(method, "mxfp4") && r->f && r->f->mxfp4)
        return SH_OK;
    return sh_fail(SH_E_USAGE,
                   "%s: quantization_config: of packed weights only bitsandbytes nf4, and mxfp4 of a gpt_oss, are read "
                   "here; save_pretrained() the model unpacked",
                   r->place);
}

/* Check for code and packed weights first: with these, the rest of the file does not determine what is computed. */
static sh_rc choose_family(struct sh_hf_reader *r)
{
    const char *type = json_string_value(json_object_get(r->root, "model_type"));
    if (sh_hf_find(r->root, "auto_map") && !sh_hf_is_named("auto_map", r->so_far->hf.ignore))
        return sh_fail(SH_E_USAGE,
                       "%s: auto_map: the model is code in the folder, which is not run here; if it is what "
                       "transformers has under this model_type, say model.hf_ignore=auto_map",
                       r->place);
    r->f = type ? sh_hf_family_of_type(type) : NULL;
    SH_TRY(check_packing(r));
    if (!type)
        return sh_fail(SH_E_USAGE, "%s: it has no model_type", r->place);
    if (!r->f)
        return unknown_type(r, type);
    if (r->f->refused)
        return sh_fail(SH_E_USAGE, "%s: model_type %s: %s", r->place, type, r->f->refused);
    return SH_OK;
}

static bool is_multi_label(const char *problem)
{
    return problem && strcmp(problem, "multi_label_classification") == 0;
}

/* What transformers makes of a text's logits. */
static sh_rc check_problem(const struct sh_hf_reader *r, const char *problem, long long n)
{
    if (!problem || strcmp(problem, "single_label_classification") == 0 ||
        (strcmp(problem, "regression") == 0 && n == 1) || is_multi_label(problem))
        return SH_OK;
    if (strcmp(problem, "regression") == 0)
        return sh_fail(SH_E_USAGE,
                       "%s: problem_type regression with %lld labels: a text has one number here; train a model with "
                       "num_labels 1 for each of them",
                       r->place, n);
    return sh_fail(SH_E_USAGE,
                   "%s: problem_type %s is not known; single_label_classification, multi_label_classification and "
                   "regression are",
                   r->place, problem);
}

/* The class with a matrix of labels; any other is one of the next token. Without a list of them there are two. */
static sh_rc read_labels(struct sh_hf_reader *r)
{
    const char *class = json_string_value(json_array_get(sh_hf_find(r->root, "architectures"), 0)),
               *problem = json_string_value(sh_hf_find(r->root, "problem_type"));
    const json_t *number = sh_hf_find(r->root, "num_labels"), *list = sh_hf_find(r->root, "id2label");
    long long n = list ? (long long)json_object_size(list) : number ? (long long)json_integer_value(number) : 2LL;
    char text[32];

    if (!class || !strstr(class, "ForSequenceClassification"))
        return SH_OK;
    if (n < 1)
        return sh_fail(SH_E_USAGE,
                       "%s: %s gives no labels; id2label is an object with a name for each, num_labels a whole number "
                       "above 0",
                       r->place, list ? "id2label" : "num_labels");
    SH_TRY(check_problem(r, problem, n));
    if (is_multi_label(problem))
        SH_TRY(r->give(r->to, "objective.name", "multi_label"));
    snprintf(text, sizeof text, "%lld", n);
    return r->give(r->to, "model.num_labels", text);
}

/* Musts and unknown keys are checked before values: they decide whether the values mean what they seem to. */
static sh_rc read_root(struct sh_hf_reader *r)
{
    if (!json_is_object(r->root))
        return sh_fail(SH_E_DATA, "%s: it is %s, not an object", r->place, sh_json_is(r->root));
    SH_TRY(choose_family(r));
    for (size_t i = 0; i < sizeof r->f->must / sizeof *r->f->must && r->f->must[i].key; i++)
        SH_TRY(check_must(r, &r->f->must[i]));
    SH_TRY(check_unknown(r));
    SH_TRY(give_values(r));
    SH_TRY(read_labels(r));
    SH_TRY(sh_hf_global_read(r));
    SH_TRY(sh_hf_rope_read(r));
    return sh_hf_blocks_read(r);
}

/* Whether a name is one of the Hub's, NAME or OWNER/NAME, and safe in a command. */
static bool is_hub_name(const char *name)
{
    const char *slash = strchr(name, '/');
    bool safe = isalnum((unsigned char)name[0]) &&
                (!slash || (isalnum((unsigned char)slash[1]) && !strchr(slash + 1, '/')));

    for (const char *at = name; *at; at++)
        safe = safe && (isalnum((unsigned char)*at) || strchr("._-/", *at));
    return safe;
}

/* A name like meta-llama/Llama-3.2-1B is a folder only once it has been downloaded. */
sh_rc sh_hf_config_find(const char *folder)
{
    const char *slash = strchr(folder, '/'), *own = slash ? slash + 1 : folder;

    if (access(folder, F_OK) == 0)
        return SH_OK;
    if (!is_hub_name(folder))
        return sh_fail(SH_E_DATA, "there is no folder %s here", folder);
    return sh_fail(SH_E_DATA,
                   "%s is not a folder here; nothing is downloaded: `hf download %s --local-dir %s`, then give %s",
                   folder, folder, own, own);
}

static sh_rc check_folder(const char *folder, const char *config)
{
    SH_TRY(sh_hf_config_find(folder));
    if (access(config, F_OK) == 0 || errno == EACCES)
        return SH_OK;
    SH_TRY(sh_outside_refuse(folder));
    return sh_fail(SH_E_DATA, "%s is not a folder of transformers%s", folder,
                   sh_is_folder(folder) ? ": it has no config.json" : ", but a file");
}

static sh_rc read_and_free(struct sh_hf_reader *r)
{
    sh_rc rc = read_root(r);
    json_decref(r->root);
    return rc;
}

/* Reads from memory, for tests with damaged and hostile texts. `give` is called with keys of our configuration and
 * values as text. */
sh_rc sh_hf_config_parse(const char *text, size_t bytes, const struct sh_config *so_far, const char *place,
                         sh_config_give_value give, void *to)
{
    struct sh_hf_reader r = {.so_far = so_far, .place = place, .give = give, .to = to};
    SH_TRY(sh_json_parse(text, bytes, place, &r.root));
    return read_and_free(&r);
}

bool sh_hf_config_predicts(const char *folder)
{
    char *path = sh_path_join(folder, "config.json");
    json_t *root = NULL;
    bool predicts = false;

    if (sh_json_load(path, SH_HF_CONFIG_MAX, &root) == SH_OK) {
        const char *class = json_string_value(json_array_get(sh_hf_find(root, "architectures"), 0));
        predicts = class && (strstr(class, "ForCausalLM") || strstr(class, "LMHeadModel"));
    } else {
        sh_error_clear();
    }
    json_decref(root);
    free(path);
    return predicts;
}

/* If no tokenizer is configured, use the one in the model's folder. */
static sh_rc give_tokenizer(const struct sh_hf_reader *r)
{
    const char *folder = r->so_far->hf.assets_path;
    char *path = sh_path_join(folder, "tokenizer.json");
    bool there = access(path, F_OK) == 0;

    free(path);
    return there && !r->so_far->hf.tokenizer[0] ? r->give(r->to, "model.tokenizer", folder) : SH_OK;
}

/* Reads from the folder so_far->hf.assets_path. `so_far` is the configuration from the sources read earlier. */
sh_rc sh_hf_config_read(const struct sh_config *so_far, const char *place, sh_config_give_value give, void *to)
{
    struct sh_hf_reader r = {.so_far = so_far, .place = place, .give = give, .to = to};
    SH_TRY(check_folder(so_far->hf.assets_path, place));
    SH_TRY(sh_json_load(place, SH_HF_CONFIG_MAX, &r.root));
    SH_TRY(read_and_free(&r));
    return give_tokenizer(&r);
}
