/* The events of a YAML text, for the modules that read YAML: only this module knows libyaml. Anchors, tags, control
 * characters and texts that are not UTF-8 are refused. Inside src/config; local.
 *
 * Order of calls: sh_yaml_open, sh_yaml_next until a YAML_STREAM_END_EVENT or an error, sh_yaml_close in either
 * case. */
#ifndef SH_READ_EVENTS_H
#define SH_READ_EVENTS_H

#include "src/base/err.h"

#include <stddef.h>
#include <yaml.h>

struct sh_yaml {
    yaml_parser_t parser;
    bool open;
    const char *name;   /* stands for the file in messages; lent */
    yaml_event_t event; /* the newest; deleted by the next one */
    int line;           /* of event, from 1 */
};

/* `text` and `name` are lent until sh_yaml_close(). Errors: SH_E_USAGE "name:line: ..."; SH_E_MEMORY. */
sh_rc sh_yaml_open(struct sh_yaml *y, const char *text, size_t bytes, const char *name);
void sh_yaml_close(struct sh_yaml *y);

/* Read the next event; the previous one is deleted. Errors: SH_E_USAGE; for broken YAML with line and column. */
sh_rc sh_yaml_next(struct sh_yaml *y);

/* event: the start of a value. Reads to its end, whatever it is. */
sh_rc sh_yaml_skip(struct sh_yaml *y);

/* Fail with SH_E_USAGE and with file and line of the current event. */
sh_rc sh_yaml_fail(const struct sh_yaml *y, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
