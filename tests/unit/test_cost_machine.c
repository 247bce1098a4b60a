/* Machine files: presets by name, keys over presets, points, and what is refused with its place. */
#include "src/cost/price.h"

#include "kernels/muon.h"
#include "src/base/file.h"
#include "src/base/mem.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static sh_rc parse(const char *text, struct sh_machine *m)
{
    return sh_machine_parse(text, strlen(text), "m.yaml", m);
}

static void names_make_nodes(void **state)
{
    struct sh_machine m;

    (void)state;
    assert_int_equal(sh_machine_preset("h100-80x8-ndr400", &m), SH_OK);
    assert_true(m.node.devices == 8 && m.network.bytes_per_second == 400e9);
    assert_int_equal(sh_machine_preset("mi250x-128x4-slingshot200", &m), SH_OK); /* a name that contains an x itself */
    assert_true(m.node.devices == 4 && m.network.bytes_per_second == 100e9);
    assert_int_equal(sh_machine_preset("a100-40", &m), SH_OK);
    assert_true(m.node.devices == 1 && m.network.bytes_per_second == 0);
    for (int i = 0; i < sh_machine_n_keys; i++)
        assert_true(sh_machine_keys[i].text || m.from[i] == SH_FROM_PRESET);
}

/* The beginning of a name stands for the only device that begins so, or for the usual one; the whole name wins over
 * longer ones. */
static void beginnings_of_names_do(void **state)
{
    static const struct {
        const char *given, *name;
    } cases[] = {{"b200", "b200-180"},         {"b200x8-ndr400", "b200-180x8-ndr400"},
                 {"mi300x", "mi300x-192"},     {"mi300x8", "mi300x-192x8"},
                 {"mi300xx8", "mi300x-192x8"}, {"h100-80", "h100-80"},
                 {"h200x8", "h200-141x8"},     {"h100", "h100-80"},
                 {"h100x8", "h100-80x8"},      {"a100x4", "a100-80x4"},
                 {"H100-80x8", "h100-80x8"},   {"gh200", "gh200-96"}};
    struct sh_machine m;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(sh_machine_preset(cases[i].given, &m), SH_OK);
        assert_string_equal(m.name, cases[i].name);
    }
    assert_int_equal(sh_machine_preset("mi3x8", &m), SH_E_USAGE);
    assert_string_equal(sh_error_text(), "mi3x8: which of mi300x-192, mi325x-256?");
    assert_int_equal(sh_machine_preset("h10x8", &m), SH_E_USAGE);
    assert_int_equal(sh_machine_preset("x8", &m), SH_E_USAGE);
    assert_int_equal(sh_machine_preset("b200x0", &m), SH_E_USAGE);
}

/* A device alone has one rank. More ranks make it the usual node of that device; a node that was given stays. */
static void ranks_choose_the_node(void **state)
{
    static const struct {
        const char *given;
        int64_t ranks;
        const char *name;
        double devices;
    } cases[] = {{"h100", 1, "h100-80", 1},        {"h100", 8, "h100-80x8", 8},
                 {"h100", 16, "h100-80x8", 8},     {"h100-64", 4, "h100-64x4", 4},
                 {"gb200", 2, "gb200-186x4", 4},   {"mi300x", 8, "mi300x-192x8", 8},
                 {"h100-80x1", 8, "h100-80x1", 1}, {"h100x4", 8, "h100-80x4", 4},
                 {"gh200", 8, "gh200-96", 1},      {"cpu", 8, "cpu", 1}};
    struct sh_machine m;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(sh_machine_load_for(cases[i].given, cases[i].ranks, &m), SH_OK);
        assert_string_equal(m.name, cases[i].name);
        assert_true(m.node.devices == cases[i].devices);
    }
    assert_int_equal(sh_machine_load_for("gb200", 4, &m), SH_OK);
    assert_true(m.host.memory_bytes == 4 * 240e9);
    assert_int_equal(sh_machine_load_for("mi3", 8, &m), SH_E_USAGE);
    assert_string_equal(sh_error_text(), "mi3: which of mi300x-192, mi325x-256?");
}

static void files_go_over_presets(void **state)
{
    struct sh_machine m;
    int share = sh_machine_key_find("product.share"), peak = sh_machine_key_find("peak.float32");

    (void)state;
    assert_int_equal(
        parse("machine: {name: leaf, source: \"a, b\"}\n"
              "node: {devices: 4}\n"
              "product: {share: 0.5}\n"
              "device: {kind: h100-80}\n"
              "points:\n"
              "  - {figure: peak.float32, value: 5e13}\n"
              "  - {kind: linear, type: bfloat16, dims: [8192, 4096, 14336], seconds: 1.41e-3, rounds: 20}\n",
              &m),
        SH_OK);
    assert_string_equal(m.name, "leaf");
    assert_true(m.product.share == 0.5 && m.from[share] == SH_FROM_FILE);
    assert_true(m.peak.float32 == 5e13 && m.from[peak] == SH_FROM_MEASUREMENT);
    assert_true(m.peak.bfloat16 == 989e12);
    assert_int_equal(m.n_points, 2);
    sh_machine_close(&m);
}

static void wrong_files_are_refused(void **state)
{
    static const struct {
        const char *text, *says;
    } wrong[] = {
        {"device: {kind: h100-80}\nproduct:\n  shre: 0.5\n",
         "m.yaml:3: product.shre: no such key; nearest is product.share"},
        {"device: {kind: h100-80}\npeak:\n  bfloat16: 0\n", "m.yaml:3: peak.bfloat16: expected a number"},
        {"device: {kind: h100-80}\npeak: {bfloat16: fast}\n", "m.yaml:2: peak.bfloat16: expected a number"},
        {"device: {kind: h900}\n", "m.yaml:1: device.kind: h900 is not one of a100-40"},
        {"product: {share: 0.5}\n", "no device.kind"},
        {"device: {kind: cpu}\nnode: {devices: 2}\nnode: {devices: 2}\n", "m.yaml:3: node.devices: given twice"},
        {"device: {kind: cpu}\npoints:\n  - {kind: linear, dims: [1, 0], seconds: 1}\n", "m.yaml:3: points[0].dims[1]"},
        {"device: {kind: cpu}\npoints:\n  - {kind: linear, dims: [1, 2, 3]}\n", "lacks fields"},
        {"device: {kind: cpu}\npoints:\n  - {kind: step, dims: [1, 2], value: 1.1}\n", "lacks fields"},
        {"device: {kind: cpu}\npoints:\n  - {kind: step, dims: [1, 2, 3], value: 1e9}\n", "lacks fields"},
        {"device: {kind: cpu}\npoints:\n  - {kind: all_gather, ranks: 1, nodes: 1, bytes: 8, seconds: 1}\n",
         "2 ranks or more"},
        {"device: {kind: cpu}\npoints:\n  - {kind: all_gather, ranks: 2, nodes: 3, bytes: 8, seconds: 1}\n",
         "their nodes"},
        {"device: {kind: cpu}\npoints:\n  - {kind: all_gather, ranks: 1e20, nodes: 1, bytes: 8, seconds: 1}\n",
         "2 ranks or more"},
        {"device: {kind: cpu}\npoints:\n  - {figure: nothing, value: 1}\n", "figure nothing: no such key"},
        {"device: {kind: cpu}\npoints:\n  - {figure: peak.bfloat16, value: 0}\n", "is not in"},
        {"device: {kind: cpu}\npoints:\n  - {knd: linear}\n", "m.yaml:3: points[0].knd: a point has no such field"},
        {"device: {kind: cpu}\npoints: 3\n", "m.yaml:2: points: no such key"},
        {"device: &x {kind: cpu}\n", "anchors"},
        {"- a\n", "expected sections"},
        {"device: {kind: a1-4\n\noverlap: 1}\n", "device.kind: contains control characters or line ends"},
        {"device: {\"ki\\nnd\": cpu}\n", "a name contains control characters or line ends"},
        {"a: {b: {c: {d: {e: 1}}}}\n", "nested too deeply"},
        {"device: {kind: cpu\n", "m.yaml:"},
    };
    struct sh_machine m;

    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(parse(wrong[i].text, &m), SH_E_USAGE);
        if (!strstr(sh_error_text(), wrong[i].says))
            fail_msg("%s: %s", wrong[i].says, sh_error_text());
    }
    assert_int_equal(sh_machine_load("h900x8", &m), SH_E_USAGE);
    assert_non_null(strstr(sh_error_text(), "neither a file nor the name"));
    assert_int_equal(sh_machine_preset("h100-80x0", &m), SH_E_USAGE);
    assert_int_equal(sh_machine_preset("h100-80x8-ndr", &m), SH_E_USAGE);
    assert_int_equal(sh_machine_preset("h100-80x8-400ndr", &m), SH_E_USAGE);
}

static struct sh_price product(const struct sh_machine *m, int64_t rows, int64_t in, int64_t out)
{
    struct sh_op_attr attr = {0};
    struct sh_op_call call = {
        .kind = SH_OP_LINEAR,
        .attr = &attr,
        .in = {{.dtype = SH_F32, .ndim = 2, .dim = {rows, in}}, {.dtype = SH_F32, .ndim = 2, .dim = {out, in}}},
        .out = {{.dtype = SH_F32, .ndim = 2, .dim = {rows, out}}}};

    return sh_price_op(m, &sh_cost_as_is, &call, SH_F32);
}

/* Exact at a measured point, close to the points in between, the formula far away. */
static void points_correct_the_formula(void **state)
{
    struct sh_machine m, plain;
    double near;

    (void)state;
    assert_int_equal(parse("device: {kind: cpu}\npoints:\n"
                           "  - {kind: linear, type: float32, dims: [512, 512, 512], seconds: 3e-3}\n"
                           "  - {kind: linear, type: float32, dims: [1024, 512, 512], seconds: 5e-3}\n"
                           "  - {kind: linear, type: bfloat16, dims: [1024, 512, 1024], seconds: 1}\n"
                           "  - {kind: linear_bwd_x, type: float32, dims: [512, 512, 512], seconds: 1}\n",
                           &m),
                     SH_OK);
    assert_int_equal(sh_machine_preset("cpu", &plain), SH_OK);
    assert_true(fabs(product(&m, 512, 512, 512).seconds - 3e-3) < 1e-8);
    assert_true(fabs(product(&m, 1024, 512, 512).seconds - 5e-3) < 1e-8);
    near = product(&m, 724, 512, 512).seconds;
    assert_true(near > 3e-3 && near < 5e-3);
    assert_true(product(&m, 512 * 1024, 512, 512).seconds == product(&plain, 512 * 1024, 512, 512).seconds);
    for (int64_t rows = 8, before = 0; rows < 1 << 20; rows *= 2) {
        int64_t ns = (int64_t)(product(&plain, rows, 512, 512).seconds * 1e9);

        assert_true(ns >= before);
        before = ns;
    }
    sh_machine_close(&m);
}

/* The seconds of attention of an 8B model without the launch. */
static double attention_on(const char *machine, enum sh_op_kind kind, const struct sh_op_attr *attr, bool docs)
{
    const int64_t T = 8192, H = attr->attn.heads, D = attr->attn.head_dim, QKV = (H + 2 * attr->attn.kv_heads) * D;
    struct sh_operand qkv = {.dtype = SH_BF16, .ndim = 3, .dim = {1, T, QKV}},
                      o = {.dtype = SH_BF16, .ndim = 3, .dim = {1, T, H * D}},
                      lse = {.dtype = SH_F32, .ndim = 3, .dim = {1, H, T}},
                      starts = {.dtype = SH_I32, .ndim = docs ? 2 : 0, .dim = {1, T}};
    struct sh_op_call forward = {.kind = kind, .attr = attr, .in = {qkv, starts}, .out = {o, lse}},
                      backward = {.kind = kind, .attr = attr, .in = {o, qkv, o, lse, starts}, .out = {qkv}};
    struct sh_machine m;

    assert_int_equal(sh_machine_preset(machine, &m), SH_OK);
    m.device.launch_seconds = 0;
    return sh_price_op(&m, &sh_cost_as_is, kind == SH_OP_ATTENTION ? &forward : &backward, SH_BF16).seconds;
}

static double attention(enum sh_op_kind kind, bool any_order, int window, bool docs, int document_tokens)
{
    struct sh_op_attr attr = {.attn = {.heads = 32,
                                       .kv_heads = 8,
                                       .head_dim = 128,
                                       .any_order = any_order,
                                       .window = window,
                                       .document_tokens = document_tokens}};

    return attention_on("h100-80", kind, &attr, docs);
}

/* Heads of other sizes, and caps of scores, have a kernel in float32 on GPUs; on CPUs all have the same. */
static void attention_without_tensor_cores(void **state)
{
    static const char *const machines[] = {"cpu", "h100-80"};

    (void)state;
    for (int gpu = 0; gpu < 2; gpu++) {
        struct sh_op_attr attr = {.attn = {.heads = 32, .kv_heads = 8, .head_dim = 128}};
        double tiles = attention_on(machines[gpu], SH_OP_ATTENTION, &attr, true), slower = gpu ? 989.0 / 67 : 1;

        attr.attn.cap = 50;
        assert_true(fabs(attention_on(machines[gpu], SH_OP_ATTENTION, &attr, true) / tiles - slower) < 1e-9);
        attr.attn.cap = 0;
        attr.attn.head_dim = 192;
        assert_true(fabs(attention_on(machines[gpu], SH_OP_ATTENTION, &attr, true) / tiles - 1.5 * slower) < 1e-9);
    }
}

/* Of its arithmetic in float32, whatever the activations are. */
static void the_delta_rule_costs_its_products(void **state)
{
    enum { T = 8192, K = 16, V = 32, D = 128 };
    struct sh_op_attr attr = {.delta = {.heads = V, .key_heads = K, .key_dim = D, .value_dim = D}};
    struct sh_op_call call = {.kind = SH_OP_GATED_DELTA,
                              .attr = &attr,
                              .in = {{.dtype = SH_BF16, .ndim = 3, .dim = {1, T, (2 * K + V) * D}},
                                     {.dtype = SH_BF16, .ndim = 3, .dim = {1, T, 2 * V}}},
                              .out = {{.dtype = SH_BF16, .ndim = 3, .dim = {1, T, V * D}}}};
    struct sh_machine m;

    (void)state;
    assert_int_equal(sh_machine_preset("h100-80", &m), SH_OK);
    m.device.launch_seconds = 0;
    assert_true(
        fabs(sh_price_op(&m, &sh_cost_as_is, &call, SH_BF16).seconds / (sh_op_cost(&call).flops / (0.645 * 67e12)) -
             1) < 1e-9);
    assert_true(sh_op_cost(&call).flops > 0);
}

/* cuDNN's forward and its backward in any order; one order and its [T,T]; the own kernels with documents and windows,
 * which leave less to compute if their length is known. */
static void attention_costs_what_its_kernel_does(void **state)
{
    const enum sh_op_kind f = SH_OP_ATTENTION, b = SH_OP_ATTENTION_BWD;
    double forward = attention(f, false, 0, false, 0), any = attention(b, true, 0, false, 0),
           one = attention(b, false, 0, false, 0), whole = attention(b, true, 0, true, 0);

    (void)state;
    assert_true(attention(f, true, 0, false, 0) == forward);
    assert_true(fabs(any / forward - 2.5 * 0.62 / 0.5) < 1e-9);
    assert_true(fabs(one - any / 0.82 - 2.0 * 32 * 8192 * 8192 / (0.85 * 3.35e12)) < 1e-9);
    assert_true(fabs(whole - any / 0.235) < 1e-9 && attention(b, false, 0, true, 0) == whole);
    assert_true(fabs(attention(f, false, 0, true, 0) - forward / 0.235) < 1e-9);
    /* 1,000 tokens: 878 keys of 4,096 on average, and a tile of 64. */
    assert_true(fabs(attention(b, true, 0, true, 1000) / whole - (878.0 + 64) / 4096.5) < 1e-3);
    assert_true(attention(b, true, 0, true, 1 << 30) == whole);
    assert_true(attention(b, true, 0, false, 1000) == any);
    assert_true(attention(b, true, 512, true, 1000) < attention(b, true, 0, true, 1000));
    assert_true(attention(b, true, 4096, true, 1000) == attention(b, true, 0, true, 1000));
}

/* clang-format off */
#define OF(type, ...) {.dtype = (type), .ndim = sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), .dim = {__VA_ARGS__}}
#define ACT(...) OF(SH_BF16, __VA_ARGS__)
enum { B = 2, T = 8192, N = B * T, E = 64, I = 1024, O = 4096, V = 32768, H = 16, K = 4, D = 64, QKV = (H + 2 * K) * D };

/* A call of each kind that a point can stand for, without biases and residual inputs, which the dimensions of a point
 * do not tell. Nor do they tell some small operands, and so where memory decides, the price of the point is met within a
 * share. */
static const struct told {
    double within;
    struct sh_op_call call;
} told[] = {
    {1e-9, {.kind = SH_OP_LINEAR, .in = {ACT(N, I), ACT(O, I)}, .out = {ACT(N, O)}}},
    {1e-9, {.kind = SH_OP_LINEAR_BWD_X, .in = {ACT(N, O), ACT(O, I)}, .out = {ACT(N, I)}}},
    {1e-9, {.kind = SH_OP_LINEAR_BWD_W, .in = {ACT(N, O), ACT(N, I)}, .out = {OF(SH_F32, O, I)}}},
    {1e-6, {.kind = SH_OP_EXPERT_LINEAR, .in = {ACT(N, I), OF(SH_I32, E + 1), ACT(E, O, I)}, .out = {ACT(N, O)}}},
    {1e-6, {.kind = SH_OP_EXPERT_LINEAR_BWD_X, .in = {ACT(N, O), OF(SH_I32, E + 1), ACT(E, O, I)}, .out = {ACT(N, I)}}},
    {1e-6, {.kind = SH_OP_EXPERT_LINEAR_BWD_W, .in = {ACT(N, O), ACT(N, I), OF(SH_I32, E + 1)}, .out = {OF(SH_F32, E, O, I)}}},
    {2e-3, {.kind = SH_OP_LOGITS, .in = {ACT(B, 1, I), ACT(V, I)}, .out = {OF(SH_F32, B, V)}}},
    {2e-5, {.kind = SH_OP_HEAD_LOSS, .in = {ACT(N, I), ACT(V, I), OF(SH_I32, N)}, .out = {OF(SH_F64, 1)}}},
    {0.04, {.kind = SH_OP_HEAD_LOSS_GRAD, .in = {ACT(N, I), ACT(V, I), OF(SH_I32, N)},
            .out = {OF(SH_F64, 1), ACT(N, I), OF(SH_F32, V, I)}}},
    {0.02, {.kind = SH_OP_ATTENTION, .in = {ACT(B, T, QKV)}, .out = {ACT(B, T, H * D), OF(SH_F32, B, H, T)}}},
    {0.02, {.kind = SH_OP_ATTENTION_BWD, .in = {ACT(B, T, H * D), ACT(B, T, QKV), ACT(B, T, H * D), OF(SH_F32, B, H, T)},
            .out = {ACT(B, T, QKV)}}},
    {1e-9, {.kind = SH_OP_GELU, .in = {ACT(N * O)}, .out = {ACT(N * O)}}},
};
/* clang-format on */

/* The price of a call on a machine on which it has been measured is the measured time. */
static void check_measured(struct sh_op_call call, struct sh_machine *m, double within)
{
    struct sh_op_attr attr = {.accumulate = 0};
    struct sh_machine_point p = {.what = SH_POINT_OP, .type = "bfloat16", .seconds = 3e-3};
    double price;

    if (sh_cost_class_of(call.kind) == SH_COST_ATTENTION) {
        attr.attn.heads = H;
        attr.attn.kv_heads = K;
        attr.attn.head_dim = D;
    }
    call.attr = &attr;
    snprintf(p.kind, sizeof p.kind, "%s", sh_op_info(call.kind)->name);
    p.n_dims = sh_price_dims(&call, p.dims);
    m->points = &p;
    m->n_points = 1;
    price = sh_price_op(m, &sh_cost_as_is, &call, SH_BF16).seconds;
    if (fabs(price / p.seconds - 1) > within)
        fail_msg("%s: %g s at a point of %g s", p.kind, price, p.seconds);
}

/* Rows that are dealt out to experts cost more: each product is smaller, and has weights of its own; and on a GPU, whose
 * kernel for them is slower. */
static void experts_cost_more_than_one(void **state)
{
    struct sh_op_attr attr = {.accumulate = 0};
    struct sh_op_call one = told[0].call, many = told[3].call;
    struct sh_machine m;
    double least, most, few;

    (void)state;
    assert_int_equal(sh_machine_preset("h100-80", &m), SH_OK);
    one.attr = many.attr = &attr;
    least = sh_price_op(&m, &sh_cost_as_is, &one, SH_BF16).seconds;
    most = sh_price_op(&m, &sh_cost_as_is, &many, SH_BF16).seconds;
    assert_true(most > least && most < 6 * least);
    m.product.experts = 1;
    double with_cublaslt = sh_price_op(&m, &sh_cost_as_is, &many, SH_BF16).seconds;
    assert_true(with_cublaslt > least && with_cublaslt < 0.6 * most);
    /* A quarter of the rows in as many groups: less, but not a quarter. */
    attr.rows.expected = N / 4;
    few = sh_price_op(&m, &sh_cost_as_is, &many, SH_BF16).seconds;
    assert_true(few > most / 4 && few < most);
    /* In twice as many: a smaller product costs more. */
    many.in[1].dim[0] = 2 * E + 1;
    assert_true(sh_price_op(&m, &sh_cost_as_is, &many, SH_BF16).seconds > few);
}

/* Products of matrices, of which a rank may have none, and launches for each. */
static void orthogonal_factors_are_products(void **state)
{
    struct sh_matrix matrix = {.out = 1024, .in = 4096, .repeat = 1};
    struct sh_op_attr attr = {.ortho = {.steps = 5, .count = 1, .most_short = 1024, .most_long = 4096, .narrow = true}};
    const struct sh_op_call call = {.kind = SH_OP_ORTHO,
                                    .attr = &attr,
                                    .matrices = &matrix,
                                    .out = {{.dtype = SH_F32, .ndim = 1, .dim = {4 << 20}}}};
    struct sh_machine m;
    double narrow, wide, flops;

    (void)state;
    assert_int_equal(sh_machine_preset("h100-80", &m), SH_OK);
    narrow = sh_price_op(&m, &sh_cost_as_is, &call, SH_F32).seconds;
    assert_true(narrow > sh_matrix_flops(&matrix, 5) / m.peak.bfloat16 + 20 * m.device.launch_seconds);
    attr.ortho.narrow = false;
    wide = sh_price_op(&m, &sh_cost_as_is, &call, SH_F32).seconds;
    assert_true(wide > 4 * narrow);
    matrix.repeat = 3;
    assert_true(fabs(sh_price_op(&m, &sh_cost_as_is, &call, SH_F32).seconds / wide - 3) < 0.1);
    attr.ortho.count = 0;
    assert_true(sh_price_op(&m, &sh_cost_as_is, &call, SH_F32).seconds == 0);
    /* CPUs make 19 of 32 of the symmetric products: 5.3 tiles of 192 to a side */
    m.device.launch_seconds = 0;
    attr.ortho.count = 1;
    wide = sh_price_op(&m, &sh_cost_as_is, &call, SH_F32).seconds;
    flops = sh_price_op(&m, &sh_cost_as_is, &call, SH_F32).flops;
    strcpy(m.device.kind, "cpu");
    assert_true(fabs(sh_price_op(&m, &sh_cost_as_is, &call, SH_F32).seconds / wide - (10 * 19. / 32 + 8) / 18) < 1e-3);
    assert_true(fabs(sh_price_op(&m, &sh_cost_as_is, &call, SH_F32).flops / flops - (10 * 19. / 32 + 8) / 18) < 1e-3);
}

/* They are priced by their products, so that a point of as many bytes, or of half as many, tells how fast these are. */
static void points_of_matrices_are_met(void **state)
{
    struct sh_matrix matrix = {.out = 1024, .in = 4096, .repeat = 2};
    struct sh_op_attr attr = {.ortho = {.steps = 5, .count = 1, .most_short = 1024, .most_long = 4096}};
    const struct sh_op_call call = {.kind = SH_OP_ORTHO,
                                    .attr = &attr,
                                    .matrices = &matrix,
                                    .out = {{.dtype = SH_F32, .ndim = 1, .dim = {8 << 20}}}};
    struct sh_machine_point p = {.what = SH_POINT_OP, .type = "float32", .kind = "ortho", .seconds = 3};
    struct sh_machine m;

    (void)state;
    assert_int_equal(sh_cost_class_of(SH_OP_ORTHO), SH_COST_PRODUCTS);
    assert_int_equal(sh_machine_preset("cpu", &m), SH_OK);
    p.n_dims = sh_price_dims(&call, p.dims);
    assert_true(p.n_dims == 1 && p.dims[0] == 2. * 4 * (8 << 20));
    m.points = &p;
    m.n_points = 1;
    assert_true(fabs(sh_price_op(&m, &sh_cost_as_is, &call, SH_F32).seconds / 3 - 1) < 1e-9);
    p.dims[0] /= 2;
    assert_true(fabs(sh_price_op(&m, &sh_cost_as_is, &call, SH_F32).seconds / 6 - 1) < 1e-9);
    attr.ortho.count = 0;
    assert_true(sh_price_op(&m, &sh_cost_as_is, &call, SH_F32).seconds == 0);
}

static void points_are_met(void **state)
{
    struct sh_machine arithmetic, memory;

    (void)state;
    assert_int_equal(sh_machine_preset("h100-80", &arithmetic), SH_OK);
    memory = arithmetic;
    arithmetic.memory.bytes_per_second = 1e18;
    memory.memory.bytes_per_second = 1e6;
    for (size_t i = 0; i < sizeof told / sizeof *told; i++) {
        check_measured(told[i].call, &arithmetic, 1e-9);
        check_measured(told[i].call, &memory, told[i].within);
    }
}

/* Without a network the formula gives no seconds that a point could correct. */
static void points_between_nodes_want_a_network(void **state)
{
    struct sh_coll_place at = {.ranks = 2, .nodes = 1, .rings = 1};
    struct sh_machine m, plain;

    (void)state;
    assert_int_equal(sh_machine_preset("cpu", &plain), SH_OK);
    assert_true(plain.network.bytes_per_second == 0);
    assert_int_equal(parse("device: {kind: cpu}\npoints:\n"
                           "  - {kind: all_gather, ranks: 4, nodes: 2, bytes: 1048576, seconds: 1}\n",
                           &m),
                     SH_OK);
    assert_true(sh_price_coll(&plain, &sh_cost_as_is, SH_OP_ALL_GATHER, &at, 1 << 20).seconds > 0);
    assert_true(sh_price_coll(&m, &sh_cost_as_is, SH_OP_ALL_GATHER, &at, 1 << 20).seconds ==
                sh_price_coll(&plain, &sh_cost_as_is, SH_OP_ALL_GATHER, &at, 1 << 20).seconds);
    sh_machine_close(&m);
}

/* New points replace points for the same thing; comments and keys stay. */
static void points_are_written(void **state)
{
    char folder[] = "/tmp/sherd-machine-XXXXXX", *path, *text;
    struct sh_machine_point a = {.what = SH_POINT_OP,
                                 .kind = "linear",
                                 .type = "float32",
                                 .n_dims = 3,
                                 .dims = {8, 16, 32},
                                 .seconds = 0.25,
                                 .rounds = 3};
    struct sh_machine_point b = {.what = SH_POINT_FIGURE, .figure = "host.step_seconds", .value = 0.001};
    struct sh_machine_point c = {.what = SH_POINT_COLL,
                                 .kind = "all_gather",
                                 .axis = "shard",
                                 .ranks = 2,
                                 .nodes = 1,
                                 .bytes = 1024,
                                 .seconds = 1e-3};
    struct sh_machine m;

    (void)state;
    assert_non_null(mkdtemp(folder));
    path = sh_path_join(folder, "m.yaml");
    assert_int_equal(sh_machine_add_points(path, "cpu", (struct sh_machine_point[]){a, b}, 2), SH_OK);
    assert_int_equal(sh_read_file(path, 1 << 20, &text, NULL), SH_OK);
    free(text);
    text = sh_strfmt(
        "# mine\ndevice: {kind: cpu} # here\nnode: {devices: 2}\npoints:\n  - {kind: linear, type: float32, dims: "
        "[8, 16, 32], seconds: 9}\n");
    assert_int_equal(sh_write_file_atomic(path, text, strlen(text)), SH_OK);
    free(text);
    assert_int_equal(sh_machine_add_points(path, "cpu", (struct sh_machine_point[]){a, c}, 2), SH_OK);
    b.value = 0;
    assert_int_equal(sh_machine_add_points(path, "cpu", &b, 1), SH_OK);
    assert_int_equal(sh_read_file(path, 1 << 20, &text, NULL), SH_OK);
    assert_non_null(strstr(text, "# mine\ndevice: {kind: cpu} # here\n"));
    free(text);
    assert_int_equal(sh_machine_load(path, &m), SH_OK);
    assert_int_equal(m.n_points, 3);
    assert_true(m.points[0].seconds == 0.25 && m.points[0].rounds == 3 && m.points[1].ranks == 2);
    assert_true(m.host.step_seconds == 0 && m.node.devices == 2);
    sh_machine_close(&m);
    unlink(path);
    free(path);
    rmdir(folder);
}

/* A fit replaces the points of an earlier fit, whatever the sizes of its runs; measured points stay. */
static void a_fit_renews_its_steps(void **state)
{
    char folder[] = "/tmp/sherd-machine-XXXXXX", *path;
    struct sh_machine_point points[] = {
        {.what = SH_POINT_STEP, .kind = "step", .type = "float32", .n_dims = 3, .dims = {4e9 / 7, 8, 9}, .value = 1.1},
        {.what = SH_POINT_STEP, .kind = "step", .type = "float32", .n_dims = 3, .dims = {5e9, 8, 9}, .value = 1.2},
        {.what = SH_POINT_OP, .kind = "linear", .type = "float32", .n_dims = 3, .dims = {8, 16, 32}, .seconds = 0.25}};
    struct sh_machine m;

    (void)state;
    assert_non_null(mkdtemp(folder));
    path = sh_path_join(folder, "m.yaml");
    assert_int_equal(sh_machine_add_points(path, "cpu", points, 3), SH_OK);
    for (int left = 2; left >= 0; left--) {
        assert_int_equal(sh_machine_add_fit(path, "cpu", points, left), SH_OK);
        assert_int_equal(sh_machine_load(path, &m), SH_OK);
        assert_int_equal(m.n_points, left + 1);
        assert_int_equal(m.points[0].what, SH_POINT_OP);
        sh_machine_close(&m);
    }
    unlink(path);
    free(path);
    rmdir(folder);
}

/* Keys after the list would be taken as part of it. */
static void lists_in_the_middle_are_refused(void **state)
{
    char path[] = "/tmp/sherd-machine-XXXXXX";
    const char *text = "device: {kind: cpu}\npoints:\n  - {figure: peak.float32, value: 1e9}\nnode: {devices: 2}\n";
    struct sh_machine_point p = {.what = SH_POINT_FIGURE, .figure = "host.step_seconds", .value = 0.001};
    int fd = mkstemp(path);

    (void)state;
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(sh_write_file_atomic(path, text, strlen(text)), SH_OK);
    assert_int_equal(sh_machine_add_points(path, "cpu", &p, 1), SH_E_USAGE);
    assert_non_null(strstr(sh_error_text(), "last section"));
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_make_nodes),
        cmocka_unit_test(beginnings_of_names_do),
        cmocka_unit_test(ranks_choose_the_node),
        cmocka_unit_test(files_go_over_presets),
        cmocka_unit_test(wrong_files_are_refused),
        cmocka_unit_test(points_correct_the_formula),
        cmocka_unit_test(attention_costs_what_its_kernel_does),
        cmocka_unit_test(attention_without_tensor_cores),
        cmocka_unit_test(the_delta_rule_costs_its_products),
        cmocka_unit_test(points_are_met),
        cmocka_unit_test(experts_cost_more_than_one),
        cmocka_unit_test(orthogonal_factors_are_products),
        cmocka_unit_test(points_of_matrices_are_met),
        cmocka_unit_test(points_between_nodes_want_a_network),
        cmocka_unit_test(points_are_written),
        cmocka_unit_test(a_fit_renews_its_steps),
        cmocka_unit_test(lists_in_the_middle_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
