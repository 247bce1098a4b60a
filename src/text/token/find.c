/* Finds the tokenizer that a name means, and calls it through its table of functions. A name is a folder or a file of
 * transformers, or the word "byte". A tokenizer is read once and shared; an encoder belongs to one thread. */
#include "src/text/token/token.h"

#include "io/json/json.h"
#include "src/base/file.h"
#include "src/base/hash.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/text/token/hf.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The largest known tokenizer.json is about 30 MB. */
enum { MOST_BYTES = 256 << 20, MOST_CONFIG = 16 << 20 };

/* `own` is NULL if the tokenizer needs no scratch memory. */
struct sh_encoder {
    const struct sh_tokenizer *t;
    void *own;
};

/* Return an id, or the first one of a list of ids. -1: none. */
static int64_t first_id(const json_t *value)
{
    if (json_is_array(value))
        value = json_array_get(value, 0);
    return json_is_integer(value) && json_integer_value(value) >= 0 ? json_integer_value(value) : -1;
}

/* Keep an id or a list of ids as the tokenizer's ends. */
static void take_ends(struct sh_tokenizer *t, const json_t *value)
{
    size_t n = json_is_array(value) ? json_array_size(value) : 1;

    t->end = first_id(value);
    t->ends = sh_calloc(n + 1, sizeof *t->ends);
    for (size_t i = 0; i < n && t->end >= 0; i++) {
        int64_t id = first_id(json_is_array(value) ? json_array_get(value, i) : value);

        if (id >= 0 && id <= UINT32_MAX)
            t->ends[t->n_ends++] = (uint32_t)id;
    }
}

/* Read which token ends a text from a file of the model's folder; nothing changes if the file does not exist or does
 * not say. */
static sh_rc read_end(struct sh_tokenizer *t, const char *folder, const char *name)
{
    char *path = sh_path_join(folder, name);
    json_t *config;
    sh_rc rc = SH_OK;

    /* The first file that names one wins. */
    if (t->end < 0 && access(path, F_OK) == 0) {
        SH_TRY_OUT(sh_json_load(path, MOST_CONFIG, &config));
        free(t->ends);
        take_ends(t, json_object_get(config, "eos_token_id"));
        json_decref(config);
    }
out:
    free(path);
    return rc;
}

/* generation_config.json takes precedence: chat models name there the token that ends an answer. An id outside the
 * vocabulary means that the folder mixes files of two models. */
static sh_rc find_end(struct sh_tokenizer *t)
{
    const char *slash = strrchr(t->path, '/');
    char *folder = slash ? sh_strfmt("%.*s", (int)(slash - t->path) + 1, t->path) : sh_strdup(".");
    sh_rc rc;

    t->end = -1;
    SH_TRY_OUT(read_end(t, folder, "generation_config.json"));
    SH_TRY_OUT(read_end(t, folder, "config.json"));
    if (t->end >= t->vocab_size)
        rc = sh_fail(SH_E_DATA,
                     "%s: eos_token_id in its folder is %lld, but it has %d words; are both of the same model?",
                     t->path, (long long)t->end, t->vocab_size);
out:
    free(folder);
    return rc;
}

/* Other tokenizer files that a folder may have instead of a tokenizer.json, and how to make one from them. */
static sh_rc refuse_folder(const char *folder)
{
    static const struct {
        const char *name, *cure;
    } others[] = {
        {"tokenizer.model", "it has SentencePiece's tokenizer.model; make one: python3 -c \"from transformers import "
                            "AutoTokenizer; AutoTokenizer.from_pretrained('DIR').save_pretrained('DIR')\""},
        {"vocab.json",
         "it has vocab.json and merges.txt; make one: python3 -c \"from transformers import AutoTokenizer; "
         "AutoTokenizer.from_pretrained('DIR').save_pretrained('DIR')\""},
    };

    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        char *path = sh_path_join(folder, others[i].name);
        bool there = access(path, F_OK) == 0;
        free(path);
        if (there)
            return sh_fail(SH_E_DATA, "%s has no tokenizer.json; %s", folder, others[i].cure);
    }
    return sh_fail(SH_E_DATA, "%s has no tokenizer.json", folder);
}

/* Recognize other tokenizers' files by their names; parsing them would only give "not JSON". */
static sh_rc refuse_others(const char *path)
{
    static const struct {
        const char *end, *cure;
    } others[] = {
        {".model", "is SentencePiece's; make a tokenizer.json of its folder: python3 -c \"from transformers import "
                   "AutoTokenizer; AutoTokenizer.from_pretrained('DIR').save_pretrained('DIR')\""},
        {".tiktoken",
         "is tiktoken's and has neither the expression that cuts text nor the special tokens; make a tokenizer.json of "
         "all three: python3 -c \"from transformers.convert_slow_tokenizer import TikTokenConverter; "
         "TikTokenConverter('FILE', pattern='...', extra_special_tokens=['...']).converted().save('tokenizer.json')\""},
    };
    size_t n = strlen(path);

    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        size_t end = strlen(others[i].end);
        if (n > end && strcmp(path + n - end, others[i].end) == 0)
            return sh_fail(SH_E_DATA, "%s %s", path, others[i].cure);
    }
    return SH_OK;
}

/* *path is freed by the caller. */
static sh_rc find_file(const char *name, char **path)
{
    struct stat st;

    if (stat(name, &st) != 0)
        return sh_fail(
            SH_E_USAGE,
            "no tokenizer is called \"%s\", and there is no such file; give byte, a folder that has tokenizer.json, or "
            "such a file",
            name);
    if (!S_ISDIR(st.st_mode))
        SH_TRY(refuse_others(name));
    *path = S_ISDIR(st.st_mode) ? sh_path_join(name, "tokenizer.json") : sh_strdup(name);
    if (S_ISDIR(st.st_mode) && access(*path, F_OK) != 0) {
        free(*path);
        *path = NULL; /* the tokenizer owns it, and is closed */
        return refuse_folder(name);
    }
    return SH_OK;
}

/* transformers adds these tokens when it opens a folder; `tokenizers`, whose ids Sherd has, does not know them. */
static void count_lacking(const struct sh_tokenizer *t, const json_t *config, int *n, const char **first)
{
    const json_t *value;
    const char *id;

    json_object_foreach(json_object_get(config, "added_tokens_decoder"), id, value)
    {
        const char *content = json_string_value(json_object_get(value, "content"));
        if (!content || !json_is_true(json_object_get(value, "special")) || sh_tokenizer_find(t, content) >= 0)
            continue;
        *first = (*n)++ ? *first : content;
    }
}

/* Say once if tokenizer_config.json has special tokens that tokenizer.json lacks: their text is split like any other.
 * A config that cannot be read is of no concern to ids. */
static void note_lacking(const struct sh_tokenizer *t)
{
    static _Atomic uint64_t told;
    const char *slash = strrchr(t->path, '/'), *first = NULL;
    char *path = sh_strfmt("%.*stokenizer_config.json", slash ? (int)(slash - t->path) + 1 : 0, t->path);
    json_t *config = NULL;
    int n = 0;

    if (told != t->hash && access(path, F_OK) == 0 && sh_json_load(path, MOST_CONFIG, &config) == SH_OK)
        count_lacking(t, config, &n, &first);
    sh_error_clear();
    if (n)
        sh_log_info("note: %s has %d special token%s that tokenizer.json lacks, as %.40s: their text is split like any "
                    "other; save the tokenizer again with transformers to have them",
                    path, n, n == 1 ? "" : "s", first);
    told = t->hash;
    json_decref(config);
    free(path);
}

/* The file is read as a whole, so the hash is of the very bytes that are parsed. */
static sh_rc open_file(struct sh_tokenizer *t)
{
    struct sh_hf *hf;
    size_t bytes;
    char *text;

    SH_TRY(sh_read_file(t->path, MOST_BYTES, &text, &bytes));
    t->hash = sh_hash64(text, bytes);
    sh_rc rc = sh_token_json_parse(text, bytes, t->path, &hf);
    free(text);
    if (rc != SH_OK)
        return rc;
    t->own = hf;
    t->vocab_size = hf->words;
    note_lacking(t);
    return find_end(t);
}

/* "byte" is always the tokenizer; a file of that name can be given as ./byte. */
sh_rc sh_tokenizer_open(const char *name, struct sh_tokenizer **out)
{
    bool byte = strcmp(name, sh_token_byte.name) == 0;
    struct sh_tokenizer *t = sh_calloc(1, sizeof *t);
    sh_rc rc;

    *t = (struct sh_tokenizer){.ops = byte ? &sh_token_byte : &sh_token_hf, .vocab_size = 256, .end = -1};
    if (byte) {
        t->path = sh_strdup(name);
    } else {
        SH_TRY_OUT(find_file(name, &t->path));
        SH_TRY_OUT(open_file(t));
    }
    *out = t;
    return SH_OK;
out:
    sh_tokenizer_close(t);
    return rc;
}

/* NULL is fine; encoders must be destroyed first. */
void sh_tokenizer_close(struct sh_tokenizer *t)
{
    if (!t)
        return;
    if (t->ops->close)
        t->ops->close(t->own);
    free(t->path);
    free(t->ends);
    free(t);
}

/* Return the id of a word, -1 if there is none. */
int64_t sh_tokenizer_find(const struct sh_tokenizer *t, const char *word)
{
    return t->ops->find ? t->ops->find(t->own, word) : -1;
}

/* Chat models have several ends: the end of a text, and the end of an answer. */
bool sh_tokenizer_ends(const struct sh_tokenizer *t, uint32_t id)
{
    for (int i = 0; i < t->n_ends; i++)
        if (t->ends[i] == id)
            return true;
    return false;
}

/* Add each id only once: a chat template may name one that the folder already has. */
void sh_tokenizer_add_end(struct sh_tokenizer *t, uint32_t id)
{
    if (sh_tokenizer_ends(t, id))
        return;
    t->ends = sh_realloc(t->ends, (size_t)t->n_ends + 1, sizeof *t->ends);
    t->ends[t->n_ends++] = id;
}

/* A tokenizer without a `lengths` function has words of one byte. */
void sh_tokenizer_lengths(const struct sh_tokenizer *t, uint32_t *bytes)
{
    if (t->ops->lengths)
        t->ops->lengths(t->own, bytes);
    for (int i = 0; !t->ops->lengths && i < t->vocab_size; i++)
        bytes[i] = 1;
}

/* Keeps a pointer to `t`. */
struct sh_encoder *sh_encoder_create(const struct sh_tokenizer *t)
{
    struct sh_encoder *e = sh_calloc(1, sizeof *e);

    e->t = t;
    e->own = t->ops->create ? t->ops->create(t->own) : NULL;
    return e;
}

/* NULL is fine. */
void sh_encoder_destroy(struct sh_encoder *e)
{
    if (e && e->t->ops->destroy)
        e->t->ops->destroy(e->own);
    free(e);
}

/* Appends to `out`. */
sh_rc sh_encode(struct sh_encoder *e, const void *text, size_t bytes, unsigned how, struct sh_ids *out)
{
    return e->t->ops->encode(e->t->own, e->own, text, bytes, how, out, NULL);
}

sh_rc sh_encode_places(struct sh_encoder *e, const void *text, size_t bytes, struct sh_ids *out,
                       struct sh_places *places)
{
    return e->t->ops->encode(e->t->own, e->own, text, bytes, 0, out, places);
}

/* Without an encoder: decoding needs no scratch memory. */
sh_rc sh_decode_ids(const struct sh_tokenizer *t, const uint32_t *ids, size_t n, bool special, char **text,
                    size_t *bytes)
{
    return t->ops->decode(t->own, ids, n, special, text, bytes);
}
