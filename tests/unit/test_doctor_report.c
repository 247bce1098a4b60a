/* The report of `sherd doctor` has nothing private in it; a busy node is noticed, and neighbours on other nodes are. */
#include "src/tools/doctor/report.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "src/base/file.h"
#include "src/base/mem.h"
#include "src/device/nvml.h"
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

/* Nodes of so many ranks each; 0: ranks take turns on two nodes. */
static struct sh_doctor_apart apart_on(const struct sh_mesh_shape *shape, int each)
{
    struct sh_doctor_place place[24] = {0};
    struct sh_doctor_apart found = {.axis = "none"};
    bool any;

    for (int rank = 0; rank < 24; rank++)
        place[rank].node = each ? rank / each : rank % 2;
    any = sh_doctor_find_apart(shape, place, &found);
    assert_int_equal(any, strcmp(found.axis, "none") != 0);
    return found;
}

static void test_neighbours_on_other_nodes_are_named(void **state)
{
    static const struct {
        int each;
        struct sh_doctor_apart found;
    } rows[] = {
        {8, {"none", 0, 0, 0}},    {24, {"none", 0, 0, 0}},     {6, {"tensor", 5, 6, 4}},
        {4, {"context", 0, 4, 8}}, {12, {"context", 8, 12, 8}}, {0, {"tensor", 0, 1, 4}},
    };
    struct sh_mesh_shape shape = sh_mesh_shape_of(
        (const int[SH_AXES]){[SH_AXIS_TENSOR] = 4, [SH_AXIS_CONTEXT] = 2, 1, 1, 1, 1, [SH_AXIS_PIPELINE] = 3}, 0);

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct sh_doctor_apart found = apart_on(&shape, rows[i].each);

        assert_string_equal(found.axis, rows[i].found.axis);
        assert_int_equal(found.rank, rows[i].found.rank);
        assert_int_equal(found.next, rows[i].found.next);
        assert_int_equal(found.span, rows[i].found.span);
    }
}

/* Two nodes of `each` ranks; between GPUs of a node the link of processors, but NVLink between those whose place is equal
 * modulo `apart`. 0: nothing is known of the second node. */
static bool far_on(int tensor, int context, int each, int apart, struct sh_doctor_far *found)
{
    struct sh_mesh_shape shape =
        sh_mesh_shape_of((const int[SH_AXES]){tensor, context, 1, 1, 2 * each / tensor / context, 1, 1}, 0);
    struct sh_doctor_place place[16] = {0};

    for (int rank = 0; rank < 2 * each; rank++) {
        place[rank].node = rank / each;
        place[rank].node_rank = rank % each;
        for (int k = 0; k < each && (apart || rank < each); k++)
            place[rank].way[k] = apart && (rank - k) % apart == 0 ? SH_NVML_LINK : SH_NVML_SYSTEM;
    }
    return sh_doctor_find_far(&shape, place, found);
}

/* GPUs in pairs that are four, two or one apart: neighbours should be such a pair. Where all ways are alike, or longer
 * for another order, nothing is said. */
static void test_neighbours_on_far_gpus_are_named(void **state)
{
    struct sh_doctor_far far;

    (void)state;
    assert_true(far_on(2, 1, 8, 4, &far));
    assert_string_equal(far.axis, "tensor");
    assert_true(far.rank == 0 && far.next == 1 && far.n == 8);
    assert_memory_equal(far.order, ((const int[]){0, 4, 1, 5, 2, 6, 3, 7}), 8 * sizeof(int));
    assert_true(far_on(1, 2, 4, 2, &far));
    assert_string_equal(far.axis, "context");
    assert_memory_equal(far.order, ((const int[]){0, 2, 1, 3}), 4 * sizeof(int));
    assert_true(far_on(2, 2, 8, 2, &far));
    assert_false(far_on(2, 1, 8, 1, &far));
    assert_false(far_on(8, 1, 8, 16, &far));
    assert_false(far_on(1, 1, 8, 4, &far));
    assert_false(far_on(2, 1, 8, 0, &far));
}

/* A file of /proc or /sys below the folder `root`. */
static void put_file(const char *root, const char *path, const char *text)
{
    char *name = sh_strfmt("%s%s", root, path), *folder = sh_strdup(name);

    *strrchr(folder, '/') = '\0';
    assert_int_equal(sh_mkdir_p(folder), SH_OK);
    assert_int_equal(sh_write_file_atomic(name, text, strlen(text)), SH_OK);
    free(name);
    free(folder);
}

/* A host of two processors; memory without processors; the same as a GPU's, as the driver says. */
static void test_pages_of_a_coherent_host(void **state)
{
    static const char node[] = "/sys/devices/system/node/node", thp[] = "/sys/kernel/mm/transparent_hugepage/";
    char root[] = "/tmp/test_doctor_pages.XXXXXX", text[SH_DOCTOR_PAGES], *path;

    (void)state;
    assert_non_null(mkdtemp(root));
    assert_false(sh_doctor_say_pages(root, 4096, text));
    assert_string_equal(text, "4 KiB pages");
    put_file(root, "/proc/sys/kernel/numa_balancing", "1\n");
    for (int i = 0; i < 3; i++) {
        path = sh_strfmt("%s%d/cpulist", node, i);
        put_file(root, path, i == 2 ? "\n" : "0-71\n");
        free(path);
        path = sh_strfmt("%s%d/meminfo", node, i);
        put_file(root, path, "Node 2 MemTotal:       100663296 kB\nNode 2 MemFree: 5 kB\n");
        free(path);
    }
    path = sh_strfmt("%shpage_pmd_size", thp);
    put_file(root, path, "536870912\n");
    free(path);
    path = sh_strfmt("%senabled", thp);
    put_file(root, path, "always [madvise] never\n");
    free(path);
    assert_false(sh_doctor_say_pages(root, 65536, text));
    assert_string_equal(text,
                        "64 KiB pages; huge pages of 512.0 MiB: madvise; 96.0 GiB of the host's memory, which the row "
                        "memory counts, have no processors: GPUs' over a coherent link, or CXL");
    put_file(root, "/proc/driver/nvidia/gpus/0009:01:00.0/numa_status", "Numa status: online\nNode: 2\n");
    assert_true(sh_doctor_say_pages(root, 65536, text));
    assert_non_null(strstr(text, "they are GPUs', over a coherent link; kernel.numa_balancing=1 moves pages"));
    put_file(root, "/proc/sys/kernel/numa_balancing", "0\n");
    assert_false(sh_doctor_say_pages(root, 65536, text));
    assert_true(sh_doctor_say_pages(root, 4096, text));
    assert_non_null(strstr(text, "link; NVIDIA advises a kernel with 64 KiB pages"));
    path = sh_strfmt("rm -r %s", root);
    assert_int_equal(system(path), 0);
    free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names_are_replaced),
        cmocka_unit_test(test_paths_are_cut),
        cmocka_unit_test(test_nothing_is_left_of_a_report_that_fails),
        cmocka_unit_test(test_only_plain_values_are_shown),
        cmocka_unit_test(test_load_is_judged),
        cmocka_unit_test(test_pages_of_a_coherent_host),
        cmocka_unit_test(test_neighbours_on_other_nodes_are_named),
        cmocka_unit_test(test_neighbours_on_far_gpus_are_named),
    };

    return cmocka_run_group_tests_name("doctor report", tests, NULL, NULL);
}
