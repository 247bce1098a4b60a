/* Lines of jsonl: sh_json_field() accepts what jansson accepts, finds the same text, and refuses the rest in one line.
 *
 *   fuzz_jsonl [RUNS [SEED]]      random mutations of good lines; default 100000 runs; see fuzz.h
 *   clang -fsanitize=fuzzer       built with -DSH_LIBFUZZER: guided by coverage */
#include "io/json/field.h"
#include "io/json/json.h"
#include "src/base/hash.h"
#include "src/base/string/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

/* What jansson makes of a line: its text, NULL for a line that must be refused. *known: whether the results may be
 * compared: jansson refuses some lines because of numbers or duplicate keys, which do not matter here. */
static json_t *expected(const char *line, size_t n, bool *known)
{
    json_t *top = NULL, *text;
    json_error_t error;
    *known = true;
    /* jansson passes over a zero byte after a number. */
    if (memchr(line, 0, n))
        return NULL;
    top = json_loadb(line, n, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &error);
    if (!top) {
        enum json_error_code code = json_error_code(&error);
        *known = code != json_error_numeric_overflow && code != json_error_duplicate_key &&
                 code != json_error_null_byte_in_key && code != json_error_stack_overflow;
        return NULL;
    }
    text = json_is_object(top) ? json_incref(json_object_get(top, "text")) : NULL;
    json_decref(top);
    if (text && !json_is_string(text)) {
        json_decref(text);
        text = NULL;
    }
    return text;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    char *line = malloc(n + 1), *text = malloc(n + 1);
    size_t found = 0;
    bool known;
    memcpy(line, bytes, n);
    if (sh_utf8_check(bytes, n) == n) { /* the caller ensures this */
        sh_error_clear();
        sh_rc rc = sh_json_field(line, n, "text", text, &found);
        json_t *want = expected(line, n, &known);
        if (rc != SH_OK && (rc != SH_E_DATA || !sh_error_text()[0] || strchr(sh_error_text(), '\n')))
            abort();
        if (known && (rc == SH_OK) != (want != NULL)) {
            fprintf(stderr, "%.*s\n%s\n", (int)n, line, sh_error_text());
            abort();
        }
        if (known && want && (found != json_string_length(want) || memcmp(text, json_string_value(want), found) != 0))
            abort();
        json_decref(want);
    }
    free(line);
    free(text);
    return 0;
}

#ifndef SH_LIBFUZZER
#include "tests/fuzz/fuzz.h"

static const char *const seeds[] = {
    "{\"text\":\"a\\u0062\\n\\\"\\\\\\/\"}",
    "{\"id\":[1,-2.5e+3,{\"a\":null}],\"text\":\"\\ud83d\\ude00\",\"b\":true}",
    " { \"b\" : { } , \"text\" : \"\" } \n",
    "{\"t\\u0065xt\":\"key\",\"n\":[[],[[]],{\"text\":\"no\"}],\"f\":0.0}",
    "{}",
    "{\"text\":\"\xc3\xa9\xf0\x9f\x98\x80\",\"z\":\"\\u0000\"}",
};
static const char *const pieces[] = {
    "\"",      "\\",        "{",
    "}",       "[",         "]",
    ",",       ":",         "\\u0000",
    "\\ud800", "\\udc00",   "\\u00e9",
    "null",    "true",      "false",
    "nul",     "-",         "0",
    "01",      ".",         "1e5",
    "E-",      "\"text\":", "\"text\":\"x\",",
    " ",       "\t",        "\n",
    "\x01",    "\x7f",      "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
};

int main(int argc, char **argv)
{
    const struct fuzz_texts made = {.name = "fuzz_jsonl", .what = "lines", FUZZ_TEXTS(seeds, pieces)};

    LLVMFuzzerTestOneInput((const uint8_t *)"{\"text\":\"a\",\"n\":1\0}", 20);
    return fuzz_texts(argc, argv, 100000, &made, LLVMFuzzerTestOneInput);
}
#endif
