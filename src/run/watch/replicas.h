/* Ranks that hold the same shard hold the same bits, because every update computes them from the same numbers. A
 * difference means that memory or a processor fails silently. */
#ifndef SH_WATCH_REPLICAS_H
#define SH_WATCH_REPLICAS_H

#include "src/base/err.h"

struct sh_run;

/* Compare parameters (in bfloat16 also the remainder) and optimizer state over the replicate axis, after r->step steps.
 * Does nothing if there is only one replica. Collective, agreed.
 * Errors: SH_E_REPLICA, naming the ranks that differ from the majority of their replicas (of two: both), and what
 * differs.
 * Cost:   each rank reads what it holds once, 12 bytes per parameter of its shard, at memory speed; the floor is
 *         half the time of an update, which moves 28 bytes. Measured on two busy cores: 1.3 times an update, or 4 % of
 *         a micro-step of 1,024 tokens; so every 100 steps it costs 0.04 % or less. Sent: 8 bytes to each replica.
 * Source: the comparison of data-parallel replicas in Megatron-LM; here it covers the optimizer state as well. */
sh_rc sh_replicas_compare(struct sh_run *r);

#endif
