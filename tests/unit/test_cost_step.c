/* The seconds of a step against closed forms: events over the streams, prices that never fall when work or distance
 * grows, failures, the slowest of many. */
#include "src/tools/predict/fail.h"
#include "src/tools/predict/limit.h"
#include "tests/unit/tiny.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

enum { MOST = 8 };
static const double slowdown = 0.5;

/* Computation takes a second per element, a gather of n elements on two ranks n seconds; nothing has a latency. */
static struct sh_machine plain_machine(void)
{
    struct sh_machine m;

    assert_int_equal(sh_machine_preset("h100-80x8-ndr400", &m), SH_OK);
    m.device.launch_seconds = m.network.base_seconds = m.inside.hop_seconds = m.host.step_seconds = m.spread.node = 0;
    m.memory.bytes_per_second = 8;
    m.memory.share = 1;
    m.inside.bytes_per_second = 2;
    m.overlap.slowdown = slowdown;
    return m;
}

/* An operation of a case. after: number of another operation of the case. */
struct step_op {
    enum sh_op_kind kind;
    int64_t elems;
    int stream, waits_for, after;
};
#define COMPUTE(n)                                   \
    {                                                \
        SH_OP_COPY, n, SH_STREAM_COMPUTE, 0, SH_NONE \
    }
#define GATHER(n)                                         \
    {                                                     \
        SH_OP_ALL_GATHER, n, SH_STREAM_GATHER, 0, SH_NONE \
    }
#define GATHER_ON(stream, n, after)           \
    {                                         \
        SH_OP_ALL_GATHER, n, stream, 0, after \
    }
#define WAIT(i)                                      \
    {                                                \
        SH_OP_WAIT, 0, SH_STREAM_COMPUTE, i, SH_NONE \
    }

static int tensor(struct sh_program *p, int64_t elems)
{
    struct sh_tensor t = sh_tensor_make(SH_MEM_ACT, SH_F32, 1, &elems, "t");

    return sh_program_add_tensor(p, &t);
}

static struct sh_program *program(const struct step_op *ops, int n, int repeat, sh_group group)
{
    struct sh_program *p = sh_program_create(SH_F32);

    sh_program_add_section(p, SH_SECTION_ONLY, repeat);
    for (int i = 0; i < n; i++) {
        struct sh_op op = sh_program_op(ops[i].kind);

        op.stream = ops[i].stream;
        op.attr.waits_for = ops[i].waits_for;
        op.attr.after = ops[i].after;
        op.attr.group = group;
        if (ops[i].elems) {
            op.in[0] = tensor(p, ops[i].elems);
            op.out[0] = tensor(p, ops[i].elems);
        }
        sh_program_add_op(p, &op);
        p->sections[0].n_ops = i + 1;
    }
    return p;
}

struct step_case {
    const char *what;
    struct step_op ops[MOST];
    int n;
    double seconds, slowed, exposed;
};

static const struct step_case cases[] = {
    {"gather in front of computation", {GATHER(10), WAIT(0), COMPUTE(5)}, 3, 15, 0, 10},
    /* 10 s of a gather take 10 / 1.5 s of computation; 23.33 s are left after it. */
    {"all hidden", {GATHER(10), COMPUTE(30), WAIT(0)}, 3, 10 + 30 - 10 / 1.5, 10 - 10 / 1.5, 0},
    {"partly hidden", {GATHER(10), COMPUTE(4), WAIT(0)}, 3, 10, 2, 4},
    {"nothing to hide behind", {GATHER(3), WAIT(0), GATHER(4), WAIT(2)}, 4, 7, 0, 7},
    {"two in one queue", {GATHER(3), GATHER(4), WAIT(0), WAIT(1)}, 4, 7, 0, 7},
    /* 3 and 5 at half the rate: the first ends at 6, with 2 of the other left, at the whole rate. */
    {"two that share a link", {GATHER(3), GATHER_ON(SH_STREAM_REDUCE, 5, SH_NONE), WAIT(0), WAIT(1)}, 4, 8, 0, 8},
    /* The second has the link from 3 to 8; 2 s of computation next to it take 3. In parallel the first would end at 6.
     * */
    {"one after the other", {GATHER(3), GATHER_ON(SH_STREAM_REDUCE, 5, 0), WAIT(0), COMPUTE(2), WAIT(1)}, 5, 8, 1, 5},
    {"waited for later than complete",
     {GATHER(2), COMPUTE(10), WAIT(0), COMPUTE(1)},
     4,
     11 + 2 - 2 / 1.5,
     2 - 2 / 1.5,
     0},
};

static struct sh_cost_request request_of(const struct sh_program *p, const struct sh_mesh_shape *mesh,
                                         const struct sh_machine *m)
{
    return (struct sh_cost_request){.p = p, .mesh = mesh, .machine = m, .ranks_per_node = 8, .faster = sh_cost_as_is};
}

static void sum(const struct sh_cost_step *step, double *slowed, double *exposed)
{
    *slowed = *exposed = 0;
    for (int c = 0; c < SH_COST_CLASSES; c++) {
        *slowed += step->row[c].slowed;
        *exposed += step->row[c].exposed;
    }
}

/* Moves share the disk, and with three slices at once only the disk time beyond the updates is waited for. */
static void moves_take_the_rate_of_the_disk(void **state)
{
    struct sh_build b = tiny_build(&tiny_models[1], 1);
    struct sh_machine m = plain_machine();
    struct sh_cost_step slow, fast;
    struct sh_program *p;
    struct sh_cost_request r;
    int64_t in, out;

    (void)state;
    b.model.ffn_dim = 500;
    b.offload = (struct sh_offload){.optimizer_16 = 16, .buffers = 3, .slice_elems = SH_SLICE_MULTIPLE};
    p = tiny_program(&b, b.options.mesh);
    sh_program_moved(p, &in, &out);
    r = request_of(p, &b.options.mesh, &m);
    m.memory.bytes_per_second = 1e12;
    m.scratch.read = 8e6;
    m.scratch.write = 4e6;
    assert_int_equal(sh_cost_step(&r, &slow), SH_OK);
    assert_true(slow.row[SH_COST_MOVES].bytes == (double)(in + out) && slow.row[SH_COST_MOVES].slowed == 0);
    /* Each of the eight ranks of a node has a part of the disk. */
    assert_true(fabs(slow.row[SH_COST_MOVES].alone / (8.0 * (double)in / 8e6 + 8.0 * (double)out / 4e6) - 1) < 1e-9);
    assert_true(slow.row[SH_COST_MOVES].exposed > 0.9 * slow.row[SH_COST_MOVES].alone);
    m.scratch.read = m.scratch.write = 1e18;
    assert_int_equal(sh_cost_step(&r, &fast), SH_OK);
    assert_true(fast.seconds < 0.1 * slow.seconds);
    sh_program_destroy(p);
}

static void events_are_as_in_closed_forms(void **state)
{
    struct sh_machine m = plain_machine();
    struct sh_mesh_shape mesh = tiny_mesh(2, 1, 1, 0);

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int repeat = 1; repeat <= 3; repeat += 2) {
            struct sh_program *p = program(cases[i].ops, cases[i].n, repeat, mesh.shard);
            struct sh_cost_request r = request_of(p, &mesh, &m);
            struct sh_cost_step step;
            double slowed, exposed;

            assert_int_equal(sh_cost_step(&r, &step), SH_OK);
            sum(&step, &slowed, &exposed);
            if (fabs(step.seconds - repeat * cases[i].seconds) > 1e-9 ||
                fabs(slowed - repeat * cases[i].slowed) > 1e-9 || fabs(exposed - repeat * cases[i].exposed) > 1e-9)
                fail_msg("%s: %g s, slowed %g, exposed %g", cases[i].what, step.seconds, slowed, exposed);
            sh_program_destroy(p);
        }
}

/* With one communicator the second collective waits for the first, and is hidden no better. */
static void one_communicator_is_serial(void **state)
{
    static const struct step_op ops[] = {GATHER(4), GATHER_ON(SH_STREAM_REDUCE, 2, SH_NONE), WAIT(1), WAIT(0)};
    struct sh_machine m = plain_machine();
    struct sh_mesh_shape mesh = tiny_mesh(2, 1, 1, 0);
    struct sh_program *p = program(ops, 3, 1, mesh.shard);
    struct sh_cost_request r = request_of(p, &mesh, &m);
    struct sh_cost_step step;

    (void)state;
    /* Shared, the shorter one ends after 4 s; alone, after the 4 s of the other. */
    assert_int_equal(sh_cost_step(&r, &step), SH_OK);
    assert_true(fabs(step.seconds - 4) < 1e-9);
    m.overlap.serial = 1;
    assert_int_equal(sh_cost_step(&r, &step), SH_OK);
    assert_true(fabs(step.seconds - 6) < 1e-9);
    sh_program_destroy(p);
}

/* Node after node of 8 ranks is added; checks the price of each collective, and of the step of a real program. */
static void prices_never_fall(void **state)
{
    static const enum sh_op_kind kinds[] = {SH_OP_ALL_GATHER, SH_OP_REDUCE_SCATTER, SH_OP_ALL_REDUCE, SH_OP_ALL_TO_ALL};
    struct sh_machine m;

    (void)state;
    assert_int_equal(sh_machine_preset("a100-80x8-hdr200", &m), SH_OK);
    for (int k = 0; k < 4; k++) {
        double before_ranks = 0;

        for (int ranks = 2; ranks <= 4096; ranks *= 2) {
            struct sh_mesh_shape mesh = tiny_mesh(ranks, 1, 1, 0);
            struct sh_coll_place at = sh_coll_place(&mesh, mesh.shard, 8);
            double before = 0, large = sh_price_coll(&m, &sh_cost_as_is, kinds[k], &at, 1e9).seconds;
            struct sh_machine slow = m;

            assert_int_equal(at.nodes, ranks <= 8 ? 1 : ranks / 8);
            assert_int_equal(at.rings, 1);
            assert_true(large >= before_ranks);
            before_ranks = large;
            for (double bytes = 1; bytes < 1e10; bytes *= 4) {
                double s = sh_price_coll(&m, &sh_cost_as_is, kinds[k], &at, bytes).seconds;

                assert_true(s >= before);
                before = s;
            }
            slow.inside.hop_seconds *= 2;
            slow.network.hop_seconds *= 2;
            assert_true(sh_price_coll(&slow, &sh_cost_as_is, kinds[k], &at, 1e6).seconds >=
                        sh_price_coll(&m, &sh_cost_as_is, kinds[k], &at, 1e6).seconds);
        }
    }
}

/* Each rank of a node has its own ring over the other nodes, and the ranks share the node's network. */
static void replicas_share_the_network_of_a_node(void **state)
{
    struct sh_mesh_shape mesh = tiny_mesh(8, 64, 1, 13);
    struct sh_coll_place at = sh_coll_place(&mesh, mesh.replicate, 8);

    (void)state;
    assert_int_equal(at.ranks, 64);
    assert_int_equal(at.nodes, 64);
    assert_int_equal(at.rings, 8);
    at = sh_coll_place(&mesh, mesh.shard, 8);
    assert_int_equal(at.nodes, 1);
}

/* Latency of a flat gather over 1,024 ranks, 8 per node: NCCL needs 5 to 6 ms there before a byte moves. */
static void latency_of_a_flat_gather(void **state)
{
    struct sh_mesh_shape mesh = tiny_mesh(1024, 1, 1, 0);
    struct sh_coll_place at = sh_coll_place(&mesh, mesh.shard, 8);
    struct sh_machine m;
    double latency;

    (void)state;
    assert_int_equal(sh_machine_preset("h100-80x8-ndr400", &m), SH_OK);
    latency = sh_price_coll(&m, &sh_cost_as_is, SH_OP_ALL_GATHER, &at, 1).latency;
    assert_true(latency > 5e-3 && latency < 6e-3);
}

/* Realistic values: a Monte Carlo simulation agrees within 0.002. */
static void goodput_as_simulated(void **state)
{
    static const struct {
        double devices, save, restart, every, goodput;
    } rows[] = {{4096, 5, 120, 664, 0.9824}, {16384, 60, 600, 1116, 0.8538}};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct sh_predict_failures f = {50700.0 * 3600 / rows[i].devices, rows[i].save, rows[i].restart};
        double every = sh_predict_best_interval(&f);

        assert_true(fabs(every - rows[i].every) < 1);
        assert_true(fabs(sh_predict_goodput(&f, every) - rows[i].goodput) < 1e-4);
        assert_true(sh_predict_goodput(&f, every * 1.1) < sh_predict_goodput(&f, every));
        assert_true(sh_predict_goodput(&f, every / 1.1) < sh_predict_goodput(&f, every));
    }
}

/* Expected maximum of k normal numbers, from tables of order statistics. */
static void slowest_of_many(void **state)
{
    (void)state;
    assert_true(sh_cost_slowest(1) == 0);
    assert_true(fabs(sh_cost_slowest(100) - 2.51) < 0.2);
    assert_true(fabs(sh_cost_slowest(1000) - 3.24) < 0.2);
    assert_true(sh_cost_slowest(2048) > sh_cost_slowest(64));
}

static struct sh_cost_step step_of(struct sh_cost_request r)
{
    struct sh_cost_step step;

    assert_int_equal(sh_cost_step(&r, &step), SH_OK);
    return step;
}

static struct sh_build large_build(void)
{
    struct sh_build b = tiny_build(&not_tiny_model, 1);

    b.batch.seq = 4096;
    b.act = SH_BF16;
    b.kernels = &sh_kernels_cuda;
    b.options.micro_steps = 4;
    b.recompute = (struct sh_recompute){.full = SH_ALL_BLOCKS};
    b.options.mesh = tiny_mesh(512, 8, 1, 0);
    return b;
}

/* A faster part never makes the step slower, and the step is never faster than its products alone. */
static void faster_parts_make_faster_steps(void **state)
{
    struct sh_build b = large_build();
    struct sh_program *p = tiny_program(&b, b.options.mesh);
    struct sh_machine m;
    struct sh_cost_request r = request_of(p, &b.options.mesh, &m);
    double as_it_is, gain, more;
    struct sh_predict_limit limits[2];
    struct sh_cost_step step;
    char text[SH_PREDICT_LIMIT_TEXT], share[SH_PREDICT_LIMIT_TEXT];

    (void)state;
    assert_int_equal(sh_machine_preset("h100-80x8-ndr400", &m), SH_OK);
    step = step_of(r);
    as_it_is = step.seconds;
    assert_true(as_it_is > step.row[SH_COST_PRODUCTS].alone);
    for (int i = 0; i < sh_predict_n_parts; i++) {
        assert_int_equal(sh_predict_gain(&r, &sh_predict_parts[i], 1.5, as_it_is, &gain), SH_OK);
        assert_int_equal(sh_predict_gain(&r, &sh_predict_parts[i], 0, as_it_is, &more), SH_OK);
        assert_true(gain >= -1e-12 && more >= gain);
    }
    assert_int_equal(sh_predict_limits(&r, as_it_is, limits), SH_OK);
    assert_string_equal(limits[0].part->name, "products");
    assert_true(limits[0].gain >= limits[1].gain && limits[1].gain > 0);
    /* In words: a class of the table by its share there, anything else by what its absence would save. */
    snprintf(share, sizeof share, "products, %.0f %% of the step", 100 * step.row[SH_COST_PRODUCTS].alone / as_it_is);
    assert_string_equal(sh_predict_limit_text(&limits[0], &step, text), share);
    limits[0] = (struct sh_predict_limit){.part = &sh_predict_parts[2], .gain = 1};
    assert_string_equal(sh_predict_limit_text(&limits[0], &step, text),
                        "latency, without which a step would be 50.0 % shorter");
    assert_string_equal(sh_predict_gain_text(-0.07, text), "7.0 % slower");
    assert_string_equal(sh_predict_gain_text(0.07, text), "7.0 % faster");
    sh_program_destroy(p);
}

/* On CPUs the ranks of a node share memory, and its network if there are many: 64 ranks on 4 nodes send a sixteenth. */
static void cpus_of_a_node_speak_for_each_other(void **state)
{
    static const struct {
        int ranks, nodes, block;
    } rows[] = {{64, 4, 16}, {96, 4, 8}, {60, 4, 1}, {32, 2, 1}, {64, 64, 1}};
    struct sh_build b = large_build();
    struct sh_program *p;
    struct sh_machine m;
    struct sh_cost_request r = request_of(NULL, &b.options.mesh, &m);
    double alone;

    (void)state;
    assert_int_equal(sh_machine_preset("cpux16-eth25", &m), SH_OK);
    m.network.bytes_per_second /= 16; /* one port per node */
    b.options.mesh = tiny_mesh(64, 1, 1, 0);
    r.p = p = tiny_program(&b, b.options.mesh);
    r.ranks_per_node = 16;
    alone = step_of(r).row[SH_COST_REDUCE_SCATTER].alone;
    r.shares = true;
    assert_true(step_of(r).row[SH_COST_REDUCE_SCATTER].alone < alone / 3);
    sh_program_destroy(p);

    m.memory.bytes_per_second = m.inside.bytes_per_second = 1e30;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct sh_coll_place at = {.ranks = rows[i].ranks, .nodes = rows[i].nodes, .rings = 1};
        struct sh_price direct = sh_price_coll(&m, &sh_cost_as_is, SH_OP_ALL_GATHER, &at, 1e9), levels;

        at.levels = true;
        levels = sh_price_coll(&m, &sh_cost_as_is, SH_OP_ALL_GATHER, &at, 1e9);
        assert_true(fabs(direct.transfer / levels.transfer - rows[i].block) < 1e-9);
        assert_true(rows[i].block == 1 ? levels.latency == direct.latency : levels.latency < direct.latency);
    }
}

/* Blocks of 16 on 4 nodes communicate with 3 others; blocks of 8 on nodes of 24 ranks with 2 on their node and 9 on
 * other nodes. A barrier takes 6 us, a message 5, each further message 1, and a collective 5 before them. Memory moves
 * 20 GB/s, a node's network 10. */
static void levels_are_three_phases(void **state)
{
    static const struct {
        enum sh_op_kind kind;
        int ranks;
        bool half;
        double bytes, latency, transfer; /* us */
    } rows[] = {
        /* reduce 3 MB, send 3/4 MB, broadcast 2 MB */
        {SH_OP_REDUCE_SCATTER, 64, false, 1e6, 5 + 6 + (5 + 2 * 1), 150 + 75},
        {SH_OP_ALL_GATHER, 64, false, 1e6, 5 + 6 + (5 + 2 * 1), 75 + 100},
        {SH_OP_ALL_REDUCE, 64, false, 1e6, 5 + 2 * (6 + 5 + 2 * 1), 150 + 2 * 75 + 100},
        {SH_OP_ALL_REDUCE, 64, true, 1e6, 5 + 2 * (6 + 5 + 2 * 1), 150 + 3 * 75 + 100},
        /* a part of 10 kB to 9 others by each of 24 ranks */
        {SH_OP_ALL_REDUCE, 96, false, 0.96e6, 5 + 2 * (6 + 5 + 10 * 1), 144 + 2 * 216 + 96},
        /* 4 rounds in a node and 2 between nodes; 15 operands of 8 bytes from the node at 5 GB/s, 48 from others by 16
         * ranks */
        {SH_OP_ALL_REDUCE, 64, false, 8, 5 + 4 * 1 + 2 * 5, 15 * 8 / 5e3 + 16 * 48 * 8 / 10e3},
        {SH_OP_ALL_REDUCE, 64, false, 4096, 19, 15 * 4096 / 5e3 + 16 * 48 * 4096 / 10e3},
        {SH_OP_ALL_REDUCE, 64, false, 4100, 31, 4100 * 400e-6},
        /* a part to 48 others by each of the 16 ranks of a node */
        {SH_OP_ALL_TO_ALL, 64, false, 1e6, 5 + 60 * 1 + 3 * 5, 1e6 / 64 * 16 * 48 / 10e3},
    };
    struct sh_machine m;

    (void)state;
    assert_int_equal(sh_machine_preset("cpux16-eth25", &m), SH_OK);
    m.network.bytes_per_second = 10e9;
    m.network.share = 1;
    m.network.crowding = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct sh_coll_place at = {
            .ranks = rows[i].ranks, .nodes = 4, .rings = 1, .levels = true, .half = rows[i].half};
        struct sh_price price = sh_price_coll(&m, &sh_cost_as_is, rows[i].kind, &at, rows[i].bytes);

        assert_true(fabs(price.latency * 1e6 - rows[i].latency) < 1e-9);
        assert_true(fabs(price.transfer * 1e6 - rows[i].transfer) < 1e-9 * rows[i].transfer);
    }
}

/* Rows that ranks fetch from the memory of a node are read and written once; nothing is sent. */
static void rows_of_a_node_are_copied(void **state)
{
    struct sh_coll_place at = {.ranks = 2, .nodes = 1, .rings = 1, .segment = true};
    struct sh_machine m;
    struct sh_price price;

    (void)state;
    assert_int_equal(sh_machine_preset("cpux16-eth25", &m), SH_OK);
    price = sh_price_coll(&m, &sh_cost_as_is, SH_OP_ALL_TO_ALL, &at, 1e6);
    assert_true(price.link == SH_LINK_MEMORY && fabs(price.latency - m.inside.barrier_seconds) < 1e-12);
    assert_true(fabs(price.transfer - 2e6 / (m.memory.bytes_per_second * m.memory.share)) < 1e-12);
    at.others = true;
    price = sh_price_coll(&m, &sh_cost_as_is, SH_OP_ALL_TO_ALL, &at, 1e6);
    assert_true(fabs(price.transfer - 1e6 / (m.memory.bytes_per_second * m.memory.share)) < 1e-12);
}

/* Between blocks, sums of bfloat16 are sent in float32: reducing in bfloat16 saves nothing there, but half of each
 * direct message. */
static void sums_of_halves_travel_whole(void **state)
{
    static const struct {
        enum sh_op_kind kind;
        bool levels;
        double ratio; /* relative to the time of the same number of bytes otherwise */
    } rows[] = {{SH_OP_REDUCE_SCATTER, true, 2},
                {SH_OP_ALL_REDUCE, true, 1.5},
                {SH_OP_ALL_GATHER, true, 1},
                {SH_OP_REDUCE_SCATTER, false, 1},
                {SH_OP_ALL_REDUCE, false, 1}};
    struct sh_build b = large_build();
    struct sh_program *p;
    struct sh_machine m;
    struct sh_cost_request r = request_of(NULL, &b.options.mesh, &m);
    double whole;

    (void)state;
    assert_int_equal(sh_machine_preset("cpux16-eth25", &m), SH_OK);
    m.memory.bytes_per_second = 1e30;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct sh_coll_place at = {.ranks = 64, .nodes = 4, .rings = 1, .levels = rows[i].levels};
        double before = sh_price_coll(&m, &sh_cost_as_is, rows[i].kind, &at, 1e9).transfer;

        at.half = true;
        assert_true(fabs(sh_price_coll(&m, &sh_cost_as_is, rows[i].kind, &at, 1e9).transfer / before - rows[i].ratio) <
                    1e-9);
    }
    b.options.mesh = tiny_mesh(64, 1, 1, 0);
    r.ranks_per_node = 16;
    r.shares = true;
    r.p = p = tiny_program(&b, b.options.mesh);
    whole = step_of(r).row[SH_COST_REDUCE_SCATTER].alone;
    sh_program_destroy(p);
    b.options.reduce = SH_BF16;
    r.p = p = tiny_program(&b, b.options.mesh);
    assert_true(step_of(r).row[SH_COST_REDUCE_SCATTER].alone > 0.9 * whole);
    sh_program_destroy(p);
}

static double attention_seconds(int window, int interval)
{
    struct sh_build b = large_build();
    struct sh_machine m;
    struct sh_cost_request r = request_of(NULL, &b.options.mesh, &m);
    struct sh_program *p;
    double seconds;

    b.model.n_layers = 2;
    b.model.attention_window = window;
    if (interval)
        snprintf(b.model.layer_types, sizeof b.model.layer_types, "%d*sliding,full", interval - 1);
    b.options.mesh = tiny_mesh(8, 1, 1, 0);
    assert_int_equal(sh_machine_preset("h100-80x8", &m), SH_OK);
    m.attention.own = m.attention.ordered = 1;
    m.attention.ordered_bytes = 0;
    r.p = p = tiny_program(&b, b.options.mesh);
    seconds = step_of(r).row[SH_COST_ATTENTION].alone;
    sh_program_destroy(p);
    return seconds;
}

/* With kernels that are equally fast, a window of a sixteenth of the sequence leaves 12 % of the pairs; each of the two blocks has its own price. */
static void windows_cost_what_they_see(void **state)
{
    double all = attention_seconds(0, 0), some = attention_seconds(256, 0), mixed = attention_seconds(256, 2);

    (void)state;
    assert_true(some > 0.12 * all && some < 0.14 * all);
    assert_true(fabs(mixed - (all + some) / 2) < 1e-9 * all);
    assert_true(attention_seconds(4096, 0) == all);
}

static double cpu_seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* 2 ms on a quiet machine (doc/notebook/prediction.md). Measures the time of this thread, the best of several tries, because
 * other processes disturb the caches. */
static void predictions_are_quick(void **state)
{
    const double most_a_12000 = 8e-3;
    struct sh_build b = large_build();
    struct sh_program *p = tiny_program(&b, b.options.mesh);
    struct sh_machine m;
    struct sh_cost_request r = request_of(p, &b.options.mesh, &m);
    double best = 1, most = most_a_12000 * fmax(1, p->n_ops / 12000.0);

    (void)state;
    assert_int_equal(sh_machine_preset("h100-80x8-ndr400", &m), SH_OK);
    for (int i = 0; i < 20 || (i < 400 && best >= most); i++) {
        double begin = cpu_seconds();

        step_of(r);
        best = fmin(best, cpu_seconds() - begin);
    }
    print_message("# %d operations in %.3f ms\n", p->n_ops, best * 1e3);
    assert_true(best < most);
    sh_program_destroy(p);
}

static void machines_without_a_network_are_refused(void **state)
{
    struct sh_machine m;
    struct sh_mesh_shape mesh = tiny_mesh(16, 1, 1, 0);
    struct sh_program *p = program(cases[0].ops, cases[0].n, 1, mesh.shard);
    struct sh_cost_request r = request_of(p, &mesh, &m);
    struct sh_cost_step step;

    (void)state;
    assert_int_equal(sh_machine_preset("h100-80x8", &m), SH_OK);
    assert_int_equal(sh_cost_step(&r, &step), SH_E_USAGE);
    assert_non_null(strstr(sh_error_text(), "no network"));
    sh_program_destroy(p);
}

/* In shared memory nothing is gathered, and sums read all bytes. */
static void segments_cost_what_they_read(void **state)
{
    struct sh_coll_place at = {.ranks = 4, .nodes = 1, .rings = 1, .segment = true};
    struct sh_machine m;
    double once, twice;

    (void)state;
    assert_int_equal(sh_machine_preset("cpux4-eth100", &m), SH_OK);
    once = sh_price_coll(&m, &sh_cost_as_is, SH_OP_REDUCE_SCATTER, &at, 1e9).transfer;
    twice = sh_price_coll(&m, &sh_cost_as_is, SH_OP_REDUCE_SCATTER, &at, 2e9).transfer;
    assert_true(once >= 1e9 / m.memory.bytes_per_second && fabs(twice / once - 2) < 1e-9);
    assert_true(sh_price_coll(&m, &sh_cost_as_is, SH_OP_ALL_GATHER, &at, 1e9).transfer == 0);
}

/* The whole is what a gather makes and what a reduction begins with: never the shard. */
static void the_whole_is_no_shard(void **state)
{
    struct sh_build b = tiny_build(&tiny_models[1], 1);
    struct sh_program *p = tiny_program(&b, tiny_mesh(2, 1, 1, 0));
    int n = 0;

    (void)state;
    for (int i = 0; i < p->n_ops; i++) {
        const struct sh_op *op = &p->ops[i];
        int64_t in, out;

        if (!sh_op_info(op->kind)->async)
            continue;
        in = op->in[0] == SH_NONE ? 0 : sh_tensor_bytes(&p->tensors[op->in[0]]);
        out = sh_tensor_bytes(&p->tensors[op->out[0]]);
        assert_true(sh_coll_whole(p, op) == (double)(in > out ? in : out));
        n += in != out;
    }
    assert_true(n > 4);
    sh_program_destroy(p);
}

/* Elements that change hands in an exchange by cuts, all groups together: those whose home is not their owner's chunk, to one
 * place of each group or to all (SH_NONE); or those that one of the ranks that share gives to each of the others. */
static int64_t moved_elems(const struct sh_program *p, const struct sh_op *op, int shard, int replicate, int to)
{
    const int64_t *cuts = sh_program_cuts(p, op);
    int64_t chunk = sh_program_part_elems(p, op, shard), n = op->attr.exchange.sharers, moved = 0;

    for (int r = 0; n && r < shard; r++)
        moved += (cuts[r * (n + 1) + n] - cuts[r * (n + 1)]) * (n - 1) * (replicate / n);
    for (int r = 0; !n && r < shard; r++)
        for (int64_t e = cuts[r]; e < cuts[r + 1]; e++)
            if (e / chunk != r && (to == SH_NONE || to == (op->attr.exchange.back ? e / chunk : r)))
                moved += replicate;
    return moved;
}

/* Owners of matrices receive unequal parts. All ranks together receive what is not where it should be, there and back. */
static void each_rank_receives_its_own_parts(void **state)
{
    static const struct {
        int shard, replicate, owners;
    } jobs[] = {{2, 1, 0}, {3, 1, 0}, {3, 1, 1}, {2, 2, 0}, {1, 3, 0}, {3, 2, 3}, {2, 4, 4}};
    int unequal = 0, given = 0;

    (void)state;
    for (size_t k = 0; k < sizeof jobs / sizeof *jobs; k++) {
        struct sh_build b = tiny_build(&tiny_models[1], 1);
        double received[2] = {0}, first[2] = {0}, moved[2] = {0}; /* by cuts; of ranks that share */
        int world = jobs[k].shard * jobs[k].replicate;

        b.options.optim = sh_optim_of(SH_OPTIM_MUON);
        b.options.ortho.owners = jobs[k].owners;
        for (int rank = 0; rank < world; rank++) {
            struct sh_mesh_shape mesh = tiny_mesh(jobs[k].shard, jobs[k].replicate, 1, rank);
            struct sh_program *p = tiny_program(&b, mesh);

            for (int i = 0; i < p->n_ops; i++) {
                const struct sh_op *op = &p->ops[i];
                bool shares = op->attr.exchange.sharers > 0;
                int here = sh_group_index(&mesh, mesh.shard);
                double bytes;

                if (!sh_program_cuts(p, op))
                    continue;
                bytes = sh_coll_received_by(p, &mesh, op);
                assert_true(shares || bytes == 4. * (double)moved_elems(p, op, jobs[k].shard, 1, here));
                received[shares] += bytes;
                first[shares] += rank == 0 ? bytes : 0;
                if (rank == 0)
                    moved[shares] += 4. * (double)moved_elems(p, op, jobs[k].shard, jobs[k].replicate, SH_NONE);
            }
            sh_program_destroy(p);
        }
        assert_true(received[0] == moved[0] && received[1] == moved[1] && received[0] + received[1] > 0);
        unequal += received[0] != world * first[0] || received[1] != world * first[1];
        given += received[1] > 0;
    }
    assert_true(unequal > 2 && given > 2);
}

/* Counted rows need room for many, but those that are expected travel; two waves of one shape may differ in them. */
static void expected_rows_have_the_price(void **state)
{
    struct sh_program *p = sh_program_create(SH_BF16);
    struct sh_tensor x = sh_tensor_make(SH_MEM_ACT, SH_BF16, 1, (const int64_t[]){5000}, "x");
    struct sh_tensor parts = sh_tensor_make(SH_MEM_ACT, SH_I32, 3, (const int64_t[]){2, 4, 4}, "parts");
    struct sh_op op = sh_program_op(SH_OP_ALL_TO_ALL);

    (void)state;
    op.in[0] = sh_program_add_tensor(p, &x);
    op.in[1] = sh_program_add_tensor(p, &parts);
    x.dim[0] = 3000;
    op.out[0] = sh_program_add_tensor(p, &x);
    op.attr.exchange.row_elems = 10;
    assert_true(sh_program_part_elems(p, &op, 4) == 3000);
    assert_true(sh_coll_whole(p, &op) == 5000 * 2);
    op.attr.exchange.expected = 200;
    assert_true(sh_coll_whole(p, &op) == 200 * 10 * 2);
    sh_program_destroy(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_rank_receives_its_own_parts),
        cmocka_unit_test(expected_rows_have_the_price),
        cmocka_unit_test(events_are_as_in_closed_forms),
        cmocka_unit_test(moves_take_the_rate_of_the_disk),
        cmocka_unit_test(one_communicator_is_serial),
        cmocka_unit_test(prices_never_fall),
        cmocka_unit_test(replicas_share_the_network_of_a_node),
        cmocka_unit_test(cpus_of_a_node_speak_for_each_other),
        cmocka_unit_test(levels_are_three_phases),
        cmocka_unit_test(rows_of_a_node_are_copied),
        cmocka_unit_test(sums_of_halves_travel_whole),
        cmocka_unit_test(latency_of_a_flat_gather),
        cmocka_unit_test(goodput_as_simulated),
        cmocka_unit_test(slowest_of_many),
        cmocka_unit_test(faster_parts_make_faster_steps),
        cmocka_unit_test(windows_cost_what_they_see),
        cmocka_unit_test(predictions_are_quick),
        cmocka_unit_test(machines_without_a_network_are_refused),
        cmocka_unit_test(segments_cost_what_they_read),
        cmocka_unit_test(the_whole_is_no_shard),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
