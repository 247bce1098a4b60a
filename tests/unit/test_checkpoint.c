/* Parts of checkpoints that need no job: which checkpoints stay, who may write, and how long a stage may take. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "io/checkpoint/checkpoint.h"
#include "io/checkpoint/folder/folder.h"
#include "io/move/deadline.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void the_rule_keeps_what_it_says(void **state)
{
    static const struct {
        struct sh_ckpt_keep keep;
        int64_t step, good;
        int newer;
        bool stays;
    } table[] = {
        {{0, 0}, 1, 100, 50, true},  /* no limit */
        {{1, 0}, 100, 100, 0, true}, /* the good one */
        {{1, 0}, 101, 100, 0, true}, /* newer than it */
        {{1, 0}, 101, 100, 5, true}, /* and older than five of its kind */
        {{1, 0}, 99, 100, 1, false},  {{3, 0}, 98, 100, 2, true},
        {{3, 0}, 97, 100, 3, false},  {{3, 10}, 90, 100, 10, true}, /* permanent */
        {{3, 10}, 91, 100, 9, false}, {{1, 10}, 0, 100, 20, true},  /* step 0 is a multiple of all */
    };

    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        assert_int_equal(sh_ckpt_keeps(&table[i].keep, table[i].step, table[i].good, table[i].newer), table[i].stays);
}

static void the_step_is_in_the_name(void **state)
{
    (void)state;
    assert_int_equal(sh_ckpt_step_of("a/b/step-00000012.h5"), 12);
    assert_int_equal(sh_ckpt_step_of("step-123456789.h5"), 123456789);
    assert_int_equal(sh_ckpt_step_of("step-12.h5"), -1);
    assert_int_equal(sh_ckpt_step_of("step-00000012.h5/x"), -1);
}

static void touch(const char *folder, const char *name)
{
    char path[256];
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    f = fopen(path, "w");
    assert_non_null(f);
    fclose(f);
}

static void expect_newest(const char *folder, int64_t before, const char *name)
{
    char *path;

    assert_int_equal(sh_ckpt_newest_before(folder, before, &path), SH_OK);
    if (!name)
        assert_null(path);
    else
        assert_string_equal(strrchr(path, '/') + 1, name);
    free(path);
}

/* Only the name counts: neither unfinished files nor files of other programs are taken. */
static void the_newest_is_that_of_the_last_step(void **state)
{
    static const char *const others[] = {".step-00000009.h5.0123456789abcdef.tmp", "step-00000009.h5.bak", "step-9.h5"};
    static const char *const steps[] = {"step-00000002.h5", "step-00000010.h5", "step-00000003.h5"};
    char folder[] = "/tmp/test_checkpoint.XXXXXX", path[256];

    (void)state;
    assert_non_null(mkdtemp(folder));
    for (int i = 0; i < 3; i++)
        touch(folder, others[i]);
    expect_newest(folder, INT64_MAX, NULL);
    for (int i = 0; i < 3; i++)
        touch(folder, steps[i]);
    expect_newest(folder, INT64_MAX, "step-00000010.h5");
    expect_newest(folder, 10, "step-00000003.h5");
    expect_newest(folder, 2, NULL);
    for (int i = 0; i < 6; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, i < 3 ? others[i] : steps[i - 3]);
        assert_int_equal(unlink(path), 0);
    }
    assert_int_equal(rmdir(folder), 0);
}

/* Checkpoints newer than the good one may be worthless: they are not deleted, and no checkpoint that is wanted is
 * deleted because of them. */
static void newer_ones_do_not_count(void **state)
{
    static const struct sh_ckpt_keep keep = {.latest = 2};
    char folder[] = "/tmp/test_checkpoint.XXXXXX", path[64];

    (void)state;
    assert_non_null(mkdtemp(folder));
    for (int step = 1; step <= 5; step++) {
        snprintf(path, sizeof path, "step-%08d.h5", step);
        touch(folder, path);
    }
    assert_int_equal(sh_ckpt_retain(folder, &keep, 4), SH_OK);
    for (int step = 1; step <= 5; step++) {
        snprintf(path, sizeof path, "%s/step-%08d.h5", folder, step);
        assert_int_equal(unlink(path) == 0, step >= 3);
    }
    assert_int_equal(rmdir(folder), 0);
}

/* Runs `child` in its own process; returns its exit status and what it wrote to standard error. */
static int run_child(void (*child)(const char *folder), const char *folder, char text[512])
{
    int ends[2], status;
    ssize_t n;
    pid_t pid;

    assert_int_equal(pipe(ends), 0);
    pid = fork();
    if (pid == 0) {
        dup2(ends[1], STDERR_FILENO);
        child(folder);
        _exit(0);
    }
    close(ends[1]);
    n = read(ends[0], text, 511);
    text[n > 0 ? n : 0] = '\0';
    close(ends[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void try_to_lock(const char *folder)
{
    struct sh_ckpt_lock *lock;

    if (sh_ckpt_lock(folder, &lock) != SH_OK) {
        fprintf(stderr, "%s", sh_error_text());
        _exit(3);
    }
}

static void two_jobs_cannot_have_one_folder(void **state)
{
    char folder[] = "/tmp/test_checkpoint.XXXXXX", text[512], command[100];
    struct sh_ckpt_lock *lock;

    (void)state;
    assert_non_null(mkdtemp(folder));
    setenv("SLURM_JOB_ID", "7", 1);
    setenv("SLURMD_NODENAME", "n2", 1);
    assert_int_equal(sh_ckpt_lock(folder, &lock), SH_OK);
    assert_true(sh_ckpt_lock_held(lock));
    assert_int_equal(run_child(try_to_lock, folder, text), 3);
    assert_non_null(strstr(text, "is held by another job (host "));
    assert_int_equal(sh_ckpt_lock_check(lock, folder), SH_OK);
    setenv("SHERD_LOST_NODES", "n1 n2", 1);
    assert_int_equal(run_child(try_to_lock, folder, text), 0);
    assert_int_equal(sh_ckpt_lock_check(lock, folder), SH_E_COMM);
    unsetenv("SHERD_LOST_NODES");
    sh_ckpt_unlock(lock);
    assert_int_equal(run_child(try_to_lock, folder, text), 0);
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

static void be_late(const char *what)
{
    struct sh_move_deadline *d = sh_move_deadline_start(what, 0.2, 0);

    sh_move_deadline_enter(d, "writing");
    sleep(300);
}

static void wait_for_ever(const char *what)
{
    struct sh_move_deadline *d = sh_move_deadline_start(what, 0.2, 0);

    sh_move_deadline_enter(d, "fsync");
    sh_move_deadline_wait(d);
    sleep(300);
}

static double limit; /* for a process that never waits longer than this for a processor */

static void be_in_time(const char *what)
{
    struct sh_move_deadline *d = sh_move_deadline_start(what, limit, 0);

    sh_move_deadline_enter(d, "writing");
    sh_move_deadline_rest(d);
    usleep((useconds_t)(10e6 * limit));
    sh_move_deadline_enter(d, "fsync");
    sh_move_deadline_stop(d);
}

static void a_stage_has_a_deadline(void **state)
{
    char text[512];

    (void)state;
    assert_int_equal(run_child(be_late, "/ckpt", text), SH_E_COMM);
    assert_non_null(strstr(text, "/ckpt: this rank is stuck, writing takes longer than"));
    assert_int_equal(run_child(wait_for_ever, "/ckpt", text), SH_E_COMM);
    assert_non_null(strstr(text, "other ranks are late, fsync takes longer than"));
    for (limit = 0.2; limit < 30 && run_child(be_in_time, "/ckpt", text) != 0;)
        limit *= 5;
    assert_true(limit < 30);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_rule_keeps_what_it_says),         cmocka_unit_test(the_step_is_in_the_name),
        cmocka_unit_test(the_newest_is_that_of_the_last_step), cmocka_unit_test(newer_ones_do_not_count),
        cmocka_unit_test(two_jobs_cannot_have_one_folder),     cmocka_unit_test(a_stage_has_a_deadline),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
