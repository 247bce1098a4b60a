/* Documents on a terminal: text if the tokenizer is known, else ids; parts that are trained on are in brackets. */
#include "src/text/command/show.h"

#include <stdlib.h>
#include <string.h>

/* Control characters other than line ends and tabs would act on a terminal. Those from U+0080 on, two bytes each, start
 * commands too: U+009B is ESC [. */
static void put_text(FILE *out, const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        unsigned char c = (unsigned char)text[i], next = i + 1 < bytes ? (unsigned char)text[i + 1] : 0;
        if (c == 0xc2 && next >= 0x80 && next < 0xa0) {
            fprintf(out, "\\x%02x", next);
            i++;
        } else if ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7f) {
            fprintf(out, "\\x%02x", c);
        } else {
            putc(c, out);
        }
    }
}

/* Special tokens are shown too: otherwise a chat whose marks are missing would look right. */
static sh_rc put_ids(FILE *out, const struct sh_tokenizer *t, const uint32_t *ids, size_t n)
{
    char *text;
    size_t bytes;

    for (size_t i = 0; i < n && !t; i++)
        fprintf(out, "%s%u", i ? " " : "", ids[i]);
    if (!t)
        return SH_OK;
    SH_TRY(sh_decode_ids(t, ids, n, true, &text, &bytes));
    put_text(out, text, bytes);
    free(text);
    return SH_OK;
}

/* Prints runs of equal mask, since a character may span several tokens, which can only be decoded together. The
 * brackets are U+27E8 and U+27E9, which hardly occur in text. */
sh_rc sh_show_document(FILE *out, const struct sh_tokenizer *t, const uint32_t *ids, const unsigned char *mask,
                       size_t n)
{
    for (size_t at = 0, end; at < n; at = end) {
        bool trained = mask && mask[at];
        for (end = at + 1; end < n && mask && !mask[end] == !trained;)
            end++;
        if (!mask)
            end = n;
        if (at && !t)
            putc(' ', out);
        if (trained)
            fputs("\xe2\x9f\xa8", out);
        SH_TRY(put_ids(out, t, ids + at, end - at));
        if (trained)
            fputs("\xe2\x9f\xa9", out);
    }
    putc('\n', out);
    return SH_OK;
}
