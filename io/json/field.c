/* Reads one string field of one JSON line without building a tree: a jsonl corpus has millions of lines, and only one
 * field of each is needed. The reader skips everything else but still checks its syntax, so a damaged line is
 * refused with its column. take_ functions store what they read, pass_ functions only check it; both leave `at` on the
 * byte after it. */
#include "io/json/field.h"

#include "io/json/json.h"
#include "src/base/string/utf8.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* `text` belongs to the caller and has room for the whole line: a decoded string is never longer than its source. */
struct reader {
    const char *line;
    size_t at, bytes;
    const char *field;
    size_t field_bytes;
    char *text; /* the field's text */
    size_t n;
    bool found;
};

/* Columns count from 1, in bytes, as editors show them for ASCII text. */
static sh_rc refuse(const struct reader *r, const char *what)
{
    return sh_fail(SH_E_DATA, "column %zu: %s", r->at + 1, what);
}

/* Returns the current byte, or -1 at the end, so that callers need no second test. */
static int peek(const struct reader *r)
{
    return r->at < r->bytes ? (unsigned char)r->line[r->at] : -1;
}

/* Skips white space and returns the byte that follows, or -1 at the end of the line. */
static int skip_space(struct reader *r)
{
    while (r->at < r->bytes &&
           (r->line[r->at] == ' ' || r->line[r->at] == '\t' || r->line[r->at] == '\n' || r->line[r->at] == '\r'))
        r->at++;
    return peek(r);
}

/* Returns the value of a hexadecimal digit, or -1 for any other byte. */
static int hex_digit(int c)
{
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

/* Reads the four digits after \u. */
static sh_rc take_hex(struct reader *r, uint32_t *code)
{
    *code = 0;
    for (int i = 0; i < 4; i++, r->at++) {
        int digit = hex_digit(peek(r));
        if (digit < 0)
            return refuse(r, "\\u without four hexadecimal digits");
        *code = *code * 16 + (uint32_t)digit;
    }
    return SH_OK;
}

/* Reads one code point after \u; code points above 0xffff are written as a pair of escapes. */
static sh_rc take_code(struct reader *r, char *to, size_t *n)
{
    uint32_t code, low;

    SH_TRY(take_hex(r, &code));
    if (code >= 0xdc00 && code < 0xe000)
        return refuse(r, "the second half of a surrogate pair without the first");
    if (code >= 0xd800 && code < 0xdc00) {
        if (r->bytes - r->at < 2 || r->line[r->at] != '\\' || r->line[r->at + 1] != 'u')
            return refuse(r, "the first half of a surrogate pair without the second");
        r->at += 2;
        SH_TRY(take_hex(r, &low));
        if (low < 0xdc00 || low >= 0xe000)
            return refuse(r, "the first half of a surrogate pair without the second");
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    *n += sh_utf8_put(code, (unsigned char *)to + *n);
    return SH_OK;
}

/* Reads the rest of an escape, after the backslash. */
static sh_rc take_escape(struct reader *r, char *to, size_t *n)
{
    static const char from[] = "\"\\/bfnrt", means[] = "\"\\/\b\f\n\r\t";
    int c = peek(r);
    const char *found = c > 0 ? strchr(from, c) : NULL;

    r->at++;
    if (c == 'u')
        return take_code(r, to, n);
    if (!found)
        return refuse(r, "an unknown escape");
    to[(*n)++] = means[found - from];
    return SH_OK;
}

/* Reads a string, starting at its opening quote, into `to`, which has room for the rest of the line. */
static sh_rc take_string(struct reader *r, char *to, size_t *n)
{
    *n = 0;
    for (r->at++; peek(r) != '"';) {
        size_t begin = r->at;
        while (r->at < r->bytes && r->line[r->at] != '"' && r->line[r->at] != '\\' &&
               (unsigned char)r->line[r->at] >= 0x20)
            r->at++;
        memmove(to + *n, r->line + begin, r->at - begin);
        *n += r->at - begin;
        int c = peek(r);
        if (c < 0 || (c != '"' && c != '\\'))
            return refuse(r, c < 0 ? "the line ends within a string" : "a control character within a string");
        if (c == '\\') {
            r->at++;
            SH_TRY(take_escape(r, to, n));
        }
    }
    r->at++;
    return SH_OK;
}

/* Skips a string, checking only its syntax. */
static sh_rc pass_string(struct reader *r)
{
    char to[8];
    size_t n;

    for (r->at++; peek(r) != '"';) {
        int c = peek(r);
        if (c < 0x20)
            return refuse(r, c < 0 ? "the line ends within a string" : "a control character within a string");
        r->at++;
        n = 0;
        if (c == '\\')
            SH_TRY(take_escape(r, to, &n));
    }
    r->at++;
    return SH_OK;
}

/* Returns the number of digits; the caller refuses 0. */
static size_t take_digits(struct reader *r)
{
    size_t begin = r->at;

    while (peek(r) >= '0' && peek(r) <= '9')
        r->at++;
    return r->at - begin;
}

/* JSON allows no leading zeros, no lone point and no plus sign. Anything that is not a value at all is refused here,
 * too. */
static sh_rc pass_number(struct reader *r)
{
    r->at += peek(r) == '-';
    size_t begin = r->at, whole = take_digits(r);
    if (!whole || (whole > 1 && r->line[begin] == '0'))
        return refuse(r, "not a JSON value");
    if (peek(r) == '.') {
        r->at++;
        if (!take_digits(r))
            return refuse(r, "a number without digits after its point");
    }
    if (peek(r) == 'e' || peek(r) == 'E') {
        r->at++;
        r->at += peek(r) == '+' || peek(r) == '-';
        if (!take_digits(r))
            return refuse(r, "a number without digits in its exponent");
    }
    return SH_OK;
}

/* Anything but these three words must be a number. */
static sh_rc pass_word(struct reader *r)
{
    static const char *const words[] = {"true", "false", "null"};

    for (int i = 0; i < 3; i++) {
        size_t n = strlen(words[i]);
        if (r->bytes - r->at >= n && memcmp(r->line + r->at, words[i], n) == 0) {
            r->at += n;
            return SH_OK;
        }
    }
    return pass_number(r);
}

static sh_rc pass_value(struct reader *r, int depth);

/* Whether the list or object continues after a member. */
static sh_rc more(struct reader *r, char end, bool *goes_on)
{
    int c = skip_space(r);

    if (c != ',' && c != end)
        return refuse(r, c < 0 ? "the line ends within an object or a list"
                               : "a value is followed by neither a comma nor an end");
    r->at++;
    *goes_on = c == ',';
    return SH_OK;
}

/* Starts at the opening bracket. */
static sh_rc pass_list(struct reader *r, int depth)
{
    bool goes_on = true;

    r->at++;
    if (skip_space(r) == ']') {
        r->at++;
        return SH_OK;
    }
    while (goes_on) {
        SH_TRY(pass_value(r, depth));
        SH_TRY(more(r, ']', &goes_on));
    }
    return SH_OK;
}

/* White space may precede the colon. */
static sh_rc take_colon(struct reader *r)
{
    if (skip_space(r) != ':')
        return refuse(r, "no colon after a key");
    r->at++;
    return SH_OK;
}

/* Starts at the opening brace. */
static sh_rc pass_object(struct reader *r, int depth)
{
    bool goes_on = true;

    r->at++;
    if (skip_space(r) == '}') {
        r->at++;
        return SH_OK;
    }
    while (goes_on) {
        if (skip_space(r) != '"')
            return refuse(r, "expected a key");
        SH_TRY(pass_string(r));
        SH_TRY(take_colon(r));
        SH_TRY(pass_value(r, depth));
        SH_TRY(more(r, '}', &goes_on));
    }
    return SH_OK;
}

/* depth: objects and lists around this value. The limit keeps hostile input from exhausting the stack. */
static sh_rc pass_value(struct reader *r, int depth)
{
    int c = skip_space(r);

    if (c == '"')
        return pass_string(r);
    if (c != '{' && c != '[')
        return pass_word(r);
    if (depth == SH_JSON_DEPTH)
        return refuse(r, "objects and lists are nested too deeply");
    return c == '{' ? pass_object(r, depth + 1) : pass_list(r, depth + 1);
}

/* Reads a member of the top-level object. Its key goes into the buffer of the text, after any text already found, since
 * that space is still unused. */
static sh_rc take_member(struct reader *r)
{
    char *key = r->text + r->n;
    size_t n;

    if (skip_space(r) != '"')
        return refuse(r, "expected a key");
    SH_TRY(take_string(r, key, &n));
    /* Compared before the value is read, which may overwrite the key. */
    bool wanted = n == r->field_bytes && memcmp(key, r->field, n) == 0;
    SH_TRY(take_colon(r));
    if (!wanted)
        return pass_value(r, 1);
    if (r->found)
        return sh_fail(SH_E_DATA, "column %zu: \"%s\" appears twice", r->at + 1, r->field);
    if (skip_space(r) != '"')
        return sh_fail(SH_E_DATA, "column %zu: \"%s\" is not a string", r->at + 1, r->field);
    r->found = true;
    return take_string(r, r->text, &r->n);
}

/* Reads exactly one object, with optional white space around it; the field may be anywhere in it, but only once. */
static sh_rc read_line(struct reader *r)
{
    bool goes_on = true;

    if (skip_space(r) != '{')
        return refuse(r, "the line is not an object {...}");
    r->at++;
    if (skip_space(r) == '}') {
        r->at++;
        goes_on = false;
    }
    while (goes_on) {
        SH_TRY(take_member(r));
        SH_TRY(more(r, '}', &goes_on));
    }
    if (skip_space(r) >= 0)
        return refuse(r, "something follows the object");
    return r->found ? SH_OK : sh_fail(SH_E_DATA, "the object has no \"%s\"", r->field);
}

/* *n: bytes of the text, which has no terminating zero and may contain zero bytes. */
sh_rc sh_json_field(const char *line, size_t bytes, const char *field, char *text, size_t *n)
{
    struct reader r = {.line = line, .bytes = bytes, .field = field, .field_bytes = strlen(field), .text = text};

    SH_TRY(read_line(&r));
    *n = r.n;
    return SH_OK;
}
