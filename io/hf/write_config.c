#include "io/hf/config.h"

#include "io/hf/family.h"
#include "io/hf/plain.h"
#include "src/base/mem.h"

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

/* The comma stands before every key but the first. */
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

/* Words of the tables need no escapes. */
static void put_word(struct writer *w, const char *key, const char *word)
{
    begin(w, key);
    fprintf(w->out, "\"%s\"", word);
}

/* What a reader with types would take for a whole number gets a fraction. */
static char *text_of(const struct sh_config *cfg, const char *key, bool real)
{
    /* A key that cannot be read is written as null, which transformers takes as its default. */
    char *text, *longer;
    if (sh_config_get(cfg, key, &text) != SH_OK)
        return sh_strdup("null");
    if (!real || strpbrk(text, ".e"))
        return text;
    longer = sh_strfmt("%s.0", text);
    free(text);
    return longer;
}

/* The text of our value, as JSON, since numbers and booleans are written alike in both. */
static void put_key(struct writer *w, const char *theirs, const char *ours, bool real)
{
    char *text = text_of(w->cfg, ours, real);
    put_raw(w, theirs, text);
    free(text);
}

static const char *const our_key[] = {
    [SH_HF_LAYERS] = "model.n_layers", [SH_HF_DIM] = "model.dim", [SH_HF_HEADS] = "model.n_heads",
    [SH_HF_KV_HEADS] = "model.n_kv_heads", [SH_HF_HEAD_DIM] = "model.head_dim", [SH_HF_FFN] = "model.ffn_dim",
    [SH_HF_VOCAB] = "model.vocab_size", [SH_HF_POSITIONS] = "model.max_seq_len", [SH_HF_EPS] = "model.norm_eps",
    [SH_HF_INIT] = "model.init_std", [SH_HF_TIED] = "model.tie_word_embeddings", [SH_HF_THETA] = "model.rope_theta",
};

/* The keys that the family has, under their first spelling. Values of type real are printed with a fraction. */
static void put_values(struct writer *w)
{
    for (int v = 0; v < SH_HF_VALUES; v++)
        if (w->f->key[v][0])
            put_key(w, w->f->key[v][0], our_key[v], v == SH_HF_EPS || v == SH_HF_INIT || v == SH_HF_THETA);
}

/* Written out although they are defaults: a later version of the class may have other ones. */
static void put_must(struct writer *w)
{
    for (size_t i = 0; i < sizeof w->f->must / sizeof *w->f->must && w->f->must[i].key; i++) {
        const char *word = w->f->must[i].words[0];
        if (strcmp(word, "true") == 0 || strcmp(word, "false") == 0)
            put_raw(w, w->f->must[i].key, word);
        else
            put_word(w, w->f->must[i].key, word);
    }
}

/* Without braces, for it is printed in two places. */
static char *print_llama3(const struct sh_config *cfg)
{
    static const char *const rows[][2] = {{"factor", "model.rope_factor"},
                                          {"low_freq_factor", "model.rope_low_freq_factor"},
                                          {"high_freq_factor", "model.rope_high_freq_factor"},
                                          {"original_max_position_embeddings", "model.rope_original_max_len"}};
    char *text = NULL;
    size_t bytes;
    FILE *f = sh_memstream(&text, &bytes);
    /* The length is a whole number; the three factors are real. */
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *value = text_of(cfg, rows[i][1], i < 3);
        fprintf(f, "\"%s\": %s, ", rows[i][0], value);
        free(value);
    }
    fprintf(f, "\"rope_type\": \"llama3\"");
    fclose(f);
    return text;
}

/* rope_parameters is read by transformers 5, rope_theta (among the values) and rope_scaling by those before. */
static void put_rope(struct writer *w)
{
    /* GPT-2 has learned positions and no theta. */
    if (!w->f->key[SH_HF_THETA][0])
        return;
    bool llama3 = w->cfg->model.rope_factor != 0;
    char *theta = text_of(w->cfg, our_key[SH_HF_THETA], true);
    char *rope = llama3 ? print_llama3(w->cfg) : sh_strdup("\"rope_type\": \"default\"");
    begin(w, "rope_parameters");
    fprintf(w->out, "{%s, \"rope_theta\": %s}", rope, theta);
    begin(w, "rope_scaling");
    fprintf(w->out, llama3 ? "{%s}" : "null", rope);
    free(theta);
    free(rope);
}

/* Without a source null: a class's own ids would be those of another tokenizer, and its dropouts more than none. */
static void put_kept(struct writer *w)
{
    const char *key;
    for (int i = 0; (key = sh_hf_kept_key(i)); i++) {
        json_t *value = json_object_get(w->source, key);
        bool id = strstr(key, "_token_id") != NULL, dropout = sh_hf_is_dropout(key);
        char *text = value ? json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(15)) : NULL;
        /* Dropouts are named in a family's own way: GPT-2's end in pdrop. */
        if (text || id)
            put_raw(w, key, text ? text : "null");
        else if (dropout && (strcmp(w->f->type, "gpt2") == 0) == (strstr(key, "pdrop") != NULL))
            put_raw(w, key, "0.0");
        free(text);
    }
}

/* transformers before 4.56 reads torch_dtype, later versions dtype: both are there. */
static void put_all(struct writer *w, const char *dtype)
{
    fputc('{', w->out);
    begin(w, "architectures");
    fprintf(w->out, "[\"%s\"]", w->f->architecture);
    put_word(w, "model_type", w->f->type);
    put_word(w, "dtype", dtype);
    put_word(w, "torch_dtype", dtype);
    put_values(w);
    put_must(w);
    put_rope(w);
    put_kept(w);
    fputs("\n}\n", w->out);
}

/* The caller frees *text. `source`, which may be NULL, is the config.json of the model that was loaded: kept keys are
 * copied from it. */
sh_rc sh_hf_config_write(const struct sh_config *cfg, const char *dtype, const char *source, char **text)
{
    struct writer w = {.cfg = cfg};
    size_t bytes;
    char *family;
    /* config.json would say that attention sees all. */
    if (cfg->model.attention_window)
        return sh_fail(SH_E_USAGE, "a model with model.attention_window is not exported");
    SH_TRY(sh_config_get(cfg, "model.family", &family));
    w.f = sh_hf_family_to_write(family);
    free(family);
    SH_REQUIRE(w.f);
    /* A folder without the source's config.json is exported all the same. */
    if (source && access(source, F_OK) == 0)
        SH_TRY(sh_json_load(source, SH_HF_CONFIG_MAX, &w.source));
    w.out = sh_memstream(text, &bytes);
    put_all(&w, dtype);
    fclose(w.out);
    json_decref(w.source);
    return SH_OK;
}
