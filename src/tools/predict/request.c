/* What `sherd plan` prints first: what is asked, and what follows from it about the mesh, the strategy and the batch. */
#include "src/tools/predict/command.h"

#include "src/base/string/str.h"
#include "src/config/family.h"
#include "src/config/layers.h"

#include <stdio.h>

/* Read from the program, because 0 in the configuration leaves the choice to Sherd. */
static int64_t loss_rows(const struct sh_program *p)
{
    for (int i = 0; i < p->n_ops; i++)
        if (p->ops[i].kind == SH_OP_HEAD_LOSS || p->ops[i].kind == SH_OP_HEAD_LOSS_GRAD)
            return p->ops[i].attr.head.chunk_rows;
        else if (p->ops[i].kind == SH_OP_LOSS_REST)
            return p->tensors[p->ops[i].in[0]].dim[0];
    return 0;
}

/* First index: compute is bfloat16; second: reduction is bfloat16, which is not allowed with float16. */
static const char *precision_name(const struct sh_predict *l)
{
    static const char *const names[2][2] = {
        {"float32", "float32 compute and master, bfloat16 reduction"},
        {"bfloat16 compute, float32 master and reduction", "bfloat16 compute and reduction, float32 master"}};

    if (l->p->act == SH_F16)
        return "float16 compute, float32 master and reduction";
    return names[l->p->act == SH_BF16][l->build.options.reduce == SH_BF16];
}

/* Named only if the type differs from the usual one. */
static const char *states_name(const struct sh_predict *l)
{
    return l->build.options.state_dtype == SH_BF16 ? ", optimizer state in bfloat16"
           : l->build.options.state_dtype == SH_U8 ? ", optimizer state in int8"
                                                   : "";
}

static const char *gathers_name(const struct sh_predict *l)
{
    return l->build.options.gather_coded ? ", gathers in int8" : "";
}

/* The plan covers sharing within a node only if it knows the ranks per node. */
static const char *missing_nodes(const struct sh_predict *l)
{
    bool matters = !l->at.gpu && l->cfg.comm.shared_memory == SH_SHARED_MEMORY_AUTO;

    return matters && !l->at.ranks_per_node ? "; mesh.ranks_per_node not set: assumes no sharing within a node" : "";
}

/* "feed-forward 384", or its experts; the dense width counts only if some block has it. */
static const char *feed_forward(const struct sh_model *m, char text[160])
{
    bool some = sh_family_of(m->family)->single && sh_layers_any(m, SH_LAYER_MLP);
    bool dense = !m->n_experts || m->first_dense_layers || m->moe_every > 1 || some;
    int at = dense ? snprintf(text, 160, "feed-forward %d", m->ffn_dim) : 0;

    if (m->n_experts)
        at += snprintf(text + at, (size_t)(160 - at), "%s%d experts of %d, %d for each token", dense ? ", " : "",
                       m->n_experts, m->expert_ffn_dim, m->n_experts_per_token);
    if (m->shared_ffn_dim)
        snprintf(text + at, (size_t)(160 - at), " and a shared one of %d", m->shared_ffn_dim);
    return text;
}

/* The sizes of the model itself, without padding and copies that a mesh adds. */
static void say_model(const struct sh_predict *l)
{
    const struct sh_model *m = &l->build.model;
    char count[SH_STR_SHORT], active[SH_STR_SHORT], width[160];

    sh_str_say(stdout, "model",
               "%s: %s, %d layers, dim %d, %d heads (%d key-value) of %d, %s, vocabulary %d%s: %s parameters%s%s%s",
               l->cfg.model.name[0] ? l->cfg.model.name : "custom", sh_family_of(m->family)->name, m->n_layers, m->dim,
               m->n_heads, m->n_kv_heads, m->head_dim, feed_forward(m, width), m->vocab_size,
               sh_family_is_tied(m) ? ", tied" : "", sh_str_count(sh_model_params(m), count), m->n_experts ? ", " : "",
               m->n_experts ? sh_str_count(sh_model_active(m), active) : "", m->n_experts ? " active" : "");
}

/* Users think in replicate times shard; resharding is printed with the strategy. */
static void say_mesh(const struct sh_predict *l)
{
    char ranks[SH_MESH_TEXT];

    if (l->at.world == 1)
        sh_str_say(stdout, "mesh", "1 rank%s", missing_nodes(l));
    else
        sh_str_say(stdout, "mesh", "%s, rank %d of %d%s", sh_mesh_text(&l->mesh, ranks), l->at.rank, l->at.world,
                   missing_nodes(l));
}

enum { OVER = 200 };

/* How many nodes a group of `rank` is on. */
static int nodes_of(const struct sh_predict *l, sh_group group, int rank)
{
    struct sh_mesh_shape mesh = l->mesh;
    int node = l->at.ranks_per_node, last = sh_group_size(&mesh, group) - 1;

    mesh.rank = rank;
    return node ? sh_group_member(&mesh, group, last) / node - sh_group_member(&mesh, group, 0) / node + 1 : 1;
}

/* Ranks of a group are neighbours; they exchange rows in each block, which should stay inside a node. Empty if all do. What
 * is predicted is the step of this rank, whose group may be on fewer nodes than others. */
static const char *over_nodes(const struct sh_predict *l, sh_group group, char text[OVER])
{
    int own = nodes_of(l, group, l->mesh.rank), most = own;

    for (int r = 0; r < l->at.world; r++)
        most = nodes_of(l, group, r) > most ? nodes_of(l, group, r) : most;
    text[0] = '\0';
    if (most > 1)
        snprintf(text, OVER,
                 "; %s on %d nodes, so what they exchange crosses the network%s: a degree that divides the %d ranks of "
                 "a node would not",
                 own < most ? "others are" : "they are", most, own < most ? ", slower than this rank's" : "",
                 l->at.ranks_per_node);
    return text;
}

/* How the ranks that gather keys share the work of attention: equally, but for documents and windows. */
static const char *balance_of(const struct sh_predict *l, char text[OVER])
{
    bool docs = sh_predict_document_tokens(l) != l->cfg.training.seq_len;
    int window = sh_model_rows_of(l->p).window;
    char documents[48] = "", windows[48] = "";

    if (docs)
        snprintf(documents, sizeof documents, "documents of %d tokens", sh_predict_document_tokens(l));
    if (window)
        snprintf(windows, sizeof windows, "%swindows of %d", docs ? " and " : "", window);
    if (!l->build.options.gather)
        text[0] = '\0';
    else if (!sh_predict_document_tokens(l))
        snprintf(text, OVER,
                 ", which gather keys and values: how unequally documents of unknown length (data.document_tokens) "
                 "share them is not known");
    else if (docs || window)
        snprintf(text, OVER, ", which gather keys and values: with %s%s the busiest has %.2f times the mean work",
                 documents, windows, sh_predict_busiest(l));
    else
        snprintf(text, OVER, ", which gather keys and values");
    return text;
}

static void say_context(const struct sh_predict *l)
{
    int ranks = sh_group_size(&l->mesh, l->mesh.context);
    char over[OVER], balance[OVER];

    if (ranks > 1)
        sh_str_say(stdout, "context", "each sequence is cut over %d ranks, %d tokens on each%s%s", ranks,
                   l->cfg.training.seq_len / ranks, balance_of(l, balance), over_nodes(l, l->mesh.context, over));
}

static void say_tensor(const struct sh_predict *l)
{
    int ranks = sh_group_size(&l->mesh, l->mesh.tensor);
    long long rows = (long long)l->cfg.training.local_batch_size * l->cfg.training.seq_len;
    char bytes[SH_STR_SHORT], tiles[48] = "", over[OVER];

    if (l->build.tensor_tiles > 1)
        snprintf(tiles, sizeof tiles, ", in %d tiles beside products", l->build.tensor_tiles);
    if (ranks > 1)
        sh_str_say(stdout, "tensor",
                   "matrices of blocks are cut over %d ranks, %lld rows on each; a block moves %s of them in a "
                   "micro-step%s%s",
                   ranks, rows / ranks / sh_group_size(&l->mesh, l->mesh.context),
                   sh_str_sum_of_bytes(sh_predict_block_bytes(l, l->mesh.tensor), bytes), tiles,
                   over_nodes(l, l->mesh.tensor, over));
}

static void say_tiles(const struct sh_predict *l)
{
    long long rows = l->build.tile_rows;
    bool any = false;

    for (int i = 0; i < l->p->n_ops; i++)
        any |= l->p->ops[i].tiles > 0;
    if (rows)
        sh_str_say(stdout, "tiles",
                   any ? "blocks that recompute all send %lld rows at a time through feed-forward parts"
                       : "none: no block that recomputes all has more than %lld rows (activation_checkpoint.mode=full)",
                   rows);
}

/* The waves of one block stand for those of all: routers choose as many rows everywhere. */
static void say_experts(const struct sh_predict *l)
{
    int ranks = sh_group_size(&l->mesh, l->mesh.expert), waves = 0;
    const struct sh_op_attr *attr = NULL;
    char each[SH_STR_SHORT];

    for (int i = 0; ranks > 1 && i < l->p->n_ops; i++)
        if (l->p->ops[i].kind == SH_OP_ROUTE_WAVE) {
            attr = &l->p->ops[i].attr;
            waves = attr->wave.wave >= waves ? attr->wave.wave + 1 : waves;
        }
    if (attr)
        sh_str_say(
            stdout, "experts",
            "%s on each of %d ranks; rows travel in waves of %lld (moe.capacity_factor), in at most %d if they all "
            "go to the same rank",
            sh_str_plural(l->build.model.n_experts / ranks, "expert", each), ranks, (long long)attr->wave.room, waves);
}

/* A choice that Sherd made itself ends in "to fit" and the limit that decided it. */
static void say_strategy(const struct sh_predict *l)
{
    int inner = sh_group_size(&l->mesh, l->mesh.inner);
    char limit[SH_STR_SHORT], recompute[SH_RECOMPUTE_TEXT], strategy[SH_STRATEGY_TEXT], homes[SH_HOMES_TEXT];
    char over[64] = "", fits[64] = "";

    if (inner > 1)
        snprintf(over, sizeof over, ", after the forward over %d ranks", inner);
    if ((l->build.fit || l->build.fit_homes) && l->p->arena_bytes <= l->build.limit_bytes)
        snprintf(fits, sizeof fits, ", to fit %s", sh_str_bytes(l->build.limit_bytes, limit));
    sh_str_say(stdout, "strategy", "%s%s; %s%s%s; recompute %s%s%s",
               sh_request_strategy_text(&l->cfg, &l->mesh, strategy), over, precision_name(l), states_name(l),
               gathers_name(l), sh_pass_recompute_text(&l->build, recompute), sh_pass_homes_text(&l->build, homes),
               fits);
}

/* sequences = ranks x micro-steps x sequences per micro-step. A configuration gives some of these; the rest follow. */
static void say_batch(const struct sh_predict *l)
{
    int64_t batch = sh_request_global_batch(&l->cfg, sh_group_size(&l->mesh, l->mesh.data));
    char sequences[SH_STR_SHORT], tokens[SH_STR_SHORT], micro[SH_STR_SHORT], local[SH_STR_SHORT];

    sh_str_say(stdout, "step", "%s of %d tokens (%s tokens) = %s of %s on each rank",
               sh_str_plural(batch, "sequence", sequences), l->cfg.training.seq_len,
               sh_str_count(batch * l->cfg.training.seq_len, tokens),
               sh_str_plural(l->build.options.micro_steps, "micro-step", micro),
               sh_str_plural(l->cfg.training.local_batch_size, "sequence", local));
}

/* The phases of training.batch_schedule; all else here is of the largest step. */
static void say_phases(const struct sh_predict *l)
{
    int parts = sh_group_size(&l->mesh, l->mesh.data);
    struct sh_batches b = sh_request_batches(&l->cfg, parts);
    char text[SH_BATCHES_MAX * 64] = "", from[64], micro[SH_STR_SHORT];

    for (int i = 0; i < b.n; i++) {
        int64_t n = b.at[i].sequences / parts / l->cfg.training.local_batch_size;

        snprintf(from, sizeof from, "%lld from step %lld (%s)", (long long)b.at[i].sequences, (long long)b.at[i].step,
                 sh_str_plural(n, "micro-step", micro));
        sh_str_add(text, sizeof text, ", ", from);
    }
    if (b.n > 1)
        sh_str_say(stdout, "batches", "%s; this plan is of the largest", text);
}

/* The phases of data.length_schedule. */
static void say_lengths(const struct sh_predict *l)
{
    struct sh_batches b;
    char text[SH_BATCHES_MAX * 64] = "", from[64];

    if (sh_batches_read(l->cfg.data.length_schedule, &b) != SH_OK)
        sh_error_clear();
    for (int i = 0; i < b.n; i++) {
        snprintf(from, sizeof from, "%lld tokens from step %lld", (long long)b.at[i].sequences,
                 (long long)b.at[i].step);
        sh_str_add(text, sizeof text, ", ", from);
    }
    if (b.n)
        sh_str_say(stdout, "lengths", "%s; this plan is of %d", text, l->cfg.training.seq_len);
}

/* Both micro-steps of a replay are as long as one of a step; stages make all of a step again. */
static void say_replays(const struct sh_predict *l)
{
    const struct sh_mesh_shape *m = &l->mesh;
    int64_t every = l->cfg.fault.replay_every;

    if (every && sh_group_size(m, m->tensor | m->context | m->expert | m->pipeline) == l->at.world)
        sh_str_say(stdout, "replays", "a run refuses fault.replay_every on %s: no other can compute the same",
                   l->at.world == 1 ? "one rank" : "ranks that all make one micro-step");
    else if (every && sh_group_size(m, m->pipeline) > 1)
        sh_str_say(stdout, "replays", "2 times all micro-steps of a step every %lld steps: %.2g %% of all",
                   (long long)every, 200 / (double)every);
    else if (every)
        sh_str_say(stdout, "replays", "2 micro-steps of each rank every %lld steps: %.2g %% of its micro-steps",
                   (long long)every, 200 / ((double)every * l->build.options.micro_steps));
}

/* The request and what follows from it: the mesh, the strategy, the batch. */
void sh_predict_say_request(const struct sh_predict *l)
{
    struct sh_model_flops f = sh_model_flops_of(&l->build.model, &l->build.batch);
    char within[64] = "";

    say_model(l);
    say_mesh(l);
    say_context(l);
    say_tensor(l);
    say_experts(l);
    say_strategy(l);
    say_batch(l);
    say_phases(l);
    say_lengths(l);
    say_replays(l);
    sh_predict_say_updates(l);
    if (loss_rows(l->p) || sh_group_size(&l->mesh, l->mesh.pipeline) == 1)
        sh_str_say(stdout, "loss", "logits computed in chunks of %lld rows (training.loss_chunk_rows)",
                   (long long)loss_rows(l->p));
    say_tiles(l);
    if (l->at.gpu)
        sh_str_say(stdout, "device", "cuda: one GPU per rank");
    else
        sh_str_say(stdout, "threads", "%d per rank%s", l->ask.threads,
                   l->cfg.training.threads ? "" : " (this machine's cores / ranks per node)");
    if (l->build.batch.docs && l->build.batch.document_tokens)
        snprintf(within, sizeof within, ", within documents of %d tokens", l->build.batch.document_tokens);
    sh_str_say(stdout, "work", "%.4g GFLOP per token (%s + 6LHDT, causal), %.4g with 12LHDT (full square)%s",
               (f.matmul + f.attention_causal) / 1e9,
               l->build.batch.adapters.rank ? "4 x frozen weights in products + 6 x those of adapters"
                                            : "6 x weights in products",
               (f.matmul + f.attention_full) / 1e9, within);
}
