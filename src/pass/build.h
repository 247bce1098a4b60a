/* From a request to the program that runs: the passes in the order of SH_PASS_LIST. Local, pure. */
#ifndef SH_PASS_BUILD_H
#define SH_PASS_BUILD_H

#include "src/model/model.h"
#include "src/pass/pass.h"

/* What lives in a tier below the device: in the host's memory if the device has its own, else in a file. */
struct sh_offload {
    int optimizer_16;    /* sixteenths of the elements whose remainder and optimizer states lie there; 0: none */
    bool gradients;      /* the shards of gradients: there between their uses */
    bool parameters;     /* chunks that are gathered, on a device with its own memory; set options.fetched with it */
    int buffers;         /* slices on the device at once, at least 2: one arrives while one is in use */
    bool carry;          /* the update goes into the next step's first micro-step, ahead of each unit's first use */
    bool overlap;        /* carry is set where an update moves states or matrices: sh_request_carry() */
    int act_blocks;      /* activations of that many first blocks lie there between their forward and backward */
    int64_t slice_elems; /* a multiple of SH_SLICE_MULTIPLE; 0: a sixteenth of the elements there, at most 4 Mi */
};

/* A unit that is cut and replicated over its own groups instead of the mesh's. The two groups together are all ranks of
 * the mesh. */
struct sh_unit_groups {
    const char *unit; /* NULL: the end of a list */
    sh_group shard, replicate;
};

/* clang-format off */
struct sh_build {
    struct sh_model model;
    struct sh_model_batch batch;  /* out is set by the request below */
    enum sh_dtype act;            /* compute type */
    struct sh_pass_options options;
    struct sh_recompute recompute;
    int64_t tile_rows;            /* rows of a tile of blocks that recompute all their activations; 0: no tiles (tile.c) */
    int tensor_tiles;             /* tiles in which ranks that share matrices exchange rows; 0, 1: all at once (stripes.c) */
    int64_t row_block;            /* rows that a sum over rows adds up in one piece; 0: SH_ROW_BLOCK (kernels/rows.h) */
    bool fit;                     /* sh_pass_fit() chooses recompute */
    bool fit_tiles;               /* and whether tile_rows is 0 or SH_ROW_BLOCK */
    const char *const *frozen;    /* names of units that are not trained, then NULL; NULL: none */
    const struct sh_unit_groups *groups; /* of units that have their own; NULL: none */
    bool packed;                  /* the weights of frozen blocks are kept in four bits an element */
    bool widen;                   /* sh_pass_widen() may choose a larger batch.chunk_rows */
    bool evaluate;                /* an EVAL section, along with the training sections or alone */
    bool logits;                  /* a LOGITS section (not together with training); with batch.cache instead PREFILL, of
                                     batch.seq tokens per sequence, and DECODE */
    bool score;                   /* a SCORE section, alone */
    const struct sh_kernel_table *kernels;
    bool snapshot_on_host;        /* the device has its own memory: snapshots lie in the host's, which is a separate
                                     tier */
    struct sh_offload offload;
    bool fit_homes;               /* sh_budget_fit() chooses what lives below the device */
    int threads;                  /* that kernels will run with; their scratch depends on it */
    int64_t limit_bytes;          /* of the arena; 0: none */
    int64_t file_limit_bytes;     /* of the file; 0: none */
    int64_t host_limit_bytes;     /* of host memory pinned for a device; 0: none */
};
/* clang-format on */

/* If b->fit: set b->recompute to the least recomputation whose arena is at most limit_bytes; if there is none, to the
 * one with the smallest arena, which sh_pass_build() then refuses. Searches a ladder of levels (fit.c). With b->fit_tiles,
 * b->tile_rows is set too, if that saves recomputing whole blocks, or makes it fit at all.
 *   level  in: the first that may be chosen, 0 at first; out: the one chosen. Ranks of a stage whose answers differ
 *          all ask again from the highest of them.
 * Cost: about log2(blocks) + 2 plans, twice that with tiles; before a refusal about three times that. Errors: those of the passes. */
sh_rc sh_pass_fit(struct sh_build *b, int *level);

/* The recomputation at a level of that ladder: 0 is none, `blocks` selective in all, 2 * blocks full in all. */
struct sh_recompute sh_pass_fit_level(int blocks, int level);

/* What lives in a lower tier, as the end of a list: ", 5/16 of the optimizer states in a file", ", optimizer states,
 * gradients in host memory", ", activations of 10 blocks in a file"; "" for nothing. */
enum { SH_HOMES_TEXT = 120 };
const char *sh_pass_homes_text(const struct sh_build *b, char text[SH_HOMES_TEXT]);

/* b->recompute in words; of stages that each fit a budget, that they do. */
const char *sh_pass_recompute_text(const struct sh_build *b, char text[SH_RECOMPUTE_TEXT]);

/* If b->widen, after sh_pass_fit(): set b->batch.chunk_rows to 8192 or 4096 if there are that many rows and the arena
 * still takes at most limit_bytes. Each chunk reads and writes the gradient of the output matrix once more.
 *   most  in: the most that may be chosen; out: what was chosen. Ranks whose answers differ all ask again with the
 *         least of them. Without a head, on stages before the last, nothing is chosen, and *most stays.
 * Cost: up to two plans. Errors: those of the passes. */
sh_rc sh_pass_widen(struct sh_build *b, int64_t *most);

/* The pair that a fused kind is; false: it is none. */
bool sh_fuse_pair(enum sh_op_kind fused, enum sh_op_kind *first, enum sh_op_kind *second);

/* What would make the arena smaller than `arena_bytes`, and how small, worded to continue a sentence; returns text.
 * Cost: up to four plans. */
enum { SH_CURES_TEXT = 512 };
const char *sh_pass_cures(const struct sh_build *b, int64_t arena_bytes, char text[SH_CURES_TEXT]);

/* Run all passes. Errors: SH_E_MEMORY over a limit (*out is the program even then, for the table); SH_E_BUG from the
 * checks. */
sh_rc sh_pass_build(const struct sh_build *b, struct sh_program **out);

/* Run all passes before the check, whatever the limits: for a plan that is compared with others and never run. Errors:
 * those of the passes. */
sh_rc sh_pass_weigh(const struct sh_build *b, struct sh_program **out);

/* Whether a plan is within all limits of b. */
bool sh_pass_fits(const struct sh_build *b, const struct sh_program *p);

/* Run the passes up to and including `after` (NULL: all), whatever the limit: before shard the program is one
 * micro-step, without sections. Errors: SH_E_USAGE if there is no such pass; those of the passes. */
sh_rc sh_pass_build_until(const struct sh_build *b, const char *after, struct sh_program **out);

/* Make a micro-step on logical tensors, the input of shard; `training`: with the passes that only training has. The
 * caller destroys *out whatever is returned. Errors: SH_E_BUG. */
sh_rc sh_pass_micro_step(const struct sh_build *b, bool training, struct sh_program **out);

#endif
