/* Corrections of a formula from nearby measurements. A point gives measured / formula at its dimensions; a call takes
 * the mean of the logarithms of the nearest points, weighted by distance. Distances are in logarithms to base 2: twice
 * as many rows are 1 away, twice as many rows and columns sqrt(2). Example: points with ratios 1.2 at distance 0.5 and
 * 1.0 at distance 2 have weights 1.21 and 0.07, and the ratio of the call is 1.19. */
#include "src/cost/nearby.h"

#include <math.h>

/* Eight times the size in one dimension. Points farther away say nothing about this call, and the formula stands
 * alone. */
static const double farthest = 3;

/* All dimensions have equal weight, whatever their size. */
double sh_nearby_distance(const double *a, const double *b, int n)
{
    double sum = 0;

    for (int i = 0; i < n; i++)
        sum += pow(log2(a[i] / b[i]), 2);
    return sqrt(sum);
}

/* Insertion sort. Among equally distant points the newer wins: points are in the order in which they were measured. */
void sh_nearby_add(struct sh_nearby *near, double distance, double ratio)
{
    int at = near->n;

    if (distance > farthest)
        return;
    while (at > 0 && near->distance[at - 1] >= distance)
        at--;
    if (at == SH_NEARBY)
        return;
    if (near->n < SH_NEARBY)
        near->n++;
    for (int i = near->n - 1; i > at; i--) {
        near->distance[i] = near->distance[i - 1];
        near->ratio[i] = near->ratio[i - 1];
    }
    near->distance[at] = distance;
    near->ratio[at] = ratio;
}

/* Weights are exp(-d) / d: without the division a measured point would be smeared with its neighbours. */
double sh_nearby_ratio(const struct sh_nearby *near)
{
    double sum = 0, logs = 0;

    for (int i = 0; i < near->n; i++) {
        double w = exp(-near->distance[i]) / fmax(near->distance[i], 1e-6);

        sum += w;
        logs += w * log(near->ratio[i]);
    }
    return near->n ? exp(logs / sum) : 1;
}
