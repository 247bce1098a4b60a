/* When the progress thread may sleep: only if GPUs do all open work. */
#include "src/comm/mpi/progress.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { TICKETS = 4 };

static void test_only_on_device(void **state)
{
    struct sh_comm_events events = {0};
    struct sh_stage *stage = (struct sh_stage *)(void *)&events; /* any */
    /* For a running collective and one that waits in another channel. */
    const struct {
        struct sh_comm_item running, next;
        bool expected;
    } rows[] = {
        {{.events = &events}, {.events = &events}, true},
        {{.events = &events}, {.events = NULL}, false},
        {{.events = NULL}, {.events = &events}, false},
        {{.events = &events, .stage = stage}, {.events = &events}, false},
        {{.events = &events}, {.events = &events, .stage = stage}, false},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct sh_comm_item ring[TICKETS] = {[1] = rows[i].running, [2] = rows[i].next};
        struct sh_comm c = {.ring = ring, .capacity = TICKETS, .newest = 2, .oldest_open = 1};
        struct sh_channel channel[2] = {{.c = &c}, {.c = &c}};
        struct sh_mpi m = {.c = &c, .channel = channel, .n_channels = 2};

        assert_true(sh_mpi_only_on_device(&m));
        channel[0].current = 1;
        channel[1].first = 2;
        assert_int_equal(sh_mpi_only_on_device(&m), rows[i].expected);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_only_on_device)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
