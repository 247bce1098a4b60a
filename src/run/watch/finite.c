#include "src/run/watch/finite.h"

#include "src/base/mem.h"
#include "src/run/run.h"
#include "src/run/save/map.h"
#include "src/run/save/scan.h"

#include <stdlib.h>

/* For each state of each unit, in the order [unit][state], whether it has numbers that are not finite. */
struct search {
    const struct sh_run *r;
    struct sh_scan *scan;
    uint64_t *bad;
};

static void look(const struct sh_map_stretch *s, void *arg)
{
    const struct search *l = arg;
    int n = l->r->map->n_states;

    for (int k = 0; k < n; k++)
        if (!sh_floats_none(s->state[k]))
            sh_scan_bad(l->scan, s->state[k], s->range.end - s->range.begin, &l->bad[s->unit * n + k]);
}

/* Only this rank's part is looked at; sh_agree() makes a bad number on any rank a refusal on all. The first place with
 * such a number is named. */
static sh_rc check_units(const struct sh_run *r)
{
    int n = r->map->n_states, places = r->p->n_units * n, i = 0;
    struct search l = {.r = r, .scan = sh_scan_open(r), .bad = sh_calloc((size_t)places, sizeof *l.bad)};

    sh_map_visit_all(r, false, look, &l);
    sh_scan_close(l.scan);
    while (i < places && !l.bad[i])
        i++;
    free(l.bad);
    if (i == places)
        return SH_OK;
    return sh_fail(SH_E_NUMERIC, "step %lld: %s %s hold NaN or infinity; not saved", (long long)r->step,
                   r->p->units[i / n].name, r->map->name[i % n]);
}

sh_rc sh_run_check_finite(struct sh_run *r)
{
    return sh_agree(check_units(r));
}
