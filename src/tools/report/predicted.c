/* predicted.json: the prediction of a plan, made before the job started, so that nothing is predicted after the fact.
 * */
#include "src/tools/report/parts.h"

#include "src/base/file.h"
#include "src/base/mem.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A prediction is a few kilobytes; the limit keeps any other file from filling memory. */
enum { MOST_BYTES = 1 << 20 };

/* Returns 0 for an absent value, or one of a size that no machine has. */
static double number(const json_t *object, const char *key)
{
    double v = json_number_value(json_object_get(object, key));

    return v > 1e-30 && v < 1e30 ? v : 0;
}

/* The columns of the plan's table: the time of operations alone, their slowdown, and the time waited for. */
static void take_split(const json_t *step, double *part)
{
    static const struct {
        const char *name;
        int alone; /* part that the time counts for; -1: collectives, hidden except for their exposed time */
    } rows[] = {{"products", SH_PREDICTED_PRODUCTS},
                {"attention", SH_PREDICTED_ATTENTION},
                {"other", SH_PREDICTED_OTHER},
                {"all_gather", -1},
                {"reduce_scatter", -1},
                {"all_reduce", -1},
                {"all_to_all", -1}};
    const json_t *split = json_object_get(step, "split");

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const json_t *row = json_object_get(split, rows[i].name);

        if (rows[i].alone >= 0)
            part[rows[i].alone] = number(row, "alone");
        part[SH_PREDICTED_SLOWED] += number(row, "slowed");
        part[SH_PREDICTED_EXPOSED] += number(row, "exposed");
    }
    part[SH_PREDICTED_HOST] = number(step, "host") + number(step, "spread");
}

/* "network (12 %)": how much faster the step would be if the network cost nothing. */
static char *limit_of(const json_t *all, size_t i)
{
    const json_t *limit = json_array_get(json_object_get(all, "limits"), i);
    const char *name = json_string_value(json_object_get(limit, "part"));

    return name ? sh_strfmt("%s (%.0f %%)", name, 100 * number(limit, "gain")) : NULL;
}

/* A missing key leaves 0 or NULL, which the tables show as a dash: older predictions have fewer keys. */
static void take(const json_t *all, struct sh_report_prediction *p)
{
    const json_t *step = json_object_get(all, "step"), *machine = json_object_get(all, "machine");
    const json_t *failures = json_object_get(all, "failures");
    const char *name = json_string_value(json_object_get(machine, "name"));

    p->tokens_per_second = number(all, "tokens_per_second");
    p->seconds = number(step, "seconds");
    p->mfu = number(all, "mfu_causal");
    p->too_large = json_is_false(json_object_get(all, "fits"));
    take_split(step, p->part);
    if (number(failures, "seconds_between_failures") > 0)
        p->goodput = number(failures, "goodput");
    p->price = number(json_object_get(json_object_get(machine, "figures"), "node.price_per_device_hour"), "value");
    p->limit = limit_of(all, 0);
    p->then = limit_of(all, 1);
    p->machine = name ? sh_strdup(name) : NULL;
}

/* A missing file is not an error: most runs were not predicted. A file that exists must be readable, or a run would
 * silently be missing from a table. */
sh_rc sh_report_read_prediction(const char *folder, struct sh_report_prediction *p)
{
    char *path = sh_path_join(folder, "predicted.json"), *text = NULL;
    json_t *all = NULL;
    sh_rc rc = SH_OK;

    if (access(path, F_OK) != 0)
        goto out;
    SH_TRY_OUT(sh_read_file(path, MOST_BYTES, &text, NULL));
    all = json_loads(text, 0, NULL);
    if (json_object_get(all, "tokens_per_second"))
        take(all, p);
    else
        rc = sh_fail(SH_E_DATA, "%s: not a prediction written by `sherd plan --json`", path);
out:
    json_decref(all);
    free(text);
    free(path);
    return rc;
}

void sh_report_free_prediction(struct sh_report_prediction *p)
{
    free(p->limit);
    free(p->then);
    free(p->machine);
}
