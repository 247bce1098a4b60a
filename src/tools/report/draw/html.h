/* Text, numbers, tables and charts for a page. Inside src/tools/report; local.
 *
 * A table: sh_table_begin(), for each row sh_table_row() and its cells in the order of the columns, sh_table_end().
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

/* Writes text as text: nothing in it becomes markup, and bytes that are not allowed characters become '?'. Of an
 * absolute path only the last part is written: a page is made to be shown to others. */
void sh_html_text(FILE *out, const char *text);
/* The same with tabs and ends of lines, and with paths as they are. */
void sh_html_lines(FILE *out, const char *text);

/* A question mark that explains: `about` appears when the pointer or the focus rests on it. */
void sh_html_tip(FILE *out, const char *about);
void sh_html_heading(FILE *out, const char *title, const char *about); /* about: NULL for none */

void sh_html_style(FILE *out); /* the style sheet */
void sh_html_swatch(FILE *out, int colour);

enum { SH_HTML_NUMBER = 48 };

/* "12,345" or "0.0123": at least three digits, as in running text; "–" if v is not finite. Returns out. */
const char *sh_html_number(double v, char out[SH_HTML_NUMBER]);

/* A table with more rows than this is folded away, so that a reader finds what follows it. */
enum { SH_TABLE_MOST_ROWS = 64 };

struct sh_column {
    const char *head;
    bool text;   /* on the left; else a number, on the right */
    bool breaks; /* a text that may break anywhere */
    bool bar;    /* a drawing as wide as the table allows */
    bool hidden; /* head and cells are not written */
    int swatch;  /* 1 + the colour that the column has in the bars; 0: none */
};

struct sh_table {
    FILE *out;
    const struct sh_column *columns;
    int n, rows, at; /* at: cells of this row so far */
};

void sh_table_begin(struct sh_table *t, FILE *out, int rows, int n, const struct sh_column *columns);
void sh_table_row(struct sh_table *t);
void sh_table_cell(struct sh_table *t, const char *fmt, ...) __attribute__((format(printf, 2, 3))); /* markup */
void sh_table_text(struct sh_table *t, const char *text); /* NULL: a dash, like a number that is not finite */
void sh_table_number(struct sh_table *t, double v);
void sh_table_measure(struct sh_table *t, const char *fmt, double v) __attribute__((format(printf, 2, 0)));
void sh_table_rest(struct sh_table *t, const char *text); /* in place of all cells that are left */
void sh_table_end(struct sh_table *t);

enum sh_axis_ticks { SH_TICKS_LINEAR, SH_TICKS_LOG, SH_TICKS_PERCENT };

struct sh_axis {
    double min, max; /* min < max; > 0 if the scale is logarithmic */
    enum sh_axis_ticks ticks;
    const char *title; /* with the unit */
    const double *at;  /* (optional) [n_at] ascending; ticks only at these values */
    int n_at;
};

struct sh_chart {
    FILE *out;
    struct sh_axis x, y;
    bool wide;         /* as wide as the page; else half of that, or a phone */
    int left;          /* set by sh_chart_begin(): room for the labels of y */
    double labels_end; /* of the starts labelled so far */
};

/* Open the figure: caption, grid, axes. The title says what is shown, `about` explains it. */
void sh_chart_begin(struct sh_chart *c, const char *title, const char *about, const char *note);
void sh_chart_end(const struct sh_chart *c);

/* A line through n points; a value that is not finite breaks it, and it leaves the box where it rises above the axis.
 * `above`: the number of later lines drawn over it; the line is then wider, so that it can be seen below them. */
void sh_chart_line(const struct sh_chart *c, int look, int above, int n, const double *x, const double *y);
/* The area between two lines of finite values. */
void sh_chart_band(const struct sh_chart *c, int look, int n, const double *x, const double *low, const double *high);
/* A thin line between two points, for the ideal. */
void sh_chart_guide(const struct sh_chart *c, double x0, double y0, double x1, double y1);
/* The same for a prediction. */
void sh_chart_guess(const struct sh_chart *c, double x0, double y0, double x1, double y1);
/* A thin line over the whole height, with a label above it if there is room; ascending in x. Grey if look < 0. */
void sh_chart_start(struct sh_chart *c, int look, double x, const char *label, const char *note);
/* A bar from the least to the most of a value measured several times. */
void sh_chart_spread(const struct sh_chart *c, int look, double x, double least, double most);
/* A shape with a text that appears when the pointer rests on it; none above the axis. */
void sh_chart_mark(const struct sh_chart *c, int look, double x, double y, const char *note);

/* Set the range from least to most of all finite values, with some room, logarithmic if they span two decades; false:
 * there are none. */
bool sh_axis_around(struct sh_axis *a, double least, double most);

/* The top of an axis that shows n values, which are sorted: their 98 % quantile if the few above it would take more
 * than a third of the height, else the largest. */
double sh_axis_top(int n, double *values);

/* The legend: begin, an entry for each look, end. */
void sh_legend_begin(FILE *out);
void sh_legend_entry(FILE *out, int look, bool line, bool mark, const char *text);
void sh_legend_end(FILE *out);

#endif
