/* A tokenizer.json: its parts as lists of steps, and the words of its model.
 *
 * Read: BPE models with byte_fallback, fuse_unk, unk_token, ignore_merges; normalizers NFC, Prepend, Replace of a
 * string; pre-tokenizers ByteLevel (last), Split, Digits, Metaspace; post-processors ByteLevel and
 * TemplateProcessing of one text; decoders ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace; Sequence of
 * each; added tokens. `truncation` and `padding` are passed over. Everything else is refused by its name. Local. */
#ifndef IO_TOKEN_HF_H
#define IO_TOKEN_HF_H

#include "io/token/added.h"
#include "io/token/decode.h"
#include "io/token/model.h"
#include "io/token/normal.h"
#include "io/token/split.h"
#include "io/token/token.h"

enum { SH_HF_STEPS = 16, SH_HF_IDS = 1 << 24 }; /* most steps of a list; most words */

struct sh_token_json_word {
    const char *text;  /* as the file has it; NULL: no word has this id */
    const char *shown; /* what the decoder gets: of an added token the text that it is found as */
    uint32_t bytes, shown_bytes;
    bool special; /* its text is that of a special token */
};

struct sh_hf {
    struct sh_bpe model;
    struct sh_text store;            /* texts of the words: of the file, then as bytes */
    struct sh_token_json_word *word; /* [words] */
    int words;                       /* the largest id and 1 */
    struct sh_words by_text;         /* texts of the file to ids, added tokens included */
    struct sh_added *added;
    int n_added;
    struct sh_added_set raw, normalized;
    struct sh_normal normal[SH_HF_STEPS];
    struct sh_split split[SH_HF_STEPS];
    struct sh_decode decode[SH_HF_STEPS];
    int n_normal, n_split, n_decode;
    bool has_decoder;
    struct sh_ids begin, end; /* of the post-processor */
};

/* Parse a file of this form. name: for messages. *out freed with sh_token_json_free(). Errors: SH_E_DATA. */
sh_rc sh_token_json_parse(const char *text, size_t bytes, const char *name, struct sh_hf **out);
void sh_token_json_free(struct sh_hf *hf); /* NULL is fine */

#endif
