/* The mesh that a configuration asks for on given nodes, the messages about it, and which ranks share one copy. */
#include "src/plan/request.h"

#include "src/pass/build.h"
#include "src/plan/pinned.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define NODES(ranks, per_node)                                            \
    {                                                                     \
        .world = (ranks), .ranks_per_node = (per_node), .in_blocks = true \
    }
#define ONCE(n) "no_shard (the " #n " of a node hold it once in shared memory)"

/* segment: ranks that share memory. */
static const struct {
    struct sh_topology at;
    const char *set;
    int replicate, shard, segment;
    const char *text;
} table[] = {
    {NODES(1, 1), NULL, 1, 1, 0, "no_shard"},
    {NODES(2, 2), NULL, 1, 2, 2, ONCE(2)},
    {NODES(3, 3), NULL, 1, 3, 3, ONCE(3)},
    {NODES(12, 4), NULL, 3, 4, 4, ONCE(4)},
    {NODES(10000, 8), NULL, 1250, 8, 8, ONCE(8)},
    /* one rank per node has nobody to share with */
    {NODES(4, 1), NULL, 4, 1, 0, "no_shard"},
    /* the last node is not full; nodes are not known; neighbours are not on one node; GPUs */
    {NODES(6, 4), NULL, 6, 1, 0, "no_shard"},
    {NODES(4, 0), NULL, 4, 1, 0, "no_shard"},
    {{.world = 4, .ranks_per_node = 4}, NULL, 4, 1, 0, "no_shard"},
    {{.world = 4, .ranks_per_node = 4, .in_blocks = true, .gpu = true}, NULL, 4, 1, 0, "no_shard"},
    /* as asked for; replicas on one node nevertheless reduce in its memory */
    {NODES(4, 4), "comm.shared_memory=off", 4, 1, 0, "no_shard"},
    {NODES(4, 4), "mesh.shard=1", 4, 1, 4, "no_shard"},
    {NODES(4, 4), "mesh.replicate=4", 4, 1, 4, "no_shard"},
    {NODES(4, 2), "mesh.replicate=4", 4, 1, 0, "no_shard"},
    /* the other strategies keep their mesh */
    {NODES(4, 2), "parallelism.sharding_strategy=shard_optim", 1, 4, 0, "shard_optim"},
    /* replicas with shard_optim if they are asked for */
    {NODES(4, 2), "parallelism.sharding_strategy=shard_optim mesh.shard=2", 2, 2, 2, "shard_optim"},
    {NODES(8, 4), "parallelism.sharding_strategy=shard_optim mesh.shard=node", 2, 4, 4, "shard_optim"},
    {NODES(8, 4), "parallelism.sharding_strategy=shard_optim mesh.replicate=4", 4, 2, 4, "shard_optim"},
    {NODES(4, 2), "parallelism.sharding_strategy=shard_optim mesh.replicate=4", 4, 1, 0, "shard_optim"},
    {NODES(4, 2), "parallelism.sharding_strategy=hybrid_shard", 2, 2, 2, "hybrid_shard"},
};

/* Load a configuration with no_shard, unless `set` says otherwise: a setting, or two separated by a space. */
static void load(const char *set, struct sh_config *cfg)
{
    const char *words[12] = {"model.name=debug"};
    char text[320];
    int n = 1;

    snprintf(text, sizeof text, "%s", set ? set : "");
    if (!strstr(text, "sharding_strategy"))
        words[n++] = "parallelism.sharding_strategy=no_shard";
    for (char *word = strtok(text, " "); word; word = strtok(NULL, " "))
        words[n++] = word;
    assert_int_equal(sh_config_load(NULL, n, words, cfg), SH_OK);
}

static void meshes(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        char text[SH_STRATEGY_TEXT];
        struct sh_config cfg;
        struct sh_mesh_shape mesh;
        struct sh_build build;

        load(table[i].set, &cfg);
        assert_int_equal(sh_request_mesh(&cfg, &table[i].at, &mesh), SH_OK);
        assert_int_equal(sh_request_build(&cfg, &table[i].at, &mesh, SH_TO_TRAIN, 1, 0, &build), SH_OK);
        int replicas = sh_group_size(&mesh, mesh.replicate), shard = sh_group_size(&mesh, mesh.shard);

        if (replicas != table[i].replicate || shard != table[i].shard ||
            build.options.segment_ranks != table[i].segment)
            fail_msg("row %d: %d x %d, %d share", (int)i, replicas, shard, build.options.segment_ranks);
        assert_string_equal(sh_request_strategy_text(&cfg, &mesh, text), table[i].text);
    }
}

/* What is kept for NCCL's communicators, in tenths of a percent of a GiB. */
static void room_for_nccl(void **state)
{
    static const struct {
        struct sh_topology at;
        const char *set;
        int sharing, kept;
    } rows[] = {
        {NODES(2, 2), "parallelism.sharding_strategy=full_shard", 1, 1500},
        {NODES(16, 1), "parallelism.sharding_strategy=full_shard", 1, 1500},
        {NODES(8, 8), "parallelism.sharding_strategy=full_shard", 1, 1650},
        {NODES(8, 8), "parallelism.sharding_strategy=full_shard", 8, 1500},
        {NODES(8, 8), "parallelism.sharding_strategy=full_shard parallelism.reshard_after_forward=4", 1, 2200},
        {NODES(16, 8), "parallelism.sharding_strategy=hybrid_shard", 1, 1950},
        {{.world = 8, .ranks_per_node = 4}, "parallelism.sharding_strategy=full_shard", 1, 1650},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct sh_topology_gpu gpu = {.sharing = rows[i].sharing};
        struct sh_config cfg;
        struct sh_mesh_shape mesh;
        double gib;

        load(rows[i].set, &cfg);
        assert_int_equal(sh_request_mesh(&cfg, &rows[i].at, &mesh), SH_OK);
        gib = (double)sh_topology_nccl_room(&rows[i].at, &gpu, &mesh) / (1 << 30);
        if ((int)(gib * 1000 + 0.5) != rows[i].kept)
            fail_msg("row %zu: %g GiB", i, gib);
    }
}

/* The run connects the axes for which the plan was made. */
static void axes_are_those_of_the_plan(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        for (int rank = 0; rank < table[i].at.world && rank < 16; rank++) {
            struct sh_topology at = table[i].at;
            struct sh_config cfg;
            struct sh_mesh_shape planned, connected;
            struct sh_mesh_request axes;

            at.rank = rank;
            load(table[i].set, &cfg);
            axes = sh_request_axes(&cfg, &at);
            assert_int_equal(sh_request_mesh(&cfg, &at, &planned), SH_OK);
            assert_int_equal(sh_mesh_shape_make(&axes, at.world, rank, &connected), SH_OK);
            assert_memory_equal(&planned, &connected, sizeof planned);
        }
}

static void refused(void **state)
{
    static const struct sh_topology at = NODES(4, 4);
    static const struct {
        const char *set, *text;
    } rows[] = {
        {"mesh.shard=4", "needs mesh.shard=1, but it is 4"},
        {"mesh.shard=node", "needs mesh.shard=1, but it is 4"},
        {"mesh.replicate=2", "replicate 2 x shard 1 = 2 ranks, but the job has 4"},
        {"parallelism.sharding_strategy=full_shard mesh.replicate=2",
         "shards over all 4 ranks, but the mesh has 2 replicas"},
        {"parallelism.sharding_strategy=shard_grad_op mesh.shard=2", "hybrid_shard_zero2 or shard_optim for replicas"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct sh_config cfg;
        struct sh_mesh_shape mesh;

        load(rows[i].set, &cfg);
        assert_int_equal(sh_request_mesh(&cfg, &at, &mesh), SH_E_USAGE);
        if (!strstr(sh_error_text(), rows[i].text))
            fail_msg("row %d: %s", (int)i, sh_error_text());
        sh_error_clear();
    }
}

/* How much may be pinned: the configured limit, otherwise with a budget a share of the node, if that is known; on CPUs
 * the limit has no effect. */
static void room_on_the_host(void **state)
{
    enum { NODE = 1000, RANKS = 4 };
    struct sh_topology at = NODES(4, 4);
    struct sh_config cfg;

    (void)state;
    load("training.device=cuda", &cfg);
    at.gpu = true;
    assert_int_equal(sh_topology_host_room(&cfg, &at, NODE, RANKS), 0);
    cfg.offload.mode = SH_OFFLOAD_BUDGET;
    assert_int_equal(sh_topology_host_room(&cfg, &at, NODE, RANKS), 200);
    assert_int_equal(sh_topology_host_room(&cfg, &at, 0, RANKS), 0);
    cfg.memory.host_limit_bytes = 777;
    assert_int_equal(sh_topology_host_room(&cfg, &at, NODE, RANKS), 777);
    at.gpu = false;
    assert_int_equal(sh_topology_host_room(&cfg, &at, NODE, RANKS), 0);
}

/* The tiers below a device, if the configuration leaves the device to the node; NULL: supported. */
static void tiers_below_a_device(void **state)
{
    static const struct {
        const char *set;
        bool gpu;
        const char *text;
    } rows[] = {
        {"offload.optimizer=cpu", true, NULL},
        {"offload.optimizer=cpu", false,
         "offload.optimizer=cpu is for GPUs, and the job runs on CPUs, whose memory has the states already; nvme puts them "
         "into a file"},
        {"offload.optimizer=nvme offload.nvme_path=/d", false, NULL},
        {"offload.optimizer=nvme offload.nvme_path=/d", true, "give cpu, their host's memory, or training.device=cpu"},
        {"offload.gradients=cpu", true, NULL},
        {"offload.gradients=cpu", false, "offload.gradients=cpu is for GPUs, and the job runs on CPUs"},
        {"offload.gradients=nvme offload.nvme_path=/d", false, NULL},
        {"offload.gradients=nvme offload.nvme_path=/d", true, "offload.gradients=nvme moves between a file"},
        {"offload.parameters=cpu parallelism.sharding_strategy=full_shard", true, NULL},
        {"offload.parameters=cpu", true, "give parallelism.sharding_strategy=full_shard"},
        {"offload.parameters=cpu", false, "offload.parameters=cpu is for GPUs, and the job runs on CPUs"},
        {"offload.activations=nvme offload.nvme_path=/d", false, NULL},
        {"offload.activations=nvme offload.nvme_path=/d", true,
         "offload.activations=nvme moves between a file and the memory of the CPU, and the job runs on GPUs; give cpu, their "
         "host's memory, or training.device=cpu"},
        {"offload.activations=cpu", true, NULL},
        {"offload.activations=cpu", false,
         "offload.activations=cpu is for GPUs, and the job runs on CPUs, whose memory has them already; nvme puts "
         "them into a file"},
        {"offload.mode=memory_budget memory.limit_bytes=1GiB offload.nvme_path=/d", false, NULL},
        {"offload.mode=memory_budget memory.limit_bytes=1GiB", true, NULL},
        {"offload.mode=memory_budget memory.limit_bytes=1GiB", false,
         "offload.mode=memory_budget: offload.nvme_path is missing; on CPUs give a folder"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct sh_topology at = NODES(4, 4);
        struct sh_config cfg;
        struct sh_mesh_shape mesh;
        struct sh_build build;

        at.gpu = rows[i].gpu;
        load(rows[i].set, &cfg);
        cfg.memory.host_limit_bytes = 12345;
        assert_int_equal(sh_request_mesh(&cfg, &at, &mesh), SH_OK);
        assert_int_equal(sh_request_build(&cfg, &at, &mesh, SH_TO_TRAIN, 1, 0, &build),
                         rows[i].text ? SH_E_USAGE : SH_OK);
        if (rows[i].text && !strstr(sh_error_text(), rows[i].text))
            fail_msg("row %d: %s", (int)i, sh_error_text());
        if (!rows[i].text)
            assert_true(build.offload.carry == (build.offload.optimizer_16 == 16));
        if (!rows[i].text)
            assert_int_equal(build.host_limit_bytes, at.gpu ? 12345 : 0);
        sh_error_clear();
    }
}

/* Count the collectives of units in a step of two micro-steps; norm and loss reduce numbers that belong to no unit. */
static int count(const struct sh_program *p, enum sh_op_kind kind)
{
    int n = 0;

    for (int s = 0; s < p->n_sections; s++)
        for (int i = 0; i < p->sections[s].n_ops; i++) {
            const struct sh_op *op = &p->ops[p->sections[s].first_op + i];

            n += op->kind == kind && op->unit != SH_NONE ? p->sections[s].repeat : 0;
        }
    return n;
}

/* `mesh`, `other`: more settings, or NULL. */
static struct sh_program *plan_with(const char *set, const char *mesh_set, const char *other)
{
    static const struct sh_topology at = NODES(4, 2);
    struct sh_config cfg;
    struct sh_mesh_shape mesh;
    struct sh_build build;
    struct sh_program *p;
    const char *const words[] = {"model.name=debug",
                                 "training.seq_len=8",
                                 "training.local_batch_size=1",
                                 "comm.shared_memory=off",
                                 "training.global_batch_size=8",
                                 set,
                                 mesh_set ? mesh_set : other,
                                 other};

    assert_int_equal(sh_config_load(NULL, 6 + !!mesh_set + !!other, words, &cfg), SH_OK);
    assert_int_equal(sh_request_mesh(&cfg, &at, &mesh), SH_OK);
    assert_int_equal(sh_request_build(&cfg, &at, &mesh, SH_TO_TRAIN, 1, 0, &build), SH_OK);
    if (sh_pass_build(&build, &p) != SH_OK)
        fail_msg("%s: %s", set, sh_error_text());
    return p;
}

static struct sh_program *plan_of(const char *set, const char *mesh_set)
{
    return plan_with(set, mesh_set, NULL);
}

/* How much each strategy gathers, reduces and keeps on a rank, from its name to the plan: 4 ranks on 2 nodes,
 * 2 micro-steps, 6 units with 853,120 parameters. The backward gathers 3 of the units again: the last two are still
 * there, and it does not read the first. Bytes of one parameter: 2, remainder 2, gradient 4, optimizer state 8. */
static void strategies_are_what_they_are_called(void **state)
{
    static const struct {
        const char *name, *mesh;
        int gathers, scatters, sums;
        int64_t param, remainder, grad, optim;
    } rows[] = {
        {"no_shard", NULL, 0, 0, 6, 1706240, 1706240, 3412480, 6824960},
        {"shard_optim", NULL, 6, 6, 0, 1706496, 427264, 4266240, 1706496},
        {"shard_optim", "mesh.shard=2", 6, 6, 6, 1706240, 853248, 5118720, 3412480},
        {"shard_grad_op", NULL, 12, 12, 0, 427264, 427264, 1050112, 1706496},
        {"full_shard", NULL, 18, 12, 0, 427264, 427264, 1050112, 1706496},
        {"hybrid_shard", NULL, 18, 12, 6, 853248, 853248, 2099968, 3412480},
        {"hybrid_shard_zero2", NULL, 12, 12, 6, 853248, 853248, 2099968, 3412480},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char set[64];
        struct sh_program *p;
        int64_t bytes[SH_MEM_KINDS];

        snprintf(set, sizeof set, "parallelism.sharding_strategy=%s", rows[i].name);
        p = plan_of(set, rows[i].mesh);
        sh_pass_memory(p, bytes);
        if (count(p, SH_OP_ALL_GATHER) != rows[i].gathers || count(p, SH_OP_REDUCE_SCATTER) != rows[i].scatters ||
            count(p, SH_OP_ALL_REDUCE) != rows[i].sums || bytes[SH_MEM_PARAM] != rows[i].param ||
            bytes[SH_MEM_REMAINDER] != rows[i].remainder || bytes[SH_MEM_GRAD] != rows[i].grad ||
            bytes[SH_MEM_OPTIM] != rows[i].optim)
            fail_msg("{\"%s\", %d, %d, %d, %lld, %lld, %lld, %lld}", rows[i].name, count(p, SH_OP_ALL_GATHER),
                     count(p, SH_OP_REDUCE_SCATTER), count(p, SH_OP_ALL_REDUCE), (long long)bytes[SH_MEM_PARAM],
                     (long long)bytes[SH_MEM_REMAINDER], (long long)bytes[SH_MEM_GRAD], (long long)bytes[SH_MEM_OPTIM]);
        sh_program_destroy(p);
    }
}

/* Bytes that a rank sends in all gathers, and those of the parameters that it keeps, each tensor up to multiples of `to`. */
static int64_t gathered(const struct sh_program *p, int64_t to)
{
    int64_t bytes = 0;

    for (int i = 0; i < p->n_ops; i++)
        if (p->ops[i].kind == SH_OP_ALL_GATHER)
            bytes += (sh_tensor_bytes(&p->tensors[p->ops[i].in[0]]) + to - 1) / to * to;
    return bytes;
}

static int64_t kept(const struct sh_program *p, int64_t to)
{
    int64_t bytes = 0;

    for (int t = 0; t < p->n_tensors; t++)
        if (p->tensors[t].mem == SH_MEM_PARAM && p->tensors[t].persistent && p->tensors[t].base == SH_NONE)
            bytes += (sh_tensor_bytes(&p->tensors[t]) + to - 1) / to * to;
    return bytes;
}

/* 68 bytes for 64 parameters instead of 128, whatever is gathered when, in chunks of whole groups of 256 parameters: NCCL copies
 * single bytes between addresses that are no multiples of 16. A rank has the codes of its chunk beside that of the parameters;
 * or the codes of all in place of the copy of them, and its chunk beside those. */
static void gathers_are_in_codes(void **state)
{
    enum { GROUP = 256 * 2 };
    static const struct {
        const char *strategy, *mesh;
        int parts; /* of what is kept without codes, the chunk that is kept with them */
    } rows[] = {{"full_shard", NULL, 1},
                {"hybrid_shard", NULL, 1},
                {"full_shard", "parallelism.reshard_after_forward=2", 1},
                {"shard_grad_op", NULL, 1},
                {"shard_optim", NULL, 4}};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct sh_program *plain, *coded;
        char set[64];
        int64_t all;

        snprintf(set, sizeof set, "parallelism.sharding_strategy=%s", rows[i].strategy);
        plain = plan_with(set, rows[i].mesh, NULL);
        coded = plan_with(set, rows[i].mesh, "parallelism.gather_dtype=int8");
        assert_true(gathered(plain, 1) > 0);
        assert_int_equal(gathered(coded, 16), gathered(coded, 1));
        assert_int_equal(128 * gathered(coded, 1), 68 * gathered(plain, GROUP));
        assert_int_equal(count(coded, SH_OP_ALL_GATHER), count(plain, SH_OP_ALL_GATHER));
        all = kept(plain, GROUP * rows[i].parts);
        assert_int_equal(kept(coded, 1), all / 128 * 68 + all / rows[i].parts);
        sh_program_destroy(plain);
        sh_program_destroy(coded);
    }
}

/* The number of blocks whose activations go to the file is rounded up, unless the share is a whole number of blocks. */
static void shares_are_rounded_up(void **state)
{
    static const struct {
        const char *share, *layers;
        int blocks;
    } rows[] = {{"0.28", "25", 7}, {"0.281", "25", 8}, {"0.55", "100", 55}, {"1e-6", "25", 1}, {"1", "25", 25}};
    static const struct sh_topology at = NODES(1, 1);

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char share[64], layers[64];
        const char *words[] = {"model.family=llama",
                               "model.dim=64",
                               "model.n_heads=4",
                               "model.ffn_dim=192",
                               "model.vocab_size=512",
                               "model.max_seq_len=64",
                               "training.seq_len=64",
                               "training.device=cpu",
                               "offload.activations=nvme",
                               "offload.nvme_path=.",
                               layers,
                               share};
        struct sh_config cfg;
        struct sh_mesh_shape mesh;
        struct sh_build build;

        snprintf(layers, sizeof layers, "model.n_layers=%s", rows[i].layers);
        snprintf(share, sizeof share, "offload.activation_ratio=%s", rows[i].share);
        if (sh_config_load(NULL, sizeof words / sizeof *words, words, &cfg) != SH_OK)
            fail_msg("%s", sh_error_text());
        assert_int_equal(sh_request_mesh(&cfg, &at, &mesh), SH_OK);
        assert_int_equal(sh_request_build(&cfg, &at, &mesh, SH_TO_TRAIN, 1, 0, &build), SH_OK);
        assert_int_equal(build.offload.act_blocks, rows[i].blocks);
    }
}

/* The sum over all ranks of a node, to the byte; nothing is printed about an unknown node. */
static void a_node_holds_what_its_ranks_pin(void **state)
{
    static const struct {
        int ranks;
        int64_t bytes, has;
        sh_rc rc;
    } rows[] = {{4, 100, 400, SH_OK},
                {4, 100, 399, SH_E_MEMORY},
                {1, 100, 100, SH_OK},
                {1, 101, 100, SH_E_MEMORY},
                {8, INT64_MAX / 2, 0, SH_OK},
                {8, INT64_MAX / 2, 1, SH_E_MEMORY},
                {8, 0, 1, SH_OK}};
    struct sh_program *p = sh_program_create(SH_BF16);

    (void)state;
    assert_int_equal(sh_pinned_bytes(p), 0);
    assert_int_equal(sh_pinned_check(p, 8, 1, "it has"), SH_OK);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int host = i ? sh_program_host_tier(p) : sh_program_add_tier(p, "host", SH_TIER_HOST);

        p->tiers[host].bytes = rows[i].bytes;
        assert_int_equal(sh_pinned_bytes(p), rows[i].bytes);
        assert_int_equal(sh_pinned_check(p, rows[i].ranks, rows[i].has, "it has"), rows[i].rc);
    }
    sh_program_destroy(p);
}

/* What has no kernel there is refused, and a model of the same family without it is not. Texts are continued by other
 * kernels of attention. */
static void families_on_gpus(void **state)
{
#define STATES                                                                                             \
    "model.linear_key_heads=1 model.linear_value_heads=2 model.linear_key_dim=4 model.linear_value_dim=4 " \
    "model.linear_conv_size=3 model.family="
    static const struct {
        const char *set, *text;
    } rows[] = {
        {STATES "nemotron_h", NULL},
        {STATES "granitemoehybrid", NULL},
        {"model.family=granitemoehybrid model.layer_types=full", NULL},
        {"model.head_dim=514",
         "model.head_dim=514: attention on GPUs takes heads of at most 512 elements; give training.device=cpu"},
        {"model.family=gemma4_text model.layer_types=full model.head_dim=256", NULL},
        {"model.family=gemma4_text model.layer_types=full model.global_head_dim=514",
         "model.global_head_dim=514: attention on GPUs takes heads of at most 512 elements; give"},
        {"model.n_kv_heads=4 model.family=olmo2 parallelism.tensor_parallel_degree=2", NULL},
        {"model.n_kv_heads=4 model.family=llama parallelism.tensor_parallel_degree=2", NULL},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int k = 0; k < 4; k++) {
            struct sh_topology at = NODES(4, 4);
            enum sh_purpose purpose = k / 2 ? SH_TO_GENERATE : SH_TO_TRAIN;
            struct sh_config cfg;
            struct sh_mesh_shape mesh;
            struct sh_build build;
            bool gpu = k % 2, refused = gpu && purpose == SH_TO_TRAIN && rows[i].text;

            at.gpu = gpu;
            load(rows[i].set, &cfg);
            assert_int_equal(sh_request_mesh(&cfg, &at, &mesh), SH_OK);
            assert_int_equal(sh_request_build(&cfg, &at, &mesh, purpose, 1, 0, &build), refused ? SH_E_USAGE : SH_OK);
            if (refused && !strstr(sh_error_text(), rows[i].text))
                fail_msg("row %d: %s", (int)i, sh_error_text());
        }
#undef STATES
}

/* Texts are padded until rows have as many tiles as the exchanges, however short they are. */
static void scored_rows_have_tiles(void **state)
{
    static const char halves[] = "model.n_kv_heads=4 parallelism.tensor_parallel_degree=2 training.seq_len=48 "
                                 "parallelism.tensor_parallel_tiles=";

    (void)state;
    for (int tiles = 1; tiles <= 4; tiles++) {
        struct sh_request_score score = {.rows = 1, .seq = 5};
        struct sh_topology at = NODES(4, 4);
        struct sh_config cfg;
        struct sh_mesh_shape mesh;
        struct sh_build build;
        char set[256];

        snprintf(set, sizeof set, "%s%d", halves, tiles);
        load(set, &cfg);
        assert_int_equal(sh_request_mesh(&cfg, &at, &mesh), SH_OK);
        assert_int_equal(sh_request_build(&cfg, &at, &mesh, SH_TO_SCORE, 1, 0, &build), SH_OK);
        assert_int_equal(sh_request_scored(&score, &build), SH_OK);
        assert_int_equal(build.batch.seq, (5 + 2 * tiles - 1) / (2 * tiles) * 2 * tiles);
    }
}

/* Tiles of fewer rows slow products down, and of other rows than a block's they change bits. */
static void automatic_tiles_are_blocks(void **state)
{
    struct sh_topology at = NODES(1, 1);
    struct sh_config cfg;
    struct sh_mesh_shape mesh;
    struct sh_build build;

    (void)state;
    load("training.tile_rows=auto", &cfg);
    assert_int_equal(sh_request_mesh(&cfg, &at, &mesh), SH_OK);
    assert_int_equal(sh_request_build(&cfg, &at, &mesh, SH_TO_TRAIN, 1, 0, &build), SH_OK);
    assert_int_equal(build.tile_rows, 8192);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares_are_rounded_up),
        cmocka_unit_test(families_on_gpus),
        cmocka_unit_test(scored_rows_have_tiles),
        cmocka_unit_test(automatic_tiles_are_blocks),
        cmocka_unit_test(strategies_are_what_they_are_called),
        cmocka_unit_test(gathers_are_in_codes),
        cmocka_unit_test(meshes),
        cmocka_unit_test(room_for_nccl),
        cmocka_unit_test(axes_are_those_of_the_plan),
        cmocka_unit_test(refused),
        cmocka_unit_test(room_on_the_host),
        cmocka_unit_test(tiers_below_a_device),
        cmocka_unit_test(a_node_holds_what_its_ranks_pin),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
