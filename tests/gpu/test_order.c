/* The order checker that the emulated runtime relies on (tests/gpu/emulated/order.h): ordered accesses pass, and each
 * kind of disorder ends the process with both accesses named. */
#include "tests/gpu/emulated/order.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char memory[256];

/* Run in a child and return its exit status; `said` receives its standard error. */
static int run(void (*body)(void), char *said, size_t room)
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
        body();
        _exit(0);
    }
    close(ends[1]);
    while ((got = read(ends[0], said + n, room - 1 - n)) > 0)
        n += (size_t)got;
    said[n] = '\0';
    close(ends[0]);
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void event_orders(void)
{
    int a = sh_order_actor(), b = sh_order_actor();
    struct sh_order_clock event;

    sh_order_access(a, memory, 100, 1, "gemm");
    sh_order_mark(a, &event);
    sh_order_after(b, &event);
    sh_order_access(b, memory + 50, 100, 0, "gather");
    sh_order_mark(b, &event);
    sh_order_wait(&event);
    sh_order_access(a, memory, 256, 1, "norm"); /* what the host has waited for is known to all */
}

static void read_without_event(void)
{
    int a = sh_order_actor(), b = sh_order_actor();

    sh_order_access(a, memory, 100, 1, "gemm");
    sh_order_access(b, memory + 99, 1, 0, "gather");
}

static void old_event(void)
{
    int a = sh_order_actor(), b = sh_order_actor();
    struct sh_order_clock event;

    sh_order_mark(a, &event);
    sh_order_access(a, memory, 100, 1, "gemm");
    sh_order_after(b, &event);
    sh_order_access(b, memory, 1, 0, "gather");
}

static void write_after_read(void)
{
    int a = sh_order_actor(), b = sh_order_actor();

    sh_order_access(a, memory, 100, 0, "gemm");
    sh_order_access(b, memory, 1, 0, "norm"); /* two may read */
    sh_order_access(b, memory + 10, 1, 1, "gather");
}

static void freed(void)
{
    int a = sh_order_actor(), b = sh_order_actor();

    sh_order_access(a, memory, 100, 1, "gemm");
    sh_order_forget(memory, 50);
    sh_order_access(b, memory, 50, 1, "gather");
}

static void *writes(void *arg)
{
    (void)arg;
    sh_order_access(sh_order_actor(), memory, 1, 1, "copy");
    return NULL;
}

static void wait_for_all(bool late)
{
    struct sh_order_clock event;
    pthread_t thread;
    int a = sh_order_actor();

    sh_order_access(a, memory, 100, 1, "memset");
    sh_order_mark(a, &event);
    if (late)
        sh_order_wait_for_all(&event);
    assert_int_equal(pthread_create(&thread, NULL, writes, NULL), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
}

static void thread_begins_later(void)
{
    wait_for_all(true);
}

static void thread_knows_nothing(void)
{
    wait_for_all(false);
}

static void test_order(void **state)
{
    static const struct {
        void (*body)(void);
        const char *says[2]; /* NULL: passes */
    } cases[] = {
        {event_orders, {NULL}},
        {freed, {NULL}},
        {read_without_event, {"'gather' reads", "'gemm' writes"}},
        {old_event, {"'gather' reads", "'gemm' writes"}},
        {thread_begins_later, {NULL}},
        {thread_knows_nothing, {"'copy' writes", "'memset' writes"}},
        {write_after_read, {"'gather' writes", "'gemm' reads"}},
    };
    char said[512];

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int status = run(cases[i].body, said, sizeof said);

        if (!cases[i].says[0]) {
            assert_string_equal(said, "");
            assert_int_equal(status, 0);
            continue;
        }
        assert_int_equal(status, 70);
        assert_non_null(strstr(said, cases[i].says[0]));
        assert_non_null(strstr(said, cases[i].says[1]));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_order)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
