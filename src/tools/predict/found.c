/* `sherd plan --search`: the best configurations of a job on a machine and, with --tokens and --within, how many nodes
 * a deadline needs. */
#include "src/tools/predict/command.h"

#include "src/base/file.h"
#include "src/base/string/str.h"
#include "src/tools/predict/search/search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SHOWN = 10, MOST_NODES = 1 << 14 };

/* The share of a device's memory that a search leaves free unless memory.limit_bytes says what a rank may take: a
 * configuration that leaves nothing is lost to the first allocation that no plan counts. */
static const double kept_free = 0.05;

/* Only the name of the strategy: the mesh has its own column. */
static const char *strategy_name(const struct sh_predict *l, const struct sh_search *s, const struct sh_search_found *f,
                                 char text[SH_STRATEGY_TEXT])
{
    struct sh_config cfg;
    struct sh_mesh_shape mesh = l->mesh;

    sh_search_apply(s, f, &cfg);
    mesh.shard = 0; /* the name alone */
    return sh_request_strategy_text(&cfg, &mesh, text);
}

/* Changes of results are printed after the recomputation. */
static const char *rounded(const struct sh_predict *l, const struct sh_search_found *f)
{
    return f->reduce != l->cfg.training.mixed_precision_reduce ? ", reductions in bfloat16" : "";
}

static const char *reordered(const struct sh_search_found *f)
{
    return f->any_order ? ", any order" : "";
}

/* What a rank can have of its device at all. */
static int64_t room_of(const struct sh_predict *l)
{
    double room = l->machine.device.memory_bytes - l->machine.device.reserved_bytes;

    return room > 1 ? (int64_t)room : 1;
}

/* A limit beyond what a device has was meant for another one. */
static bool is_limited(const struct sh_predict *l)
{
    return l->cfg.memory.limit_bytes > 0 && l->cfg.memory.limit_bytes <= room_of(l);
}

enum { SPREAD_TEXT = 160 };

static const char *const schedules[] = {
    [SH_SCHEDULE_1F1B] = "", [SH_SCHEDULE_ZBH1] = " by ZBH1", [SH_SCHEDULE_INTERLEAVED] = " interleaved"};

/* What is cut over ranks or into tiles, besides parameters. */
static const char *spread(const struct sh_search_found *f, char text[SPREAD_TEXT])
{
    int n = snprintf(text, SPREAD_TEXT, "%s", f->tiles ? ", in tiles" : "");

    if (f->tensor > 1)
        n += snprintf(text + n, (size_t)(SPREAD_TEXT - n), ", matrices over %d", f->tensor);
    if (f->tensor > 1 && f->stripes > 1)
        n += snprintf(text + n, (size_t)(SPREAD_TEXT - n), ", exchanged in %d tiles", f->stripes);
    if (f->pipeline > 1)
        n += snprintf(text + n, (size_t)(SPREAD_TEXT - n), ", %d stages%s", f->pipeline, schedules[f->schedule]);
    if (f->pipeline > 1 && f->schedule == SH_SCHEDULE_INTERLEAVED && f->chunk)
        n += snprintf(text + n, (size_t)(SPREAD_TEXT - n), " by %d blocks", f->chunk);
    if (f->context > 1)
        n += snprintf(text + n, (size_t)(SPREAD_TEXT - n), ", sequences over %d", f->context);
    if (f->expert > 1)
        snprintf(text + n, (size_t)(SPREAD_TEXT - n), ", experts over %d", f->expert);
    return text;
}

static bool in_tiles(const struct sh_search_found *f)
{
    return f->tiles;
}

static bool over_context(const struct sh_search_found *f)
{
    return f->context > 1;
}

static bool over_tensor(const struct sh_search_found *f)
{
    return f->tensor > 1;
}

static bool exchanged_in_tiles(const struct sh_search_found *f)
{
    return f->tensor > 1 && f->stripes > 1;
}

static bool over_stages(const struct sh_search_found *f)
{
    return f->pipeline > 1;
}

/* What words of the last column mean, if some row has them. */
static void say_words(const struct sh_search_found *found, int n)
{
    static const struct {
        bool (*has)(const struct sh_search_found *f);
        const char *text;
    } words[] = {
        {in_tiles, "in tiles: training.tile_rows=auto"},
        {over_tensor, "matrices over N: parallelism.tensor_parallel_degree, ranks that share each matrix"},
        {exchanged_in_tiles, "exchanged in N tiles: parallelism.tensor_parallel_tiles, beside products"},
        {over_stages, "N stages: parallelism.pipeline_parallel_degree; by ZBH1, interleaved: _schedule; by K blocks:\n"
                      "_layers_per_stage"},
        {over_context, "sequences over N: parallelism.context_parallel_degree, ranks that share a sequence"},
    };

    for (size_t w = 0; w < sizeof words / sizeof *words; w++)
        for (int i = 0; i < n; i++)
            if (words[w].has(&found[i])) {
                puts(words[w].text);
                break;
            }
}

/* Two marks at the start of the line, so that a search for either finds its rows. */
static void say_row(const struct sh_predict *l, const struct sh_search *s, const struct sh_search_found *f)
{
    char strategy[SH_STRATEGY_TEXT], bytes[SH_STR_SHORT], spare[SH_STR_SHORT], rate[SH_STR_SHORT], mesh[32];
    char experts[SPREAD_TEXT];

    snprintf(mesh, sizeof mesh, "%d x %d", f->replicate, f->shard);
    printf("%c%c%c %-18s %10s %6d %6d %6d %6d %10s %10s %10.4g %10s  %s%s%s%s\n", f->best ? '*' : ' ',
           f->pareto ? 'P' : ' ', f->plain ? 'S' : ' ', strategy_name(l, s, f, strategy), mesh, f->inner,
           f->local_batch, f->micro_steps, f->forward_prefetch, sh_str_bytes(f->bytes, bytes),
           sh_str_bytes(room_of(l) - f->bytes, spare), f->seconds, sh_str_count(llround(f->tokens_per_second), rate),
           f->recompute, spread(f, experts), rounded(l, f), reordered(f));
}

/* The best results, and all marked ones, however far down they are. */
static void say_table(const struct sh_predict *l, const struct sh_search *s, const struct sh_search_found *found, int n)
{
    printf("\n    %-18s %10s %6s %6s %6s %6s %10s %10s %10s %10s  %s\n", "strategy", "mesh", "inner", "batch", "micro",
           "ahead", "memory", "spare", "seconds", "tokens/s", "recompute");
    for (int i = 0; i < n; i++)
        if (i < SHOWN || found[i].best || found[i].pareto || found[i].plain)
            say_row(l, s, &found[i]);
    if (s->may_reorder)
        puts("any order: training.deterministic=false, whose bits differ from run to run");
    if (l->cfg.model.n_experts)
        puts("experts over N: parallelism.expert_parallel_degree; without it each rank has all experts");
    say_words(found, n);
    puts(
        "*: the simplest of those within 2 % of the fastest. P: none is both faster and smaller. S: the fastest that only shards");
    sh_str_wrap(
        stdout, 80, 0, 0,
        "mesh: replicas x ranks per shard group. inner: ranks that keep a unit sharded among themselves between "
        "forward and backward (parallelism.reshard_after_forward); 1: as the strategy says. batch: sequences of "
        "a micro-step on each rank. micro: micro-steps of a step. ahead: units that are gathered before they "
        "are needed. memory: of a rank. spare: what that leaves of a device's memory");
}

/* The memory is what the configuration allows, if the device has it. */
static struct sh_search search_of(const struct sh_predict *l, int ranks, bool quick)
{
    const struct sh_machine *m = &l->machine;
    int node = l->cfg.mesh.ranks_per_node ? l->cfg.mesh.ranks_per_node : (int)m->node.devices;

    return (struct sh_search){.cfg = &l->cfg,
                              .machine = m,
                              .ranks = ranks,
                              .ranks_per_node = ranks < node ? ranks : node,
                              .limit_bytes = is_limited(l) ? l->cfg.memory.limit_bytes
                                                           : (int64_t)ceil((1 - kept_free) * (double)room_of(l)),
                              .quick = quick};
}

/* Writes the whole configuration, so that the file is complete without the one that the search started from. */
static sh_rc write_best(const struct sh_search *s, const struct sh_search_found *found, int n, const char *path)
{
    struct sh_config cfg;
    char *text;
    sh_rc rc;

    for (int i = 0; i < n; i++)
        if (found[i].best)
            sh_search_apply(s, &found[i], &cfg);
    SH_TRY(sh_config_print(&cfg, &text));
    rc = sh_write_file_atomic(path, text, strlen(text));
    free(text);
    return rc;
}

/* Reads "reduce_bfloat16,batch": words of the table. */
static sh_rc read_allowed(const char *text, struct sh_search *s)
{
    const struct {
        const char *word;
        bool *allowed;
    } words[] = {{"reduce_bfloat16", &s->may_round},
                 {"any_order", &s->may_reorder},
                 {"batch", &s->may_grow},
                 {"stages", &s->may_stage}};

    for (const char *at = text; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        size_t length = strcspn(at, ","), i = 0;

        while (i < sizeof words / sizeof *words &&
               (strlen(words[i].word) != length || strncmp(at, words[i].word, length) != 0))
            i++;
        if (i == sizeof words / sizeof *words)
            return sh_fail(
                SH_E_USAGE,
                "sherd plan: --allow %s: expected reduce_bfloat16, any_order, batch, stages, or several with commas",
                text);
        *words[i].allowed = true;
    }
    return SH_OK;
}

/* Failures increase with the ranks, so twice the nodes are not worth twice as much. A save is assumed to cost one
 * second. */
static struct sh_predict_job search_job(int ranks)
{
    return (struct sh_predict_job){.ranks = ranks, .save_seconds = 1};
}

/* What was asked, and what the search may not change. The limit is shown with the ranks: most configurations fail
 * because of it. */
static void say_asked(const struct sh_predict *l, const struct sh_search *s)
{
    char limit[SH_STR_SHORT], free_share[SH_STR_SHORT] = "";

    if (!is_limited(l))
        snprintf(free_share, sizeof free_share, ": %.0f %% stay free", 100 * kept_free);
    sh_str_say(stdout, "search", "%d ranks of %s, %lld sequences per step%s, at most %s per rank%s%s", s->ranks,
               l->machine.name, (long long)sh_request_global_batch(&l->cfg, s->ranks),
               s->may_grow                         ? " or more"
               : l->cfg.training.batch_schedule[0] ? " (the largest of training.batch_schedule)"
                                                   : " (batch kept; --allow batch)",
               sh_str_bytes(s->limit_bytes, limit), free_share, free_share[0] ? " (memory.limit_bytes)" : "");
}

/* The time that the best result takes for so many tokens. */
static void say_tokens(const struct sh_predict *l, const struct sh_search_found *found, int n, double tokens)
{
    struct sh_predict_job job = search_job(l->at.world);
    struct sh_predict_spent spent;
    char text[SH_PREDICT_SPENT_TEXT], count[SH_STR_SHORT];

    for (int i = 0; i < n; i++)
        if (found[i].best) {
            spent = sh_predict_spend(&l->machine, &job, found[i].tokens_per_second, tokens);
            sh_str_say(stdout, "all tokens", "%s with *: %s", sh_str_count(llround(tokens), count),
                       sh_predict_spent_text(&l->machine, &spent, text));
        }
}

/* tokens: 0: not asked. */
static sh_rc search_ranks(const struct sh_predict *l, const char *allowed, const char *path, double tokens)
{
    struct sh_search s = search_of(l, l->at.world, false);
    struct sh_search_found found[SH_SEARCH_MOST];
    char limit[SH_STR_SHORT];
    int n;

    SH_TRY(read_allowed(allowed, &s));
    SH_TRY(sh_search_run(&s, found, &n));
    if (!n)
        return sh_fail(SH_E_MEMORY, "no configuration fits %d ranks of %s each; use more ranks", s.ranks,
                       sh_str_bytes(s.limit_bytes, limit));
    say_asked(l, &s);
    say_table(l, &s, found, n);
    if (tokens > 0)
        say_tokens(l, found, n, tokens);
    return path ? write_best(&s, found, n, path) : SH_OK;
}

/* --- deadlines --- */

/* "30d", "12h", "90m". */
static sh_rc read_time(const char *text, double *seconds)
{
    char *end;
    double unit;

    *seconds = strtod(text, &end);
    unit = end == text ? 0 : *end == 'd' ? 86400 : *end == 'h' ? 3600 : *end == 'm' ? 60 : 0;
    if (unit <= 0 || end[1] || !(*seconds * unit >= 1 && *seconds < 1e9))
        return sh_fail(SH_E_USAGE, "sherd plan: --within %s: expected days, hours or minutes, like 30d, 12h or 90m",
                       text);
    *seconds *= unit;
    return SH_OK;
}

/* A number of nodes, or a part of one, with its best configuration. */
struct size {
    int nodes, ranks;
    struct sh_predict_spent spent; /* for all tokens */
    struct sh_search_found best;
};

/* If --ranks is less than the devices of these nodes, it is the number of ranks. */
static int ranks_of(const struct sh_predict *l, int nodes)
{
    int ranks = nodes * (int)l->machine.node.devices, most = l->cfg.mesh.ranks;

    return most && most < ranks ? most : ranks;
}

/* *fits: whether a configuration fits, and the batch divides. */
static sh_rc size_of(const struct sh_predict *l, int nodes, double tokens, struct size *out, bool *fits)
{
    struct sh_search s = search_of(l, ranks_of(l, nodes), true);
    struct sh_search_found found[SH_SEARCH_MOST];
    struct sh_predict_job job = search_job(s.ranks);
    int n;
    sh_rc rc = sh_search_run(&s, found, &n);

    *fits = rc == SH_OK && n > 0;
    if (!*fits) {
        sh_error_clear();
        return rc == SH_E_USAGE ? SH_OK : rc;
    }
    *out = (struct size){.nodes = nodes, .ranks = s.ranks, .best = found[0]};
    out->spent = sh_predict_spend(&l->machine, &job, found[0].tokens_per_second, tokens);
    return SH_OK;
}

static void say_size(const struct sh_predict *l, const char *what, const struct size *z)
{
    struct sh_search s = search_of(l, z->ranks, true);
    bool whole = z->ranks >= (int)l->machine.node.devices;
    char size[SH_STR_SHORT], spent[SH_PREDICT_SPENT_TEXT], strategy[SH_STRATEGY_TEXT];

    sh_str_plural(whole ? z->nodes : z->ranks, whole ? "node" : "device", size);
    printf("%-12s %s: %s; %s %d x %d, batch %d, recompute %s\n", what, size,
           sh_predict_spent_text(&l->machine, &z->spent, spent), strategy_name(l, &s, &z->best, strategy),
           z->best.replicate, z->best.shard, z->best.local_batch, z->best.recompute);
}

/* Why no number of nodes has a configuration: a machine without a network has only one. */
static sh_rc nothing_fits(const struct sh_predict *l, int most)
{
    int some = l->cfg.mesh.ranks ? ranks_of(l, most) : ranks_of(l, 2);

    SH_TRY(sh_cost_check_network(&l->machine, some, (int)l->machine.node.devices));
    return sh_fail(SH_E_MEMORY,
                   "no number of ranks up to %d has a configuration that fits, with %lld sequences per step",
                   ranks_of(l, most), (long long)sh_request_global_batch(&l->cfg, 1));
}

/* The batch or --ranks, whichever keeps the job from more nodes. */
static void say_too_slow(const struct sh_predict *l, const struct size *fastest, int most)
{
    if (2 * fastest->nodes > most)
        sh_str_say(stdout, "least nodes", "none up to %d rank%s%s are fast enough", ranks_of(l, most),
                   ranks_of(l, most) == 1 ? "" : "s", l->cfg.mesh.ranks ? " (--ranks)" : "");
    else
        sh_str_say(stdout, "least nodes",
                   "none are fast enough: more nodes do not make a step of %lld sequences faster; raise "
                   "training.global_batch_size",
                   (long long)sh_request_global_batch(&l->cfg, 1));
}

/* Tries powers of two of nodes, at most as many as --ranks fills, or a part of one node. */
static sh_rc search_deadline(const struct sh_predict *l, double tokens, double within)
{
    struct size z, least = {0}, cheapest = {0}, fastest = {0};
    int given = l->cfg.mesh.ranks / (int)l->machine.node.devices;
    int most = given ? given : l->cfg.mesh.ranks ? 1 : MOST_NODES;
    bool alone = l->machine.network.bytes_per_second <= 0;

    for (int nodes = 1; nodes <= (alone ? 1 : most); nodes *= 2) {
        bool fits;

        SH_TRY(size_of(l, nodes, tokens, &z, &fits));
        if (!fits)
            continue;
        if (!fastest.nodes || z.spent.seconds < fastest.spent.seconds)
            fastest = z;
        if (z.spent.seconds > within)
            continue;
        if (!least.nodes)
            least = z;
        if (!cheapest.nodes || z.spent.device_hours < cheapest.spent.device_hours)
            cheapest = z;
    }
    if (!fastest.nodes)
        return nothing_fits(l, most);
    if (least.nodes) {
        say_size(l, "least nodes", &least);
        say_size(l, "cheapest", &cheapest);
    } else if (alone && most > 1)
        sh_str_say(stdout, "least nodes", "%s",
                   "one node is too slow, and the machine has no network for more; give network.bytes_per_second");
    else
        say_too_slow(l, &fastest, most);
    say_size(l, "fastest", &fastest);
    return SH_OK;
}

sh_rc sh_predict_search(const struct sh_cmd *cmd, const struct sh_cmd_args *args, struct sh_predict *l)
{
    static const char *const of_ranks[] = {"--write", "--allow"};
    const char *tokens = sh_cmd_option(cmd, args, "--tokens"), *within = sh_cmd_option(cmd, args, "--within");
    double n = 0, seconds;

    if (tokens)
        SH_TRY(sh_predict_tokens(tokens, &n));
    if (!within)
        return search_ranks(l, sh_cmd_option(cmd, args, "--allow"), sh_cmd_option(cmd, args, "--write"), n);
    if (!tokens)
        return sh_fail(SH_E_USAGE, "sherd plan: --within %s: for how many tokens? Give --tokens as well", within);
    for (size_t i = 0; i < sizeof of_ranks / sizeof *of_ranks; i++)
        if (sh_cmd_option(cmd, args, of_ranks[i]))
            return sh_fail(SH_E_USAGE, "sherd plan: %s is for a search on given ranks, without --within", of_ranks[i]);
    SH_TRY(read_time(within, &seconds));
    return search_deadline(l, n, seconds);
}
