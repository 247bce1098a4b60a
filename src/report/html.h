/* Text, numbers and charts for a page. Inside src/report; local.
 *
 * A chart is a figure: a caption, and a plot box with two axes in an SVG of its own. sh_chart_begin(), the marks,
 * sh_chart_end(). Captions and legends are text beside the drawing, so that they wrap on a narrow screen. A mark is told by colour, and by dashes or shape as well, for paper in grey and for eyes that see
 * colours otherwise; colours are classes, so that the style sheet has one set for light and one for dark. */
#ifndef SH_REPORT_HTML_H
#define SH_REPORT_HTML_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Text as text: nothing in it becomes markup, and bytes that are no allowed character become '?'. */
void sh_html_text(FILE *out, const char *text);

void sh_html_style(FILE *out); /* the style sheet */

/* A table of more rows than these is folded away, so that a reader finds what comes behind it. Around it, with its rows. */
enum { SH_HTML_MOST_ROWS = 64 };
void sh_html_fold(FILE *out, int rows);
void sh_html_unfold(FILE *out, int rows);

enum { SH_HTML_NUMBER = 48 };

/* "12,345" or "0.0123": three digits and more, as in running text; "–" for what is not finite. Returns out. */
const char *sh_html_number(double v, char out[SH_HTML_NUMBER]);

enum sh_axis_ticks { SH_TICKS_LINEAR, SH_TICKS_LOG, SH_TICKS_PERCENT };

struct sh_axis {
    double min, max; /* min < max; > 0 where the scale is a logarithm */
    enum sh_axis_ticks ticks;
    const char *title; /* with the unit */
    const double *at;  /* (optional) [n_at] ascending; ticks stand here and nowhere else */
    int n_at;
};

enum { SH_CHART_WIDTH = 560, SH_CHART_HEIGHT = 294 };

struct sh_chart {
    FILE *out;
    struct sh_axis x, y;
};

/* Open the figure: caption, grid, axes. The title says what is shown, `good` which direction is better. */
void sh_chart_begin(const struct sh_chart *c, const char *title, const char *good);
void sh_chart_end(const struct sh_chart *c);

/* A line through n points; one with a value that is not finite breaks it. `above`: how many lines that are drawn later
 * lie on it; it is wider then, so that it is seen below them. */
void sh_chart_line(const struct sh_chart *c, int look, int above, int n, const double *x, const double *y);
/* A thin line between two points, for what is ideal. */
void sh_chart_guide(const struct sh_chart *c, double x0, double y0, double x1, double y1);
/* The same for what was predicted. */
void sh_chart_guess(const struct sh_chart *c, double x0, double y0, double x1, double y1);
/* A bar from the least to the most of a value that was measured several times. */
void sh_chart_spread(const struct sh_chart *c, int look, double x, double least, double most);
/* A shape with a text that shows when the pointer rests on it. */
void sh_chart_mark(const struct sh_chart *c, int look, double x, double y, const char *note);

/* From least to most of all finite values with some room, as a logarithm where they span two decades; false: there are
 * none. */
bool sh_axis_around(struct sh_axis *a, double least, double most);

/* The legend: begin, an entry for each look, end. */
void sh_legend_begin(FILE *out);
void sh_legend_entry(FILE *out, int look, bool line, bool mark, const char *text);
void sh_legend_end(FILE *out);

#endif
