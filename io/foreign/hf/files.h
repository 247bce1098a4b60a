/* The files of a folder of transformers, open for reading. Inside io/foreign/hf; local. */
#ifndef IO_FOREIGN_HF_FILES_H
#define IO_FOREIGN_HF_FILES_H

#include "io/file/direct.h"
#include "io/foreign/safetensors/index.h"
#include "io/move/types.h"

struct sh_hf_files {
    const struct sh_st_index *index; /* lent */
    struct sh_file_direct *file;     /* [index->n_files] fd -1: not open */
    char **path;                     /* [index->n_files] */
};

void sh_hf_files_make(struct sh_hf_files *f, const char *folder, const struct sh_st_index *index);
void sh_hf_files_close(struct sh_hf_files *f); /* fine if it was never made */

/* Open file number i, or all, unless they are open. Errors: SH_E_DATA, also if its length is not that of the index. */
sh_rc sh_hf_files_open(struct sh_hf_files *f, int64_t i);
sh_rc sh_hf_files_open_all(struct sh_hf_files *f);

/* Read n bytes of a tensor from its byte `at` on, or its elements [first, first + n) as floats; *bad: the first that is
 * not finite, or n. Opens the file, so several threads read open files only. Errors: SH_E_DATA. */
sh_rc sh_hf_files_read(struct sh_hf_files *f, const struct sh_st_entry *e, int64_t at, int64_t n, void *to);
sh_rc sh_hf_files_floats(struct sh_hf_files *f, const struct sh_st_entry *e, int64_t first, int64_t n, float *out,
                         int64_t *bad);

/* The type of a parameter's elements, for io/move. */
enum sh_move_type sh_hf_move_type(const struct sh_st_entry *e);

#endif
