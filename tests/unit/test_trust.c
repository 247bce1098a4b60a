/* The last check of files: who could have written a file that is loaded, and which file a rename publishes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "io/checkpoint/checkpoint.h"
#include "io/file/file.h"

#include <fcntl.h>
#include <pwd.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OTHER = 54321 }; /* a user and a group that nobody has */

static char folder[] = "/tmp/test_trust.XXXXXX", path[96], other[64], name[64];

int __real_rename(const char *from, const char *to);

static void write_file(const char *file, const char *text)
{
    int fd = open(file, O_WRONLY | O_CREAT | O_TRUNC, 0640);

    assert_true(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
}

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder + strlen(folder) - 6, "XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/step-00000001.h5", folder);
    snprintf(other, sizeof other, "%s/other", folder);
    snprintf(name, sizeof name, "%s/name", folder);
    write_file(path, "checkpoint");
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    unlink(path);
    unlink(other);
    unlink(name);
    return rmdir(folder);
}

static void refused(const char *file, const char *why)
{
    assert_int_equal(sh_ckpt_trusted(file, SH_TRUST_OWNER), SH_E_DATA);
    if (!strstr(sh_error_text(), why) || !strstr(sh_error_text(), "checkpoint.trust=any"))
        fail_msg("%s", sh_error_text());
    sh_error_clear();
    assert_int_equal(sh_ckpt_trusted(file, SH_TRUST_ANY), SH_OK);
}

static void fine(const char *file)
{
    if (sh_ckpt_trusted(file, SH_TRUST_OWNER) != SH_OK)
        fail_msg("%s", sh_error_text());
}

static void modes(void **state)
{
    (void)state;
    fine(path);
    fine(folder);
    fine("/tmp/test_trust.none/x"); /* opening it reports what is wrong */
    assert_int_equal(chmod(path, 0642), 0);
    refused(path, "may be written by everybody; remove that permission (chmod o-w)");
    assert_int_equal(symlink("step-00000001.h5", other), 0); /* judged by its target, whatever its own mode */
    refused(other, "may be written by everybody");
    assert_int_equal(chmod(path, 0640) | chmod(folder, 0757), 0);
    refused(path, "the folder /tmp/test_trust.");
    refused(other, "the folder /tmp/test_trust.");
    refused(folder, "may be written by everybody");
    assert_int_equal(chmod(folder, 01757), 0);
    fine(path);
}

/* The whole way to the root, not only the last folder. */
static void way(void **state)
{
    (void)state;
    assert_int_equal(mkdir(other, 0755) | __real_rename(path, name), 0);
    snprintf(path, sizeof path, "%s/step", other);
    assert_int_equal(__real_rename(name, path) | chmod(folder, 0757), 0);
    refused(path, "/test_trust.");
    refused(other, "may be written by everybody; remove that permission (chmod o-w)");
    assert_int_equal(chmod(folder, 01757), 0);
    fine(path);
    assert_int_equal(chmod(folder, 0775), 0); /* a project's folder */
    fine(path);
    assert_int_equal(unlink(path) | rmdir(other), 0);
}

static void need_root(void)
{
    if (geteuid() == 0)
        return;
    print_message("skipped: only root gives files to others\n");
    skip();
}

static void owners(void **state)
{
    (void)state;
    need_root();
    assert_int_equal(chown(path, OTHER, (gid_t)-1), 0);
    refused(path, "belongs to another user, without a name (54321)");
    assert_int_equal(chown(path, 0, 0) | chown(folder, OTHER, (gid_t)-1), 0);
    refused(path, "the folder /tmp/test_trust.");
    assert_int_equal(chmod(folder, 01755), 0); /* sticky or not, its owner may do anything */
    refused(path, "the folder /tmp/test_trust.");
    assert_int_equal(chown(folder, 0, 0) | chmod(folder, 0755) | chmod(path, 0644), 0);
    assert_int_equal(seteuid(OTHER), 0);
    fine(path);
    assert_int_equal(seteuid(0), 0);
}

static bool colleague; /* a user whose first group is root's */

struct passwd *__real_getpwent(void);
struct passwd *__wrap_getpwent(void);
struct passwd *__wrap_getpwent(void)
{
    static struct passwd other_user = {.pw_name = (char *)"colleague", .pw_uid = OTHER, .pw_gid = 0};

    return colleague ? &other_user : __real_getpwent();
}

static void groups(void **state)
{
    (void)state;
    need_root();
    assert_int_equal(chmod(path, 0660) | chown(path, 0, OTHER), 0);
    refused(path, "may be written by all of the group that it has; remove that permission (chmod g-w)");
    assert_int_equal(chown(path, 0, 0), 0); /* root's own group */
    fine(path);
    colleague = true;
    refused(path, "may be written by all of the group root");
    colleague = false;
    assert_int_equal(chown(folder, 0, OTHER) | chmod(folder, 0770), 0);
    refused(path, "the folder /tmp/test_trust.");
}

static int (*instead)(const char *from); /* runs instead of the first half of the rename */

int __wrap_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to)
{
    return (instead && instead(from) != 0) || __real_rename(from, to) != 0 ? -1 : 0;
}

static int swap_for_file(const char *from)
{
    return __real_rename(other, from);
}

static int swap_for_link(const char *from)
{
    return unlink(from) || symlink(other, from);
}

/* A file swapped before or after it is first checked: only the file that was open gets the name. */
static void only_what_is_open_gets_the_name(void **state)
{
    static int (*const swaps[])(const char *) = {swap_for_file, swap_for_link};

    (void)state;
    for (int i = 0; i < 4; i++) {
        int fd = open(path, O_RDWR | O_CREAT, 0640);

        assert_true(fd >= 0);
        write_file(other, "garbage");
        if (i < 2)
            assert_int_equal(swaps[i](path), 0);
        else
            instead = swaps[i - 2];
        assert_int_equal(sh_output_publish(fd, path, name), SH_E_DATA);
        assert_non_null(strstr(sh_error_text(), "another process changes its folder"));
        assert_int_equal(access(name, F_OK), -1);
        instead = NULL;
        close(fd);
        unlink(path);
    }
    write_file(path, "checkpoint");
    int fd = open(path, O_RDWR);
    assert_int_equal(sh_output_publish(fd, path, name), SH_OK);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(modes, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(way, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(owners, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(groups, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(only_what_is_open_gets_the_name, make_folder, remove_folder),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
