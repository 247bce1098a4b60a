/* Tests of the CUDA emulation itself: it runs kernels as a GPU does, and it finds the faults that it claims to find. */
#include "tests/gpu/emulated/order_of_threads.h"
#include "tests/gpu/emulation_kernels.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#ifdef __has_feature
#if __has_feature(address_sanitizer)
#define WITH_ASAN 1
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
#define WITH_ASAN 1
#endif

enum { N = 1024 };

static void fill(uint32_t x[N])
{
    for (uint32_t i = 0; i < N; i++)
        x[i] = i * 2654435761u;
}

static void runs_in_all_orders(void **state)
{
    uint32_t x[N], y[N], warps[N], sum;

    (void)state;
    fill(x);
    for (int order = 0; order < SH_EMULATED_ORDERS; order++) {
        sh_emulated_set_order((enum sh_emulated_order)order);
        emulation_reverse(y, x, N, true);
        emulation_reverse_warps(warps, x, N);
        emulation_sum(&sum, 5, false);
        for (int i = 0; i < N; i++) {
            assert_int_equal(y[i], x[i / 256 * 256 + 255 - i % 256]);
            assert_int_equal(warps[i], x[i ^ 31]);
        }
        assert_int_equal(sum, 5 * 255 * 256 / 2);
    }
    sh_emulated_set_order(SH_EMULATED_FORWARD);
}

/* Without its barrier a thread reads what others have not written yet; which thread that is depends on the order. */
static void finds_a_missing_barrier(void **state)
{
    uint32_t x[N], y[SH_EMULATED_ORDERS][N];

    (void)state;
    fill(x);
    for (int order = 0; order < SH_EMULATED_ORDERS; order++) {
        sh_emulated_set_order((enum sh_emulated_order)order);
        emulation_reverse(y[order], x, N, false);
        for (int before = 0; before < order; before++)
            assert_memory_not_equal(y[order], y[before], sizeof y[order]);
    }
    sh_emulated_set_order(SH_EMULATED_FORWARD);
}

static void finds_an_order_of_blocks(void **state)
{
    uint32_t sum[SH_EMULATED_ORDERS];

    (void)state;
    for (int order = 0; order < SH_EMULATED_ORDERS; order++) {
        sh_emulated_set_order((enum sh_emulated_order)order);
        emulation_sum(&sum[order], 20, true);
        for (int before = 0; before < order; before++)
            assert_int_not_equal(sum[order], sum[before]);
    }
    sh_emulated_set_order(SH_EMULATED_FORWARD);
}

static void starts_with_poison(void **state)
{
    (void)state;
    assert_true(emulation_shared_is_poisoned());
}

/* The text that a child prints to stderr before it dies of the fault; it must die. */
static void die_of(enum emulation_fault fault, char *text, size_t room)
{
    int ends[2], status;
    size_t n = 0;
    ssize_t got;

    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        emulation_fault(fault);
        _exit(0);
    }
    close(ends[1]);
    while (n + 1 < room && (got = read(ends[0], text + n, room - 1 - n)) > 0)
        n += (size_t)got;
    text[n] = 0;
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_false(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void names_faults(void **state)
{
    static const struct {
        enum emulation_fault fault;
        const char *says;
    } table[] = {
        {EMULATION_HALF_WARP, "divergent barrier: thread 16 waits for its warp"},
        {EMULATION_TWO_PLACES, "divergent barrier: thread 0 waits for its block"},
        {EMULATION_WARP_BLOCK, "thread 5 waits for its block"},
        {EMULATION_PART_MASK, "the mask must be"},
        {EMULATION_ODD_BLOCK, "a multiple of 32 threads"},
        {EMULATION_BIG_SHARED, "more shared memory"},
#ifdef WITH_ASAN
        {EMULATION_PAST_SHARED, "heap-buffer-overflow"},
        {EMULATION_BAD_VECTOR, "alignment"},
#endif
    };
    static char text[20000];

    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        die_of(table[i].fault, text, sizeof text);
        if (!strstr(text, table[i].says))
            fail_msg("fault %d: expected \"%s\", got: %s", (int)table[i].fault, table[i].says, text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(runs_in_all_orders),
        cmocka_unit_test(finds_a_missing_barrier),
        cmocka_unit_test(finds_an_order_of_blocks),
        cmocka_unit_test(starts_with_poison),
        cmocka_unit_test(names_faults),
    };
    return cmocka_run_group_tests_name("emulation", tests, NULL, NULL);
}
