/* Token data: files of token ids, a single integer of state, the same global batches on every mesh.
 *
 * A file is tokens of one size, with llm.c's header (magic 20240520 version 1: uint16; 20240801 version 7: uint32; 1024
 * bytes) or bare (nanoGPT: uint16, or uint32 if configured). Each file is a stream; a sample never crosses the end of a
 * file. Window i is seq_len + 1 tokens, numbered through the files in order; windows overlap by one token, so each
 * token is predicted once. Sample i of a run is window perm(i): epoch e = i / windows has its own keyed permutation (a
 * Feistel network; no table), so each window comes once per epoch and nothing needs to be remembered. A mask next to a
 * file says which of its tokens count as targets; the others become the target -1, which the loss ignores.
 *
 * Document files are packed instead (pack.h): windows are then rows of several documents, and attention stays within a
 * document. Everything else is as above.
 *
 * A mix takes its samples from several sets by weight: each block of 4096 samples has a fixed number of samples of each
 * set, in an order that depends on the block; the k-th sample of a set is sample k of a run on that set alone. Each set
 * has its own epochs, and the position is still one integer.
 * All functions are local. A data object is used by one thread; it reads ahead in a thread of its own. */
#ifndef IO_DATA_DATA_H
#define IO_DATA_DATA_H

#include "src/base/err.h"
#include "src/config/words.h"

#include <stdbool.h>
#include <stdint.h>

struct sh_data_options {
    const char *path; /* file or glob pattern */
    int seq_len;
    int vocab_size;              /* ids are checked against it as they are read: SH_E_DATA with file and position */
    enum sh_cfg_token_type type; /* for files without a header; AUTO: uint16 up to 65536 words */
    enum sh_cfg_masks masks, weights; /* what lies next to the files (beside.h); AUTO: use it if it exists */
    bool shuffle;
    uint64_t seed;
    int document_separator;      /* token id; -1: none. Needed to get the docs of streams */
    enum sh_cfg_packing packing; /* AUTO: rows of documents if the first file has documents, else a stream */
    enum sh_cfg_excess excess;   /* what to do with documents longer than a row */
    uint64_t tokenizer; /* sh_hash64() of the model's tokenizer.json; 0: not known. Document files must match it */
    enum sh_data_answers {
        SH_DATA_NO_ANSWERS, /* the documents must be no answers */
        SH_DATA_PAIRS,      /* pairs of answers (rows.h) */
        SH_DATA_LABELLED,   /* answers with a label each, 1 if it is desirable */
        SH_DATA_MISMATCHED, /* the same, each with an answer to another prompt beside it (documents.h) */
        SH_DATA_SCORED, /* pairs of answers that a head scores, with the margin of each pair as the number of the first */
        SH_DATA_NUMBERED,   /* texts with a number each */
        SH_DATA_MULTI_LABEL /* texts with a number for each label */
    } answers;
    int labels;      /* of MULTI_LABEL */
    const char *mix; /* "path=weight,path=weight" instead of `path`; NULL or "": none */
    int sets;        /* number of sets that share the process's descriptors; 0: only this one. A mix sets it */
};

struct sh_data;

/* Errors: SH_E_DATA: nothing matches, no permission, not a regular file, bad magic or version, size does not match the
 * header, odd size, shorter than one sample, not a file of tokens, a mask or weights that do not fit or by which no
 * target counts; the text names the file and what was expected. */
sh_rc sh_data_open(const struct sh_data_options *opt, struct sh_data **out);
void sh_data_close(struct sh_data *d);

int64_t sh_data_samples(const struct sh_data *d); /* number of windows: the length of an epoch */
bool sh_data_masked(
    const struct sh_data *d); /* whether targets may be -1: because of masks, or of places without a token */

/* Describe the set by its sizes and a hash of samples of its files: equal text, equal data, wherever the files lie. A
 * change of a few tokens in a file of more than 1 MiB may not show. Errors: SH_E_DATA. */
enum { SH_DATA_TEXT = 128 };
sh_rc sh_data_text(const struct sh_data *d, char text[SH_DATA_TEXT]);

/* The same of a set of answers, whatever their rows are: equal text, equal answers, also in what is kept of those that are too
 * long. Which of them have a row may differ. Errors: SH_E_DATA. */
sh_rc sh_data_answers_text(const struct sh_data *d, char text[SH_DATA_TEXT]);

/* How full the rows of documents are, and what was not packed. sh_data_rows() returns false for a stream. */
struct sh_data_rows {
    int64_t rows, documents;
    int64_t left_out;        /* documents that were dropped, or have fewer than two tokens */
    int64_t cut;             /* documents longer than a row: truncated, dropped or split */
    int64_t kept;            /* of answers that are truncated: cut are those of more tokens; 0: there are none */
    double full;             /* share of the places that hold a token */
    int64_t tokens, learned; /* of all documents, and how many of them are targets that count; learned 0: not known, or
                                there is no mask */
};
bool sh_data_rows(const struct sh_data *d, struct sh_data_rows *out);

/* The chat template that rendered the conversations of document files; "": none names one, or they differ. */
const char *sh_data_chat_template(const struct sh_data *d);

/* Whether the first file of a pattern has weights of targets next to it. Looks for a name. */
bool sh_data_has_weights(const char *path);

/* The packing that "auto" means for a pattern of files: SH_PACKING_BFD if the first file is a document file, otherwise
 * SH_PACKING_CONCAT, also if the file cannot be read, which opening it will report. Reads one header. */
enum sh_cfg_packing sh_data_packing_of(const char *path);

/* Count the targets that count in samples [first, first + n). Reads only masks, if there are any. Errors: SH_E_DATA. */
sh_rc sh_data_count(const struct sh_data *d, int64_t first, int64_t n, int64_t *unmasked);

/* Read what the targets of samples [first, first + n) weigh: weight out [n,T], 0 for one that does not count. And their sum, in
 * units of 2^-24: float16 has whole multiples of that, so the sum is exact. Only of data opened with weights.
 * Errors: SH_E_DATA. */
enum { SH_DATA_MOST_WEIGHT = 1024, SH_DATA_WEIGHT_UNITS = 1 << 24 };
sh_rc sh_data_weights(const struct sh_data *d, int64_t first, int64_t n, float *weight);
sh_rc sh_data_weigh(const struct sh_data *d, int64_t first, int64_t n, int64_t *units);
int64_t sh_data_weight_units(const float *weight, int64_t n);

/* Find the largest id in a few windows, spread from the first to the last of the set. Errors: SH_E_DATA, as for
 * sh_data_read(). */
sh_rc sh_data_largest(const struct sh_data *d, int *id);

/* Count the pairs in samples [first, first + n) of a set of pairs, or the answers of a set of single ones; and the
 * documents of the set, mismatched ones after all others. */
int64_t sh_data_count_answers(const struct sh_data *d, int64_t first, int64_t n);
int64_t sh_data_documents(const struct sh_data *d);
int sh_data_seq_len(const struct sh_data *d);

/* The window of which a sample of a single set consists. */
int64_t sh_data_window(const struct sh_data *d, int64_t sample);

/* The label of a document of a set of labelled answers, 1 or 0; 2 of a mismatched one. Errors: SH_E_DATA. */
sh_rc sh_data_label(const struct sh_data *d, int64_t document, int32_t *label);

/* The numbers of a document of a set whose documents have some: one, or opt->labels of MULTI_LABEL. Errors: SH_E_DATA: one
 * is not finite. */
sh_rc sh_data_numbers(const struct sh_data *d, int64_t document, double *numbers);

/* Say where documents begin in samples [first, first + n) of a set whose rows have whole ones. document out [n,T]: the
 * number in the set of the document that begins at the place, -1 elsewhere. Errors: SH_E_DATA. */
sh_rc sh_data_beginnings(const struct sh_data *d, int64_t first, int64_t n, int64_t *document);

/* Read samples [first, first + n) of the run, in order.
 *   tokens, targets out [n,T] i32; targets are the next tokens, -1 for a target that does not count
 *   docs            out [n,T] i32, or NULL: first position of the token's document in the row (a separator belongs to
 *                   the document it ends). Required for rows of documents
 *   unmasked         out: number of targets that count, as from sh_data_count()
 * Errors: SH_E_DATA: an id outside the vocabulary, with file and position; a file that shrank, or cannot be read now.
 *         SH_E_USAGE: docs of a stream without a separator; rows of documents without docs. */
sh_rc sh_data_read(struct sh_data *d, int64_t first, int64_t n, int32_t *tokens, int32_t *targets, int32_t *docs,
                   int64_t *unmasked);

/* Announce the range that will be read next, and for how many samples from the same one on the targets will be counted
 * (0: for none): a thread does both ahead of time. The same read then costs only a copy, the same count nothing. At
 * most one range can be announced. */
void sh_data_prefetch(struct sh_data *d, int64_t first, int64_t n, bool docs, int64_t count);

#endif
