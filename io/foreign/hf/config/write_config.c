#include "io/foreign/hf/config/config.h"

#include "io/foreign/hf/config/blocks.h"
#include "io/foreign/hf/config/global.h"
#include "io/foreign/hf/config/granite.h"
#include "io/foreign/hf/config/hybrid.h"
#include "io/foreign/hf/config/plain.h"
#include "io/foreign/hf/config/rope.h"
#include "src/base/mem.h"
#include "src/config/family.h"
#include "src/config/layers.h"
#include "src/config/words.h"
#include "src/model/model.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct writer {
    const struct sh_config *cfg;
    const struct sh_hf_family *f;
    json_t *source; /* NULL: none */
    FILE *out;
    int n;
};

/* Begin a key; a comma goes before every key except the first. */
static void begin(struct writer *w, const char *key)
{
    fprintf(w->out, "%s\n  \"%s\": ", w->n++ ? "," : "", key);
}

/* The value is JSON already. */
static void put_raw(struct writer *w, const char *key, const char *value)
{
    begin(w, key);
    fputs(value, w->out);
}

/* Words from the tables need no escapes. */
static void put_word(struct writer *w, const char *key, const char *word)
{
    begin(w, key);
    fprintf(w->out, "\"%s\"", word);
}

/* Write the text of our value as JSON: numbers and booleans look alike in both. */
static void put_key(struct writer *w, const char *theirs, const char *ours, bool real)
{
    char *text = sh_hf_number(w->cfg, ours, real);
    put_raw(w, theirs, text);
    free(text);
}

/* Values with functions of their own below. */
static bool is_put_apart(int v)
{
    return v == SH_HF_NO_ROPE || v == SH_HF_SCALAR || v == SH_HF_MOE_EVERY || v == SH_HF_FIRST_DENSE ||
           (v >= SH_HF_EMBED_BY && v < SH_HF_THETA);
}

/* Whether the class has keys of experts in such a model: a granitemoehybrid without experts says that it has none. */
static bool says_experts(const struct sh_model *m, const struct sh_hf_family *f)
{
    return f->key[SH_HF_EXPERTS][0] && (!f->hybrid || sh_family_takes_experts(m));
}

static bool is_of_experts(int v)
{
    return v >= SH_HF_EXPERTS && v <= SH_HF_ROUTE_NORM;
}

/* Write the keys that the family has, in their first spelling. Real values are printed with a fraction. */
static void put_values(struct writer *w)
{
    for (int v = 0; v < SH_HF_VALUES; v++) {
        const char *ours = w->f->granite ? sh_hf_granite_key(&w->cfg->model, v) : sh_hf_family_key(v);
        bool left_out = is_of_experts(v) && !says_experts(&w->cfg->model, w->f);
        if (w->f->key[v][0] && ours && !is_put_apart(v) && !left_out)
            put_key(w, w->f->key[v][0], ours,
                    v == SH_HF_EPS || v == SH_HF_INIT || v == SH_HF_LEAST_STEP || v == SH_HF_THETA);
    }
}

/* If the key is not set, the scalar is model.head_dim. */
static void put_scalar(struct writer *w)
{
    const struct sh_model *m = &w->cfg->model;
    int scalar = m->query_pre_attn_scalar ? m->query_pre_attn_scalar : m->head_dim;
    if (!w->f->key[SH_HF_SCALAR][0])
        return;
    begin(w, w->f->key[SH_HF_SCALAR][0]);
    if (w->f->scores_by)
        fprintf(w->out, "%.17g", 1 / sqrt(scalar));
    else
        fprintf(w->out, "%d", scalar);
}

/* The multiplier of a value from SH_HF_EMBED_BY on; one that is not set is 1. */
enum { MULTIPLIERS = SH_HF_LOGITS_BY + 1 - SH_HF_EMBED_BY };
static double multiplier(const struct sh_model *m, int i)
{
    const double by[MULTIPLIERS] = {m->embedding_multiplier, m->residual_multiplier, m->logits_scaling};
    return by[i] == 0 ? 1 : by[i];
}

static void put_multipliers(struct writer *w)
{
    for (int i = 0; i < MULTIPLIERS; i++) {
        double by = multiplier(&w->cfg->model, i);
        if (!w->f->key[SH_HF_EMBED_BY + i][0])
            continue;
        begin(w, w->f->key[SH_HF_EMBED_BY + i][0]);
        fprintf(w->out, "%.17g", w->f->logits_by ? 1 / by : by);
    }
}

/* The cap of a value from SH_HF_SCORES_CAP on; 0: none. */
enum { CAPS = SH_HF_LOGITS_CAP + 1 - SH_HF_SCORES_CAP };
static double cap_of(const struct sh_model *m, int i)
{
    return i ? m->logits_softcap : m->attention_softcap;
}

static void put_caps(struct writer *w)
{
    for (int v = SH_HF_SCORES_CAP; v <= SH_HF_LOGITS_CAP; v++) {
        const char *key = w->f->key[v][0];
        if (key && cap_of(&w->cfg->model, v - SH_HF_SCORES_CAP) == 0)
            put_raw(w, key, "null");
        else if (key)
            put_key(w, key, sh_hf_family_key(v), true);
    }
}

/* The numbers of latent attention and its router. Blocks that predict further words are not in the folder. */
static void put_latent(struct writer *w)
{
    const struct sh_model *m = &w->cfg->model;
    const struct {
        int v, number;
    } rows[] = {{SH_HF_KV_RANK, m->kv_lora_rank},
                {SH_HF_TURNED_DIM, m->rotary_dim},
                {SH_HF_PLAIN_DIM, m->head_dim - m->rotary_dim},
                {SH_HF_VALUE_DIM, m->v_head_dim},
                {SH_HF_GROUPS, m->route_groups ? m->route_groups : 1},
                {SH_HF_TOP_GROUPS, m->route_groups ? m->route_top_groups : 1},
                {SH_HF_SHARED, m->shared_ffn_dim / (m->expert_ffn_dim ? m->expert_ffn_dim : 1)},
                {SH_HF_FIRST_EXPERTS, m->first_dense_layers}};
    if (!w->f->latent)
        return;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        begin(w, w->f->key[rows[i].v][0]);
        fprintf(w->out, "%d", rows[i].number);
    }
    if (m->q_lora_rank)
        put_key(w, "q_lora_rank", "model.q_lora_rank", false);
    else
        put_raw(w, "q_lora_rank", "null");
    if (m->route_scale != 0)
        put_key(w, w->f->key[SH_HF_ROUTE_SCALE][0], "model.route_scale", true);
    else
        put_raw(w, w->f->key[SH_HF_ROUTE_SCALE][0], "1.0");
    put_raw(w, "num_nextn_predict_layers", "0");
}

/* The first block of which `bit` is `value`; the number of blocks if there is none. */
static int first_of(const struct sh_model *m, unsigned bit, unsigned value)
{
    int i = 0;
    while (i < m->n_layers && (sh_layers_kind(m, i) & bit) != value)
        i++;
    return i;
}

/* Write the list with a switch for each block, too: transformers does not accept an interval of 0, which means here
 * that all blocks have positions. */
static void put_positions(struct writer *w)
{
    const struct sh_model *m = &w->cfg->model;
    if (!w->f->key[SH_HF_NO_ROPE][0])
        return;
    begin(w, w->f->key[SH_HF_NO_ROPE][0]);
    fprintf(w->out, "%d", first_of(m, SH_LAYER_NOPE, SH_LAYER_NOPE) + 1);
    begin(w, "no_rope_layers");
    for (int i = 0; i < m->n_layers; i++)
        fprintf(w->out, "%s%d", i ? ", " : "[", !(sh_layers_kind(m, i) & SH_LAYER_NOPE));
    fputc(']', w->out);
}

/* Which blocks have experts. */
static void put_expert_blocks(struct writer *w)
{
    const struct sh_model *m = &w->cfg->model;
    if (!w->f->key[SH_HF_MOE_EVERY][0])
        return;
    begin(w, w->f->key[SH_HF_MOE_EVERY][0]);
    fprintf(w->out, "%d", m->moe_every ? m->moe_every : 1);
    begin(w, w->f->key[SH_HF_FIRST_DENSE][0]);
    fputc('[', w->out);
    for (int i = 0; i < m->first_dense_layers; i++)
        fprintf(w->out, "%s%d", i ? ", " : "", i);
    fputc(']', w->out);
}

/* Write the source's value of a key, or `absent` if it has none. */
static void put_source(struct writer *w, const char *key, const char *absent)
{
    json_t *value = json_object_get(w->source, key);
    char *text = value ? json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(15)) : NULL;
    if (text || absent)
        put_raw(w, key, text ? text : absent);
    free(text);
}

/* transformers adds this loss only if output_router_logits is true, so a run here does not turn it on. Its coefficient is
 * of one loss for all blocks, in which a token counts once for each of its experts. */
static void put_balance(struct writer *w)
{
    const struct sh_model *m = &w->cfg->model;
    if (!says_experts(m, w->f))
        return;
    put_source(w, "output_router_logits", "false");
    if (w->cfg->moe.aux_loss_coeff == 0) {
        put_source(w, "router_aux_loss_coef", "0.0");
        return;
    }
    begin(w, "router_aux_loss_coef");
    fprintf(w->out, "%.15g",
            w->cfg->moe.aux_loss_coeff * sh_family_blocks_with_experts(m, m->n_layers) / m->n_experts_per_token);
}

/* Count the blocks with a window. */
static int count_windows(const struct sh_model *m)
{
    int n = 0;
    for (int i = 0; i < m->n_layers; i++)
        n += sh_model_window(m, i) != 0;
    return n;
}

/* The list alone determines the blocks; max_window_layers, in classes that have a window by default, is for readers
 * that ignore the list. */
static void put_window_blocks(struct writer *w)
{
    const struct sh_model *m = &w->cfg->model;
    if (w->f->layer_types)
        put_raw(w, "use_sliding_window", "true");
    if (w->f->layer_types && w->f->window[0]) {
        begin(w, "max_window_layers");
        fprintf(w->out, "%d", first_of(m, SH_LAYER_SLIDING, SH_LAYER_SLIDING));
    }
    begin(w, "layer_types");
    for (int i = 0; i < m->n_layers; i++)
        fprintf(w->out, "%s\"%s\"", i ? ", " : "[", sh_model_window(m, i) ? "sliding_attention" : "full_attention");
    fputc(']', w->out);
}

/* The source's window is kept if training sequences were too short to be affected by it. A window that would have
 * affected them was left out on purpose. */
static bool is_kept(const struct writer *w)
{
    json_t *window = json_object_get(w->source, "sliding_window");
    bool on = !w->f->layer_types || json_is_true(json_object_get(w->source, "use_sliding_window"));
    bool seen = on && json_is_integer(window) && json_integer_value(window) < w->cfg->training.seq_len;
    return !seen && !sh_hf_is_named("sliding_window", w->cfg->hf.ignore);
}

/* null if there is none: an absent key would mean the class's default. */
static void put_source_window(struct writer *w)
{
    const char *key;
    for (int i = 0; (key = sh_hf_blocks_window_key(i)); i++) {
        json_t *value = is_kept(w) ? json_object_get(w->source, key) : NULL;
        char *text = value && sh_hf_blocks_is_key(w->f, key) ? json_dumps(value, JSON_ENCODE_ANY) : NULL;
        if (text || i == 0)
            put_raw(w, key, text ? text : "null");
        free(text);
    }
}

/* Whether exactly every n-th block has no window. */
static bool follows_pattern(const struct sh_model *m, int n)
{
    for (int i = 0; i < m->n_layers; i++)
        if ((sh_model_window(m, i) == 0) != ((i + 1) % n == 0))
            return false;
    return true;
}

/* Write the list, and the pattern for readers that ignore the list: a number beyond the last block means that all
 * blocks have a window. */
static void put_pattern(struct writer *w)
{
    const struct sh_model *m = &w->cfg->model;
    int n = count_windows(m), full = first_of(m, SH_LAYER_SLIDING, 0);
    if (n)
        put_key(w, "sliding_window", "model.attention_window", false);
    else
        put_raw(w, "sliding_window", "null");
    put_window_blocks(w);
    if (w->f->lists_only || (n && !follows_pattern(m, full + 1)))
        return;
    begin(w, "sliding_window_pattern");
    fprintf(w->out, "%d", full + 1);
}

/* Classes some of whose blocks have no attention. */
static void put_linear(struct writer *w)
{
    const struct sh_model *m = &w->cfg->model;
    if (!w->f->interval)
        return;
    begin(w, "layer_types");
    for (int i = 0; i < m->n_layers; i++)
        fprintf(w->out, "%s\"%s\"", i ? ", " : "[", sh_family_has_delta(m, i) ? "linear_attention" : "full_attention");
    fputc(']', w->out);
}

static void put_window(struct writer *w)
{
    if (!w->f->window)
        return;
    if (w->f->pattern) {
        put_pattern(w);
        return;
    }
    if (count_windows(&w->cfg->model) == 0) {
        put_source_window(w);
        return;
    }
    put_key(w, "sliding_window", "model.attention_window", false);
    if (w->f->layer_types)
        put_window_blocks(w);
}

/* These are written although they are defaults: a later version of the class may have other defaults. */
static void put_must(struct writer *w)
{
    for (size_t i = 0; i < sizeof w->f->must / sizeof *w->f->must && w->f->must[i].key; i++) {
        const char *word = w->f->must[i].words[0];
        if (isdigit((unsigned char)word[0]) || strcmp(word, "true") == 0 || strcmp(word, "false") == 0 ||
            strcmp(word, "null") == 0)
            put_raw(w, w->f->must[i].key, word);
        else
            put_word(w, w->f->must[i].key, word);
    }
}

/* Write an object for each kind of block, and the base of blocks with a window at the top level for older readers. */
static void put_two_ropes(struct writer *w, const char *rope, const char *theta)
{
    char *own = sh_hf_number(w->cfg, "model.rope_local_base_freq", true);
    const char *local = w->cfg->model.rope_local_base_freq != 0 ? own : theta;
    begin(w, "rope_parameters");
    fputs("{\"full_attention\": {", w->out);
    if (w->f->global)
        sh_hf_global_print_rope(w->cfg, w->out);
    else
        fputs(rope ? rope : "\"rope_type\": \"default\"", w->out);
    fprintf(w->out, ", \"rope_theta\": %s}, ", theta);
    fprintf(w->out, "\"sliding_attention\": {\"rope_type\": \"default\", \"rope_theta\": %s}}", local);
    if (!w->f->lists_only)
        put_raw(w, "rope_local_base_freq", local);
    free(own);
}

static void put_one_rope(struct writer *w, const char *rope, const char *theta, bool part)
{
    begin(w, "rope_parameters");
    fprintf(w->out, "{%s, \"rope_theta\": %s", rope ? rope : "\"rope_type\": \"default\"", theta);
    if (part)
        fprintf(w->out, ", \"partial_rotary_factor\": %.17g", sh_hf_rope_part(w->cfg));
    fputc('}', w->out);
}

/* rope_parameters is read by transformers 5, rope_theta (among the values) and rope_scaling by earlier versions. */
static void put_rope(struct writer *w)
{
    /* GPT-2 has learned positions and no theta. */
    if (!w->f->key[SH_HF_THETA][0])
        return;
    char *theta = sh_hf_number(w->cfg, sh_hf_family_key(SH_HF_THETA), true);
    char *rope = sh_hf_rope_print(w->cfg, w->source);
    bool part = sh_hf_rope_part(w->cfg) != 1 || w->f->part != 0;
    if (w->f->local_theta)
        put_two_ropes(w, rope, theta);
    else
        put_one_rope(w, rope, theta, part);
    if (!w->f->global) { /* whose class never had it, and would take null for both kinds of blocks */
        begin(w, "rope_scaling");
        fprintf(w->out, rope ? "{%s}" : "null", rope);
    }
    if (part) {
        begin(w, w->f->partial);
        fprintf(w->out, "%.17g", sh_hf_rope_part(w->cfg));
    }
    /* If the class has a default for it, that takes precedence over the one in the object. */
    if (w->f->length && w->cfg->model.rope_factor != 0 && w->cfg->model.rope_type == SH_ROPE_LONG)
        put_key(w, "original_max_position_embeddings", "model.rope_original_max_len", false);
    free(theta);
    free(rope);
}

/* A class's default dropouts may be above 0, so without a source 0 is written. */
static void put_dropouts(struct writer *w)
{
    for (size_t i = 0; i < sizeof w->f->dropout / sizeof *w->f->dropout && w->f->dropout[i]; i++)
        put_source(w, w->f->dropout[i], "0.0");
}

/* Without a source, null is written: the class's default ids would be those of another tokenizer. */
static void put_kept(struct writer *w)
{
    const char *key;
    for (int i = 0; (key = sh_hf_kept_key(i)); i++)
        put_source(w, key, strstr(key, "_token_id") ? "null" : NULL);
}

/* Names of labels are the source's, if it has as many; transformers counts them. */
static void put_labels(struct writer *w)
{
    int n = w->cfg->model.num_labels;
    const char *const keys[] = {"id2label", "label2id"};
    bool named = (int)json_object_size(json_object_get(w->source, keys[0])) == n &&
                 (int)json_object_size(json_object_get(w->source, keys[1])) == n;
    if (!n)
        return;
    if (n > 1 || w->cfg->objective.name == SH_OBJECTIVE_REGRESSION)
        put_word(w, "problem_type",
                 n == 1                                               ? "regression"
                 : w->cfg->objective.name == SH_OBJECTIVE_MULTI_LABEL ? "multi_label_classification"
                                                                      : "single_label_classification");
    for (int k = 0; k < 2; k++) {
        if (named) {
            put_source(w, keys[k], NULL);
            continue;
        }
        begin(w, keys[k]);
        for (int i = 0; i < n; i++)
            fprintf(w->out, k ? "%s\"LABEL_%d\": %d" : "%s\"%d\": \"LABEL_%d\"", i ? ", " : "{", i, i);
        fputc('}', w->out);
    }
}

/* transformers before 4.56 reads torch_dtype, later versions read dtype, so both are written. */
static void put_all(struct writer *w, const char *dtype)
{
    fputc('{', w->out);
    begin(w, "architectures");
    fprintf(w->out, "[\"%s\"]",
            w->cfg->model.num_labels ? sh_family_of(w->cfg->model.family)->labels
                                     : sh_family_of(w->cfg->model.family)->architecture);
    put_labels(w);
    put_word(w, "model_type", w->f->type);
    put_word(w, "dtype", dtype);
    put_word(w, "torch_dtype", dtype);
    put_values(w);
    put_scalar(w);
    put_multipliers(w);
    put_caps(w);
    put_latent(w);
    put_positions(w);
    put_expert_blocks(w);
    put_balance(w);
    put_window(w);
    put_linear(w);
    sh_hf_global_print(w->f, w->cfg, w->out);
    sh_hf_granite_print(w->f, w->cfg, w->out);
    sh_hf_hybrid_print(w->f, w->cfg, w->out);
    put_must(w);
    put_rope(w);
    put_dropouts(w);
    put_kept(w);
    fputs("\n}\n", w->out);
}

/* Check values for which only some classes have keys. */
static sh_rc can_write_numbers(const struct sh_model *m, const struct sh_hf_family *f, const char *name)
{
    bool scalar = f->global ? m->query_pre_attn_scalar != 1
                            : m->query_pre_attn_scalar && m->query_pre_attn_scalar != m->head_dim;
    bool windows = count_windows(m) != 0;
    if (scalar && !f->key[SH_HF_SCALAR][0])
        return sh_fail(SH_E_USAGE, "model.query_pre_attn_scalar: transformers' %s %s, so the model is not exported",
                       name, f->global ? "does not divide scores" : "divides scores by the root of head_dim");
    if (f->global && sh_model_window(m, m->n_layers - 1))
        return sh_fail(
            SH_E_USAGE,
            "model.layer_types: the last block of transformers' %s has no window, so the model is not exported", name);
    for (int i = 0; i < MULTIPLIERS; i++)
        if (multiplier(m, i) != 1 && !f->key[SH_HF_EMBED_BY + i][0])
            return sh_fail(SH_E_USAGE, "%s: transformers' %s has no such factor, so the model is not exported",
                           sh_hf_family_key(SH_HF_EMBED_BY + i), name);
    for (int i = 0; i < CAPS; i++)
        if (cap_of(m, i) != 0 && !f->key[SH_HF_SCORES_CAP + i][0])
            return sh_fail(SH_E_USAGE, "%s: transformers' %s has no such cap, so the model is not exported",
                           sh_hf_family_key(SH_HF_SCORES_CAP + i), name);
    if (windows && m->rope_local_base_freq != 0 && !f->local_theta)
        return sh_fail(
            SH_E_USAGE,
            "model.rope_local_base_freq: transformers' %s has the same frequencies in all blocks, so the model is "
            "not exported",
            name);
    if (windows && m->rope_local_base_freq == 0 && m->rope_factor != 0 && f->local_theta)
        return sh_fail(
            SH_E_USAGE,
            "model.rope_factor: transformers' %s scales no frequencies of blocks with a window, so the model is not "
            "exported without model.rope_local_base_freq",
            name);
    if (f->beta && (m->rope_factor == 0 || m->rope_type != SH_ROPE_YARN))
        return sh_fail(
            SH_E_USAGE,
            "model.rope_type: transformers' %s has a factor on queries by the length before yarn, so the model is "
            "not exported without model.rope_type=yarn and model.rope_factor",
            name);
    if (m->rotary_dim && !f->partial && !f->latent && !f->global && f->key[SH_HF_THETA][0])
        return sh_fail(SH_E_USAGE, "model.rotary_dim: transformers' %s turns whole heads, so the model is not exported",
                       name);
    return SH_OK;
}

/* Check what a router may do here and not in transformers. */
static sh_rc can_write_router(const struct sh_model *m, const struct sh_hf_family *f, const char *name)
{
    bool scored = f->latent || f->hybrid; /* as in DeepSeek-V3 */
    const struct {
        bool differs;
        const char *key, *theirs;
    } rows[] = {
        {m->router != SH_ROUTER_SOFTMAX && !scored, "router", "has softmax over all experts"},
        {m->router != SH_ROUTER_SIGMOID && scored, "router", "has a sigmoid of each expert"},
        {!m->router_bias && scored, "router_bias", "always has biases for the choice of experts"},
        {m->moe_every > 1 && f->latent, "moe_every", "has experts in all blocks after the first ones"},
        {f->latent && (m->shared_ffn_dim == 0 || m->shared_ffn_dim % m->expert_ffn_dim != 0), "shared_ffn_dim",
         "has shared experts as wide as the others"},
        {m->route_norm != (f->absent[SH_HF_ROUTE_NORM] != NULL) && !f->key[SH_HF_ROUTE_NORM][0], "route_norm",
         "divides scores by their sum"},
        {m->route_scale != 0 && m->route_scale != 1 && !scored, "route_scale", "has no factor on scores"},
        {m->router_bias && !scored, "router_bias", "has no biases for the choice of experts"},
        {m->route_groups != 0 && !scored, "route_groups", "has no groups of experts"},
        {m->shared_ffn_dim == 0 && f->key[SH_HF_SHARED_FFN][0], "shared_ffn_dim", "has an expert that every token has"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].differs)
            return sh_fail(SH_E_USAGE, "model.%s: transformers' %s %s, so the model is not exported", rows[i].key, name,
                           rows[i].theirs);
    return SH_OK;
}

/* A class whose blocks have either the window or no positions, if there is a window at all. */
static sh_rc can_write_kinds(const struct sh_model *m, bool windows, const char *name)
{

    for (int i = 0; i < m->n_layers; i++) {
        unsigned kind = sh_layers_kind(m, i);
        if (windows ? kind != SH_LAYER_SLIDING && kind != SH_LAYER_NOPE : kind != 0)
            return sh_fail(
                SH_E_USAGE,
                "model.layer_types: transformers' %s has positions in blocks with a window and, if there are "
                "any, in no others, so the model is not exported",
                name);
    }
    return SH_OK;
}

sh_rc sh_hf_config_can_write(const struct sh_config *cfg)
{
    if (cfg->model.ffn_op[0])
        return sh_fail(SH_E_USAGE, "model.ffn_op=%s: transformers does not know the operation of a plug-in",
                       cfg->model.ffn_op);
    if (cfg->model.ffn[0])
        return sh_fail(SH_E_USAGE,
                       "model.ffn: transformers has only the feed-forward parts of its families, so the model "
                       "is not exported");
    const char *name = sh_family_of(cfg->model.family)->name;
    const struct sh_hf_family *f;
    int n = count_windows(&cfg->model);
    SH_TRY(sh_hf_family_to_write(name, &f));
    if (n && !f->window)
        return sh_fail(SH_E_USAGE,
                       "model.attention_window: transformers' %s has no window, so the model is not exported", name);
    if (!n && f->window_set)
        return sh_fail(
            SH_E_USAGE,
            "model.attention_window: transformers' %s computes nothing without a window, so the model is not "
            "exported",
            name);
    if (n && n < cfg->model.n_layers && !f->layer_types && !f->pattern)
        return sh_fail(SH_E_USAGE,
                       "model.layer_types: transformers' %s has its window in all blocks, so the model is not "
                       "exported",
                       name);
    if (f->full_nope)
        SH_TRY(can_write_kinds(&cfg->model, n != 0, name));
    else if (sh_layers_any(&cfg->model, SH_LAYER_NOPE) && !f->key[SH_HF_NO_ROPE][0] && !f->hybrid && !f->granite)
        return sh_fail(SH_E_USAGE,
                       "model.layer_types: transformers' %s has positions in all blocks, so the model is not exported",
                       name);
    SH_TRY(sh_hf_granite_can_write(f, &cfg->model));
    if (f->key[SH_HF_EXPERTS][0] && sh_family_takes_experts(&cfg->model))
        SH_TRY(can_write_router(&cfg->model, f, name));
    return can_write_numbers(&cfg->model, f, name);
}

static sh_rc write_text(struct writer *w, const char *dtype, char **text)
{
    size_t bytes;
    SH_TRY(sh_hf_config_can_write(w->cfg));
    SH_TRY(sh_hf_family_to_write(sh_family_of(w->cfg->model.family)->name, &w->f));
    w->out = sh_memstream(text, &bytes);
    put_all(w, dtype);
    fclose(w->out);
    return SH_OK;
}

/* The caller frees *text. `source`, which may be NULL, is the path of the config.json of the model that was loaded:
 * kept keys are copied from it. */
sh_rc sh_hf_config_write(const struct sh_config *cfg, const char *dtype, const char *source, char **text)
{
    struct writer w = {.cfg = cfg};
    /* If the source has no config.json, the model is exported nevertheless. */
    if (source && access(source, F_OK) == 0)
        SH_TRY(sh_json_load(source, SH_HF_CONFIG_MAX, &w.source));
    sh_rc rc = write_text(&w, dtype, text);
    json_decref(w.source);
    return rc;
}

/* The checkpoint of a model that did not come from a folder has no config.json. */
sh_rc sh_hf_config_write_kept(const struct sh_config *cfg, const char *dtype, const char *kept, char **text)
{
    struct writer w = {.cfg = cfg};
    if (kept)
        SH_TRY(sh_json_parse(kept, strlen(kept), "the checkpoint's hf_config", &w.source));
    sh_rc rc = write_text(&w, dtype, text);
    json_decref(w.source);
    return rc;
}
