/* Test cases of a mixture of experts, shared by all devices: choices by hand, every operation against the reference, and
 * the reference's gradients against finite differences. A test program fills `moe`, then runs MOE_TESTS. */
#ifndef SH_TESTS_OP_MOE_H
#define SH_TESTS_OP_MOE_H

#include "tests/op/agree.h"

struct moe {
    const struct sh_kernel_table *table;
    void (*run)(struct optest *t);
    /* As agree() of agree.h, on the device. */
    void (*agree)(const struct optest *t, int n, const struct sh_bound *bound, int alias_in, int alias_out);
    int n_acts;   /* types of activations: f32, bf16, f16 */
    bool refuses; /* plans that are none, which it looks for */
    bool few;     /* a simulator is slow */
};
extern struct moe moe;

void moe_route(void **state);
void moe_route_by_hand(void **state);
void moe_route_refuses(void **state);
void moe_experts_take_turns(void **state);
void moe_rows(void **state);
void moe_bias_by_hand(void **state);
void moe_experts(void **state);
void moe_swiglu(void **state);
void moe_groups_by_hand(void **state);
void moe_losses_by_hand(void **state);
void moe_waves(void **state);
void moe_routers_with_biases(void **state);
void moe_expert_biases(void **state);
void moe_clamp_by_hand(void **state);
void moe_clamped_gates(void **state);
void moe_turned_products(void **state);
#define MOE_TESTS                                                                                                 \
    cmocka_unit_test(moe_route_by_hand), cmocka_unit_test(moe_route), cmocka_unit_test(moe_route_refuses),        \
        cmocka_unit_test(moe_rows), cmocka_unit_test(moe_bias_by_hand), cmocka_unit_test(moe_experts),            \
        cmocka_unit_test(moe_groups_by_hand), cmocka_unit_test(moe_losses_by_hand), cmocka_unit_test(moe_swiglu), \
        cmocka_unit_test(moe_experts_take_turns), cmocka_unit_test(moe_waves),                                    \
        cmocka_unit_test(moe_routers_with_biases), cmocka_unit_test(moe_expert_biases),                           \
        cmocka_unit_test(moe_clamp_by_hand), cmocka_unit_test(moe_clamped_gates),                                 \
        cmocka_unit_test(moe_turned_products)

/* Of the reference alone. */
void moe_route_gradient(void **state);
void moe_swiglu_gradient(void **state);
void moe_bias_gradient(void **state);
void moe_gate_gradient(void **state);
void moe_router_bias_gradient(void **state);

#endif
