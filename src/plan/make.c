#include "src/plan/make.h"

#include "src/plan/budget.h"
#include "src/plan/request.h"

static sh_rc agree(const struct sh_plan_request *ask, sh_rc rc)
{
    return ask->together ? ask->together(rc, NULL) : rc;
}

/* *most becomes the largest of all ranks. */
static sh_rc most_of(const struct sh_plan_request *ask, sh_rc rc, double *most)
{
    return ask->together ? ask->together(rc, most) : rc;
}

/* Whether everything is within the limit if parameters are gathered once. */
static sh_rc fits_resident(const struct sh_request_cache *cache, struct sh_build *b, bool *fits)
{
    struct sh_program *p = NULL;
    sh_rc rc;

    SH_TRY(sh_request_cached(cache, true, b));
    rc = sh_pass_build(b, &p);
    *fits = rc == SH_OK;
    sh_program_destroy(p);
    if (rc == SH_E_MEMORY)
        sh_error_clear();
    return rc == SH_E_MEMORY ? SH_OK : rc;
}

/* One answer for all ranks, which gather together. */
static sh_rc place_cache(const struct sh_plan_request *ask, struct sh_build *b)
{
    bool fits = ask->cache->parallel == SH_PARALLEL_RESIDENT;
    double not_all;
    sh_rc rc = SH_OK;

    if (ask->cache->parallel == SH_PARALLEL_AUTO)
        rc = fits_resident(ask->cache, b, &fits);
    not_all = !fits;
    SH_TRY(most_of(ask, rc, &not_all));
    return agree(ask, sh_request_cached(ask->cache, not_all == 0, b));
}

/* Choose the same number of rows of logits on all ranks. */
static sh_rc widen(const struct sh_plan_request *ask, struct sh_build *b)
{
    int64_t before = b->batch.chunk_rows,
            most = INT64_MAX / 2; /* as a double it is a whole number that an int64_t holds */
    double from, least = -1e18;   /* the negative of the least answer */
    sh_rc rc;

    do {
        from = least;
        b->batch.chunk_rows = before;
        rc = sh_pass_widen(b, &most);
        least = -(double)most;
        SH_TRY(most_of(ask, rc, &least));
        most = (int64_t)-least;
    } while (ask->together && least > from);
    return SH_OK;
}

sh_rc sh_plan_make(const struct sh_plan_request *ask, struct sh_build *build, struct sh_program **p)
{
    *p = NULL;
    SH_TRY(agree(ask,
                 sh_request_build(ask->cfg, ask->at, ask->mesh, ask->purpose, ask->threads, ask->limit_bytes, build)));
    if (ask->node_bytes)
        build->host_limit_bytes = sh_topology_host_room(ask->cfg, ask->at, ask->node_bytes, ask->node_ranks);
    if (ask->cache)
        SH_TRY(place_cache(ask, build));
    if (ask->score)
        SH_TRY(agree(ask, sh_request_scored(ask->score, build)));
    SH_TRY(sh_budget_fit(ask->cfg, ask->at, ask->together, build));
    SH_TRY(widen(ask, build));
    return agree(ask, ask->weigh ? sh_pass_weigh(build, p) : sh_pass_build(build, p));
}
