/* Finds the ids that a stretch of a text became. Each word stands for a known number of bytes of normalized text, so
 * encoding a prefix of the text tells where the prefix ends among the ids. A text is first cut at its added tokens,
 * which no id crosses, so such prefixes are short. */
#include "io/token/marks.h"

#include "io/token/hf.h"
#include "src/base/utf8.h"

#include <stdlib.h>
#include <string.h>

struct sh_marks {
    const struct sh_tokenizer *t;
    const struct sh_hf *hf;
    uint32_t *width; /* [words] bytes of normalized text */
    struct sh_ids prefix;
};

/* Count the characters of a text; in a byte-level model each of them is a byte. */
static uint32_t count_characters(const char *text, uint32_t bytes)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < bytes; i++)
        n += ((unsigned char)text[i] & 0xc0) != 0x80;
    return n;
}

/* For unknown text the word's width does not matter as long as it is not 0. */
static uint32_t width_of(const struct sh_hf *hf, const struct sh_token_json_word *w)
{
    if (!w->text)
        return 1;
    if (hf->model.byte_level)
        return count_characters(w->text, w->bytes);
    return hf->model.byte_fallback && w->bytes == 6 && !memcmp(w->text, "<0x", 3) ? 1 : w->bytes;
}

struct sh_marks *sh_marks_create(const struct sh_tokenizer *t)
{
    struct sh_marks *m = sh_calloc(1, sizeof *m);

    m->t = t;
    m->hf = t->own;
    m->width = sh_calloc((size_t)m->hf->words + 1, sizeof *m->width);
    for (int i = 0; i < m->hf->words; i++)
        m->width[i] = width_of(m->hf, &m->hf->word[i]);
    return m;
}

void sh_marks_destroy(struct sh_marks *m)
{
    if (!m)
        return;
    free(m->width);
    free(m->prefix.id);
    free(m);
}

bool sh_token_is_special(const struct sh_tokenizer *t, uint32_t id)
{
    const struct sh_hf *hf = t->own;

    return t->ops == &sh_token_hf && id < (uint32_t)hf->words && hf->word[id].special;
}

/* Measure how many bytes of normalized text a prefix of a piece becomes. If the prefix ends within the expansion of one
 * character, the width includes that whole expansion. */
static sh_rc measure(struct sh_marks *m, struct sh_encoder *e, const unsigned char *text, size_t bytes, uint64_t *width)
{
    m->prefix.n = 0;
    SH_TRY(sh_encode(e, text, bytes, 0, &m->prefix));
    *width = 0;
    for (size_t i = 0; i < m->prefix.n; i++)
        *width += m->width[m->prefix.id[i]];
    return SH_OK;
}

/* The ids from `first` on are a piece; mark those that touch its bytes [begin, end) as learned. */
static sh_rc mark(struct sh_marks *m, struct sh_encoder *e, const unsigned char *piece, size_t bytes, size_t begin,
                  size_t end, size_t first, const struct sh_ids *ids, unsigned char *mask)
{
    uint64_t from = 0, to = UINT64_MAX, at = 0;

    if (begin > 0)
        SH_TRY(measure(m, e, piece, begin, &from));
    if (end < bytes)
        SH_TRY(measure(m, e, piece, end, &to));
    for (size_t i = first; i < ids->n; i++) {
        uint64_t width = m->width[ids->id[i]];
        if (at < to && at + width > from)
            mask[i] = 1;
        at += width;
    }
    return SH_OK;
}

/* Encode the piece at text [at, at + bytes). *s: the first stretch that may overlap it. */
static sh_rc put_piece(struct sh_marks *m, struct sh_encoder *e, const struct sh_chat *chat, size_t at, size_t bytes,
                       int *s, struct sh_ids *ids, struct sh_text *mask)
{
    size_t first = ids->n, end = at + bytes;
    unsigned char *marks;

    SH_TRY(sh_encode(e, chat->text.at + at, bytes, 0, ids));
    marks = sh_text_room(mask, ids->n - first + 1);
    memset(marks, 0, ids->n - first);
    mask->n += ids->n - first;
    for (; *s < chat->n && chat->stretch[*s].begin < end; ++*s) {
        const struct sh_stretch *t = &chat->stretch[*s];
        size_t from = t->begin > at ? t->begin - at : 0, to = (t->end < end ? t->end : end) - at;
        SH_TRY(mark(m, e, chat->text.at + at, bytes, from, to, first, ids, mask->at));
        if (t->end > end)
            return SH_OK; /* the stretch continues in the next piece */
    }
    return SH_OK;
}

/* Check that learned stretches end with the stop token: a model that never saw it would never stop writing. */
static sh_rc check_stops(const struct sh_ids *ids, const unsigned char *mask, size_t first, int64_t stop)
{
    for (size_t i = first; i < ids->n; i++)
        if (mask[i] && (i + 1 == ids->n || !mask[i + 1]) && ids->id[i] != stop)
            return sh_fail(SH_E_DATA,
                           "a stretch to learn ends with token %u and not with %lld, which ends a text: a model "
                           "would not learn to stop; put it there, or give --eos for another one",
                           ids->id[i], (long long)stop);
    return SH_OK;
}

/* Only the texts of messages are checked: the template's own text has special tokens, but one inside a message could
 * end its turn. Unknown characters do not count as a special token, though the id that stands for them is one. */
static sh_rc check_specials(struct sh_marks *m, struct sh_encoder *e, const struct sh_chat *chat)
{
    for (int i = 0; i < chat->n_foreign; i++) {
        const struct sh_stretch *f = &chat->foreign[i];
        m->prefix.n = 0;
        if (f->end > f->begin)
            SH_TRY(sh_encode(e, chat->text.at + f->begin, f->end - f->begin, 0, &m->prefix));
        for (size_t k = 0; k < m->prefix.n; k++)
            if (sh_token_is_special(m->t, m->prefix.id[k]) && m->prefix.id[k] != m->hf->model.unk)
                return sh_fail(SH_E_DATA,
                               "a message contains the text of a special token (token %u); take it out, or give "
                               "--special-in-text",
                               m->prefix.id[k]);
    }
    return SH_OK;
}

sh_rc sh_marks_encode(struct sh_marks *m, struct sh_encoder *e, const struct sh_chat *chat, int64_t stop, bool strange,
                      struct sh_ids *ids, struct sh_text *mask)
{
    const struct sh_text *text = &chat->text;
    size_t first = ids->n, from = 0, done = 0, begin, end, at = 0;
    int s = 0;

    SH_REQUIRE(mask->n == ids->n);
    /* A piece is an added token and the text after it. */
    while (sh_added_next(&m->hf->raw, text->at, text->n, &from, done, &begin, &end)) {
        if (begin > at)
            SH_TRY(put_piece(m, e, chat, at, begin - at, &s, ids, mask));
        at = begin;
        done = end;
    }
    if (at < text->n)
        SH_TRY(put_piece(m, e, chat, at, text->n - at, &s, ids, mask));
    if (!strange)
        SH_TRY(check_specials(m, e, chat));
    return stop < 0 ? SH_OK : check_stops(ids, mask->at, first, stop);
}
