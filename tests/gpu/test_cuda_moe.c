/* The operations of a mixture of experts of CUDA, against the reference: the cases of tests/op/moe.c. The same bits in
 * any order of threads and blocks, and but for products at any address: those of widths and addresses that tensor cores
 * cannot take are another kernel's. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/gemm/work_product.h"
#include "kernels/cuda/moe/grouped.h"
#include "tests/gpu/optest_device.h"
#include "tests/gpu/time_experts.h"
#include "tests/op/moe.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

static int64_t work_bytes(const struct sh_op_call *call, int threads)
{
    (void)threads;
    switch (call->kind) {
    case SH_OP_ROUTE:
    case SH_OP_ROUTE_BWD: return sh_cuda_route_work_bytes(call);
    case SH_OP_ROUTE_LOSS: return sh_cuda_route_loss_work_bytes(call);
    case SH_OP_ROUTE_PLAN: return sh_cuda_route_plan_work_bytes(call);
    default: return 0;
    }
}

/* clang-format off */
static const struct sh_kernel_table table = {
    .name = "cuda",
    .run = {
        [SH_OP_ROUTE] = sh_cuda_route,
        [SH_OP_ROUTE_BWD] = sh_cuda_route_bwd,
        [SH_OP_ROUTE_PLAN] = sh_cuda_route_plan,
        [SH_OP_ROUTE_WAVE] = sh_cuda_route_wave,
        [SH_OP_ROUTE_LOSS] = sh_cuda_route_loss,
        [SH_OP_ROUTE_LOAD] = sh_cuda_route_load,
        [SH_OP_ROUTE_BIAS] = sh_cuda_route_bias,
        [SH_OP_ROW_GATHER] = sh_cuda_row_gather,
        [SH_OP_ROW_SUM] = sh_cuda_row_sum,
        [SH_OP_EXPERT_LINEAR] = sh_cuda_expert_linear,
        [SH_OP_EXPERT_LINEAR_BWD_X] = sh_cuda_expert_linear_bwd_x,
        [SH_OP_EXPERT_LINEAR_BWD_W] = sh_cuda_expert_linear_bwd_w,
        [SH_OP_SWIGLU_ROWS] = sh_cuda_swiglu_rows,
        [SH_OP_SWIGLU_ROWS_BWD] = sh_cuda_swiglu_rows_bwd,
        [SH_OP_ROW_ADD] = sh_cuda_row_add,
        [SH_OP_SQUARED_RELU_ROWS] = sh_cuda_squared_relu_rows,
        [SH_OP_SQUARED_RELU_ROWS_BWD] = sh_cuda_squared_relu_rows_bwd,
        [SH_OP_EXPERT_BIAS] = sh_cuda_expert_bias,
        [SH_OP_EXPERT_BIAS_BWD] = sh_cuda_expert_bias_bwd,
    },
    .prepare = sh_cuda_product_prepare,
    .work_bytes = work_bytes,
};
/* clang-format on */

/* The products of experts by the library where it has an answer. */
static int64_t grouped_bytes(const struct sh_op_call *call, int threads)
{
    (void)threads;
    return sh_cuda_expert_work(call).bytes;
}

static const struct sh_op_call *chosen_by_clock(const struct sh_op_call *call)
{
    static struct sh_op_attr attr;
    static struct sh_op_call copy;

    attr = *call->attr, copy = *call;
    attr.rows.choose = true, copy.attr = &attr;
    return &copy;
}

/* The newest answers are in the last row. */
static sh_rc grouped_prepare(const struct sh_op_call *call)
{
    const struct sh_choices *of = &sh_cuda_grouped_choices;
    sh_rc rc = sh_cuda_product_prepare(call);

    if (rc == SH_OK)
        rc = sh_cuda_expert_ask(chosen_by_clock(call));
    for (int i = 0; i < of->count(); i++)
        of->choose(i, of->answers(i) - 1);
    return rc;
}

static sh_rc grouped_run(const struct sh_op_call *call)
{
    return sh_cuda_expert_linear(chosen_by_clock(call));
}

static const struct sh_kernel_table grouped = {
    .name = "cuda, by the library",
    .run = {[SH_OP_EXPERT_LINEAR] = grouped_run,
            [SH_OP_EXPERT_LINEAR_BWD_X] = grouped_run,
            [SH_OP_EXPERT_LINEAR_BWD_W] = grouped_run},
    .prepare = grouped_prepare,
    .work_bytes = grouped_bytes,
};

static const struct sh_kernel_table *now = &table;

/* Other types and widths are Sherd's in any case. */
static bool is_tested(const struct optest *t)
{
    return now == &table || sh_cuda_expert_fits(&t->call);
}

static void run(struct optest *t)
{
    if (is_tested(t))
        optest_device_run(t, now);
    else
        optest_run(t, &sh_kernels_ref, 1);
}

static bool has_products(enum sh_op_kind kind)
{
    return kind == SH_OP_ROUTE || kind == SH_OP_ROUTE_BWD || kind == SH_OP_EXPERT_LINEAR ||
           kind == SH_OP_EXPERT_LINEAR_BWD_X || kind == SH_OP_EXPERT_LINEAR_BWD_W;
}

/* In some order, at some address; output alias_out in the storage of input alias_in, or -1. */
static void run_way(const struct optest *t, int order, int shift, int alias_in, int alias_out, struct optest *out)
{
    optest_copy(out, t);
    optest_shift(out, shift);
    if (alias_in >= 0)
        optest_alias(out, alias_in, alias_out);
    optest_device_order(order);
    optest_device_run(out, now);
    optest_device_order(0);
}

static void agree_on_device(const struct optest *t, int n, const struct sh_bound *bound, int alias_in, int alias_out)
{
    struct optest ref, first, other;

    if (!is_tested(t))
        return;
    optest_copy(&ref, t);
    optest_run(&ref, &sh_kernels_ref, 1);
    run_way(t, 0, 0, -1, -1, &first);
    for (int i = 0; i < n; i++)
        if (t->call.out[i].data)
            optest_within(&ref, &first, i, bound[i].atol, bound[i].rtol);
    for (int way = moe.few || now == &grouped ? OPTEST_ORDERS - 1 : 1; way < OPTEST_ORDERS + 1; way++) {
        bool moved = way == OPTEST_ORDERS;
        run_way(t, moved ? 0 : way, moved, way > 1 ? alias_in : -1, alias_out, &other);
        for (int i = 0; i < n; i++) {
            if (!t->call.out[i].data)
                continue;
            if (!moved || !has_products(t->call.kind))
                optest_same(&first, &other, i);
            optest_within(&ref, &other, i, bound[i].atol, bound[i].rtol);
        }
        optest_end(&other);
    }
    optest_end(&first);
    optest_end(&ref);
}

/* All of moe_experts(): empty experts, all rows to one, rows of several sources, NaN behind the last row. Addresses
 * that the library does not take are left to Sherd's kernel. */
static void grouped_experts(void **state)
{
    const struct sh_choices *of = &sh_cuda_grouped_choices;
    int by_library = 0;

    if (moe.few) {
        print_message("SHERD_FEW_SHAPES leaves them out\n");
        skip();
    }
    now = &grouped;
    moe_experts(state);
    moe_turned_products(state);
    now = &table;
    for (int i = 0; i < of->count(); i++)
        by_library += of->answers(i) > 1;
    if (by_library == 0) {
        print_message("no product is left to a library\n");
        skip();
    }
    assert_in_range(by_library, 12, of->count() - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {MOE_TESTS, cmocka_unit_test(grouped_experts)};

    setenv("SHERD_EMULATED_LT_VERSION", "130601", 1); /* with grouped products */

    if (!optest_device_there())
        return 0;
    if (getenv("SHERD_TIME_EXPERTS"))
        return time_experts(getenv("SHERD_TIME_EXPERTS"));
    moe = (struct moe){
        .table = &table, .run = run, .agree = agree_on_device, .n_acts = 2, .few = getenv("SHERD_FEW_SHAPES") != NULL};
    return cmocka_run_group_tests_name("cuda_moe", tests, NULL, NULL);
}
