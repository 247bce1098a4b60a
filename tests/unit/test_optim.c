/* Learning rate, clipping, and the guard's judgement. */
#include "src/optim/optim.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define LR(kind, warm)                                                                                     \
    {                                                                                                      \
        .peak = 2, .min_factor = 0.1, .warmup = (warm), .total = 100, .decay = (kind), .decay_ratio = 0.2, \
        .shape = SH_DECAY_LINEAR, .power = 0.5                                                             \
    }

static void rates(void **state)
{
    /* clang-format off */
    static const struct {
        struct sh_lr lr;
        int64_t step;
        double rate;
    } table[] = {
        {LR(SH_DECAY_CONSTANT, 0), 0, 2},       {LR(SH_DECAY_CONSTANT, 0), 1000, 2},
        {LR(SH_DECAY_CONSTANT, 10), 0, 0.2},    {LR(SH_DECAY_CONSTANT, 10), 8, 1.8},
        {LR(SH_DECAY_CONSTANT, 10), 9, 2},      {LR(SH_DECAY_CONSTANT, 10), 10, 2},
        {LR(SH_DECAY_LINEAR, 0), 0, 2},         {LR(SH_DECAY_LINEAR, 0), 50, 1.1},
        {LR(SH_DECAY_LINEAR, 0), 100, 0.2},     {LR(SH_DECAY_LINEAR, 0), 101, 0.2},
        {LR(SH_DECAY_LINEAR, 20), 9, 1},        {LR(SH_DECAY_LINEAR, 20), 20, 2},
        {LR(SH_DECAY_LINEAR, 20), 60, 1.1},     {LR(SH_DECAY_LINEAR, 20), 100, 0.2},
        {LR(SH_DECAY_COSINE, 0), 0, 2},         {LR(SH_DECAY_COSINE, 0), 50, 1.1},
        {LR(SH_DECAY_COSINE, 0), 100, 0.2},     {LR(SH_DECAY_COSINE, 0), 1000000, 0.2},
        {LR(SH_DECAY_COSINE, 20), 40, 2 - 1.8 * 0.5 * (1 - M_SQRT1_2)},
        {LR(SH_DECAY_WSD, 10), 4, 1},           {LR(SH_DECAY_WSD, 10), 80, 2},
        {LR(SH_DECAY_WSD, 10), 90, 1.1},        {LR(SH_DECAY_WSD, 10), 100, 0.2},
        /* the decay starts after the warm-up, however long that is */
        {LR(SH_DECAY_WSD, 90), 89, 2},          {LR(SH_DECAY_WSD, 90), 95, 1.1},
        {LR(SH_DECAY_LINEAR, 200), 99, 1},      {LR(SH_DECAY_LINEAR, 200), 200, 0.2},
        {LR(SH_DECAY_SQRT, 0), 0, 2},           {LR(SH_DECAY_SQRT, 0), 25, 1.1},
        {LR(SH_DECAY_SQRT, 20), 40, 1.1},       {LR(SH_DECAY_SQRT, 0), 100, 0.2},
        {LR(SH_DECAY_EXP, 0), 0, 2},            {LR(SH_DECAY_EXP, 0), 50, 2 * 0.31622776601683794},
        {LR(SH_DECAY_EXP, 20), 60, 2 * 0.31622776601683794}, {LR(SH_DECAY_EXP, 0), 200, 0.2},
        {LR(SH_DECAY_POWER, 0), 0, 2},          {LR(SH_DECAY_POWER, 0), 3, 1},
        {LR(SH_DECAY_POWER, 25), 24, 2},        {LR(SH_DECAY_POWER, 25), 99, 1},
        {LR(SH_DECAY_POWER, 25), 9999, 0.1},
        {LR(SH_DECAY_POWER_TAIL, 20), 19, 2},   {LR(SH_DECAY_POWER_TAIL, 20), 79, 1},
        {LR(SH_DECAY_POWER_TAIL, 81), 80, 2},   {LR(SH_DECAY_POWER_TAIL, 81), 90, 1.1403508113623628},
        {LR(SH_DECAY_POWER_TAIL, 0), 80, 2 / 9.0}, {LR(SH_DECAY_POWER_TAIL, 0), 90, 1.1 / 9},
        {LR(SH_DECAY_POWER_TAIL, 0), 100, 0.2 / 9}, {LR(SH_DECAY_POWER_TAIL, 0), 101, 0.2 / 9},
    };
    /* clang-format on */

    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        double rate = sh_lr_at(&table[i].lr, table[i].step);

        if (fabs(rate - table[i].rate) > 1e-12)
            fail_msg("row %d: %.17g, not %.17g", (int)i, rate, table[i].rate);
    }
}

static void wsd_without_decay_is_constant(void **state)
{
    struct sh_lr lr = LR(SH_DECAY_WSD, 0);

    (void)state;
    lr.decay_ratio = 0;
    for (int64_t step = 0; step < lr.total; step++)
        assert_true(sh_lr_at(&lr, step) == 2);
}

static void shapes_of_wsd(void **state)
{
    struct sh_lr lr = LR(SH_DECAY_WSD, 0), power = LR(SH_DECAY_POWER, 0);

    (void)state;
    lr.shape = SH_DECAY_SQRT;
    assert_true(sh_lr_at(&lr, 80) == 2 && fabs(sh_lr_at(&lr, 85) - 1.1) < 1e-12);
    lr.shape = SH_DECAY_EXP;
    assert_true(sh_lr_at(&lr, 80) == 2 && fabs(sh_lr_at(&lr, 90) - 2 * sqrt(0.1)) < 1e-12);
    power.power = 1;
    assert_true(fabs(sh_lr_at(&power, 3) - 0.5) < 1e-12);
}

static void clipping(void **state)
{
    static const struct {
        double norm, max_norm, scale;
    } table[] = {{0, 1, 1}, {1, 1, 1}, {0.5, 1, 1}, {2, 1, 0.5}, {10, 2.5, 0.25}, {1e30, 0, 1}, {5, 0, 1}};

    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        assert_true(sh_clip_scale(table[i].norm, table[i].max_norm) == table[i].scale);
}

static struct sh_guard guard(void)
{
    return (struct sh_guard){.z_score = 4, .window = 32, .max_skips = 3, .max_rollbacks = 2};
}

static enum sh_verdict judge(struct sh_guard *g, double loss, double norm)
{
    enum sh_verdict v;

    assert_int_equal(sh_guard_judge(g, 1, loss, norm, &v), SH_OK);
    return v;
}

static void assert_same(const struct sh_guard *a, const struct sh_guard *b)
{
    assert_int_equal(a->seen, b->seen);
    assert_int_equal(a->skips, b->skips);
    assert_memory_equal(&a->mean, &b->mean, sizeof a->mean);
    assert_memory_equal(&a->m2, &b->m2, sizeof a->m2);
}

/* Feed norms around 1 with a deviation of a tenth. */
static void learn(struct sh_guard *g, int n)
{
    for (int i = 0; i < n; i++)
        assert_int_equal(judge(g, 2, i % 2 ? 1.1 : 0.9), SH_STEP_GOOD);
}

static void non_finite_steps_are_skipped(void **state)
{
    static const double bad[][2] = {{NAN, 1}, {1, NAN}, {INFINITY, 1}, {1, INFINITY}, {1, -INFINITY}, {NAN, NAN}};
    enum sh_verdict v = SH_STEP_GOOD;

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct sh_guard g = guard(), before;

        learn(&g, 5);
        before = g;
        assert_int_equal(judge(&g, bad[i][0], bad[i][1]), SH_STEP_NON_FINITE);
        before.skips = 1;
        assert_same(&g, &before); /* the guard learns nothing from it */
        g.action = SH_GUARD_STOP;
        assert_int_equal(sh_guard_judge(&g, 7, bad[i][0], bad[i][1], &v), SH_E_NUMERIC);
        assert_int_equal(v, SH_STEP_GOOD);
        assert_non_null(strstr(sh_error_text(), "step 7"));
    }
}

static void outliers_are_skipped_once_the_norm_is_known(void **state)
{
    struct sh_guard g = guard();

    (void)state;
    learn(&g, 15);
    assert_int_equal(judge(&g, 2, 1.4), SH_STEP_GOOD); /* too early to tell */
    g = guard();
    learn(&g, 16);
    assert_int_equal(judge(&g, 2, 1.35), SH_STEP_GOOD);
    learn(&g, 64);
    assert_int_equal(judge(&g, 2, 1.5), SH_STEP_OUTLIER);
    assert_int_equal(judge(&g, 2, 0.01), SH_STEP_GOOD); /* small norms do no harm */
    g.z_score = 0;
    assert_int_equal(judge(&g, 2, 1e9), SH_STEP_GOOD);
}

/* Objectives with weights of both signs have losses below 0, and any scale. */
static void the_size_of_a_loss_does_not_matter(void **state)
{
    (void)state;
    for (double scale = 1e-6; scale < 1e7; scale *= 1e3) {
        struct sh_guard g = guard();

        for (int i = 0; i < 64; i++)
            assert_int_equal(judge(&g, -3 * scale, (i % 2 ? 1.1 : 0.9) * scale), SH_STEP_GOOD);
        assert_int_equal(judge(&g, -1e3 * scale, 1.35 * scale), SH_STEP_GOOD);
        assert_int_equal(judge(&g, 3 * scale, 1.6 * scale), SH_STEP_OUTLIER);
    }
}

static void a_short_window_judges_too(void **state)
{
    struct sh_guard g = guard();

    (void)state;
    g.window = 8;
    learn(&g, 8);
    assert_int_equal(judge(&g, 2, 1.6), SH_STEP_OUTLIER);
}

static void old_norms_fade(void **state)
{
    struct sh_guard g = guard();

    (void)state;
    learn(&g, 40);
    for (double norm = 1; norm < 100; norm *= 1.02)
        assert_int_equal(judge(&g, 2, norm), SH_STEP_GOOD);
    assert_int_equal(g.seen, g.window);
    assert_true(g.mean > 40);
}

static void too_many_skips_stop_the_run(void **state)
{
    struct sh_guard g = guard();
    enum sh_verdict v;

    (void)state;
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 3; i++)
            assert_int_equal(judge(&g, NAN, 1), SH_STEP_NON_FINITE);
        learn(&g, 1); /* "in a row" means consecutive */
    }
    for (int i = 0; i < 3; i++)
        judge(&g, NAN, 1);
    assert_int_equal(sh_guard_judge(&g, 9, NAN, 1, &v), SH_E_NUMERIC);
    assert_non_null(strstr(sh_error_text(), "guard.max_skips"));
}

static void rollbacks_count_until_a_checkpoint_is_saved(void **state)
{
    struct sh_guard g = guard();
    enum sh_verdict v;

    (void)state;
    g.action = SH_GUARD_ROLLBACK;
    learn(&g, 20);
    for (int round = 0; round < 2; round++) {
        assert_int_equal(judge(&g, NAN, 1), SH_STEP_NON_FINITE);
        sh_guard_forget(&g); /* a state restored from a checkpoint is no progress */
        learn(&g, 20);
        assert_int_equal(judge(&g, 2, 9), SH_STEP_OUTLIER);
        assert_int_equal(g.skips, 0);
        if (round == 0)
            sh_guard_saved(&g);
    }
    assert_int_equal(sh_guard_judge(&g, 9, NAN, 1, &v), SH_E_NUMERIC);
    assert_non_null(strstr(sh_error_text(), "guard.max_rollbacks"));
}

static void an_outlier_stops_where_that_is_asked_for(void **state)
{
    struct sh_guard g = guard();
    enum sh_verdict v;

    (void)state;
    g.action = SH_GUARD_STOP;
    learn(&g, 20);
    assert_int_equal(sh_guard_judge(&g, 21, 2, 9, &v), SH_E_NUMERIC);
    assert_non_null(strstr(sh_error_text(), "step 21: loss 2, gradient norm 9, an outlier"));
}

static void state_survives_a_checkpoint(void **state)
{
    struct sh_guard g = guard(), back = guard();
    char text[128], again[128];

    (void)state;
    learn(&g, 23);
    judge(&g, 2, 1 + 1.0 / 3);
    judge(&g, NAN, 1);
    sh_guard_save(&g, text, sizeof text);
    assert_int_equal(sh_guard_load(&back, text), SH_OK);
    assert_same(&back, &g);
    sh_guard_save(&back, again, sizeof again);
    assert_string_equal(again, text);
}

static void a_shorter_window_keeps_mean_and_deviation(void **state)
{
    struct sh_guard g = guard(), back = guard();
    char text[128];

    (void)state;
    learn(&g, 32);
    sh_guard_save(&g, text, sizeof text);
    back.window = 16;
    assert_int_equal(sh_guard_load(&back, text), SH_OK);
    assert_int_equal(back.seen, 16);
    assert_true(fabs(back.m2 / 16 - g.m2 / 32) < 1e-15 && back.mean == g.mean);
}

static void damaged_state_is_refused(void **state)
{
    static const char *const bad[] = {
        "",          "x",         "1 2 3",        "-1 0x1p0 0x1p0 0",  "1 0x1p0 0x1p0 -1",
        "1 nan 0 0", "1 0 inf 0", "1 0 -0x1p0 0", "1 0x1p0 0x1p0 0 7", "1 0x1p0 0x1p0 0x"};
    struct sh_guard g = guard(), before = g;

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (sh_guard_load(&g, bad[i]) != SH_E_DATA)
            fail_msg("taken: \"%s\"", bad[i]);
        assert_same(&g, &before);
    }
}

/* Each optimizer, with what a checkpoint stores of it: its word, and its states by these names. A row here is a promise
 * to read checkpoints. */
static const struct {
    const char *word;
    enum sh_op_kind op;
    const char *state[SH_STATES_MAX];
} known[] = {
    {"adamw", SH_OP_ADAMW, {"exp_avg", "exp_avg_sq"}},
    {"sgd", SH_OP_SGD, {"momentum_buffer"}},
    {"lion", SH_OP_LION, {"exp_avg"}},
    {"muon", SH_OP_ADAMW, {"exp_avg", "exp_avg_sq"}},
    {"normuon", SH_OP_ADAMW, {"exp_avg", "exp_avg_sq"}},
};

/* The operands of an operation are g; p, the states, the low halves: as optim.h documents for code that fills
 * them in. */
static void optimizers(void **unused)
{
    (void)unused;
    if (SH_OPTIMS != sizeof known / sizeof *known)
        fail_msg("%d optimizers, but %zu rows in known[]", SH_OPTIMS, sizeof known / sizeof *known);
    for (int i = 0; i < SH_OPTIMS; i++) {
        char word[64];
        struct sh_config cfg;
        const struct sh_optim *o = sh_optim_of(i);
        const struct sh_op_info *op = sh_op_info(o->op);

        snprintf(word, sizeof word, "optimizer.name=%s", known[i].word);
        if (sh_config_load(NULL, 2, (const char *[]){"model.name=gpt2-124m", word}, &cfg) != SH_OK)
            fail_msg("%s", sh_error_text());
        assert_int_equal(cfg.optimizer.name, i);
        assert_non_null(o->name);
        assert_int_equal(o->op, known[i].op);
        assert_true(o->whole ? o->finish != NULL : o->emit == sh_optim_each);
        assert_in_range(o->n_states, 0, SH_STATES_MAX);
        assert_int_equal(op->n_in, 1);
        assert_int_equal(op->n_out, o->n_states + 2);
        assert_int_equal(op->opt_out, 1u << (o->n_states + 1));
        for (int k = 0; k < o->n_states; k++)
            assert_string_equal(o->state[k], known[i].state[k]);
        for (int k = o->n_states; k < SH_STATES_MAX; k++)
            assert_null(known[i].state[k]);
    }
}

static void scalars_are_those_of_the_update(void **unused)
{
    struct sh_config cfg = {.optimizer = {.beta1 = 0.5,
                                          .beta2 = 0.25,
                                          .eps = 1e-3,
                                          .weight_decay = 0.125,
                                          .momentum = 0.75,
                                          .nesterov = true,
                                          .cautious_decay = true,
                                          .muon_beta2 = 0.625}};
    struct sh_op_scalars s = {.lr = 3, .grad_scale = 7};

    (void)unused;
    sh_optim_scalars(&cfg, 3, &s);
    assert_true(s.beta1_pow == 0.125 && s.beta2_pow == 0.015625);
    assert_true(s.beta1 == 0.5f && s.beta2 == 0.25f && s.adam_eps == 1e-3f && s.weight_decay == 0.125f);
    assert_true(s.momentum == 0.75f && s.nesterov && s.cautious_decay && s.muon_beta2 == 0.625f);
    assert_true(s.update == 3 && s.lr == 3 && s.grad_scale == 7);
}

static struct sh_loss_scale begun(double init, int window)
{
    struct sh_loss_scale s = {.init = init, .window = window};

    sh_loss_scale_begin(&s);
    return s;
}

static void scale_falls_by_halves_and_grows(void **state)
{
    struct sh_loss_scale s = begun(0x1p40, 3);
    int skipped = 0;

    (void)state;
    for (; s.scale > 0x1p18; skipped++)
        assert_int_equal(sh_loss_scale_lower(&s, skipped), SH_OK);
    assert_int_equal(skipped, 22 + 1); /* the first one was accepted */
    for (int i = 0; i < 3; i++) {
        assert_true(s.scale == 0x1p18);
        sh_loss_scale_good(&s);
    }
    assert_true(s.scale == 0x1p19);
    assert_int_equal(sh_loss_scale_lower(&s, 1), SH_OK); /* the window has cleared what was before */
    assert_true(s.scale == 0x1p19);
    assert_int_equal(sh_loss_scale_lower(&s, 2), SH_OK);
    assert_true(s.scale == 0x1p18);
    sh_loss_scale_good(&s);
    sh_loss_scale_good(&s);
    assert_int_equal(sh_loss_scale_lower(&s, 3), SH_OK); /* the window starts again */
    sh_loss_scale_good(&s);
    sh_loss_scale_good(&s);
    assert_true(s.scale == 0x1p17);
    sh_loss_scale_good(&s);
    assert_true(s.scale == 0x1p18);
}

static void scale_has_ends(void **state)
{
    struct sh_loss_scale s = begun(2, 1);

    (void)state;
    assert_int_equal(sh_loss_scale_lower(&s, 1), SH_OK);
    assert_int_equal(sh_loss_scale_lower(&s, 2), SH_OK);
    assert_true(s.scale == 1);
    assert_int_equal(sh_loss_scale_lower(&s, 3), SH_E_NUMERIC);
    assert_string_equal(sh_error_text(),
                        "step 3: gradients overflow float16 although the loss scale is down to 1; give "
                        "training.mixed_precision_param=bfloat16, or a lower optimizer.lr");
    for (int i = 0; i < 100; i++)
        sh_loss_scale_good(&s);
    assert_true(s.scale == SH_LOSS_SCALE_MOST);
}

/* Who handles a bad step: the guard if the loss is not finite, and always if the scale is fixed. */
static void scale_answers_for_gradients(void **state)
{
    struct sh_loss_scale s = begun(65536, 1000), fixed = begun(65536, 0);

    (void)state;
    assert_true(sh_loss_scale_overflows(&s, 4, INFINITY));
    assert_true(sh_loss_scale_overflows(&s, 4, NAN));
    assert_false(sh_loss_scale_overflows(&s, 4, 1e30));
    assert_false(sh_loss_scale_overflows(&s, NAN, NAN));
    assert_false(sh_loss_scale_overflows(&s, INFINITY, NAN));
    assert_false(sh_loss_scale_overflows(&fixed, 4, INFINITY));
    sh_loss_scale_good(&fixed);
    assert_true(fixed.scale == 65536);
}

static void scale_comes_back(void **state)
{
    static const char *const damaged[] = {"",           "0x1p+16",     "0x1p+16 1",   "0x1p+16 1 2 3", "3 1 2",
                                          "0x1p-1 1 2", "0x1p+41 1 2", "nan 1 2",     "inf 1 2",       "0x1p+16 -1 2",
                                          "-4 1 2",     "0x1p+16 1 0", "0x1p+16 1 3", "0x1p+16 1 2 ",  "0x1p+16 x 2"};
    struct sh_loss_scale s = begun(0x1p20, 1000), back = begun(65536, 1000), shorter = begun(65536, 5);
    char text[64];

    (void)state;
    for (int i = 0; i < 2; i++)
        assert_int_equal(sh_loss_scale_lower(&s, i), SH_OK);
    for (int i = 0; i < 77; i++)
        sh_loss_scale_good(&s);
    sh_loss_scale_save(&s, text, sizeof text);
    assert_string_equal(text, "0x1p+19 77 1");
    assert_int_equal(sh_loss_scale_load(&back, text), SH_OK);
    assert_true(back.scale == s.scale && back.good == 77 && back.hysteresis == 1);
    assert_int_equal(sh_loss_scale_load(&shorter, text), SH_OK); /* doubles with the next good step */
    sh_loss_scale_good(&shorter);
    assert_true(shorter.scale == 0x1p20);
    for (size_t i = 0; i < sizeof damaged / sizeof *damaged; i++)
        if (sh_loss_scale_load(&back, damaged[i]) != SH_E_DATA)
            fail_msg("\"%s\" is read", damaged[i]);
    assert_true(back.scale == s.scale && back.good == 77 && back.hysteresis == 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(optimizers),
        cmocka_unit_test(scalars_are_those_of_the_update),
        cmocka_unit_test(rates),
        cmocka_unit_test(wsd_without_decay_is_constant),
        cmocka_unit_test(shapes_of_wsd),
        cmocka_unit_test(clipping),
        cmocka_unit_test(non_finite_steps_are_skipped),
        cmocka_unit_test(outliers_are_skipped_once_the_norm_is_known),
        cmocka_unit_test(the_size_of_a_loss_does_not_matter),
        cmocka_unit_test(a_short_window_judges_too),
        cmocka_unit_test(old_norms_fade),
        cmocka_unit_test(too_many_skips_stop_the_run),
        cmocka_unit_test(rollbacks_count_until_a_checkpoint_is_saved),
        cmocka_unit_test(an_outlier_stops_where_that_is_asked_for),
        cmocka_unit_test(state_survives_a_checkpoint),
        cmocka_unit_test(a_shorter_window_keeps_mean_and_deviation),
        cmocka_unit_test(damaged_state_is_refused),
        cmocka_unit_test(scale_falls_by_halves_and_grows),
        cmocka_unit_test(scale_has_ends),
        cmocka_unit_test(scale_answers_for_gradients),
        cmocka_unit_test(scale_comes_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
