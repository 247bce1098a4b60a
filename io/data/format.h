/* The header of a token file, as llm.c defines it: 256 little-endian int32, of which three are used (magic, version,
 * number of tokens), then the tokens; and the header of a document file, which has the same size. Read by io/data,
 * written by src/text/corpus. */
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

/* llm.c's readers hold the count in an int32, so a file cannot have more tokens. */
#define SH_TOKEN_COUNT_MAX INT32_MAX

struct sh_token_header {
    int32_t magic, version, tokens;
};

enum {
    SH_DOCUMENT_MAGIC = 0x44524853, /* "SHRD" */
    SH_DOCUMENT_VERSION = 1,
    SH_DOCUMENT_MASK = 1,      /* flags: there is a mask */
    SH_DOCUMENT_PAIRS = 2,     /* flags: documents 2i and 2i + 1 are answers to one prompt; the former was chosen */
    SH_DOCUMENT_LABELS = 4,    /* flags: the mask's bit of a document's first token is its label: it is desirable */
    SH_DOCUMENT_NUMBERS = 8,   /* flags: each document has a number or several, and its last token is the only target */
    SH_DOCUMENT_ALIGN = 4096,  /* each section begins at a multiple of this */
    SH_DOCUMENT_WIDTH = 65536, /* the most numbers of a document */
    SH_DOCUMENT_TEMPLATE = 24, /* bytes of a chat template's name, with zeros after it */
};

/* Sections, in any order: offsets [documents + 1] int64, in tokens; the tokens; a mask with one bit per token, the low
 * bit of a byte first: whether the token counts as a target; numbers [documents,width] float64. See doc/data.md. */
struct sh_document_header {
    int32_t magic, version, token_bytes, flags;
    int64_t tokens, documents;
    int64_t offsets_at, tokens_at, mask_at; /* bytes from the beginning of the file; mask_at 0: none */
    uint64_t tokenizer;                     /* sh_hash64() of tokenizer.json; 0: another kind of tokenizer */
    int32_t vocab_size;                     /* largest id of the tokenizer + 1 */
    int32_t zero;
    int64_t learned;                          /* targets that count; 0: not known, or there is no mask */
    char chat_template[SH_DOCUMENT_TEMPLATE]; /* that rendered the conversations; "": none, or not known */
    int64_t numbers_at;                       /* as mask_at; 0: none */
    int64_t width;                            /* numbers of a document; 0: one, if there are any */
};

_Static_assert(sizeof(struct sh_document_header) == 120, "written as it lies in memory");

#endif
