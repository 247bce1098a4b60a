#include "io/foreign/hf/state.h"

#include "src/base/file.h"
#include "src/base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STATE_MAX = 64 << 20, VERSION = 1 };
#define FORMAT "sherd-state"

const char *const sh_hf_state_stem[SH_HF_STATES] = {"model", "exp_avg", "exp_avg_sq"};

bool sh_hf_state_is(const char *folder)
{
    char *path = sh_path_join(folder, SH_HF_STATE_FILE);
    bool there = access(path, F_OK) == 0;
    free(path);
    return there;
}

/* The keys of state.json, each of which is required. Counts may be null if `unknown`; the others are finite and within
 * [0, most]. OTHER: has a rule of its own below. */
#define AT(field) offsetof(struct sh_hf_state, field)
static const struct key {
    const char *name;
    size_t at;
    enum { COUNT, UNKNOWN, NUMBER, OTHER } kind;
    double most;
} keys[] = {
    {"step", AT(step), COUNT, 0x1p53},
    {"updates", AT(updates), COUNT, 0x1p53},
    {"samples", AT(samples), UNKNOWN, 0x1p53},
    {"tokens", AT(tokens), UNKNOWN, 0x1p53},
    {"lr", AT(lr), NUMBER, 1e6},
    {"beta1", AT(beta1), NUMBER, 1},
    {"beta2", AT(beta2), NUMBER, 1},
    {"eps", AT(eps), NUMBER, 1},
    {"weight_decay", AT(weight_decay), NUMBER, 100},
    {"format", 0, OTHER, 0},
    {"version", 0, OTHER, 0},
    {"optimizer", 0, OTHER, 0},
    {"decay", 0, OTHER, 0},
    {"source", 0, OTHER, 0},
};
enum { KEYS = sizeof keys / sizeof *keys };

static sh_rc read_number(const struct key *k, const char *path, const json_t *value, struct sh_hf_state *out)
{
    void *field = (char *)out + k->at;
    double x = json_number_value(value);
    if (k->kind == UNKNOWN && json_is_null(value)) {
        *(int64_t *)field = -1;
        return SH_OK;
    }
    if (!(k->kind == NUMBER ? json_is_number(value) : json_is_integer(value)) || !(x >= 0 && x <= k->most))
        return sh_fail(SH_E_DATA, "%s: %s is %s; it must be %s from 0 to %g%s", path, k->name,
                       json_is_number(value) ? "out of range" : sh_json_is(value),
                       k->kind == NUMBER ? "a number" : "a whole number", k->most,
                       k->kind == UNKNOWN ? ", or null" : "");
    if (k->kind == NUMBER)
        *(double *)field = x;
    else
        *(int64_t *)field = json_integer_value(value);
    return SH_OK;
}

/* An array of different plain names becomes an object, in which they are found quickly. */
static sh_rc read_decay(const char *path, const json_t *value, struct sh_hf_state *out)
{
    out->decay = json_object();
    if (!json_is_array(value))
        return sh_fail(SH_E_DATA, "%s: decay is %s; it must be an array of names", path, sh_json_is(value));
    for (size_t i = 0; i < json_array_size(value); i++) {
        const char *name = json_string_value(json_array_get(value, i));
        if (!name || json_string_length(json_array_get(value, i)) != strlen(name) || !sh_st_name_plain(name))
            return sh_fail(SH_E_DATA, "%s: number %zu of decay is not the name of a tensor", path, i + 1);
        if (json_object_get(out->decay, name))
            return sh_fail(SH_E_DATA, "%s: decay has %s twice", path, name);
        json_object_set_new(out->decay, name, json_true());
    }
    return SH_OK;
}

/* One that a newer version writes may mean something else, so it is refused. */
static sh_rc check_kind(const char *path, const json_t *root)
{
    const char *format = json_string_value(json_object_get(root, "format")),
               *optimizer = json_string_value(json_object_get(root, "optimizer"));
    if (!format || strcmp(format, FORMAT) != 0)
        return sh_fail(SH_E_DATA,
                       "%s: this is not the " SH_HF_STATE_FILE " of a state folder: format is not \"" FORMAT "\"",
                       path);
    if (json_integer_value(json_object_get(root, "version")) != VERSION)
        return sh_fail(SH_E_DATA, "%s: version is not %d, the only one that this Sherd reads", path, VERSION);
    if (!optimizer || strcmp(optimizer, "AdamW") != 0)
        return sh_fail(SH_E_DATA, "%s: optimizer is not \"AdamW\", whose moments a state folder has", path);
    return SH_OK;
}

static bool is_key(const char *name)
{
    for (int i = 0; i < KEYS; i++)
        if (strcmp(keys[i].name, name) == 0)
            return true;
    return false;
}

static sh_rc check_names(const char *path, json_t *root)
{
    const char *name;
    json_t *value;
    for (int i = 0; i < KEYS; i++)
        if (!json_object_get(root, keys[i].name))
            return sh_fail(SH_E_DATA, "%s: %s is missing", path, keys[i].name);
    json_object_foreach(root, name, value)
    {
        if (!is_key(name))
            return sh_fail(SH_E_DATA, "%s: unknown key %s", path,
                           sh_st_name_plain(name) ? name : "with control characters");
    }
    return SH_OK;
}

static sh_rc take(const char *path, json_t *root, struct sh_hf_state *out)
{
    if (!json_is_object(root))
        return sh_fail(SH_E_DATA, "%s: it is %s, not an object", path, sh_json_is(root));
    SH_TRY(check_kind(path, root));
    SH_TRY(check_names(path, root));
    for (int i = 0; i < KEYS; i++)
        if (keys[i].kind != OTHER)
            SH_TRY(read_number(&keys[i], path, json_object_get(root, keys[i].name), out));
    if (out->updates > out->step)
        return sh_fail(SH_E_DATA, "%s: updates is %lld, more than step, %lld", path, (long long)out->updates,
                       (long long)out->step);
    const char *source = json_string_value(json_object_get(root, "source"));
    if (!source || !sh_st_name_plain(source))
        return sh_fail(SH_E_DATA, "%s: source is not a line of text", path);
    out->source = sh_strdup(source);
    return read_decay(path, json_object_get(root, "decay"), out);
}

sh_rc sh_hf_state_read(const char *folder, struct sh_hf_state *out)
{
    char *path = sh_path_join(folder, SH_HF_STATE_FILE);
    json_t *root = NULL;
    *out = (struct sh_hf_state){0};
    sh_rc rc = sh_json_load(path, STATE_MAX, &root);
    if (rc == SH_OK)
        rc = take(path, root, out);
    json_decref(root);
    free(path);
    if (rc != SH_OK)
        sh_hf_state_free(out);
    return rc;
}

void sh_hf_state_free(struct sh_hf_state *s)
{
    json_decref(s->decay);
    free(s->source);
    *s = (struct sh_hf_state){0};
}

/* ---- which parameters decay ---- */

/* What a run with decay_all = `all` does with the parameters of a role. */
static bool decays_here(const struct sh_ckpt_tensor *t, bool all)
{
    return !sh_param_info(t->role)->still && (all || !sh_param_info(t->role)->vector);
}

/* The first part for which folder and run differ; -1: none. */
static int find_other(const struct sh_hf_state *s, const struct sh_hf_spread *spread,
                      const struct sh_st_entry *const *entry, bool all)
{
    for (int i = 0; i < spread->n; i++)
        if ((json_object_get(s->decay, entry[i]->name) != NULL) != decays_here(&spread->part[i], all))
            return i;
    return -1;
}

static sh_rc check_known(const char *of, const struct sh_hf_state *s, const struct sh_hf_spread *spread,
                         const struct sh_st_entry *const *entry)
{
    json_t *all = json_object(), *value;
    const char *name;
    sh_rc rc = SH_OK;
    for (int i = 0; i < spread->n; i++)
        json_object_set_new(all, entry[i]->name, json_true());
    json_object_foreach(s->decay, name, value)
    {
        if (rc == SH_OK && !json_object_get(all, name))
            rc = sh_fail(SH_E_DATA, "%s/" SH_HF_STATE_FILE ": decay has %s, which is not a tensor of this model", of,
                         name);
    }
    json_decref(all);
    return rc;
}

sh_rc sh_hf_state_decays(const char *of, const struct sh_hf_state *s, const struct sh_hf_spread *spread,
                         const struct sh_st_entry *const *entry, bool *all)
{
    int other;
    *all = false;
    SH_TRY(check_known(of, s, spread, entry));
    if (s->weight_decay == 0 || (other = find_other(s, spread, entry, false)) < 0)
        return SH_OK;
    *all = true;
    if (find_other(s, spread, entry, true) < 0)
        return SH_OK;
    return sh_fail(
        SH_E_DATA,
        "%s: the weight decay there was %s %s, and neither value of optimizer.decay_all does the same: false "
        "lets matrices and embeddings decay, true all parameters",
        of, json_object_get(s->decay, entry[other]->name) ? "on" : "not on", entry[other]->name);
}

/* ---- writing ---- */

char *sh_hf_state_text(const struct sh_config *cfg, const struct sh_ckpt_meta *meta, const struct sh_hf_spread *spread)
{
    char *text = NULL;
    size_t bytes;
    FILE *f = sh_memstream(&text, &bytes);
    int n = 0;
    fprintf(f, "{\n  \"format\": \"" FORMAT "\",\n  \"version\": %d,\n  \"optimizer\": \"AdamW\",\n", VERSION);
    fprintf(f, "  \"step\": %lld,\n  \"updates\": %lld,\n  \"samples\": %lld,\n  \"tokens\": %lld,\n",
            (long long)meta->step, (long long)meta->updates, (long long)meta->samples, (long long)meta->tokens);
    fprintf(f, "  \"lr\": %.17g,\n  \"beta1\": %.17g,\n  \"beta2\": %.17g,\n  \"eps\": %.17g,\n", cfg->optimizer.lr,
            cfg->optimizer.beta1, cfg->optimizer.beta2, cfg->optimizer.eps);
    fprintf(f, "  \"weight_decay\": %.17g,\n  \"source\": \"a checkpoint of Sherd\",\n  \"decay\": [",
            cfg->optimizer.weight_decay);
    for (int i = 0; i < spread->n; i++)
        if (decays_here(&spread->part[i], cfg->optimizer.decay_all))
            fprintf(f, "%s\n    \"%s\"", n++ ? "," : "", spread->part[i].name);
    fprintf(f, "%s]\n}\n", n ? "\n  " : "");
    fclose(f);
    return text;
}
