/* cuDNN makes plans of our attention graphs for GPUs that are not present: they are described to it, and the driver
 * is a double without a device (fake_libcuda.c, libcuda.so.1 next to this program). The test covers the code that a
 * run uses: both graphs are accepted, the kernels need no more scratch than a memory plan sets aside, and they are the
 * kernels of tests/golden/cudnn_plans.txt, if cuDNN is of the version that it names. SHERD_GOLDEN=FILE writes that
 * file instead (with SHERD_LONG, all rows). */
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/cudnn_graph.h"
#include "kernels/cuda/attention/cudnn_plan.h"
#include "kernels/cuda/attention/cudnn_promise.h"
#include "kernels/cuda/gemm/work_product.h"

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
    {"NVIDIA L40S", 890, 142, 101376, 1536, 48305799168, 100663296},
    {"NVIDIA H100", 900, 132, 232448, 2048, 85899345920, 52428800},
    {"NVIDIA B200", 1000, 148, 232448, 2048, 192000000000, 132644864},
    {"NVIDIA B300", 1030, 148, 232448, 2048, 288000000000, 132644864},
    {"NVIDIA RTX PRO 6000 Blackwell", 1200, 188, 101376, 1536, 102005473280, 134217728},
};

struct shape {
    int64_t batch, seq;
    int heads, kv_heads, dim;
    bool is_long; /* only if SHERD_LONG is set */
    bool any_order;
};

/* GPT-2; Llama 8B; its pieces of one key-value head; one head at the longest sequence that there is room for; heads of
 * 80, 96, 256 elements; a cut tile. */
static const struct shape shapes[] = {
    {8, 1024, 12, 12, 64, false, false}, {2, 4096, 32, 8, 128, false, false}, {1, 8192, 32, 8, 128, true, false},
    {4, 2048, 32, 4, 64, true, false},   {1, 16384, 8, 8, 128, true, false},  {3, 128, 4, 1, 128, true, false},
    {1, 4096, 32, 32, 80, true, false},  {1, 4096, 32, 32, 96, true, false},  {1, 4096, 8, 1, 256, true, false},
    {2, 1000, 12, 12, 64, true, false},
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

/* "attention_bwd in any order B 8 T 1024 H 12 K 12 D 64, NVIDIA A100: " and what computes it. */
static void write_row(char *text, size_t size, enum sh_op_kind kind, struct shape s, const struct gpu *g)
{
    struct sh_op_call call = call_of(kind, s, SH_BF16);
    struct sh_cudnn_pieces p;
    int at = snprintf(text, size, "%s%s B %lld T %lld H %d K %d D %d, %s: ", sh_op_info(kind)->name,
                      s.any_order ? " in any order" : "", (long long)s.batch, (long long)s.seq, s.heads, s.kv_heads,
                      s.dim, g->name);
    sh_rc rc = sh_attention_cudnn_plan(&call, &(struct sh_cudnn_gpu){g->version / 10, describe(g)}, &p);
    if (rc != SH_OK) {
        snprintf(text + at, size - (size_t)at, "own kernels (%s)", sh_error_text());
        sh_error_clear();
        return;
    }
    snprintf(text + at, size - (size_t)at, "%s, %lld x %lld heads at once, %lld bytes", sh_cudnn_plan_name(p.plan),
             (long long)p.shape.batch, (long long)p.shape.heads, (long long)sh_cudnn_plan_bytes(p.plan));
    assert_in_range(sh_cudnn_plan_bytes(p.plan), 0, p.shape.most_bytes);
    assert_true(sh_cudnn_plan_bytes(p.plan) < sh_cuda_cudnn_work(&call).bytes);
    sh_cudnn_plan_destroy(p.plan);
}

/* Whether the golden file, which is short, has that line. */
static bool is_golden(FILE *golden, const char *row)
{
    char line[1024];
    rewind(golden);
    while (fgets(line, sizeof line, golden)) {
        line[strcspn(line, "\n")] = 0;
        if (strcmp(line, row) == 0)
            return true;
    }
    return false;
}

static FILE *golden;      /* NULL: of another version of cuDNN */
static FILE *golden_made; /* NULL: compare */

static void check_row(enum sh_op_kind kind, struct shape s)
{
    for (size_t g = 0; g < sizeof gpus / sizeof gpus[0]; g++) {
        char row[1024];
        write_row(row, sizeof row, kind, s, &gpus[g]);
        if (golden_made)
            fprintf(golden_made, "%s\n", row);
        else if (golden && !is_golden(golden, row))
            fail_msg("not in tests/golden/cudnn_plans.txt: %s", row);
        printf("%s\n", row);
    }
}

static void test_plans(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        if (shapes[i].is_long && !getenv("SHERD_LONG"))
            continue;
        check_row(SH_OP_ATTENTION, shapes[i]);
        for (int any = 0; any < 2; any++) {
            struct shape s = shapes[i];
            s.any_order = any;
            check_row(SH_OP_ATTENTION_BWD, s);
        }
    }
}

/* Which GPU and version promise one order in the backward, and by which kernel: -2 none, -1 cuDNN's own choice. */
static void test_promises(void **state)
{
    (void)state;
    static const struct {
        int capability;
        size_t version;
        int64_t engine;
        int knobs;
    } rows[] = {
        {80, 91900, -2, 0},  {86, 91900, -2, 0},  {89, 92300, -2, 0},  {90, 90800, -1, 0},  {90, 92500, -1, 0},
        {100, 91700, -2, 0}, {100, 91799, -2, 0}, {100, 91800, 5, 2},  {103, 91900, 5, 2},  {100, 92299, 5, 2},
        {100, 92300, 5, 6},  {103, 92500, 5, 6},  {110, 92500, -2, 0}, {120, 91900, -2, 0}, {0, 91900, -2, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct sh_cudnn_engine *e = NULL;
        sh_rc rc = sh_cudnn_ordered_backward(rows[i].capability, rows[i].version, &e);
        assert_int_equal(rc, rows[i].engine == -2 ? SH_E_USAGE : SH_OK);
        sh_error_clear();
        if (rc != SH_OK)
            continue;
        assert_int_equal(e->index, rows[i].engine);
        assert_int_equal(e->n, rows[i].knobs);
        assert_int_equal(e->linear, e->index >= 0);
    }
}

/* Versions of cuDNN that are refused, with the one to install. */
static void test_versions(void **state)
{
    (void)state;
    static const struct {
        size_t version;
        const char *install; /* NULL: taken */
    } rows[] = {{90701, "9.8 or newer"}, {90800, NULL},     {91000, "9.10.2"}, {91001, "9.10.2"},
                {91002, NULL},           {91300, "9.13.1"}, {91301, NULL},     {91900, NULL}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_int_equal(sh_cudnn_check_version(rows[i].version), rows[i].install ? SH_E_USAGE : SH_OK);
        if (rows[i].install)
            assert_non_null(strstr(sh_error_text(), rows[i].install));
        sh_error_clear();
    }
    assert_int_equal(sh_cudnn_tile(91500), 128);
    assert_int_equal(sh_cudnn_tile(91600), 1);
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

/* Calls that cuDNN does not take, by their shape alone: f32, heads of 20 or 192 elements, documents, and a [T,T] that
 * exceeds its room. */
static void test_others(void **state)
{
    (void)state;
    static const struct shape odd[] = {
        {1, 1024, 2, 2, 20, false, false}, {1, 1024, 2, 2, 192, false, false}, {1, 32768, 4, 1, 128, false, false}};
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

static void open_golden(void)
{
    char path[4096], version[32];
    size_t found = 0;
    if (getenv("SHERD_GOLDEN")) {
        golden_made = fopen(getenv("SHERD_GOLDEN"), "w");
        fprintf(golden_made, "cuDNN %zu\n", sh_cudnn_version());
        return;
    }
    snprintf(path, sizeof path, "%s/tests/golden/cudnn_plans.txt",
             getenv("SHERD_SRCDIR") ? getenv("SHERD_SRCDIR") : ".");
    golden = fopen(path, "r");
    if (!golden || !fgets(version, sizeof version, golden) || sscanf(version, "cuDNN %zu", &found) != 1) {
        fprintf(stderr, "%s cannot be read\n", path);
        exit(1);
    }
    if (found == sh_cudnn_version())
        return;
    printf("not compared with tests/golden/cudnn_plans.txt, which is of cuDNN %zu: this is %zu\n", found,
           sh_cudnn_version());
    fclose(golden);
    golden = NULL;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_others), cmocka_unit_test(test_orders),
                                       cmocka_unit_test(test_promises), cmocka_unit_test(test_versions),
                                       cmocka_unit_test(test_plans)};
    load_driver();
    if (sh_cudnn_load() != SH_OK) {
        printf("%s\n", sh_error_text());
        return 77;
    }
    open_golden();
    int failed = cmocka_run_group_tests_name("cudnn_plan", tests, NULL, NULL);
    if (golden_made && fclose(golden_made) != 0)
        return 1;
    return failed;
}
