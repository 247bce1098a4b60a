/* Rows of packed documents: seq_len places, filled with documents one after the other, the rest empty. Local; reading
 * changes nothing, so several threads may read. */
#ifndef IO_DATA_ROWS_H
#define IO_DATA_ROWS_H

#include "io/data/files.h"
#include "io/data/pack.h"

/* Check that the documents are pairs of answers, answers with labels, or none, as opt->answers asks. Pairs are documents 2i and 2i + 1
 * of a set. They are packed as one piece, so both answers are neighbours in a row, the chosen one first. SH_EXCESS_TRUNCATE
 * keeps the beginning of each answer, at most set->kept tokens of prompt and answer together; those of which no target would
 * be left have no place, and of a pair neither answer has one.
 * Errors: SH_E_DATA; SH_E_USAGE: a mask that is not used, a strategy that would part answers from their prompts. */
sh_rc sh_data_rows_check(const struct sh_data_files *set, const struct sh_data_options *opt);

/* Pack the documents of a set. Errors: SH_E_DATA, as for sh_pack_build(). */
sh_rc sh_data_rows_pack(const struct sh_data_files *set, const struct sh_data_options *opt, struct sh_pack *out);

/* Read row w [seq_len]: a target is -1 if it does not count or its place is empty; docs as for sh_data_read(), each
 * empty place is its own document. Errors: SH_E_DATA. */
sh_rc sh_data_rows_read(const struct sh_data_files *set, const struct sh_pack *pack, int64_t w, int32_t *tokens,
                        int32_t *targets, int32_t *docs);

/* Of answers: the number of pairs or single ones in row w, and where its documents begin (sh_data_beginnings()). Errors: SH_E_DATA. */
int64_t sh_data_rows_answers(const struct sh_pack *pack, int64_t w);
sh_rc sh_data_rows_beginnings(const struct sh_data_files *set, const struct sh_pack *pack, int64_t w,
                              int64_t *document);

/* Read what the targets of row w weigh, 0 if they do not count: weight out [seq_len]. Errors: SH_E_DATA. */
sh_rc sh_data_rows_weights(const struct sh_data_files *set, const struct sh_pack *pack, int64_t w, float *weight);

/* Count the targets of row w that count. Reads lengths, and masks if there are any. Errors: SH_E_DATA. */
sh_rc sh_data_rows_count(const struct sh_data_files *set, const struct sh_pack *pack, int64_t w, int64_t *unmasked);

#endif
