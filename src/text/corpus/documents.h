/* Writes a document file (io/data/format.h). The file appears under its name complete or not at all. Local.
 * Order: open, put any number of times, then commit or abandon. */
#ifndef IO_TOKEN_DOCUMENTS_H
#define IO_TOKEN_DOCUMENTS_H

#include "src/base/err.h"

#include <stddef.h>
#include <stdint.h>

struct sh_document_writer;

/*   vocab_size  as for sh_bin_writer_open()
 *   tokenizer   sh_hash64() of tokenizer.json; 0: the tokenizer is of another kind
 *   masked      whether there will be a mask
 *   template    name of the chat template; NULL: none
 * Offsets and mask wait in unnamed files in the same folder until the commit. Errors: SH_E_DATA. */
/* Before the first put: what the documents will be, one of the flags of io/data/format.h. */
void sh_document_writer_flag(struct sh_document_writer *w, int flag);
sh_rc sh_document_writer_open(const char *path, int vocab_size, uint64_t tokenizer, int masked, const char *template,
                              struct sh_document_writer **out);

/* Append whole documents, one after the other.
 *   ids      [n]
 *   mask     [n] 1: the id counts as a target, 0: it does not; NULL if there is no mask
 *   lengths  [documents] in ids
 * Errors: SH_E_DATA: the disk is full. */
sh_rc sh_document_writer_put(struct sh_document_writer *w, const uint32_t *ids, const unsigned char *mask, size_t n,
                             const uint32_t *lengths, size_t documents);

/* Before the first put: each document will have so many numbers. */
void sh_document_writer_width(struct sh_document_writer *w, int width);
/* Append the numbers (float64) of documents, of which each has its own at the commit. */
sh_rc sh_document_writer_numbers(struct sh_document_writer *w, const void *numbers, size_t bytes);

/* As sh_bin_writer_commit(). */
sh_rc sh_document_writer_commit(struct sh_document_writer *w);
void sh_document_writer_abandon(struct sh_document_writer *w); /* NULL is fine */

/* Write a whole file at once. */
sh_rc sh_document_write(const char *path, int vocab_size, uint64_t tokenizer, const uint32_t *ids,
                        const unsigned char *mask, const uint32_t *lengths, size_t documents);

#endif
