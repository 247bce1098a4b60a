/* What a GPU reports about itself, using doubles of libnvidia-ml (fake_libnvml.c): complete, old, minimal, and each
 * way in which one fails. A library stays loaded, so each case runs in a separate process. */
#include "src/base/time.h"
#include "src/device/nvml.h"
#include "src/run/watch/gpus.h"

#include <dlfcn.h>
#include <libgen.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define FIRST "00000000:01:00.0"
#define SECOND "00000000:02:00.0"

static char folder[4096];

/* The status of a process: 0, or the line of the first check that failed. */
#define REQUIRE(so)                                                                               \
    do {                                                                                          \
        if (!(so)) {                                                                              \
            fprintf(stderr, "%s:%d: not so: %s; %s\n", __FILE__, __LINE__, #so, sh_error_text()); \
            _exit(1);                                                                             \
        }                                                                                         \
    } while (0)

/* Its soname is that of the real library, so asking for that finds this one. NULL: none is loaded. */
static void check(const char *library, const char *word, void (*what)(void))
{
    int status = -1;
    pid_t child = fork();

    if (child == 0) {
        char path[sizeof folder + 64];

        snprintf(path, sizeof path, "%s/%s", folder, library ? library : "");
        setenv("SHERD_NVML", word, 1);
        REQUIRE(!library || dlopen(path, RTLD_NOW | RTLD_LOCAL));
        what();
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static void tells_all(void)
{
    struct sh_nvml_state s;

    REQUIRE(sh_nvml_open(SECOND) == SH_OK);
    sh_nvml_read(&s);
    REQUIRE(fabs(s.watts - 500) < 1e-9 && fabs(s.limit_watts - 500) < 1e-9 && fabs(s.usual_watts - 700) < 1e-9);
    REQUIRE(fabs(s.mhz - 1200) < 1e-9 && fabs(s.most_mhz - 1980) < 1e-9 && fabs(s.celsius - 81) < 1e-9);
    REQUIRE(s.held == (SH_NVML_POWER | SH_NVML_HEAT));
    REQUIRE(sh_nvml_way_to(FIRST) == SH_NVML_LINK && sh_nvml_way_to("00000000:07:00.0") == SH_NVML_UNKNOWN);
    sh_nvml_close();
    REQUIRE(sh_nvml_way_to(FIRST) == SH_NVML_UNKNOWN);
    REQUIRE(sh_nvml_open(FIRST) == SH_OK);
    sh_nvml_read(&s);
    REQUIRE(fabs(s.watts - 650.5) < 1e-9 && s.held == 0); /* it waits for work */
    sh_nvml_close();
}

static void tells_nothing(void)
{
    struct sh_nvml_state s;

    REQUIRE(sh_nvml_open(FIRST) == SH_OK);
    sh_nvml_read(&s);
    REQUIRE(isnan(s.watts) && isnan(s.limit_watts) && isnan(s.usual_watts) && isnan(s.mhz) && isnan(s.most_mhz) &&
            isnan(s.celsius) && s.held == 0 && sh_nvml_way_to(SECOND) == SH_NVML_UNKNOWN);
    sh_nvml_close();
}

static void tells_a_part(void)
{
    struct sh_nvml_state s;

    REQUIRE(sh_nvml_open(SECOND) == SH_OK);
    sh_nvml_read(&s);
    REQUIRE(fabs(s.watts - 500) < 1e-9 && isnan(s.mhz) && s.held == 0 && sh_nvml_way_to(FIRST) == SH_NVML_SYSTEM);
    sh_nvml_close();
}

static void does_not_start(void)
{
    REQUIRE(sh_nvml_open(FIRST) == SH_E_USAGE);
    REQUIRE(strstr(sh_error_text(), "cannot be started: libnvidia-ml.so.1 says: Driver Not Loaded (9)"));
}

static void has_no_such_gpu(void)
{
    struct sh_nvml_state s;

    REQUIRE(sh_nvml_open("00000000:07:00.0") == SH_E_USAGE);
    REQUIRE(strstr(sh_error_text(), "00000000:07:00.0: libnvidia-ml.so.1 says: Not Found (6)"));
    sh_nvml_read(&s);
    REQUIRE(isnan(s.watts));
}

/* An unrelated library under this name; if the host has a real one, that is found first. */
static void is_none(void)
{
    REQUIRE(sh_nvml_open(FIRST) == SH_E_USAGE);
    REQUIRE(strstr(sh_error_text(), "libnvidia-ml.so.1"));
}

static void test_library(void **state)
{
    (void)state;
    check("libnvml_whole.so", "", tells_all);
    check("libnvml_old.so", "", tells_all);
    check("libnvml_few.so", "", tells_nothing);
    check("libnvml_whole.so", "unsupported", tells_nothing);
    check("libnvml_whole.so", "partly", tells_a_part);
    check("libnvml_whole.so", "start", does_not_start);
    check("libnvml_whole.so", "", has_no_such_gpu);
    check("libnvml_none.so", "", is_none);
}

/* ---- the thread ---- */

static void take_first(struct sh_gpus_reading *r)
{
    for (int i = 0; i < 6000; i++) {
        sh_gpus_take(r);
        if (r->told > 0)
            return;
        usleep(100000);
    }
}

/* The letters that the double has written. */
static bool is_marked(const char *letters)
{
    char found[16] = "";
    FILE *f = fopen(getenv("SHERD_NVML_MARK"), "r");

    if (f) {
        found[fread(found, 1, sizeof found - 1, f)] = 0;
        fclose(f);
    }
    return !strcmp(found, letters);
}

static void is_watched(void)
{
    struct sh_gpus_reading r;

    REQUIRE(sh_gpus_watch(SECOND) == SH_OK);
    take_first(&r);
    REQUIRE(r.told > 0 && fabs(r.watts - 500) < 1e-9 && fabs(r.mhz - 1200) < 1e-9 && fabs(r.held - 3) < 1e-9);
    sh_gpus_take(&r); /* a line that comes soon after has the same values */
    REQUIRE(r.told > 0 && fabs(r.celsius - 81) < 1e-9);
    sh_gpus_unwatch();
    sh_gpus_take(&r);
    REQUIRE(r.told <= 0);
    REQUIRE(is_marked("z"));
}

/* Neither a step nor the end waits for it, and the library is not closed while it is in use. */
static void is_late(void)
{
    struct sh_gpus_reading r;

    REQUIRE(sh_gpus_watch(FIRST) == SH_OK);
    for (int i = 0; i < 6000 && !is_marked("a"); i++)
        usleep(100000);
    sh_gpus_take(&r);
    REQUIRE(r.told <= 0);
    sh_gpus_unwatch();
    REQUIRE(is_marked("a"));
}

static void is_silent(void)
{
    struct sh_gpus_reading r;

    REQUIRE(sh_gpus_watch(FIRST) == SH_OK);
    usleep(200000);
    sh_gpus_take(&r);
    REQUIRE(r.told <= 0);
    sh_gpus_unwatch();
}

static void test_thread(void **state)
{
    char mark[] = "/tmp/test_nvml.XXXXXX";

    (void)state;
    assert_true(close(mkstemp(mark)) == 0 && unlink(mark) == 0);
    setenv("SHERD_NVML_MARK", mark, 1);
    check("libnvml_whole.so", "", is_watched);
    assert_int_equal(unlink(mark), 0);
    check("libnvml_whole.so", "late", is_late);
    assert_int_equal(unlink(mark), 0);
    check("libnvml_whole.so", "unsupported", is_silent);
    assert_int_equal(unlink(mark), 0);
}

/* ---- of all ranks ---- */

static const char hosts[4][SH_METRICS_HOST] = {"n0", "n0", "n1", "n1"};

static void test_judge(void **state)
{
    const struct sh_gpus_reading each[4] = {
        {.watts = 600, .limit_watts = 700, .usual_watts = 700, .mhz = 1800, .most_mhz = 1980, .celsius = 60, .told = 1},
        {.watts = 500,
         .limit_watts = 500,
         .usual_watts = 700,
         .mhz = 1200,
         .most_mhz = 1980,
         .celsius = 70,
         .held = SH_NVML_POWER,
         .told = 1},
        {.watts = 1, .mhz = 1, .celsius = 999, .held = SH_NVML_BRAKE}, /* late */
        {.watts = NAN,
         .limit_watts = NAN,
         .usual_watts = NAN,
         .mhz = NAN,
         .most_mhz = NAN,
         .celsius = 80,
         .held = SH_NVML_HEAT,
         .told = 1}};
    struct sh_gpu_metrics g;

    (void)state;
    sh_gpus_judge(each, 4, hosts[0], &g);
    assert_int_equal(g.gpus, 3);
    assert_true(fabs(g.watts - 550) < 1e-9 && fabs(g.limit_watts - 500) < 1e-9 && fabs(g.usual_watts - 700) < 1e-9);
    assert_true(fabs(g.mhz - 1200) < 1e-9 && fabs(g.median_mhz - 1500) < 1e-9 && fabs(g.most_mhz - 1980) < 1e-9);
    assert_true(fabs(g.celsius - 80) < 1e-9);
    assert_int_equal(g.slowest, 1);
    assert_string_equal(g.node, "n0");
    assert_int_equal(g.held, 2);
    assert_int_equal(g.why, SH_NVML_POWER | SH_NVML_HEAT);
    sh_gpus_judge(&each[2], 1, hosts[2], &g);
    assert_int_equal(g.gpus, 0);
    assert_true(isnan(g.limit_watts));
    sh_gpus_judge(&each[3], 1, hosts[3], &g);
    assert_true(g.gpus == 1 && isnan(g.watts) && isnan(g.mhz) && isnan(g.median_mhz) && !g.node);
}

/* Two kinds: a limit is reported next to the default of its own GPU, and a clock next to the maximum of its own GPU. */
static void test_two_kinds(void **state)
{
    const struct sh_gpus_reading each[3] = {
        {.limit_watts = 350, .usual_watts = 350, .mhz = 1300, .most_mhz = 1410, .celsius = NAN, .told = 1},
        {.limit_watts = 600, .usual_watts = 700, .mhz = 1800, .most_mhz = 1980, .celsius = NAN, .told = 1},
        {.limit_watts = 300, .usual_watts = NAN, .mhz = NAN, .most_mhz = 1980, .celsius = NAN, .told = 1}};
    struct sh_gpu_metrics g;

    (void)state;
    sh_gpus_judge(each, 3, hosts[0], &g);
    assert_true(fabs(g.limit_watts - 600) < 1e-9 && fabs(g.usual_watts - 700) < 1e-9);
    assert_true(fabs(g.mhz - 1300) < 1e-9 && fabs(g.most_mhz - 1410) < 1e-9 && g.slowest == 0);
    sh_gpus_judge(&each[2], 1, hosts[0], &g);
    assert_true(fabs(g.limit_watts - 300) < 1e-9 && isnan(g.usual_watts));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_library), cmocka_unit_test(test_thread),
                                       cmocka_unit_test(test_judge), cmocka_unit_test(test_two_kinds)};
    ssize_t n = readlink("/proc/self/exe", folder, sizeof folder - 1);

    if (n < 0)
        return 1;
    dirname(folder);
    return cmocka_run_group_tests_name("nvml", tests, NULL, NULL);
}
