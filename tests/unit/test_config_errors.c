/* Every kind of invalid configuration, with the message of its refusal. */
#include "src/config/config.h"
#include "src/config/keys.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define DEBUG_MODEL "model: {name: debug}\n"

struct refusal {
    const char *given, *error;
};

/* clang-format off */
static const struct
    refusal
        texts
            [] =
                {
                    /* keys and sections */
                    {"job:\n\ntraining:\n  stepz: 5\n",
                     "c.yaml:4: training.stepz: no such key; nearest is training.steps"},
                    {"training:\n  lr: 5\n", "c.yaml:2: training.lr: no such key; optimizer.lr"},
                    {"training:\n  qwertyuiopas: 5\n", "c.yaml:2: training.qwertyuiopas: no such key"},
                    {"trainin:\n  steps: 5\n", "c.yaml:1: trainin: no such section; nearest is training"},
                    {"training.steps: 5\n", "c.yaml:1: training.steps: write the section and, below it, the key"},
                    {"zzzzzzzzzzzz:\n  steps: 5\n", "c.yaml:1: zzzzzzzzzzzz: no such section"},
                    {"training:\n  steps: 5\n  steps: 5\n", "c.yaml:3: training.steps: given twice, first at c.yaml:2"},
                    {"training:\n  steps: 5\ntraining:\n  max_norm: 5\n", "c.yaml:3: training: section given twice"},
                    {"training: 5\n", "c.yaml:1: training: a section; expected keys below it, not a value"},
                    {"\"a\\nb\": 5\n", "c.yaml:1: name of a section with control characters"},
                    {"training:\n  \"st\\0eps\": 5\n", "c.yaml:2: name of a key with control characters"},
                    /* types */
                    {"training:\n  steps: many\n", "c.yaml:2: training.steps: 'many' is not a whole number"},
                    {"training:\n  steps: \"5\"\n",
                     "c.yaml:2: training.steps: expected a whole number, got a string; leave out the quotes"},
                    {"training:\n  steps: 1.5\n", "c.yaml:2: training.steps: '1.5' is not a whole number"},
                    {"training:\n  steps: 1e3\n", "c.yaml:2: training.steps: '1e3' is not a whole number"},
                    {"training:\n  steps: 010\n", "c.yaml:2: training.steps: '010' is not a whole number"},
                    {"training:\n  steps: 0x10\n", "c.yaml:2: training.steps: '0x10' is not a whole number"},
                    {"training:\n  steps:\n", "c.yaml:2: training.steps: has no value"},
                    {"job:\n  description:\n", "c.yaml:2: job.description: has no value; write \"\" for an empty one"},
                    {"job:\n  description: ~\n",
                     "c.yaml:2: job.description: has no value; write \"\" for an empty one"},
                    {"optimizer:\n  groups: [{lr: 1}]\n", "c.yaml:2: optimizer.groups: a group has no pattern"},
                    {"optimizer:\n  groups: [{pattern: norm, rate: 1}]\n",
                     "c.yaml:2: optimizer.groups: 'rate' is not a key of a group; the keys are pattern, optimizer, lr, weight_decay, "
                     "beta1, beta2, eps"},
                    {"optimizer:\n  groups: [{pattern: 'layers\\.\\d', lr: 1}]\n",
                     "c.yaml:2: optimizer.groups: pattern 'layers\\.\\d': write [0-9] for \\d, [A-Za-z0-9_] for \\w, ( for (?:"},
                    {"optimizer:\n  groups: [{pattern: 'a(', lr: 1}]\n",
                     "c.yaml:2: optimizer.groups: pattern 'a(' is no extended regular expression"},
                    {"optimizer:\n  groups: [{pattern: a, beta1: 1}]\n",
                     "c.yaml:2: optimizer.groups: beta1=1: not a number from 0 to 1"},
                    {"optimizer:\n  groups: [{pattern: a b}]\n",
                     "c.yaml:2: optimizer.groups: pattern: 'a b' has a blank or a semicolon"},
                    {DEBUG_MODEL "optimizer:\n  name: lion\n  groups: [{pattern: a, optimizer: adamw}]\n",
                     "c.yaml:4: optimizer.groups: pattern 'a': optimizer=adamw does not go with optimizer.name=lion; "
                     "adamw goes with muon, and with normuon, and no other two in one run"},
                    {DEBUG_MODEL "optimizer:\n  groups: [{pattern: a, optimizer: muon}, {pattern: b, optimizer: normuon}]\n",
                     "c.yaml:3: optimizer.groups: pattern 'b': optimizer=normuon does not go with optimizer.name=muon; "
                     "adamw goes with muon, and with normuon, and no other two in one run"},
                    {DEBUG_MODEL "optimizer:\n  name: sgd\n  groups: [{pattern: a, beta1: 0.5}, {pattern: b, beta2: 0.5}]\n",
                     "c.yaml:4: optimizer.groups: pattern 'b': beta2 has no effect on what sgd updates"},
                    {DEBUG_MODEL "optimizer:\n  name: lion\n  groups: [{pattern: a, beta2: 0.5}, {pattern: b, eps: 0.5}]\n",
                     "c.yaml:4: optimizer.groups: pattern 'b': eps has no effect on what lion updates"},
                    {DEBUG_MODEL "optimizer:\n  name: muon\n  groups: [{pattern: a, eps: 0.5}, {pattern: b, eps: 0.5, optimizer: muon}]\n",
                     "c.yaml:4: optimizer.groups: pattern 'b': eps has no effect on what muon updates"},
                    {"optimizer:\n  groups: [{pattern: a, optimizer: adam}]\n",
                     "c.yaml:2: optimizer.groups: optimizer=adam is not one of adamw, sgd, lion, muon, normuon"},
                    {"optimizer:\n  groups: 'pattern=a optimizer=muon optimizer=adamw'\n",
                     "c.yaml:2: optimizer.groups: optimizer is given twice in a group"},
                    {"optimizer:\n  lr: fast\n", "c.yaml:2: optimizer.lr: 'fast' is not a number"},
                    {"optimizer:\n  lr: .nan\n", "c.yaml:2: optimizer.lr: '.nan' is not a number"},
                    {"optimizer:\n  lr: inf\n", "c.yaml:2: optimizer.lr: 'inf' is not a number"},
                    {"optimizer:\n  lr: 0x1p-3\n", "c.yaml:2: optimizer.lr: '0x1p-3' is not a number"},
                    {"model:\n  family: gpt3\n",
                     "c.yaml:2: model.family: 'gpt3' is not one of llama | gpt2 | mistral | qwen2 | phi3 | smollm3 | starcoder2 | qwen3 | "
                     "olmo2 | gemma | gemma3_text | gpt_neox | mixtral | qwen2_moe | qwen3_moe | olmoe | granite | granitemoe | olmo3 | exaone4 | seed_oss | gpt_oss | glm4 | ministral3 | cohere2 | cohere | gemma2 | gemma4_text | qwen3_5_text | deepseek_v3 | nemotron_h | granitemoehybrid; nearest is gpt2"},
                    {"data:\n  shuffle: yes\n", "c.yaml:2: data.shuffle: 'yes' is not one of false | true"},
                    {"training:\n  mixed_precision_reduce: FP16\n",
                     "c.yaml:2: training.mixed_precision_reduce: 'FP16' is not one of float32 | bfloat16; gradients computed in float16 are "
                     "reduced in float32"},
                    {DEBUG_MODEL "training: {mixed_precision_param: float16, mixed_precision_reduce: bfloat16}\n",
                     "c.yaml:2: training.mixed_precision_reduce: bfloat16 keeps 8 of float16's 11 bits; leave it out with "
                     "training.mixed_precision_param=float16"},
                    {DEBUG_MODEL "training: {mixed_precision_param: float16, loss_scale: 1000}\n",
                     "c.yaml:2: training.loss_scale: 1000 is not a power of two; only these scale without rounding, such as 65536"},
                    {DEBUG_MODEL "training: {mixed_precision_param: float16, loss_scale_init: 3}\n",
                     "c.yaml:2: training.loss_scale_init: 3 is not a power of two; only these scale without rounding, such as 65536"},
                    {"training:\n  loss_scale: static\n",
                     "c.yaml:2: training.loss_scale: 'static' is not a whole number or dynamic"},
                    {"offload:\n  optimizer: host\n",
                     "c.yaml:2: offload.optimizer: 'host' is not one of none | cpu | nvme"},
                    {DEBUG_MODEL "offload: {optimizer: cpu}\ntraining: {device: cpu}\n",
                     "c.yaml:2: offload.optimizer: cpu is for GPUs: with training.device=cpu the states are in the CPU's memory already; nvme "
                     "puts them into a file"},
                    {DEBUG_MODEL "checkpoint: {near_interval: 1, enable: false}\n",
                     "c.yaml:2: checkpoint.near_interval: near checkpoints go on from the files of checkpoint.enable=true, but it is false"},
                    {DEBUG_MODEL "checkpoint: {near_interval: 1}\noffload: {optimizer: nvme, nvme_path: /tmp}\n",
                     "c.yaml:2: checkpoint.near_interval: each copy would read all states back from their file (offload.optimizer=nvme)"},
                    {DEBUG_MODEL "lora: {rank: 4, quantize_base: nf4}\nparallelism: {gather_dtype: int8}\n",
                     "c.yaml:3: parallelism.gather_dtype: lora.quantize_base=nf4 keeps and gathers the base in fewer bits "
                     "already; leave one of them out"},
                    {"parallelism: {gather_dtype: fp8}\n",
                     "c.yaml:1: parallelism.gather_dtype: 'fp8' is not one of compute | int8; int8 has as many bytes, and "
                     "smaller errors, since 64 numbers share a scale"},
                    {DEBUG_MODEL "offload: {gradients: nvme}\n",
                     "c.yaml:2: offload.gradients: nvme: offload.nvme_path is missing; give a folder on a local disk"},
                    {DEBUG_MODEL "offload: {gradients: nvme}\ntraining: {device: cuda}\n",
                     "c.yaml:2: offload.gradients: nvme moves between a file and the memory of the CPU, not of a GPU; give cpu, the memory "
                     "of its host"},
                    {DEBUG_MODEL "offload: {gradients: cpu}\ntraining: {device: cpu}\n",
                     "c.yaml:2: offload.gradients: cpu is for GPUs: with training.device=cpu the gradients are in the CPU's memory already; "
                     "nvme puts them into a file"},
                    {"offload:\n  parameters: nvme\n",
                     "c.yaml:2: offload.parameters: 'nvme' is not one of none | cpu; a file can hold optimizer states and gradients: "
                     "offload.optimizer=nvme, gradients=nvme"},
                    {DEBUG_MODEL "offload: {parameters: cpu}\ntraining: {device: cpu}\n",
                     "c.yaml:2: offload.parameters: cpu is for GPUs: with training.device=cpu the parameters are in the CPU's memory already; "
                     "leave it out"},
                    {DEBUG_MODEL "training: {enable_cpu_offload: true, device: cpu}\n",
                     "c.yaml:2: training.enable_cpu_offload: is for GPUs: with training.device=cpu all state is in the CPU's memory already; "
                     "offload.optimizer=nvme with offload.nvme_path puts optimizer states in a file"},
                    {DEBUG_MODEL "training: {enable_cpu_offload: true}\noffload: {gradients: cpu}\n",
                     "c.yaml:2: training.enable_cpu_offload: contradicts offload.gradients given at c.yaml:3; give one of them"},
                    {DEBUG_MODEL "offload: {activations: cpu}\ntraining: {device: cpu}\n",
                     "c.yaml:2: offload.activations: cpu is for GPUs: with training.device=cpu activations are in the CPU's memory already; "
                     "nvme puts them into a file"},
                    {DEBUG_MODEL "offload: {optimizer: nvme}\ntraining: {device: cuda}\n",
                     "c.yaml:2: offload.optimizer: nvme moves between a file and the memory of the CPU, not of a GPU; give cpu, the memory "
                     "of its host"},
                    {DEBUG_MODEL "offload: {activations: nvme}\ntraining: {device: cuda}\n",
                     "c.yaml:2: offload.activations: nvme moves between a file and the memory of the CPU, not of a GPU; give cpu, the memory "
                     "of its host"},
                    {"data:\n  shuffle: 1\n", "c.yaml:2: data.shuffle: '1' is not one of false | true"},
                    {"data:\n  token_type: unit16\n",
                     "c.yaml:2: data.token_type: 'unit16' is not one of auto | uint16 | uint32; nearest is uint16"},
                    {"mesh:\n  shard: nodes\n",
                     "c.yaml:2: mesh.shard: 'nodes' is not a whole number or all | node | auto"},
                    {"memory:\n  limit_bytes: 4GiBi\n",
                     "c.yaml:2: memory.limit_bytes: '4GiBi' is not a size like 512MiB or 4GiB"},
                    {"memory:\n  limit_bytes: GiB\n",
                     "c.yaml:2: memory.limit_bytes: 'GiB' is not a size like 512MiB or 4GiB"},
                    {"debug:\n  seed: x\n", "c.yaml:2: debug.seed: 'x' is not a whole number"},
                    /* ranges */
                    {"training:\n  steps: 0\n", "c.yaml:2: training.steps: 0 is out of range 1 .. 1000000000000"},
                    {"training:\n  steps: -1\n", "c.yaml:2: training.steps: -1 is out of range 1 .. 1000000000000"},
                    {"training:\n  steps: 9223372036854775808\n",
                     "c.yaml:2: training.steps: 9223372036854775808 is out of range 1 .. 1000000000000"},
                    {"training:\n  threads: 2147483648\n",
                     "c.yaml:2: training.threads: 2147483648 is out of range 0 .. 4096"},
                    {"optimizer:\n  beta1: 1\n", "c.yaml:2: optimizer.beta1: 1 is out of range 0 .. 0.999999999"},
                    {"optimizer:\n  lr: -0.1\n", "c.yaml:2: optimizer.lr: -0.1 is out of range 0 .. 1000"},
                    {"optimizer:\n  lr: 1e999\n", "c.yaml:2: optimizer.lr: 1e999 is out of range 0 .. 1000"},
                    {"optimizer:\n  lr: 1e-400\n",
                     "c.yaml:2: optimizer.lr: 1e-400 is too near to 0 for a number of 64 bits; give 0 or at least 1e-307"},
                    {"mesh:\n  shard: 0\n", "c.yaml:2: mesh.shard: 0 is out of range 1 .. 1048576"},
                    {"memory:\n  limit_bytes: 9000000TiB\n",
                     "c.yaml:2: memory.limit_bytes: 9000000TiB is out of range 0 .. 100000000000000"},
                    {"debug:\n  seed: -1\n", "c.yaml:2: debug.seed: -1 is out of range 0 .. 18446744073709551615"},
                    {"debug:\n  seed: 18446744073709551616\n",
                     "c.yaml:2: debug.seed: 18446744073709551616 is out of range 0 .. 18446744073709551615"},
                    {"job:\n  description: \"a\\tb\"\n",
                     "c.yaml:2: job.description: contains control characters or is not UTF-8"},
                    {"job:\n  description: \"a\\0b\"\n", "c.yaml:2: job.description: contains a NUL character"},
                    /* pairs, as text and as a mapping */
                    {"checkpoint:\n  hints: a\n", "c.yaml:2: checkpoint.hints: 'a' is not name=value"},
                    {"checkpoint:\n  hints: a=1,\n", "c.yaml:2: checkpoint.hints: '' is not name=value"},
                    {"checkpoint:\n  hints: a=1,b=2,a=3\n", "c.yaml:2: checkpoint.hints: a: given twice"},
                    {"checkpoint:\n  hints:\n    a: 1\n    a: 2\n", "c.yaml:4: checkpoint.hints: a: given twice"},
                    {"checkpoint:\n  hints:\n    a b: 1\n",
                     "c.yaml:3: checkpoint.hints: 'a b' is not a name of at most 35 letters, digits and _"},
                    {"checkpoint:\n  hints: =1\n",
                     "c.yaml:2: checkpoint.hints: '' is not a name of at most 35 letters, digits and _"},
                    {"checkpoint:\n  hints:\n    a:\n",
                     "c.yaml:3: checkpoint.hints: a: '' is not a value of 1 .. 255 characters without blank, comma and ="},
                    {"checkpoint:\n  hints:\n    a: \"1,b=2\"\n",
                     "c.yaml:3: checkpoint.hints: a: '1,b=2' is not a value of 1 .. 255 characters without blank, comma and ="},
                    {"checkpoint:\n  hints: {a123456789012345678901234567890123456: 1}\n",
                     "c.yaml:2: checkpoint.hints: 'a123456789012345678901234567890123456' is not a name of at most 35 "
                     "letters, digits and _"},
                    {"checkpoint:\n  hints: {a: 1}\n  hints: a=1\n",
                     "c.yaml:3: checkpoint.hints: given twice, first at c.yaml:2"},
                    {DEBUG_MODEL "checkpoint:\n  hints: {a: 1}\n  io: direct\n",
                     "c.yaml:3: checkpoint.hints: are for MPI-IO, which checkpoint.io=direct does not use"},
                    {DEBUG_MODEL "checkpoint:\n  writers_per_node: 2\n",
                     "c.yaml:3: checkpoint.writers_per_node: is for plain writes; give checkpoint.io=direct as well"},
                    {"checkpoint:\n  hints: {a: &x 1}\n",
                     "c.yaml:2: anchors and aliases are not allowed; write the value out"},
                    /* YAML that is more than sections, keys and values */
                    {"training:\n  steps: [1, 2]\n", "c.yaml:2: training.steps: expected one value, got a list"},
                    {"training:\n  steps: {a: 1}\n", "c.yaml:2: training.steps: expected one value, got a mapping"},
                    {"checkpoint:\n  hints: {a: 1,\n    b: [2]}\n",
                     "c.yaml:3: checkpoint.hints.b: expected one value, got a list"},
                    {"checkpoint:\n  hints:\n    a: {b: 1}\n",
                     "c.yaml:3: checkpoint.hints.a: expected one value, got a mapping"},
                    {"checkpoint:\n  hints: [a=1]\n", "c.yaml:2: checkpoint.hints: expected one value, got a list"},
                    {"- training\n", "c.yaml:1: expected sections (training:) with keys below them"},
                    {"steps\n", "c.yaml:1: expected sections (training:) with keys below them"},
                    {"? [a]\n: 1\n", "c.yaml:1: expected the name of a section, got a list or a mapping"},
                    {"training:\n  ? {a: b}\n  : 1\n", "c.yaml:2: expected the name of a key, got a list or a mapping"},
                    {"training:\n  steps: &a 5\n",
                     "c.yaml:2: anchors and aliases are not allowed; write the value out"},
                    {"training: &a\n  steps: 5\n",
                     "c.yaml:1: anchors and aliases are not allowed; write the value out"},
                    {"training:\n  steps: *a\n", "c.yaml:2: anchors and aliases are not allowed; write the value out"},
                    {"training:\n  steps: !!int 5\n", "c.yaml:2: tags are not allowed; leave out the !"},
                    {"training: !x\n  steps: 5\n", "c.yaml:1: tags are not allowed; leave out the !"},
                    {"training:\n  steps: 5\n---\ntraining:\n  steps: 5\n",
                     "c.yaml:3: a second YAML document; a file holds one configuration"},
                    {"training:\n  steps: 5\n bad: [\n",
                     "c.yaml:3:2: while parsing a block mapping, did not find expected key"},
                    {"training:\n\tsteps: 5\n",
                     "c.yaml:2:1: while scanning for the next token, found character that cannot start any token"},
                    {"training:\n  steps: \"5\n",
                     "c.yaml:3:1: while scanning a quoted scalar, found unexpected end of stream"},
                    {"job:\n  description: \xff\n", "c.yaml:2: byte 0xff is a control character or not UTF-8"},
                    {"job:\n  description: \xc0\x80\n", "c.yaml:2: byte 0xc0 is a control character or not UTF-8"},
                    {"job:\n  description: \xed\xa0\x80\n", "c.yaml:2: byte 0xed is a control character or not UTF-8"},
                    {"job:\n  description: \x01\n", "c.yaml:2: byte 0x01 is a control character or not UTF-8"},
                    {"\xff\xfej\0o\0b\0", "c.yaml:1: byte 0xff is a control character or not UTF-8"},
                    /* aliases against the keys they stand for */
                    {"parallelism:\n  sharding_strategy: full_shard\n  zero_stage: 3\n",
                     "c.yaml:3: parallelism.zero_stage: contradicts parallelism.sharding_strategy given at c.yaml:2; give one of them"},
                    {"parallelism:\n  zero_stage: 4\n", "c.yaml:2: parallelism.zero_stage: 4 is out of range 0 .. 3"},
                    {"parallelism:\n  sharding_strategy: full_shard\n  fsdp_reshard_after_forward: never\n",
                     "c.yaml:3: parallelism.fsdp_reshard_after_forward: contradicts parallelism.sharding_strategy given at c.yaml:2; "
                     "choose the strategy alone"},
                    {"parallelism:\n  sharding_strategy: no_shard\n  fsdp_reshard_after_forward: always\n",
                     "c.yaml:3: parallelism.fsdp_reshard_after_forward: contradicts parallelism.sharding_strategy given at c.yaml:2; "
                     "choose the strategy alone"},
                    {"parallelism:\n  data_parallel_shard_degree: 2\nmesh:\n  shard: 2\n",
                     "c.yaml:2: parallelism.data_parallel_shard_degree: contradicts mesh.shard given at c.yaml:4; give one of them"},
                    {"parallelism:\n  data_parallel_replicate_degree: 2\nmesh:\n  replicate: 2\n",
                     "c.yaml:2: parallelism.data_parallel_replicate_degree: contradicts mesh.replicate given at c.yaml:4; give one of "
                     "them"},
                    {"activation_checkpoint:\n  mode: full\n  selective_ac_option: op\n",
                     "c.yaml:3: activation_checkpoint.selective_ac_option: contradicts activation_checkpoint.mode given at c.yaml:2; "
                     "choose mode: selective, or leave the option out"},
                    {"activation_checkpoint:\n  every_k: 2\n  selective_ac_option: 3\n",
                     "c.yaml:3: activation_checkpoint.selective_ac_option: contradicts activation_checkpoint.every_k given at "
                     "c.yaml:2; give one of them"},
                    {"activation_checkpoint:\n  selective_ac_option: ops\n",
                     "c.yaml:2: activation_checkpoint.selective_ac_option: 'ops' is not a whole number or op"},
                    /* models */
                    {"\n", "model.n_layers: not given; give it, or choose a preset with model.name"},
                    {"model:\n  name: gpt2-123m\n",
                     "c.yaml:2: model.name: no preset 'gpt2-123m' (known: debug, gpt2-124m, gpt2-1558m, llama3.2-1b, llama3.1-8b, "
                     "llama3.1-70b, llama3.1-405b, debug-moe, mixtral-8x7b, qwen3-30b-a3b, olmoe-1b-7b, gpt-oss-20b, command-r7b, gemma2-2b, gemma2-9b, gemma-4-e2b, gemma-4-e4b, deepseek-v3, nemotron-3-nano, granite-4.0-h-micro, granite-4.0-h-tiny, granite-4.0-h-small, qwen3.5-9b, custom); nearest is gpt2-124m"},
                    {"model:\n  name: bert\n",
                     "c.yaml:2: model.name: no preset 'bert' (known: debug, gpt2-124m, gpt2-1558m, "
                     "llama3.2-1b, llama3.1-8b, llama3.1-70b, llama3.1-405b, debug-moe, mixtral-8x7b, qwen3-30b-a3b, olmoe-1b-7b, gpt-oss-20b, command-r7b, gemma2-2b, gemma2-9b, gemma-4-e2b, gemma-4-e4b, deepseek-v3, nemotron-3-nano, granite-4.0-h-micro, granite-4.0-h-tiny, granite-4.0-h-small, qwen3.5-9b, custom)"},
                    {"model: {n_layers: 1, dim: 64, n_heads: 2, ffn_dim: 64, max_seq_len: 8}\n",
                     "model.vocab_size: not given; give it, or choose a preset with model.name"},
                    {"model: {n_layers: 1, dim: 64, n_heads: 3, ffn_dim: 64, vocab_size: 8, max_seq_len: 8}\n",
                     "c.yaml:1: model.dim: 64 is not a multiple of model.n_heads 3; give model.head_dim"},
                    {"model: {name: debug, n_kv_heads: 3}\n",
                     "c.yaml:1: model.n_kv_heads: 3 does not divide model.n_heads 4"},
                    {"model: {name: debug, head_dim: 33}\n",
                     "c.yaml:1: model.head_dim: 33 is odd; rotary positions turn pairs of elements"},
                    {"model: {name: gpt2-124m, n_kv_heads: 5}\n",
                     "c.yaml:1: model.n_kv_heads: gpt2 needs as many as model.n_heads, 12, not 5"},
                    {"model: {name: gpt2-124m, head_dim: 32}\n",
                     "c.yaml:1: model.head_dim: 32 * model.n_heads 12 is not model.dim 768, as gpt2 needs"},
                    {"model: {name: gpt2-124m, rope_factor: 2}\n",
                     "c.yaml:1: model.rope_factor: gpt2 has no rotary positions; leave it out"},
                    {"model: {name: debug, family: qwen2, attention_bias: true}\n",
                     "c.yaml:1: model.attention_bias: model.family=qwen2 settles which products have biases; leave it out"},
                    {"model: {name: debug, family: mistral, mlp_bias: true}\n",
                     "c.yaml:1: model.mlp_bias: model.family=mistral settles which products have biases; leave it out"},
                    {"model: {name: debug, n_experts: 4}\n",
                     "c.yaml:1: model.n_experts: llama has no experts; leave it out, or give model.family=mixtral, qwen2_moe, qwen3_moe, olmoe, granitemoe, granitemoehybrid, deepseek_v3, nemotron_h or gpt_oss"},
                    {"model: {name: debug, moe_every: 2}\n",
                     "c.yaml:1: model.moe_every: llama has no experts; leave it out, or give model.family=mixtral, qwen2_moe, qwen3_moe, olmoe, granitemoe, granitemoehybrid, deepseek_v3, nemotron_h or gpt_oss"},
                    {"model: {name: debug, router: sigmoid}\n",
                     "c.yaml:1: model.router: llama has no experts; leave it out, or give model.family=mixtral, qwen2_moe, qwen3_moe, olmoe, granitemoe, granitemoehybrid, deepseek_v3, nemotron_h or gpt_oss"},
                    {"model: {name: debug-moe, family: llama, route_norm: false}\n",
                     "model.n_experts: llama has no experts; leave it out, or give model.family=mixtral, qwen2_moe, qwen3_moe, olmoe, granitemoe, granitemoehybrid, deepseek_v3, nemotron_h or gpt_oss"},
                    {"model: {name: debug, family: mixtral}\n",
                     "model.n_experts: needed with model.family=mixtral; give it"},
                    {"model: {name: debug, family: olmoe, n_experts: 4}\n",
                     "model.n_experts_per_token: needed with model.family=olmoe; give it"},
                    {"model: {name: debug-moe, n_experts_per_token: 9}\n",
                     "c.yaml:1: model.n_experts_per_token: 9 of model.n_experts 8; give at most 8"},
                    {"model: {name: debug-moe, shared_ffn_dim: 8}\n",
                     "c.yaml:1: model.shared_ffn_dim: qwen3_moe has no shared expert; leave it out, or give model.family=qwen2_moe, deepseek_v3, granitemoehybrid or nemotron_h"},
                    {"model: {name: debug-moe, first_dense_layers: 4}\n",
                     "c.yaml:1: model.first_dense_layers: 4 leaves none of model.n_layers 4 blocks with experts; give less"},
                    {"model: {name: debug-moe, moe_every: 5}\n",
                     "c.yaml:1: model.moe_every: 5 leaves none of model.n_layers 4 blocks with experts; give less"},
                    {"model: {name: mixtral-8x7b, moe_every: 2}\n",
                     "c.yaml:1: model.moe_every: all blocks of mixtral have experts; leave it out"},
                    {"model: {name: debug-moe, route_groups: 3, route_top_groups: 1}\n",
                     "c.yaml:1: model.route_groups: 3 does not divide model.n_experts 8; 2 does"},
                    {"model: {name: debug-moe, route_groups: 4}\n",
                     "model.route_top_groups: 0 of model.route_groups 4; give 1 to 4"},
                    {"model: {name: debug-moe, route_top_groups: 4}\n",
                     "c.yaml:1: model.route_top_groups: has no effect without model.route_groups"},
                    {"model: {name: debug-moe, n_experts_per_token: 3, route_groups: 4, route_top_groups: 1}\n",
                     "c.yaml:1: model.n_experts_per_token: 3, but model.route_top_groups 1 of model.route_groups 4 have 2 of model.n_experts 8; give at most 2, or more of the groups"},
                    {"model: {name: debug}\nmoe: {aux_loss_coeff: 0.1}\n",
                     "c.yaml:2: moe.aux_loss_coeff: llama has no experts; leave it out, or give model.family=mixtral, qwen2_moe, qwen3_moe, olmoe, granitemoe, granitemoehybrid, deepseek_v3, nemotron_h or gpt_oss"},
                    {"model: {name: debug}\nmoe: {load_balance_coeff: 0.1}\n",
                     "c.yaml:2: moe.load_balance_coeff: llama has no experts; leave it out, or give model.family=mixtral, qwen2_moe, qwen3_moe, olmoe, granitemoe, granitemoehybrid, deepseek_v3, nemotron_h or gpt_oss"},
                    {"model: {name: debug}\ndebug: {moe_force_load_balance: true}\n",
                     "c.yaml:2: debug.moe_force_load_balance: llama has no experts; leave it out, or give model.family=mixtral, qwen2_moe, qwen3_moe, olmoe, granitemoe, granitemoehybrid, deepseek_v3, nemotron_h or gpt_oss"},
                    {"model: {name: debug, router_bias: true}\n",
                     "c.yaml:1: model.router_bias: llama has no experts; leave it out, or give model.family=mixtral, qwen2_moe, qwen3_moe, olmoe, granitemoe, granitemoehybrid, deepseek_v3, nemotron_h or gpt_oss"},
                    {"model: {name: debug-moe, router_bias: false}\nmoe: {load_balance_coeff: 0.1}\n",
                     "c.yaml:2: moe.load_balance_coeff: moves the biases that model.router_bias=false leaves out; leave one of the two out"},
                    {"model: {name: debug, n_experts_per_token: 2}\n",
                     "c.yaml:1: model.n_experts_per_token: llama has no experts; leave it out, or give model.family=mixtral, qwen2_moe, qwen3_moe, olmoe, granitemoe, granitemoehybrid, deepseek_v3, nemotron_h or gpt_oss"},
                    {"model: {name: debug, expert_ffn_dim: 8}\n",
                     "c.yaml:1: model.expert_ffn_dim: llama has no experts; leave it out, or give model.family=mixtral, qwen2_moe, qwen3_moe, olmoe, granitemoe, granitemoehybrid, deepseek_v3, nemotron_h or gpt_oss"},
                    {"model: {name: debug, shared_ffn_dim: 8}\n",
                     "c.yaml:1: model.shared_ffn_dim: llama has no experts; leave it out, or give model.family=mixtral, qwen2_moe, qwen3_moe, olmoe, granitemoe, granitemoehybrid, deepseek_v3, nemotron_h or gpt_oss"},
                    {"model: {name: debug, first_dense_layers: 1}\n",
                     "c.yaml:1: model.first_dense_layers: llama has no experts; leave it out, or give model.family=mixtral, qwen2_moe, qwen3_moe, olmoe, granitemoe, granitemoehybrid, deepseek_v3, nemotron_h or gpt_oss"},
                    {"model: {name: debug, route_norm: true}\n",
                     "c.yaml:1: model.route_norm: llama has no experts; leave it out, or give model.family=mixtral, qwen2_moe, qwen3_moe, olmoe, granitemoe, granitemoehybrid, deepseek_v3, nemotron_h or gpt_oss"},
                    {"model: {name: debug, route_scale: 2}\n",
                     "c.yaml:1: model.route_scale: llama has no experts; leave it out, or give model.family=mixtral, qwen2_moe, qwen3_moe, olmoe, granitemoe, granitemoehybrid, deepseek_v3, nemotron_h or gpt_oss"},
                    {"model: {name: debug, route_groups: 2}\n",
                     "c.yaml:1: model.route_groups: llama has no experts; leave it out, or give model.family=mixtral, qwen2_moe, qwen3_moe, olmoe, granitemoe, granitemoehybrid, deepseek_v3, nemotron_h or gpt_oss"},
                    {"model: {name: debug, route_top_groups: 2}\n",
                     "c.yaml:1: model.route_top_groups: llama has no experts; leave it out, or give model.family=mixtral, qwen2_moe, qwen3_moe, olmoe, granitemoe, granitemoehybrid, deepseek_v3, nemotron_h or gpt_oss"},
                    {"model: {name: debug}\nmoe: {z_loss_coeff: 0.1}\n",
                     "c.yaml:2: moe.z_loss_coeff: llama has no experts; leave it out, or give model.family=mixtral, qwen2_moe, qwen3_moe, olmoe, granitemoe, granitemoehybrid, deepseek_v3, nemotron_h or gpt_oss"},
                    {"model: {name: debug}\nmoe: {capacity_factor: 2}\n",
                     "c.yaml:2: moe.capacity_factor: llama has no experts; leave it out, or give model.family=mixtral, qwen2_moe, qwen3_moe, olmoe, granitemoe, granitemoehybrid, deepseek_v3, nemotron_h or gpt_oss"},
                    {"model: {name: debug}\nparallelism: {expert_parallel_degree: 2}\n",
                     "c.yaml:2: parallelism.expert_parallel_degree: llama has no experts; leave it out, or give model.family=mixtral, qwen2_moe, qwen3_moe, olmoe, granitemoe, granitemoehybrid, deepseek_v3, nemotron_h or gpt_oss"},
                    {"model: {name: debug, family: olmoe, n_experts: 4, n_experts_per_token: 2}\n",
                     "model.expert_ffn_dim: needed with model.family=olmoe; give it"},
                    {"model: {name: debug-moe, route_groups: 4, route_top_groups: 5}\n",
                     "c.yaml:1: model.route_top_groups: 5 of model.route_groups 4; give 1 to 4"},
                    {"model: {name: debug-moe}\nmoe: {capacity_factor: 2}\n",
                     "c.yaml:2: moe.capacity_factor: has no effect without parallelism.expert_parallel_degree above 1; leave it out"},
                    {"model: {name: debug-moe}\nmoe: {capacity_factor: 0.99}\nparallelism: {expert_parallel_degree: 2}\n",
                     "c.yaml:2: moe.capacity_factor: 0.99; rows are never dropped, it is the size of a wave; give at least 1"},
                    {"model: {name: debug-moe}\nparallelism: {expert_parallel_degree: 3}\n",
                     "c.yaml:2: parallelism.expert_parallel_degree: 3 does not divide model.n_experts 8; 2 does"},
                    {"model: {name: debug-moe}\nparallelism: {expert_parallel_degree: 16}\n",
                     "c.yaml:2: parallelism.expert_parallel_degree: 16 does not divide model.n_experts 8; 8 does"},
                    {"model: {name: debug-moe}\nmoe: {load_balance_coeff: 0.1}\nlora: {rank: 2}\n",
                     "c.yaml:2: moe.load_balance_coeff: moves biases of routers, which adapters (lora.rank) leave as they are; leave one of the two out, and give model.router_bias=true if the base has them"},
                    {"model: {name: debug-moe, router: sigmoid}\nmoe: {z_loss_coeff: 0.1}\n",
                     "c.yaml:2: moe.z_loss_coeff: is for model.router=softmax; leave it out"},
                    {"model: {name: debug-moe}\nlora: {rank: 2, target_modules: experts.down_proj}\n",
                     "c.yaml:2: lora.target_modules: 'experts.down_proj' is not a linear product of qwen3_moe; give all-linear, or names such as self_attn.o_proj; stacks of experts are named by lora.target_parameters"},
                    {"model: {name: debug-moe}\nlora: {rank: 2, target_modules: mlp.gate_proj}\n", "c.yaml:2: lora.target_modules: 'mlp.gate_proj' is not a linear product of qwen3_moe; give all-linear, or names such as self_attn.o_proj; stacks of experts are named by lora.target_parameters"},
                    {"model: {name: debug-moe}\nlora: {rank: 2, target_modules: mlp.gate}\n",
                     "c.yaml:2: lora.target_modules: 'mlp.gate' is not a linear product of qwen3_moe; give all-linear, or names such as self_attn.o_proj; stacks of experts are named by lora.target_parameters"},
                    {"model: {name: debug-moe}\nlora: {rank: 2, target_parameters: 'gate_up_proj, mlp.gate.weight'}\n",
                     "c.yaml:2: lora.target_parameters: 'mlp.gate.weight' is not a stack of experts of qwen3_moe; give mlp.experts.gate_up_proj,mlp.experts.down_proj, or one of them"},
                    {"model: {name: debug}\nlora: {rank: 2, target_parameters: experts.down_proj}\n",
                     "c.yaml:2: lora.target_parameters: llama has no experts; leave it out"},
                    {"model: {name: debug, global_head_dim: 8}\n",
                     "c.yaml:1: model.global_head_dim: llama has the same heads in all blocks; leave it out, or give model.family=gemma4_text"},
                    {"model: {name: debug, keys_as_values: true}\n",
                     "c.yaml:1: model.keys_as_values: llama has the same heads in all blocks; leave it out, or give model.family=gemma4_text"},
                    {"model: {name: debug, family: gemma4_text, global_head_dim: 7}\n",
                     "c.yaml:1: model.global_head_dim: 7 is odd; rotary positions turn pairs of elements"},
                    {"model: {name: debug, kv_shared_layers: 1}\n",
                     "c.yaml:1: model.kv_shared_layers: llama has no such blocks; leave it out, or give model.family=gemma4_text"},
                    {"model: {name: debug, per_layer_dim: 4}\n",
                     "c.yaml:1: model.per_layer_dim: llama has no such blocks; leave it out, or give model.family=gemma4_text"},
                    {"model: {name: debug, family: gemma4_text, per_layer_dim: 3}\n",
                     "c.yaml:1: model.per_layer_dim: 3 is odd; rows are split into parts of an even width"},
                    {"model: {name: debug, family: gemma4_text, n_layers: 2, kv_shared_layers: 2}\n",
                     "c.yaml:1: model.kv_shared_layers: 2 of 2 blocks leave none whose keys and values they could read"},
                    {"model: {name: debug, family: gemma4_text, n_layers: 2, attention_window: 4, layer_types: 'sliding,full', kv_shared_layers: 1}\n",
                     "c.yaml:1: model.kv_shared_layers: block 1 is without a window, and no block before the last 1 is so whose keys and values it could read"},
                    {"model: {name: debug, family: gemma4_text, double_wide_ffn: true}\n",
                     "c.yaml:1: model.double_wide_ffn: counts only with model.kv_shared_layers, as in transformers; leave it out"},
                    {"model: {name: debug, family: gemma4_text, kv_shared_layers: 1, double_wide_ffn: true, ffn: 'y = linear(x, a, C)'}\n",
                     "c.yaml:1: model.double_wide_ffn: model.ffn says how wide its products are; leave it out"},
                    {"model: {name: debug, tie_word_embeddings: true}\nparallelism: {pipeline_parallel_degree: 2, sharding_strategy: shard_optim}\n",
                     "c.yaml:2: parallelism.pipeline_parallel_degree: 2 stages have the embedding on the first and the head on the last, but this model's are one matrix; give parallelism.tensor_parallel_degree, or shard alone"},
                    {"model: {name: debug, family: gemma4_text, kv_shared_layers: 1}\nparallelism: {pipeline_parallel_degree: 2, sharding_strategy: shard_grad_op}\n",
                     "c.yaml:2: parallelism.pipeline_parallel_degree: 2 stages hand on the stream alone, and blocks of this model read keys and values of earlier ones (model.kv_shared_layers); shard over all ranks"},
                    {"model: {name: debug, family: gemma4_text, per_layer_dim: 4}\nparallelism: {pipeline_parallel_degree: 2, sharding_strategy: shard_grad_op}\n",
                     "c.yaml:2: parallelism.pipeline_parallel_degree: 2 stages hand on the stream alone, and blocks of this model read inputs made with the embedding (model.per_layer_dim); shard over all ranks"},
                    {"model: {name: debug, family: gemma4_text, per_layer_dim: 4}\nlora: {rank: 2, target_modules: all-linear}\n",
                     "c.yaml:2: lora.target_modules: per_layer_model_projection, which all-linear means too, is in no block and has no adapter here; name others, such as q_proj,v_proj,up_proj,down_proj"},
                    {"model: {name: debug, family: gemma4_text, global_kv_heads: 1}\n",
                     "c.yaml:1: model.global_kv_heads: counts only with model.keys_as_values, as in transformers; give that too, or leave it out"},
                    {"model: {name: debug, family: gemma4_text, global_head_dim: 8}\nparallelism: {tensor_parallel_degree: 2}\n",
                     "c.yaml:2: parallelism.tensor_parallel_degree: needs the same heads in all blocks, and gemma4_text has two kinds; shard over all ranks"},
                    {"model: {name: debug, family: gemma4_text, global_head_dim: 8}\nparallelism: {context_parallel_degree: 2}\n",
                     "c.yaml:2: parallelism.context_parallel_degree: needs the same heads in all blocks, and gemma4_text has two kinds; shard over all ranks"},
                    {"model: {name: debug, kv_lora_rank: 8}\n",
                     "c.yaml:1: model.kv_lora_rank: llama has no latent attention; leave it out, or give model.family=deepseek_v3"},
                    {"model: {name: deepseek-v3, kv_lora_rank: 0}\n",
                     "c.yaml:1: model.kv_lora_rank: needed with model.family=deepseek_v3; give it"},
                    {"model: {name: deepseek-v3, rotary_dim: 0}\n",
                     "c.yaml:1: model.rotary_dim: needed with model.family=deepseek_v3; give it"},
                    {"model: {name: deepseek-v3, v_head_dim: 200}\n",
                     "c.yaml:1: model.v_head_dim: 200 is more than model.head_dim 192"},
                    {"model: {name: deepseek-v3, n_kv_heads: 8}\n",
                     "c.yaml:1: model.n_kv_heads: deepseek_v3 needs as many as model.n_heads, 128, not 8"},
                    {"model: {name: deepseek-v3, rope_factor: 0}\n",
                     "model.rope_mscale_all_dim: has no effect without model.rope_type=yarn and model.rope_factor; leave it out"},
                    {"model: {name: deepseek-v3}\nparallelism: {tensor_parallel_degree: 2}\n",
                     "c.yaml:2: parallelism.tensor_parallel_degree: 2 cuts heads, whose keys and values have a latent vector in common here; leave it out, and give experts to ranks by parallelism.expert_parallel_degree"},
                    {"model: {name: debug, family: qwen3_5_text, linear_key_heads: 2, linear_value_heads: 4, linear_key_dim: 4, linear_value_dim: 4, linear_conv_size: 4}\nparallelism: {context_parallel_degree: 2}\n",
                     "c.yaml:2: parallelism.context_parallel_degree: 2: the gated delta rule of qwen3_5_text needs whole sequences and all heads on a rank; give 1, and shard over all ranks"},
                    {"model: {name: debug, family: qwen3_5_text, linear_key_heads: 2, linear_value_heads: 4, linear_key_dim: 4, linear_value_dim: 4, linear_conv_size: 4}\nparallelism: {tensor_parallel_degree: 2}\n",
                     "c.yaml:2: parallelism.tensor_parallel_degree: 2: the gated delta rule of qwen3_5_text needs whole sequences and all heads on a rank; give 1, and shard over all ranks"},
                    {"model: {name: debug, family: qwen3_5_text, linear_key_heads: 2, linear_value_heads: 3, linear_key_dim: 4, linear_value_dim: 4, linear_conv_size: 4}\n",
                     "c.yaml:1: model.linear_value_heads: 3 is not a multiple of model.linear_key_heads 2"},
                    {"model: {name: debug, family: qwen3_5_text, linear_key_heads: 2, linear_value_heads: 4, linear_key_dim: 4, linear_value_dim: 4, linear_conv_size: 4, full_attention_interval: 2}\n",
                     "c.yaml:1: model.full_attention_interval: model.layer_types says which blocks of qwen3_5_text have attention; give that, for instance 3*linear,full"},
                    {"model: {name: debug, family: qwen3_5_text, linear_key_heads: 2, linear_value_heads: 4, linear_key_dim: 4, linear_value_dim: 4, linear_conv_size: 4, attention_window: 8}\n",
                     "c.yaml:1: model.attention_window: model.layer_types has no block with a window"},
                    {"model: {name: debug, family: qwen3_5_text, layer_types: full, linear_value_dim: 4}\n",
                     "c.yaml:1: model.linear_value_dim: no block of the model has the gated delta rule; leave it out"},
                    {"model: {name: debug, family: nemotron_h, linear_key_heads: 2, linear_value_heads: 4, linear_key_dim: 4, linear_value_dim: 4, linear_conv_size: 4}\nparallelism: {context_parallel_degree: 2}\n",
                     "c.yaml:2: parallelism.context_parallel_degree: 2: Mamba-2's state space of nemotron_h needs whole sequences and all heads on a rank; give 1, and shard over all ranks"},
                    {"model: {name: debug, family: nemotron_h, linear_key_heads: 2, linear_value_heads: 4, linear_key_dim: 4, linear_value_dim: 4, linear_conv_size: 4}\nparallelism: {tensor_parallel_degree: 2}\n",
                     "c.yaml:2: parallelism.tensor_parallel_degree: 2: Mamba-2's state space of nemotron_h needs whole sequences and all heads on a rank; give 1, and shard over all ranks"},
                    {"model: {name: debug, family: nemotron_h, linear_key_heads: 1, linear_value_heads: 3, linear_key_dim: 4, linear_value_dim: 4, linear_conv_size: 4}\n",
                     "c.yaml:1: model.linear_value_heads: 3 is odd; nemotron_h takes an even number here"},
                    {"model: {name: debug, family: nemotron_h, layer_types: 'linear,full', linear_key_heads: 2, linear_value_heads: 4, linear_key_dim: 4, linear_value_dim: 4, linear_conv_size: 4}\n",
                     "c.yaml:1: model.layer_types: attention of nemotron_h has neither positions nor a window; of full and sliding blocks it has full_nope alone"},
                    {"model: {name: debug, family: nemotron_h, layer_types: 'full_nope,mlp'}\n",
                     "c.yaml:1: model.layer_types: nemotron_h has blocks with Mamba-2's state space; give some as linear"},
                    {"model: {name: debug, family: nemotron_h, tie_word_embeddings: true, linear_key_heads: 2, linear_value_heads: 4, linear_key_dim: 4, linear_value_dim: 4, linear_conv_size: 4}\n",
                     "c.yaml:1: model.tie_word_embeddings: the output matrix of nemotron_h is its own; leave it out"},
                    {"model: {name: debug, family: nemotron_h, rope_factor: 2, rope_type: linear, rope_original_max_len: 8, linear_key_heads: 2, linear_value_heads: 4, linear_key_dim: 4, linear_value_dim: 4, linear_conv_size: 4}\n",
                     "c.yaml:1: model.rope_factor: nemotron_h has no rotary positions; leave it out"},
                    {"model: {name: debug, family: nemotron_h, attention_bias: true, linear_key_heads: 2, linear_value_heads: 4, linear_key_dim: 4, linear_value_dim: 4, linear_conv_size: 4}\n",
                     "c.yaml:1: model.attention_bias: model.family=nemotron_h settles which products have biases; leave it out"},
                    {"model: {name: debug, family: nemotron_h, linear_key_heads: 2, linear_value_heads: 4, linear_key_dim: 4, linear_value_dim: 4, linear_conv_size: 4}\nlora: {rank: 2, target_modules: all-linear}\n",
                     "c.yaml:2: lora.target_modules: PEFT refuses adapters of mixer.out_proj in nemotron_h, and so all-linear; name the others, such as in_proj,q_proj,v_proj,up_proj"},
                    {"model: {name: debug, family: nemotron_h, linear_key_heads: 2, linear_value_heads: 4, linear_key_dim: 4, linear_value_dim: 4, linear_conv_size: 4, n_experts: 4}\n",
                     "c.yaml:1: model.n_experts: no block of this nemotron_h has experts; leave it out, or give model.layer_types some as moe"},
                    {"model: {name: debug, family: nemotron_h, linear_key_heads: 2, linear_value_heads: 4, linear_key_dim: 4, linear_value_dim: 4, linear_conv_size: 4}\nparallelism: {expert_parallel_degree: 2}\n",
                     "c.yaml:2: parallelism.expert_parallel_degree: no block of this nemotron_h has experts; leave it out, or give model.layer_types some as moe"},
                    {"model: {name: debug, family: nemotron_h, linear_key_heads: 2, linear_value_heads: 4, linear_key_dim: 4, linear_value_dim: 4, linear_conv_size: 4, layer_types: 'linear,moe', n_experts: 4, n_experts_per_token: 2, expert_ffn_dim: 8, first_dense_layers: 1}\n",
                     "c.yaml:1: model.first_dense_layers: model.layer_types says which blocks of nemotron_h have experts (moe); leave it out"},
                    {"model: {name: debug, family: nemotron_h, linear_key_heads: 2, linear_value_heads: 4, linear_key_dim: 4, linear_value_dim: 4, linear_conv_size: 4, layer_types: 'linear,moe', n_experts: 4, n_experts_per_token: 2, expert_ffn_dim: 8, moe_every: 2}\n",
                     "c.yaml:1: model.moe_every: model.layer_types says which blocks of nemotron_h have experts (moe); leave it out"},
                    {"model: {name: debug, family: nemotron_h, linear_key_heads: 2, linear_value_heads: 4, linear_key_dim: 4, linear_value_dim: 4, linear_conv_size: 4, layer_types: 'linear,moe', n_experts: 4, n_experts_per_token: 2, expert_ffn_dim: 8}\nlora: {rank: 2, target_modules: in_proj, target_parameters: gate_up_proj}\n",
                     "c.yaml:2: lora.target_parameters: experts of nemotron_h have no gates, and PEFT's form of their adapters is not known here; leave it out, and give lora.target_modules"},
                    {"model: {name: debug, layer_types: 'full,moe'}\n",
                     "c.yaml:1: model.layer_types: llama has no blocks with a feed-forward part alone; leave out moe"},
                    {"model: {name: debug, family: granitemoehybrid, linear_key_heads: 2, linear_value_heads: 4, linear_key_dim: 4, linear_value_dim: 4, linear_conv_size: 4, layer_types: 'linear,full,full_nope,linear'}\n",
                     "c.yaml:1: model.layer_types: attention of granitemoehybrid has no window, and positions in all blocks or in none; beside linear give full or full_nope, one of the two"},
                    {"model: {name: debug, family: granitemoehybrid, linear_key_heads: 2, linear_value_heads: 4, linear_key_dim: 4, linear_value_dim: 4, linear_conv_size: 4, attention_window: 8, layer_types: 'linear,sliding'}\n",
                     "c.yaml:1: model.layer_types: attention of granitemoehybrid has no window, and positions in all blocks or in none; beside linear give full or full_nope, one of the two"},
                    {"model: {name: debug, family: granitemoehybrid, linear_key_heads: 2, linear_value_heads: 4, linear_key_dim: 4, linear_value_dim: 4, linear_conv_size: 4, layer_types: 'linear,mlp'}\n",
                     "c.yaml:1: model.layer_types: granitemoehybrid has no blocks with a feed-forward part alone; leave out mlp"},
                    {"model: {name: debug, family: granitemoehybrid, linear_key_heads: 2, linear_value_heads: 4, linear_key_dim: 4, linear_value_dim: 4, linear_conv_size: 4, rope_factor: 2, rope_type: linear, rope_original_max_len: 8}\n",
                     "c.yaml:1: model.rope_factor: granitemoehybrid has no rotary positions unless model.layer_types has full in place of full_nope; leave it out"},
                    {"model: {name: debug, family: granitemoehybrid, linear_key_heads: 2, linear_value_heads: 4, linear_key_dim: 4, linear_value_dim: 4, linear_conv_size: 4, rotary_dim: 4}\n",
                     "c.yaml:1: model.rotary_dim: granitemoehybrid has no rotary positions unless model.layer_types has full in place of full_nope; leave it out"},
                    {"model: {name: debug, family: granitemoehybrid, linear_key_heads: 2, linear_value_heads: 4, linear_key_dim: 4, linear_value_dim: 4, linear_conv_size: 4, shared_ffn_dim: 8}\n",
                     "c.yaml:1: model.shared_ffn_dim: granitemoehybrid has no experts without model.n_experts; give that, or leave this out"},
                    {"model: {name: debug, family: granitemoehybrid, linear_key_heads: 2, linear_value_heads: 4, linear_key_dim: 4, linear_value_dim: 4, linear_conv_size: 4, no_rope_layer_interval: 2}\n",
                     "c.yaml:1: model.no_rope_layer_interval: model.layer_types says which blocks of granitemoehybrid have attention; give that, for instance 5*linear,full_nope,4*linear"},
                    {"model: {name: debug, family: granitemoehybrid, linear_key_heads: 2, linear_value_heads: 4, linear_key_dim: 4, linear_value_dim: 4, linear_conv_size: 4, n_experts: 4, n_experts_per_token: 2, expert_ffn_dim: 8, first_dense_layers: 1}\n",
                     "c.yaml:1: model.first_dense_layers: all blocks of granitemoehybrid have experts; leave it out"},
                    {"model: {name: debug, family: granitemoehybrid, linear_key_heads: 1, linear_value_heads: 3, linear_key_dim: 4, linear_value_dim: 4, linear_conv_size: 4}\n",
                     "c.yaml:1: model.linear_value_heads: 3 is odd; granitemoehybrid takes an even number here"},
                    {"model: {name: debug, family: granitemoehybrid, linear_key_heads: 2, linear_value_heads: 4, linear_key_dim: 4, linear_value_dim: 4, linear_conv_size: 4}\nparallelism: {context_parallel_degree: 2}\n",
                     "c.yaml:2: parallelism.context_parallel_degree: 2: Mamba-2's state space of granitemoehybrid needs whole sequences and all heads on a rank; give 1, and shard over all ranks"},
                    {"model: {name: debug, family: granitemoehybrid, linear_key_heads: 2, linear_value_heads: 4, linear_key_dim: 4, linear_value_dim: 4, linear_conv_size: 4}\nparallelism: {tensor_parallel_degree: 2}\n",
                     "c.yaml:2: parallelism.tensor_parallel_degree: 2: Mamba-2's state space of granitemoehybrid needs whole sequences and all heads on a rank; give 1, and shard over all ranks"},
                    {"model: {name: debug, layer_types: 'full,mlp'}\n",
                     "c.yaml:1: model.layer_types: llama has no blocks with a feed-forward part alone; leave out mlp"},
                    {"model: {name: debug, linear_least_step: 0.1}\n",
                     "c.yaml:1: model.linear_least_step: only nemotron_h and granitemoehybrid have a least step; leave it out"},
                    {"model: {name: debug, ffn: ';'}\n", "c.yaml:1: model.ffn: has no statement; leave it out"},
                    {"model: {name: debug, linear_conv_size: 4}\n",
                     "c.yaml:1: model.linear_conv_size: no block of the model has the gated delta rule; leave it out"},
                    {"model: {name: debug, layer_types: linear}\n",
                     "c.yaml:1: model.layer_types: llama has no blocks with the gated delta rule; leave out linear"},
                    {"model: {name: gpt-oss-20b}\nparallelism: {context_parallel_degree: 2, context_parallel_method: ulysses}\n",
                     "c.yaml:2: parallelism.context_parallel_method: ulysses cuts heads over ranks, but the attention of gpt_oss has a vector of sinks of all heads; give gather"},
                    {"model: {name: debug}\ntraining: {seq_len: 32}\nparallelism: {context_parallel_degree: 3}\n",
                     "c.yaml:3: parallelism.context_parallel_degree: 3 ranks that gather keys and values have two pieces of each sequence, and 6 does not divide training.seq_len 32; give 2"},
                    {"model: {name: debug}\ntraining: {seq_len: 32}\nparallelism: {context_parallel_degree: 3, context_parallel_method: ulysses}\n",
                     "c.yaml:3: parallelism.context_parallel_degree: 3 ranks cannot share model.n_heads 4, model.n_kv_heads 2 and training.seq_len 32 equally; give one of 1, 2, 4"},
                    {"model: {name: debug, n_heads: 6, n_kv_heads: 2}\ntraining: {seq_len: 48}\nparallelism: {context_parallel_degree: 3, context_parallel_method: ulysses}\n",
                     "c.yaml:3: parallelism.context_parallel_degree: 3 ranks cannot share model.n_heads 6, model.n_kv_heads 2 and training.seq_len 48 equally; give one of 1, 2, 6"},
                    {"model: {name: debug}\ntraining: {seq_len: 33}\nparallelism: {context_parallel_degree: 2}\n",
                     "c.yaml:3: parallelism.context_parallel_degree: 2 ranks cannot share model.n_heads 4, model.n_kv_heads 2 and training.seq_len 33 equally; leave it out"},
                    {"model: {name: debug}\ntraining: {reproducible: mesh}\nparallelism: {context_parallel_degree: 2}\n",
                     "c.yaml:3: parallelism.context_parallel_degree: 2 sums gradients over parts of sequences, each of whole leaves (training.row_leaves); give training.row_leaves=2"},
                    {"model: {name: debug}\ntraining: {seq_len: 12, reproducible: mesh}\nparallelism: {context_parallel_degree: 4, context_parallel_method: gather}\n",
                     "c.yaml:3: parallelism.context_parallel_degree: 4 ranks that gather keys and values sum over pieces that do not lie side by side; leave out training.reproducible=mesh or parallelism.context_parallel_degree"},
                    {"model: {name: debug}\ntraining: {seq_len: 33}\nparallelism: {context_parallel_degree: 2, context_parallel_method: gather}\n",
                     "c.yaml:3: parallelism.context_parallel_degree: 2 ranks that gather keys and values have two pieces of each sequence, and 4 does not divide training.seq_len 33; leave it out"},
                    {"model: {name: debug, n_kv_heads: 4}\ntraining: {seq_len: 32, reproducible: mesh}\nparallelism: {context_parallel_degree: 4}\n",
                     "c.yaml:3: parallelism.context_parallel_degree: 4 sums gradients over parts of sequences, each of whole leaves (training.row_leaves); leave out training.reproducible=mesh, or give parallelism.context_parallel_degree=2 and training.row_leaves=2"},
                    {"model: {name: debug}\ntraining: {reproducible: mesh, row_leaves: 4}\nparallelism: {context_parallel_degree: 4}\n",
                     "c.yaml:3: parallelism.context_parallel_degree: 4 ranks have copies of the 2 heads of model.n_kv_heads, whose gradients are summed in an order of their own; leave out training.reproducible=mesh, or give parallelism.context_parallel_degree=2 and training.row_leaves=4"},
                    {"model: {name: debug}\ntraining: {reproducible: mesh, seq_len: 96, row_leaves: 8}\n",
                     "c.yaml:2: training.row_leaves: 8 does not cut training.seq_len=96 into a power of two of equal parts of at least 16 tokens; give at most 4"},
                    {"model: {name: debug}\ntraining: {reproducible: mesh, seq_len: 96, row_leaves: 3}\n",
                     "c.yaml:2: training.row_leaves: 3 does not cut training.seq_len=96 into a power of two of equal parts of at least 16 tokens; give at most 4"},
                    {"model: {name: debug-moe}\ntraining: {reproducible: mesh, row_leaves: 2}\n",
                     "c.yaml:2: training.row_leaves: 2 cuts sums over the rows of a sequence, but rows of experts are sorted over all sequences; leave it out with model.n_experts=8"},
                    {"model: {name: debug}\ntraining: {reproducible: mesh, seq_len: 192, row_leaves: 2, tile_rows: 64}\n",
                     "c.yaml:2: training.tile_rows: 64 is neither a divisor nor a multiple of the 96 tokens of a leaf (training.seq_len / training.row_leaves)"},
                    {"model: {name: debug-moe}\nlora: {rank: 65, target_modules: '', target_parameters: experts.down_proj}\n",
                     "c.yaml:2: lora.rank: 65 is above the rank of mlp.experts.down_proj, which has 64 inputs and 128 outputs"},
                    {"model: {name: debug, family: llama, no_rope_layer_interval: 4}\n",
                     "c.yaml:1: model.no_rope_layer_interval: llama has positions in all blocks; leave it out"},
                    {"model: {name: debug, rope_factor: 0.5}\n",
                     "c.yaml:1: model.rope_factor: 0.5 would shorten the context; give 0 or at least 1"},
                    {"model: {name: debug, rope_factor: 8, rope_type: yarn}\n",
                     "model.rope_original_max_len: needed with model.rope_factor"},
                    {"model: {name: debug, rope_factor: 8, rope_type: yarn, rope_original_max_len: 64, rope_beta_fast: 1}\n",
                     "c.yaml:1: model.rope_beta_fast: 1 must be above model.rope_beta_slow 1"},
                    {"model: {name: debug, rope_factor: 8, rope_type: yarn, rope_original_max_len: 64, rope_theta: 1}\n",
                     "c.yaml:1: model.rope_theta: 1: all frequencies are one, which yarn cannot tell apart"},
                    {"model: {name: debug, rope_factor: 8}\n",
                     "model.rope_original_max_len: needed with model.rope_factor"},
                    {"model: {name: llama3.1-8b, rope_high_freq_factor: 1}\n",
                     "c.yaml:1: model.rope_high_freq_factor: 1 must be above model.rope_low_freq_factor 1"},
                    /* keys that do not fit together */
                    {DEBUG_MODEL "training: {seq_len: 1024}\n",
                     "c.yaml:2: training.seq_len: 1024 is longer than model.max_seq_len; give --training.seq_len=512, or less"},
                    {DEBUG_MODEL "training: {global_batch_size: 0}\n",
                     "c.yaml:2: training.global_batch_size: 0; give -1 for local_batch_size * ranks, or a number"},
                    {DEBUG_MODEL "training: {local_batch_size: 3, global_batch_size: 8}\n",
                     "c.yaml:2: training.global_batch_size: 8 is not a multiple of training.local_batch_size 3, given at c.yaml:2; give "
                     "training.local_batch_size=2, or training.global_batch_size=9"},
                    {DEBUG_MODEL "training: {global_batch_size: 12}\n",
                     "c.yaml:2: training.global_batch_size: 12 is not a multiple of training.local_batch_size 8, given by default; give "
                     "training.local_batch_size=6, or training.global_batch_size=16"},
                    {DEBUG_MODEL "data: {document_separator: 256}\n",
                     "c.yaml:2: data.document_separator: 256 is outside the vocabulary of 256 tokens"},
                    {DEBUG_MODEL "data: {mix: \"a.bin=1\"}\ntraining: {dataset_path: b.bin}\n",
                     "c.yaml:2: data.mix: training.dataset_path is given as well; leave one of them out"},
                    {"model: {name: debug, window_first_layer: 2}\n",
                     "c.yaml:1: model.window_first_layer: needs model.attention_window"},
                    {"model: {name: debug, layer_types: 'full,sliding'}\n",
                     "c.yaml:1: model.layer_types: blocks with a window need model.attention_window"},
                    {"model: {name: debug, attention_window: 8, layer_types: full}\n",
                     "c.yaml:1: model.attention_window: model.layer_types has no block with a window"},
                    {"model: {name: debug, layer_types: '3*ful'}\n",
                     "c.yaml:1: model.layer_types: '3*ful' is none of full, sliding, full_nope, sliding_nope, linear, mlp and moe, nor a number of them such as 3*sliding"},
                    {"model: {name: debug, layer_types: full, full_attention_interval: 2}\n",
                     "c.yaml:1: model.full_attention_interval: model.layer_types is given too and says the same of every block; give it alone"},
                    {"model: {name: gpt2-124m, layer_types: full_nope}\n",
                     "c.yaml:1: model.layer_types: gpt2 has no rotary positions that a block could lack"},
                    {"model: {name: debug, rope_local_base_freq: 100}\n",
                     "c.yaml:1: model.rope_local_base_freq: needs model.attention_window"},
                    {"model: {name: debug, attention_window: 8, rope_local_base_freq: 0.5}\n",
                     "c.yaml:1: model.rope_local_base_freq: 0.5 is below 1; give 0 or at least 1"},
                    {"model: {name: gpt2-124m, attention_window: 8, rope_local_base_freq: 100}\n",
                     "c.yaml:1: model.rope_local_base_freq: gpt2 has no rotary positions; leave it out"},
                    {DEBUG_MODEL "data: {document_mask: true}\n",
                     "c.yaml:2: data.document_mask: needs data.document_separator, the token that ends a document"},
                    {DEBUG_MODEL "training: {steps: 10}\nlr_scheduler: {warmup_steps: 11}\n",
                     "c.yaml:3: lr_scheduler.warmup_steps: 11 is more than all 10 steps; give fewer, such as "
                     "--lr_scheduler.warmup_steps=0, or more training.steps"},
                    {DEBUG_MODEL "lr_scheduler: {decay_type: wsd, decay_shape: exp, min_lr_factor: 0}\n",
                     "c.yaml:2: lr_scheduler.min_lr_factor: 0: an exponential never gets there; give more, such as 0.01, or sqrt or "
                     "linear"},
                    {DEBUG_MODEL "lr_scheduler: {warmup_steps: 900, decay_type: power_tail}\n",
                     "lr_scheduler.decay_ratio: 0.2 of 1000 steps and 900 warmup_steps overlap; make one of them less"},
                    {DEBUG_MODEL "parallelism: {sharding_strategy: no_shard, reshard_after_forward: 2}\n",
                     "c.yaml:2: parallelism.reshard_after_forward: 2 needs sharding_strategy full_shard or hybrid_shard; the others do "
                     "not reshard"},
                    {DEBUG_MODEL "training: {reproducible: mesh}\nparallelism: {gradient_sync: every_micro_step}\n",
                     "c.yaml:3: parallelism.gradient_sync: every_micro_step sums over the ranks before the micro-steps, but "
                     "training.reproducible=mesh sums over the micro-steps first; leave it out"},
                    {DEBUG_MODEL "training: {reproducible: mesh, deterministic: false}\n",
                     "c.yaml:2: training.deterministic: false gives different bits in each run, but training.reproducible=mesh gives "
                     "the same bits on every mesh; leave one of them out"},
                    {DEBUG_MODEL "training: {reproducible: mesh, measure_products: true}\n",
                     "c.yaml:2: training.measure_products: measured times may choose other kernels on another mesh, but "
                     "training.reproducible=mesh gives the same bits on every mesh; leave one of them out"},
                    {DEBUG_MODEL "training: {reproducible: mesh, mixed_precision_reduce: bf16}\n",
                     "c.yaml:2: training.mixed_precision_reduce: bfloat16 rounds what is sent, and what is sent depends on the mesh; "
                     "leave it out with training.reproducible=mesh"},
                    {DEBUG_MODEL "parallelism: {zero_stage: 2, reshard_after_forward: 2}\n",
                     "c.yaml:2: parallelism.reshard_after_forward: 2 needs sharding_strategy full_shard or hybrid_shard; the others do "
                     "not reshard"},
                    {DEBUG_MODEL "activation_checkpoint: {mode: every_k, every_k: 5}\n",
                     "c.yaml:2: activation_checkpoint.every_k: 5 is more than model.n_layers 4; no block would be recomputed"},
                    {DEBUG_MODEL "activation_checkpoint: {mode: memory_budget}\n",
                     "c.yaml:2: activation_checkpoint.mode: memory_budget fits memory.limit_bytes; give that too, such as 60GiB"},
                    {DEBUG_MODEL "offload: {mode: memory_budget, nvme_path: /d}\n",
                     "c.yaml:2: offload.mode: memory_budget fits memory.limit_bytes; give that too, such as 60GiB"},
                    {DEBUG_MODEL
                     "offload: {mode: memory_budget}\nmemory: {limit_bytes: 1GiB}\ntraining: {device: cpu}\n",
                     "c.yaml:2: offload.mode: memory_budget: offload.nvme_path is missing; give a folder on a local disk"},
                    {DEBUG_MODEL
                     "offload: {mode: memory_budget, nvme_path: /d, optimizer: nvme}\nmemory: {limit_bytes: 1GiB}\n",
                     "c.yaml:2: offload.optimizer: offload.mode=memory_budget chooses it; leave out one of them"},
                    {DEBUG_MODEL
                     "offload: {mode: memory_budget, nvme_path: /d, gradients: nvme}\nmemory: {limit_bytes: 1GiB}\n",
                     "c.yaml:2: offload.gradients: offload.mode=memory_budget chooses it; leave out one of them"},
                    {DEBUG_MODEL
                     "offload: {mode: memory_budget, nvme_path: /d, activations: nvme}\nmemory: {limit_bytes: 1GiB}\n",
                     "c.yaml:2: offload.activations: offload.mode=memory_budget chooses it; leave out one of them"},
                    {DEBUG_MODEL
                     "offload: {mode: memory_budget, parameters: cpu}\nmemory: {limit_bytes: 1GiB}\ntraining: {device: cuda}\n",
                     "c.yaml:2: offload.parameters: offload.mode=memory_budget chooses it; leave out one of them"},
                    {DEBUG_MODEL "offload: {rates: {file: 3e9}}\n",
                     "c.yaml:2: offload.rates: 'file=3e9' is not a rate; give file=READ/WRITE and perhaps mixed=BOTH, or "
                     "host=READ/WRITE, in bytes per second, as `sherd bench tier` prints them"},
                    {DEBUG_MODEL "guard: {z_score: 1}\n",
                     "c.yaml:2: guard.z_score: 1 would skip many good steps; give 0 (off) or at least 2"},
                    {DEBUG_MODEL "guard: {action: rollback}\ncheckpoint: {enable: false}\n",
                     "c.yaml:2: guard.action: rollback needs checkpoints, but checkpoint.enable=false"},
};

/* clang-format off */
static const struct refusal matrices[] = {
    {"model: {name: debug}\ntraining: {seq_len: 32, local_batch_size: 1}\nparallelism: {tensor_parallel_degree: 2, tensor_parallel_tiles: 3}\n",
     "c.yaml:3: parallelism.tensor_parallel_tiles: 3 tiles of 2 ranks cannot have equal rows of 32 tokens of a micro-step; give fewer, or 1"},
    {"model: {name: debug}\ntraining: {seq_len: 32, local_batch_size: 1}\nparallelism: {tensor_parallel_degree: 4}\n",
     "c.yaml:3: parallelism.tensor_parallel_degree: 4 ranks cannot share model.n_heads 4, model.n_kv_heads 2, model.ffn_dim 384 and 32 tokens of a micro-step equally; give one of 1, 2; more ranks can share sequences (parallelism.context_parallel_degree)"},
    {"model: {name: debug, ffn_dim: 193}\nparallelism: {tensor_parallel_degree: 2}\n",
     "c.yaml:2: parallelism.tensor_parallel_degree: 2 ranks cannot share model.n_heads 4, model.n_kv_heads 2, model.ffn_dim 193 and 4096 tokens of a micro-step equally; leave it out"},
    {"model: {name: debug}\ntraining: {seq_len: 33, local_batch_size: 1}\nparallelism: {tensor_parallel_degree: 2}\n",
     "c.yaml:3: parallelism.tensor_parallel_degree: 2 ranks cannot share model.n_heads 4, model.n_kv_heads 2, model.ffn_dim 384 and 33 tokens of a micro-step equally; leave it out"},
    {"model: {name: debug}\ntraining: {seq_len: 32, local_batch_size: 2}\nparallelism: {tensor_parallel_degree: 2, context_parallel_degree: 4, context_parallel_method: ulysses}\n",
     "c.yaml:3: parallelism.tensor_parallel_degree: 2 ranks cannot share model.n_heads 4, model.n_kv_heads 2, model.ffn_dim 384 and 16 tokens of a micro-step equally beside context_parallel_degree 4; leave it out"},
    {"model: {name: debug}\ntraining: {reproducible: mesh}\nparallelism: {tensor_parallel_degree: 3}\n",
     "c.yaml:3: parallelism.tensor_parallel_degree: 3 ranks cannot share model.n_heads 4, model.n_kv_heads 2, model.ffn_dim 384 and 4096 tokens of a micro-step equally, in a power of two for training.reproducible=mesh; give one of 1, 2"},
    {"model: {name: debug}\ntraining: {reproducible: mesh, row_leaves: 2}\nparallelism: {tensor_parallel_degree: 2}\n",
     "c.yaml:3: parallelism.tensor_parallel_degree: 2 cuts rows flat, whatever leaf they are of; give training.row_leaves=1"},
    {"model: {name: debug}\ntraining: {mixed_precision_param: float16}\nparallelism: {tensor_parallel_degree: 2}\n",
     "c.yaml:3: parallelism.tensor_parallel_degree: 2 sums activations over ranks, in float32 or bfloat16; give training.mixed_precision_param=bfloat16"},
    {"model: {name: debug}\ntraining: {reproducible: mesh}\nparallelism: {tensor_parallel_degree: 2, context_parallel_degree: 2}\n",
     "c.yaml:3: parallelism.context_parallel_degree: 2 sums gradients over parts of sequences, whose leaves (training.row_leaves) do not go with parallelism.tensor_parallel_degree; leave out training.reproducible=mesh or parallelism.context_parallel_degree"},
    {"model: {name: debug-moe}\ntraining: {reproducible: mesh}\nparallelism: {context_parallel_degree: 2}\n",
     "c.yaml:3: parallelism.context_parallel_degree: 2 sums gradients over parts of sequences, whose leaves (training.row_leaves) do not go with experts; leave out training.reproducible=mesh or parallelism.context_parallel_degree"},
};
/* clang-format on */
/* clang-format on */

static const struct refusal arguments[] = {
    {"training.stepz=5", "--training.stepz: no such key; nearest is training.steps"},
    {"training.steps", "--training.steps: has no value; write --section.key=value"},
    {"training.steps=", "--training.steps: '' is not a whole number"},
    {"=5", "--: no such key"},
    {"", "--: has no value; write --section.key=value"},
    {"training.steps=5 ", "--training.steps: '5 ' is not a whole number"},
    {"job.description=a\nb", "--job.description: contains control characters or is not UTF-8"},
    {"job.description=\xff", "--job.description: contains control characters or is not UTF-8"},
    {"offload_optimizer.device=nvme",
     "--offload_optimizer.device: no such key; offload.optimizer, and offload.gradients with it: none, cpu or nvme"},
    {"moe.experts_per_unit=16",
     "--moe.experts_per_unit: no such key; parallelism.expert_parallel_degree: P; a rank then gathers one P-th of a "
     "block's experts, not all of them"},
    {"compute.threads=4", "--compute.threads: no such key; nearest is training.threads"},
    {"training.device=gpu", "--training.device: 'gpu' is not one of auto | cpu | cuda; give cuda"},
    {"offload_optimizer.ratio=0.5", "--offload_optimizer.ratio: no such key; offload.optimizer_ratio"},
    {"offload_optimizer.nvme_path=/d", "--offload_optimizer.nvme_path: no such key; offload.nvme_path"},
    {"offload_optimizer.buffer_count=4",
     "--offload_optimizer.buffer_count: no such key; offload.buffer_count, in slices; Sherd chooses their size"},
    {"offload_optimizer.pipeline_read=true",
     "--offload_optimizer.pipeline_read: no such key; leave it out: slices are always read ahead and written behind, "
     "and host memory for a GPU is always pinned"},
    {"offload_param.device=nvme",
     "--offload_param.device: no such key; offload.parameters: cpu on GPUs; a CPU has all in host memory already, and "
     "offload.optimizer: nvme puts states in a file"},
    {"zero_optimization.offload_optimizer.device=nvme",
     "--zero_optimization.offload_optimizer.device: no such key; offload.optimizer, and offload.gradients with it: "
     "cpu on GPUs, or nvme on CPUs with nvme_path; buffer_count and optimizer_ratio are also keys of offload"},
    {"optimizer_cpu_offload=true",
     "--optimizer_cpu_offload: no such key; offload.optimizer, and offload.gradients with it: cpu on GPUs, or nvme on "
     "CPUs with nvme_path; buffer_count and optimizer_ratio are also keys of offload"},
    {"fsdp_offload_params=true",
     "--fsdp_offload_params: no such key; training.enable_cpu_offload: true on GPUs; a CPU has all in host "
     "memory already, and offload.optimizer: nvme puts states in a file"},
    {"optimizer_offload_fraction=0.5",
     "--optimizer_offload_fraction: no such key; offload.optimizer_ratio, with offload.optimizer: cpu on GPUs, nvme on "
     "CPUs"},
    {"fine_grained_activation_offloading=true",
     "--fine_grained_activation_offloading: no such key; offload.activations: cpu on GPUs, or nvme on CPUs with "
     "nvme_path; activation_ratio is also a key of offload"},
    {"activation_checkpointing.cpu_checkpointing=true",
     "--activation_checkpointing.cpu_checkpointing: no such key; offload.activations: cpu on GPUs, or nvme on CPUs "
     "with nvme_path; activation_ratio is also a key of offload"},
    {"activation_offload_fraction=0.5",
     "--activation_offload_fraction: no such key; offload.activation_ratio, with offload.activations: cpu on GPUs, nvme on "
     "CPUs"},
    {"fp16.loss_scale_window=500",
     "--fp16.loss_scale_window: no such key; training.mixed_precision_param: float16, with loss_scale, "
     "loss_scale_init and loss_scale_window with it"},
    {"initial_loss_scale=4294967296", "--initial_loss_scale: no such key; training.loss_scale_init"},
    {"model.name=gpt",
     "--model.name: no preset 'gpt' (known: debug, gpt2-124m, gpt2-1558m, llama3.2-1b, "
     "llama3.1-8b, llama3.1-70b, llama3.1-405b, debug-moe, mixtral-8x7b, qwen3-30b-a3b, olmoe-1b-7b, gpt-oss-20b, command-r7b, gemma2-2b, gemma2-9b, gemma-4-e2b, gemma-4-e4b, deepseek-v3, nemotron-3-nano, granite-4.0-h-micro, granite-4.0-h-tiny, granite-4.0-h-small, qwen3.5-9b, custom)"},
    {"parallelism.sharding_strategy=ShardingStrategy.FULL_SHRD",
     "--parallelism.sharding_strategy: 'ShardingStrategy.FULL_SHRD' is not one of no_shard | shard_optim | "
     "shard_grad_op | full_shard | hybrid_shard | hybrid_shard_zero2; nearest is full_shard"},
};

static void check_refused(const char *name, sh_rc rc, const struct refusal *r)
{
    if (rc == SH_E_USAGE && strcmp(sh_error_text(), r->error) == 0)
        return;
    fail_msg("%s: for\n%s\nwant %s\ngot  %s", name, r->given, r->error, rc == SH_OK ? "no error" : sh_error_text());
}

static void check_texts(const struct refusal *r, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct sh_config cfg, before;
        memset(&cfg, 0x5a, sizeof cfg);
        before = cfg;
        check_refused("text", sh_config_parse(r[i].given, strlen(r[i].given), "c.yaml", 0, NULL, &cfg), &r[i]);
        assert_memory_equal(&cfg, &before, sizeof cfg);
    }
}

static void test_texts(void **state)
{
    (void)state;
    check_texts(texts, sizeof texts / sizeof texts[0]);
    check_texts(matrices, sizeof matrices / sizeof matrices[0]);
}

static void test_arguments(void **state)
{
    (void)state;
    struct sh_config cfg;
    for (size_t i = 0; i < sizeof arguments / sizeof arguments[0]; i++)
        check_refused("argument", sh_config_load(NULL, 1, &arguments[i].given, &cfg), &arguments[i]);
}

static void test_idle_argument(void **state)
{
    struct sh_config cfg;
    const char *const idle[] = {"model.name=debug", "activation_checkpoint.every_k=3"};
    const char *const used[] = {"model.name=debug", "activation_checkpoint.every_k=3",
                                "activation_checkpoint.mode=every_k"};
    (void)state;
    assert_int_equal(sh_config_load(NULL, 2, idle, &cfg), SH_E_USAGE);
    assert_string_equal(sh_error_text(),
                        "--activation_checkpoint.every_k: has no effect without activation_checkpoint.mode=every_k");
    assert_int_equal(sh_config_load(NULL, 3, used, &cfg), SH_OK);
}

static void test_idle_beside_words(void **state)
{
    static const struct {
        const char *beside, *key, *wrong;
    } rows[] = {
        {"optimizer.name=SGD", "optimizer.beta2=0.9",
         "--optimizer.beta2: has no effect without optimizer.name=adamw or lion or muon or normuon"},
        {"training.mixed_precision_param=bfloat16", "training.loss_scale=1024",
         "--training.loss_scale: has no effect without training.mixed_precision_param=float16"},
        {"training.mixed_precision_param=float32", "training.loss_scale_init=1024",
         "--training.loss_scale_init: has no effect without training.mixed_precision_param=float16 and "
         "training.loss_scale=dynamic"},
        {"optimizer.name=sgd", "optimizer.eps=1e-6",
         "--optimizer.eps: has no effect without optimizer.name=adamw or muon or normuon"},
        {"optimizer.name=Lion", "optimizer.eps=1e-6",
         "--optimizer.eps: has no effect without optimizer.name=adamw or muon or normuon"},
        {"optimizer.name=adamw", "optimizer.ns_steps=6",
         "--optimizer.ns_steps: has no effect without optimizer.name=muon or normuon"},
        {"optimizer.name=Muon", "optimizer.ns_steps=6", NULL},
        {"optimizer.name=muon", "optimizer.muon_beta2=0.9",
         "--optimizer.muon_beta2: has no effect without optimizer.name=normuon"},
        {"model.name=debug-moe", "model.ffn_dim=64",
         "--model.ffn_dim: has no effect: all blocks have experts; give model.expert_ffn_dim"},
        {"model.name=debug-moe", "moe.capacity_factor=1.25",
         "--moe.capacity_factor: has no effect without parallelism.expert_parallel_degree above 1; leave it out"},
        {"optimizer.name=Lion", "optimizer.beta2=0.9", NULL},
        {"optimizer.name=sgd", "optimizer.beta1=0.9", NULL},
        {"optimizer.name=sgd", "optimizer.decay_all=true", NULL},
        {"optimizer.name=AdamW", "optimizer.eps=1e-6", NULL},
        {"data.packing=concat", "data.excess_length_strategy=drop",
         "--data.excess_length_strategy: has no effect without data.packing=bfd or none"},
        {"data.packing=none", "data.excess_length_strategy=drop", NULL},
        {"offload.optimizer=none", "offload.optimizer_ratio=0.5",
         "--offload.optimizer_ratio: has no effect without offload.optimizer=cpu or nvme"},
        {"offload.optimizer=none", "offload.nvme_path=/d",
         "--offload.nvme_path: has no effect without offload.optimizer, offload.gradients or offload.activations=nvme, or "
         "offload.mode=memory_budget"},
        {"offload.optimizer=none", "offload.rates=host=1e9/1e9",
         "--offload.rates: has no effect without offload.mode=memory_budget, or another key of offload that moves "
         "tensors off the device"},
        {"offload.parameters=cpu", "offload.rates=host=1e9/1e9", NULL},
        {"offload.gradients=cpu", "offload.rates=host=1e9/1e9", NULL},
        {"training.device=cpu", "memory.host_limit_bytes=1GiB",
         "--memory.host_limit_bytes: has no effect without GPUs, but training.device is cpu"},
        {"training.device=cuda", "memory.host_limit_bytes=1GiB", NULL},
        {"offload.gradients=nvme", "offload.nvme_path=/d", NULL},
        {"offload.optimizer=nvme", "offload.nvme_path=/d", NULL},
        {"offload.optimizer=cpu", "offload.optimizer_ratio=0.5", NULL},
        {"offload.activations=none", "offload.activation_ratio=0.5",
         "--offload.activation_ratio: has no effect without offload.activations=cpu or nvme"},
        {"offload.activations=cpu", "offload.activation_ratio=0.5", NULL},
        {"model.name=gpt2-124m", "model.rope_theta=500",
         "--model.rope_theta: has no effect without blocks with rotary positions of this base"},
        {"model.layer_types=full_nope", "model.rope_theta=500",
         "--model.rope_theta: has no effect without blocks with rotary positions of this base"},
        {"model.layer_types=3*full_nope,full", "model.rope_theta=500", NULL},
        {"offload.activations=cpu", "offload.nvme_path=/d",
         "--offload.nvme_path: has no effect without offload.optimizer, offload.gradients or offload.activations=nvme, or "
         "offload.mode=memory_budget"},
        {"offload.optimizer=cpu", "offload.overlap_update=off", NULL},
        {"offload.optimizer=cpu", "offload.verify=false",
         "--offload.verify: has no effect without offload.optimizer, offload.gradients or offload.activations=nvme, or "
         "offload.mode=memory_budget"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const char *const given[] = {"model.name=debug", rows[i].beside, rows[i].key};
        struct sh_config cfg;
        int named = strncmp(rows[i].beside, "model.name=", 11) == 0;
        assert_int_equal(sh_config_load(NULL, 3 - named, given + named, &cfg), rows[i].wrong ? SH_E_USAGE : SH_OK);
        if (rows[i].wrong)
            assert_string_equal(sh_error_text(), rows[i].wrong);
    }
}

static void test_argument_twice(void **state)
{
    (void)state;
    struct sh_config cfg;
    const char *const twice[] = {"model.name=debug", "training.steps=5", "training.steps=6"};
    assert_int_equal(sh_config_load(NULL, 3, twice, &cfg), SH_E_USAGE);
    assert_string_equal(sh_error_text(), "--training.steps: given twice, first on the command line");
}

/* An option that stands for a key is named in front of it, and where a message says who gave a value. */
static void test_option(void **state)
{
    static const struct {
        const char *given[3], *wrong;
    } rows[] = {
        {{"model.name=debug", "--ranks: mesh.ranks=two"}, "--ranks: mesh.ranks: 'two' is not a whole number"},
        {{"model.name=debug", "--ranks: mesh.ranks=4", "mesh.ranks=2"}, "--mesh.ranks: given twice, first by --ranks"},
        {{"model.name=debug", "--share-gpu: comm.share_gpu=true", "training.device=cpu"},
         "--share-gpu: comm.share_gpu: has no effect without GPUs, but training.device is cpu"},
        {{"model.name=debug", "--trace: profiling.trace=a: b=c"}, NULL},
    };
    struct sh_config cfg;
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int n = rows[i].given[2] != NULL ? 3 : 2;
        assert_int_equal(sh_config_load(NULL, n, rows[i].given, &cfg), rows[i].wrong ? SH_E_USAGE : SH_OK);
        if (rows[i].wrong)
            assert_string_equal(sh_error_text(), rows[i].wrong);
        else
            assert_string_equal(cfg.profiling.trace, "a: b=c");
    }
}

/* Zero bytes, sizes and depths that a table of strings cannot hold. */
static void test_large_and_deep(void **state)
{
    (void)state;
    enum { DEEP = 200000 };
    struct sh_config cfg;
    char *text = malloc(SH_CONFIG_FILE_MAX + 1);
    assert_non_null(text);
    assert_int_equal(sh_config_parse("job:\n\0", 6, "c.yaml", 0, NULL, &cfg), SH_E_USAGE);
    assert_string_equal(sh_error_text(), "c.yaml:2: byte 0x00 is a control character or not UTF-8");
    memset(text, '#', SH_CONFIG_FILE_MAX + 1);
    assert_int_equal(sh_config_parse(text, SH_CONFIG_FILE_MAX + 1, "c.yaml", 0, NULL, &cfg), SH_E_USAGE);
    assert_string_equal(sh_error_text(), "c.yaml: 1048577 bytes of configuration, more than the 1048576 allowed");
    for (const char *open = "[{-"; *open != '\0'; open++) {
        memset(text, *open, DEEP);
        assert_int_equal(sh_config_parse(text, DEEP, "c.yaml", 0, NULL, &cfg), SH_E_USAGE);
    }
    free(text);
}

static void test_long_values(void **state)
{
    (void)state;
    struct sh_config cfg;
    char argument[400] = "job.description=";
    const char *const given[] = {argument, "model.name=debug"};
    memset(argument + strlen(argument), 'x', 255);
    assert_int_equal(sh_config_load(NULL, 2, given, &cfg), SH_OK);
    argument[strlen(argument)] = 'x';
    assert_int_equal(sh_config_load(NULL, 2, given, &cfg), SH_E_USAGE);
    assert_string_equal(sh_error_text(), "--job.description: 256 bytes, more than the 255 that fit");
}

static void test_files(void **state)
{
    (void)state;
    struct sh_config cfg;
    assert_int_equal(sh_config_load("/no/such.yaml", 0, NULL, &cfg), SH_E_DATA);
    assert_string_equal(sh_error_text(), "open /no/such.yaml: No such file or directory");
    assert_int_equal(sh_config_load("/tmp", 0, NULL, &cfg), SH_E_DATA);
    assert_string_equal(sh_error_text(), "read /tmp: not a regular file");
}

/* One start reports everything that is wrong: in the file, on the command line, in keys of another trainer, and in
 * lists and mappings. */
static void test_all_at_once(void **state)
{
    static const char text[] = "model:\n  name: debug\n  flavor: 8B\n  args: {dim: 5, x: [1, 2]}\n"
                               "training:\n  stepz: 5\n  seq_len: many\n  max_norm: [1]\n"
                               "compile: {enable: true, components: [model, loss]}\n"
                               "parallelism:\n  disable_loss_parallel: true\n  pipeline_parallel_schedule: GPipe\n"
                               "optimizer:\n  name: AdamW\n"
                               "learning_rate: 1\n"
                               "debug:\n  seed: 7\n";
    const char *const given[] = {"training.steps=0", "job.dumpfolder=x", "traning.steps=7", "ema.decay=1"};
    struct sh_config cfg;
    (void)state;
    assert_int_equal(sh_config_parse(text, strlen(text), "c.yaml", 4, given, &cfg), SH_E_USAGE);
    assert_string_equal(
        sh_error_text(),
        "c.yaml:3: model.flavor: no such key; model.name names preset and size in one, such as llama3.1-8b\n"
        "c.yaml:4: model.args: no such key; write its keys below model: n_layers, dim, n_heads, n_kv_heads, ffn_dim, ...\n"
        "c.yaml:6: training.stepz: no such key; nearest is training.steps\n"
        "c.yaml:7: training.seq_len: 'many' is not a whole number\n"
        "c.yaml:8: training.max_norm: expected one value, got a list\n"
        "c.yaml:9: compile: no such section; leave it out: kernels are compiled with Sherd, and `sherd plan --show` prints "
        "what is fused\n"
        "c.yaml:11: parallelism.disable_loss_parallel: no such key; leave it out: each rank has the logits of its own "
        "words\n"
        "c.yaml:12: parallelism.pipeline_parallel_schedule: 'GPipe' is not one of 1f1b | zbh1 | interleaved1f1b; the one with the same numbers is 1F1B, "
        "whose stages wait for each other longer or keep less\n"
        "c.yaml:15: learning_rate: no such key; optimizer.lr: 1\n"
        "--training.steps: 0 is out of range 1 .. 1000000000000\n"
        "--job.dumpfolder: no such key; nearest is job.dump_folder\n"
        "--traning.steps: no such key; nearest is training.steps\n"
        "--ema.decay: no such key");
}

/* Broken YAML ends the reading of the file, not of the arguments; checks between keys are reported together, too. */
static void test_all_of_a_kind(void **state)
{
    static const char broken[] = "training:\n  stepz: 5\n bad: [\n",
                      apart[] = DEBUG_MODEL "training: {seq_len: 1024}\nguard: {z_score: 1}\n";
    const char *const given[] = {"training.steps=0"};
    struct sh_config cfg;
    (void)state;
    assert_int_equal(sh_config_parse(broken, strlen(broken), "c.yaml", 1, given, &cfg), SH_E_USAGE);
    assert_string_equal(sh_error_text(), "c.yaml:2: training.stepz: no such key; nearest is training.steps\n"
                                         "c.yaml:3:2: while parsing a block mapping, did not find expected key\n"
                                         "--training.steps: 0 is out of range 1 .. 1000000000000");
    assert_int_equal(sh_config_parse(apart, strlen(apart), "c.yaml", 0, NULL, &cfg), SH_E_USAGE);
    assert_string_equal(
        sh_error_text(),
        "c.yaml:2: training.seq_len: 1024 is longer than model.max_seq_len; give --training.seq_len=512, or less\n"
        "c.yaml:3: guard.z_score: 1 would skip many good steps; give 0 (off) or at least 2");
}

static void test_many(void **state)
{
    enum { GIVEN = 70, SHOWN = 40 };
    char names[GIVEN][32];
    const char *given[GIVEN], *line;
    struct sh_config cfg;
    int lines = 1;
    (void)state;
    for (int i = 0; i < GIVEN; i++) {
        snprintf(names[i], sizeof names[i], "qwertyuiop.key%d=1", i);
        given[i] = names[i];
    }
    assert_int_equal(sh_config_load(NULL, GIVEN, given, &cfg), SH_E_USAGE);
    for (line = sh_error_text(); (line = strchr(line, '\n')) != NULL; line++)
        lines++;
    assert_int_equal(lines, SHOWN + 1);
    assert_non_null(strstr(sh_error_text(), "--qwertyuiop.key39: no such key\nand 30 more like these"));
}

/* No number is rounded to 0 or infinity, whatever key it is for and wherever it stands. */
static void test_rounded(void **state)
{
    static const char *const numbers[] = {"1e-400", "-1e-400", "1e-310", "1e400", "-1e400"};
    (void)state;
    for (int i = 0; i < sh_config_n_keys; i++) {
        const struct sh_config_key *key = &sh_config_keys[i];
        const char *dot = strchr(key->name, '.');
        for (size_t n = 0; key->type == SH_KEY_DOUBLE && n < sizeof numbers / sizeof *numbers; n++) {
            char yaml[200], word[200];
            const char *words[] = {word};
            struct sh_config cfg;
            snprintf(yaml, sizeof yaml, DEBUG_MODEL "%.*s:\n  %s: %s\n", (int)(dot - key->name), key->name, dot + 1,
                     numbers[n]);
            snprintf(word, sizeof word, "%s=%s", key->name, numbers[n]);
            if (sh_config_parse(yaml, strlen(yaml), "c.yaml", 0, NULL, &cfg) != SH_E_USAGE)
                fail_msg("accepted: %s", yaml);
            if (sh_config_parse(DEBUG_MODEL, strlen(DEBUG_MODEL), "c.yaml", 1, words, &cfg) != SH_E_USAGE)
                fail_msg("accepted: %s", word);
        }
    }
}

/* Each limit that a message names is itself taken, and the next value is not. */
static void test_limits(void **state)
{
    enum { WORDS = 6 };
    static const struct {
        const char *taken, *refused, *with[WORDS - 1];
    } rows[] = {
        {"training.seq_len=512", "training.seq_len=513", {NULL}},
        {"data.document_separator=255", "data.document_separator=256", {NULL}},
        {"lr_scheduler.warmup_steps=9", "lr_scheduler.warmup_steps=10", {"training.steps=9"}},
        {"activation_checkpoint.every_k=4", "activation_checkpoint.every_k=5", {"activation_checkpoint.mode=every_k"}},
        {"guard.z_score=2", "guard.z_score=1.99", {NULL}},
        {"model.rope_factor=1", "model.rope_factor=0.99", {"model.rope_type=linear"}},
        {"model.rope_local_base_freq=1", "model.rope_local_base_freq=0.99", {"model.attention_window=8"}},
        {"model.rope_high_freq_factor=1.01",
         "model.rope_high_freq_factor=1",
         {"model.rope_factor=8", "model.rope_original_max_len=64"}},
        {"model.rope_beta_fast=1.01",
         "model.rope_beta_fast=1",
         {"model.rope_factor=8", "model.rope_type=yarn", "model.rope_original_max_len=64"}},
        {"model.rope_original_max_len=2",
         "model.rope_original_max_len=1",
         {"model.rope_factor=8", "model.rope_type=longrope", "model.rotary_dim=4", "model.rope_short_factor=1,1",
          "model.rope_long_factor=1,1"}},
        {"model.rotary_dim=32", "model.rotary_dim=34", {NULL}},
        {"lora.rank=64", "lora.rank=65", {"lora.target_modules=v_proj", "training.mixed_precision_param=float32"}},
        {"training.local_batch_size=4", "training.local_batch_size=3", {"training.global_batch_size=8"}},
    };
    struct sh_config cfg;

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const char *words[WORDS + 1] = {"model.name=debug"};
        int n = 2;

        for (int k = 0; k < WORDS - 1 && rows[i].with[k]; k++)
            words[n++] = rows[i].with[k];
        words[1] = rows[i].taken;
        if (sh_config_load(NULL, n, words, &cfg) != SH_OK)
            fail_msg("%s is refused: %s", rows[i].taken, sh_error_text());
        words[1] = rows[i].refused;
        if (sh_config_load(NULL, n, words, &cfg) != SH_E_USAGE)
            fail_msg("%s is taken", rows[i].refused);
    }
}

/* The file's name says in which form it is. */
static void test_other_forms(void **state)
{
    static const char toml[] = "[training]\nsteps = 10\n",
                      json[] = "{\"train_batch_size\": 32, \"training\": {\"steps\": 5}}";
    struct sh_config cfg;
    (void)state;
    assert_int_equal(sh_config_parse(toml, strlen(toml), "x.toml", 0, NULL, &cfg), SH_E_USAGE);
    assert_string_equal(sh_error_text(),
                        "x.toml: TOML, but a configuration is YAML: write [training] with steps = 10 below it as "
                        "training: with an indented steps: 10; doc/from-others.md has each key");
    assert_int_equal(sh_config_parse(json, strlen(json), "x.json", 0, NULL, &cfg), SH_E_USAGE);
    assert_string_equal(sh_error_text(),
                        "x.json:1: train_batch_size: no such key; training.global_batch_size: 32\n"
                        "x.json: JSON is read as the YAML that it also is, with Sherd's sections and keys; "
                        "doc/from-others.md lists them next to those of others");
}

/* accelerate's and axolotl's files: each key with the key here and the value, also below another trainer's section. */
static void test_other_trainers(void **state)
{
    static const char text[] =
        "mixed_precision: bf16\nnum_processes: 8\n"
        "fsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n  fsdp_use_orig_params: true\n  x: 1\n"
        "base_model: a/b\nmicro_batch_size: 2\nload_in_4bit: true\nlora_target_modules: [q_proj]\n"
        "num_epochs: 3\noptimizer: adamw_8bit\ntf32: true\ntpu_env: []\n"
        "lora_model_dir:\ntrainin:\n";
    struct sh_config cfg;
    (void)state;
    assert_int_equal(sh_config_parse(text, strlen(text), "c.yaml", 0, NULL, &cfg), SH_E_USAGE);
    assert_string_equal(
        sh_error_text(),
        "c.yaml:1: mixed_precision: no such key; training.mixed_precision_param: bf16\n"
        "c.yaml:2: num_processes: no such key; leave it out: mpirun -n N, or srun, starts the ranks\n"
        "c.yaml:3: fsdp_config: no such section; parallelism.sharding_strategy, forward_prefetch and backward_prefetch\n"
        "c.yaml:4: fsdp_config.fsdp_sharding_strategy: no such key; parallelism.sharding_strategy=full_shard\n"
        "c.yaml:5: fsdp_config.fsdp_use_orig_params: no such key; leave it out: it changes nothing here\n"
        "c.yaml:7: base_model: no such key; model.hf_assets_path: a/b\n"
        "c.yaml:8: micro_batch_size: no such key; training.local_batch_size: 2\n"
        "c.yaml:9: load_in_4bit: no such key; lora.quantize_base=nf4\n"
        "c.yaml:10: lora_target_modules: no such key; lora.target_modules\n"
        "c.yaml:11: num_epochs: no such key; training.steps: an epoch of N tokens is N / (training.seq_len * "
        "training.global_batch_size) steps; `sherd tokenize` prints N\n"
        "c.yaml:12: optimizer: a section; expected keys below it, not a value; optimizer.name: adamw, sgd, lion, muon or normuon\n"
        "c.yaml:13: tf32: no such key; leave it out: it changes nothing here\n"
        "c.yaml:14: tpu_env: no such key; leave it out: there are no TPUs\n"
        "c.yaml:15: lora_model_dir: no such key; lora.adapter_path\n"
        "c.yaml:16: trainin: no such section; nearest is training");
}

/* Rows with several names, and a key of Sherd whose section is missing. */
static void test_axolotl(void **state)
{
    static const char text[] =
        "plugins:\n  - axolotl.integrations.liger.LigerPlugin\nliger_rope: true\nloss_watchdog_threshold: 5.0\n"
        "loss_watchdog_patience: 3\nrelora_steps: 9\nrelora_warmup_steps: 9\nunfrozen_parameters: [lm_head]\n"
        "dp_shard_size: 4\nspecial_tokens:\n  pad_token: x\nlr: 1e-3\ntokenizer_name: x\nligers: 1\n";
    struct sh_config cfg;
    (void)state;
    assert_int_equal(sh_config_parse(text, strlen(text), "c.yaml", 0, NULL, &cfg), SH_E_USAGE);
    assert_string_equal(
        sh_error_text(),
        "c.yaml:1: plugins: no such key; leave it out, unless it lists FILE.so: the kernels are Sherd's own, and "
        "fused\n"
        "c.yaml:3: liger_rope: no such key; leave it out: the kernels are Sherd's own, and fused\n"
        "c.yaml:4: loss_watchdog_threshold: no such key; guard.action: stop; guard.z_score is a bound on the gradient "
        "norm that moves with the run\n"
        "c.yaml:5: loss_watchdog_patience: no such key; guard.max_skips, the bad steps in a row that guard.action: skip "
        "accepts\n"
        "c.yaml:6: relora_steps: no such key; leave it out: adapters are trained to the end; `sherd ckpt export --merge` "
        "adds them to the model\n"
        "c.yaml:7: relora_warmup_steps: no such key; leave it out: adapters are trained to the end; `sherd ckpt export "
        "--merge` adds them to the model\n"
        "c.yaml:8: unfrozen_parameters: no such key; leave it out: all parameters are trained, or with lora.rank the "
        "adapters alone\n"
        "c.yaml:9: dp_shard_size: no such key; mesh.shard: 4\n"
        "c.yaml:10: special_tokens: no such section; leave it out: the tokenizer has its own; `sherd tokenize --eos WORD` "
        "chooses what ends a document\n"
        "c.yaml:12: lr: no such key; optimizer.lr: 1e-3\n"
        "c.yaml:13: tokenizer_name: no such key; model.tokenizer: x\n"
        "c.yaml:14: ligers: no such key");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_other_trainers), cmocka_unit_test(test_axolotl),
        cmocka_unit_test(test_texts),          cmocka_unit_test(test_arguments),
        cmocka_unit_test(test_idle_argument),  cmocka_unit_test(test_idle_beside_words),
        cmocka_unit_test(test_argument_twice), cmocka_unit_test(test_option),
        cmocka_unit_test(test_large_and_deep), cmocka_unit_test(test_long_values),
        cmocka_unit_test(test_files),          cmocka_unit_test(test_all_at_once),
        cmocka_unit_test(test_all_of_a_kind),  cmocka_unit_test(test_many),
        cmocka_unit_test(test_other_forms),    cmocka_unit_test(test_rounded),
        cmocka_unit_test(test_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
