/* Optimizer states in a file: which elements are moved, in what order they pass through memory, and what that costs. */
#include "src/base/mem.h"
#include "tests/unit/tiny.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct sh_build build_of(enum sh_dtype act, int ratio_16, int buffers)
{
    struct sh_build b = tiny_build(&tiny_models[1], 1);

    b.act = act;
    b.model.ffn_dim = 500;
    b.offload = (struct sh_offload){.optimizer_16 = ratio_16, .buffers = buffers, .slice_elems = SH_SLICE_MULTIPLE};
    return b;
}

/* Letters as in the documentation: Fn fetch of slice n, Wn its wait, A an update, En its eviction, en the wait
 * for it. */
static char *order_of(const struct sh_program *p)
{
    const struct sh_section *s = sh_program_section(p, SH_SECTION_UPDATE);
    int *slice = sh_calloc((size_t)s->n_ops + 1, sizeof *slice), fetches = 0, evictions = 0;
    char *text = sh_calloc((size_t)s->n_ops + 1, 8), *at = text;

    for (int i = 0; i < s->n_ops; i++) {
        const struct sh_op *op = &p->ops[s->first_op + i];
        enum sh_op_kind kind = op->kind, waited = kind;

        if (kind == SH_OP_WAIT)
            waited = p->ops[s->first_op + op->attr.waits_for].kind;
        if (kind == SH_OP_FETCH || kind == SH_OP_EVICT)
            slice[i] = kind == SH_OP_FETCH ? ++fetches : ++evictions;
        if (sh_op_info(kind)->runs)
            at += sprintf(at, "A ");
        else if (sh_op_info(waited)->moves)
            at += sprintf(at, "%c%d ",
                          kind == SH_OP_WAIT ? (waited == SH_OP_FETCH ? 'W' : 'e') : (kind == SH_OP_FETCH ? 'F' : 'E'),
                          slice[kind == SH_OP_WAIT ? op->attr.waits_for : i]);
    }
    free(slice);
    return text;
}

static void check_order(int ratio_16, int buffers, const char *begins, const char *ends)
{
    struct sh_build b = build_of(SH_F32, ratio_16, buffers);
    struct sh_program *p = tiny_program(&b, tiny_mesh(1, 1, 1, 0));
    char *order = order_of(p);

    if (strncmp(order, begins, strlen(begins)) || strcmp(order + strlen(order) - strlen(ends), ends))
        fail_msg("%d slices at once: %s", buffers, order);
    free(order);
    sh_program_destroy(p);
}

/* One slice arrives and one leaves while one is in use; there are never more than the limit. */
static void slices_overlap(void **state)
{
    (void)state;
    check_order(16, 2, "F1 F2 W1 A E1 W2 A E2 e1 F3 W3 A E3 e2 F4 W4 A E4 e3 F5 ", "e27 F29 W29 A E29 e28 e29 ");
    check_order(16, 3, "F1 F2 F3 W1 A E1 W2 A E2 e1 F4 W3 A E3 e2 F5 ", "W29 A E29 e28 e29 ");
    check_order(16, 5, "F1 F2 F3 F4 F5 W1 A E1 W2 A E2 e1 F6 ", "W29 A E29 e28 e29 ");
    check_order(1, 3, "F1 F2 F3 A A A A W1 A E1 W2 A E2 e1 W3 A E3 e2 e3 ", "e3 ");
}

/* Return how many copies are alive at the busiest operation of a section. */
static int most_alive(const struct sh_program *p, enum sh_section_kind kind)
{
    const struct sh_section *s = sh_program_section(p, kind);
    int alive = 0, most = 0;

    for (int i = 0; i < s->n_ops; i++) {
        const struct sh_op *op = &p->ops[s->first_op + i];

        alive += op->kind == SH_OP_FETCH;
        alive -= op->kind == SH_OP_WAIT && p->ops[s->first_op + op->attr.waits_for].kind == SH_OP_EVICT;
        most = alive > most ? alive : most;
    }
    assert_int_equal(alive, 0);
    return most;
}

static void the_limit_holds(void **state)
{
    (void)state;
    for (int buffers = 2; buffers < 9; buffers++) {
        struct sh_build b = build_of(SH_BF16, 16, buffers);
        struct sh_program *p = tiny_program(&b, tiny_mesh(2, 1, 1, 1));

        assert_int_equal(most_alive(p, SH_SECTION_UPDATE), buffers);
        sh_program_destroy(p);
    }
}

/* Sixteenths of all elements, up to the granularity of the cut; the last units in forward order are moved first. */
static void the_share_is_the_ratio(void **state)
{
    (void)state;
    for (int ratio_16 = 1; ratio_16 <= 16; ratio_16++) {
        struct sh_build b = build_of(ratio_16 % 2 ? SH_F32 : SH_BF16, ratio_16, 3);
        struct sh_program *p = tiny_program(&b, tiny_mesh(1, 1, 1, 0));
        int64_t all = 0, held = 0, away = 0;
        bool cut = false;

        for (int i = 0; i < p->n_units; i++) {
            const struct sh_unit *u = &p->units[i];
            int64_t at = u->held;

            assert_true(!cut || u->held == 0);
            cut |= u->held < u->chunk;
            for (int k = u->first_slice; k < u->first_slice + u->n_slices; k++) {
                assert_true(p->slices[k].unit == i && p->slices[k].first == at);
                assert_int_equal(at % SH_SLICE_MULTIPLE, 0);
                at += p->slices[k].n;
            }
            assert_int_equal(at, u->chunk);
            assert_int_equal(u->state[0] == SH_NONE, u->held == 0);
            all += u->chunk;
            held += u->held;
            away += u->chunk - u->held;
        }
        assert_int_equal(held + away, all);
        assert_in_range(away, all * ratio_16 / 16, all * ratio_16 / 16 + SH_SLICE_MULTIPLE);
        sh_program_destroy(p);
    }
}

/* The file has what memory lacks, and a step reads and writes all of it. */
static void bytes_are_what_they_were(void **state)
{
    (void)state;
    static const struct {
        enum sh_dtype act;
        int bytes; /* per element; with float16 the masters stay in memory */
    } types[] = {{SH_F32, 8}, {SH_BF16, 10}, {SH_F16, 8}};

    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        struct sh_build b = build_of(types[t].act, 16, 3);
        struct sh_program *p = tiny_program(&b, tiny_mesh(1, 1, 1, 0)), *in_memory;
        int64_t file = p->tiers[sh_program_file_tier(p)].bytes, in, out, with[SH_MEM_KINDS], without[SH_MEM_KINDS];
        int64_t elems = 0;

        b.offload.optimizer_16 = 0;
        in_memory = tiny_program(&b, tiny_mesh(1, 1, 1, 0));
        sh_pass_memory(p, with);
        sh_pass_memory(in_memory, without);
        for (int i = 0; i < p->n_slices; i++)
            elems += p->slices[i].room;
        assert_int_equal(file, elems * types[t].bytes);
        assert_true(file >= without[SH_MEM_OPTIM] + without[SH_MEM_REMAINDER]);
        assert_int_equal(with[SH_MEM_OPTIM] + with[SH_MEM_REMAINDER], 0);
        assert_int_equal(with[SH_MEM_PARAM], without[SH_MEM_PARAM]);
        assert_int_equal(with[SH_MEM_MASTER], without[SH_MEM_MASTER]);
        sh_program_moved(p, &in, &out);
        assert_true(in == file && out == file);
        assert_true(p->arena_bytes < in_memory->arena_bytes);
        sh_program_moved(in_memory, &in, &out);
        assert_true(in == 0 && out == 0 && in_memory->n_tiers == 1 && in_memory->n_streams == SH_STREAMS);
        sh_program_destroy(p);
        sh_program_destroy(in_memory);
    }
}

/* Weight decay has the runs of the unit, cut at the slices: together they cover the rank's elements exactly once. */
static void runs_cover_the_chunk(void **state)
{
    (void)state;
    for (int rank = 0; rank < 3; rank++) {
        struct sh_build b = build_of(SH_F32, 9, 3);
        struct sh_program *p = tiny_program(&b, tiny_mesh(3, 1, 1, rank)),
                          *other = tiny_program(&b, tiny_mesh(3, 1, 1, 2 - rank));
        int64_t covered = 0;

        for (int i = 0; i < p->n_ops; i++) {
            const struct sh_op *op = &p->ops[i];

            for (int k = 0; sh_op_info(op->kind)->runs && k < op->attr.runs.count; k++) {
                const struct sh_decay_run *run = &p->runs[op->attr.runs.first + k];

                assert_true(run->begin < run->end && run->end <= p->tensors[op->in[0]].dim[0]);
                covered += run->end - run->begin;
            }
        }
        for (int i = 0; i < p->n_units; i++) {
            int64_t left = p->units[i].elems - p->units[i].chunk * rank;

            covered -= left < 0 ? 0 : left < p->units[i].chunk ? left : p->units[i].chunk;
        }
        assert_int_equal(covered, 0);
        /* The program of another rank is made from this one. */
        b.options.mesh = tiny_mesh(3, 1, 1, 2 - rank);
        sh_pass_rank(&b.options, p);
        assert_int_equal(p->n_runs, other->n_runs);
        for (int i = 0; i < p->n_runs; i++)
            assert_true(p->runs[i].begin == other->runs[i].begin && p->runs[i].end == other->runs[i].end &&
                        p->runs[i].decay == other->runs[i].decay);
        sh_program_destroy(p);
        sh_program_destroy(other);
    }
}

/* An optimizer of whole matrices has no slices, and gathers nothing through a segment. */
static void whole_matrices_stay(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct sh_build b = tiny_build(&tiny_models[1], 2);
        struct sh_program *p = NULL;

        b.options.optim = &tiny_cubic;
        b.offload.optimizer_16 = i == 0 ? 16 : 0;
        b.offload.carry = i == 1;
        b.options.segment_ranks = i == 2;
        assert_int_equal(sh_pass_build(&b, &p), SH_E_USAGE);
        assert_non_null(strstr(sh_error_text(), i == 2 ? "comm.shared_memory=off" : "offload.optimizer=none"));
        sh_program_destroy(p);
    }
}

/* Return the order of the units' updates, gathers and forwards: u0 an update of unit 0, c0 the cast of its masters, g0
 * its gather, f0 its release in the forward; without repetitions. */
static char *carried_order(const struct sh_program *p)
{
    const struct sh_section *s = sh_program_section(p, SH_SECTION_ONLY);
    char *text = sh_calloc((size_t)s->n_ops + 1, 8), *at = text, last[8] = "", word[8];

    for (int i = 0; i < s->n_ops && p->ops[s->first_op + i].phase != SH_PHASE_BACKWARD; i++) {
        const struct sh_op *op = &p->ops[s->first_op + i];
        char what = sh_op_info(op->kind)->runs     ? 'u'
                    : op->kind == SH_OP_CAST       ? 'c'
                    : op->kind == SH_OP_ALL_GATHER ? 'g'
                    : op->kind == SH_OP_RELEASE    ? 'f'
                                                   : 0;

        snprintf(word, sizeof word, "%c%d ", what, op->unit);
        if (!what || !strcmp(word, last))
            continue;
        at += sprintf(at, "%s", word);
        snprintf(last, sizeof last, "%s", word);
    }
    return text;
}

/* The update comes before the unit's gather, and as many units before its use as gathers start ahead. */
static void carried_ahead_of_the_use(void **state)
{
    static const char *const orders[2][3] = {
        {"u0 g0 f0 u1 g1 f1 u2 g2 ", "u0 g0 u1 g1 f0 u2 g2 f1 ", "u0 g0 u1 g1 u2 g2 f0 "},
        {"u0 c0 g0 f0 u1 c1 g1 f1 ", "u0 c0 g0 u1 c1 g1 f0 u2 c2 g2 f1 ", "u0 c0 g0 u1 c1 g1 u2 c2 g2 f0 "}};

    (void)state;
    for (int i = 0; i < 6; i++) {
        int half = i / 3, ahead = i % 3;
        struct sh_build b = build_of(half ? SH_F16 : SH_F32, 16, 3);
        struct sh_program *p;
        char *order;

        b.options.forward_prefetch = ahead;
        b.offload.carry = true;
        p = tiny_program(&b, tiny_mesh(2, 1, 1, 0));
        order = carried_order(p);
        if (strncmp(order, orders[half][ahead], strlen(orders[half][ahead])))
            fail_msg("%d ahead: %s", ahead, order);
        free(order);
        sh_program_destroy(p);
    }
}

/* Whether a slice is on the device at the first operation of the backward. */
static bool any_in_the_backward(const struct sh_program *p)
{
    const struct sh_section *s = sh_program_section(p, SH_SECTION_ONLY);
    int alive = 0;

    for (int i = 0; i < s->n_ops && p->ops[s->first_op + i].phase != SH_PHASE_BACKWARD; i++) {
        const struct sh_op *op = &p->ops[s->first_op + i];

        alive += op->kind == SH_OP_FETCH;
        alive -= op->kind == SH_OP_WAIT && p->ops[s->first_op + op->attr.waits_for].kind == SH_OP_EVICT;
    }
    return alive > 0;
}

/* A step still moves the same bytes once; the section UPDATE is for readers of the state. */
static void a_step_moves_what_it_moved(void **state)
{
    (void)state;
    for (int buffers = 2; buffers < 6; buffers++) {
        struct sh_build b = build_of(SH_BF16, 11, buffers);
        struct sh_program *at_once = tiny_program(&b, tiny_mesh(2, 1, 1, 0)), *p;
        int64_t in[2], out[2];

        b.offload.carry = true;
        p = tiny_program(&b, tiny_mesh(2, 1, 1, 0));
        sh_program_moved(at_once, &in[0], &out[0]);
        sh_program_moved(p, &in[1], &out[1]);
        assert_true(in[0] == in[1] && out[0] == out[1] && in[0] > 0);
        assert_true(sh_program_carries(p) && !sh_program_carries(at_once));
        assert_int_equal(most_alive(p, SH_SECTION_ONLY), buffers);
        assert_int_equal(most_alive(p, SH_SECTION_UPDATE), buffers);
        assert_false(any_in_the_backward(p));
        sh_program_destroy(p);
        sh_program_destroy(at_once);
    }
}

/* Six blocks whose activations are whole pages. */
static struct sh_build deep_build(int blocks)
{
    struct sh_build b = tiny_build(&tiny_models[1], 1);

    b.model.n_layers = 6;
    b.model.dim = 1024;
    b.offload.act_blocks = blocks;
    return b;
}

/* Check at which blocks the moves of an activation are: its eviction after its last use, the wait after the next block,
 * its fetch at the backward of the block after its own. */
static void check_places(const struct sh_program *p, const struct sh_section *s, int evict)
{
    const struct sh_op *ops = p->ops + s->first_op;
    int block = ops[evict].block, gone = 0, fetch = 0, back = 0;

    for (int i = evict + 1; i < s->n_ops; i++) {
        if (ops[i].kind == SH_OP_WAIT && ops[i].attr.waits_for == evict)
            gone = i;
        if (ops[i].kind == SH_OP_FETCH && ops[i].in[0] == ops[evict].out[0])
            fetch = i;
        if (fetch && ops[i].kind == SH_OP_WAIT && ops[i].attr.waits_for == fetch)
            back = i;
    }
    assert_true(evict < gone && gone < fetch && fetch < back);
    assert_true(ops[evict].phase == SH_PHASE_FORWARD && ops[evict].out[0] != ops[evict].in[0] && block < 5);
    assert_int_equal(ops[gone].block, block < 4 ? block + 2 : SH_NONE);
    assert_true(ops[fetch].phase != SH_PHASE_FORWARD && ops[fetch].block == ops[back].block + 1);
    assert_int_equal(p->tensors[ops[fetch].out[0]].mem, SH_MEM_ACT);
}

/* Activations of the first blocks move, never those of the last two; each leaves and comes back once per micro-step,
 * and has one place in the file, however many micro-steps there are. */
static void activations_leave_and_come_back(void **state)
{
    int64_t file[8] = {0};

    (void)state;
    for (int blocks = 1; blocks <= 7; blocks++) {
        struct sh_build b = deep_build(blocks);
        struct sh_program *p;
        int64_t in, out, moved = 0;

        b.options.micro_steps = 3;
        p = tiny_program(&b, tiny_mesh(1, 1, 1, 0));
        for (int s = 0; s < p->n_sections; s++)
            for (int i = 0; i < p->sections[s].n_ops; i++)
                if (p->ops[p->sections[s].first_op + i].kind == SH_OP_EVICT) {
                    assert_true(sh_program_is_micro_step(&p->sections[s]));
                    check_places(p, &p->sections[s], i);
                    moved++;
                }
        file[blocks] = p->tiers[sh_program_file_tier(p)].bytes;
        sh_program_moved(p, &in, &out);
        assert_true(moved > 0 && in == out && in == 3 * file[blocks]);
        assert_int_equal(file[blocks], (blocks < 4 ? blocks : 4) * file[1]);
        sh_program_destroy(p);
    }
}

/* Each fetch brings back what its own micro-step has sent away last. Returns how many there are. */
static int check_turns(const struct sh_program *p)
{
    int n = 0;

    for (int i = 0; i < p->n_ops; i++) {
        int from = i - 1;

        if (p->ops[i].kind != SH_OP_FETCH)
            continue;
        while (p->ops[from].kind != SH_OP_EVICT || p->ops[from].out[0] != p->ops[i].in[0])
            from--;
        assert_int_equal(p->ops[i].micro, p->ops[from].micro);
        assert_true(p->ops[from].block < 5);
        n++;
    }
    return n;
}

/* A stage of two has two micro-steps under way, and room for their activations in its file, however many there are. The second
 * stage may have none that move. */
static void stages_use_places_again(void **state)
{
    enum { MICROS = 6 };

    (void)state;
    for (int v = 0; v < 8; v++) {
        int axes[SH_AXES] = {[SH_AXIS_PIPELINE] = 2}, place = v % 2, blocks = v / 2 % 2 ? 6 : 2;
        struct sh_build b = deep_build(blocks);
        struct sh_program *p, *in_memory;
        int64_t in, out;

        for (int i = 0; i < SH_AXIS_PIPELINE; i++)
            axes[i] = 1;
        b.model.tie_word_embeddings = false;
        b.options.strategy.params_resident = true;
        b.options.micro_steps = MICROS;
        b.options.weights_apart = v > 3;
        p = tiny_program(&b, sh_mesh_shape_of(axes, place));
        b.offload.act_blocks = 0;
        in_memory = tiny_program(&b, sh_mesh_shape_of(axes, place));
        sh_program_moved(p, &in, &out);
        assert_int_equal(check_turns(p) > 0, place == 0 || blocks == 6);
        assert_true(in == out);
        if (in) {
            int64_t file = p->tiers[sh_program_file_tier(p)].bytes;

            assert_true(in == MICROS / (2 - place) * file || (v > 3 && place && in > 2 * file));
            assert_true(p->arena_bytes < in_memory->arena_bytes || (v > 3 && place));
        }
        sh_program_destroy(p);
        sh_program_destroy(in_memory);
    }
}

static void assert_on_pages(const struct sh_program *p)
{
    for (int i = 0; i < p->n_ops; i++) {
        const struct sh_op *op = &p->ops[i];

        if (op->kind == SH_OP_FETCH || op->kind == SH_OP_EVICT)
            assert_int_equal(
                p->tensors[sh_tensor_root(p, op->kind == SH_OP_FETCH ? op->out[0] : op->in[0])].offset_bytes %
                    SH_FILE_PAGE,
                0);
    }
}

/* Experts' rows lie in the segment of a node if there is one, and move like others. */
static void rows_of_experts_move(void **state)
{
    static const int axes[SH_AXES] = {1, 1, 2, 1, 1, 1, 1};
    int64_t out[2], in;

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct sh_build b = deep_build(7);
        struct sh_program *p;

        b.model.family = SH_FAMILY_QWEN3_MOE;
        b.model.n_experts = 4;
        b.model.n_experts_per_token = 2;
        b.model.expert_ffn_dim = 1024;
        b.batch.spread.capacity = 1;
        b.options.segment_ranks = 2 * i;
        p = tiny_program(&b, sh_mesh_shape_of(axes, 0));
        assert_on_pages(p);
        sh_program_moved(p, &in, &out[i]);
        assert_int_equal(in, out[i]);
        sh_program_destroy(p);
    }
    assert_true(out[0] > 0 && out[1] == out[0]);
}

/* Also between blocks of any size, and in the place of an input that does not move. */
static void what_moves_lies_on_pages(void **state)
{
    static const int widths[] = {500, 1001, 1777, 3001};

    (void)state;
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        for (int m = 0; m < TINY_MODELS; m++)
            for (int r = 0; r < TINY_RECOMPUTES; r++) {
                struct sh_build b = deep_build(7);
                struct sh_program *p;

                b.model = tiny_build(&tiny_models[m], 1).model;
                b.model.n_layers = 6;
                b.model.dim = 1024;
                b.model.ffn_dim = widths[i];
                b.act = m % 2 ? SH_BF16 : SH_F32;
                b.offload.gradients = i % 2;
                b.recompute = tiny_recomputes[r];
                p = tiny_program(&b, tiny_mesh(1, 1, 1, 0));
                assert_on_pages(p);
                sh_program_destroy(p);
            }
}

/* Count the activations that live in a tier. */
static int64_t kept_there(const struct sh_program *p, int tier, bool *any_odd)
{
    int64_t bytes = 0;

    for (int t = 0; t < p->n_tensors; t++)
        if (p->tensors[t].tier == tier && p->tensors[t].mem == SH_MEM_ACT) {
            assert_true(p->tensors[t].persistent);
            *any_odd |= sh_tensor_bytes(&p->tensors[t]) % SH_FILE_PAGE != 0;
            bytes += sh_tensor_bytes(&p->tensors[t]);
        }
    return bytes;
}

/* With a device that has its own memory: moves are at the same places, but may have any number of bytes, which a file
 * does not allow. */
static void activations_lie_in_host_memory(void **state)
{
    int64_t kept[8] = {0};

    (void)state;
    for (int blocks = 1; blocks <= 7; blocks++) {
        struct sh_build b = deep_build(blocks);
        struct sh_program *p;
        int64_t in, out, pinned[SH_MEM_KINDS];
        bool any_odd = false;
        int host;

        b.snapshot_on_host = true;
        b.options.micro_steps = 3;
        p = tiny_program(&b, tiny_mesh(2, 1, 1, 0));
        host = sh_program_host_tier(p);
        assert_int_equal(sh_program_file_tier(p), SH_NONE);
        for (int s = 0; s < p->n_sections; s++)
            for (int i = 0; i < p->sections[s].n_ops; i++)
                if (p->ops[p->sections[s].first_op + i].kind == SH_OP_EVICT)
                    check_places(p, &p->sections[s], i);
        kept[blocks] = kept_there(p, host, &any_odd);
        sh_program_moved(p, &in, &out);
        assert_true(any_odd && in == out && in == 3 * kept[blocks]);
        assert_int_equal(kept[blocks], (blocks < 4 ? blocks : 4) * kept[1]);
        sh_pass_pinned(p, host, pinned);
        assert_true(pinned[SH_MEM_ACT] == p->tiers[host].bytes && pinned[SH_MEM_ACT] >= kept[blocks]);
        sh_program_destroy(p);
    }
}

/* The activations that a block keeps leave the peak, and nothing else does. */
static void the_peak_loses_what_leaves(void **state)
{
    (void)state;
    for (int on_host = 0; on_host < 2; on_host++) {
        struct sh_build b = deep_build(4);
        struct sh_program *p, *in_memory;

        b.snapshot_on_host = on_host;
        p = tiny_program(&b, tiny_mesh(1, 1, 1, 0));
        b.offload.act_blocks = 0;
        in_memory = tiny_program(&b, tiny_mesh(1, 1, 1, 0));
        assert_true(p->arena_bytes < in_memory->arena_bytes);
        assert_true(in_memory->arena_bytes - p->arena_bytes <= p->tiers[p->n_tiers - 1].bytes + (4 << 12));
        sh_program_destroy(p);
        sh_program_destroy(in_memory);
    }
}

/* States, gradients and activations move in the same two, in the order in which they leave and come. */
static void moves_share_two_streams(void **state)
{
    (void)state;
    for (int on_host = 0; on_host < 2; on_host++) {
        struct sh_build b = deep_build(6);
        struct sh_program *p;

        b.snapshot_on_host = on_host;
        b.offload.optimizer_16 = 16;
        b.offload.buffers = 3;
        b.offload.gradients = true;
        p = tiny_program(&b, tiny_mesh(1, 1, 1, 0));
        assert_int_equal(p->n_streams, SH_STREAMS + 2);
        assert_int_equal(p->n_tiers, 2);
        sh_program_destroy(p);
    }
}

static void nothing_to_move_is_refused(void **state)
{
    static const struct {
        int layers, dim;
        bool on_host;
        const char *says;
    } rows[] = {{1, 1024, false,
                 "activations=nvme: activations of the last two blocks stay in memory, and the model has 1 block;"},
                {2, 1024, true,
                 "activations=cpu: activations of the last two blocks stay in memory, and the model has 2 blocks;"},
                {3, 12, false, "whole pages of 4096 bytes"},
                {3, 12, true, NULL}};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct sh_build b = deep_build(6);
        struct sh_program *p = NULL;

        b.model.n_layers = rows[i].layers;
        b.model.dim = rows[i].dim;
        b.snapshot_on_host = rows[i].on_host;
        b.options.mesh = tiny_mesh(1, 1, 1, 0);
        assert_int_equal(sh_pass_build(&b, &p), rows[i].says ? SH_E_USAGE : SH_OK);
        assert_true(!rows[i].says || strstr(sh_error_text(), rows[i].says));
        sh_program_destroy(p);
    }
}

/* Moves concern only the rank itself. */
static void the_hash_leaves_moves_out(void **state)
{
    struct sh_build b = build_of(SH_F32, 16, 3);
    struct sh_program *p = tiny_program(&b, tiny_mesh(2, 1, 1, 0)), *in_memory;

    (void)state;
    b.offload.optimizer_16 = 0;
    in_memory = tiny_program(&b, tiny_mesh(2, 1, 1, 0));
    assert_int_equal(sh_pass_hash(p), sh_pass_hash(in_memory));
    sh_program_destroy(p);
    sh_program_destroy(in_memory);
}

/* With a device that has its own memory: homes are in one arena with the snapshots, the same slices in the same order,
 * and only a file needs whole pages. */
static void homes_lie_in_host_memory(void **state)
{
    struct sh_build b = build_of(SH_BF16, 11, 3);
    struct sh_program *file = tiny_program(&b, tiny_mesh(2, 1, 1, 0)), *p;
    int64_t homes = 0, snapshots = 0;
    int host;

    (void)state;
    b.snapshot_on_host = b.options.snapshot = true;
    p = tiny_program(&b, tiny_mesh(2, 1, 1, 0));
    host = sh_program_host_tier(p);
    assert_true(host > 0 && sh_program_file_tier(p) == SH_NONE && sh_program_host_tier(file) == SH_NONE);
    assert_int_equal(p->n_slices, file->n_slices);
    for (int i = 0; i < p->n_slices; i++) {
        assert_int_equal(p->tensors[p->slices[i].home].tier, host);
        assert_true(p->slices[i].unit == file->slices[i].unit && p->slices[i].first == file->slices[i].first);
        homes += sh_tensor_bytes(&p->tensors[p->slices[i].home]);
    }
    for (int t = 0; t < p->n_tensors; t++)
        snapshots += p->tensors[t].mem == SH_MEM_SNAPSHOT ? (sh_tensor_bytes(&p->tensors[t]) + 255) / 256 * 256 : 0;
    assert_true(homes > 0 && snapshots > 0);
    assert_int_equal(p->tiers[host].bytes, homes + snapshots);
    assert_true(p->persistent_bytes <= file->persistent_bytes);
    sh_program_destroy(p);
    sh_program_destroy(file);
}

/* Return F, w, A, E, e of src/pass/host.c for the copies of a section, S for squares, R for a sum over replicas, U for
 * an update, in order. */
static char *gradients_of(const struct sh_program *p, enum sh_section_kind kind)
{
    const struct sh_section *s = sh_program_section(p, kind);
    char *text = sh_calloc((size_t)s->n_ops + 1, 1), *at = text;

    for (int i = 0; i < s->n_ops; i++) {
        const struct sh_op *op = &p->ops[s->first_op + i], *waited = op;

        if (op->kind == SH_OP_WAIT)
            waited = &p->ops[s->first_op + op->attr.waits_for];
        if (sh_op_info(op->kind)->runs)
            *at++ = 'U';
        else if (op->kind == SH_OP_SUMSQ)
            *at++ = 'S';
        else if (op->kind == SH_OP_ALL_REDUCE && op->unit != SH_NONE)
            *at++ = 'R';
        else if (sh_op_info(waited->kind)->moves)
            *at++ = waited->kind == SH_OP_FETCH ? (waited == op ? 'F' : 'w') : (waited == op ? 'E' : 'e');
    }
    return text;
}

static void check_gradients(const struct sh_program *p, enum sh_section_kind kind, const char *expected)
{
    char *text = gradients_of(p, kind);

    assert_string_equal(text, expected);
    free(text);
}

/* Gradients of five units. The first micro-step writes them, later ones add to them, and the last computes their
 * squares, which the norm only adds up. One arrives and one leaves while one is in use. */
static void gradients_go_and_come(void **state)
{
    struct sh_build b = build_of(SH_BF16, 0, 3);
    struct sh_program *p, *kept;
    int64_t with[SH_MEM_KINDS], without[SH_MEM_KINDS], pinned[SH_MEM_KINDS], in, out, elems = 0;

    (void)state;
    b.options.micro_steps = 3;
    b.snapshot_on_host = true;
    kept = tiny_program(&b, tiny_mesh(1, 1, 1, 0));
    b.offload.gradients = true;
    p = tiny_program(&b, tiny_mesh(1, 1, 1, 0));
    assert_int_equal(p->n_units, 5);
    check_gradients(p, SH_SECTION_FIRST, "EeEeEeEeEe");
    check_gradients(p, SH_SECTION_MIDDLE, "FwFEwFeEwFeEwFeEweEe");
    check_gradients(p, SH_SECTION_LAST, "FwFSEwFSeEwFSeEwFSeEwSeEe");
    check_gradients(p, SH_SECTION_NORM, "");
    check_gradients(p, SH_SECTION_UPDATE, "FwFUwFUwFUwFUwU");
    for (int i = 0; i < p->n_units; i++)
        elems += p->units[i].chunk;
    sh_pass_pinned(p, sh_program_host_tier(p), pinned);
    assert_true(pinned[SH_MEM_GRAD] >= 4 * elems && pinned[SH_MEM_GRAD] < 4 * elems + 256 * 5);
    sh_pass_memory(p, with);
    sh_pass_memory(kept, without);
    assert_true(p->persistent_bytes <= kept->persistent_bytes - 4 * elems);
    assert_true(with[SH_MEM_GRAD] < without[SH_MEM_GRAD] && p->arena_bytes < kept->arena_bytes);
    sh_program_moved(p, &in, &out);
    assert_true(in == 3 * 4 * elems && out == 3 * 4 * elems);
    sh_program_destroy(p);
    sh_program_destroy(kept);
}

/* Shards are whole pages, in the file and in memory. From a file, no stretch of a shard can be fetched alone: the
 * slices of a unit share one copy of its gradient, which each update fetches once, immediately or in the
 * next forward. */
static void gradients_lie_in_the_file(void **state)
{
    struct sh_build b = build_of(SH_BF16, 0, 3);
    struct sh_program *p;
    int64_t in, out, pages = 0, states = 0;

    (void)state;
    b.options.micro_steps = 3;
    b.offload.gradients = true;
    p = tiny_program(&b, tiny_mesh(1, 1, 1, 0));
    check_gradients(p, SH_SECTION_FIRST, "EeEeEeEeEe");
    check_gradients(p, SH_SECTION_LAST, "FwFSEwFSeEwFSeEwFSeEwSeEe");
    check_gradients(p, SH_SECTION_UPDATE, "FwFUwFUwFUwFUwU");
    for (int i = 0; i < p->n_units; i++) {
        const struct sh_tensor *home = &p->tensors[p->units[i].grad_shard];

        assert_int_equal(p->tiers[home->tier].kind, SH_TIER_FILE);
        assert_in_range(sh_tensor_bytes(home), 4 * p->units[i].chunk, 4 * p->units[i].chunk + SH_FILE_PAGE - 1);
        pages += sh_tensor_bytes(home);
    }
    assert_int_equal(p->tiers[sh_program_file_tier(p)].bytes, pages);
    sh_program_moved(p, &in, &out);
    assert_true(in == 3 * pages && out == 3 * pages);
    sh_program_destroy(p);
    b.offload.optimizer_16 = 16;
    for (int carry = 0; carry < 2; carry++) {
        b.offload.carry = carry;
        p = tiny_program(&b, tiny_mesh(1, 1, 1, 0));
        states = p->tiers[sh_program_file_tier(p)].bytes - pages;
        sh_program_moved(p, &in, &out);
        assert_true(p->n_slices > p->n_units && in == 3 * pages + states && out == in);
        sh_program_destroy(p);
    }
}

/* A shard leaves after its sum, which takes the time of one unit's backward. */
static void shards_leave_replicas_one_by_one(void **state)
{
    struct sh_build b = build_of(SH_F32, 0, 3);

    (void)state;
    b.offload.gradients = true;
    for (int shard = 1; shard <= 2; shard++) {
        struct sh_program *p = tiny_program(&b, tiny_mesh(shard, 2, 1, 0));

        check_gradients(p, SH_SECTION_ONLY, "RSERSeERSeERSeERSeEe");
        sh_program_destroy(p);
    }
}

/* Replicas of a node sum the copy in memory that all of them see, in whole pages after the data that stays from step to
 * step; the home is the rank's own. */
static void copies_lie_where_replicas_see_them(void **state)
{
    struct sh_build b = build_of(SH_F32, 16, 3);

    (void)state;
    b.options.segment_ranks = 4;
    b.offload.gradients = true;
    for (int micro_steps = 1; micro_steps < 3; micro_steps++) {
        struct sh_program *p;
        int sums = 0;

        b.options.micro_steps = micro_steps;
        b.options.strategy.sync_last_only = micro_steps > 1;
        p = tiny_program(&b, tiny_mesh(2, 2, 1, 0));
        for (int i = 0; i < p->n_ops; i++) {
            const struct sh_op *op = &p->ops[i];

            if (op->kind != SH_OP_ALL_REDUCE || op->unit == SH_NONE)
                continue;
            assert_int_equal(p->tensors[sh_tensor_root(p, op->out[0])].space, SH_SPACE_PEERS);
            sums++;
        }
        assert_int_equal(sums, p->n_units);
        for (int i = 0; i < p->n_units; i++)
            assert_int_equal(p->tensors[p->units[i].grad_shard].space, SH_SPACE_OWN);
        sh_program_destroy(p);
    }
}

/* Chunks of parameters: G is a gather of one over several ranks; with one rank, each fetch is the gather of a unit, as
 * far ahead as the schedule puts it. The contents of the moves are checked in test_pass_simulate. */
static void parameters_come_and_stay_away(void **state)
{
    struct sh_build b = build_of(SH_BF16, 0, 3);
    int64_t with[SH_MEM_KINDS], pinned[SH_MEM_KINDS], in, out, elems = 0;
    struct sh_program *p;

    (void)state;
    b.snapshot_on_host = b.offload.parameters = b.options.fetched = true;
    for (int ranks = 1; ranks <= 2; ranks++) {
        p = tiny_program(&b, tiny_mesh(ranks, 1, 1, 0));
        elems = 0;
        for (int i = 0; i < p->n_units; i++)
            elems += p->units[i].chunk;
        check_gradients(p, SH_SECTION_UPDATE, "FwFUEwFUeEwFUeEwFUeEwUeEe");
        sh_pass_pinned(p, sh_program_host_tier(p), pinned);
        assert_true(pinned[SH_MEM_PARAM] >= 2 * elems && pinned[SH_MEM_PARAM] < 2 * elems + 256 * p->n_units);
        sh_pass_memory(p, with);
        assert_true(with[SH_MEM_PARAM] < 2 * elems);
        sh_program_moved(p, &in, &out);
        assert_int_equal(out, 2 * elems);
        assert_true(in > 2 * 2 * elems && in < 3 * 2 * elems); /* by the update, the forward and most of the backward */
        sh_program_destroy(p);
    }
    /* Data that a carried update sends home must arrive before a gather fetches it, or the check refuses the program.
     * */
    b.offload.carry = true;
    for (int i = 0; i < 6; i++) {
        b.options.forward_prefetch = i / 2;
        sh_program_destroy(tiny_program(&b, tiny_mesh(1 + i % 2, 1, 1, 0)));
    }
}

static bool has_label(const struct sh_program *p, const char *want)
{
    char label[SH_OP_LABEL];

    for (int i = 0; i < p->n_ops; i++) {
        sh_program_label(p, &p->ops[i], label);
        if (!strcmp(label, want))
            return true;
    }
    return false;
}

/* An update fetches more than one thing of a unit. */
static void labels_say_what_moves(void **state)
{
    static const char *const file[] = {"update layers.1 fetch optimizer states",
                                       "update layers.1 evict optimizer states",
                                       "update layers.1 fetch gradients",
                                       "backward layers.1 evict gradients",
                                       "forward layers.0 evict activations",
                                       "backward layers.2 fetch activations"},
                             *const host[] = {"update layers.1 fetch parameters", "update layers.1 evict parameters",
                                              "forward layers.1 fetch parameters"};
    struct sh_build b = deep_build(3);
    struct sh_program *p;

    (void)state;
    b.offload.gradients = true;
    b.offload.optimizer_16 = 16;
    b.offload.buffers = 3;
    p = tiny_program(&b, tiny_mesh(1, 1, 1, 0));
    for (size_t i = 0; i < sizeof file / sizeof *file; i++)
        if (!has_label(p, file[i]))
            fail_msg("no %s", file[i]);
    assert_false(has_label(p, "update layers.1 fetch"));
    sh_program_destroy(p);
    b = build_of(SH_BF16, 0, 3);
    b.snapshot_on_host = b.offload.parameters = b.options.fetched = true;
    p = tiny_program(&b, tiny_mesh(1, 1, 1, 0));
    for (size_t i = 0; i < sizeof host / sizeof *host; i++)
        if (!has_label(p, host[i]))
            fail_msg("no %s", host[i]);
    sh_program_destroy(p);
}

/* The default size follows from the model: a sixteenth, at most 4 Mi elements. */
static void slices_have_a_size(void **state)
{
    struct sh_build small = build_of(SH_F32, 16, 3), large = tiny_build(&not_tiny_model, 1);
    struct sh_program *p;

    (void)state;
    small.offload.slice_elems = 0;
    p = tiny_program(&small, tiny_mesh(1, 1, 1, 0));
    assert_in_range(p->n_slices, 16, 16 + p->n_units);
    sh_program_destroy(p);
    large.model.n_layers = 1;
    large.model.vocab_size = 1000;
    large.offload = (struct sh_offload){.optimizer_16 = 16, .buffers = 3};
    p = tiny_program(&large, tiny_mesh(1, 1, 1, 0));
    for (int i = 0; i < p->n_slices; i++)
        assert_true(p->slices[i].n == 4 << 20 ||
                    p->slices[i].first + p->slices[i].n == p->units[p->slices[i].unit].chunk);
    sh_program_destroy(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slices_overlap),
        cmocka_unit_test(the_limit_holds),
        cmocka_unit_test(the_share_is_the_ratio),
        cmocka_unit_test(bytes_are_what_they_were),
        cmocka_unit_test(runs_cover_the_chunk),
        cmocka_unit_test(whole_matrices_stay),
        cmocka_unit_test(the_hash_leaves_moves_out),
        cmocka_unit_test(labels_say_what_moves),
        cmocka_unit_test(slices_have_a_size),
        cmocka_unit_test(homes_lie_in_host_memory),
        cmocka_unit_test(gradients_go_and_come),
        cmocka_unit_test(gradients_lie_in_the_file),
        cmocka_unit_test(shards_leave_replicas_one_by_one),
        cmocka_unit_test(copies_lie_where_replicas_see_them),
        cmocka_unit_test(rows_of_experts_move),
        cmocka_unit_test(parameters_come_and_stay_away),
        cmocka_unit_test(carried_ahead_of_the_use),
        cmocka_unit_test(a_step_moves_what_it_moved),
        cmocka_unit_test(activations_leave_and_come_back),
        cmocka_unit_test(stages_use_places_again),
        cmocka_unit_test(what_moves_lies_on_pages),
        cmocka_unit_test(activations_lie_in_host_memory),
        cmocka_unit_test(moves_share_two_streams),
        cmocka_unit_test(the_peak_loses_what_leaves),
        cmocka_unit_test(nothing_to_move_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
