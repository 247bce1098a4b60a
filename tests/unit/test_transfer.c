/* Transfers past the page cache of ranges that begin and end anywhere, and the threads that share them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "io/checkpoint/file/digest.h"
#include "io/file/direct.h"
#include "io/move/pool.h"
#include "src/base/hash.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BYTES = 5 * SH_FILE_ALIGN + 77, JOBS = 200 };

static const struct {
    int64_t at, end;
} ranges[] = {
    {0, BYTES},                                 /* all, with an end that is not aligned */
    {1, 2},                                     /* within a page */
    {SH_FILE_ALIGN - 3, SH_FILE_ALIGN + 3},     /* across an edge, without a whole page */
    {SH_FILE_ALIGN, 3 * SH_FILE_ALIGN},         /* aligned */
    {SH_FILE_ALIGN + 4, 4 * SH_FILE_ALIGN - 4}, /* a part of a page before and one after */
    {5 * SH_FILE_ALIGN, BYTES},
};

static char *aligned(void)
{
    char *p = aligned_alloc(SH_FILE_ALIGN, (size_t)sh_file_align_up(BYTES) + SH_FILE_ALIGN);

    assert_non_null(p);
    memset(p, 0, (size_t)sh_file_align_up(BYTES) + SH_FILE_ALIGN);
    return p;
}

static void move_range(const struct sh_file_direct *f, char *file, char *buffer, int64_t at, int64_t end)
{
    char *data = buffer + (at - sh_file_align_down(at)), back[BYTES];

    for (int64_t i = at; i < end; i++)
        data[i - at] = file[i] = (char)(i * 7 + end);
    assert_int_equal(sh_file_direct_write(f, buffer, at, end), SH_OK);
    assert_int_equal(pread(f->fd, back, BYTES, 0), BYTES);
    assert_memory_equal(back, file, BYTES); /* and nothing outside the range has changed */
    memset(buffer, 0, (size_t)sh_file_align_up(BYTES));
    assert_int_equal(sh_file_direct_read(f, buffer, at, end), SH_OK);
    assert_memory_equal(data, file + at, (size_t)(end - at));
}

/* With and without O_DIRECT, which the folder's file system may not have. */
static void any_range_comes_back(void **state)
{
    char path[] = "test_transfer.XXXXXX", file[BYTES] = {0}, *buffer = aligned();
    int fd = mkstemp(path);
    struct sh_file_direct f;

    (void)state;
    assert_int_equal(ftruncate(fd, BYTES), 0);
    sh_file_direct_open(path, fd, true, &f);
    for (int cached = 0; cached < 2; cached++) {
        for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
            move_range(&f, file, buffer, ranges[i].at, ranges[i].end);
        sh_file_direct_close(&f);
    }
    assert_int_equal(sh_file_direct_read(&f, buffer, BYTES - 1, BYTES + 1), SH_E_DATA); /* past the end */
    close(fd);
    unlink(path);
    free(buffer);
}

static void another_file_of_that_name_is_left_alone(void **state)
{
    char path[] = "test_transfer.XXXXXX", other[] = "test_transfer.XXXXXX";
    int fd = mkstemp(path), second = mkstemp(other);
    struct sh_file_direct f;

    (void)state;
    sh_file_direct_open(other, fd, true, &f);
    assert_int_equal(f.direct, -1);
    close(fd);
    close(second);
    unlink(path);
    unlink(other);
}

struct work {
    atomic_int done[JOBS];
    int64_t fails; /* jobs from this one on fail */
};

static sh_rc do_job(void *arg, int64_t job, char *buffer)
{
    struct work *w = arg;

    buffer[0] = buffer[99] = (char)job;
    w->done[job]++;
    return job < w->fails ? SH_OK : sh_fail(SH_E_DATA, "job %d", (int)job);
}

static void each_job_is_done_once(void **state)
{
    (void)state;
    for (int threads = 0; threads < 6; threads++) {
        struct work w = {.fails = JOBS};

        assert_int_equal(sh_move_pool_run(JOBS, threads, 100, do_job, &w), SH_OK);
        for (int i = 0; i < JOBS; i++)
            assert_int_equal(w.done[i], 1);
    }
}

/* Whichever thread fails first, the error of the lowest job is reported; the jobs before it are done. */
static void the_lowest_failure_is_told(void **state)
{
    (void)state;
    for (int threads = 1; threads < 6; threads++) {
        struct work w = {.fails = 50};

        assert_int_equal(sh_move_pool_run(JOBS, threads, 100, do_job, &w), SH_E_DATA);
        assert_string_equal(sh_error_text(), "job 50");
        for (int i = 0; i <= 50; i++)
            assert_int_equal(w.done[i], 1);
        assert_int_equal(w.done[JOBS - 1], 0);
        sh_error_clear();
    }
}

/* Computes the definition in doc/checkpoint-format.md, one element at a time. */
static void sums_are_as_defined(void **state)
{
    enum { N = 1003 };
    float data[N];
    uint64_t sum = 0, seed = 12345;

    (void)state;
    for (int i = 0; i < N; i++) {
        uint32_t bits;

        data[i] = (float)(i * i) - 77.5f;
        memcpy(&bits, &data[i], 4);
        sum += sh_mix64(bits ^ ((uint64_t)(i + 4) * 0x9e3779b97f4a7c15u + sh_mix64(seed ^ 2)));
    }
    assert_true(sh_ckpt_digest_part(seed, 2, data, 3, N) == sum);
    assert_true(sh_ckpt_digest_part(seed, 2, data, 3, 500) + sh_ckpt_digest_part(seed, 2, data + 500, 503, N - 500) ==
                sum);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_range_comes_back),  cmocka_unit_test(another_file_of_that_name_is_left_alone),
        cmocka_unit_test(each_job_is_done_once), cmocka_unit_test(the_lowest_failure_is_told),
        cmocka_unit_test(sums_are_as_defined),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
