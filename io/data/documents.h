/* Document files: token files that record where documents begin, and contain the mask if there is one. They are read
 * with pread, and none of their contents stay in memory. doc/data.md has the format. Local. */
#ifndef IO_DATA_DOCUMENTS_H
#define IO_DATA_DOCUMENTS_H

#include "io/data/files.h"
#include "io/data/format.h"
#include "io/data/pack.h"

/* Check a header against the length of its file, and copy its fields into `f`.
 *   vocab_size  of the model; tokenizer: hash of its tokenizer.json, 0: not known
 * Errors: SH_E_DATA: a field with an impossible value, sections that overlap or extend past the end of the file, a
 * vocabulary or a tokenizer that is not the model's. */
sh_rc sh_documents_take(struct sh_data_file *f, const char *path, const struct sh_document_header *h, int64_t bytes,
                        int vocab_size, uint64_t tokenizer);

/* Get the lengths in tokens of documents [first, first + n) of the set. Errors: SH_E_DATA: offsets that decrease, or
 * point past the end of the file. */
sh_rc sh_documents_lengths(const struct sh_data_files *set, int64_t first, int64_t n, int64_t *tokens);

/* Read the tokens of a piece (pack.h): ids out [places + 1]; and the mask and the weights of its targets, if the set
 * has them: out [places]. Errors: SH_E_DATA: also if the file has changed and the document no longer has this piece. */
sh_rc sh_documents_ids(const struct sh_data_files *set, const struct sh_piece *piece, int32_t *ids);
sh_rc sh_documents_mask(const struct sh_data_files *set, const struct sh_piece *piece, unsigned char *mask);
sh_rc sh_documents_weights(const struct sh_data_files *set, const struct sh_piece *piece, float *weight);

/* Read the label of a document of a file with labels: 0 or 1. Errors: SH_E_DATA. */
sh_rc sh_documents_label(const struct sh_data_files *set, int64_t document, int32_t *label);

/* Read the numbers of a document of a file that has them, as many as its header says. Errors: SH_E_DATA: one is not
 * finite. */
sh_rc sh_documents_numbers(const struct sh_data_files *set, int64_t document, double *numbers);

/* Read bits [first, first + n) of a file's mask as bytes. */
sh_rc sh_documents_bits(const struct sh_data_files *set, const struct sh_data_file *f, int64_t first, int n,
                        unsigned char *mask);

/* Mismatched answers: to the prompt of each answer of a set the completion of another one, which is half of the set away,
 * so that neighbours, which often answer the same prompt, are not taken. A function of the set alone: neither ranks nor
 * batches show. A prompt is what comes before the first token that counts as a target. The mismatched answer of document
 * i has the number `documents + i`. */

/* The tokens of the mismatched answer of document i, which may be more than are kept of it. Errors: SH_E_DATA: no target
 * counts in one of the two, or there is a single answer. */
sh_rc sh_mismatch_tokens(const struct sh_data_files *set, int64_t i, int64_t *tokens);

/* As sh_documents_ids() and sh_documents_mask(), of all that is kept of a mismatched answer. */
sh_rc sh_mismatch_ids(const struct sh_data_files *set, const struct sh_piece *piece, int32_t *ids);
sh_rc sh_mismatch_mask(const struct sh_data_files *set, const struct sh_piece *piece, unsigned char *mask);

#endif
