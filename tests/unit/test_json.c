/* JSON from outside: text within the limits is parsed, the rest is refused in one line with its place. */
#include "io/json/json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static sh_rc parse(const char *text, json_t **out)
{
    return sh_json_parse(text, strlen(text), "x.json", out);
}

static void refused_with_the_place(void **state)
{
    static const struct {
        const char *text, *says;
    } rows[] = {
        {"", "x.json"},
        {"{\"a\": 1,\n \"a\": 2}", "x.json: line 2, column 4: duplicate object key"},
        {"{\"a\": 1} 2", "x.json: line 1, column 10"},
        {"[1, 2", "x.json: line 1"},
        {"{'a': 1}", "x.json: line 1"},
        {"[NaN]", "x.json: line 1"},
        {"[1e999]", "real number overflow"},
        {"[99999999999999999999, 1e999]", "real number overflow"},
        {"[99999999999999999999,\n 99999999999999999999 ?]", "x.json: line 2, column 23"},
        {"[\"\\ud800\"]", "x.json: line 1"},
        {"[\"\xff\"]", "unable to decode byte 0xff"},
    };
    (void)state;
    assert_int_equal(sh_json_parse("[1\0]", 4, "x.json", &(json_t *){NULL}), SH_E_DATA);
    assert_non_null(strstr(sh_error_text(), "x.json: line 1, column 3: a zero byte"));
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        json_t *value = NULL;
        assert_int_equal(parse(rows[i].text, &value), SH_E_DATA);
        assert_null(value);
        assert_non_null(strstr(sh_error_text(), rows[i].says));
        assert_null(strchr(sh_error_text(), '\n'));
    }
}

/* Make `depth` nested lists, after a string of brackets that do not count. */
static char *make_deep(int depth)
{
    static const char string[] = "[\"[[[[{\\\"[[[\\\\\",\n";
    char *text = calloc((size_t)depth * 2 + sizeof string + 2, 1);
    strcpy(text, string);
    for (int i = 1; i < depth; i++)
        strcat(text, "[");
    for (int i = 0; i < depth; i++)
        strcat(text, i == 0 && depth == 1 ? "0]" : "]");
    return text;
}

static void depth_is_limited(void **state)
{
    (void)state;
    json_t *value;
    char *text = make_deep(SH_JSON_DEPTH);
    assert_int_equal(parse(text, &value), SH_OK);
    json_decref(value);
    free(text);
    text = make_deep(SH_JSON_DEPTH + 1);
    assert_int_equal(parse(text, &value), SH_E_DATA);
    assert_non_null(
        strstr(sh_error_text(), "x.json: line 2, column 64: objects and lists are nested more than 64 deep"));
    free(text);
}

/* transformers writes such an integer for "no limit". Integers that fit stay integers. */
static void big_integers(void **state)
{
    static const struct {
        const char *number;
        double real; /* 0: it is an integer */
    } rows[] = {
        {"1000000000000000019884624838656", 1e30},
        {"-1000000000000000019884624838656", -1e30},
        {"9223372036854775808", 9223372036854775808.0},
        {"-9223372036854775809", -9223372036854775808.0},
        {"18446744073709551615", 18446744073709551615.0},
        {"9223372036854775807", 0},
        {"-9223372036854775808", 0},
        {"123456789012345678.5", 123456789012345678.5},
        {"12345678901234567890e2", 1234567890123456789000.0},
    };
    json_t *value;
    char text[200];

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        /* The second one makes each row take the long way. */
        snprintf(text, sizeof text, "{\"a\\\"12345678901234567890\": [%s,1,99999999999999999999 ,true]}",
                 rows[i].number);
        if (parse(text, &value) != SH_OK)
            fail_msg("%s: %s", text, sh_error_text());
        const json_t *list = json_object_get(value, "a\"12345678901234567890"), *one = json_array_get(list, 0);
        assert_int_equal(json_array_size(list), 4);
        assert_true(json_is_integer(json_array_get(list, 1)) && json_is_real(json_array_get(list, 2)));
        if (rows[i].real != 0 ? !json_is_real(one) || json_real_value(one) != rows[i].real : !json_is_integer(one))
            fail_msg("row %zu: %s", i, sh_json_is(one));
        json_decref(value);
    }
}

static void any_value_and_nul(void **state)
{
    (void)state;
    json_t *value;
    assert_int_equal(parse(" \"a\\u0000b\" ", &value), SH_OK);
    assert_int_equal(json_string_length(value), 3);
    assert_string_equal(sh_json_is(value), "a string");
    json_decref(value);
    assert_string_equal(sh_json_is(NULL), "missing");
}

static void files_have_a_limit(void **state)
{
    (void)state;
    char path[] = "/tmp/test_json.XXXXXX";
    json_t *value;
    int fd = mkstemp(path);
    assert_int_equal(write(fd, "{\"a\": [1]}", 10), 10);
    close(fd);
    assert_int_equal(sh_json_load(path, 9, &value), SH_E_DATA);
    assert_int_equal(sh_json_load(path, 10, &value), SH_OK);
    assert_true(json_is_object(value));
    json_decref(value);
    unlink(path);
    assert_int_equal(sh_json_load(path, 10, &value), SH_E_DATA);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refused_with_the_place), cmocka_unit_test(depth_is_limited),   cmocka_unit_test(big_integers),
        cmocka_unit_test(any_value_and_nul),      cmocka_unit_test(files_have_a_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
