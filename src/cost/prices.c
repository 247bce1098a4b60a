/* A step repeats few operations many times, and pricing is the slowest part of a prediction. So a price is computed
 * once for each kind and shape, and operations refer to it by number. */
#include "src/cost/prices.h"

#include "src/base/mem.h"
#include "src/cost/nearby.h"

#include <stdlib.h>
#include <string.h>

/* Open addressing, by a key that operations of equal price share. SLOTS is a power of two. */
enum { SLOTS = 4096 };
struct table {
    struct slot {
        uint64_t key;
        int price; /* SH_NONE: free */
    } slots[SLOTS];
};

/* Not for hashes that are stored: here a collision would only merge two prices. */
static uint64_t mix(uint64_t h, uint64_t value)
{
    h = (h ^ value) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 29;
}

/* Types and sizes; names and addresses do not affect a price. */
static uint64_t mix_tensor(uint64_t h, const struct sh_program *p, int t)
{
    if (t == SH_NONE)
        return mix(h, 1);
    h = mix(h, (uint64_t)p->tensors[t].dtype);
    for (int i = 0; i < p->tensors[t].ndim; i++)
        h = mix(h, (uint64_t)p->tensors[t].dim[i]);
    return h;
}

/* Whether it is of a wave that has no rows where experts are evenly busy: it returns at once, and sends nothing. */
static bool is_idle(const struct sh_op *op)
{
    return (sh_program_counts_rows(op) && op->attr.exchange.expected < 0) ||
           (sh_op_has_rows(op->kind) && op->attr.rows.expected < 0);
}

/* Everything that a price depends on: kind, shapes, whether outputs are accumulated, blocks of rows, the group. The shapes cover all
 * relevant attributes except those of attention, rows of a chunk and the rows that are expected. */
static uint64_t key_of(const struct sh_program *p, const struct sh_op *op)
{
    const struct sh_op_info *info = sh_op_info(op->kind);
    uint64_t h = mix(mix(mix((uint64_t)op->kind + 1, op->attr.accumulate), (uint64_t)op->attr.row_block),
                     info->async ? (uint64_t)op->attr.group << 1 | (op->unit == SH_NONE) : 0);

    if (sh_cost_class_of(op->kind) == SH_COST_ATTENTION)
        h = mix(mix(mix(h, (uint64_t)op->attr.attn.heads << 32 | (uint64_t)op->attr.attn.kv_heads),
                    (uint64_t)op->attr.attn.window),
                (uint64_t)op->attr.attn.document_tokens << 1 | op->attr.attn.any_order);
    else if (op->kind == SH_OP_HEAD_LOSS || op->kind == SH_OP_HEAD_LOSS_GRAD)
        h = mix(h, (uint64_t)op->attr.head.chunk_rows);
    else if (sh_program_counts_rows(op))
        h = mix(h,
                (uint64_t)(op->attr.exchange.expected * op->attr.exchange.row_elems) << 1 | op->attr.exchange.others);
    else if (sh_op_has_rows(op->kind))
        h = mix(h, (uint64_t)op->attr.rows.expected);
    else if (op->kind == SH_OP_ORTHO || op->kind == SH_OP_ORTHO_ROWS)
        h = mix(mix(h, (uint64_t)op->attr.ortho.first << 32 | (uint64_t)op->attr.ortho.count),
                (uint64_t)op->attr.ortho.steps << 1 | op->attr.ortho.narrow);
    else if (sh_program_cuts(p, op))
        h = mix(mix(h, (uint64_t)op->attr.exchange.first_cut << 1 | op->attr.exchange.back),
                (uint64_t)op->attr.exchange.sharers);
    else if (op->kind == SH_OP_ALL_TO_ALL)
        h = mix(h, (uint64_t)op->attr.exchange.sequences);
    else if (sh_program_is_message(op))
        h = mix(h, (uint64_t)op->attr.link.peer);
    for (int i = 0; i < info->n_in; i++)
        h = mix_tensor(h, p, op->in[i]);
    for (int i = 0; i < info->n_out; i++)
        h = mix_tensor(h, p, op->out[i]);
    return h;
}

/* Shard groups lie within the segment; other groups only if the segment holds all ranks. Of rows of the model, those that
 * travel to experts may lie there (src/pass/dispatch/); others are in the memory of each rank. */
static bool in_segment(const struct sh_cost_request *r, const struct sh_op *op)
{
    const struct sh_segment *w = &r->p->segment;
    bool rows = op->unit == SH_NONE && op->kind != SH_OP_ALL_REDUCE;

    if (sh_program_counts_rows(op) || sh_program_cuts(r->p, op))
        return r->p->tensors[sh_tensor_root(r->p, op->in[0])].space == SH_SPACE_PEERS;
    return w->ranks && !rows && (op->attr.group == r->mesh->shard || w->ranks == sh_mesh_ranks(r->mesh));
}

/* Sequences are exchanged one after the other. The busiest rank sets the time of all; the bytes are those of this one. */
static struct sh_price price_of_coll(const struct sh_cost_request *r, const struct sh_op *op,
                                     const struct sh_coll_place *at)
{
    int times = sh_program_exchanges(op);
    struct sh_price price = sh_price_coll(r->machine, &r->faster, op->kind, at, sh_coll_whole(r->p, op) / times);

    price.seconds *= times;
    price.bytes = sh_coll_received_by(r->p, r->mesh, op);
    price.latency *= times;
    price.transfer *= times;
    return price;
}

/* Those that exchange with each other. */
static int ranks_of(const struct sh_cost_request *r, const struct sh_op *op)
{
    bool few = op->kind == SH_OP_ALL_TO_ALL && op->attr.exchange.sharers;

    return few ? op->attr.exchange.sharers : sh_group_size(r->mesh, op->attr.group);
}

/* Collectives are priced by the links between their ranks, moves by the host link or the disk, all others by operations
 * and bytes. */
static struct sh_price price_of(const struct sh_cost_request *r, const struct sh_op *op)
{
    struct sh_op_call call;
    struct sh_coll_place at;

    if (is_idle(op))
        return (struct sh_price){0};
    if (sh_program_is_message(op)) {
        at = sh_message_place(r->mesh, op->attr.link.peer, r->ranks_per_node);
        return sh_price_coll(r->machine, &r->faster, op->kind, &at, sh_coll_whole(r->p, op));
    }
    if (sh_op_info(op->kind)->async) {
        at = sh_coll_place_of_run(r->mesh, op->attr.group, ranks_of(r, op), r->ranks_per_node);
        at.segment = in_segment(r, op);
        at.levels = r->shares;
        at.half = r->p->tensors[sh_program_result(op)].dtype == SH_BF16;
        at.others = sh_program_counts_rows(op) && op->attr.exchange.others;
        return price_of_coll(r, op, &at);
    }
    if (sh_op_info(op->kind)->moves && sh_program_file_tier(r->p) == SH_NONE)
        return sh_price_host_move(r->machine, op->kind, (double)sh_tensor_bytes(&r->p->tensors[op->in[0]]));
    if (sh_op_info(op->kind)->moves)
        return sh_price_move(r->machine, op->kind, r->ranks_per_node,
                             (double)sh_tensor_bytes(&r->p->tensors[op->in[0]]));
    sh_program_call(r->p, op, NULL, &call);
    return sh_price_op(r->machine, &r->faster, &call, r->p->act);
}

static int add_price(struct sh_prices *out, struct sh_price price)
{
    out->of = sh_grow(out->of, out->n, &out->cap, sizeof *out->of);
    out->of[out->n] = price;
    return out->n++;
}

/* Once the table is full, nothing is added to it: further prices are computed one by one. */
static int find_price(const struct sh_cost_request *r, const struct sh_op *op, struct table *t, struct sh_prices *out)
{
    uint64_t key = key_of(r->p, op);
    struct slot *slot = &t->slots[key % SLOTS];

    while (slot->price != SH_NONE && slot->key != key)
        slot = slot + 1 < t->slots + SLOTS ? slot + 1 : t->slots;
    if (slot->price != SH_NONE)
        return slot->price;
    if (out->n >= SLOTS / 2)
        return add_price(out, price_of(r, op));
    *slot = (struct slot){key, add_price(out, price_of(r, op))};
    return slot->price;
}

/* Mark the first and the last call of each kind of collective in a step; sections that a step does not run do not
 * count. */
static void mark_places(const struct sh_program *p, unsigned char *place)
{
    int last[SH_COST_CLASSES];

    for (int c = 0; c < SH_COST_CLASSES; c++)
        last[c] = SH_NONE;
    for (int s = 0; s < p->n_sections; s++)
        for (int i = p->sections[s].first_op; i < p->sections[s].first_op + p->sections[s].n_ops; i++) {
            enum sh_cost_class class = sh_cost_class_of(p->ops[i].kind);

            if (!p->sections[s].repeat || !sh_op_starts(sh_op_info(p->ops[i].kind)))
                continue;
            if (last[class] == SH_NONE)
                place[i] |= SH_PLACE_FIRST;
            last[class] = i;
        }
    for (int c = 0; c < SH_COST_CLASSES; c++)
        if (last[c] != SH_NONE)
            place[last[c]] |= SH_PLACE_LAST;
}

/* The slow-down of the machine, unless one was measured with this kind of collective; the newest point wins. */
static void find_slowdowns(const struct sh_cost_request *r, double out[SH_COST_CLASSES])
{
    const struct sh_machine *m = r->machine;

    for (int c = 0; c < SH_COST_CLASSES; c++) {
        out[c] = m->overlap.slowdown / r->faster.slowdown;
        for (int i = 0; i < m->n_points; i++)
            if (m->points[i].what == SH_POINT_BESIDE &&
                !strcmp(m->points[i].kind, sh_cost_class_name((enum sh_cost_class)c)))
                out[c] = m->points[i].slowdown / r->faster.slowdown;
    }
    out[SH_COST_MOVES] = 0; /* its threads sleep while the disk works */
}

/* The work of a step by class: flops of products and attention, bytes of the rest. Starts at 1, because logarithms are
 * taken. */
void sh_prices_work(const struct sh_program *p, const struct sh_prices *of, double work[SH_WORK_DIMS])
{
    for (int d = 0; d < SH_WORK_DIMS; d++)
        work[d] = 1;
    for (int s = 0; s < p->n_sections; s++)
        for (int i = p->sections[s].first_op; i < p->sections[s].first_op + p->sections[s].n_ops; i++) {
            const struct sh_price *price = &of->of[of->index[i]];
            enum sh_cost_class class = sh_cost_class_of(p->ops[i].kind);

            if (class > SH_COST_OTHER || sh_op_info(p->ops[i].kind)->marker)
                continue;
            work[class] += p->sections[s].repeat * (class == SH_COST_OTHER ? price->bytes : price->flops);
        }
}

/* The correction from measured whole steps: what the formulas miss of their computation. It applies to other steps if
 * they are near. */
static double correct_steps(const struct sh_cost_request *r, const struct sh_prices *out)
{
    double work[SH_WORK_DIMS];
    struct sh_nearby near = {0};

    sh_prices_work(r->p, out, work);
    for (int i = 0; i < r->machine->n_points; i++) {
        const struct sh_machine_point *p = &r->machine->points[i];

        if (p->what == SH_POINT_STEP && p->n_dims == SH_WORK_DIMS && !strcmp(p->type, sh_price_type(r->p->act)))
            sh_nearby_add(&near, sh_nearby_distance(work, p->dims, SH_WORK_DIMS), p->value);
    }
    return sh_nearby_ratio(&near);
}

/* Corrects computation only: its operations share no price with others. */
static void correct(const struct sh_cost_request *r, struct sh_prices *out)
{
    double ratio = correct_steps(r, out);
    bool *done = sh_calloc((size_t)out->n, sizeof *done);

    for (int i = 0; i < r->p->n_ops; i++) {
        int at = out->index[i];

        if (sh_cost_class_of(r->p->ops[i].kind) > SH_COST_OTHER || done[at])
            continue;
        done[at] = true;
        out->of[at].seconds *= ratio;
    }
    free(done);
}

/* All markers share the first price, which is 0. */
void sh_prices_make(const struct sh_cost_request *r, struct sh_prices *out)
{
    struct table *t = sh_calloc(1, sizeof *t);
    int markers;

    for (int i = 0; i < SLOTS; i++)
        t->slots[i].price = SH_NONE;
    *out = (struct sh_prices){.index = sh_calloc((size_t)r->p->n_ops + 1, sizeof *out->index),
                              .place = sh_calloc((size_t)r->p->n_ops + 1, sizeof *out->place)};
    markers = add_price(out, (struct sh_price){0});
    for (int i = 0; i < r->p->n_ops; i++)
        out->index[i] = sh_op_info(r->p->ops[i].kind)->marker ? markers : find_price(r, &r->p->ops[i], t, out);
    correct(r, out);
    mark_places(r->p, out->place);
    find_slowdowns(r, out->slowdown);
    free(t);
}

void sh_prices_free(struct sh_prices *p)
{
    free(p->of);
    free(p->index);
    free(p->place);
}
