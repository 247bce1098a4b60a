/* Small files and folders, in the test's own folder. */
#include "src/base/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
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
    char *link = sh_path_join(root, "dangling"), *below = sh_path_join(link, "x");
    assert_int_equal(symlink("nowhere", link), 0);
    assert_int_equal(sh_mkdir_p(below), SH_E_DATA);
    assert_non_null(strstr(sh_error_text(), "/dangling: a symbolic link to something that does not exist"));
    assert_int_equal(sh_mkdir_p("/dev/null"), SH_E_DATA);
    assert_string_equal(sh_error_text(), "folder /dev/null: a file has this name");
    assert_int_equal(unlink(link), 0);
    free(link);
    free(below);
}

static void test_write_and_read(void **state)
{
    (void)state;
    char *path = sh_path_join(root, "latest"), *data;
    size_t bytes;
    assert_int_equal(sh_write_file_atomic(path, "old and long", 12), SH_OK);
    assert_int_equal(sh_write_file_atomic(path, "new\0x", 5), SH_OK);
    assert_int_equal(sh_read_file(path, 5, &data, &bytes), SH_OK);
    assert_int_equal(bytes, 5);
    assert_memory_equal(data, "new\0x", 6); /* with the zero after it */
    free(data);
    assert_int_equal(sh_read_file(path, 4, &data, &bytes), SH_E_DATA);
    assert_non_null(strstr(sh_error_text(), "5 bytes, more than the 4 allowed here"));
    free(path);
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
    assert_int_equal(sh_read_file(fifo, 10, &data, NULL), SH_E_DATA); /* without waiting for it */
    assert_int_equal(sh_write_file_atomic("/no/such/file", "x", 1), SH_E_DATA);
    assert_string_equal(sh_error_text(), "create /no/such/file: No such file or directory");
    assert_null(data);
    free(fifo);
}

/* After this, every write fails. */
static void fill_disk(void)
{
    const struct rlimit none = {.rlim_cur = 0, .rlim_max = RLIM_INFINITY};
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
}

static void empty_disk(void)
{
    const struct rlimit all = {.rlim_cur = RLIM_INFINITY, .rlim_max = RLIM_INFINITY};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &all), 0);
}

static int count_files(const char *folder)
{
    struct dirent **names;
    int n = scandir(folder, &names, NULL, NULL);
    for (int i = 0; i < n; i++)
        free(names[i]);
    free(names);
    return n - 2;
}

static void test_full_disk(void **state)
{
    (void)state;
    char *folder = sh_path_join(root, "full"), *path = sh_path_join(folder, "file");
    assert_int_equal(sh_mkdir_p(folder), SH_OK);
    fill_disk();
    assert_int_equal(sh_write_file_atomic(path, "x", 1), SH_E_DATA);
    empty_disk();
    assert_non_null(strstr(sh_error_text(), "File too large"));
    assert_int_equal(count_files(folder), 0);
    free(path);
    free(folder);
}

/* Put something at the name of an output. */
static void plant(const char *kind, const char *path)
{
    if (!strcmp(kind, "link"))
        assert_int_equal(symlink("victim", path), 0);
    else if (!strcmp(kind, "broken link"))
        assert_int_equal(symlink("new", path), 0);
    else if (!strcmp(kind, "FIFO"))
        assert_int_equal(mkfifo(path, 0600), 0);
    else
        assert_int_equal(mkdir(path, 0700), 0);
}

static const struct {
    const char *kind, *said;
} plants[] = {{"link", "is a symbolic link"},
              {"broken link", "is a symbolic link"},
              {"FIFO", "is not a regular file"},
              {"folder", ""}};

static void test_planted(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof plants / sizeof plants[0]; i++) {
        char folder[64], *path, *victim, *new, *data;
        FILE *f = NULL;
        snprintf(folder, sizeof folder, "%s/planted-%zu", root, i);
        path = sh_path_join(folder, "out"), victim = sh_path_join(folder, "victim"), new = sh_path_join(folder, "new");
        assert_int_equal(sh_mkdir_p(folder), SH_OK);
        assert_int_equal(sh_write_file_atomic(victim, "precious", 8), SH_OK);
        plant(plants[i].kind, path);
        assert_int_equal(sh_write_file_atomic(path, "x", 1), SH_E_DATA);
        assert_non_null(strstr(sh_error_text(), plants[i].said));
        for (const char *how = "aw"; *how; how++) {
            assert_int_equal(sh_open_output(path, how, &f), SH_E_DATA);
            assert_non_null(strstr(sh_error_text(), plants[i].said));
        }
        assert_null(f);
        assert_int_equal(sh_read_file(victim, 8, &data, NULL), SH_OK);
        assert_string_equal(data, "precious");
        assert_int_equal(access(new, F_OK), -1);
        assert_int_equal(count_files(folder), 2);
        free(data);
        free(path);
        free(victim);
        free(new);
    }
}

/* Somebody who may write into the folder puts another file under the temporary name. */
static void test_exchanged(void **state)
{
    (void)state;
    char *path = sh_path_join(root, "exchanged"), *victim = sh_path_join(root, "other");
    struct sh_new_file f;
    assert_int_equal(sh_write_file_atomic(victim, "garbage", 7), SH_OK);
    assert_int_equal(sh_new_file_create(path, 0644, &f), SH_OK);
    assert_int_equal(sh_new_file_name(&f), SH_OK);
    assert_int_equal(rename(victim, f.temp), 0);
    assert_int_equal(sh_new_file_commit(&f), SH_E_DATA);
    assert_non_null(strstr(sh_error_text(), "is no longer the file that was written"));
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(sh_new_file_create(path, 0644, &f), SH_OK);
    assert_int_equal(sh_new_file_name(&f), SH_OK);
    assert_int_equal(unlink(f.temp), 0);
    assert_int_equal(symlink("/etc/passwd", f.temp), 0);
    assert_int_equal(sh_new_file_commit(&f), SH_E_DATA);
    assert_int_equal(access(path, F_OK), -1);
    free(path);
    free(victim);
}

/* A child writes an output and is ended by a signal before it commits. */
static void end_by_signal(const char *path, bool named, int number)
{
    struct sh_new_file f;
    int status;
    pid_t child = fork();

    if (child == 0) {
        signal(number, SIG_DFL); /* a test in the background starts with some ignored */
        if (sh_new_file_create(path, 0644, &f) != SH_OK || (named && sh_new_file_name(&f) != SH_OK))
            _exit(1);
        raise(number);
        _exit(2);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == number);
}

static void test_signals(void **state)
{
    static const int numbers[] = {SIGTERM, SIGINT, SIGHUP, SIGPIPE, SIGUSR1};
    char folder[64], *path;

    (void)state;
    snprintf(folder, sizeof folder, "%s/signals", root);
    path = sh_path_join(folder, "out");
    assert_int_equal(sh_mkdir_p(folder), SH_OK);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        for (int named = 0; named < 2; named++) {
            end_by_signal(path, named, numbers[i]);
            assert_int_equal(count_files(folder), 0);
        }
    free(path);
}

/* What a dead process has left goes with the next output of that name: not what is young, locked by a living one, or of
 * another output. */
static void test_leftovers(void **state)
{
    static const struct {
        const char *name;
        bool old, locked, stays;
    } left[] = {{".out.0123456789abcdef.tmp", true, false, false},
                {".out.0123456789abcde0.tmp", false, false, true},
                {".out.0123456789abcde1.tmp", true, true, true},
                {".other.0123456789abcdef.tmp", true, false, true},
                {".out.0123456789abcdeg.tmp", true, false, true}};
    const struct timespec long_ago[2] = {{.tv_sec = 1000000000}, {.tv_sec = 1000000000}};
    char folder[64], *path;

    (void)state;
    snprintf(folder, sizeof folder, "%s/leftovers", root);
    path = sh_path_join(folder, "out");
    assert_int_equal(sh_mkdir_p(folder), SH_OK);
    for (size_t i = 0; i < sizeof left / sizeof *left; i++) {
        char *name = sh_path_join(folder, left[i].name);
        int fd = open(name, O_CREAT | O_WRONLY, 0600);

        assert_true(fd >= 0 && (!left[i].locked || flock(fd, LOCK_EX) == 0));
        if (left[i].old)
            assert_int_equal(futimens(fd, long_ago), 0);
        if (!left[i].locked)
            close(fd); /* else it stays open until the end of the test */
        free(name);
    }
    assert_int_equal(sh_write_file_atomic(path, "x", 1), SH_OK);
    for (size_t i = 0; i < sizeof left / sizeof *left; i++) {
        char *name = sh_path_join(folder, left[i].name);

        assert_int_equal(access(name, F_OK) == 0, left[i].stays);
        free(name);
    }
    free(path);
}

static void test_append(void **state)
{
    (void)state;
    char *path = sh_path_join(root, "grows"), *data;
    static const struct {
        const char *how, *text, *then;
    } steps[] = {
        {"a", "one", "one"}, {"a", "two\n", "one\ntwo\n"}, {"a", "three", "one\ntwo\nthree"}, {"w", "four", "four"}};
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        FILE *f;
        assert_int_equal(sh_open_output(path, steps[i].how, &f), SH_OK);
        assert_true(fputs(steps[i].text, f) >= 0 && fclose(f) == 0);
        assert_int_equal(sh_read_file(path, 100, &data, NULL), SH_OK);
        assert_string_equal(data, steps[i].then);
        free(data);
    }
    free(path);
}

static int mode_of(const char *path)
{
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    return st.st_mode & 07777;
}

static void test_modes(void **state)
{
    static const struct {
        mode_t umask, folder, file, stricter;
    } rows[] = {{0, 0755, 0644, 0640}, {022, 0755, 0644, 0640}, {002, 0755, 0644, 0640}, {077, 0700, 0600, 0600}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char folder[64], *path;
        struct sh_new_file file;
        FILE *f;
        mode_t before = umask(rows[i].umask);
        snprintf(folder, sizeof folder, "%s/modes-%zu", root, i);
        path = sh_path_join(folder, "x");
        assert_int_equal(sh_mkdir_p(folder), SH_OK);
        assert_int_equal(mode_of(folder), rows[i].folder);
        assert_int_equal(sh_write_file_atomic(path, "x", 1), SH_OK);
        assert_int_equal(mode_of(path), rows[i].file);
        unlink(path);
        assert_int_equal(sh_open_output(path, "a", &f), SH_OK);
        assert_int_equal(fclose(f), 0);
        assert_int_equal(mode_of(path), rows[i].file);
        assert_int_equal(sh_new_file_create(path, 0640, &file), SH_OK);
        assert_int_equal(sh_new_file_commit(&file), SH_OK);
        assert_int_equal(mode_of(path), rows[i].stricter);
        umask(before);
        free(path);
    }
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
        cmocka_unit_test(test_join),      cmocka_unit_test(test_folders),   cmocka_unit_test(test_write_and_read),
        cmocka_unit_test(test_refusals),  cmocka_unit_test(test_full_disk), cmocka_unit_test(test_planted),
        cmocka_unit_test(test_exchanged), cmocka_unit_test(test_append),    cmocka_unit_test(test_signals),
        cmocka_unit_test(test_leftovers), cmocka_unit_test(test_modes),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
