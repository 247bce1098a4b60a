/* Errors, log lines, memory and words: how text is kept, printed and spelled. */
#include "src/base/err.h"
#include "src/base/hash.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/string/screen.h"
#include "src/base/string/str.h"
#include "src/base/time.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static sh_rc fails(void)
{
    return sh_fail(SH_E_DATA, "open %s: %s", "x.h5", "gone");
}

static sh_rc passes_on(int *reached)
{
    *reached = 1;
    SH_TRY(fails());
    *reached = 2;
    return SH_OK;
}

static void test_error_is_kept(void **state)
{
    (void)state;
    int reached = 0;
    assert_int_equal(passes_on(&reached), SH_E_DATA);
    assert_int_equal(reached, 1);
    assert_string_equal(sh_error_text(), "open x.h5: gone");
    assert_int_equal(sh_fail_prefix(SH_E_DATA, "run %d: ", 7), SH_E_DATA);
    assert_string_equal(sh_error_text(), "run 7: open x.h5: gone");
    assert_int_equal(sh_fail(SH_E_USAGE, "again: %s", sh_error_text()), SH_E_USAGE); /* its own text as an argument */
    assert_string_equal(sh_error_text(), "again: run 7: open x.h5: gone");
    assert_int_equal(sh_error_locate(SH_E_DATA), SH_E_DATA);
    assert_null(strstr(sh_error_text(), "bug"));
    assert_int_equal(sh_error_locate(SH_E_BUG), SH_E_BUG);
    assert_non_null(strstr(sh_error_text(), " (a bug in Sherd, at "));
    assert_non_null(strstr(sh_error_text(), "test_base_text.c:"));
    sh_error_clear();
    assert_string_equal(sh_error_text(), "");
}

static void test_long_error_is_cut(void **state)
{
    (void)state;
    char *longer = sh_calloc(10001, 1);
    memset(longer, 'x', 10000);
    assert_int_equal(sh_fail(SH_E_BUG, "%s", longer), SH_E_BUG);
    assert_int_equal(sh_fail_prefix(SH_E_BUG, "%s", longer), SH_E_BUG);
    assert_int_equal(strlen(sh_error_text()), 8191);
    free(longer);
}

static void say_hook(int exit_status)
{
    sh_log_warn("hook %d", exit_status);
}

static void speak_and_stop(void)
{
    sh_log_info("only rank 0 says this");
    sh_log_set_rank(3, 4);
    sh_log_info("so nobody says this");
    sh_log_warn("low %s", "\033]0;disk\a\xe2\x80\xae\xe2\x80"); /* the last character lacks a byte */
    sh_stop_hook(say_hook);
    sh_stop(sh_fail(SH_E_COMM, "peer 2 is gone"));
}

/* Check what a child process prints and how it ends. */
static void test_stop(void **state)
{
    (void)state;
    int ends[2], status;
    char said[512] = "";
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        speak_and_stop();
    }
    close(ends[1]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(read(ends[0], said, sizeof said - 1) > 0);
    close(ends[0]);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == SH_E_COMM);
    assert_ptr_equal(strstr(said,
                            "only rank 0 says this\nsherd: rank 3: warning: low \\x1b]0;disk\\x07\\u202e\xe2\\x80\n"
                            "sherd: rank 3: error: peer 2 is gone (communication, from "),
                     said);
    assert_non_null(strstr(said, "sherd: rank 3: warning: hook 5\n"));
}

static void test_controls_are_visible(void **state)
{
    static const struct {
        const char *in, *out, *left; /* left: what is not taken, because it ends inside a character */
    } table[] = {
        {"plain \xc3\xa9 \xe2\x82\xac \xf0\x9f\x90\x91", "plain \xc3\xa9 \xe2\x82\xac \xf0\x9f\x90\x91", ""},
        {"a\nb\tc\r", "a\nb\tc\\x0d", ""},
        {"\033[31m\x7f", "\\x1b[31m\\u007f", ""},
        {"\xc2\x9b[2J\xc2\xa0", "\\u009b[2J\xc2\xa0", ""},
        {"\xe2\x80\xae\xe2\x80\x8f\xd8\x9c\xe2\x81\xa6", "\\u202e\\u200f\\u061c\\u2066", ""},
        {"\xe2\x80\xa8\xe2\x80\xa9\xe2\x80\xad\xe2\x81\xa9", "\\u2028\\u2029\\u202d\\u2069", ""},
        {"\xe2\x80\x8d\xe2\x80\xaf\xe2\x81\xa5", "\xe2\x80\x8d\xe2\x80\xaf\xe2\x81\xa5", ""}, /* their neighbours */
        {"\xff\x9b\xc0\x80\xed\xa0\x80", "\xff\\x9b\xc0\\x80\xed\xa0\\x80", ""},
        {"end\xe2\x80", "end", "\xe2\x80"},
        {"end\xc2", "end", "\xc2"},
        {"", "", ""},
    };

    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        char out[SH_SCREEN_MOST * 64];
        size_t taken, used = sh_screen_clean(table[i].in, strlen(table[i].in), out, &taken);
        assert_int_equal(used, strlen(table[i].out));
        assert_memory_equal(out, table[i].out, used);
        assert_string_equal(table[i].in + taken, table[i].left);
    }
}

static void test_lists(void **state)
{
    char list[12] = "";

    (void)state;
    sh_str_add(list, sizeof list, ", ", "one");
    sh_str_add(list, sizeof list, ", ", "two");
    assert_string_equal(list, "one, two");
    sh_str_add(list, sizeof list, ", ", "three");
    sh_str_add(list, sizeof list, ", ", "four");
    assert_string_equal(list, "one, two, t");
}

static void test_memory(void **state)
{
    (void)state;
    int cap = 0;
    int *numbers = NULL;
    for (int i = 0; i < 1000; i++) {
        numbers = sh_grow(numbers, i, &cap, sizeof *numbers);
        numbers[i] = i;
    }
    for (int i = 0; i < 1000; i++)
        assert_int_equal(numbers[i], i);
    assert_int_equal(cap, 1024);
    free(numbers);
    char *s = sh_strfmt("%s-%d", "step", 12);
    assert_string_equal(s, "step-12");
    free(s);
    void *nothing = sh_calloc(0, 8);
    assert_non_null(nothing);
    free(nothing);
}

static const struct {
    const char *a, *b;
    int distance;
} distances[] = {
    {"", "", 0},           {"steps", "steps", 0}, {"stepz", "steps", 1}, {"", "abc", 3}, {"kitten", "sitting", 3},
    {"STEPS", "steps", 0}, {"flaw", "lawn", 2},   {"ab", "ba", 2},
};

static void test_distance(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof distances / sizeof distances[0]; i++) {
        assert_int_equal(sh_str_distance(distances[i].a, distances[i].b), distances[i].distance);
        assert_int_equal(sh_str_distance(distances[i].b, distances[i].a), distances[i].distance);
    }
}

static void test_nearest(void **state)
{
    (void)state;
    const char *const names[] = {"train", "plan", "tokenize"};
    assert_string_equal(sh_str_nearest("trian", 3, names), "train");
    assert_string_equal(sh_str_nearest("tokenise", 3, names), "tokenize");
    assert_null(sh_str_nearest("zzzzzzzz", 3, names));
    assert_null(sh_str_nearest("train", 0, names));
}

static const struct {
    int64_t n;
    const char *bytes, *count;
} numbers[] = {
    {0, "0 B", "0"},
    {999, "999 B", "999"},
    {1023, "1023 B", "1.02 K"},
    {1024, "1.0 KiB", "1.02 K"},
    {1610612736, "1.5 GiB", "1.61 B"},
    {-2048, "-2.0 KiB", "-2.05 K"},
    {1240000000, "1.2 GiB", "1.24 B"},
    {INT64_MAX, "8192.0 PiB", "9223372.04 T"},
};

static void test_numbers(void **state)
{
    (void)state;
    char text[SH_STR_SHORT];
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        assert_string_equal(sh_str_bytes(numbers[i].n, text), numbers[i].bytes);
        assert_string_equal(sh_str_count(numbers[i].n, text), numbers[i].count);
    }
}

/* The values are part of the checkpoint format: they must not change with the library or the machine. */
static void test_hash(void **state)
{
    (void)state;
    assert_true(sh_hash64("", 0) == 0x2d06800538d394c2u); /* XXH3's published value for empty input */
    assert_true(sh_hash64("sherd", 5) != sh_hash64("sherd", 4));
    assert_true(sh_mix64(0) == 0);
    assert_true(sh_mix64(0x9e3779b97f4a7c15u) == 0xe220a8397b1dcdafu); /* first output of SplitMix64 with seed 0 */
}

static void test_time_moves_on(void **state)
{
    (void)state;
    int64_t first = sh_now_ns(), later = sh_now_ns();
    assert_true(first > 0 && later >= first);
}

static void copies_of_any_length_and_place(void **state)
{
    char from[400], to[400];

    (void)state;
    for (int i = 0; i < 400; i++)
        from[i] = (char)(i * 7 + 1);
    for (size_t bytes = 0; bytes < 260; bytes++)
        for (size_t shift = 0; shift < 70; shift += 23) {
            memset(to, 0, sizeof to);
            sh_mem_copy_away(to + shift, from + shift / 2, bytes);
            assert_memory_equal(to + shift, from + shift / 2, bytes);
            assert_int_equal(to[shift + bytes], 0);
            assert_true(shift == 0 || to[shift - 1] == 0);
        }
}

static void test_counts_and_times(void **state)
{
    static const struct {
        double seconds;
        const char *text;
    } times[] = {{-1, "0 s"},         {0.4, "0 s"},       {59.4, "59 s"},           {59.5, "1 m 0 s"},
                 {3599, "59 m 59 s"}, {4320, "1 h 12 m"}, {86400 * 3.2, "3 d 4 h"}, {1e300, "36500 d 0 h"}};
    char out[SH_STR_SHORT];
    (void)state;
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++)
        assert_string_equal(sh_str_duration(times[i].seconds, out), times[i].text);
    assert_string_equal(sh_str_plural(1, "step", out), "1 step");
    assert_string_equal(sh_str_plural(0, "rank", out), "0 ranks");
    assert_string_equal(sh_str_plural(2, "sequence", out), "2 sequences");
}

static void test_wrap(void **state)
{
    char *text = NULL;
    size_t bytes;
    FILE *f = open_memstream(&text, &bytes);
    (void)state;
    sh_str_wrap(f, 12, fprintf(f, " -o "), 6, "one two three  four");
    sh_str_wrap(f, 12, 0, 2, "averyverylongword x");
    sh_str_wrap(f, 12, 0, 2, "");
    fclose(f);
    assert_string_equal(text, " -o   one\n      two\n      three\n      four\n  averyverylongword\n  x\n  \n");
    free(text);
}

/* COLUMNS is used if it is a width that words fit into; output that is not a terminal has 80 columns. */
static void words_fit_the_window(void **state)
{
    static const struct {
        const char *columns, *text;
    } cases[] = {{"40", "what         1 two three four five six\n             seven\n"},
                 {"39", "what         1 two three four five six seven\n"},
                 {"", "what         1 two three four five six seven\n"},
                 {"wide", "what         1 two three four five six seven\n"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *text;
        size_t bytes;
        FILE *f = open_memstream(&text, &bytes);
        setenv("COLUMNS", cases[i].columns, 1);
        sh_str_say(f, "what", "%d two three four five six seven", 1);
        fclose(f);
        assert_string_equal(text, cases[i].text);
        free(text);
    }
    unsetenv("COLUMNS");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counts_and_times),
        cmocka_unit_test(test_wrap),
        cmocka_unit_test(words_fit_the_window),
        cmocka_unit_test(copies_of_any_length_and_place),
        cmocka_unit_test(test_error_is_kept),
        cmocka_unit_test(test_long_error_is_cut),
        cmocka_unit_test(test_stop),
        cmocka_unit_test(test_controls_are_visible),
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_distance),
        cmocka_unit_test(test_nearest),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_hash),
        cmocka_unit_test(test_time_moves_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
