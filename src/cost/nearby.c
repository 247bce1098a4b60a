#include "src/cost/nearby.h"

#include <math.h>

static const double farthest = 3;

double sh_nearby_distance(const double *a, const double *b, int n)
{
    double sum = 0;

    for (int i = 0; i < n; i++)
        sum += pow(log2(a[i] / b[i]), 2);
    return sqrt(sum);
}

/* Insertion; of equally distant ones the newer wins, for points are in the order in which they were measured. */
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

/* exp(-d) / d: without the second part a measured point would be smeared with its neighbours. */
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
