/* A machine that differs from its preset is fitted from small runs, and then predicts the large ones. */
#include "src/tools/predict/fit.h"
#include "tests/unit/tiny.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SMALL = 4, ALL = 6, NODE = 8 };

static struct sh_machine preset(void)
{
    struct sh_machine m;

    assert_int_equal(sh_machine_preset("h100-80x8-ndr400", &m), SH_OK);
    return m;
}

/* Slower devices, a slower network. */
static struct sh_machine real_machine(void)
{
    struct sh_machine m = preset();

    m.fit.computation = 1.3;
    m.host.step_seconds = 0.001;
    m.inside.hop_seconds *= 1.6;
    m.network.hop_seconds *= 1.6;
    m.network.share *= 0.9;
    return m;
}

static double seconds_of(const struct sh_predict_run *run, const struct sh_machine *m)
{
    struct sh_cost_request r = {
        .p = run->p, .mesh = run->mesh, .machine = m, .ranks_per_node = run->ranks_per_node, .faster = sh_cost_as_is};
    struct sh_cost_step step;

    assert_int_equal(sh_cost_step(&r, &step), SH_OK);
    return step.seconds;
}

struct runs {
    struct sh_predict_run of[ALL];
    struct sh_mesh_shape mesh[ALL];
    struct sh_program *p[ALL];
};

/* If `works` is two, every other run has shorter sequences: the error of the formulas differs between the two kinds. */
static void make_works(struct runs *r, const struct sh_machine *real, int works)
{
    for (int i = 0; i < ALL; i++) {
        struct sh_build b = tiny_build(&not_tiny_model, 1);

        b.model.n_layers = 3;
        b.model.dim = 2048;
        b.batch.seq = works == 2 && i % 2 ? 1024 : 2048;
        b.act = SH_BF16;
        b.kernels = &sh_kernels_cuda;
        r->mesh[i] = b.options.mesh = tiny_mesh(NODE << i, 1, 1, 0);
        r->p[i] = tiny_program(&b, r->mesh[i]);
        r->of[i] = (struct sh_predict_run){.p = r->p[i], .mesh = &r->mesh[i], .ranks_per_node = NODE};
        r->of[i].seconds = seconds_of(&r->of[i], real) * (i % 2 ? 1.01 : 0.99) * (works == 1 ? 1 : i % 2 ? 1.06 : 0.94);
    }
}

static void make(struct runs *r, const struct sh_machine *real)
{
    make_works(r, real, 1);
}

static void destroy(struct runs *r)
{
    for (int i = 0; i < ALL; i++)
        sh_program_destroy(r->p[i]);
}

static void small_runs_predict_large_ones(void **state)
{
    struct sh_machine real = real_machine(), m = preset();
    struct sh_predict_fitted found;
    struct runs r;

    (void)state;
    make(&r, &real);
    assert_int_equal(sh_predict_fit(r.of, SMALL, &m, &found), SH_OK);
    assert_true(found.error < 0.03);
    assert_true(found.computation > 1 && found.hops > 1 && found.share < 1);
    for (int i = 0; i < ALL; i++) {
        double fitted = fabs(seconds_of(&r.of[i], &m) / seconds_of(&r.of[i], &real) - 1), naive;
        struct sh_machine before = preset();

        naive = fabs(seconds_of(&r.of[i], &before) / seconds_of(&r.of[i], &real) - 1);
        print_message("# %d ranks: %.1f %% fitted, %.1f %% by the preset\n", NODE << i, 100 * fitted, 100 * naive);
        assert_true(fitted < 0.1 && fitted < naive / 2);
    }
    sh_machine_close(&m);
    destroy(&r);
}

static void one_run_tells_computation_only(void **state)
{
    struct sh_machine real = real_machine(), m = preset(), before = preset();
    struct sh_predict_fitted found;
    struct runs r;

    (void)state;
    make(&r, &real);
    assert_int_equal(sh_predict_fit(r.of, 1, &m, &found), SH_OK);
    assert_true(found.computation > 1.1 && found.hops == 1 && found.share == 1 && found.crowding == 1);
    assert_true(m.host.step_seconds == before.host.step_seconds);
    sh_machine_close(&m);
    destroy(&r);
}

/* The errors of the formulas are the same on more ranks; the machine's file has them as points, which a later fit
 * replaces. */
static void works_keep_their_errors(void **state)
{
    struct sh_machine real = real_machine(), m = preset();
    struct sh_predict_fitted found;
    double better = 0;
    struct runs r;

    (void)state;
    make_works(&r, &real, 2);
    for (int again = 0; again < 2; again++) {
        assert_int_equal(sh_predict_fit(r.of, SMALL, &m, &found), SH_OK);
        assert_int_equal(m.n_points, SMALL); /* with another number of ranks, each rank has another part to update */
        for (int i = 0; i < SMALL; i++) {
            print_message("# %d ranks: %.3f\n", NODE << i, m.points[i].value);
            assert_true(m.points[i].what == SH_POINT_STEP);
            assert_string_equal(m.points[i].type, "bfloat16"); /* as in a file */
            assert_true(i == 0 || (m.points[i].value > m.points[i - 1].value) == (i % 2 == 1));
        }
    }
    for (int i = SMALL; i < ALL; i++) {
        double with = fabs(seconds_of(&r.of[i], &m) / r.of[i].seconds - 1), without;

        m.n_points = 0;
        without = fabs(seconds_of(&r.of[i], &m) / r.of[i].seconds - 1);
        m.n_points = SMALL;
        print_message("# %d ranks: %.1f %% with points, %.1f %% without\n", NODE << i, 100 * with, 100 * without);
        better += without - with;
    }
    assert_true(better > 0.004);
    sh_machine_close(&m);
    destroy(&r);
}

/* A run that went wrong does not spoil the fit. */
static void outliers_count_little(void **state)
{
    struct sh_machine real = real_machine(), m = preset();
    struct sh_predict_fitted found;
    struct runs r;

    (void)state;
    make(&r, &real);
    r.of[1].seconds *= 3;
    assert_int_equal(sh_predict_fit(r.of, ALL, &m, &found), SH_OK);
    assert_true(fabs(r.of[4].after / r.of[4].seconds - 1) < 0.12);
    sh_machine_close(&m);
    destroy(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_runs_predict_large_ones),
        cmocka_unit_test(one_run_tells_computation_only),
        cmocka_unit_test(outliers_count_little),
        cmocka_unit_test(works_keep_their_errors),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
