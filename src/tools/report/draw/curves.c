/* The charts against steps: loss over the whole width, speed, gradient norm, learning rate, loss scale. The runs of a
 * chart share one pair of axes. A thin line marks each start of a run, since ranks and speed may change there. */
#include "src/base/number/median.h"
#include "src/tools/report/draw/html.h"
#include "src/tools/report/parts.h"

#include "src/base/mem.h"
#include "src/base/string/str.h"

#include <math.h>
#include <stdlib.h>

/* Limits per curve; more could not be seen. With many runs each gets fewer points, so that the page stays a few MB. */
enum { MOST_POINTS = 400, LEAST_POINTS = 20, ALL_POINTS = 40 * MOST_POINTS, MOST_MARKS = 100, MOST_LEGEND = 40 };
/* Steps whose median is a point of a curve, in runs that are long enough; more runs than this have no bands, and no
 * lines at their starts. */
enum { MEDIAN_OF = 20, FEWEST_MEDIANS = 5, MOST_BANDS = 4 };

/* A mark at a step: its value and its text; false: no mark there. */
typedef bool mark_fn(const struct sh_report_step *s, char *note, size_t size);

struct curve {
    const char *title, *about, *unit;
    sh_report_value_fn *value;
    mark_fn *mark; /* (optional) */
    bool is_loss;  /* validations are drawn as well, and the first steps may be cut off */
    bool from_zero;
    bool powers; /* powers of two: the axis is logarithmic */
    bool jumps;  /* from step to step: a median and a band */
};

static double loss_of(const struct sh_report_step *s)
{
    return s->loss;
}

static double grad_norm_of(const struct sh_report_step *s)
{
    return s->grad_norm;
}

static double lr_of(const struct sh_report_step *s)
{
    return s->lr;
}

static double loss_scale_of(const struct sh_report_step *s)
{
    return s->loss_scale;
}

static double expert_load_of(const struct sh_report_step *s)
{
    return s->expert_load;
}

static double reward_chosen_of(const struct sh_report_step *s)
{
    return s->reward_chosen;
}

static double reward_margin_of(const struct sh_report_step *s)
{
    return s->reward_margin;
}

static double reward_of(const struct sh_report_step *s)
{
    return s->reward;
}

static double reward_least_of(const struct sh_report_step *s)
{
    return s->reward_least;
}

static double reward_most_of(const struct sh_report_step *s)
{
    return s->reward_most;
}

static double kl_of(const struct sh_report_step *s)
{
    return s->kl;
}

static double teacher_mass_of(const struct sh_report_step *s)
{
    return s->teacher_mass;
}

static double token_accuracy_of(const struct sh_report_step *s)
{
    return s->token_accuracy;
}

static double expert_waves_of(const struct sh_report_step *s)
{
    return s->expert_waves;
}

/* NAN for steps that warm up, which would be the lowest points of any run. */
static double speed_of(const struct sh_report_step *s)
{
    return s->first ? NAN : s->tokens_per_second;
}

static bool is_skipped(const struct sh_report_step *s, char *note, size_t size)
{
    snprintf(note, size, "step %lld: update skipped", (long long)s->step);
    return s->skipped;
}

/* Marks a pause longer than the step itself; shorter ones show in the table of times. */
static bool is_stalled(const struct sh_report_step *s, char *note, size_t size)
{
    double paused = s->seconds[SH_SPENT_CHECKPOINT], rest = 0;

    for (int k = 0; k < SH_SPENT_N; k++)
        rest += k == SH_SPENT_CHECKPOINT ? 0 : s->seconds[k];
    snprintf(note, size, "step %lld: paused %.3g s to save", (long long)s->step, paused);
    return !s->first && paused > rest;
}

static const struct curve curves[] = {
    {.title = "Loss against steps",
     .about = "Nats per token; lower is better. Long runs are drawn through the means of neighbouring steps. Markers: "
              "validation. Thin lines: starts, with their mesh (replicate × shard).",
     .unit = "loss",
     .value = loss_of,
     .is_loss = true},
    {.title = "Speed against steps",
     .about =
         "Tokens per second of all ranks; higher is better. In long runs the line is the median of 20 steps or more, "
         "and the band holds eight tenths of them. Markers: pauses longer than a step.",
     .unit = "tokens/s",
     .value = speed_of,
     .mark = is_stalled,
     .from_zero = true,
     .jumps = true},
    {.title = "Gradient norm against steps",
     .about = "Before clipping. Markers: steps whose update was skipped.",
     .unit = "gradient norm",
     .value = grad_norm_of,
     .mark = is_skipped},
    {.title = "Learning rate against steps",
     .about = "As set by the schedule.",
     .unit = "learning rate",
     .value = lr_of,
     .from_zero = true},
    {.title = "Rewards of chosen answers against steps",
     .about = "Pairs of answers only: beta times how much likelier the chosen ones are than to the reference, in nats. "
              "Below 0 they have become less likely.",
     .unit = "reward",
     .value = reward_chosen_of},
    {.title = "Margins of rewards against steps",
     .about = "Pairs of answers only: the reward of the chosen answer minus that of the rejected one.",
     .unit = "margin",
     .value = reward_margin_of},
    {.title = "Mean rewards against steps",
     .about = "Rewards that a head gives: the mean over both answers of all pairs.",
     .unit = "reward",
     .value = reward_of},
    {.title = "Smallest rewards against steps",
     .about = "Rewards that a head gives: the smallest of a step. Far from the mean it is that of an outlier.",
     .unit = "reward",
     .value = reward_least_of},
    {.title = "Largest rewards against steps",
     .about = "Rewards that a head gives: the largest of a step. Far from the mean it is that of an outlier.",
     .unit = "reward",
     .value = reward_most_of},
    {.title = "Divergence from the teacher against steps",
     .about = "Distillation only: nats per token, by which the student differs from what its teacher stored.",
     .unit = "kl",
     .value = kl_of},
    {.title = "What the teacher stored against steps",
     .about = "Distillation only: the probability that the teacher gives the tokens that are learned from; 1 is all.",
     .unit = "teacher mass",
     .value = teacher_mass_of},
    {.title = "Accuracy of tokens against steps",
     .about = "Distillation only: the share of targets that the student finds likeliest.",
     .unit = "accuracy",
     .value = token_accuracy_of},
    {.title = "Load of experts against steps",
     .about = "Models with experts only: the largest load of an expert over the mean of its block, of all blocks; 1 is "
              "balanced.",
     .unit = "largest / mean",
     .value = expert_load_of},
    {.title = "Waves of rows against steps",
     .about =
         "Models whose experts are on several ranks only: the waves in which rows travel to them, mean of blocks and "
         "micro-steps; 1 is the least.",
     .unit = "waves",
     .value = expert_waves_of},
    {.title = "Loss scale against steps",
     .about = "Runs in float16 only. Markers: steps whose update was skipped.",
     .unit = "loss scale",
     .value = loss_scale_of,
     .mark = is_skipped,
     .powers = true},
};

enum { CURVES = sizeof curves / sizeof *curves };

/* What is drawn of a run: n points and, if the curve jumps, the band around them. */
struct line {
    int n;
    double *x, *y, *low, *high; /* one allocation */
};

static int points_of(const struct sh_report *r)
{
    int each = ALL_POINTS / r->n_runs;

    return each > MOST_POINTS ? MOST_POINTS : each < LEAST_POINTS ? LEAST_POINTS : each;
}

/* A mean is not finite if one of its values is not, so that the gap shows. */
static void add_mean(struct line *l, sh_report_value_fn *value, const struct sh_report_step *steps, int n)
{
    for (int i = 0; i < n; i++) {
        l->x[l->n] += (double)steps[i].step / n;
        l->y[l->n] += value(&steps[i]) / n;
    }
    l->n++;
}

/* Of the values that are finite: steps that warm up have none. */
static void add_median(struct line *l, sh_report_value_fn *value, const struct sh_report_step *steps, int n)
{
    double *values = sh_calloc((size_t)n, sizeof *values);
    int found = 0;

    for (int i = 0; i < n; i++)
        if (isfinite(value(&steps[i])))
            values[found++] = value(&steps[i]);
    if (found) {
        l->x[l->n] = (double)steps[n / 2].step;
        l->y[l->n] = sh_median(found, values);
        l->low[l->n] = values[found / 10];
        l->high[l->n++] = values[found - 1 - found / 10];
    }
    free(values);
}

/* A point stands for as many neighbouring steps as are needed to have at most `most` points. */
static struct line make_line(const struct curve *curve, const struct sh_report_run *run, int most)
{
    int each = (run->n_steps + most - 1) / most;
    bool medians = curve->jumps && run->n_steps >= FEWEST_MEDIANS * MEDIAN_OF;
    struct line l = {.x = sh_calloc(4 * (size_t)(run->n_steps + 1), sizeof *l.x)};

    l.y = l.x + run->n_steps + 1;
    l.low = l.y + run->n_steps + 1;
    l.high = l.low + run->n_steps + 1;
    if (medians && each < MEDIAN_OF)
        each = MEDIAN_OF;
    for (int i = 0; i < run->n_steps; i += each) {
        int n = i + each < run->n_steps ? each : run->n_steps - i;

        if (medians)
            add_median(&l, curve->value, &run->steps[i], n);
        else
            add_mean(&l, curve->value, &run->steps[i], n);
    }
    return l;
}

struct range {
    double first, last, low, high;
    double *values; /* all of them, for a quantile */
    int n, cap;
};

static void widen(struct range *r, double step, double v)
{
    if (!isfinite(v))
        return;
    r->first = fmin(r->first, step);
    r->last = fmax(r->last, step);
    r->low = fmin(r->low, v);
    r->high = fmax(r->high, v);
    r->values = sh_grow(r->values, r->n, &r->cap, sizeof *r->values);
    r->values[r->n++] = v;
}

/* Over all that is drawn. Without any finite value `last` stays below `first`. */
static struct range find_range(const struct sh_report *r, const struct curve *curve, const struct line *lines)
{
    struct range all = {INFINITY, -INFINITY, INFINITY, -INFINITY, NULL, 0, 0};
    char note[96];

    for (int i = 0; i < r->n_runs; i++) {
        const struct sh_report_run *run = &r->runs[i];

        for (int k = 0; k < run->n_steps; k++)
            if (k == 0 || k == run->n_steps - 1 || (curve->mark && curve->mark(&run->steps[k], note, sizeof note)))
                widen(&all, (double)run->steps[k].step, curve->value(&run->steps[k]));
        for (int k = 0; k < lines[i].n; k++)
            widen(&all, lines[i].x[k], lines[i].y[k]);
        for (int k = 0; curve->jumps && k < lines[i].n && r->n_runs <= MOST_BANDS; k++)
            widen(&all, lines[i].x[k], fmax(lines[i].high[k], lines[i].y[k]));
        for (int k = 0; curve->is_loss && k < run->n_validations; k++)
            widen(&all, (double)run->validations[k].step, run->validations[k].loss);
    }
    if (curve->from_zero && all.high >= 0)
        all.low = 0;
    return all;
}

/* Two curves look like one if they are nowhere further apart than the width of a line. */
static double eye_of(const struct range *all)
{
    return 0.005 * fmax(all->high - all->low, 1e-3 * fabs(all->high));
}

/* ---- drawing ---- */

/* One run: its validations have a colour of their own, as the legend says. */
static int look_of_validation(const struct sh_report *r, int i)
{
    return r->n_runs == 1 ? 1 : i;
}

static void draw_validations(const struct sh_chart *c, const struct sh_report *r, int i)
{
    const struct sh_report_run *run = &r->runs[i];
    int look = look_of_validation(r, i);
    char note[96];

    for (int k = 0; k < run->n_validations; k++) {
        const struct sh_report_point *p = &run->validations[k];

        snprintf(note, sizeof note, "step %lld: validation loss %.4f", (long long)p->step, p->loss);
        if (isfinite(p->loss))
            sh_chart_mark(c, look, (double)p->step, p->loss, note);
    }
}

static void draw_marks(const struct sh_chart *c, const struct curve *curve, int look, const struct sh_report_run *run)
{
    char note[96];
    int n = 0;

    for (int i = 0; i < run->n_steps && n < MOST_MARKS; i++) {
        double v = curve->value(&run->steps[i]);

        if (!curve->mark(&run->steps[i], note, sizeof note) || !isfinite(v))
            continue;
        sh_chart_mark(c, look, (double)run->steps[i].step, v, note);
        n++;
    }
}

/* Of several runs only later starts, in the colour of the run: they all have a first one. */
static void draw_starts(struct sh_chart *c, const struct sh_report *r)
{
    char label[48], ranks[SH_STR_SHORT], *note;

    for (int i = 0; i < r->n_runs && r->n_runs <= MOST_BANDS; i++)
        for (int k = r->n_runs > 1; k < r->runs[i].n_starts; k++) {
            const struct sh_report_start *s = &r->runs[i].starts[k];

            sh_str_plural(s->ranks, "rank", ranks);
            snprintf(label, sizeof label, "%d × %d%s", s->replicate, s->shard, c->wide ? " ranks" : "");
            note = sh_strfmt("%s: started on %s after step %lld", r->runs[i].name, ranks, (long long)s->step);
            if ((double)s->step <= c->x.max)
                sh_chart_start(c, r->n_runs > 1 ? i : -1, fmax((double)s->step, c->x.min), s->shard ? label : ranks,
                               note);
            free(note);
        }
}

static void draw_runs(struct sh_chart *c, const struct sh_report *r, const struct curve *curve,
                      const struct line *lines, const int *above)
{
    draw_starts(c, r);
    for (int i = 0; i < r->n_runs && curve->jumps && r->n_runs <= MOST_BANDS; i++)
        if (lines[i].n < r->runs[i].n_steps / 2)
            sh_chart_band(c, i, lines[i].n, lines[i].x, lines[i].low, lines[i].high);
    for (int i = 0; i < r->n_runs; i++)
        if (r->runs[i].n_steps)
            sh_chart_line(c, i, above[i], lines[i].n, lines[i].x, lines[i].y);
    for (int i = 0; i < r->n_runs; i++) {
        if (curve->is_loss)
            draw_validations(c, r, i);
        if (curve->mark)
            draw_marks(c, curve, i, &r->runs[i]);
    }
    sh_chart_end(c);
}

/* false: there is nothing to draw, as in files of older versions. A loss begins far above what is of interest. */
static bool set_axes(struct sh_chart *c, const struct curve *curve, struct range *all, char note[96])
{
    double most = all->high;

    c->x = (struct sh_axis){
        .min = all->first, .max = fmax(all->last, all->first + fmax(1, 1e-3 * fabs(all->first))), .title = "step"};
    c->y.title = curve->unit;
    if (curve->is_loss && all->n)
        all->high = sh_axis_top(all->n, all->values);
    if (!(all->last >= all->first) || !sh_axis_around(&c->y, all->low, all->high))
        return false;
    if (curve->from_zero)
        c->y.min = fmin(all->low, 0);
    if (curve->powers && all->low > 0)
        c->y = (struct sh_axis){
            .min = all->low / 1.5, .max = all->high * 1.5, .ticks = SH_TICKS_LOG, .title = curve->unit};
    note[0] = '\0';
    if (most > all->high)
        snprintf(note, 96, "The axis ends at the 98 %% quantile; the highest value is %.3g.", most);
    return true;
}

/* The loss comes twice, of which the page shows one: as wide as a screen, and for a phone or paper. */
static bool draw(FILE *out, const struct sh_report *r, const struct curve *curve, struct range *all)
{
    struct line *lines = sh_calloc((size_t)r->n_runs, sizeof *lines);
    struct sh_chart c = {.out = out, .wide = curve->is_loss};
    char note[96];
    int *above;
    bool any;

    for (int i = 0; i < r->n_runs; i++)
        lines[i] = make_line(curve, &r->runs[i], points_of(r));
    *all = find_range(r, curve, lines);
    any = set_axes(&c, curve, all, note);
    above = sh_report_count_above(r, curve->value, eye_of(all));
    for (int k = 0; any && k <= (int)curve->is_loss; k++, c.wide = false) {
        sh_chart_begin(&c, curve->title, curve->about, note);
        draw_runs(&c, r, curve, lines, above);
    }
    for (int i = 0; i < r->n_runs; i++)
        free(lines[i].x);
    free(lines);
    free(above);
    free(all->values);
    return any;
}

/* Runs without steps have no curve and no entry; colours still count them, as in the tables. A legend longer than a
 * screen is folded. */
static void write_legend(FILE *out, const struct sh_report *r)
{
    bool folded = r->n_runs > MOST_LEGEND;

    fputs(folded ? "<details><summary>Which line is which run</summary>\n" : "", out);
    sh_legend_begin(out);
    for (int i = 0; i < r->n_runs && r->n_runs > 1; i++)
        if (r->runs[i].n_steps)
            sh_legend_entry(out, i, true, r->runs[i].n_validations > 0, r->runs[i].name);
    if (r->n_runs == 1) {
        sh_legend_entry(out, 0, true, false, "training");
        if (r->runs[0].n_validations)
            sh_legend_entry(out, look_of_validation(r, 0), false, true, "validation");
    }
    sh_legend_end(out);
    fputs(folded ? "</details>\n" : "", out);
}

/* Three small charts in a row, or two: none leaves a hole. The loss comes first, whether or not it is finite. */
void sh_report_curves(FILE *out, const struct sh_report *r)
{
    struct range all;
    char *text;
    size_t bytes;
    FILE *small = sh_memstream(&text, &bytes);
    int n = 0;

    if (draw(out, r, &curves[0], &all)) {
        write_legend(out, r);
        if (r->n_runs > 1)
            sh_report_say_overlaps(out, r, curves[0].value, eye_of(&all));
    }
    for (int k = 1; k < CURVES; k++) {
        struct range other;

        n += draw(small, r, &curves[k], &other);
    }
    fclose(small);
    if (n)
        fprintf(out, "<div class=\"%s\">\n%s</div>\n", n % 3 == 0 ? "trio" : "pair", text);
    free(text);
}
