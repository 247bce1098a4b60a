/* Sets of code points as ranges, and the Unicode properties of a code point. The tables in unicode.c are sorted, so
 * each lookup is a binary search. A row of categories holds the first code point, and the category in the low five
 * bits; it extends to the next row. */
#include "src/text/base/ranges.h"

#include "src/base/mem.h"

#include <stdlib.h>
#include <string.h>

static const char names[][3] = {"Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd",
                                "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm",
                                "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Co"};

/* Unicode, PropList.txt: White_Space, which has not changed since version 6.3. */
static const struct sh_range spaces[] = {{0x9, 0xd},       {0x20, 0x20},     {0x85, 0x85},     {0xa0, 0xa0},
                                         {0x1680, 0x1680}, {0x2000, 0x200a}, {0x2028, 0x2029}, {0x202f, 0x202f},
                                         {0x205f, 0x205f}, {0x3000, 0x3000}};

enum { NAMES = sizeof names / sizeof names[0], SPACES = sizeof spaces / sizeof spaces[0] };

/* The scripts that expressions of known tokenizers name. */
static const struct script {
    const char *name;
    const struct sh_range *range;
    const int *n;
} scripts[] = {
    {"Han", sh_unicode_han, &sh_unicode_han_n},
    {"Hiragana", sh_unicode_hiragana, &sh_unicode_hiragana_n},
    {"Katakana", sh_unicode_katakana, &sh_unicode_katakana_n},
    {"Hangul", sh_unicode_hangul, &sh_unicode_hangul_n},
};

void sh_ranges_free(struct sh_ranges *r)
{
    free(r->at);
    *r = (struct sh_ranges){0};
}

/* Ranges may overlap and come in any order until sh_ranges_settle(). */
void sh_ranges_add(struct sh_ranges *r, uint32_t first, uint32_t last)
{
    r->at = sh_grow(r->at, r->n, &r->room, sizeof *r->at);
    r->at[r->n++] = (struct sh_range){first, last};
}

/* Ascending order. */
static int by_first(const void *a, const void *b)
{
    const struct sh_range *x = a, *y = b;

    return (x->first > y->first) - (x->first < y->first);
}

/* Sort, and join adjacent and overlapping ranges: 1-3, 4-6, 5-9 become 1-9. */
void sh_ranges_settle(struct sh_ranges *r)
{
    int kept = 0;

    if (r->n)
        qsort(r->at, (size_t)r->n, sizeof *r->at, by_first);
    for (int i = 0; i < r->n; i++) {
        struct sh_range *last = kept ? &r->at[kept - 1] : NULL;
        /* Adjacent ranges are joined, too. */
        if (last && r->at[i].first <= last->last + 1)
            last->last = r->at[i].last > last->last ? r->at[i].last : last->last;
        else
            r->at[kept++] = r->at[i];
    }
    r->n = kept;
}

/* The complement within all code points, 0 to 0x10ffff. The result is settled. */
void sh_ranges_invert(struct sh_ranges *r)
{
    struct sh_ranges other = {0};
    uint32_t from = 0;

    sh_ranges_settle(r);
    for (int i = 0; i < r->n; i++) {
        if (r->at[i].first > from)
            sh_ranges_add(&other, from, r->at[i].first - 1);
        from = r->at[i].last + 1;
    }
    if (from < SH_UNICODE_END)
        sh_ranges_add(&other, from, SH_UNICODE_END - 1);
    sh_ranges_free(r);
    *r = other;
}

/* A single letter is a whole group: "L" is Lu, Ll, Lt, Lm and Lo. Returns false if there is no such category. */
static bool add_category(struct sh_ranges *r, const char *name, size_t bytes)
{
    bool found = false;

    for (int c = 0; c < NAMES; c++) {
        if (bytes < 1 || bytes > 2 || strncmp(names[c], name, bytes) != 0)
            continue;
        found = true;
        for (int i = 0; i < sh_unicode_category_n; i++) {
            uint32_t end = i + 1 < sh_unicode_category_n ? sh_unicode_category[i + 1] >> 5 : SH_UNICODE_END;
            if ((sh_unicode_category[i] & 31) == (uint32_t)c)
                sh_ranges_add(r, sh_unicode_category[i] >> 5, end - 1);
        }
    }
    return found;
}

/* The name is a script or a category. */
bool sh_ranges_add_property(struct sh_ranges *r, const char *name, size_t bytes)
{
    for (size_t i = 0; i < sizeof scripts / sizeof scripts[0]; i++) {
        if (strlen(scripts[i].name) != bytes || memcmp(scripts[i].name, name, bytes) != 0)
            continue;
        for (int k = 0; k < *scripts[i].n; k++)
            sh_ranges_add(r, scripts[i].range[k].first, scripts[i].range[k].last);
        return true;
    }
    return add_category(r, name, bytes);
}

/* The characters that \s means in Unicode. */
void sh_ranges_add_space(struct sh_ranges *r)
{
    for (int i = 0; i < SPACES; i++)
        sh_ranges_add(r, spaces[i].first, spaces[i].last);
}

/* `sorted` [n] without overlaps. */
bool sh_range_has(const struct sh_range *sorted, int n, uint32_t code)
{
    int low = 0, high = n;

    while (low < high) {
        int middle = (low + high) / 2;
        if (sorted[middle].last < code)
            low = middle + 1;
        else
            high = middle;
    }
    return low < n && sorted[low].first <= code;
}

/* ASCII is decided without a search, because this is called for many bytes. */
bool sh_char_is_space(uint32_t code)
{
    return code < 0x85 ? code == ' ' || (code >= 9 && code <= 13) : sh_range_has(spaces, SPACES, code);
}

bool sh_char_is_stripped(uint32_t code)
{
    return sh_char_is_space(code) || (code >= 0x1c && code <= 0x1f);
}
