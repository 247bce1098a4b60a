/* Scoring of texts: which tokens are the context's, windows of a long text, and damaged files of llm.c. */
#include "src/text/score/task.h"

#include "src/base/file.h"
#include "src/base/mem.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[] = "/tmp/test_task.XXXXXX";

/* Words of one character, <e> ends a text; characters without a word are left out. */
static const char model[] =
    "{\"added_tokens\":[{\"id\":5,\"content\":\"<e>\",\"special\":true,\"normalized\":false}],"
    "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\" \":3,\"\xc2\xa0\":4},\"merges\":[]}}";

static char *write_file(const char *name, const void *data, size_t bytes)
{
    char *path = sh_path_join(folder, name);

    assert_int_equal(sh_write_file_atomic(path, data, bytes), SH_OK);
    return path;
}

static struct sh_tokenizer *open_tokenizer(bool with_end)
{
    static const char config[] = "{\"eos_token_id\":5}", no_config[] = "{}";
    const char *text = with_end ? config : no_config;
    struct sh_tokenizer *tok;

    free(write_file("tokenizer.json", model, sizeof model - 1));
    free(write_file("config.json", text, strlen(text)));
    assert_int_equal(sh_tokenizer_open(folder, &tok), SH_OK);
    return tok;
}

static sh_rc read_task(enum sh_task_kind kind, const char *text, size_t bytes, struct sh_task *t)
{
    char *path = write_file("task", text, bytes);
    sh_rc rc = sh_task_read(kind, path, t);

    free(path);
    return rc;
}

/* Print "ab|c": the context's tokens, a bar, the others; 4 stands for the non-breaking space. */
static char *print_score(const struct sh_score *s)
{
    static const char words[] = "abc 4e";
    char *text = sh_calloc(s->n + 2, 1);

    for (size_t i = 0; i < s->n; i++)
        text[i + (i >= s->first)] = words[s->ids[i]];
    text[s->first] = '|';
    return text;
}

static void contexts(void **state)
{
    static const struct {
        const char *line, *score;
    } table[] = {
        {"{\"context\":\"ab\",\"continuation\":\"c\"}", "ab|c"},
        {"{\"context\":\"\",\"continuation\":\"c\"}", "e|c"},
        {"{\"context\":\"\",\"continuation\":\"<e>c\"}", "e|ec"}, /* lm_eval takes its first token as the context */
        {"{\"context\":\"a \",\"continuation\":\"c\"}", "a| c"},
        {"{\"context\":\"a \\u00a0\\n\",\"continuation\":\"c\"}", "a| 4c"},
        {"{\"context\":\"a\\u001c\",\"continuation\":\"c\"}", "a|c"},
        {"{\"context\":\"  \",\"continuation\":\"c\"}", "e|  c"},      /* spaces are the continuation's */
        {"{\"context\":\"\\u0416\",\"continuation\":\"cb\"}", "e|cb"}, /* there is no word for it */
        {"{\"context\":\"\\u0416 \",\"continuation\":\"\\u0416b\"}", "e| b"},
        {"{\"context\":\"abcabcab\",\"continuation\":\"c\"}", "cab|c"}, /* the model reads 3 */
        {"{\"context\":\"\",\"continuation\":\"abc\"}", "e|abc"},
    };
    struct sh_tokenizer *tok = open_tokenizer(true);

    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct sh_task t;
        char *score;

        assert_int_equal(read_task(SH_TASK_REQUESTS, table[i].line, strlen(table[i].line), &t), SH_OK);
        assert_int_equal(sh_task_encode(tok, 3, 6, &t), SH_OK);
        score = print_score(&t.score[0]);
        if (strcmp(score, table[i].score) != 0)
            fail_msg("row %zu: %s", i, score);
        free(score);
        sh_task_free(&t);
    }
    sh_tokenizer_close(tok);
}

/* Without a prefix, nothing predicts the first token. */
static void no_prefix(void **state)
{
    static const char *const lines[] = {"{\"context\":\"\",\"continuation\":\"c\"}",
                                        "{\"context\":\"\\u0416\",\"continuation\":\"c\"}",
                                        "{\"context\":\" \",\"continuation\":\"c\"}"};
    struct sh_tokenizer *tok = open_tokenizer(false);

    (void)state;
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        struct sh_task t;

        assert_int_equal(read_task(SH_TASK_REQUESTS, lines[i], strlen(lines[i]), &t), SH_OK);
        assert_int_equal(sh_task_encode(tok, 3, 6, &t), SH_E_DATA);
        assert_non_null(strstr(sh_error_text(), "no token that begins or ends texts"));
        sh_task_free(&t);
    }
    sh_tokenizer_close(tok);
}

/* Each token except the prefix is scored once, from as many preceding tokens as the model reads. */
static void windows(void **state)
{
    struct sh_tokenizer *tok = open_tokenizer(true);
    char text[32];

    (void)state;
    for (size_t n = 1; n < sizeof text; n++)
        for (int positions = 1; positions < 12; positions++) {
            struct sh_task t;
            size_t scored = 0;

            memset(text, 'a', n);
            assert_int_equal(read_task(SH_TASK_TEXT, text, n, &t), SH_OK);
            assert_int_equal(sh_task_encode(tok, positions, 6, &t), SH_OK);
            for (int i = 0; i < t.n_scores; i++) {
                assert_in_range(t.score[i].first, 1, t.score[i].n - 1);
                assert_true(t.score[i].n <= (size_t)positions + 1);
                scored += t.score[i].n - t.score[i].first;
            }
            assert_int_equal(scored, n);
            sh_task_free(&t);
        }
    sh_tokenizer_close(tok);
}

/* Two examples as llm.c writes them, with one byte changed or the end cut off, are read or refused; nothing else
 * happens. */
static void damaged_files(void **state)
{
    static const uint16_t examples[] = {65535, 26,    0,  1, 2, 2, 7, 8, 1, 9, 2, 5,
                                        6,     65535, 22, 1, 0, 2, 1, 7, 1, 9, 1, 5};
    static const int32_t head[] = {20240522, 1, 2};
    enum { HEADER = 1024 };
    char whole[HEADER + sizeof examples] = {0}, bad[sizeof whole];
    struct sh_task t;

    (void)state;
    memcpy(whole, head, sizeof head);
    memcpy(whole + HEADER, examples, sizeof examples);
    assert_int_equal(read_task(SH_TASK_CHOICES, whole, sizeof whole, &t), SH_OK);
    assert_int_equal(t.n_choices, 4);
    sh_task_free(&t);
    for (size_t n = HEADER; n < sizeof whole; n++)
        assert_int_equal(read_task(SH_TASK_CHOICES, whole, n, &t), SH_E_DATA);
    for (size_t i = 0; i < sizeof whole; i += i < 12 || i >= HEADER ? 1 : 100)
        for (int bit = 0; bit < 8; bit++) {
            memcpy(bad, whole, sizeof whole);
            bad[i] = (char)(bad[i] ^ 1 << bit);
            sh_error_clear();
            if (read_task(SH_TASK_CHOICES, bad, sizeof bad, &t) != SH_OK) {
                assert_true(sh_error_text()[0]);
                continue;
            }
            (void)sh_task_encode(NULL, 8, 10, &t);
            sh_task_free(&t);
        }
}

/* The second context gets a capital first letter and no other capitals, for ASCII letters; other letters stay. */
static void capitals_of_hellaswag(void **state)
{
    static const char line[] = "{\"activity_label\":\"Be C\",\"ctx_a\":\"A B\",\"ctx_b\":\"a \xc3\x89YZ\","
                               "\"endings\":[\"A\",\"b\"],\"label\":1}";
    struct sh_task t;

    (void)state;
    assert_int_equal(read_task(SH_TASK_CHOICES, line, sizeof line - 1, &t), SH_OK);
    assert_string_equal(t.choice[0].context, "Be C: A B A \xc3\x89yz");
    assert_string_equal(t.choice[0].text, " A");
    sh_task_free(&t);
}

/* Such a model has no most likely answer. */
static void numbers_that_are_not_finite(void **state)
{
    static const char line[] = "{\"query\":\"a\",\"choices\":[\"b\",\"c\"],\"gold\":0}";
    struct sh_tokenizer *tok = open_tokenizer(true);
    FILE *out = tmpfile();
    struct sh_task t;

    (void)state;
    assert_int_equal(read_task(SH_TASK_CHOICES, line, sizeof line - 1, &t), SH_OK);
    assert_int_equal(sh_task_encode(tok, 8, 6, &t), SH_OK);
    t.score[0].logprob = -1;
    t.score[1].logprob = NAN;
    assert_int_equal(sh_task_print(&t, out), SH_E_NUMERIC);
    assert_int_equal(ftell(out), 0);
    sh_task_free(&t);
    fclose(out);
    sh_tokenizer_close(tok);
}

static int set_up(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int tear_down(void **state)
{
    static const char *const names[] = {"task", "tokenizer.json", "config.json"};

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *path = sh_path_join(folder, names[i]);

        unlink(path);
        free(path);
    }
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(contexts),
        cmocka_unit_test(no_prefix),
        cmocka_unit_test(windows),
        cmocka_unit_test(damaged_files),
        cmocka_unit_test(capitals_of_hellaswag),
        cmocka_unit_test(numbers_that_are_not_finite),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
