/* Files that are no token ids, known by how they begin. Local. */
#ifndef IO_DATA_FOREIGN_H
#define IO_DATA_FOREIGN_H

#include <stddef.h>

enum { SH_FOREIGN_HEAD = 4096 }; /* bytes that are looked at */

struct sh_foreign {
    const char *what; /* "text" */
    const char *cure; /* what makes tokens of it; begins a clause */
};

/* head [bytes]: the beginning of a file, SH_FOREIGN_HEAD bytes or all of it. NULL: it may be bare token ids. */
const struct sh_foreign *sh_data_foreign(const unsigned char *head, size_t bytes);

#endif
