#include "src/program/saved.h"

const struct sh_saved *sh_saved_of(const struct sh_program *p, const struct sh_param *param)
{
    return &p->saved[param->saved];
}

/* Elements of the saved tensor per step along the dimension with bands. */
static int64_t inner(const struct sh_saved *s, const struct sh_param *param)
{
    int64_t n = 1;

    for (int d = param->cut + 1; d < s->ndim; d++)
        n *= s->dim[d];
    return n;
}

/* A row is all that has one place in the dimensions before the one with bands. For example, of a tensor [2,6] a rank
 * holds bands {0,1} and {3,2} of dimension 1. Of row r it has elements 6 r, 6 r + 3 and 6 r + 4, end to end: */
struct sh_rng_runs sh_saved_run(const struct sh_program *p, const struct sh_param *param, int64_t at, int64_t n)
{
    const struct sh_saved *s = sh_saved_of(p, param);
    const struct sh_band *band = param->band;
    int64_t step, row, left, length;

    if (param->n_bands == 0)
        return (struct sh_rng_runs){.first = at, .n = n, .count = 1};
    step = inner(s, param);
    row = at / (param->dim[param->cut] * step);
    left = at % (param->dim[param->cut] * step);
    for (; left >= band->n * step; band++)
        left -= band->n * step;
    length = band->n * step - left;
    return (struct sh_rng_runs){.first = (row * s->dim[param->cut] + band->first) * step + left,
                                .n = length < n ? length : n,
                                .stride = s->dim[param->cut] * step,
                                .count = param->n_bands == 1 && left == 0 && n > length ? n / length : 1};
}

bool sh_saved_divides(const struct sh_program *p, const struct sh_param *param, int64_t elems)
{
    const struct sh_saved *s = sh_saved_of(p, param);
    bool divides = param->elems % elems == 0;

    for (int i = 0; i < param->n_bands; i++)
        divides = divides && param->band[i].first * inner(s, param) % elems == 0 &&
                  param->band[i].n * inner(s, param) % elems == 0;
    return divides && (param->n_bands == 0 || param->cut == 0 || s->dim[param->cut] * inner(s, param) % elems == 0);
}

/* What is held of the dimension with bands; -1: they do not lie in it, or not in order. */
static int64_t in_bands(const struct sh_saved *s, const struct sh_param *param)
{
    int64_t held = 0, end = 0;

    for (int i = 0; i < param->n_bands; i++) {
        const struct sh_band *band = &param->band[i];

        if (band->first < end || band->n <= 0 || band->n > s->dim[param->cut] - band->first)
            return -1;
        end = band->first + band->n;
        held += band->n;
    }
    return held;
}

static sh_rc check(const struct sh_program *p, const struct sh_param *param)
{
    const struct sh_saved *s;
    int64_t elems = 1;

    SH_REQUIRE(param->saved >= 0 && param->saved < p->n_saved);
    s = sh_saved_of(p, param);
    SH_REQUIRE(param->n_bands >= 0 && param->n_bands <= SH_BANDS_MAX && param->ndim == s->ndim);
    SH_REQUIRE(param->n_bands == 0 || (param->cut >= 0 && param->cut < s->ndim));
    for (int d = 0; d < s->ndim; d++) {
        int64_t held = param->n_bands && d == param->cut ? in_bands(s, param) : s->dim[d];

        if (held != param->dim[d])
            return sh_fail(SH_E_BUG, "%s: the bands of dimension %d overlap, leave it, or are not the %lld held",
                           s->name, d, (long long)param->dim[d]);
        elems *= held;
    }
    SH_REQUIRE(elems == param->elems);
    return SH_OK;
}

sh_rc sh_saved_check(const struct sh_program *p)
{
    for (int i = 0; i < p->n_params; i++)
        SH_TRY(check(p, &p->params[i]));
    return SH_OK;
}

struct sh_range sh_program_owned(const struct sh_program *p, const struct sh_unit *u, const struct sh_mesh_shape *mesh)
{
    int place = sh_group_index(mesh, u->shard);

    if (u->of_rows && u->first_cut != SH_NONE)
        return (struct sh_range){p->cuts[u->first_cut + place], p->cuts[u->first_cut + place + 1]};
    return sh_layout_owned_chunk(u->elems, u->chunk, place);
}
