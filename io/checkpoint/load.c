#include "io/checkpoint/checkpoint.h"

#include "io/checkpoint/deadline.h"
#include "io/checkpoint/digest.h"
#include "io/checkpoint/edge.h"
#include "io/checkpoint/replicas.h"
#include "io/file/file.h"
#include "src/base/hash.h"
#include "src/base/mem.h"
#include "src/mesh/mesh.h"

#include <mpi.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TURN = 4 }; /* blocks that a replica reads before it hands them on */

/* Elements [at, at + n) of one block of a tensor, and where they go. */
struct wanted {
    const struct sh_ckpt_entry *entry;
    int state;
    int64_t block, at, n;
    float *data;
};

struct load {
    const char *path;
    const struct sh_ckpt_set *set;
    int rank, world;
    int fd;
    int64_t *place; /* [set->n_tensors]: of each tensor in the index */
    struct sh_ckpt_index index;
    struct wanted *wanted;
    int n_wanted, cap_wanted;
    bool share; /* ranks that want the same read it together */
    struct sh_ckpt_replicas replicas;
    struct sh_ckpt_parts parts; /* of blocks that this rank reads in part */
    struct sh_ckpt_deadline *deadline;
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

static sh_rc open_data(struct load *l)
{
    return sh_ckpt_index_open_data(&l->index, l->path, &l->fd);
}

static sh_rc check_piece(const struct load *l, const struct sh_ckpt_piece *p)
{
    SH_REQUIRE(p->tensor >= 0 && p->tensor < l->set->n_tensors);
    SH_REQUIRE(p->begin >= 0 && p->elems >= 0 && p->elems <= l->set->tensors[p->tensor].elems - p->begin);
    return SH_OK;
}

static void want(struct load *l, int state, const struct sh_ckpt_piece *p)
{
    const struct sh_ckpt_entry *e = &l->index.entry[l->place[p->tensor]];
    for (int64_t done = 0; done < p->elems;) {
        int64_t block = (p->begin + done) / SH_CKPT_BLOCK_ELEMS, at = (p->begin + done) % SH_CKPT_BLOCK_ELEMS;
        int64_t rest = sh_ckpt_block_elems(e->elems, block) - at, n = p->elems - done < rest ? p->elems - done : rest;
        l->wanted = sh_grow(l->wanted, l->n_wanted, &l->cap_wanted, sizeof *l->wanted);
        l->wanted[l->n_wanted++] = (struct wanted){e, state, block, at, n, p->data[state] + done};
        done += n;
    }
}

/* State by state, as they lie in the file: mostly one range after the other. */
static sh_rc plan_reads(struct load *l)
{
    for (int s = 0; s < SH_CKPT_STATES; s++)
        for (int i = 0; i < l->set->n_pieces; i++) {
            SH_TRY(check_piece(l, &l->set->pieces[i]));
            if (l->set->pieces[i].data[s])
                want(l, s, &l->set->pieces[i]);
        }
    return SH_OK;
}

static sh_rc find_replicas(struct load *l)
{
    uint64_t wish = 0;
    for (int i = 0; i < l->n_wanted; i++) {
        const struct wanted *w = &l->wanted[i];
        int64_t what[] = {w->state, w->entry->first_block + w->block, w->at, w->n};
        wish = sh_mix64(wish ^ sh_hash64(what, sizeof what));
    }
    return l->share ? sh_ckpt_replicas_find(wish, &l->replicas) : SH_OK;
}

/* Compare what has come into its place: a whole block on the spot, parts of one later. */
static sh_rc take(struct load *l, const struct wanted *w)
{
    const struct sh_ckpt_entry *e = w->entry;
    int64_t number = e->first_block + w->block;
    uint64_t seed = sh_ckpt_digest_seed(l->index.meta.step, w->state, e->name);
    uint64_t sum = sh_ckpt_digest_part(seed, w->block, w->data, w->at, w->n);
    if (w->n == sh_ckpt_block_elems(e->elems, w->block))
        return sum == l->index.digest[w->state][number] ? SH_OK
                                                        : sh_ckpt_index_damaged(l->path, w->state, e, w->block);
    l->parts.part = sh_grow(l->parts.part, l->parts.n, &l->parts.cap, sizeof *l->parts.part);
    l->parts.part[l->parts.n++] = (struct sh_ckpt_part){.block = w->state * l->index.n_blocks + number,
                                                        .begin = (int32_t)w->at,
                                                        .end = (int32_t)(w->at + w->n),
                                                        .sum = sum};
    return SH_OK;
}

static sh_rc read_one(struct load *l, const struct wanted *w)
{
    int64_t offset = w->entry->offset[w->state] + (w->block * SH_CKPT_BLOCK_ELEMS + w->at) * 4;
    SH_TRY(sh_file_read(l->fd, l->path, w->data, w->n * 4, offset));
    return take(l, w);
}

/* Replica k reads the k-th TURN of a round. One that has failed goes on taking part in the rounds. */
static void read_turn(struct load *l, int first, sh_rc *rc)
{
    int begin = first + l->replicas.rank * TURN;
    for (int i = begin; i < begin + TURN && i < l->n_wanted && *rc == SH_OK; i++)
        *rc = read_one(l, &l->wanted[i]);
}

static sh_rc hand_round(struct load *l, int first, sh_rc *rc)
{
    const struct sh_ckpt_replicas *r = &l->replicas;
    for (int i = first; r->size > 1 && i < first + r->size * TURN && i < l->n_wanted; i++) {
        const struct wanted *w = &l->wanted[i];
        int root = (i - first) / TURN;
        SH_TRY(sh_ckpt_replicas_hand(r, root, w->data, w->n));
        if (root != r->rank && *rc == SH_OK)
            *rc = take(l, w);
    }
    return SH_OK;
}

static sh_rc read_data(struct load *l)
{
    sh_rc own = SH_OK, handed = SH_OK;
    int any;
    for (int first = 0; first < l->n_wanted; first += l->replicas.size * TURN) {
        read_turn(l, first, &own);
        SH_TRY(hand_round(l, first, &handed));
    }
    SH_TRY(sh_ckpt_replicas_any(&l->replicas, own != SH_OK, &any));
    /* What a replica that failed has handed on is no reason of its own. */
    return any ? own : handed;
}

static sh_rc check_edges(struct load *l)
{
    return sh_ckpt_edge_check(&l->parts, &l->index, l->fd, l->path, l->world);
}

static const struct {
    const char *name;
    bool local; /* meets the others only when it is done */
    sh_rc (*run)(struct load *);
} stages[] = {
    {"reading the index", true, read_index},
    {"matching tensors", false, match},
    {"opening the checkpoint", true, open_data},
    {"planning the reads", true, plan_reads},
    {"finding replicas", false, find_replicas},
    {"reading the data", true, read_data},
    {"comparing shared blocks", false, check_edges},
};

static sh_rc run_stage(struct load *l, size_t i)
{
    sh_ckpt_deadline_enter(l->deadline, stages[i].name);
    if (!stages[i].local || l->replicas.size > 1)
        sh_ckpt_deadline_wait(l->deadline);
    sh_rc rc = stages[i].run(l);
    sh_ckpt_deadline_wait(l->deadline);
    return sh_agree(rc);
}

static struct sh_ckpt_deadline *start_deadline(const struct load *l, double timeout_seconds)
{
    char *what = sh_strfmt("loading %s", l->path);
    struct sh_ckpt_deadline *d = sh_ckpt_deadline_start(what, timeout_seconds, l->rank);
    free(what);
    return d;
}

sh_rc sh_ckpt_load_as(const char *path, const struct sh_ckpt_set *set, const struct sh_ckpt_load_options *options,
                      struct sh_ckpt_meta *meta, struct sh_ckpt_load_report *report)
{
    size_t i = 0;
    struct load l = {.path = path, .set = set, .fd = -1, .share = options->share, .replicas = sh_ckpt_replicas_alone()};
    sh_rc rc = SH_OK;
    MPI_Comm_rank(MPI_COMM_WORLD, &l.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &l.world);
    l.deadline = start_deadline(&l, options->timeout_seconds);
    while (i < sizeof stages / sizeof stages[0] && rc == SH_OK)
        rc = run_stage(&l, i++);
    sh_ckpt_deadline_stop(l.deadline);
    report->damaged = rc == SH_E_DATA && stages[i - 1].run != match;
    if (rc == SH_OK) {
        *meta = l.index.meta;
        l.index.meta = (struct sh_ckpt_meta){0};
    }
    if (l.fd >= 0)
        close(l.fd);
    sh_ckpt_replicas_free(&l.replicas);
    free(l.wanted);
    free(l.place);
    free(l.parts.part);
    sh_ckpt_index_free(&l.index);
    return rc;
}

sh_rc sh_ckpt_load(const char *path, const struct sh_ckpt_set *set, struct sh_ckpt_meta *meta)
{
    struct sh_ckpt_load_report report;
    return sh_ckpt_load_as(path, set, &(struct sh_ckpt_load_options){0}, meta, &report);
}
