/* Text, numbers and charts for a page. Inside src/report; local.
 *
 * A chart is a figure: a caption, and a plot box with two axes in one SVG. Call sh_chart_begin(), the marks,
 * sh_chart_end(). Captions and legends are text next to the drawing, so that they wrap on a narrow screen. A mark is
 * identified by colour, and also by dashes or shape, for grey prints and for readers who see colours differently;
 * colours are classes, so that the style sheet has one set for light and one for dark mode. */
#ifndef SH_REPORT_HTML_H
#define SH_REPORT_HTML_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Writes text as text: nothing in it becomes markup, and bytes that are not allowed characters become '?'. */
void sh_html_text(FILE *out, const char *text);

void sh_html_style(FILE *out); /* the style sheet */

/* A table with more rows than this is folded away, so that a reader finds what follows it. Call the two around the
 * table, with the number of its rows. */
enum { SH_HTML_MOST_ROWS = 64 };
void sh_html_fold(FILE *out, int rows);
void sh_html_unfold(FILE *out, int rows);

enum { SH_HTML_NUMBER = 48 };

/* "12,345" or "0.0123": at least three digits, as in running text; "–" if v is not finite. Returns out. */
const char *sh_html_number(double v, char out[SH_HTML_NUMBER]);

enum sh_axis_ticks { SH_TICKS_LINEAR, SH_TICKS_LOG, SH_TICKS_PERCENT };

struct sh_axis {
    double min, max; /* min < max; > 0 if the scale is logarithmic */
    enum sh_axis_ticks ticks;
    const char *title; /* with the unit */
    const double *at;  /* (optional) [n_at] ascending; ticks only at these values */
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

/* A line through n points; a value that is not finite breaks it. `above`: the number of later lines drawn over it; the
 * line is then wider, so that it can be seen below them. */
void sh_chart_line(const struct sh_chart *c, int look, int above, int n, const double *x, const double *y);
/* A thin line between two points, for the ideal. */
void sh_chart_guide(const struct sh_chart *c, double x0, double y0, double x1, double y1);
/* The same for a prediction. */
void sh_chart_guess(const struct sh_chart *c, double x0, double y0, double x1, double y1);
/* A bar from the least to the most of a value measured several times. */
void sh_chart_spread(const struct sh_chart *c, int look, double x, double least, double most);
/* A shape with a text that appears when the pointer rests on it. */
void sh_chart_mark(const struct sh_chart *c, int look, double x, double y, const char *note);

/* Set the range from least to most of all finite values, with some room, logarithmic if they span two decades; false:
 * there are none. */
bool sh_axis_around(struct sh_axis *a, double least, double most);

/* The legend: begin, an entry for each look, end. */
void sh_legend_begin(FILE *out);
void sh_legend_entry(FILE *out, int look, bool line, bool mark, const char *text);
void sh_legend_end(FILE *out);

#endif
