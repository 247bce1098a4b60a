/* The next token from logits, by the words of transformers, in its order: temperature, then top_k, top_p, min_p, each among
 * what the one before left. Local, no state. */
#ifndef SH_RUN_SAMPLING_H
#define SH_RUN_SAMPLING_H

#include <stdint.h>

struct sh_sampling {
    double temperature; /* 0: the likeliest token, of equal ones the first; what follows then says nothing */
    int top_k;          /* as many of the likeliest, and those equal to the last of them; 0: all */
    double top_p;       /* the likeliest whose probabilities sum to this at least; 1: all */
    double min_p;       /* at least this part of the likeliest one's probability; 0: all */
    uint64_t seed;
};

/* The token of logits [n]. Random numbers are a function of (seed, text, position), so that the same text has the same
 * tokens whoever else is in the batch. Cost: O(n); with top_p and no top_k O(n log n). */
uint32_t sh_sample(const struct sh_sampling *s, const float *logits, int n, uint64_t text, uint64_t position);

#endif
