/* The predicted step in words, as `sherd plan --machine` prints it. Numbers come from step.c; this file derives what
 * follows from the seconds of a step: rates, model FLOPs utilisation, failures, and money. */
#include "src/tools/predict/say.h"

#include "src/base/string/str.h"
#include "src/tools/predict/limit.h"

#include <math.h>
#include <string.h>

double sh_predict_tokens_per_second(const struct sh_predict_job *job, const struct sh_cost_step *step)
{
    return (double)job->tokens / step->seconds;
}

/* The peak of a device in the compute type. float16 has no figure: its products are priced like those of float32. */
static double peak_of(const struct sh_machine *m, enum sh_dtype act)
{
    return act == SH_BF16 ? m->peak.bfloat16 : m->peak.float32;
}

double sh_predict_mfu(const struct sh_predict_job *job, const struct sh_cost_step *step, const struct sh_machine *m,
                      enum sh_dtype act, double flops)
{
    return sh_predict_tokens_per_second(job, step) * flops / job->ranks / peak_of(m, act);
}

struct sh_predict_failures sh_predict_failures_of(const struct sh_machine *m, const struct sh_predict_job *job)
{
    return (struct sh_predict_failures){.between = m->failure.device_hours * 3600 / job->ranks,
                                        .save = job->save_seconds,
                                        .restart = m->failure.restart_seconds};
}

/* A death costs the step under way, half of it on average, and the finished one if not all ranks had it; and half of
 * what lies between two copies. */
struct sh_predict_recovery sh_predict_recovery_of(const struct sh_machine *m, const struct sh_predict_job *job,
                                                  double step_seconds)
{
    return (struct sh_predict_recovery){.every = job->near_steps * step_seconds,
                                        .copy = job->near_copy,
                                        .silence = job->near_silence,
                                        .end = m->failure.end_seconds,
                                        .start = m->failure.start_seconds,
                                        .load = job->near_load,
                                        .again = (1 + job->near_steps / 2) * step_seconds};
}

double sh_predict_job_goodput(const struct sh_machine *m, const struct sh_predict_job *job, double step_seconds)
{
    struct sh_predict_failures f = sh_predict_failures_of(m, job);
    struct sh_predict_recovery near = sh_predict_recovery_of(m, job, step_seconds);

    if (f.between <= 0)
        return 1;
    return near.silence > 0 ? sh_predict_near_goodput(&near, f.between)
                            : sh_predict_goodput(&f, sh_predict_best_interval(&f));
}

struct sh_predict_spent sh_predict_spend(const struct sh_machine *m, const struct sh_predict_job *job,
                                         double tokens_per_second, double tokens)
{
    double step_seconds = (double)job->tokens / tokens_per_second;
    double seconds = tokens / tokens_per_second / sh_predict_job_goodput(m, job, step_seconds);

    return (struct sh_predict_spent){.seconds = seconds, .device_hours = seconds / 3600 * job->ranks};
}

/* Hours or money: whole numbers once they are large. */
static const char *amount_text(double amount, char text[SH_STR_SHORT])
{
    if (amount >= 100)
        return sh_str_count(llround(amount), text);
    snprintf(text, SH_STR_SHORT, "%.3g", amount);
    return text;
}

const char *sh_predict_spent_text(const struct sh_machine *m, const struct sh_predict_spent *spent,
                                  char text[SH_PREDICT_SPENT_TEXT])
{
    double price = m->node.price_per_device_hour;
    char time[SH_STR_SHORT], hours[SH_STR_SHORT], money[SH_STR_SHORT];
    int n = snprintf(text, SH_PREDICT_SPENT_TEXT, "%s, %s device-hours", sh_str_duration(spent->seconds, time),
                     amount_text(spent->device_hours, hours));

    if (price > 0)
        snprintf(text + n, SH_PREDICT_SPENT_TEXT - (size_t)n, ", cost %s",
                 amount_text(spent->device_hours * price, money));
    return text;
}

const char *sh_predict_seconds(double s, char text[SH_STR_SHORT])
{
    if (s >= 1)
        snprintf(text, SH_STR_SHORT, "%.3f s", s);
    else if (s >= 1e-3)
        snprintf(text, SH_STR_SHORT, "%.4g ms", s * 1e3);
    else
        snprintf(text, SH_STR_SHORT, "%.3g us", s * 1e6);
    return text;
}

/* Attention is counted in both usual ways, half of the square and all of it: papers give either. */
static void say_step(const struct sh_cost_request *r, const struct sh_predict_job *job, const struct sh_cost_step *step,
                     FILE *out)
{
    double rate = sh_predict_tokens_per_second(job, step);
    char seconds[SH_STR_SHORT], each[SH_STR_SHORT], all[SH_STR_SHORT];

    sh_str_say(
        out, "step", "%s, %s tokens/s per rank, %s in all; MFU %.1f %% (6LHDT), %.1f %% (12LHDT) of %.4g TFLOP/s",
        sh_predict_seconds(step->seconds, seconds), sh_str_count(llround(rate / job->ranks), each),
        sh_str_count(llround(rate), all), 100 * sh_predict_mfu(job, step, r->machine, r->p->act, job->flops_causal),
        100 * sh_predict_mfu(job, step, r->machine, r->p->act, job->flops_full), peak_of(r->machine, r->p->act) / 1e12);
}

/* One class of kernels: its time alone, and the time that concurrent collectives add. Memory-bound kernels are
 * described by their bandwidth, because a share of the peak rate says nothing about them. */
static void say_computation(const struct sh_cost_request *r, const struct sh_cost_step *step, enum sh_cost_class c,
                            FILE *out)
{
    const struct sh_cost_row *row = &step->row[c];
    char alone[SH_STR_SHORT], slowed[SH_STR_SHORT];

    if (!row->calls)
        return;
    fprintf(out, "  %-16s %10s %10s %10s  %.0f %% of the step", sh_cost_class_name(c),
            sh_predict_seconds(row->alone, alone), row->slowed > 0 ? sh_predict_seconds(row->slowed, slowed) : "-", "-",
            100 * row->alone / step->seconds);
    if (c == SH_COST_OTHER)
        fprintf(out, ", memory at %.4g GB/s\n", row->bytes / row->alone / 1e9);
    else
        fprintf(out, ", at %.0f %% of the peak\n", 100 * row->flops / row->alone / peak_of(r->machine, r->p->act));
}

/* One kind of collective. Only its exposed part costs time directly; the part hidden behind kernels shows in their
 * column "slowed". */
static void say_collective(const struct sh_cost_step *step, enum sh_cost_class c, FILE *out)
{
    const struct sh_cost_row *row = &step->row[c];
    char alone[SH_STR_SHORT], exposed[SH_STR_SHORT], one[SH_STR_SHORT], latency[SH_STR_SHORT];

    if (!row->calls)
        return;
    fprintf(out, "  %-16s %10s %10s %10s  %lld of %s, %s of that latency%s\n", sh_cost_class_name(c),
            sh_predict_seconds(row->alone, alone), "-",
            row->exposed > 0 ? sh_predict_seconds(row->exposed, exposed) : "-", (long long)row->calls,
            sh_predict_seconds(row->alone / (double)row->calls, one),
            sh_predict_seconds(row->latency / (double)row->calls, latency),
            row->exposed <= 0 ? ""
            : row->first      ? "; the first one is exposed"
            : row->last       ? "; the last one is exposed"
                              : "");
}

/* Time that no stream accounts for: nodes waiting for each other, and the host between two steps. */
static void say_rest(const struct sh_cost_step *step, FILE *out)
{
    char spread[SH_STR_SHORT], host[SH_STR_SHORT];

    if (step->bubble > 0)
        fprintf(out, "  %-16s %10s %10s %10s  this stage waits for others, %.0f %% of the step\n", "bubble", "-", "-",
                sh_predict_seconds(step->bubble, spread), 100 * step->bubble / step->seconds);
    fprintf(out, "  %-16s %10s %10s %10s  spread of the nodes %s, host %s\n", "waiting", "-", "-",
            sh_predict_seconds(step->spread + step->host, (char[SH_STR_SHORT]){0}),
            sh_predict_seconds(step->spread, spread), sh_predict_seconds(step->host, host));
}

/* The two parts whose removal would help most, with what a user can do about each. */
static sh_rc say_limits(const struct sh_cost_request *r, const struct sh_cost_step *step, FILE *out)
{
    struct sh_predict_limit limits[2];
    char text[SH_PREDICT_LIMIT_TEXT];

    SH_TRY(sh_predict_limits(r, step->seconds, limits));
    for (int i = 0; i < 2 && limits[i].part; i++)
        sh_str_say(out, i ? "then by" : "limited by", "%s: %s", sh_predict_limit_text(&limits[i], step, text),
                   limits[i].part->remedy);
    return SH_OK;
}

/* Whether twice as fast means half the duration; for the other parts it means twice the rate. */
static bool is_duration(const struct sh_predict_part *part)
{
    return part->offset == offsetof(struct sh_cost_faster, latency);
}

/* ", network / 2: -7.0 %"; returns its length. factor 0: ", no host: +0.0 %". */
static int change_text(const struct sh_predict_part *part, double factor, double gain, char *text, size_t room)
{
    /* Not "-0.0". */
    double percent = fabs(gain) < 0.0005 ? 0 : 100 * gain;
    bool divides = is_duration(part) ? factor > 1 : factor < 1;

    if (factor <= 0)
        return snprintf(text, room, ", no %s: %+.1f %%", part->name, percent);
    return snprintf(text, room, ", %s %c %g: %+.1f %%", part->name, divides ? '/' : 'x', fmax(factor, 1 / factor),
                    percent);
}

/* Each part in turn: `usual` times as fast, like the next generation of hardware, or removed if it has no such factor;
 * `poorer`, like a cheaper machine. */
static sh_rc say_what_if(const struct sh_cost_request *r, const struct sh_cost_step *step, FILE *out)
{
    char text[512] = "";
    size_t n = 0;

    for (int i = 0; i < sh_predict_n_parts; i++) {
        const struct sh_predict_part *part = &sh_predict_parts[i];
        const double factors[] = {part->usual, part->poorer};

        for (int k = 0; k < (part->poorer > 0 ? 2 : 1) && n < sizeof text; k++) {
            double gain;

            SH_TRY(sh_predict_gain(r, part, factors[k], step->seconds, &gain));
            n += (size_t)change_text(part, factors[k], gain, text + n, sizeof text - n);
        }
    }
    sh_str_say(out, "what if", "%s", text + strlen(", "));
    return SH_OK;
}

/* An interval within a factor of two of the best costs little; a larger deviation is worth a change. */
static void warn_interval(const struct sh_predict_failures *f, const struct sh_predict_job *job,
                          const struct sh_cost_step *step, FILE *out)
{
    double best, mine = job->save_steps * step->seconds;

    if (f->between <= 0 || mine <= 0)
        return;
    best = sh_predict_best_interval(f);
    if (mine > 2 * best || mine < best / 2)
        sh_str_say(out, "", "checkpoint.interval=%.0f is %s: %.2f %% go forward with it", job->save_steps,
                   mine > best ? "long" : "short", 100 * sh_predict_goodput(f, mine));
}

/* What near checkpoints make of it. */
static void say_recovery(const struct sh_cost_request *r, const struct sh_predict_job *job,
                         const struct sh_cost_step *step, FILE *out)
{
    struct sh_predict_recovery near = sh_predict_recovery_of(r->machine, job, step->seconds);
    double between = sh_predict_failures_of(r->machine, job).between;
    char silence[SH_STR_SHORT + 16] = "", end[SH_STR_SHORT + 16] = "", goes[64] = "";
    char load[SH_STR_SHORT], again[SH_STR_SHORT], copy[SH_STR_SHORT];

    if (near.silence > 0)
        snprintf(silence, sizeof silence, "silence %.3g s, ", near.silence);
    if (near.end > 0)
        snprintf(end, sizeof end, "end %.3g s, ", near.end);
    if (near.silence > 0 && between > 0)
        snprintf(goes, sizeof goes, "; %.2f %% of the time goes forward",
                 100 * sh_predict_near_goodput(&near, between));
    sh_str_say(
        out, "recovery",
        "%.3g s from memory after the loss of a %s: %s%sstart %.3g s, load %s, steps again %s; a copy takes %s%s",
        sh_predict_recovery_seconds(&near), near.silence > 0 ? "node" : "rank", silence, end, near.start,
        sh_predict_seconds(near.load, load), sh_predict_seconds(near.again, again), sh_predict_seconds(near.copy, copy),
        goes);
}

/* Prices are per device-hour, so time lost to failures costs too: the tokens per second are multiplied by the
 * goodput. */
static void say_failures(const struct sh_cost_request *r, const struct sh_predict_job *job,
                         const struct sh_cost_step *step, FILE *out)
{
    struct sh_predict_failures f = sh_predict_failures_of(r->machine, job);
    double every, goodput = sh_predict_job_goodput(r->machine, job, step->seconds);
    double price = r->machine->node.price_per_device_hour;
    char between[SH_STR_SHORT], interval[SH_STR_SHORT];

    if (f.between > 0) {
        every = sh_predict_best_interval(&f);
        sh_str_say(
            out, "failures",
            "one in %s of the job; best checkpoint.interval %.0f steps (%s), where %.2f %% of the time goes forward",
            sh_str_duration(f.between, between), fmax(1, every / step->seconds), sh_str_duration(every, interval),
            100 * sh_predict_goodput(&f, every));
    }
    warn_interval(&f, job, step, out);
    if (job->near_steps > 0)
        say_recovery(r, job, step, out);
    if (price > 0)
        fprintf(out, "cost         %.4g per billion tokens\n",
                price * job->ranks / (3600 * sh_predict_tokens_per_second(job, step) * goodput) * 1e9);
}

sh_rc sh_predict_say_answer(const struct sh_cost_request *r, const struct sh_predict_job *job,
                            const struct sh_cost_step *step, const char *memory, FILE *out)
{
    double rate = sh_predict_tokens_per_second(job, step);
    char seconds[SH_STR_SHORT], each[SH_STR_SHORT], all[SH_STR_SHORT], limit[SH_PREDICT_LIMIT_TEXT];
    struct sh_predict_limit limits[2];

    SH_TRY(sh_predict_limits(r, step->seconds, limits));
    sh_str_say(out, "step time", "%s on %s: %s tokens/s, %s per rank", sh_predict_seconds(step->seconds, seconds),
               r->machine->name, sh_str_count(llround(rate), all), sh_str_count(llround(rate / job->ranks), each));
    sh_str_say(out, "MFU", "%.1f %% of %.4g TFLOP/s",
               100 * sh_predict_mfu(job, step, r->machine, r->p->act, job->flops_causal),
               peak_of(r->machine, r->p->act) / 1e12);
    sh_str_say(out, "memory", "%s", memory);
    sh_str_say(out, "limited by", "%s", limits[0].part ? sh_predict_limit_text(&limits[0], step, limit) : "nothing");
    return SH_OK;
}

sh_rc sh_predict_say(const struct sh_cost_request *r, const struct sh_predict_job *job, const struct sh_cost_step *step,
                     FILE *out)
{
    say_step(r, job, step, out);
    fprintf(out, "  %-16s %10s %10s %10s\n", "", "alone", "slowed", "exposed");
    for (int c = 0; c < SH_COST_ALL_GATHER; c++)
        say_computation(r, step, (enum sh_cost_class)c, out);
    for (int c = SH_COST_ALL_GATHER; c < SH_COST_CLASSES; c++)
        say_collective(step, (enum sh_cost_class)c, out);
    say_rest(step, out);
    SH_TRY(say_limits(r, step, out));
    SH_TRY(say_what_if(r, step, out));
    say_failures(r, job, step, out);
    return SH_OK;
}
