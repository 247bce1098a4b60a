#include "src/job/job.h"

/* Source: the majority vote of Boyer and Moore, 1981: pairs of different votes cancel; what is left is the only value
 * that can be the majority. */
static uint64_t find_candidate(int n, const uint64_t *hash)
{
    uint64_t candidate = 0;
    int lead = 0;

    for (int i = 0; i < n; i++) {
        if (lead == 0)
            candidate = hash[i];
        lead += hash[i] == candidate ? 1 : -1;
    }
    return candidate;
}

/* The candidate is the majority only if there is one, so its votes are counted in a second pass. Example: A A B gives
 * one outlier, the third rank; A B has no majority, and both are outliers. */
int sh_job_outliers(int n, const uint64_t *hash, bool *outlier)
{
    uint64_t candidate = find_candidate(n, hash);
    int n_outliers = 0;

    for (int i = 0; i < n; i++) {
        outlier[i] = hash[i] != candidate;
        n_outliers += outlier[i];
    }
    if (2 * (n - n_outliers) > n)
        return n_outliers;
    for (int i = 0; i < n; i++)
        outlier[i] = true;
    return n;
}
