/* Pre-tokenizers: steps that cut a text into pieces. Steps are applied depth first: each piece of a step passes through
 * the later steps at once, and the last step hands it to the sink, so no list of pieces is ever built. A step sees its
 * text as stretches that are either matches or the text between matches; how stretches join is the same for all kinds
 * of steps. Example: "MergedWithPrevious" at "-" cuts "a-b" into "a-" and "b". */
#include "src/text/token/steps/split.h"

#include "src/base/string/utf8.h"
#include "src/text/base/expression.h"
#include "src/text/base/ranges.h"
#include "src/text/base/text.h"
#include "src/text/base/unicode.h"

#include <stdlib.h>

/* One buffer per step: a step that changes its text needs the buffer while the later steps run. */
struct sh_split_scratch {
    struct sh_expression_scratch *match;
    struct sh_text *text;    /* [steps] */
    struct sh_spans *origin; /* [steps] */
    int steps;
};

/* *out is freed with sh_split_free(). */
sh_rc sh_split_pattern(const char *pattern, size_t bytes, struct sh_split *out)
{
    *out = (struct sh_split){.kind = SH_SPLIT_PATTERN};
    return sh_expression_compile(pattern, bytes, &out->code, &out->jit);
}

void sh_split_free(struct sh_split *s)
{
    sh_expression_free(s->code);
    free(s->text);
    sh_pairs_destroy(s->pairs);
    *s = (struct sh_split){0};
}

/* A step that changes its text has one buffer for all its pieces, so only the first step, which gets a single text, may
 * change it. */
bool sh_split_lasts(const struct sh_split *steps, int n)
{
    for (int i = 1; i < n; i++)
        if (steps[i].kind == SH_SPLIT_PREFIX || steps[i].kind == SH_SPLIT_METASPACE)
            return false;
    return true;
}

struct sh_split_scratch *sh_split_scratch_create(int steps)
{
    struct sh_split_scratch *s = sh_calloc(1, sizeof *s);

    s->match = sh_expression_scratch_create();
    s->text = sh_calloc((size_t)steps + 1, sizeof *s->text);
    s->origin = sh_calloc((size_t)steps + 1, sizeof *s->origin);
    s->steps = steps;
    return s;
}

void sh_split_scratch_destroy(struct sh_split_scratch *s)
{
    if (!s)
        return;
    for (int i = 0; i < s->steps; i++) {
        free(s->text[i].at);
        free(s->origin[i].at);
    }
    sh_expression_scratch_destroy(s->match);
    free(s->text);
    free(s->origin);
    free(s);
}

/* The text that is being cut, and where the pieces go. */
struct cut {
    const struct sh_split *step; /* this step; `left` more follow */
    int left;
    int depth; /* the number of this step; -1: before the first */
    struct sh_split_scratch *s;
    const unsigned char *text;
    size_t bytes;
    const struct sh_span *where; /* [bytes]; NULL: not wanted */
    bool first;
    sh_split_sink sink;
    void *ctx;
    size_t begin; /* of the held piece, [begin, end), which may still grow */
    size_t end;
    bool held, last_match;
};

static sh_rc run(const struct sh_split *step, int left, struct cut *from, size_t begin, size_t end);

/* Pass a finished piece to the next step, or to the sink. Empty pieces are dropped. */
static sh_rc emit(struct cut *c, size_t begin, size_t end)
{
    if (begin == end)
        return SH_OK;
    if (c->left == 0)
        return c->sink(c->ctx, c->text + begin, end - begin, c->where ? c->where + begin : NULL);
    return run(c->step + 1, c->left, c, begin, end);
}

/* Emit the held piece, which could still have grown. */
static sh_rc emit_held(struct cut *c)
{
    bool held = c->held;

    c->held = false;
    return held ? emit(c, c->begin, c->end) : SH_OK;
}

/* Whether a stretch extends the held piece. */
static bool joins(const struct cut *c, bool match)
{
    switch (c->step->how) {
    case SH_SPLIT_CONTIGUOUS: return match == c->last_match;
    case SH_SPLIT_WITH_PREVIOUS: return match && !c->last_match;
    case SH_SPLIT_WITH_NEXT: return !match && c->last_match;
    default: return false;
    }
}

/* Take the next stretch of the text, a match or the text between two; together the stretches cover the text. */
static sh_rc stretch(struct cut *c, size_t begin, size_t end, bool match)
{
    if (begin == end)
        return SH_OK;
    /* invert: the text between matches counts as the match. */
    match ^= c->step->invert;
    if (c->step->how == SH_SPLIT_ISOLATED)
        return emit(c, begin, end);
    if (c->step->how == SH_SPLIT_REMOVED)
        return match ? SH_OK : emit(c, begin, end);
    /* Extend the held piece, or emit it and begin another one. */
    if (c->held && joins(c, match)) {
        c->end = end;
    } else {
        SH_TRY(emit_held(c));
        c->begin = begin;
        c->end = end;
        c->held = true;
    }
    c->last_match = match;
    return SH_OK;
}

/* A match begins where the last one ended or later; sh_expression_next() never returns an empty one. */
static sh_rc cut_pattern(struct cut *c)
{
    size_t done = 0, begin, end;
    bool found;

    for (;;) {
        SH_TRY(sh_expression_next(c->step->code, c->step->jit, c->s->match, c->text, c->bytes, done, &begin, &end,
                                  &found));
        if (!found)
            return stretch(c, done, c->bytes, false);
        SH_TRY(stretch(c, done, begin, false));
        SH_TRY(stretch(c, begin, end, true));
        done = end;
    }
}

/* Like cut_pattern(), with a fixed string. */
static sh_rc cut_string(struct cut *c)
{
    const struct sh_split *s = c->step;
    size_t done = 0;

    for (;;) {
        const unsigned char *at = memmem(c->text + done, c->bytes - done, s->text, s->bytes);
        if (!at)
            return stretch(c, done, c->bytes, false);
        size_t begin = (size_t)(at - c->text);
        SH_TRY(stretch(c, done, begin, false));
        SH_TRY(stretch(c, begin, begin + s->bytes, true));
        done = begin + s->bytes;
    }
}

/* All Unicode numbers, like Rust's is_numeric(), not only decimal digits. */
static bool is_numeric(uint32_t code)
{
    return code < 0x80 ? code >= '0' && code <= '9' : sh_range_has(sh_unicode_numeric, sh_unicode_numeric_n, code);
}

/* Each digit is its own match; `how` decides whether they are joined. */
static sh_rc cut_digits(struct cut *c)
{
    size_t done = 0;

    for (size_t i = 0, n; i < c->bytes; i += n) {
        if (!is_numeric(sh_utf8_get(c->text + i, &n)))
            continue;
        SH_TRY(stretch(c, done, i, false));
        SH_TRY(stretch(c, i, i + n, true));
        done = i + n;
    }
    return stretch(c, done, c->bytes, false);
}

/* Cut before each run of marks. These cuts are ours and not the file's: they only make pieces short (see
 * cut_between_words() in hf.c). */
static sh_rc cut_marks(struct cut *c)
{
    const struct sh_split *s = c->step;
    size_t done = 0, at = 0;

    for (;;) {
        while (c->bytes - at >= s->bytes && memcmp(c->text + at, s->text, s->bytes) == 0)
            at += s->bytes;
        const unsigned char *next = memmem(c->text + at, c->bytes - at, s->text, s->bytes);
        if (!next)
            return emit(c, done, c->bytes);
        at = (size_t)(next - c->text);
        SH_TRY(emit(c, done, at));
        done = at;
    }
}

/* Cut between characters that are not a pair of the set. These cuts are ours as well. */
static sh_rc cut_pairs(struct cut *c)
{
    const struct sh_pairs *pairs = c->step->pairs;
    size_t done = 0, n;
    uint32_t before = sh_utf8_get(c->text, &n), code;

    for (size_t i = n; i < c->bytes; i += n, before = code) {
        code = sh_utf8_get(c->text + i, &n);
        if (sh_pairs_have(pairs, before, code))
            continue;
        SH_TRY(emit(c, done, i));
        done = i;
    }
    return emit(c, done, c->bytes);
}

static bool begins_with(const struct cut *c, const void *text, size_t bytes)
{
    return c->bytes >= bytes && memcmp(c->text, text, bytes) == 0;
}

/* Begin the step's own text, which it cuts instead of the one that it was given. */
static void begin_own(struct cut *c)
{
    c->s->text[c->depth].n = 0;
    c->s->origin[c->depth].n = 0;
}

/* Append to it what is made of the bytes [begin, end). */
static void make(struct cut *c, const void *text, size_t bytes, size_t begin, size_t end)
{
    sh_text_put(&c->s->text[c->depth], text, bytes);
    if (c->where)
        sh_spans_make(&c->s->origin[c->depth], c->where + begin, end - begin, bytes);
}

/* Append the bytes [begin, end) as they are. */
static void keep(struct cut *c, size_t begin, size_t end)
{
    sh_text_put(&c->s->text[c->depth], c->text + begin, end - begin);
    if (c->where)
        sh_spans_keep(&c->s->origin[c->depth], c->where + begin, end - begin);
}

static sh_rc emit_own(struct cut *c)
{
    c->text = c->s->text[c->depth].at;
    c->bytes = c->s->text[c->depth].n;
    c->where = c->where ? c->s->origin[c->depth].at : NULL;
    return emit(c, 0, c->bytes);
}

/* Bytes of the first character: what is put in front belongs to it. */
static size_t first_character(const struct cut *c)
{
    size_t n;

    sh_utf8_get(c->text, &n);
    return n;
}

/* Put a space in front unless there is one: the first word of a text then has the same id as elsewhere. */
static sh_rc add_prefix(struct cut *c)
{
    if (begins_with(c, " ", 1))
        return emit(c, 0, c->bytes);
    begin_own(c);
    make(c, " ", 1, 0, first_character(c));
    keep(c, 0, c->bytes);
    return emit_own(c);
}

/* Each space becomes the mark; one more mark is put in front if the scheme asks for it. */
static sh_rc replace_spaces(struct cut *c)
{
    const struct sh_split *s = c->step;
    bool wanted = s->prepend == SH_PREPEND_ALWAYS || (s->prepend == SH_PREPEND_FIRST && c->first);
    size_t done = 0;

    begin_own(c);
    if (wanted && !begins_with(c, " ", 1) && !begins_with(c, s->text, s->bytes))
        make(c, s->text, s->bytes, 0, first_character(c));
    for (const unsigned char *at; (at = memchr(c->text + done, ' ', c->bytes - done)) != NULL;) {
        size_t i = (size_t)(at - c->text);
        keep(c, done, i);
        make(c, s->text, s->bytes, i, i + 1);
        done = i + 1;
    }
    keep(c, done, c->bytes);
    return emit_own(c);
}

/* Run a step on the stretch [begin, end) of the step before. */
static sh_rc run(const struct sh_split *step, int left, struct cut *from, size_t begin, size_t end)
{
    static sh_rc (*const kinds[])(struct cut *) = {
        [SH_SPLIT_PATTERN] = cut_pattern,      [SH_SPLIT_STRING] = cut_string, [SH_SPLIT_DIGITS] = cut_digits,
        [SH_SPLIT_MARKS] = cut_marks,          [SH_SPLIT_PAIRS] = cut_pairs,   [SH_SPLIT_PREFIX] = add_prefix,
        [SH_SPLIT_METASPACE] = replace_spaces,
    };
    struct cut c = {.step = step,
                    .left = left - 1,
                    .depth = from->depth + 1,
                    .s = from->s,
                    .text = from->text + begin,
                    .bytes = end - begin,
                    .where = from->where ? from->where + begin : NULL,
                    .first = from->first && begin == 0,
                    .sink = from->sink,
                    .ctx = from->ctx};

    SH_TRY(kinds[step->kind](&c));
    return emit_held(&c);
}

/* Pieces are lent to the sink for the duration of its call. */
sh_rc sh_split(const struct sh_split *steps, int n, struct sh_split_scratch *s, const unsigned char *text, size_t bytes,
               const struct sh_span *where, bool first, sh_split_sink sink, void *ctx)
{
    struct cut c = {
        .depth = -1, .s = s, .text = text, .bytes = bytes, .where = where, .first = first, .sink = sink, .ctx = ctx};

    if (bytes == 0)
        return SH_OK;
    return n ? run(steps, n, &c, 0, bytes) : sink(ctx, text, bytes, where);
}
