/* The step of a pipeline: its stages are simulated together, and wait for each other as the schedule says. */
#include "src/cost/step.h"
#include "src/pass/pipeline/order.h"
#include "src/pass/pipeline/stages.h"
#include "tests/unit/tiny.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { STAGES_MAX = 8, MICROS_MAX = 32, CHUNKS_MAX = 3 };

/* Computation takes a second per element, a message of n elements n seconds between nodes; nothing has a latency. */
static struct sh_machine plain_machine(void)
{
    struct sh_machine m;

    assert_int_equal(sh_machine_preset("h100-80x8-ndr400", &m), SH_OK);
    m.device.launch_seconds = m.network.base_seconds = m.inside.hop_seconds = m.network.hop_seconds = 0;
    m.host.step_seconds = m.spread.node = m.network.crowding = 0;
    m.memory.bytes_per_second = 8;
    m.memory.share = m.network.share = m.network.taper = 1;
    m.inside.bytes_per_second = m.network.bytes_per_second = 4;
    return m;
}

/* What a message and an item take, in seconds; a stage may be slower. */
struct job {
    int stages, micros, slow;
    int forward, backward, more, message;
    int chunks; /* of a stage; an item is for one */
    bool apart; /* half of the backward is for weights, and comes later */
};

static int tensor(struct sh_program *p, int64_t elems)
{
    struct sh_tensor t = sh_tensor_make(SH_MEM_ACT, SH_F32, 1, &elems, "t");

    return sh_program_add_tensor(p, &t);
}

static int add(struct sh_program *p, enum sh_op_kind kind, int64_t in, int64_t out, struct sh_op_attr attr)
{
    struct sh_op op = sh_program_op(kind);

    op.attr = attr;
    if (in)
        op.in[0] = tensor(p, in);
    if (out)
        op.out[0] = tensor(p, out);
    p->sections[0].n_ops = p->n_ops + 1;
    return sh_program_add_op(p, &op);
}

/* Start a message of an item; SH_NONE: it has none. */
static int start(struct sh_program *p, const struct job *j, const struct sh_mesh_shape *mesh, enum sh_op_kind kind,
                 const struct sh_pipe_item *item)
{
    bool back = item->part == SH_PIPE_BACKWARD;
    int place = sh_group_index(mesh, mesh->pipeline), chunk = item->chunk * j->stages + place;
    int other = (kind == SH_OP_SEND) == back ? chunk - 1 : chunk + 1, at;
    struct sh_op_attr attr = sh_program_op(kind).attr;

    if (item->part == SH_PIPE_WEIGHTS || other < 0 || other >= j->stages * j->chunks)
        return SH_NONE;
    attr.group = mesh->pipeline;
    attr.link.peer = other % j->stages - place;
    attr.link.micro = item->micro;
    at = add(p, kind, kind == SH_OP_SEND ? j->message : 0, kind == SH_OP_SEND ? 0 : j->message, attr);
    p->ops[at].phase = back ? SH_PHASE_BACKWARD : SH_PHASE_FORWARD;
    return at;
}

static void wait_for(struct sh_program *p, int message)
{
    struct sh_op_attr attr = sh_program_op(SH_OP_WAIT).attr;

    attr.waits_for = message;
    if (message != SH_NONE)
        add(p, SH_OP_WAIT, 0, 0, attr);
}

static int seconds_of(const struct job *j, int place, enum sh_pipe_part part)
{
    int seconds = part == SH_PIPE_FORWARD ? j->forward : j->backward / (1 + j->apart);

    return seconds + (place == j->slow) * j->more;
}

/* As the pass pipeline does: a message is asked for one item ahead, and one that was sent is waited for one item later. */
static struct sh_program *stage_of(const struct job *j, const struct sh_mesh_shape *mesh)
{
    struct sh_program *p = sh_program_create(SH_F32);
    int place = sh_group_index(mesh, mesh->pipeline), asked, sent = SH_NONE;
    struct sh_pipe pipe = {j->stages, j->micros, j->chunks, j->apart};
    struct sh_pipe_item items[SH_PIPE_PARTS * MICROS_MAX * CHUNKS_MAX];
    int n = sh_pipe_items(&pipe, place, items);

    sh_program_add_section(p, SH_SECTION_ONLY, 1);
    asked = start(p, j, mesh, SH_OP_RECEIVE, &items[0]);
    for (int k = 0; k < n; k++) {
        int came = asked, seconds = seconds_of(j, place, items[k].part);

        asked = k + 1 < n ? start(p, j, mesh, SH_OP_RECEIVE, &items[k + 1]) : SH_NONE;
        wait_for(p, came);
        add(p, SH_OP_COPY, seconds, seconds, sh_program_op(SH_OP_COPY).attr);
        wait_for(p, sent);
        sent = start(p, j, mesh, SH_OP_SEND, &items[k]);
    }
    wait_for(p, sent);
    return p;
}

/* One rank a node, so that messages cross the network. */
static void price(const struct job *j, const struct sh_machine *m, struct sh_cost_step *each)
{
    int axes[SH_AXES] = {1, 1, 1, 1, 1, 1, j->stages};
    struct sh_program *p[STAGES_MAX];
    struct sh_mesh_shape mesh[STAGES_MAX];
    struct sh_pipe_stages stages = {.n = j->stages, .p = p, .mesh = mesh};
    struct sh_cost_request r = {.stages = &stages, .machine = m, .ranks_per_node = 1, .faster = sh_cost_as_is};

    for (int s = 0; s < j->stages; s++) {
        mesh[s] = sh_mesh_shape_of(axes, s);
        p[s] = stage_of(j, &mesh[s]);
    }
    r.p = p[0];
    r.mesh = &mesh[0];
    assert_int_equal(sh_cost_stages(&r, each), SH_OK);
    for (int s = 0; s < j->stages; s++) {
        struct sh_cost_step own;

        r.p = p[s];
        r.mesh = &mesh[s];
        assert_int_equal(sh_cost_step(&r, &own), SH_OK);
        assert_true(own.seconds == each[s].seconds && own.bubble == each[s].bubble);
    }
    for (int s = 0; s < j->stages; s++)
        sh_program_destroy(p[s]);
}

static double exposed(const struct sh_cost_step *step)
{
    return step->row[SH_COST_MESSAGES].exposed;
}

static void expect_bubble(const struct job *j, const struct sh_machine *m)
{
    struct sh_pipe pipe = {j->stages, j->micros, j->chunks, j->apart};
    int busy = 3 * j->micros * j->chunks;
    struct sh_cost_step each[STAGES_MAX];

    price(j, m, each);
    for (int s = 0; s < j->stages; s++)
        if (fabs(each[s].seconds - busy * (1 + sh_pipe_bubble(&pipe))) > 1e-6 ||
            fabs(each[s].bubble - (each[s].seconds - busy)) > 1e-6 || exposed(&each[s]) > 1e-6)
            fail_msg("%d stages of %d chunks, %d micro-steps, apart %d, stage %d: %g s, %g s of bubble", j->stages,
                     j->chunks, j->micros, j->apart, s, each[s].seconds, each[s].bubble);
}

/* Equal stages and messages that take no time: (m + p - 1) times a forward and a backward, whatever each takes. */
static void bubble_is_that_of_the_schedule(void **state)
{
    struct sh_machine m = plain_machine();

    (void)state;
    m.network.bytes_per_second = m.inside.bytes_per_second = 1e18;
    for (int stages = 2; stages <= STAGES_MAX; stages *= 2)
        for (int micros = 1; micros <= MICROS_MAX; micros *= 2)
            for (int chunks = 1; chunks <= (micros % stages ? 1 : CHUNKS_MAX); chunks++) {
                expect_bubble(&(struct job){stages, micros, SH_NONE, 1, 2, 0, 1, chunks, false}, &m);
                if (chunks == 1)
                    expect_bubble(&(struct job){stages, micros, SH_NONE, 1, 2, 0, 1, 1, true}, &m);
            }
}

/* By hand: two stages. */
static void messages_take_time(void **state)
{
    static const struct {
        struct job j;
        double seconds, bubble[2], exposed[2];
    } rows[] = {
        /* F 0-1, message 1-6, F 6-7, B 7-9, message 9-14, B 14-16. Stage 0 waits from 1 to 14, 5 s of that for the
         * message itself; stage 1 waits at first, for what it has sent, and for the end. */
        {{2, 1, SH_NONE, 1, 2, 0, 5, 1, false}, 16, {8, 3}, {5, 10}},
        /* Stage 1 is the slower one: F 1-3, B 3-6, F 6-8, B 8-11; stage 0: F 0-1, F 1-2, B 6-8, B 11-13. */
        {{2, 2, 1, 1, 2, 1, 0, 1, false}, 13, {7, 3}, {0, 0}},
    };
    struct sh_machine m = plain_machine();

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct job j = rows[i].j;
        struct sh_cost_step each[STAGES_MAX];

        if (!j.message) {
            j.message = 1;
            m.network.bytes_per_second = m.inside.bytes_per_second = 1e18;
        }
        price(&j, &m, each);
        for (int s = 0; s < 2; s++)
            if (fabs(each[s].seconds - rows[i].seconds) > 1e-6 || fabs(each[s].bubble - rows[i].bubble[s]) > 1e-6 ||
                fabs(exposed(&each[s]) - rows[i].exposed[s]) > 1e-6)
                fail_msg("row %zu, stage %d: %g s, %g s of bubble, %g s exposed", i, s, each[s].seconds, each[s].bubble,
                         exposed(&each[s]));
    }
}

/* A message takes the link between its two ranks, which all ranks of a stage that are on the node share. */
static void messages_take_their_link(void **state)
{
    static const struct {
        int shard, stages, rank, peer, nodes, rings;
    } rows[] = {{8, 2, 0, 1, 2, 8}, {16, 2, 0, 1, 2, 8}, {4, 4, 0, 1, 1, 4},
                {4, 4, 4, 1, 2, 4}, {4, 4, 8, -1, 2, 4}, {1, 8, 3, 1, 1, 1}};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int axes[SH_AXES] = {1, 1, 1, 1, rows[i].shard, 1, rows[i].stages};
        struct sh_mesh_shape mesh = sh_mesh_shape_of(axes, rows[i].rank);
        struct sh_coll_place at = sh_message_place(&mesh, rows[i].peer, 8);

        if (at.ranks != 2 || at.nodes != rows[i].nodes || at.rings != rows[i].rings)
            fail_msg("row %zu: %d nodes, %d share", i, at.nodes, at.rings);
    }
}

/* The programs of a real model: every second of every stage is accounted for, and memory falls with the place. */
static void stages_of_a_model(void **state)
{
    struct tiny_model t = tiny_models[0];
    int axes[SH_AXES] = {1, 1, 1, 1, 2, 1, 4};
    struct sh_machine m;
    struct sh_pipe_stages stages;
    struct sh_cost_step each[4];
    struct sh_build b;
    struct sh_cost_request r;

    (void)state;
    assert_int_equal(sh_machine_preset("h100-80x8-ndr400", &m), SH_OK);
    t.model.n_layers = 8;
    b = tiny_build(&t, 1);
    b.options.micro_steps = 8;
    b.options.strategy.keep_after_forward = true;
    b.options.mesh = sh_mesh_shape_of(axes, 0);
    assert_int_equal(sh_pipe_stages_build(&b, false, NULL, NULL, &stages), SH_OK);
    r = (struct sh_cost_request){.p = stages.p[0],
                                 .mesh = &stages.mesh[0],
                                 .stages = &stages,
                                 .machine = &m,
                                 .ranks_per_node = 8,
                                 .faster = sh_cost_as_is};
    assert_int_equal(sh_cost_stages(&r, each), SH_OK);
    for (int s = 0; s < 4; s++) {
        double sum = each[s].spread + each[s].host + each[s].bubble;

        for (int c = 0; c < SH_COST_CLASSES; c++)
            sum += each[s].row[c].slowed + each[s].row[c].exposed + (c <= SH_COST_OTHER ? each[s].row[c].alone : 0);
        assert_true(fabs(sum / each[s].seconds - 1) < 1e-9 && each[s].bubble > 0);
        assert_true(each[s].seconds == each[0].seconds);
    }
    assert_true(stages.p[1]->arena_bytes > stages.p[2]->arena_bytes);
    assert_true(stages.p[sh_pipe_stages_largest(&stages)]->arena_bytes >= stages.p[0]->arena_bytes);
    sh_pipe_stages_free(&stages);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bubble_is_that_of_the_schedule),
        cmocka_unit_test(messages_take_time),
        cmocka_unit_test(messages_take_their_link),
        cmocka_unit_test(stages_of_a_model),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
