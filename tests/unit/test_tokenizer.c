/* Tokenizers against what the library `tokenizers` made of the same texts (tests/golden/tokenizer), and what is
 * refused. */
#include "io/json/json.h"
#include "sherd_config.h"
#include "src/base/file.h"
#include "src/base/hash.h"
#include "src/text/base/pattern.h"
#include "src/text/corpus/files.h"
#include "src/text/token/hf.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#ifdef HAVE_PCRE2
enum { EXPRESSIONS = 1 };
#else
enum { EXPRESSIONS = 0 };
#endif

static char *golden(const char *name)
{
    const char *top = getenv("SHERD_SRCDIR");
    return sh_strfmt("%s/tests/golden/tokenizer/%s", top ? top : ".", name);
}

static void check_decoded(const struct sh_tokenizer *t, const struct sh_ids *ids, bool special, const json_t *expected,
                          const json_t *text)
{
    const json_t *want = json_is_null(expected) ? text : expected;
    char *back;
    size_t bytes;
    assert_int_equal(sh_decode_ids(t, ids->id, ids->n, special, &back, &bytes), SH_OK);
    assert_int_equal(bytes, json_string_length(want));
    assert_memory_equal(back, json_string_value(want), bytes);
    free(back);
}

static void check_row(const struct sh_tokenizer *t, struct sh_encoder *e, const json_t *row)
{
    const json_t *text = json_array_get(row, 0), *want = json_array_get(row, 1), *id;
    struct sh_ids ids = {0};
    size_t i;
    assert_int_equal(
        sh_encode(e, json_string_value(text), json_string_length(text), SH_ENCODE_BEGIN | SH_ENCODE_END, &ids), SH_OK);
    if (ids.n != json_array_size(want))
        print_error("%s\n", json_string_value(text));
    assert_int_equal(ids.n, json_array_size(want));
    json_array_foreach(want, i, id) assert_int_equal(ids.id[i], json_integer_value(id));
    check_decoded(t, &ids, true, json_array_get(row, 2), text);
    check_decoded(t, &ids, false, json_array_get(row, 3), text);
    free(ids.id);
}

/* tests/golden/tokenizer/KIND.WHAT */
static char *golden_of(const char *kind, const char *what)
{
    char *name = sh_strfmt("%s.%s", kind, what), *path = golden(name);
    free(name);
    return path;
}

static json_t *load(const char *kind, const char *what)
{
    char *path = golden_of(kind, what);
    json_t *json = NULL;
    if (sh_json_load(path, 1 << 22, &json) != SH_OK)
        fail_msg("%s", sh_error_text());
    free(path);
    return json;
}

/* Runs twice: the second time all pieces are cached. */
static void check_kind(const char *kind)
{
    char *path = golden_of(kind, "json");
    struct sh_tokenizer *t = NULL;
    json_t *rows = load(kind, "ids.json"), *row;
    size_t i;
    assert_int_equal(sh_tokenizer_open(path, &t), SH_OK);
    struct sh_encoder *e = sh_encoder_create(t);
    for (int round = 0; round < 2; round++)
        json_array_foreach(rows, i, row) check_row(t, e, row);
    assert_true(i > 80);
    sh_encoder_destroy(e);
    sh_tokenizer_close(t);
    json_decref(rows);
    free(path);
}

/* Ids of texts with added tokens of all properties. */
static void check_added(const char *kind)
{
    json_t *file = load(kind, "json"), *added = load(kind, "added.json"), *rows = json_object_get(added, "rows"), *row;
    struct sh_hf *hf = NULL;
    size_t i, k;
    json_array_extend(json_object_get(file, "added_tokens"), json_object_get(added, "added_tokens"));
    json_object_del(file, "post_processor");
    char *text = json_dumps(file, 0);
    assert_int_equal(sh_token_json_parse(text, strlen(text), kind, &hf), SH_OK);
    void *encoder = sh_token_hf.create(hf);
    json_array_foreach(rows, i, row)
    {
        const json_t *of = json_array_get(row, 0), *want = json_array_get(row, 1), *id;
        struct sh_ids ids = {0};
        assert_int_equal(sh_token_hf.encode(hf, encoder, (const unsigned char *)json_string_value(of),
                                            json_string_length(of), 0, &ids, NULL),
                         SH_OK);
        bool same = ids.n == json_array_size(want);
        json_array_foreach(want, k, id) same = same && ids.id[k] == json_integer_value(id);
        if (!same)
            fail_msg("%s: other ids: %s", kind, json_string_value(of));
        free(ids.id);
    }
    assert_true(i > 40);
    sh_token_hf.destroy(encoder);
    sh_token_hf.close(hf);
    free(text);
    json_decref(file);
    json_decref(added);
}

/* Each kind that tests/gold/tokenizer_kinds.py compares with the library has files for machines without it. */
static void ids_are_those_of_tokenizers(void **state)
{
    char *path = golden("../../gold/tokenizer_kinds.py"), *text, *rest, *kind;
    size_t bytes;
    int n = 0;
    (void)state;
    assert_int_equal(sh_read_file(path, 1 << 20, &text, &bytes), SH_OK);
    rest = strstr(text, "\nKINDS = [");
    assert_non_null(rest);
    rest = strtok(rest, "]");
    strsep(&rest, "'");
    for (; (kind = strsep(&rest, "'")); strsep(&rest, "'")) {
        if (!EXPRESSIONS && strcmp(kind, "llama2"))
            continue;
        check_kind(kind);
        check_added(kind);
        n++;
    }
    free(text);
    free(path);
    assert_int_equal(n, EXPRESSIONS ? 4 : 1);
    if (!EXPRESSIONS) {
        print_message("without PCRE2 only llama2 is read\n");
        skip();
    }
}

static sh_rc parse(const char *text, struct sh_hf **hf)
{
    return sh_token_json_parse(text, strlen(text), "t.json", hf);
}

#define MODEL "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"<unk>\":3},\"merges\":[\"a b\"]}"

static void unknown_parts_are_refused_by_name(void **state)
{
    static const struct {
        const char *text, *says;
    } rows[] = {
        {"[]", "t.json: there is no \"model\" in it"},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[]}}", "model: its type is \"Unigram\"; only BPE is read"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[],\"dropout\":0.1}}",
         "model: dropout has a value"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[],\"end_of_word_suffix\":\"</w>\"}}",
         "end_of_word_suffix has"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[],\"magic\":1}}",
         "the key \"magic\" is not known here"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}}",
         "\"a\" and \"b\" both have the id 0"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}}", "must be a whole number from 0"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":2147483648},\"merges\":[]}}", "must be a whole number from 0"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]}}", "there is no word in it"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":[],\"merges\":[]}}", "vocab is a list and must be an object"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1},\"merges\":[\"a b\"]}}",
         "merges[0]: \"a\" and \"b\" together are not a word"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[[\"a\",\"c\"]]}}",
         "merges[0]: \"c\" is not a word"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[[\"a\"]]}}", "merges[0]: a merge is"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a a a\"]}}", "merges[0]: a merge is"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[],\"unk_token\":\"u\"}}",
         "unk_token \"u\" is not a word"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"\\ud800\":0},\"merges\":[]}}", "t.json: line 1"},
        {"{\"normalizer\":{\"type\":\"Lowercase\"}," MODEL "}",
         "normalizer: the type \"Lowercase\" is not one that Sherd reads"},
        {"{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"NFKC\"}]}," MODEL "}",
         "normalizer: normalizers[1]: the type \"NFKC\""},
        {"{\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"a\"},\"content\":\"b\"}," MODEL "}",
         "only a string can be replaced"},
        {"{\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"}," MODEL "}",
         "pre_tokenizer: the type \"BertPreTokenizer\""},
        {"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"\"},\"behavior\":\"Removed\"}," MODEL "}",
         "pattern is empty"},
        {"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"a\"},\"behavior\":\"Odd\"}," MODEL "}",
         "behavior is \"Odd\""},
        {"{\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"ab\"}," MODEL "}",
         "replacement must be one character"},
        {"{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\",\"use_regex\":false,"
         "\"add_prefix_space\":false},{\"type\":\"Digits\"}]}," MODEL "}",
         "pretokenizers[1]: Digits: a step after ByteLevel"},
        {"{\"post_processor\":{\"type\":\"BertProcessing\"}," MODEL "}", "post_processor: the type \"BertProcessing\""},
        {"{\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[]}," MODEL "}",
         "single must have the text \"A\" once"},
        {"{\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"x\"}},{"
         "\"Sequence\":{\"id\":\"A\"}}],"
         "\"special_tokens\":{\"x\":{\"ids\":[9]}}}," MODEL "}",
         "post_processor: no word has the id 9"},
        {"{\"decoder\":{\"type\":\"WordPiece\"}," MODEL "}", "decoder: the type \"WordPiece\""},
        {"{\"added_tokens\":[{\"id\":9,\"content\":\"x\"}]," MODEL "}",
         "added_tokens[0]: \"x\" has the id 9, but is read as 4"},
        {"{\"normalizer\":{\"type\":\"NFC\"},\"added_tokens\":[{\"id\":4,\"content\":\"\xc3\xa9\",\"normalized\":true},"
         "{\"id\":5,\"content\":\"e\xcc\x81\",\"normalized\":true}]," MODEL "}",
         "added_tokens: 4 and 5 have the same text once it is normalized"},
        {"{\"added_tokens\":[{\"id\":1,\"content\":\"a\"}]," MODEL "}", "the id of this word in vocab"},
        {"{\"added_tokens\":[{\"id\":4,\"content\":\"x\"},{\"id\":4,\"content\":\"x\"}]," MODEL "}",
         "added_tokens[1]: \"x\" appears twice"},
        {"{\"odd\":1," MODEL "}", "the key \"odd\" is not known here"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct sh_hf *hf = NULL;
        assert_int_equal(parse(rows[i].text, &hf), SH_E_DATA);
        if (!strstr(sh_error_text(), rows[i].says))
            print_error("row %zu: %s\n", i, sh_error_text());
        assert_non_null(strstr(sh_error_text(), rows[i].says));
        assert_null(strchr(sh_error_text(), '\n'));
    }
}

static void expressions_that_are_not_read(void **state)
{
    static const struct {
        const char *pattern, *says;
    } rows[] = {
        {"a.b", "one of . ^ $"},
        {"^a", "one of . ^ $"},
        {"\\bword", "an unknown escape"},
        {"\\w+", "an unknown escape"},
        {"\\h", "an unknown escape"},
        {"\\1", "an unknown escape"},
        {"a\\", "an unknown escape"},
        {"\\p{Klingon}", "an unknown property"},
        {"\\p{L", "an unknown property"},
        {"\\pL", "a property without { }"},
        {"[a[b]]", "a class within a class"},
        {"[a&&b]", "a class within a class"},
        {"[]", "an empty class"},
        {"[abc", "without an end"},
        {"[z-a]", "a range"},
        {"(?i:[a-z])", "a class where case is ignored"},
        {"(?i:\xc3\xa9)", "ignored for ASCII letters only"},
        {"(?i:'ss)", "two letters that become one"},
        {"(?P<n>a)", "an unknown kind of group"},
        {"(?i)a", "an unknown kind of group"},
        {"(a", "a ( without a )"},
        {"a)", "a ) without a ("},
        {"a{,3}", "a count that is not"},
        {"a{2,1}", "a count that is not"},
        {"a{9999}", "a count that is not"},
        {"a{1,2}+", "a count that is not"},
        {"\xff", "not UTF-8"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char *out = NULL;
        assert_int_equal(sh_pattern_translate(rows[i].pattern, strlen(rows[i].pattern), &out), SH_E_DATA);
        if (!strstr(sh_error_text(), rows[i].says))
            print_error("row %zu: %s\n", i, sh_error_text());
        assert_non_null(strstr(sh_error_text(), rows[i].says));
    }
}

static void classes_are_our_own(void **state)
{
    (void)state;
    static const char pattern[] = "[\\s-]|(?i:'S)|\\p{Han}?+x{1,3}";
    char *out;
    assert_int_equal(sh_pattern_translate(pattern, sizeof pattern - 1, &out), SH_OK);
    assert_non_null(strstr(out, "[\\x{9}-\\x{d}\\x{20}\\x{2d}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}"));
    assert_non_null(strstr(out, "|(?:[\\x{27}][\\x{53}\\x{73}\\x{17f}])|"));
    assert_non_null(strstr(out, "]?+[\\x{78}]{1,3}"));
    free(out);
    assert_int_equal(sh_pattern_translate("\\P{L}", 5, &out), SH_OK);
    assert_null(strstr(out, "\\x{d800}")); /* surrogates are not used as ends of a range */
    free(out);
}

/* A piece above the size that is scanned, compared with shorter ones, letter by letter. */
static void long_pieces_merge_as_short_ones(void **state)
{
    enum { N = 200001 };
    (void)state;
    struct sh_hf *hf;
    struct sh_bpe_scratch s;
    assert_int_equal(parse("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"aa\":1,\"aaaa\":2,\"b\":3,\"ab\":4},"
                           "\"merges\":[\"a a\",\"aa aa\",\"a b\"]}}",
                           &hf),
                     SH_OK);
    sh_bpe_scratch_init(&s);
    unsigned char *text = calloc(N, 1);
    struct sh_ids ids = {0};
    memset(text, 'a', N);
    sh_bpe_encode(&hf->model, &s, text, N, &ids);
    sh_bpe_finish(&hf->model, &s, &ids);
    assert_int_equal(ids.n, N / 4 + 1);
    assert_int_equal(ids.id[ids.n - 2], 2);
    assert_int_equal(ids.id[ids.n - 1], 0);
    for (size_t n = 1; n < 130; n++) { /* a^n b: b merges with the last letter if that is single */
        size_t left = n % 4, expected = n / 4 + (left == 0 ? 1 : left == 1 ? 1 : left == 2 ? 2 : 2);
        ids.n = 0;
        text[n] = 'b';
        sh_bpe_encode(&hf->model, &s, text, n + 1, &ids);
        sh_bpe_finish(&hf->model, &s, &ids);
        assert_int_equal(ids.n, expected);
        assert_int_equal(ids.id[ids.n - 1], left % 2 ? 4 : 3);
        text[n] = 'a';
    }
    free(ids.id);
    free(text);
    sh_bpe_scratch_free(&s);
    sh_token_json_free(hf);
}

/* Unknown characters: bytes if all bytes are words, otherwise the unknown word, once for neighbours or once each. */
static void unknown_characters(void **state)
{
    static const struct {
        const char *more, *text;
        uint32_t ids[8];
        size_t n;
    } rows[] = {
        {"", "axyb", {0, 1}, 2},
        {",\"unk_token\":\"<unk>\"", "axyb", {0, 2, 2, 1}, 4},
        {",\"unk_token\":\"<unk>\",\"fuse_unk\":true", "axyb", {0, 2, 1}, 3},
        {",\"unk_token\":\"<unk>\",\"byte_fallback\":true", "axzb", {0, 3, 2, 1}, 4},
        {",\"unk_token\":\"<unk>\",\"byte_fallback\":true", "azxb", {0, 3, 2, 1}, 4}, /* bytes before a held unknown */
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char text[400];
        struct sh_hf *hf = NULL;
        struct sh_bpe_scratch s;
        struct sh_ids ids = {0};
        snprintf(text, sizeof text,
                 "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"<unk>\":2,\"<0x78>\":3},\"merges\":[]%s}}",
                 rows[i].more);
        assert_int_equal(parse(text, &hf), SH_OK);
        sh_bpe_scratch_init(&s);
        sh_bpe_encode(&hf->model, &s, (const unsigned char *)rows[i].text, strlen(rows[i].text), &ids);
        sh_bpe_finish(&hf->model, &s, &ids);
        assert_int_equal(ids.n, rows[i].n);
        assert_memory_equal(ids.id, rows[i].ids, ids.n * sizeof *ids.id);
        free(ids.id);
        sh_bpe_scratch_free(&s);
        sh_token_json_free(hf);
    }
}

/* Get the ids of a text with a given tokenizer.json. */
static void encode_with(const char *file, const char *text, struct sh_ids *ids)
{
    struct sh_hf *hf = NULL;

    assert_int_equal(parse(file, &hf), SH_OK);
    void *encoder = sh_token_hf.create(hf);
    assert_int_equal(sh_token_hf.encode(hf, encoder, (const unsigned char *)text, strlen(text), 0, ids, NULL), SH_OK);
    sh_token_hf.destroy(encoder);
    sh_token_hf.close(hf);
}

/* A step after a cut writes each piece into the same buffer, where the previous piece must no longer be waiting. */
static void pieces_in_one_buffer(void **state)
{
    static const uint32_t expected[] = {3, 4, 3, 4, 4};
    (void)state;
    struct sh_ids ids = {0};

    encode_with("{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":["
                "{\"type\":\"Split\",\"pattern\":{\"String\":\"-\"},\"behavior\":\"Removed\",\"invert\":false},"
                "{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"always\"}]},"
                "\"model\":{\"type\":\"BPE\",\"vocab\":{\"_\":0,\"a\":1,\"b\":2,\"_a\":3,\"_b\":4},"
                "\"merges\":[\"_ a\",\"_ b\"]}}",
                "a-b-a-b-b", &ids);
    assert_int_equal(ids.n, 5);
    assert_memory_equal(ids.id, expected, sizeof expected);
    free(ids.id);
}

/* Where each behavior cuts, matches beside each other included. Words of the vocabulary are possible pieces; a letter
 * merges with what stands next to it in its piece. The pieces are those of tokenizers 0.23.3. */
static void behaviors_cut(void **state)
{
    static const struct {
        const char *behavior, *invert, *cut[2]; /* of "a--b-c" and "-a" */
    } rows[] = {
        {"Removed", "false", {"a|b|c", "a"}},
        {"Isolated", "false", {"a|-|-|b|-|c", "-|a"}},
        {"MergedWithPrevious", "false", {"a-|-|b-|c", "-|a"}},
        {"MergedWithNext", "false", {"a|-|-b|-c", "-a"}},
        {"Contiguous", "false", {"a|--|b|-|c", "-|a"}},
        {"Removed", "true", {"-|-|-", "-"}},
        {"Isolated", "true", {"a|-|-|b|-|c", "-|a"}},
        {"MergedWithPrevious", "true", {"a|-|-b|-c", "-a"}},
        {"MergedWithNext", "true", {"a-|-|b-|c", "-|a"}},
        {"Contiguous", "true", {"a|--|b|-|c", "-|a"}},
    };
    static const char *const texts[] = {"a--b-c", "-a"}, *const words[] = {"a",  "b",  "c",  "-",   "--",  "a-", "b-",
                                                                           "-a", "-b", "-c", "a--", "--b", "-b-"};
    enum { WORDS = sizeof words / sizeof *words };
    char vocab[400] = "";

    (void)state;
    for (int i = 0; i < WORDS; i++)
        sprintf(vocab + strlen(vocab), "%s\"%s\":%d", i ? "," : "", words[i], i);
    for (size_t i = 0; i < 2 * (sizeof rows / sizeof rows[0]); i++) {
        char file[1000], cut[100] = "";
        struct sh_ids ids = {0};

        snprintf(
            file, sizeof file,
            "{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"-\"},\"behavior\":\"%s\",\"invert\":%s},"
            "\"model\":{\"type\":\"BPE\",\"vocab\":{%s},\"merges\":[\"- -\",\"a -\",\"a --\",\"b -\",\"- a\",\"- "
            "b\",\"-- b\",\"- c\",\"-b -\"]}}",
            rows[i / 2].behavior, rows[i / 2].invert, vocab);
        encode_with(file, texts[i % 2], &ids);
        for (size_t k = 0; k < ids.n; k++)
            sprintf(cut + strlen(cut), "%s%s", k ? "|" : "", words[ids.id[k]]);
        if (strcmp(cut, rows[i / 2].cut[i % 2]))
            fail_msg("%s, invert %s: %s", rows[i / 2].behavior, rows[i / 2].invert, cut);
        free(ids.id);
    }
}

/* A text of several stretches, with replacements up to the longest that is written without a branch, and one longer:
 * each space, wherever it is, becomes as many letters as the replacement has. */
static void a_byte_is_replaced(void **state)
{
    enum { N = 10007 };
    static const char *const with[] = {"b", "bbb", "bbbbbbbb", "bbbbbbbbb"};
    (void)state;
    char *text = calloc(N + 1, 1), file[300];

    for (int i = 0; i < N; i++)
        text[i] = i % 7 == 3 || i % 4096 > 4093 || i == N - 1 ? ' ' : 'a';
    for (size_t k = 0; k < sizeof with / sizeof with[0]; k++) {
        struct sh_ids ids = {0};
        size_t at = 0;
        snprintf(file, sizeof file,
                 "{\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"%s\"},"
                 "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1},\"merges\":[]}}",
                 with[k]);
        encode_with(file, text, &ids);
        for (int i = 0; i < N; i++)
            for (size_t n = text[i] == ' ' ? strlen(with[k]) : 1; n > 0; n--) {
                assert_true(at < ids.n);
                assert_int_equal(ids.id[at++], text[i] == ' ');
            }
        assert_int_equal(at, ids.n);
        free(ids.id);
    }
    free(text);
}

static void encode_all(struct sh_hf *hf, void *encoder, const char *text, bool cut, struct sh_ids *ids,
                       struct sh_places *places)
{
    int n = hf->n_split;
    ids->n = places->n = 0;
    hf->n_split = cut ? n : 0;
    assert_int_equal(sh_token_hf.encode(hf, encoder, (const unsigned char *)text, strlen(text), 0, ids, places), SH_OK);
    hf->n_split = n;
}

/* Try texts of three to six of these characters. */
static void check_cuts(struct sh_hf *hf, const char *const *letters, unsigned n_letters)
{
    void *a = sh_token_hf.create(hf), *b = sh_token_hf.create(hf);
    struct sh_ids whole = {0}, cut = {0};
    struct sh_places at[2] = {0};
    for (unsigned code = 0; code < 5000; code++) {
        char text[64] = "";
        uint64_t left = sh_mix64(code) >> 16;
        for (unsigned k = 0; k < 3 + code % 4; k++, left /= n_letters)
            strcat(text, letters[left % n_letters]);
        encode_all(hf, a, text, false, &whole, &at[0]);
        encode_all(hf, b, text, true, &cut, &at[1]);
        if (whole.n != cut.n || (cut.n && memcmp(whole.id, cut.id, cut.n * sizeof *cut.id) != 0))
            fail_msg("%s has other ids when it is cut", text);
        if (at[0].n != whole.n || at[1].n != cut.n || (cut.n && memcmp(at[0].at, at[1].at, cut.n * sizeof *at[0].at)))
            fail_msg("%s: ids stand for other bytes when it is cut", text);
    }
    free(at[0].at);
    free(at[1].at);
    free(whole.id);
    free(cut.id);
    sh_token_hf.destroy(a);
    sh_token_hf.destroy(b);
}

/* The places where a text without a pre-tokenizer is cut change no id, whatever becomes of unknown characters: nothing,
 * so that their neighbours merge; one unknown word each, or one for several; or their bytes, which may be parts of
 * words. */
static void cuts_change_no_id(void **state)
{
    static const char *const letters[] = {"a", "b", "\n", "\xc3\xa9", "\xe2\x96\x81", "\xe6\xbc\xa2", "x", "."};
    static const char vocab[] = "\"vocab\":{\"<unk>\":0,\"a\":1,\"b\":2,\"ab\":3,\"\xe2\x96\x81\":4,\"\xe2\x96\x81"
                                "a\":5,\"\xc3\xa9\":6,\"\xc3\xa9\xe6\xbc\xa2\":7,\"\xe6\xbc\xa2\":8,\".\":9,\"a.\":10,"
                                "\"\xe2\x96\x81\xe2\x96\x81\":11%s},\"merges\":[\"a b\",\"\xe2\x96\x81 a\",\"\xc3\xa9 "
                                "\xe6\xbc\xa2\",\"a .\",\"\xe2\x96\x81 \xe2\x96\x81\"%s]";
    static const struct {
        const char *more; /* more keys of the model */
        bool all_bytes;
        const char *words, *merges;
    } rows[] = {
        {"", false, "", ""},
        {",\"unk_token\":\"<unk>\"", false, "", ""},
        {",\"unk_token\":\"<unk>\",\"fuse_unk\":true", false, "", ""},
        {",\"unk_token\":\"<unk>\",\"byte_fallback\":true", false, ",\"<0x78>\":12", ""},
        {",\"unk_token\":\"<unk>\",\"byte_fallback\":true", true, "", ""},
        {",\"byte_fallback\":true", true, "", ""},
        {",\"byte_fallback\":true", true, ",\"<0x78>b\":268", ",\"<0x78> b\""},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char words[8192] = "", text[16384], *model;
        struct sh_hf *hf = NULL;
        for (int b = 0; b < 256 && rows[i].all_bytes; b++)
            sprintf(words + strlen(words), ",\"<0x%02X>\":%d", (unsigned)b, 12 + b);
        strcat(words, rows[i].words);
        model = sh_strfmt(vocab, words, rows[i].merges);
        snprintf(text, sizeof text, "{\"model\":{\"type\":\"BPE\",%s%s}}", model, rows[i].more);
        assert_int_equal(parse(text, &hf), SH_OK);
        assert_true(hf->n_split > 0);
        check_cuts(hf, letters, sizeof letters / sizeof *letters);
        sh_token_json_free(hf);
        free(model);
    }
}

/* Added tokens that take the white space next to them, and ones that are themselves white space. The ids are those of
 * tokenizers 0.23.3; where it panics, the token that has no text left is dropped here as well. */
static void white_space_of_added_tokens(void **state)
{
    /* clang-format off */
    static const char file[] =
        "{\"added_tokens\":["
        "{\"id\":7,\"content\":\"<r>\",\"normalized\":false,\"rstrip\":true},"
        "{\"id\":8,\"content\":\"\\n\\n\",\"normalized\":false,\"lstrip\":true},"
        "{\"id\":9,\"content\":\" b\",\"normalized\":false,\"lstrip\":true},"
        "{\"id\":10,\"content\":\"\\r\",\"normalized\":false}],"
        "\"model\":{\"type\":\"BPE\",\"merges\":[],"
        "\"vocab\":{\"a\":0,\"b\":1,\"\\n\":2,\"c\":3,\" \":4,\"x\":5,\"y\":6}}}";
    /* clang-format on */
    static const struct {
        const char *text;
        uint32_t ids[4];
        size_t n;
    } rows[] = {
        {"a\n\nb", {0, 8, 1}, 3},      {"a \n\n\n\nb", {0, 8, 8, 1}, 4}, {"<r>\n\na", {7, 0}, 2},
        {"<r> \n\na", {7, 0}, 2},      {"<r> ba", {7, 9, 0}, 3},         {"<r>\ra", {7, 10, 0}, 3},
        {"<r>\r a", {7, 10, 4, 0}, 4}, {"<r>\n\n\n\nb", {7, 1}, 2}, /* tokenizers panics */
        {"<r>\n\n c", {7, 3}, 2},                                   /* the same */
    };
    struct sh_hf *hf = NULL;
    struct sh_ids ids = {0};
    struct sh_places places = {0};

    (void)state;
    assert_int_equal(parse(file, &hf), SH_OK);
    void *e = sh_token_hf.create(hf);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        encode_all(hf, e, rows[i].text, true, &ids, &places);
        assert_int_equal(ids.n, rows[i].n);
        assert_int_equal(places.n, ids.n);
        assert_memory_equal(ids.id, rows[i].ids, ids.n * sizeof *ids.id);
    }
    free(ids.id);
    free(places.at);
    sh_token_hf.destroy(e);
    sh_token_json_free(hf);
}

/* What each id stands for: id:begin:end, in bytes of the text. They are the offsets of tokenizers 0.23.3, except that a
 * composed character counts with all of its parts, a byte as a byte, and that a character which has no word is not
 * skipped in what follows it. */
static void places_of_ids(void **state)
{
    /* clang-format off */
    static const struct {
        const char *file, *text, *places;
    } rows[] = {
        {"{\"added_tokens\":[{\"id\":3,\"content\":\"#\",\"normalized\":false,\"lstrip\":true}],\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"x\":1,\"\\n\":2},\"merges\":[]}}",
         "x\n#a", "1:0:1 3:1:3 0:3:4"},
        {"{\"added_tokens\":[{\"id\":7,\"content\":\"<b>\",\"normalized\":true}],\"model\":{\"type\":\"BPE\",\"vocab\":{\"\xe2\x96\x81\":0,\"b\":1,\"c\":2,\"d\":3,\"<\":4,\">\":5,\"/\":6},\"merges\":[]},\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"\xe2\x96\x81\"},{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\xe2\x96\x81\"}]}}",
         "d <b>bcd", "0:0:1 3:0:1 7:1:5 1:5:6 2:6:7 3:7:8"},
        {"{\"added_tokens\":[{\"id\":3,\"content\":\"  \",\"normalized\":false}],\"model\":{\"type\":\"BPE\",\"vocab\":{\"b\":0,\"c\":1,\" \":2},\"merges\":[]}}",
         "b  c", "0:0:1 3:1:3 1:3:4"},
        {"{\"added_tokens\":[{\"id\":6,\"content\":\"foo\",\"normalized\":false,\"single_word\":true},{\"id\":7,\"content\":\"bar\",\"normalized\":false}],\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"f\":2,\"o\":3,\"r\":4,\" \":5},\"merges\":[]}}",
         "a foobar", "0:0:1 5:1:2 2:2:3 3:3:4 3:4:5 7:5:8"},
        {"{\"added_tokens\":[{\"id\":6,\"content\":\"foo\",\"normalized\":false,\"single_word\":true},{\"id\":7,\"content\":\"bar\",\"normalized\":false}],\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"f\":2,\"o\":3,\"r\":4,\" \":5},\"merges\":[]}}",
         "a foo bar", "0:0:1 5:1:2 6:2:5 5:5:6 7:6:9"},
        {"{\"added_tokens\":[],\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"\xc3\xa9\":1,\"e\":2,\"\xcc\x81\":3,\"x\":4},\"merges\":[]},\"normalizer\":{\"type\":\"NFC\"}}",
         "ae\xcc\x81x\xcc\x81", "0:0:1 1:1:4 4:4:5 3:5:7"},
        {"{\"added_tokens\":[{\"id\":6,\"content\":\"<s>\",\"normalized\":false,\"special\":true}],\"model\":{\"type\":\"BPE\",\"vocab\":{\"\xe2\x96\x81\":0,\"a\":1,\"b\":2,\"\xe2\x96\x81""a\":3,\"\xe2\x96\x81""ab\":4,\"ab\":5},\"merges\":[[\"\xe2\x96\x81\",\"a\"],[\"a\",\"b\"],[\"\xe2\x96\x81\",\"ab\"]]},\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"\xe2\x96\x81\",\"prepend_scheme\":\"first\",\"split\":true}}",
         "ab ab<s>ab", "3:0:1 2:1:2 3:2:4 2:4:5 6:5:8 5:8:10"},
        {"{\"added_tokens\":[],\"model\":{\"type\":\"BPE\",\"vocab\":{\"<unk>\":0,\"a\":1,\"b\":2,\"ab\":3,\"<0xC3>\":4,\"<0xA9>\":5},\"merges\":[[\"a\",\"b\"]],\"unk_token\":\"<unk>\",\"fuse_unk\":true,\"byte_fallback\":true}}",
         "ab\xe5\x8c\x97\xe5\x8c\x97\xc3\xa9\xe5\x8c\x97""ab", "3:0:2 4:8:9 5:9:10 0:2:13 3:13:15"},
        {"{\"added_tokens\":[],\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[[\"a\",\"b\"]]}}",
         "a\xe5\x8c\x97""bab", "2:0:5 2:5:7"},
        {"{\"added_tokens\":[],\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"1\":2},\"merges\":[]},\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"String\":\"-\"},\"behavior\":\"Removed\",\"invert\":false},{\"type\":\"Digits\",\"individual_digits\":true}]}}",
         "a-b1-", "0:0:1 1:2:3 2:3:4"},
        {"{\"added_tokens\":[],\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"bc\":1,\"b\":2},\"merges\":[],\"ignore_merges\":true}}",
         "bc", "1:0:2"},
        {"{\"added_tokens\":[],\"model\":{\"type\":\"BPE\",\"vocab\":{\"\xc4\xa0\":0,\"a\":1,\"\xc3\x83\":2,\"\xc2\xa9\":3,\"\xc4\xa0""a\":4,\"\xc3\x83\xc2\xa9\":5},\"merges\":[[\"\xc4\xa0\",\"a\"],[\"\xc3\x83\",\"\xc2\xa9\"]]},\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":false}}",
         "a\xc3\xa9""a", "4:0:1 5:1:3 1:3:4"},
        {"{\"added_tokens\":[],\"model\":{\"type\":\"BPE\",\"vocab\":{\"\xc4\xa0\":0,\"a\":1,\"\xc3\x83\":2,\"\xc2\xa9\":3,\"\xc4\xa0""a\":4,\"\xc3\x83\xc2\xa9\":5},\"merges\":[[\"\xc4\xa0\",\"a\"],[\"\xc3\x83\",\"\xc2\xa9\"]]},\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":false}}",
         " a", "4:0:2"},
    };
    /* clang-format on */
    struct sh_hf *hf = NULL;
    char found[400];

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct sh_places places = {0};
        struct sh_ids ids = {0};
        assert_int_equal(parse(rows[i].file, &hf), SH_OK);
        void *e = sh_token_hf.create(hf);
        encode_all(hf, e, rows[i].text, true, &ids, &places);
        found[0] = '\0';
        for (size_t k = 0; k < ids.n; k++)
            snprintf(found + strlen(found), sizeof found - strlen(found), "%s%u:%u:%u", k ? " " : "", ids.id[k],
                     places.at[k].text.begin, places.at[k].text.end);
        if (strcmp(found, rows[i].places) != 0)
            fail_msg("row %zu: %s is %s, not %s", i, rows[i].text, found, rows[i].places);
        free(ids.id);
        free(places.at);
        sh_token_hf.destroy(e);
        sh_token_json_free(hf);
    }
}

static void text_must_be_utf8(void **state)
{
    static const char *const wrong[] = {"ab\xff",     "ab\xc0\x80", "ab\xed\xa0\x80", "ab\xf4\x90\x80\x80",
                                        "ab\xe2\x82", "ab\x80"};
    (void)state;
    char *path = golden("llama2.json");
    struct sh_tokenizer *t;
    struct sh_ids ids = {0};
    assert_int_equal(sh_tokenizer_open(path, &t), SH_OK);
    struct sh_encoder *e = sh_encoder_create(t);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_int_equal(sh_encode(e, wrong[i], strlen(wrong[i]), 0, &ids), SH_E_DATA);
        assert_non_null(strstr(sh_error_text(), "byte 3 of the text (0x"));
    }
    assert_true(t->hash != 0 && t->hash != sh_hash64("", 0));
    assert_int_equal(sh_tokenizer_find(t, "<s>"), 1);
    assert_int_equal(sh_tokenizer_find(t, "no word"), -1);
    free(ids.id);
    free(path);
    sh_encoder_destroy(e);
    sh_tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_are_those_of_tokenizers),
        cmocka_unit_test(unknown_parts_are_refused_by_name),
        cmocka_unit_test(expressions_that_are_not_read),
        cmocka_unit_test(classes_are_our_own),
        cmocka_unit_test(long_pieces_merge_as_short_ones),
        cmocka_unit_test(pieces_in_one_buffer),
        cmocka_unit_test(behaviors_cut),
        cmocka_unit_test(a_byte_is_replaced),
        cmocka_unit_test(unknown_characters),
        cmocka_unit_test(cuts_change_no_id),
        cmocka_unit_test(white_space_of_added_tokens),
        cmocka_unit_test(places_of_ids),
        cmocka_unit_test(text_must_be_utf8),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
