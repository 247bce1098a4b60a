#include "src/tools/report/parts.h"

#include "src/base/file.h"
#include "src/base/mem.h"
#include "src/base/number/size.h"
#include "src/config/config.h"

#include <stdlib.h>
#include <string.h>

/* Parses the lines of sh_config_print(): "section:" and "  key: value". Cuts `text` into pieces. */
static void split_keys(char *text, struct sh_report_run *run)
{
    const char *section = "";
    char *line, *rest = text;
    int cap = 0;

    while ((line = strsep(&rest, "\n")) && *line) {
        char *colon = strchr(line, ':');

        *colon = '\0';
        if (line[0] != ' ') {
            section = line;
            continue;
        }
        run->keys = sh_grow(run->keys, run->n_keys, &cap, sizeof *run->keys);
        run->keys[run->n_keys++] =
            (struct sh_report_key){.name = sh_strfmt("%s.%s", section, line + 2), .value = sh_strdup(colon + 2)};
    }
}

/* The configuration is loaded and printed again, which fills in defaults of keys newer than the file. ranks is 0 if
 * only the launcher knew it; the metrics provide it later. */
static sh_rc read_config(const char *path, struct sh_report_run *run)
{
    struct sh_config cfg;
    char *text;

    SH_TRY(sh_config_load(path, 0, NULL, &cfg));
    SH_TRY(sh_config_print(&cfg, &text));
    split_keys(text, run);
    free(text);
    run->ranks = cfg.mesh.ranks;
    run->global_batch = cfg.training.global_batch_size;
    run->wanted = cfg.training.steps;
    return SH_OK;
}

/* Settles what depends on the number of ranks, once that is known. */
static void settle(struct sh_report_run *run)
{
    if (run->global_batch < 0)
        run->global_batch =
            sh_size_mul(run->ranks, strtoll(sh_report_value(run, "training.local_batch_size"), NULL, 10));
}

int64_t sh_report_done(const struct sh_report_run *run)
{
    return run->n_steps ? run->steps[run->n_steps - 1].step : 0;
}

bool sh_report_is_done(const struct sh_report_run *run)
{
    return run->recorded ? run->finished : run->n_steps && sh_report_done(run) >= run->wanted;
}

/* Both names are copied. After a failure nothing has been added. */
sh_rc sh_report_add_run(struct sh_report *r, const char *folder, const char *path)
{
    char *config = sh_path_join(folder, "config.yaml"), *metrics = sh_path_join(folder, "metrics.jsonl");
    struct sh_report_run run = {.path = sh_strdup(path), .name = sh_strdup(path)};
    sh_rc rc;

    SH_TRY_OUT(read_config(config, &run));
    SH_TRY_OUT(sh_report_read_metrics(metrics, r->study.warm_up, &run));
    SH_TRY_OUT(sh_report_read_prediction(folder, &run.predicted));
    settle(&run);
    sh_report_read_end(folder, &run);
    if (!sh_report_is_done(&run))
        run.over = sh_report_why_over(folder, &run);
    r->runs = sh_grow(r->runs, r->n_runs, &r->cap_runs, sizeof *r->runs);
    r->runs[r->n_runs++] = run;
out:
    if (rc != SH_OK)
        sh_report_free_run(&run);
    free(config);
    free(metrics);
    return rc;
}

/* Frees the contents; the struct itself is part of an array. */
void sh_report_free_run(struct sh_report_run *run)
{
    for (int i = 0; i < run->n_keys; i++) {
        free(run->keys[i].name);
        free(run->keys[i].value);
    }
    free(run->keys);
    free(run->path);
    free(run->steps);
    free(run->starts);
    free(run->validations);
    free(run->ended);
    free(run->stopped);
    free(run->over);
    free(run->slow_node);
    free(run->gpus.node);
    sh_report_free_prediction(&run->predicted);
    free(run->began);
    free(run->device);
    free(run->host);
    free(run->version);
    free(run->name);
}

/* Returns "" if there is no such key. Lent. */
const char *sh_report_value(const struct sh_report_run *run, const char *name)
{
    for (int i = 0; i < run->n_keys; i++)
        if (!strcmp(run->keys[i].name, name))
            return run->keys[i].value;
    return "";
}

/* Whether key i differs between runs. */
bool sh_report_differs(const struct sh_report *r, int i)
{
    for (int k = 1; k < r->n_runs; k++)
        if (strcmp(r->runs[k].keys[i].value, r->runs[0].keys[i].value) != 0)
            return true;
    return false;
}
