#include "io/checkpoint/file/edge.h"

#include "io/checkpoint/file/digest.h"
#include "src/base/mem.h"
#include "src/mesh/mesh.h"

#include <mpi.h>
#include <stdlib.h>

/* Blocks are dealt to the ranks in turn, so that each rank is responsible for few, however many ranks there are. */
static int home(const struct sh_ckpt_part *p, int world)
{
    return (int)(p->block % world);
}

/* Data that this rank sends to all others, or receives from them. */
struct exchange {
    int *count, *place; /* [world] bytes for each rank, and their start */
    char *data;
    int bytes;
};

/* Places are computed from the counts. */
static void make_room(struct exchange *x, int world)
{
    x->bytes = 0;
    for (int r = 0; r < world; r++) {
        x->place[r] = x->bytes;
        x->bytes += x->count[r];
    }
    x->data = sh_calloc((size_t)x->bytes + 1, 1);
}

/* Sorts the parts by the rank that is the home of their block. */
static void fill(struct exchange *x, const struct sh_ckpt_parts *mine, int world)
{
    for (int i = 0; i < mine->n; i++)
        x->count[home(&mine->part[i], world)] += (int)sizeof *mine->part;
    make_room(x, world);
    int *next = sh_calloc((size_t)world, sizeof *next);
    struct sh_ckpt_part *to = (struct sh_ckpt_part *)x->data;
    for (int i = 0; i < mine->n; i++) {
        int r = home(&mine->part[i], world);
        to[x->place[r] / (int)sizeof *to + next[r]++] = mine->part[i];
    }
    free(next);
}

/* Collective. Counts go first, so that each rank knows how much it will receive. */
static sh_rc swap(struct exchange *out, struct exchange *in, int world)
{
    SH_MPI(MPI_Alltoall(out->count, 1, MPI_INT, in->count, 1, MPI_INT, MPI_COMM_WORLD));
    make_room(in, world);
    SH_MPI(MPI_Alltoallv(out->data, out->count, out->place, MPI_BYTE, in->data, in->count, in->place, MPI_BYTE,
                         MPI_COMM_WORLD));
    return SH_OK;
}

static int by_place(const void *a, const void *b)
{
    const struct sh_ckpt_part *x = a, *y = b;
    if (x->block != y->block)
        return x->block < y->block ? -1 : 1;
    return x->begin != y->begin ? x->begin - y->begin : x->end - y->end;
}

/* Checks the blocks whose home is this rank. */
struct judge {
    const struct sh_ckpt_index *index;
    int fd;
    const char *path;
    float *buffer;
};

/* Finds the entry of a block number by bisection: first_block grows with the entry. */
static const struct sh_ckpt_entry *entry_of(const struct sh_ckpt_index *index, int64_t block)
{
    int64_t low = 0, high = index->n - 1;
    while (low < high) {
        int64_t middle = (low + high + 1) / 2;
        if (index->entry[middle].first_block <= block)
            low = middle;
        else
            high = middle - 1;
    }
    return &index->entry[low];
}

/* Adds up the parts [0, n) of one block, sorted. Returns whether they are the whole block, each element once. A part
 * may come twice, from two replicas; *agree is cleared if the two have read different data. */
static bool add_up(const struct sh_ckpt_part *p, int n, int64_t elems, uint64_t *sum, bool *agree)
{
    int64_t at = 0;
    *sum = 0;
    for (int i = 0; i < n; i++) {
        if (i > 0 && p[i].begin == p[i - 1].begin && p[i].end == p[i - 1].end) {
            *agree = *agree && p[i].sum == p[i - 1].sum;
            continue;
        }
        if (p[i].begin != at)
            return false;
        *sum += p[i].sum;
        at = p[i].end;
    }
    return at == elems;
}

/* Whole: compares it. Contradictory: damaged. Not whole, since nobody wanted the rest of it: reads the whole block and
 * compares that. */
static sh_rc judge_block(struct judge *j, const struct sh_ckpt_part *p, int n)
{
    int state = (int)(p->block / j->index->n_blocks);
    int64_t number = p->block % j->index->n_blocks;
    const struct sh_ckpt_entry *e = entry_of(j->index, number);
    int64_t block = number - e->first_block, elems = sh_ckpt_block_elems(e->elems, block);
    bool agree = true;
    uint64_t sum;
    bool whole = add_up(p, n, elems, &sum, &agree);
    if (!agree || (whole && sum != j->index->digest[state][number]))
        return sh_ckpt_index_damaged(j->index, j->path, state, e, block);
    if (whole)
        return SH_OK;
    if (!j->buffer)
        j->buffer = sh_calloc(SH_CKPT_BLOCK_ELEMS, sizeof *j->buffer);
    return sh_ckpt_index_read_block(j->index, j->fd, j->path, state, e, block, j->buffer, &elems);
}

/* The parts are sorted by block, so those of one block are adjacent. */
static sh_rc judge_all(struct judge *j, const struct sh_ckpt_part *p, int n)
{
    for (int first = 0, end; first < n; first = end) {
        for (end = first + 1; end < n && p[end].block == p[first].block;)
            end++;
        SH_TRY(judge_block(j, p + first, end - first));
    }
    return SH_OK;
}

static sh_rc judge_parts(struct judge *j, struct exchange *in)
{
    int n = in->bytes / (int)sizeof(struct sh_ckpt_part);
    if (n > 0)
        qsort(in->data, (size_t)n, sizeof(struct sh_ckpt_part), by_place);
    sh_rc rc = judge_all(j, (const struct sh_ckpt_part *)in->data, n);
    free(j->buffer);
    return rc;
}

/* Blocks at the edges of shards are read in parts by several ranks, none of which could check the digest alone. Each
 * rank sends the sum of its part to the block's home, which adds up and compares. Collective. */
sh_rc sh_ckpt_edge_check(const struct sh_ckpt_parts *mine, const struct sh_ckpt_index *index, int fd, const char *path,
                         int world)
{
    struct judge j = {.index = index, .fd = fd, .path = path};
    int *tables = sh_calloc((size_t)world * 4, sizeof *tables);
    struct exchange out = {.count = tables, .place = tables + world};
    struct exchange in = {.count = tables + 2 * world, .place = tables + 3 * world};
    sh_mesh_own_mpi();
    fill(&out, mine, world);
    sh_rc rc = swap(&out, &in, world);
    if (rc == SH_OK)
        rc = judge_parts(&j, &in);
    free(out.data);
    free(in.data);
    free(tables);
    return rc;
}
