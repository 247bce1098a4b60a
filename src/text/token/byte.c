/* The tokenizer "byte": an id is a byte, 256 words, no documents. It needs no files and accepts any data, so examples
 * and tests use it. */
#include "src/text/token/token.h"

#include "src/base/mem.h"

#include <stdlib.h>

static sh_rc encode(const void *own, void *encoder, const unsigned char *text, size_t bytes, unsigned how,
                    struct sh_ids *out, struct sh_places *places)
{
    uint32_t *ids = sh_ids_room(out, bytes);

    (void)own, (void)encoder, (void)how;
    for (size_t i = 0; i < bytes; i++)
        ids[i] = text[i];
    for (size_t i = 0; places && i < bytes; i++)
        sh_places_put(places, (struct sh_place){.text = {(uint32_t)i, (uint32_t)i + 1}});
    out->n += bytes;
    return SH_OK;
}

/* *text belongs to the caller and has a zero after it. A model's ids above 255 have no text. */
static sh_rc decode(const void *own, const uint32_t *ids, size_t n, bool special, char **text, size_t *bytes)
{
    char *s = sh_calloc(n + 1, 1);
    size_t used = 0;

    (void)own, (void)special;
    for (size_t i = 0; i < n; i++)
        if (ids[i] <= 255)
            s[used++] = (char)ids[i];
    *text = s;
    *bytes = used;
    return SH_OK;
}

const struct sh_token_ops sh_token_byte = {.name = "byte", .encode = encode, .decode = decode};
