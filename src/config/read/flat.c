#include "src/config/read/flat.h"

#include "src/config/read/events.h"
#include "src/config/read/text.h"

#include <stdio.h>
#include <string.h>

enum { DEEPEST = 4 };

struct walk {
    struct sh_yaml y;
    sh_rc (*give)(void *to, const struct sh_flat_pair *pair);
    void *to;
    char path[SH_FLAT_PATH];
    int depth;
};

static sh_rc walk_value(struct walk *w);

/* Append to the path; fails if it becomes too long. */
static sh_rc append(struct walk *w, const char *more)
{
    size_t used = strlen(w->path), room = sizeof w->path - used;

    if ((size_t)snprintf(w->path + used, room, "%s", more) < room)
        return SH_OK;
    return sh_yaml_fail(&w->y, "%.60s...: no name in this file is that long", w->path);
}

static sh_rc append_name(struct walk *w, const char *name)
{
    if (*w->path)
        SH_TRY(append(w, "."));
    return append(w, name);
}

static sh_rc append_item(struct walk *w, int i)
{
    char text[16];

    snprintf(text, sizeof text, "[%d]", i);
    return append(w, text);
}

/* Names and values go into messages and tables of one line. In YAML, a blank line within unquoted text also becomes a
 * line end. */
static bool is_one_line(const struct walk *w)
{
    size_t bytes = w->y.event.data.scalar.length;

    return sh_config_text_bad((const char *)w->y.event.data.scalar.value, bytes, false) == bytes;
}

/* event: a scalar. */
static sh_rc walk_scalar(struct walk *w)
{
    const char *text = (const char *)w->y.event.data.scalar.value;

    if (!is_one_line(w))
        return sh_yaml_fail(&w->y, "%s: contains control characters or line ends", w->path);
    if (!*text && w->y.event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE)
        return SH_OK;
    return w->give(w->to, &(struct sh_flat_pair){w->path, text, w->y.line});
}

/* event: the name of a pair. Reads its value. */
static sh_rc walk_pair(struct walk *w)
{
    if (w->y.event.type != YAML_SCALAR_EVENT)
        return sh_yaml_fail(&w->y, "expected a name, got a list or a mapping");
    if (!is_one_line(w))
        return sh_yaml_fail(&w->y, "a name contains control characters or line ends");
    SH_TRY(append_name(w, (const char *)w->y.event.data.scalar.value));
    SH_TRY(sh_yaml_next(&w->y));
    return walk_value(w);
}

/* event: the start of a mapping or of a list. Reads to its end. */
static sh_rc walk_inside(struct walk *w, bool list)
{
    yaml_event_type_t end = list ? YAML_SEQUENCE_END_EVENT : YAML_MAPPING_END_EVENT;
    size_t used = strlen(w->path);

    if (++w->depth > DEEPEST)
        return sh_yaml_fail(&w->y, "%s: nested too deeply; nothing in this file is this deep", w->path);
    SH_TRY(sh_yaml_next(&w->y));
    for (int i = 0; w->y.event.type != end; i++) {
        if (list)
            SH_TRY(append_item(w, i));
        SH_TRY(list ? walk_value(w) : walk_pair(w));
        w->path[used] = '\0';
        SH_TRY(sh_yaml_next(&w->y));
    }
    w->depth--;
    return SH_OK;
}

static sh_rc walk_value(struct walk *w)
{
    if (w->y.event.type == YAML_SCALAR_EVENT)
        return walk_scalar(w);
    return walk_inside(w, w->y.event.type == YAML_SEQUENCE_START_EVENT);
}

static sh_rc walk_stream(struct walk *w)
{
    SH_TRY(sh_yaml_next(&w->y)); /* stream start */
    SH_TRY(sh_yaml_next(&w->y)); /* document start, or the end of an empty stream */
    if (w->y.event.type == YAML_STREAM_END_EVENT)
        return SH_OK;
    SH_TRY(sh_yaml_next(&w->y));
    if (w->y.event.type == YAML_MAPPING_START_EVENT)
        SH_TRY(walk_value(w));
    else if (w->y.event.type != YAML_SCALAR_EVENT || w->y.event.data.scalar.length)
        return sh_yaml_fail(&w->y, "expected sections with keys below them");
    SH_TRY(sh_yaml_next(&w->y)); /* document end */
    SH_TRY(sh_yaml_next(&w->y));
    return w->y.event.type == YAML_STREAM_END_EVENT ? SH_OK : sh_yaml_fail(&w->y, "a second YAML document");
}

sh_rc sh_flat_read(const char *text, size_t bytes, const char *name,
                   sh_rc (*give)(void *to, const struct sh_flat_pair *pair), void *to)
{
    struct walk w = {.give = give, .to = to};
    sh_rc rc = sh_yaml_open(&w.y, text, bytes, name);

    if (rc == SH_OK)
        rc = walk_stream(&w);
    sh_yaml_close(&w.y);
    return rc;
}
