#include "src/text/generate/generate.h"

#include "src/base/file.h"
#include "src/base/hash.h"
#include "src/base/mem.h"
#include "src/text/chat/chat.h"
#include "src/text/chat/marks.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_BYTES = 1 << 30, MOST_LINES = 1 << 24 };

static struct sh_prompt *add(struct sh_prompts *to)
{
    to->p = sh_grow(to->p, to->n, &to->cap, sizeof *to->p);
    to->p[to->n] = (struct sh_prompt){0};
    return &to->p[to->n++];
}

static void take_text(struct sh_prompt *p, const char *text, size_t bytes)
{
    p->text = sh_calloc(bytes + 1, 1);
    memcpy(p->text, text, bytes);
    p->bytes = bytes;
}

void sh_prompts_one(const char *text, struct sh_prompts *out)
{
    *out = (struct sh_prompts){0};
    take_text(add(out), text, strlen(text));
}

/* A prompt may be empty if the tokenizer puts a token in front, which is seen when it is known. So are messages. */
static sh_rc check_line(const json_t *line, bool chat, const char *name)
{
    const json_t *text = json_object_get(line, "prompt");

    if (chat && !json_is_array(json_object_get(line, "messages")))
        return sh_fail(SH_E_DATA, "%s: want {\"messages\": [{\"role\": \"user\", \"content\": TEXT}, ...]}", name);
    if (!chat && !json_is_string(text))
        return sh_fail(SH_E_DATA, "%s: want {\"prompt\": TEXT}", name);
    return SH_OK;
}

static sh_rc take_line(const char *line, size_t bytes, bool chat, const char *name, struct sh_prompts *out)
{
    json_t *root;
    struct sh_prompt *p;
    sh_rc rc;

    SH_TRY(sh_json_parse(line, bytes, name, &root));
    rc = check_line(root, chat, name);
    if (rc != SH_OK) {
        json_decref(root);
        return rc;
    }
    p = add(out);
    p->line = root;
    if (!chat)
        take_text(p, json_string_value(json_object_get(root, "prompt")),
                  json_string_length(json_object_get(root, "prompt")));
    return SH_OK;
}

static sh_rc take_lines(const char *path, bool chat, const char *data, size_t bytes, struct sh_prompts *out)
{
    size_t at = 0;

    for (int line = 1; at < bytes; line++) {
        const char *end = memchr(data + at, '\n', bytes - at);
        size_t n = end ? (size_t)(end - data) - at : bytes - at;
        char *name;
        sh_rc rc;

        if (out->n == MOST_LINES)
            return sh_fail(SH_E_DATA, "%s has more than %d lines; split it into several files", path, MOST_LINES);
        name = sh_strfmt("%s: line %d", path, line);
        rc = n ? take_line(data + at, n, chat, name, out) : SH_OK;
        free(name);
        SH_TRY(rc);
        at += n + 1;
    }
    return out->n ? SH_OK : sh_fail(SH_E_DATA, "%s has no lines", path);
}

sh_rc sh_prompts_read(const char *path, bool chat, struct sh_prompts *out)
{
    char *data;
    size_t bytes;
    sh_rc rc;

    *out = (struct sh_prompts){0};
    SH_TRY(sh_read_file(path, MOST_BYTES, &data, &bytes));
    rc = take_lines(path, chat, data, bytes, out);
    free(data);
    if (rc != SH_OK)
        sh_prompts_free(out);
    return rc;
}

void sh_prompts_free(struct sh_prompts *of)
{
    for (int i = 0; i < of->n; i++) {
        json_decref(of->p[i].line);
        free(of->p[i].text);
        free(of->p[i].ids.id);
    }
    free(of->p);
    *of = (struct sh_prompts){0};
}

sh_rc sh_prompts_encode(const struct sh_tokenizer *tok, struct sh_prompts *of)
{
    struct sh_encoder *e = sh_encoder_create(tok);
    sh_rc rc = SH_OK;

    for (int i = 0; i < of->n && rc == SH_OK; i++) {
        rc = sh_encode(e, of->p[i].text, of->p[i].bytes, SH_ENCODE_BEGIN, &of->p[i].ids);
        if (rc == SH_OK && of->p[i].ids.n == 0)
            rc = sh_fail(SH_E_DATA, "the tokenizer makes no token from it, and a model needs one to continue");
        if (rc != SH_OK)
            rc = sh_fail_prefix(rc, of->p[i].line ? "prompt %d: " : "--prompt: ", i + 1);
    }
    sh_encoder_destroy(e);
    return rc;
}

/* The template writes what begins a text, so the tokenizer must put nothing in front. */
sh_rc sh_prompts_render(const struct sh_tokenizer *tok, const struct sh_template *t, bool strange,
                        struct sh_prompts *of)
{
    struct sh_encoder *e = sh_encoder_create(tok);
    struct sh_marks *marks = sh_marks_create(tok);
    struct sh_chat chat = {0};
    struct sh_text mask = {0};
    sh_rc rc = SH_OK;

    for (int i = 0; i < of->n && rc == SH_OK; i++) {
        sh_chat_clear(&chat);
        mask.n = 0;
        rc = sh_chat_prompt(t, of->p[i].line, &chat);
        if (rc == SH_OK)
            rc = sh_marks_encode(marks, e, &chat, -1, strange, &of->p[i].ids, &mask, NULL);
        if (rc != SH_OK)
            rc = sh_fail_prefix(rc, "conversation %d: ", i + 1);
    }
    free(mask.at);
    sh_chat_free(&chat);
    sh_marks_destroy(marks);
    sh_encoder_destroy(e);
    return rc;
}

uint64_t sh_prompts_hash(const struct sh_prompts *of)
{
    uint64_t h = 0;

    for (int i = 0; i < of->n; i++)
        h = sh_mix64(h ^ sh_hash64(of->p[i].ids.id, of->p[i].ids.n * sizeof *of->p[i].ids.id));
    return h;
}
