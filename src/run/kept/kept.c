#include "src/run/kept/kept.h"

#include "src/base/hash.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/number/mixsum.h"
#include "src/base/time.h"
#include "src/pass/pass.h"
#include "src/run/kept/parts.h"
#include "src/run/run.h"
#include "src/run/save/map.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* Which elements of which saved tensors lie where: the collectives of a stage of one rank do not show its blocks. */
static uint64_t hash_params(const struct sh_program *p)
{
    uint64_t h = 0;

    for (int i = 0; i < p->n_params; i++)
        h = sh_mix64(h ^ (uint64_t)p->params[i].saved) + (uint64_t)p->params[i].unit_elems;
    return h;
}

/* The parts of two starts fit if this is equal on each rank: the same cuts over the same ranks. */
static uint64_t layout_of(const struct sh_run *r)
{
    const struct sh_mesh_shape *shape = &r->mesh->shape;
    uint64_t h = sh_mix64(sh_pass_hash(r->p) ^ sh_near_model(r->p)) ^ hash_params(r->p);

    for (int i = 0; i < shape->n; i++)
        h = sh_mix64(h ^ (uint64_t)shape->axis[i].size << 32 ^ (uint64_t)shape->axis[i].stride);
    for (int k = 0; k < r->p->n_states; k++)
        h = sh_mix64(h ^ (uint64_t)r->p->state[k].dtype);
    return sh_mix64(sh_mix64(h ^ (uint64_t)r->p->act) ^ (uint64_t)shape->rank);
}

/* Stages cut states in ways of their own: the number of a job is that of all its ranks. So many bits of each that no sum of
 * ranks overflows. Collective. */
static sh_rc share_layout(const struct sh_run *r, uint64_t *layout)
{
    long long sum = (long long)(layout_of(r) >> 24);

    SH_TRY(sh_mesh_sum_i64(&sum, 1));
    *layout = sh_mix64((uint64_t)sum);
    return SH_OK;
}

static int *number_units(const struct sh_program *p)
{
    int *unit = sh_calloc((size_t)p->n_units + 1, sizeof *unit), n = 0;

    for (int i = 0; i < p->n_units; i++)
        unit[i] = p->units[i].trainable ? n++ : SH_NONE;
    return unit;
}

sh_rc sh_kept_open(struct sh_run *r)
{
    if (!r->kept)
        return SH_OK;
    SH_TRY(share_layout(r, &r->kept->layout));
    r->kept->unit = number_units(r->p);
    r->kept->bytes = sh_near_bytes(r->p, &r->mesh->shape);
    return sh_agree(sh_kept_find_partner(r));
}

/* ---- slots ---- */

static bool is_loaded(const struct sh_kept *k, const struct sh_near_slot *s)
{
    return sh_near_state(s) == SH_NEAR_DONE && s->head->mark.step == k->loaded &&
           s->head->mark.start == k->loaded_start && s->head->layout == k->loaded_layout;
}

/* What is left of generations that were not loaded would mix with new ones of the same step. Of another layout it is of no
 * use, and its memory may be needed. */
static sh_rc empty_others(const struct sh_kept *k, const struct sh_kept_parts *parts)
{
    for (int i = 0; i < parts->n; i++) {
        const struct sh_near_slot *slot = &parts->part[i].slot;
        const struct sh_keep_part part = {.rank = slot->head->rank,
                                          .world = slot->head->world,
                                          .slot = parts->part[i].number,
                                          .layout = slot->head->layout};

        if (is_loaded(k, slot))
            continue;
        sh_near_empty(slot);
        if (part.layout != k->layout)
            SH_TRY(sh_keep_forget(k->socket, &part));
    }
    return SH_OK;
}

/* All parts are listed before any is forgotten: the list would change under the other ranks of the node. */
static sh_rc clear_others(const struct sh_run *r)
{
    struct sh_kept_parts parts;
    sh_rc rc = sh_agree(sh_kept_map(r, &parts));

    if (rc == SH_OK)
        rc = sh_agree(empty_others(r->kept, &parts));
    sh_kept_unmap(&parts);
    return rc;
}

/* The slot of the generation that was loaded is the same wherever a part or copy of it lies; a rank whose node is new
 * has neither, and must spare that slot all the same. Collective. */
static sh_rc find_loaded_slot(struct sh_run *r)
{
    struct sh_kept *k = r->kept;
    double slot = -1;

    for (int i = 0; i < SH_NEAR_SLOTS; i++)
        if (is_loaded(k, &k->slot[i]) || (k->copy[i].head && is_loaded(k, &k->copy[i])))
            slot = i;
    SH_TRY(sh_mesh_max(&slot, 1));
    if (slot < 0)
        return SH_OK;
    k->safe = k->done = k->loaded;
    k->safe_slot = k->done_slot = (int)slot;
    return SH_OK;
}

sh_rc sh_kept_take(struct sh_run *r)
{
    if (!r->kept)
        return SH_OK;
    SH_TRY(clear_others(r));
    SH_TRY(sh_agree(sh_kept_take_slots(r)));
    r->kept->patience = fmin(10 * r->cfg.checkpoint.near_silence_seconds, SH_KEEP_ANSWER_SECONDS);
    return find_loaded_slot(r);
}

/* Nobody may look before all are empty. */
void sh_kept_forget(struct sh_run *r)
{
    struct sh_kept *k = r->kept;

    if (!k)
        return;
    for (int i = 0; i < SH_NEAR_SLOTS; i++) {
        if (k->slot[i].head)
            sh_near_empty(&k->slot[i]);
        if (k->copy[i].head)
            sh_near_empty(&k->copy[i]);
    }
    k->loaded = k->safe = k->done = -1;
    k->described = false;
    sh_mesh_barrier();
}

/* Without a keeper, the error says it all. */
void sh_kept_accuse(const struct sh_run *r, int64_t good)
{
    if (r->kept && sh_keep_accuse(r->kept->socket, r->kept->patience, good) != SH_OK)
        sh_error_clear();
}

bool sh_kept_due(const struct sh_run *r, int64_t step)
{
    return r->kept && step % r->cfg.checkpoint.near_interval == 0;
}

/* ---- a generation ---- */

/* Of the wall clock, which the next start can read. */
static int64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

struct copy {
    const struct sh_run *r;
    const struct sh_near_slot *slot;
};

/* From a GPU through the device's own copies, which any memory can take. */
static uint64_t get_from_device(const struct sh_run *r, struct sh_floats to, struct sh_floats from, int64_t n,
                                uint64_t place)
{
    for (int i = 0; i < SH_FLOATS_ARRAYS && sh_floats_array(from, i); i++)
        sh_exec_get_at(r->exec, sh_floats_array(to, i), sh_floats_array(from, i), sh_floats_bytes(from, n));
    return sh_mixsum(to, n, place);
}

/* States in codes as floats, for any mesh. */
static uint64_t copy_coded(const struct sh_run *r, struct sh_floats to, const struct sh_map_stretch *s, int k,
                           struct sh_range of, uint64_t place)
{
    uint64_t sum = 0;

#pragma omp parallel for reduction(+ : sum) if (!r->device->gpu)
    for (int64_t at = of.begin; at < of.end; at += SH_MIXSUM_PART) {
        struct sh_range here = sh_layout_intersect(of, (struct sh_range){at, at + SH_MIXSUM_PART});
        struct sh_floats part = sh_floats_at(to, at - of.begin);

        sh_map_widen(r, s, k, here, part.whole);
        sum += sh_mixsum(part, here.end - here.begin, place + (uint64_t)(at - of.begin) * SH_MIXSUM_STEP);
    }
    return sum;
}

/* States that are missing count as zeros, as which the slot began. */
static uint64_t copy_floats(const struct sh_run *r, struct sh_floats to, struct sh_floats from, int64_t n,
                            uint64_t place)
{
    bool none = sh_floats_none(from);
    uint64_t sum = 0;

    if (r->device->gpu && !none)
        return get_from_device(r, to, from, n, place);
#pragma omp parallel for reduction(+ : sum)
    for (int64_t at = 0; at < n; at += SH_MIXSUM_PART) {
        int64_t here = n - at < SH_MIXSUM_PART ? n - at : SH_MIXSUM_PART;
        struct sh_floats part = sh_floats_at(to, at);
        uint64_t p = place + (uint64_t)at * SH_MIXSUM_STEP;

        sum += none ? sh_mixsum(part, here, p) : sh_mixsum_copy(part, sh_floats_at(from, at), here, p);
    }
    return sum;
}

static void copy_stretch(const struct sh_map_stretch *s, void *arg)
{
    const struct copy *c = arg;
    const struct sh_near_slot *slot = c->slot;
    struct sh_range written = c->r->map->unit[s->unit].written, mine = sh_layout_intersect(written, s->range);
    int unit = c->r->kept->unit[s->unit];
    int64_t at = mine.begin - written.begin;

    if (mine.begin == mine.end)
        return;
    for (int k = 0; k < slot->head->n_states; k++) {
        struct sh_floats to = sh_floats_at(sh_near_array(slot, unit, k), at);
        uint64_t place = sh_near_place(c->r->step, unit, k, at);

        slot->sum[unit * slot->head->n_states + k] +=
            s->state[k].coded ? copy_coded(c->r, to, s, k, mine, place)
                              : copy_floats(c->r, to, sh_floats_at(s->state[k], mine.begin - s->range.begin),
                                            mine.end - mine.begin, place);
    }
}

/* The texts of a generation, but for the guard, stay the same until the run goes back. */
static sh_rc describe(struct sh_run *r)
{
    struct sh_kept *k = r->kept;

    if (k->described)
        return SH_OK;
    sh_ckpt_meta_free(&k->meta);
    k->meta = (struct sh_ckpt_meta){0};
    k->described = true;
    return sh_run_describe(r, "", &k->meta);
}

static sh_rc fill(struct sh_run *r, const struct sh_near_slot *slot, const char *guard)
{
    struct copy c = {.r = r, .slot = slot};
    const struct sh_near_mark mark = {.step = r->step,
                                      .updates = r->updates,
                                      .samples = r->samples,
                                      .tokens = r->tokens,
                                      .time_ns = now_ns(),
                                      .start = r->kept->start};
    const struct sh_near_text text = {.config = r->kept->meta.config,
                                      .guard = guard,
                                      .notes = r->kept->meta.notes ? r->kept->meta.notes : "",
                                      .base = r->kept->meta.base ? r->kept->meta.base : ""};

    sh_near_begin(slot);
    sh_map_visit_all(r, false, copy_stretch, &c);
    return sh_near_end(slot, &mark, &text);
}

sh_rc sh_kept_write(struct sh_run *r, const char *guard)
{
    struct sh_kept *k = r->kept;
    int64_t step[SH_NEAR_SLOTS], begin = sh_now_ns();
    int slot;
    sh_rc rc;

    SH_TRY(describe(r));
    if (!sh_kept_has_keeper(r) && k->to == SH_NONE)
        return SH_OK; /* with a partner it goes on: that one waits for the copy */
    for (int i = 0; i < SH_NEAR_SLOTS; i++)
        step[i] = sh_near_state(&k->slot[i]) == SH_NEAR_DONE ? k->slot[i].head->mark.step : -1;
    if (k->safe >= 0)
        step[k->safe_slot] = k->safe;
    slot = sh_near_choose(step, k->safe);
    rc = fill(r, &k->slot[slot], guard);
    if (rc == SH_OK)
        rc = sh_kept_exchange(r, slot);
    k->seconds += sh_seconds_since(begin);
    if (rc == SH_OK) {
        k->done = r->step;
        k->done_slot = slot;
    }
    return rc;
}

double sh_kept_share(const struct sh_run *r)
{
    const struct sh_kept *k = r->kept;

    return k && k->done > k->safe && !atomic_load(&k->gone);
}

/* Once a generation of this start is safe, what was left of those before is of no use. */
static void drop_others(struct sh_run *r)
{
    struct sh_kept *k = r->kept;

    k->alone = true;
    if (r->mesh->node_rank == 0 && sh_keep_drop(k->socket, k->patience, k->start) != SH_OK) {
        sh_error_clear(); /* the keeper is gone, and everything with it, or stopped: its answer may still come */
        close(k->socket);
        k->socket = -1;
    }
}

void sh_kept_decide(struct sh_run *r, double sum)
{
    struct sh_kept *k = r->kept;

    if (!k || (int)sum != r->mesh->world)
        return;
    k->safe = k->done;
    k->safe_slot = k->done_slot;
    if (!k->alone)
        drop_others(r);
}

double sh_kept_seconds_down(const struct sh_run *r)
{
    return r->kept && r->kept->loaded >= 0 ? r->kept->down : -1;
}

double sh_kept_take_seconds(struct sh_run *r)
{
    double seconds = r->kept ? r->kept->seconds : 0;

    if (r->kept)
        r->kept->seconds = 0;
    return seconds;
}
