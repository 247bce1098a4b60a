/* Unicode normalization form C: characters are decomposed, marks sorted by class, and joined again. Most text is in
 * this form already, so a scan looks for places that may change, and only the stretch around such a place, from one
 * beginning to the next, is worked through. Hangul syllables are computed (Unicode, section 3.12), all others are in
 * tables. */
#include "io/token/nfc.h"

#include "io/token/unicode.h"
#include "src/base/utf8.h"

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
    CHANGES = 255,      /* may compose with what stands before, or is not in the form itself */
    PLAIN_BYTES = 0xcc, /* U+0300 begins with this byte, and no character below it changes */
};

/* A byte for each code point: 1.1 MB, read by all threads. */
struct sh_nfc {
    unsigned char kind[SH_UNICODE_END]; /* 0: all begins anew with it; its combining class; CHANGES */
};

struct mark {
    uint32_t code;
    int class;
};

/* 0 for characters that begin anew. */
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

/* NULL: it is its own form. Hangul is not in the table. */
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

/* A leading consonant and a vowel, or such a syllable and a final consonant; 0: neither. Subtractions wrap around, so
 * one comparison checks both ends. */
static uint32_t compose_hangul(uint32_t a, uint32_t b)
{
    if (a - L_BASE < L_COUNT && b - V_BASE < V_COUNT)
        return S_BASE + ((a - L_BASE) * V_COUNT + (b - V_BASE)) * T_COUNT;
    if (a - S_BASE < S_COUNT && (a - S_BASE) % T_COUNT == 0 && b > T_BASE && b < T_BASE + T_COUNT)
        return a + (b - T_BASE);
    return 0;
}

/* What two code points become, 0: they stay two. */
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
        /* A character that decomposes and does not come back is never in the form. */
        if (!d->b || compose(d->a, d->b) != d->code)
            t->kind[d->code] = CHANGES;
    }
    /* Second characters of a pair may join what stands before. */
    for (int i = 0; i < sh_unicode_composed_n; i++)
        t->kind[sh_unicode_composed[i].b] = CHANGES;
    /* Vowels and final consonants of Hangul join what stands before. */
    memset(t->kind + V_BASE, CHANGES, V_COUNT);
    memset(t->kind + T_BASE + 1, CHANGES, T_COUNT - 1);
    return t;
}

void sh_nfc_destroy(struct sh_nfc *t)
{
    free(t);
}

/* Keep marks sorted by class as they come; equal ones keep their order. */
static void add_mark(struct mark **list, int *n, int *room, uint32_t code)
{
    int class = class_of(code), at = *n;

    *list = sh_grow(*list, *n, room, sizeof **list);
    for (; class && at > 0 && (*list)[at - 1].class > class; at--)
        (*list)[at] = (*list)[at - 1];
    (*list)[at] = (struct mark){code, class};
    (*n)++;
}

/* Marks go into their order as they come; starters stay where they are. */
static void decompose(struct mark **list, int *n, int *room, uint32_t code)
{
    uint32_t s = code - S_BASE;

    if (s < S_COUNT) {
        add_mark(list, n, room, L_BASE + s / (V_COUNT * T_COUNT));
        add_mark(list, n, room, V_BASE + s % (V_COUNT * T_COUNT) / T_COUNT);
        if (s % T_COUNT)
            add_mark(list, n, room, T_BASE + s % T_COUNT);
        return;
    }
    const struct sh_decomposed *parts = parts_of(code);
    if (!parts) {
        add_mark(list, n, room, code);
        return;
    }
    decompose(list, n, room, parts->a); /* a chain of at most three */
    if (parts->b)
        add_mark(list, n, room, parts->b);
}

/* A mark joins the last starter unless one of its class or a higher one, or a starter, stands between. Returns the
 * new n. */
static int recompose(struct mark *list, int n)
{
    int kept = 0, starter = -1, last = -1; /* last: class of the one kept before, -1: it is the starter */

    for (int i = 0; i < n; i++) {
        uint32_t made = starter >= 0 && last < list[i].class ? compose(list[starter].code, list[i].code) : 0;
        /* The mark is gone; the next one may join, too. */
        if (made) {
            list[starter].code = made;
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

/* One stretch from a beginning to the next. */
static void apply_slowly(const unsigned char *text, size_t bytes, struct sh_text *out)
{
    struct mark *list = NULL;
    int n = 0, room = 0;

    for (size_t i = 0, step; i < bytes; i += step)
        decompose(&list, &n, &room, sh_utf8_get(text + i, &step));
    n = recompose(list, n);
    for (int i = 0; i < n; i++)
        out->n += sh_utf8_put(list[i].code, sh_text_room(out, SH_UTF8_MOST));
    free(list);
}

/* The next place at or behind `i` where something may change; *begin: where all begins anew before it. Its end:
 * next_begin(). */
static size_t next_change(const struct sh_nfc *t, const unsigned char *text, size_t bytes, size_t i, size_t *begin)
{
    unsigned char last = 0;

    *begin = i;
    for (size_t step; i < bytes; i += step) {
        /* One or two bytes, no mark, no change: nearly all of Latin text passes here. */
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

/* The end of a stretch: the next character that begins anew, or the end of the text. */
static size_t next_begin(const struct sh_nfc *t, const unsigned char *text, size_t bytes, size_t i)
{
    for (size_t step; i < bytes; i += step)
        if (t->kind[sh_utf8_get(text + i, &step)] == 0)
            return i;
    return bytes;
}

/* False: the text is in the form already, and `out` is untouched. */
bool sh_nfc_apply(const struct sh_nfc *t, const unsigned char *text, size_t bytes, struct sh_text *out)
{
    size_t done = 0, begin, i = next_change(t, text, bytes, 0, &begin);

    if (i == bytes)
        return false;
    while (i < bytes) {
        size_t end = next_begin(t, text, bytes, i);
        /* What does not change is copied as it is. */
        sh_text_put(out, text + done, begin - done);
        apply_slowly(text + begin, end - begin, out);
        done = end;
        i = next_change(t, text, bytes, end, &begin);
    }
    sh_text_put(out, text + done, bytes - done);
    return true;
}
