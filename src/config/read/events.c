#include "src/config/read/events.h"

#include "src/config/read/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* The message starts with file and line of the current event. */
sh_rc sh_yaml_fail(const struct sh_yaml *y, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return sh_fail(SH_E_USAGE, "%s:%d: %s", y->name, y->line, text);
}

/* libyaml's own words, with line and column. */
static sh_rc broken_yaml(const struct sh_yaml *y)
{
    const yaml_parser_t *p = &y->parser;
    if (p->error == YAML_MEMORY_ERROR)
        return sh_fail(SH_E_MEMORY, "out of memory: no room to read %s", y->name);
    return sh_fail(SH_E_USAGE, "%s:%zu:%zu: %s%s%s", y->name, p->problem_mark.line + 1, p->problem_mark.column + 1,
                   p->context != NULL ? p->context : "", p->context != NULL ? ", " : "",
                   p->problem != NULL ? p->problem : "not YAML");
}

/* Node properties that a configuration does not need: better refused than understood by half the readers. */
static sh_rc check_plain(const struct sh_yaml *y)
{
    const yaml_event_t *e = &y->event;
    bool scalar = e->type == YAML_SCALAR_EVENT, mapping = e->type == YAML_MAPPING_START_EVENT;
    if (e->type == YAML_ALIAS_EVENT || (scalar && e->data.scalar.anchor != NULL) ||
        (mapping && e->data.mapping_start.anchor != NULL))
        return sh_yaml_fail(y, "anchors and aliases are not allowed; write the value out");
    if ((scalar && e->data.scalar.tag != NULL) || (mapping && e->data.mapping_start.tag != NULL))
        return sh_yaml_fail(y, "tags are not allowed; leave out the !");
    return SH_OK;
}

/* Deletes the previous event; all pointers into it become invalid. */
sh_rc sh_yaml_next(struct sh_yaml *y)
{
    yaml_event_delete(&y->event);
    if (!yaml_parser_parse(&y->parser, &y->event))
        return broken_yaml(y);
    y->line = (int)y->event.start_mark.line + 1;
    return check_plain(y);
}

/* event: the start of a value. Reads to its end, whatever it is. */
sh_rc sh_yaml_skip(struct sh_yaml *y)
{
    int depth = 0;
    for (;;) {
        yaml_event_type_t type = y->event.type;
        depth += type == YAML_MAPPING_START_EVENT || type == YAML_SEQUENCE_START_EVENT;
        depth -= type == YAML_MAPPING_END_EVENT || type == YAML_SEQUENCE_END_EVENT;
        if (depth == 0)
            return SH_OK;
        SH_TRY(sh_yaml_next(y));
    }
}

/* libyaml would also accept UTF-16, and would stop at a zero byte; anything but plain UTF-8 text is refused before it
 * reaches libyaml. */
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

/* Editors on Windows write a byte order mark. */
static size_t byte_order_mark_bytes(const char *text, size_t bytes)
{
    return bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
}

sh_rc sh_yaml_open(struct sh_yaml *y, const char *text, size_t bytes, const char *name)
{
    size_t mark = byte_order_mark_bytes(text, bytes);

    memset(y, 0, sizeof *y);
    y->name = name;
    SH_TRY(check_text(text + mark, bytes - mark, name));
    y->open = yaml_parser_initialize(&y->parser);
    if (!y->open)
        return sh_fail(SH_E_MEMORY, "out of memory: no room to read %s", name);
    /* Otherwise libyaml guesses the encoding from the first bytes. */
    yaml_parser_set_encoding(&y->parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&y->parser, (const unsigned char *)text + mark, bytes - mark);
    return SH_OK;
}

void sh_yaml_close(struct sh_yaml *y)
{
    if (!y->open)
        return;
    yaml_event_delete(&y->event);
    yaml_parser_delete(&y->parser);
    y->open = false;
}
