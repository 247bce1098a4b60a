/* Normalizers: steps that change a whole text before it is cut. A step that changes nothing says so, and its input goes
 * on without a copy. */
#include "io/token/normal.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

/* Zeroed afterwards. */
void sh_normal_free(struct sh_normal *n)
{
    sh_nfc_destroy(n->nfc);
    free(n->from);
    free(n->to);
    *n = (struct sh_normal){0};
}

/* Llama 2 puts its mark of a space before each text that is not empty. */
static bool prepend(const struct sh_normal *s, const unsigned char *text, size_t bytes, struct sh_text *out)
{
    if (bytes == 0)
        return false;
    sh_text_put(out, s->to, s->to_bytes);
    sh_text_put(out, text, bytes);
    return true;
}

/* One byte becomes a few, as a space its mark. Words are so short that to find and copy each of them takes longer than
 * to write every byte in the same way, without a branch: eight bytes each time, of which those that count are kept. */
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

/* Most often a space is looked for, and is near. */
static const unsigned char *find(const struct sh_normal *s, const unsigned char *text, size_t bytes)
{
    return s->from_bytes == 1 ? memchr(text, s->from[0], bytes) : memmem(text, bytes, s->from, s->from_bytes);
}

/* False when there is nothing to replace. */
static bool replace(const struct sh_normal *s, const unsigned char *text, size_t bytes, struct sh_text *out)
{
    const unsigned char *at = find(s, text, bytes);
    size_t done = 0;

    if (!at)
        return false;
    if (s->from_bytes == 1 && s->to_bytes <= FEW) {
        replace_byte(s, text, bytes, out);
        return true;
    }
    for (; at; at = find(s, text + done, bytes - done)) {
        sh_text_put(out, text + done, (size_t)(at - text) - done);
        sh_text_put(out, s->to, s->to_bytes);
        done = (size_t)(at - text) + s->from_bytes;
    }
    sh_text_put(out, text + done, bytes - done);
    return true;
}

/* False: the text stays as it is; else `out` has the new one. */
static bool apply(const struct sh_normal *s, const unsigned char *text, size_t bytes, struct sh_text *out)
{
    switch (s->kind) {
    case SH_NORMAL_NFC: return sh_nfc_apply(s->nfc, text, bytes, out);
    case SH_NORMAL_PREPEND: return prepend(s, text, bytes, out);
    default: return replace(s, text, bytes, out);
    }
}

void sh_normalize(const struct sh_normal *steps, int n, struct sh_text scratch[2], const unsigned char **text,
                  size_t *bytes)
{
    for (int i = 0, to = 0; i < n; i++) {
        scratch[to].n = 0;
        if (!apply(&steps[i], *text, *bytes, &scratch[to]))
            continue;
        *text = scratch[to].at;
        *bytes = scratch[to].n;
        to = !to;
    }
}
