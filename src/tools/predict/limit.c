/* What limits a step: the step is simulated again with one part made free, and the part whose removal gains most is the
 * limit. A gain of 0.25 means a quarter more tokens per second. The gains of parts do not add up: with the network
 * free, memory may limit instead. That is why the second limit is named as well. */
#include "src/tools/predict/limit.h"

#include "src/base/string/str.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PART(field) .offset = offsetof(struct sh_cost_faster, field)

const struct sh_predict_part sh_predict_parts[] = {
    {"products", PART(products), 1.2, 0,
     "larger products: a larger training.local_batch_size, or fewer micro-steps; less recomputation"},
    {"slow-down", PART(slowdown), 0, 0,
     "move less beside the computation: hybrid_shard over a node's ranks, fewer micro-steps, mixed_precision_reduce: bfloat16"},
    {"latency", PART(latency), 2, 0,
     "a smaller shard group (hybrid_shard, mesh.shard), or more work between collectives"},
    {"memory", PART(memory), 2, 0, "fewer bytes per token: a larger micro-batch, less recomputation, bfloat16"},
    {"network", PART(network), 2, 0.5,
     "more prefetch (parallelism.forward_prefetch, backward_prefetch), hybrid_shard, a larger micro-batch"},
    {"attention", PART(attention), 1.5, 0, "shorter sequences, or document masks"},
    {"host", PART(host), 0, 0, "more work per step: the host's share is the same for each"},
    {"spread", PART(spread), 0, 0,
     "leave out the slow nodes: sherd doctor and the pace lines of metrics.jsonl name them"},
};
const int sh_predict_n_parts = sizeof sh_predict_parts / sizeof *sh_predict_parts;

/* So fast that no sum shows the part. */
static const double free_of_cost = 1e9;

/* Parts are found by name at run time, so the field is reached by its offset. */
static double *factor_of(struct sh_cost_faster *f, const struct sh_predict_part *part)
{
    return (double *)((char *)f + part->offset);
}

/* Without the trace, which only the real step writes. Factors multiply, so a --what-if stays in force. */
sh_rc sh_predict_gain(const struct sh_cost_request *r, const struct sh_predict_part *part, double factor,
                      double as_it_is, double *gain)
{
    struct sh_cost_request faster = *r;
    struct sh_cost_step step;

    faster.trace = NULL;
    *factor_of(&faster.faster, part) *= factor > 0 ? factor : free_of_cost;
    SH_TRY(sh_cost_step(&faster, &step));
    *gain = as_it_is / step.seconds - 1;
    return SH_OK;
}

sh_rc sh_predict_limits(const struct sh_cost_request *r, double as_it_is, struct sh_predict_limit out[2])
{
    /* A gain below a thousandth is rounding noise. */
    const double least = 0.001;

    out[0] = out[1] = (struct sh_predict_limit){0};
    for (int i = 0; i < sh_predict_n_parts; i++) {
        struct sh_predict_limit l = {.part = &sh_predict_parts[i]};

        SH_TRY(sh_predict_gain(r, l.part, 0, as_it_is, &l.gain));
        if (l.gain < least || l.gain <= out[1].gain)
            continue;
        out[1] = l.gain > out[0].gain ? out[0] : l;
        out[0] = l.gain > out[0].gain ? l : out[0];
    }
    return SH_OK;
}

/* A part that is a class of the table is described by its share there; without it, what runs beside it would be
 * exposed, so the two numbers differ. Other parts are in several classes. */
const char *sh_predict_limit_text(const struct sh_predict_limit *l, const struct sh_cost_step *step,
                                  char text[SH_PREDICT_LIMIT_TEXT])
{
    for (int c = 0; c < SH_COST_OTHER; c++)
        if (!strcmp(l->part->name, sh_cost_class_name((enum sh_cost_class)c))) {
            snprintf(text, SH_PREDICT_LIMIT_TEXT, "%s, %.0f %% of the step", l->part->name,
                     100 * step->row[c].alone / step->seconds);
            return text;
        }
    snprintf(text, SH_PREDICT_LIMIT_TEXT, "%s, without which a step would be %.1f %% shorter", l->part->name,
             100 * l->gain / (1 + l->gain));
    return text;
}

const char *sh_predict_gain_text(double gain, char text[SH_PREDICT_LIMIT_TEXT])
{
    snprintf(text, SH_PREDICT_LIMIT_TEXT, "%.1f %% %s", 100 * fabs(gain), gain < 0 ? "slower" : "faster");
    return text;
}

static const struct sh_predict_part *find_part(const char *name, size_t length)
{
    for (int i = 0; i < sh_predict_n_parts; i++)
        if (strlen(sh_predict_parts[i].name) == length && !strncmp(sh_predict_parts[i].name, name, length))
            return &sh_predict_parts[i];
    return NULL;
}

/* The list of names comes from the table, so the message cannot miss one. */
static sh_rc no_such_part(const char *text)
{
    char names[256] = "";

    for (int i = 0, n = 0; i < sh_predict_n_parts; i++)
        n += snprintf(names + n, sizeof names - (size_t)n, "%s%s", i ? ", " : "", sh_predict_parts[i].name);
    return sh_fail(
        SH_E_USAGE,
        "--what-if %s: expected PART=TIMES, separated by commas, such as products=1.2,network=2; parts are %s", text,
        names);
}

/* "products=1.2,network=2"; if a part is given twice, both factors apply. The range of a factor keeps sums finite. */
sh_rc sh_predict_read_what_if(const char *text, struct sh_cost_faster *out)
{
    *out = sh_cost_as_is;
    for (const char *at = text;; at++) {
        size_t length = strcspn(at, "=,");
        const struct sh_predict_part *part = find_part(at, length);
        char *end;
        double factor;

        if (!part || at[length] != '=')
            return no_such_part(text);
        factor = strtod(at + length + 1, &end);
        if (end == at + length + 1 || (*end && *end != ',') || !(factor >= 1e-3 && factor <= 1e9))
            return no_such_part(text);
        *factor_of(out, part) *= factor;
        at = end;
        if (!*at)
            return SH_OK;
    }
}
