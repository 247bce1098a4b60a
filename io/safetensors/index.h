/* All tensors of a folder of safetensors files: model.safetensors alone, or what model.safetensors.index.json names. One
 * rank reads headers and index and sends them; after that the data is only reached by file and offset. */
#ifndef IO_SAFETENSORS_INDEX_H
#define IO_SAFETENSORS_INDEX_H

#include "io/safetensors/header.h"

#include <stddef.h>

enum { SH_ST_FILE_MAX = 255, SH_ST_FILES_MAX = 10000, SH_ST_INDEX_MAX = 64 << 20 };

#define SH_ST_ALONE "model.safetensors"
#define SH_ST_INDEX "model.safetensors.index.json"

struct sh_st_file {
    char name[SH_ST_FILE_MAX + 1];
    int64_t bytes;
};

struct sh_st_index {
    struct sh_st_file *file;
    struct sh_st_entry *entry; /* by name */
    int64_t n_files, n;
};

/* Whether the folder has weights of this format, by names alone. Local. */
bool sh_st_has_weights(const char *folder);

/* Local. Errors: SH_E_DATA: no weights, or those of other formats only; the rules of header.h; of the index: names of files
 * with a path in them, a file that is not there, tensors that file and index do not both have, or that two files have. */
sh_rc sh_st_index_read(const char *folder, struct sh_st_index *out);

/* One file of the folder alone. Local. Errors: SH_E_DATA: the rules of header.h. */
sh_rc sh_st_index_read_one(const char *folder, const char *file, struct sh_st_index *out);

/* By name again, after names were changed. Local. Errors: SH_E_DATA: two are equal. */
sh_rc sh_st_index_sort(struct sh_st_index *index, const char *folder);
void sh_st_index_free(struct sh_st_index *index);

/* The files that the text of an index names, each once, without looking at them. Local. Errors: SH_E_DATA. */
sh_rc sh_st_index_files(const char *text, size_t bytes, const char *path, struct sh_st_index *out);

/* The tensor, or NULL. Local. */
const struct sh_st_entry *sh_st_index_find(const struct sh_st_index *index, const char *name);

/* Rank 0's index to all ranks; the others' is overwritten. Collective. Errors: SH_E_COMM. */
sh_rc sh_st_index_share(struct sh_st_index *index, int rank);

#endif
