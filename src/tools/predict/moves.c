/* `sherd plan`: what a rank receives in collectives; what is in its scratch file, what moves there and back, and at
 * which rates. For a GPU: what moves to host memory and back. */
#include "src/tools/predict/command.h"

#include "src/base/string/str.h"
#include "src/plan/budget.h"
#include "src/cost/rates.h"

#include <math.h>

double sh_predict_block_bytes(const struct sh_predict *l, sh_group group)
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
        bytes += op->block != SH_NONE && op->block == block ? sh_coll_received_by(l->p, &l->mesh, op) : 0;
    }
    return bytes;
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
        sum->bytes += s->repeat * sh_coll_received_by(l->p, &l->mesh, op);
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
void sh_predict_say_traffic(const struct sh_predict *l)
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

/* Where a rate comes from. */
static const char *source(const struct sh_machine *m, const char *key)
{
    static const char *const names[] = {
        [SH_FROM_PRESET] = "assumed", [SH_FROM_FILE] = "machine file", [SH_FROM_MEASUREMENT] = "offload.rates"};

    return names[m->from[sh_machine_key_find(key)]];
}

/* Each GPU has its own link, which carries both directions at once. */
static void move_to_host(const struct sh_machine *m, struct sh_predict_moves *out)
{
    out->host = true;
    out->read_rate = m->host.read;
    out->write_rate = m->host.write;
    out->seconds = fmax((double)out->read_bytes / out->read_rate, (double)out->written_bytes / out->write_rate);
    out->from = source(m, "host.read");
}

/* All ranks of a node use its disk at once, hence the factor `node`. Without a machine file the rates come from the
 * configuration or are assumed, and `from` says which. */
struct sh_predict_moves sh_predict_moves(const struct sh_predict *l)
{
    struct sh_machine m = l->machine;
    struct sh_predict_moves out = {0};
    int tier = sh_program_file_tier(l->p), node = l->at.ranks_per_node > 1 ? l->at.ranks_per_node : 1;

    if (!l->priced)
        sh_cost_assume_machine(&l->cfg, l->at.gpu, &m);
    if (tier != SH_NONE)
        out.file_bytes = l->p->tiers[tier].bytes;
    sh_program_moved(l->p, &out.read_bytes, &out.written_bytes);
    out.read_rate = m.scratch.read;
    out.write_rate = m.scratch.write;
    out.from = source(&m, "scratch.read");
    out.seconds = node * ((double)out.read_bytes / out.read_rate + (double)out.written_bytes / out.write_rate);
    if (tier == SH_NONE && sh_program_moves(l->p))
        move_to_host(&m, &out);
    return out;
}

/* All tensors in the file are persistent, including activations, since they wait for their backward. */
static const char *file_has(const struct sh_program *p)
{
    static const char *const names[] = {"",
                                        "optimizer states: all that is in it",
                                        "gradients: all that is in it",
                                        "optimizer states and gradients",
                                        "activations: all that is in it",
                                        "optimizer states and activations",
                                        "gradients and activations",
                                        "states, gradients and activations"};
    int64_t bytes[SH_MEM_KINDS];

    sh_pass_pinned(p, sh_program_file_tier(p), bytes);
    return names[(bytes[SH_MEM_OPTIM] > 0) + 2 * (bytes[SH_MEM_GRAD] > 0) + 4 * (bytes[SH_MEM_ACT] > 0)];
}

/* Without a machine, the time of a step is the one that the budget assumed; for other plans it is not known. */
static void print_wear(const struct sh_predict *l, const struct sh_predict_moves *moves)
{
    int node = l->at.ranks_per_node > 1 ? l->at.ranks_per_node : 1;
    struct sh_build b = l->build;
    double seconds;

    printf("  wear: %.4g TB written in 1000 steps", (double)moves->written_bytes / 1e9);
    if (l->build.fit_homes && !l->priced && sh_budget_seconds(&l->cfg, &l->at, &b, l->p, &seconds) == SH_OK)
        printf("; %.4g TB a day on the disk of a node, at the %.4g s a step that the budget assumed",
               node * (double)moves->written_bytes / seconds * 86400 / 1e12, seconds);
    putchar('\n');
}

/* How long a drive of a given endurance lasts is left for the user to divide. A path without a file is not a mistake: a
 * site may give it to all jobs. */
void sh_predict_file(const struct sh_predict *l)
{
    struct sh_predict_moves moves = sh_predict_moves(l);
    char text[SH_STR_SHORT];

    if (!moves.file_bytes && l->cfg.offload.nvme_path[0])
        puts("\nfile of this rank (offload.nvme_path): none, all is in memory");
    if (!moves.file_bytes)
        return;
    printf("\nfile of this rank (offload.nvme_path)\n");
    printf("  %-34s %20lld  %12s\n", file_has(l->p), (long long)moves.file_bytes, sh_str_bytes(moves.file_bytes, text));
    printf("  moved in a training step: %lld bytes read, %lld bytes written\n", (long long)moves.read_bytes,
           (long long)moves.written_bytes);
    printf("  rates of a node (%s): %.4g GB/s read, %.4g GB/s written; %.4g s a step\n", moves.from,
           moves.read_rate / 1e9, moves.write_rate / 1e9, moves.seconds);
    print_wear(l, &moves);
}
