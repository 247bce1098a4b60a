#include "io/checkpoint/checkpoint.h"

#include "io/checkpoint/index.h"
#include "io/file/file.h"
#include "src/base/deadline.h"
#include "src/base/mem.h"
#include "src/mesh/mesh.h"

#include <mpi.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct load {
    const char *path;
    const struct sh_ckpt_set *set;
    int rank, world;
    int fd;
    int64_t *place; /* [set->n_tensors]: of each tensor in the index */
    struct sh_ckpt_index index;
};

static sh_rc read_index(struct load *l)
{
    return l->rank == 0 ? sh_ckpt_index_read(l->path, &l->index) : SH_OK;
}

static sh_rc match_tensor(struct load *l, int i)
{
    const struct sh_ckpt_tensor *t = &l->set->tensors[i];
    char want[100], have[100];
    l->place[i] = sh_ckpt_index_find(&l->index, t->name, i);
    if (l->place[i] < 0)
        return sh_fail(SH_E_DATA, "%s has no tensor %s %s, which this model needs; is it of another model?", l->path,
                       t->name, sh_ckpt_shape_text(t->ndim, t->dim, want));
    const struct sh_ckpt_entry *e = &l->index.entry[l->place[i]];
    if (e->ndim != t->ndim || memcmp(e->dim, t->dim, (size_t)t->ndim * sizeof *t->dim) != 0)
        return sh_fail(SH_E_DATA, "%s: %s has shape %s, but this model needs %s", l->path, t->name,
                       sh_ckpt_shape_text(e->ndim, e->dim, have), sh_ckpt_shape_text(t->ndim, t->dim, want));
    return SH_OK;
}

static sh_rc name_extra(const struct load *l)
{
    char *used = sh_calloc((size_t)l->index.n + 1, 1);
    int64_t i = 0;
    for (int k = 0; k < l->set->n_tensors; k++)
        used[l->place[k]] = 1;
    while (i < l->index.n && used[i])
        i++;
    free(used);
    char have[100];
    return sh_fail(SH_E_DATA,
                   "%s has %lld tensors more than this model, the first of them %s %s; is it of another model?",
                   l->path, (long long)l->index.n - l->set->n_tensors, l->index.entry[i].name,
                   sh_ckpt_shape_text(l->index.entry[i].ndim, l->index.entry[i].dim, have));
}

static sh_rc match(struct load *l)
{
    SH_TRY(sh_ckpt_index_share(&l->index, l->rank));
    l->place = sh_calloc((size_t)l->set->n_tensors + 1, sizeof *l->place);
    for (int i = 0; i < l->set->n_tensors; i++)
        SH_TRY(match_tensor(l, i));
    return l->index.n > l->set->n_tensors ? name_extra(l) : SH_OK;
}

/* All data once, shared out, before any of it is used: a rank's own pieces need not be whole blocks. */
static sh_rc verify(struct load *l)
{
    SH_TRY(sh_ckpt_index_open_data(&l->index, l->path, &l->fd));
    return sh_ckpt_index_verify(&l->index, l->fd, l->path, l->rank, l->world);
}

static sh_rc read_piece(const struct load *l, const struct sh_ckpt_piece *p)
{
    SH_REQUIRE(p->tensor >= 0 && p->tensor < l->set->n_tensors);
    const struct sh_ckpt_entry *e = &l->index.entry[l->place[p->tensor]];
    SH_REQUIRE(p->begin >= 0 && p->elems >= 0 && p->elems <= e->elems - p->begin);
    for (int s = 0; s < SH_CKPT_STATES; s++)
        if (p->data[s])
            SH_TRY(sh_file_read(l->fd, l->path, p->data[s], p->elems * 4, e->offset[s] + p->begin * 4));
    return SH_OK;
}

static sh_rc read_pieces(struct load *l)
{
    for (int i = 0; i < l->set->n_pieces; i++)
        SH_TRY(read_piece(l, &l->set->pieces[i]));
    return SH_OK;
}

static const struct {
    sh_rc (*run)(struct load *l);
    const char *doing;
} stages[] = {
    {read_index, "checkpoint: reading the index"},
    {match, "checkpoint: comparing the tensors' names and shapes"},
    {verify, "checkpoint: verifying the tensors"},
    {read_pieces, "checkpoint: reading the tensors"},
};

static sh_rc run_stage(struct load *l, size_t i)
{
    sh_ckpt_stage_begin(l->set, l->rank, stages[i].doing);
    sh_rc rc = sh_agree(stages[i].run(l));
    sh_deadline_end();
    return rc;
}

sh_rc sh_ckpt_load(const char *path, const struct sh_ckpt_set *set, struct sh_ckpt_meta *meta)
{
    struct load l = {.path = path, .set = set, .fd = -1};
    sh_rc rc = SH_OK;
    MPI_Comm_rank(MPI_COMM_WORLD, &l.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &l.world);
    for (size_t i = 0; i < sizeof stages / sizeof stages[0] && rc == SH_OK; i++)
        rc = run_stage(&l, i);
    if (rc == SH_OK) {
        *meta = l.index.meta;
        l.index.meta = (struct sh_ckpt_meta){0};
    }
    if (l.fd >= 0)
        close(l.fd);
    free(l.place);
    sh_ckpt_index_free(&l.index);
    return rc;
}
