/* JSON files through jansson, plus what jansson does not do itself: a limit on depth, the file's name in messages,
 * and duplicate keys refused. */
#include "io/json/json.h"

#include "src/base/file.h"

#include <stdint.h>
#include <stdlib.h>

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
 * to jansson: this only counts brackets outside strings. */
static sh_rc check_depth(const char *text, size_t bytes, const char *name)
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

/* JSON_ALLOW_NUL: tokens of a vocabulary may contain a zero byte. Duplicate keys are refused, since readers disagree on
 * which one counts. */
sh_rc sh_json_parse(const char *text, size_t bytes, const char *name, json_t **out)
{
    json_error_t error;

    SH_TRY(check_depth(text, bytes, name));
    json_t *value = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, &error);
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

    return value ? names[json_typeof(value)] : "nothing";
}
