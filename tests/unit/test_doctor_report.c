/* The report of `sherd doctor` has nothing private in it, and a busy node is noticed. */
#include "src/tools/doctor/report.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "src/mesh/mesh.h"

#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static const char *const hosts[] = {"n3.site.example", "n3", "login1"};

static void check(const char *text, const char *wanted)
{
    char *found = sh_doctor_redact(3, hosts, "meier", text);

    assert_string_equal(found, wanted);
    free(found);
}

static void test_names_are_replaced(void **state)
{
    (void)state;
    check("slowest is n3.site.example", "slowest is node0");
    check("n3: slow, n3.site.example, login1", "node1: slow, node0, node2");
    check("of meier", "of USER");
    check("n30 meiers n3", "n30 meiers node1"); /* other words */
    check("", "");
}

static void test_paths_are_cut(void **state)
{
    (void)state;
    check("folder: \"/home/meier/run 1\"", "folder: \"(path)/run 1\"");
    check("--with-mpi=/opt/site/mpi --with-cuda=no", "--with-mpi=(path)/mpi --with-cuda=no");
    check("data/patients/a.bin,b.bin", "(path)/a.bin,b.bin");
    check("/home/n3", "(path)/node1");
    check("/scratch/meier", "(path)/USER");
    check("12 GB/s", "12 GB/s");
    check("/a/s", "(path)/s");
}

static void say_nothing(FILE *out)
{
    (void)out;
}

/* A disk without room for the first line. */
static void test_nothing_is_left_of_a_report_that_fails(void **state)
{
    static const char *const words[] = {"model.name=debug"};
    char path[] = "/tmp/test_doctor_report.XXXXXX";
    struct sh_config cfg;
    struct sh_mesh mesh = {0};
    const struct sh_doctor d = {.cfg = &cfg, .mesh = &mesh};
    FILE *out;
    struct rlimit before;

    (void)state;
    assert_int_equal(sh_config_load(NULL, 1, words, &cfg), SH_OK);
    close(mkstemp(path));
    getrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){0, before.rlim_max});
    sh_rc rc = sh_doctor_report_begin(&d, path, say_nothing, &out);
    setrlimit(RLIMIT_FSIZE, &before);
    assert_int_equal(rc, SH_E_DATA);
    assert_non_null(strstr(sh_error_text(), path));
    assert_int_not_equal(access(path, F_OK), 0);
}

static void test_only_plain_values_are_shown(void **state)
{
    (void)state;
    assert_true(sh_doctor_shown(3, hosts, "meier", "1"));
    assert_true(sh_doctor_shown(3, hosts, "meier", "ds21,ds12,hash"));
    assert_true(sh_doctor_shown(3, hosts, "", "0-15"));
    assert_false(sh_doctor_shown(3, hosts, "meier", "/home/x"));
    assert_false(sh_doctor_shown(3, hosts, "meier", "10.1.2.3"));
    assert_false(sh_doctor_shown(3, hosts, "meier", "a@b"));
    assert_false(sh_doctor_shown(3, hosts, "meier", "prefix-login1"));
    assert_false(sh_doctor_shown(3, hosts, "meier", "xmeier_7"));
    assert_false(
        sh_doctor_shown(3, hosts, "meier", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"));
}

/* The load counts against the cores of its node. */
static void test_load_is_judged(void **state)
{
    const double load[] = {30, 3, 0.5}, cores[] = {64, 4, 2};

    (void)state;
    assert_int_equal(sh_doctor_find_busiest(3, load, cores), 1);
    assert_int_equal(sh_doctor_judge_load(24, 2), SH_DOCTOR_NOTE);
    assert_int_equal(sh_doctor_judge_load(30, 64), SH_DOCTOR_GOOD);
    assert_int_equal(sh_doctor_judge_load(0, 1), SH_DOCTOR_GOOD);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names_are_replaced),
        cmocka_unit_test(test_paths_are_cut),
        cmocka_unit_test(test_nothing_is_left_of_a_report_that_fails),
        cmocka_unit_test(test_only_plain_values_are_shown),
        cmocka_unit_test(test_load_is_judged),
    };

    return cmocka_run_group_tests_name("doctor report", tests, NULL, NULL);
}
