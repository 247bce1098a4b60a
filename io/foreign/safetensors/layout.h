/* Lays out tensors in a new folder of safetensors files, and makes the headers and the index that describe the layout.
 * Names, places and bytes are those of save_pretrained(): a single file is model.safetensors, several are
 * model-00001-of-00005.safetensors and so on, with an index. Pure: all ranks get the same result. Local. */
#ifndef IO_SAFETENSORS_LAYOUT_H
#define IO_SAFETENSORS_LAYOUT_H

#include "io/foreign/safetensors/index.h"

struct sh_st_layout {
    struct sh_st_index index; /* its entries are in the order given, not sorted by name */
    char **header;            /* [n_files] length and JSON: all before the data, freed with free() */
    int64_t *header_bytes;
    int64_t total_bytes, total_elems; /* of tensors */
};

/* `tensor` [n]: name, type, dims and elems are set. A file is full when the next tensor would take it beyond max_bytes;
 * a tensor larger than that gets a file to itself. Errors: SH_E_BUG: a name that needs escapes in JSON; SH_E_USAGE:
 * more files than a name has digits for. */
sh_rc sh_st_layout_make(const struct sh_st_entry *tensor, int64_t n, int64_t max_bytes, struct sh_st_layout *out);
void sh_st_layout_free(struct sh_st_layout *l);

/* Return the text of model.safetensors.index.json, freed with free(). */
char *sh_st_layout_index_text(const struct sh_st_layout *l);

#endif
