/* Loading a generation: by ranks of any mesh, from parts that ranks of another mesh have filled. The ranks of a node
 * present the parts of its keeper. All learn what there is, choose the newest generation of which every part is there,
 * and check it where it lies; then each asks the presenters for the elements that it owns. */
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/run/kept/parts.h"
#include "src/run/run.h"
#include "src/run/save/frozen.h"
#include "src/run/save/map.h"
#include "src/run/save/shards.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* What a rank presents. */
struct offer {
    uint64_t layout, start;
    int64_t step;
    int32_t rank, world, n_rows;
    int32_t presenter, index; /* a rank of this start, and the number among its parts */
    bool fits;                /* it is of this model */
    bool bad;                 /* it has changed since it was written */
};

struct offers {
    struct offer *offer;
    int n;
};

/* The parts of a generation, by the rank that filled them. */
struct generation {
    uint64_t layout, start;
    int64_t step;
    int world;
    bool fits;
    const struct offer **part; /* [world] */
};

/* ---- what there is ---- */

static void fill_offers(const struct sh_run *r, const struct sh_kept_parts *parts, struct offer *out)
{
    uint64_t model = sh_near_model(r->p);

    for (int i = 0; i < parts->n; i++) {
        const struct sh_near_slot *s = &parts->part[i].slot;

        if (sh_near_state(s) == SH_NEAR_DONE)
            out[i] = (struct offer){.layout = s->head->layout,
                                    .start = s->head->mark.start,
                                    .step = s->head->mark.step,
                                    .rank = s->head->rank,
                                    .world = s->head->world,
                                    .n_rows = s->head->n_rows,
                                    .presenter = r->mesh->rank,
                                    .index = i,
                                    .fits = s->head->model == model};
    }
}

/* Every rank learns of all parts that are DONE. Collective. */
static sh_rc gather_offers(const struct sh_run *r, const struct sh_kept_parts *parts, struct offers *out)
{
    double most = parts->n;
    struct offer *mine;
    long bytes;
    sh_rc rc;

    *out = (struct offers){0};
    SH_TRY(sh_mesh_max(&most, 1));
    out->n = (int)most * r->mesh->world;
    if (out->n == 0)
        return SH_OK;
    bytes = (long)most * (long)sizeof *mine;
    mine = sh_calloc((size_t)most, sizeof *mine);
    out->offer = sh_calloc((size_t)out->n, sizeof *out->offer);
    fill_offers(r, parts, mine);
    rc = sh_mesh_gather(mine, (int)bytes, out->offer);
    free(mine);
    SH_TRY(rc);
    return sh_mesh_bcast(out->offer, bytes * r->mesh->world, 0);
}

/* Of a part and its copy on another node, that of whose rank the presenter is closer to. */
static bool is_better(const struct offer *a, const struct offer *b)
{
    return !b || abs(a->presenter - a->rank) < abs(b->presenter - b->rank);
}

/* A part of another generation, or none at all (world 0), is left out. */
static bool collect(const struct offers *all, struct generation *g)
{
    int found = 0;

    free(g->part);
    g->part = sh_calloc((size_t)g->world, sizeof *g->part);
    for (int i = 0; i < all->n; i++) {
        const struct offer *o = &all->offer[i];

        if (o->bad || o->world != g->world || o->layout != g->layout || o->start != g->start || o->step != g->step ||
            o->rank < 0 || o->rank >= g->world)
            continue;
        found += !g->part[o->rank];
        if (is_better(o, g->part[o->rank]))
            g->part[o->rank] = o;
    }
    return found == g->world;
}

/* The newest covered generation of a step in (after, before). */
static bool find_generation(const struct offers *all, int64_t after, int64_t before, struct generation *g)
{
    for (;;) {
        const struct offer *newest = NULL;

        for (int i = 0; i < all->n; i++) {
            const struct offer *o = &all->offer[i];

            if (o->world > 0 && !o->bad && o->step > after && o->step < before && (!newest || o->step > newest->step))
                newest = o;
        }
        if (!newest)
            return false;
        /* The parts of one step may be of two meshes or starts: the first that is covered counts. */
        for (int i = 0; i < all->n; i++)
            if (all->offer[i].world > 0 && all->offer[i].step == newest->step) {
                g->layout = all->offer[i].layout;
                g->start = all->offer[i].start;
                g->step = newest->step;
                g->world = all->offer[i].world;
                g->fits = all->offer[i].fits;
                if (collect(all, g))
                    return true;
            }
        before = newest->step;
    }
}

/* ---- whether it is good ---- */

/* Check what this rank presents; bad[i]: part i has changed. Fails with the first one's reason. */
static sh_rc check_parts(const struct sh_run *r, const struct sh_kept_parts *parts, const struct generation *g,
                         double *bad)
{
    sh_rc rc = SH_OK;

    if (!g->fits)
        return r->mesh->rank == 0 ? sh_fail(SH_E_DATA, "it is of another model or optimizer") : SH_OK;
    for (int i = 0; i < g->world; i++)
        if (g->part[i]->presenter == r->mesh->rank) {
            bad[i] = sh_near_check(&parts->part[g->part[i]->index].slot) != SH_OK;
            if (bad[i] && rc == SH_OK)
                rc = sh_fail_prefix(SH_E_DATA, "on %s, ", r->mesh->host);
        }
    return rc;
}

/* All leave out the same parts. Collective. */
static void mark_bad(struct offers *all, const struct generation *g, double *bad)
{
    if (sh_mesh_max(bad, g->world) != SH_OK)
        sh_stop(SH_E_COMM);
    for (int i = 0; i < g->world; i++)
        if (bad[i] > 0)
            all->offer[g->part[i] - all->offer].bad = true;
}

/* As long as a part that has changed has a copy, that is taken. Collective, agreed. */
static bool is_good(const struct sh_run *r, const struct sh_kept_parts *parts, struct offers *all, struct generation *g)
{
    double *bad = sh_calloc((size_t)g->world, sizeof *bad);
    bool good = false, covered = true;

    while (covered && !(good = sh_agree(check_parts(r, parts, g, bad)) == SH_OK)) {
        mark_bad(all, g, bad);
        covered = g->fits && collect(all, g);
        memset(bad, 0, (size_t)g->world * sizeof *bad);
        if (sh_error_text()[0])
            sh_log_warn("near checkpoint of step %lld%s: %s", (long long)g->step,
                        covered ? ", a copy is taken" : " passed over", sh_error_text());
        sh_error_clear();
    }
    free(bad);
    return good;
}

/* ---- who asks whom for what ---- */

/* What an ask is for. */
struct target {
    int piece, k;
    int64_t at, n;
};

struct fetch {
    const struct sh_run *r;
    const struct sh_kept_parts *parts;
    struct sh_shards *shards;
    int *first, *next; /* [tensors] and [pieces]: the pieces of a tensor, a list that ends with SH_NONE */
    struct sh_mesh_ask *ask;
    struct target *target;
    int n, cap_asks, cap_targets;
    int64_t elems; /* found, of one state */
    sh_rc failed;
};

static void list_pieces(struct fetch *f)
{
    const struct sh_ckpt_set *set = &f->shards->set;

    f->first = sh_calloc((size_t)set->n_tensors + 1, sizeof *f->first);
    f->next = sh_calloc((size_t)set->n_pieces + 1, sizeof *f->next);
    for (int i = 0; i < set->n_tensors; i++)
        f->first[i] = SH_NONE;
    for (int i = 0; i < set->n_pieces; i++) {
        f->next[i] = f->first[set->pieces[i].tensor];
        f->first[set->pieces[i].tensor] = i;
    }
}

/* Ask for n elements of a piece, which lie in a unit of a part from `from` on; all states, in pieces that travel at
 * once. */
static void add_asks(struct fetch *f, const struct offer *o, int unit, int64_t from, struct target t)
{
    enum { MOST = SH_MESH_TRADE_BYTES / 4 };
    int64_t end = t.at + t.n;

    f->elems += t.n;
    for (; t.at < end; t.at += t.n, from += t.n) {
        t.n = end - t.at < MOST ? end - t.at : MOST;
        for (t.k = 0; t.k < f->shards->set.states.n; t.k++) {
            int own = sh_map_state_at(f->r->p, sh_shards_param(f->shards, t.piece)->unit, t.k);

            if (!sh_shards_has(f->shards, t.piece, t.k))
                continue;
            f->ask = sh_grow(f->ask, f->n, &f->cap_asks, sizeof *f->ask);
            f->target = sh_grow(f->target, f->n, &f->cap_targets, sizeof *f->target);
            f->target[f->n] = t;
            f->ask[f->n++] = (struct sh_mesh_ask){
                .rank = o->presenter, .what = {o->index, (int64_t)unit << 8 | own, from}, .bytes = 4 * t.n};
        }
    }
}

/* The common elements of a piece and of the runs of a row. */
static void match(struct fetch *f, const struct offer *o, const struct sh_near_row *row, int piece)
{
    const struct sh_ckpt_piece *p = &f->shards->pieces[piece];
    struct sh_range want = {p->begin, p->begin + p->elems};
    int64_t i = row->stride > 0 && want.begin > row->first ? (want.begin - row->first) / row->stride : 0;

    for (; i < row->count && row->first + i * row->stride < want.end; i++) {
        int64_t begin = row->first + i * row->stride;
        struct sh_range both = sh_layout_intersect(want, (struct sh_range){begin, begin + row->n});

        if (both.begin < both.end)
            add_asks(f, o, row->unit, row->at + i * row->n + both.begin - begin,
                     (struct target){.piece = piece, .at = both.begin - p->begin, .n = both.end - both.begin});
    }
}

/* The presenter of a part tells all what it has; each takes what it wants of it. Collective. */
static sh_rc read_rows(struct fetch *f, const struct offer *o)
{
    bool mine = o->presenter == f->r->mesh->rank;
    struct sh_near_row *row = sh_calloc((size_t)o->n_rows + 1, sizeof *row);
    sh_rc rc;

    if (mine)
        memcpy(row, f->parts->part[o->index].slot.row, (size_t)o->n_rows * sizeof *row);
    rc = sh_mesh_bcast(row, (long)o->n_rows * (long)sizeof *row, o->presenter);
    for (int i = 0; i < o->n_rows && rc == SH_OK; i++)
        if (row[i].tensor >= 0 && row[i].tensor < f->shards->set.n_tensors)
            for (int p = f->first[row[i].tensor]; p != SH_NONE; p = f->next[p])
                match(f, o, &row[i], p);
    free(row);
    return rc;
}

static void give(void *arg, const int64_t what[3], int64_t bytes, void *out)
{
    const struct fetch *f = arg;
    struct sh_floats all = sh_near_array(&f->parts->part[what[0]].slot, (int)(what[1] >> 8), (int)(what[1] & 255));

    sh_floats_get(sh_floats_at(all, what[2]), bytes / 4, out);
}

static void take(void *arg, int64_t ask, const void *data)
{
    struct fetch *f = arg;
    const struct target *t = &f->target[ask];
    const struct sh_ckpt_piece *p = &f->shards->pieces[t->piece];
    const struct sh_ckpt_far *far = f->shards->set.far;

    if (p->far[t->k] && f->failed == SH_OK)
        f->failed = far->put(far->arg, t->piece, t->k, t->at, t->n, data);
    else if (!sh_floats_none(p->data[t->k]))
        sh_floats_put(sh_floats_at(p->data[t->k], t->at), t->n, data);
}

/* Each element that this rank owns lies in one part. */
static sh_rc check_cover(const struct fetch *f)
{
    int64_t wanted = 0;

    for (int i = 0; i < f->shards->set.n_pieces; i++)
        wanted += f->shards->pieces[i].elems;
    if (f->elems == wanted)
        return SH_OK;
    return sh_fail(SH_E_BUG, "near checkpoint: %lld of %lld elements are there", (long long)f->elems,
                   (long long)wanted);
}

/* Collective, agreed. */
static sh_rc fetch_all(const struct sh_run *r, const struct sh_kept_parts *parts, const struct generation *g)
{
    struct sh_shards shards;
    struct fetch f = {.r = r, .parts = parts, .shards = &shards};
    struct sh_mesh_trade trade = {.give = give, .take = take, .arg = &f};
    sh_rc rc = SH_OK;

    sh_shards_make(r, SH_SHARDS_LOAD, &shards);
    list_pieces(&f);
    for (int i = 0; i < g->world; i++)
        SH_TRY_OUT(read_rows(&f, g->part[i]));
    SH_TRY_OUT(sh_agree(check_cover(&f)));
    trade.ask = f.ask;
    trade.n = f.n;
    SH_TRY_OUT(sh_mesh_trade(&trade));
    SH_TRY_OUT(sh_agree(f.failed));
    sh_shards_put(&shards);
out:
    sh_shards_free(&shards);
    free(f.first);
    free(f.next);
    free(f.ask);
    free(f.target);
    return rc;
}

/* ---- its meta data ---- */

/* The presenter of the first part has them. Collective. */
static sh_rc share_meta(const struct sh_run *r, const struct sh_kept_parts *parts, const struct offer *first,
                        struct sh_ckpt_meta *meta)
{
    struct {
        struct sh_near_mark mark;
        char text[SH_NEAR_TEXT];
    } *all = sh_calloc(1, sizeof *all);
    const struct sh_near_slot *s = &parts->part[first->index].slot;
    struct sh_near_slot copy = {.text = all->text};
    struct sh_near_text text;
    struct timespec now;
    sh_rc rc;

    if (first->presenter == r->mesh->rank) {
        all->mark = s->head->mark;
        memcpy(all->text, s->text, (size_t)s->head->text_bytes);
    }
    rc = sh_mesh_bcast(all, (long)sizeof *all, first->presenter);
    if (rc == SH_OK) {
        text = sh_near_texts(&copy);
        *meta = (struct sh_ckpt_meta){.step = all->mark.step,
                                      .samples = all->mark.samples,
                                      .tokens = all->mark.tokens,
                                      .updates = all->mark.updates,
                                      .config = sh_strdup(text.config),
                                      .guard = sh_strdup(text.guard),
                                      .notes = sh_strdup(text.notes),
                                      .base = sh_strdup(text.base)};
        clock_gettime(CLOCK_REALTIME, &now);
        r->kept->down = (double)now.tv_sec - (double)all->mark.time_ns / 1e9;
    }
    free(all);
    return rc;
}

static sh_rc load(struct sh_run *r, const struct sh_kept_parts *parts, const struct generation *g,
                  struct sh_ckpt_meta *meta)
{
    SH_TRY(share_meta(r, parts, g->part[0], meta));
    SH_TRY(fetch_all(r, parts, g));
    r->kept->loaded = g->step;
    r->kept->loaded_layout = g->layout;
    r->kept->loaded_start = g->start;
    return sh_frozen_load(r, "the near checkpoint", meta->base);
}

sh_rc sh_kept_load(struct sh_run *r, int64_t step, struct sh_ckpt_meta *meta, bool *loaded)
{
    struct sh_kept_parts parts = {0};
    struct generation g = {0};
    struct offers offers = {0};
    int64_t before = INT64_MAX;
    sh_rc rc;

    *loaded = false;
    if (!r->kept)
        return SH_OK;
    SH_TRY_OUT(sh_agree(sh_kept_map(r, &parts)));
    SH_TRY_OUT(gather_offers(r, &parts, &offers));
    while (!*loaded && find_generation(&offers, step, before, &g)) {
        *loaded = is_good(r, &parts, &offers, &g);
        before = g.step;
    }
    rc = *loaded ? load(r, &parts, &g, meta) : SH_OK;
out:
    sh_kept_unmap(&parts);
    free(g.part);
    free(offers.offer);
    return rc;
}
