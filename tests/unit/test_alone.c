/* Documents in one row are trained as if each were alone: the same loss and the same gradients, for rotary and for
 * learned positions. Uses one rank and the CPU kernels. */
#include "src/base/number/rng.h"
#include "src/device/device.h"
#include "src/program/saved.h"
#include "tests/unit/simulate.h"
#include "tests/unit/tiny.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { T = 64, SEED = 5, DOCS = 5 };

/* Places of each document; some places of the row are left over. */
static const int lengths[DOCS] = {20, 1, 7, 30, 2};

struct row {
    int32_t tokens[T], targets[T], docs[T];
};

/* Put token k of document d, the same wherever the document is. One in four does not count as a target. */
static void put_token(struct row *r, int at, int d, int k)
{
    uint32_t bits[4];

    sh_philox(SEED, (uint64_t)d, (uint64_t)k, bits);
    r->tokens[at] = (int32_t)(bits[0] % TINY_VOCAB);
    r->targets[at] = bits[1] % 4 ? (int32_t)(bits[2] % TINY_VOCAB) : -1;
}

/* Make a row with one document, or with all if d < 0; the rest is empty. */
static struct row make_row(int d)
{
    struct row r;
    int at = 0;

    for (int t = 0; t < T; t++) {
        r.tokens[t] = 0;
        r.targets[t] = -1;
        r.docs[t] = t;
    }
    for (int i = 0; i < DOCS; i++) {
        int first = at;
        for (int k = 0; k < lengths[i] && (d < 0 || d == i); k++, at++) {
            put_token(&r, at, i, k);
            r.docs[at] = first;
        }
    }
    return r;
}

/* Return the loss, and add the gradient of each parameter to `grads`. */
static double run(struct sim *s, const struct row *r, double *grads)
{
    const struct sh_program *p = s->ranks[0].p;

    memcpy(sim_data(s, 0, p->port[SH_PORT_TOKENS]), r->tokens, sizeof r->tokens);
    memcpy(sim_data(s, 0, p->port[SH_PORT_TARGETS]), r->targets, sizeof r->targets);
    memcpy(sim_data(s, 0, p->port[SH_PORT_DOCS]), r->docs, sizeof r->docs);
    sim_run(s, SH_SECTION_ONLY);
    for (int i = 0; i < p->n_params; i++) {
        const float *from =
            (const float *)sim_data(s, 0, p->units[p->params[i].unit].grad_shard) + p->params[i].unit_elems;
        for (int64_t k = 0; k < p->params[i].elems; k++)
            *grads++ += from[k];
    }
    return *(double *)sim_data(s, 0, p->port[SH_PORT_LOSS]);
}

/* Compare the gradient of each parameter, relative to its length. */
static void compare(const struct sh_program *p, const double *a, const double *b)
{
    for (int i = 0; i < p->n_params; i++) {
        double length = 0, off = 0;
        for (int64_t k = 0; k < p->params[i].elems; k++, a++, b++) {
            length += *b * *b;
            off += (*a - *b) * (*a - *b);
        }
        assert_true(length > 0);
        if (sqrt(off) > 1e-6 * sqrt(length))
            fail_msg("%s: off by %g of %g", sh_saved_of(p, &p->params[i])->name, sqrt(off), sqrt(length));
    }
}

static void check(void **state)
{
    const struct tiny_model *m = *state;
    struct sh_build b = tiny_build(m, 1);
    double loss = 0, *grads[2], all;
    struct row r = make_row(-1);
    struct sim *s;
    int64_t n;

    b.batch.seq = T;
    b.batch.docs = b.batch.anew = true;
    b.model.max_seq_len = T + 3;
    b.kernels = &sh_kernels_cpu;
    b.threads = sh_device_threads(1);
    sh_device_set_threads(b.threads);
    s = sim_create(&b, 1, 1, 1, SEED);
    s->scalars = (struct sh_op_scalars){.loss_scale = 1, .router_scale = 1};
    n = sim_param_elems(s);
    for (int i = 0; i < 2; i++)
        grads[i] = calloc((size_t)n, sizeof *grads[i]);
    all = run(s, &r, grads[0]);
    for (int d = 0; d < DOCS; d++) {
        r = make_row(d);
        loss += run(s, &r, grads[1]);
    }
    if (fabs(all - loss) > 1e-6 * loss)
        fail_msg("loss %.9g, of documents alone %.9g", all, loss);
    compare(s->ranks[0].p, grads[0], grads[1]);
    for (int i = 0; i < 2; i++)
        free(grads[i]);
    sim_destroy(s);
}

/* Two blocks of other families, and windows that are shorter than most documents. */
#define MODEL(...)                                                                                      \
    {                                                                                                   \
        .n_layers = 2, .dim = 12, .ffn_dim = 20, .vocab_size = TINY_VOCAB, .head_dim = 4, .n_heads = 3, \
        .n_kv_heads = 1, .norm_eps = 1e-5f, .init_std = 0.3f, .rope_theta = 100, __VA_ARGS__            \
    }

static const struct tiny_model others[] = {
    {"mistral with a window", MODEL(.family = SH_FAMILY_MISTRAL, .attention_window = 6), true},
    {"qwen2 with a window in one block",
     MODEL(.family = SH_FAMILY_QWEN2, .attention_window = 6, .layer_types = "full,sliding"), true},
    {"phi3", MODEL(.family = SH_FAMILY_PHI3), true},
    {"smollm3", MODEL(.family = SH_FAMILY_SMOLLM3, .layer_types = "full,full_nope"), true},
    {"starcoder2", MODEL(.family = SH_FAMILY_STARCODER2), true},
};
enum { OTHERS = sizeof others / sizeof others[0] };

int main(void)
{
    struct CMUnitTest tests[TINY_MODELS + OTHERS];

    for (int i = 0; i < TINY_MODELS + OTHERS; i++) {
        const struct tiny_model *m = i < TINY_MODELS ? &tiny_models[i] : &others[i - TINY_MODELS];
        tests[i] = (struct CMUnitTest){.name = m->name, .test_func = check, .initial_state = (void *)(uintptr_t)m};
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
