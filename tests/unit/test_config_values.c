/* The values of a loaded configuration: defaults, presets, other spellings, and which source wins. */
#include "src/config/config.h"
#include "src/config/foreign/alias.h"
#include "src/config/keys.h"
#include "src/config/preset.h"
#include "src/config/read/value.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ARGUMENTS_MAX = 4 };

static struct sh_config load(const char *yaml, const char *const *arguments)
{
    struct sh_config cfg;
    int n = 0;
    while (n < ARGUMENTS_MAX && arguments[n] != NULL)
        n++;
    if (sh_config_parse(yaml, strlen(yaml), "c.yaml", n, arguments, &cfg) != SH_OK)
        fail_msg("%s\n%s", yaml, sh_error_text());
    return cfg;
}

/* Value of "section.key" as it would be printed. */
static char *value_of(const struct sh_config *cfg, const char *name)
{
    const struct sh_config_key *key = sh_config_key_find(name);
    assert_non_null(key);
    return sh_config_value_text(key, cfg);
}

static const struct expectation {
    const char *yaml;                     /* after "model: {name: debug}" */
    const char *arguments[ARGUMENTS_MAX]; /* without the dashes */
    const char *key, *value;
} expectations[] = {
    /* spellings of values */
    {"parallelism: {sharding_strategy: FULL_SHARD}", {0}, "parallelism.sharding_strategy", "full_shard"},
    {"parallelism: {sharding_strategy: ShardingStrategy.SHARD_GRAD_OP}",
     {0},
     "parallelism.sharding_strategy",
     "shard_grad_op"},
    {"parallelism: {sharding_strategy: NO_SHARD}", {0}, "parallelism.sharding_strategy", "no_shard"},
    {"parallelism: {sharding_strategy: ShardingStrategy._HYBRID_SHARD_ZERO2}",
     {0},
     "parallelism.sharding_strategy",
     "hybrid_shard_zero2"},
    {"parallelism: {sharding_strategy: ddp}", {0}, "parallelism.sharding_strategy", "no_shard"},
    {"parallelism: {sharding_strategy: hsdp}", {0}, "parallelism.sharding_strategy", "hybrid_shard"},
    {"parallelism: {sharding_strategy: full-shard}", {0}, "parallelism.sharding_strategy", "full_shard"},
    {"parallelism: {sharding_strategy: zero1}", {0}, "parallelism.sharding_strategy", "shard_optim"},
    {"training: {mixed_precision_param: fp32}", {0}, "training.mixed_precision_param", "float32"},
    {"training: {mixed_precision_param: FP16}", {0}, "training.mixed_precision_param", "float16"},
    {"training: {mixed_precision_param: torch.float16}", {0}, "training.mixed_precision_param", "float16"},
    {"training: {mixed_precision_param: torch.bfloat16}", {0}, "training.mixed_precision_param", "bfloat16"},
    {"training: {mixed_precision_reduce: torch.bfloat16}", {0}, "training.mixed_precision_reduce", "bfloat16"},
    {"training: {mixed_precision_reduce: fp32}", {0}, "training.mixed_precision_reduce", "float32"},
    {"training: {mixed_precision_reduce: bf16}", {0}, "training.mixed_precision_reduce", "bfloat16"},
    {"optimizer: {state_dtype: torch.bfloat16}", {0}, "optimizer.state_dtype", "bfloat16"},
    {"optimizer: {state_dtype: fp32}", {0}, "optimizer.state_dtype", "float32"},
    {"optimizer: {state_dtype: bf16}", {0}, "optimizer.state_dtype", "bfloat16"},
    {"optimizer: {state_dtype: torch.int8}", {0}, "optimizer.state_dtype", "int8"},
    {"checkpoint: {hints: {striping_factor: 16, cb_config_list: '*:1', romio_no_indep_rw: true}}",
     {0},
     "checkpoint.hints",
     "\"striping_factor=16,cb_config_list=*:1,romio_no_indep_rw=true\""},
    {"checkpoint: {hints: 'a=1,b=2'}", {0}, "checkpoint.hints", "\"a=1,b=2\""},
    {"checkpoint: {hints: {}}", {0}, "checkpoint.hints", "\"\""},
    {"checkpoint: {hints: {a: 1}}", {"checkpoint.hints=b=2,c=3"}, "checkpoint.hints", "\"b=2,c=3\""},
    {"data: {shuffle: False}", {0}, "data.shuffle", "false"},
    {"data: {token_type: \"uint32\"}", {0}, "data.token_type", "uint32"},
    {"memory: {limit_bytes: 4GiB}", {0}, "memory.limit_bytes", "4294967296"},
    {"memory: {host_limit_bytes: 4GiB}", {0}, "memory.host_limit_bytes", "4294967296"},
    {"memory: {limit_bytes: 512 MiB}", {0}, "memory.limit_bytes", "536870912"},
    {"memory: {limit_bytes: 3KiB}", {0}, "memory.limit_bytes", "3072"},
    {"memory: {limit_bytes: 2TiB}", {0}, "memory.limit_bytes", "2199023255552"},
    {"memory: {limit_bytes: 5 KB}", {0}, "memory.limit_bytes", "5000"},
    {"memory: {limit_bytes: 5B}", {0}, "memory.limit_bytes", "5"},
    {"memory: {limit_bytes: 10M}", {0}, "memory.limit_bytes", "10000000"},
    {"memory: {limit_bytes: 3K}", {0}, "memory.limit_bytes", "3000"},
    {"memory: {limit_bytes: 2G}", {0}, "memory.limit_bytes", "2000000000"},
    {"memory: {limit_bytes: 3GB}", {0}, "memory.limit_bytes", "3000000000"},
    {"memory: {limit_bytes: 12345}", {0}, "memory.limit_bytes", "12345"},
    {"mesh: {shard: node}", {0}, "mesh.shard", "node"},
    {"mesh: {shard: 4}", {0}, "mesh.shard", "4"},
    {"mesh: {shard: auto, replicate: 2}", {0}, "mesh.replicate", "2"},
    {"optimizer: {lr: 6e-4}", {0}, "optimizer.lr", "0.0006"},
    {"optimizer: {groups: [{pattern: norm, lr: 0.5}, {pattern: wte, weight_decay: 0, eps: 1e-6}]}",
     {0},
     "optimizer.groups",
     "\"pattern=norm lr=0.5; pattern=wte weight_decay=0 eps=1e-6\""},
    /* A run by adamw with a group by muon is one by muon in which all else is by adamw. */
    {"optimizer: {groups: [{pattern: q_proj, optimizer: muon}, {pattern: norm, lr: 2}]}",
     {0},
     "optimizer.groups",
     "\"pattern=q_proj optimizer=muon; pattern=norm lr=2 optimizer=adamw; pattern=. optimizer=adamw\""},
    {"optimizer: {momentum: 0.8, groups: [{pattern: q_proj, optimizer: normuon}]}", {0}, "optimizer.name", "normuon"},
    {"optimizer: {name: muon, groups: [{pattern: q_proj, optimizer: muon}]}",
     {0},
     "optimizer.groups",
     "\"pattern=q_proj optimizer=muon\""},
    {"optimizer: {groups: [{pattern: q_proj, optimizer: muon}, {pattern: ., lr: 2}]}",
     {0},
     "optimizer.groups",
     "\"pattern=q_proj optimizer=muon; pattern=. lr=2 optimizer=adamw\""},
    {"debug: {seed: 18446744073709551615}", {0}, "debug.seed", "18446744073709551615"},
    {"job: {description: \"tab\\\\le \\\"x\\\" \\u00e9\"}", {0}, "job.description", "\"tab\\\\le \\\"x\\\" \xc3\xa9\""},
    {"job: {description: 12}", {0}, "job.description", "\"12\""},
    {"training:\n# all of it commented out\ndata: {shuffle: false}", {0}, "data.shuffle", "false"},
    /* keys that are aliases */
    {"training: {enable_cpu_offload: false}", {0}, "offload.optimizer", "none"},
    {"training: {enable_cpu_offload: true}", {0}, "offload.optimizer", "cpu"},
    {"training: {enable_cpu_offload: true}", {0}, "offload.gradients", "cpu"},
    {"training: {enable_cpu_offload: true}", {"offload.gradients=none"}, "offload.gradients", "none"},
    {"training: {enable_cpu_offload: true}", {0}, "offload.parameters", "cpu"},
    {"offload: {optimizer: Disk, nvme_path: /d}", {0}, "offload.optimizer", "nvme"},
    {"parallelism: {zero_stage: 0}", {0}, "parallelism.sharding_strategy", "no_shard"},
    {"parallelism: {zero_stage: 1}", {0}, "parallelism.sharding_strategy", "shard_optim"},
    {"parallelism: {zero_stage: 2}", {0}, "parallelism.sharding_strategy", "shard_grad_op"},
    {"parallelism: {zero_stage: 3}", {0}, "parallelism.sharding_strategy", "full_shard"},
    {"parallelism: {fsdp_reshard_after_forward: never}", {0}, "parallelism.sharding_strategy", "shard_grad_op"},
    {"parallelism: {fsdp_reshard_after_forward: always}", {0}, "parallelism.sharding_strategy", "full_shard"},
    {"parallelism: {fsdp_reshard_after_forward: default, zero_stage: 2}",
     {0},
     "parallelism.sharding_strategy",
     "shard_grad_op"},
    {"parallelism: {data_parallel_replicate_degree: 2}", {0}, "parallelism.sharding_strategy", "hybrid_shard"},
    {"parallelism: {data_parallel_replicate_degree: 2}", {0}, "mesh.replicate", "2"},
    {"parallelism: {data_parallel_replicate_degree: 2}", {0}, "mesh.shard", "all"},
    {"parallelism: {data_parallel_replicate_degree: 1, data_parallel_shard_degree: 8}", {0}, "mesh.shard", "8"},
    {"parallelism: {data_parallel_replicate_degree: 1}", {0}, "parallelism.sharding_strategy", "full_shard"},
    {"parallelism: {data_parallel_replicate_degree: 2, fsdp_reshard_after_forward: never}",
     {0},
     "parallelism.sharding_strategy",
     "hybrid_shard_zero2"},
    {"parallelism: {data_parallel_replicate_degree: 2, zero_stage: 0}",
     {0},
     "parallelism.sharding_strategy",
     "no_shard"},
    {"parallelism: {data_parallel_shard_degree: -1}", {0}, "mesh.shard", "all"},
    {"activation_checkpoint: {mode: selective, selective_ac_option: 'op'}",
     {0},
     "activation_checkpoint.mode",
     "selective"},
    {"activation_checkpoint: {mode: selective, selective_ac_option: 3}", {0}, "activation_checkpoint.mode", "every_k"},
    {"activation_checkpoint: {mode: selective, selective_ac_option: 3}", {0}, "activation_checkpoint.every_k", "3"},
    {"activation_checkpoint: {mode: memory-budget}\nmemory: {limit_bytes: 2GiB}",
     {0},
     "activation_checkpoint.mode",
     "memory_budget"},
    {"activation_checkpoint: {selective_ac_option: op}", {0}, "activation_checkpoint.mode", "selective"},
    /* sources */
    {"training: {steps: 5}", {"training.steps=6"}, "training.steps", "6"},
    {"job: {description: x}", {"job.description="}, "job.description", "\"\""},
    {"job: {description: longer}", {"job.description=a=b"}, "job.description", "\"a=b\""},
    {"parallelism: {sharding_strategy: full_shard}",
     {"parallelism.zero_stage=2"},
     "parallelism.sharding_strategy",
     "shard_grad_op"},
    {"parallelism: {zero_stage: 2}",
     {"parallelism.sharding_strategy=full_shard"},
     "parallelism.sharding_strategy",
     "full_shard"},
    {"parallelism: {fsdp_reshard_after_forward: never}",
     {"parallelism.sharding_strategy=full_shard"},
     "parallelism.sharding_strategy",
     "full_shard"},
    {"parallelism: {sharding_strategy: full_shard}",
     {"parallelism.fsdp_reshard_after_forward=never"},
     "parallelism.sharding_strategy",
     "shard_grad_op"},
    {"activation_checkpoint: {selective_ac_option: 3}",
     {"activation_checkpoint.mode=none"},
     "activation_checkpoint.mode",
     "none"},
    {"mesh: {shard: 2}", {"parallelism.data_parallel_shard_degree=4"}, "mesh.shard", "4"},
    /* presets and what follows from other keys */
    {"", {"model.n_layers=2"}, "model.n_layers", "2"},
    {"", {"model.n_layers=2"}, "model.dim", "128"},
    {"", {0}, "training.seq_len", "512"},
    {"", {"model.max_seq_len=4096"}, "training.seq_len", "2048"},
    {"", {"model.name=llama3.1-70b"}, "model.n_kv_heads", "8"},
    {"", {"model.name=llama3.2-1b"}, "model.tie_word_embeddings", "true"},
    {"", {"model.name=gpt2-1558m"}, "model.family", "gpt2"},
};

static void test_values(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof expectations / sizeof expectations[0]; i++) {
        const struct expectation *e = &expectations[i];
        char yaml[512];
        snprintf(yaml, sizeof yaml, "model: {name: debug}\n%s\n", e->yaml);
        struct sh_config cfg = load(yaml, e->arguments);
        char *value = value_of(&cfg, e->key);
        if (strcmp(value, e->value) != 0)
            fail_msg("%s: %s is %s, not %s", e->yaml, e->key, value, e->value);
        free(value);
    }
}

/* Widths and heads that follow from others if they are not given. */
static void test_derived(void **state)
{
#define SHAPE "n_layers: 2, dim: 100, n_heads: 5, vocab_size: 100, max_seq_len: 32"
    const char *const none[] = {NULL};
    struct sh_config gpt2 = load("model: {family: gpt2, " SHAPE "}", none), llama = load("model: {" SHAPE "}", none);
    struct sh_config heads = load("model: {name: gpt2-124m, n_heads: 4, head_dim: 192}", none);
    struct sh_config grouped = load("model: {name: llama3.1-8b, n_heads: 16}", none);
    (void)state;
    assert_int_equal(gpt2.model.ffn_dim, 400);
    assert_int_equal(llama.model.ffn_dim, 320); /* 266, rounded up */
    assert_int_equal(heads.model.n_kv_heads, 4);
    assert_int_equal(grouped.model.n_kv_heads, 8);
#undef SHAPE
}

static void test_custom_model(void **state)
{
    (void)state;
    const char *const none[] = {NULL};
    struct sh_config c =
        load("model: {n_layers: 2, dim: 64, n_heads: 4, ffn_dim: 96, vocab_size: 100, max_seq_len: 32, init_std: 0.1}",
             none);
    assert_string_equal(c.model.name, "custom");
    assert_int_equal(c.model.n_kv_heads, 4);
    assert_int_equal(c.model.head_dim, 16);
    assert_int_equal(c.model.family, SH_FAMILY_LLAMA);
    assert_true(c.model.init_std == 0.1);
    assert_true(c.model.rope_theta == 10000);
}

/* The least step of the blocks of Mamba-2 is that of transformers' class, unless one is given. */
static void test_least_step(void **state)
{
#define MODEL                                                                                                  \
    "model: {name: debug, family: nemotron_h, linear_key_heads: 2, linear_value_heads: 4, linear_key_dim: 4, " \
    "linear_value_dim: 4, linear_conv_size: 4"
#define GRANITE                                                                                                      \
    "model: {name: debug, family: granitemoehybrid, linear_key_heads: 2, linear_value_heads: 4, linear_key_dim: 4, " \
    "linear_value_dim: 4, linear_conv_size: 4"
#define EXPERTS ", n_experts: 4, n_experts_per_token: 2, expert_ffn_dim: 8"
    const char *const none[] = {NULL};
    const char *const zero[] = {"model.linear_least_step=0", NULL};
    (void)state;
    assert_true(load(MODEL "}", none).model.linear_least_step == 0.001);
    assert_true(load(MODEL ", linear_least_step: 0.25}", none).model.linear_least_step == 0.25);
    assert_true(load(MODEL "}", zero).model.linear_least_step == 0);
    assert_true(load("model: {name: debug}", none).model.linear_least_step == 0);
    assert_true(load(GRANITE "}", none).model.linear_least_step == 0);
    assert_true(load(GRANITE ", linear_least_step: 0.25}", none).model.linear_least_step == 0.25);
    assert_false(load(GRANITE "}", none).model.route_norm); /* there is nothing to divide */
    assert_true(load(GRANITE EXPERTS "}", none).model.route_norm);
#undef EXPERTS
#undef GRANITE
#undef MODEL
}

/* Compute the number of parameters of a preset from its dimensions, to compare with the published counts. */
static int64_t parameters(const struct sh_config *c)
{
    int64_t C = c->model.dim, F = c->model.ffn_dim, L = c->model.n_layers, V = c->model.vocab_size;
    int64_t q = (int64_t)c->model.n_heads * c->model.head_dim, kv = (int64_t)c->model.n_kv_heads * c->model.head_dim;
    if (c->model.family == SH_FAMILY_GPT2)
        return V * C + c->model.max_seq_len * C + L * (12 * C * C + 13 * C) + 2 * C;
    int64_t block = 2 * C * q + 2 * C * kv + 3 * C * F + 2 * C;
    return V * C * (c->model.tie_word_embeddings ? 1 : 2) + L * block + C;
}

static const struct {
    const char *name;
    int64_t parameters;
} published[] = {
    {"gpt2-124m", 124439808},    {"gpt2-1558m", 1557611200},    {"llama3.2-1b", 1235814400},
    {"llama3.1-8b", 8030261248}, {"llama3.1-70b", 70553706496}, {"llama3.1-405b", 405853388800},
};

static void test_presets(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof published / sizeof published[0]; i++) {
        char argument[64];
        snprintf(argument, sizeof argument, "model.name=%s", published[i].name);
        const char *const arguments[] = {argument, NULL};
        struct sh_config cfg = load("", arguments);
        assert_int_equal(parameters(&cfg), published[i].parameters);
        assert_int_equal(cfg.training.seq_len, cfg.model.max_seq_len < 2048 ? cfg.model.max_seq_len : 2048);
    }
}

/* Rows of the table: complete, distinct, and every preset is named where users look for it. */
static void test_table(void **state)
{
    char words[SH_CONFIG_WORDS_MAX];

    (void)state;
    for (int i = 0; i < sh_config_n_keys; i++) {
        const struct sh_config_key *key = &sh_config_keys[i];
        assert_ptr_equal(sh_config_key_find(key->name), key);
        assert_true(strlen(sh_config_value_words(key, words)) < SH_CONFIG_WORDS_MAX - 1); /* whole */
        assert_true(strlen(sh_config_alias_words(key->name, words)) < SH_CONFIG_WORDS_MAX - 1);
        assert_true(key->help != NULL && key->help[0] != '\0' && (key->def != NULL || key->derived != NULL));
        assert_true(key->alias_of == NULL || sh_config_key_find(key->alias_of) != NULL);
        assert_true(key->only_words || key->type == SH_KEY_STRING || key->type == SH_KEY_UINT64 || key->min < key->max);
        assert_true(!key->only_words || key->words != NULL);
        assert_true(key->type != SH_KEY_INT || (key->min >= INT32_MIN && key->max <= INT32_MAX));
    }
    for (int i = 0; sh_config_preset_name(i) != NULL; i++)
        assert_non_null(strstr(sh_config_key_find("model.name")->help, sh_config_preset_name(i)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),     cmocka_unit_test(test_custom_model), cmocka_unit_test(test_derived),
        cmocka_unit_test(test_least_step), cmocka_unit_test(test_presets),      cmocka_unit_test(test_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
