/* Recognizes files that are not token ids by their first bytes. Local. */
#ifndef IO_DATA_FOREIGN_H
#define IO_DATA_FOREIGN_H

#include <stddef.h>

enum { SH_FOREIGN_HEAD = 4096 }; /* bytes that are examined */

struct sh_foreign {
    const char *what; /* "text" */
    const char *cure; /* how to make tokens of it, as the beginning of a clause */
};

/* head [bytes]: the beginning of a file, SH_FOREIGN_HEAD bytes or the whole file. Returns NULL if it may be bare token
 * ids. */
const struct sh_foreign *sh_data_foreign(const unsigned char *head, size_t bytes);

#endif
