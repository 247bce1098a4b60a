/* Finds the ids that a stretch of a text became: the encoder says for which bytes each id stands. The text is encoded
 * as a whole, as any other text, so that ids do not depend on what is learned. */
#include "src/text/chat/marks.h"

#include "src/text/token/hf.h"

#include <stdlib.h>
#include <string.h>

struct sh_marks {
    const struct sh_tokenizer *t;
    struct sh_places places;
};

struct sh_marks *sh_marks_create(const struct sh_tokenizer *t)
{
    struct sh_marks *m = sh_calloc(1, sizeof *m);

    m->t = t;
    return m;
}

void sh_marks_destroy(struct sh_marks *m)
{
    if (!m)
        return;
    free(m->places.at);
    free(m);
}

bool sh_marks_is_special(const struct sh_tokenizer *t, uint32_t id)
{
    const struct sh_hf *hf = t->own;

    return t->ops == &sh_token_hf && id < (uint32_t)hf->words && hf->word[id].special;
}

/* Whether a span has bytes in common with a stretch of the list [n], which is in order. *near: where the last search
 * ended, 0 at first. */
static bool touches(const struct sh_stretch *list, int n, int *near, struct sh_span span)
{
    while (*near > 0 && list[*near - 1].end > span.begin)
        --*near;
    while (*near < n && list[*near].end <= span.begin)
        ++*near;
    return *near < n && list[*near].begin < span.end && span.begin < span.end;
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
 * end its turn. What counts is the text of an added token, not the id: a byte or an unknown character may be a special
 * token, too. */
static sh_rc check_specials(const struct sh_marks *m, const struct sh_chat *chat, const uint32_t *ids)
{
    const struct sh_hf *hf = m->t->own;
    int near = 0;

    for (size_t i = 0; i < m->places.n; i++)
        if (touches(chat->foreign, chat->n_foreign, &near, m->places.at[i].own) && sh_marks_is_special(m->t, ids[i]) &&
            ids[i] != hf->model.unk)
            return sh_fail(SH_E_DATA,
                           "a message contains the text of a special token (token %u); take it out, or give "
                           "--special-in-text",
                           ids[i]);
    return SH_OK;
}

sh_rc sh_marks_encode(struct sh_marks *m, struct sh_encoder *e, const struct sh_chat *chat, int64_t stop, bool strange,
                      struct sh_ids *ids, struct sh_text *mask, int64_t *across)
{
    size_t first = ids->n;
    int64_t n = 0;
    int near = 0;

    SH_REQUIRE(mask->n == ids->n);
    m->places.n = 0;
    SH_TRY(sh_encode_places(e, chat->text.at, chat->text.n, ids, &m->places));
    SH_REQUIRE(m->places.n == ids->n - first);
    sh_text_room(mask, m->places.n + 1);
    for (size_t i = 0; i < m->places.n; i++) {
        const struct sh_place *p = &m->places.at[i];
        bool learned = touches(chat->stretch, chat->n, &near, p->text);

        mask->at[mask->n++] = learned;
        n += learned && p->text.begin < chat->stretch[near].begin && p->own.begin == p->own.end;
    }
    if (across)
        *across += n;
    if (!strange)
        SH_TRY(check_specials(m, chat, ids->id + first));
    return stop < 0 ? SH_OK : check_stops(ids, mask->at, first, stop);
}
