/* Line charts as SVG, without scripts: axes, grid, lines, marks and a legend. A value is first mapped to 0 .. 1 by its
 * axis and then into the plot box; y grows downwards in SVG, so it is flipped there. Colours are classes of the page's
 * style sheet, which has light and dark ones. */
#include "src/tools/report/draw/html.h"

#include "src/base/number/median.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The drawing, and the room around the plot box: labels of starts above it, ticks and their titles to the left and
 * below, half of the last label to the right. */
enum { WIDTH = 560, HEIGHT = 300, WIDE_WIDTH = 1132, WIDE_HEIGHT = 390, LEFT = 64, RIGHT = 30, TOP = 24, BOTTOM = 46 };
/* A character of a label, and on a narrow screen, where they are larger. */
static const double letter = 7.8, narrow_letter = 12.4;
enum { TICK_ROOM = 34, TICK_ROOM_NARROW = 68, COLOURS = 8 };

static int width_of(const struct sh_chart *c)
{
    return c->wide ? WIDE_WIDTH : WIDTH;
}

static int right_of(const struct sh_chart *c)
{
    return width_of(c) - RIGHT;
}

static int bottom_of(const struct sh_chart *c)
{
    return (c->wide ? WIDE_HEIGHT : HEIGHT) - BOTTOM;
}

/* 0 at the axis' minimum, 1 at its maximum. Logarithmic axes must not start at 0. */
static double place(const struct sh_axis *a, double v)
{
    if (a->ticks == SH_TICKS_LOG)
        return log(v / a->min) / log(a->max / a->min);
    return (v - a->min) / (a->max - a->min);
}

static double x_of(const struct sh_chart *c, double v)
{
    return c->left + place(&c->x, v) * (right_of(c) - c->left);
}

/* SVG counts from the top. */
static double y_of(const struct sh_chart *c, double v)
{
    return bottom_of(c) - place(&c->y, v) * (bottom_of(c) - TOP);
}

/* ---- ticks ---- */

/* Short labels: "1.2 M", "50 %". Thousands are shortened from 10,000 on. */
static void tick_text(const struct sh_axis *a, double v, char out[SH_HTML_NUMBER])
{
    static const struct {
        double from, size;
        const char *name;
    } units[] = {{1e12, 1e12, "T"}, {1e9, 1e9, "G"}, {1e6, 1e6, "M"}, {1e4, 1e3, "k"}};

    if (a->ticks == SH_TICKS_PERCENT) {
        snprintf(out, SH_HTML_NUMBER, "%.0f %%", 100 * v);
        return;
    }
    if (a->n_at) { /* given values are shown in full: 16384, not 16.38 k */
        snprintf(out, SH_HTML_NUMBER, "%.6g", v);
        return;
    }
    if (v != 0 && fabs(v) < 1e-2) { /* "2e-5" is narrower than "0.00002" */
        int power = (int)floor(log10(fabs(v)) + 1e-9);

        snprintf(out, SH_HTML_NUMBER, "%.3ge%d", v / pow(10, power), power);
        return;
    }
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (fabs(v) >= units[i].from) {
            snprintf(out, SH_HTML_NUMBER, "%.4g %s", v / units[i].size, units[i].name);
            return;
        }
    snprintf(out, SH_HTML_NUMBER, "%.4g", v);
}

/* Draws a grid line with its text below. On a narrow screen the texts are larger, and the style hides those of class
 * fine. */
static void tick_x(struct sh_chart *c, double v, bool fine)
{
    char text[SH_HTML_NUMBER];
    double x = x_of(c, v);
    int bottom = bottom_of(c);

    tick_text(&c->x, v, text);
    fprintf(c->out,
            "<path class=\"grid\" d=\"M%.1f %dV%d\"/><text class=\"tick%s\" x=\"%.1f\" y=\"%d\" "
            "text-anchor=\"middle\">%s</text>\n",
            x, TOP, bottom, fine ? " fine" : "", x, bottom + 18, text);
}

/* Draws a grid line with its text at the left; there is room for all of them at any size. */
static void tick_y(struct sh_chart *c, double v, bool fine)
{
    char text[SH_HTML_NUMBER];
    double y = y_of(c, v);

    (void)fine;
    tick_text(&c->y, v, text);
    fprintf(c->out,
            "<path class=\"grid\" d=\"M%d %.1fH%d\"/><text class=\"tick\" x=\"%d\" y=\"%.1f\" "
            "text-anchor=\"end\">%s</text>\n",
            c->left, y, right_of(c), c->left - 7, y + 4, text);
}

/* Makes room for a label of the y axis. */
static void measure_y(struct sh_chart *c, double v, bool fine)
{
    char text[SH_HTML_NUMBER];

    (void)fine;
    tick_text(&c->y, v, text);
    c->left = (int)fmax(c->left, 10 + narrow_letter * (double)strlen(text));
}

typedef void tick_fn(struct sh_chart *c, double v, bool fine);

/* Ticks at the given values, unless they would overlap. */
static void given_ticks(struct sh_chart *c, const struct sh_axis *a, tick_fn *tick)
{
    double last = -INFINITY, last_wide = -INFINITY;
    double room = fmax(TICK_ROOM, 4 + letter * ceil(log10(a->at[a->n_at - 1] + 1)));

    for (int i = 0; i < a->n_at; i++) {
        double at = place(a, a->at[i]) * (right_of(c) - c->left);

        if (at - last < room)
            continue;
        tick(c, a->at[i], at - last_wide < TICK_ROOM_NARROW);
        if (at - last_wide >= TICK_ROOM_NARROW)
            last_wide = at;
        last = at;
    }
}

/* Ticks at 1, 2 or 5 times a power of ten, as many as fit. */
static void linear_ticks(struct sh_chart *c, const struct sh_axis *a, tick_fn *tick)
{
    double rough = (a->max - a->min) / (c->wide && a == &c->x ? 12 : 6), power = pow(10, floor(log10(rough))),
           ratio = rough / power;
    double step = power * (ratio <= 1 ? 1 : ratio <= 2 ? 2 : ratio <= 5 ? 5 : 10);

    /* Counting in integers avoids -0. */
    for (int64_t k = (int64_t)ceil(a->min / step - 1e-9); (double)k * step <= a->max + 1e-9 * step; k++)
        tick(c, (double)k * step, k % 2 != 0);
}

/* Ticks at 1, 2 and 5 in each decade; over more than four decades only at 1. */
static void log_ticks(struct sh_chart *c, const struct sh_axis *a, tick_fn *tick)
{
    static const double steps[] = {1, 2, 5};
    bool crowded = log10(a->max / a->min) > 4;

    for (double power = pow(10, floor(log10(a->min))); power <= a->max; power *= 10)
        for (int i = 0; i < (crowded ? 1 : 3); i++)
            if (power * steps[i] >= a->min && power * steps[i] <= a->max)
                tick(c, power * steps[i], i > 0);
}

/* Given values take precedence: ranks are few, and each should be named. */
static void ticks(struct sh_chart *c, const struct sh_axis *a, tick_fn *tick)
{
    if (a->n_at)
        given_ticks(c, a, tick);
    else if (a->ticks == SH_TICKS_LOG)
        log_ticks(c, a, tick);
    else
        linear_ticks(c, a, tick);
}

/* ---- the frame ---- */

/* The note is what a reader must know to read the figure; it stays visible on paper. */
void sh_chart_begin(struct sh_chart *c, const char *title, const char *about, const char *note)
{
    FILE *out = c->out;
    int bottom = bottom_of(c), right = right_of(c);

    c->left = LEFT;
    ticks(c, &c->y, measure_y);
    c->labels_end = c->left;
    fprintf(out, "<figure class=\"%s\">\n<figcaption><strong>%s</strong>", c->wide ? "wide" : "half", title);
    sh_html_tip(out, about);
    fprintf(out, " %s</figcaption>\n<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"%s\">\n", note, width_of(c),
            bottom + BOTTOM, title);
    ticks(c, &c->x, tick_x);
    ticks(c, &c->y, tick_y);
    fprintf(out, "<path class=\"frame\" d=\"M%d %dV%dH%d\"/>\n", c->left, TOP, bottom, right);
    fprintf(out, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%s</text>\n", (c->left + right) / 2,
            bottom + BOTTOM - 8, c->x.title);
    fprintf(out, "<text class=\"side\" transform=\"translate(13 %d) rotate(-90)\" text-anchor=\"middle\">%s</text>\n",
            (TOP + bottom) / 2, c->y.title);
}

void sh_chart_end(const struct sh_chart *c)
{
    fputs("</svg>\n</figure>\n", c->out);
}

bool sh_axis_around(struct sh_axis *a, double least, double most)
{
    bool wide = least > 0 && most / least > 100;
    double room = fmax((most - least) * 0.05, 1e-3 * fmax(fabs(least), fabs(most))); /* larger than rounding errors */

    if (!(most >= least))
        return false;
    a->ticks = wide ? SH_TICKS_LOG : SH_TICKS_LINEAR;
    a->min = wide ? least / 1.1 : least - fmax(room, 1e-29);
    a->max = wide ? most * 1.1 : most + fmax(room, 1e-29);
    return true;
}

/* Few values have no quantile worth the name. */
double sh_axis_top(int n, double *values)
{
    enum { FEW = 50 };
    double top;

    sh_sort_doubles(n, values);
    if (n < FEW)
        return n ? values[n - 1] : NAN;
    top = values[(int)(0.98 * (n - 1))];
    return values[n - 1] - top > 0.5 * (top - values[0]) ? top : values[n - 1];
}

/* ---- marks: colour and shape repeat after 8, colour and dashes together after 40 ---- */

/* Opens the path; the caller writes its points and closes it. Lines are solid first, then dashed, with gaps that show a
 * line below. */
static void open_line(FILE *out, int look, int above)
{
    static const char *const widths[] = {"", " w1", " w2"}, *const dashes[] = {"", "7 3", "2 2.5", "9 3 2 3", "14 4"};
    const char *dash = dashes[look % 5];

    fprintf(out, "<path class=\"l%s k%d\"%s%s%s d=\"", widths[above < 2 ? above : 2], look % COLOURS,
            dash[0] ? " stroke-dasharray=\"" : "", dash, dash[0] ? "\"" : "");
}

/* Where the line from one point to another, one of them above the axis, crosses its top. */
static double crossing(const struct sh_chart *c, const double *x, const double *y)
{
    double top = place(&c->y, c->y.max), from = place(&c->y, y[0]), to = place(&c->y, y[1]);

    return x[0] + (x[1] - x[0]) * (top - from) / (to - from);
}

/* A value that is not finite leaves a gap instead of a line to infinity. */
void sh_chart_line(const struct sh_chart *c, int look, int above, int n, const double *x, const double *y)
{
    bool was_in = false, was_out = false;

    open_line(c->out, look, above);
    for (int i = 0; i < n; i++) {
        bool out = isfinite(y[i]) && y[i] > c->y.max, in = isfinite(y[i]) && !out;

        if ((in && was_out) || (out && was_in))
            fprintf(c->out, "%s%.1f %d", in ? "M" : "L", x_of(c, crossing(c, x + i - 1, y + i - 1)), TOP);
        if (in)
            fprintf(c->out, "%s%.1f %.1f", was_in || was_out ? "L" : "M", x_of(c, x[i]), y_of(c, y[i]));
        was_in = in;
        was_out = out;
    }
    fputs("\"/>\n", c->out);
}

void sh_chart_band(const struct sh_chart *c, int look, int n, const double *x, const double *low, const double *high)
{
    if (n < 2)
        return;
    fprintf(c->out, "<path class=\"band f%d\" d=\"", look % COLOURS);
    for (int i = 0; i < n; i++)
        fprintf(c->out, "%s%.1f %.1f", i ? "L" : "M", x_of(c, x[i]), y_of(c, low[i]));
    for (int i = n - 1; i >= 0; i--)
        fprintf(c->out, "L%.1f %.1f", x_of(c, x[i]), y_of(c, high[i]));
    fputs("z\"/>\n", c->out);
}

/* A reference line behind the data, such as ideal scaling. */
void sh_chart_guide(const struct sh_chart *c, double x0, double y0, double x1, double y1)
{
    fprintf(c->out, "<path class=\"guide\" d=\"M%.1f %.1fL%.1f %.1f\"/>\n", x_of(c, x0), y_of(c, y0), x_of(c, x1),
            y_of(c, y1));
}

void sh_chart_guess(const struct sh_chart *c, double x0, double y0, double x1, double y1)
{
    fprintf(c->out, "<path class=\"guess\" d=\"M%.1f %.1fL%.1f %.1f\"/>\n", x_of(c, x0), y_of(c, y0), x_of(c, x1),
            y_of(c, y1));
}

/* To the right of its line or, near the edge, to the left; the tooltip has what there is no room for. */
void sh_chart_start(struct sh_chart *c, int look, double x, const char *label, const char *note)
{
    double at = x_of(c, x), width = (double)strlen(label) * (c->wide ? letter : narrow_letter);
    bool left = at + width > width_of(c);

    if (look < 0)
        fputs("<path class=\"start\"", c->out);
    else
        fprintf(c->out, "<path class=\"start k%d\"", look % COLOURS);
    fprintf(c->out, " d=\"M%.1f %dV%d\"><title>", at, TOP, bottom_of(c));
    sh_html_text(c->out, note);
    fputs("</title></path>\n", c->out);
    if (at - (left ? width : 0) < c->labels_end)
        return;
    fprintf(c->out, "<text class=\"tick\" x=\"%.1f\" y=\"%d\" text-anchor=\"%s\">", at, TOP - 7,
            left ? "end" : "start");
    sh_html_text(c->out, label);
    fputs("</text>\n", c->out);
    c->labels_end = left ? at : at + width + letter;
}

void sh_chart_spread(const struct sh_chart *c, int look, double x, double least, double most)
{
    double at = x_of(c, x);

    fprintf(c->out, "<path class=\"l spread k%d\" d=\"M%.1f %.1fV%.1fM%.1f %.1fh8M%.1f %.1fh8\"/>\n", look % COLOURS,
            at, y_of(c, least), y_of(c, most), at - 4, y_of(c, least), at - 4, y_of(c, most));
}

/* Eight shapes of about the same area, so that a chart can be read without colours. The note becomes a tooltip. */
static void shape(FILE *out, int look, double x, double y, const char *note)
{
    static const char *const shapes[COLOURS] = {
        "m-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z",
        "m-3.6 -3.6h7.2v7.2h-7.2z",
        "m0 -4.6l4.4 7.8h-8.8z",
        "m0 -5l5 5l-5 5l-5 -5z",
        "m0 4.6l4.4 -7.8h-8.8z",
        "m-4 -4l8 8m0 -8l-8 8",
        "m-5 0h10m-5 -5v10",
        "m-3 -4.6h6v9.2h-6z",
    };

    fprintf(out, "<path class=\"m k%d\" d=\"M%.1f %.1f%s\"><title>", look % COLOURS, x, y, shapes[look % COLOURS]);
    sh_html_text(out, note);
    fputs("</title></path>\n", out);
}

void sh_chart_mark(const struct sh_chart *c, int look, double x, double y, const char *note)
{
    if (y <= c->y.max)
        shape(c->out, look, x_of(c, x), y_of(c, y), note);
}

void sh_legend_begin(FILE *out)
{
    fputs("<ul class=\"legend\">\n", out);
}

/* line, mark: which of the two the chart shows for this entry. */
void sh_legend_entry(FILE *out, int look, bool line, bool mark, const char *text)
{
    fputs("<li><svg width=\"34\" height=\"12\" aria-hidden=\"true\">", out);
    if (line) {
        open_line(out, look, 0);
        fputs("M1 6H33\"/>", out);
    }
    if (mark)
        shape(out, look, 17, 6, text);
    fputs("</svg>", out);
    sh_html_text(out, text);
    fputs("</li>\n", out);
}

void sh_legend_end(FILE *out)
{
    fputs("</ul>\n", out);
}
