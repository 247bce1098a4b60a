/* Tests the network node by node: ping-pong between neighbours on a ring of all nodes. A node with two slow links is
 * slow itself (a bad cable, a link that fell back to a lower rate, a wrong interface), and collectives run at its
 * speed. */
#include "src/tools/doctor/doctor.h"

#include "src/base/mem.h"
#include "src/base/time.h"

#include <math.h>
#include <stdlib.h>

/* Measuring a link takes a few milliseconds on a usual network. */
enum { SMALL_ROUNDS = 10, LARGE_ROUNDS = 4, REPEATS = 3, LARGE_BYTES = 1 << 20, TAG = 79 };

/* Latency and bandwidth. */
struct link {
    double seconds, speed; /* one way of a short message; bytes per second of a long one */
};

/* One message there and one back; `first` sends first, so that the two sides do not wait for each other. */
static sh_rc bounce(char *buffer, int bytes, int peer, bool first)
{
    if (first)
        SH_MPI(MPI_Send(buffer, bytes, MPI_BYTE, peer, TAG, MPI_COMM_WORLD));
    SH_MPI(MPI_Recv(buffer, bytes, MPI_BYTE, peer, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    if (!first)
        SH_MPI(MPI_Send(buffer, bytes, MPI_BYTE, peer, TAG, MPI_COMM_WORLD));
    return SH_OK;
}

/* Seconds of one way: the best of several repeats, since noise only ever adds time. */
static sh_rc time_of(char *buffer, int bytes, int rounds, int peer, bool first, double *seconds)
{
    *seconds = INFINITY;
    SH_TRY(bounce(buffer, bytes, peer, first)); /* connects */
    for (int k = 0; k < REPEATS; k++) {
        int64_t begin = sh_now_ns();
        double mean;

        for (int i = 0; i < rounds; i++)
            SH_TRY(bounce(buffer, bytes, peer, first));
        mean = sh_seconds_since(begin) / (2 * rounds);
        *seconds = mean < *seconds ? mean : *seconds;
    }
    return SH_OK;
}

/* 8 bytes for the latency, a MiB for the bandwidth. */
static sh_rc measure(char *buffer, int peer, bool first, struct link *out)
{
    double seconds;

    SH_TRY(time_of(buffer, 8, SMALL_ROUNDS, peer, first, &out->seconds));
    SH_TRY(time_of(buffer, LARGE_BYTES, LARGE_ROUNDS, peer, first, &seconds));
    out->speed = LARGE_BYTES / seconds;
    return SH_OK;
}

/* Link i connects node i and node i + 1. Links of one colour share no node: even ones, odd ones, and the last link of a
 * ring with an odd number of nodes. */
static int colour_of(int link, int links)
{
    return link == links - 1 && links % 2 ? 2 : link % 2;
}

/* Collective. Links of one colour are measured at the same time, and the barrier separates colours, so that a node is
 * never in two measurements at once. seconds and speed [links]. */
static sh_rc measure_all(const struct sh_doctor *d, char *buffer, int links, double *seconds, double *speed)
{
    int nodes = d->mesh->n_nodes;

    for (int i = 0; i < links; i++)
        seconds[i] = speed[i] = -INFINITY;
    for (int colour = 0; colour < 3; colour++) {
        for (int i = 0; i < links && sh_doctor_leads(d); i++) {
            int from = d->leader[i], to = d->leader[(i + 1) % nodes];
            bool first = d->mesh->rank == from;
            struct link found;

            if (colour_of(i, links) != colour || (!first && d->mesh->rank != to))
                continue;
            SH_TRY(measure(buffer, first ? to : from, first, &found));
            seconds[i] = found.seconds;
            speed[i] = found.speed;
        }
        sh_mesh_barrier();
    }
    SH_TRY(sh_doctor_fill(links, seconds));
    return sh_doctor_fill(links, speed);
}

/* A node counts as fast as the better of its links, since the other may be slow because of the neighbour. */
static void of_nodes(int nodes, const double *link, double *node)
{
    for (int i = 0; i < nodes; i++) {
        double before = link[(i + nodes - 1) % nodes];

        node[i] = link[i] > before ? link[i] : before;
    }
}

/* A node that is slow on both sides is bad; a single slow link is a note, since the cable between the two nodes
 * may be the cause. */
static void judge(const struct sh_doctor *d, int links, const double *seconds, const double *speed, double *node,
                  struct sh_doctor_row *row)
{
    struct sh_doctor_slowest by_node, by_link = sh_doctor_find_slowest(links, speed);
    double longest = 0;

    for (int i = 0; i < links; i++)
        longest = seconds[i] > longest ? seconds[i] : longest;
    if (links > 1)
        of_nodes(links, speed, node);
    else
        node[0] = node[1] = speed[0];
    by_node = sh_doctor_find_slowest(d->mesh->n_nodes, node);
    if (by_node.state == SH_DOCTOR_BAD)
        sh_doctor_bad(row, SH_E_COMM,
                      "%s reaches both neighbours with %.3g GB/s at most, the median node with %.3g GB/s",
                      sh_doctor_host(d, by_node.index), by_node.speed / 1e9, by_node.median / 1e9);
    else if (by_link.state != SH_DOCTOR_GOOD)
        sh_doctor_note(row, "%s to %s has %.3g GB/s, the median link %.3g GB/s", sh_doctor_host(d, by_link.index),
                       sh_doctor_host(d, (by_link.index + 1) % d->mesh->n_nodes), by_link.speed / 1e9,
                       by_link.median / 1e9);
    else
        sh_doctor_good(row, "%.3g GB/s between neighbour nodes, %.3g at least; %.3g us at most", by_link.median / 1e9,
                       by_link.speed / 1e9, longest * 1e6);
}

/* Collective. Two nodes have one link, not a ring of two. */
sh_rc sh_doctor_links(const struct sh_doctor *d, struct sh_doctor_row *row)
{
    int nodes = d->mesh->n_nodes, links = nodes > 2 ? nodes : nodes - 1;
    double *all = sh_calloc(3 * (size_t)nodes, sizeof *all);
    char *buffer;
    sh_rc rc = SH_OK;

    if (links == 0) {
        sh_doctor_good(row, "one node");
        free(all);
        return SH_OK;
    }
    buffer = sh_calloc(LARGE_BYTES, 1);
    SH_TRY_OUT(measure_all(d, buffer, links, all, all + nodes));
    judge(d, links, all, all + nodes, all + 2 * nodes, row);
out:
    free(buffer);
    free(all);
    return rc;
}
