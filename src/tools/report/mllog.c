/* Writes a run in the lines that MLPerf's tools read: ":::MLLOG {...}", in order of time.
 * Source: mlcommons/logging, mlperf_logging/mllog (fields of a line and names of keys).
 *
 * metrics.jsonl has the time of each start and the duration of everything since: the time of an event is their sum. */
#include "src/tools/report/parts.h"

#include "src/base/number/size.h"
#include "src/config/read/batches.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>

/* Beyond every date, and in milliseconds within an integer: a file may hold any duration. */
static const double furthest = 1e12; /* seconds */

static const char point[] = "POINT_IN_TIME", begin[] = "INTERVAL_START", end[] = "INTERVAL_END";

/* Values of the configuration, under MLPerf's names for them. */
static const struct {
    const char *key, *from;
} settings[] = {
    {"max_sequence_length", "training.seq_len"},
    {"max_steps", "training.steps"},
    {"seed", "debug.seed"},
    {"opt_name", "optimizer.name"},
    {"opt_base_learning_rate", "optimizer.lr"},
    {"opt_weight_decay", "optimizer.weight_decay"},
    {"opt_adamw_beta_1", "optimizer.beta1"},
    {"opt_adamw_beta_2", "optimizer.beta2"},
    {"opt_adamw_epsilon", "optimizer.eps"},
    {"opt_gradient_clip_norm", "training.max_norm"},
    {"opt_learning_rate_warmup_steps", "lr_scheduler.warmup_steps"},
};

/* Takes ownership of `value` and `metadata`. */
static void write_line(FILE *out, double at, const char *event, const char *key, json_t *value, json_t *metadata)
{
    json_int_t ms = llround(1e3 * fmax(-furthest, fmin(at, furthest)));
    json_t *line = json_pack("{s:s, s:I, s:s, s:s, s:o, s:o}", "namespace", "", "time_ms", ms, "event_type", event,
                             "key", key, "value", value, "metadata", metadata);
    char *text = line ? json_dumps(line, JSON_REAL_PRECISION(15)) : NULL;

    if (text)
        fprintf(out, ":::MLLOG %s\n", text);
    free(text);
    json_decref(line);
}

/* Returns "2048" as a number and "adamw" as a text. */
static json_t *value_of(const char *text)
{
    json_t *value = json_loads(text, JSON_DECODE_ANY, NULL);

    return value ? value : json_string(text);
}

/* Writes null for a loss that is not finite, since JSON has no NaN. */
static json_t *loss_of(double loss)
{
    return isfinite(loss) ? json_real(loss) : json_null();
}

/* All settings are written at the start of the run, before run_start, since they are known then. */
static void write_settings(FILE *out, const struct sh_report_run *run, double at)
{
    int64_t each = sh_size_mul(run->ranks, strtoll(sh_report_value(run, "training.local_batch_size"), NULL, 10));

    write_line(out, at, point, "submission_benchmark", value_of(sh_report_value(run, "model.name")), json_object());
    write_line(out, at, point, "global_batch_size", json_integer((json_int_t)run->global_batch), json_object());
    if (each > 0)
        write_line(out, at, point, "gradient_accumulation_steps", json_integer((json_int_t)(run->global_batch / each)),
                   json_object());
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        write_line(out, at, point, settings[i].key, value_of(sh_report_value(run, settings[i].from)), json_object());
}

static int64_t samples_of(const struct sh_report_run *run, int64_t step)
{
    struct sh_batches b;

    if (sh_batches_read(sh_report_value(run, "training.batch_schedule"), &b) == SH_OK && b.n)
        return sh_batches_before(&b, step);
    return sh_size_mul(step, run->global_batch);
}

/* The samples used up to and including that step. */
static json_t *samples(const struct sh_report_run *run, int64_t step)
{
    return json_pack("{s:I, s:I}", "samples_count", (json_int_t)samples_of(run, step), "step", (json_int_t)step);
}

static void write_validation(FILE *out, const struct sh_report_run *run, const struct sh_report_point *p)
{
    write_line(out, p->at - p->seconds, begin, "eval_start", json_null(), samples(run, p->step));
    write_line(out, p->at, point, "eval_accuracy", loss_of(p->loss), samples(run, p->step));
    write_line(out, p->at, end, "eval_stop", json_null(), samples(run, p->step));
}

/* Both lists are in ascending order; a validation follows the step of its number. */
static void write_course(FILE *out, const struct sh_report_run *run)
{
    int k = 0;

    for (int i = 0; i < run->n_steps; i++) {
        const struct sh_report_step *s = &run->steps[i];

        write_line(out, s->at, point, "train_loss", loss_of(s->loss), samples(run, s->step));
        for (; k < run->n_validations && run->validations[k].step <= s->step; k++)
            write_validation(out, run, &run->validations[k]);
    }
}

/* The first step's line is written at its end, so its parts are subtracted to find the start of the run; saving comes
 * after it. */
static void write_run(FILE *out, const struct sh_report *r)
{
    const struct sh_report_run *run = &r->runs[0];
    double from = run->n_steps ? run->steps[0].at : run->clock;

    for (int k = 0; run->n_steps && k < SH_SPENT_CHECKPOINT; k++)
        from -= run->steps[0].seconds[k];
    if (run->n_steps)
        from -= run->steps[0].seconds[SH_SPENT_OTHER];
    write_settings(out, run, from);
    write_line(out, from, begin, "run_start", json_null(), json_object());
    write_course(out, run);
    write_line(out, run->clock, end, "run_stop", json_null(),
               json_pack("{s:s}", "status", sh_report_finished(r) ? "success" : "aborted"));
}

sh_rc sh_report_mllog(const struct sh_report *r, const char *path)
{
    if (r->n_runs != 1)
        return sh_fail(SH_E_USAGE, "%s has %d runs: --mllog needs the folder of one run", r->folder, r->n_runs);
    return sh_report_save(r, write_run, path);
}
