#include "io/checkpoint/file/pack.h"

#include "src/base/mem.h"
#include "src/mesh/mesh.h"

#include <stdlib.h>

/* Where the tensors end. */
static int64_t end_of_data(const struct sh_ckpt_index *index)
{
    int64_t end = index->structure_bytes;
    for (int64_t i = 0; i < index->n; i++)
        end += sh_ckpt_all_elems(&index->entry[i]) * 4;
    return end;
}

/* As bytes like those of a file, which are checked like those of a file. */
sh_rc sh_ckpt_index_share(struct sh_ckpt_index *index, const char *path, int rank)
{
    int64_t sizes[3] = {0};
    if (rank == 0) {
        sizes[0] = sh_ckpt_packed_bytes(index);
        sizes[1] = index->file_bytes;
        sizes[2] = end_of_data(index);
    }
    SH_TRY(sh_mesh_bcast(sizes, sizeof sizes, 0));
    unsigned char *bytes = rank == 0 ? sh_ckpt_pack(index) : sh_calloc((size_t)sizes[0], 1);
    sh_rc rc = sh_mesh_bcast(bytes, sizes[0], 0);
    if (rc == SH_OK && rank != 0) {
        sh_ckpt_index_free(index);
        rc = sh_ckpt_unpack(bytes, sizes[0], path, sizes[1], sizes[2], index);
    }
    free(bytes);
    return rc;
}
