/* A plan within its limit of memory; over it, what takes the memory, and what would make the plan smaller, each with what
 * the arena would be: found by planning it. What would change nothing, or is there already, is not named. */
#include "src/base/str.h"
#include "src/pass/build.h"

#include <stdio.h>
#include <string.h>

/* Each makes a trial of a build; false where it does not apply. */
static bool less_kept(struct sh_build *b)
{
    b->recompute = (struct sh_recompute){.full = SH_ALL_BLOCKS};
    return b->options.training && !b->fit;
}

/* The same step in more micro-steps: at least two, since only then must gradients be kept. */
static bool one_sequence(struct sh_build *b)
{
    bool applies = b->batch.batch > 1 && !b->logits && !b->options.reproducible;

    if (b->options.training)
        b->options.micro_steps = b->options.micro_steps > 1 ? b->options.micro_steps : 2;
    b->batch.batch = 1;
    return applies;
}

/* Numbers that fit. */
static void sharded_over(struct sh_mesh_shape *mesh, int ranks, int inner, int rank)
{
    struct sh_mesh_request all = {.shard = SH_MESH_ALL, .replicate = SH_MESH_AUTO, .inner = inner};
    sh_rc rc = sh_mesh_shape_make(&all, ranks, rank, mesh);

    (void)rc;
}

/* Everything sharded over all ranks; a segment is given up, since it needs whole groups in a node. */
static bool all_sharded(struct sh_build *b)
{
    struct sh_mesh_shape *mesh = &b->options.mesh;
    bool keeps = b->options.strategy.params_resident || b->options.strategy.keep_after_forward;

    sharded_over(mesh, sh_mesh_ranks(mesh), 1, 0);
    b->options.strategy = (struct sh_strategy){.sync_last_only = b->options.reproducible};
    b->options.segment_ranks = b->options.segment_rank = 0;
    return keeps && sh_mesh_ranks(mesh) > 1;
}

/* Only where the states can go there. */
static bool states_in_a_file(struct sh_build *b)
{
    bool applies = b->options.training && b->offload.optimizer_16 < 16 && !b->snapshot_on_host && !b->fit_homes;

    b->offload.optimizer_16 = 16;
    b->offload.buffers = b->offload.buffers ? b->offload.buffers : 3;
    return applies;
}

/* The same of a device that has a host beside it. */
static bool states_on_the_host(struct sh_build *b)
{
    bool applies = b->options.training && b->offload.optimizer_16 < 16 && b->snapshot_on_host;

    b->offload.optimizer_16 = 16;
    b->offload.buffers = b->offload.buffers ? b->offload.buffers : 3;
    return applies;
}

/* Blocks whose forward comes long before their backward. */
static bool activations_on_the_host(struct sh_build *b)
{
    bool applies = b->options.training && b->snapshot_on_host && !b->fit_homes &&
                   b->offload.act_blocks < b->model.n_layers - 2;

    b->offload.act_blocks = b->model.n_layers;
    return applies;
}

/* What goes to a file once the states are there. */
static bool gradients_in_a_file(struct sh_build *b)
{
    bool applies = b->options.training && b->offload.optimizer_16 == 16 && !b->offload.gradients &&
                   !b->snapshot_on_host && !b->fit_homes;

    b->offload.gradients = true;
    return applies;
}

/* Over an axis that is one rank only, as no_shard's, more of them change nothing. */
static bool twice_the_ranks(struct sh_build *b)
{
    struct sh_mesh_shape *mesh = &b->options.mesh;
    bool applies = !b->options.segment_ranks && sh_group_size(mesh, mesh->replicate) == 1 && b->options.training &&
                   !b->options.strategy.params_resident;

    if (applies)
        sharded_over(mesh, 2 * sh_mesh_ranks(mesh), sh_group_size(mesh, mesh->inner), mesh->rank);
    return applies;
}

static const struct {
    bool (*make)(struct sh_build *b);
    const char *text;
    bool moves; /* something, in each step */
} cures[] = {
    {less_kept, "activation_checkpoint.mode=memory_budget", false},
    {one_sequence, "training.local_batch_size=1", false},
    {all_sharded, "parallelism.sharding_strategy=full_shard", false},
    {twice_the_ranks, "twice the ranks", false},
    {states_in_a_file, "offload.optimizer=nvme", true},
    {gradients_in_a_file, "offload.gradients=nvme", true},
    {states_on_the_host, "offload.optimizer=cpu", true},
    {activations_on_the_host, "offload.activations=cpu", true},
};

static int64_t arena_of(struct sh_build *trial)
{
    struct sh_program *p = NULL;
    int64_t bytes;

    if (sh_pass_build_until(trial, NULL, &p) != SH_OK)
        return INT64_MAX;
    bytes = p->arena_bytes;
    sh_program_destroy(p);
    return bytes;
}

/* Plans each cure that applies and keeps those with a smaller arena. */
const char *sh_pass_cures(const struct sh_build *b, int64_t arena_bytes, char text[SH_CURES_TEXT])
{
    char bytes[SH_STR_SHORT];
    int n = 0;

    for (size_t i = 0; i < sizeof cures / sizeof *cures; i++) {
        struct sh_build trial = *b;
        int64_t less = cures[i].make(&trial) ? arena_of(&trial) : INT64_MAX;
        /* A disk, or the host's memory, under each step is no price for a few bytes. */
        int64_t gain = cures[i].moves ? arena_bytes / 16 : 0;

        if (less < arena_bytes - gain)
            n += snprintf(text + n, (size_t)(SH_CURES_TEXT - n), "%s%s (%s%s)", n ? ", " : "; smaller with ",
                          cures[i].text, cures[i].make == less_kept ? "at least " : "", sh_str_bytes(less, bytes));
    }
    if (!n)
        snprintf(text, SH_CURES_TEXT, "; it needs more memory, or a smaller model or training.seq_len");
    return text;
}

/* Kinds of memory that take 1 % of the arena or more: smaller ones would not help a user who has to save. */
static const char *what_takes_it(const struct sh_program *p, char *text, size_t size)
{
    int64_t bytes[SH_MEM_KINDS];
    char one[SH_STR_SHORT];
    size_t n = 0;

    text[0] = '\0';
    sh_pass_memory(p, bytes);
    for (int i = 0; i < SH_MEM_KINDS; i++)
        if (bytes[i] * 100 >= p->arena_bytes)
            n += (size_t)snprintf(text + n, size - n, "%s%s %s", n ? ", " : "", sh_program_mem_name(i),
                                  sh_str_bytes(bytes[i], one));
    return text;
}

const char *sh_pass_homes_text(const struct sh_build *b, char text[SH_HOMES_TEXT])
{
    int away = b->offload.optimizer_16;
    char states[40] = "";

    if (away == 16)
        snprintf(states, sizeof states, ", optimizer states");
    else if (away)
        snprintf(states, sizeof states, ", %d/16 of the optimizer states", away);
    snprintf(text, SH_HOMES_TEXT, "%s%s%s", states, b->offload.gradients ? ", gradients" : "",
             b->offload.parameters ? ", parameters" : "");
    if (text[0])
        snprintf(text + strlen(text), SH_HOMES_TEXT - strlen(text),
                 b->snapshot_on_host ? " in host memory" : " in a file");
    return text;
}

/* Its own limit, which no other choice of homes keeps. */
static sh_rc within_file(const struct sh_build *b, const struct sh_program *p)
{
    int file = sh_program_file_tier(p);
    char need[SH_STR_SHORT], limit[SH_STR_SHORT];

    if (!b->file_limit_bytes || file == SH_NONE || p->tiers[file].bytes <= b->file_limit_bytes)
        return SH_OK;
    return sh_fail(
        SH_E_MEMORY,
        "the plan needs %s (%lld bytes) in a file per rank, more than offload.nvme_limit_bytes = %s; keep more "
        "in memory with a smaller offload.optimizer_ratio or offload.activation_ratio, or take more ranks",
        sh_str_bytes(p->tiers[file].bytes, need), (long long)p->tiers[file].bytes,
        sh_str_bytes(b->file_limit_bytes, limit));
}

/* Of a budget that chose homes: what is in the file, and what might be. "" otherwise. */
static const char *what_is_away(const struct sh_build *b, const struct sh_program *p, char *text, size_t size)
{
    int file = sh_program_file_tier(p);
    char need[SH_STR_SHORT], limit[SH_STR_SHORT];

    text[0] = '\0';
    if (b->fit_homes)
        snprintf(text, size, ", with %s of optimizer states in a file (offload.nvme_limit_bytes allows %s)",
                 sh_str_bytes(file == SH_NONE ? 0 : p->tiers[file].bytes, need),
                 b->file_limit_bytes ? sh_str_bytes(b->file_limit_bytes, limit) : "any");
    return text;
}

/* Only a whole plan knows its arena, so the limit is compared at the end. The error names what takes the memory, and
 * what would help. */
static sh_rc within_limit(const struct sh_build *b, const struct sh_program *p)
{
    char text[768], away[128], smaller[SH_CURES_TEXT], need[SH_STR_SHORT], limit[SH_STR_SHORT];

    if (!b->limit_bytes || p->arena_bytes <= b->limit_bytes)
        return within_file(b, p);
    return sh_fail(SH_E_MEMORY, "the plan needs %s (%lld bytes) per rank%s%s, more than memory.limit_bytes = %s (%s)%s",
                   sh_str_bytes(p->arena_bytes, need), (long long)p->arena_bytes,
                   b->fit         ? " at least, whatever is recomputed"
                   : b->fit_homes ? " at least"
                                  : "",
                   what_is_away(b, p, away, sizeof away), sh_str_bytes(b->limit_bytes, limit),
                   what_takes_it(p, text, sizeof text), sh_pass_cures(b, p->arena_bytes, smaller));
}

sh_rc sh_pass_build(const struct sh_build *b, struct sh_program **out)
{
    SH_TRY(sh_pass_build_until(b, NULL, out));
    return within_limit(b, *out);
}
