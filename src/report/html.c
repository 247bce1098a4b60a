/* Text and numbers on the page. All text from files (names of runs, values of keys, reasons) goes through
 * sh_html_text(), so it can neither open a tag nor make the page invalid. */
#include "src/report/html.h"

#include "src/config/text.h"

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

/* Bytes that are not allowed text become question marks, one each. */
void sh_html_text(FILE *out, const char *text)
{
    size_t left = strlen(text), good;

    while (left) {
        good = sh_config_text_bad(text, left, false);
        for (size_t i = 0; i < good; i++)
            write_char(out, text[i]);
        if (good < left)
            fputc('?', out);
        good += good < left;
        text += good;
        left -= good;
    }
}

/* Keeps a page of many runs readable: tables open at a click, without a script. */
void sh_html_fold(FILE *out, int rows)
{
    if (rows > SH_HTML_MOST_ROWS)
        fprintf(out, "<details><summary>The table: %d rows</summary>\n", rows);
}

void sh_html_unfold(FILE *out, int rows)
{
    fputs(rows > SH_HTML_MOST_ROWS ? "</details>\n" : "", out);
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
