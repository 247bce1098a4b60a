#include "src/watch/watch.h"

#include "src/base/mem.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct sh_metrics {
    FILE *file;
    char *path;
};

sh_rc sh_metrics_open(const char *path, struct sh_metrics **out)
{
    FILE *f = fopen(path, "ae");

    if (!f)
        return sh_fail(SH_E_DATA, "open %s: %s", path, strerror(errno));
    *out = sh_calloc(1, sizeof **out);
    (*out)->file = f;
    (*out)->path = sh_strdup(path);
    return SH_OK;
}

void sh_metrics_close(struct sh_metrics *m)
{
    if (!m)
        return;
    fclose(m->file);
    free(m->path);
    free(m);
}

/* JSON has no NaN or Inf: such a number is written as null. */
static json_t *number(double v)
{
    return isfinite(v) ? json_real(v) : json_null();
}

/* Flushed line by line: what is in the file is what has happened. */
static sh_rc write_line(struct sh_metrics *m, json_t *line)
{
    char *text = line ? json_dumps(line, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;
    bool ok;

    json_decref(line);
    if (!text)
        return sh_fail(SH_E_BUG, "metrics: a line cannot be encoded");
    ok = fprintf(m->file, "%s\n", text) > 0 && fflush(m->file) == 0;
    free(text);
    return ok ? SH_OK : sh_fail(SH_E_DATA, "write %s: %s", m->path, strerror(errno));
}

static json_t *pace(const struct sh_pace_metrics *p)
{
    return json_pack("{s:o, s:o, s:o, s:i, s:s}", "min", number(p->least), "median", number(p->median), "max",
                     number(p->most), "slowest_rank", p->slowest, "slowest_node", p->node);
}

sh_rc sh_metrics_step(struct sh_metrics *m, const struct sh_step_metrics *s)
{
    json_t *time = json_pack("{s:o, s:o, s:o, s:o, s:o}", "step", number(s->time.step), "compute",
                             number(s->time.compute), "exposed_comm", number(s->time.exposed_comm), "data",
                             number(s->time.data), "checkpoint", number(s->time.checkpoint));
    json_t *line = json_pack(
        "{s:I, s:o, s:o, s:o, s:I, s:I, s:o, s:o, s:o, s:s, s:o, s:I, s:I}", "step", (json_int_t)s->step, "loss",
        number(s->loss), "grad_norm", number(s->grad_norm), "lr", number(s->lr), "tokens", (json_int_t)s->tokens,
        "tokens_seen", (json_int_t)s->tokens_seen, "tokens_per_second", number(s->tokens_per_second),
        "flops_per_token_causal", number(s->flops_causal), "flops_per_token_full", number(s->flops_full),
        "flops_formula", "6*weights_in_products + 6*L*H*D*T (causal) or 12*L*H*D*T (full)", "seconds", time,
        "arena_bytes", (json_int_t)s->arena_bytes, "peak_rss_bytes", (json_int_t)s->peak_rss_bytes);

    if (line && s->skipped)
        json_object_set_new(line, "skipped", json_string(s->skipped));
    if (line && s->pace.node)
        json_object_set_new(line, "rank_seconds", pace(&s->pace));
    return write_line(m, line);
}

sh_rc sh_metrics_validation(struct sh_metrics *m, int64_t step, double loss, int64_t tokens, double seconds)
{
    return write_line(m, json_pack("{s:I, s:o, s:I, s:o}", "step", (json_int_t)step, "validation_loss", number(loss),
                                   "tokens", (json_int_t)tokens, "seconds", number(seconds)));
}

sh_rc sh_metrics_checkpoint(struct sh_metrics *m, const struct sh_checkpoint_metrics *c)
{
    return write_line(m, json_pack("{s:I, s:s, s:I, s:o, s:o, s:o}", "step", (json_int_t)c->step, "checkpoint", c->path,
                                   "bytes", (json_int_t)c->bytes, "seconds", number(c->seconds), "stall_seconds",
                                   number(c->stall), "gb_per_second", number((double)c->bytes / c->seconds / 1e9)));
}

sh_rc sh_metrics_rollback(struct sh_metrics *m, const struct sh_rollback_metrics *r)
{
    return write_line(m, json_pack("{s:I, s:I, s:I, s:I}", "step", (json_int_t)r->to, "rollback_from", (json_int_t)r->from,
                                   "first_sample_left_out", (json_int_t)r->first, "last_sample_left_out",
                                   (json_int_t)r->last));
}
