/* Printing of configurations: printed ones load back to the same bytes, help names every key, differences show. */
#include "src/config/config.h"
#include "src/config/keys.h"
#include "src/config/read/value.h"

#include "src/base/hash.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void load_debug(struct sh_config *cfg)
{
    const char *const arguments[] = {"model.name=debug"};
    assert_int_equal(sh_config_load(NULL, 1, arguments, cfg), SH_OK);
}

static void check_round_trip(const struct sh_config *cfg)
{
    struct sh_config back;
    char *text;
    assert_int_equal(sh_config_print(cfg, &text), SH_OK);
    if (sh_config_parse(text, strlen(text), "printed", 0, NULL, &back) != SH_OK)
        fail_msg("%s in\n%s", sh_error_text(), text);
    assert_memory_equal(cfg, &back, sizeof back);
    free(text);
}

/* Each preset, and each word of each key. */
static void test_words_round_trip(void **state)
{
    (void)state;
    for (int i = 0; i < sh_config_n_keys; i++) {
        const struct sh_config_key *key = &sh_config_keys[i];
        for (const struct sh_config_word *w = key->words; w != NULL && w->name != NULL; w++) {
            char argument[2 * SH_CONFIG_NAME_MAX];
            struct sh_config cfg;
            snprintf(argument, sizeof argument, "%s=%s", key->name, w->name);
            const char *const arguments[] = {argument, "model.name=debug", "data.document_separator=0"};
            if (sh_config_load(NULL, 3, arguments, &cfg) == SH_OK)
                check_round_trip(&cfg);
        }
    }
}

static uint64_t random_state = 1;

static uint64_t random_bits(void)
{
    return sh_mix64(random_state += 0x9e3779b97f4a7c15u);
}

/* Any number that its key allows survives the round trip through text to the last bit. */
static void test_doubles_round_trip(void **state)
{
    (void)state;
    static struct sh_config_state given, back;
    const struct sh_config_key *key = sh_config_key_find("model.rope_theta");
    for (int i = 0; i < 20000; i++) {
        uint64_t bits = random_bits();
        double value;
        memcpy(&value, &bits, sizeof value);
        if (i % 4 == 0)
            value = (double)(bits % 1000000) / 1000;
        if (!(value >= key->min && value <= key->max))
            continue;
        given.cfg.model.rope_theta = value;
        char *text = sh_config_value_text(key, &given.cfg);
        assert_int_equal(sh_config_value_set(key, text, SH_TEXT_PLAIN, &back), SH_OK);
        assert_memory_equal(&given.cfg.model.rope_theta, &back.cfg.model.rope_theta, sizeof(double));
        free(text);
    }
}

static const char *const strings[] = {
    "",
    " ",
    "null",
    "~",
    "'",
    "\"",
    "\\",
    "\\\\n",
    "a: b",
    "# no comment",
    "- x",
    "&a",
    "*a",
    "!t",
    "{",
    "%",
    "@",
    "\xc3\xa9",
    "\xe2\x82\xac \xf0\x9f\x8c\xbe",
    " both ends ",
    "true",
    "12",
};

static void test_strings_round_trip(void **state)
{
    (void)state;
    struct sh_config cfg;
    for (size_t i = 0; i < sizeof strings / sizeof strings[0]; i++) {
        load_debug(&cfg);
        snprintf(cfg.job.description, sizeof cfg.job.description, "%s", strings[i]);
        check_round_trip(&cfg);
    }
    for (int i = 0; i < (int)sizeof cfg.job.description - 1; i++) /* as long as fits; every character needs escaping */
        cfg.job.description[i] = i % 2 ? '"' : '\\';
    check_round_trip(&cfg);
}

static void test_help_names_all(void **state)
{
    (void)state;
    for (int form = SH_HELP_TEXT; form <= SH_HELP_MARKDOWN; form++) {
        char *text = NULL;
        size_t bytes;
        FILE *f = open_memstream(&text, &bytes);
        assert_non_null(f);
        sh_config_help(f, (enum sh_config_help)form);
        fclose(f);
        for (int i = 0; i < sh_config_n_keys; i++)
            assert_non_null(strstr(text, strchr(sh_config_keys[i].name, '.') + 1));
        assert_non_null(strstr(text, "fp32, bf16")); /* other spellings of a value */
        if (form == SH_HELP_TEXT) {
            assert_non_null(strstr(text, "standard deviations; default: 0\n"));
            assert_non_null(strstr(text, "text; default: \"\"\n"));
            assert_non_null(strstr(text, "blocks; default: the preset's\n"));
        }
        free(text);
    }
}

static char *diff_text(const struct sh_config *a, const struct sh_config *b, unsigned of)
{
    char *text = NULL;
    size_t bytes;
    FILE *f = open_memstream(&text, &bytes);
    assert_non_null(f);
    sh_config_diff(a, b, of, f);
    fclose(f);
    return text;
}

static void test_diff(void **state)
{
    (void)state;
    struct sh_config a, b;
    load_debug(&a);
    b = a;
    char *same = diff_text(&a, &b, SH_OF_ALL);
    assert_string_equal(same, "");
    b.optimizer.lr = nextafter(b.optimizer.lr, 1);
    b.mesh.shard = 4;
    b.metrics.log_freq = 3;
    strcpy(b.job.description, "x");
    char *all = diff_text(&a, &b, SH_OF_ALL), *some = diff_text(&a, &b, SH_OF(RUN) | SH_OF(MODEL));
    assert_string_equal(some, "optimizer.lr: 0.0003 -> 0.00030000000000000003\n");
    assert_string_equal(all, "job.description: \"\" -> \"x\"\nmesh.shard: auto -> 4\n"
                             "optimizer.lr: 0.0003 -> 0.00030000000000000003\nmetrics.log_freq: 10 -> 3\n");
    free(same);
    free(all);
    free(some);
}

/* Examples that no test loads are soon wrong. The runner says where the sources are. */
static void test_examples(void **state)
{
    (void)state;
    static const char *const names[] = {"debug",
                                        "gpt2-124m",
                                        "gpt2-1558m",
                                        "llama3.2-1b",
                                        "llama3.1-8b",
                                        "llama3.1-70b",
                                        "llama3.1-405b",
                                        "quickstart",
                                        "gpt-oss-20b",
                                        "deepseek-v3",
                                        "granite-4.0-h-micro",
                                        "granite-4.0-h-tiny",
                                        "granite-4.0-h-small",
                                        "qwen3.5-9b",
                                        "gemma-4-e2b",
                                        "gemma-4-e4b"};
    const char *top = getenv("SHERD_SRCDIR");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[1024];
        struct sh_config cfg;
        snprintf(path, sizeof path, "%s/examples/%s.yaml", top != NULL ? top : ".", names[i]);
        if (sh_config_load(path, 0, NULL, &cfg) != SH_OK)
            fail_msg("%s", sh_error_text());
        check_round_trip(&cfg);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_words_round_trip),
        cmocka_unit_test(test_doubles_round_trip),
        cmocka_unit_test(test_strings_round_trip),
        cmocka_unit_test(test_help_names_all),
        cmocka_unit_test(test_diff),
        cmocka_unit_test(test_examples),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
