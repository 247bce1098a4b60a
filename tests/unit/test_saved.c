/* Which elements of a saved tensor a parameter holds, against a loop over all of them. */
#include "src/program/saved.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { MOST = 512 };

struct row {
    int ndim;
    int64_t dim[SH_MAX_DIMS];
    int cut, n_bands;
    struct sh_band band[SH_BANDS_MAX];
    int64_t divides; /* the largest number that divides all runs */
};

/* clang-format off */
static const struct row rows[] = {
    {1, {7}, 0, 0, {{0}}, 7},
    {2, {6, 5}, 0, 0, {{0}}, 30},
    {2, {12, 5}, 0, 3, {{0, 2}, {6, 1}, {9, 3}}, 5},        /* rows of q, k and v of a fused matrix */
    {2, {12, 5}, 0, 1, {{4, 4}}, 20},
    {2, {5, 12}, 1, 1, {{3, 6}}, 3},                        /* columns of a down matrix */
    {2, {5, 12}, 1, 3, {{0, 2}, {4, 2}, {10, 2}}, 2},       /* columns of a fused matrix that is turned round */
    {2, {5, 12}, 1, 1, {{0, 12}}, 12},
    {3, {6, 4, 3}, 0, 1, {{2, 2}}, 24},                     /* experts */
    {3, {6, 4, 3}, 1, 2, {{0, 1}, {2, 2}}, 3},
    {3, {2, 3, 8}, 2, 2, {{0, 4}, {4, 4}}, 4},              /* bands that touch */
};
/* clang-format on */
enum { ROWS = sizeof rows / sizeof *rows };

/* A program of that parameter alone. */
static struct sh_program *make(const struct row *r)
{
    struct sh_program *p = sh_program_create(SH_F32);
    struct sh_saved s = {.name = "w", .ndim = r->ndim, .elems = 1};
    struct sh_param param = {.ndim = r->ndim, .elems = 1, .cut = r->cut, .n_bands = r->n_bands};

    for (int d = 0; d < r->ndim; d++) {
        s.dim[d] = param.dim[d] = r->dim[d];
        if (r->n_bands && d == r->cut)
            param.dim[d] = 0;
        for (int i = 0; i < r->n_bands && d == r->cut; i++) {
            param.band[i] = r->band[i];
            param.dim[d] += r->band[i].n;
        }
        s.elems *= s.dim[d];
        param.elems *= param.dim[d];
    }
    sh_program_add_saved(p, &s);
    sh_program_add_param(p, &param);
    return p;
}

static bool in_bands(const struct row *r, int64_t place)
{
    bool in = r->n_bands == 0;

    for (int i = 0; i < r->n_bands; i++)
        in = in || (place >= r->band[i].first && place < r->band[i].first + r->band[i].n);
    return in;
}

/* The elements that are held, in order; returns their number. */
static int64_t list(const struct row *r, const struct sh_saved *s, int64_t *held)
{
    int64_t n = 0, inner = 1;

    for (int d = r->cut + 1; d < r->ndim; d++)
        inner *= r->dim[d];
    for (int64_t e = 0; e < s->elems; e++)
        if (in_bands(r, e / inner % r->dim[r->cut]))
            held[n++] = e;
    return n;
}

/* Every part of a parameter is the elements of the list, and no two runs of it could be one. */
static void runs_are_what_is_held(void **state)
{
    (void)state;
    for (int i = 0; i < ROWS; i++) {
        struct sh_program *p = make(&rows[i]);
        int64_t held[MOST], n = list(&rows[i], &p->saved[0], held);

        assert_int_equal(sh_saved_check(p), SH_OK);
        assert_int_equal(n, p->params[0].elems);
        for (int64_t begin = 0; begin < n; begin++)
            for (int64_t end = begin + 1; end <= n; end++)
                for (int64_t at = begin; at < end;) {
                    struct sh_rng_runs r = sh_saved_run(p, &p->params[0], at, end - at);

                    assert_true(r.n > 0 && r.count > 0 && at + r.n * r.count <= end);
                    for (int64_t k = 0; k < r.n * r.count; k++)
                        assert_int_equal(r.first + k / r.n * r.stride + k % r.n, held[at + k]);
                    at += r.n * r.count;
                }
        sh_program_destroy(p);
    }
}

/* So a whole tensor is filled, saved and summed at once, and columns are filled at once. */
static void runs_are_long(void **state)
{
    (void)state;
    for (int i = 0; i < ROWS; i++) {
        struct sh_program *p = make(&rows[i]);
        const struct sh_param *param = &p->params[0];
        struct sh_rng_runs r = sh_saved_run(p, param, 0, param->elems);

        if (param->n_bands < 2)
            assert_int_equal(r.n * r.count, param->elems);
        if (param->n_bands == 0)
            assert_int_equal(r.count, 1);
        for (int64_t n = 1; n <= 30; n++)
            assert_true(sh_saved_divides(p, param, n) == (rows[i].divides % n == 0));
        sh_program_destroy(p);
    }
}

/* What is wrong is found before a rank begins. */
static void bad_bands_are_refused(void **state)
{
    static const struct row bad[] = {
        {2, {12, 5}, 0, 2, {{0, 4}, {3, 2}}, 0},                                          /* overlap */
        {2, {12, 5}, 0, 2, {{6, 2}, {0, 2}}, 0},                                          /* out of order */
        {2, {12, 5}, 0, 1, {{10, 3}}, 0},                                                 /* past the end */
        {2, {12, 5}, 0, 1, {{-1, 3}}, 0},        {2, {12, 5}, 0, 2, {{0, 4}, {6, 0}}, 0}, /* of nothing */
        {2, {12, 5}, 0, 1, {{INT64_MAX, 3}}, 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct sh_program *p = make(&bad[i]);

        assert_int_equal(sh_saved_check(p), SH_E_BUG);
        assert_non_null(strstr(sh_error_text(), "w: the bands of dimension 0"));
        sh_program_destroy(p);
    }
    for (int what = 0; what < 4; what++) {
        struct sh_program *p = make(&rows[2]);

        p->params[0].dim[what == 0 ? 0 : 1] += what < 2;
        p->params[0].elems += what == 2;
        p->params[0].cut += what == 3 ? 2 : 0;
        assert_int_equal(sh_saved_check(p), SH_E_BUG);
        sh_program_destroy(p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(runs_are_what_is_held), cmocka_unit_test(runs_are_long),
                                       cmocka_unit_test(bad_bands_are_refused)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
