#include "src/optim/owners.h"

#include "src/base/mem.h"

#include <math.h>
#include <stdlib.h>

static const double balanced = 1.06; /* the busiest rank's share of the mean that is good enough */

/* best[k]: the least largest load if the first k matrices lie on the ranks so far; from[r][k]: where the last of these
 * ranks begins then. */
static void add_rank(const double *work, int n, double load, double *best, int *from)
{
    for (int k = n; k >= 0; k--) {
        double sum = load;

        from[k] = k;
        best[k] = fmax(best[k], load);
        for (int j = k - 1; j >= 0; j--) {
            double most;

            sum += work[j];
            most = fmax(best[j], sum);
            if (most < best[k]) {
                best[k] = most;
                from[k] = j;
            }
        }
    }
}

/* A dynamic program over ranks and first matrices. A rank that need not have any has none. */
void sh_owners_place(const double *work, int n, int ranks, double *load, int *place)
{
    int *from = sh_calloc((size_t)ranks * (size_t)(n + 1), sizeof *from);
    double *best = sh_calloc((size_t)n + 1, sizeof *best);
    int k = n;

    for (int i = 1; i <= n; i++)
        best[i] = INFINITY;
    for (int r = 0; r < ranks; r++)
        add_rank(work, n, load[r], best, from + r * (n + 1));
    for (int r = ranks - 1; r >= 0; r--)
        for (int begin = from[r * (n + 1) + k]; k > begin; k--) {
            place[k - 1] = r;
            load[r] += work[k - 1];
        }
    free(from);
    free(best);
}

int sh_owners_of(int ranks, int most)
{
    return most && most < ranks ? most : ranks;
}

int sh_owners_sharers(int ranks, int replicas, int64_t most)
{
    int n = replicas;

    while (n > 1 && (replicas % n || (int64_t)ranks * n > most))
        n--;
    return n;
}

static double largest(const double *load, int ranks)
{
    double most = 0;

    for (int r = 0; r < ranks; r++)
        most = fmax(most, load[r]);
    return most;
}

/* The time of all waves of `wave` units, in units of work: each waits for its busiest rank. */
static double time_of(const double *work, const int *n, int units, int ranks, int wave)
{
    double *load = sh_calloc((size_t)ranks, sizeof *load), time = 0;
    int at = 0;

    for (int u = 0; u < units; u++) {
        int *place = sh_calloc((size_t)n[u] + 1, sizeof *place);

        if (u % wave == 0) {
            time += largest(load, ranks);
            for (int r = 0; r < ranks; r++)
                load[r] = 0;
        }
        sh_owners_place(work + at, n[u], ranks, load, place);
        at += n[u];
        free(place);
    }
    time += largest(load, ranks);
    free(load);
    return time;
}

int sh_owners_wave(const double *work, const int *n, int units, int ranks)
{
    double all = 0, least = INFINITY;
    int best = 1;

    for (int i = 0, k = 0; i < units; k += n[i++])
        for (int j = 0; j < n[i]; j++)
            all += work[k + j];
    for (int wave = 1; units > 0 && least * ranks > balanced * all; wave = 2 * wave) {
        double time = time_of(work, n, units, ranks, wave);

        if (time < least) {
            least = time;
            best = wave;
        }
        if (wave >= units)
            break;
    }
    return best < units || units == 0 ? best : units;
}
