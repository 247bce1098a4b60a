/* Translates an expression of Oniguruma (Ruby syntax, as tokenizers uses it) into one of PCRE2. Classes and properties
 * are written out as ranges of code points from our own tables, so the Unicode version of PCRE2 does not matter.
 * Anything that could mean something else in PCRE2 is refused with its place. take_ functions read, put_ functions
 * write, both at their current place. */
#include "src/text/base/pattern.h"

#include "src/base/string/utf8.h"
#include "src/text/base/ranges.h"
#include "src/text/base/text.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST_BYTES = 1 << 16, MOST_GROUPS = 32, MOST_REPEATS = 1000 };

/* `out` grows with the translation; fold[] records for each open group whether case is ignored. */
struct reader {
    const unsigned char *p;
    size_t at, bytes;
    bool fold[MOST_GROUPS]; /* whether upper and lower case are equal, by depth of groups */
    int depth;
    uint32_t before; /* the previous character, if case is ignored; 0: none */
    struct sh_text out;
};

/* Fail, and show up to eight bytes from the place on, cut at a whole character. */
static sh_rc refuse(const struct reader *r, size_t at, const char *what)
{
    size_t n = r->bytes - at < 8 ? r->bytes - at : 8;

    while (n > 0 && n < r->bytes - at && (r->p[at + n] & 0xc0) == 0x80)
        n--;
    return sh_fail(SH_E_DATA, "%s at byte %zu of the expression, \"%.*s\"", what, at + 1, (int)n,
                   (const char *)r->p + at);
}

/* The next byte; -1 at the end. */
static int peek(const struct reader *r)
{
    return r->at < r->bytes ? r->p[r->at] : -1;
}

/* Move past `word` if it comes next. */
static bool take(struct reader *r, const char *word)
{
    size_t n = strlen(word);

    if (r->bytes - r->at < n || memcmp(r->p + r->at, word, n) != 0)
        return false;
    r->at += n;
    return true;
}

/* Take one character; the expression is known to be UTF-8. */
static uint32_t take_code(struct reader *r)
{
    size_t n;
    uint32_t code = sh_utf8_get(r->p + r->at, &n);

    r->at += n;
    return code;
}

static void put(struct reader *r, const char *text)
{
    sh_text_put(&r->out, text, strlen(text));
}

/* Surrogates are not characters, and PCRE2 does not accept them as ends of a range. */
static void put_range(struct reader *r, uint32_t first, uint32_t last)
{
    char text[40];

    if (first >= 0xd800 && first < 0xe000)
        first = 0xe000;
    if (last >= 0xd800 && last < 0xe000)
        last = 0xd7ff;
    if (first > last)
        return;
    snprintf(text, sizeof text, first == last ? "\\x{%x}" : "\\x{%x}-\\x{%x}", (unsigned)first, (unsigned)last);
    put(r, text);
}

/* An empty class matches nothing, its negation anything; PCRE2 has no syntax for an empty class. */
static void put_class(struct reader *r, struct sh_ranges *set, bool negated)
{
    sh_ranges_settle(set);
    if (set->n == 0) { /* an empty class */
        put(r, negated ? "(?s:.)" : "(?!)");
        return;
    }
    put(r, negated ? "[^" : "[");
    for (int i = 0; i < set->n; i++)
        put_range(r, set->at[i].first, set->at[i].last);
    put(r, "]");
}

/* When it ignores case, Oniguruma also equates some pairs of letters with a single character ("ss"); no known pattern
 * has such a pair. */
static bool is_expanded(uint32_t a, uint32_t b)
{
    static const char pairs[][3] = {"ss", "ff", "fi", "fl", "st"};

    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++)
        if ((a | 32) == (uint32_t)pairs[i][0] && (b | 32) == (uint32_t)pairs[i][1])
            return true;
    return false;
}

/* Add both cases of a letter. The only letters beyond ASCII that case folding equates with an ASCII letter are long s
 * and the kelvin sign. */
static void add_cases(struct sh_ranges *set, uint32_t code)
{
    uint32_t low = code | 32;

    sh_ranges_add(set, code, code);
    if (low < 'a' || low > 'z')
        return;
    sh_ranges_add(set, low, low);
    sh_ranges_add(set, low - 32, low - 32);
    if (low == 's')
        sh_ranges_add(set, 0x17f, 0x17f);
    if (low == 'k')
        sh_ranges_add(set, 0x212a, 0x212a);
}

/* Write a character as a class of one, so nothing needs a backslash. */
static sh_rc put_character(struct reader *r, size_t at, uint32_t code)
{
    struct sh_ranges set = {0};

    if (r->fold[r->depth]) {
        if (code >= 0x80)
            return refuse(r, at, "case can be ignored for ASCII letters only, and there is another character");
        if (is_expanded(r->before, code))
            return refuse(r, at, "two letters that become one character when Unicode ignores case end");
        add_cases(&set, code);
    } else {
        sh_ranges_add(&set, code, code);
    }
    /* The next letter may form a pair with it. */
    r->before = code;
    put_class(r, &set, false);
    sh_ranges_free(&set);
    return SH_OK;
}

/* Add a set or its complement. Frees `set`. */
static void add_set(struct sh_ranges *to, struct sh_ranges *set, bool negated)
{
    if (negated)
        sh_ranges_invert(set);
    for (int i = 0; i < set->n; i++)
        sh_ranges_add(to, set->at[i].first, set->at[i].last);
    sh_ranges_free(set);
}

/* Take the name after \p or \P. */
static sh_rc take_property(struct reader *r, size_t at, bool negated, struct sh_ranges *to)
{
    struct sh_ranges set = {0};

    if (!take(r, "{"))
        return refuse(r, at, "a property without { }");
    if (take(r, "^"))
        negated = !negated;
    const unsigned char *end = memchr(r->p + r->at, '}', r->bytes - r->at);
    size_t n = end ? (size_t)(end - r->p) - r->at : 0;
    if (!end || !sh_ranges_add_property(&set, (const char *)r->p + r->at, n))
        return refuse(r, at, "an unknown property");
    r->at += n + 1;
    add_set(to, &set, negated);
    return SH_OK;
}

/* Letters that mean one character, and punctuation, which stands for itself. Other letters and digits are refused: they
 * are classes, anchors or back references. */
static bool simple_escape(int c, uint32_t *code)
{
    static const char from[] = "rntfv", to[] = "\r\n\t\f\v";
    const char *found = c > 0 ? strchr(from, c) : NULL;
    bool word = (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') || c == '_';

    *code = (uint32_t)(found ? to[found - from] : c);
    return found || (c > ' ' && c < 127 && !word);
}

/* Take an escape after its backslash. *code: the character, or UINT32_MAX if it is a class, which is added to `to`. */
static sh_rc take_escape(struct reader *r, struct sh_ranges *to, uint32_t *code)
{
    size_t at = r->at - 1;
    int c = peek(r);
    struct sh_ranges set = {0};

    if (simple_escape(c, code)) {
        r->at++;
        return SH_OK;
    }
    *code = UINT32_MAX;
    r->at += c >= 0;
    if (c == 'p' || c == 'P')
        return take_property(r, at, c == 'P', to);
    if (c == 's' || c == 'S')
        sh_ranges_add_space(&set);
    else if (c == 'd' || c == 'D')
        sh_ranges_add_property(&set, "Nd", 2);
    else
        return refuse(r, at, "an unknown escape");
    add_set(to, &set, c == 'S' || c == 'D');
    return SH_OK;
}

/* Take one member of a class, or one end of a range. *code UINT32_MAX: it was itself a class and has been added. */
static sh_rc take_member(struct reader *r, struct sh_ranges *set, uint32_t *code)
{
    size_t at = r->at;

    if (take(r, "\\"))
        return take_escape(r, set, code);
    if (peek(r) == '[' || (peek(r) == '&' && r->at + 1 < r->bytes && r->p[r->at + 1] == '&'))
        return refuse(r, at, "a class within a class");
    *code = take_code(r);
    return SH_OK;
}

/* Take the members up to the closing bracket. A closing bracket that comes first would be a member in some dialects, so
 * it is refused. */
static sh_rc take_members(struct reader *r, size_t begin, struct sh_ranges *set)
{
    for (bool first = true; first || peek(r) != ']'; first = false) {
        uint32_t low, high;
        size_t at = r->at;
        if (peek(r) < 0 || (first && peek(r) == ']'))
            return refuse(r, begin, "an empty class, or one without an end");
        SH_TRY(take_member(r, set, &low));
        if (low == UINT32_MAX)
            continue;
        high = low;
        /* A dash at the end of a class stands for itself. */
        if (peek(r) == '-' && r->at + 1 < r->bytes && r->p[r->at + 1] != ']') {
            r->at++;
            SH_TRY(take_member(r, set, &high));
        }
        if (high == UINT32_MAX || high < low)
            return refuse(r, at, "a range without an end, or in descending order");
        sh_ranges_add(set, low, high);
    }
    r->at++;
    return SH_OK;
}

/* If case is ignored, a class would have to be extended, which no known tokenizer needs. */
static sh_rc take_class(struct reader *r)
{
    size_t begin = r->at - 1;
    bool negated = take(r, "^");
    struct sh_ranges set = {0};
    sh_rc rc = take_members(r, begin, &set);

    if (rc == SH_OK && r->fold[r->depth])
        rc = refuse(r, begin, "a class where case is ignored");
    if (rc == SH_OK)
        put_class(r, &set, negated);
    sh_ranges_free(&set);
    r->before = 0;
    return rc;
}

/* Take a character or a class, outside of brackets. */
static sh_rc take_outside_escape(struct reader *r)
{
    size_t at = r->at - 1;
    struct sh_ranges set = {0};
    uint32_t code;
    sh_rc rc = take_escape(r, &set, &code);

    if (rc == SH_OK && code != UINT32_MAX) {
        rc = put_character(r, at, code);
    } else if (rc == SH_OK) {
        put_class(r, &set, false);
        r->before = 0;
    }
    sh_ranges_free(&set);
    return rc;
}

/* A group inherits whether case is ignored unless it is (?i:. Capturing groups become non-capturing ones. */
static sh_rc open_group(struct reader *r)
{
    static const struct {
        const char *from, *to;
        bool fold;
    } kinds[] = {{"?:", "(?:", false}, {"?i:", "(?:", true},   {"?>", "(?>", false},  {"?=", "(?=", false},
                 {"?!", "(?!", false}, {"?<=", "(?<=", false}, {"?<!", "(?<!", false}};
    size_t at = r->at - 1;
    bool fold = r->fold[r->depth];

    /* fold[] has only that many entries. */
    if (r->depth + 1 == MOST_GROUPS)
        return refuse(r, at, "groups nested more than 31 deep");
    r->depth++;
    r->fold[r->depth] = fold;
    r->before = 0;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (take(r, kinds[i].from)) {
            put(r, kinds[i].to);
            r->fold[r->depth] |= kinds[i].fold;
            return SH_OK;
        }
    if (peek(r) == '?' || peek(r) == '*')
        return refuse(r, at, "an unknown kind of group");
    put(r, "(?:"); /* captures are not used */
    return SH_OK;
}

/* Returns false if there are no digits, or the number is too large. */
static bool take_number(struct reader *r, int *out)
{
    size_t begin = r->at;

    for (*out = 0; peek(r) >= '0' && peek(r) <= '9' && *out <= MOST_REPEATS; r->at++)
        *out = *out * 10 + (peek(r) - '0');
    return r->at > begin && *out <= MOST_REPEATS;
}

/* Take a count after '{'. In Ruby syntax {,n} is {0,n}, and a + after a count repeats it instead of making it
 * possessive. */
static sh_rc take_count(struct reader *r)
{
    size_t at = r->at - 1;
    char text[32];
    int low = 0, high = 0;
    bool has_low = take_number(r, &low), comma = take(r, ","), has_high = comma && take_number(r, &high);

    if (!take(r, "}") || !has_low || (has_high && high < low) || peek(r) == '+')
        return refuse(r, at, "a count that is not {n}, {n,} or {n,m} with numbers up to 1000");
    if (has_high)
        snprintf(text, sizeof text, "{%d,%d}", low, high);
    else
        snprintf(text, sizeof text, comma ? "{%d,}" : "{%d}", low);
    put(r, text);
    /* Ruby reads {n}? as "once or not at all", PCRE2 as a lazy count. */
    if (!comma && peek(r) == '?')
        return refuse(r, at, "a count with a ? after it that is not {n,} or {n,m}");
    if (take(r, "?"))
        put(r, "?");
    return SH_OK;
}

/* Take ? * or +, greedy, lazy or possessive, which mean the same in both dialects. */
static sh_rc take_repeat(struct reader *r, char c)
{
    const char text[2] = {c, 0};

    put(r, text);
    if (take(r, "?"))
        put(r, "?");
    else if (take(r, "+"))
        put(r, "+");
    return SH_OK;
}

/* Take one element of the expression. Characters without a special meaning stand for themselves. */
static sh_rc take_one(struct reader *r)
{
    size_t at = r->at;
    int c = peek(r);

    /* A zero byte would end the string that strchr searches. */
    if (c == 0 || c >= 0x80 || !strchr("\\[(){|?*+^$.", c))
        return put_character(r, at, take_code(r));
    r->at++;
    if (c == '\\')
        return take_outside_escape(r);
    if (c == '[')
        return take_class(r);
    if (c == '(')
        return open_group(r);
    r->before = 0;
    if (c == '{')
        return take_count(r);
    if (c == '?' || c == '*' || c == '+')
        return take_repeat(r, (char)c);
    if (c == '.' || c == '^' || c == '$')
        return refuse(r, at, "one of . ^ $, which Sherd does not read");
    if (c == ')' && r->depth-- == 0)
        return refuse(r, at, "a ) without a (");
    put(r, c == ')' ? ")" : "|");
    return SH_OK;
}

/* Every opened group must be closed. */
static sh_rc translate(struct reader *r)
{
    if (r->bytes > MOST_BYTES || sh_utf8_check(r->p, r->bytes) != r->bytes)
        return sh_fail(SH_E_DATA, "the expression has more than %d bytes, or is not UTF-8", MOST_BYTES);
    while (r->at < r->bytes)
        SH_TRY(take_one(r));
    return r->depth ? refuse(r, r->bytes, "a ( without a )") : SH_OK;
}

/* *out is freed by the caller. */
sh_rc sh_pattern_translate(const char *pattern, size_t bytes, char **out)
{
    struct reader r = {.p = (const unsigned char *)pattern, .bytes = bytes};
    sh_rc rc = translate(&r);

    if (rc != SH_OK) {
        free(r.out.at);
        return rc;
    }
    put(&r, "");
    r.out.at[r.out.n] = 0;
    *out = (char *)r.out.at;
    return SH_OK;
}
