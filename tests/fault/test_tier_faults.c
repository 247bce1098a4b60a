/* A scratch file on failing storage: the shim makes each call of each kind fail in turn. A failure is one error of
 * class 3 that names the folder; silent errors of the storage show in the checksums; nothing hangs, and nothing is left
 * in the folder. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "src/base/mem.h"
#include "src/tier/tier.h"
#include "tests/fault/shim.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Three extents in a file of 12 MiB, which is cut into parts every 4 MiB: the second and third extent have two parts
 * each. */
enum { PAGE = SH_TIER_ALIGN, MIB = 1 << 20, BYTES = 12 * MIB, EXTENTS = 3, WRITES = 5, READS = WRITES };

static char root[] = "tier_XXXXXX";

/* clang-format off */
static const struct extent {
    int64_t at, bytes;
} extents[EXTENTS] = {{0, 16 * PAGE}, {4 * MIB - 8 * PAGE, 17 * PAGE}, {8 * MIB - PAGE, 9 * PAGE}};
/* clang-format on */

struct run {
    sh_rc rc; /* of the first call that failed */
    char text[512];
    bool same; /* everything came back as it was written */
};

static void note(struct run *r, sh_rc rc)
{
    if (rc == SH_OK || r->rc != SH_OK)
        return;
    r->rc = rc;
    snprintf(r->text, sizeof r->text, "%s", sh_error_text());
}

/* Start all requests, then wait for all: every request that was started is waited for. */
static void move_all(struct sh_tier_file *f, bool writing, char *memory, struct run *r)
{
    int64_t ticket[EXTENTS] = {0};

    for (int i = 0; i < EXTENTS && r->rc == SH_OK; i++) {
        char *at = memory + extents[i].at;

        note(r, writing ? sh_tier_start_write(f, extents[i].at, at, extents[i].bytes, &ticket[i])
                        : sh_tier_start_read(f, extents[i].at, at, extents[i].bytes, &ticket[i]));
    }
    for (int i = 0; i < EXTENTS; i++)
        if (ticket[i])
            note(r, sh_tier_wait(f, ticket[i]));
}

/* Uses one thread, so the n-th call is always the same one. */
static struct run run_file(bool verify)
{
    struct sh_tier_settings s = {.folder = root, .bytes = BYTES, .threads = 1, .verify = verify};
    char *out = aligned_alloc(PAGE, BYTES), *back = aligned_alloc(PAGE, BYTES);
    struct run r = {.rc = SH_OK};
    struct sh_tier_file *f = NULL;

    for (int i = 0; i < EXTENTS; i++)
        for (int64_t at = extents[i].at; at < extents[i].at + extents[i].bytes; at++) {
            out[at] = (char)((uint64_t)at * 2654435761u >> 24);
            back[at] = 0;
        }
    note(&r, sh_tier_open(&s, &f));
    if (f) {
        move_all(f, true, out, &r);
        if (r.rc == SH_OK)
            move_all(f, false, back, &r);
        r.same = r.rc == SH_OK;
        for (int i = 0; i < EXTENTS; i++)
            r.same = r.same && !memcmp(out + extents[i].at, back + extents[i].at, (size_t)extents[i].bytes);
        sh_tier_close(f);
    }
    free(out);
    free(back);
    return r;
}

static struct run run_plan(bool verify, struct shim_plan plan)
{
    struct run r;

    shim_start(root, NULL, plan);
    r = run_file(verify);
    shim_stop();
    return r;
}

static bool is_empty(void)
{
    DIR *d = opendir(root);
    int n = 0;

    while (readdir(d))
        n++;
    closedir(d);
    return n == 2;
}

static void without_a_fault_all_comes_back(void **state)
{
    (void)state;
    struct run r = run_plan(true, (struct shim_plan){.fault = SHIM_NOTHING});

    assert_string_equal(r.text, "");
    assert_true(r.same);
    assert_int_equal(shim_count(SHIM_OPEN), 1);
    assert_int_equal(shim_count(SHIM_RESERVE), 1);
    assert_int_equal(shim_count(SHIM_WRITE), WRITES);
    assert_int_equal(shim_count(SHIM_READ), READS);
}

static const struct {
    enum shim_call call;
    int calls, error;
    const char *does;
} failures[] = {
    {SHIM_RESERVE, 1, ENOSPC, "reserve 12582912 bytes for a scratch file in "},
    {SHIM_RESERVE, 1, EDQUOT, "reserve 12582912 bytes for a scratch file in "},
    {SHIM_WRITE, WRITES, EIO, ": write "},
    {SHIM_WRITE, WRITES, ENOSPC, ": write "},
    {SHIM_READ, READS, EIO, ": read "},
    {SHIM_READ, READS, EINVAL, ": read "},
};

static void a_call_that_fails_is_one_error(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof failures / sizeof *failures; i++)
        for (int n = 1; n <= failures[i].calls; n++)
            for (int lasting = 0; lasting < 2; lasting++) {
                struct run r = run_plan(true, (struct shim_plan){.call = failures[i].call,
                                                                 .number = n,
                                                                 .fault = SHIM_FAIL,
                                                                 .error = failures[i].error,
                                                                 .lasting = lasting});

                assert_true(shim_met());
                assert_int_equal(r.rc, SH_E_DATA);
                if (!strstr(r.text, failures[i].does) || !strstr(r.text, strerror(failures[i].error)) ||
                    !strstr(r.text, root) || strchr(r.text, '\n'))
                    fail_msg("%s %d: %s", shim_call_name[failures[i].call], n, r.text);
                assert_true(is_empty());
            }
}

/* The second part of the second extent is the third write of the file. */
static void the_place_of_a_failure_is_named(void **state)
{
    (void)state;
    char *want = sh_strfmt("scratch file in %s: write 36864 bytes at byte 4194304: %s", root, strerror(EIO));
    struct run r =
        run_plan(true, (struct shim_plan){.call = SHIM_WRITE, .number = 3, .fault = SHIM_FAIL, .error = EIO});

    assert_string_equal(r.text, want);
    free(want);
}

/* A call that was interrupted, or moved only a part, is continued from there. */
static void a_call_that_did_a_part_goes_on(void **state)
{
    (void)state;
    const struct shim_plan kinds[] = {
        {.fault = SHIM_SHORT}, {.fault = SHIM_FAIL, .error = EINTR}, {.fault = SHIM_DELAY}};

    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (int n = 1; n <= 2 * WRITES; n++) {
            struct shim_plan plan = kinds[k];
            struct run r;

            plan.call = n <= WRITES ? SHIM_WRITE : SHIM_READ;
            plan.number = n <= WRITES ? n : n - WRITES;
            r = run_plan(true, plan);
            assert_true(shim_met());
            assert_string_equal(r.text, "");
            assert_true(r.same);
        }
}

/* A disk that moves half of what is asked for, every time, until less than a page is left and the request fails. */
static void a_disk_that_never_moves_a_page_is_given_up(void **state)
{
    (void)state;
    for (int reading = 0; reading < 2; reading++) {
        struct run r = run_plan(
            true, (struct shim_plan){
                      .call = reading ? SHIM_READ : SHIM_WRITE, .number = 2, .fault = SHIM_SHORT, .lasting = true});

        assert_int_equal(r.rc, SH_E_DATA);
        assert_non_null(strstr(r.text, "less than a page"));
    }
}

/* A bit changed on the way there or back, or a write that never happened. Without checksums this goes unnoticed, which
 * is why there are checksums. */
static void silent_damage_is_found_by_the_sums(void **state)
{
    (void)state;
    static const struct {
        enum shim_call call;
        enum shim_fault fault;
    } kinds[] = {{SHIM_WRITE, SHIM_FLIP}, {SHIM_READ, SHIM_FLIP}, {SHIM_WRITE, SHIM_LOSE}};
    static const int64_t begins[WRITES] = {0, 4 * MIB - 8 * PAGE, 4 * MIB, 8 * MIB - PAGE, 8 * MIB};

    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (int n = 1; n <= WRITES; n++) {
            struct shim_plan plan = {.call = kinds[k].call, .number = n, .fault = kinds[k].fault};
            char *place = sh_strfmt("scratch file in %s: damaged at byte %lld: ", root, (long long)begins[n - 1]);
            struct run r = run_plan(true, plan);

            assert_int_equal(r.rc, SH_E_DATA);
            if (!strstr(r.text, place))
                fail_msg("%s %d: %s", shim_call_name[plan.call], n, r.text);
            free(place);
            r = run_plan(false, plan);
            assert_int_equal(r.rc, SH_OK);
            assert_false(r.same);
        }
}

/* On a file system without O_TMPFILE, the file is created and unlinked at once. */
static void a_file_with_a_name_loses_it_at_once(void **state)
{
    (void)state;
    static const int errors[] = {EOPNOTSUPP, EISDIR, ENOENT};

    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        struct shim_plan plan = {.call = SHIM_OPEN, .number = 1, .fault = SHIM_FAIL, .error = errors[i]};
        struct run r = run_plan(true, plan);

        assert_string_equal(r.text, "");
        assert_true(r.same);
        assert_int_equal(shim_count(SHIM_OPEN), 2);
        assert_int_equal(shim_count(SHIM_UNLINK), 1);
        assert_true(is_empty());
        plan.lasting = true;
        r = run_plan(true, plan);
        assert_int_equal(r.rc, SH_E_DATA);
        assert_non_null(strstr(r.text, "create a scratch file in "));
    }
}

/* Without fallocate the free space is checked, and the file grows as it is written. */
static void a_file_system_that_cannot_reserve_will_do(void **state)
{
    (void)state;
    struct run r =
        run_plan(true, (struct shim_plan){.call = SHIM_RESERVE, .number = 1, .fault = SHIM_FAIL, .error = EOPNOTSUPP});

    assert_string_equal(r.text, "");
    assert_true(r.same);
}

/* A failed request does not prevent others from completing. */
static void other_requests_go_on(void **state)
{
    (void)state;
    struct sh_tier_settings s = {.folder = root, .bytes = BYTES, .verify = true};
    struct shim_plan plan = {.call = SHIM_WRITE, .number = 1, .fault = SHIM_FAIL, .error = EIO};
    char *memory = aligned_alloc(PAGE, BYTES);
    struct sh_tier_file *f;
    int64_t ticket[3];
    int failed = 0;

    memset(memory, 7, BYTES);
    shim_start(root, NULL, plan);
    assert_int_equal(sh_tier_open(&s, &f), SH_OK);
    for (int i = 0; i < 3; i++)
        assert_int_equal(sh_tier_start_write(f, i * (4ll << 20), memory, 4 << 20, &ticket[i]), SH_OK);
    for (int i = 0; i < 3; i++) {
        sh_rc rc = sh_tier_wait(f, ticket[i]);

        failed += rc != SH_OK;
        /* An extent whose write failed cannot be read; the others can. */
        assert_int_equal(sh_tier_read(f, i * (4ll << 20), memory, 4 << 20), rc == SH_OK ? SH_OK : SH_E_BUG);
    }
    assert_int_equal(failed, 1);
    assert_int_equal(sh_tier_write(f, 0, memory, BYTES), SH_OK);
    shim_stop();
    sh_tier_close(f);
    free(memory);
}

/* SIGKILL in place of each call. */
static void a_kill_leaves_nothing(void **state)
{
    (void)state;
    int calls = 2 + WRITES + READS;

    for (int n = 1; n <= calls; n++) {
        int status;
        pid_t child = fork();

        if (child == 0) {
            run_plan(true, (struct shim_plan){.call = SHIM_ANY, .number = n, .fault = SHIM_KILL});
            _exit(0);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        assert_true(is_empty());
    }
}

static int make_root(void **state)
{
    (void)state;
    return mkdtemp(root) ? 0 : -1;
}

static int delete_root(void **state)
{
    (void)state;
    return rmdir(root);
}

/* The disk on which the tree is built may be unsuitable for a scratch file. */
static bool is_a_place(void)
{
    struct sh_tier_settings s = {.folder = ".", .bytes = PAGE};
    struct sh_tier_file *f = NULL;
    sh_rc rc = sh_tier_open(&s, &f);

    sh_tier_close(f);
    if (rc != SH_OK)
        printf("%s\n", sh_error_text());
    return rc == SH_OK || !strstr(sh_error_text(), "O_DIRECT");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_a_fault_all_comes_back),
        cmocka_unit_test(a_call_that_fails_is_one_error),
        cmocka_unit_test(the_place_of_a_failure_is_named),
        cmocka_unit_test(a_call_that_did_a_part_goes_on),
        cmocka_unit_test(a_disk_that_never_moves_a_page_is_given_up),
        cmocka_unit_test(silent_damage_is_found_by_the_sums),
        cmocka_unit_test(a_file_with_a_name_loses_it_at_once),
        cmocka_unit_test(a_file_system_that_cannot_reserve_will_do),
        cmocka_unit_test(other_requests_go_on),
        cmocka_unit_test(a_kill_leaves_nothing),
    };
    if (!is_a_place())
        return 77;
    return cmocka_run_group_tests(tests, make_root, delete_root);
}
