/* Tokenizers: text to ids and back, exactly as the library `tokenizers` does it. Two kinds: "byte", one id per byte,
 * and a tokenizer.json of byte pair encoding (hf.h says which parts of it are read).
 *
 *   sh_tokenizer_open      once; any thread may read the tokenizer
 *   sh_encoder_create      one per thread: it caches pieces of text that it has seen, and their ids
 *   sh_encode, sh_decode   any number of times
 *   sh_encoder_destroy, sh_tokenizer_close
 *
 * All functions are local. */
#ifndef IO_TOKEN_TOKEN_H
#define IO_TOKEN_TOKEN_H

#include "src/base/err.h"
#include "src/text/base/ids.h"
#include "src/text/base/place.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sh_token_ops;

struct sh_tokenizer {
    const struct sh_token_ops *ops;
    char *path;     /* of its file, or "byte" */
    uint64_t hash;  /* sh_hash64() of the file; 0: there is no file */
    int vocab_size; /* largest id + 1 */
    int64_t end;    /* id that ends a document: the first eos_token_id of generation_config.json or config.json next to
                       the file; -1: none is named */
    uint32_t *ends; /* [n_ends] all of them, if eos_token_id is a list: each ends a generated text */
    int n_ends;
    void *own; /* the kind's own data */
};

/* The functions of a kind of tokenizer. */
struct sh_token_ops {
    const char *name;
    bool whole; /* a text must be encoded as a whole: its pieces would get other ids */
    void (*close)(void *own);
    void *(*create)(const void *own); /* (optional, with `destroy`) make a thread's encoder */
    void (*destroy)(void *encoder);
    sh_rc (*encode)(const void *own, void *encoder, const unsigned char *text, size_t bytes, unsigned how,
                    struct sh_ids *out, struct sh_places *places); /* places: NULL: not wanted */
    sh_rc (*decode)(const void *own, const uint32_t *ids, size_t n, bool special, char **text, size_t *bytes);
    /* (optional) Find the id of a word by its text, including special tokens; -1: there is none. */
    int64_t (*find)(const void *own, const char *word);
    /* (optional) Length in bytes of the text of each word, [vocab_size]; without it, 1 each. */
    void (*lengths)(const void *own, uint32_t *bytes);
};

extern const struct sh_token_ops sh_token_byte, sh_token_hf;

/*   name  "byte", a folder that has a tokenizer.json, or the path of such a file
 * Errors: SH_E_USAGE: none of these. SH_E_DATA: the file is damaged, or has a part that is not read, which the message
 * names. */
sh_rc sh_tokenizer_open(const char *name, struct sh_tokenizer **out);
void sh_tokenizer_close(struct sh_tokenizer *t); /* NULL is fine */

/* Return the id of a word by its text; -1: there is none. */
int64_t sh_tokenizer_find(const struct sh_tokenizer *t, const char *word);

/* Whether an id ends a generated text. */
bool sh_tokenizer_ends(const struct sh_tokenizer *t, uint32_t id);
void sh_tokenizer_add_end(struct sh_tokenizer *t, uint32_t id); /* from now on this id does too */

/* Fill [vocab_size] with the length in bytes of the text that each word stands for; 0: a special token, or not a word.
 * A space is one byte, however the file writes it. */
void sh_tokenizer_lengths(const struct sh_tokenizer *t, uint32_t *bytes);

struct sh_encoder;

struct sh_encoder *sh_encoder_create(const struct sh_tokenizer *t);
void sh_encoder_destroy(struct sh_encoder *e); /* NULL is fine */

/* Whether to add the ids that the tokenizer's post-processor puts in front of a text, and after it. */
enum { SH_ENCODE_BEGIN = 1, SH_ENCODE_END = 2 };

/* Append the ids of a text. The text of a special token in it becomes that token.
 * Errors: SH_E_DATA: the text is not UTF-8 (for kinds that require it; the message has the byte); an expression of the
 * file takes too long. */
sh_rc sh_encode(struct sh_encoder *e, const void *text, size_t bytes, unsigned how, struct sh_ids *out);

/* The same without tokens around the text, and append what each id stands for: the offsets of `tokenizers`, in bytes,
 * before its post-processor trims them. Costs about 20 bytes of memory for each byte of the text, and some time. */
sh_rc sh_encode_places(struct sh_encoder *e, const void *text, size_t bytes, struct sh_ids *out,
                       struct sh_places *places);

/* Ids to text.
 *   special  in   whether the text includes special tokens
 *   *text    out  freed with free(), *bytes long and followed by a 0
 * Invalid UTF-8 becomes U+FFFD, except with "byte". Ids without a word are skipped. */
sh_rc sh_decode_ids(const struct sh_tokenizer *t, const uint32_t *ids, size_t n, bool special, char **text,
                    size_t *bytes);

#endif
