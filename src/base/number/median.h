/* Numbers in order. Local. */
#ifndef SH_BASE_MEDIAN_H
#define SH_BASE_MEDIAN_H

/* Ascending. */
void sh_sort_doubles(int n, double *values);

/* Sorts them; the mean of the two in the middle. 0 of none. */
double sh_median(int n, double *values);

#endif
