/* Measurements of this machine, made with Sherd's own parts: `sherd bench KIND`, one file per kind. */
#ifndef SH_BENCH_BENCH_H
#define SH_BENCH_BENCH_H

#include "src/config/config.h"

/* Size of a collective's operand. */
#define SH_BENCH_LEAST_BYTES (4ll << 10)
#define SH_BENCH_MOST_BYTES (4ll << 30)
/* Size of a scratch file. */
#define SH_BENCH_LEAST_FILE (16ll << 20)
#define SH_BENCH_MOST_FILE (1ll << 50)

struct sh_bench_options {
    const char *folder;      /* files are written to a new folder in it, deleted at the end; NULL: no folder (tier) */
    int repeat;              /* rounds; rows that are compared are all measured in each round */
    int64_t max_bytes;       /* comm: the largest operand; 0: 1 GiB, or what fits the memory */
    int64_t bytes;           /* tier: of a rank's file, or of each transfer between a GPU and its host */
    int64_t seconds;         /* tier: the longest time spent on writing the file before it is measured */
    const char *json;        /* (optional) file for the results */
    const char *machine;     /* (optional) machine file to which the results are added as points */
    const char *compare;     /* (optional) results of an earlier run, to compare with */
    const char *const *keys; /* given on the command line, "section.key=value"; lent */
    int n_keys;
};

/* Checkpoints: a state of the configured model's size, with arbitrary numbers, is saved from all ranks by each I/O
 * method, loaded with a cold page cache, and copied; alternating with plain programs that move the same bytes. Prints a
 * table on rank 0. Collective, agreed. Needs about three times the file's size in the folder. Memory: what `sherd plan`
 * says for checkpoint.async_mode=async, plus the rank's share of the file. */
sh_rc sh_bench_io(const struct sh_config *cfg, const struct sh_bench_options *options);

/* Matrix products: each distinct shape of a training step of the configured model, alternating with a large square
 * product of the same type, which stands for the machine's peak. Prints a table on rank 0. Collective, agreed.
 * Memory: what `sherd plan` says, plus that of rate.h. */
sh_rc sh_bench_gemm(const struct sh_config *cfg, const struct sh_bench_options *options);

/* A training step, measured by training on made-up tokens: untraced steps, then as many with a trace. Each operation of
 * the trace is compared with its floor: the longer of its arithmetic at the measured rate of products and its bytes at
 * the measured rate of copies. Prints a table of rank 0's own operations on rank 0. Collective, agreed. Memory: as
 * above. */
sh_rc sh_bench_step(const struct sh_config *cfg, const struct sh_bench_options *options);

/* Collectives: each kind on each axis of the configured mesh, in sizes of 4 KiB to options->max_bytes, through the
 * channels that training uses and in the same kind of memory, alternating with MPI's own call and a copy of as many
 * bytes. Prints a table on rank 0. Collective, agreed. Errors: SH_E_USAGE: more bytes than fit half of the memory. */
sh_rc sh_bench_comm(const struct sh_config *cfg, const struct sh_bench_options *options);

/* Scratch files: a file of options->bytes per rank in options->folder, through the engine that training moves tensors
 * with. The file is written twice, or for options->seconds, because disks are faster until their cache is full; then
 * parts of it are written, read, and both alternately, with and without checksums. Prints a table and the line for
 * offload.rates on rank 0; leaves nothing in the folder. Collective, agreed; ignores the configuration. Needs 120 MiB
 * of memory per rank, and up to 4 GiB in the folder in addition to the file. Errors: as for sh_tier_check
 * (src/tier/tier.h), except that a network file system is accepted. Without a folder: sh_bench_tier_host(). */
sh_rc sh_bench_tier(const struct sh_config *cfg, const struct sh_bench_options *options);

#endif
