/* Normalizers: steps that change a whole text before it is cut. A step that changes nothing says so, and its input is
 * passed on without a copy. */
#include "src/text/token/steps/normal.h"

#include "src/base/string/utf8.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

/* Zeroes the step. */
void sh_normal_free(struct sh_normal *n)
{
    sh_nfc_destroy(n->nfc);
    free(n->from);
    free(n->to);
    *n = (struct sh_normal){0};
}

/* Put `to` before each text that is not empty, as Llama 2 does with its mark for a space. It belongs to the first
 * character. */
static bool prepend(const struct sh_normal *s, const unsigned char *text, size_t bytes, struct sh_text *out,
                    struct sh_spans *origin)
{
    size_t n;

    if (bytes == 0)
        return false;
    sh_text_put(out, s->to, s->to_bytes);
    sh_text_put(out, text, bytes);
    if (origin) {
        sh_utf8_get(text, &n);
        sh_spans_make(&origin[1], origin[0].at, n, s->to_bytes);
        sh_spans_keep(&origin[1], origin[0].at, bytes);
    }
    return true;
}

/* Replacing one byte by a few, as a space by its mark. Words are so short that finding and copying each of them takes
 * longer than writing every byte in the same way, without a branch: always eight bytes, of which only the valid ones
 * are kept. */
enum { FEW = 8, STRETCH = 4096 };

static void replace_byte(const struct sh_normal *s, const unsigned char *text, size_t bytes, struct sh_text *out)
{
    uint64_t to = 0;

    memcpy(&to, s->to, s->to_bytes);
    for (size_t done = 0, n; done < bytes; done += n) {
        n = bytes - done < STRETCH ? bytes - done : STRETCH;
        unsigned char *at = sh_text_room(out, n * FEW + FEW);
        for (size_t i = done; i < done + n; i++) {
            bool is = text[i] == (unsigned char)s->from[0];
            uint64_t now = is ? to : text[i];
            memcpy(at, &now, sizeof now);
            at += is ? s->to_bytes : 1;
        }
        out->n = (size_t)(at - out->at);
    }
}

/* Find the next occurrence. Usually the search is for a space, and one is near. */
static const unsigned char *find(const struct sh_normal *s, const unsigned char *text, size_t bytes)
{
    return s->from_bytes == 1 ? memchr(text, s->from[0], bytes) : memmem(text, bytes, s->from, s->from_bytes);
}

/* Returns false if there is nothing to replace. */
static bool replace(const struct sh_normal *s, const unsigned char *text, size_t bytes, struct sh_text *out,
                    struct sh_spans *origin)
{
    const unsigned char *at = find(s, text, bytes);
    size_t done = 0;

    if (!at)
        return false;
    if (s->from_bytes == 1 && s->to_bytes <= FEW && !origin) {
        replace_byte(s, text, bytes, out);
        return true;
    }
    for (; at; at = find(s, text + done, bytes - done)) {
        sh_text_put(out, text + done, (size_t)(at - text) - done);
        sh_text_put(out, s->to, s->to_bytes);
        if (origin) {
            sh_spans_keep(&origin[1], origin[0].at + done, (size_t)(at - text) - done);
            sh_spans_make(&origin[1], origin[0].at + (at - text), s->from_bytes, s->to_bytes);
        }
        done = (size_t)(at - text) + s->from_bytes;
    }
    sh_text_put(out, text + done, bytes - done);
    if (origin)
        sh_spans_keep(&origin[1], origin[0].at + done, bytes - done);
    return true;
}

/* Apply a step; the new text is in `out`. Returns false if the text stays as it is. */
static bool apply(const struct sh_normal *s, const unsigned char *text, size_t bytes, struct sh_text *out,
                  struct sh_spans *origin)
{
    switch (s->kind) {
    case SH_NORMAL_NFC:
        return sh_nfc_apply(s->nfc, text, bytes, out, origin ? origin[0].at : NULL, origin ? &origin[1] : NULL);
    case SH_NORMAL_PREPEND: return prepend(s, text, bytes, out, origin);
    default: return replace(s, text, bytes, out, origin);
    }
}

/* What a step has made is the input of the next one. */
static void turn_over(struct sh_spans origin[2])
{
    struct sh_spans made = origin[1];

    origin[1] = origin[0];
    origin[0] = made;
    origin[1].n = 0;
}

void sh_normalize(const struct sh_normal *steps, int n, struct sh_text scratch[2], const unsigned char **text,
                  size_t *bytes, struct sh_spans origin[2])
{
    for (int i = 0, to = 0; i < n; i++) {
        scratch[to].n = 0;
        if (!apply(&steps[i], *text, *bytes, &scratch[to], origin))
            continue;
        if (origin)
            turn_over(origin);
        *text = scratch[to].at;
        *bytes = scratch[to].n;
        to = !to;
    }
}
