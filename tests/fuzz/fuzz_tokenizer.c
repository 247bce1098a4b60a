/* Damaged tokenizer files: refused in one line or loaded; a loaded one encodes and decodes difficult texts without a
 * crash, and to the same ids the second time, when all pieces are cached.
 *
 *   fuzz_tokenizer [RUNS [SEED]]  random mutations of good files; default 3000 runs; see fuzz.h
 *   clang -fsanitize=fuzzer       built with -DSH_LIBFUZZER: guided by coverage */
#include "src/base/hash.h"
#include "src/text/token/hf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static const char *const texts[] = {
    "",
    "a",
    " ab  ba b\n\na1b22",
    "\u2581ab \u2581",
    "<s>ab</s> <x> ab",
    "e\xcc\x81\xcc\xa3 \xe1\x84\x80\xe1\x85\xa1",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab",
    "\xf0\x9f\x91\xa9'S 'll",
};

static void check_texts(const struct sh_hf *hf)
{
    void *e = sh_token_hf.create(hf);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct sh_ids first = {0}, second = {0};
        struct sh_places places = {0};
        char *back;
        size_t bytes, n = strlen(texts[i]);
        sh_rc rc = sh_token_hf.encode(hf, e, (const unsigned char *)texts[i], n, 3, &first, NULL);
        if (rc == SH_OK &&
            (sh_token_hf.encode(hf, e, (const unsigned char *)texts[i], n, 3, &second, &places) != SH_OK ||
             first.n != second.n || (first.n && memcmp(first.id, second.id, first.n * sizeof *first.id) != 0)))
            abort();
        if (rc == SH_OK && places.n != first.n)
            abort();
        for (size_t k = 0; rc == SH_OK && k < first.n; k++)
            if (first.id[k] >= (uint32_t)hf->words || !hf->word[first.id[k]].text ||
                places.at[k].text.begin > places.at[k].text.end || places.at[k].text.end > n)
                abort();
        free(places.at);
        if (rc == SH_OK) {
            if (sh_token_hf.decode(hf, first.id, first.n, i % 2, &back, &bytes) != SH_OK)
                abort();
            free(back);
        }
        free(first.id);
        free(second.id);
    }
    sh_token_hf.destroy(e);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    struct sh_hf *hf = NULL;
    sh_error_clear();
    sh_rc rc = sh_token_json_parse((const char *)bytes, n, "fuzz", &hf);
    if (rc == SH_OK) {
        check_texts(hf);
        sh_token_json_free(hf);
    } else if (rc != SH_E_DATA || !sh_error_text()[0]) {
        abort();
    }
    return 0;
}

#ifndef SH_LIBFUZZER
#include "tests/fuzz/fuzz.h"

#define BPE                                                                                            \
    "\"model\":{\"type\":\"BPE\",\"unk_token\":\"<s>\",\"vocab\":{\"<s>\":0,\"a\":1,\"b\":2,\"ab\":3," \
    "\"\xe2\x96\x81\":4,\"\xe2\x96\x81"                                                                \
    "ab\":5,\"aa\":6,"                                                                                 \
    "\"\xc4\xa0\":7,\"<0x41>\":8},\"merges\":[\"a b\",[\"\xe2\x96\x81\",\"ab\"],\"a a\"]}"
static const char *const seeds[] = {
    "{\"added_tokens\":[{\"id\":0,\"content\":\"<s>\",\"special\":true,\"normalized\":false},{\"id\":9,\"content\":\"<"
    "x>\",\"lstrip\":true,\"rstrip\":true}],"
    "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"Prepend\",\"prepend\":"
    "\"\xe2\x96\x81\"},{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},"
    "\"content\":\"\xe2\x96\x81\"}]},\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\","
    "\"pattern\":{\"String\":\"\xe2\x96\x81\"},\"content\":\" \"},"
    "{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" "
    "\",\"start\":1,\"stop\":0}]}," BPE "}",
    "{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?i:'s|'"
    "ll)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}{1,3}|\\\\s+(?!\\\\S)|\\\\s+\"},"
    "\"behavior\":\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"use_regex\":false}"
    "]},\"decoder\":{\"type\":\"ByteLevel\"},"
    "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\"}},{\"Sequence\":"
    "{\"id\":\"A\"}}],\"special_tokens\":{\"<s>\":{\"ids\":[0]}}}," BPE "}",
    "{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Metaspace\",\"replacement\":"
    "\"\xe2\x96\x81\",\"prepend_scheme\":\"first\"},{\"type\":\"Digits\",\"individual_digits\":true},"
    "{\"type\":\"Split\",\"pattern\":{\"String\":\"b\"},\"behavior\":\"MergedWithPrevious\"}]},\"decoder\":{\"type\":"
    "\"Metaspace\",\"replacement\":\"\xe2\x96\x81\"}," BPE "}",
};
static const char *const pieces[] = {
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "\\",
    "null",
    "true",
    "-1",
    "0",
    "4294967296",
    "1e9",
    "\"type\"",
    "\"BPE\"",
    "\\u0000",
    "\\ud800",
    "\"Removed\"",
    "\"Contiguous\"",
    "\"MergedWithNext\"",
    "\"always\"",
    "\"ByteLevel\"",
    "\\\\p{Lu}",
    "\\\\s*",
    "+",
    "?",
    "{1,3}",
    "(?!",
    "(?i:",
    ")",
    "|",
    "[^",
    "\xc3\xa9",
    "\"byte_fallback\":true,",
    "\"fuse_unk\":true,",
    "\"ignore_merges\":true,",
    "\"normalized\":true",
    "\"single_word\":true,",
    "\"invert\":true",
};

int main(int argc, char **argv)
{
    const struct fuzz_texts made = {.name = "fuzz_tokenizer", .what = "files", FUZZ_TEXTS(seeds, pieces)};

    return fuzz_texts(argc, argv, 3000, &made, LLVMFuzzerTestOneInput);
}
#endif
