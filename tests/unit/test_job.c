/* Judging information from outside: the end of the job, odd hashes, slow ranks; recorded signals; the record of
 * a run. */
#include "src/base/file.h"
#include "src/job/job.h"

#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static void the_end_is_read_from_the_environment(void **state)
{
    static const struct {
        const char *slurm, *own;
        sh_rc rc;
        double end;
    } table[] = {
        {NULL, NULL, SH_OK, 0},
        {"1700000000", NULL, SH_OK, 1700000000},
        {NULL, "1700000000", SH_OK, 1700000000},
        {"", "", SH_OK, 0},
        {"1700000000", "1600000000", SH_OK, 1600000000},
        {"0", NULL, SH_OK, 0},
        {"soon", NULL, SH_E_USAGE, -7},
        {NULL, "1e999", SH_E_USAGE, -7},
        {NULL, "-5", SH_E_USAGE, -7},
        {NULL, "12 h", SH_E_USAGE, -7},
        {NULL, "nan", SH_E_USAGE, -7},
    };

    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct sh_job_limit l = {.end = -7};

        table[i].slurm ? setenv("SLURM_JOB_END_TIME", table[i].slurm, 1) : unsetenv("SLURM_JOB_END_TIME");
        table[i].own ? setenv("SHERD_END_TIME", table[i].own, 1) : unsetenv("SHERD_END_TIME");
        if (sh_job_limit_read(30, 5, &l) != table[i].rc || l.end != table[i].end)
            fail_msg("row %d: end %g", (int)i, l.end);
    }
}

static void the_margin_covers_a_step_and_a_save(void **state)
{
    struct sh_job_limit l = {.end = 1000, .spare = 30, .save = 10, .last_save = -1};

    (void)state;
    assert_true(sh_job_limit_margin(&l, 1) == 45); /* the guess */
    sh_job_limit_save(&l, 4);
    assert_true(sh_job_limit_margin(&l, 1) == 36);
    sh_job_limit_save(&l, 8);
    sh_job_limit_save(&l, 2);
    assert_true(sh_job_limit_margin(&l, 1) == 42); /* the longer of the last two */
    assert_true(sh_job_limit_margin(&l, 2) == 54);
    sh_job_limit_step(&l, 6);
    assert_true(sh_job_limit_margin(&l, 1) == 51);
    assert_false(sh_job_limit_near(&l, 948, 1));
    assert_true(sh_job_limit_near(&l, 949, 1));
    l.end = 0;
    assert_false(sh_job_limit_near(&l, 1e10, 1));
}

/* A long step counts however many short steps ran before it. */
static void a_long_step_counts_for_a_while(void **state)
{
    (void)state;
    for (int before = 0; before < SH_JOB_STEPS_SEEN; before++) {
        struct sh_job_limit l = {.end = 1000};
        int seen = 0;

        for (int i = 0; i < before; i++)
            sh_job_limit_step(&l, 2);
        sh_job_limit_step(&l, 100);
        for (; sh_job_limit_margin(&l, 1) == 150; seen++)
            sh_job_limit_step(&l, 2);
        assert_in_range(seen, SH_JOB_STEPS_SEEN, 2 * SH_JOB_STEPS_SEEN);
        assert_true(sh_job_limit_margin(&l, 1) == 3);
    }
}

static void the_odd_ones_are_found(void **state)
{
    static const struct {
        int n;
        uint64_t hash[7];
        const char *odd;
    } table[] = {
        {1, {5}, "."},
        {2, {5, 5}, ".."},
        {2, {5, 6}, "xx"},
        {3, {5, 5, 6}, "..x"},
        {3, {6, 5, 5}, "x.."},
        {3, {5, 6, 5}, ".x."},
        {3, {1, 2, 3}, "xxx"},
        {4, {1, 1, 2, 2}, "xxxx"},
        {4, {1, 2, 1, 1}, ".x.."},
        {5, {9, 1, 9, 2, 9}, ".x.x."},
        {6, {0, 0, 0, 1, 1, 1}, "xxxxxx"},
        {7, {1, 2, 3, 9, 9, 9, 9}, "xxx...."},
        {4, {0, 7, 7, 7}, "x..."},
    };

    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        bool odd[7];
        int n = sh_job_outliers(table[i].n, table[i].hash, odd), expected = 0;

        for (int k = 0; k < table[i].n; k++) {
            expected += table[i].odd[k] == 'x';
            if (odd[k] != (table[i].odd[k] == 'x'))
                fail_msg("row %d, replica %d", (int)i, k);
        }
        assert_int_equal(n, expected);
    }
}

enum { RANKS = 24 };

/* What a rank finds on the data of a rank in a round: of a broken one, something else for all data, or each time. */
static long long found(int rank, int data, int round, int broken, bool unstable)
{
    return data + (rank == broken ? 1000 + (unstable ? round : 0) : 0);
}

static int blame(const struct sh_job_ring *ring, int broken, bool unstable, bool *blamed)
{
    long long sums[SH_JOB_ROUNDS * RANKS];
    bool said;
    int n;

    for (int i = 0; i < ring->n; i++) {
        const int data[SH_JOB_ROUNDS] = {i, ring->next[i], ring->third[i], i, ring->next[i]};

        for (int k = 0; k < SH_JOB_ROUNDS; k++)
            sums[k * ring->n + i] = found(i, data[k], k, broken, unstable);
    }
    assert_true(sh_job_replay_differs(ring, sums) == (broken >= 0));
    n = sh_job_replay_blame(ring, sums, blamed, &said);
    assert_true(said == unstable);
    return n;
}

/* Of three and more ranks the broken one is named, of two both, unless it is at odds with itself. */
static void a_broken_rank_is_named(const struct sh_job_ring *ring, const long long *kind)
{
    for (int broken = 0; broken < ring->n; broken++)
        for (int unstable = 0; unstable < 2; unstable++) {
            bool blamed[RANKS];
            int alike = 0, n = blame(ring, broken, unstable, blamed);

            for (int i = 0; i < ring->n; i++)
                alike += kind[i] == kind[broken];
            assert_true(blamed[broken]);
            assert_int_equal(n, alike > 2 || unstable ? 1 : 2);
        }
}

/* Nodes of `each` ranks, dealt to them in blocks or by turns, with processors of two kinds. */
static void ranks_on_other_nodes_are_compared(void **state)
{
    (void)state;
    for (int n = 2; n <= RANKS; n++)
        for (int each = 1; each <= n; each++)
            for (int way = 0; way < 4; way++) {
                long long kind[RANKS], node[RANKS];
                int nodes = (n + each - 1) / each;
                struct sh_job_ring ring;
                bool blamed[RANKS];

                for (int i = 0; i < n; i++) {
                    node[i] = way & 1 ? i % nodes : i / each;
                    kind[i] = way & 2 && n > 3 ? i * 2 / n : 7;
                }
                sh_job_ring_make(n, kind, node, &ring);
                for (int i = 0; i < n; i++)
                    assert_true(ring.next[i] != i && kind[ring.next[i]] == kind[i]);
                for (int i = 0; i < n && n % each == 0 && nodes > 1 && kind[n - 1] == kind[0]; i++)
                    assert_true(node[ring.next[i]] != node[i]);
                assert_int_equal(blame(&ring, -1, false, blamed), 0);
                a_broken_rank_is_named(&ring, kind);
                sh_job_ring_free(&ring);
            }
}

static void a_lone_kind_has_no_other(void **state)
{
    const long long kind[] = {5, 6, 5}, node[] = {0, 0, 1};
    struct sh_job_ring ring;

    (void)state;
    sh_job_ring_make(3, kind, node, &ring);
    assert_true(ring.next[0] == 2 && ring.next[1] == -1 && ring.next[2] == 0);
    sh_job_ring_free(&ring);
}

/* Three groups of two, dealt by turns over three nodes; one of another kind has no other group. */
static void groups_are_compared_place_by_place(void **state)
{
    const long long kind[] = {5, 5, 5, 6, 6, 6, 5, 7}, node[] = {0, 1, 2, 0, 1, 2, 0, 1};
    const int rank[] = {0, 3, 1, 4, 2, 5, 6, 7}, next[] = {1, 2, 0, 4, 5, 3, -1, -1},
              third[] = {2, 0, 1, 5, 3, 4, 6, 7};
    struct sh_job_ring ring;

    (void)state;
    sh_job_ring_of_groups(8, 2, rank, kind, node, &ring);
    assert_int_equal(ring.n, 8);
    assert_memory_equal(ring.next, next, sizeof next);
    assert_memory_equal(ring.third, third, sizeof third);
    sh_job_ring_free(&ring);
}

static void a_straggler_is_told_once_when_it_lasts(void **state)
{
    static const double even[] = {1, 1.1, 0.9, 1.2}, late[] = {1, 1.1, 1.9, 1.2}, other[] = {2.1, 1.1, 1, 1.2};
    struct sh_job_pace p = {0};

    (void)state;
    sh_job_pace_add(&p, 100, 4, even);
    assert_true(p.least == 0.9 && p.median == 1 && p.most == 1.2 && p.slowest == 3 && !p.report);
    for (int i = 0; i < 2; i++) {
        sh_job_pace_add(&p, 10, 4, late);
        assert_true(p.slowest == 2 && !p.report);
    }
    sh_job_pace_add(&p, 10, 4, late);
    assert_true(p.report && p.slow_steps == 30);
    sh_job_pace_add(&p, 10, 4, late);
    assert_false(p.report);
    sh_job_pace_add(&p, 30, 4, other); /* another rank: reported */
    assert_true(p.report && p.slowest == 0);
    sh_job_pace_add(&p, 30, 4, even);
    sh_job_pace_add(&p, 30, 4, other); /* again */
    assert_true(p.report);
}

static void what_costs_nothing_is_not_told(void **state)
{
    static const double seconds[] = {0.001, 0.001, 0.003};
    struct sh_job_pace p = {0};
    int n = 0;

    (void)state;
    for (; !p.report; n++)
        sh_job_pace_add(&p, 10, 3, seconds);
    assert_in_range(n, 50, 51); /* 2 ms a step */
}

static void the_slower_of_two_can_be_a_straggler(void **state)
{
    static const double seconds[] = {1, 1.6};
    struct sh_job_pace p = {0};

    (void)state;
    sh_job_pace_add(&p, 30, 2, seconds);
    assert_true(p.report && p.slowest == 1 && p.median == 1);
}

static bool hears(enum sh_job_signal s)
{
    for (int i = 0; i < 100000 && !sh_job_heard(s); i++)
        usleep(1000);
    return sh_job_heard(s);
}

static volatile sig_atomic_t handled;

static void handle(int number)
{
    (void)number;
    handled++;
}

/* Threads that compute must not run a handler: it would overwrite what dnnl_sgemm keeps below its stack pointer. Nor does
 * any thread run one that a library installs later. */
static void signals_leave_a_note_and_the_caller_alone(void **state)
{
    static const int number[] = {SIGUSR1, SIGTERM, SIGINT};
    sigset_t blocked;

    (void)state;
    signal(SIGINT, SIG_DFL); /* a test in the background starts with it ignored */
    assert_int_equal(sh_job_listen(), SH_OK);
    assert_int_equal(pthread_sigmask(SIG_BLOCK, NULL, &blocked), 0);
    for (int i = 0; i < SH_JOB_SIGNALS; i++) {
        assert_true(sigismember(&blocked, number[i]));
        assert_false(sh_job_heard((enum sh_job_signal)i));
        signal(number[i], handle);
        kill(getpid(), number[i]);
        assert_true(hears((enum sh_job_signal)i));
    }
    kill(getpid(), SIGUSR1);
    kill(getpid(), SIGTERM);
    assert_string_equal(sh_job_signal_name(SH_JOB_TERM), "SIGTERM");
    assert_int_equal(handled, 0);
}

/* The child writes a record, unless path is NULL. */
static int status_of_child(bool ignored, const char *path)
{
    struct sh_job_record r = {.status = -1};
    int status;
    pid_t child = fork();

    if (child == 0) {
        signal(SIGINT, ignored ? SIG_IGN : SIG_DFL);
        for (r.step = 0; path && r.step < 3; r.step++)
            if (sh_job_record_write(path, &r) != SH_OK)
                _exit(2);
        if (sh_job_listen() == SH_OK)
            for (int i = 0; i < (ignored ? 100 : 10000); i++) { /* two that arrive at once count as one */
                kill(getpid(), SIGINT);
                usleep(10000);
            }
        _exit(3);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static void a_second_interrupt_ends_the_process(void **state)
{
    int status = status_of_child(false, NULL);

    (void)state;
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT);
    status = status_of_child(true, NULL);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 3);
}

/* Only the newest record: it has the step. */
static void a_second_interrupt_is_recorded(void **state)
{
    char folder[] = "/tmp/test_fault.XXXXXX", path[64], *text;
    struct sh_job_record back;
    bool found;

    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/progress.json", folder);
    assert_true(WIFSIGNALED(status_of_child(false, path)));
    sh_job_record_read(path, &back, &found);
    assert_true(found && back.status == -1);
    assert_string_equal(back.reason, "a second Ctrl-C: it gave up at once");
    assert_int_equal(sh_read_file(path, 4096, &text, NULL), SH_OK);
    assert_non_null(strstr(text, "\"step\": 2,"));
    free(text);
    unlink(path);
    rmdir(folder);
}

static void the_record_comes_back(void **state)
{
    char folder[] = "/tmp/test_fault.XXXXXX", path[64];
    struct sh_job_record r = {.steps = 9,
                              .first_step = 2,
                              .step = 5,
                              .saved_step = -1,
                              .starts = 3,
                              .save_seconds = 1.5,
                              .status = -1,
                              .reason = "a \"file\" \xff\xfe"},
                         back = {0};
    bool found;
    FILE *f;

    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/progress.json", folder);
    sh_job_record_read(path, &back, &found);
    assert_true(!found && back.starts == 0);
    assert_int_equal(sh_job_record_write(path, &r), SH_OK);
    sh_job_record_read(path, &back, &found);
    assert_true(found && back.starts == 3 && back.save_seconds == 1.5 && back.status == -1);
    assert_string_equal(back.reason, "see the log");
    assert_true(back.pid == getpid() && back.host[0] && !sh_job_is_gone(&back));
    f = fopen(path, "r");
    assert_non_null(f);
    fseek(f, -2, SEEK_END);
    assert_true(fgetc(f) == '}' && fgetc(f) == '\n');
    fclose(f);
    f = fopen(path, "w");
    assert_non_null(f);
    fputs("{\"starts_without_checkpoint\": \"many\"}", f);
    fclose(f);
    sh_job_record_read(path, &back, &found);
    assert_true(!found && back.starts == 3);
    unlink(path);
    rmdir(folder);
}

/* A process that has ended and was waited for is reported; the same number on another node says nothing. */
static void a_process_that_is_gone_is_told(void **state)
{
    char folder[] = "/tmp/test_fault.XXXXXX", path[64];
    struct sh_job_record r = {.status = 6, .reason = "diverged"}, back;
    bool found;
    pid_t child;

    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/progress.json", folder);
    child = fork();
    if (child == 0)
        _exit(sh_job_record_write(path, &r) != SH_OK);
    assert_int_equal(waitpid(child, NULL, 0), child);
    sh_job_record_read(path, &back, &found);
    assert_true(found && back.status == 6 && back.pid == child && sh_job_is_gone(&back));
    assert_string_equal(back.reason, "diverged");
    back.pid_space++;
    assert_true(!sh_job_is_gone(&back));
    back.pid_space--;
    back.host[0]++;
    assert_true(!sh_job_is_gone(&back));
    unlink(path);
    rmdir(folder);
}

/* Each second counts once: from the launch, and then to the phase that ends. */
static void phases_add_up(void **state)
{
    const struct timespec nap = {.tv_nsec = 20000000};
    const double *seconds = sh_job_start_seconds();
    char text[SH_JOB_START], launched[32];
    struct timespec now;

    (void)state;
    clock_gettime(CLOCK_REALTIME, &now);
    snprintf(launched, sizeof launched, "%lld.5", (long long)now.tv_sec - 100);
    setenv("SHERD_LAUNCHED", launched, 1);
    sh_job_reached(SH_PHASE_LAUNCH);
    assert_true(seconds[SH_PHASE_LAUNCH] > 99 && seconds[SH_PHASE_LAUNCH] < 200);
    for (int i = 0; i < 2; i++) {
        nanosleep(&nap, NULL);
        sh_job_reached(SH_PHASE_MESH);
    }
    sh_job_reached(SH_PHASE_LOAD);
    assert_true(seconds[SH_PHASE_MESH] >= 0.04);
    assert_true(seconds[SH_PHASE_LOAD] < seconds[SH_PHASE_MESH]);
    assert_true(seconds[SH_PHASE_MPI] <= 0);
    unsetenv("SHERD_LAUNCHED");
    assert_string_equal(
        sh_job_start_text((const double[SH_PHASES]){1, 2, 3, 4, 5, 6, 7, 8.25}, text),
        "36.2 s from the launch to the first step: launch 1.0, MPI 2.0, plan 3.0, mesh 4.0, memory 5.0, data 6.0, load "
        "7.0, first step 8.2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_end_is_read_from_the_environment),
        cmocka_unit_test(the_margin_covers_a_step_and_a_save),
        cmocka_unit_test(a_long_step_counts_for_a_while),
        cmocka_unit_test(the_odd_ones_are_found),
        cmocka_unit_test(ranks_on_other_nodes_are_compared),
        cmocka_unit_test(a_lone_kind_has_no_other),
        cmocka_unit_test(groups_are_compared_place_by_place),
        cmocka_unit_test(a_straggler_is_told_once_when_it_lasts),
        cmocka_unit_test(what_costs_nothing_is_not_told),
        cmocka_unit_test(the_slower_of_two_can_be_a_straggler),
        cmocka_unit_test(a_second_interrupt_ends_the_process),
        cmocka_unit_test(a_second_interrupt_is_recorded),
        cmocka_unit_test(signals_leave_a_note_and_the_caller_alone),
        cmocka_unit_test(the_record_comes_back),
        cmocka_unit_test(a_process_that_is_gone_is_told),
        cmocka_unit_test(phases_add_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
