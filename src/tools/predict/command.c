/* `sherd plan`: builds the program that a rank of such a job would run, and prints what is in it. It needs no MPI and
 * no launcher: one process makes a plan of 512 ranks. Every figure is read from the program, so it cannot differ from
 * the run. */
#include "src/tools/predict/command.h"

#include "src/base/mem.h"
#include "src/base/number/nf4.h"
#include "src/base/string/str.h"
#include "src/config/family.h"
#include "src/cost/rates.h"
#include "src/near/slot.h"
#include "src/plan/pinned.h"
#include "src/run/feed.h"
#include "src/run/run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Read from the program, because 0 in the configuration leaves the choice to Sherd. */
static int64_t loss_rows(const struct sh_program *p)
{
    for (int i = 0; i < p->n_ops; i++)
        if (p->ops[i].kind == SH_OP_HEAD_LOSS || p->ops[i].kind == SH_OP_HEAD_LOSS_GRAD)
            return p->ops[i].attr.head.chunk_rows;
        else if (p->ops[i].kind == SH_OP_LOSS_REST)
            return p->tensors[p->ops[i].in[0]].dim[0];
    return 0;
}

/* First index: compute is bfloat16; second: reduction is bfloat16, which is not allowed with float16. */
static const char *precision_name(const struct sh_predict *l)
{
    static const char *const names[2][2] = {
        {"float32", "float32 compute and master, bfloat16 reduction"},
        {"bfloat16 compute, float32 master and reduction", "bfloat16 compute and reduction, float32 master"}};

    if (l->p->act == SH_F16)
        return "float16 compute, float32 master and reduction";
    return names[l->p->act == SH_BF16][l->build.options.reduce == SH_BF16];
}

/* Named only if the type differs from the usual one. */
static const char *states_name(const struct sh_predict *l)
{
    return l->build.options.state_dtype == SH_BF16 ? ", optimizer state in bfloat16"
           : l->build.options.state_dtype == SH_U8 ? ", optimizer state in int8"
                                                   : "";
}

static const char *gathers_name(const struct sh_predict *l)
{
    return l->build.options.gather_coded ? ", gathers in int8" : "";
}

/* The plan covers sharing within a node only if it knows the ranks per node. */
static const char *missing_nodes(const struct sh_predict *l)
{
    bool matters = !l->at.gpu && l->cfg.comm.shared_memory == SH_SHARED_MEMORY_AUTO;

    return matters && !l->at.ranks_per_node ? "; mesh.ranks_per_node not set: assumes no sharing within a node" : "";
}

/* "feed-forward 384", or its experts; the dense width counts only if some block has it. */
static const char *feed_forward(const struct sh_model *m, char text[160])
{
    bool dense = !m->n_experts || m->first_dense_layers || m->moe_every > 1;
    int at = dense ? snprintf(text, 160, "feed-forward %d", m->ffn_dim) : 0;

    if (m->n_experts)
        at += snprintf(text + at, (size_t)(160 - at), "%s%d experts of %d, %d for each token", dense ? ", " : "",
                       m->n_experts, m->expert_ffn_dim, m->n_experts_per_token);
    if (m->shared_ffn_dim)
        snprintf(text + at, (size_t)(160 - at), " and a shared one of %d", m->shared_ffn_dim);
    return text;
}

/* The sizes of the model itself, without padding and copies that a mesh adds. */
static void say_model(const struct sh_predict *l)
{
    const struct sh_model *m = &l->build.model;
    char count[SH_STR_SHORT], active[SH_STR_SHORT], width[160];

    sh_str_say(stdout, "model",
               "%s: %s, %d layers, dim %d, %d heads (%d key-value) of %d, %s, vocabulary %d%s: %s parameters%s%s%s",
               l->cfg.model.name[0] ? l->cfg.model.name : "custom", sh_family_of(m->family)->name, m->n_layers, m->dim,
               m->n_heads, m->n_kv_heads, m->head_dim, feed_forward(m, width), m->vocab_size,
               m->tie_word_embeddings ? ", tied" : "", sh_str_count(sh_model_params(m), count),
               m->n_experts ? ", " : "", m->n_experts ? sh_str_count(sh_model_active(m), active) : "",
               m->n_experts ? " active" : "");
}

/* Users think in replicate times shard; resharding is printed with the strategy. */
static void say_mesh(const struct sh_predict *l)
{
    char ranks[SH_MESH_TEXT];

    if (l->at.world == 1)
        sh_str_say(stdout, "mesh", "1 rank%s", missing_nodes(l));
    else
        sh_str_say(stdout, "mesh", "%s, rank %d of %d%s", sh_mesh_text(&l->mesh, ranks), l->at.rank, l->at.world,
                   missing_nodes(l));
}

/* Ranks of a group are neighbours; they exchange rows in each block, which should stay inside a node. */
static void say_context(const struct sh_predict *l)
{
    int ranks = sh_group_size(&l->mesh, l->mesh.context), node = l->at.ranks_per_node;
    int last = sh_group_member(&l->mesh, l->mesh.context, ranks - 1);
    int first = sh_group_member(&l->mesh, l->mesh.context, 0), nodes = node ? last / node - first / node + 1 : 1;
    char over[160] = "";

    if (nodes > 1)
        snprintf(
            over, sizeof over,
            "; they are on %d nodes, so what they exchange crosses the network: a degree that divides the %d ranks "
            "of a node would not",
            nodes, node);
    if (ranks > 1)
        sh_str_say(stdout, "context", "each sequence is cut over %d ranks, %d tokens on each%s%s", ranks,
                   l->cfg.training.seq_len / ranks, l->build.options.gather ? ", which gather keys and values" : "",
                   over);
}

static double received(const struct sh_predict *l, const struct sh_op *op)
{
    return sh_coll_received(op->kind, sh_group_size(&l->mesh, op->attr.group), sh_coll_whole(l->p, op));
}

/* What this rank receives of rows for one block in one micro-step, forward and backward. */
static double block_bytes(const struct sh_predict *l, sh_group group)
{
    int block = SH_NONE;
    double bytes = 0;
    const struct sh_section *s = l->p->sections;

    while (s->repeat == 0)
        s++;
    for (int i = s->first_op; i < s->first_op + s->n_ops; i++) {
        const struct sh_op *op = &l->p->ops[i];

        if (!sh_op_info(op->kind)->async || op->attr.group != group || op->unit != SH_NONE || op->micro > 0)
            continue;
        block = block == SH_NONE ? op->block : block;
        bytes += op->block != SH_NONE && op->block == block ? received(l, op) : 0;
    }
    return bytes;
}

static void say_tensor(const struct sh_predict *l)
{
    int ranks = sh_group_size(&l->mesh, l->mesh.tensor);
    long long rows = (long long)l->cfg.training.local_batch_size * l->cfg.training.seq_len;
    char bytes[SH_STR_SHORT];

    if (ranks > 1)
        sh_str_say(stdout, "tensor",
                   "matrices of blocks are cut over %d ranks, %lld rows on each; a block moves %s of them in a "
                   "micro-step",
                   ranks, rows / ranks / sh_group_size(&l->mesh, l->mesh.context),
                   sh_str_sum_of_bytes(block_bytes(l, l->mesh.tensor), bytes));
}

static void say_tiles(const struct sh_predict *l)
{
    long long rows = l->build.tile_rows;
    bool any = false;

    for (int i = 0; i < l->p->n_ops; i++)
        any |= l->p->ops[i].tiles > 0;
    if (rows)
        sh_str_say(stdout, "tiles",
                   any ? "blocks that recompute all send %lld rows at a time through feed-forward parts"
                       : "none: no block that recomputes all has more than %lld rows (activation_checkpoint.mode=full)",
                   rows);
}

/* The waves of one block stand for those of all: routers choose as many rows everywhere. */
static void say_experts(const struct sh_predict *l)
{
    int ranks = sh_group_size(&l->mesh, l->mesh.expert), waves = 0;
    const struct sh_op_attr *attr = NULL;
    char each[SH_STR_SHORT];

    for (int i = 0; ranks > 1 && i < l->p->n_ops; i++)
        if (l->p->ops[i].kind == SH_OP_ROUTE_WAVE) {
            attr = &l->p->ops[i].attr;
            waves = attr->wave.wave >= waves ? attr->wave.wave + 1 : waves;
        }
    if (attr)
        sh_str_say(
            stdout, "experts",
            "%s on each of %d ranks; rows travel in waves of %lld (moe.capacity_factor), in at most %d if they all "
            "go to the same rank",
            sh_str_plural(l->build.model.n_experts / ranks, "expert", each), ranks, (long long)attr->wave.room, waves);
}

/* A choice that Sherd made itself ends in "to fit" and the limit that decided it. */
static void say_strategy(const struct sh_predict *l)
{
    int inner = sh_group_size(&l->mesh, l->mesh.inner);
    char limit[SH_STR_SHORT], recompute[SH_RECOMPUTE_TEXT], strategy[SH_STRATEGY_TEXT], homes[SH_HOMES_TEXT];
    char over[64] = "", fits[64] = "";

    if (inner > 1)
        snprintf(over, sizeof over, ", after the forward over %d ranks", inner);
    if ((l->build.fit || l->build.fit_homes) && l->p->arena_bytes <= l->build.limit_bytes)
        snprintf(fits, sizeof fits, ", to fit %s", sh_str_bytes(l->build.limit_bytes, limit));
    sh_str_say(stdout, "strategy", "%s%s; %s%s%s; recompute %s%s%s",
               sh_request_strategy_text(&l->cfg, &l->mesh, strategy), over, precision_name(l), states_name(l),
               gathers_name(l), sh_recompute_text(&l->build.recompute, l->build.model.n_layers, recompute),
               sh_pass_homes_text(&l->build, homes), fits);
}

/* sequences = ranks x micro-steps x sequences per micro-step. A configuration gives some of these; the rest follow. */
static void say_batch(const struct sh_predict *l)
{
    int64_t batch = sh_request_global_batch(&l->cfg, sh_group_size(&l->mesh, l->mesh.data));
    char sequences[SH_STR_SHORT], tokens[SH_STR_SHORT], micro[SH_STR_SHORT], local[SH_STR_SHORT];

    sh_str_say(stdout, "step", "%s of %d tokens (%s tokens) = %s of %s on each rank",
               sh_str_plural(batch, "sequence", sequences), l->cfg.training.seq_len,
               sh_str_count(batch * l->cfg.training.seq_len, tokens),
               sh_str_plural(l->build.options.micro_steps, "micro-step", micro),
               sh_str_plural(l->cfg.training.local_batch_size, "sequence", local));
}

/* The phases of training.batch_schedule; all else here is of the largest step. */
static void say_phases(const struct sh_predict *l)
{
    int parts = sh_group_size(&l->mesh, l->mesh.data);
    struct sh_batches b = sh_request_batches(&l->cfg, parts);
    char text[SH_BATCHES_MAX * 64] = "", from[64], micro[SH_STR_SHORT];

    for (int i = 0; i < b.n; i++) {
        int64_t n = b.at[i].sequences / parts / l->cfg.training.local_batch_size;

        snprintf(from, sizeof from, "%lld from step %lld (%s)", (long long)b.at[i].sequences, (long long)b.at[i].step,
                 sh_str_plural(n, "micro-step", micro));
        sh_str_add(text, sizeof text, ", ", from);
    }
    if (b.n > 1)
        sh_str_say(stdout, "batches", "%s; this plan is of the largest", text);
}

/* Both micro-steps of a replay are as long as one of a step. */
static void say_replays(const struct sh_predict *l)
{
    int64_t every = l->cfg.fault.replay_every;

    if (every && l->at.world == 1)
        sh_str_say(stdout, "replays", "a run refuses fault.replay_every on one rank: no other can compute the same");
    else if (every)
        sh_str_say(stdout, "replays", "2 micro-steps of each rank every %lld steps: %.2g %% of its micro-steps",
                   (long long)every, 200 / ((double)every * l->build.options.micro_steps));
}

/* The request and what follows from it: the mesh, the strategy, the batch. */
static void print_request(const struct sh_predict *l)
{
    struct sh_model_flops f = sh_model_flops_of(&l->build.model, &l->build.batch);
    char within[64] = "";

    say_model(l);
    say_mesh(l);
    say_context(l);
    say_tensor(l);
    say_experts(l);
    say_strategy(l);
    say_batch(l);
    say_phases(l);
    say_replays(l);
    sh_predict_say_updates(l);
    if (loss_rows(l->p) || sh_group_size(&l->mesh, l->mesh.pipeline) == 1)
        sh_str_say(stdout, "loss", "logits computed in chunks of %lld rows (training.loss_chunk_rows)",
                   (long long)loss_rows(l->p));
    say_tiles(l);
    if (l->at.gpu)
        sh_str_say(stdout, "device", "cuda: one GPU per rank");
    else
        sh_str_say(stdout, "threads", "%d per rank%s", l->ask.threads,
                   l->cfg.training.threads ? "" : " (this machine's cores / ranks per node)");
    if (l->build.batch.docs && l->build.batch.document_tokens)
        snprintf(within, sizeof within, ", within documents of %d tokens", l->build.batch.document_tokens);
    sh_str_say(stdout, "work", "%.4g GFLOP per token (%s + 6LHDT, causal), %.4g with 12LHDT (full square)%s",
               (f.matmul + f.attention_causal) / 1e9,
               l->build.batch.adapters.rank ? "4 x frozen weights in products + 6 x those of adapters"
                                            : "6 x weights in products",
               (f.matmul + f.attention_full) / 1e9, within);
}

/* The blocks of a transformer are equal, so 80 of them become one line. */
static bool same_shape(const struct sh_unit *a, const struct sh_unit *b)
{
    return a->elems == b->elems && a->n_params == b->n_params && a->trainable == b->trainable;
}

/* The next unit of the same kind: it comes after the unit beside this one, if there is one. */
static int next_alike(const struct sh_program *p, int i)
{
    int next = i + 1 < p->n_units && (p->units[i + 1].beside == i || p->units[i].beside != SH_NONE) ? i + 2 : i + 1;

    return next < p->n_units && same_shape(&p->units[i], &p->units[next]) ? next : SH_NONE;
}

/* The bytes that a rank holds while it computes with the unit: all chunks of the shard group, padding included. */
static int64_t gathered_bytes(const struct sh_predict *l, const struct sh_unit *u)
{
    int64_t elems = u->chunk * sh_group_size(&l->mesh, u->shard);

    return u->packed ? sh_nf4_bytes(elems) : u->coded ? sh_code8_bytes(elems) : elems * sh_dtype_bytes(l->p->act);
}

/* Consecutive units of the same shape are printed as one line. */
static void print_units(const struct sh_predict *l)
{
    const struct sh_program *p = l->p;
    bool *printed = sh_calloc((size_t)p->n_units + 1, sizeof *printed);

    printf("\n%-22s %8s %15s %15s %12s\n", "units", "tensors", "parameters", "chunk per rank", "gathered");
    for (int i = 0; i < p->n_units; i++) {
        const struct sh_unit *u = &p->units[i];
        char name[2 * SH_NAME_MAX + 8], bytes[SH_STR_SHORT];
        int last = i;

        if (printed[i])
            continue;
        for (int k = i; k != SH_NONE; k = next_alike(p, k))
            printed[last = k] = true;
        snprintf(name, sizeof name, last > i ? "%s .. %s" : "%s", u->name, p->units[last].name);
        printf("  %-20s %8d %15lld %15lld %12s%s\n", name, u->n_params, (long long)u->elems, (long long)u->chunk,
               sh_str_bytes(gathered_bytes(l, u), bytes),
               u->trainable  ? (u->resident ? "  stays gathered" : "")
               : u->packed   ? "  frozen, nf4"
               : u->resident ? "  frozen, stays gathered"
                             : "  frozen");
    }
    free(printed);
}

static void print_bytes(const char *name, int64_t bytes)
{
    char text[SH_STR_SHORT];

    printf("  %-34s %20lld  %12s\n", name, (long long)bytes, sh_str_bytes(bytes, text));
}

/* "(last micro-step, backward layers.31)": where to look in order to save memory. */
static void print_peak(const struct sh_predict *l, struct sh_pass_peak peak)
{
    printf("\nmemory of this rank%s at the peak", l->at.gpu ? "'s GPU" : "");
    if (peak.section && peak.op < peak.section->first_op + peak.section->n_ops) {
        const struct sh_op *op = &l->p->ops[peak.op];

        printf(" (%s, %s ", sh_section_name(peak.section->kind), sh_phase_name(op->phase));
        if (op->block != SH_NONE)
            printf("layers.%d)", op->block);
        else
            printf("%s)", op->unit != SH_NONE ? l->p->units[op->unit].name : sh_op_info(op->kind)->name);
    }
    putchar('\n');
}

/* Offloaded tensors, and the copies from which saves are written: everything pinned, in one arena. */
static void print_pinned(const struct sh_predict *l, int tier)
{
    static const struct {
        enum sh_mem mem;
        const char *name;
    } rows[] = {
        {SH_MEM_OPTIM, "pinned host memory: optimizer states"}, {SH_MEM_GRAD, "pinned host memory: gradients"},
        {SH_MEM_PARAM, "pinned host memory: parameters"},       {SH_MEM_FROZEN, "pinned host memory: frozen"},
        {SH_MEM_ACT, "pinned host memory: activations"},        {SH_MEM_SNAPSHOT, "pinned host memory: snapshots"}};
    struct sh_predict_moves moves = sh_predict_moves(l);
    int64_t bytes[SH_MEM_KINDS];

    sh_pass_pinned(l->p, tier, bytes);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (bytes[rows[i].mem] || rows[i].mem == SH_MEM_SNAPSHOT)
            print_bytes(rows[i].name, bytes[rows[i].mem]);
    if (!moves.host)
        return;
    printf("  moved in a training step: %lld bytes to the GPU, %lld bytes back\n", (long long)moves.read_bytes,
           (long long)moves.written_bytes);
    printf("  rates of a GPU (%s): %.4g GB/s to it, %.4g GB/s back; %.4g s a step\n", moves.from, moves.read_rate / 1e9,
           moves.write_rate / 1e9, moves.seconds);
}

static int64_t kept_beside(const struct sh_predict *l)
{
    struct sh_topology at = l->at;

    at.ranks_per_node = at.ranks_per_node ? at.ranks_per_node : 1; /* not known: the least that it can be */
    return sh_topology_kept(&l->cfg, &at, &(struct sh_topology_gpu){.sharing = 1}, &l->mesh);
}

/* Memory besides the arena: on the card for a GPU, else on the node. */
static void print_beside(const struct sh_predict *l)
{
    int host = sh_program_host_tier(l->p);
    char name[64], kept[SH_STR_SHORT];

    if (!l->at.gpu && l->at.ranks_per_node > 1) {
        snprintf(name, sizeof name, "a node: %d ranks like this one", l->at.ranks_per_node);
        print_bytes(name, l->at.ranks_per_node * l->p->arena_bytes);
    }
    if (!l->at.gpu) {
        puts("  beside it, per rank: 50 to 70 MB for the program, its libraries and MPI");
        return;
    }
    if (l->priced)
        printf("  beside it, kept for CUDA, NCCL and gaps: %s\n",
               sh_str_sum_of_bytes(l->machine.device.reserved_bytes, kept));
    else
        printf("  beside it, kept for CUDA and NCCL: %s%s\n", sh_str_sum_of_bytes((double)kept_beside(l), kept),
               l->at.ranks_per_node ? "" : " or more, by mesh.ranks_per_node");
    if (host != SH_NONE)
        print_pinned(l, host);
}

/* Of the rank whose copies this one holds, half of the nodes away or as configured; its stage may have other layers. */
static int64_t copy_bytes(const struct sh_predict *l)
{
    int node = l->at.ranks_per_node, nodes = node ? l->at.world / node : 1, far;
    struct sh_topology at = l->at;
    struct sh_predict other = *l;
    int64_t bytes = 0;

    if (l->cfg.checkpoint.near_copies < 2 || nodes < 2)
        return 0;
    far = sh_near_distance(l->cfg.checkpoint.near_distance, nodes);
    at.rank = (l->at.rank + (nodes - far) * node) % l->at.world;
    other.at = at;
    other.mesh.rank = at.rank;
    other.p = NULL;
    other.ask.at = &other.at;
    other.ask.mesh = &other.mesh;
    other.ask.weigh = true;
    if (sh_plan_make(&other.ask, &other.build, &other.p) == SH_OK)
        bytes = sh_near_bytes(other.p, &other.mesh);
    else
        sh_error_clear();
    sh_program_destroy(other.p);
    return bytes;
}

static void print_near(const struct sh_predict *l)
{
    int64_t own = sh_near_bytes(l->p, &l->mesh), copy = copy_bytes(l);

    print_bytes("near checkpoints, 2 slots", SH_NEAR_SLOTS * own);
    if (!copy)
        return;
    print_bytes("  copies of another node's, 2 slots", SH_NEAR_SLOTS * copy);
    print_bytes("  sent for each near checkpoint", own);
}

/* Each kind at the moment when the sum of all is highest; the difference to the arena is gaps. */
static void print_memory(const struct sh_predict *l)
{
    int64_t bytes[SH_MEM_KINDS], sum = 0;
    bool halves;

    print_peak(l, sh_pass_memory(l->p, bytes));
    halves = bytes[SH_MEM_REMAINDER] > 0;
    for (int i = 0; i < SH_MEM_KINDS; i++) {
        sum += bytes[i];
        if (bytes[i])
            print_bytes(i == SH_MEM_PARAM && halves ? "parameters (upper halves, bf16)"
                                                    : sh_program_mem_name((enum sh_mem)i),
                        bytes[i]);
    }
    if (l->p->arena_bytes != sum)
        print_bytes("gaps between tensors", l->p->arena_bytes - sum);
    print_bytes(l->at.gpu ? "arena: all that is allocated on it" : "arena: all that is allocated", l->p->arena_bytes);
    print_beside(l);
    if (l->cfg.checkpoint.near_interval)
        print_near(l);
    if (bytes[SH_MEM_MASTER])
        puts("  masters: float32, from which each update rounds what is gathered and computed with");
    if (halves)
        puts("  halves: a float32 master is a bfloat16, which is gathered, and 16 more bits");
}

/* The traffic of a whole step. */
struct traffic {
    long long calls;
    double bytes; /* received by this rank */
};

/* `repeat` counts how often a step runs the section; init and evaluation have 0 and add nothing. */
static void add_section(const struct sh_predict *l, const struct sh_section *s, enum sh_op_kind kind, sh_group group,
                        struct traffic *sum)
{
    for (int i = s->first_op; i < s->first_op + s->n_ops; i++) {
        const struct sh_op *op = &l->p->ops[i];

        if (op->kind != kind || op->attr.group != group)
            continue;
        sum->calls += s->repeat * sh_program_exchanges(op);
        sum->bytes += s->repeat * received(l, op);
    }
}

/* One line for a kind and a group; false if there are no such collectives. */
static bool print_traffic(const struct sh_predict *l, enum sh_op_kind kind, const struct sh_group_use *use)
{
    struct traffic sum = {0};
    char text[SH_STR_SHORT];

    for (int i = 0; i < l->p->n_sections; i++)
        add_section(l, &l->p->sections[i], kind, use->axes, &sum);
    if (sum.calls)
        printf("  %-16s %-10s %8lld calls  %12s\n", sh_op_info(kind)->name, use->name, sum.calls,
               sh_str_sum_of_bytes(sum.bytes, text));
    return sum.calls > 0;
}

/* In the order of a step: gathers, reductions, sums over replicas; then rows of the model that are exchanged. */
static void print_collectives(const struct sh_predict *l)
{
    static const enum sh_op_kind kinds[] = {SH_OP_ALL_GATHER, SH_OP_REDUCE_SCATTER, SH_OP_ALL_REDUCE, SH_OP_ALL_TO_ALL,
                                            SH_OP_RECEIVE};
    int lines = 0;

    printf("\ncollectives of a training step, received by this rank\n");
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (int g = 0; g < l->p->n_groups; g++)
            lines += print_traffic(l, kinds[k], &l->p->groups[g]);
    if (!lines)
        puts("  none: one rank");
}

/* Chosen like sh_run_open() does, with this machine in place of the node; threads determine the scratch memory. */
static int threads_of_rank(const struct sh_predict *l)
{
    int node = l->at.ranks_per_node ? l->at.ranks_per_node : l->at.world;

    return l->cfg.training.threads ? l->cfg.training.threads : sh_device_threads(node);
}

/* The two sizes of the mesh together give the number of ranks. */
static int64_t ranks_of(const struct sh_config *cfg)
{
    if (cfg->mesh.ranks)
        return cfg->mesh.ranks;
    return cfg->mesh.shard > 0 && cfg->mesh.replicate > 0 ? (int64_t)cfg->mesh.shard * cfg->mesh.replicate : 1;
}

/* One size alone does not give the number of ranks. It is refused: nobody asked for a job of one rank. */
static sh_rc check_ranks_said(const struct sh_config *cfg, bool searched)
{
    bool shard = cfg->mesh.shard > 1, replicate = cfg->mesh.replicate > 1;

    if (cfg->mesh.ranks || searched || (shard ? cfg->mesh.replicate > 0 : !replicate || cfg->mesh.shard > 0))
        return SH_OK;
    return sh_fail(
        SH_E_USAGE, "mesh.%s=%d alone does not say how many ranks there are; give --ranks N or mesh.%s as well",
        shard ? "shard" : "replicate", shard ? cfg->mesh.shard : cfg->mesh.replicate, shard ? "replicate" : "shard");
}

/* The machine decides the device, if the configuration leaves it open, and the ranks per node. */
static sh_rc take_machine(const char *name, struct sh_predict *l)
{
    struct sh_config *cfg = &l->cfg;

    SH_TRY(sh_machine_load_for(name, ranks_of(cfg), &l->machine));
    l->priced = true;
    sh_cost_take_rates(cfg, &l->machine);
    if (cfg->training.device == SH_DEVICE_AUTO)
        cfg->training.device = sh_machine_is_gpu(&l->machine) ? SH_DEVICE_CUDA : SH_DEVICE_CPU;
    if ((cfg->training.device == SH_DEVICE_CUDA) != sh_machine_is_gpu(&l->machine))
        return sh_fail(SH_E_USAGE, "training.device=%s, but %s is a machine of %s; leave training.device at auto",
                       cfg->training.device == SH_DEVICE_CUDA ? "cuda" : "cpu", l->machine.name,
                       sh_machine_is_gpu(&l->machine) ? "GPUs" : "CPUs");
    /* A search for a number of nodes has no number of ranks yet. */
    if (!cfg->mesh.ranks_per_node && ranks_of(cfg) > 1)
        cfg->mesh.ranks_per_node = (int)fmin(l->machine.node.devices, (double)ranks_of(cfg));
    return SH_OK;
}

/* A run on GPUs keeps what its communicators take, which may be more than the machine's figure. */
static void take_memory(struct sh_predict *l)
{
    if (l->at.gpu)
        l->machine.device.reserved_bytes = fmax(l->machine.device.reserved_bytes, (double)kept_beside(l));
}

static bool is_search(const struct sh_cmd *cmd, const struct sh_cmd_args *args)
{
    return sh_cmd_option(cmd, args, "--search") || sh_cmd_option(cmd, args, "--within");
}

/* Check the pinned memory of the ranks of a node, if the machine gives the host memory. */
static sh_rc check_pinned(const struct sh_predict *l)
{
    char whose[SH_MACHINE_NAME + 32];

    if (!l->priced)
        return SH_OK;
    snprintf(whose, sizeof whose, "a node of %s has", l->machine.name);
    return sh_pinned_check(l->p, l->at.ranks_per_node, (int64_t)l->machine.host.memory_bytes, whose);
}

sh_rc sh_predict_settle(struct sh_predict *l)
{
    SH_TRY(sh_request_mesh(&l->cfg, &l->at, &l->mesh));
    if (l->priced)
        take_memory(l);
    l->ask = (struct sh_plan_request){.cfg = &l->cfg,
                                      .at = &l->at,
                                      .mesh = &l->mesh,
                                      .purpose = SH_TO_TRAIN,
                                      .threads = threads_of_rank(l),
                                      .limit_bytes = l->cfg.memory.limit_bytes,
                                      .node_bytes = l->priced ? (int64_t)l->machine.host.memory_bytes : 0,
                                      .node_ranks = l->at.ranks_per_node};
    return SH_OK;
}

/* Ranks and nodes come from the command line instead of MPI. */
static sh_rc make(const struct sh_cmd *cmd, const struct sh_cmd_args *args, struct sh_predict *l)
{
    const char *machine = sh_cmd_option(cmd, args, "--machine");
    int64_t ranks, rank;
    char why[256];

    SH_TRY(sh_cmd_config(args, NULL, &l->cfg));
    SH_TRY(sh_feed_settle(&l->cfg, l->cfg.training.dataset_path));
    if (sh_cmd_option(cmd, args, "--ranks") && !l->cfg.mesh.ranks)
        return sh_fail(SH_E_USAGE, "sherd plan: --ranks 0: a job has at least one rank");
    SH_TRY(check_ranks_said(&l->cfg, is_search(cmd, args)));
    ranks = ranks_of(&l->cfg);
    if (machine)
        SH_TRY(take_machine(machine, l));
    if (machine)
        SH_TRY(sh_cmd_number(cmd, args, "--price", 0, 1e6, l->machine.node.price_per_device_hour,
                             &l->machine.node.price_per_device_hour));
    SH_TRY(sh_cmd_whole(cmd, args, "--rank", 0, ranks - 1, 0, &rank));
    l->at = (struct sh_topology){.rank = (int)rank,
                                 .world = (int)ranks,
                                 .ranks_per_node = l->cfg.mesh.ranks_per_node ? l->cfg.mesh.ranks_per_node : ranks == 1,
                                 .in_blocks = true,
                                 .on_paper = machine};
    SH_TRY(sh_request_gpu(&l->cfg, true, &l->at.gpu, why));
    if (is_search(cmd, args) || sh_cmd_option(cmd, args, "--longest"))
        return SH_OK;
    SH_TRY(sh_predict_settle(l));
    SH_TRY(sh_plan_make(&l->ask, &l->build, &l->p));
    SH_TRY(sh_predict_make_stages(l, false));
    return check_pinned(l);
}

/* Look at the data if they are on this machine; a plan does not need them. Not called for a plan that was refused, so
 * the reason of the refusal stays. */
static void look_at_data(const struct sh_predict *l)
{
    const char *path = l->cfg.training.dataset_path;
    struct sh_data_options opt;
    struct sh_data *d;

    if (!path[0] && !l->cfg.data.mix[0])
        return;
    if (sh_feed_options(&l->cfg, path, false, &opt) != SH_OK || sh_data_open(&opt, &d) != SH_OK) {
        sh_error_clear();
        return;
    }
    sh_feed_note_bytes(d, path[0] ? path : l->cfg.data.mix, l->cfg.model.vocab_size);
    sh_data_close(d);
}

static void print(const struct sh_predict *l, bool show)
{
    print_request(l);
    print_units(l);
    print_memory(l);
    sh_predict_file(l);
    print_collectives(l);
    if (show) {
        putchar('\n');
        sh_program_print(l->after ? l->after : l->p, stdout);
    }
}

static void free_plan(struct sh_predict *l)
{
    sh_program_destroy(l->after);
    sh_program_destroy(l->p);
    sh_pipe_stages_free(&l->stages);
    free(l->each);
    sh_machine_close(&l->machine);
}

/* --longest takes few of the others, and needs no machine if the configuration has a limit. */
static sh_rc check_longest(const struct sh_cmd *cmd, const struct sh_cmd_args *args)
{
    static const char *const others[] = {"--trace", "--what-if", "--check", "--show",   "--after", "--rank",
                                         "--allow", "--tokens",  "--price", "--within", "--fit"};

    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (sh_cmd_option(cmd, args, others[i]))
            return sh_fail(SH_E_USAGE, "%s has no use with --longest; leave one of them out", others[i]);
    if (sh_cmd_option(cmd, args, "--write") && !sh_cmd_option(cmd, args, "--search"))
        return sh_fail(SH_E_USAGE, "--write writes the configuration that --search finds; add --search");
    return SH_OK;
}

/* Options that have an effect only with another option. */
static sh_rc check_options(const struct sh_cmd *cmd, const struct sh_cmd_args *args)
{
    static const char *const planned[] = {"--json", "--trace", "--what-if", "--check", "--show", "--rank"};
    static const char *const priced[] = {"--json",   "--trace",  "--what-if", "--search",
                                         "--tokens", "--within", "--price",   "--fit"};

    if (sh_cmd_option(cmd, args, "--after") && !sh_cmd_option(cmd, args, "--show"))
        return sh_fail(SH_E_USAGE, "--after chooses the pass after which --show prints the program; add --show");
    if (sh_cmd_option(cmd, args, "--write") && !sh_cmd_option(cmd, args, "--search"))
        return sh_fail(SH_E_USAGE, "--write writes the configuration that --search finds; add --search");
    if (sh_cmd_option(cmd, args, "--allow") && !sh_cmd_option(cmd, args, "--search"))
        return sh_fail(SH_E_USAGE, "--allow says which results --search may change; add --search");
    for (size_t i = 0; is_search(cmd, args) && i < sizeof planned / sizeof *planned; i++)
        if (sh_cmd_option(cmd, args, planned[i]))
            return sh_fail(SH_E_USAGE, "%s is for one configuration, but a search is over many; leave one of them out",
                           planned[i]);
    for (size_t i = 0; i < sizeof priced / sizeof *priced; i++)
        if (sh_cmd_option(cmd, args, priced[i]) && !sh_cmd_option(cmd, args, "--machine"))
            return sh_fail(SH_E_USAGE, "%s needs a prediction on a machine; add --machine", priced[i]);
    return SH_OK;
}

/* --fit takes no configuration: each run has its own. */
static sh_rc fit(const struct sh_cmd *cmd, const struct sh_cmd_args *args)
{
    for (const struct sh_cmd_option *o = cmd->options; o->name; o++)
        if (strcmp(o->name, "--fit") && strcmp(o->name, "--machine") && sh_cmd_option(cmd, args, o->name))
            return sh_fail(SH_E_USAGE, "sherd plan --fit: takes --machine FILE and nothing else; leave out %s",
                           o->name);
    if (args->n_positional || args->n_overrides)
        return sh_fail(SH_E_USAGE,
                       "sherd plan --fit: takes no configuration, because each run below the folder has its own");
    return sh_predict_fit_study(sh_cmd_option(cmd, args, "--fit"), sh_cmd_option(cmd, args, "--machine"));
}

static sh_rc print_config(const struct sh_cmd_args *args)
{
    struct sh_config cfg;
    char *text;

    SH_TRY(sh_cmd_config(args, NULL, &cfg));
    SH_TRY(sh_config_print(&cfg, &text));
    fputs(text, stdout);
    free(text);
    return SH_OK;
}

/* One process. --print-config needs no plan, and prints even a configuration that cannot be planned. */
sh_rc sh_cmd_plan(const struct sh_cmd *cmd, const struct sh_cmd_args *args)
{
    const char *after = sh_cmd_option(cmd, args, "--after");
    bool longest = sh_cmd_option(cmd, args, "--longest");
    struct sh_predict l = {0};
    sh_rc rc, priced = SH_OK;

    SH_TRY((longest ? check_longest : check_options)(cmd, args));
    if (sh_cmd_option(cmd, args, "--fit"))
        return fit(cmd, args);
    if (sh_cmd_option(cmd, args, "--print-config"))
        return print_config(args);
    /* A plan that was built is printed even if it is refused: one that does not fit shows what takes the memory. */
    rc = make(cmd, args, &l);
    if (rc == SH_OK && (longest || is_search(cmd, args))) {
        rc = (longest ? sh_predict_longest : sh_predict_search)(cmd, args, &l);
        free_plan(&l);
        return rc;
    }
    if (rc == SH_OK && after)
        rc = sh_pass_build_until(&l.build, after, &l.after);
    if (rc == SH_OK && l.priced)
        rc = sh_predict_words(cmd, args, &l);
    if (rc == SH_OK && l.priced)
        priced = sh_predict_answer(cmd, args, &l);
    if (l.p && rc != SH_E_USAGE)
        print(&l, sh_cmd_option(cmd, args, "--show") != NULL);
    fflush(stdout); /* so that an error comes after its plan, wherever the two go */
    rc = rc == SH_OK ? priced : rc;
    if (rc == SH_OK)
        sh_predict_say_stages(&l);
    if (rc == SH_OK)
        look_at_data(&l);
    if (rc == SH_OK && sh_cmd_option(cmd, args, "--check"))
        rc = sh_predict_check(&l);
    if (rc == SH_OK && l.priced)
        rc = sh_predict_cost(cmd, args, &l);
    free_plan(&l);
    return rc;
}
