/* Every size that a configuration may have leads to a correct plan or to a refusal that names keys: no product
 * overflows, and no check of a program fails because of sizes. Best with -fsanitize=undefined (.ci/run). `make
 * check-long` draws more; the argument, if any, is how many. */
#include "src/base/hash.h"
#include "src/config/config.h"
#include "src/pass/build.h"
#include "src/plan/request.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The ranges of the keys (src/config/keys/). */
enum { MOST_ELEMS = 16777216, MOST_HEADS = 65536, MOST_RANKS = 1048576, MOST_LAYERS = 10000, MOST_THREADS = 4096 };

/* clang-format off */
static const char *const words[][8] = {
    {"parallelism.sharding_strategy=no_shard", "parallelism.sharding_strategy=shard_optim",
     "parallelism.sharding_strategy=shard_grad_op", "parallelism.sharding_strategy=full_shard",
     "parallelism.sharding_strategy=hybrid_shard", "parallelism.sharding_strategy=hybrid_shard_zero2", NULL},
    {"training.device=cuda", "training.device=cpu", "training.kernels=ref", NULL},
    {"activation_checkpoint.mode=full", "activation_checkpoint.mode=selective", "activation_checkpoint.mode=none", NULL},
    {"training.reproducible=mesh", "training.mixed_precision_reduce=bfloat16", "checkpoint.async_mode=async",
     "training.mixed_precision_param=float32", "validation.enable=true", "memory.limit_bytes=1GiB",
     "optimizer.state_dtype=bfloat16", NULL},
};
/* clang-format on */

enum { WORDS = sizeof words / sizeof *words, MOST_KEYS = 24, TEXT = 64 };

struct wish {
    char text[MOST_KEYS][TEXT];
    const char *list[MOST_KEYS];
    int n, ranks, rank, ranks_per_node;
};

static uint64_t draw(uint64_t *at, uint64_t below)
{
    return sh_mix64(++*at) % below;
}

/* Draw the maximum divided by a power of two; each power is equally likely. */
static int64_t power(uint64_t *at, int64_t most)
{
    int bits = 0;

    while (most >> bits > 1)
        bits++;
    return most >> draw(at, (uint64_t)bits + 1);
}

/* The same, now and then plus one. */
static int64_t size(uint64_t *at, int64_t most)
{
    int64_t n = power(at, most);

    return n < most && draw(at, 4) == 0 ? n + 1 : n;
}

static void give(struct wish *w, const char *name, int64_t value)
{
    snprintf(w->text[w->n], TEXT, "%s=%lld", name, (long long)value);
    w->list[w->n] = w->text[w->n];
    w->n++;
}

static void draw_model(uint64_t *at, struct wish *w)
{
    bool gpt2 = draw(at, 3) == 0;
    int64_t heads = power(at, MOST_HEADS),
            dim = 2 *
                  power(at, gpt2 && MOST_ELEMS / 2 / heads < MOST_HEADS / 2 ? MOST_ELEMS / 2 / heads : MOST_HEADS / 2);
    int64_t longest = size(at, MOST_ELEMS);

    w->list[w->n++] = gpt2 ? "model.family=gpt2" : "model.family=llama";
    w->list[w->n++] = draw(at, 2) ? "model.tie_word_embeddings=true" : "model.tie_word_embeddings=false";
    give(w, "model.n_layers", draw(at, 60) ? 1 + (int64_t)draw(at, 6) : power(at, MOST_LAYERS));
    give(w, "model.n_heads", heads);
    give(w, "model.n_kv_heads", gpt2 ? heads : heads / power(at, heads));
    give(w, "model.head_dim", dim);
    give(w, "model.dim", gpt2 ? heads * dim : size(at, MOST_ELEMS));
    give(w, "model.ffn_dim", size(at, MOST_ELEMS));
    give(w, "model.vocab_size", size(at, MOST_ELEMS));
    give(w, "model.max_seq_len", longest);
    give(w, "training.seq_len", draw(at, 2) ? longest : power(at, longest));
}

static struct wish *make(uint64_t number, struct wish *w)
{
    uint64_t at = number << 32;
    int64_t batch = size(&at, MOST_HEADS);

    *w = (struct wish){.ranks = (int)power(&at, MOST_RANKS)};
    w->ranks_per_node = (int)power(&at, w->ranks);
    w->rank = (int)draw(&at, (uint64_t)w->ranks);
    draw_model(&at, w);
    give(w, "training.local_batch_size", batch);
    if (batch * w->ranks <= MOST_ELEMS)
        give(w, "training.global_batch_size", batch * w->ranks * power(&at, MOST_ELEMS / (batch * w->ranks)));
    if (draw(&at, 2))
        give(w, "training.loss_chunk_rows", power(&at, MOST_ELEMS));
    give(w, "training.threads", power(&at, MOST_THREADS));
    for (int i = 0; i < WORDS; i++) {
        int n = 0;

        while (words[i][n])
            n++;
        w->list[w->n++] = words[i][draw(&at, (uint64_t)n)];
    }
    return w;
}

/* Plan like `sherd plan`. */
static sh_rc plan(const struct wish *w, struct sh_build *b, struct sh_program **p)
{
    struct sh_topology at = {
        .rank = w->rank, .world = w->ranks, .ranks_per_node = w->ranks_per_node, .in_blocks = true};
    struct sh_mesh_shape mesh;
    struct sh_config cfg;
    int level = 0;

    SH_TRY(sh_config_load(NULL, w->n, w->list, &cfg));
    at.gpu = cfg.training.device == SH_DEVICE_CUDA;
    SH_TRY(sh_request_mesh(&cfg, &at, &mesh));
    SH_TRY(sh_request_build(&cfg, &at, &mesh, SH_TO_TRAIN, cfg.training.threads ? cfg.training.threads : 1,
                            cfg.memory.limit_bytes, b));
    SH_TRY(sh_pass_fit(b, &level));
    return sh_pass_build(b, p);
}

/* Check in floating point, which does not overflow: a rank has its part of the model state, and its tokens' residual
 * stream. */
static void check_arena(const struct sh_build *b, const struct sh_program *p)
{
    double params = 0, stream = 0, arena = (double)p->arena_bytes;
    int64_t bytes[SH_MEM_KINDS];

    for (int u = 0; u < p->n_units; u++) {
        assert_true(p->units[u].elems > 0);
        params += (double)p->units[u].elems;
    }
    stream = (double)b->batch.batch * b->batch.seq * b->model.dim * 2;
    assert_true(arena >= 12 * params / sh_group_size(&b->options.mesh, b->options.mesh.shard));
    assert_true(arena >= stream && arena < 0x1p61);
    sh_pass_memory(p, bytes);
    for (int i = 0; i < SH_MEM_KINDS; i++)
        assert_true(bytes[i] >= 0 && bytes[i] <= p->arena_bytes);
}

static int drawn = 400;

static void any_size_is_planned_or_refused(void **state)
{
    int planned = 0, beyond = 0;

    (void)state;
    for (int i = 0; i < drawn; i++) {
        struct sh_program *p = NULL;
        struct sh_build b;
        struct wish w;
        sh_rc rc = plan(make((uint64_t)i, &w), &b, &p);

        if (rc != SH_OK && rc != SH_E_USAGE && rc != SH_E_MEMORY) {
            for (int k = 0; k < w.n; k++)
                print_message("--%s ", w.list[k]);
            fail_msg("%d: rank %d: %s", i, w.rank, sh_error_text());
        }
        if (rc == SH_OK)
            check_arena(&b, p);
        planned += rc == SH_OK;
        beyond += rc == SH_E_USAGE && strstr(sh_error_text(), "no plan can") != NULL;
        sh_program_destroy(p);
    }
    print_message("%d planned, %d beyond what can be counted, of %d\n", planned, beyond, drawn);
    assert_true(planned > drawn / 40 && beyond > drawn / 40);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_size_is_planned_or_refused),
    };

    if (argc > 1 || getenv("SHERD_LONG"))
        drawn = argc > 1 ? atoi(argv[1]) : 10000;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
