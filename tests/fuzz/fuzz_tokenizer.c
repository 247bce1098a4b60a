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

enum { MAX_BYTES = 8192 };

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

static uint64_t state;

static size_t below(size_t n)
{
    return (size_t)(sh_mix64(state++) % n);
}

static size_t splice(char *text, size_t n, size_t at, size_t removed, const char *from, size_t added)
{
    removed = removed > n - at ? n - at : removed;
    if (n - removed + added > MAX_BYTES)
        return n;
    memmove(text + at + added, text + at + removed, n - at - removed);
    memcpy(text + at, from, added);
    return n - removed + added;
}

static size_t mutate(char *text, size_t n)
{
    const char *piece = pieces[below(sizeof pieces / sizeof pieces[0])];
    const char byte = (char)below(256);
    char copied[64];
    size_t at = below(n + 1), from = below(n + 1), most = n - from < sizeof copied ? n - from : sizeof copied;

    memcpy(copied, text + from, most);
    switch (below(4)) {
    case 0: return splice(text, n, at, 1, &byte, 1);
    case 1: return splice(text, n, at, 1 + below(12), "", 0);
    case 2: return splice(text, n, at, below(2), piece, strlen(piece));
    default: return splice(text, n, at, below(2) * most, copied, most);
    }
}

int main(int argc, char **argv)
{
    struct fuzz f = fuzz_begin(argc, argv, 3000);
    char text[MAX_BYTES];
    state = f.state;
    while (fuzz_more(&f)) {
        const char *seed = seeds[below(sizeof seeds / sizeof seeds[0])];
        size_t n = strlen(seed);
        memcpy(text, seed, n);
        for (size_t k = below(5); k > 0; k--)
            n = mutate(text, n);
        LLVMFuzzerTestOneInput((const uint8_t *)text, n);
    }
    printf("fuzz_tokenizer: %ld files: ok\n", f.done);
    return 0;
}
#endif
