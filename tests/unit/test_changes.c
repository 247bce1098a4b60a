/* Messages about what changes if a run continues with another configuration. */
#include "src/run/watch/changes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { OVERRIDES = 4, STEP = 60 };

static struct sh_config configured(const char *const extra[OVERRIDES])
{
    const char *all[OVERRIDES + 3] = {"model.name=debug", "training.steps=60", "optimizer.lr=1e-3"};
    struct sh_config cfg;
    int n = 3;

    for (int i = 0; i < OVERRIDES && extra[i]; i++) {
        const char *name_end = strchr(extra[i], '=');
        int at = 0;

        while (at < n && strncmp(all[at], extra[i], (size_t)(name_end - extra[i]) + 1) != 0)
            at++;
        all[at] = extra[i];
        n += at == n;
    }
    assert_int_equal(sh_config_load(NULL, n, all, &cfg), SH_OK);
    return cfg;
}

static void the_schedule(void **state)
{
    static const struct {
        const char *before[OVERRIDES], *now[OVERRIDES], *text;
    } rows[] = {
        {{NULL}, {NULL}, NULL},
        {{NULL},
         {"training.steps=100"},
         "lr schedule now ends at step 100 instead of 60: lr at step 60 was 1.00e-04, is 4.11e-04; "
         "--lr_scheduler.total_steps=60 keeps it"},
        {{NULL}, {"training.steps=100", "lr_scheduler.total_steps=60"}, NULL},
        {{"lr_scheduler.total_steps=80"}, {"lr_scheduler.total_steps=80", "training.steps=100"}, NULL},
        {{"lr_scheduler.decay_type=constant"}, {"lr_scheduler.decay_type=constant", "training.steps=100"}, NULL},
        {{NULL}, {"optimizer.lr=2e-3"}, "lr schedule changed: lr at step 60 was 1.00e-04, is 2.00e-04"},
        {{NULL},
         {"lr_scheduler.decay_type=constant", "training.steps=100"},
         "lr schedule now ends at step 100 instead of 60: lr at step 60 was 1.00e-04, is 1.00e-03"},
    };
    char out[SH_CHANGES_TEXT];

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct sh_config before = configured(rows[i].before), now = configured(rows[i].now);
        const char *text = sh_changes_schedule(&before, &now, STEP, out);

        if (rows[i].text)
            assert_non_null(text);
        if (text)
            assert_string_equal(text, rows[i].text ? rows[i].text : "(nothing)");
    }
}

static void the_data(void **state)
{
    static const char *const first[OVERRIDES] = {"training.dataset_path=a.bin"}, *const other[OVERRIDES] = {
                                                                                     "training.dataset_path=b.bin"};
    static const char *const changes[] = {
        "training.seq_len=8", "data.token_type=uint32",           "data.shuffle=false",
        "data.packing=bfd",   "data.excess_length_strategy=drop", "debug.seed=5"};
    struct sh_config a = configured(first), b;
    char out[SH_CHANGES_TEXT];

    (void)state;
    assert_null(sh_changes_data(&a, &a, 480, 100, out));
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        const char *const words[OVERRIDES] = {"training.dataset_path=a.bin", changes[i]};

        b = configured(words);
        if (!sh_changes_data(&a, &b, 480, 100, out))
            fail_msg("%s changes the data", changes[i]);
    }
    b = configured(other);
    assert_string_equal(
        sh_changes_data(&a, &b, 480, 100, out),
        "data changed: the sample order does not restart; it continues at sequence 80 of 100 in epoch 5 of "
        "the new data");
}

static void the_states(void **state)
{
    static const char *const narrow[OVERRIDES] = {"optimizer.state_dtype=bfloat16"}, *const none[OVERRIDES] = {NULL};
    struct sh_config f32 = configured(none), bf16 = configured(narrow);
    char out[SH_CHANGES_TEXT];

    (void)state;
    assert_null(sh_changes_states(&f32, &f32, out));
    assert_null(sh_changes_states(&bf16, &bf16, out));
    assert_string_equal(
        sh_changes_states(&f32, &bf16, out),
        "optimizer.state_dtype changed: the optimizer states are now in bfloat16, rounded to nearest on "
        "loading, and stochastically in each update");
    assert_string_equal(
        sh_changes_states(&bf16, &f32, out),
        "optimizer.state_dtype changed: the optimizer states are now in float32, with the values that they "
        "had in bfloat16");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_schedule), cmocka_unit_test(the_data),
                                       cmocka_unit_test(the_states)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
