/* Added tokens, such as <|endoftext|>, are found before the text is normalized or cut. A set is an array sorted by
 * text, with the range of each first byte, so one table lookup is enough to skip most positions of a text. If several
 * tokens begin at one position, the longest wins; the search continues after a match, so matches never overlap. */
#include "src/text/token/added.h"

#include "src/base/mem.h"
#include "src/base/string/utf8.h"
#include "src/text/base/ranges.h"

#include <stdlib.h>
#include <string.h>

/* Order by bytes, then by length, then by id: of equal texts, the token that is first in the file comes first. */
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

/* `normalized` selects the tokens of `all` that belong to this set. Tokens whose text normalizes to nothing are left
 * out: they can never be found. */
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
    /* first[b] is the first token that begins with byte b or a later one; first[256] is n. */
    for (int b = 0, i = 0; b <= 256; b++) {
        while (i < set->n && (unsigned char)set->token[i]->found_as[0] < b)
            i++;
        set->first[b] = i;
    }
    int b = set->n ? (unsigned char)set->token[0]->found_as[0] : 0;
    set->sole = set->n && set->first[b + 1] == set->n ? b : -1;
}

/* The tokens themselves belong to whoever made the set. */
void sh_added_set_free(struct sh_added_set *set)
{
    free(set->token);
    *set = (struct sh_added_set){0};
}

/* Find the longest token that begins here. Tokens that are prefixes of this text are sorted by length, with other
 * tokens in between; the candidate range shrinks byte by byte. */
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
        /* Two binary searches narrow the range to the tokens whose byte k equals the text's: the first finds where they
         * begin, the second where they end. */
        int from = low, to = high;
        while (from < to) { /* the first token whose byte k is not below the text's */
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

/* Letters, digits, marks and underscores, like \w in the regular expressions that tokenizers uses. */
static bool is_word(const unsigned char *p)
{
    size_t n;

    return sh_range_has(sh_unicode_word, sh_unicode_word_n, sh_utf8_get(p, &n));
}

/* For single_word: no word character on either side. The ends of the text count as borders. */
static bool stands_alone(const unsigned char *text, size_t bytes, size_t begin, size_t end)
{
    return (begin == 0 || !is_word(text + begin - sh_utf8_last(text, begin))) && (end == bytes || !is_word(text + end));
}

/* For lstrip: the token takes the white space before it, but nothing before `least`. */
static size_t skip_back(const unsigned char *text, size_t at, size_t least)
{
    while (at > least) {
        size_t n, step = sh_utf8_last(text, at);
        if (!sh_char_is_space(sh_utf8_get(text + at - step, &n)))
            break;
        at -= step;
    }
    return at;
}

/* For rstrip: white space after the token. */
static size_t skip_ahead(const unsigned char *text, size_t bytes, size_t at)
{
    for (size_t n; at < bytes && sh_char_is_space(sh_utf8_get(text + at, &n)); at += n)
        ;
    return at;
}

/* Return the next position from i on at which a token may begin. It is safe to step by bytes: no token begins within a
 * character, because both text and tokens are UTF-8. In most sets all tokens begin with <. */
static size_t next_place(const struct sh_added_set *set, const unsigned char *text, size_t bytes, size_t i)
{
    if (set->sole >= 0 && i < bytes) {
        const unsigned char *at = memchr(text + i, set->sole, bytes - i);
        return at ? (size_t)(at - text) : bytes;
    }
    while (i < bytes && set->first[text[i]] == set->first[text[i] + 1])
        i++;
    return i;
}

const struct sh_added *sh_added_next(const struct sh_added_set *set, const unsigned char *text, size_t bytes,
                                     size_t *from, size_t done, size_t *begin, size_t *end)
{
    const struct sh_added *t = NULL;

    if (!set->n)
        return NULL;
    for (size_t i = next_place(set, text, bytes, *from); i < bytes; i = next_place(set, text, bytes, i + 1)) {
        if (!(t = longest_at(set, text + i, bytes - i)))
            continue;
        if (t->single_word && !stands_alone(text, bytes, i, i + t->found_bytes)) {
            i += t->found_bytes - 1; /* continue after the rejected match */
            continue;
        }
        *from = *end = i + t->found_bytes;
        *begin = t->lstrip ? skip_back(text, i, done < i ? done : i) : i;
        if (t->rstrip)
            *end = skip_ahead(text, bytes, *end);
        if (!t->lstrip || done < *end)
            return t;
        i = *from - 1; /* the previous token took all of this one as white space: tokenizers drops it then */
    }
    return NULL;
}
