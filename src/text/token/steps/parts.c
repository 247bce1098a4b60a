/* The four parts of a tokenizer.json that are lists of steps: normalizer, pre_tokenizer, post_processor, decoder. Each
 * part has a table of its types; a row names the type, the function that reads it and the keys that are allowed. A key
 * that is not in the row is refused, because it might change the result. */
#include "src/text/token/steps/parts.h"

#include "src/base/string/utf8.h"
#include "src/base/mem.h"

#include <stdlib.h>

typedef sh_rc (*read_fn)(struct sh_hf *hf, const json_t *part);

/* A type of one part, and the keys allowed for it. */
struct type {
    const char *name;
    read_fn read;
    const char *keys;
};

struct part {
    const char *key, *list;   /* the part's key in the file; the key of its list in a Sequence */
    const struct type *types; /* ends with a NULL name */
};

/* *text is lent from the object; it may contain zero bytes, hence *bytes. */
sh_rc sh_token_json_string(const json_t *object, const char *key, const char **text, size_t *bytes)
{
    const json_t *value = json_object_get(object, key);

    if (!json_is_string(value))
        return sh_fail(SH_E_DATA, "%s is %s and must be a string", key, sh_json_is(value));
    *text = json_string_value(value);
    *bytes = json_string_length(value);
    return SH_OK;
}

/* `none`: the value if the key is absent or null. */
sh_rc sh_token_json_switch(const json_t *object, const char *key, bool none, bool *out)
{
    const json_t *value = json_object_get(object, key);

    if (value && !json_is_null(value) && !json_is_boolean(value))
        return sh_fail(SH_E_DATA, "%s is %s and must be true or false", key, sh_json_is(value));
    *out = json_is_boolean(value) ? json_is_true(value) : none;
    return SH_OK;
}

/* `known` is a list of words with single blanks. */
static bool is_known(const char *known, const char *key)
{
    size_t n = strlen(key);

    if (n == 0 || strchr(key, ' '))
        return false;
    for (const char *at = known; (at = strstr(at, key)) != NULL; at++)
        if ((at == known || at[-1] == ' ') && (at[n] == ' ' || !at[n]))
            return true;
    return false;
}

/* null counts as absent. */
sh_rc sh_token_json_known(const json_t *object, const char *known)
{
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)object, key, value) if (!json_is_null(value) && !is_known(known, key)) return sh_fail(
        SH_E_DATA, "the key \"%s\" is not known here", key);
    return SH_OK;
}

/* Read a whole number that must be present. */
static sh_rc count(const json_t *object, const char *key, size_t *out)
{
    const json_t *value = json_object_get(object, key);

    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return sh_fail(SH_E_DATA, "%s is %s and must be a whole number from 0 on", key, sh_json_is(value));
    *out = (size_t)json_integer_value(value);
    return SH_OK;
}

/* Read {"String": text}, or {"Regex": text} if *regex is set on return. */
static sh_rc read_pattern(const json_t *part, const char **text, size_t *bytes, bool *regex)
{
    const json_t *pattern = json_object_get(part, "pattern");

    *regex = json_object_get(pattern, "Regex") != NULL;
    if (json_object_size(pattern) != 1)
        return sh_fail(SH_E_DATA, "pattern must be {\"String\": ...} or {\"Regex\": ...}");
    SH_TRY(sh_token_json_string(pattern, *regex ? "Regex" : "String", text, bytes));
    return *bytes ? SH_OK : sh_fail(SH_E_DATA, "pattern is empty");
}

/* Normalizers. */

/* Add a step; *out is to be filled by the caller. */
static sh_rc add_normal(struct sh_hf *hf, enum sh_normal_kind kind, struct sh_normal **out)
{
    if (hf->n_normal == SH_HF_STEPS)
        return sh_fail(SH_E_DATA, "more than %d steps", SH_HF_STEPS);
    *out = &hf->normal[hf->n_normal++];
    (*out)->kind = kind;
    return SH_OK;
}

/* The table is built once and belongs to the step. */
static sh_rc read_nfc(struct sh_hf *hf, const json_t *part)
{
    struct sh_normal *n = NULL;

    (void)part;
    SH_TRY(add_normal(hf, SH_NORMAL_NFC, &n));
    n->nfc = sh_nfc_create();
    return SH_OK;
}

/* The text is copied because the JSON is freed after reading. */
static sh_rc read_prepend(struct sh_hf *hf, const json_t *part)
{
    struct sh_normal *n = NULL;
    const char *text;
    size_t bytes;

    SH_TRY(sh_token_json_string(part, "prepend", &text, &bytes));
    SH_TRY(add_normal(hf, SH_NORMAL_PREPEND, &n));
    n->to = sh_textdup(text, bytes);
    n->to_bytes = bytes;
    return SH_OK;
}

/* Everything is read before the step is added, so a failure leaves no half-made step. */
static sh_rc read_replace(struct sh_hf *hf, const json_t *part)
{
    const char *from, *to;
    size_t from_bytes, to_bytes;
    struct sh_normal *n = NULL;
    bool regex;

    SH_TRY(read_pattern(part, &from, &from_bytes, &regex));
    SH_TRY(sh_token_json_string(part, "content", &to, &to_bytes));
    if (regex || !to_bytes)
        return sh_fail(SH_E_DATA, "only a string can be replaced, and not by an empty one");
    SH_TRY(add_normal(hf, SH_NORMAL_REPLACE, &n));
    n->from = sh_textdup(from, from_bytes);
    n->to = sh_textdup(to, to_bytes);
    n->from_bytes = from_bytes;
    n->to_bytes = to_bytes;
    return SH_OK;
}

static const struct type normalizers[] = {
    {"NFC", read_nfc, "type"},
    {"Prepend", read_prepend, "type prepend"},
    {"Replace", read_replace, "type pattern content"},
    {0},
};

/* Pre-tokenizers. */

/* Add a step. ByteLevel turns text into bytes, so no step can cut after it. */
static sh_rc add_split(struct sh_hf *hf, const struct sh_split *step)
{
    if (hf->n_split == SH_HF_STEPS - 3) /* three are reserved for our own */
        return sh_fail(SH_E_DATA, "more than %d steps", SH_HF_STEPS - 3);
    if (hf->model.byte_level)
        return sh_fail(SH_E_DATA, "a step after ByteLevel, which must be the last");
    hf->split[hf->n_split++] = *step;
    return SH_OK;
}

/* The expression is compiled here, so a bad one is refused when the file is opened. */
static sh_rc add_pattern(struct sh_hf *hf, const char *pattern, size_t bytes, enum sh_split_how how, bool invert)
{
    struct sh_split step;

    SH_TRY(sh_split_pattern(pattern, bytes, &step));
    step.how = how;
    step.invert = invert;
    sh_rc rc = add_split(hf, &step);
    if (rc != SH_OK)
        sh_split_free(&step);
    return rc;
}

static sh_rc add_string(struct sh_hf *hf, enum sh_split_kind kind, const char *text, size_t bytes,
                        enum sh_split_how how, bool invert)
{
    /* The copy belongs to the step. */
    struct sh_split step = {
        .kind = kind, .how = how, .invert = invert, .text = sh_textdup(text, bytes), .bytes = bytes};
    sh_rc rc = add_split(hf, &step);

    if (rc != SH_OK)
        sh_split_free(&step);
    return rc;
}

/* The expression at which ByteLevel itself cuts if use_regex is set. Source: GPT-2, encoder.py. */
static const char gpt2[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/* This may become three steps: a prefix, GPT-2's expression, and the byte alphabet. */
static sh_rc read_byte_level(struct sh_hf *hf, const json_t *part)
{
    bool prefix, regex;

    SH_TRY(sh_token_json_switch(part, "add_prefix_space", true, &prefix));
    SH_TRY(sh_token_json_switch(part, "use_regex", true, &regex));
    if (prefix)
        SH_TRY(add_split(hf, &(struct sh_split){.kind = SH_SPLIT_PREFIX}));
    if (regex)
        SH_TRY(add_pattern(hf, gpt2, sizeof gpt2 - 1, SH_SPLIT_ISOLATED, false));
    if (hf->model.byte_level)
        return sh_fail(SH_E_DATA, "ByteLevel twice");
    hf->model.byte_level = true;
    return SH_OK;
}

/* Read what happens to a match: it becomes a piece, is removed, or joins a neighbour. */
static sh_rc read_how(const json_t *part, enum sh_split_how *how)
{
    static const char *const names[] = {
        [SH_SPLIT_ISOLATED] = "Isolated",        [SH_SPLIT_REMOVED] = "Removed",
        [SH_SPLIT_CONTIGUOUS] = "Contiguous",    [SH_SPLIT_WITH_PREVIOUS] = "MergedWithPrevious",
        [SH_SPLIT_WITH_NEXT] = "MergedWithNext",
    };
    const char *text;
    size_t bytes;

    SH_TRY(sh_token_json_string(part, "behavior", &text, &bytes));
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (!strcmp(text, names[i])) {
            *how = (enum sh_split_how)i;
            return SH_OK;
        }
    return sh_fail(SH_E_DATA, "behavior is \"%s\", which is not known", text);
}

/* Read a step that cuts at a regular expression or at a fixed string. */
static sh_rc read_split(struct sh_hf *hf, const json_t *part)
{
    const char *text;
    size_t bytes;
    enum sh_split_how how = SH_SPLIT_ISOLATED;
    bool regex, invert;

    SH_TRY(read_pattern(part, &text, &bytes, &regex));
    SH_TRY(read_how(part, &how));
    SH_TRY(sh_token_json_switch(part, "invert", false, &invert));
    return regex ? add_pattern(hf, text, bytes, how, invert)
                 : add_string(hf, SH_SPLIT_STRING, text, bytes, how, invert);
}

/* Read a step that isolates each digit, or each run of digits. */
static sh_rc read_digits(struct sh_hf *hf, const json_t *part)
{
    bool each;

    SH_TRY(sh_token_json_switch(part, "individual_digits", false, &each));
    return add_split(
        hf, &(struct sh_split){.kind = SH_SPLIT_DIGITS, .how = each ? SH_SPLIT_ISOLATED : SH_SPLIT_CONTIGUOUS});
}

/* Read a single character, which may have several bytes. */
static sh_rc read_character(const json_t *part, const char *key, const char **text, size_t *bytes)
{
    size_t n = 0;

    SH_TRY(sh_token_json_string(part, key, text, bytes));
    if (*bytes)
        sh_utf8_get((const unsigned char *)*text, &n);
    return n && n == *bytes ? SH_OK : sh_fail(SH_E_DATA, "%s must be one character", key);
}

/* Read when to prepend the mark: always, if the file does not say; old files use add_prefix_space instead. */
static sh_rc read_scheme(const json_t *part, enum sh_split_prepend *out)
{
    static const char *const names[] = {
        [SH_PREPEND_NEVER] = "never", [SH_PREPEND_FIRST] = "first", [SH_PREPEND_ALWAYS] = "always"};
    const char *text = "always";
    size_t bytes;
    bool prefix;

    if (json_object_get(part, "prepend_scheme"))
        SH_TRY(sh_token_json_string(part, "prepend_scheme", &text, &bytes));
    SH_TRY(sh_token_json_switch(part, "add_prefix_space", true, &prefix));
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (!strcmp(text, names[i])) {
            *out = (enum sh_split_prepend)i;
            return prefix || *out == SH_PREPEND_NEVER
                       ? SH_OK
                       : sh_fail(SH_E_DATA, "add_prefix_space is false, and prepend_scheme is not \"never\"");
        }
    return sh_fail(SH_E_DATA, "prepend_scheme is \"%s\", which is not known", text);
}

/* Read Metaspace: spaces become the mark; with `split` the text is also cut before each mark. */
static sh_rc read_metaspace(struct sh_hf *hf, const json_t *part)
{
    struct sh_split step = {.kind = SH_SPLIT_METASPACE};
    const char *mark;
    bool split;

    SH_TRY(read_character(part, "replacement", &mark, &step.bytes));
    SH_TRY(read_scheme(part, &step.prepend));
    SH_TRY(sh_token_json_switch(part, "split", true, &split));
    step.text = sh_textdup(mark, step.bytes);
    sh_rc rc = add_split(hf, &step);
    if (rc != SH_OK)
        sh_split_free(&step);
    /* WITH_NEXT: the mark begins the next piece. */
    else if (split)
        rc = add_string(hf, SH_SPLIT_STRING, mark, strlen(mark), SH_SPLIT_WITH_NEXT, false);
    return rc;
}

static const struct type pre_tokenizers[] = {
    {"ByteLevel", read_byte_level, "type add_prefix_space trim_offsets use_regex"},
    {"Split", read_split, "type pattern behavior invert"},
    {"Digits", read_digits, "type individual_digits"},
    {"Metaspace", read_metaspace, "type replacement prepend_scheme split add_prefix_space str_rep"},
    {0},
};

/* Post-processors. */

/* Append the ids of a token of the template; there may be several. */
static sh_rc add_template_ids(const json_t *tokens, const json_t *piece, struct sh_ids *to)
{
    const char *name;
    size_t bytes, i;
    const json_t *ids, *id;

    SH_TRY(sh_token_json_string(piece, "id", &name, &bytes));
    ids = json_object_get(json_object_get(tokens, name), "ids");
    if (!json_is_array(ids))
        return sh_fail(SH_E_DATA, "special_tokens has no ids for \"%s\"", name);
    json_array_foreach(ids, i, id)
    {
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= SH_HF_IDS)
            return sh_fail(SH_E_DATA, "an id of \"%s\" is not valid", name);
        sh_ids_put(to, (uint32_t)json_integer_value(id));
    }
    return SH_OK;
}

/* Insert ids in front of the existing ones, which are from earlier processors. */
static void put_in_front(struct sh_ids *to, const struct sh_ids *front)
{
    sh_ids_room(to, front->n + 1);
    memmove(to->id + front->n, to->id, to->n * sizeof *to->id);
    if (front->n)
        memcpy(to->id, front->id, front->n * sizeof *to->id);
    to->n += front->n;
}

/* Ids before the text go to `front`, ids after it to hf->end. The template for pairs is not used: there is only one
 * text. */
static sh_rc read_single(struct sh_hf *hf, const json_t *part, struct sh_ids *front)
{
    const json_t *single = json_object_get(part, "single"), *piece;
    int texts = 0;
    size_t i;

    json_array_foreach(single, i, piece)
    {
        const json_t *token = json_object_get(piece, "SpecialToken"), *text = json_object_get(piece, "Sequence");
        if (token)
            SH_TRY(add_template_ids(json_object_get(part, "special_tokens"), token, texts ? &hf->end : front));
        const json_t *name = json_object_get(text, "id");
        /* "A" is the first text; "B" occurs only in pairs. */
        texts += json_is_string(name) && !strcmp(json_string_value(name), "A");
    }
    return texts == 1 ? SH_OK : sh_fail(SH_E_DATA, "single must have the text \"A\" once");
}

/* Processors run one after the other, and each puts its ids around what is there. */
static sh_rc read_template(struct sh_hf *hf, const json_t *part)
{
    struct sh_ids front = {0};
    sh_rc rc = read_single(hf, part, &front);

    if (rc == SH_OK)
        put_in_front(&hf->begin, &front);
    free(front.id);
    return rc;
}

/* Types that do not change any id. */
static sh_rc read_nothing(struct sh_hf *hf, const json_t *part)
{
    (void)hf, (void)part;
    return SH_OK;
}

static const struct type post_processors[] = {
    {"ByteLevel", read_nothing,
     "type add_prefix_space trim_offsets use_regex"}, /* adjusts offsets, which are not kept here */
    {"TemplateProcessing", read_template, "type single pair special_tokens"},
    {0},
};

/* Decoders. */

/* Add a step; *out is to be filled by the caller. */
static sh_rc add_decode(struct sh_hf *hf, enum sh_decode_kind kind, struct sh_decode **out)
{
    if (hf->n_decode == SH_HF_STEPS)
        return sh_fail(SH_E_DATA, "more than %d steps", SH_HF_STEPS);
    *out = &hf->decode[hf->n_decode++];
    (*out)->kind = kind;
    return SH_OK;
}

/* Read the three types without options. */
static sh_rc read_decode_bytes(struct sh_hf *hf, const json_t *part)
{
    struct sh_decode *d = NULL;
    const char *type = json_string_value(json_object_get(part, "type"));

    return add_decode(hf,
                      !strcmp(type, "ByteLevel") ? SH_DECODE_BYTE_LEVEL
                      : !strcmp(type, "Fuse")    ? SH_DECODE_FUSE
                                                 : SH_DECODE_BYTES,
                      &d);
}

/* An empty replacement is fine here. */
static sh_rc read_decode_replace(struct sh_hf *hf, const json_t *part)
{
    const char *from, *to;
    size_t from_bytes, to_bytes;
    struct sh_decode *d = NULL;
    bool regex;

    SH_TRY(read_pattern(part, &from, &from_bytes, &regex));
    SH_TRY(sh_token_json_string(part, "content", &to, &to_bytes));
    if (regex)
        return sh_fail(SH_E_DATA, "only a string can be replaced");
    SH_TRY(add_decode(hf, SH_DECODE_REPLACE, &d));
    d->from = sh_textdup(from, from_bytes);
    d->to = sh_textdup(to, to_bytes);
    d->from_bytes = from_bytes;
    d->to_bytes = to_bytes;
    return SH_OK;
}

/* Read Strip: one character, and how many of it to remove at the front and at the end. */
static sh_rc read_strip(struct sh_hf *hf, const json_t *part)
{
    struct sh_decode *d = NULL, step = {.kind = SH_DECODE_STRIP};
    const char *text;

    SH_TRY(read_character(part, "content", &text, &step.from_bytes));
    SH_TRY(count(part, "start", &step.start));
    SH_TRY(count(part, "stop", &step.stop));
    SH_TRY(add_decode(hf, SH_DECODE_STRIP, &d));
    step.from = sh_textdup(text, step.from_bytes);
    *d = step;
    return SH_OK;
}

/* Read Metaspace: if the encoder put a mark in front, the decoder drops it. */
static sh_rc read_decode_metaspace(struct sh_hf *hf, const json_t *part)
{
    struct sh_decode *d = NULL, step = {.kind = SH_DECODE_METASPACE};
    enum sh_split_prepend scheme;
    const char *text;

    SH_TRY(read_character(part, "replacement", &text, &step.from_bytes));
    SH_TRY(read_scheme(part, &scheme));
    SH_TRY(add_decode(hf, SH_DECODE_METASPACE, &d));
    step.prepended = scheme != SH_PREPEND_NEVER;
    step.from = sh_textdup(text, step.from_bytes);
    *d = step;
    return SH_OK;
}

static const struct type decoders[] = {
    {"ByteLevel", read_decode_bytes, "type add_prefix_space trim_offsets use_regex"},
    {"ByteFallback", read_decode_bytes, "type"},
    {"Fuse", read_decode_bytes, "type"},
    {"Replace", read_decode_replace, "type pattern content"},
    {"Strip", read_strip, "type content start stop"},
    {"Metaspace", read_decode_metaspace, "type replacement prepend_scheme split add_prefix_space str_rep"},
    {0},
};

/* In the order in which a text passes through them, except for the decoder. */
static const struct part parts[] = {
    {"normalizer", "normalizers", normalizers},
    {"pre_tokenizer", "pretokenizers", pre_tokenizers},
    {"post_processor", "processors", post_processors},
    {"decoder", "decoders", decoders},
};

static sh_rc read_one(struct sh_hf *hf, const struct part *part, const json_t *value);

/* Sequences may be nested; the depth of the JSON bounds the nesting. */
static sh_rc read_sequence(struct sh_hf *hf, const struct part *part, const json_t *value)
{
    const json_t *list = json_object_get(value, part->list), *one;
    size_t i;

    if (!json_is_array(list))
        return sh_fail(SH_E_DATA, "%s is %s and must be a list", part->list, sh_json_is(list));
    json_array_foreach(list, i, one)
    {
        sh_rc rc = read_one(hf, part, one);
        if (rc != SH_OK)
            return sh_fail_prefix(rc, "%s[%zu]: ", part->list, i);
    }
    return SH_OK;
}

/* An error message gives the path: "pre_tokenizer: pretokenizers[1]: Split: ...". */
static sh_rc read_one(struct sh_hf *hf, const struct part *part, const json_t *value)
{
    const char *type;
    size_t bytes;

    if (!json_is_object(value))
        return sh_fail(SH_E_DATA, "it is %s and must be an object", sh_json_is(value));
    SH_TRY(sh_token_json_string(value, "type", &type, &bytes));
    if (!strcmp(type, "Sequence"))
        return read_sequence(hf, part, value);
    for (const struct type *t = part->types; t->name; t++) {
        if (strcmp(t->name, type) != 0)
            continue;
        sh_rc rc = sh_token_json_known(value, t->keys);
        if (rc == SH_OK)
            rc = t->read(hf, value);
        return rc == SH_OK ? SH_OK : sh_fail_prefix(rc, "%s: ", type);
    }
    return sh_fail(SH_E_DATA, "the type \"%s\" is not one that Sherd reads", type);
}

/* An absent part has no steps. Without a decoder, words are joined by spaces. */
sh_rc sh_token_json_read_parts(struct sh_hf *hf, const json_t *top)
{
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        const json_t *value = json_object_get(top, parts[i].key);
        if (!value || json_is_null(value))
            continue;
        sh_rc rc = read_one(hf, &parts[i], value);
        if (rc != SH_OK)
            return sh_fail_prefix(rc, "%s: ", parts[i].key);
    }
    hf->has_decoder = json_is_object(json_object_get(top, "decoder"));
    return SH_OK;
}
