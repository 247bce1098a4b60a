/* All tensors in a folder of safetensors files: model.safetensors alone, or the files that model.safetensors.index.json
 * names. One rank reads headers and index and sends them; from then on the data is accessed by file and offset only. */
#ifndef IO_SAFETENSORS_INDEX_H
#define IO_SAFETENSORS_INDEX_H

#include "io/foreign/safetensors/header.h"

#include <stddef.h>

enum { SH_ST_FILE_MAX = 255, SH_ST_FILES_MAX = 10000, SH_ST_INDEX_MAX = 64 << 20 };

#define SH_ST_ALONE "model.safetensors"
#define SH_ST_INDEX "model.safetensors.index.json"

/* How the names of a model's files begin. */
extern const char *const sh_st_stem_model[1];

struct sh_st_file {
    char name[SH_ST_FILE_MAX + 1];
    int64_t bytes;
};

struct sh_st_index {
    struct sh_st_file *file;
    struct sh_st_entry *entry; /* sorted by name */
    int64_t n_files, n;
};

/* Whether the folder has weights in this format, judging by file names only. Local. */
bool sh_st_has_weights(const char *folder);

/* Read the headers of all files. Local. Errors: SH_E_DATA: no weights, or only in other formats; the rules of header.h;
 * in the index: file names that contain a path, a missing file, a tensor that is only in the file or only in the index,
 * or in two files. */
sh_rc sh_st_index_read(const char *folder, struct sh_st_index *out);

/* The same for the files of another stem: STEM.safetensors, or what STEM.safetensors.index.json names. */
sh_rc sh_st_index_read_stem(const char *folder, const char *stem, struct sh_st_index *out);

/* "STEM.safetensors.index.json", freed with free(). */
char *sh_st_index_name(const char *stem);

/* Read a single file of the folder. Local. Errors: SH_E_DATA: the rules of header.h. */
sh_rc sh_st_index_read_one(const char *folder, const char *file, struct sh_st_index *out);

/* Sort by name again, after names were changed. Local. Errors: SH_E_DATA: two names are equal. */
sh_rc sh_st_index_sort(struct sh_st_index *index, const char *folder);
void sh_st_index_free(struct sh_st_index *index);

/* List the files that the text of an index names, each once, without accessing them. Local. Errors: SH_E_DATA. */
sh_rc sh_st_index_files(const char *text, size_t bytes, const char *path, struct sh_st_index *out);

/* Find a tensor by name; NULL: there is none. Local. */
const struct sh_st_entry *sh_st_index_find(const struct sh_st_index *index, const char *name);

/* Send rank 0's index to all ranks, where it overwrites `index`. Collective. Errors: SH_E_COMM. */
sh_rc sh_st_index_share(struct sh_st_index *index, int rank);

#endif
