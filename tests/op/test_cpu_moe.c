/* The operations of a mixture of experts on the CPU, and the reference's gradients by finite differences. */
#include "tests/op/moe.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void run(struct optest *t)
{
    optest_run(t, &sh_kernels_cpu, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        MOE_TESTS,
        cmocka_unit_test(moe_route_gradient),
        cmocka_unit_test(moe_swiglu_gradient),
        cmocka_unit_test(moe_bias_gradient),
        cmocka_unit_test(moe_gate_gradient),
        cmocka_unit_test(moe_router_bias_gradient),
    };

    moe = (struct moe){.table = &sh_kernels_cpu, .run = run, .agree = agree, .n_acts = 3, .refuses = true};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
