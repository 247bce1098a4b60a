/* Many real ranks, as threads of one process under SimGrid's SMPI: the mesh, the channels, every collective that
 * training uses over every group, and one step of the real program by the real executor with kernels that compute
 * nothing; all values are checked. Tests things that grow with the number of ranks: tables, tags, sizes, order,
 * deadlocks.
 *
 *   smpirun -np N ... ranks R S T P [step]   N = R x S x T x P: R replicas of S shards of matrices on T ranks, in P stages
 *                                            of 4 micro-steps; rank 0 prints the result */
#include "src/base/mem.h"
#include "src/comm/comm.h"
#include "src/exec/exec.h"
#include "src/layout/layout.h"
#include "src/mesh/mesh.h"
#include "src/pass/build.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { GROUPS = 6, ELEMS = 3, SEQ = 8, VOCAB = 32, VALUES = 101, STEP = 13 };
enum { LARGE = 1100 };  /* elements: more than are gathered by MPI's own gather */
enum { BLOCKS = 16 };   /* most blocks of the world in its reductions: every rank handles messages from all blocks */
enum { GATHERED = 64 }; /* largest group that gathers this many elements of each rank: every rank holds all of it */

static struct sh_mesh *mesh;
static struct sh_comm *comm;
static long long wrong, checked;
static int two_levels; /* groups that reduced in two levels */

/* SMPI intercepts getpid() and returns its own numbers, but Sherd uses the number in a path to shared memory
 * (src/mesh/segment.c). */
pid_t __wrap_smpi_getpid(void);
pid_t __wrap_smpi_getpid(void)
{
    return (pid_t)syscall(SYS_getpid);
}

/* Its thread would outlive its rank, whose globals SMPI then unmaps. */
void __wrap_sh_mesh_end_finalizes(int ranks);
void __wrap_sh_mesh_end_finalizes(int ranks)
{
    (void)ranks;
}

static void need(sh_rc rc)
{
    if (rc != SH_OK)
        sh_stop(rc);
}

static void expect(double found, double expected)
{
    wrong += found != expected;
    checked++;
}

/* Whole numbers, so a sum in any order is exact. */
static float value(int rank, int64_t i)
{
    return (float)((rank * 7 + i * STEP) % VALUES);
}

/* The sum of rank + 1 over the members of a group. */
static double sum_over(sh_group group)
{
    double sum = 0;

    for (int k = 0; k < sh_group_size(&mesh->shape, group); k++)
        sum += sh_group_member(&mesh->shape, group, k) + 1;
    return sum;
}

static void open_channels(const struct sh_group_use *groups, int n, const struct sh_stream *streams, int n_streams)
{
    struct sh_comm_options opt = {.history = 16,
                                  .groups = groups,
                                  .n_groups = n,
                                  .streams = streams,
                                  .n_streams = n_streams,
                                  .inline_progress = true,
                                  .ranks_per_node = mesh->node_size};

    for (int g = 0; g < n; g++)
        need(sh_mesh_open(mesh, groups[g].axes));
    need(sh_comm_create(mesh, &opt, &comm));
}

static void run(sh_group group, enum sh_op_kind kind, int stream, int64_t count, const void *send, void *recv)
{
    struct sh_coll coll = {.kind = kind,
                           .stream = stream,
                           .group = group,
                           .dtype = SH_F32,
                           .send = send,
                           .recv = recv,
                           .count = count,
                           .label = "scale"};
    int64_t ticket;

    need(sh_comm_start(comm, &coll, &ticket));
    need(sh_comm_wait(comm, ticket));
}

/* How many members of a group have each value at element 0. */
struct census {
    int of[VALUES];
};

static struct census count_values(sh_group group)
{
    struct census c = {0};

    for (int k = 0; k < sh_group_size(&mesh->shape, group); k++)
        c.of[(int)value(sh_group_member(&mesh->shape, group, k), 0)]++;
    return c;
}

/* The sum of element i over those members. */
static double sum_of(const struct census *c, int64_t i)
{
    double sum = 0;

    for (int v = 0; v < VALUES; v++)
        sum += c->of[v] * (double)((v + i * STEP) % VALUES);
    return sum;
}

static void gather(sh_group group, int n)
{
    int size = sh_group_size(&mesh->shape, group);
    float mine[LARGE], *all = sh_calloc((size_t)size * (size_t)n, sizeof *all);

    for (int i = 0; i < n; i++)
        mine[i] = value(mesh->rank, i);
    run(group, SH_OP_ALL_GATHER, SH_STREAM_GATHER, n, mine, all);
    for (int i = 0; i < size * n; i++)
        expect(all[i], value(sh_group_member(&mesh->shape, group, i / n), i % n));
    free(all);
}

static void reduce_scatter(sh_group group)
{
    int size = sh_group_size(&mesh->shape, group), place = sh_group_index(&mesh->shape, group);
    float sum[ELEMS], *all = sh_calloc((size_t)size * ELEMS, sizeof *all);
    struct census members = count_values(group);

    for (int i = 0; i < size * ELEMS; i++)
        all[i] = value(mesh->rank, i);
    run(group, SH_OP_REDUCE_SCATTER, SH_STREAM_REDUCE, ELEMS, all, sum);
    for (int i = 0; i < ELEMS; i++)
        expect(sum[i], sum_of(&members, place * ELEMS + i));
    free(all);
}

static void all_reduce(sh_group group, int n)
{
    float sum[LARGE];
    struct census members = count_values(group);

    for (int i = 0; i < n; i++)
        sum[i] = value(mesh->rank, i);
    run(group, SH_OP_ALL_REDUCE, SH_STREAM_REPLICATE, n, NULL, sum);
    for (int i = 0; i < n; i++)
        expect(sum[i], sum_of(&members, i));
}

/* Sizes that MPI's own gather does not handle. Direct reductions over the world take n (n - 1) messages, so over the
 * world reductions are tested only in two levels. */
static void large(sh_group group)
{
    int ranks = sh_group_size(&mesh->shape, group), block = sh_comm_block(comm, group);

    if (group == sh_group_world(&mesh->shape) && (block == 1 || ranks / block > BLOCKS))
        return;
    reduce_scatter(group);
    if (block == 1)
        return;
    two_levels++;
    all_reduce(group, LARGE);
    if (ranks <= GATHERED)
        gather(group, LARGE);
}

static void collectives(void)
{
    const struct sh_mesh_shape *s = &mesh->shape;
    const unsigned all = 1u << SH_STREAM_GATHER | 1u << SH_STREAM_REDUCE | 1u << SH_STREAM_REPLICATE;
    struct sh_group_use groups[GROUPS] = {{"shard", s->shard, all},
                                          {"replicate", s->replicate, all},
                                          {"world", sh_group_world(s), all},
                                          {"tensor", s->tensor, all},
                                          {"tensor and shard", s->tensor | s->shard, all},
                                          {"pipeline", s->pipeline, all}};

    open_channels(groups, GROUPS, sh_streams, SH_STREAMS);
    need(sh_mesh_self_test(mesh));
    for (int g = 0; g < GROUPS; g++) {
        gather(groups[g].axes, ELEMS);
        all_reduce(groups[g].axes, ELEMS);
        large(groups[g].axes);
    }
    sh_comm_destroy(comm);
}

/* The step. The kernels of the device `cpu` are replaced by empty tables; the device calls look() instead. */
static sh_rc nothing(const struct sh_op_call *call)
{
    (void)call;
    return SH_OK;
}

#define NOTHING(KIND, name) [SH_OP_##KIND] = nothing,
#define NONE(KIND, name)
const struct sh_kernel_table sh_kernels_cpu = {.name = "cpu", .run = {SH_OP_LIST(NOTHING, NOTHING, NONE)}};
const struct sh_kernel_table sh_kernels_ref = {.name = "ref", .run = {SH_OP_LIST(NOTHING, NOTHING, NONE)}};

static struct sh_program *program;
static struct sh_exec *executor;
static int at;      /* the operation that the executor has reached */
static int weights; /* weights that were checked */

/* The value of a parameter: the same on all ranks, whoever owns the element. */
static float parameter(int unit, int64_t elem)
{
    return (float)((unit * 31 + elem * 7) % 997);
}

/* The unit of a tensor that is gathered here; its only tensor of that kind has no row in the unit. */
static int unit_gathered(int tensor)
{
    for (int i = 0; i < program->n_ops; i++)
        if (program->ops[i].kind == SH_OP_ALL_GATHER && program->ops[i].out[0] == tensor)
            return program->ops[i].unit;
    sh_stop(sh_fail(SH_E_BUG, "%s is gathered nowhere", program->tensors[tensor].name));
}

/* Check weights as they come out of a gather, where they are used: they are views of the whole unit. */
static void look_at_weight(int tensor)
{
    const struct sh_tensor *t = &program->tensors[tensor];
    int root = sh_tensor_root(program, tensor);
    const float *x = sh_exec_data(executor, tensor);

    if (program->tensors[root].mem != SH_MEM_GATHERED)
        return;
    weights++;
    for (int64_t unit = unit_gathered(root), i = 0; i < sh_tensor_elems(t); i++)
        expect(x[i], parameter((int)unit, t->base_elems + i));
}

/* Write what kernels would write into a unit's gradient, before it is reduced. */
static void fill_gradient(int tensor)
{
    float *x = sh_exec_data(executor, tensor);

    if (program->tensors[sh_tensor_root(program, tensor)].mem != SH_MEM_GRAD_FULL)
        return;
    for (int64_t i = 0; i < sh_tensor_elems(&program->tensors[tensor]); i++)
        x[i] = (float)mesh->rank + 1;
}

static bool has_kernel(const struct sh_op *op)
{
    const struct sh_op_info *info = sh_op_info(op->kind);

    return !info->async && !info->moves && !info->marker;
}

/* Called in place of a kernel: operations must come in the order of the section. */
static sh_rc look(const struct sh_op_call *call, const char *label)
{
    const struct sh_op *op;

    while (!has_kernel(&program->ops[at]))
        at++;
    op = &program->ops[at++];
    if (op->kind != call->kind)
        return sh_fail(SH_E_BUG, "%s is not the operation that is next", label);
    for (int i = 0; i < SH_OP_MAX_IN && op->phase != SH_PHASE_UPDATE; i++)
        if (op->in[i] != SH_NONE)
            look_at_weight(op->in[i]);
    for (int i = 0; i < SH_OP_MAX_OUT && op->phase != SH_PHASE_UPDATE; i++)
        if (op->out[i] != SH_NONE)
            fill_gradient(op->out[i]);
    return SH_OK;
}

static void run_section(enum sh_section_kind kind)
{
    at = sh_program_section(program, kind)->first_op;
    sh_exec_run(executor, kind);
}

static void fill_units(void)
{
    for (int i = 0; i < program->n_units; i++) {
        const struct sh_unit *u = &program->units[i];
        float *x = sh_exec_data(executor, u->compute);
        int64_t first = sh_group_index(&mesh->shape, u->shard) * u->chunk;

        for (int64_t k = 0; k < u->chunk; k++)
            x[k] = parameter(i, first + k);
    }
}

static void check_gradients(void)
{
    for (int i = 0; i < program->n_units; i++) {
        const struct sh_unit *u = &program->units[i];
        const float *x = sh_exec_data(executor, u->grad_shard);
        int64_t first = sh_group_index(&mesh->shape, u->shard) * u->chunk;

        for (int64_t k = 0; k < u->chunk && first + k < u->elems; k++)
            expect(x[k], sum_over(u->shard | u->replicate));
    }
}

static void check_loss(void)
{
    double loss = mesh->rank + 1;

    sh_exec_put(executor, SH_PORT_LOSS, &loss);
    run_section(SH_SECTION_LOSS);
    sh_exec_get(executor, SH_PORT_LOSS, &loss);
    expect(loss, sum_over(mesh->shape.rows | mesh->shape.pipeline));
}

static void plan(void)
{
    int stages = sh_group_size(&mesh->shape, mesh->shape.pipeline),
        parts = sh_group_size(&mesh->shape, mesh->shape.tensor);
    static const struct sh_optim optim = {
        .name = "AdamW", .emit = sh_optim_each, .op = SH_OP_ADAMW, .n_states = 2, .state = {"exp_avg", "exp_avg_sq"}};
    struct sh_build b = {.model = {.family = SH_FAMILY_LLAMA,
                                   .n_layers = stages > 1 ? stages : 2,
                                   .dim = 16,
                                   .n_heads = parts > 1 ? parts : 2,
                                   .n_kv_heads = parts,
                                   .head_dim = 8,
                                   .ffn_dim = 24,
                                   .vocab_size = VOCAB,
                                   .max_seq_len = SEQ,
                                   .norm_eps = 1e-5f,
                                   .init_std = 0.02f,
                                   .rope_theta = 1e4},
                         .batch = {.batch = 1, .seq = SEQ},
                         .act = SH_F32,
                         .tensor_tiles = 2, /* of the rows that parts exchange */
                         .options = {.mesh = mesh->shape,
                                     .micro_steps = stages > 1 ? 4 : 1,
                                     .chunks = 1,
                                     .strategy = {.keep_after_forward = stages > 1},
                                     .training = true,
                                     .optim = &optim,
                                     .forward_prefetch = 1,
                                     .backward_prefetch = 1},
                         .kernels = &sh_kernels_ref,
                         .threads = 1};

    need(sh_agree(sh_pass_build(&b, &program)));
    if (stages == 1 && !sh_mesh_same(sh_pass_hash(program)))
        sh_stop(sh_fail(SH_E_BUG, "ranks have planned different programs"));
}

static void step(void)
{
    struct sh_device device = sh_device_cpu;

    device.run = look;
    plan();
    open_channels(program->groups, program->n_groups, program->streams, program->n_streams);
    need(sh_agree(sh_exec_create(program, &device, comm, -1, &(struct sh_exec_file){0}, &executor)));
    fill_units();
    run_section(SH_SECTION_INIT);
    run_section(SH_SECTION_ONLY);
    expect(weights > 0, 1);
    check_gradients();
    check_loss();
    run_section(SH_SECTION_NORM);
    run_section(SH_SECTION_UPDATE);
    sh_exec_destroy(executor);
    sh_comm_destroy(comm);
    sh_program_destroy(program);
}

int main(int argc, char **argv)
{
    struct sh_mesh_request req = {.inner = 1};
    int *const size[] = {&req.replicate, &req.shard, &req.tensor, &req.pipeline};

    need(sh_mesh_start(&argc, &argv));
    sh_mesh_wait_in_mpi(true);
    if (argc < 5)
        sh_stop(sh_fail(SH_E_USAGE, "ranks REPLICAS SHARDS TENSOR STAGES [step]"));
    for (int i = 0; i < 4; i++)
        *size[i] = atoi(argv[1 + i]);
    need(sh_mesh_create(&req, &mesh));
    collectives();
    if (argc > 5)
        step();
    long long sums[2] = {wrong, checked};
    need(sh_mesh_sum_i64(sums, 2));
    if (mesh->rank == 0)
        printf("%d ranks on %d nodes, %d groups in two levels, %lld of %lld values wrong\n", mesh->world, mesh->n_nodes,
               two_levels, sums[0], sums[1]);
    sh_mesh_destroy(mesh);
    sh_mesh_stop();
    return sums[0] != 0;
}
