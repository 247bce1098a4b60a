/* Small files and folders in a folder of the test's own. */
#include "src/base/file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char root[] = "/tmp/sherd_file_XXXXXX";

static const struct {
    const char *folder, *name, *path;
} joins[] = {
    {"a", "b", "a/b"}, {"a/", "b", "a/b"}, {"", "b", "b"}, {"a", "/b", "/b"}, {"/", "b", "/b"},
};

static void test_join(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof joins / sizeof joins[0]; i++) {
        char *path = sh_path_join(joins[i].folder, joins[i].name);
        assert_string_equal(path, joins[i].path);
        free(path);
    }
}

static void test_folders(void **state)
{
    (void)state;
    struct stat st;
    char *deep = sh_path_join(root, "a/b//c/");
    assert_int_equal(sh_mkdir_p(deep), SH_OK);
    assert_int_equal(sh_mkdir_p(deep), SH_OK);
    assert_int_equal(stat(deep, &st), 0);
    assert_true(S_ISDIR(st.st_mode));
    assert_int_equal(sh_mkdir_p("/proc/no/such"), SH_E_DATA);
    assert_non_null(strstr(sh_error_text(), "create folder /proc/no: "));
    free(deep);
}

static void test_write_and_read(void **state)
{
    (void)state;
    char *path = sh_path_join(root, "latest"), *tmp = sh_path_join(root, "latest.tmp"), *data;
    size_t bytes;
    assert_int_equal(sh_write_file_atomic(path, "old and long", 12), SH_OK);
    assert_int_equal(sh_write_file_atomic(path, "new\0x", 5), SH_OK);
    assert_int_equal(access(tmp, F_OK), -1);
    assert_int_equal(sh_read_file(path, 5, &data, &bytes), SH_OK);
    assert_int_equal(bytes, 5);
    assert_memory_equal(data, "new\0x", 6); /* with the zero behind it */
    free(data);
    assert_int_equal(sh_read_file(path, 4, &data, &bytes), SH_E_DATA);
    assert_non_null(strstr(sh_error_text(), "5 bytes, more than the 4 allowed here"));
    free(path);
    free(tmp);
}

static void test_refusals(void **state)
{
    (void)state;
    char *fifo = sh_path_join(root, "fifo"), *data = NULL;
    assert_int_equal(sh_read_file("/no/such/file", 10, &data, NULL), SH_E_DATA);
    assert_string_equal(sh_error_text(), "open /no/such/file: No such file or directory");
    assert_int_equal(sh_read_file(root, 10, &data, NULL), SH_E_DATA);
    assert_non_null(strstr(sh_error_text(), "not a regular file"));
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_int_equal(sh_read_file(fifo, 10, &data, NULL), SH_E_DATA); /* and not waited for */
    assert_int_equal(sh_write_file_atomic("/no/such/file", "x", 1), SH_E_DATA);
    assert_string_equal(sh_error_text(), "create /no/such/file.tmp: No such file or directory");
    assert_null(data);
    free(fifo);
}

static void test_full_disk(void **state)
{
    (void)state;
    char *path = sh_path_join(root, "full"), *tmp = sh_path_join(root, "full.tmp");
    assert_int_equal(symlink("/dev/full", tmp), 0);
    assert_int_equal(sh_write_file_atomic(path, "x", 1), SH_E_DATA);
    assert_non_null(strstr(sh_error_text(), "No space left on device"));
    assert_int_equal(access(path, F_OK), -1);
    free(path);
    free(tmp);
}

static int set_up(void **state)
{
    (void)state;
    return mkdtemp(root) != NULL ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    char command[64];
    snprintf(command, sizeof command, "rm -r %s", root);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_join),     cmocka_unit_test(test_folders),   cmocka_unit_test(test_write_and_read),
        cmocka_unit_test(test_refusals), cmocka_unit_test(test_full_disk),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
