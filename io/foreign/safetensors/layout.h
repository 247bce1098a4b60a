/* Lays out tensors in a new folder of safetensors files, and makes the headers and the index that describe the layout.
 * Names, places and bytes are those of save_pretrained(): a single file is model.safetensors, several are
 * model-00001-of-00005.safetensors and so on, with an index. Pure: all ranks get the same result. Local. */
#ifndef IO_SAFETENSORS_LAYOUT_H
#define IO_SAFETENSORS_LAYOUT_H

#include "io/foreign/safetensors/index.h"

struct sh_st_layout {
    struct sh_st_index index; /* its entries are in the order given, not sorted by name */
    const char *const *stem;  /* [n_stems] */
    int n_stems;              /* of the names of files; each has an equal share of the entries */
    char **header;            /* [n_files] length and JSON: all before the data, freed with free() */
    int64_t *header_bytes;
};

/* `tensor` [n]: name, type, dims and elems are set. A file is full when the next tensor would take it beyond max_bytes;
 * a tensor larger than that gets a file to itself. The tensors are n_stems lists of equal length, one after the other;
 * each has files of its own, called stem[0].safetensors and so on. `stem` is lent until the layout is freed. Errors: SH_E_BUG: a name that needs escapes in JSON; SH_E_USAGE:
 * more files than a name has digits for. */
sh_rc sh_st_layout_make(const struct sh_st_entry *tensor, int64_t n, const char *const *stem, int n_stems,
                        int64_t max_bytes, struct sh_st_layout *out);
void sh_st_layout_free(struct sh_st_layout *l);

/* The files of a stem: from number *first on; returns how many. */
int sh_st_layout_files(const struct sh_st_layout *l, int stem, int *first);

/* Return the text of STEM.safetensors.index.json, freed with free(). */
char *sh_st_layout_index_text(const struct sh_st_layout *l, int stem);

#endif
