/* `sherd plan`: builds the program that a rank of such a job would run, and prints what is in it. No MPI and no
 * launcher: a plan of 512 ranks is made by one process. Every figure is read from the program, so that it cannot differ
 * from the run. */
#include "src/cmd/plan.h"

#include "src/base/mem.h"
#include "src/base/nf4.h"
#include "src/base/str.h"
#include "src/config/family.h"
#include "src/run/feed.h"
#include "src/run/run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* From the program, because 0 in the configuration leaves the choice to the device. */
static int64_t loss_rows(const struct sh_program *p)
{
    for (int i = 0; i < p->n_ops; i++)
        if (p->ops[i].kind == SH_OP_HEAD_LOSS || p->ops[i].kind == SH_OP_HEAD_LOSS_GRAD)
            return p->ops[i].attr.head.chunk_rows;
    return 0;
}

/* First index: compute is bfloat16; second: reduction is bfloat16. */
static const char *precision_name(const struct sh_cmd_plan *l)
{
    static const char *const names[2][2] = {
        {"float32", "float32 compute and master, bfloat16 reduction"},
        {"bfloat16 compute, float32 master and reduction", "bfloat16 compute and reduction, float32 master"}};

    return names[l->p->act == SH_BF16][l->build.options.reduce == SH_BF16];
}

/* What the ranks of a node share is in the plan only where it is told which ranks those are. */
static const char *missing_nodes(const struct sh_cmd_plan *l)
{
    bool matters = !l->at.gpu && l->cfg.comm.shared_memory == SH_SHARED_MEMORY_AUTO;

    return matters && !l->at.ranks_per_node ? "; nodes not known (mesh.ranks_per_node), so nothing shared" : "";
}

/* What was asked for, and what follows from it: the mesh, the strategy, the batch. */
static void print_request(const struct sh_cmd_plan *l)
{
    const struct sh_model *m = &l->build.model;
    const struct sh_mesh_shape *mesh = &l->mesh;
    int inner = sh_group_size(mesh, mesh->inner);
    struct sh_model_flops f = sh_model_flops_adapted(m, &l->build.batch.adapters, l->cfg.training.seq_len);
    char count[SH_STR_SHORT], limit[SH_STR_SHORT], recompute[SH_RECOMPUTE_TEXT];
    char strategy[SH_STRATEGY_TEXT];

    printf("model        %s: %s, %d layers, dim %d, %d heads (%d key-value) of %d, feed-forward %d, vocabulary %d%s: "
           "%s parameters\n",
           l->cfg.model.name[0] ? l->cfg.model.name : "custom", sh_family_of(m->family)->name, m->n_layers, m->dim,
           m->n_heads, m->n_kv_heads, m->head_dim, m->ffn_dim, m->vocab_size, m->tie_word_embeddings ? ", tied" : "",
           sh_str_count(sh_model_params(m), count));
    printf("mesh         %d x %d ranks (replicate x shard), rank %d of %d%s\n", sh_group_size(mesh, mesh->replicate),
           sh_group_size(mesh, mesh->shard), l->at.rank, l->at.world, missing_nodes(l));
    printf("strategy     %s", sh_request_strategy_text(&l->cfg, &l->mesh, strategy));
    if (inner > 1)
        printf(", after the forward over %d ranks", inner);
    printf("; %s; recompute %s", precision_name(l), sh_recompute_text(&l->build.recompute, m->n_layers, recompute));
    if (l->build.fit && l->p->arena_bytes <= l->build.limit_bytes)
        printf(", to fit %s", sh_str_bytes(l->build.limit_bytes, limit));
    putchar('\n');
    printf("step         %lld sequences of %d tokens = %d micro-step%s of %d sequences on each rank\n",
           (long long)sh_request_global_batch(&l->cfg, sh_group_size(mesh, mesh->data)), l->cfg.training.seq_len,
           l->build.options.micro_steps, l->build.options.micro_steps == 1 ? "" : "s",
           l->cfg.training.local_batch_size);
    printf("loss         %lld rows of logits at a time (training.loss_chunk_rows)\n", (long long)loss_rows(l->p));
    if (l->at.gpu)
        printf("device       cuda: one GPU a rank\n");
    else
        printf("threads      %d a rank%s\n", l->threads,
               l->cfg.training.threads ? ""
                                       : ": this machine's cores over the ranks of a node; training.threads sets it");
    printf("work         %.4g GFLOP a token (%s + 6LHDT, causal), %.4g with 12LHDT (full square)\n",
           (f.matmul + f.attention_causal) / 1e9,
           l->build.batch.adapters.rank ? "4 x frozen weights in products + 6 x those of adapters"
                                        : "6 x weights in products",
           (f.matmul + f.attention_full) / 1e9);
}

/* Blocks of a transformer are alike, so 80 of them become one line. */
static bool same_shape(const struct sh_unit *a, const struct sh_unit *b)
{
    return a->elems == b->elems && a->n_params == b->n_params && a->trainable == b->trainable;
}

/* Where the units of the same kind continue: after those beside this one. */
static int next_alike(const struct sh_program *p, int i)
{
    int next = i + 1 < p->n_units && (p->units[i + 1].beside == i || p->units[i].beside != SH_NONE) ? i + 2 : i + 1;

    return next < p->n_units && same_shape(&p->units[i], &p->units[next]) ? next : SH_NONE;
}

static int64_t gathered_bytes(const struct sh_cmd_plan *l, const struct sh_unit *u)
{
    int64_t elems = u->chunk * sh_group_size(&l->mesh, u->shard);

    return u->packed ? sh_nf4_bytes(elems) : elems * sh_dtype_bytes(l->p->act);
}

/* Units of one shape that follow each other are one line. */
static void print_units(const struct sh_cmd_plan *l)
{
    const struct sh_program *p = l->p;
    bool *printed = sh_calloc((size_t)p->n_units + 1, sizeof *printed);

    printf("\n%-24s %10s %16s %16s %14s\n", "units", "tensors", "parameters", "chunk of a rank", "gathered");
    for (int i = 0; i < p->n_units; i++) {
        const struct sh_unit *u = &p->units[i];
        char name[2 * SH_NAME_MAX + 8], bytes[SH_STR_SHORT];
        int last = i;

        if (printed[i])
            continue;
        for (int k = i; k != SH_NONE; k = next_alike(p, k))
            printed[last = k] = true;
        snprintf(name, sizeof name, last > i ? "%s .. %s" : "%s", u->name, p->units[last].name);
        printf("  %-22s %10d %16lld %16lld %14s%s\n", name, u->n_params, (long long)u->elems, (long long)u->chunk,
               sh_str_bytes(gathered_bytes(l, u), bytes),
               u->trainable  ? ""
               : u->packed   ? "  frozen, nf4"
               : u->resident ? "  frozen, stays gathered"
                             : "  frozen");
    }
    free(printed);
}

/* Each kind at the moment when the sum of all is highest; what is left over to the arena are gaps. */
static void print_memory(const struct sh_cmd_plan *l)
{
    int64_t bytes[SH_MEM_KINDS], sum = 0, host = 0;
    char text[SH_STR_SHORT];

    for (int i = 0; i < l->p->n_tiers; i++)
        host += l->p->tiers[i].kind == SH_TIER_HOST ? l->p->tiers[i].bytes : 0;
    sh_pass_memory(l->p, bytes);
    printf("\nmemory of this rank%s at the peak\n", l->at.gpu ? "'s GPU" : "");
    for (int i = 0; i < SH_MEM_KINDS; i++) {
        sum += bytes[i];
        if (bytes[i])
            printf("  %-34s %20lld  %12s\n", sh_program_mem_name((enum sh_mem)i), (long long)bytes[i],
                   sh_str_bytes(bytes[i], text));
    }
    if (l->p->arena_bytes != sum)
        printf("  %-34s %20lld  %12s\n", "gaps between tensors", (long long)(l->p->arena_bytes - sum),
               sh_str_bytes(l->p->arena_bytes - sum, text));
    printf("  %-34s %20lld  %12s\n", l->at.gpu ? "arena: all that is allocated on it" : "arena: all that is allocated",
           (long long)l->p->arena_bytes, sh_str_bytes(l->p->arena_bytes, text));
    if (!l->at.gpu)
        return;
    printf("  beside it, not Sherd's: about 0.5 GiB for CUDA's context and libraries, and NCCL's buffers\n");
    printf("  %-34s %20lld  %12s\n", "pinned host memory: snapshots", (long long)host, sh_str_bytes(host, text));
}

/* What a drive of a given endurance lasts is a user's own division. */
static void print_file(const struct sh_cmd_plan *l)
{
    int tier = sh_program_file_tier(l->p);
    int64_t in, out;
    char text[SH_STR_SHORT];

    if (tier == SH_NONE)
        return;
    sh_program_moved(l->p, &in, &out);
    printf("\nfile of this rank (offload.nvme_path)\n");
    printf("  %-34s %20lld  %12s\n", "optimizer states: all that is in it", (long long)l->p->tiers[tier].bytes,
           sh_str_bytes(l->p->tiers[tier].bytes, text));
    printf("  moved in a training step: %lld bytes read, %lld bytes written\n", (long long)in, (long long)out);
    printf("  wear: %.4g TB written in 1000 steps\n", (double)out / 1e9);
}

/* Of a whole step. */
struct traffic {
    long long calls;
    double bytes; /* received by this rank */
};

static double received(const struct sh_cmd_plan *l, const struct sh_op *op)
{
    return sh_coll_received(op->kind, sh_group_size(&l->mesh, op->attr.group), sh_coll_whole(l->p, op));
}

/* repeat counts how often a step runs the section; init and evaluation have 0 and add nothing. */
static void add_section(const struct sh_cmd_plan *l, const struct sh_section *s, enum sh_op_kind kind, sh_group group,
                        struct traffic *sum)
{
    for (int i = s->first_op; i < s->first_op + s->n_ops; i++) {
        const struct sh_op *op = &l->p->ops[i];

        if (op->kind != kind || op->attr.group != group)
            continue;
        sum->calls += s->repeat;
        sum->bytes += s->repeat * received(l, op);
    }
}

/* One line for a kind and a group; false when it does not occur. */
static bool print_traffic(const struct sh_cmd_plan *l, enum sh_op_kind kind, const struct sh_group_use *use)
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

/* In the order of a step: gathers, reductions, sums over replicas. */
static void print_collectives(const struct sh_cmd_plan *l)
{
    static const enum sh_op_kind kinds[] = {SH_OP_ALL_GATHER, SH_OP_REDUCE_SCATTER, SH_OP_ALL_REDUCE};
    int lines = 0;

    printf("\ncollectives of a training step, received by this rank\n");
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (int g = 0; g < l->p->n_groups; g++)
            lines += print_traffic(l, kinds[k], &l->p->groups[g]);
    if (!lines)
        puts("  none: one rank");
}

/* As sh_run_open() chooses them, with this machine for the node; threads decide how much scratch memory there is. */
static int threads_of_rank(const struct sh_cmd_plan *l)
{
    int node = l->at.ranks_per_node ? l->at.ranks_per_node : l->at.world;

    return l->cfg.training.threads ? l->cfg.training.threads : sh_device_threads(node);
}

/* Both sizes of the mesh say how many ranks there are. */
static int64_t ranks_of(const struct sh_config *cfg)
{
    if (cfg->mesh.ranks)
        return cfg->mesh.ranks;
    return cfg->mesh.shard > 0 && cfg->mesh.replicate > 0 ? (int64_t)cfg->mesh.shard * cfg->mesh.replicate : 1;
}

/* The machine decides on the device, where the configuration leaves it open, and on the ranks of a node. */
static sh_rc take_machine(const char *name, struct sh_cmd_plan *l)
{
    struct sh_config *cfg = &l->cfg;

    SH_TRY(sh_machine_load(name, &l->machine));
    l->priced = true;
    if (cfg->training.device == SH_DEVICE_AUTO)
        cfg->training.device = sh_machine_is_gpu(&l->machine) ? SH_DEVICE_CUDA : SH_DEVICE_CPU;
    if ((cfg->training.device == SH_DEVICE_CUDA) != sh_machine_is_gpu(&l->machine))
        return sh_fail(SH_E_USAGE, "training.device=%s, and %s is a machine of %s; leave training.device at auto",
                       cfg->training.device == SH_DEVICE_CUDA ? "cuda" : "cpu", l->machine.name,
                       sh_machine_is_gpu(&l->machine) ? "GPUs" : "CPUs");
    if (!cfg->mesh.ranks_per_node)
        cfg->mesh.ranks_per_node = (int)fmin(l->machine.node.devices, (double)ranks_of(cfg));
    /* A budget without a limit is the memory of a device. */
    if (!cfg->memory.limit_bytes && cfg->activation_checkpoint.mode == SH_RECOMPUTE_MEMORY_BUDGET)
        cfg->memory.limit_bytes = (int64_t)(l->machine.device.memory_bytes - l->machine.device.reserved_bytes);
    return SH_OK;
}

static bool is_search(const struct sh_cmd *cmd, const struct sh_cmd_args *args)
{
    return sh_cmd_option(cmd, args, "--search") || sh_cmd_option(cmd, args, "--tokens") ||
           sh_cmd_option(cmd, args, "--within");
}

/* The same calls as sh_run_open() makes, with ranks and nodes from the command line instead of MPI. */
static sh_rc make(const struct sh_cmd *cmd, const struct sh_cmd_args *args, struct sh_cmd_plan *l)
{
    const char *machine = sh_cmd_option(cmd, args, "--machine");
    int64_t ranks, rank;
    char why[256];
    int64_t rows = INT64_MAX;
    int level = 0;

    SH_TRY(sh_cmd_config(args, NULL, &l->cfg));
    SH_TRY(sh_feed_settle(&l->cfg, l->cfg.training.dataset_path));
    if (sh_cmd_option(cmd, args, "--ranks") && !l->cfg.mesh.ranks)
        return sh_fail(SH_E_USAGE, "sherd plan: --ranks 0: a job has at least one rank");
    ranks = ranks_of(&l->cfg);
    if (machine)
        SH_TRY(take_machine(machine, l));
    SH_TRY(sh_cmd_whole(cmd, args, "--rank", 0, ranks - 1, 0, &rank));
    l->at = (struct sh_topology){.rank = (int)rank,
                                 .world = (int)ranks,
                                 .ranks_per_node = l->cfg.mesh.ranks_per_node ? l->cfg.mesh.ranks_per_node : ranks == 1,
                                 .in_blocks = true};
    SH_TRY(sh_request_gpu(&l->cfg, true, &l->at.gpu, why));
    if (is_search(cmd, args))
        return SH_OK;
    SH_TRY(sh_request_mesh(&l->cfg, &l->at, &l->mesh));
    l->threads = threads_of_rank(l);
    SH_TRY(sh_request_build(&l->cfg, &l->at, &l->mesh, SH_TO_TRAIN, l->threads, l->cfg.memory.limit_bytes, &l->build));
    SH_TRY(sh_pass_fit(&l->build, &level));
    SH_TRY(sh_pass_widen(&l->build, &rows));
    return sh_pass_build(&l->build, &l->p);
}

/* Where they are here; a plan is made without data. */
static void look_at_data(const struct sh_cmd_plan *l)
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

static void print(const struct sh_cmd_plan *l, bool show)
{
    print_request(l);
    print_units(l);
    print_memory(l);
    print_file(l);
    print_collectives(l);
    look_at_data(l);
    if (show) {
        putchar('\n');
        sh_program_print(l->after ? l->after : l->p, stdout);
    }
}

void sh_cmd_plan_free(struct sh_cmd_plan *l)
{
    sh_program_destroy(l->after);
    sh_program_destroy(l->p);
    sh_machine_close(&l->machine);
}

/* Options that only mean something beside another. */
static sh_rc check_options(const struct sh_cmd *cmd, const struct sh_cmd_args *args)
{
    static const char *const planned[] = {"--json", "--trace", "--what-if", "--check", "--show", "--rank"};
    static const char *const priced[] = {"--json", "--trace", "--what-if", "--search", "--tokens", "--within", "--fit"};

    if (sh_cmd_option(cmd, args, "--after") && !sh_cmd_option(cmd, args, "--show"))
        return sh_fail(SH_E_USAGE, "--after says after which pass --show prints the program; add --show");
    if (sh_cmd_option(cmd, args, "--write") && !sh_cmd_option(cmd, args, "--search"))
        return sh_fail(SH_E_USAGE, "--write writes the configuration that --search finds; add --search");
    for (size_t i = 0; is_search(cmd, args) && i < sizeof planned / sizeof *planned; i++)
        if (sh_cmd_option(cmd, args, planned[i]))
            return sh_fail(SH_E_USAGE, "%s is of one configuration, and a search is of many; leave out one of them",
                           planned[i]);
    for (size_t i = 0; i < sizeof priced / sizeof *priced; i++)
        if (sh_cmd_option(cmd, args, priced[i]) && !sh_cmd_option(cmd, args, "--machine"))
            return sh_fail(SH_E_USAGE, "%s is of the prediction on a machine; add --machine", priced[i]);
    return SH_OK;
}

/* Runs have their configurations with them. */
static sh_rc fit(const struct sh_cmd *cmd, const struct sh_cmd_args *args)
{
    for (const struct sh_cmd_option *o = cmd->options; o->name; o++)
        if (strcmp(o->name, "--fit") && strcmp(o->name, "--machine") && sh_cmd_option(cmd, args, o->name))
            return sh_fail(SH_E_USAGE, "sherd plan --fit: takes --machine FILE and nothing else; leave out %s",
                           o->name);
    if (args->n_positional || args->n_overrides)
        return sh_fail(SH_E_USAGE,
                       "sherd plan --fit: takes no configuration, for each run below the folder has its own");
    return sh_cmd_plan_fit(sh_cmd_option(cmd, args, "--fit"), sh_cmd_option(cmd, args, "--machine"));
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

/* One process. --print-config needs no plan, and prints even what could not be planned. */
sh_rc sh_cmd_plan(const struct sh_cmd *cmd, const struct sh_cmd_args *args)
{
    const char *after = sh_cmd_option(cmd, args, "--after");
    struct sh_cmd_plan l = {0};
    sh_rc rc;

    SH_TRY(check_options(cmd, args));
    if (sh_cmd_option(cmd, args, "--fit"))
        return fit(cmd, args);
    if (sh_cmd_option(cmd, args, "--print-config"))
        return print_config(args);
    /* Printed even when it was refused, if it was built: a plan that does not fit shows what takes the room. */
    rc = make(cmd, args, &l);
    if (rc == SH_OK && is_search(cmd, args)) {
        rc = sh_cmd_plan_search(cmd, args, &l);
        sh_cmd_plan_free(&l);
        return rc;
    }
    if (rc == SH_OK && after)
        rc = sh_pass_build_until(&l.build, after, &l.after);
    if (l.p && rc != SH_E_USAGE)
        print(&l, sh_cmd_option(cmd, args, "--show") != NULL);
    if (rc == SH_OK && sh_cmd_option(cmd, args, "--check"))
        rc = sh_cmd_plan_check(&l);
    if (rc == SH_OK && l.priced)
        rc = sh_cmd_plan_cost(cmd, args, &l);
    sh_cmd_plan_free(&l);
    return rc;
}
