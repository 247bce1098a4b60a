/* Tokenizers: text to ids and back, exactly as the library `tokenizers` does it. Two kinds: "byte", an id a byte, and a
 * tokenizer.json of byte pair encoding (hf.h says what of it is read).
 *
 *   sh_tokenizer_open      once; what it makes is read from any thread
 *   sh_encoder_create      one a thread: it keeps pieces of text that it met, and their ids
 *   sh_encode, sh_decode   any number of times
 *   sh_encoder_destroy, sh_tokenizer_close
 *
 * All functions are local. */
#ifndef IO_TOKEN_TOKEN_H
#define IO_TOKEN_TOKEN_H

#include "io/token/ids.h"
#include "src/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sh_token_ops;

struct sh_tokenizer {
    const struct sh_token_ops *ops;
    char *path;     /* of its file; "byte" */
    uint64_t hash;  /* sh_hash64() of the file; 0: it has none */
    int vocab_size; /* the largest id and 1 */
    int64_t end;    /* id that ends a document: the first eos_token_id of generation_config.json or config.json beside
                       the file; -1: none is named */
    uint32_t *ends; /* [n_ends] all of them, where it is a list: each ends a text that is generated */
    int n_ends;
    void *own; /* of the kind */
};

/* What a kind is. */
struct sh_token_ops {
    const char *name;
    bool whole; /* a text must come whole: its pieces have other ids than it */
    void (*close)(void *own);
    void *(*create)(const void *own); /* what a thread encodes with; (optional) with `destroy` */
    void (*destroy)(void *encoder);
    sh_rc (*encode)(const void *own, void *encoder, const unsigned char *text, size_t bytes, unsigned how,
                    struct sh_ids *out);
    sh_rc (*decode)(const void *own, const uint32_t *ids, size_t n, bool special, char **text, size_t *bytes);
    /* (optional) The id of a word by its text, special tokens included; -1: there is none. */
    int64_t (*find)(const void *own, const char *word);
    /* (optional) Bytes of the text of each word, [vocab_size]; else 1 each. */
    void (*lengths)(const void *own, uint32_t *bytes);
};

extern const struct sh_token_ops sh_token_byte, sh_token_hf;

/*   name  "byte", a folder that has tokenizer.json, or such a file
 * Errors: SH_E_USAGE: neither of these. SH_E_DATA: of the file, with the part of it that is not read. */
sh_rc sh_tokenizer_open(const char *name, struct sh_tokenizer **out);
void sh_tokenizer_close(struct sh_tokenizer *t); /* NULL is fine */

/* The id of a word by its text; -1: there is none. */
int64_t sh_tokenizer_find(const struct sh_tokenizer *t, const char *word);

/* Whether an id ends a text that is generated. */
bool sh_tokenizer_ends(const struct sh_tokenizer *t, uint32_t id);
void sh_tokenizer_add_end(struct sh_tokenizer *t, uint32_t id); /* from now on this one does too */

/* Bytes of the text that each word stands for, [vocab_size]; 0: a special token, or no word. A space is one byte, however
 * the file writes it. */
void sh_tokenizer_lengths(const struct sh_tokenizer *t, uint32_t *bytes);

struct sh_encoder;

struct sh_encoder *sh_encoder_create(const struct sh_tokenizer *t);
void sh_encoder_destroy(struct sh_encoder *e); /* NULL is fine */

/* What the tokenizer's post-processor puts in front of a text, and behind it. */
enum { SH_ENCODE_BEGIN = 1, SH_ENCODE_END = 2 };

/* Append the ids of a text. Texts of special tokens in it become these.
 * Errors: SH_E_DATA: the text is not UTF-8 (of kinds that want it), with the byte; an expression of the file takes
 * too long. */
sh_rc sh_encode(struct sh_encoder *e, const void *text, size_t bytes, unsigned how, struct sh_ids *out);

/* Ids to text.
 *   special  in   whether special tokens are part of it
 *   *text    out  freed with free(), *bytes long and a 0 behind that
 * Bytes that are not UTF-8 become U+FFFD, but with "byte". Ids without a word are passed over. */
sh_rc sh_decode_ids(const struct sh_tokenizer *t, const uint32_t *ids, size_t n, bool special, char **text,
                    size_t *bytes);

#endif
