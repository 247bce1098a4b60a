#include "src/base/log.h"
#include "src/base/string/str.h"
#include "src/metrics/metrics.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { FIELDS = 10, FIELD_MAX = 128 };

#define BOLD "\033[1m"
#define DIM "\033[2m"
#define PLAIN "\033[0m"

/* The parts of a line, in the order in which they are printed. */
struct fields {
    struct field {
        int keep; /* the field with the least is dropped first if there is no room; 0: never dropped */
        char text[FIELD_MAX];
    } field[FIELDS];
    int n;
};

/* `allowed` false: one line per log_freq steps even on a terminal. */
void sh_progress_init(struct sh_progress *p, bool allowed, int64_t total, int64_t log_freq, int ranks,
                      double peak_tflops)
{
    *p = (struct sh_progress){.terminal = allowed && sh_log_columns(),
                              .styled = sh_log_styled(),
                              .total = total,
                              .log_freq = log_freq,
                              .ranks = ranks,
                              .peak_tflops = peak_tflops};
}

__attribute__((format(printf, 3, 4))) static void add(struct fields *f, int keep, const char *fmt, ...)
{
    struct field *next = &f->field[f->n++];
    va_list ap;

    next->keep = keep;
    va_start(ap, fmt);
    vsnprintf(next->text, sizeof next->text, fmt, ap);
    va_end(ap);
}

/* Tokens per second since the last line that stayed, not of the last step alone: single steps vary. */
static double speed(const struct sh_progress *p)
{
    return p->seconds > 0 ? (double)p->tokens / p->seconds : 0;
}

/* Estimated from recent steps with everything between them (checkpoints, validation), so it includes those. */
static void add_time_left(const struct sh_progress *p, const struct sh_step_metrics *s, struct fields *f)
{
    char text[SH_STR_SHORT];

    if (p->n_recent && s->step < p->total)
        add(f, 5, "ETA %s", sh_str_duration(p->recent_sum / (double)p->n_recent * (double)(p->total - s->step), text));
}

/* The second argument of add() is the rank of a field: on a narrow terminal grad_norm is dropped first, the reason of a
 * skipped step last. */
static void fill(const struct sh_progress *p, const struct sh_step_metrics *s, struct fields *f)
{
    char rss[SH_STR_SHORT];
    double mfu = sh_mfu(speed(p), s->flops_causal, p->ranks, p->peak_tflops);

    add(f, 0, "step %*lld/%lld", p->total > 9999 ? 6 : 4, (long long)s->step, (long long)p->total);
    add(f, 0, "loss %.4f", s->loss);
    add(f, 1, "grad_norm %.3f", s->grad_norm);
    add(f, 3, "lr %.2e", s->lr);
    if (s->loss_scale > 0)
        add(f, 1, "loss_scale %.0f", s->loss_scale);
    add(f, 6, "%.0f tokens/s", speed(p));
    if (mfu > 0)
        add(f, 4, "MFU %.1f %%", 100 * mfu);
    add(f, 2, "%s", sh_str_bytes(s->peak_rss_bytes, rss));
    add_time_left(p, s, f);
    if (s->skipped)
        add(f, 7, "skipped: %s", s->skipped);
}

/* Columns of the whole line, with two spaces between fields. */
static int width(const struct fields *f)
{
    int sum = 0;

    for (int i = 0; i < f->n; i++)
        sum += (int)strlen(f->field[i].text) + (i > 0 ? 2 : 0);
    return sum;
}

/* Take out the field that matters least; false when all that are left must stay. */
static bool drop(struct fields *f)
{
    int least = -1;

    for (int i = 0; i < f->n; i++)
        if (f->field[i].keep && (least < 0 || f->field[i].keep < f->field[least].keep))
            least = i;
    if (least < 0)
        return false;
    f->n--;
    memmove(&f->field[least], &f->field[least + 1], (size_t)(f->n - least) * sizeof f->field[0]);
    return true;
}

/* columns 0: no limit, as for a log file. The loss, which comes second, is bold, and what follows it dim. A line that is still too long after all droppable fields are gone is cut. */
void sh_progress_line(const struct sh_progress *p, const struct sh_step_metrics *s, int columns,
                      char line[SH_PROGRESS_LINE])
{
    struct fields f = {.n = 0};
    size_t used = 0;
    bool cut;

    fill(p, s, &f);
    while (columns > 0 && width(&f) > columns && drop(&f))
        ;
    cut = columns > 0 && width(&f) > columns;
    for (int i = 0; i < f.n && used < SH_PROGRESS_LINE; i++) {
        const char *style = !p->terminal || !p->styled || cut || i == 0 ? "" : i == 1 ? BOLD : DIM;

        used += (size_t)snprintf(line + used, SH_PROGRESS_LINE - used, "%s%s%s%s", i > 0 ? "  " : "", style,
                                 f.field[i].text, style[0] ? PLAIN : "");
    }
    if (cut)
        line[columns] = '\0';
}

/* The first step of a process also warms up, so it tells nothing about those to come. */
static void count(struct sh_progress *p, const struct sh_step_metrics *s)
{
    double *slot = &p->recent[p->steps % SH_PROGRESS_RECENT];

    p->tokens += s->tokens;
    p->seconds += s->time.step;
    p->steps++;
    if (p->steps == 1)
        return;
    if (p->n_recent < SH_PROGRESS_RECENT)
        p->n_recent++;
    else
        p->recent_sum -= *slot;
    *slot = s->since_last;
    p->recent_sum += *slot;
}

/* On a terminal a line that is not due is overwritten by the next one; a file gets only lines that are due. */
static void print(struct sh_progress *p, const char *line, bool due)
{
    if (!p->terminal) {
        if (due)
            sh_log_info("%s", line);
        return;
    }
    fprintf(stderr, "\r\033[K%s%s", line, due ? "\n" : "");
    p->open = !due;
}

/* The first step always gets its line: it shows that the run has started, and what the loss is without training. */
void sh_progress_step(struct sh_progress *p, const struct sh_step_metrics *s)
{
    char line[SH_PROGRESS_LINE];
    bool due = s->step % p->log_freq == 0 || s->step == p->total || s->step == 1 || s->skipped;

    count(p, s);
    if (due || p->terminal) {
        sh_progress_line(p, s, p->terminal ? sh_log_columns() : 0, line);
        print(p, line, due);
    }
    if (due) {
        p->tokens = 0;
        p->seconds = 0;
    }
}

/* Call it before any other output: otherwise a warning would continue the line that waits to be overwritten. */
void sh_progress_break(struct sh_progress *p)
{
    if (p->open)
        fputc('\n', stderr);
    p->open = false;
}
