/* From what is asked for to the program that runs: the passes in the order of SH_PASS_LIST. Local, pure. */
#ifndef SH_PASS_BUILD_H
#define SH_PASS_BUILD_H

#include "src/model/model.h"
#include "src/pass/pass.h"

/* What has its home in a lower tier than the device: in the host's memory where the device has its own, else in a file. */
struct sh_offload {
    int optimizer_16;    /* sixteenths of the elements whose remainder and optimizer states lie there; 0: none */
    bool gradients;      /* the shards of gradients: there between their uses */
    bool parameters;     /* chunks that are gathered, of a device with memory of its own; options.fetched with it */
    int buffers;         /* slices on the device at once, at least 2: one arrives while one is in use */
    bool carry;          /* the update goes into the next step's first micro-step, ahead of each unit's first use */
    bool overlap;        /* of a budget: carry, where it moves states */
    int act_blocks;      /* of the first so many blocks activations lie there between their forward and backward */
    int64_t slice_elems; /* whole SH_SLICE_MULTIPLE; 0: a sixteenth of them, at most 4 Mi */
};

/* A unit that is cut and replicated over groups of its own instead of the mesh's. Both together are all ranks of the
 * mesh. */
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
    bool fit;                     /* sh_pass_fit() chooses it */
    const char *const *frozen;    /* names of units that are not trained, then NULL; NULL: none */
    const struct sh_unit_groups *groups; /* of units that have their own; NULL: none */
    bool packed;                  /* the weights of frozen blocks are kept in four bits an element */
    bool widen;                   /* sh_pass_widen() may choose a larger batch.chunk_rows */
    bool evaluate;                /* an EVAL section beside the training sections, or alone */
    bool logits;                  /* a LOGITS section (not together with training); with batch.cache PREFILL, of batch.seq
                                     tokens a sequence, and DECODE instead */
    bool score;                   /* a SCORE section, alone */
    const struct sh_kernel_table *kernels;
    bool snapshot_on_host;        /* the device has memory of its own: snapshots lie in the host's, a tier of its own */
    struct sh_offload offload;
    bool fit_homes;               /* sh_budget_fit() chooses what lives below the device */
    int threads;                  /* kernels will run with; their scratch depends on it */
    int64_t limit_bytes;          /* of the arena; 0: none */
    int64_t file_limit_bytes;     /* of the file; 0: none */
    int64_t host_limit_bytes;     /* of what is pinned beside a device; 0: none */
};
/* clang-format on */

/* Where b->fit: set b->recompute to the least recomputation whose arena is at most limit_bytes; where there is none, to the
 * one with the smallest arena, which sh_pass_build() then refuses. By a ladder (fit.c).
 *   level  in: the first that may be chosen, 0 at first; out: the one chosen. Ranks whose answers differ ask again from the
 *          highest of them.
 * Cost: about log2(blocks) + 2 plans; before a refusal about three times that. Errors: those of the passes. */
sh_rc sh_pass_fit(struct sh_build *b, int *level);

/* The recomputation of a level of that ladder: 0 is none, `blocks` selective in all, 2 * blocks full in all. */
struct sh_recompute sh_pass_fit_level(int blocks, int level);

/* What has its home in a lower tier, as the end of a list: ", 5/16 of the optimizer states in a file", ", optimizer states,
 * gradients in host memory", ", activations of 10 blocks in a file"; "" for nothing. */
enum { SH_HOMES_TEXT = 120 };
const char *sh_pass_homes_text(const struct sh_build *b, char text[SH_HOMES_TEXT]);

/* Where b->widen, after sh_pass_fit(): set b->batch.chunk_rows to 8192 or 4096 where there are as many rows and the arena
 * still takes at most limit_bytes. Each chunk reads and writes the gradient of the output matrix once more.
 *   most  in: no more than that; out: what was chosen. Ranks whose answers differ ask again with the least of them.
 * Cost: up to two plans. Errors: those of the passes. */
sh_rc sh_pass_widen(struct sh_build *b, int64_t *most);

/* What would make the arena smaller than `arena_bytes`, and how small, in words that go on a sentence; returns text.
 * Cost: up to four plans. */
enum { SH_CURES_TEXT = 512 };
const char *sh_pass_cures(const struct sh_build *b, int64_t arena_bytes, char text[SH_CURES_TEXT]);

/* All passes. Errors: SH_E_MEMORY over a limit (*out is the program all the same, for the table); SH_E_BUG from the checks. */
sh_rc sh_pass_build(const struct sh_build *b, struct sh_program **out);

/* All passes before the check, whatever the limits: a plan that is compared with others and does not run. Errors: those of
 * the passes. */
sh_rc sh_pass_weigh(const struct sh_build *b, struct sh_program **out);

/* Whether a plan is within all limits of b. */
bool sh_pass_fits(const struct sh_build *b, const struct sh_program *p);

/* As far as the pass `after` (NULL: all), whatever the limit: before shard the program is one micro-step, without sections.
 * Errors: SH_E_USAGE for a pass that is not there; those of the passes. */
sh_rc sh_pass_build_until(const struct sh_build *b, const char *after, struct sh_program **out);

/* A micro-step on logical tensors, as shard takes it; `training`: with the passes that are for those only. *out is to be
 * destroyed whatever comes back. Errors: SH_E_BUG. */
sh_rc sh_pass_micro_step(const struct sh_build *b, bool training, struct sh_program **out);

#endif
