/* Unicode normalization form C: characters are decomposed, marks sorted by class, and everything composed again. Most
 * text is in this form already, so a scan looks for places that may change, and only the stretch around such a place,
 * from one starter to the next, is processed. Hangul syllables are computed (Unicode, section 3.12), all other
 * characters are in tables. */
#include "src/text/token/steps/nfc.h"

#include "src/base/string/utf8.h"
#include "src/text/base/unicode.h"

#include <stdlib.h>

enum {
    S_BASE = 0xac00,
    L_BASE = 0x1100,
    V_BASE = 0x1161,
    T_BASE = 0x11a7,
    L_COUNT = 19,
    V_COUNT = 21,
    T_COUNT = 28,
    S_COUNT = L_COUNT * V_COUNT * T_COUNT,
    CHANGES = 255,      /* may compose with the character before, or is not itself in the form */
    PLAIN_BYTES = 0xcc, /* U+0300 begins with this byte, and no lower character changes */
};

/* One byte per code point: 1.1 MB, read by all threads. */
struct sh_nfc {
    unsigned char kind[SH_UNICODE_END]; /* 0: a starter, which can begin a stretch; combining class; or CHANGES */
};

struct mark {
    uint32_t code;
    int class;
    struct sh_span from; /* in the stretch */
};

/* The combining class; 0 for starters. */
static int class_of(uint32_t code)
{
    int low = 0, high = sh_unicode_combining_n;

    while (low < high) {
        int middle = (low + high) / 2;
        if (sh_unicode_combining[middle].last < code)
            low = middle + 1;
        else
            high = middle;
    }
    return low < sh_unicode_combining_n && sh_unicode_combining[low].first <= code ? sh_unicode_combining[low].class
                                                                                   : 0;
}

/* Return the decomposition; NULL: the character has none. Hangul is not in the table. */
static const struct sh_decomposed *parts_of(uint32_t code)
{
    int low = 0, high = sh_unicode_decomposed_n;

    while (low < high) {
        int middle = (low + high) / 2;
        if (sh_unicode_decomposed[middle].code < code)
            low = middle + 1;
        else
            high = middle;
    }
    return low < sh_unicode_decomposed_n && sh_unicode_decomposed[low].code == code ? &sh_unicode_decomposed[low]
                                                                                    : NULL;
}

/* Compose a leading consonant and a vowel, or such a syllable and a final consonant; 0: neither. Subtractions wrap
 * around, so one comparison checks both ends. */
static uint32_t compose_hangul(uint32_t a, uint32_t b)
{
    if (a - L_BASE < L_COUNT && b - V_BASE < V_COUNT)
        return S_BASE + ((a - L_BASE) * V_COUNT + (b - V_BASE)) * T_COUNT;
    if (a - S_BASE < S_COUNT && (a - S_BASE) % T_COUNT == 0 && b > T_BASE && b < T_BASE + T_COUNT)
        return a + (b - T_BASE);
    return 0;
}

/* Compose two code points; 0: they stay two. */
static uint32_t compose(uint32_t a, uint32_t b)
{
    int low = 0, high = sh_unicode_composed_n;
    uint64_t key = (uint64_t)a << 32 | b;

    while (low < high) {
        int middle = (low + high) / 2;
        if (((uint64_t)sh_unicode_composed[middle].a << 32 | sh_unicode_composed[middle].b) < key)
            low = middle + 1;
        else
            high = middle;
    }
    if (low < sh_unicode_composed_n && sh_unicode_composed[low].a == a && sh_unicode_composed[low].b == b)
        return sh_unicode_composed[low].code;
    return compose_hangul(a, b);
}

struct sh_nfc *sh_nfc_create(void)
{
    struct sh_nfc *t = sh_calloc(1, sizeof *t);

    for (int i = 0; i < sh_unicode_combining_n; i++)
        for (uint32_t c = sh_unicode_combining[i].first; c <= sh_unicode_combining[i].last; c++)
            t->kind[c] = (unsigned char)sh_unicode_combining[i].class;
    for (int i = 0; i < sh_unicode_decomposed_n; i++) {
        const struct sh_decomposed *d = &sh_unicode_decomposed[i];
        /* A character that decomposes and does not recompose never occurs in the form. */
        if (!d->b || compose(d->a, d->b) != d->code)
            t->kind[d->code] = CHANGES;
    }
    /* The second character of a pair may compose with the one before. */
    for (int i = 0; i < sh_unicode_composed_n; i++)
        t->kind[sh_unicode_composed[i].b] = CHANGES;
    /* Vowels and final consonants of Hangul compose with the character before. */
    memset(t->kind + V_BASE, CHANGES, V_COUNT);
    memset(t->kind + T_BASE + 1, CHANGES, T_COUNT - 1);
    return t;
}

void sh_nfc_destroy(struct sh_nfc *t)
{
    free(t);
}

/* Insert a mark so that marks stay sorted by class; marks of equal class keep their order. */
static void add_mark(struct mark **list, int *n, int *room, uint32_t code, struct sh_span from)
{
    int class = class_of(code), at = *n;

    *list = sh_grow(*list, *n, room, sizeof **list);
    for (; class && at > 0 && (*list)[at - 1].class > class; at--)
        (*list)[at] = (*list)[at - 1];
    (*list)[at] = (struct mark){code, class, from};
    (*n)++;
}

/* Decompose a character; marks are inserted in order as they come, starters stay where they are. */
static void decompose(struct mark **list, int *n, int *room, uint32_t code, struct sh_span from)
{
    uint32_t s = code - S_BASE;

    if (s < S_COUNT) {
        add_mark(list, n, room, L_BASE + s / (V_COUNT * T_COUNT), from);
        add_mark(list, n, room, V_BASE + s % (V_COUNT * T_COUNT) / T_COUNT, from);
        if (s % T_COUNT)
            add_mark(list, n, room, T_BASE + s % T_COUNT, from);
        return;
    }
    const struct sh_decomposed *parts = parts_of(code);
    if (!parts) {
        add_mark(list, n, room, code, from);
        return;
    }
    decompose(list, n, room, parts->a, from); /* a chain of at most three */
    if (parts->b)
        add_mark(list, n, room, parts->b, from);
}

static struct sh_span both(struct sh_span a, struct sh_span b)
{
    return (struct sh_span){a.begin < b.begin ? a.begin : b.begin, a.end > b.end ? a.end : b.end};
}

/* A mark composes with the last starter unless a mark of the same or a higher class, or another starter, is in between.
 * Returns the new n. */
static int recompose(struct mark *list, int n)
{
    int kept = 0, starter = -1, last = -1; /* last: class of the last one kept, -1: it is the starter */

    for (int i = 0; i < n; i++) {
        uint32_t made = starter >= 0 && last < list[i].class ? compose(list[starter].code, list[i].code) : 0;
        /* The mark is gone; the next one may compose, too. */
        if (made) {
            list[starter].code = made;
            list[starter].from = both(list[starter].from, list[i].from);
            continue;
        }
        if (list[i].class == 0) {
            starter = kept;
            last = -1;
        } else {
            last = list[i].class;
        }
        list[kept++] = list[i];
    }
    return kept;
}

/* Normalize one stretch, from a starter to the next. A composed character comes from all of its parts. */
static void apply_slowly(const unsigned char *text, size_t bytes, struct sh_text *out, const struct sh_span *from,
                         struct sh_spans *to)
{
    struct mark *list = NULL;
    int n = 0, room = 0;

    for (size_t i = 0, step; i < bytes; i += step) {
        uint32_t code = sh_utf8_get(text + i, &step);
        decompose(&list, &n, &room, code, (struct sh_span){(uint32_t)i, (uint32_t)(i + step)});
    }
    n = recompose(list, n);
    for (int i = 0; i < n; i++) {
        size_t made = sh_utf8_put(list[i].code, sh_text_room(out, SH_UTF8_MOST));
        out->n += made;
        if (from)
            sh_spans_make(to, from + list[i].from.begin, list[i].from.end - list[i].from.begin, made);
    }
    free(list);
}

/* Find the next place at or after `i` where something may change; *begin: the last starter before it. next_begin()
 * finds the end of the stretch. */
static size_t next_change(const struct sh_nfc *t, const unsigned char *text, size_t bytes, size_t i, size_t *begin)
{
    unsigned char last = 0;

    *begin = i;
    for (size_t step; i < bytes; i += step) {
        /* One or two bytes, not a mark, no change: nearly all Latin text takes this branch. */
        if (text[i] < PLAIN_BYTES) {
            step = text[i] < 0x80 ? 1 : 2;
            *begin = i;
            last = 0;
            continue;
        }
        unsigned char kind = t->kind[sh_utf8_get(text + i, &step)];
        if (kind == CHANGES || (kind && kind < last))
            return i;
        if (kind == 0)
            *begin = i;
        last = kind;
    }
    return bytes;
}

/* Find the end of a stretch: the next starter, or the end of the text. */
static size_t next_begin(const struct sh_nfc *t, const unsigned char *text, size_t bytes, size_t i)
{
    for (size_t step; i < bytes; i += step)
        if (t->kind[sh_utf8_get(text + i, &step)] == 0)
            return i;
    return bytes;
}

/* Returns false if the text is in the form already; then `out` is untouched. */
bool sh_nfc_apply(const struct sh_nfc *t, const unsigned char *text, size_t bytes, struct sh_text *out,
                  const struct sh_span *from, struct sh_spans *to)
{
    size_t done = 0, begin, i = next_change(t, text, bytes, 0, &begin);

    if (i == bytes)
        return false;
    while (i < bytes) {
        size_t end = next_begin(t, text, bytes, i);
        /* The unchanged text in between is copied. */
        sh_text_put(out, text + done, begin - done);
        if (from)
            sh_spans_keep(to, from + done, begin - done);
        apply_slowly(text + begin, end - begin, out, from ? from + begin : NULL, to);
        done = end;
        i = next_change(t, text, bytes, end, &begin);
    }
    sh_text_put(out, text + done, bytes - done);
    if (from)
        sh_spans_keep(to, from + done, bytes - done);
    return true;
}
