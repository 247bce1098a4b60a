/* Lines of conversations: each form and template accepts them, or refuses them in one line; stretches are in the text
 * and do not touch; ids are those of the text as a whole, although it is cut; something is learned, and no more than
 * the stretches.
 *
 *   fuzz_chat [RUNS [SEED]]       random mutations of good lines; default 20000 runs; with SHERD_LONG as fuzz.h says
 *   clang -fsanitize=fuzzer       built with -DSH_LIBFUZZER: guided by coverage */
#include "src/base/hash.h"
#include "src/text/chat/chat.h"
#include "src/text/chat/marks.h"
#include "src/text/token/hf.h"
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

/* A model with each ASCII character that JSON needs no escape for, all bytes, one merge across a space, and special
 * tokens with and without white space that they take. */
static char *make_json(void)
{
    struct sh_text t = {0};
    char word[160];
    int id = 6;
#define ADD(...) sh_text_put(&t, word, (size_t)snprintf(word, sizeof word, __VA_ARGS__))

    ADD("{\"added_tokens\":[");
    for (int i = 0; i < 6; i++)
        ADD("%s{\"id\":%d,\"content\":\"%s\",\"special\":%s,\"normalized\":false,\"lstrip\":%s,\"rstrip\":%s}",
            i ? "," : "", i, (const char *const[]){"<|im_start|>", "<|im_end|>", "<s>", "</s>", "<l>", "<r>"}[i],
            i < 4 ? "true" : "false", i == 4 ? "true" : "false", i == 5 ? "true" : "false");
    ADD("],\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"_\"},");
    ADD("{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"_\"}]},");
    ADD("\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"vocab\":{\"<|im_start|>\":0,\"<|im_end|>\":1,\"<s>\":2,\"</s>\":3,\"<l>\":4,\"<r>\":5");
    for (int c = 0; c < 256; c++, id++)
        ADD(",\"<0x%02X>\":%d", c, id);
    for (int c = 33; c < 127; c++)
        if (c != '"' && c != '\\')
            ADD(",\"%c\":%d", c, id++);
    ADD(",\"_a\":%d,\"_ab\":%d},\"merges\":[\"_ a\",\"_a b\"]}}", id, id + 1);
    sh_text_put(&t, "", 1);
#undef ADD
    return (char *)t.at;
}

static struct sh_tokenizer tokenizer;
static struct sh_encoder *encoder;
static struct sh_marks *marks;

static void start(void)
{
    char *json = make_json();
    struct sh_hf *hf;

    if (sh_token_json_parse(json, strlen(json), "fuzz", &hf) != SH_OK) {
        fprintf(stderr, "%s\n", sh_error_text());
        abort();
    }
    free(json);
    tokenizer = (struct sh_tokenizer){.ops = &sh_token_hf, .own = hf, .vocab_size = hf->words, .end = 3};
    encoder = sh_encoder_create(&tokenizer);
    marks = sh_marks_create(&tokenizer);
}

static void check_chat(const struct sh_chat *c)
{
    size_t at = 0;

    for (int i = 0; i < c->n; i++) {
        if (c->stretch[i].begin < at || c->stretch[i].end <= c->stretch[i].begin || c->stretch[i].end > c->text.n ||
            (i && c->stretch[i].begin == at))
            abort();
        at = c->stretch[i].end;
    }
    if (c->n == 0)
        abort();
}

static void check_ids(const struct sh_chat *c, const struct sh_ids *ids, const struct sh_text *mask)
{
    struct sh_ids whole = {0};
    size_t learned = 0;

    if (mask->n != ids->n || sh_encode(encoder, c->text.at, c->text.n, 0, &whole) != SH_OK || whole.n != ids->n ||
        (ids->n && memcmp(whole.id, ids->id, ids->n * sizeof *ids->id)))
        abort();
    for (size_t i = 0; i < mask->n; i++)
        learned += mask->at[i];
    if (learned == 0 || (learned == ids->n && c->stretch[0].end - c->stretch[0].begin + 64 < c->text.n))
        abort();
    free(whole.id);
}

static void try_form(enum sh_chat_form form, const char *template, const uint8_t *bytes, size_t n)
{
    const struct sh_template *t = template ? sh_template_find(template) : NULL;
    struct sh_chat c = {0};
    struct sh_ids ids = {0};
    struct sh_text mask = {0};
    sh_rc rc;

    sh_error_clear();
    rc = sh_chat_parse(form, t, "messages", (const char *)bytes, n, &c);
    if (rc == SH_OK) {
        check_chat(&c);
        rc = sh_marks_encode(marks, encoder, &c, -1, form != SH_CHAT_MESSAGES, &ids, &mask, NULL);
    }
    if (rc == SH_OK)
        check_ids(&c, &ids, &mask);
    else if (rc != SH_E_DATA || !sh_error_text()[0] || strchr(sh_error_text(), '\n'))
        abort();
    free(ids.id);
    free(mask.at);
    sh_chat_free(&c);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    if (!encoder)
        start();
    try_form(SH_CHAT_SEGMENTS, NULL, bytes, n);
    try_form(SH_CHAT_COMPLETION, NULL, bytes, n);
    for (int i = 0; sh_template_at(i); i++) {
        try_form(SH_CHAT_MESSAGES, sh_template_at(i)->name, bytes, n);
        try_form(SH_CHAT_COMPLETION, sh_template_at(i)->name, bytes, n);
    }
    return 0;
}

#ifndef SH_LIBFUZZER
#define MESSAGE(role, text) "{\"role\":\"" role "\",\"content\":\"" text "\"}"

static const char *const seeds[] = {
    "{\"messages\":[" MESSAGE("system", "s") "," MESSAGE("user", "x a") "," MESSAGE("assistant", " ab") "]}",
    "{\"messages\":[" MESSAGE("user", "x") "," MESSAGE("assistant", "b <r> a") "," MESSAGE("user", "<l>") "," MESSAGE(
        "assistant", "c") "]}",
    "{\"segments\":[{\"text\":\"<s>x \",\"label\":false},{\"text\":\"ab</s>\",\"label\":true},{\"text\":\" a\",\"label\":true}]}",
    "{\"prompt\":\"x \",\"completion\":\"ab\\u00e9\"}",
    "{\"prompt\":[" MESSAGE("user", "x") "],\"completion\":[" MESSAGE("assistant", "y") "]}",
};
static const char *const pieces[] = {
    "\"",         "\\n",    " ",         "a",     "ab",   "<s>",      "</s>",
    "<|im_end|>", "<l>",    "<r>",       "null",  "true", "false",    "[",
    "]",          "{",      "}",         ",",     ":",    "user",     "7",
    "\\u0000",    "system", "assistant", "tools", "text", "\xc3\xa9", MESSAGE("user", "") ","};

int main(int argc, char **argv)
{
    const struct fuzz_texts made = {.name = "fuzz_chat", .what = "lines", FUZZ_TEXTS(seeds, pieces)};
    int status = fuzz_texts(argc, argv, 20000, &made, LLVMFuzzerTestOneInput);

    sh_marks_destroy(marks);
    sh_encoder_destroy(encoder);
    sh_token_json_free(tokenizer.own);
    return status;
}
#endif
