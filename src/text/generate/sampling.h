/* Choose the next token from logits. The settings have the names of transformers and apply in its order: temperature,
 * then top_k, top_p and min_p, each to what the one before left. Local, no state. */
#ifndef SH_GENERATE_SAMPLING_H
#define SH_GENERATE_SAMPLING_H

#include <stdint.h>

struct sh_sampling {
    double temperature; /* 0: the likeliest token, the first among equals; the fields below are then ignored */
    int top_k;          /* keep this many of the likeliest, and those equal to the last of them; 0: all */
    double top_p;       /* keep the likeliest whose probabilities sum to at least this; 1: all */
    double min_p;       /* keep those with at least this share of the likeliest one's probability; 0: all */
    uint64_t seed;
};

/* Choose a token by logits [n]. Random numbers are a function of (seed, text, position), so a text gets the same tokens
 * whatever else is in the batch. Cost: O(n); with top_p and no top_k O(n log n). */
uint32_t sh_sample(const struct sh_sampling *s, const float *logits, int n, uint64_t text, uint64_t position);

#endif
