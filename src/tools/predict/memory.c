/* `sherd plan`: units, the memory of a rank by its kinds, and what lies beside it. */
#include "src/tools/predict/command.h"

#include "src/base/mem.h"
#include "src/base/number/nf4.h"
#include "src/base/string/str.h"
#include "src/near/slot.h"

#include <stdio.h>
#include <stdlib.h>

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
void sh_predict_say_units(const struct sh_predict *l)
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

int64_t sh_predict_kept(const struct sh_predict *l)
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
        printf("  beside it, kept for CUDA and NCCL: %s%s\n", sh_str_sum_of_bytes((double)sh_predict_kept(l), kept),
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
void sh_predict_say_memory(const struct sh_predict *l)
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
