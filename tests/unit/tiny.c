#include "tests/unit/tiny.h"

#include "src/optim/update.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#define COMMON                                                                                                    \
    .dim = 12, .ffn_dim = 20, .vocab_size = TINY_VOCAB, .max_seq_len = TINY_SEQ + 1, .head_dim = 4, .n_heads = 3, \
    .norm_eps = 1e-5f, .init_std = 0.3f
#define LLAMA .family = SH_FAMILY_LLAMA, .n_kv_heads = 1, .rope_theta = 100
#define GPT2 .family = SH_FAMILY_GPT2, .n_kv_heads = 3

const struct tiny_model tiny_models[TINY_MODELS] = {
    {"llama, 1 layer", {COMMON, LLAMA, .n_layers = 1}, false},
    {"llama, 3 layers, documents", {COMMON, LLAMA, .n_layers = 3}, true},
    {"llama, 2 layers, tied", {COMMON, LLAMA, .n_layers = 2, .tie_word_embeddings = true}, false},
    {"gpt2, 1 layer, tied", {COMMON, GPT2, .n_layers = 1, .tie_word_embeddings = true}, false},
    {"gpt2, 2 layers", {COMMON, GPT2, .n_layers = 2}, true},
    {"gpt2, 3 layers, tied", {COMMON, GPT2, .n_layers = 3, .tie_word_embeddings = true}, false},
};

/* clang-format off */
const struct tiny_model not_tiny_model = {
    "70B",
    {.family = SH_FAMILY_LLAMA, .n_layers = 80, .dim = 8192, .n_heads = 64, .n_kv_heads = 8, .head_dim = 128,
     .ffn_dim = 28672, .vocab_size = 128256, .max_seq_len = 8192, .norm_eps = 1e-5f, .init_std = 0.02f, .rope_theta = 5e5},
    false};

const struct tiny_strategy tiny_strategies[TINY_STRATEGIES] = {
    /* clang-format on */
    {"full", false, false},
    {"keep after forward", false, true},
    {"resident", true, false},
};

const struct sh_recompute tiny_recomputes[TINY_RECOMPUTES] = {
    [TINY_FULL] = {.full = SH_ALL_BLOCKS},
    [TINY_EVERY_2] = {.full = SH_ALL_BLOCKS, .every_k = 2},
    [TINY_SELECTIVE] = {.selective = SH_ALL_BLOCKS},
    [TINY_FIRST_SELECTIVE] = {.selective = 1},
    [TINY_FIRST_FULL] = {.full = 1, .selective = SH_ALL_BLOCKS},
};

static int product(struct sh_program *p, int x, int w, bool w_in_out, int y)
{
    struct sh_op op = sh_program_op(SH_OP_LINEAR);

    op.attr.linear.w_in_out = w_in_out;
    op.in[0] = x;
    op.in[1] = w;
    op.out[0] = y;
    op.phase = SH_PHASE_UPDATE;
    sh_program_append(p, op);
    return y;
}

/* The matrix of a parameter in a whole unit. */
static int matrix_in(struct sh_program *p, int whole, const struct sh_param *param)
{
    struct sh_tensor t = sh_tensor_make(p->tensors[whole].mem, SH_F32, 2, param->dim, "matrix");

    t.base = whole;
    t.base_elems = param->unit_elems;
    t.persistent = p->tensors[whole].persistent;
    return sh_program_add_tensor(p, &t);
}

static void emit_cubic(const struct sh_update *u)
{
    struct sh_program *p = u->p;
    const struct sh_unit *unit = &p->units[u->unit];
    int64_t elems = unit->chunk * u->chunks;
    struct sh_tensor steps = sh_tensor_make(SH_MEM_GRAD_FULL, SH_F32, 1, &elems, "steps");
    int whole, made;

    if (u->of == SH_RUNS_OTHERS) {
        sh_optim_each(u);
        return;
    }
    whole = sh_optim_gather(u, unit->grad_shard);
    made = sh_program_add_tensor(p, &steps);
    for (int i = unit->first_param; i < unit->first_param + unit->n_params; i++) {
        const struct sh_param param = p->params[i];
        struct sh_tensor square =
            sh_tensor_make(SH_MEM_WORK, SH_F32, 2, (const int64_t[]){param.dim[0], param.dim[0]}, "square");

        if (sh_optim_has(p, u->of, &param)) {
            int g = matrix_in(p, whole, &param);
            int gg = product(p, g, g, false, sh_program_add_tensor(p, &square));

            product(p, gg, g, true, matrix_in(p, made, &param));
        }
    }
    sh_optim_elements(u, u->optim->op, sh_optim_own(u, made));
}

const struct sh_optim tiny_cubic = {
    .name = "Cubic", .emit = emit_cubic, .op = SH_OP_SGD, .whole = true, .n_states = 1, .state = {"momentum_buffer"}};

struct sh_build tiny_build(const struct tiny_model *m, int batch)
{
    return (struct sh_build){.model = m->model,
                             .batch = {.batch = batch, .seq = TINY_SEQ, .docs = m->docs},
                             .act = SH_F32,
                             .options = {.mesh = tiny_mesh(1, 1, 1, 0),
                                         .micro_steps = 1,
                                         .chunks = 1,
                                         .training = true,
                                         .optim = sh_optim_of(SH_OPTIM_ADAMW),
                                         .ortho = {.steps = 5, .adjust = SH_ADJUST_MATCH_RMS_ADAMW},
                                         .forward_prefetch = 1,
                                         .backward_prefetch = 1},
                             .kernels = &sh_kernels_ref,
                             .threads = 1};
}

int tiny_step(int n)
{
    return getenv("SHERD_TEST_FEW") ? n : 1;
}

struct sh_mesh_shape tiny_mesh(int shard, int replicate, int inner, int rank)
{
    struct sh_mesh_request req = {.shard = shard, .replicate = replicate, .inner = inner};
    struct sh_mesh_shape shape;

    assert_int_equal(sh_mesh_shape_make(&req, shard * replicate, rank, &shape), SH_OK);
    return shape;
}

struct sh_program *tiny_program(const struct sh_build *b, struct sh_mesh_shape mesh)
{
    struct sh_build mine = *b;
    struct sh_program *p = NULL;

    mine.options.mesh = mesh;
    if (sh_pass_build(&mine, &p) != SH_OK)
        fail_msg("%s (shard %d, replicate %d, inner %d, rank %d)", sh_error_text(), sh_group_size(&mesh, mesh.shard),
                 sh_group_size(&mesh, mesh.replicate), sh_group_size(&mesh, mesh.inner), mesh.rank);
    return p;
}
