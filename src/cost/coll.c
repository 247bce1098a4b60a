/* The price of a collective of n ranks on k nodes, S bytes of the whole:
 *
 *     ring    all_gather, reduce_scatter: base + (n-k) a_in + (k-1) a_net + S (n-1)/n / B
 *             all_reduce:                 base + 2 ((n-k) a_in + 1.4 (k-1) a_net) + 2 S (n-1)/n / B
 *     tree    all_reduce:                 base + 2 (log2 k a_net + (n/k-1) a_in) + 2 S / (0.92 B)
 *     switch  all_reduce inside a node:   S / its rate, as bus bytes
 *     CPUs    between nodes, by messages: base + a (i a_in + o a_net) + a S/n max(i / B_in, (n/k) o rings / B_net)
 *             a       2 for an all_reduce, else 1
 *             i, o    peers of a rank on its own node and on other nodes: n/k - 1 and n - n/k
 *     levels  the same by blocks of b ranks, one of which sends for all (src/comm/mpi/algo_levels.c): i is n/k/b - 1, and o
 *             is (n - n/k)/b
 *             reduce inside     barrier + 3 S / memory: a rank copies what its neighbours sum, and sums its own part
 *             between           a (a_net + (i + o - 1) a_in) + the bytes as above: messages are posted at once, so each
 *                               after the first costs only the sender's time; sums of bfloat16 are sent in float32:
 *                               in the second term a is 2, or 3 for an all_reduce
 *             broadcast inside  barrier + 2 S / memory: what arrives is copied once, and read once by each rank
 *             a reduce_scatter has no broadcast, an all_gather no reduction
 *     small   on CPUs, up to 4 KiB per rank, by MPI's all-gather (src/comm/mpi/algo_small.c), which doubles a rank's data in
 *             each round: base + log2(n/k) a_in + log2 k a_net + (n-1) s / B, with s bytes of a rank
 *     parts   all_to_all: base + (n-k) a_in + (k-1) a_net + S/n max((n/k-1) / B_in, (n/k) (n-n/k) rings / B_net): what
 *             leaves a node shares its network, while a ring crosses it once
 *     message between two stages: base + a + S / B, with a and B those of the link between the two ranks
 *     B       inside a node that of the ring; between nodes the lesser of that and the node's network x share /
 *             (1 + crowding log2 k) / rings that share it
 *
 * The formulas and their latencies are those of NCCL's tuning table (src/graph/tuning.cc of NVIDIA/nccl, protocol
 * Simple). NCCL takes the cheapest of its algorithms, and so does this file. There is no tree for gathers: their
 * latency is linear in the number of ranks. */
#include "src/comm/parts.h"
#include "src/cost/nearby.h"
#include "src/cost/price.h"

#include <math.h>
#include <string.h>

static const double ring_hops = 1.4, tree_share = 0.92;
/* A reduction in the segment of the node reads its operand this many times, in the progress thread. */
static const double segment_reads = 1.5;
/* What travels to others in it is read and written once. */
static const double exchange_copies = 2;
/* Bytes through a rank's memory in two levels, relative to those of the operand. In a reduction with blocks of b ranks,
 * it reads and writes (b-1)/b for the others, reads b parts of 1/b and writes their sum, and sums those of the blocks,
 * reading 1/b. In a broadcast it reads and writes 1/b, and (b-1)/b that the others wrote. */
static const double reduce_copies = 3, broadcast_copies = 2;

double sh_coll_received(enum sh_op_kind kind, int ranks, double whole_bytes)
{
    double bytes = whole_bytes * (ranks - 1) / ranks;

    if (kind == SH_OP_SEND || kind == SH_OP_RECEIVE) /* between two, however many the group has */
        return whole_bytes;
    return kind == SH_OP_ALL_REDUCE ? 2 * bytes : bytes;
}

/* Of counted rows, each rank sends its own, and is taken to receive as many. */
static double counted_whole(const struct sh_program *p, const struct sh_op *op)
{
    const struct sh_tensor *x = &p->tensors[op->in[0]];
    double expected = (double)(op->attr.exchange.expected * op->attr.exchange.row_elems);

    return expected == 0 ? (double)sh_tensor_bytes(x) : fmax(expected, 0) * sh_dtype_bytes(x->dtype);
}

/* Those of the rank itself, of ranks that share. */
static const int64_t *cuts_here(const struct sh_program *p, const struct sh_op *op)
{
    int n = op->attr.exchange.sharers;

    return sh_program_cuts(p, op) + (n ? op->attr.exchange.run * (n + 1) : 0);
}

/* Of ranks that share: as if each had as much as the one with most, which it sends to each of the others. */
static double largest_share(const struct sh_program *p, const struct sh_op *op)
{
    int n = op->attr.exchange.sharers;
    const int64_t *cuts = cuts_here(p, op);
    int64_t most = 0;

    for (int i = 0; i < n; i++)
        most = cuts[i + 1] - cuts[i] > most ? cuts[i + 1] - cuts[i] : most;
    return (double)(most * n * sh_dtype_bytes(p->tensors[op->out[0]].dtype));
}

/* Bytes of the rank that owns most, but at least those of a chunk, which each rank sends. */
static double largest_cut(const struct sh_program *p, const struct sh_op *op)
{
    const int64_t *cuts = sh_program_cuts(p, op);
    int64_t most = sh_program_part_elems(p, op, 1);

    for (int i = 0; i + 1 < op->attr.exchange.cuts; i++)
        most = cuts[i + 1] - cuts[i] > most ? cuts[i + 1] - cuts[i] : most;
    return (double)(most * sh_dtype_bytes(p->tensors[op->out[0]].dtype));
}

double sh_coll_whole(const struct sh_program *p, const struct sh_op *op)
{
    if (sh_program_counts_rows(op))
        return counted_whole(p, op);
    if (op->kind == SH_OP_ALL_TO_ALL && op->attr.exchange.sharers)
        return largest_share(p, op);
    if (sh_program_cuts(p, op)) /* the largest part of the whole takes longest */
        return largest_cut(p, op);
    return (double)sh_tensor_bytes(&p->tensors[op->kind == SH_OP_REDUCE_SCATTER ? op->in[0] : sh_program_result(op)]);
}

double sh_coll_received_by(const struct sh_program *p, const struct sh_mesh_shape *mesh, const struct sh_op *op)
{
    int size = sh_group_size(mesh, op->attr.group);
    struct sh_coll_parts parts = {.sharers = op->attr.exchange.sharers, .back = op->attr.exchange.back};
    struct sh_coll coll = {.parts = &parts};

    if (!sh_program_cuts(p, op))
        return sh_coll_received(op->kind, size, sh_coll_whole(p, op));
    parts.cuts = cuts_here(p, op);
    coll.count = sh_program_part_elems(p, op, size);
    return (double)(sh_part_received(&coll, size, sh_group_index(mesh, op->attr.group)) *
                    sh_dtype_bytes(p->tensors[op->out[0]].dtype));
}

/* Members are in the order of ranks, so the members of each node are consecutive. */
struct sh_coll_place sh_coll_place_of_run(const struct sh_mesh_shape *mesh, sh_group group, int n, int ranks_per_node)
{
    struct sh_coll_place at = {.ranks = n};
    int last = -1, here = 0, mine = mesh->rank / ranks_per_node, all = sh_mesh_ranks(mesh);
    int first = sh_group_index(mesh, group) / n * n;

    for (int i = first; i < first + n; i++) {
        int node = sh_group_member(mesh, group, i) / ranks_per_node;

        at.nodes += node != last;
        here += node == mine;
        last = node;
    }
    at.rings = (all < ranks_per_node ? all : ranks_per_node) / here;
    if (at.rings < 1)
        at.rings = 1;
    return at;
}

struct sh_coll_place sh_coll_place(const struct sh_mesh_shape *mesh, sh_group group, int ranks_per_node)
{
    return sh_coll_place_of_run(mesh, group, sh_group_size(mesh, group), ranks_per_node);
}

/* Stages are side by side, so the ranks that send over the network of a node are a stage, or the node. */
struct sh_coll_place sh_message_place(const struct sh_mesh_shape *mesh, int peer, int ranks_per_node)
{
    int each = sh_mesh_ranks(mesh) / sh_group_size(mesh, mesh->pipeline), to = mesh->rank + peer * each;

    return (struct sh_coll_place){.ranks = 2,
                                  .nodes = to / ranks_per_node == mesh->rank / ranks_per_node ? 1 : 2,
                                  .rings = each < ranks_per_node ? each : ranks_per_node};
}

static double hops(const struct sh_machine *m, double inside, double between)
{
    return inside * m->inside.hop_seconds + between * m->network.hop_seconds;
}

static double node_rate(const struct sh_machine *m, int nodes)
{
    return m->network.bytes_per_second * m->network.share * m->network.taper / (1 + m->network.crowding * log2(nodes));
}

/* The rate of one ring or tree. */
static double rate(const struct sh_machine *m, const struct sh_coll_place *at)
{
    if (at->nodes == 1)
        return m->inside.bytes_per_second;
    return fmin(m->inside.bytes_per_second, node_rate(m, at->nodes) / at->rings);
}

struct way {
    double latency, transfer;
};

static struct way ring(const struct sh_machine *m, enum sh_op_kind kind, const struct sh_coll_place *at, double bytes)
{
    int n = at->ranks, k = at->nodes;
    bool twice = kind == SH_OP_ALL_REDUCE;

    return (struct way){m->network.base_seconds +
                            (twice ? 2 * hops(m, n - k, ring_hops * (k - 1)) : hops(m, n - k, k - 1)),
                        sh_coll_received(kind, n, bytes) / rate(m, at)};
}

static struct way tree(const struct sh_machine *m, const struct sh_coll_place *at, double bytes)
{
    double each = (double)at->ranks / at->nodes;

    return (struct way){m->network.base_seconds + 2 * hops(m, each - 1, log2(at->nodes)),
                        2 * bytes / (tree_share * rate(m, at))};
}

/* The rate of the switch counts bus bytes: those that a ring would move. */
static struct way by_switch(const struct sh_machine *m, const struct sh_coll_place *at, double bytes)
{
    return (struct way){m->network.base_seconds + 2 * m->inside.hop_seconds,
                        sh_coll_received(SH_OP_ALL_REDUCE, at->ranks, bytes) / m->inside.nvls_bytes_per_second};
}

/* The number of ranks for which one sends to another node: sh_group_block() for a group with as many ranks on each
 * node. */
static int block_of(const struct sh_coll_place *at)
{
    int each = at->ranks / at->nodes;

    return at->levels && at->ranks > SH_COMM_LEVELS_ABOVE && at->ranks % at->nodes == 0 ? each & -each : 1;
}

/* The peers of a rank on a CPU: one per block, on its own node and on others. */
struct peers {
    double inside, between;
};

static struct peers peers_of(const struct sh_coll_place *at, int block)
{
    double each = (double)at->ranks / at->nodes;

    return (struct peers){each / block - 1, (at->ranks - each) / block};
}

/* The seconds to send `times` parts of 1/n to each peer. */
static double exchanged(const struct sh_machine *m, const struct sh_coll_place *at, struct peers to, double times,
                        double bytes)
{
    double each = (double)at->ranks / at->nodes, inside = to.inside / m->inside.bytes_per_second;

    if (at->nodes > 1)
        inside = fmax(inside, each * to.between * at->rings / node_rate(m, at->nodes));
    return times * bytes / at->ranks * inside;
}

/* Messages to all peers are under way at once; each link is crossed by what it must carry. */
static struct way parts(const struct sh_machine *m, const struct sh_coll_place *at, double bytes)
{
    return (struct way){m->network.base_seconds + hops(m, at->ranks - at->nodes, at->nodes - 1),
                        exchanged(m, at, peers_of(at, 1), 1, bytes)};
}

/* Between CPUs of several nodes: each rank sends to every other rank. */
static struct way exchange(const struct sh_machine *m, enum sh_op_kind kind, const struct sh_coll_place *at,
                           double bytes)
{
    double phases = kind == SH_OP_ALL_REDUCE ? 2 : 1;
    struct peers to = peers_of(at, 1);

    return (struct way){m->network.base_seconds + phases * hops(m, to.inside, to.between),
                        exchanged(m, at, to, phases, bytes)};
}

/* The same by blocks: reduce within a block, exchange between blocks, broadcast within a block. */
static struct way in_levels(const struct sh_machine *m, enum sh_op_kind kind, const struct sh_coll_place *at, int block,
                            double bytes)
{
    double memory = m->memory.bytes_per_second * m->memory.share;
    int reduces = kind != SH_OP_ALL_GATHER, broadcasts = kind != SH_OP_REDUCE_SCATTER, phases = reduces + broadcasts;
    struct peers to = peers_of(at, block);
    double flight = hops(m, to.inside + to.between - 1, 1);

    return (struct way){
        m->network.base_seconds + phases * (m->inside.barrier_seconds + flight),
        exchanged(m, at, to, phases + (at->half && reduces), bytes) +
            (reduces * reduce_copies + broadcasts * broadcast_copies) * bytes / memory,
    };
}

/* Recursive doubling, starting between neighbours: the way in which MPI libraries gather small operands (Thakur,
 * Rabenseifner, Gropp 2005). An all_reduce gathers all operands, and each rank sums them. */
static struct way gathered(const struct sh_machine *m, enum sh_op_kind kind, const struct sh_coll_place *at,
                           double bytes)
{
    double each = (double)at->ranks / at->nodes, one = kind == SH_OP_ALL_REDUCE ? bytes : bytes / at->ranks;
    double inside = (each - 1) * one, between = (at->ranks - each) * one, moved = inside / m->inside.bytes_per_second;

    if (at->nodes > 1)
        moved += each * between * at->rings / node_rate(m, at->nodes);
    return (struct way){m->network.base_seconds + hops(m, log2(each), log2(at->nodes)), moved};
}

static bool is_small(enum sh_op_kind kind, const struct sh_coll_place *at, double bytes)
{
    return kind != SH_OP_REDUCE_SCATTER &&
           (kind == SH_OP_ALL_REDUCE ? bytes : bytes / at->ranks) <= SH_COMM_SMALL_BYTES;
}

static struct way between_nodes(const struct sh_machine *m, enum sh_op_kind kind, const struct sh_coll_place *at,
                                double bytes)
{
    int block = block_of(at);

    return block > 1 ? in_levels(m, kind, at, block, bytes) : exchange(m, kind, at, bytes);
}

static struct way cheaper(struct way a, struct way b)
{
    return a.latency + a.transfer <= b.latency + b.transfer ? a : b;
}

/* In shared memory: nothing is gathered, sums are computed by reading what the others wrote, and rows are copied from
 * where the others have them, those of the rank itself too unless they stay. */
static struct way in_segment(const struct sh_machine *m, enum sh_op_kind kind, const struct sh_coll_place *at,
                             double bytes)
{
    double times = kind == SH_OP_ALL_TO_ALL ? exchange_copies : segment_reads;

    if (at->others)
        bytes = sh_coll_received(kind, at->ranks, bytes);
    if (kind == SH_OP_ALL_GATHER)
        return (struct way){m->inside.barrier_seconds, 0};
    return (struct way){m->inside.barrier_seconds, times * bytes / (m->memory.bytes_per_second * m->memory.share)};
}

static struct way message(const struct sh_machine *m, const struct sh_coll_place *at, double bytes)
{
    return (struct way){m->network.base_seconds + hops(m, at->nodes == 1, at->nodes > 1), bytes / rate(m, at)};
}

static struct way way_of(const struct sh_machine *m, enum sh_op_kind kind, const struct sh_coll_place *at, double bytes)
{
    struct way best;

    if (kind == SH_OP_SEND || kind == SH_OP_RECEIVE)
        return message(m, at, bytes);
    if (at->segment)
        return in_segment(m, kind, at, bytes);
    if (kind == SH_OP_ALL_TO_ALL)
        return parts(m, at, bytes);
    if (!sh_machine_is_gpu(m) && is_small(kind, at, bytes))
        return gathered(m, kind, at, bytes);
    if (!sh_machine_is_gpu(m) && at->nodes > 1)
        return between_nodes(m, kind, at, bytes);
    best = ring(m, kind, at, bytes);
    if (kind != SH_OP_ALL_REDUCE)
        return best;
    best = cheaper(best, tree(m, at, bytes));
    if (at->nodes == 1 && m->inside.nvls_bytes_per_second > 0)
        best = cheaper(best, by_switch(m, at, bytes));
    return best;
}

/* A point gives the seconds of the whole collective; latency and transfer get the same correction. A point between
 * nodes is ignored on a machine whose network is not known. */
static double correction(const struct sh_machine *m, enum sh_op_kind kind, const struct sh_coll_place *at, double bytes)
{
    const double wanted[] = {at->ranks, at->nodes, fmax(1, bytes)};
    struct sh_nearby near = {0};

    for (int i = 0; i < m->n_points; i++) {
        const struct sh_machine_point *p = &m->points[i];
        struct sh_coll_place there = {(int)p->ranks, (int)p->nodes, at->rings, at->segment, at->levels, false, false};
        struct way way;

        if (p->what != SH_POINT_COLL || strcmp(p->kind, sh_op_info(kind)->name) ||
            !strcmp(p->axis, "segment") != at->segment || (p->nodes > 1 && m->network.bytes_per_second <= 0))
            continue;
        way = way_of(m, kind, &there, p->bytes);
        sh_nearby_add(&near, sh_nearby_distance(wanted, (double[]){p->ranks, p->nodes, p->bytes}, 3),
                      p->seconds / (way.latency + way.transfer));
    }
    return sh_nearby_ratio(&near);
}

struct sh_price sh_price_coll(const struct sh_machine *m, const struct sh_cost_faster *f, enum sh_op_kind kind,
                              const struct sh_coll_place *at, double bytes)
{
    struct way way = {0};
    double ratio;

    if (at->ranks > 1) {
        way = way_of(m, kind, at, bytes);
        ratio = correction(m, kind, at, bytes);
        way.latency *= ratio / f->latency;
        way.transfer *= ratio / (at->segment ? f->memory : f->network);
    }
    return (struct sh_price){.seconds = way.latency + way.transfer,
                             .bytes = sh_coll_received(kind, at->ranks, bytes),
                             .latency = way.latency,
                             .transfer = way.transfer,
                             .link = at->segment     ? SH_LINK_MEMORY
                                     : at->nodes > 1 ? SH_LINK_NETWORK
                                                     : SH_LINK_INSIDE};
}
