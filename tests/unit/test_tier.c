/* The scratch file: written data comes back, at any offset and in any number of requests; requests without a defined
 * result are errors; unsuitable folders are refused. Files are made in the folder of the test, on the disk on which the
 * tree is built. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "src/base/mem.h"
#include "src/tier/tier.h"

#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

enum { PAGE = SH_TIER_ALIGN, CELL = (int)(SH_TIER_PART_BYTES / SH_TIER_ALIGN), FILE_PAGES = 6 * CELL };

static char root[] = "tier_XXXXXX";

/* Each test has a file of 24 MiB. */
static struct sh_tier_file *open_file(bool verify)
{
    struct sh_tier_settings s = {.folder = root, .bytes = (int64_t)FILE_PAGES * PAGE, .verify = verify};
    struct sh_tier_file *f = NULL;

    if (sh_tier_open(&s, &f) != SH_OK && strstr(sh_error_text(), "O_DIRECT")) {
        print_message("# skipped: %s\n", sh_error_text());
        skip();
    }
    assert_string_equal(f ? "" : sh_error_text(), "");
    return f;
}

/* Freed with free(). */
static char *pages(int n)
{
    char *memory = aligned_alloc(PAGE, (size_t)n * PAGE);

    assert_non_null(memory);
    memset(memory, 0, (size_t)n * PAGE);
    return memory;
}

/* Numbers that differ from page to page, and from one `version` to the next. */
static void fill(char *memory, int n, int at, int version)
{
    for (int i = 0; i < n * PAGE / 8; i++) {
        uint64_t word = (uint64_t)(at * (PAGE / 8) + i) * 0x9e3779b97f4a7c15u + (uint64_t)version;

        memcpy(memory + i * 8, &word, 8);
    }
}

static void assert_filled(const char *memory, int n, int at, int version)
{
    char *want = pages(n);

    fill(want, n, at, version);
    assert_memory_equal(memory, want, (size_t)n * PAGE);
    free(want);
}

static void write_pages(struct sh_tier_file *f, int at, int n, int version)
{
    char *memory = pages(n);

    fill(memory, n, at, version);
    assert_int_equal(sh_tier_write(f, (int64_t)at * PAGE, memory, (int64_t)n * PAGE), SH_OK);
    free(memory);
}

/* In pages: within a part, up to its end, across one and several ends, the whole file. */
static const struct {
    int at, n;
} extents[] = {
    {0, 1},
    {1, 1},
    {3, 7},
    {CELL - 1, 1},
    {CELL - 1, 2},
    {CELL + 1, 2 * CELL + 5},
    {0, CELL},
    {5, FILE_PAGES - 5},
    {FILE_PAGES - 1, 1},
    {0, FILE_PAGES},
};

static void what_is_written_comes_back(void **state)
{
    (void)state;
    for (int verify = 0; verify < 2; verify++) {
        struct sh_tier_file *f = open_file(verify);
        char *memory = pages(FILE_PAGES);

        for (size_t i = 0; i < sizeof extents / sizeof *extents; i++) {
            write_pages(f, extents[i].at, extents[i].n, (int)i);
            memset(memory, 0, (size_t)FILE_PAGES * PAGE);
            assert_int_equal(sh_tier_read(f, (int64_t)extents[i].at * PAGE, memory, (int64_t)extents[i].n * PAGE),
                             SH_OK);
            assert_filled(memory, extents[i].n, extents[i].at, (int)i);
        }
        free(memory);
        sh_tier_close(f);
    }
}

/* 256 extents of 24 pages, all under way at once, waited for in another order; twice, so that sums are replaced. */
static void many_are_under_way_at_once(void **state)
{
    (void)state;
    enum { N = 256, EACH = 24 };
    struct sh_tier_file *f = open_file(true);
    char *memory = pages(N * EACH);
    int64_t ticket[N];

    for (int version = 0; version < 2; version++) {
        for (int i = 0; i < N; i++) {
            int k = i * 77 % N;

            fill(memory + (size_t)k * EACH * PAGE, EACH, k * EACH, version);
            assert_int_equal(sh_tier_start_write(f, (int64_t)k * EACH * PAGE, memory + (size_t)k * EACH * PAGE,
                                                 EACH * PAGE, &ticket[k]),
                             SH_OK);
        }
        for (int i = N - 1; i >= 0; i--)
            assert_int_equal(sh_tier_wait(f, ticket[i * 5 % N]), SH_OK);
        memset(memory, 0, (size_t)N * EACH * PAGE);
        for (int i = 0; i < N; i++)
            assert_int_equal(sh_tier_start_read(f, (int64_t)i * EACH * PAGE, memory + (size_t)i * EACH * PAGE,
                                                EACH * PAGE, &ticket[i]),
                             SH_OK);
        for (int i = 0; i < N; i++)
            assert_int_equal(sh_tier_wait(f, ticket[i]), SH_OK);
        assert_filled(memory, N * EACH, 0, version);
    }
    free(memory);
    sh_tier_close(f);
}

/* {at, n} in pages, of a file in which [2, 6), [6, 10) and [CELL - 2, CELL + 2) were written. */
static const struct {
    int at, n;
    const char *refused; /* part of the text; NULL: fine */
} reads[] = {
    {2, 4, NULL},
    {2, 8, NULL}, /* two adjacent ones */
    {CELL - 2, 4, NULL},
    {CELL - 2, 2, NULL}, /* a write is cut there */
    {CELL, 2, NULL},
    {2, 3, "no write starts at 8192"},
    {3, 3, "no write starts at 12288"},
    {2, 9, "no write starts at 40960"},
    {0, 1, "no write starts at 0"},
    {CELL - 1, 2, "no write starts"},
};

static void only_what_was_written_is_read(void **state)
{
    (void)state;
    for (int verify = 0; verify < 2; verify++) {
        struct sh_tier_file *f = open_file(verify);
        char *memory = pages(16);

        write_pages(f, 2, 4, 1);
        write_pages(f, 6, 4, 1);
        write_pages(f, CELL - 2, 4, 1);
        for (size_t i = 0; i < sizeof reads / sizeof *reads; i++) {
            sh_rc rc = sh_tier_read(f, (int64_t)reads[i].at * PAGE, memory, (int64_t)reads[i].n * PAGE);

            assert_int_equal(rc, reads[i].refused ? SH_E_BUG : SH_OK);
            if (reads[i].refused)
                assert_non_null(strstr(sh_error_text(), reads[i].refused));
            else
                assert_filled(memory, reads[i].n, reads[i].at, 1);
        }
        /* After a write over the middle of an older extent, the older one cannot be read at all. */
        write_pages(f, 3, 1, 2);
        assert_int_equal(sh_tier_read(f, 2 * PAGE, memory, PAGE), SH_E_BUG);
        assert_int_equal(sh_tier_read(f, 3 * PAGE, memory, PAGE), SH_OK);
        free(memory);
        sh_tier_close(f);
    }
}

/* The second request, in pages, started while the first one ([4, 8)) has not been waited for. */
static const struct {
    bool first_writes, second_writes;
    int at, n;
    bool fine;
} pairs[] = {
    {true, true, 7, 2, false}, {true, true, 0, 5, false}, {true, false, 4, 4, false}, {false, true, 5, 1, false},
    {true, true, 8, 4, true},  {true, true, 0, 4, true},  {false, false, 4, 4, true}, {false, true, 0, 4, true},
};

static sh_rc start(struct sh_tier_file *f, bool writes, int at, int n, char *memory, int64_t *ticket)
{
    if (writes)
        return sh_tier_start_write(f, (int64_t)at * PAGE, memory, (int64_t)n * PAGE, ticket);
    return sh_tier_start_read(f, (int64_t)at * PAGE, memory, (int64_t)n * PAGE, ticket);
}

static void transfers_of_one_place_wait_for_each_other(void **state)
{
    (void)state;
    struct sh_tier_file *f = open_file(true);
    char *a = pages(4), *b = pages(5);

    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        int64_t first = 0, second = 0;

        write_pages(f, 4, 4, 1);
        assert_int_equal(start(f, pairs[i].first_writes, 4, 4, a, &first), SH_OK);
        assert_int_equal(start(f, pairs[i].second_writes, pairs[i].at, pairs[i].n, b, &second),
                         pairs[i].fine ? SH_OK : SH_E_BUG);
        if (!pairs[i].fine)
            assert_non_null(strstr(sh_error_text(), "is under way"));
        assert_int_equal(sh_tier_wait(f, first), SH_OK);
        assert_int_equal(sh_tier_wait(f, first), SH_E_BUG); /* spent */
        if (pairs[i].fine)
            assert_int_equal(sh_tier_wait(f, second), SH_OK);
    }
    assert_int_equal(sh_tier_wait(f, 1 << 20), SH_E_BUG);
    free(a);
    free(b);
    sh_tier_close(f);
}

static void what_is_not_whole_pages_is_refused(void **state)
{
    (void)state;
    struct sh_tier_file *f = open_file(true);
    char *memory = pages(2);
    const struct {
        int64_t at, bytes;
        int shift;
    } bad[] = {{512, PAGE, 0},
               {0, 512, 0},
               {0, PAGE, 512},
               {0, 0, 0},
               {-PAGE, PAGE, 0},
               {0, -PAGE, 0},
               {(int64_t)FILE_PAGES * PAGE, PAGE, 0},
               {(int64_t)(FILE_PAGES - 1) * PAGE, 2 * PAGE, 0}};

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(sh_tier_write(f, bad[i].at, memory + bad[i].shift, bad[i].bytes), SH_E_BUG);
    assert_int_equal(sh_tier_write(f, (int64_t)(FILE_PAGES - 2) * PAGE, memory, 2 * PAGE), SH_OK);
    free(memory);
    sh_tier_close(f);
}

static void usage_counts_bytes_and_waiting(void **state)
{
    (void)state;
    struct sh_tier_file *f = open_file(true);
    struct sh_tier_usage u;
    char *memory = pages(3);

    write_pages(f, 0, 3, 1);
    write_pages(f, 9, 2 * CELL, 1);
    assert_int_equal(sh_tier_read(f, 0, memory, 3 * PAGE), SH_OK);
    assert_int_equal(sh_tier_read(f, 0, memory, 5 * PAGE), SH_E_BUG);
    sh_tier_usage(f, &u);
    assert_int_equal(u.written_bytes, (3 + 2 * CELL) * PAGE);
    assert_int_equal(u.read_bytes, 3 * PAGE);
    assert_true(u.waited_ns > 0);
    free(memory);
    sh_tier_close(f);
}

/* Requests that were started and not waited for are finished or dropped, and their memory is not used afterwards. */
static void close_ends_what_is_under_way(void **state)
{
    (void)state;
    for (int round = 0; round < 8; round++) {
        struct sh_tier_file *f = open_file(true);
        char *memory = pages(FILE_PAGES);
        int64_t ticket;

        for (int i = 0; i < 6; i++)
            assert_int_equal(sh_tier_start_write(f, i * SH_TIER_PART_BYTES, memory + i * SH_TIER_PART_BYTES,
                                                 SH_TIER_PART_BYTES, &ticket),
                             SH_OK);
        sh_tier_close(f);
        free(memory);
    }
    sh_tier_close(NULL);
}

struct client {
    struct sh_tier_file *f;
    int number;
    bool fine;
};

/* Each thread has its own extents, which begin and end within parts that other threads use, too. */
static void *work(void *arg)
{
    enum { EACH = CELL / 3 };
    struct client *c = arg;
    int64_t at = (int64_t)c->number * EACH * PAGE;
    char *memory = pages(EACH), *want = pages(EACH);

    c->fine = true;
    for (int version = 0; version < 20; version++) {
        fill(want, EACH, c->number, version);
        c->fine = c->fine && sh_tier_write(c->f, at, want, EACH * PAGE) == SH_OK &&
                  sh_tier_read(c->f, at, memory, EACH * PAGE) == SH_OK && !memcmp(memory, want, EACH * PAGE);
    }
    free(memory);
    free(want);
    return NULL;
}

static void several_threads_use_one_file(void **state)
{
    (void)state;
    enum { CLIENTS = 8 };
    struct sh_tier_file *f = open_file(true);
    struct client clients[CLIENTS];
    pthread_t threads[CLIENTS];
    int fine = 0;

    for (int i = 0; i < CLIENTS; i++) {
        clients[i] = (struct client){.f = f, .number = i};
        assert_int_equal(pthread_create(&threads[i], NULL, work, &clients[i]), 0);
    }
    for (int i = 0; i < CLIENTS; i++) {
        pthread_join(threads[i], NULL);
        fine += clients[i].fine;
    }
    sh_tier_close(f);
    assert_int_equal(fine, CLIENTS);
}

/* Whether the folder of the test holds nothing but `.` and `..`. */
static bool is_empty(void)
{
    DIR *d = opendir(root);
    int n = 0;

    while (readdir(d))
        n++;
    closedir(d);
    return n == 2;
}

/* Find the scratch file among the open files of this process. */
static bool find_scratch(struct stat *st)
{
    char path[64], name[512], *whole = realpath(root, NULL);
    bool found = false;

    for (int fd = 3; fd < 64 && !found; fd++) {
        ssize_t n;

        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        n = readlink(path, name, sizeof name - 1);
        name[n > 0 ? n : 0] = '\0';
        found = n > 0 && strstr(name, whole) && fstat(fd, st) == 0 && S_ISREG(st->st_mode);
    }
    free(whole);
    return found;
}

static void the_file_has_no_name_and_all_of_its_space(void **state)
{
    (void)state;
    struct sh_tier_file *f = open_file(true);
    struct stat st;

    assert_true(is_empty());
    assert_true(find_scratch(&st));
    assert_int_equal(st.st_nlink, 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_true(st.st_blocks * 512 >= (int64_t)FILE_PAGES * PAGE);
    sh_tier_close(f);
    assert_false(find_scratch(&st));
}

/* Return the signals that a thread blocks, once it sleeps: a thread that has not run yet blocks them all. */
static unsigned long long blocked_signals(const char *thread)
{
    unsigned long long blocked = 0;
    char path[300], line[256], state = 0;

    snprintf(path, sizeof path, "/proc/self/task/%s/status", thread);
    while (state != 'S') {
        FILE *in = fopen(path, "r");

        assert_non_null(in);
        while (fgets(line, sizeof line, in)) {
            sscanf(line, "State: %c", &state);
            sscanf(line, "SigBlk: %llx", &blocked);
        }
        fclose(in);
        if (state != 'S')
            sched_yield();
    }
    return blocked;
}

/* The job's handlers belong to its main thread. */
static void threads_take_no_signals(void **state)
{
    (void)state;
    struct sh_tier_file *f = open_file(true);
    DIR *tasks = opendir("/proc/self/task");
    int deaf = 0;

    for (struct dirent *e; (e = readdir(tasks));)
        if (e->d_name[0] != '.' && atoi(e->d_name) != getpid())
            deaf += (blocked_signals(e->d_name) & 0x4003) == 0x4003; /* SIGHUP, SIGINT, SIGTERM */
    closedir(tasks);
    sh_tier_close(f);
    assert_true(deaf >= SH_TIER_THREADS);
}

static void folders_that_are_no_place_are_refused(void **state)
{
    (void)state;
    char *file = sh_strfmt("%s/file", root);
    FILE *out = fopen(file, "w");
    const struct {
        const char *folder;
        int64_t need;
        sh_rc rc;
        const char *text;
    } cases[] = {
        {"no/such", 0, SH_E_DATA, "no/such: No such file or directory; create the folder"},
        {file, 0, SH_E_DATA, "is not a folder"},
        {root, INT64_MAX / 2, SH_E_DATA, "this node needs 4611686018427387903 bytes there, and "},
        {"/proc", 0, SH_E_DATA, "create a scratch file in /proc: "},
        {"/proc", 1, SH_E_DATA, "this node needs 1 bytes there, and 0 are free"},
    };

    assert_non_null(out);
    fclose(out);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(sh_tier_check(cases[i].folder, cases[i].need, true), cases[i].rc);
        if (!strstr(sh_error_text(), cases[i].text))
            fail_msg("%s: %s", cases[i].folder, sh_error_text());
        assert_null(strchr(sh_error_text(), '\n'));
    }
    unlink(file);
    free(file);
    sh_tier_close(open_file(false)); /* skips if this folder itself is unsuitable */
    assert_int_equal(sh_tier_check(root, (int64_t)FILE_PAGES * PAGE, true), SH_OK);
    assert_true(is_empty());
}

static void memory_is_no_place_below_memory(void **state)
{
    (void)state;
    struct statfs st;

    if (statfs("/dev/shm", &st) != 0 || st.f_type != 0x01021994) {
        print_message("# skipped: /dev/shm is no tmpfs\n");
        skip();
    }
    assert_int_equal(sh_tier_check("/dev/shm", 0, true), SH_E_USAGE);
    assert_string_equal(sh_error_text(),
                        "/dev/shm is on tmpfs, which is memory itself; choose a folder on a local disk");
    assert_null(sh_tier_network("/dev/shm"));
}

/* Replaces the C library's function: pretends that a folder is on a file system that this machine does not have. */
static uint32_t pretended;

int statfs(const char *path, struct statfs *st)
{
    int status = (int)syscall(SYS_statfs, path, st);

    if (pretended)
        st->f_type = (int32_t)pretended; /* numbers from 2^31 on may be sign-extended */
    return status;
}

static void networks_are_taken_when_allowed(void **state)
{
    (void)state;
    static const struct {
        uint32_t number;
        const char *name;
    } kinds[] = {{0x6969, "NFS"},      {0x0bd00bd0, "Lustre"}, {0x47504653, "GPFS"},
                 {0xff534d42, "CIFS"}, {0xfe534d42, "SMB"},    {0x00c36400, "Ceph"},
                 {0x01021997, "9P"},   {0x19830326, "BeeGFS"}, {0x65735546, "FUSE"}};

    sh_tier_close(open_file(false));
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        char *want =
            sh_strfmt("%s is on %s, which is or may be a network file system; choose a folder on a local disk, or set "
                      "offload.allow_network=true",
                      root, kinds[i].name);

        pretended = kinds[i].number;
        assert_int_equal(sh_tier_check(root, 0, false), SH_E_USAGE);
        assert_string_equal(sh_error_text(), want);
        assert_string_equal(sh_tier_network(root), kinds[i].name);
        assert_int_equal(sh_tier_check(root, 0, true), SH_OK);
        free(want);
    }
    pretended = 0x858458f6;
    assert_int_equal(sh_tier_check(root, 0, true), SH_E_USAGE);
    assert_non_null(strstr(sh_error_text(), "ramfs, which is memory itself"));
    assert_null(sh_tier_network(root));
    pretended = 0xef53;
    assert_int_equal(sh_tier_check(root, 0, false), SH_OK);
    pretended = 0;
}

static void a_limit_on_files_is_named(void **state)
{
    (void)state;
    struct rlimit before, small;
    struct sh_tier_settings s = {.folder = root, .bytes = (int64_t)FILE_PAGES * PAGE};
    struct sh_tier_file *f = NULL;
    sh_rc rc;

    sh_tier_close(open_file(false));
    getrlimit(RLIMIT_FSIZE, &before);
    small = before;
    small.rlim_cur = (rlim_t)(FILE_PAGES - 1) * PAGE;
    setrlimit(RLIMIT_FSIZE, &small);
    rc = sh_tier_open(&s, &f);
    setrlimit(RLIMIT_FSIZE, &before);
    assert_int_equal(rc, SH_E_DATA);
    assert_non_null(strstr(sh_error_text(), "ulimit -f"));
    assert_null(f);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_comes_back),
        cmocka_unit_test(many_are_under_way_at_once),
        cmocka_unit_test(only_what_was_written_is_read),
        cmocka_unit_test(transfers_of_one_place_wait_for_each_other),
        cmocka_unit_test(what_is_not_whole_pages_is_refused),
        cmocka_unit_test(usage_counts_bytes_and_waiting),
        cmocka_unit_test(close_ends_what_is_under_way),
        cmocka_unit_test(several_threads_use_one_file),
        cmocka_unit_test(the_file_has_no_name_and_all_of_its_space),
        cmocka_unit_test(threads_take_no_signals),
        cmocka_unit_test(folders_that_are_no_place_are_refused),
        cmocka_unit_test(memory_is_no_place_below_memory),
        cmocka_unit_test(networks_are_taken_when_allowed),
        cmocka_unit_test(a_limit_on_files_is_named),
    };
    return cmocka_run_group_tests(tests, make_root, delete_root);
}
