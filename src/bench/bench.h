/* Measurements of this machine by the parts of Sherd themselves: `sherd bench KIND`, one file a kind. */
#ifndef SH_BENCH_BENCH_H
#define SH_BENCH_BENCH_H

#include "src/config/config.h"

/* Of an operand of a collective. */
#define SH_BENCH_LEAST_BYTES (4ll << 10)
#define SH_BENCH_MOST_BYTES (4ll << 30)
/* Of a scratch file. */
#define SH_BENCH_LEAST_FILE (16ll << 20)
#define SH_BENCH_MOST_FILE (1ll << 50)

struct sh_bench_options {
    const char *folder;  /* where files are written, in a new folder that is deleted at the end; NULL: of tier, none */
    int repeat;          /* rounds; what is compared is measured in each of them */
    int64_t max_bytes;   /* comm: the largest operand; 0: 1 GiB, or what the memory allows */
    int64_t bytes;       /* tier: of a rank's file, or what moves each way between a GPU and its host */
    int64_t seconds;     /* tier: the most that is spent on writing it before it is measured */
    const char *json;    /* (optional) file for the results */
    const char *machine; /* (optional) machine file that the results are written into as points */
    const char *compare; /* (optional) results of an earlier run, to be set against these */
};

/* Checkpoints: the state of the configured model, with any numbers, is saved from all ranks by each I/O method, loaded
 * with a cold page cache, and copied; in turn with plain programs that move the same bytes. Prints a table on rank 0.
 * Collective, agreed. Needs about three times the file's size in the folder, and of memory what `sherd plan` says for
 * checkpoint.async_mode=async and once more the rank's share of the file. */
sh_rc sh_bench_io(const struct sh_config *cfg, const struct sh_bench_options *options);

/* Matrix products: each distinct shape of a training step of the configured model, in turn with a large square product
 * of the same type, which is taken for the machine's peak. Prints a table on rank 0. Collective, agreed.
 * Memory: what `sherd plan` says, and that of rate.h. */
sh_rc sh_bench_gemm(const struct sh_config *cfg, const struct sh_bench_options *options);

/* A training step, by training itself on made-up tokens: steps as they are, then as many with a trace, from which each
 * operation is set against its floor: the longer of its operations at the measured rate of products and its bytes at
 * that of copies. Prints a table on rank 0, of its own operations. Collective, agreed. Memory: as above. */
sh_rc sh_bench_step(const struct sh_config *cfg, const struct sh_bench_options *options);

/* Collectives: each kind on each axis of the configured mesh, in sizes of 4 KiB to options->max_bytes, by the channels
 * that training uses and in memory of the same sort, in turn with MPI's own call and a copy of as many bytes. Prints a
 * table on rank 0. Collective, agreed. Errors: SH_E_USAGE: more bytes than half of the memory has room for. */
sh_rc sh_bench_comm(const struct sh_config *cfg, const struct sh_bench_options *options);

/* Scratch files: a file of options->bytes a rank in options->folder, by the engine that training moves tensors with. It
 * is written twice, or for options->seconds, for disks are faster before their cache is full; then parts of it are
 * written, read, and both in turn, with sums and without. Prints a table and the line for offload.rates on rank 0;
 * leaves nothing in the folder. Collective, agreed; the configuration is not looked at. Needs 120 MiB of memory a rank,
 * and up to 4 GiB in the folder beside the file. Errors: as sh_tier_check (src/tier/tier.h), but on a network it goes
 * on. Without a folder: sh_bench_tier_host(). */
sh_rc sh_bench_tier(const struct sh_config *cfg, const struct sh_bench_options *options);

#endif
