#include "src/metrics/table.h"

#include <math.h>
#include <string.h>

/* The kind of a line, by the key or the event that only such a line has. */
static enum sh_metrics_event kind_of(const json_t *line)
{
    static const char *const key[SH_METRICS_EVENTS] = {[SH_METRICS_STEP] = "loss",
                                                       [SH_METRICS_VALIDATION] = "validation_loss",
                                                       [SH_METRICS_CHECKPOINT] = "checkpoint",
                                                       [SH_METRICS_ROLLBACK] = "rollback_from"};
    const char *event = json_string_value(json_object_get(line, "event"));

    if (event)
        return !strcmp(event, "start") ? SH_METRICS_START : SH_METRICS_EVENTS;
    for (int i = 0; i < SH_METRICS_EVENTS; i++)
        if (key[i] && json_object_get(line, key[i]))
            return (enum sh_metrics_event)i;
    return SH_METRICS_EVENTS;
}

static double real(const json_t *v)
{
    double size = fabs(json_number_value(v));

    return json_is_number(v) && (size <= 0 || (size > 1e-30 && size < 1e30)) ? json_number_value(v) : NAN;
}

static void read_value(const json_t *v, enum sh_metric_type type, void *at)
{
    if (type == SH_METRIC_INT)
        *(int *)at = (int)json_integer_value(v);
    if (type == SH_METRIC_WHOLE)
        *(int64_t *)at = json_integer_value(v);
    if (type == SH_METRIC_REAL)
        *(double *)at = real(v);
    if (type == SH_METRIC_TEXT)
        *(const char **)at = json_string_value(v);
}

enum sh_metrics_event sh_metrics_read(const struct json_t *line, union sh_metrics_any *out)
{
    enum sh_metrics_event kind = kind_of(line);

    memset(out, 0, sizeof *out);
    /* Several rows can be of one value, by different names of which a line has one: first none is there, then some are. */
    for (int i = 0; i < 2 * sh_metric_rows; i++) {
        const struct sh_metric *row = &sh_metric_table[i % sh_metric_rows];
        const json_t *v = NULL;

        if (!row->key || row->event != kind)
            continue;
        if (i >= sh_metric_rows)
            v = json_object_get(row->in ? json_object_get(line, row->in) : line, row->key);
        if (v || i < sh_metric_rows)
            read_value(v, row->value.type, (char *)out + row->value.offset);
    }
    return kind;
}
