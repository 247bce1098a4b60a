/* Reports how the launcher has spread the ranks over nodes. sh_mesh_start() has already refused a job of N single
 * ranks. */
#include "src/tools/doctor/doctor.h"

#include "src/device/nvml.h"

#include <stdio.h>
#include <string.h>

/* The ranks of these axes exchange rows within each block. They are neighbours on their axis. */
static const int close_axes[] = {SH_AXIS_TENSOR, SH_AXIS_CONTEXT};
enum { CLOSE_AXES = sizeof close_axes / sizeof close_axes[0] };

/* Returns the fewest ranks on any node; *most is the maximum. */
static int fewest_on_node(const struct sh_doctor *d, int *most)
{
    int least = sh_mesh_ranks(&d->mesh->shape);

    *most = 0;
    for (int i = 0; i < d->mesh->n_nodes; i++) {
        int n = 0;

        for (int rank = 0; rank < sh_mesh_ranks(&d->mesh->shape); rank++)
            n += d->place[rank].node == i;
        least = n < least ? n : least;
        *most = n > *most ? n : *most;
    }
    return least;
}

/* Neighbouring ranks form shard groups, so placing ranks in blocks keeps the gathers inside a node. */
static bool in_blocks(const struct sh_doctor *d)
{
    for (int rank = 1; rank < sh_mesh_ranks(&d->mesh->shape); rank++)
        if (d->place[rank].node < d->place[rank - 1].node)
            return false;
    return true;
}

/* The next rank on an axis; -1: this is the last one there. */
static int next_on(const struct sh_mesh_shape *shape, const struct sh_axis *a, int rank)
{
    int span = a->size * a->stride, next = rank + a->stride;

    return next < sh_mesh_ranks(shape) && rank / span == next / span ? next : -1;
}

bool sh_doctor_find_apart(const struct sh_mesh_shape *shape, const struct sh_doctor_place *place,
                          struct sh_doctor_apart *out)
{
    for (int i = 0; i < CLOSE_AXES; i++) {
        const struct sh_axis *a = &shape->axis[close_axes[i]];

        for (int rank = 0; rank < sh_mesh_ranks(shape); rank++) {
            int next = next_on(shape, a, rank);

            if (next < 0 || place[rank].node == place[next].node)
                continue;
            *out = (struct sh_doctor_apart){a->name, rank, next, a->size * a->stride};
            return true;
        }
    }
    return false;
}

/* The ranks of a node by their place there; false: more than are looked at, or some way is not known. */
static bool ranks_of_node(const struct sh_doctor_place *place, int world, int node, int rank_of[SH_DOCTOR_GPUS], int *n)
{
    *n = 0;
    for (int rank = 0; rank < world; rank++) {
        if (place[rank].node != node)
            continue;
        if (place[rank].node_rank >= SH_DOCTOR_GPUS)
            return false;
        rank_of[place[rank].node_rank] = rank;
        ++*n;
    }
    for (int i = 0; i < *n; i++)
        for (int k = 0; k < *n; k++)
            if (i != k && place[rank_of[i]].way[k] == SH_NVML_UNKNOWN)
                return false;
    return *n > 0;
}

/* From each GPU to the nearest of the rest. */
static void order_by_way(const struct sh_doctor_place *place, const int *rank_of, int n, int *order)
{
    bool taken[SH_DOCTOR_GPUS] = {true};

    order[0] = 0;
    for (int i = 1; i < n; i++) {
        const unsigned char *way = place[rank_of[order[i - 1]]].way;
        int best = -1;

        for (int k = 0; k < n; k++)
            if (!taken[k] && (best < 0 || way[k] < way[best]))
                best = k;
        order[i] = best;
        taken[best] = true;
    }
}

/* How far the neighbours of a node are from each other, all together, if its ranks take GPUs in this order; and whose way
 * is the longest. */
static int length_of(const struct sh_mesh_shape *shape, const struct sh_doctor_place *place, const int *rank_of, int n,
                     const int *order, struct sh_doctor_far *longest)
{
    int sum = 0, most = 0;

    for (int i = 0; i < CLOSE_AXES; i++)
        for (int k = 0; k < n; k++) {
            const struct sh_axis *a = &shape->axis[close_axes[i]];
            int next = next_on(shape, a, rank_of[k]), way;

            if (next < 0 || place[next].node != place[rank_of[k]].node)
                continue;
            way = place[rank_of[order[k]]].way[order[place[next].node_rank]];
            sum += way;
            if (way > most) {
                most = way;
                longest->axis = a->name;
                longest->rank = rank_of[k];
                longest->next = next;
            }
        }
    return sum;
}

bool sh_doctor_find_far(const struct sh_mesh_shape *shape, const struct sh_doctor_place *place,
                        struct sh_doctor_far *out)
{
    int world = sh_mesh_ranks(shape), rank_of[SH_DOCTOR_GPUS], now[SH_DOCTOR_GPUS];
    struct sh_doctor_far other;

    for (int i = 0; i < SH_DOCTOR_GPUS; i++)
        now[i] = i;
    for (int rank = 0; rank < world; rank++) {
        if (place[rank].node_rank != 0 || !ranks_of_node(place, world, place[rank].node, rank_of, &out->n))
            continue;
        order_by_way(place, rank_of, out->n, out->order);
        if (length_of(shape, place, rank_of, out->n, out->order, &other) <
            length_of(shape, place, rank_of, out->n, now, out))
            return true;
    }
    return false;
}

/* The GPUs in the order that a node's ranks should take them in. */
static void note_far(const struct sh_doctor *d, const struct sh_doctor_far *f, struct sh_doctor_row *row)
{
    static const char *const ways[] = {[SH_NVML_LINK] = "NVLink",
                                       [SH_NVML_SWITCH] = "switches of the PCI bus",
                                       [SH_NVML_HOST] = "a processor",
                                       [SH_NVML_SYSTEM] = "the link between processors"};
    const struct sh_doctor_place *rank = &d->place[f->rank], *next = &d->place[f->next];
    char order[4 * SH_DOCTOR_GPUS] = "";

    for (int i = 0, at = 0; i < f->n; i++)
        at += snprintf(order + at, sizeof order - (size_t)at, "%s%d", i ? "," : "", f->order[i]);
    sh_doctor_note(
        row,
        "%s: the GPUs of ranks %d and %d on %s (%s, %s) meet over %s, but exchange rows in each block; if the "
        "node's ranks use their present GPUs in the order %s (CUDA_VISIBLE_DEVICES), these neighbours are closer",
        f->axis, f->rank, f->next, sh_doctor_host(d, rank->node), rank->bus, next->bus,
        ways[rank->way[next->node_rank]], order);
}

/* Ranks in blocks are apart only if a node has no whole number of groups. */
static void note_apart(const struct sh_doctor *d, const struct sh_doctor_apart *a, struct sh_doctor_row *row)
{
    char cure[128] = "start with srun -m block or mpirun --map-by core";

    if (in_blocks(d))
        snprintf(cure, sizeof cure,
                 "start a multiple of %d ranks on each node, or give a smaller parallelism.%s_parallel_degree", a->span,
                 a->axis);
    sh_doctor_note(row, "%s: ranks %d and %d are on %s and %s, but exchange rows in each block; %s", a->axis, a->rank,
                   a->next, sh_doctor_host(d, d->place[a->rank].node), sh_doctor_host(d, d->place[a->next].node), cure);
}

/* Local: all ranks have the same table of places. Only notes, since such a job runs, if slower. */
sh_rc sh_doctor_ranks(const struct sh_doctor *d, struct sh_doctor_row *row)
{
    const struct sh_mesh_shape *m = &d->mesh->shape;
    struct sh_doctor_apart apart;
    struct sh_doctor_far far;
    char mesh[SH_MESH_TEXT];
    int nodes = d->mesh->n_nodes, world = sh_mesh_ranks(&d->mesh->shape), most, least = fewest_on_node(d, &most);

    if (d->gpu.hidden)
        sh_doctor_note(row, "%s", d->gpu.hidden);
    else if (sh_doctor_find_apart(m, d->place, &apart))
        note_apart(d, &apart, row);
    else if (sh_doctor_find_far(m, d->place, &far))
        note_far(d, &far, row);
    else if (least != most)
        sh_doctor_note(row, "%d to %d per node: nodes with fewer wait for the others", least, most);
    else if (!in_blocks(d))
        sh_doctor_note(row, "neighbours are not on one node; start with srun -m block or mpirun --map-by core");
    else
        sh_doctor_good(row, "%d on %d node%s, %d on each; mesh %s", world, nodes, nodes == 1 ? "" : "s", least,
                       sh_mesh_text(m, mesh));
    return SH_OK;
}
