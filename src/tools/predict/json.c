/* `sherd plan --json`: the prediction in a form for programs. Seconds, bytes and operations are per step of one
 * rank. */
#include "src/tools/predict/command.h"

#include "src/base/file.h"
#include "src/tools/predict/limit.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* The names are those of the printed table, so that both can be compared. */
static json_t *row_of(const struct sh_cost_row *row)
{
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:I}", "alone", row->alone, "slowed", row->slowed, "exposed",
                     row->exposed, "flops", row->flops, "bytes", row->bytes, "latency", row->latency, "calls",
                     (json_int_t)row->calls);
}

static json_t *step_of(const struct sh_cost_step *step)
{
    json_t *rows = json_object();

    for (int c = 0; c < SH_COST_CLASSES; c++)
        json_object_set_new(rows, sh_cost_class_name((enum sh_cost_class)c), row_of(&step->row[c]));
    return json_pack("{s:f, s:f, s:f, s:f, s:o}", "seconds", step->seconds, "spread", step->spread, "host", step->host,
                     "bubble", step->bubble, "split", rows);
}

/* One row for each stage of a pipeline; none without stages. */
static json_t *stages_of(const struct sh_predict *l)
{
    json_t *rows = json_array();

    for (int s = 0; s < l->stages.n; s++) {
        json_t *row = step_of(&l->each[s]);

        json_object_set_new(row, "arena_bytes", json_integer((json_int_t)l->stages.p[s]->arena_bytes));
        json_array_append_new(rows, row);
    }
    return rows;
}

/* Each figure with its origin: a reader can tell which parts of a prediction rest on measurements. */
static json_t *machine_of(const struct sh_machine *m)
{
    json_t *figures = json_object();

    for (int i = 0; i < sh_machine_n_keys; i++)
        if (!sh_machine_keys[i].text)
            json_object_set_new(figures, sh_machine_keys[i].name,
                                json_pack("{s:f, s:s}", "value",
                                          *sh_machine_figure((struct sh_machine *)(uintptr_t)m, i), "from",
                                          sh_machine_from_name(m->from[i])));
    return json_pack("{s:s, s:s, s:s, s:o}", "name", m->name, "kind", m->device.kind, "source", m->source, "figures",
                     figures);
}

/* Limits whose part is NULL are not worth naming, and are left out. */
static sh_rc add_limits(const struct sh_cost_request *r, const struct sh_cost_step *step, json_t *list)
{
    struct sh_predict_limit limits[2];

    SH_TRY(sh_predict_limits(r, step->seconds, limits));
    for (int i = 0; i < 2 && limits[i].part; i++)
        json_array_append_new(list, json_pack("{s:s, s:f, s:s}", "part", limits[i].part->name, "gain", limits[i].gain,
                                              "remedy", limits[i].part->remedy));
    return SH_OK;
}

/* 0 seconds between failures: the machine file gives no failure rate, and the goodput is 1. 0 seconds of recovery: there
 * are no near checkpoints. */
static json_t *goodput_of(const struct sh_cost_request *r, const struct sh_predict_job *job,
                          const struct sh_cost_step *step)
{
    struct sh_predict_failures f = sh_predict_failures_of(r->machine, job);
    double every = f.between > 0 ? sh_predict_best_interval(&f) : 0;
    struct sh_predict_recovery near = sh_predict_recovery_of(r->machine, job, step->seconds);

    return json_pack("{s:f, s:f, s:f, s:f, s:f}", "seconds_between_failures", f.between, "interval_steps",
                     every / step->seconds, "goodput", sh_predict_job_goodput(r->machine, job, step->seconds),
                     "recovery_seconds", near.every > 0 ? sh_predict_recovery_seconds(&near) : 0.0, "near_copy_seconds",
                     near.copy);
}

/* The bytes on each tier, and the bytes that move between them. */
static json_t *tiers_of(const struct sh_predict *l, const struct sh_cost_step *step)
{
    struct sh_predict_moves moves = sh_predict_moves(l);
    int64_t host = 0;

    for (int i = 0; i < l->p->n_tiers; i++)
        host += l->p->tiers[i].kind == SH_TIER_HOST ? l->p->tiers[i].bytes : 0;
    return json_pack("{s:I, s:I, s:I, s:i, s:I, s:I, s:f, s:f, s:s, s:f, s:f}", "device_bytes",
                     (json_int_t)l->p->arena_bytes, "host_bytes", (json_int_t)host, "file_bytes",
                     (json_int_t)moves.file_bytes, "optimizer_16", l->build.offload.optimizer_16, "read_bytes",
                     (json_int_t)moves.read_bytes, "written_bytes", (json_int_t)moves.written_bytes, "read_rate",
                     moves.read_rate, "write_rate", moves.write_rate, "rates", moves.from, "seconds", moves.seconds,
                     "written_bytes_a_day", (double)moves.written_bytes / step->seconds * 86400);
}

/* busiest null: not known. */
static json_t *context_of(const struct sh_predict *l)
{
    double busiest = sh_predict_busiest(l);

    return json_pack("{s:i, s:o}", "ranks", sh_group_size(&l->mesh, l->mesh.context), "busiest",
                     busiest > 0 ? json_real(busiest) : json_null());
}

/* `sherd report` reads these names back from predicted.json in the folder of a run (src/tools/report/predicted.c). */
static json_t *all_of(const struct sh_predict *l, const struct sh_cost_request *r, const struct sh_predict_job *job,
                      const struct sh_cost_step *step)
{
    const struct sh_machine *m = &l->machine;

    return json_pack("{s:s, s:i, s:i, s:i, s:i, s:I, s:f, s:f, s:f, s:I, s:b, s:o, s:o, s:o, s:o, s:o, s:o}", "model",
                     l->cfg.model.name, "ranks", l->at.world, "ranks_per_node", l->at.ranks_per_node, "replicate",
                     sh_group_size(&l->mesh, l->mesh.replicate), "shard", sh_group_size(&l->mesh, l->mesh.shard),
                     "tokens", (json_int_t)job->tokens, "tokens_per_second", sh_predict_tokens_per_second(job, step),
                     "mfu_causal", sh_predict_mfu(job, step, m, l->p->act, job->flops_causal), "mfu_full",
                     sh_predict_mfu(job, step, m, l->p->act, job->flops_full), "arena_bytes",
                     (json_int_t)l->p->arena_bytes, "fits",
                     (int)((double)sh_predict_bytes(l) <= m->device.memory_bytes - m->device.reserved_bytes), "step",
                     step_of(step), "stages", stages_of(l), "failures", goodput_of(r, job, step), "tiers",
                     tiers_of(l, step), "context", context_of(l), "machine", machine_of(m));
}

/* Limits are simulated, which may fail; the rest is packed first. json_pack() returns NULL for a number that is not
 * finite. */
sh_rc sh_predict_json(const struct sh_predict *l, const struct sh_cost_request *r, const struct sh_predict_job *job,
                      const struct sh_cost_step *step, const char *path)
{
    json_t *all = all_of(l, r, job, step), *limits = json_array();
    char *text;
    sh_rc rc;

    SH_REQUIRE(all);
    rc = add_limits(r, step, limits);
    json_object_set_new(all, "limits", limits);
    text = json_dumps(all, JSON_INDENT(1) | JSON_REAL_PRECISION(10));
    json_decref(all);
    if (rc == SH_OK)
        rc = text ? sh_write_file_atomic(path, text, strlen(text))
                  : sh_fail(SH_E_BUG, "%s: no JSON for the plan", path);
    free(text);
    return rc;
}
