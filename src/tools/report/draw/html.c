/* Text and numbers on the page. All text from files (names of runs, values of keys, reasons) goes through
 * sh_html_text(), so it can neither open a tag nor make the page invalid. */
#include "src/tools/report/draw/html.h"

#include "src/config/read/text.h"

#include <math.h>
#include <string.h>

/* Escapes the five characters that have a meaning in HTML. */
static void write_char(FILE *out, char c)
{
    static const char *const names[] = {
        ['&'] = "&amp;", ['<'] = "&lt;", ['>'] = "&gt;", ['"'] = "&quot;", ['\''] = "&#39;"};
    unsigned char byte = (unsigned char)c;

    if (byte < sizeof names / sizeof *names && names[byte])
        fputs(names[byte], out);
    else
        fputc(c, out);
}

/* The bytes of an absolute path at `text` before its last part; 0: no path starts here. */
static size_t folders_of(const char *text, char before)
{
    size_t n = 0, all = strcspn(text, " \t\n\"',:;=()[]{}<>");

    if (text[0] != '/' || strchr("/ ", text[1]) || (before && !strchr(" \t\n\"',:;=([{", before)))
        return 0;
    for (size_t i = 1; i + 1 < all; i++)
        n = text[i] == '/' ? i : n;
    return n;
}

/* Bytes that are not allowed text become question marks, one each. */
static void write_text(FILE *out, const char *text, bool layout)
{
    size_t left = strlen(text), good;
    char before = 0;

    while (left) {
        good = sh_config_text_bad(text, left, layout);
        for (size_t i = 0; i < good; before = text[i++]) {
            size_t folders = layout ? 0 : folders_of(text + i, before);

            fputs(folders ? "…" : "", out);
            i += folders < good - i ? folders : 0;
            write_char(out, text[i]);
        }
        if (good < left)
            fputc('?', out);
        good += good < left;
        text += good;
        left -= good;
    }
}

void sh_html_text(FILE *out, const char *text)
{
    write_text(out, text, false);
}

void sh_html_lines(FILE *out, const char *text)
{
    write_text(out, text, true);
}

/* The sign itself is in the style sheet, which leaves it out on paper. */
void sh_html_tip(FILE *out, const char *about)
{
    fputs("<span class=\"tip\" tabindex=\"0\" title=\"", out);
    sh_html_text(out, about);
    fputs("\"></span>", out);
}

void sh_html_heading(FILE *out, const char *title, const char *about)
{
    fprintf(out, "<h2>%s", title);
    if (about)
        sh_html_tip(out, about);
    fputs("</h2>\n", out);
}

/* Separates the thousands of a whole number by commas. */
static const char *grouped(double v, char out[SH_HTML_NUMBER])
{
    char digits[SH_HTML_NUMBER / 2];
    int n = snprintf(digits, sizeof digits, "%.0f", fabs(v)), to = 0;

    if (v < 0)
        out[to++] = '-';
    for (int i = 0; i < n; i++) {
        if (i > 0 && (n - i) % 3 == 0)
            out[to++] = ',';
        out[to++] = digits[i];
    }
    out[to] = '\0';
    return out;
}

/* Three digits below 1,000, whole numbers with commas from there on, a dash if v is not finite. */
const char *sh_html_number(double v, char out[SH_HTML_NUMBER])
{
    if (!isfinite(v))
        snprintf(out, SH_HTML_NUMBER, "\u2013");
    else if (fabs(v) >= 1000 && fabs(v) < 1e15)
        grouped(v, out);
    else
        snprintf(out, SH_HTML_NUMBER, "%.3g", v);
    return out;
}
