/* model.layer_types: what a text means, its shortest spelling, and that the keys which it replaced still mean what they
 * did. */
#include "src/config/config.h"
#include "src/config/layers.h"
#include "src/model/model.h"

#include "src/base/err.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Of each block: f full, s sliding; in capitals without positions. */
static void letters_of(const struct sh_model *m, char *text)
{
    for (int i = 0; i < m->n_layers; i++)
        text[i] = "fsFS"[sh_layers_kind(m, i)];
    text[m->n_layers] = '\0';
}

static void load(const char *const *given, int n, struct sh_config *cfg)
{
    /* clang-format off */
    const char *words[12] = {"model.dim=16", "model.n_heads=4", "model.vocab_size=256", "model.max_seq_len=32"};
    /* clang-format on */

    for (int i = 0; i < n; i++)
        words[4 + i] = given[i];
    if (sh_config_load(NULL, 4 + n, words, cfg) != SH_OK)
        fail_msg("%s", sh_error_text());
}

static void expect(const char *given, const char *blocks, const char *spelled)
{
    char copy[512], found[64], *rest = copy;
    const char *words[8];
    struct sh_config cfg;
    int n = 0;

    snprintf(copy, sizeof copy, "%s", given);
    while (rest && n < 8)
        words[n++] = strsep(&rest, " ");
    load(words, n, &cfg);
    letters_of(&cfg.model, found);
    if (strcmp(found, blocks) || strcmp(cfg.model.layer_types, spelled))
        fail_msg("%s: %s spelled '%s', not %s spelled '%s'", given, found, cfg.model.layer_types, blocks, spelled);
}

/* As the decoder computed them before model.layer_types: block b had no window if b < window_first_layer or (b + 1) %
 * full_attention_interval was 0, and no positions if (b + 1) % no_rope_layer_interval was 0. */
static void old_keys_mean_the_same(void **state)
{
    static const struct {
        const char *given, *blocks, *spelled;
    } rows[] = {
        {"model.n_layers=6", "ffffff", ""},
        {"model.n_layers=6 model.attention_window=8", "ssssss", ""},
        {"model.n_layers=6 model.attention_window=8 model.window_first_layer=0 model.full_attention_interval=0",
         "ssssss", ""},
        {"model.n_layers=6 model.attention_window=8 model.window_first_layer=2", "ffssss", "2*full,4*sliding"},
        {"model.n_layers=6 model.attention_window=8 model.full_attention_interval=3", "ssfssf", "2*sliding,full"},
        {"model.n_layers=6 model.attention_window=8 model.window_first_layer=1 model.full_attention_interval=2",
         "ffsfsf", "2*full,sliding,full,sliding,full"},
        {"model.n_layers=3 model.attention_window=8 model.window_first_layer=10000", "fff", "full"},
        {"model.n_layers=6 model.family=smollm3", "fffFff", "3*full,full_nope,2*full"},
        {"model.n_layers=6 model.family=smollm3 model.no_rope_layer_interval=0", "ffffff", "full"},
        {"model.n_layers=6 model.family=smollm3 model.no_rope_layer_interval=2 model.attention_window=8 "
         "model.full_attention_interval=3",
         "sSfSsF", "sliding,sliding_nope,full,sliding_nope,sliding,full_nope"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        expect(rows[i].given, rows[i].blocks, rows[i].spelled);
}

static void texts(void **state)
{
    static const struct {
        const char *given, *blocks, *spelled;
    } rows[] = {
        {"model.n_layers=11 model.attention_window=8 model.layer_types=3*sliding,full", "sssfsssfsss",
         "3*sliding,full"},
        {"model.n_layers=4 model.attention_window=8 model.layer_types=sliding,sliding,full,2*sliding,full", "ssfs",
         "2*sliding,full,sliding"},
        {"model.n_layers=3 model.attention_window=8 model.layer_types=sliding", "sss", ""},
        {"model.n_layers=2 model.attention_window=8 model.layer_types=[\"full_attention\",\"sliding_attention\"]", "fs",
         "full,sliding"},
        {"model.n_layers=3 model.layer_types=full_nope", "FFF", "full_nope"},
        {"model.n_layers=5 model.attention_window=8 model.layer_types=sliding,full_nope", "sFsFs", "sliding,full_nope"},
        {"model.n_layers=2 model.family=smollm3 model.layer_types=full", "ff", "full"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        expect(rows[i].given, rows[i].blocks, rows[i].spelled);
}

/* What is printed means the same when it is read: a checkpoint keeps it. */
static void printed_and_read(void **state)
{
    static const unsigned char kinds[] = {1, 1, 3, 0, 2, 2, 2, 1};
    char text[128], small[16];
    struct sh_model m = {.n_layers = sizeof kinds, .attention_window = 4};

    (void)state;
    assert_true(sh_layers_print(kinds, sizeof kinds, text, sizeof text));
    assert_string_equal(text, "2*sliding,sliding_nope,full,3*full_nope,sliding");
    snprintf(m.layer_types, sizeof m.layer_types, "%s", text);
    for (int i = 0; i < (int)sizeof kinds; i++)
        assert_int_equal(sh_layers_kind(&m, i), kinds[i]);
    assert_false(sh_layers_print(kinds, sizeof kinds, small, sizeof small));
    assert_int_equal(sh_model_window(&m, 1), 4);
    assert_int_equal(sh_model_window(&m, 3), 0);
}

static void bad_texts(void **state)
{
    static const struct {
        const char *text, *bad;
    } rows[] = {{"", ""},
                {" , ", ""},
                {"ful", "ful"},
                {"full,0*sliding", "0*sliding"},
                {"full,*sliding", "*sliding"},
                {"3*", "3*"},
                {"x*full", "x*full"},
                {"full,99999999999999999999*full", "99999999999999999999*full"}};
    char bad[32];

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_false(sh_layers_check(rows[i].text, bad, sizeof bad));
        assert_string_equal(bad, rows[i].bad);
    }
    assert_true(sh_layers_check("full , 2*sliding", bad, sizeof bad));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(old_keys_mean_the_same),
        cmocka_unit_test(texts),
        cmocka_unit_test(printed_and_read),
        cmocka_unit_test(bad_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
