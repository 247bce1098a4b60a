#include "io/token/token.h"

#include "src/base/mem.h"

#include <stdlib.h>

static sh_rc encode(const unsigned char *text, size_t bytes, uint32_t *ids, size_t *n)
{
    for (size_t i = 0; i < bytes; i++)
        ids[i] = text[i];
    *n = bytes;
    return SH_OK;
}

static sh_rc decode(const uint32_t *ids, size_t n, char **text, size_t *bytes)
{
    char *s = sh_calloc(n + 1, 1);
    for (size_t i = 0; i < n; i++) {
        if (ids[i] > 255) {
            free(s);
            return sh_fail(SH_E_DATA, "id %u is not a byte; was this made with another tokenizer?", (unsigned)ids[i]);
        }
        s[i] = (char)ids[i];
    }
    *text = s;
    *bytes = n;
    return SH_OK;
}

const struct sh_token_ops sh_token_byte = {.name = "byte", .vocab_size = 256, .encode = encode, .decode = decode};
