#include "src/run/finite.h"

#include "src/base/mem.h"
#include "src/run/run.h"
#include "src/run/scan.h"
#include "src/run/shards.h"
#include "src/run/visit.h"

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

static int places(const struct sh_run *r)
{
    return r->p->n_units * sh_shards_states(r);
}

/* The check of one unit. */
struct unit_look {
    const struct sh_run *r;
    int bad; /* the first state with a number that is not finite; the number of states if there is none */
};

static void look(const struct sh_stretch *s, void *arg)
{
    struct unit_look *l = arg;

    for (int k = 0; k < l->bad; k++)
        if (!is_finite(l->r, s->state[k], s->n))
            l->bad = k;
}

/* Find the first place with a number that is not finite, for the error to name; places(r): none. */
static int find_bad(const struct sh_run *r)
{
    int n = sh_shards_states(r);

    for (int i = 0; i < r->p->n_units; i++) {
        struct unit_look l = {.r = r, .bad = n};

        if (r->p->units[i].trainable)
            sh_visit_all(r, &r->p->units[i], false, look, &l);
        if (l.bad < n)
            return i * n + l.bad;
    }
    return places(r);
}

/* On a device: the place that each count belongs to. */
struct scan_look {
    const struct sh_run *r;
    struct sh_scan *scan;
    int unit;
    int *place;
    int n, cap;
};

static void scan_look(const struct sh_stretch *s, void *arg)
{
    struct scan_look *l = arg;

    for (int k = 0; k < sh_shards_states(l->r); k++) {
        sh_scan_bad(l->scan, s->state[k], s->n);
        l->place = sh_grow(l->place, l->n, &l->cap, sizeof *l->place);
        l->place[l->n++] = l->unit * sh_shards_states(l->r) + k;
    }
}

/* On the device: all counts are queued, then read at once. */
static int find_bad_there(const struct sh_run *r)
{
    struct scan_look l = {.r = r, .scan = sh_scan_open(r)};
    const uint64_t *bad;
    int first = places(r);

    for (l.unit = 0; l.unit < r->p->n_units; l.unit++)
        if (r->p->units[l.unit].trainable)
            sh_visit_all(r, &r->p->units[l.unit], false, scan_look, &l);
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
                   r->p->units[place / sh_shards_states(r)].name, sh_shards_state_name(r, place % sh_shards_states(r)));
}

sh_rc sh_run_check_finite(struct sh_run *r)
{
    return sh_agree(check_units(r));
}
