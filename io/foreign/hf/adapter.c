/* Writes and reads PEFT's adapter_config.json. One rule holds in both directions: either adapters compute the same in
 * PEFT and here, or the file is refused. So an unknown key is accepted only if it is off. */
#include "io/foreign/hf/adapter.h"

#include "io/json/json.h"
#include "src/base/file.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/config/family.h"
#include "src/config/words.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CONFIG_MAX = 1 << 20 };

/* ---- writing ---- */

/* PEFT's lists have "q_proj" for "self_attn.q_proj". */
static const char *last_word(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot ? dot + 1 : name;
}

/* Whether the last word of a module's name also matches a module that is not adapted. In PEFT the last word stands for
 * all modules whose names end with it. */
static bool stands_for_others(const struct sh_family *f, unsigned targets, int which)
{
    const char *word = last_word(sh_family_linear_name(f, which));
    for (int i = 0; i < SH_PARAM_PRODUCTS; i++) {
        const char *name = sh_family_linear_name(f, i);
        if (name && sh_param_info(i)->linear && !(targets & 1u << i) && strcmp(last_word(name), word) == 0)
            return true;
    }
    return false;
}

/* The adapted products of a run. */
static unsigned targets_of(const struct sh_config *cfg)
{
    char bad[SH_FAMILY_WORD];
    unsigned targets;
    (void)sh_family_targets(&cfg->model, cfg->lora.target_modules, cfg->lora.target_parameters, &targets, bad);
    return targets;
}

/* List each name once: two modules may end in the same word. Stacks of experts have a list of their own, of whole
 * names. */
static json_t *list_targets(const struct sh_config *cfg, bool experts)
{
    const struct sh_family *f = sh_family_of(cfg->model.family);
    json_t *list = json_array();
    unsigned targets = targets_of(cfg);
    for (int i = 0; i < SH_PARAM_PRODUCTS; i++) {
        const char *name = sh_family_linear_name(f, i);
        char stack[SH_FAMILY_WORD];
        bool there = false;
        json_t *value;
        size_t k;
        if (!(targets & 1u << i) || sh_param_info(i)->experts != experts)
            continue;
        sh_family_stack_name(f, i, stack);
        name = experts ? stack : stands_for_others(f, targets, i) ? name : last_word(name);
        json_array_foreach(list, k, value) there = there || strcmp(json_string_value(value), name) == 0;
        if (!there)
            json_array_append_new(list, json_string(name));
    }
    if (!experts || json_array_size(list))
        return list;
    json_decref(list);
    return json_null(); /* as PEFT writes it */
}

/* PEFT writes whole numbers here; it accepts fractions, too. */
static json_t *number(double x)
{
    return x == floor(x) && fabs(x) < 1e15 ? json_integer((json_int_t)x) : json_real(x);
}

/* Where PEFT 0.21 opens a model whose experts were once modules, it takes adapters of modules of their names for adapters
 * of the stacks (utils/transformers_weight_conversion.py). Two of our families have such names outside of experts. */
bool sh_hf_adapter_fits(const struct sh_config *cfg)
{
    const unsigned dense = 1u << SH_PARAM_GATE | 1u << SH_PARAM_UP | 1u << SH_PARAM_DOWN;
    const unsigned shared = 1u << SH_PARAM_SHARED_GATE | 1u << SH_PARAM_SHARED_UP | 1u << SH_PARAM_SHARED_DOWN;
    unsigned taken = cfg->model.family == SH_FAMILY_QWEN3_MOE     ? dense
                     : cfg->model.family == SH_FAMILY_DEEPSEEK_V3 ? dense | shared
                                                                  : 0;
    return !(targets_of(cfg) & taken);
}

/* PEFT computes the same scale as this run from r, lora_alpha and use_rslora. */
sh_rc sh_hf_adapter_write(const struct sh_config *cfg, const char *base, char **text)
{
    if (!sh_hf_adapter_fits(cfg))
        return sh_fail(
            SH_E_USAGE,
            "PEFT takes adapters of gate_proj, up_proj and down_proj of a %s outside of experts for those of "
            "experts; --merge -o DIR writes the model with them",
            sh_family_of(cfg->model.family)->name);
    bool labels = cfg->model.num_labels > 0;
    json_t *root = json_pack(
        "{s:s, s:s, s:o, s:o, s:s, s:b, s:b, s:o, s:f, s:b, s:i, s:o, s:o, s:n, s:b}", "peft_type", "LORA", "task_type",
        labels ? "SEQ_CLS" : "CAUSAL_LM", "modules_to_save", labels ? json_pack("[s]", "score") : json_null(),
        "base_model_name_or_path", base && base[0] ? json_string(base) : json_null(), "bias", "none", "fan_in_fan_out",
        sh_family_of(cfg->model.family)->w_in_out, "inference_mode", 1, "lora_alpha", number(cfg->lora.alpha),
        "lora_dropout", 0.0, "init_lora_weights", 1, "r", cfg->lora.rank, "target_modules", list_targets(cfg, false),
        "target_parameters", list_targets(cfg, true), "revision", "use_rslora", cfg->lora.use_rslora);
    char *dump = root ? json_dumps(root, JSON_INDENT(2) | JSON_SORT_KEYS) : NULL;
    json_decref(root);
    if (!dump)
        return sh_fail(SH_E_BUG, "adapter_config.json cannot be made");
    *text = sh_strfmt("%s\n", dump);
    free(dump);
    return SH_OK;
}

/* ---- reading ---- */

/* Absent, null, false, 0, "" or empty: the feature is not used. */
static bool is_off(const json_t *value)
{
    return !value || json_is_null(value) || json_is_false(value) ||
           (json_is_number(value) && json_number_value(value) == 0) ||
           (json_is_string(value) && !json_string_value(value)[0]) ||
           (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_object(value) && json_object_size(value) == 0);
}

/* Keys that are read, or that do not affect what adapters compute. */
static bool is_known(const char *key)
{
    static const char *const keys[] = {"auto_mapping",
                                       "base_model_name_or_path",
                                       "bias",
                                       "ensure_weight_tying",
                                       "fan_in_fan_out",
                                       "inference_mode",
                                       "init_lora_weights",
                                       "lora_alpha",
                                       "lora_dropout",
                                       "megatron_core",
                                       "peft_type",
                                       "peft_version",
                                       "qalora_group_size",
                                       "r",
                                       "revision",
                                       "runtime_config",
                                       "target_modules",
                                       "target_parameters",
                                       "task_type",
                                       "use_rslora"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcmp(key, keys[i]) == 0)
            return true;
    return false;
}

/* The matrix of labels, which PEFT trains and saves beside adapters; it names others that a model may lack. */
static bool is_head(const char *key, const json_t *value, const struct sh_config *cfg)
{
    bool head = cfg->model.num_labels > 0 && strcmp(key, "modules_to_save") == 0 && json_is_array(value);
    for (size_t i = 0; head && i < json_array_size(value); i++) {
        const char *name = json_string_value(json_array_get(value, i));
        head = name && (strcmp(name, "score") == 0 || strcmp(name, "classifier") == 0);
    }
    return head;
}

/* Some initializations also change the model, so the adapters no longer fit the model in its folder. */
static bool begins_with_the_model(const json_t *init)
{
    return !init || json_is_boolean(init) || json_is_null(init) ||
           (json_is_string(init) &&
            (!strcmp(json_string_value(init), "gaussian") || !strcmp(json_string_value(init), "orthogonal")));
}

/* An unknown key is refused if it is set: it may change what adapters compute. */
static sh_rc check_unknown(const char *path, json_t *root, const struct sh_config *cfg)
{
    const char *type = json_string_value(json_object_get(root, "peft_type"));
    const char *bias = json_string_value(json_object_get(root, "bias")), *key;
    json_t *value;
    json_object_foreach(
        root, key,
        value) if (!is_known(key) && !is_off(value) &&
                   !is_head(
                       key, value,
                       cfg)) return sh_fail(SH_E_DATA,
                                            "%s: %.60s is set, and adapters with it are not read; merge them with PEFT "
                                            "(merge_and_unload) and begin with that model",
                                            path, key);
    if (!type || strcmp(type, "LORA") != 0)
        return sh_fail(SH_E_DATA, "%s: peft_type is %.60s; only LORA is read", path, type ? type : "missing");
    if (bias && strcmp(bias, "none") != 0)
        return sh_fail(SH_E_DATA, "%s: bias is %.60s; only none is read", path, bias);
    if (!begins_with_the_model(json_object_get(root, "init_lora_weights")))
        return sh_fail(SH_E_DATA,
                       "%s: init_lora_weights has changed the model too; merge the adapters with PEFT "
                       "(merge_and_unload) and begin with that model",
                       path);
    if (json_number_value(json_object_get(root, "lora_dropout")) > 0)
        sh_log_info("%s: adapters have no dropout here; its %g is left out", path,
                    json_number_value(json_object_get(root, "lora_dropout")));
    return SH_OK;
}

/* Another rank or scale would be another model; the message says which key to set. */
static sh_rc check_numbers(const char *path, json_t *root, const struct sh_config *cfg)
{
    json_t *r = json_object_get(root, "r"), *alpha = json_object_get(root, "lora_alpha");
    bool rs = json_is_true(json_object_get(root, "use_rslora"));
    if (!json_is_integer(r) || !json_is_number(alpha))
        return sh_fail(SH_E_DATA, "%s: r or lora_alpha is not a number", path);
    if (json_integer_value(r) != cfg->lora.rank)
        return sh_fail(SH_E_DATA, "%s: r is %lld, but lora.rank is %d; give lora.rank=%lld", path,
                       (long long)json_integer_value(r), cfg->lora.rank, (long long)json_integer_value(r));
    if (json_number_value(alpha) != cfg->lora.alpha)
        return sh_fail(SH_E_DATA, "%s: lora_alpha is %g, but lora.alpha is %g; give lora.alpha=%g", path,
                       json_number_value(alpha), cfg->lora.alpha, json_number_value(alpha));
    if (rs != cfg->lora.use_rslora)
        return sh_fail(SH_E_DATA, "%s: use_rslora is %s; give lora.use_rslora=%s", path, rs ? "true" : "false",
                       rs ? "true" : "false");
    return SH_OK;
}

/* Read target_parameters: stacks of experts, by the bits of their roles, and by their names with commas between.
 *   names  out  [size of the key] "" if there are none */
static sh_rc read_stacks(const char *path, json_t *root, const struct sh_config *cfg, unsigned *stacks,
                         char names[sizeof cfg->lora.target_parameters])
{
    json_t *list = json_object_get(root, "target_parameters"), *value;
    const size_t room = sizeof cfg->lora.target_parameters;
    char bad[SH_FAMILY_WORD];
    size_t i, n = 0;
    *stacks = 0;
    names[0] = '\0';
    json_array_foreach(list, i, value)
    {
        const char *name = json_is_string(value) ? json_string_value(value) : "";
        unsigned bits;
        if (sh_family_targets(&cfg->model, "", name, &bits, bad) || n + strlen(name) + 2 > room)
            return sh_fail(SH_E_DATA, "%s: target_parameters has %.60s, which is not a stack of experts of this model",
                           path, name);
        *stacks |= bits;
        n += (size_t)snprintf(names + n, room - n, "%s%s", i ? "," : "", name);
    }
    return SH_OK;
}

/* Which stacks are adapted decides what their tensors are called, so the run must have the same ones. */
static sh_rc check_stacks(const char *path, json_t *root, const struct sh_config *cfg)
{
    char names[sizeof cfg->lora.target_parameters];
    unsigned there, here = targets_of(cfg) & (1u << SH_PARAM_EXPERT_UP | 1u << SH_PARAM_EXPERT_DOWN);
    SH_TRY(read_stacks(path, root, cfg, &there, names));
    if (there != here)
        return sh_fail(SH_E_DATA, "%s: target_parameters is '%s', but lora.target_parameters is '%s'; give '%s'", path,
                       names, cfg->lora.target_parameters, names);
    return SH_OK;
}

/* Keys that are set in the file and would change the computation are refused; the others are compared with the run's
 * keys. */
sh_rc sh_hf_adapter_check(const char *folder, const struct sh_config *cfg)
{
    char *path = sh_path_join(folder, SH_HF_ADAPTER_CONFIG);
    json_t *root = NULL;
    sh_rc rc = sh_json_load(path, CONFIG_MAX, &root);
    if (rc == SH_OK && !json_is_object(root))
        rc = sh_fail(SH_E_DATA, "%s is %s, not an object", path, sh_json_is(root));
    if (rc == SH_OK)
        rc = check_unknown(path, root, cfg);
    if (rc == SH_OK)
        rc = check_numbers(path, root, cfg);
    if (rc == SH_OK)
        rc = check_stacks(path, root, cfg);
    json_decref(root);
    free(path);
    return rc;
}
