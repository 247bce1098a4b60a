#include "src/fault/fault.h"

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

/* The candidate is only the majority if there is one, so its votes are counted in a second pass. Example: A A B gives
 * one odd rank, the third; A B has no majority, and both are odd. */
int sh_fault_odd(int n, const uint64_t *hash, bool *odd)
{
    uint64_t candidate = find_candidate(n, hash);
    int n_odd = 0;

    for (int i = 0; i < n; i++) {
        odd[i] = hash[i] != candidate;
        n_odd += odd[i];
    }
    if (2 * (n - n_odd) > n)
        return n_odd;
    for (int i = 0; i < n; i++)
        odd[i] = true;
    return n;
}
