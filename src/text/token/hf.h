/* A parsed tokenizer.json: its parts as lists of steps, and the words of its model.
 *
 * What is read: BPE models with byte_fallback, fuse_unk, unk_token, ignore_merges; normalizers NFC, Prepend, Replace of
 * a string; pre-tokenizers ByteLevel (last), Split, Digits, Metaspace; post-processors ByteLevel and
 * TemplateProcessing of one text; decoders ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace; Sequence of
 * each; added tokens. `truncation` and `padding` are ignored. Everything else is refused by name. Local. */
#ifndef IO_TOKEN_HF_H
#define IO_TOKEN_HF_H

#include "src/text/token/added.h"
#include "src/text/token/steps/decode.h"
#include "src/text/token/model.h"
#include "src/text/token/steps/normal.h"
#include "src/text/token/steps/split.h"
#include "src/text/token/token.h"

enum { SH_HF_STEPS = 16, SH_HF_IDS = 1 << 24 }; /* most steps in a list; most words */

struct sh_token_json_word {
    const char *text;  /* as in the file; NULL: no word has this id */
    const char *shown; /* what the decoder gets; for an added token its found_as */
    uint32_t bytes, shown_bytes;
    bool special; /* its text is the text of a special token */
};

struct sh_hf {
    struct sh_bpe model;
    struct sh_text store;            /* texts of the words: as in the file, then as bytes */
    struct sh_token_json_word *word; /* [words] */
    int words;                       /* largest id + 1 */
    struct sh_words by_text;         /* texts as in the file to ids, including added tokens */
    struct sh_added *added;
    int n_added;
    struct sh_added_set raw, normalized;
    struct sh_normal normal[SH_HF_STEPS];
    struct sh_split split[SH_HF_STEPS];
    struct sh_decode decode[SH_HF_STEPS];
    int n_normal, n_split, n_decode;
    bool has_decoder;
    struct sh_ids begin, end; /* ids that the post-processor puts around a text */
};

/* Parse a tokenizer.json. name: used in messages. *out is freed with sh_token_json_free(). Errors: SH_E_DATA. */
sh_rc sh_token_json_parse(const char *text, size_t bytes, const char *name, struct sh_hf **out);
void sh_token_json_free(struct sh_hf *hf); /* NULL is fine */

#endif
