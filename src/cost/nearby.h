/* The correction of a formula by measured points near by: the product of (measured / formula)^w over the four nearest,
 * where w falls with the distance and the w sum to 1; at a measured point it is that point's alone. Local, pure. */
#ifndef SH_COST_NEARBY_H
#define SH_COST_NEARBY_H

enum { SH_NEARBY = 4 };

struct sh_nearby {
    int n;
    double distance[SH_NEARBY], ratio[SH_NEARBY]; /* the nearest first */
};

/* Euclidean in log2 of the dimensions: 1 is twice as large in one of them. */
double sh_nearby_distance(const double *a, const double *b, int n);

/* ratio: measured / formula. Points farther than 3 say nothing. */
void sh_nearby_add(struct sh_nearby *near, double distance, double ratio);
double sh_nearby_ratio(const struct sh_nearby *near); /* 1 without points */

#endif
