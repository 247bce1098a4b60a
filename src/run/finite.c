#include "src/run/finite.h"

#include "src/base/mem.h"
#include "src/run/map.h"
#include "src/run/run.h"
#include "src/run/scan.h"

#include <math.h>
#include <stdlib.h>

enum { BLOCK = 1 << 16 };

/* Look at the numbers through a buffer that stays in the cache; halves are joined in it. */
static bool is_finite(const struct sh_run *r, struct sh_floats data, int64_t n)
{
    int bad = 0;

#pragma omp parallel reduction(+ : bad)
    {
        /* Each thread ORs into a private copy of `bad`; the reduction adds what the threads found. */
        float *buffer = sh_calloc(BLOCK, sizeof *buffer);

#pragma omp for schedule(static)
        for (int64_t at = 0; at < n; at += BLOCK) {
            int64_t here = n - at < BLOCK ? n - at : BLOCK;

            sh_exec_get_floats(r->exec, buffer, sh_floats_at(data, at), here);
            for (int64_t i = 0; i < here; i++)
                bad |= !isfinite(buffer[i]);
        }
        free(buffer);
    }
    return bad == 0;
}

/* Places are numbered in the order [unit][state]. */
static int place_of(const struct sh_run *r, int unit, int state)
{
    return unit * r->map->n_states + state;
}

static int places(const struct sh_run *r)
{
    return place_of(r, r->p->n_units, 0);
}

/* The first place with a number that is not finite, for the error to name; places(r): none so far. */
struct search {
    const struct sh_run *r;
    int bad;
};

static void look(const struct sh_map_stretch *s, void *arg)
{
    struct search *l = arg;

    for (int k = 0; k < l->r->map->n_states && place_of(l->r, s->unit, k) < l->bad; k++)
        if (!is_finite(l->r, s->state[k], s->range.end - s->range.begin))
            l->bad = place_of(l->r, s->unit, k);
}

static int find_bad(const struct sh_run *r)
{
    struct search l = {.r = r, .bad = places(r)};

    sh_map_visit_all(r, false, look, &l);
    return l.bad;
}

/* On a device: the place that each count belongs to. */
struct scan_look {
    const struct sh_run *r;
    struct sh_scan *scan;
    int *place;
    int n, cap;
};

static void scan_look(const struct sh_map_stretch *s, void *arg)
{
    struct scan_look *l = arg;

    for (int k = 0; k < l->r->map->n_states; k++) {
        sh_scan_bad(l->scan, s->state[k], s->range.end - s->range.begin);
        l->place = sh_grow(l->place, l->n, &l->cap, sizeof *l->place);
        l->place[l->n++] = place_of(l->r, s->unit, k);
    }
}

/* On the device: all counts are queued, then read at once. */
static int find_bad_there(const struct sh_run *r)
{
    struct scan_look l = {.r = r, .scan = sh_scan_open(r)};
    const uint64_t *bad;
    int first = places(r);

    sh_map_visit_all(r, false, scan_look, &l);
    bad = sh_scan_read(l.scan);
    for (int i = 0; i < l.n; i++)
        first = bad[i] && l.place[i] < first ? l.place[i] : first;
    sh_scan_close(l.scan);
    free(l.place);
    return first;
}

/* Only this rank's part is looked at; sh_agree() makes a bad number on any rank a refusal on all. */
static sh_rc check_units(const struct sh_run *r)
{
    int place = sh_scan_can(r) ? find_bad_there(r) : find_bad(r);

    if (place == places(r))
        return SH_OK;
    return sh_fail(SH_E_NUMERIC, "step %lld: %s %s hold NaN or infinity; not saved", (long long)r->step,
                   r->p->units[place / r->map->n_states].name, r->map->name[place % r->map->n_states]);
}

sh_rc sh_run_check_finite(struct sh_run *r)
{
    return sh_agree(check_units(r));
}
