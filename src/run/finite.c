#include "src/run/finite.h"

#include "src/base/mem.h"
#include "src/run/run.h"
#include "src/run/scan.h"
#include "src/run/shards.h"
#include "src/run/visit.h"

#include <math.h>
#include <stdlib.h>

enum { BLOCK = 1 << 16 };

/* Through a buffer that stays in the cache, in which halves are joined. */
static bool is_finite(const struct sh_run *r, struct sh_floats data, int64_t n)
{
    int bad = 0;

#pragma omp parallel reduction(+ : bad)
    {
        /* bad
         * = of a private copy; the reduction adds what the threads found. */
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

/* The state of a place: all that are saved of each unit, of a frozen one nothing. */
static struct sh_floats state_of(const struct sh_run *r, int place, int64_t *n)
{
    const struct sh_unit *u = &r->p->units[place / sh_shards_states(r)];
    struct sh_range own = sh_shards_owned(r, u);

    *n = u->trainable ? own.end - own.begin : 0;
    return sh_shards_state(r, u, u->trainable ? place % sh_shards_states(r) : SH_CKPT_MODEL);
}

static int places(const struct sh_run *r)
{
    return r->p->n_units * sh_shards_states(r);
}

/* Of one unit. */
struct unit_look {
    const struct sh_run *r;
    int bad; /* the first state with a number that is not finite; as many as there are: none */
};

static void look(const struct sh_stretch *s, void *arg)
{
    struct unit_look *l = arg;

    for (int k = 0; k < l->bad; k++)
        if (!is_finite(l->r, s->state[k], s->n))
            l->bad = k;
}

/* The first place with a number that is not finite, which is the one that the error names; places(r): none. */
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

static int find_bad_there(const struct sh_run *r)
{
    struct sh_scan *scan = sh_scan_open(r);
    const uint64_t *bad;
    int place = 0;
    int64_t n;

    for (int i = 0; i < places(r); i++) {
        struct sh_floats x = state_of(r, i, &n);

        sh_scan_bad(scan, x, n);
    }
    bad = sh_scan_read(scan);
    while (place < places(r) && !bad[place])
        place++;
    sh_scan_close(scan);
    return place;
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
