/* Which tokenizer a name means, and the calls through its table of functions. A folder or a file of transformers, or
 * the word "byte". A tokenizer is read once and shared; an encoder belongs to one thread. */
#include "io/token/token.h"

#include "io/json/json.h"
#include "io/token/hf.h"
#include "src/base/file.h"
#include "src/base/hash.h"
#include "src/base/mem.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The largest known tokenizer.json has some 30 MB. */
enum { MOST_BYTES = 256 << 20, MOST_CONFIG = 1 << 20 };

/* `own` is NULL where the tokenizer needs no scratch memory. */
struct sh_encoder {
    const struct sh_tokenizer *t;
    void *own;
};

/* A word or a list of them; of a list the first. -1: none. */
static int64_t first_id(const json_t *value)
{
    if (json_is_array(value))
        value = json_array_get(value, 0);
    return json_is_integer(value) && json_integer_value(value) >= 0 ? json_integer_value(value) : -1;
}

/* An id or a list of them. */
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

/* What a model's folder says about the end of a text; nothing changes where there is no such file, or nothing in it. */
static sh_rc read_end(struct sh_tokenizer *t, const char *folder, const char *name)
{
    char *path = sh_path_join(folder, name);
    json_t *config;
    sh_rc rc = SH_OK;

    /* An earlier file that named one wins. */
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

/* generation_config.json goes first: models for chat name the token there that ends an answer. Ids beyond the words
 * mean that files of two models are mixed. */
static sh_rc find_end(struct sh_tokenizer *t)
{
    const char *slash = strrchr(t->path, '/');
    char *folder = slash ? sh_strfmt("%.*s", (int)(slash - t->path) + 1, t->path) : sh_strdup(".");
    sh_rc rc;

    t->end = -1;
    SH_TRY_OUT(read_end(t, folder, "generation_config.json"));
    SH_TRY_OUT(read_end(t, folder, "config.json"));
    if (t->end >= t->vocab_size)
        rc = sh_fail(SH_E_DATA, "%s: eos_token_id of its folder is %lld, and it has %d words; are they of one model?",
                     t->path, (long long)t->end, t->vocab_size);
out:
    free(folder);
    return rc;
}

/* What people have beside a tokenizer.json, and how to make one of it. */
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

/* Files of others are known by their names; their first line would say "no JSON" only. */
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

/* *path is the caller's. */
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
        *path = NULL; /* the tokenizer has it, and is closed */
        return refuse_folder(name);
    }
    return SH_OK;
}

/* The file is read whole, so that its hash is of the bytes that were parsed. */
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
    return find_end(t);
}

/* A file that is called "byte" is given as ./byte. */
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

/* NULL is fine; encoders must be destroyed before. */
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

/* The id of a word, -1: there is none. */
int64_t sh_tokenizer_find(const struct sh_tokenizer *t, const char *word)
{
    return t->ops->find ? t->ops->find(t->own, word) : -1;
}

/* Models for chat have several: the end of a text, and that of an answer. */
bool sh_tokenizer_ends(const struct sh_tokenizer *t, uint32_t id)
{
    for (int i = 0; i < t->n_ends; i++)
        if (t->ends[i] == id)
            return true;
    return false;
}

/* Each once, since a chat template may name one that the folder has. */
void sh_tokenizer_add_end(struct sh_tokenizer *t, uint32_t id)
{
    if (sh_tokenizer_ends(t, id))
        return;
    t->ends = sh_realloc(t->ends, (size_t)t->n_ends + 1, sizeof *t->ends);
    t->ends[t->n_ends++] = id;
}

/* Without a function of its own a tokenizer has words of one byte. */
void sh_tokenizer_lengths(const struct sh_tokenizer *t, uint32_t *bytes)
{
    if (t->ops->lengths)
        t->ops->lengths(t->own, bytes);
    for (int i = 0; !t->ops->lengths && i < t->vocab_size; i++)
        bytes[i] = 1;
}

/* Keeps `t` by address. */
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
    return e->t->ops->encode(e->t->own, e->own, text, bytes, how, out);
}

/* Without an encoder: decoding needs no scratch memory. */
sh_rc sh_decode_ids(const struct sh_tokenizer *t, const uint32_t *ids, size_t n, bool special, char **text,
                    size_t *bytes)
{
    return t->ops->decode(t->own, ids, n, special, text, bytes);
}
