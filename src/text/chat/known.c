/* Recognizes the chat template in a model's folder by the digest of its Jinja text, which is neither run nor searched
 * for hints. A text that is not in the table is refused. */
#include "src/text/chat/chat.h"

#include "io/json/json.h"
#include "src/base/file.h"
#include "src/base/hash.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_BYTES = 16 << 20 }; /* that of Gemma 3 has 1.2 MB */

/* Texts that render each conversation exactly like the row of template.c (tests/hf/test_chat.py has the rows' own Jinja
 * texts), taken from the tokenizer_config.json of the model named; bos and eos are what the row writes for bos_token
 * and eos_token, NULL: not checked. A text that writes the day on which it is rendered (Llama 3.2, 3.3) has no row. */
static const struct known {
    uint64_t digest; /* sh_chat_template_digest() */
    const char *name, *bos, *eos;
} known[] = {
    {0x81b1f9242e2cce83, "chatml", NULL, NULL},                  /* doc/data.md, for folders without one */
    {0xa04f41d813a07b13, "chatml", NULL, NULL},                  /* teknium/OpenHermes-2.5-Mistral-7B */
    {0x9799ad6e2dea0594, "llama3", "<|begin_of_text|>", NULL},   /* meta-llama/Meta-Llama-3-8B-Instruct */
    {0xa04c0d765923822c, "chatml", NULL, NULL},                  /* Qwen/Qwen3-4B-Instruct-2507 */
    {0xf9a29021c9d093ad, "qwen2.5", NULL, NULL},                 /* Qwen/Qwen2.5-7B-Instruct */
    {0x4372a702009a6e39, "qwen3", NULL, NULL},                   /* Qwen/Qwen3-8B */
    {0xda8ae4616203881a, "llama3.1", "<|begin_of_text|>", NULL}, /* meta-llama/Llama-3.1-8B-Instruct */
    {0xcb7c5112dfc4a3b0, "llama2", "<s>", "</s>"},               /* meta-llama/Llama-2-13b-chat-hf */
    {0xc8e457151b225c66, "gemma", "<bos>", NULL},                /* google/gemma-3-1b-it */
};

/* Normalize a Jinja text: both ways to write a line end in a string become the same, and the last line end, which Jinja
 * drops, is removed. */
static void plain_text(const char *s, size_t n, struct sh_text *out)
{
    bool code = false;
    char quote = 0;

    n -= n > 0 && s[n - 1] == '\n';
    for (size_t i = 0; i < n; i++) {
        char c = s[i], next = i + 1 < n ? s[i + 1] : 0;

        if (quote && c == '\\' && next == 'n') {
            c = '\n';
            i++;
        } else if (quote && c == '\\' && next) {
            sh_text_put(out, &c, 1);
            c = next;
            i++;
        } else if (quote) {
            quote = c == quote ? 0 : quote;
        } else if (code) {
            quote = c == '\'' || c == '"' ? c : 0;
            code = !((c == '}' || c == '%') && next == '}');
        } else {
            code = c == '{' && (next == '{' || next == '%');
        }
        sh_text_put(out, &c, 1);
    }
}

uint64_t sh_chat_template_digest(const char *text, size_t bytes)
{
    struct sh_text plain = {0};

    plain_text(text, bytes, &plain);
    uint64_t digest = sh_hash64(plain.at, plain.n);
    free(plain.at);
    return digest;
}

static const struct known *find(const char *text, size_t bytes)
{
    uint64_t digest = sh_chat_template_digest(text, bytes);

    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (known[i].digest == digest)
            return &known[i];
    return NULL;
}

/* Return the template; if there are several, the one named "default". */
static const char *template_of(const json_t *config)
{
    const json_t *value = json_object_get(config, "chat_template");
    size_t i;
    json_t *row;

    json_array_foreach(value, i, row)
    {
        const char *name = json_string_value(json_object_get(row, "name"));
        if (name && !strcmp(name, "default"))
            return json_string_value(json_object_get(row, "template"));
    }
    return json_string_value(value);
}

/* Get the text of a special token: it is a string, or an object that contains it. */
static const char *token_of(const json_t *config, const char *key)
{
    const json_t *value = json_object_get(config, key);

    return json_string_value(json_is_object(value) ? json_object_get(value, "content") : value);
}

/* Whether the folder's token differs from the one that the row spells out. */
static bool differs(const json_t *config, const char *key, const char *wanted)
{
    const char *is = token_of(config, key);

    return wanted && is && strcmp(is, wanted) != 0;
}

/* Return the path of a file in the tokenizer's folder. */
static char *beside(const char *tokenizer, const char *name)
{
    const char *slash = strrchr(tokenizer, '/');

    return sh_strfmt("%.*s%s", slash ? (int)(slash - tokenizer) + 1 : 0, tokenizer, name);
}

/* chat_template.jinja takes precedence, as in transformers. config: tokenizer_config.json, NULL: there is none. */
static void recognise(const char *jinja, size_t bytes, const json_t *config, const char **name, const char **why)
{
    const char *text = jinja ? jinja : template_of(config);
    const struct known *k = text ? find(text, jinja ? bytes : strlen(text)) : NULL;

    *why = !text ? "has no chat template"
           : !k  ? "has a chat template that is not known here"
           : differs(config, "bos_token", k->bos) || differs(config, "eos_token", k->eos)
               ? "has a known chat template, but not its bos_token and eos_token"
               : NULL;
    *name = k ? k->name : NULL;
}

sh_rc sh_chat_template_beside(const struct sh_tokenizer *tok, const char **name, const char **why)
{
    char *jinja_path = beside(tok->path, "chat_template.jinja"), *jinja = NULL;
    char *config_path = beside(tok->path, "tokenizer_config.json");
    json_t *config = NULL;
    size_t bytes = 0;
    sh_rc rc = SH_OK;

    *why = "has no chat template";
    if (!strcmp(tok->path, "byte"))
        goto out;
    if (access(jinja_path, F_OK) == 0)
        SH_TRY_OUT(sh_read_file(jinja_path, MOST_BYTES, &jinja, &bytes));
    if (access(config_path, F_OK) == 0)
        SH_TRY_OUT(sh_json_load(config_path, MOST_BYTES, &config));
    recognise(jinja, bytes, config, name, why);
out:
    json_decref(config);
    free(jinja);
    free(jinja_path);
    free(config_path);
    return rc;
}
