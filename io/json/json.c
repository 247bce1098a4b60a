/* JSON files through jansson, plus what jansson does not do itself: a limit on depth, the file's name in messages,
 * integers beyond 64 bits. */
#include "io/json/json.h"

#include "src/base/file.h"
#include "src/base/mem.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct place {
    int line, column; /* from 1; column in bytes */
};

/* Moves past one byte and counts lines. */
static void step(struct place *at, char c)
{
    at->column = c == '\n' ? 1 : at->column + 1;
    at->line += c == '\n';
}

/* jansson has its own limit of 2048, which assumes the stack of a large thread. Whether the text is valid JSON is left
 * to jansson: this only counts brackets outside strings, and looks for zero bytes. */
static sh_rc check_bytes(const char *text, size_t bytes, const char *name)
{
    struct place at = {1, 1};
    bool string = false;
    int depth = 0;

    for (size_t i = 0; i < bytes; step(&at, text[i]), i++) {
        if (string && text[i] == '\\' && i + 1 < bytes)
            step(&at, text[i++]);
        else if (text[i] == '"')
            string = !string;
        else if (!string && (text[i] == '{' || text[i] == '['))
            depth++;
        else if (!string && (text[i] == '}' || text[i] == ']'))
            depth--;
        if (!text[i]) /* jansson would pass over one after a number */
            return sh_fail(SH_E_DATA, "%s: line %d, column %d: a zero byte", name, at.line, at.column);
        if (depth > SH_JSON_DEPTH)
            return sh_fail(SH_E_DATA, "%s: line %d, column %d: objects and lists are nested more than %d deep", name,
                           at.line, at.column, SH_JSON_DEPTH);
    }
    return SH_OK;
}

/* jansson quotes the offending text: replace everything but printable ASCII, so that a terminal can show it. */
static void make_plain(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || (unsigned char)*text > 0x7e)
            *text = '?';
}

static sh_rc refuse(json_error_t *error, const char *name)
{
    make_plain(error->text);
    if (json_error_code(error) == json_error_out_of_memory)
        return sh_fail(SH_E_MEMORY, "%s: no memory for its contents", name);
    if (error->line < 1)
        return sh_fail(SH_E_DATA, "%s is not JSON: %s", name, error->text);
    return sh_fail(SH_E_DATA, "%s: line %d, column %d: %s", name, error->line, error->column, error->text);
}

/* Whether a number, written with n bytes, is an integer beyond 64 bits. Up to 18 digits always fit. */
static bool is_big(const char *number, size_t n)
{
    char digits[24];

    if (n <= 18 || strspn(number + (number[0] == '-'), "0123456789") < n - (number[0] == '-'))
        return false;
    if (n >= sizeof digits)
        return true;
    memcpy(digits, number, n);
    digits[n] = '\0';
    errno = 0;
    strtoll(digits, NULL, 10);
    return errno == ERANGE;
}

/* The length of Python's word for what is no number in JSON, if the text begins with one; else 0. */
static size_t word_at(const char *text)
{
    static const char *const words[] = {"Infinity", "-Infinity"};

    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strncmp(text, words[i], strlen(words[i])) == 0)
            return strlen(words[i]);
    return 0;
}

/* Return JSON with ".0" after each integer beyond 64 bits, and quotes around such words; freed by the caller. *bytes: its
 * length, before and after. `text` ends with a zero. */
static char *in_plain_json(const char *text, size_t *bytes)
{
    char *out = sh_calloc(2 * *bytes + 1, 1), *to = out;
    bool string = false;

    for (size_t i = 0, n; i < *bytes; i += n, to += n) {
        size_t word = string ? 0 : word_at(text + i);

        n = string || !strchr("-0123456789", text[i]) || !text[i] ? 1 : strspn(text + i, "+-.0123456789eE");
        if (word) {
            to += sprintf(to, "\"%.*s\"", (int)word, text + i) - (int)word;
            n = word;
            continue;
        }
        if (text[i] == '"')
            string = !string;
        if (string && text[i] == '\\')
            n = 2;
        memcpy(to, text + i, n);
        if (n > 2 && is_big(text + i, n)) {
            memcpy(to + n, ".0", 2);
            to += 2;
        }
    }
    *bytes = (size_t)(to - out);
    return out;
}

/* transformers writes integers of 31 digits for "no limit", and Python Infinity, which jansson refuses. If that is
 * all that is wrong with a text, those integers become reals, as in readers that have no other numbers, and those words
 * strings, which are no numbers; the places in messages stay right, because they are those of the text that was given. */
json_t *sh_json_decode(const char *text, size_t bytes, size_t flags, json_error_t *error)
{
    json_t *value = json_loadb(text, bytes, flags, error), *other;
    enum json_error_code code = value ? json_error_unknown : json_error_code(error);
    json_error_t own;
    char *copy, *plain;
    size_t n = bytes;

    if (code != json_error_numeric_overflow && code != json_error_invalid_syntax)
        return value;
    copy = sh_calloc(bytes + 1, 1);
    memcpy(copy, text, bytes);
    plain = in_plain_json(copy, &n);
    value = json_loadb(plain, n, flags, &own);
    free(plain);
    free(copy);
    /* What else is wrong with the text, if there are such integers. */
    other = value || code == json_error_invalid_syntax
                ? NULL
                : json_loadb(text, bytes, flags | JSON_DECODE_INT_AS_REAL, error);
    json_decref(other);
    return value;
}

/* JSON_ALLOW_NUL: tokens of a vocabulary may contain a zero byte. Duplicate keys are refused, since readers disagree on
 * which one counts. */
sh_rc sh_json_parse(const char *text, size_t bytes, const char *name, json_t **out)
{
    json_error_t error;

    SH_TRY(check_bytes(text, bytes, name));
    json_t *value = sh_json_decode(text, bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, &error);
    if (!value)
        return refuse(&error, name);
    *out = value;
    return SH_OK;
}

/* *out belongs to the caller, freed with json_decref(). max_bytes limits how much memory a hostile file can make this
 * process allocate. */
sh_rc sh_json_load(const char *path, size_t max_bytes, json_t **out)
{
    char *text;
    size_t bytes;

    SH_TRY(sh_read_file(path, max_bytes, &text, &bytes));
    sh_rc rc = sh_json_parse(text, bytes, path, out);
    free(text);
    return rc;
}

/* For messages: "a string is needed, not a list". */
const char *sh_json_is(const json_t *value)
{
    static const char *const names[] = {
        [JSON_OBJECT] = "an object", [JSON_ARRAY] = "a list",
        [JSON_STRING] = "a string",  [JSON_INTEGER] = "a whole number",
        [JSON_REAL] = "a number",    [JSON_TRUE] = "true",
        [JSON_FALSE] = "false",      [JSON_NULL] = "null",
    };

    return value ? names[json_typeof(value)] : "missing";
}
