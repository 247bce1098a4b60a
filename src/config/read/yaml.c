/* Reads YAML into a configuration, by events of libyaml: sections with keys below them, and nothing deeper except lists
 * of pairs. A function named read_ starts at the current event and leaves the last event of what it read, so that the
 * caller reads the next. Anchors, tags and several documents are refused. A problem is noted and its value skipped, so
 * that one run of the program shows all problems. */
#include "src/config/read/yaml.h"

#include "src/base/mem.h"
#include "src/config/foreign/alias.h"
#include "src/config/foreign/foreign.h"
#include "src/config/read/events.h"
#include "src/config/read/give.h"
#include "src/config/read/groups.h"
#include "src/config/read/pairs.h"
#include "src/config/read/text.h"

#include <stdlib.h>
#include <string.h>

/* More than there are sections; unknown sections are not kept. */
enum { SECTIONS_MAX = 64 };

/* `seen` finds sections that are given twice: other YAML readers silently take the last one. */
struct reader {
    struct sh_yaml y;
    struct sh_config_state *state;
    char section[SH_CONFIG_NAME_MAX];
    char seen[SECTIONS_MAX][SH_CONFIG_NAME_MAX];
    int n_seen;
};

/* One value, in any style of quotes. */
static bool is_scalar(const struct reader *r)
{
    return r->y.event.type == YAML_SCALAR_EVENT;
}

/* A bare empty value, as in a section whose keys are all commented out. */
static bool is_empty(const struct reader *r)
{
    return is_scalar(r) && r->y.event.data.scalar.length == 0 &&
           r->y.event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
}

/* Lent until the next event. */
static const char *scalar_text(const struct reader *r)
{
    return (const char *)r->y.event.data.scalar.value;
}

/* Escapes in quotes can make any character; the rest of Sherd holds text as C strings. */
static sh_rc check_key(const struct reader *r, const char *kind)
{
    if (!is_scalar(r))
        return sh_yaml_fail(&r->y, "expected the name of a %s, got a list or a mapping", kind);
    if (sh_config_text_bad(scalar_text(r), r->y.event.data.scalar.length, false) != r->y.event.data.scalar.length)
        return sh_yaml_fail(&r->y, "name of a %s with control characters", kind);
    return SH_OK;
}

/* One value; a zero byte inside it would silently cut it short. Of a list, what is known of words with commas is said. */
static sh_rc check_value(const struct reader *r, const char *name)
{
    const char *advice = sh_config_alias_advice(name, ",");
    char shown[SH_CONFIG_SHOWN];
    sh_config_text_shown(name, shown);
    if (r->y.event.type == YAML_SEQUENCE_START_EVENT)
        return sh_yaml_fail(&r->y, "%s: expected one value, got a list%s%s", shown, advice ? "; " : "",
                            advice ? advice : "");
    if (r->y.event.type == YAML_MAPPING_START_EVENT)
        return sh_yaml_fail(&r->y, "%s: expected one value, got a mapping", shown);
    if (strlen(scalar_text(r)) != r->y.event.data.scalar.length)
        return sh_yaml_fail(&r->y, "%s: contains a NUL character", shown);
    return SH_OK;
}

/* Note an error and continue after the value that it is about. */
static sh_rc note_and_skip(struct reader *r, sh_rc rc)
{
    SH_TRY(sh_problems_note(&r->state->problems, rc));
    return sh_yaml_skip(&r->y);
}

/* event: the name of a pair. Reads its value. */
static sh_rc read_pair(struct reader *r, const struct sh_config_key *key, char pairs[SH_CONFIG_PAIRS_MAX])
{
    char name[SH_CONFIG_NAME_MAX], full[2 * SH_CONFIG_NAME_MAX];
    SH_TRY(check_key(r, "pair"));
    snprintf(name, sizeof name, "%s", scalar_text(r));
    snprintf(full, sizeof full, "%s.%s", key->name, name);
    SH_TRY(sh_yaml_next(&r->y));
    SH_TRY(check_value(r, full));
    sh_rc rc = sh_config_pairs_add(key, pairs, name, scalar_text(r));
    return rc == SH_OK ? SH_OK : sh_fail_prefix(rc, "%s:%d: ", r->y.name, r->y.line);
}

/* event: the start of a mapping. Reads to its end. */
static sh_rc read_pairs(struct reader *r, const struct sh_config_key *key, struct sh_config_place place)
{
    char pairs[SH_CONFIG_PAIRS_MAX] = "";
    SH_TRY(sh_yaml_next(&r->y));
    while (r->y.event.type != YAML_MAPPING_END_EVENT) {
        SH_TRY(read_pair(r, key, pairs));
        SH_TRY(sh_yaml_next(&r->y));
    }
    /* Quoted: it is text, even if it looks like a number. */
    return sh_config_give(r->state, place, key->name, pairs, SH_TEXT_QUOTED);
}

/* event: the start of a mapping. Reads the group to its end. */
static sh_rc read_group(struct reader *r, const char *name, char *text, size_t size)
{
    bool first = true;
    if (r->y.event.type != YAML_MAPPING_START_EVENT)
        return sh_yaml_fail(&r->y, "%s: expected a list of mappings", name);
    SH_TRY(sh_yaml_next(&r->y));
    for (; r->y.event.type != YAML_MAPPING_END_EVENT; first = false) {
        char key[SH_CONFIG_NAME_MAX];
        SH_TRY(check_key(r, "number of a group"));
        snprintf(key, sizeof key, "%s", scalar_text(r));
        SH_TRY(sh_yaml_next(&r->y));
        SH_TRY(check_value(r, key));
        sh_rc rc = sh_config_groups_add(text, size, key, scalar_text(r), first);
        if (rc != SH_OK)
            return sh_fail_prefix(rc, "%s:%d: %s: ", r->y.name, r->y.line, name);
        SH_TRY(sh_yaml_next(&r->y));
    }
    return SH_OK;
}

/* event: the start of a list. Reads to its end. */
static sh_rc read_groups(struct reader *r, const struct sh_config_key *key, struct sh_config_place place)
{
    char text[SH_CONFIG_PATH_MAX] = "";
    SH_TRY(sh_yaml_next(&r->y));
    while (r->y.event.type != YAML_SEQUENCE_END_EVENT) {
        SH_TRY(read_group(r, key->name, text, sizeof text));
        SH_TRY(sh_yaml_next(&r->y));
    }
    return sh_problems_note(&r->state->problems, sh_config_give(r->state, place, key->name, text, SH_TEXT_QUOTED));
}

/* event: the first of a list of texts. Reads to its end; the texts are joined by `between`. */
static sh_rc read_list(struct reader *r, const char *key, struct sh_config_place place, const char *between)
{
    char text[SH_CONFIG_PATH_MAX] = "";
    while (r->y.event.type != YAML_SEQUENCE_END_EVENT) {
        size_t used = strlen(text);
        SH_TRY(check_value(r, key));
        if (used + strlen(between) + strlen(scalar_text(r)) >= sizeof text)
            return sh_yaml_fail(&r->y, "%s: more than %zu bytes", key, sizeof text - 1);
        snprintf(text + used, sizeof text - used, "%s%s", used > 0 ? between : "", scalar_text(r));
        SH_TRY(sh_yaml_next(&r->y));
    }
    return sh_problems_note(&r->state->problems, sh_config_give(r->state, place, key, text, SH_TEXT_QUOTED));
}

/* Make of each line of `text` a statement, as it looks, unless the line ends inside of parentheses.
 *   out  [2 * strlen(text) + 1] */
static void join_lines(const char *text, char *out)
{
    char *end = out;
    int inside = 0;
    for (const char *c = text; *c; c++) {
        inside += (*c == '(') - (*c == ')');
        if (*c != '\n' || inside > 0) {
            *end++ = *c == '\n' ? ' ' : *c;
            continue;
        }
        while (end > out && end[-1] == ' ')
            end--;
        if (end > out && end[-1] != ';')
            *end++ = ';';
        *end++ = ' ';
    }
    while (end > out && (end[-1] == ' ' || end[-1] == ';'))
        end--;
    *end = 0;
}

/* event: statements as one text. */
static sh_rc read_lines(struct reader *r, const char *key, struct sh_config_place place)
{
    char *joined = sh_calloc(2, strlen(scalar_text(r)) + 1);
    join_lines(scalar_text(r), joined);
    sh_rc rc = sh_problems_note(&r->state->problems, sh_config_give(r->state, place, key, joined, SH_TEXT_QUOTED));
    free(joined);
    return rc;
}

/* event: the start of a mapping. Reads the numbers of an operation of a plug-in to its end. */
static sh_rc read_numbers(struct reader *r, const char *operation, struct sh_config_place place)
{
    char name[3 * SH_CONFIG_NAME_MAX];
    SH_TRY(sh_yaml_next(&r->y));
    while (r->y.event.type != YAML_MAPPING_END_EVENT) {
        SH_TRY(check_key(r, "number"));
        snprintf(name, sizeof name, "%s.%.*s", operation, SH_CONFIG_NAME_MAX - 1, scalar_text(r));
        SH_TRY(sh_yaml_next(&r->y));
        SH_TRY(check_value(r, name));
        SH_TRY(sh_problems_note(&r->state->problems,
                                sh_config_give(r->state, place, name, scalar_text(r), SH_TEXT_PLAIN)));
        SH_TRY(sh_yaml_next(&r->y));
    }
    return SH_OK;
}

/* event: a key. Reads its value. */
static sh_rc read_key(struct reader *r)
{
    char name[2 * SH_CONFIG_NAME_MAX];
    SH_TRY(check_key(r, "key"));
    snprintf(name, sizeof name, "%s.%.*s", r->section, SH_CONFIG_NAME_MAX - 1, scalar_text(r));
    struct sh_config_place place = {.source = SH_SOURCE_FILE, .file = r->y.name, .line = r->y.line};
    const struct sh_config_key *key = sh_config_key_find(name);
    SH_TRY(sh_yaml_next(&r->y));
    /* Pairs may be written as a mapping or as one text. */
    if (key != NULL && key->pairs && r->y.event.type == YAML_MAPPING_START_EVENT)
        return read_pairs(r, key, place);
    if (key != NULL && key->groups && r->y.event.type == YAML_SEQUENCE_START_EVENT)
        return read_groups(r, key, place);
    bool files = strcmp(name, "plugin.files") == 0, statements = strcmp(name, "model.ffn") == 0;
    if ((files || statements) && r->y.event.type == YAML_SEQUENCE_START_EVENT) {
        SH_TRY(sh_yaml_next(&r->y));
        return read_list(r, name, place, files ? "," : "; ");
    }
    if (key == NULL && strcmp(r->section, "plugin") == 0 && r->y.event.type == YAML_MAPPING_START_EVENT)
        return read_numbers(r, name, place);
    if (key == NULL) /* an unknown key is reported, not the problems of its value */
        return note_and_skip(r, sh_config_give(r->state, place, name, "", SH_TEXT_PLAIN));
    sh_rc rc = check_value(r, name);
    if (rc != SH_OK)
        return note_and_skip(r, rc);
    if (statements && strchr(scalar_text(r), '\n') != NULL)
        return read_lines(r, name, place);
    bool plain = r->y.event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    return sh_problems_note(&r->state->problems, sh_config_give(r->state, place, name, scalar_text(r),
                                                                plain ? SH_TEXT_PLAIN : SH_TEXT_QUOTED));
}

/* Checks only the name; marks the section as seen. */
static sh_rc check_section(struct reader *r)
{
    for (int i = 0; i < r->n_seen; i++)
        if (strcmp(r->seen[i], r->section) == 0)
            return sh_yaml_fail(&r->y, "%s: section given twice", r->section);
    strcpy(r->seen[r->n_seen++], r->section); /* known and new, so at most as many as there are sections */
    return SH_OK;
}

/* The value of a pair if it is one value; "" for others. Lent until the next event. */
static const char *value_text(const struct reader *r)
{
    bool plain = is_scalar(r) && strlen(scalar_text(r)) == r->y.event.data.scalar.length;
    return plain ? scalar_text(r) : "";
}

/* event: the value of a name at `line` that is no section. Without a value it may be meant as one. */
static sh_rc fail_section(struct reader *r, int line)
{
    const char *value = value_text(r);
    char shown[SH_CONFIG_SHOWN], near[SH_CONFIG_NAME_MAX], out[SH_CONFIG_ADVICE];
    const char *advice = sh_config_foreign(r->section, value, out);
    const char *nearest = advice == NULL ? sh_config_section_nearest(r->section, near) : NULL;
    bool section = r->y.event.type == YAML_MAPPING_START_EVENT || (is_empty(r) && nearest != NULL);
    sh_config_text_shown(r->section, shown);
    /* "training.steps: 10" on one line, as on the command line. */
    if (sh_config_key_find(r->section) != NULL)
        return sh_fail(SH_E_USAGE, "%s:%d: %s: write the section and, below it, the key", r->y.name, line, shown);
    return sh_fail(SH_E_USAGE, "%s:%d: %s: no such %s%s%s%s", r->y.name, line, shown, section ? "section" : "key",
                   advice != NULL    ? "; "
                   : nearest != NULL ? "; nearest is "
                                     : "",
                   advice != NULL ? advice : "", nearest != NULL ? nearest : "");
}

/* event: a key in a section of another trainer. Says what does the same here, unless it is what was said of the
 * section. */
static sh_rc read_foreign_key(struct reader *r)
{
    char name[2 * SH_CONFIG_NAME_MAX], shown[SH_CONFIG_SHOWN], out[SH_CONFIG_ADVICE], none[SH_CONFIG_ADVICE];
    int line = r->y.line;
    SH_TRY(check_key(r, "key"));
    snprintf(name, sizeof name, "%s.%.*s", r->section, SH_CONFIG_NAME_MAX - 1, scalar_text(r));
    SH_TRY(sh_yaml_next(&r->y));
    const char *advice = sh_config_foreign(name, value_text(r), out), *said = sh_config_foreign(r->section, "", none);
    if (advice != NULL && (said == NULL || strcmp(advice, said) != 0))
        SH_TRY(sh_problems_note(&r->state->problems, sh_fail(SH_E_USAGE, "%s:%d: %s: no such key; %s", r->y.name, line,
                                                             sh_config_text_shown(name, shown), advice)));
    return sh_yaml_skip(&r->y);
}

/* event: a name that is no section: a key of another trainer, or a section with some of its keys. */
static sh_rc read_foreign(struct reader *r)
{
    int line = r->y.line;
    SH_TRY(sh_yaml_next(&r->y));
    SH_TRY(sh_problems_note(&r->state->problems, fail_section(r, line)));
    if (r->y.event.type != YAML_MAPPING_START_EVENT)
        return sh_yaml_skip(&r->y);
    SH_TRY(sh_yaml_next(&r->y));
    while (r->y.event.type != YAML_MAPPING_END_EVENT) {
        SH_TRY(read_foreign_key(r));
        SH_TRY(sh_yaml_next(&r->y));
    }
    return SH_OK;
}

/* event: "plugins", which is short for plugin.files. Reads its list, or its one text. Another trainer has Python classes
 * under this name. */
static sh_rc read_plugins(struct reader *r)
{
    struct sh_config_place place = {.source = SH_SOURCE_FILE, .file = r->y.name, .line = r->y.line};
    SH_TRY(sh_yaml_next(&r->y));
    bool list = r->y.event.type == YAML_SEQUENCE_START_EVENT;
    if (list)
        SH_TRY(sh_yaml_next(&r->y));
    if (strstr(value_text(r), ".so") == NULL) {
        SH_TRY(note_and_skip(r, fail_section(r, place.line)));
        while (list && r->y.event.type != YAML_SEQUENCE_END_EVENT)
            SH_TRY(sh_yaml_next(&r->y));
        return SH_OK;
    }
    if (list)
        return read_list(r, "plugin.files", place, ",");
    return sh_problems_note(&r->state->problems,
                            sh_config_give(r->state, place, "plugin.files", scalar_text(r), SH_TEXT_PLAIN));
}

/* event: the name of a section. Reads to the end of the section. */
static sh_rc read_section(struct reader *r)
{
    SH_TRY(check_key(r, "section"));
    snprintf(r->section, sizeof r->section, "%s", scalar_text(r));
    if (strcmp(r->section, "plugins") == 0)
        return read_plugins(r);
    if (!sh_config_section_known(r->section))
        return read_foreign(r);
    sh_rc rc = check_section(r);
    SH_TRY(sh_yaml_next(&r->y));
    if (rc != SH_OK)
        return note_and_skip(r, rc);
    /* Keys that are all commented out leave an empty value. */
    if (is_empty(r))
        return SH_OK;
    if (r->y.event.type != YAML_MAPPING_START_EVENT) {
        char out[SH_CONFIG_ADVICE];
        const char *advice = sh_config_foreign(r->section, value_text(r), out);
        return note_and_skip(r, sh_yaml_fail(&r->y, "%s: a section; expected keys below it, not a value%s%s",
                                             r->section, advice != NULL ? "; " : "", advice != NULL ? advice : ""));
    }
    SH_TRY(sh_yaml_next(&r->y));
    while (r->y.event.type != YAML_MAPPING_END_EVENT) {
        SH_TRY(read_key(r));
        SH_TRY(sh_yaml_next(&r->y));
    }
    return SH_OK;
}

/* event: the root of the document. */
static sh_rc read_root(struct reader *r)
{
    /* A file of only comments: all keys keep their defaults. */
    if (is_empty(r))
        return SH_OK;
    if (r->y.event.type != YAML_MAPPING_START_EVENT)
        return sh_yaml_fail(&r->y, "expected sections (training:) with keys below them");
    SH_TRY(sh_yaml_next(&r->y));
    while (r->y.event.type != YAML_MAPPING_END_EVENT) {
        SH_TRY(read_section(r));
        SH_TRY(sh_yaml_next(&r->y));
    }
    return SH_OK;
}

/* The whole text must be one document. */
static sh_rc read_stream(struct reader *r)
{
    SH_TRY(sh_yaml_next(&r->y)); /* stream start */
    SH_TRY(sh_yaml_next(&r->y)); /* document start, or the end of an empty stream */
    if (r->y.event.type == YAML_STREAM_END_EVENT)
        return SH_OK;
    SH_TRY(sh_yaml_next(&r->y));
    SH_TRY(read_root(r));
    SH_TRY(sh_yaml_next(&r->y)); /* document end */
    SH_TRY(sh_yaml_next(&r->y));
    if (r->y.event.type != YAML_STREAM_END_EVENT)
        return sh_yaml_fail(&r->y, "a second YAML document; a file holds one configuration");
    return SH_OK;
}

/* The reader is on the heap: its list of sections is too large for small stacks. */
sh_rc sh_config_yaml_read(const char *text, size_t bytes, const char *name, struct sh_config_state *state)
{
    struct reader *r = sh_calloc(1, sizeof *r);
    sh_rc rc = sh_yaml_open(&r->y, text, bytes, name);

    r->state = state;
    if (rc == SH_OK)
        rc = read_stream(r);
    sh_yaml_close(&r->y);
    free(r);
    return rc;
}
