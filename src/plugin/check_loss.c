/* Checks of losses, which are functions of one or of four numbers: of targets of any log-probability, and of pairs of
 * answers of any length that the reference finds likelier or not. */
#include "src/plugin/check_loss.h"

#include "src/base/hash.h"
#include "src/plugin/process.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { POINTS = 200, SETS = 3 };

/* What a loss is called with, and what it makes. */
struct point {
    struct sherd_answer answer[2]; /* of a target only the first's logp */
    double number[SHERD_NUMBERS];
};

struct made {
    double value, slope[2];
};

__attribute__((format(printf, 2, 3))) static bool wrong(char text[SH_LOSS_WRONG], const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, SH_LOSS_WRONG, fmt, args);
    va_end(args);
    return false;
}

/* From 0 to 1. */
static double draw(int point, int what)
{
    return (double)(sh_mix64((uint64_t)point * 64 + (uint64_t)what + 1) >> 11) / 9007199254740992.0;
}

/* From -0.001 to -50: a target that is nearly certain, and one that is nearly impossible. */
static double logp_of(int point, int what)
{
    return -0.001 * pow(50000, draw(point, what));
}

/* Numbers are the defaults in one set, and others in the rest. */
static void put_numbers(const struct sherd_loss *loss, int set, double number[SHERD_NUMBERS])
{
    for (int k = 0; k < SHERD_NUMBERS; k++) {
        const struct sherd_number *n = &loss->number[k];
        double more = n->value + 0.25 * fabs(n->value) + 0.125;

        number[k] = set == 0        ? n->value
                    : set == 2      ? n->min + (n->value - n->min) / 4
                    : more < n->max ? more
                                    : (n->min + n->value) / 2;
    }
}

/* Some pairs have answers of one length, or are as likely as in the reference: each is before the first step. */
static struct point point_at(const struct sherd_loss *loss, int point, int set)
{
    struct point p;

    for (int k = 0; k < 2; k++) {
        struct sherd_answer *a = &p.answer[k];

        a->targets = loss->target ? 1 : 1 + floor(40 * draw(point, 4 * k));
        a->logp = logp_of(point, 4 * k + 1) * a->targets;
        a->reference = point % 32 == 1 ? a->logp : a->logp + 4 * draw(point, 4 * k + 2) - 2;
    }
    if (point % 32 == 2)
        p.answer[1].targets = p.answer[0].targets;
    put_numbers(loss, set, p.number);
    return p;
}

static struct made call(const struct sherd_loss *loss, const struct point *p)
{
    struct made m = {.slope = {NAN, loss->target ? 0 : NAN}};

    m.value = loss->target ? loss->target(p->answer[0].logp, p->number, m.slope)
                           : loss->pair(&p->answer[0], &p->answer[1], p->number, m.slope);
    return m;
}

static int answers_of(const struct sherd_loss *loss)
{
    return loss->target ? 1 : 2;
}

/* ---- gradient ---- */

/* The difference to one side, over h. */
static double side(const struct sherd_loss *loss, struct point p, int k, double h)
{
    double at = call(loss, &p).value, was = p.answer[k].logp;

    p.answer[k].logp = was + h;
    return (call(loss, &p).value - at) / (p.answer[k].logp - was);
}

static bool is_slope(const struct sherd_loss *loss, const struct point *p, int k, int *kinks, char text[SH_LOSS_WRONG])
{
    double h = 1e-5 * fmin(1, -p->answer[k].logp), right = side(loss, *p, k, h), left = side(loss, *p, k, -h);
    double difference = (left + right) / 2, slope = call(loss, p).slope[k];

    if (!isfinite(call(loss, p).value) || !isfinite(slope))
        return wrong(text, "the loss is %g and a slope %g (log-probability %.5g)", call(loss, p).value, slope,
                     p->answer[k].logp);
    if (!(fabs(left - right) <= 1e-2 * (fabs(left) + fabs(right)) + 1e-4)) { /* a kink */
        ++*kinks;
        return true;
    }
    if (fabs(slope - difference) <= 1e-4 * fabs(difference) + 1e-6)
        return true;
    return wrong(text, "the slope%s is %.7g where the difference of the loss is %.7g (log-probability %.5g)",
                 loss->target ? ""
                 : k == 0     ? " by the chosen answer"
                              : " by the rejected answer",
                 slope, difference, p->answer[k].logp);
}

static bool has_slopes(const struct sherd_loss *loss, char text[SH_LOSS_WRONG])
{
    int kinks = 0;

    for (int set = 0; set < SETS; set++)
        for (int i = 0; i < POINTS; i++)
            for (int k = 0; k < answers_of(loss); k++) {
                struct point p = point_at(loss, i, set);

                if (!is_slope(loss, &p, k, &kinks, text))
                    return false;
            }
    return kinks * 10 <= SETS * POINTS ? true
                                       : wrong(text, "it jumps in more than a tenth of points; is it made in double?");
}

/* ---- sign ---- */

/* That a loss teaches nothing but what is unlikely is no error of mathematics, so a run does not refuse it. */
static bool has_sign(const struct sherd_loss *loss, char text[SH_LOSS_WRONG])
{
    for (int i = 0; i < POINTS; i++) {
        struct point p = point_at(loss, i, 0);
        struct made m = call(loss, &p);

        if (m.slope[0] < 0 || m.slope[1] > 0)
            return true;
    }
    return wrong(
        text,
        loss->target
            ? "it rises for each target that becomes likelier: is a sign wrong?"
            : "it falls for no chosen answer that becomes likelier, and for no rejected one that does not: is a sign wrong?");
}

/* ---- numbers ---- */

static bool same(struct made a, struct made b)
{
    return memcmp(&a, &b, sizeof a) == 0;
}

/* With a number that a configuration may give. */
static bool is_finite(const struct sherd_loss *loss, int number, double value)
{
    bool finite = true;

    for (int i = 0; i < POINTS; i++) {
        struct point p = point_at(loss, i, 0);
        struct made m;

        p.number[number] = value;
        m = call(loss, &p);
        finite &= isfinite(m.value) && isfinite(m.slope[0]) && isfinite(m.slope[1]);
    }
    return finite;
}

static bool uses_numbers(const struct sherd_loss *loss, char text[SH_LOSS_WRONG])
{
    for (int k = 0; k < SHERD_NUMBERS && loss->number[k].name; k++) {
        const struct sherd_number *n = &loss->number[k];
        const double ends[] = {n->min, n->max};
        bool changes = n->min == n->max;

        for (int e = 0; e < 2; e++)
            if (!is_finite(loss, k, ends[e]))
                return wrong(text, "the loss or a slope is not finite if %s is %g, which its bounds allow", n->name,
                             ends[e]);
        for (int i = 0; i < POINTS && !changes; i++) {
            struct point p = point_at(loss, i, 0), other = p;

            other.number[k] = point_at(loss, i, 1).number[k];
            changes = !same(call(loss, &p), call(loss, &other));
        }
        if (!changes)
            return wrong(text, "%s changes nothing that it makes", loss->number[k].name);
    }
    return true;
}

/* ---- NaN, and what is not finite ---- */

static bool shows_nan(const struct sherd_loss *loss, char text[SH_LOSS_WRONG])
{
    static const double ends[] = {0, -1e-12, -700};

    for (int i = 0; i < POINTS; i++)
        for (int k = 0; k < answers_of(loss); k++) {
            struct point p = point_at(loss, i, i % SETS);

            p.answer[k].logp = NAN;
            if (!isnan(call(loss, &p).value))
                return wrong(
                    text,
                    "a log-probability that is NaN does not reach the loss; where it does not follow from x, return 0 * x");
        }
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < answers_of(loss); k++) {
            struct point p = point_at(loss, i, 0);
            struct made m;

            p.answer[k].logp = ends[i];
            m = call(loss, &p);
            if (!isfinite(m.value) || !isfinite(m.slope[0]) || !isfinite(m.slope[1]))
                return wrong(text, "the loss or a slope is not finite (log-probability %g)", ends[i]);
        }
    return true;
}

/* ---- bits ---- */

/* All points forwards, then backwards. */
static bool has_same_bits(const struct sherd_loss *loss, char text[SH_LOSS_WRONG])
{
    struct made first[POINTS];

    for (int i = 0; i < POINTS; i++) {
        struct point p = point_at(loss, i, i % SETS);

        first[i] = call(loss, &p);
    }
    for (int i = POINTS - 1; i >= 0; i--) {
        struct point p = point_at(loss, i, i % SETS), before = p;

        if (!same(first[i], call(loss, &p)))
            return wrong(text, "other bits in a second call (log-probability %.5g)", p.answer[0].logp);
        if (memcmp(&p, &before, sizeof p) != 0)
            return wrong(text, "it changes what it is given");
    }
    return true;
}

/* ---- process ---- */

static void call_again(const void *loss)
{
    struct point p = point_at(loss, 1, 0);

    call(loss, &p);
}

static bool leaves_process(const struct sherd_loss *loss, char text[SH_LOSS_WRONG])
{
    const char *done = sh_plugin_done_to_process(call_again, loss);

    return done ? wrong(text, "%s", done) : true;
}

const struct sh_loss_check sh_loss_checks[SH_LOSS_CHECKS] = {
    {"gradient", true, has_slopes}, {"sign", false, has_sign},     {"numbers", false, uses_numbers},
    {"nan", false, shows_nan},      {"bits", true, has_same_bits}, {"process", false, leaves_process}};
