/* Correction of a formula by nearby measured points: the product of (measured / formula)^w over the four nearest, where
 * w decreases with the distance and the w sum to 1. At a measured point, that point alone decides. Local, pure. */
#ifndef SH_COST_NEARBY_H
#define SH_COST_NEARBY_H

enum { SH_NEARBY = 4 };

struct sh_nearby {
    int n;
    double distance[SH_NEARBY], ratio[SH_NEARBY]; /* nearest first */
};

/* The Euclidean distance in log2 of the dimensions: 1 means twice as large in one of them. */
double sh_nearby_distance(const double *a, const double *b, int n);

/* ratio: measured / formula. Points farther away than 3 are ignored. */
void sh_nearby_add(struct sh_nearby *near, double distance, double ratio);
double sh_nearby_ratio(const struct sh_nearby *near); /* 1 without points */

#endif
