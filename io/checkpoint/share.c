#include "io/checkpoint/index.h"

#include "src/base/mem.h"
#include "src/mesh/mesh.h"

#include <string.h>

/* Sends rank 0's text to all ranks. The others allocate it. */
static sh_rc share_text(char **text, int rank)
{
    int64_t bytes = rank == 0 ? (int64_t)strlen(*text) : 0;
    SH_TRY(sh_mesh_bcast(&bytes, sizeof bytes, 0));
    if (rank != 0)
        *text = sh_calloc((size_t)bytes + 1, 1);
    return sh_mesh_bcast(*text, bytes, 0);
}

/* In order of dependence: sizes, texts, entries, then block numbers, which size the digests. */
static sh_rc share_into(struct sh_ckpt_index *index, const struct sh_ckpt_index *sizes, int rank)
{
    if (rank != 0) {
        *index = *sizes;
        index->meta.config = index->meta.guard = index->meta.notes = index->meta.base = NULL;
        memset(index->digest, 0, sizeof index->digest);
        sh_ckpt_index_alloc(index, sizes->n);
    }
    SH_TRY(share_text(&index->meta.config, rank));
    SH_TRY(share_text(&index->meta.guard, rank));
    SH_TRY(share_text(&index->meta.notes, rank));
    SH_TRY(share_text(&index->meta.base, rank));
    SH_TRY(sh_mesh_bcast(index->entry, (long)((size_t)index->n * sizeof *index->entry), 0));
    if (rank != 0)
        sh_ckpt_index_number_blocks(index);
    for (int s = 0; s < index->states.n; s++)
        SH_TRY(sh_mesh_bcast(index->digest[s], (long)((size_t)index->n_blocks * sizeof(uint64_t)), 0));
    return SH_OK;
}

/* Collective. Sends rank 0's index to all; the previous one of the others is freed first. */
sh_rc sh_ckpt_index_share(struct sh_ckpt_index *index, int rank)
{
    struct sh_ckpt_index sizes = {0};
    if (rank == 0)
        sizes = *index;
    else
        sh_ckpt_index_free(index);
    /* Sends the struct's numbers; its pointers mean nothing on the other ranks and are not used there. */
    SH_TRY(sh_mesh_bcast(&sizes, sizeof sizes, 0));
    return share_into(index, &sizes, rank);
}
