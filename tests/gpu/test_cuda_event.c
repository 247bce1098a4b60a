/* Times of a GPU after ten days: the emulated clock gives the time between its first events and others only to within
 * 64 ms. */
#include "src/base/time.h"
#include "src/device/device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

enum { N = 64 };

static const struct sh_device *gpu;
static char *arena;
static void *queue;

static int open_gpu(void **state)
{
    struct sh_device_info info;

    (void)state;
    setenv("SHERD_EMULATED_GPUS", "1", 1);
    setenv("SHERD_EMULATED_CLOCK_SECONDS", "864000", 1);
    gpu = sh_device_find("cuda");
    assert_int_equal(gpu->open(0, &info), SH_OK);
    assert_int_equal(gpu->arena_create(N * sizeof(float), 0, -1, &arena), SH_OK);
    queue = gpu->queue_create(false);
    struct sh_floats floats = {.whole = (float *)(void *)arena};
    assert_int_equal(gpu->kernels->fill_normal(1, &(struct sh_rng_runs){.n = N, .count = 1}, 1, floats, queue), SH_OK);
    return 0;
}

static int close_gpu(void **state)
{
    (void)state;
    gpu->queue_destroy(queue);
    gpu->arena_destroy(arena, N * sizeof(float));
    gpu->close();
    return 0;
}

/* Two events some 3 ms apart, and the least and most that their distance can be. */
static void mark_two(void *event[2], int64_t *least, int64_t *most)
{
    int64_t before = sh_now_ns(), between, then;

    gpu->event_mark(event[0], queue);
    gpu->event_wait(event[0]);
    between = sh_now_ns();
    usleep(3000);
    then = sh_now_ns();
    gpu->event_mark(event[1], queue);
    gpu->event_wait(event[1]);
    *least = then - between;
    *most = sh_now_ns() - before;
}

static void test_span(void **state)
{
    void *event[2] = {gpu->event_create(true), gpu->event_create(true)};
    int64_t least, most, span;

    (void)state;
    mark_two(event, &least, &most);
    span = gpu->event_span_ns(event[0], event[1]);
    assert_in_range(span, least - 1000, most + 1000);
    for (int i = 0; i < 2; i++)
        gpu->event_destroy(event[i]);
}

/* On the host's clock, to which a read-back ties them again. */
static void test_clock(void **state)
{
    void *event[2] = {gpu->event_create(true), gpu->event_create(true)};
    int64_t least, most, span;
    float host[N];

    (void)state;
    usleep(1100 * 1000);
    gpu->get(queue, host, arena, sizeof host);
    mark_two(event, &least, &most);
    span = gpu->event_ns(event[1]) - gpu->event_ns(event[0]);
    assert_in_range(span, least - 1000, most + 1000);
    for (int i = 0; i < 2; i++)
        gpu->event_destroy(event[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_span), cmocka_unit_test(test_clock)};

    return cmocka_run_group_tests_name("cuda_event", tests, open_gpu, close_gpu);
}
