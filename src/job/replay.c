#include "src/job/job.h"

#include "src/base/hash.h"
#include "src/base/mem.h"

#include <stdlib.h>

/* A rank of a kind; sorted by node, then by rank. */
struct place {
    int node, rank;
};

static int compare_places(const void *a, const void *b)
{
    const struct place *x = a, *y = b;

    return x->node != y->node ? (x->node > y->node) - (x->node < y->node) : (x->rank > y->rank) - (x->rank < y->rank);
}

/* With the ranks of a node side by side, whoever is as many places further as the largest node has is on another node,
 * unless that node has more than half of all. The third is as far again, or one place further if that is the first. */
static void close_ring(struct place *place, int n, struct sh_job_ring *ring)
{
    int most = 0, far, third;

    qsort(place, (size_t)n, sizeof *place, compare_places);
    for (int i = 0, here = 0; i < n; i++) {
        here = i > 0 && place[i].node == place[i - 1].node ? here + 1 : 1;
        most = here > most ? here : most;
    }
    far = most < n ? most : 1;
    third = 2 * far % n ? 2 * far : far + 1;
    for (int i = 0; i < n; i++) {
        ring->next[place[i].rank] = n == 1 ? -1 : place[(i + far) % n].rank;
        ring->third[place[i].rank] = place[(i + third) % n].rank;
    }
}

void sh_job_ring_make(int n, const long long *kind, const long long *node, struct sh_job_ring *ring)
{
    struct place *place = sh_calloc((size_t)n, sizeof *place);
    bool *done = sh_calloc((size_t)n, sizeof *done);

    *ring = (struct sh_job_ring){
        .n = n, .next = sh_calloc((size_t)n, sizeof *ring->next), .third = sh_calloc((size_t)n, sizeof *ring->third)};
    for (int first = 0; first < n; first++) {
        int found = 0;

        for (int i = first; i < n && !done[first]; i++)
            if (kind[i] == kind[first])
                place[found++] = (struct place){(int)node[i], i};
        for (int i = 0; i < found; i++)
            done[place[i].rank] = true;
        if (found)
            close_ring(place, found, ring);
    }
    free(place);
    free(done);
}

void sh_job_ring_of_groups(int n, int each, const int *rank, const long long *kind, const long long *node,
                           struct sh_job_ring *ring)
{
    int groups = n / each;
    long long *kinds = sh_calloc((size_t)groups, sizeof *kinds), *nodes = sh_calloc((size_t)groups, sizeof *nodes);
    struct sh_job_ring of;

    for (int i = 0; i < n; i++) {
        kinds[i / each] = (long long)(sh_mix64((uint64_t)kinds[i / each] ^ (uint64_t)kind[rank[i]]) + 1);
        nodes[i / each] = node[rank[i - i % each]];
    }
    sh_job_ring_make(groups, kinds, nodes, &of);
    *ring = (struct sh_job_ring){
        .n = n, .next = sh_calloc((size_t)n, sizeof *ring->next), .third = sh_calloc((size_t)n, sizeof *ring->third)};
    for (int i = 0; i < n; i++) {
        int next = of.next[i / each], third = of.third[i / each];

        ring->next[rank[i]] = next < 0 ? -1 : rank[next * each + i % each];
        ring->third[rank[i]] = rank[third * each + i % each];
    }
    sh_job_ring_free(&of);
    free(kinds);
    free(nodes);
}

void sh_job_ring_free(struct sh_job_ring *ring)
{
    free(ring->next);
    free(ring->third);
    *ring = (struct sh_job_ring){0};
}

static long long sum_of(const struct sh_job_ring *ring, const long long *sums, enum sh_job_round round, int rank)
{
    return sums[(int64_t)round * ring->n + rank];
}

/* Of the two that differ about some data, or of them and the third. */
static void vote(const struct sh_job_ring *ring, const long long *sums, const int voter[3], bool *blamed)
{
    int voters = voter[2] == voter[0] ? 2 : 3;
    uint64_t votes[3];
    bool outlier[3];

    for (int i = 0; i < voters; i++)
        votes[i] = (uint64_t)sum_of(ring, sums, (enum sh_job_round)(SH_JOB_OWN + i), voter[i]);
    sh_job_outliers(voters, votes, outlier);
    for (int i = 0; i < voters; i++)
        blamed[voter[i]] = blamed[voter[i]] || outlier[i];
}

static int count(int n, const bool *blamed)
{
    int found = 0;

    for (int i = 0; i < n; i++)
        found += blamed[i];
    return found;
}

bool sh_job_replay_differs(const struct sh_job_ring *ring, const long long *sums)
{
    for (int i = 0; i < ring->n; i++)
        if (sum_of(ring, sums, SH_JOB_NEXT, i) != sum_of(ring, sums, SH_JOB_OWN, ring->next[i]))
            return true;
    return false;
}

static bool is_unstable(const struct sh_job_ring *ring, const long long *sums, int rank)
{
    return sum_of(ring, sums, SH_JOB_OWN, rank) != sum_of(ring, sums, SH_JOB_OWN_AGAIN, rank) ||
           sum_of(ring, sums, SH_JOB_NEXT, rank) != sum_of(ring, sums, SH_JOB_NEXT_AGAIN, rank);
}

int sh_job_replay_blame(const struct sh_job_ring *ring, const long long *sums, bool *blamed, bool *unstable)
{
    int n = ring->n, *third = sh_calloc((size_t)n, sizeof *third); /* who computes a rank's data as the third */

    for (int i = 0; i < n; i++) {
        third[ring->third[i]] = i;
        blamed[i] = is_unstable(ring, sums, i);
    }
    *unstable = count(n, blamed) > 0;
    for (int i = 0; i < n && !*unstable; i++) {
        int own = ring->next[i];

        if (sum_of(ring, sums, SH_JOB_NEXT, i) != sum_of(ring, sums, SH_JOB_OWN, own))
            vote(ring, sums, (const int[]){own, i, third[own]}, blamed);
    }
    free(third);
    return count(n, blamed);
}
