/* The header of a token file, as llm.c defines it: 256 little-endian int32 of which three are used (magic, version,
 * number of tokens), then the tokens. Read by io/data, written by io/token. */
#ifndef IO_DATA_FORMAT_H
#define IO_DATA_FORMAT_H

#include <stdint.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "token files and checkpoints are read without swapping bytes");

enum {
    SH_TOKEN_HEADER_BYTES = 1024,
    SH_TOKEN_MAGIC_U16 = 20240520,
    SH_TOKEN_VERSION_U16 = 1,
    SH_TOKEN_MAGIC_U32 = 20240801,
    SH_TOKEN_VERSION_U32 = 7,
};

/* The count is an int32 in llm.c's readers, so a file cannot say more. */
#define SH_TOKEN_COUNT_MAX INT32_MAX

struct sh_token_header {
    int32_t magic, version, tokens;
};

#endif
