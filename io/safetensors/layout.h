/* Where tensors will lie in a new folder of safetensors files, and the headers and the index that say so. Names, places and
 * bytes are those of save_pretrained(): one file is model.safetensors, several are model-00001-of-00005.safetensors and an
 * index. Pure: all ranks make the same. Local. */
#ifndef IO_SAFETENSORS_LAYOUT_H
#define IO_SAFETENSORS_LAYOUT_H

#include "io/safetensors/index.h"

struct sh_st_layout {
    struct sh_st_index index; /* its entries in the order given, not by name */
    char **header;            /* [n_files] length and JSON: all before the data, freed with free() */
    int64_t *header_bytes;
    int64_t total_bytes, total_elems; /* of tensors */
};

/* `tensor` [n]: name, type, dims and elems are set. A file is full when the next tensor would make its tensors more than
 * max_bytes; a larger tensor is alone in one. Errors: SH_E_BUG: a name that JSON would need escapes for; SH_E_DATA: more
 * files than a name has digits for. */
sh_rc sh_st_layout_make(const struct sh_st_entry *tensor, int64_t n, int64_t max_bytes, struct sh_st_layout *out);
void sh_st_layout_free(struct sh_st_layout *l);

/* The text of model.safetensors.index.json, freed with free(). */
char *sh_st_layout_index_text(const struct sh_st_layout *l);

#endif
