/* Rows of packed documents: seq_len places, filled with documents one after the other, the rest empty. Local; reading
 * changes nothing, so several threads may read. */
#ifndef IO_DATA_ROWS_H
#define IO_DATA_ROWS_H

#include "io/data/files.h"
#include "io/data/pack.h"

/* Pack the documents of a set. Errors: SH_E_DATA, as for sh_pack_build(). */
sh_rc sh_data_rows_pack(const struct sh_data_files *set, const struct sh_data_options *opt, struct sh_pack *out);

/* Read row w [seq_len]: a target is -1 if it does not count or its place is empty; docs as for sh_data_read(), each
 * empty place is its own document. Errors: SH_E_DATA. */
sh_rc sh_data_rows_read(const struct sh_data_files *set, const struct sh_pack *pack, int64_t w, int32_t *tokens,
                        int32_t *targets, int32_t *docs);

/* Count the targets of row w that count. Reads lengths, and masks if there are any. Errors: SH_E_DATA. */
sh_rc sh_data_rows_count(const struct sh_data_files *set, const struct sh_pack *pack, int64_t w, int64_t *unmasked);

#endif
