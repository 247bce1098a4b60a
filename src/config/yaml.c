/* YAML into a configuration, by events of libyaml: sections with keys below them, nothing deeper but lists of pairs.
 * Functions named read_ take the event at hand and leave the last one of what they read, so that the caller reads the
 * next. Anchors, tags and several documents are refused. A problem is noted and its value skipped, so that one run of
 * the program shows all of them. */
#include "src/config/yaml.h"

#include "src/base/mem.h"
#include "src/config/foreign.h"
#include "src/config/give.h"
#include "src/config/pairs.h"
#include "src/config/problems.h"
#include "src/config/text.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

/* More than there are sections; a section that is not known is not kept. */
enum { SECTIONS_MAX = 64 };

/* `seen` finds sections that are given twice, of which YAML readers silently take the last. */
struct reader {
    yaml_parser_t parser;
    const char *name;
    struct sh_config_state *state;
    yaml_event_t event; /* the newest; deleted by the next read */
    int line;           /* of event, from 1 */
    char section[SH_CONFIG_NAME_MAX];
    char seen[SECTIONS_MAX][SH_CONFIG_NAME_MAX];
    int n_seen;
};

/* With file and line of the event at hand. */
__attribute__((format(printf, 2, 3))) static sh_rc fail_here(const struct reader *r, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return sh_fail(SH_E_USAGE, "%s:%d: %s", r->name, r->line, text);
}

/* libyaml's own words, with line and column. */
static sh_rc broken_yaml(const struct reader *r)
{
    const yaml_parser_t *p = &r->parser;
    if (p->error == YAML_MEMORY_ERROR)
        return sh_fail(SH_E_MEMORY, "out of memory: no room to read %s", r->name);
    return sh_fail(SH_E_USAGE, "%s:%zu:%zu: %s%s%s", r->name, p->problem_mark.line + 1, p->problem_mark.column + 1,
                   p->context != NULL ? p->context : "", p->context != NULL ? ", " : "",
                   p->problem != NULL ? p->problem : "not YAML");
}

/* Properties of nodes that a configuration has no use for: better refused than understood by half the readers. */
static sh_rc check_plain(const struct reader *r)
{
    const yaml_event_t *e = &r->event;
    bool scalar = e->type == YAML_SCALAR_EVENT, mapping = e->type == YAML_MAPPING_START_EVENT;
    if (e->type == YAML_ALIAS_EVENT || (scalar && e->data.scalar.anchor != NULL) ||
        (mapping && e->data.mapping_start.anchor != NULL))
        return fail_here(r, "anchors and aliases are not allowed; write the value out");
    if ((scalar && e->data.scalar.tag != NULL) || (mapping && e->data.mapping_start.tag != NULL))
        return fail_here(r, "tags are not allowed; leave out the !");
    return SH_OK;
}

/* Deletes the event before it, and all pointers into that one are dead. */
static sh_rc read_event(struct reader *r)
{
    yaml_event_delete(&r->event);
    if (!yaml_parser_parse(&r->parser, &r->event))
        return broken_yaml(r);
    r->line = (int)r->event.start_mark.line + 1;
    return check_plain(r);
}

/* One value, in any style of quotes. */
static bool is_scalar(const struct reader *r)
{
    return r->event.type == YAML_SCALAR_EVENT;
}

/* A bare empty value, as of a section whose keys are all commented out. */
static bool is_empty(const struct reader *r)
{
    return is_scalar(r) && r->event.data.scalar.length == 0 && r->event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
}

/* Lent until the next event. */
static const char *scalar_text(const struct reader *r)
{
    return (const char *)r->event.data.scalar.value;
}

/* Escapes in quotes can make any character; the rest of Sherd holds text as C strings. */
static sh_rc check_key(const struct reader *r, const char *kind)
{
    if (!is_scalar(r))
        return fail_here(r, "wants the name of a %s, got a list or a mapping", kind);
    if (sh_config_text_bad(scalar_text(r), r->event.data.scalar.length, false) != r->event.data.scalar.length)
        return fail_here(r, "name of a %s with control characters", kind);
    return SH_OK;
}

/* One value; a zero byte inside would cut it short without a sign. */
static sh_rc check_value(const struct reader *r, const char *name)
{
    char shown[SH_CONFIG_SHOWN];
    sh_config_text_shown(name, shown);
    if (r->event.type == YAML_SEQUENCE_START_EVENT)
        return fail_here(r, "%s: wants one value, got a list", shown);
    if (r->event.type == YAML_MAPPING_START_EVENT)
        return fail_here(r, "%s: wants one value, got a mapping", shown);
    if (strlen(scalar_text(r)) != r->event.data.scalar.length)
        return fail_here(r, "%s: contains a NUL character", shown);
    return SH_OK;
}

/* event: the beginning of a value. Reads to its end, whatever it is. */
static sh_rc skip_value(struct reader *r)
{
    int depth = 0;
    for (;;) {
        yaml_event_type_t type = r->event.type;
        depth += type == YAML_MAPPING_START_EVENT || type == YAML_SEQUENCE_START_EVENT;
        depth -= type == YAML_MAPPING_END_EVENT || type == YAML_SEQUENCE_END_EVENT;
        if (depth == 0)
            return SH_OK;
        SH_TRY(read_event(r));
    }
}

/* Take an error down and go on after the value that it is about. */
static sh_rc note_and_skip(struct reader *r, sh_rc rc)
{
    SH_TRY(sh_config_note(r->state, rc));
    return skip_value(r);
}

/* event: the name of a pair. Reads its value. */
static sh_rc read_pair(struct reader *r, const struct sh_config_key *key, char pairs[SH_CONFIG_PAIRS_MAX])
{
    char name[SH_CONFIG_NAME_MAX], full[2 * SH_CONFIG_NAME_MAX];
    SH_TRY(check_key(r, "pair"));
    snprintf(name, sizeof name, "%s", scalar_text(r));
    snprintf(full, sizeof full, "%s.%s", key->name, name);
    SH_TRY(read_event(r));
    SH_TRY(check_value(r, full));
    sh_rc rc = sh_config_pairs_add(key, pairs, name, scalar_text(r));
    return rc == SH_OK ? SH_OK : sh_fail_prefix(rc, "%s:%d: ", r->name, r->line);
}

/* event: the beginning of a mapping. Reads to its end. */
static sh_rc read_pairs(struct reader *r, const struct sh_config_key *key, struct sh_config_place place)
{
    char pairs[SH_CONFIG_PAIRS_MAX] = "";
    SH_TRY(read_event(r));
    while (r->event.type != YAML_MAPPING_END_EVENT) {
        SH_TRY(read_pair(r, key, pairs));
        SH_TRY(read_event(r));
    }
    /* Quoted: it is text, even where it looks like a number. */
    return sh_config_give(r->state, place, key->name, pairs, SH_TEXT_QUOTED);
}

/* event: a key. Reads its value. */
static sh_rc read_key(struct reader *r)
{
    char name[2 * SH_CONFIG_NAME_MAX];
    SH_TRY(check_key(r, "key"));
    snprintf(name, sizeof name, "%s.%.*s", r->section, SH_CONFIG_NAME_MAX - 1, scalar_text(r));
    struct sh_config_place place = {.source = SH_SOURCE_FILE, .file = r->name, .line = r->line};
    const struct sh_config_key *key = sh_config_key_find(name);
    SH_TRY(read_event(r));
    /* Pairs may be written as a mapping or as one text. */
    if (key != NULL && key->pairs && r->event.type == YAML_MAPPING_START_EVENT)
        return read_pairs(r, key, place);
    if (key == NULL) /* which is told before what is wrong with its value */
        return note_and_skip(r, sh_config_give(r->state, place, name, "", SH_TEXT_PLAIN));
    sh_rc rc = check_value(r, name);
    if (rc != SH_OK)
        return note_and_skip(r, rc);
    bool plain = r->event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    return sh_config_note(r->state, sh_config_give(r->state, place, name, scalar_text(r),
                                                   plain ? SH_TEXT_PLAIN : SH_TEXT_QUOTED));
}

/* The name alone; marks the section as seen. */
static sh_rc check_section(struct reader *r)
{
    char shown[SH_CONFIG_SHOWN], near[SH_CONFIG_NAME_MAX];
    sh_config_text_shown(r->section, shown);
    /* "training.steps: 10" in one line, as on the command line. */
    if (sh_config_key_find(r->section) != NULL)
        return fail_here(r, "%s: write the section and, below it, the key", shown);
    if (!sh_config_section_known(r->section)) {
        const char *advice = sh_config_foreign(r->section), *nearest = sh_config_section_nearest(r->section, near);
        if (advice != NULL)
            return fail_here(r, "%s: no such section; %s", shown, advice);
        return fail_here(r, "%s: no such section%s%s", shown, nearest != NULL ? "; nearest is " : "",
                         nearest != NULL ? nearest : "");
    }
    for (int i = 0; i < r->n_seen; i++)
        if (strcmp(r->seen[i], r->section) == 0)
            return fail_here(r, "%s: section given twice", shown);
    strcpy(r->seen[r->n_seen++], r->section); /* known and new, so at most as many as there are sections */
    return SH_OK;
}

/* event: the name of a section. Reads to the end of the section. */
static sh_rc read_section(struct reader *r)
{
    SH_TRY(check_key(r, "section"));
    snprintf(r->section, sizeof r->section, "%s", scalar_text(r));
    sh_rc rc = check_section(r);
    if (rc != SH_OK) {
        SH_TRY(sh_config_note(r->state, rc));
        SH_TRY(read_event(r));
        return skip_value(r);
    }
    SH_TRY(read_event(r));
    /* Keys that are all commented out leave an empty value. */
    if (is_empty(r))
        return SH_OK;
    if (r->event.type != YAML_MAPPING_START_EVENT)
        return note_and_skip(r, fail_here(r, "%s: a section; wants keys below it, not a value", r->section));
    SH_TRY(read_event(r));
    while (r->event.type != YAML_MAPPING_END_EVENT) {
        SH_TRY(read_key(r));
        SH_TRY(read_event(r));
    }
    return SH_OK;
}

/* event: the root of the document. */
static sh_rc read_root(struct reader *r)
{
    /* A file of comments alone: all keys keep their defaults. */
    if (is_empty(r))
        return SH_OK;
    if (r->event.type != YAML_MAPPING_START_EVENT)
        return fail_here(r, "wants sections (training:) with keys below them");
    SH_TRY(read_event(r));
    while (r->event.type != YAML_MAPPING_END_EVENT) {
        SH_TRY(read_section(r));
        SH_TRY(read_event(r));
    }
    return SH_OK;
}

/* The whole text must be one document. */
static sh_rc read_stream(struct reader *r)
{
    SH_TRY(read_event(r)); /* stream start */
    SH_TRY(read_event(r)); /* document start, or the end of an empty stream */
    if (r->event.type == YAML_STREAM_END_EVENT)
        return SH_OK;
    SH_TRY(read_event(r));
    SH_TRY(read_root(r));
    SH_TRY(read_event(r)); /* document end */
    SH_TRY(read_event(r));
    if (r->event.type != YAML_STREAM_END_EVENT)
        return fail_here(r, "a second YAML document; a file holds one configuration");
    return SH_OK;
}

/* libyaml would take UTF-16 as well and end at a zero byte; all that is not plain UTF-8 text is refused before it. */
static sh_rc check_text(const char *text, size_t bytes, const char *name)
{
    size_t bad = sh_config_text_bad(text, bytes, true);
    if (bad == bytes)
        return SH_OK;
    int line = 1;
    for (size_t i = 0; i < bad; i++)
        line += text[i] == '\n';
    return sh_fail(SH_E_USAGE, "%s:%d: byte 0x%02x is a control character or not UTF-8", name, line,
                   (unsigned)(unsigned char)text[bad]);
}

/* Editors on Windows write one. */
static size_t byte_order_mark_bytes(const char *text, size_t bytes)
{
    return bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
}

/* The reader is on the heap: its list of sections is too much for small stacks. */
sh_rc sh_config_yaml_read(const char *text, size_t bytes, const char *name, struct sh_config_state *state)
{
    size_t mark = byte_order_mark_bytes(text, bytes);
    SH_TRY(check_text(text + mark, bytes - mark, name));
    struct reader *r = sh_calloc(1, sizeof *r);
    r->name = name;
    r->state = state;
    sh_rc rc = SH_OK;
    if (!yaml_parser_initialize(&r->parser)) {
        free(r);
        return sh_fail(SH_E_MEMORY, "out of memory: no room to read %s", name);
    }
    /* Else libyaml guesses it from the first bytes. */
    yaml_parser_set_encoding(&r->parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&r->parser, (const unsigned char *)text + mark, bytes - mark);
    rc = read_stream(r);
    yaml_event_delete(&r->event);
    yaml_parser_delete(&r->parser);
    free(r);
    return rc;
}
