/* Document files: token files that know where documents begin, with a mask in them where there is one. Read with pread,
 * and nothing of them is kept in memory. doc/data-format.md has the format. Local. */
#ifndef IO_DATA_DOCUMENTS_H
#define IO_DATA_DOCUMENTS_H

#include "io/data/files.h"
#include "io/data/format.h"
#include "io/data/pack.h"

/* Check a header against the length of its file, and fill what `f` has of it.
 *   vocab_size  of the model; tokenizer: hash of its tokenizer.json, 0: not known
 * Errors: SH_E_DATA: a field that cannot be, sections that overlap or leave the file, words or a tokenizer that are not
 * the model's. */
sh_rc sh_documents_take(struct sh_data_file *f, const char *path, const struct sh_document_header *h, int64_t bytes,
                        int vocab_size, uint64_t tokenizer);

/* Lengths in tokens of documents [first, first + n) of the set. Errors: SH_E_DATA: offsets that fall, or leave the file. */
sh_rc sh_documents_lengths(const struct sh_data_files *set, int64_t first, int64_t n, int64_t *tokens);

/* Tokens of a piece (of pack.h). ids out [places + 1]; mask out [places], of its targets, where the set has masks.
 * Errors: SH_E_DATA: also where the file has changed, so that the document has no such piece any more. */
sh_rc sh_documents_ids(const struct sh_data_files *set, const struct sh_piece *piece, int32_t *ids);
sh_rc sh_documents_mask(const struct sh_data_files *set, const struct sh_piece *piece, unsigned char *mask);

/* Bits [first, first + n) of a file's mask as bytes. */
sh_rc sh_documents_bits(const struct sh_data_files *set, const struct sh_data_file *f, int64_t first, int n,
                        unsigned char *mask);

#endif
