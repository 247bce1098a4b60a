/* Token data: files of token ids, one integer of state, the same global batches on every mesh.
 *
 * A file is tokens of one size, with llm.c's header (magic 20240520 version 1: uint16; 20240801 version 7: uint32; 1024
 * bytes) or bare (nanoGPT: uint16, or uint32 when said so). Several files are one stream each; a sample never crosses a
 * file. Sample i is seq_len + 1 tokens: window i of the files in order, where windows overlap by one token so that each
 * token is predicted once. Sample i of a *run* is window perm(i): epoch e = i / windows uses a keyed permutation of its
 * own (a Feistel network; no table), so that each window comes once per epoch and nothing needs to be remembered. A mask
 * beside a file says which of its tokens count as targets; the others are the target -1, which the loss passes over.
 *
 * Document files are packed instead (pack.h): windows are then rows of several documents, of which attention sees one at a
 * time. All else is as above.
 *
 * A mix takes its samples from several sets by weight: block b of 4096 samples has a fixed number of each, in an order of
 * its own; the k-th sample of a set is sample k of a run of that set alone. Sets have epochs of their own, and the position
 * is one integer still.
 * All functions are local. One data object is used by one thread; prefetching is its own. */
#ifndef IO_DATA_DATA_H
#define IO_DATA_DATA_H

#include "src/base/err.h"
#include "src/config/words.h"

#include <stdbool.h>
#include <stdint.h>

struct sh_data_options {
    const char *path; /* file or glob */
    int seq_len;
    int vocab_size;              /* ids are checked against it when they are read: SH_E_DATA with file and position */
    enum sh_cfg_token_type type; /* for files without a header; AUTO: uint16 up to 65536 words */
    enum sh_cfg_masks masks;     /* beside the files (mask.h); AUTO: where they are there */
    bool shuffle;
    uint64_t seed;
    int document_separator;      /* token id; -1: none. Needed for docs of streams */
    enum sh_cfg_packing packing; /* AUTO: rows of documents where the first file has documents, else a stream */
    enum sh_cfg_excess excess;   /* of documents longer than a row */
    uint64_t
        tokenizer;   /* sh_hash64() of the model's tokenizer.json; 0: not known. Document files are compared with it */
    const char *mix; /* "path=weight,path=weight" instead of `path`; NULL or "": none */
    int sets;        /* that share the descriptors of the process; 0: this one. A mix sets it */
};

struct sh_data;

/* Errors: SH_E_DATA: nothing matches, no permission, not a regular file, bad magic or version, size does not match the
 * header, odd size, shorter than one sample, something else than tokens, a mask that does not fit or in which no target
 * counts; the text names the file and what was expected. */
sh_rc sh_data_open(const struct sh_data_options *opt, struct sh_data **out);
void sh_data_close(struct sh_data *d);

int64_t sh_data_samples(const struct sh_data *d); /* windows: the length of an epoch */
int64_t sh_data_tokens(const struct sh_data *d);
bool sh_data_masked(
    const struct sh_data *d); /* whether targets may be -1: there are masks, or places without a token */

/* How full the rows of documents are, and what was not packed; false: it is a stream. */
struct sh_data_rows {
    int64_t rows, documents;
    int64_t left_out; /* documents: dropped, or of less than two tokens */
    int64_t cut;      /* documents longer than a row: truncated, dropped or split */
    double full;      /* share of the places that have a token */
};
bool sh_data_rows(const struct sh_data *d, struct sh_data_rows *out);

/* What the files of a pattern are: SH_PACKING_BFD where the first one is a document file, SH_PACKING_CONCAT where it is
 * not, or cannot be read, which opening it will say. Reads one header. */
enum sh_cfg_packing sh_data_packing_of(const char *path);

/* Targets that count in samples [first, first + n). Reads masks only, where there are any. Errors: SH_E_DATA. */
sh_rc sh_data_count(const struct sh_data *d, int64_t first, int64_t n, int64_t *unmasked);

/* The largest id in some windows, from the first to the last of the set. Errors: SH_E_DATA, as of sh_data_read(). */
sh_rc sh_data_largest(const struct sh_data *d, int *id);

/* Samples [first, first + n) of the run, in order.
 *   tokens, targets out [n,T] i32; targets are the next tokens, -1 where one does not count
 *   docs            out [n,T] i32, or NULL: first position of the token's document in the row (a separator belongs to the
 *                   document it ends). Rows of documents must have it
 *   unmasked         out: targets that count, as sh_data_count() says
 * Errors: SH_E_DATA: an id past the vocabulary, with file and position; a file that shrank, or cannot be read any more.
 *         SH_E_USAGE: docs of a stream without a separator; rows of documents without docs. */
sh_rc sh_data_read(struct sh_data *d, int64_t first, int64_t n, int32_t *tokens, int32_t *targets, int32_t *docs,
                   int64_t *unmasked);

/* Say what will be read next, and of how many samples from the same one on the targets will be counted (0: of none): a
 * thread does both ahead. The same read then costs a copy, the same count nothing. At most one range. */
void sh_data_prefetch(struct sh_data *d, int64_t first, int64_t n, bool docs, int64_t count);

#endif
