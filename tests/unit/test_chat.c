/* Conversations to ids and masks: each template, what is learned to the token, and what is refused. */
#include "io/data/format.h"
#include "src/base/file.h"
#include "src/base/string/str.h"
#include "src/text/chat/chat.h"
#include "src/text/chat/marks.h"
#include "src/text/corpus/files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[] = "/tmp/test_chat.XXXXXX";
static char *in_path, *out_path, *model_path;

static const char *const specials[] = {"<|im_start|>",
                                       "<|im_end|>",
                                       "<s>",
                                       "</s>",
                                       "[INST]",
                                       "[/INST]",
                                       "[SYSTEM_PROMPT]",
                                       "[/SYSTEM_PROMPT]",
                                       "<bos>",
                                       "<start_of_turn>",
                                       "<end_of_turn>",
                                       "<|system|>",
                                       "<|user|>",
                                       "<|assistant|>",
                                       "<|end|>",
                                       "<|begin_of_text|>",
                                       "<|start_header_id|>",
                                       "<|end_header_id|>",
                                       "<|eot_id|>"};

/* The word for a line end, as JSON has it; a byte spells it as well. */
static const char *line_end = "\\n";

/* The words are letters and the templates' texts, with the mark for spaces; "▁a" and "ab" are words, so merges cross
 * borders. With `prefix` a space is put in front, as Llama 2 does. more: added tokens, without their ids; NULL after the last. */
static void write_model_with(bool prefix, const char *const *more)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDIJKNQRSTWY<>/[]!#:,.02346";
    enum { WORDS = sizeof specials / sizeof specials[0] + 1 + sizeof letters - 1 + 4, LINE_END = WORDS - 4 };
    struct sh_text t = {0};
    char word[128];
    int id = 0, extra = 0;
#define ADD(...) sh_text_put(&t, word, (size_t)snprintf(word, sizeof word, __VA_ARGS__))

    ADD("{\"added_tokens\":[");
    for (size_t i = 0; i < sizeof specials / sizeof specials[0]; i++, id++)
        ADD("%s{\"id\":%d,\"content\":\"%s\",\"special\":true,\"normalized\":false}", i ? "," : "", id, specials[i]);
    for (; more && more[extra]; extra++) {
        ADD(",{\"id\":%d,", strstr(more[extra], line_end) ? LINE_END : WORDS + extra);
        ADD("%s}", more[extra]);
    }
    ADD("],\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[");
    if (prefix)
        ADD("{\"type\":\"Prepend\",\"prepend\":\"\xe2\x96\x81\"},");
    ADD("{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\xe2\x96\x81\"}]},");
    ADD("\"decoder\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"\xe2\x96\x81\"},\"content\":\" \"},");
    ADD("\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\"}},");
    ADD("{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{\"<s>\":{\"ids\":[2]}}},");
    ADD("\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"unk_token\":\"?\",\"vocab\":{\"?\":%d", id++);
    for (size_t i = 0; i < sizeof specials / sizeof specials[0]; i++)
        ADD(",\"%s\":%zu", specials[i], i);
    for (size_t i = 0; letters[i]; i++, id++)
        ADD(",\"%c\":%d", letters[i], id);
    ADD(",\"%s\":%d,\"\xe2\x96\x81\":%d,\"\xe2\x96\x81"
        "a\":%d,\"ab\":%d},",
        line_end, id, id + 1, id + 2, id + 3);
    ADD("\"merges\":[\"\xe2\x96\x81 a\",\"a b\"]}}");
#undef ADD
    assert_int_equal(id + 4, WORDS);
    assert_int_equal(sh_write_file_atomic(model_path, t.at, t.n), SH_OK);
    free(t.at);
}

static void write_model(bool prefix)
{
    write_model_with(prefix, NULL);
}

static struct sh_token_report report;

static sh_rc run(enum sh_token_format format, const char *template, const char *line, struct sh_token_options more)
{
    const char *inputs[] = {in_path};

    assert_int_equal(sh_write_file_atomic(in_path, line, strlen(line)), SH_OK);
    more.tokenizer = model_path;
    more.inputs = inputs;
    more.n_inputs = 1;
    more.output = out_path;
    more.format = format;
    more.template = template;
    more.end = more.end || template ? more.end : "</s>";
    more.threads = 1;
    return sh_corpus_tokenize(&more, &report);
}

/* Return all documents, separated by |; each learned token is in braces. answers: flags beside that
 * of the mask. */
static char *written(int answers)
{
    const struct sh_document_header *h;
    struct sh_tokenizer *t;
    struct sh_text out = {0};
    char *data, *text;
    size_t bytes, n;

    assert_int_equal(sh_read_file(out_path, 1 << 20, &data, &bytes), SH_OK);
    h = (const void *)data;
    assert_int_equal(h->flags, SH_DOCUMENT_MASK | answers);
    const int64_t *offsets = (const void *)(data + h->offsets_at);
    assert_int_equal(sh_tokenizer_open(model_path, &t), SH_OK);
    for (int64_t i = 0, d = 1; i < h->tokens; i++) {
        uint32_t id = ((const uint16_t *)(const void *)(data + h->tokens_at))[i];
        bool learned = data[h->mask_at + i / 8] >> i % 8 & 1;
        if (i == offsets[d] && ++d)
            sh_text_put(&out, "|", 1);
        assert_int_equal(sh_decode_ids(t, &id, 1, true, &text, &n), SH_OK);
        sh_text_put(&out, "{", learned);
        sh_text_put(&out, text, n);
        sh_text_put(&out, "}", learned);
        free(text);
    }
    sh_text_put(&out, "", 1);
    sh_tokenizer_close(t);
    free(data);
    return (char *)out.at;
}

static void check(enum sh_token_format format, const char *template, const char *line, struct sh_token_options more,
                  const char *right)
{
    char *found;

    if (run(format, template, line, more) != SH_OK)
        fail_msg("%s: %s: %s", template ? template : "none", line, sh_error_text());
    found = written(format == SH_FORMAT_PREFERENCE ? SH_DOCUMENT_PAIRS
                    : format == SH_FORMAT_UNPAIRED ? SH_DOCUMENT_LABELS
                                                   : 0);
    if (strcmp(found, right))
        fail_msg("%s\nis      %s\nshould  %s", template ? template : "none", found, right);
    free(found);
}

#define MESSAGE(role, text) "{\"role\":\"" role "\",\"content\":\"" text "\"}"
#define TEXT_PART(text) "{\"type\":\"text\",\"text\":\"" text "\"}"
#define PARTS(role, parts) "{\"role\":\"" role "\",\"content\":[" parts "]}"
#define MESSAGES(...) "{\"messages\":[" __VA_ARGS__ "]}"
#define TURNS \
    MESSAGE("user", " x ") "," MESSAGE("assistant", " abc ") "," MESSAGE("user", "y") "," MESSAGE("assistant", "b")

/* White space around texts is kept or removed as the template says. */
static void templates(void **state)
{
    static const char with_system[] = MESSAGES(MESSAGE("system", " s ") "," TURNS), without[] = MESSAGES(TURNS);
    static const struct {
        const char *name, *system, *none; /* NULL: refused */
    } rows[] = {
        {"chatml",
         "<|im_start|>system\n s <|im_end|>\n<|im_start|>user\n x <|im_end|>\n<|im_start|>assistant\n{ a}{b}{c}{ }{<|im_end|>}\n"
         "<|im_start|>user\ny<|im_end|>\n<|im_start|>assistant\n{b}{<|im_end|>}\n",
         "<|im_start|>user\n x <|im_end|>\n<|im_start|>assistant\n{ a}{b}{c}{ }{<|im_end|>}\n"
         "<|im_start|>user\ny<|im_end|>\n<|im_start|>assistant\n{b}{<|im_end|>}\n"},
        {"qwen2.5",
         "<|im_start|>system\n s <|im_end|>\n<|im_start|>user\n x <|im_end|>\n<|im_start|>assistant\n{ a}{b}{c}{ }{<|im_end|>}\n"
         "<|im_start|>user\ny<|im_end|>\n<|im_start|>assistant\n{b}{<|im_end|>}\n",
         "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
         "<|im_start|>user\n x <|im_end|>\n<|im_start|>assistant\n{ a}{b}{c}{ }{<|im_end|>}\n"
         "<|im_start|>user\ny<|im_end|>\n<|im_start|>assistant\n{b}{<|im_end|>}\n"},
        {"qwen3",
         "<|im_start|>system\n s <|im_end|>\n<|im_start|>user\n x <|im_end|>\n<|im_start|>assistant\n{ a}{b}{c}{ }{<|im_end|>}\n"
         "<|im_start|>user\ny<|im_end|>\n<|im_start|>assistant\n"
         "{<}{t}{h}{i}{n}{k}{>}{\n}{\n}{<}{/}{t}{h}{i}{n}{k}{>}{\n}{\n}{b}{<|im_end|>}\n",
         NULL},
        {"llama3",
         "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\ns<|eot_id|>"
         "<|start_header_id|>user<|end_header_id|>\n\nx<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
         "{ab}{c}{<|eot_id|>}<|start_header_id|>user<|end_header_id|>\n\ny<|eot_id|>"
         "<|start_header_id|>assistant<|end_header_id|>\n\n{b}{<|eot_id|>}",
         NULL},
        {"llama3.1",
         "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n"
         "Today Date: 26 Jul 2024\n\ns<|eot_id|>"
         "<|start_header_id|>user<|end_header_id|>\n\nx<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
         "{ab}{c}{<|eot_id|>}<|start_header_id|>user<|end_header_id|>\n\ny<|eot_id|>"
         "<|start_header_id|>assistant<|end_header_id|>\n\n{b}{<|eot_id|>}",
         "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n"
         "Today Date: 26 Jul 2024\n\n<|eot_id|>"
         "<|start_header_id|>user<|end_header_id|>\n\nx<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
         "{ab}{c}{<|eot_id|>}<|start_header_id|>user<|end_header_id|>\n\ny<|eot_id|>"
         "<|start_header_id|>assistant<|end_header_id|>\n\n{b}{<|eot_id|>}"},
        {"llama2", "<s>[INST] <<SYS>>\n s \n<</SYS>>\n\n x [/INST]{ a}{b}{c}{ }{</s>}<s>[INST] y [/INST] {b}{ }{</s>}",
         "<s>[INST] x [/INST]{ a}{b}{c}{ }{</s>}<s>[INST] y [/INST] {b}{ }{</s>}"},
        {"mistral-v3", NULL, "<s>[INST]  x [/INST]{ a}{b}{c}{</s>}[INST] y[/INST] {b}{</s>}"},
        {"mistral-v7",
         "<s>[SYSTEM_PROMPT]  s [/SYSTEM_PROMPT][INST]  x [/INST] { a}{b}{c}{ }{</s>}[INST] y[/INST] {b}{</s>}",
         "<s>[INST]  x [/INST] { a}{b}{c}{ }{</s>}[INST] y[/INST] {b}{</s>}"},
        {"mistral-v7-tekken",
         "<s>[SYSTEM_PROMPT] s [/SYSTEM_PROMPT][INST] x [/INST]{ a}{b}{c}{ }{</s>}[INST]y[/INST]{b}{</s>}", NULL},
        {"gemma",
         "<bos><start_of_turn>user\n s \n\nx<end_of_turn>\n<start_of_turn>model\n{ab}{c}{<end_of_turn>}\n"
         "<start_of_turn>user\ny<end_of_turn>\n<start_of_turn>model\n{b}{<end_of_turn>}\n",
         "<bos><start_of_turn>user\nx<end_of_turn>\n<start_of_turn>model\n{ab}{c}{<end_of_turn>}\n"
         "<start_of_turn>user\ny<end_of_turn>\n<start_of_turn>model\n{b}{<end_of_turn>}\n"},
        {"phi3",
         "<|system|>\n s <|end|>\n<|user|>\n x <|end|>\n<|assistant|>\n{ a}{b}{c}{ }{<|end|>}\n<|user|>\ny<|end|>\n"
         "<|assistant|>\n{b}{<|end|>}\n",
         NULL},
    };
    int n = 0;

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (rows[i].system)
            check(SH_FORMAT_MESSAGES, rows[i].name, with_system, (struct sh_token_options){0}, rows[i].system);
        else
            assert_int_equal(run(SH_FORMAT_MESSAGES, rows[i].name, with_system, (struct sh_token_options){0}),
                             SH_E_DATA);
        if (rows[i].none)
            check(SH_FORMAT_MESSAGES, rows[i].name, without, (struct sh_token_options){0}, rows[i].none);
    }
    while (sh_template_at(n))
        n++;
    assert_int_equal(n, sizeof rows / sizeof rows[0]);
}

static void other_forms(void **state)
{
    static const char segments[] =
        "{\"segments\":[{\"text\":\"<s>x\",\"label\":false},{\"text\":\" \",\"label\":false},"
        "{\"text\":\"a\",\"label\":true},{\"text\":\"b</s>\",\"label\":true},"
        "{\"text\":\"y a\",\"label\":false},{\"text\":\"b</s>\",\"label\":true}]}\n";
    struct sh_token_options none = {0};

    (void)state;
    check(SH_FORMAT_SEGMENTS, NULL, segments, none, "<s>x{ a}{b}{</s>}y a{b}{</s>}");
    check(SH_FORMAT_COMPLETION, NULL,
          "{\"prompt\":\"x \",\"completion\":\"ab\"}\n\n{\"prompt\":\"\",\"completion\":\"y\"}", none,
          "<s>x{ a}{b}{</s>}|<s>{y}{</s>}");
    check(SH_FORMAT_COMPLETION, NULL, "{\"prompt\":\"x\",\"completion\":\"y\"}",
          (struct sh_token_options){.no_begin = true}, "x{y}{</s>}");
    check(SH_FORMAT_COMPLETION, "chatml", "{\"prompt\":\"x\",\"completion\":\"y\"}", none,
          "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n{y}{<|im_end|>}\n");
    check(SH_FORMAT_COMPLETION, "chatml",
          "{\"prompt\":[" MESSAGE("user", "x") "," MESSAGE("assistant", "no") "," MESSAGE(
              "user", "x") "],\"completion\":[" MESSAGE("assistant", "y") "]}",
          none,
          "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\nno<|im_end|>\n"
          "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n{y}{<|im_end|>}\n");
    check(SH_FORMAT_MESSAGES, "chatml", "{\"chat\":[" TURNS "]}", (struct sh_token_options){.field = "chat"},
          "<|im_start|>user\n x <|im_end|>\n<|im_start|>assistant\n{ a}{b}{c}{ }{<|im_end|>}\n"
          "<|im_start|>user\ny<|im_end|>\n<|im_start|>assistant\n{b}{<|im_end|>}\n");
    check(SH_FORMAT_MESSAGES, "mistral-v3", MESSAGES(MESSAGE("user", "x</s>") "," MESSAGE("assistant", "y")),
          (struct sh_token_options){.special_in_text = true}, "<s>[INST] x</s>[/INST] {y}{</s>}");
}

#define ALPACA_END " Write a response that appropriately completes the request.\n\n### Instruction:\nx"

/* Two forms of published data sets. */
static void published_forms(void **state)
{
    static const char chat[] = "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n{y}{<|im_end|>}\n";
    char with_system[200];
    struct sh_token_options none = {0};

    (void)state;
    snprintf(with_system, sizeof with_system, "<|im_start|>system\ns<|im_end|>\n%s", chat);
    check(SH_FORMAT_SHAREGPT, "chatml",
          "{\"conversations\":[{\"from\":\"human\",\"value\":\"x\"},{\"from\":\"gpt\",\"value\":\"y\"}]}", none, chat);
    check(SH_FORMAT_SHAREGPT, "chatml",
          "{\"id\":\"7\",\"system\":\"s\",\"tools\":null,\"chat\":[{\"from\":\"user\",\"value\":\"x\",\"weight\":null},"
          "{\"from\":\"assistant\",\"value\":\"y\",\"weight\":1.0,\"markdown\":null}]}",
          (struct sh_token_options){.field = "chat"}, with_system);
    check(SH_FORMAT_MESSAGES, "chatml", MESSAGES(PARTS("user", TEXT_PART("x")) "," PARTS("assistant", TEXT_PART("y"))),
          none, chat);
    check(
        SH_FORMAT_SHAREGPT, "chatml",
        "{\"system\":\"\",\"conversations\":[{\"from\":\"system\",\"value\":\"s\"},{\"from\":\"human\",\"value\":\"x\"},"
        "{\"from\":\"gpt\",\"value\":\"y\"}]}",
        none, with_system);
    check(SH_FORMAT_ALPACA, NULL, "{\"instruction\":\"x\",\"input\":\"\",\"output\":\"y\"}", none,
          "<s>Below is an instruction that describes a task." ALPACA_END "\n\n### Response:\n{y}{</s>}");
    check(
        SH_FORMAT_ALPACA, NULL, "{\"instruction\":\"x\",\"input\":\"z\",\"output\":\"y\",\"text\":\"x z y\"}", none,
        "<s>Below is an instruction that describes a task, paired with an input that provides further context." ALPACA_END
        "\n\n### Input:\nz\n\n### Response:\n{y}{</s>}");
    check(SH_FORMAT_ALPACA, "chatml", "{\"instruction\":\"x\",\"output\":\"y\"}", none, chat);
    check(SH_FORMAT_ALPACA, "chatml", "{\"instruction\":\"x\",\"input\":\"z\",\"output\":\"y\"}", none,
          "<|im_start|>user\nx\nz<|im_end|>\n<|im_start|>assistant\n{y}{<|im_end|>}\n");
}

#define PAIR(prompt, chosen, rejected) \
    "{\"prompt\":" prompt ",\"chosen\":" chosen ",\"rejected\":" rejected ",\"score_chosen\":7}"
#define TWO(chosen, rejected) "{\"chosen\":" chosen ",\"rejected\":" rejected "}"
#define CHAT(text) "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n" text "{<|im_end|>}\n"

/* A line is two documents, the chosen answer first. */
static void preference(void **state)
{
    struct sh_token_options none = {0};

    (void)state;
    check(SH_FORMAT_PREFERENCE, NULL, PAIR("\"x\"", "\"y\"", "\"z\""), none, "<s>x{y}{</s>}|<s>x{z}{</s>}");
    check(SH_FORMAT_PREFERENCE, NULL, PAIR("\"x\"", "\"y\"", "\"y\""), none, "<s>x{y}{</s>}|<s>x{y}{</s>}");
    check(SH_FORMAT_PREFERENCE, NULL, TWO("\"xy bc\"", "\"xy cb\""), none, "<s>xy{ }{b}{c}{</s>}|<s>xy{ }{c}{b}{</s>}");
    check(SH_FORMAT_PREFERENCE, "chatml", PAIR("\"x\"", "\"y\"", "\"z\""), none, CHAT("{y}") "|" CHAT("{z}"));
    check(SH_FORMAT_PREFERENCE, "chatml",
          PAIR("[" MESSAGE("user", "x") "]", "[" MESSAGE("assistant", "y") "]", "[" MESSAGE("assistant", "z") "]"),
          none, CHAT("{y}") "|" CHAT("{z}"));
    check(SH_FORMAT_PREFERENCE, "chatml",
          TWO("[" MESSAGE("user", "x") "," MESSAGE("assistant", "y") "]",
              "[" MESSAGE("user", "x") "," MESSAGE("assistant", "z") "]"),
          none, CHAT("{y}") "|" CHAT("{z}"));
    /* Answers before that of the pair are part of the prompt. */
    check(SH_FORMAT_PREFERENCE, "chatml",
          PAIR("[" MESSAGE("user", "x") "," MESSAGE("assistant", "a") "," MESSAGE("user", "x") "]",
               "[" MESSAGE("assistant", "y") "]", "[" MESSAGE("assistant", "z") "]"),
          none,
          "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n" CHAT(
              "{y}") "|<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n" CHAT("{z}"));
}

#define ALPACA_PAIR "{\"instruction\":\"x\",\"input\":\"\",\"chosen\":\"y\",\"rejected\":\"z\"}"
#define SHAREGPT_PAIR                                                                                          \
    "{\"conversations\":[{\"from\":\"human\",\"value\":\"x\"}],\"chosen\":{\"from\":\"gpt\",\"value\":\"y\"}," \
    "\"rejected\":{\"from\":\"gpt\",\"value\":\"z\"}}"

#define SYSTEM "<|im_start|>system\ns<|im_end|>\n"
#define LIST(...) "[" __VA_ARGS__ "]"
#define BOTH ",\"chosen\":\"y\",\"rejected\":\"z\"}"
#define RESPONSES ",\"chosen_response\":\"y\",\"rejected_response\":\"z\"}"
#define WHOLE(answer) LIST(MESSAGE("user", "x") "," MESSAGE("assistant", answer))
#define REPLIES ",\"chosen\":" MESSAGE("assistant", "y") ",\"rejected\":" MESSAGE("assistant", "z") "}"

/* As LLaMA-Factory and axolotl have them. */
static void preference_of_others(void **state)
{
    static const struct {
        const char *line;
        bool system;
    } rows[] = {
        {ALPACA_PAIR, false},
        {SHAREGPT_PAIR, false},
        {"{\"question\":\"x\"" BOTH, false},
        {"{\"system\":\"s\",\"question\":\"x\"" BOTH, true},
        {"{\"system\":\"\",\"input\":\"x\"" BOTH, false},
        {"{\"system\":\"s\",\"prompt\":\"x\"" BOTH, true},
        {"{\"instruction\":\"x\"" RESPONSES, false},
        {"{\"system\":\"s\",\"instruction\":\"x\"" RESPONSES, true},
        {"{\"prompt\":\"x\",\"input\":\"\"" RESPONSES, false},
        {"{\"prompt\":\"x\",\"chosen\":" WHOLE("y") ",\"rejected\":" WHOLE("z") "}", false},
        {"{\"system\":\"s\",\"prompt\":\"x\",\"messages\":[],\"chosen\":" WHOLE("y") ",\"rejected\":" WHOLE("z") "}",
         true},
        {"{\"messages\":" LIST(MESSAGE("user", "x")) REPLIES, false},
        {"{\"messages\":" LIST(MESSAGE("system", "s") "," MESSAGE("user", "x")) REPLIES, true},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        check(SH_FORMAT_PREFERENCE, "chatml", rows[i].line, (struct sh_token_options){0},
              rows[i].system ? SYSTEM CHAT("{y}") "|" SYSTEM CHAT("{z}") : CHAT("{y}") "|" CHAT("{z}"));
    check(SH_FORMAT_PREFERENCE, NULL, "{\"question\":\"x\"" BOTH, (struct sh_token_options){0},
          "<s>x{y}{</s>}|<s>x{z}{</s>}");
}

#define LABELLED(label) "{\"prompt\":\"x\",\"completion\":\"y\",\"label\":" label "}"

/* A desirable answer has its first token marked, which no target is. */
static void unpaired(void **state)
{
    static const char good[] = "{<|im_start|>}user\nx<|im_end|>\n<|im_start|>assistant\n{y}{<|im_end|>}\n";
    struct sh_token_options none = {0};

    (void)state;
    check(SH_FORMAT_UNPAIRED, NULL, LABELLED("true"), none, "{<s>}x{y}{</s>}");
    check(SH_FORMAT_UNPAIRED, NULL, LABELLED("false"), none, "<s>x{y}{</s>}");
    check(SH_FORMAT_UNPAIRED, "chatml", LABELLED("true"), none, good);
    check(SH_FORMAT_UNPAIRED, "chatml", LABELLED("false"), none, CHAT("{y}"));
    check(SH_FORMAT_UNPAIRED, "chatml", "{\"instruction\":\"x\",\"output\":\"y\",\"kto_tag\":true}", none, good);
    check(SH_FORMAT_UNPAIRED, "chatml",
          "{\"messages\":[" MESSAGE("user", "x") "," MESSAGE("assistant", "y") "],\"kto_tag\":false}", none,
          CHAT("{y}"));
    check(
        SH_FORMAT_UNPAIRED, "chatml",
        "{\"conversations\":[{\"from\":\"human\",\"value\":\"x\"},{\"from\":\"gpt\",\"value\":\"y\"}],\"label\":true}",
        none, good);
    check(SH_FORMAT_UNPAIRED, "chatml", "{\"question\":\"x\",\"completion\":\"y\",\"label\":true}", none, good);
    check(SH_FORMAT_UNPAIRED, "chatml", "{\"system\":\"s\",\"instruction\":\"x\",\"completion\":\"y\",\"label\":false}",
          none, SYSTEM CHAT("{y}"));
    check(SH_FORMAT_UNPAIRED, "chatml", "{\"prompt\":\"x\",\"completion\":" WHOLE("y") ",\"label\":false}", none,
          CHAT("{y}"));
    check(SH_FORMAT_UNPAIRED, "chatml", "{\"system\":\"s\",\"messages\":" WHOLE("y") ",\"label\":false}", none,
          SYSTEM CHAT("{y}"));
    /* Of several answers the last one is meant. */
    check(SH_FORMAT_UNPAIRED, "chatml",
          "{\"messages\":[" MESSAGE("user", "x") "," MESSAGE("assistant", "a") "," MESSAGE("user", "x") "," MESSAGE(
              "assistant", "y") "],\"label\":false}",
          none, "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n" CHAT("{y}"));
}

/* A token may stand for the end of a prompt and the beginning of its answer. It is learned, and counted. */
static void across(void **state)
{
    struct sh_token_options none = {0};

    (void)state;
    check(SH_FORMAT_COMPLETION, NULL, "{\"prompt\":\"xa\",\"completion\":\"bc\"}", none, "<s>x{ab}{c}{</s>}");
    assert_int_equal(report.across, 1);
    check(SH_FORMAT_COMPLETION, NULL, "{\"prompt\":\"xc\",\"completion\":\"bc\"}", none, "<s>xc{b}{c}{</s>}");
    assert_int_equal(report.across, 0);
    check(SH_FORMAT_PREFERENCE, NULL, PAIR("\"xa\"", "\"b\"", "\"bb\""), none, "<s>x{ab}{</s>}|<s>x{ab}{b}{</s>}");
    assert_int_equal(report.across, 2);
}

#define KEYED(role, text, more) "{\"role\":\"" role "\",\"content\":\"" text "\"," more "}"

/* Messages that say themselves whether they are learned, and keys that mean nothing. */
static void keys(void **state)
{
    static const char all[] = "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n{y}{<|im_end|>}\n"
                              "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n{b}{<|im_end|>}\n",
                      last[] = "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\ny<|im_end|>\n"
                               "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n{b}{<|im_end|>}\n";
    static const struct {
        const char *user, *answer; /* keys of the first two messages */
        bool learned;              /* the first answer */
    } rows[] = {
        {"\"name\":\"Ann\"", "\"name\":\"Bob\"", true},
        {"\"weight\":0", "\"weight\":0", false},
        {"\"weight\":null", "\"weight\":0.0", false},
        {"\"id\":1", "\"weight\":1", true},
        {"\"train\":false", "\"train\":false", false},
        {"\"train\":null", "\"train\":true", true},
        {"\"timestamp\":3", "\"weight\":1,\"train\":false", false},
        {"\"tool_calls\":null", "\"reasoning_content\":null,\"tool_calls\":null,\"refusal\":null", true},
    };
    char line[600];

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        snprintf(line, sizeof line,
                 "{\"id\":7,\"prompt\":\"a column\",\"weight\":1,\"tools\":null,\"messages\":["
                 "{\"role\":\"user\",\"content\":\"x\",%s},{\"role\":\"assistant\",\"content\":\"y\",%s}," MESSAGE(
                     "user", "x") "," MESSAGE("assistant", "b") "]}",
                 rows[i].user, rows[i].answer);
        check(SH_FORMAT_MESSAGES, "chatml", line, (struct sh_token_options){0}, rows[i].learned ? all : last);
    }
}

/* A space that the tokenizer puts in front of a text belongs to the text after it. */
static void prepended_spaces(void **state)
{
    (void)state;
    write_model(true);
    check(SH_FORMAT_COMPLETION, NULL, "{\"prompt\":\"ab\",\"completion\":\" abb\"}", (struct sh_token_options){0},
          "<s> ab{ a}{b}{b}{</s>}");
    check(SH_FORMAT_MESSAGES, "mistral-v3", MESSAGES(MESSAGE("user", "x") "," MESSAGE("assistant", "ab")),
          (struct sh_token_options){0}, "<s>[INST]  x[/INST] { a}{b}{</s>}");
    write_model(false);
}

/* Added tokens at the border of an answer: their text is learned, and the white space that they take belongs to them.
 * Ids are those of the text as a whole. */
static void added_at_borders(void **state)
{
#define RAW "\"normalized\":false"
    static const struct {
        const char *more[3];
        bool prefix;
        const char *template, *answer, *right;
    } rows[] = {
        {{"\"content\":\"~\",\"lstrip\":true," RAW}, false, "chatml", "~a", "assistant{~}{a}{<|im_end|>}"},
        {{"\"content\":\"<b>\",\"normalized\":true"}, true, "mistral-v7", "<b>bcd", "[/INST] { <b>}{b}{c}{d}{</s>}"},
        {{"\"content\":\"  \"," RAW}, false, "mistral-v7", " bcd", "[/INST]{  }{b}{c}{d}{</s>}"},
        {{"\"content\":\"foo\",\"single_word\":true," RAW, "\"content\":\"bar\"," RAW},
         false,
         "chatml",
         "a foobar",
         "assistant\n{a}{ }{f}{o}{o}{bar}{<|im_end|>}"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char *found, *line = sh_strfmt(MESSAGES(MESSAGE("user", "x") "," MESSAGE("assistant", "%s")), rows[i].answer);
        write_model_with(rows[i].prefix, rows[i].more);
        if (run(SH_FORMAT_MESSAGES, rows[i].template, line, (struct sh_token_options){0}) != SH_OK)
            fail_msg("row %zu: %s", i, sh_error_text());
        found = written(0);
        if (!strstr(found, rows[i].right))
            fail_msg("row %zu: %s lacks %s", i, found, rows[i].right);
        free(found);
        free(line);
    }
    write_model(false);
}

/* A byte, or white space that a special token takes, is not the text of a special token. */
static void special_bytes(void **state)
{
    static const char *const more[] = {"\"content\":\"<h>\",\"special\":true,\"rstrip\":true,\"normalized\":false",
                                       "\"content\":\"<0x0A>\",\"special\":true,\"normalized\":false", NULL};

    (void)state;
    line_end = "<0x0A>";
    write_model_with(false, more);
    if (run(SH_FORMAT_MESSAGES, "phi3", MESSAGES(MESSAGE("user", "x\\ny") "," MESSAGE("assistant", "a")),
            (struct sh_token_options){0}) != SH_OK)
        fail_msg("%s", sh_error_text());
    assert_int_equal(run(SH_FORMAT_MESSAGES, "phi3", MESSAGES(MESSAGE("user", "x<0x0A>") "," MESSAGE("assistant", "a")),
                         (struct sh_token_options){0}),
                     SH_E_DATA);
    assert_non_null(strstr(sh_error_text(), "the text of a special token"));
    assert_int_equal(
        run(SH_FORMAT_COMPLETION, NULL, "{\"prompt\":\"x\",\"completion\":\"a<h> b\"}", (struct sh_token_options){0}),
        SH_E_DATA);
    line_end = "\\n";
    write_model(false);
}

/* The template in doc/data.md for folders that have none; in JSON its line ends and quotes are escaped
 * once more. */
#define OWN_LOOP \
    "{%- for m in messages %}{{ \"<|im_start|>\" + m.role + \"\\n\" + m.content + \"<|im_end|>\\n\" }}{% endfor %}\n"
#define OWN_END "{%- if add_generation_prompt %}{{ \"<|im_start|>assistant\\n\" }}{% endif -%}"
#define OWN_JSON                                                                                                      \
    "\"{%- for m in messages %}{{ \\\"<|im_start|>\\\" + m.role + \\\"\\n\\\" + m.content + \\\"<|im_end|>\\n\\\" }}" \
    "{% endfor %}\\n{%- if add_generation_prompt %}{{ \\\"<|im_start|>assistant\\n\\\" }}{% endif -%}\""

/* The folder's own template, as files of transformers have it, against its name. */
static void folders_own(void **state)
{
    static const struct {
        const char *jinja, *config, *says; /* NULL: no such file; recognized, as chatml */
    } rows[] = {
        {OWN_LOOP OWN_END "\n", NULL, NULL},
        {OWN_LOOP OWN_END, "{\"chat_template\":\"another\"}", NULL},
        {NULL, "{\"bos_token\":\"<bos>\",\"chat_template\":" OWN_JSON "}", NULL},
        {NULL,
         "{\"chat_template\":[{\"name\":\"tool_use\",\"template\":\"x\"},{\"name\":\"default\",\"template\":" OWN_JSON
         "}]}",
         NULL},
        /* As save_pretrained() of transformers writes it for a tokenizer without a limit. */
        {NULL,
         "{\n  \"add_prefix_space\": null,\n  \"backend\": \"tokenizers\",\n  \"bos_token\": \"<s>\",\n"
         "  \"chat_template\": " OWN_JSON ",\n  \"clean_up_tokenization_spaces\": false,\n  \"eos_token\": \"</s>\",\n"
         "  \"model_max_length\": 1000000000000000019884624838656,\n  \"tokenizer_class\": \"LlamaTokenizer\",\n"
         "  \"unk_token\": \"<unk>\",\n  \"use_default_system_prompt\": false\n}\n",
         NULL},
        {NULL, NULL, "tokenizer.json has no chat template; --chat-template takes chatml, qwen2.5"},
        {NULL, "{}", "has no chat template"},
        {NULL, "{\"chat_template\":[{\"name\":\"rag\",\"template\":" OWN_JSON "}]}", "has no chat template"},
        {OWN_LOOP " " OWN_END, NULL, "has a chat template that is not known here; --chat-template takes chatml"},
        {"", NULL, "a chat template that is not known here"},
        {NULL, "{\"chat_template\":", "/tokenizer_config.json: line 1"},
    };
    char *jinja = sh_path_join(folder, "chat_template.jinja"), *config = sh_path_join(folder, "tokenizer_config.json");

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (rows[i].jinja)
            assert_int_equal(sh_write_file_atomic(jinja, rows[i].jinja, strlen(rows[i].jinja)), SH_OK);
        if (rows[i].config)
            assert_int_equal(sh_write_file_atomic(config, rows[i].config, strlen(rows[i].config)), SH_OK);
        sh_rc rc = run(SH_FORMAT_MESSAGES, "auto", MESSAGES(MESSAGE("user", "x") "," MESSAGE("assistant", "y")),
                       (struct sh_token_options){0});
        if (rows[i].says ? rc == SH_OK || !strstr(sh_error_text(), rows[i].says) : rc != SH_OK)
            fail_msg("row %zu: rc %d: %s", i, (int)rc, rc ? sh_error_text() : "taken");
        if (rc == SH_OK) {
            char *text = written(0);
            assert_string_equal(text, "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n{y}{<|im_end|>}\n");
            free(text);
        }
        unlink(jinja);
        unlink(config);
    }
    free(jinja);
    free(config);
}

/* A line end in a string of Jinja can be written in two ways, and a file's last line end is not part of the text. */
static void digests(void **state)
{
    static const struct {
        const char *a, *b;
        bool same;
    } rows[] = {
        {"{{ 'a\\nb' }}", "{{ 'a\nb' }}", true},
        {"{% set x = \"\\n\" %}", "{% set x = \"\n\" %}", true},
        {"{{ 'a' }}\n", "{{ 'a' }}", true},
        {"{{ 'a' }}\n\n", "{{ 'a' }}", false},
        {"a\\nb", "a\nb", false},
        {"{{ x }}a\\n{{ y }}", "{{ x }}a\n{{ y }}", false},
        {"{{ 'a\\'\\nb' }}", "{{ 'a\\'\nb' }}", true},
        {"{{ 'a\\\\n' }}", "{{ 'a\\\n' }}", false},
        {"{{ 'a' }}", "{{ 'b' }}", false},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if ((sh_chat_template_digest(rows[i].a, strlen(rows[i].a)) ==
             sh_chat_template_digest(rows[i].b, strlen(rows[i].b))) != rows[i].same)
            fail_msg("row %zu", i);
    assert_true(sh_chat_template_digest(OWN_LOOP OWN_END, strlen(OWN_LOOP OWN_END)) == 0x81b1f9242e2cce83);
}

static void refused(void **state)
{
    static const struct {
        enum sh_token_format format;
        const char *template, *line, *says;
    } rows[] = {
        {SH_FORMAT_MESSAGES, NULL, MESSAGES(TURNS),
         "messages need a chat template; --chat-template takes chatml, qwen2.5"},
        {SH_FORMAT_MESSAGES, "zephyr", MESSAGES(TURNS), "no chat template is called zephyr"},
        {SH_FORMAT_SEGMENTS, "chatml", "{}", "--chat-template is for --format messages, sharegpt"},
        {SH_FORMAT_JSONL, "chatml", "{}", "--chat-template is for --format messages"},
        {SH_FORMAT_MESSAGES, "chatml", "[1]", "line 1: it is a list, not an object"},
        {SH_FORMAT_MESSAGES, "chatml", "{\"messages\":3}", "\"messages\" is "},
        {SH_FORMAT_MESSAGES, "chatml", MESSAGES(""), "the last message is not an assistant's"},
        {SH_FORMAT_MESSAGES, "chatml", MESSAGES(MESSAGE("user", "x")), "the last message is not an assistant's"},
        {SH_FORMAT_MESSAGES, "chatml", MESSAGES(MESSAGE("assistant", "x")),
         "message 1 has the role assistant, but user was expected"},
        {SH_FORMAT_MESSAGES, "chatml", MESSAGES(MESSAGE("user", "x") "," MESSAGE("user", "x")),
         "message 2 has the role user"},
        {SH_FORMAT_MESSAGES, "chatml", MESSAGES(TURNS "," MESSAGE("system", "x")), "message 5 has the role system"},
        {SH_FORMAT_MESSAGES, "chatml", MESSAGES(MESSAGE("tool", "x")), "the role \"tool\""},
        {SH_FORMAT_MESSAGES, "chatml", MESSAGES(MESSAGE("user", "x") "," MESSAGE("assistant", "")), "message is empty"},
        {SH_FORMAT_MESSAGES, "llama3", MESSAGES(MESSAGE("user", "x") "," MESSAGE("assistant", " \\n ")),
         "message is empty"},
        {SH_FORMAT_MESSAGES, "chatml", MESSAGES("{\"role\":\"user\",\"content\":null}"),
         "content is null, not a string"},
        {SH_FORMAT_MESSAGES, "chatml", MESSAGES("{\"role\":\"user\"}"), "content is missing"},
        {SH_FORMAT_MESSAGES, "chatml", MESSAGES("{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[]}"),
         "\"tool_calls\""},
        {SH_FORMAT_MESSAGES, "chatml", "{\"tools\":[],\"messages\":[" TURNS "]}", "it has \"tools\""},
        {SH_FORMAT_MESSAGES, "chatml", MESSAGES(MESSAGE("user", "x</s>") "," MESSAGE("assistant", "y")),
         "special token"},
        {SH_FORMAT_MESSAGES, "chatml", MESSAGES("7"), "a message is "},
        {SH_FORMAT_MESSAGES, "mistral-v3", MESSAGES(MESSAGE("system", "s") "," TURNS), "no place for a system message"},
        {SH_FORMAT_MESSAGES, "chatml", MESSAGES(MESSAGE("user", "x") "," KEYED("assistant", "y", "\"weight\":0")),
         "line 1: no assistant's message is to be learned"},
        {SH_FORMAT_MESSAGES, "chatml", MESSAGES(MESSAGE("user", "x") "," KEYED("assistant", "y", "\"weight\":0.5")),
         "line 1: a message has a weight that is neither 0"},
        {SH_FORMAT_MESSAGES, "chatml", MESSAGES(MESSAGE("user", "x") "," KEYED("assistant", "y", "\"weight\":true")),
         "a message has a weight that is neither 0"},
        {SH_FORMAT_MESSAGES, "chatml", MESSAGES(MESSAGE("user", "x") "," KEYED("assistant", "y", "\"train\":0")),
         "a message has a \"train\" that is a whole number"},
        {SH_FORMAT_MESSAGES, "chatml", MESSAGES(KEYED("user", "x", "\"train\":true") "," MESSAGE("assistant", "y")),
         "a message asks to be learned (weight 1, or train true), but only an assistant's is"},
        {SH_FORMAT_MESSAGES, "chatml",
         MESSAGES(MESSAGE("user", "x") "," KEYED("assistant", "y", "\"reasoning_content\":\"hm\"")),
         "line 1: a message has \"reasoning_content\": reasoning is not rendered here"},
        {SH_FORMAT_MESSAGES, "chatml",
         MESSAGES(MESSAGE("user", "x") "," KEYED("assistant", "y", "\"thinking\":\"hm\"")),
         "a message has \"thinking\": reasoning"},
        {SH_FORMAT_MESSAGES, "chatml",
         MESSAGES(MESSAGE("user", "x") "," KEYED("assistant", "y", "\"train_detail\":[]")),
         "a message has a key \"train_detail\", which is not known here"},
        {SH_FORMAT_MESSAGES, "chatml", MESSAGES(PARTS("user", TEXT_PART("x") "," TEXT_PART("y"))),
         "a message's content is a list of 2 texts; make one string of them"},
        {SH_FORMAT_MESSAGES, "chatml", MESSAGES(PARTS("user", "")), "a message's content is a list of 0 texts"},
        {SH_FORMAT_MESSAGES, "chatml", MESSAGES(PARTS("user", TEXT_PART("x") ",{\"type\":\"image\"}")),
         "a message's content has a part that is not of type text: only text is rendered here; take it out"},
        {SH_FORMAT_MESSAGES, "chatml", MESSAGES(PARTS("user", "\"x\"")), "a part that is not of type text"},
        {SH_FORMAT_MESSAGES, "chatml", MESSAGES(PARTS("user", "{\"type\":\"text\"}")), "a part's text is missing"},
        {SH_FORMAT_MESSAGES, "chatml", MESSAGES(PARTS("user", "{\"type\":\"text\",\"text\":\"x\",\"cache\":1}")),
         "a part of a message has a key \"cache\""},
        {SH_FORMAT_MESSAGES, "chatml", "{\"functions\":[],\"messages\":[" TURNS "]}",
         "it has \"functions\": tools are"},
        {SH_FORMAT_MESSAGES, "chatml", "{\"chat_template_kwargs\":{\"a\":1},\"messages\":[" TURNS "]}",
         "it has \"chat_template_kwargs\": the templates here take no arguments"},
        {SH_FORMAT_MESSAGES, "chatml", "{\"system\":\"s\",\"messages\":[" TURNS "]}",
         "it has \"system\": a system message is one of the messages"},
        {SH_FORMAT_MESSAGES, "chatml", "{\"images\":[],\"messages\":[" TURNS "]}", "it has \"images\": only text"},
        {SH_FORMAT_MESSAGES, "chatml", "{\"weight\":0,\"messages\":[" TURNS "]}",
         "the line itself is not to be learned"},
        {SH_FORMAT_MESSAGES, "chatml", "{\"weight\":2,\"messages\":[" TURNS "]}",
         "the line has a weight that is neither"},
        {SH_FORMAT_COMPLETION, "chatml",
         "{\"prompt\":[" MESSAGE("user", "x") "," KEYED("assistant", "y", "\"weight\":1") "," MESSAGE(
             "user", "x") "],\"completion\":[" MESSAGE("assistant", "y") "]}",
         "but only the completion is"},
        {SH_FORMAT_COMPLETION, NULL, "{\"prompt\":\"x\",\"completion\":\"y\",\"train\":false}",
         "the line itself is not"},
        {SH_FORMAT_SEGMENTS, NULL, "{\"segments\":[{\"text\":\"x</s>\",\"label\":true}],\"weight\":0}",
         "the line itself"},
        {SH_FORMAT_SEGMENTS, NULL, "{\"segments\":[{\"text\":\"x</s>\",\"label\":true,\"weight\":0}]}",
         "a segment has a key \"weight\""},
        {SH_FORMAT_SHAREGPT, NULL, "{}", "messages need a chat template"},
        {SH_FORMAT_SHAREGPT, "chatml", MESSAGES(TURNS), "the object has no \"conversations\"; give --format messages"},
        {SH_FORMAT_SHAREGPT, "chatml", "{\"conversations\":[{\"from\":\"tool\",\"value\":\"x\"}]}",
         "has the role \"tool\"; known roles are system, human, user, gpt and assistant"},
        {SH_FORMAT_SHAREGPT, "chatml", "{\"conversations\":[{\"from\":\"human\",\"content\":\"x\"}]}",
         "a message has a key \"content\""},
        {SH_FORMAT_SHAREGPT, "chatml", "{\"conversations\":[{\"from\":\"human\"}]}", "a message's value is missing"},
        {SH_FORMAT_SHAREGPT, "chatml",
         "{\"system\":\"s\",\"conversations\":[{\"from\":\"system\",\"value\":\"s\"},{\"from\":\"human\",\"value\":\"x\"},"
         "{\"from\":\"gpt\",\"value\":\"y\"}]}",
         "message 2 has the role system"},
        {SH_FORMAT_ALPACA, NULL, "{\"instruction\":\"x\"}", "\"output\" is missing"},
        {SH_FORMAT_ALPACA, NULL, "{\"instruction\":\"x\",\"output\":\"\"}", "\"output\" is empty"},
        {SH_FORMAT_ALPACA, NULL, "{\"instruction\":\"x\",\"output\":\"y\",\"context\":\"z\"}",
         "the line has a key \"context\", which is not known here"},
        {SH_FORMAT_ALPACA, "chatml", "{\"instruction\":\"x\",\"output\":\"y\",\"history\":[]}", "a key \"history\""},
        {SH_FORMAT_MESSAGES, "phi3", MESSAGES(MESSAGE("system", "") "," TURNS), "the system message is empty"},
        {SH_FORMAT_MESSAGES, "qwen3", MESSAGES(MESSAGE("user", "x") "," MESSAGE("assistant", "<think>y</think>z")),
         "has \"</think>\" in it"},
        {SH_FORMAT_MESSAGES, "qwen3", MESSAGES(MESSAGE("user", "<tool_response>x") "," MESSAGE("assistant", "z")),
         "has \"<tool_response>\" in it"},
        {SH_FORMAT_MESSAGES, "qwen3", MESSAGES(MESSAGE("user", "x") "," MESSAGE("assistant", "\\n\\n")),
         "message is empty"},
        {SH_FORMAT_COMPLETION, NULL, "{\"prompt\":\"x\",\"completion\":\"\"}", "\"completion\" is empty"},
        {SH_FORMAT_COMPLETION, NULL, "{\"prompt\":\"x\"}", "\"completion\" is missing"},
        {SH_FORMAT_COMPLETION, NULL, "{\"prompt\":\"<s>\",\"completion\":\"y\"}", "special token"},
        {SH_FORMAT_COMPLETION, NULL, "{\"prompt\":[],\"completion\":[]}", "give --chat-template NAME"},
        {SH_FORMAT_COMPLETION, NULL, TWO("\"x\"", "\"y\""), "give --format preference"},
        {SH_FORMAT_UNPAIRED, NULL, LABELLED("1"), "\"kto_tag\", is a whole number; true is a desirable answer"},
        {SH_FORMAT_UNPAIRED, NULL, "{\"prompt\":\"x\",\"completion\":\"y\"}", "is missing; true is a desirable answer"},
        {SH_FORMAT_UNPAIRED, "chatml", "{\"messages\":[" MESSAGE("assistant", "y") "],\"label\":true}",
         "of which the last is the answer"},
        {SH_FORMAT_ALPACA, NULL, "{\"instruction\":\"x\",\"output\":\"y\",\"kto_tag\":true}", "a key \"kto_tag\""},
        {SH_FORMAT_PREFERENCE, NULL, "{\"prompt\":\"x\",\"completion\":\"y\",\"label\":true}",
         "line 1: the object has no \"chosen\"; give --format prompt-completion"},
        {SH_FORMAT_PREFERENCE, NULL, "{\"prompt\":\"x\",\"chosen\":\"y\"}",
         "line 1: \"rejected\" is missing, not a string"},
        {SH_FORMAT_PREFERENCE, NULL, PAIR("\"x\"", "\"y\"", "7"), "\"rejected\" is a whole number, not a string"},
        {SH_FORMAT_PREFERENCE, NULL, PAIR("\"x\"", "\"y\"", "\"\""), "\"rejected\" is empty"},
        {SH_FORMAT_PREFERENCE, NULL, TWO("\"xy\"", "\"x\""), "\"rejected\" is empty"},
        {SH_FORMAT_PREFERENCE, NULL, TWO("[]", "[]"), "chosen and rejected are messages; give --chat-template NAME"},
        {SH_FORMAT_PREFERENCE, "chatml", PAIR("\"x\"", "[]", "[]"), "there is no list \"prompt\", and the messages"},
        {SH_FORMAT_PREFERENCE, "chatml", PAIR("\"c\"", WHOLE("y"), WHOLE("z")),
         "\"prompt\" is not the text of a message before the answer"},
        {SH_FORMAT_PREFERENCE, "chatml", PAIR("7", WHOLE("y"), WHOLE("z")),
         "\"prompt\" is a whole number, not a list of"},
        {SH_FORMAT_PREFERENCE, NULL, "{\"prompt\":\"x\",\"question\":\"c\"" BOTH,
         "it has \"prompt\" and \"question\", which mean the same here"},
        {SH_FORMAT_PREFERENCE, NULL, "{\"prompt\":\"x\",\"chosen_response\":\"c\"" BOTH,
         "it has \"chosen\" and \"chosen_response\", which mean the same here"},
        {SH_FORMAT_PREFERENCE, NULL, "{\"system\":\"s\",\"question\":\"x\"" BOTH,
         "\"system\" is a message; give --chat-template NAME"},
        {SH_FORMAT_PREFERENCE, "chatml", "{\"system\":7,\"question\":\"x\"" BOTH,
         "\"system\" is a whole number, not a string"},
        {SH_FORMAT_PREFERENCE, "chatml", "{\"system\":\"s\",\"messages\":" LIST(MESSAGE("user", "x")) REPLIES,
         "it has \"system\": a system message is one of the messages"},
        {SH_FORMAT_UNPAIRED, "chatml", "{\"prompt\":\"c\",\"completion\":" WHOLE("y") ",\"label\":false}",
         "is not the text of a message before the answer"},
        {SH_FORMAT_UNPAIRED, "chatml", "{\"prompt\":\"c\",\"messages\":" WHOLE("y") ",\"label\":false}",
         "is not the text of a message before the answer"},
        {SH_FORMAT_PREFERENCE, "chatml", "{\"question\":\"c\",\"messages\":" LIST(MESSAGE("user", "x")) REPLIES,
         "is not the text of a message before the answer"},
        {SH_FORMAT_PREFERENCE, NULL, "{\"question\":\"x\",\"input\":\"c\"" BOTH,
         "it has \"question\" and \"input\", which mean the same here"},
        {SH_FORMAT_MESSAGES, "chatml", "{\"instruction\":\"x\"" RESPONSES, "give --format preference"},
        {SH_FORMAT_PREFERENCE, "chatml", TWO("[" MESSAGE("user", "x") "]", "[" MESSAGE("user", "x") "]"),
         "do not begin alike and then differ"},
        {SH_FORMAT_PREFERENCE, "chatml",
         PAIR("[" MESSAGE("user", "x") "]", "[" MESSAGE("user", "y") "]", "[" MESSAGE("user", "z") "]"), "role"},
        {SH_FORMAT_PREFERENCE, NULL, "{\"chosen\":\"xy\",\"rejected\":\"xz\",\"tools\":[{}]}", "it has \"tools\""},
        {SH_FORMAT_PREFERENCE, NULL, "{\"chosen\":\"xy\",\"rejected\":\"xz\",\"weight\":0}", "is not to be learned"},
        {SH_FORMAT_SEGMENTS, NULL, "{\"segments\":[{\"text\":\"x\",\"label\":true}]}", "ends with token "},
        {SH_FORMAT_SEGMENTS, NULL, "{\"segments\":[{\"text\":\"x</s>\",\"label\":false}]}",
         "no segment has the label true"},
        {SH_FORMAT_SEGMENTS, NULL, "{\"segments\":[{\"text\":\"\",\"label\":true}]}", "a segment to learn is empty"},
        {SH_FORMAT_SEGMENTS, NULL, "{\"segments\":[{\"text\":\"x</s>\"}]}", "a segment's label is missing"},
        {SH_FORMAT_SEGMENTS, NULL, "{\"segments\":[{\"text\":\"x</s>\",\"label\":1}]}", "a segment's label is "},
        {SH_FORMAT_SEGMENTS, NULL, "{\"segments\":[7]}", "a segment's text is missing"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        sh_rc rc = run(rows[i].format, rows[i].template, rows[i].line, (struct sh_token_options){0});
        if (rc == SH_OK || !strstr(sh_error_text(), rows[i].says))
            fail_msg("row %zu: rc %d: %s", i, (int)rc, rc ? sh_error_text() : "taken");
    }
    assert_int_equal(run(SH_FORMAT_SEGMENTS, NULL, "{}", (struct sh_token_options){.no_end = true, .end = NULL}),
                     SH_E_USAGE);
}

/* Options that would be accepted but have no effect. */
static void unused(void **state)
{
    static const struct {
        enum sh_token_format format;
        const char *template;
        struct sh_token_options more;
        const char *says;
    } rows[] = {
        {SH_FORMAT_SEGMENTS, NULL, {.field = "x"}, "--field is for lines of jsonl"},
        {SH_FORMAT_COMPLETION, NULL, {.field = "x"}, "--field is for lines of jsonl"},
        {SH_FORMAT_TEXT, NULL, {.field = "x"}, "--field is for lines of jsonl"},
        {SH_FORMAT_TEXT, "chatml", {0}, "--chat-template is for"},
        {SH_FORMAT_TEXT, NULL, {.special_in_text = true}, "--special-in-text is for"},
        {SH_FORMAT_SEGMENTS, NULL, {.special_in_text = true}, "--special-in-text is for"},
        {SH_FORMAT_JSONL, NULL, {.separator = "--"}, "--separator is for files of text"},
        {SH_FORMAT_MESSAGES, "chatml", {.separator = "--"}, "--separator is for files of text"},
        {SH_FORMAT_MESSAGES, "chatml", {.end = "</s>"}, "--eos is for text without a chat template"},
        {SH_FORMAT_MESSAGES, "chatml", {.no_begin = true}, "--no-bos is for text"},
        {SH_FORMAT_SEGMENTS, NULL, {.no_begin = true}, "--no-bos is for text"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        sh_rc rc = run(rows[i].format, rows[i].template, "{}", rows[i].more);
        if (rc != SH_E_USAGE || !strstr(sh_error_text(), rows[i].says))
            fail_msg("row %zu: rc %d: %s", i, (int)rc, rc ? sh_error_text() : "taken");
    }
}

/* A prompt ends where an answer begins; the stop token is that of the learned answers. */
static void prompts(void **state)
{
    static const char turns[] = MESSAGES(TURNS "," MESSAGE("user", " z ")),
                      system[] = MESSAGES(MESSAGE("system", "s") "," MESSAGE("user", "z"));
    static const struct {
        const char *name, *line, *stop, *right;
    } rows[] = {
        {"chatml", system, "<|im_end|>",
         "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nz<|im_end|>\n<|im_start|>assistant\n"},
        {"qwen2.5", MESSAGES(MESSAGE("user", "z")), "<|im_end|>",
         "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
         "<|im_start|>user\nz<|im_end|>\n<|im_start|>assistant\n"},
        {"qwen3", MESSAGES(MESSAGE("user", "x") "," MESSAGE("assistant", "\\ny") "," MESSAGE("user", "z")),
         "<|im_end|>",
         "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n\ny<|im_end|>\n<|im_start|>user\nz<|im_end|>\n"
         "<|im_start|>assistant\n"},
        {"llama3", system, "<|eot_id|>",
         "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\ns<|eot_id|>"
         "<|start_header_id|>user<|end_header_id|>\n\nz<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"},
        {"llama2", turns, "</s>", "<s>[INST] x [/INST] abc </s><s>[INST] y [/INST] b </s><s>[INST] z [/INST]"},
        {"llama2", system, "</s>", "<s>[INST] <<SYS>>\ns\n<</SYS>>\n\nz [/INST]"},
        {"mistral-v3", turns, "</s>", "<s>[INST]  x [/INST] abc</s>[INST] y[/INST] b</s>[INST]  z [/INST]"},
        {"mistral-v7", system, "</s>", "<s>[SYSTEM_PROMPT] s[/SYSTEM_PROMPT][INST] z[/INST]"},
        {"mistral-v7-tekken", system, "</s>", "<s>[SYSTEM_PROMPT]s[/SYSTEM_PROMPT][INST]z[/INST]"},
        {"gemma", system, "<end_of_turn>", "<bos><start_of_turn>user\ns\n\nz<end_of_turn>\n<start_of_turn>model\n"},
        {"phi3", system, "<|end|>", "<|system|>\ns<|end|>\n<|user|>\nz<|end|>\n<|assistant|>\n"},
    };
    struct sh_tokenizer *tok;
    struct sh_chat chat = {0};

    (void)state;
    assert_int_equal(sh_tokenizer_open(model_path, &tok), SH_OK);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct sh_template *t;
        int64_t stop;
        json_t *line;

        assert_int_equal(sh_chat_template(rows[i].name, tok, "do", &t, &stop), SH_OK);
        assert_int_equal(stop, sh_tokenizer_find(tok, rows[i].stop));
        assert_int_equal(sh_json_parse(rows[i].line, strlen(rows[i].line), "line", &line), SH_OK);
        sh_chat_clear(&chat);
        assert_int_equal(sh_chat_prompt(t, line, &chat), SH_OK);
        sh_text_put(&chat.text, "", 1);
        assert_string_equal(chat.text.at, rows[i].right);
        json_decref(line);
    }
    sh_chat_free(&chat);
    sh_tokenizer_close(tok);
}

/* A model that is asked nothing has nothing to answer. */
static void no_prompts(void **state)
{
    static const char *const rows[][2] = {
        {MESSAGES(TURNS), "the last message is not a user's"},
        {MESSAGES(""), "the last message is not a user's"},
        {MESSAGES(MESSAGE("system", "s")), "the last message is not a user's"},
        {MESSAGES(MESSAGE("user", "x") "," MESSAGE("user", "x")), "message 2 has the role user"},
        {MESSAGES(MESSAGE("tool", "x")), "the role \"tool\""},
        {"{\"tools\":[],\"messages\":[" MESSAGE("user", "x") "]}", "it has \"tools\""},
        {"{}", "\"messages\" is missing"},
    };
    struct sh_chat chat = {0};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        json_t *line;

        assert_int_equal(sh_json_parse(rows[i][0], strlen(rows[i][0]), "line", &line), SH_OK);
        assert_int_equal(sh_chat_prompt(sh_template_find("chatml"), line, &chat), SH_E_DATA);
        assert_non_null(strstr(sh_error_text(), rows[i][1]));
        json_decref(line);
    }
    sh_chat_free(&chat);
}

/* A part without a document would otherwise only be noticed in training. */
static void empty_parts(void **state)
{
    static const char line[] = MESSAGES(TURNS);
    char text[sizeof line + 2000];
    char *val = sh_path_join(folder, "val.bin");

    (void)state;
    for (int last = 0; last < 2; last++) {
        struct sh_token_options more = {.val_output = val, .val_fraction = 0.5};

        memset(text, '\n', sizeof text);
        memcpy(last ? text + sizeof text - sizeof line : text, line, sizeof line - 1);
        text[sizeof text - 1] = '\0';
        assert_int_equal(run(SH_FORMAT_MESSAGES, "chatml", text, more), SH_E_DATA);
        assert_non_null(strstr(sh_error_text(), last ? "out.bin; choose a fraction" : "val.bin; choose a fraction"));
        assert_int_not_equal(access(val, F_OK), 0);
    }
    free(val);
}

/* The special tokens that a template writes must be tokens of the model. */
static void another_model(void **state)
{
    char *text;
    size_t bytes;

    (void)state;
    assert_int_equal(sh_read_file(model_path, 1 << 20, &text, &bytes), SH_OK);
    for (char *at; (at = strstr(text, "<|im_start|>")) != NULL;)
        memcpy(at, "<|im_starx|>", 12);
    assert_int_equal(sh_write_file_atomic(model_path, text, bytes), SH_OK);
    assert_int_equal(run(SH_FORMAT_MESSAGES, "chatml", MESSAGES(TURNS), (struct sh_token_options){0}), SH_E_USAGE);
    assert_non_null(
        strstr(sh_error_text(), "has no special token <|im_start|>, which the chat template chatml writes"));
    free(text);
    write_model(false);
}

static int make_folder(void **state)
{
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    in_path = sh_path_join(folder, "in.jsonl");
    out_path = sh_path_join(folder, "out.bin");
    model_path = sh_path_join(folder, "tokenizer.json");
    write_model(false);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    unlink(in_path);
    unlink(out_path);
    unlink(model_path);
    free(in_path);
    free(out_path);
    free(model_path);
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(templates),
        cmocka_unit_test(other_forms),
        cmocka_unit_test(prepended_spaces),
        cmocka_unit_test(folders_own),
        cmocka_unit_test(digests),
        cmocka_unit_test(refused),
        cmocka_unit_test(unused),
        cmocka_unit_test(empty_parts),
        cmocka_unit_test(another_model),
        cmocka_unit_test(prompts),
        cmocka_unit_test(no_prompts),
        cmocka_unit_test(published_forms),
        cmocka_unit_test(preference_of_others),
        cmocka_unit_test(across),
        cmocka_unit_test(unpaired),
        cmocka_unit_test(preference),
        cmocka_unit_test(keys),
        cmocka_unit_test(added_at_borders),
        cmocka_unit_test(special_bytes),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
