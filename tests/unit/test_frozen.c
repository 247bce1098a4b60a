/* Units that are not trained: they cost only what the computation needs, and change no gradient of the other units. */
#include "src/base/number/rng.h"
#include "tests/unit/simulate.h"
#include "tests/unit/tiny.h"

#include <omp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BATCH = 2, TOKENS = BATCH * TINY_SEQ, SEED = 5, LISTS = 5, NAMES = 4 };

static const char *const lists[LISTS][NAMES] = {
    {"embed"}, {"embed", "layers.0"}, {"layers.0"}, {"layers.1", "head"}, {"embed", "layers.1"}};

static void feed(const struct sim *s)
{
    const struct sh_program *p = s->ranks[0].p;
    int32_t *tokens = sim_data(s, 0, p->port[SH_PORT_TOKENS]), *targets = sim_data(s, 0, p->port[SH_PORT_TARGETS]);

    for (int i = 0; i < TOKENS; i++) {
        uint32_t bits[4];

        sh_philox(SEED, 0, (uint64_t)i, bits);
        tokens[i] = (int32_t)(bits[0] % TINY_VOCAB);
        targets[i] = (int32_t)(bits[1] % TINY_VOCAB);
        if (p->port[SH_PORT_DOCS] != SH_NONE)
            ((int32_t *)sim_data(s, 0, p->port[SH_PORT_DOCS]))[i] = 0;
    }
}

static struct sim *run(const struct sh_build *b)
{
    struct sim *s = sim_create(b, 1, 1, 1, SEED);

    s->scalars = (struct sh_op_scalars){.loss_scale = 1.0 / TOKENS};
    feed(s);
    sim_run(s, SH_SECTION_ONLY);
    return s;
}

/* The gradients of the trained units have the same bits as when everything is trained. */
static void compare(const struct sim *some, const struct sim *all)
{
    const struct sh_program *p = some->ranks[0].p, *q = all->ranks[0].p;

    assert_memory_equal(sim_data(some, 0, p->port[SH_PORT_LOSS]), sim_data(all, 0, q->port[SH_PORT_LOSS]),
                        sizeof(double));
    for (int i = 0; i < p->n_units; i++)
        if (p->units[i].trainable)
            assert_memory_equal(sim_data(some, 0, p->units[i].grad_shard), sim_data(all, 0, q->units[i].grad_shard),
                                (size_t)p->units[i].elems * sizeof(float));
}

static void gradients_are_the_same(void **state)
{
    (void)state;
    omp_set_num_threads(1);
    for (int i = 0; i < TINY_MODELS * TINY_RECOMPUTES * LISTS; i++) {
        struct sh_build b = tiny_build(&tiny_models[i % TINY_MODELS], BATCH);
        struct sim *all, *some;

        b.recompute = tiny_recomputes[i / TINY_MODELS % TINY_RECOMPUTES];
        b.act = i % 2 ? SH_BF16 : SH_F32;
        b.kernels = i % 3 ? &sh_kernels_ref : &sh_kernels_cpu;
        all = run(&b);
        b.frozen = lists[i / TINY_MODELS / TINY_RECOMPUTES];
        some = run(&b);
        compare(some, all);
        sim_destroy(some);
        sim_destroy(all);
    }
}

static int64_t bytes_of(const struct sh_program *p, int tensor)
{
    return tensor == SH_NONE ? 0 : sh_tensor_bytes(&p->tensors[tensor]);
}

/* A frozen unit has its parameters in the compute type, and nothing that only training needs. */
static void nothing_for_training(void **state)
{
    (void)state;
    for (int i = 0; i < LISTS * 4; i++) {
        struct sh_build b = tiny_build(&tiny_models[1], BATCH);
        struct sh_program *p;
        int64_t bytes[SH_MEM_KINDS], frozen = 0;

        b.frozen = lists[i % LISTS];
        b.act = i / LISTS % 2 ? SH_BF16 : SH_F32;
        b.options.strategy.params_resident = i / LISTS / 2;
        b.options.snapshot = true;
        p = tiny_program(&b, tiny_mesh(2, 1, 1, 1));
        for (int k = 0; k < p->n_units; k++) {
            const struct sh_unit *u = &p->units[k];
            int full = sh_tensor_root(p, u->compute);

            if (u->trainable)
                continue;
            frozen += (bytes_of(p, full) + 255) / 256 * 256;
            assert_int_equal(p->tensors[full].mem, SH_MEM_FROZEN);
            assert_int_equal(bytes_of(p, u->compute), u->chunk * sh_dtype_bytes(b.act));
            assert_int_equal(u->remainder, SH_NONE);
            assert_int_equal(u->state[0], SH_NONE);
            assert_int_equal(u->grad_shard, SH_NONE);
            assert_int_equal(u->snapshot, SH_NONE);
        }
        sh_pass_memory(p, bytes);
        assert_int_equal(bytes[SH_MEM_FROZEN], frozen);
        sh_program_destroy(p);
    }
}

static int count(const struct sh_program *p, enum sh_op_kind kind, int unit)
{
    int n = 0;

    for (int i = 0; i < p->n_ops; i++)
        n += p->ops[i].kind == kind && (unit == SH_NONE || p->ops[i].unit == unit);
    return n;
}

static int count_backward(const struct sh_program *p, int block)
{
    int n = 0;

    for (int i = 0; i < p->n_ops; i++)
        n += p->ops[i].phase == SH_PHASE_BACKWARD && p->ops[i].block == block;
    return n;
}

/* Below the first trained parameter there is no backward; above it the frozen block only passes gradients down. */
static void backward_ends_where_nothing_is_trained(void **state)
{
    static const char *const lowest[] = {"embed", "layers.0", NULL}, *const middle[] = {"layers.1", NULL};
    struct sh_build b = tiny_build(&tiny_models[1], BATCH);
    struct sh_program *p;

    (void)state;
    b.frozen = lowest;
    p = tiny_program(&b, tiny_mesh(2, 1, 1, 0));
    assert_int_equal(count_backward(p, 0), 0);
    assert_true(count_backward(p, 1) > 0);
    assert_int_equal(count(p, SH_OP_EMBED_BWD, SH_NONE), 0);
    assert_int_equal(count(p, SH_OP_REDUCE_SCATTER, 0) + count(p, SH_OP_REDUCE_SCATTER, 1), 0);
    assert_int_equal(count(p, SH_OP_REDUCE_SCATTER, 2), 1);
    assert_int_equal(count(p, SH_OP_ALL_GATHER, 1), 1); /* forward only */
    assert_int_equal(count(p, SH_OP_SUMSQ, SH_NONE), 3);
    assert_int_equal(count(p, SH_OP_ADAMW, SH_NONE), 3);
    sh_program_destroy(p);

    b.frozen = middle;
    p = tiny_program(&b, tiny_mesh(2, 1, 1, 0));
    assert_true(count_backward(p, 1) > 0 && count_backward(p, 1) < count_backward(p, 0));
    assert_int_equal(count(p, SH_OP_REDUCE_SCATTER, 2), 0);
    assert_int_equal(count(p, SH_OP_ALL_GATHER, 2), 2);
    sh_program_destroy(p);
}

/* A block and its adapters are each gathered once per pass, however their uses alternate. */
static void adapters_lie_beside_their_block(void **state)
{
    struct sh_build b = tiny_build(&tiny_models[1], BATCH);
    struct sh_program *p;

    (void)state;
    b.batch.adapters = (struct sh_adapters){.rank = 2, .scale = 1, .targets = ~0u};
    p = tiny_program(&b, tiny_mesh(2, 1, 1, 0));
    assert_int_equal(p->n_units, 1 + 2 * 3 + 1);
    for (int i = 0; i < p->n_units; i++) {
        bool of_adapters = strstr(p->units[i].name, ".lora") != NULL;

        assert_int_equal(p->units[i].trainable, of_adapters);
        assert_int_equal(p->units[i].beside, of_adapters ? i - 1 : SH_NONE);
        assert_int_equal(count(p, SH_OP_REDUCE_SCATTER, i), of_adapters);
        if (p->units[i].name[0] == 'l')
            assert_int_equal(count(p, SH_OP_ALL_GATHER, i), 2);
    }
    assert_int_equal(count(p, SH_OP_LORA, SH_NONE), 3 * 4);
    assert_int_equal(count(p, SH_OP_LORA_BWD, SH_NONE), 3 * 4);
    assert_int_equal(count(p, SH_OP_LINEAR_BWD_W, SH_NONE), 0);
    sh_program_destroy(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_the_same),
        cmocka_unit_test(nothing_for_training),
        cmocka_unit_test(backward_ends_where_nothing_is_trained),
        cmocka_unit_test(adapters_lie_beside_their_block),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
