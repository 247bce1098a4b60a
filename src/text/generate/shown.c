/* A token alone has no text: its text may depend on the tokens before it, and a character may be made of several
 * tokens. So two runs of tokens with the same start are decoded, with the new tokens and without; what the longer text
 * has in addition belongs to the new tokens. The runs start where the tokens that were added last began, which keeps
 * them short. */
#include "src/text/generate/shown.h"

#include "src/base/mem.h"

#include <stdlib.h>
#include <string.h>

void sh_shown_begin(struct sh_shown *s, const struct sh_tokenizer *tok, const char *stop, size_t prompt)
{
    *s = (struct sh_shown){.tok = tok, .stop = stop, .before = prompt > 8 ? prompt - 8 : 0, .upto = prompt};
}

/* Whether the last character lacks bytes. Decoders put U+FFFD in its place, except the one for bytes. */
static bool lacks_bytes(const char *text, size_t bytes)
{
    const unsigned char *t = (const unsigned char *)text;

    if (bytes >= 3 && memcmp(t + bytes - 3, "\xef\xbf\xbd", 3) == 0)
        return true;
    for (size_t back = 1; back <= 3 && back <= bytes; back++) {
        unsigned char c = t[bytes - back];

        if (c >= 0xc2)
            return back < (c >= 0xf0 ? 4u : c >= 0xe0 ? 3u : 2u);
        if (c < 0x80)
            return false;
    }
    return false;
}

static void append(struct sh_shown *s, const char *text, size_t bytes)
{
    if (s->room - s->bytes <= bytes) {
        s->room = 2 * (s->bytes + bytes) + 64;
        s->text = sh_realloc(s->text, s->room, 1);
    }
    memcpy(s->text + s->bytes, text, bytes);
    s->bytes += bytes;
    s->text[s->bytes] = '\0';
}

/* Look for `stop` in the part of the text from `from` on, which was not searched yet. */
static void look_for_stop(struct sh_shown *s, size_t from)
{
    size_t length = s->stop ? strlen(s->stop) : 0;

    if (!length)
        return;
    from = from > length - 1 ? from - (length - 1) : 0;
    for (size_t at = from; at + length <= s->bytes && !s->stopped; at++)
        if (memcmp(s->text + at, s->stop, length) == 0) {
            s->bytes = at;
            s->text[at] = '\0';
            s->stopped = true;
        }
}

/* Where the longer text continues. A prompt that ends within a character has U+FFFD there, which is not its
 * beginning. */
static size_t shared(const char *old, size_t old_bytes, const char *now, size_t bytes)
{
    size_t at = 0, most = old_bytes < bytes ? old_bytes : bytes;

    while (at < most && old[at] == now[at])
        at++;
    while (at < most && at > 0 && ((unsigned char)now[at] & 0xc0) == 0x80)
        at--;
    return at;
}

sh_rc sh_shown_add(struct sh_shown *s, const uint32_t *ids, size_t n, bool last)
{
    char *old = NULL, *now = NULL;
    size_t old_bytes, bytes, at, from = s->bytes;
    sh_rc rc;

    SH_TRY_OUT(sh_decode_ids(s->tok, ids + s->before, s->upto - s->before, false, &old, &old_bytes));
    SH_TRY_OUT(sh_decode_ids(s->tok, ids + s->before, n - s->before, false, &now, &bytes));
    at = shared(old, old_bytes, now, bytes);
    if (bytes > at && (last || !lacks_bytes(now, bytes))) {
        append(s, now + at, bytes - at);
        s->before = s->upto;
        s->upto = n;
        look_for_stop(s, from);
    }
out:
    free(old);
    free(now);
    return rc;
}

size_t sh_shown_settled(const struct sh_shown *s, bool last)
{
    size_t most = s->stop && !last && !s->stopped ? strlen(s->stop) - 1 : 0;

    most = most < s->bytes ? most : s->bytes;
    for (size_t n = most; n > 0; n--)
        if (memcmp(s->text + s->bytes - n, s->stop, n) == 0)
            return s->bytes - n;
    return s->bytes;
}
