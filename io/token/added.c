#include "io/token/added.h"

#include "io/token/ranges.h"
#include "src/base/utf8.h"
#include "src/base/mem.h"

#include <stdlib.h>
#include <string.h>

static int by_text(const void *a, const void *b)
{
    const struct sh_added *x = *(const struct sh_added *const *)a, *y = *(const struct sh_added *const *)b;
    uint32_t n = x->found_bytes < y->found_bytes ? x->found_bytes : y->found_bytes;
    int order = memcmp(x->found_as, y->found_as, n);

    if (order != 0)
        return order;
    return x->found_bytes != y->found_bytes ? (x->found_bytes > y->found_bytes) - (x->found_bytes < y->found_bytes)
                                            : (x->id > y->id) - (x->id < y->id);
}

void sh_added_set_make(struct sh_added_set *set, const struct sh_added *all, int n, bool normalized)
{
    *set = (struct sh_added_set){.token = sh_calloc((size_t)n + 1, sizeof *set->token)};
    for (int i = 0; i < n; i++) {
        if (all[i].normalized != normalized || all[i].found_bytes == 0)
            continue;
        set->token[set->n++] = &all[i];
        set->longest = all[i].found_bytes > set->longest ? all[i].found_bytes : set->longest;
    }
    qsort(set->token, (size_t)set->n, sizeof *set->token, by_text);
    for (int b = 0, i = 0; b <= 256; b++) {
        while (i < set->n && (unsigned char)set->token[i]->found_as[0] < b)
            i++;
        set->first[b] = i;
    }
}

void sh_added_set_free(struct sh_added_set *set)
{
    free(set->token);
    *set = (struct sh_added_set){0};
}

/* The longest token that begins here. Tokens that are beginnings of this text sort one after the other by length,
 * with others between: the range shrinks byte by byte. */
static const struct sh_added *longest_at(const struct sh_added_set *set, const unsigned char *text, size_t bytes)
{
    int low = set->first[text[0]], high = set->first[text[0] + 1];
    const struct sh_added *best = NULL;

    for (size_t k = 1; low < high; k++) {
        while (low < high && set->token[low]->found_bytes == k) {
            if (!best || best->found_bytes < k)
                best = set->token[low];
            low++;
        }
        if (k == bytes)
            break;
        int from = low, to = high;
        while (from < to) { /* the first one whose byte k is not below ours */
            int middle = (from + to) / 2;
            if ((unsigned char)set->token[middle]->found_as[k] < text[k])
                from = middle + 1;
            else
                to = middle;
        }
        low = from;
        for (to = high; from < to;) {
            int middle = (from + to) / 2;
            if ((unsigned char)set->token[middle]->found_as[k] <= text[k])
                from = middle + 1;
            else
                to = middle;
        }
        high = from;
    }
    return best;
}

static bool is_word(const unsigned char *p)
{
    size_t n;

    return sh_range_has(sh_unicode_word, sh_unicode_word_n, sh_utf8_get(p, &n));
}

static bool stands_alone(const unsigned char *text, size_t bytes, size_t begin, size_t end)
{
    return (begin == 0 || !is_word(text + begin - sh_utf8_last(text, begin))) && (end == bytes || !is_word(text + end));
}

static size_t skip_back(const unsigned char *text, size_t at, size_t least)
{
    while (at > least) {
        size_t n, step = sh_utf8_last(text, at);
        if (!sh_is_space(sh_utf8_get(text + at - step, &n)))
            break;
        at -= step;
    }
    return at;
}

static size_t skip_ahead(const unsigned char *text, size_t bytes, size_t at)
{
    for (size_t n; at < bytes && sh_is_space(sh_utf8_get(text + at, &n)); at += n)
        ;
    return at;
}

const struct sh_added *sh_added_next(const struct sh_added_set *set, const unsigned char *text, size_t bytes,
                                     size_t *from, size_t done, size_t *begin, size_t *end)
{
    const struct sh_added *t = NULL;

    for (size_t i = *from; set->n && i < bytes; i++) {
        if (set->first[text[i]] == set->first[text[i] + 1] || !(t = longest_at(set, text + i, bytes - i)))
            continue;
        if (t->single_word && !stands_alone(text, bytes, i, i + t->found_bytes)) {
            i += t->found_bytes - 1; /* what is passed over is not looked at again */
            continue;
        }
        *from = *end = i + t->found_bytes;
        *begin = t->lstrip ? skip_back(text, i, done < i ? done : i) : i;
        if (t->rstrip)
            *end = skip_ahead(text, bytes, *end);
        return t;
    }
    return NULL;
}
