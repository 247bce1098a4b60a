/* `sherd plan --longest`: the longest sequences that a job can train on in the memory that it has, what ends them there,
 * and what would make them longer. Each length is planned as the run would plan it; none is extrapolated. */
#include "src/tools/predict/command.h"

#include "src/base/file.h"
#include "src/base/string/str.h"
#include "src/config/family.h"
#include "src/plan/pinned.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Lengths are multiples of STEP tokens on each rank that has a part of the sequence, or of a few times as many. MOST: what training.seq_len takes.
 * Placement in the arena is not quite monotone: for the answer, the AFTER next lengths are tried too. */
enum { STEP = 64, MOST = 16777216, AFTER = 8 };

/* The most tiles of all blocks of a length that is planned, which takes half a minute. */
enum { MOST_TILES = 65536 };

enum { DEVICE, HOST, DISK, TIERS };
static const struct {
    const char *name, *word, *key;
} tiers[TIERS] = {{"device memory", "device", "memory.limit_bytes"},
                  {"pinned host memory", "host", "memory.host_limit_bytes"},
                  {"scratch file", "file", "offload.nvme_limit_bytes"}};

/* A length that was planned; bytes of a rank. */
struct weighed {
    int64_t need[TIERS], limit[TIERS]; /* limit 0: none is known */
};

/* Lengths in steps: `fits` does, the next one does not. */
struct found {
    int64_t fits, step; /* step: in tokens */
    bool all;           /* no longer sequence is possible at all */
    struct weighed at, next;
};

static int64_t least(int64_t a, int64_t b)
{
    return a && (!b || a < b) ? a : b;
}

/* The share of a rank of what a machine has, or 0; the ranks of a node of CPUs share its memory. */
static int64_t of_device(const struct sh_predict *l)
{
    double room = l->machine.device.memory_bytes - l->machine.device.reserved_bytes;

    return l->priced ? (int64_t)fmax(1, l->at.gpu ? room : room / l->at.ranks_per_node) : 0;
}

static int64_t of_host(const struct sh_predict *l)
{
    return l->priced && l->at.gpu ? (int64_t)l->machine.host.memory_bytes / l->at.ranks_per_node : 0;
}

static int64_t tier_bytes(const struct sh_program *p, int tier)
{
    return tier == SH_NONE ? 0 : p->tiers[tier].bytes;
}

/* A model without a table of positions is planned beyond the length that it was made for. */
static bool has_table(const struct sh_model *m)
{
    return sh_family_of(m->family)->wpe != NULL;
}

static int64_t longest_possible(const struct sh_config *cfg)
{
    return has_table(&cfg->model) ? cfg->model.max_seq_len : MOST;
}

static void set_length(struct sh_config *cfg, int64_t tokens)
{
    cfg->training.seq_len = (int)tokens;
    if (cfg->model.max_seq_len < tokens)
        cfg->model.max_seq_len = (int)tokens;
}

/* Of stages each has a program of its own, and the largest counts. */
static sh_rc weigh_stages(const struct sh_predict *plan, struct weighed *out)
{
    const struct sh_mesh_shape *mesh = &plan->build.options.mesh;
    struct sh_pipe_stages stages = {0};
    sh_rc rc = SH_OK;

    if (sh_group_size(mesh, mesh->pipeline) > 1)
        rc = sh_pipe_stages_build(&plan->build, true, NULL, NULL, &stages);
    if (rc == SH_OK && stages.n)
        out->need[DEVICE] = stages.p[sh_pipe_stages_largest(&stages)]->arena_bytes;
    sh_pipe_stages_free(&stages);
    return rc;
}

/* A tile of a block that recomputes all is operations of its own, and few rows in each are too many of them to plan. */
static sh_rc check_tiles(const struct sh_config *c, int64_t tokens)
{
    int64_t of = (int64_t)c->parallelism.context_parallel_degree * c->parallelism.tensor_parallel_degree;
    int64_t tile = c->training.tile_rows == SH_TILE_ROWS_AUTO ? SH_TILE_ROWS : c->training.tile_rows;
    int mode = c->activation_checkpoint.mode;
    int64_t tiles = 0;

    if (tile && (mode == SH_RECOMPUTE_FULL || mode == SH_RECOMPUTE_MEMORY_BUDGET))
        tiles = tokens / of * c->training.local_batch_size / tile * c->model.n_layers;
    if (tiles <= MOST_TILES)
        return SH_OK;
    return sh_fail(
        SH_E_USAGE,
        "sherd plan --longest: %lld tokens are %lld tiles of training.tile_rows=%lld in %d blocks, and more than %d "
        "take minutes to plan; give larger tiles",
        (long long)tokens, (long long)tiles, (long long)tile, c->model.n_layers, MOST_TILES);
}

/* Plan a length as `sherd train` would, whatever it needs. */
static sh_rc weigh(const struct sh_predict *l, int64_t tokens, struct weighed *out)
{
    struct sh_predict plan = {.cfg = l->cfg, .at = l->at, .priced = l->priced, .machine = l->machine};
    sh_rc rc;

    set_length(&plan.cfg, tokens);
    SH_TRY(check_tiles(&plan.cfg, tokens));
    SH_TRY(sh_predict_settle(&plan));
    plan.ask.weigh = true;
    plan.ask.limit_bytes = least(l->cfg.memory.limit_bytes, of_device(&plan));
    rc = sh_plan_make(&plan.ask, &plan.build, &plan.p);
    if (rc == SH_OK)
        *out = (struct weighed){
            .need = {plan.p->arena_bytes, sh_pinned_bytes(plan.p), tier_bytes(plan.p, sh_program_file_tier(plan.p))},
            .limit = {plan.ask.limit_bytes, least(plan.build.host_limit_bytes, of_host(&plan)),
                      plan.build.file_limit_bytes}};
    if (rc == SH_OK)
        rc = weigh_stages(&plan, out);
    sh_program_destroy(plan.p);
    return rc;
}

/* The first tier that has too little; TIERS: none. */
static int over(const struct weighed *w)
{
    int i = 0;

    while (i < TIERS && (!w->limit[i] || w->need[i] <= w->limit[i]))
        i++;
    return i;
}

/* Where between a length that fits and one that does not the bytes of the tier that is over reach its limit, if they
 * grow evenly. */
static int64_t guess(int64_t low, const struct weighed *in, int64_t high, const struct weighed *out)
{
    int i = over(out);
    double share = (double)(in->limit[i] - in->need[i]) / fmax(1, (double)(out->need[i] - in->need[i]));
    int64_t at = low + (int64_t)(fmin(1, fmax(0, share)) * (double)(high - low));

    return at <= low ? low + 1 : at >= high ? high - 1 : at;
}

/* Narrow (fits, high) until nothing is between them: guesses, and a bisection after two that have not halved it. */
static sh_rc narrow(const struct sh_predict *l, struct found *f, int64_t high)
{
    int poor = 0;

    while (high - f->fits > 1) {
        int64_t before = high - f->fits;
        int64_t k = poor < 2 ? guess(f->fits, &f->at, high, &f->next) : f->fits + before / 2;
        struct weighed w;

        SH_TRY(weigh(l, k * f->step, &w));
        if (over(&w) == TIERS) {
            f->fits = k;
            f->at = w;
        } else {
            high = k;
            f->next = w;
        }
        poor = high - f->fits <= before / 2 ? 0 : poor + 1;
    }
    return SH_OK;
}

/* Where the first tier reaches its limit if bytes go on to grow as from k0 to k1, which both fit. */
static int64_t line(int64_t k0, const struct weighed *w0, int64_t k1, const struct weighed *w1)
{
    double least = MOST;

    for (int i = 0; i < TIERS; i++)
        if (w1->limit[i] && w1->need[i] > w0->need[i])
            least = fmin(least, (double)(w1->limit[i] - w1->need[i]) / (double)(w1->need[i] - w0->need[i]));
    return k1 + (int64_t)fmin(least * (double)(k1 - k0), MOST);
}

/* From a length k on, by d at first, up or down: a length that fits, and *high, one that does not; 0: all fit. Two
 * lengths that fit give a line to follow, and a little more each time. */
static sh_rc bracket(const struct sh_predict *l, struct found *f, int64_t k, int64_t d, int64_t most, int64_t *high)
{
    *high = 0;
    while (k > 0 && (!f->fits || !*high) && f->fits < most) {
        struct weighed w;
        int64_t next;

        SH_TRY(weigh(l, k * f->step, &w));
        if (over(&w) < TIERS) {
            *high = k;
            f->next = w;
            k = k - d > k / 2 ? k - d : k / 2;
            d *= 2;
            continue;
        }
        next = (f->fits ? line(f->fits, &f->at, k, &w) : k) + d;
        d = f->fits ? 2 * d : 1;
        f->fits = k;
        f->at = w;
        k = next < most ? next : most;
    }
    return SH_OK;
}

/* Longer ones than the next that fit all the same. */
static sh_rc look_after(const struct sh_predict *l, struct found *f)
{
    int64_t most = longest_possible(&l->cfg) / f->step;

    for (int64_t k = f->fits + 2; k <= f->fits + AFTER && k <= most; k++) {
        struct weighed w;

        SH_TRY(weigh(l, k * f->step, &w));
        if (over(&w) == TIERS) {
            f->fits = k;
            f->at = w;
        } else if (k == f->fits + 1) {
            f->next = w; /* of the new one */
        }
    }
    f->all = f->fits == most;
    return SH_OK;
}

/* Narrow from k on, which is d or more from the end; fits 0: not even one step does, as `next` says. */
static sh_rc find_from(const struct sh_predict *l, struct found *f, int64_t k, int64_t d)
{
    int64_t most = longest_possible(&l->cfg) / f->step, high;

    if (!most)
        return sh_fail(SH_E_USAGE, "sherd plan --longest: model.max_seq_len=%d is less than a step of %lld tokens",
                       l->cfg.model.max_seq_len, (long long)f->step);
    SH_TRY(bracket(l, f, k < 1 ? 1 : k > most ? most : k, d < 1 ? 1 : d, most, &high));
    if (f->fits && high)
        SH_TRY(narrow(l, f, high));
    f->all = f->fits == most;
    return SH_OK;
}

/* The least multiple of STEP tokens on a rank that tensor ranks with their tiles cut evenly. */
static int64_t step_of(const struct sh_config *c)
{
    int64_t context = c->parallelism.context_parallel_degree, step = STEP * context;
    int64_t parts = (int64_t)c->parallelism.tensor_parallel_degree * c->parallelism.tensor_parallel_tiles;

    while (step / context * c->training.local_batch_size % parts)
        step += STEP * context;
    return step;
}

/* A budget of recomputation takes several plans for each length. The longest one recomputes all, or nearly so: what fits
 * then is a start that is close. */
static sh_rc find(const struct sh_predict *l, struct found *f)
{
    struct sh_predict all = {.cfg = l->cfg, .at = l->at, .priced = l->priced, .machine = l->machine};
    int64_t step = step_of(&l->cfg), start = l->cfg.training.seq_len / step;
    struct found near = {.step = step};

    *f = near;
    if (l->cfg.activation_checkpoint.mode != SH_RECOMPUTE_MEMORY_BUDGET || l->cfg.offload.mode == SH_OFFLOAD_BUDGET)
        return find_from(l, f, start, start);
    all.cfg.activation_checkpoint.mode = SH_RECOMPUTE_FULL;
    if (!all.cfg.training.tile_rows)
        all.cfg.training.tile_rows = SH_TILE_ROWS_AUTO;
    SH_TRY(find_from(&all, &near, start, start));
    return find_from(l, f, near.fits, 1);
}

/* ---- cures ---- */

enum { CURE_TEXT = 80 };

/* Each changes the configuration, and writes the change as arguments; false: it does not apply. */
typedef bool cure(struct sh_predict *l, char text[CURE_TEXT]);

static bool less_kept(struct sh_predict *l, char text[CURE_TEXT])
{
    int before = l->cfg.activation_checkpoint.mode;

    snprintf(text, CURE_TEXT, "activation_checkpoint.mode=full");
    l->cfg.activation_checkpoint.mode = SH_RECOMPUTE_FULL;
    return before != SH_RECOMPUTE_FULL && before != SH_RECOMPUTE_MEMORY_BUDGET;
}

static bool in_tiles(struct sh_predict *l, char text[CURE_TEXT])
{
    int64_t before = l->cfg.training.tile_rows;

    snprintf(text, CURE_TEXT, "training.tile_rows=auto");
    l->cfg.training.tile_rows = SH_TILE_ROWS_AUTO;
    return before == 0;
}

static bool one_sequence(struct sh_predict *l, char text[CURE_TEXT])
{
    int before = l->cfg.training.local_batch_size;

    snprintf(text, CURE_TEXT, "training.local_batch_size=1");
    l->cfg.training.local_batch_size = 1;
    return before > 1;
}

static bool all_sharded(struct sh_predict *l, char text[CURE_TEXT])
{
    int before = l->cfg.parallelism.sharding_strategy;
    bool free = l->cfg.mesh.shard == SH_CONFIG_UNSET && l->cfg.mesh.replicate == SH_MESH_AUTO;

    snprintf(text, CURE_TEXT, "parallelism.sharding_strategy=full_shard");
    l->cfg.parallelism.sharding_strategy = SH_FULL_SHARD;
    return before != SH_FULL_SHARD && free && l->at.world > 1;
}

/* Where a tier below the device is one: a home takes the word of the device. */
static bool move(struct sh_predict *l, int *home, const char *what, char text[CURE_TEXT])
{
    int before = *home;

    snprintf(text, CURE_TEXT, "offload.%s=%s", what, l->at.gpu ? "cpu" : "nvme");
    *home = l->at.gpu ? SH_OFFLOAD_CPU : SH_OFFLOAD_NVME;
    if (!l->at.gpu && !l->cfg.offload.nvme_path[0])
        snprintf(l->cfg.offload.nvme_path, sizeof l->cfg.offload.nvme_path, ".");
    return before == SH_OFFLOAD_NONE && l->cfg.offload.mode != SH_OFFLOAD_BUDGET;
}

static bool activations_away(struct sh_predict *l, char text[CURE_TEXT])
{
    return move(l, &l->cfg.offload.activations, "activations", text);
}

static bool states_away(struct sh_predict *l, char text[CURE_TEXT])
{
    return move(l, &l->cfg.offload.optimizer, "optimizer", text);
}

static bool gradients_away(struct sh_predict *l, char text[CURE_TEXT])
{
    return move(l, &l->cfg.offload.gradients, "gradients", text);
}

static bool parameters_away(struct sh_predict *l, char text[CURE_TEXT])
{
    return move(l, &l->cfg.offload.parameters, "parameters", text) && l->at.gpu;
}

/* The next degree that the model and the ranks allow. */
static bool more_context(struct sh_predict *l, char text[CURE_TEXT])
{
    int *degree = &l->cfg.parallelism.context_parallel_degree;

    *degree *= 2;
    snprintf(text, CURE_TEXT, "parallelism.context_parallel_degree=%d", *degree);
    return l->at.world % *degree == 0;
}

static cure *const cures[] = {less_kept,        in_tiles,    one_sequence,   all_sharded,    more_context,
                              activations_away, states_away, gradients_away, parameters_away};
enum { CURES = sizeof cures / sizeof *cures };

/* A cure of this job, and how long sequences become with it alone; tokens 0: it does not apply or makes none longer. */
struct cured {
    char text[CURE_TEXT];
    struct found found;
    int64_t tokens;
};

/* The configuration with the cure, as it would be loaded. */
static bool is_possible(const struct sh_config *cfg)
{
    struct sh_config again;
    char *text = NULL;
    bool possible = sh_config_print(cfg, &text) == SH_OK &&
                    sh_config_parse(text, strlen(text), "cure", 0, NULL, &again) == SH_OK;

    free(text);
    sh_error_clear();
    return possible;
}

/* A little more than what fits without the cure, in steps that both have; 0: the model has no such positions. */
static int64_t beyond(const struct sh_predict *with, const struct found *f)
{
    int64_t tokens = (f->fits + AFTER) * f->step, step = step_of(&with->cfg);

    tokens -= tokens % step;
    return tokens > longest_possible(&with->cfg) ? 0 : tokens;
}

/* A single plan tells whether the cure helps. */
static sh_rc try_cure(const struct sh_predict *l, const struct found *f, int i, struct cured *out)
{
    struct sh_predict with = {.cfg = l->cfg, .at = l->at, .priced = l->priced, .machine = l->machine};
    struct weighed w;
    int64_t tokens;
    sh_rc rc;

    *out = (struct cured){.tokens = 0};
    if (!cures[i](&with, out->text) || !(tokens = beyond(&with, f)))
        return SH_OK;
    set_length(&with.cfg, tokens);
    if (!is_possible(&with.cfg))
        return SH_OK;
    rc = weigh(&with, tokens, &w);
    if (rc == SH_OK && over(&w) == TIERS)
        rc = find(&with, &out->found);
    if (rc == SH_E_USAGE)
        sh_error_clear();
    out->tokens = rc == SH_OK ? out->found.fits * out->found.step : 0;
    return rc == SH_E_USAGE ? SH_OK : rc;
}

/* ---- words ---- */

static void say_found(const struct sh_predict *l, const struct found *f)
{
    int ranks = l->cfg.parallelism.context_parallel_degree;
    char parts[64] = "", memory[160] = "", need[SH_STR_SHORT], limit[SH_STR_SHORT];
    size_t n = 0;

    if (ranks > 1)
        snprintf(parts, sizeof parts, ", %lld on each of %d ranks", (long long)(f->fits * f->step / ranks), ranks);
    for (int i = 0; i < TIERS; i++)
        if (f->at.need[i])
            n += (size_t)snprintf(memory + n, sizeof memory - n, "%s%s %s%s%s", n ? ", " : "", tiers[i].name,
                                  sh_str_bytes(f->at.need[i], need), f->at.limit[i] ? " of " : "",
                                  f->at.limit[i] ? sh_str_bytes(f->at.limit[i], limit) : "");
    sh_str_say(stdout, "longest", "%lld tokens in a sequence%s (in steps of %lld)", (long long)(f->fits * f->step),
               parts, (long long)f->step);
    sh_str_say(stdout, "memory", "%s", memory);
}

/* "device memory: 136256 tokens need 75.1 GiB (80640000000 bytes), more than memory.limit_bytes = 75.0 GiB"; returns
 * text. */
enum { END_TEXT = 256 };
static const char *end_text(const struct sh_predict *l, const struct found *f, char text[END_TEXT])
{
    const int64_t keys[TIERS] = {l->cfg.memory.limit_bytes, l->cfg.memory.host_limit_bytes,
                                 l->cfg.offload.nvme_limit_bytes};
    int i = over(&f->next);
    char need[SH_STR_SHORT], limit[SH_STR_SHORT], whose[SH_MACHINE_NAME + SH_STR_SHORT + 32];

    sh_str_bytes(f->next.limit[i], limit);
    if (f->next.limit[i] == keys[i])
        snprintf(whose, sizeof whose, "%s = %s", tiers[i].key, limit);
    else
        snprintf(whose, sizeof whose, "the %s that a rank has of %s", limit, l->machine.name);
    snprintf(text, END_TEXT, "%s: %lld tokens need %s (%lld bytes), more than %s", tiers[i].name,
             (long long)((f->fits + 1) * f->step), sh_str_bytes(f->next.need[i], need), (long long)f->next.need[i],
             whose);
    return text;
}

static void say_end(const struct sh_predict *l, const struct found *f)
{
    char text[END_TEXT];

    if (f->all && has_table(&l->cfg.model))
        sh_str_say(stdout, "ended by", "the model: its table has %d positions (model.max_seq_len)",
                   l->cfg.model.max_seq_len);
    else if (f->all)
        sh_str_say(stdout, "ended by", "training.seq_len, which takes at most %d", MOST);
    else
        sh_str_say(stdout, "ended by", "%s", end_text(l, f, text));
}

static void say_positions(const struct sh_predict *l, const struct found *f)
{
    int64_t tokens = f->fits * f->step;

    if (tokens > l->cfg.model.max_seq_len)
        sh_str_say(stdout, "positions", "the model was made for %d; train with --model.max_seq_len=%lld",
                   l->cfg.model.max_seq_len, (long long)tokens);
}

static sh_rc say_cures(const struct sh_predict *l, const struct found *f, json_t *list)
{
    const char *label = "longer with";

    for (int i = 0; i < CURES && !f->all; i++) {
        struct cured c;

        SH_TRY(try_cure(l, f, i, &c));
        if (c.tokens <= f->fits * f->step)
            continue;
        sh_str_say(stdout, label, "%s: %lld tokens", c.text, (long long)c.tokens);
        json_array_append_new(list, json_pack("{s:s, s:I}", "set", c.text, "tokens", (json_int_t)c.tokens));
        label = "";
    }
    return SH_OK;
}

/* ---- all cures, one after the other ---- */

/* The cure with the longest sequences; of equals the first. tokens 0: none helps. */
static sh_rc best_cure(const struct sh_predict *l, const struct found *f, int *which, struct cured *best)
{
    *best = (struct cured){.tokens = 0};
    for (int i = 0; i < CURES && !f->all; i++) {
        struct cured c;

        SH_TRY(try_cure(l, f, i, &c));
        if (c.tokens <= f->fits * f->step || c.tokens <= best->tokens)
            continue;
        *best = c;
        *which = i;
    }
    return SH_OK;
}

/* Take the best cure again and again; l becomes the configuration with all of them. */
static sh_rc take_cures(struct sh_predict *l, struct found *f, json_t *list)
{
    const char *label = "with";
    struct cured best;
    char text[CURE_TEXT];
    int which = 0;

    for (;;) {
        SH_TRY(best_cure(l, f, &which, &best));
        if (!best.tokens)
            return SH_OK;
        (void)cures[which](l, text);
        *f = best.found;
        sh_str_say(stdout, label, "%s: %lld tokens", text, (long long)best.tokens);
        json_array_append_new(list, json_pack("{s:s, s:I}", "set", text, "tokens", (json_int_t)best.tokens));
        label = "and with";
    }
}

/* ---- the command ---- */

static json_t *bytes_of(const int64_t bytes[TIERS])
{
    json_t *all = json_object();

    for (int i = 0; i < TIERS; i++)
        json_object_set_new(all, tiers[i].word, json_integer(bytes[i]));
    return all;
}

static sh_rc write_json(const struct found *f, json_t *list, const char *path)
{
    json_t *all = json_pack("{s:I, s:I, s:s, s:o, s:o, s:o, s:O}", "longest", (json_int_t)(f->fits * f->step), "step",
                            (json_int_t)f->step, "ended_by", f->all ? "configuration" : tiers[over(&f->next)].word,
                            "bytes", bytes_of(f->at.need), "limits", bytes_of(f->at.limit), "bytes_of_next",
                            bytes_of(f->next.need), "longer_with", list);
    char *text = json_dumps(all, JSON_INDENT(1));
    sh_rc rc;

    SH_REQUIRE(all && text);
    rc = sh_write_file_atomic(path, text, strlen(text));
    free(text);
    json_decref(all);
    return rc;
}

static sh_rc write_config(const struct sh_config *cfg, const char *path)
{
    char *text;
    sh_rc rc;

    SH_TRY(sh_config_print(cfg, &text));
    rc = sh_write_file_atomic(path, text, strlen(text));
    free(text);
    return rc;
}

static sh_rc find_or_fail(const struct sh_predict *l, struct found *f)
{
    char text[END_TEXT];

    if (!l->cfg.memory.limit_bytes && !of_device(l))
        return sh_fail(SH_E_USAGE, "sherd plan --longest: how much memory has a rank? Give memory.limit_bytes or "
                                   "--machine");
    SH_TRY(find(l, f));
    return f->fits ? SH_OK : sh_fail(SH_E_MEMORY, "no sequence fits: %s", end_text(l, f, text));
}

sh_rc sh_predict_longest(const struct sh_cmd *cmd, const struct sh_cmd_args *args, struct sh_predict *l)
{
    const char *json = sh_cmd_option(cmd, args, "--json"), *path = sh_cmd_option(cmd, args, "--write");
    bool search = sh_cmd_option(cmd, args, "--search") != NULL;
    json_t *list = json_array();
    struct found f;
    sh_rc rc = find_or_fail(l, &f);

    if (rc == SH_OK && search)
        rc = take_cures(l, &f, list);
    if (rc == SH_OK)
        rc = look_after(l, &f);
    if (rc == SH_OK) {
        say_found(l, &f);
        say_end(l, &f);
        say_positions(l, &f);
        rc = search ? SH_OK : say_cures(l, &f, list);
    }
    set_length(&l->cfg, f.fits * f.step);
    if (rc == SH_OK && path)
        rc = write_config(&l->cfg, path);
    if (rc == SH_OK && json)
        rc = write_json(&f, list, json);
    json_decref(list);
    return rc;
}
