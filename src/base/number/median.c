#include "src/base/number/median.h"

#include <stdlib.h>

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

void sh_sort_doubles(int n, double *values)
{
    qsort(values, (size_t)n, sizeof *values, ascending);
}

double sh_median(int n, double *values)
{
    sh_sort_doubles(n, values);
    return n ? (values[(n - 1) / 2] + values[n / 2]) / 2 : 0;
}
