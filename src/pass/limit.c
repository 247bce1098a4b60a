/* Is a plan within its memory limits? If not, say what takes the memory and what would make the plan smaller, each with
 * the resulting arena, found by planning it. Choices that would change nothing, or are made already, are not named. */
#include "kernels/rows.h"
#include "src/base/string/str.h"
#include "src/pass/build.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static int stages_of(const struct sh_build *b)
{
    return sh_group_size(&b->options.mesh, b->options.mesh.pipeline);
}

/* Each function turns a build into a trial; false if it does not apply. */
static bool less_kept(struct sh_build *b)
{
    b->recompute = (struct sh_recompute){.full = SH_ALL_BLOCKS};
    return b->options.training && !b->fit;
}

/* Of blocks that recompute all: of those that a budget would choose, too, in the end. */
static bool in_tiles(struct sh_build *b)
{
    bool applies = !b->tile_rows && (b->recompute.full > 0 || !b->options.training);

    b->tile_rows = SH_ROW_BLOCK;
    return applies;
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

/* A mesh of numbers that fit, with matrices, parts of sequences, experts and stages as they are. */
static void sharded_over(struct sh_mesh_shape *mesh, int ranks, int inner, int rank)
{
    struct sh_mesh_request all = {.shard = SH_MESH_ALL,
                                  .replicate = SH_MESH_AUTO,
                                  .inner = inner,
                                  .tensor = sh_group_size(mesh, mesh->tensor),
                                  .context = sh_group_size(mesh, mesh->context),
                                  .expert = sh_group_size(mesh, mesh->expert),
                                  .pipeline = sh_group_size(mesh, mesh->pipeline)};
    sh_rc rc = sh_mesh_shape_make(&all, ranks, rank, mesh);

    (void)rc;
}

/* Everything sharded over all ranks; a segment is given up, since it needs whole groups in a node. Not for stages, which
 * keep their parameters for a step. */
static bool all_sharded(struct sh_build *b)
{
    struct sh_mesh_shape *mesh = &b->options.mesh;
    bool keeps = b->options.strategy.params_resident || b->options.strategy.keep_after_forward;

    sharded_over(mesh, sh_mesh_ranks(mesh), 1, 0);
    b->options.strategy = (struct sh_strategy){.sync_last_only = b->options.reproducible};
    b->options.segment_ranks = b->options.segment_rank = 0;
    return keeps && sh_mesh_ranks(mesh) > 1 && stages_of(b) == 1;
}

/* Applies only if the states can go there. */
static bool states_in_a_file(struct sh_build *b)
{
    bool applies = b->options.training && b->offload.optimizer_16 < 16 && !b->snapshot_on_host && !b->fit_homes;

    b->offload.optimizer_16 = 16;
    b->offload.buffers = b->offload.buffers ? b->offload.buffers : 3;
    return applies;
}

/* The same for a device with separate host memory. */
static bool states_on_the_host(struct sh_build *b)
{
    bool applies = b->options.training && b->offload.optimizer_16 < 16 && b->snapshot_on_host && !b->fit_homes;

    b->offload.optimizer_16 = 16;
    b->offload.buffers = b->offload.buffers ? b->offload.buffers : 3;
    return applies;
}

/* The blocks whose forward comes long before their backward. */
static bool activations_on_the_host(struct sh_build *b)
{
    bool applies = b->options.training && b->snapshot_on_host && !b->fit_homes &&
                   b->offload.act_blocks < b->model.n_layers - 2;

    b->offload.act_blocks = b->model.n_layers;
    return applies;
}

/* What can go to a file once the states are there; stages add up whole gradients in memory. */
static bool gradients_in_a_file(struct sh_build *b)
{
    bool applies = b->options.training && b->offload.optimizer_16 == 16 && !b->offload.gradients &&
                   !b->snapshot_on_host && !b->fit_homes && stages_of(b) == 1;

    b->offload.gradients = true;
    return applies;
}

/* The same place in a stage of twice as many. If the shard axis is one rank, as with no_shard, more ranks change nothing. */
static bool twice_the_ranks(struct sh_build *b)
{
    struct sh_mesh_shape *mesh = &b->options.mesh;
    int ranks = sh_mesh_ranks(mesh), rank = mesh->rank + mesh->rank / (ranks / stages_of(b)) * (ranks / stages_of(b));
    bool applies = !b->options.segment_ranks && sh_group_size(mesh, mesh->replicate) == 1 && b->options.training &&
                   !b->options.strategy.params_resident;

    if (applies)
        sharded_over(mesh, 2 * ranks, sh_group_size(mesh, mesh->inner), rank);
    return applies;
}

static const struct {
    bool (*make)(struct sh_build *b);
    const char *text;
    bool moves; /* moves something in each step */
} cures[] = {
    {less_kept, "activation_checkpoint.mode=memory_budget", false},
    {in_tiles, "training.tile_rows=auto", false},
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

    if (sh_pass_weigh(trial, &p) != SH_OK)
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
        /* Moving data to and from a disk, or the host's memory, in each step is not worth a few bytes. */
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

/* Append to a list; what does not fit is cut off. */
static void append(char *text, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void append(char *text, size_t size, const char *format, ...)
{
    size_t at = strlen(text);
    va_list args;

    va_start(args, format);
    vsnprintf(text + at, size - at, format, args);
    va_end(args);
}

const char *sh_pass_homes_text(const struct sh_build *b, char text[SH_HOMES_TEXT])
{
    int away = b->offload.optimizer_16, act = b->offload.act_blocks;
    char blocks[SH_STR_SHORT];

    text[0] = '\0';
    if (away == 16)
        append(text, SH_HOMES_TEXT, ", optimizer states");
    else if (away)
        append(text, SH_HOMES_TEXT, ", %d/16 of the optimizer states", away);
    if (b->offload.gradients)
        append(text, SH_HOMES_TEXT, ", gradients");
    if (b->offload.parameters)
        append(text, SH_HOMES_TEXT, ", parameters");
    if (act)
        append(text, SH_HOMES_TEXT, ", activations of %s",
               sh_str_plural(act < b->model.n_layers - 2 ? act : b->model.n_layers - 2, "block", blocks));
    if (text[0])
        append(text, SH_HOMES_TEXT, b->snapshot_on_host ? " in host memory" : " in a file");
    return text;
}

/* A limit, and what the plan needs. */
struct limited {
    const char *key, *what, *cure;
    int64_t need, limit; /* bytes; limit 0: none */
};
enum { LIMITS = 3 };

/* Bytes of a tier; 0 if there is no such tier. */
static int64_t tier_bytes(const struct sh_program *p, int tier)
{
    return tier == SH_NONE ? 0 : p->tiers[tier].bytes;
}

static void find_limits(const struct sh_build *b, const struct sh_program *p, struct limited out[LIMITS])
{
    out[0] = (struct limited){.key = "memory.limit_bytes", .need = p->arena_bytes, .limit = b->limit_bytes};
    out[1] = (struct limited){.key = "memory.host_limit_bytes",
                              .what = "of pinned host memory",
                              .cure = "offload.optimizer_ratio or offload.activation_ratio",
                              .need = tier_bytes(p, sh_program_host_tier(p)),
                              .limit = b->host_limit_bytes};
    out[2] = (struct limited){.key = "offload.nvme_limit_bytes",
                              .what = "in a file",
                              .cure = "offload.optimizer_ratio or offload.activation_ratio",
                              .need = tier_bytes(p, sh_program_file_tier(p)),
                              .limit = b->file_limit_bytes};
}

static bool is_over(const struct limited *l)
{
    return l->limit && l->need > l->limit;
}

bool sh_pass_fits(const struct sh_build *b, const struct sh_program *p)
{
    struct limited l[LIMITS];
    bool fits = true;

    find_limits(b, p, l);
    for (int i = 0; i < LIMITS; i++)
        fits &= !is_over(&l[i]);
    return fits;
}

/* The limit of a lower tier, which no other choice of homes keeps. */
static sh_rc below_is_over(const struct limited *l)
{
    char need[SH_STR_SHORT], limit[SH_STR_SHORT];

    return sh_fail(
        SH_E_MEMORY,
        "the plan needs %s (%lld bytes) %s per rank, more than %s = %s; keep more on the device with a smaller "
        "%s, or use more ranks",
        sh_str_bytes(l->need, need), (long long)l->need, l->what, l->key, sh_str_bytes(l->limit, limit), l->cure);
}

/* For a budget: how far the plan that comes closest exceeds each limit, and what it needs of the limits that it
 * keeps. */
static sh_rc none_fits(const struct sh_build *b, const struct sh_program *p, const struct limited l[LIMITS])
{
    char lacks[384] = "", keeps[256] = "", text[768], smaller[SH_CURES_TEXT], need[SH_STR_SHORT], limit[SH_STR_SHORT];

    for (int i = 0; i < LIMITS; i++) {
        sh_str_bytes(l[i].need, need);
        sh_str_bytes(l[i].limit, limit);
        if (is_over(&l[i]))
            append(lacks, sizeof lacks, "%s%lld bytes over %s = %s, since it needs %s", lacks[0] ? ", and " : "",
                   (long long)(l[i].need - l[i].limit), l[i].key, limit, need);
        else if (i == 0 || i == (b->snapshot_on_host ? 1 : 2))
            append(keeps, sizeof keeps, "; it takes %s%s%s, and %s allows %s", need, l[i].what ? " " : "",
                   l[i].what ? l[i].what : "", l[i].key, l[i].limit ? limit : "any");
    }
    return sh_fail(SH_E_MEMORY, "offload.mode=memory_budget: no plan fits; the smallest is %s%s (%s)%s", lacks, keeps,
                   what_takes_it(p, text, sizeof text), sh_pass_cures(b, p->arena_bytes, smaller));
}

/* Only a whole plan knows its arena, so limits are compared at the end. The error names what takes the memory, and what
 * would help. */
static sh_rc within_limits(const struct sh_build *b, const struct sh_program *p)
{
    char text[768], smaller[SH_CURES_TEXT], need[SH_STR_SHORT], limit[SH_STR_SHORT];
    struct limited l[LIMITS];

    if (sh_pass_fits(b, p))
        return SH_OK;
    find_limits(b, p, l);
    if (b->fit_homes)
        return none_fits(b, p, l);
    for (int i = 1; i < LIMITS && !is_over(&l[0]); i++)
        if (is_over(&l[i]))
            return below_is_over(&l[i]);
    return sh_fail(SH_E_MEMORY, "the plan needs %s (%lld bytes) per rank%s, more than memory.limit_bytes = %s (%s)%s",
                   sh_str_bytes(p->arena_bytes, need), (long long)p->arena_bytes,
                   b->fit ? " at least, whatever is recomputed" : "", sh_str_bytes(b->limit_bytes, limit),
                   what_takes_it(p, text, sizeof text), sh_pass_cures(b, p->arena_bytes, smaller));
}

sh_rc sh_pass_build(const struct sh_build *b, struct sh_program **out)
{
    SH_TRY(sh_pass_build_until(b, NULL, out));
    return within_limits(b, *out);
}
