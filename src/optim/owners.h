/* Who makes which matrices of a unit orthogonal. Whole matrices go to one rank; those of a rank follow each other in the
 * unit, and ranks have theirs in their order, so that one exchange by cuts brings them. Pure, local; the same on all
 * ranks. */
#ifndef SH_OPTIM_OWNERS_H
#define SH_OPTIM_OWNERS_H

#include <stdint.h>

/* Place n matrices on ranks so that the largest load is as small as it can be; loads are added to.
 *   work   in     [n] in the order of the unit
 *   load   inout  [ranks]
 *   place  out    [n], ascending */
void sh_owners_place(const double *work, int n, int ranks, double *load, int *place);

/* How many of the ranks own matrices, if `most` may; 0: all may. */
int sh_owners_of(int ranks, int most);

/* How many of so many replicas should share the work of groups of `ranks`: a divisor of their number. With all of them at most
 * `most` ranks own matrices. */
int sh_owners_sharers(int ranks, int replicas, int64_t most);

/* How many units to treat at once so that the busiest rank has at most a few percent more than the mean, or the number
 * with which it has least.
 *   work   [sum of n] unit after unit; n [units] */
int sh_owners_wave(const double *work, const int *n, int units, int ranks);

#endif
