/* `sherd bench tier` without a folder. */
#ifndef SH_BENCH_TIER_HOST_H
#define SH_BENCH_TIER_HOST_H

#include "src/tools/bench/bench.h"

/* Copies options->bytes per rank between its GPU and pinned host memory: in each direction, and in both at once. Prints
 * a table and the line for offload.rates on rank 0. Collective, agreed. Needs 240 MiB of the GPU and as much pinned
 * memory per rank. Errors: SH_E_USAGE: there is no GPU, or ranks share one; SH_E_MEMORY. */
sh_rc sh_bench_tier_host(const struct sh_config *cfg, const struct sh_bench_options *options);

#endif
