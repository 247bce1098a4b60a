/* Other names for keys and values, so that configurations of torchtitan, PyTorch and DeepSpeed can be used. Values:
 * letters of either case, dashes for underscores, prefixes such as torch., and synonyms. Keys: each alias is resolved
 * into the key it stands for, after all sources are read and before presets and checks. A higher source wins; alias and
 * key in one source are refused. */
#include "src/config/foreign/alias.h"

#include "src/base/string/str.h"
#include "src/config/read/place.h"

#include <ctype.h>
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

/* ---- values ---- */

static const struct {
    const char *key, *prefix;
} prefixes[] = {
    {"parallelism.sharding_strategy", "shardingstrategy."},
    {"training.mixed_precision_param", "torch."},
    {"training.mixed_precision_reduce", "torch."},
    {"optimizer.state_dtype", "torch."},
};

static const struct {
    const char *key, *word, *means;
} other_words[] = {
    {"parallelism.sharding_strategy", "ddp", "no_shard"},
    {"parallelism.sharding_strategy", "zero0", "no_shard"},
    {"parallelism.sharding_strategy", "zero1", "shard_optim"},
    {"parallelism.sharding_strategy", "zero2", "shard_grad_op"},
    {"parallelism.sharding_strategy", "zero3", "full_shard"},
    {"parallelism.sharding_strategy", "fsdp", "full_shard"},
    {"parallelism.sharding_strategy", "hsdp", "hybrid_shard"},
    {"parallelism.sharding_strategy", "_hybrid_shard_zero2", "hybrid_shard_zero2"},
    {"checkpoint.async_mode", "async_with_pinned_mem", "async"},
    {"training.mixed_precision_param", "fp32", "float32"},
    {"training.mixed_precision_param", "bf16", "bfloat16"},
    {"training.mixed_precision_param", "fp16", "float16"},
    {"training.mixed_precision_param", "no", "float32"},
    {"training.mixed_precision_reduce", "fp32", "float32"},
    {"training.mixed_precision_reduce", "bf16", "bfloat16"},
    {"optimizer.state_dtype", "fp32", "float32"},
    {"optimizer.state_dtype", "bf16", "bfloat16"},
    {"objective.name", "multi_label_classification", "multi_label"},
    {"offload.optimizer", "disk", "nvme"},
    {"offload.optimizer", "file", "nvme"},
    {"offload.gradients", "disk", "nvme"},
    {"offload.gradients", "file", "nvme"},
};

/* Words of other trainers that have no counterpart here; a star matches anything. */
#define F1B "the one with the same numbers is 1F1B, whose stages wait for each other longer or keep less"
#define ZBH1 "the nearest one is ZBH1, with one chunk of blocks for each stage"
#define ONE_SCALE "int8 has as many bytes, and smaller errors, since 64 numbers share a scale"
#define WHOLE                                                                                                        \
    "its states are square matrices beside each matrix, for which there is no kernel; muon and normuon also update " \
    "whole matrices"
#define LOW_RANK \
    "it makes Muon's step from factors of low rank; muon makes the whole one, with the same bits on every mesh"
#define FREE                                                                                                          \
    "it evaluates other parameters than it trains; lr_scheduler.decay_type=constant or wsd with optimizer.ema_decay " \
    "and validation.ema averages them too"
#define FOUR_BITS \
    "no kernel has states of four bits; optimizer.state_dtype=int8 takes little more than a quarter of float32"
#define EIGHT_BITS "give adamw or lion, with optimizer.state_dtype=int8"
#define SMALL "adamw with optimizer.state_dtype=int8 has small states, and offload.optimizer moves them away"
#define ADAMW "it is adamw, with optimizer.weight_decay=0 for Adam without its decay"
#define NO_STEP "there is no kernel for its step; give adamw, lion or muon"
#define NO_OPTIMIZER "optimizers are built in; plug-ins bring operations and losses (doc/plugins.md)"
#define GRAM                                                                                                \
    "iterating on the product of a matrix with itself loses digits, in bfloat16 all of them; the words of " \
    "optimizer.muon_coefficients iterate on the matrix"
#define ONE_LOSS "one loss at a time; objective.sft_weight adds that of the chosen answer"
#define ONLINE "nothing generates answers while it trains; dpo learns from pairs, or single answers, of a file"
#define REVERSE                                                                                                       \
    "it needs the teacher's probabilities of the student's likeliest tokens, and a file has those of the teacher's; " \
    "distillation learns by the forward divergence"
#define DPO_LOSS "it is a word of objective.loss_type, with objective.name=dpo"
#define MOVING "the reference is the model that a run begins with; a run from newer parameters has a newer one"
#define BATCH_LOSS \
    "it compares answers of a device's batch, so results would depend on the mesh; the losses here are of pairs or answers"
#define CLIPPED "it clips by the largest score of each head, which no kernel keeps; muon does the rest"
static const struct {
    const char *key, *word, *advice;
} no_words[] = {
    {"training.device", "gpu*", "give cuda"},
    {"optimizer.name", "*soap*", WHOLE},
    {"optimizer.name", "*shampoo*", WHOLE},
    {"optimizer.name", "kron*", WHOLE},
    {"optimizer.name", "psgd*", WHOLE},
    {"optimizer.name", "*muon*clip*", CLIPPED},
    {"optimizer.name", "*dion*", LOW_RANK},
    {"optimizer.name", "*schedule*free*", FREE},
    {"optimizer.name", "*4*bit*", FOUR_BITS},
    {"optimizer.name", "*8*bit*", EIGHT_BITS},
    {"optimizer.name", "*adafactor*", SMALL},
    {"optimizer.name", "*galore*", SMALL},
    {"optimizer.name", "*apollo*", SMALL},
    {"optimizer.name", "*fp8*", EIGHT_BITS},
    {"optimizer.name", "*anyprecision*", "it is adamw; optimizer.state_dtype=bfloat16 keeps its states in two bytes"},
    {"optimizer.name", "paged_*", SMALL},
    {"optimizer.name", "lion_*", "it is lion"},
    {"optimizer.name", "adam", ADAMW},
    {"optimizer.name", "adamw_[htax]*", ADAMW}, /* hf, torch, apex, xla */
    {"optimizer.name", "*fused*adam*", ADAMW},
    {"optimizer.name", "*cpu*adam", ADAMW},
    {"optimizer.name", "*nesterov*", NO_STEP},
    {"optimizer.name", "splus", NO_STEP},
    {"optimizer.name", "laprop", NO_STEP},
    {"optimizer.name", "*lomo", NO_STEP},
    {"optimizer.name", "*_adamw", NO_STEP},
    {"optimizer.name", "grokadamw", NO_STEP},
    {"optimizer.name", "*adam", NO_STEP},
    {"optimizer.name", "adam_mini", NO_STEP},
    {"optimizer.name", "ademamix*", NO_STEP},
    {"optimizer.name", "rmsprop*", NO_STEP},
    {"optimizer.name", "adagrad*", NO_STEP},
    {"optimizer.name", "came*", NO_STEP},
    {"optimizer.name", "prodigy*", NO_STEP},
    {"optimizer.name", "sophia*", NO_STEP},
    {"optimizer.name", "*lamb", NO_STEP},
    {"optimizer.name", "mars*", NO_STEP},
    {"optimizer.name", "plug*in*", NO_OPTIMIZER},
    {"optimizer.name", "*.so", NO_OPTIMIZER},
    {"optimizer.state_dtype", "*fp8*", ONE_SCALE},
    {"optimizer.state_dtype", "*float8*", ONE_SCALE},
    {"optimizer.state_dtype", "*int4*", FOUR_BITS},
    {"optimizer.state_dtype", "*fp4*", FOUR_BITS},
    {"optimizer.state_dtype", "*nf4*", FOUR_BITS},
    {"optimizer.state_dtype", "*4*bit*", FOUR_BITS},
    {"optimizer.name", "*gram*", GRAM},
    {"optimizer.name", "*_muon", "it is muon, with whole matrices at their owners"},
    {"optimizer.muon_coefficients", "*gram*", GRAM},
    {"objective.loss_type", "*[, +]*", ONE_LOSS},
    {"objective.loss_type", "tr*dpo", MOVING},
    {"objective.loss_type", "aot*", BATCH_LOSS},
    {"objective.loss_type", "*grpo*", ONLINE},
    {"objective.loss_type", "[dg][as]po", ONLINE},
    {"objective.loss_type", "discopop", "a plug-in can bring it, with objective.loss_type=plugin (doc/plugins.md)"},
    {"objective.loss_type", "sft", "it is objective.name=lm; objective.sft_weight adds it to a loss of pairs"},
    {"objective.name", "*grpo*", ONLINE},
    {"objective.name", "[dg][as]po", ONLINE},
    {"objective.name", "*ppo", ONLINE},
    {"objective.name", "*rloo*", ONLINE},
    {"objective.name", "*online*", ONLINE},
    {"objective.name", "*gkd*", REVERSE},
    {"objective.name", "*minillm*", REVERSE},
    {"objective.name", "*reverse*", REVERSE},
    {"objective.name", "*jsd*", REVERSE},
    {"objective.kd_form", "*reverse*", REVERSE},
    {"objective.kd_form", "rkl", REVERSE},
    {"objective.kd_form", "top*p",
     "objective.top_k takes as many tokens at each place; teacher/mass says what they hold"},
    {"objective.kd_form", "*jsd*", REVERSE},
    {"objective.name", "kd*", "it is distillation, with a file of `sherd eval --top-k` as objective.teacher_path"},
    {"objective.name", "preference", "it is dpo, with objective.loss_type for the loss"},
    {"objective.name", "*classification", "it is lm, with model.num_labels; several labels of a text are multi_label"},
    {"objective.name", "kto", DPO_LOSS},
    {"objective.name", "orpo", DPO_LOSS},
    {"objective.name", "simpo", DPO_LOSS},
    {"objective.name", "cpo", DPO_LOSS},
    {"objective.name", "ipo", DPO_LOSS},
    {"objective.name", "bco*", "objective.loss_type=bco_pair learns it from pairs, with objective.name=dpo"},
    {"objective.name", "tr*dpo", MOVING},
    {"objective.name", "xpo", ONLINE},
    {"objective.name", "nash*", ONLINE},
    {"objective.name", "sft", "it is lm, with answers and their mask from `sherd tokenize --format messages`"},
    {"objective.name", "*[, +]*", ONE_LOSS},
    {"training.mixed_precision_reduce", "fp16", "gradients computed in float16 are reduced in float32"},
    {"training.mixed_precision_reduce", "float16", "gradients computed in float16 are reduced in float32"},
    {"parallelism.gather_dtype", "fp8", ONE_SCALE},
    {"parallelism.gather_dtype", "float8", ONE_SCALE},
    {"offload.parameters", "nvme",
     "a file can hold optimizer states and gradients: offload.optimizer=nvme, gradients=nvme"},
    {"parallelism.pipeline_parallel_schedule", "gpipe", F1B},
    {"parallelism.pipeline_parallel_schedule", "loopedbfs", F1B},
    {"parallelism.pipeline_parallel_schedule", "interleavedzerobubble", ZBH1},
    {"parallelism.pipeline_parallel_schedule", "zbvzerobubble", ZBH1},
    {"parallelism.pipeline_parallel_schedule", "dualpipev", ZBH1},
};

const char *sh_config_alias_advice(const char *key, const char *word)
{
    for (size_t i = 0; i < sizeof no_words / sizeof no_words[0]; i++)
        if (strcmp(no_words[i].key, key) == 0 && fnmatch(no_words[i].word, word, 0) == 0)
            return no_words[i].advice;
    return NULL;
}

const char *sh_config_alias_words(const char *key, char out[SH_CONFIG_WORDS_MAX])
{
    out[0] = '\0';
    for (size_t i = 0; i < sizeof other_words / sizeof other_words[0]; i++)
        if (strcmp(other_words[i].key, key) == 0 && other_words[i].word[0] != '_')
            sh_str_add(out, SH_CONFIG_WORDS_MAX, ", ", other_words[i].word);
    return out;
}

/* A pointer into `word`. */
static const char *without_prefix(const char *key, const char *word)
{
    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++) {
        size_t len = strlen(prefixes[i].prefix);
        if (strcmp(prefixes[i].key, key) == 0 && strncmp(word, prefixes[i].prefix, len) == 0)
            return word + len;
    }
    return word;
}

/* Returns the canonical spelling, in `out` or as a constant. Words longer than any value of a key are cut, and then
 * match nothing. */
const char *sh_config_alias_word(const char *key, const char *text, char out[SH_CONFIG_NAME_MAX])
{
    size_t n = 0;
    for (; text[n] != '\0' && n < SH_CONFIG_NAME_MAX - 1; n++)
        out[n] = (char)(text[n] == '-' && n > 0 ? '_' : tolower((unsigned char)text[n])); /* -1 is a number */
    out[n] = '\0';
    const char *word = without_prefix(key, out);
    for (size_t i = 0; i < sizeof other_words / sizeof other_words[0]; i++)
        if (strcmp(other_words[i].key, key) == 0 && strcmp(other_words[i].word, word) == 0)
            return other_words[i].means;
    return word;
}

/* ---- keys ---- */

/* Several aliases resolve to this key. */
static const char strategy_key[] = "parallelism.sharding_strategy";

/* The message names both places, since one of them may be in a file that somebody else wrote. */
static sh_rc clash(struct sh_config_state *state, const char *alias, const char *with, const char *cure)
{
    char other[SH_CONFIG_PATH_MAX];
    sh_config_place_text(sh_config_place_of(state, with), other);
    return sh_config_refuse(state, alias, "contradicts %s given %s; %s", with, other, cure);
}

/* Whether an alias overrides the key that it stands for: it does if it was given in a higher source. Both in one source
 * are refused even if they agree, because the next edit would change only one of them. */
static sh_rc decides(struct sh_config_state *state, const char *alias, const char *main_key, bool *yes)
{
    enum sh_config_source from = sh_config_place_of(state, alias)->source;
    enum sh_config_source other = sh_config_place_of(state, main_key)->source;
    if (from != SH_SOURCE_DEFAULT && from == other)
        return clash(state, alias, main_key, "give one of them");
    *yes = from > other;
    return SH_OK;
}

/* From now on the main key counts as given, in the place of the alias. */
static void take_place(struct sh_config_state *state, const char *alias, const char *main_key)
{
    *sh_config_place_of(state, main_key) = *sh_config_place_of(state, alias);
}

/* Stages 0 to 3 of ZeRO, as strategies of FSDP. */
static sh_rc resolve_zero_stage(struct sh_config_state *state)
{
    static const char alias[] = "parallelism.zero_stage";
    static const int strategy_of_stage[] = {SH_NO_SHARD, SH_SHARD_OPTIM, SH_SHARD_GRAD_OP, SH_FULL_SHARD};
    bool yes;
    SH_TRY(decides(state, alias, strategy_key, &yes));
    if (!yes)
        return SH_OK;
    state->cfg.parallelism.sharding_strategy = strategy_of_stage[state->alias.zero_stage];
    take_place(state, alias, strategy_key);
    return SH_OK;
}

/* -1, "the rest of the ranks", has been read as SH_MESH_ALL already. */
static sh_rc resolve_shard_degree(struct sh_config_state *state)
{
    static const char alias[] = "parallelism.data_parallel_shard_degree";
    bool yes;
    SH_TRY(decides(state, alias, "mesh.shard", &yes));
    if (!yes)
        return SH_OK;
    state->cfg.mesh.shard = state->alias.shard_degree;
    take_place(state, alias, "mesh.shard");
    return SH_OK;
}

/* If no strategy is given, the two degrees mean what they mean in torchtitan: HSDP over all ranks. */
static sh_rc resolve_replicate_degree(struct sh_config_state *state)
{
    static const char alias[] = "parallelism.data_parallel_replicate_degree";
    bool yes;
    SH_TRY(decides(state, alias, "mesh.replicate", &yes));
    if (!yes)
        return SH_OK;
    state->cfg.mesh.replicate = state->alias.replicate_degree;
    take_place(state, alias, "mesh.replicate");
    if (sh_config_place_of(state, "mesh.shard")->source == SH_SOURCE_DEFAULT)
        state->cfg.mesh.shard = SH_MESH_ALL;
    if (sh_config_place_of(state, strategy_key)->source == SH_SOURCE_DEFAULT && state->alias.replicate_degree > 1)
        state->cfg.parallelism.sharding_strategy = SH_HYBRID_SHARD;
    return SH_OK;
}

/* The strategy that differs from `strategy` only in whether it keeps parameters between forward and backward. */
static int strategy_for_reshard(int strategy, bool reshard)
{
    /* Index 0 keeps the parameters after the forward, index 1 drops them. */
    static const int pairs[][2] = {{SH_SHARD_GRAD_OP, SH_FULL_SHARD}, {SH_HYBRID_SHARD_ZERO2, SH_HYBRID_SHARD}};
    for (int i = 0; i < 2; i++)
        if (strategy == pairs[i][0] || strategy == pairs[i][1])
            return pairs[i][reshard];
    return strategy; /* no_shard and shard_optim have no such choice */
}

/* The alias contradicts the strategy only if it would change one given in the same source, or asks to reshard
 * parameters that the strategy never shards. */
static sh_rc resolve_reshard(struct sh_config_state *state)
{
    static const char alias[] = "parallelism.fsdp_reshard_after_forward";
    int *strategy = &state->cfg.parallelism.sharding_strategy;
    enum sh_config_source from = sh_config_place_of(state, alias)->source;
    enum sh_config_source other = sh_config_place_of(state, strategy_key)->source;
    if (from == SH_SOURCE_DEFAULT || from < other || state->alias.reshard == SH_ALIAS_RESHARD_DEFAULT)
        return SH_OK;
    bool reshard = state->alias.reshard == SH_ALIAS_RESHARD_ALWAYS;
    int wanted = strategy_for_reshard(*strategy, reshard);
    if ((wanted != *strategy && from == other) || (reshard && *strategy <= SH_SHARD_OPTIM))
        return clash(state, alias, strategy_key, "choose the strategy alone");
    *strategy = wanted;
    return SH_OK;
}

/* torchtitan writes the option next to `mode: selective`, so here too the two belong together. */
static sh_rc resolve_selective(struct sh_config_state *state)
{
    static const char alias[] = "activation_checkpoint.selective_ac_option";
    static const char mode_key[] = "activation_checkpoint.mode";
    enum sh_config_source from = sh_config_place_of(state, alias)->source;
    enum sh_config_source other = sh_config_place_of(state, mode_key)->source;
    bool yes;
    if (from == SH_SOURCE_DEFAULT || from < other)
        return SH_OK;
    if (other == SH_SOURCE_DEFAULT)
        state->cfg.activation_checkpoint.mode = SH_RECOMPUTE_SELECTIVE;
    if (state->cfg.activation_checkpoint.mode != SH_RECOMPUTE_SELECTIVE)
        return clash(state, alias, mode_key, "choose mode: selective, or leave the option out");
    if (state->alias.selective_option == SH_ALIAS_SELECTIVE_OP)
        return SH_OK;
    SH_TRY(decides(state, alias, "activation_checkpoint.every_k", &yes));
    state->cfg.activation_checkpoint.mode = SH_RECOMPUTE_EVERY_K;
    if (yes)
        state->cfg.activation_checkpoint.every_k = state->alias.selective_option;
    return SH_OK;
}

/* A shorter name for the same folder. */
static sh_rc resolve_hf(struct sh_config_state *state)
{
    static const char alias[] = "model.hf", main_key[] = "model.hf_assets_path";
    bool yes;
    SH_TRY(decides(state, alias, main_key, &yes));
    if (!yes)
        return SH_OK;
    memcpy(state->cfg.hf.assets_path, state->alias.hf, sizeof state->alias.hf);
    take_place(state, alias, main_key);
    return SH_OK;
}

/* PEFT's words. */
static sh_rc resolve_lora(struct sh_config_state *state)
{
    bool rank, alpha;
    SH_TRY(decides(state, "lora.r", "lora.rank", &rank));
    SH_TRY(decides(state, "lora.lora_alpha", "lora.alpha", &alpha));
    if (rank) {
        state->cfg.lora.rank = state->alias.lora_rank;
        take_place(state, "lora.r", "lora.rank");
    }
    if (alpha) {
        state->cfg.lora.alpha = state->alias.lora_alpha;
        take_place(state, "lora.lora_alpha", "lora.alpha");
    }
    return SH_OK;
}

/* Move all state to host memory. When a CPU computes, it is there already: that is refused under the name that the user
 * wrote. */
static sh_rc resolve_cpu_offload(struct sh_config_state *state)
{
    static const char alias[] = "training.enable_cpu_offload";
    const struct {
        const char *key;
        int *value;
    } rows[] = {
        {"offload.optimizer", &state->cfg.offload.optimizer},
        {"offload.gradients", &state->cfg.offload.gradients},
        {"offload.parameters", &state->cfg.offload.parameters},
    };
    bool yes;
    if (state->alias.cpu_offload && state->cfg.training.device == SH_DEVICE_CPU)
        return sh_config_refuse(state, alias,
                                "is for GPUs: with training.device=cpu all state is in the CPU's memory already; "
                                "offload.optimizer=nvme with offload.nvme_path puts optimizer states in a file");
    for (size_t i = 0; state->alias.cpu_offload && i < sizeof rows / sizeof rows[0]; i++) {
        SH_TRY(decides(state, alias, rows[i].key, &yes));
        if (!yes)
            continue;
        *rows[i].value = SH_OFFLOAD_CPU;
        take_place(state, alias, rows[i].key);
    }
    return SH_OK;
}

/* The order matters: degrees and stages choose a strategy, which reshard then refines. */
sh_rc sh_config_alias_resolve(struct sh_config_state *state)
{
    SH_TRY(resolve_hf(state));
    SH_TRY(resolve_lora(state));
    SH_TRY(resolve_cpu_offload(state));
    /* Stages and degrees before reshard, which looks at the strategy that they leave. */
    SH_TRY(resolve_zero_stage(state));
    SH_TRY(resolve_shard_degree(state));
    SH_TRY(resolve_replicate_degree(state));
    SH_TRY(resolve_reshard(state)); /* after everything that chooses a strategy */
    return resolve_selective(state);
}
