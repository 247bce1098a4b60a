/* cuDNN makes plans of our attention graphs for GPUs that are not present: they are described to it, and the driver
 * is a double without a device (fake_libcuda.c, libcuda.so.1 next to this program). The test covers the code that a
 * run uses: both graphs are accepted, there are kernels for them, and the kernels need no more scratch than a memory
 * plan sets aside. */
#include "kernels/cuda/attention_cudnn.h"
#include "kernels/cuda/cudnn_graph.h"
#include "kernels/cuda/work_product.h"

#include <dlfcn.h>
#include <libgen.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const struct gpu {
    const char *name;
    int version, sms, shared, threads;
    long long memory, cache;
} gpus[] = {
    {"NVIDIA A100", 800, 108, 166912, 2048, 85899345920, 41943040},
    {"NVIDIA H200", 900, 132, 232448, 2048, 150754820096, 62914560},
    {"NVIDIA B200", 1000, 148, 232448, 2048, 192000000000, 132644864},
};

struct shape {
    int64_t batch, seq;
    int heads, kv_heads, dim;
    bool is_long; /* only if SHERD_LONG is set */
    bool any_order;
};

/* GPT-2; Llama 8B; its pieces of one key-value head; one head at the longest sequence that there is room for. */
static const struct shape shapes[] = {
    {8, 1024, 12, 12, 64, false, false}, {2, 4096, 32, 8, 128, false, false}, {1, 8192, 32, 8, 128, true, false},
    {4, 2048, 32, 4, 64, true, false},   {1, 16384, 8, 8, 128, true, false},  {3, 128, 4, 1, 128, true, false},
};

static char *describe(const struct gpu *g)
{
    static char text[2048];
    snprintf(text, sizeof text,
             "{\"deviceVer\":%d,\"multiProcessorCount\":%d,\"warpSize\":32,\"maxSharedMemoryPerBlock\":49152,"
             "\"maxSharedMemoryPerBlockOptin\":%d,\"reservedSharedMemoryPerBlock\":1024,\"maxRegistersPerSM\":65536,"
             "\"maxCtasPerSM\":32,\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":%d,\"regsPerBlock\":65536,"
             "\"totalGlobalMem\":%lld,\"smClockRateKHz\":1980000,\"l2CacheSize\":%lld,\"maxBlockSize\":[1024,1024,64],"
             "\"memClockRateKHz\":3201000,\"maxGridSize\":[2147483647,65535,65535],\"supportCoopLaunch\":1,"
             "\"pciDeviceId\":0,\"isTccDriver\":0,\"cudaDeviceId\":0,\"driverVer\":13000,\"deviceName\":\"%s\"}",
             g->version, g->sms, g->shared, g->threads, g->memory, g->cache, g->name);
    return text;
}

static struct sh_op_attr attr;

static struct sh_op_call call_of(enum sh_op_kind kind, struct shape s, enum sh_dtype dtype)
{
    struct sh_op_call call = {.kind = kind, .attr = &attr};
    attr = (struct sh_op_attr){
        .attn = {.heads = s.heads, .kv_heads = s.kv_heads, .head_dim = s.dim, .any_order = s.any_order}};
    call.in[kind == SH_OP_ATTENTION ? 0 : 1] =
        (struct sh_operand){.dtype = dtype, .ndim = 3, .dim = {s.batch, s.seq, (s.heads + 2 * s.kv_heads) * s.dim}};
    return call;
}

static void check_plan(enum sh_op_kind kind, struct shape s)
{
    struct sh_op_call call = call_of(kind, s, SH_BF16);
    for (size_t g = 0; g < sizeof gpus / sizeof gpus[0]; g++) {
        int64_t bytes = -1, most = 0;
        if (sh_cudnn_try_plan(&call, describe(&gpus[g]), &bytes, &most) != SH_OK)
            fail_msg("%s, T = %lld, on %s: %s", sh_op_info(kind)->name, (long long)s.seq, gpus[g].name,
                     sh_error_text());
        printf("%s%s B %lld T %lld H %d K %d D %d, %s: %lld bytes of %lld\n", sh_op_info(kind)->name,
               s.any_order ? " in any order" : "", (long long)s.batch, (long long)s.seq, s.heads, s.kv_heads, s.dim,
               gpus[g].name, (long long)bytes, (long long)most);
        assert_true(bytes >= 0 && bytes <= most);
    }
}

static void test_plans(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        if (shapes[i].is_long && !getenv("SHERD_LONG"))
            continue;
        check_plan(SH_OP_ATTENTION, shapes[i]);
        for (int any = 0; any < 2; any++) {
            struct shape s = shapes[i];
            s.any_order = any;
            check_plan(SH_OP_ATTENTION_BWD, s);
        }
    }
}

static int count(const struct sh_cudnn_shape *s, enum sh_cudnn_tensor y)
{
    int n = 0;
    for (int i = 0; i < sh_cudnn_backward.n_nodes; i++)
        n += (y == T_NONE || sh_cudnn_backward.nodes[i].y == y) && sh_cudnn_takes_part(&sh_cudnn_backward.nodes[i], s);
    return n;
}

/* training.deterministic: in one order dq is a product, in any order it is copied from sums in f32; and the scratch
 * matches the graph. */
static void test_orders(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        struct sh_cudnn_shape s = {.heads = shapes[i].heads, .kv_heads = shapes[i].kv_heads};
        struct shape any = shapes[i];
        struct sh_op_call call = call_of(SH_OP_ATTENTION_BWD, any, SH_BF16);
        struct sh_cuda_cudnn_work one_order = sh_cuda_cudnn_work(&call), any_order;
        int nodes = count(&s, T_NONE);
        assert_int_equal(nodes, s.heads > s.kv_heads ? 23 : 21);
        assert_int_equal(count(&s, T_DQ), 1);
        assert_int_equal(count(&s, T_DQ_SUMS), 0);
        assert_int_equal(one_order.dq_sums, 0);
        s.any_order = any.any_order = true;
        assert_int_equal(count(&s, T_NONE), nodes + 1);
        assert_int_equal(count(&s, T_DQ), 1);
        assert_int_equal(count(&s, T_DQ_SUMS), 1);
        call = call_of(SH_OP_ATTENTION_BWD, any, SH_BF16);
        any_order = sh_cuda_cudnn_work(&call);
        assert_int_equal(any_order.dq_sums, any_order.batch * any_order.kv_heads * (any.heads / any.kv_heads) *
                                                any.seq * any.dim * (int64_t)sizeof(float));
        assert_true(any_order.batch * any_order.kv_heads >= one_order.batch * one_order.kv_heads);
    }
}

/* Calls that cuDNN does not take, by their shape alone: f32, other heads, cut tiles, documents, and a [T,T] that
 * exceeds its room. */
static void test_others(void **state)
{
    (void)state;
    static const struct shape odd[] = {
        {1, 1000, 2, 2, 64, false, false}, {1, 1024, 2, 2, 96, false, false}, {1, 32768, 4, 1, 128, false, false}};
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
        struct sh_op_call call = call_of(SH_OP_ATTENTION_BWD, odd[i], SH_BF16);
        assert_int_equal(sh_cuda_cudnn_work(&call).batch, 0);
    }
    struct sh_op_call call = call_of(SH_OP_ATTENTION, shapes[0], SH_F32);
    assert_int_equal(sh_cuda_cudnn_work(&call).batch, 0);
    call = call_of(SH_OP_ATTENTION, shapes[0], SH_BF16);
    assert_int_equal(sh_cuda_cudnn_work(&call).batch, shapes[0].batch);
    attr.attn.window = 64;
    assert_int_equal(sh_cuda_cudnn_work(&call).batch, 0);
    attr.attn.window = 0;
    call.in[1] = (struct sh_operand){.dtype = SH_I32, .ndim = 2, .dim = {shapes[0].batch, shapes[0].seq}};
    assert_int_equal(sh_cuda_cudnn_work(&call).batch, 0);
}

static void load_driver(void)
{
    char path[4096] = "";
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 32);
    if (n < 0 || !strcat(dirname(path), "/libcuda.so.1") || !dlopen(path, RTLD_NOW | RTLD_GLOBAL))
        fprintf(stderr, "%s\n", dlerror());
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_others), cmocka_unit_test(test_orders),
                                       cmocka_unit_test(test_plans)};
    load_driver();
    if (sh_cudnn_load() != SH_OK) {
        printf("%s\n", sh_error_text());
        return 77;
    }
    return cmocka_run_group_tests_name("cudnn_plan", tests, NULL, NULL);
}
