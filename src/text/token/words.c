/* A hash table from texts to ids, with open addressing. Texts are lent: they are in the tokenizer's store. */
#include "src/text/token/words.h"

#include "src/base/mem.h"

#include <stdlib.h>

/* Allocate at least two rows per word, so a search ends after a step or two. n is an upper bound on the words. */
void sh_words_init(struct sh_words *w, size_t n)
{
    size_t rows = 16; /* a file has fewer than 2^28 words, as it has fewer bytes */

    while (rows < n * 2)
        rows *= 2;
    *w = (struct sh_words){.row = sh_calloc(rows, sizeof *w->row), .mask = (uint32_t)(rows - 1)};
}

void sh_words_free(struct sh_words *w)
{
    free(w->row);
    *w = (struct sh_words){0};
}

/* Find the row of the text, or the free row where it would be. */
static struct sh_word *find(const struct sh_words *w, const void *text, size_t bytes)
{
    uint32_t i = (uint32_t)(sh_words_hash(text, bytes) >> 20) & w->mask;

    /* Compare lengths first: they differ most often. */
    while (w->row[i].text && (w->row[i].bytes != bytes || memcmp(w->row[i].text, text, bytes) != 0))
        i = (i + 1) & w->mask;
    return &w->row[i];
}

/* Returns false if the text is there already; it keeps its id then. */
bool sh_words_put(struct sh_words *w, const void *text, size_t bytes, uint32_t id)
{
    struct sh_word *row = find(w, text, bytes);

    if (row->text)
        return false;
    *row = (struct sh_word){text, (uint32_t)bytes, id};
    w->n++;
    return true;
}

/* Returns SH_NO_ID if there is no such word. */
int64_t sh_words_get(const struct sh_words *w, const void *text, size_t bytes)
{
    const struct sh_word *row = find(w, text, bytes);

    return row->text ? (int64_t)row->id : SH_NO_ID;
}
