#!/usr/bin/env python3
"""No option is ignored: a second value of each key changes the plan or the run, or is refused. Prints TAP.

ROWS has a row for each key of `sherd help --config`; whoever adds a key decides which output shows its effect:
    plan     the output of `sherd plan --show` for four ranks on two nodes
    steps    the steps in metrics.jsonl of a run on one rank: losses, norms, rates, validations; no times
    says     the standard error of that run, times left out
    files    the names of the files that it leaves
    saved    the output of `sherd ckpt info` for its last checkpoint
    trace    the steps in its trace
    refused  the second value is refused with status 2, 3 or 4, and the message names the key or has the row's text
A row may name a file of tests/ instead: that test shows the effect, and the file has to name the key.

With keys as arguments, tests only those.
"""
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import threading

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / name) for name in ('gold', 'mesh')]
import job
import tiny

BASE = {**tiny.MODELS['llama'], 'training.steps': 4, 'lr_scheduler.total_steps': 4, 'lr_scheduler.warmup_steps': 1,
        'training.local_batch_size': 2, 'checkpoint.interval': 3, 'job.dump_folder': 'out', 'validation.enable': True,
        'validation.freq': 2, 'validation.sequences': 6, 'mesh.ranks_per_node': 2, 'metrics.log_freq': 2,
        'training.device': 'cpu'}
ROPE = {'model.rope_factor': 8, 'model.rope_original_max_len': 16}
YARN = {**ROPE, 'model.rope_type': 'yarn', 'model.rope_theta': 4}  # so that a head of 4 elements has a ramp
LONGROPE = {**ROPE, 'model.rope_type': 'longrope', 'model.rope_short_factor': '1,2', 'model.rope_long_factor': '2,4'}
MOE = {'model.family': 'qwen2_moe', 'model.n_experts': 4, 'model.n_experts_per_token': 2, 'model.expert_ffn_dim': 8}
STAGED = {'parallelism.sharding_strategy': 'shard_optim', 'model.tie_word_embeddings': False, 'model.n_layers': 3}
SPREAD = {'parallelism.expert_parallel_degree': 4}
GROUPS = {**MOE, 'model.route_groups': 4, 'model.route_top_groups': 3}
DELTA = {'model.family': 'qwen3_5_text', 'model.linear_key_heads': 2, 'model.linear_value_heads': 4, 'model.linear_key_dim': 4,
         'model.linear_value_dim': 4, 'model.linear_conv_size': 4}
SCAN = {**DELTA, 'model.family': 'nemotron_h', 'model.tie_word_embeddings': False}
LATENT = {**MOE, 'model.family': 'deepseek_v3', 'model.n_kv_heads': None, 'model.rotary_dim': 2, 'model.kv_lora_rank': 6, 'model.v_head_dim': 3}
GLOBAL = {'model.family': 'gemma4_text', 'model.keys_as_values': True}
WINDOW = {'model.attention_window': 5}
HYBRID = {'parallelism.sharding_strategy': 'hybrid_shard'}
NARROW = {'training.mixed_precision_param': 'bfloat16'}
HALF = {'training.mixed_precision_param': 'float16', 'training.loss_scale_init': 2**30}
TRACE = {'profiling.trace': 'trace.json'}
MUON = {'optimizer.name': 'muon'}
NVME = {'offload.optimizer': 'nvme', 'offload.nvme_path': '.'}
DEEP = {'model.n_layers': 6, 'model.dim': 64, 'model.n_heads': 4, 'model.head_dim': 16, 'training.seq_len': 16}
OFTEN = {'checkpoint.interval': 1}
TALL = {'activation_checkpoint.mode': 'full', 'training.local_batch_size': 12, 'training.global_batch_size': 48}
# Steps of one sequence and a large rate, with norms that go up and down: a guard with a low bound finds outliers. Which
# it finds depends on rounding, and so on the processor, except with the reference kernels.
ROUGH = {'training.global_batch_size': 1, 'training.local_batch_size': 1, 'optimizer.lr': 0.3, 'training.steps': 60,
         'lr_scheduler.total_steps': 60, 'guard.window': 8, 'checkpoint.interval': 7, 'validation.enable': False,
         'training.kernels': 'ref'}
DISTILLED = {'objective.name': 'distillation'}
UNPAIRED = {'objective.name': 'dpo', 'objective.loss_type': 'apo_zero_unpaired'}
GUARD = {**ROUGH, 'guard.z_score': 2}


class Row:
    """One key: a second value, what shows it, and the settings that both sides need besides BASE (None: without that
    key)."""

    def __init__(self, value, shows, text='', needs=None):
        self.value, self.shows, self.text, self.needs = value, shows, text, needs or {}


ROWS = {
    'job.dump_folder': Row('elsewhere', 'files'),
    'job.description': Row('a run', 'saved'),
    'job.stop_before_limit_seconds': Row(3, 'mesh/test_stop.py'),
    'job.shrink': Row('pow2', 'jobscripts/test_shrink.py'),
    'job.least_nodes': Row(3, 'jobscripts/test_shrink.py'),
    'job.grow_seconds': Row(60, 'jobscripts/test_grow.py'),
    'model.name': Row('llama3.1-8b', 'plan', needs={'model.vocab_size': None}),
    'model.family': Row('gpt2', 'plan', needs={'model.n_kv_heads': None}),
    'model.n_layers': Row(2, 'plan'),
    'model.dim': Row(24, 'plan'),
    'model.n_heads': Row(4, 'plan'),
    'model.n_kv_heads': Row(5, 'plan'),
    'model.head_dim': Row(6, 'plan'),
    'model.ffn_dim': Row(48, 'plan'),
    'model.vocab_size': Row(71, 'plan'),
    'model.max_seq_len': Row(20, 'plan', needs={'model.family': 'gpt2', 'model.n_kv_heads': None}),
    'model.norm_eps': Row(1e-3, 'steps'),
    'model.rope_theta': Row(500, 'steps'),
    'model.rope_factor': Row(16, 'steps', needs=ROPE),
    'model.rope_low_freq_factor': Row(2, 'steps', needs=ROPE),
    'model.rope_high_freq_factor': Row(8, 'steps', needs=ROPE),
    'model.rope_original_max_len': Row(64, 'steps', needs=ROPE),
    'model.rope_type': Row('yarn', 'steps', needs=ROPE),
    'model.rope_beta_fast': Row(1.01, 'steps', needs=YARN),
    'model.rope_beta_slow': Row(0.01, 'steps', needs=YARN),
    'model.rope_attention_factor': Row(2, 'steps', needs=YARN),
    'model.rope_short_factor': Row('1,3', 'steps', needs=LONGROPE),
    'model.rope_long_factor': Row('1,3', 'steps', needs={**LONGROPE, 'model.rope_original_max_len': 4}),
    'model.rope_truncate': Row('false', 'steps', needs=YARN),
    'model.rotary_dim': Row('2', 'steps'),
    'model.attention_bias': Row('true', 'plan'),
    'model.mlp_bias': Row('true', 'plan'),
    'model.no_rope_layer_interval': Row(2, 'plan', needs={'model.family': 'smollm3'}),
    'model.attention_window': Row(5, 'plan'),
    'model.layer_types': Row('full,sliding', 'plan', needs=WINDOW),
    'model.window_first_layer': Row(1, 'plan', needs=WINDOW),
    'model.full_attention_interval': Row(2, 'plan', needs=WINDOW),
    'model.rope_local_base_freq': Row(100, 'plan', needs=WINDOW),
    'model.linear_key_heads': Row(1, 'plan', needs=DELTA),
    'model.linear_value_heads': Row(2, 'plan', needs=DELTA),
    'model.linear_key_dim': Row(8, 'plan', needs=DELTA),
    'model.linear_value_dim': Row(8, 'plan', needs=DELTA),
    'model.linear_conv_size': Row(3, 'plan', needs=DELTA),
    'model.linear_least_step': Row(2, 'steps', needs=SCAN),
    'model.query_pre_attn_scalar': Row(20, 'steps'),
    'model.attention_softcap': Row(0.5, 'plan'),
    'model.logits_softcap': Row(0.5, 'plan'),
    'model.q_lora_rank': Row(5, 'plan', needs=LATENT),
    'model.global_head_dim': Row(6, 'plan', needs=GLOBAL),
    'model.global_kv_heads': Row(5, 'plan', needs=GLOBAL),
    'model.keys_as_values': Row('false', 'plan', needs=GLOBAL),
    'model.kv_shared_layers': Row(1, 'plan', needs=GLOBAL),
    'model.double_wide_ffn': Row('true', 'plan', needs={**GLOBAL, 'model.kv_shared_layers': 1}),
    'model.per_layer_dim': Row(4, 'plan', needs=GLOBAL),
    'model.kv_lora_rank': Row(5, 'plan', needs=LATENT),
    'model.v_head_dim': Row(2, 'plan', needs=LATENT),
    'model.rope_mscale_all_dim': Row(2, 'steps', needs={**YARN, **LATENT}),
    'model.embedding_multiplier': Row(12, 'plan'),
    'model.residual_multiplier': Row(0.22, 'plan'),
    'model.logits_scaling': Row(8, 'plan'),
    'model.tie_word_embeddings': Row('true', 'plan'),
    'model.init_std': Row(0.1, 'steps'),
    'model.n_experts': Row(8, 'plan', needs=MOE),
    'model.n_experts_per_token': Row(3, 'plan', needs=MOE),
    'model.expert_ffn_dim': Row(12, 'plan', needs=MOE),
    'model.shared_ffn_dim': Row(8, 'plan', needs=MOE),
    'model.first_dense_layers': Row(1, 'plan', needs=MOE),
    'model.moe_every': Row(2, 'plan', needs=MOE),
    'model.router': Row('sigmoid', 'steps', needs=MOE),
    'model.route_norm': Row('true', 'steps', needs=MOE),
    'model.route_scale': Row(2, 'steps', needs=MOE),
    'model.route_groups': Row(2, 'steps', needs={**GROUPS, 'model.route_top_groups': 1, 'model.n_experts_per_token': 1}),
    'model.route_top_groups': Row(2, 'steps', needs=GROUPS),
    'model.router_bias': Row('true', 'plan', needs=MOE),
    'moe.load_balance_coeff': Row(0.1, 'steps', needs=MOE),
    'moe.capacity_factor': Row(4, 'plan', needs={**MOE, **SPREAD}),
    'moe.aux_loss_coeff': Row(0.1, 'steps', needs=MOE),
    'moe.z_loss_coeff': Row(0.1, 'steps', needs=MOE),
    'lora.rank': Row(2, 'plan'),
    'lora.alpha': Row(16, 'mpi/lora.case'),
    'lora.target_modules': Row('q_proj', 'plan', needs={'lora.rank': 2}),
    'lora.target_parameters': Row('experts.down_proj', 'plan', needs={**MOE, 'lora.rank': 2}),
    'lora.quantize_base': Row('nf4', 'plan', needs={'lora.rank': 2, 'model.dim': 32, 'model.head_dim': 8, 'model.ffn_dim': 64}),
    'lora.use_rslora': Row('true', 'mpi/lora.case'),
    'lora.adapter_path': Row('none', 'hf/test_adapter.py'),
    'lora.r': Row(2, 'plan'),
    'lora.lora_alpha': Row(16, 'mpi/lora.case'),
    'training.dataset_path': Row('other.bin', 'steps'),
    'training.seq_len': Row(8, 'plan'),
    'training.local_batch_size': Row(3, 'plan'),
    'training.global_batch_size': Row(16, 'plan'),
    'training.batch_schedule': Row('0:12, 2:24', 'steps', needs={'training.global_batch_size': -1}),
    'training.z_loss': Row(0.01, 'steps'),
    'training.steps': Row(3, 'steps'),
    'training.max_norm': Row(0.01, 'steps'),
    'training.mixed_precision_param': Row('bfloat16', 'plan'),
    'training.mixed_precision_reduce': Row('bfloat16', 'plan'),
    'training.loss_scale': Row(1024, 'steps', needs=HALF),
    'training.loss_scale_init': Row(2**20, 'steps', needs=HALF),
    'training.loss_scale_window': Row(1, 'steps', needs={**HALF, 'training.loss_scale_init': 1024}),
    'training.threads': Row(3, 'plan'),
    'training.device': Row('cuda', 'plan'),
    'training.kernels': Row('ref', 'plan'),
    'training.reproducible': Row('mesh', 'plan', needs={'training.global_batch_size': 32}),
    'training.row_leaves': Row(2, 'plan', needs={'training.reproducible': 'mesh', 'training.global_batch_size': 32, 'training.seq_len': 32, 'model.max_seq_len': 32}),
    'training.deterministic': Row('false', 'refused'),
    'training.measure_products': Row('true', 'refused'),
    'training.loss_chunk_rows': Row(5, 'plan'),
    'training.tile_rows': Row(64, 'plan', needs=TALL),
    'data.token_type': Row('uint32', 'refused', 'data.token_type'),
    'data.target_mask': Row('off', 'steps'),
    'data.token_weight': Row('must', 'refused'),
    'data.shuffle': Row('false', 'steps'),
    'data.length_schedule': Row('0:4', 'steps', needs={'training.seq_len': 8}),
    'data.document_mask': Row('true', 'steps', needs={'data.document_separator': 7}),
    'data.document_tokens': Row(1000, 'mpi/plan-machine.case'),
    'data.packing': Row('bfd', 'refused'),
    'data.excess_length_strategy': Row('split', 'mesh/test_documents.py'),
    'data.mix': Row('other.bin=1', 'mesh/test_documents.py'),
    'data.document_separator': Row(8, 'steps', needs={'data.document_separator': 7, 'data.document_mask': True}),
    'parallelism.context_parallel_degree': Row(2, 'plan', needs={'model.n_heads': 4}),
    'parallelism.tensor_parallel_degree': Row(2, 'plan', needs={'model.n_heads': 4, 'model.n_kv_heads': 4}),
    'parallelism.tensor_parallel_tiles': Row(2, 'plan', needs={'model.n_heads': 4, 'model.n_kv_heads': 4, 'parallelism.tensor_parallel_degree': 2}),
    'parallelism.pipeline_parallel_degree': Row(2, 'plan', needs=STAGED),
    'parallelism.pipeline_parallel_schedule': Row('zbh1', 'plan', needs={**STAGED, 'parallelism.pipeline_parallel_degree': 2}),
    'parallelism.pipeline_parallel_layers_per_stage': Row(1, 'plan', needs={
        **STAGED, 'model.n_layers': 6, 'parallelism.pipeline_parallel_degree': 2,
        'parallelism.pipeline_parallel_schedule': 'Interleaved1F1B'}),
    'parallelism.pipeline_parallel_first_stage_less_layers': Row(1, 'plan', needs={
        **STAGED, 'parallelism.pipeline_parallel_degree': 2, 'parallelism.pipeline_parallel_last_stage_less_layers': 0}),
    'parallelism.pipeline_parallel_last_stage_less_layers': Row(1, 'plan', needs={
        **STAGED, 'model.n_layers': 4, 'parallelism.pipeline_parallel_degree': 2,
        'parallelism.pipeline_parallel_first_stage_less_layers': 0}),
    'parallelism.context_parallel_method': Row('gather', 'plan', needs={'model.n_heads': 4, 'parallelism.context_parallel_degree': 2}),
    'parallelism.expert_parallel_degree': Row(2, 'plan', needs={**MOE, **SPREAD}),
    'parallelism.sharding_strategy': Row('shard_grad_op', 'plan'),
    'parallelism.reshard_after_forward': Row(2, 'plan'),
    'parallelism.gradient_sync': Row('last_micro_step', 'plan'),
    'parallelism.forward_prefetch': Row(3, 'plan'),
    'parallelism.backward_prefetch': Row(3, 'plan'),
    'parallelism.limit_all_gathers': Row(1, 'plan'),
    'parallelism.resident_units': Row(1, 'plan'),
    'parallelism.gather_dtype': Row('int8', 'plan'),
    'parallelism.zero_stage': Row(1, 'plan'),
    'parallelism.fsdp_reshard_after_forward': Row('never', 'plan'),
    'parallelism.data_parallel_replicate_degree': Row(2, 'plan'),
    'parallelism.data_parallel_shard_degree': Row(1, 'plan', needs=HYBRID),
    'mesh.shard': Row(4, 'plan', needs=HYBRID),
    'mesh.replicate': Row(4, 'plan', needs={**HYBRID, 'mesh.shard': 'all'}),
    'mesh.ranks_per_node': Row(4, 'plan', needs=HYBRID),
    'mesh.ranks': Row(2, 'refused'),
    'optimizer.name': Row('Lion', 'plan'),
    'optimizer.lr': Row(1e-3, 'steps'),
    'optimizer.beta1': Row(0.8, 'steps'),
    'optimizer.beta2': Row(0.8, 'steps'),
    'optimizer.eps': Row(1e-6, 'steps'),
    'optimizer.weight_decay': Row(0.3, 'steps'),
    'optimizer.decay_all': Row('true', 'steps'),
    'optimizer.groups': Row('pattern=norm lr=0.5', 'steps'),
    'optimizer.momentum': Row(0.9, 'steps', needs=MUON),
    'optimizer.nesterov': Row('false', 'steps', needs=MUON),
    'optimizer.muon_coefficients': Row('quintic', 'steps', needs=MUON),
    'optimizer.ns_steps': Row(6, 'steps', needs=MUON),
    'optimizer.adjust_lr_fn': Row('original', 'steps', needs=MUON),
    'optimizer.muon_split': Row('heads', 'steps', needs=MUON),
    'optimizer.cautious_decay': Row('true', 'steps', needs=MUON),
    'optimizer.muon_ranks': Row(1, 'mpi/plan-muon.case'),
    'optimizer.muon_beta2': Row(0.5, 'steps', needs={'optimizer.name': 'normuon'}),
    'optimizer.state_dtype': Row('bfloat16', 'plan'),
    'optimizer.ema_decay': Row(0.9, 'plan'),
    'mup.enable': Row('true', 'steps', needs={'model.tie_word_embeddings': False, 'mup.base_dim': 4}),
    'mup.base_dim': Row(4, 'steps', needs={'model.tie_word_embeddings': False, 'mup.enable': True, 'mup.base_dim': 8}),
    'lr_scheduler.warmup_steps': Row(2, 'steps'),
    'lr_scheduler.decay_type': Row('power_tail', 'steps'),
    'lr_scheduler.decay_ratio': Row(0.7, 'steps', needs={'lr_scheduler.decay_type': 'wsd'}),
    'lr_scheduler.decay_shape': Row('sqrt', 'steps', needs={'lr_scheduler.decay_type': 'wsd'}),
    'lr_scheduler.power': Row(1, 'steps', needs={'lr_scheduler.decay_type': 'power'}),
    'lr_scheduler.min_lr_factor': Row(0.5, 'steps'),
    'lr_scheduler.total_steps': Row(8, 'steps'),
    'activation_checkpoint.mode': Row('full', 'plan'),
    'activation_checkpoint.every_k': Row(3, 'plan', needs={'activation_checkpoint.mode': 'every_k'}),
    'activation_checkpoint.selective_ac_option': Row(2, 'plan', needs={'activation_checkpoint.mode': 'selective'}),
    'checkpoint.enable': Row('false', 'files'),
    'checkpoint.folder': Row('other', 'files'),
    'checkpoint.interval': Row(2, 'files'),
    'checkpoint.create_seed_checkpoint': Row('true', 'files'),
    'checkpoint.resume': Row('must', 'refused'),
    'checkpoint.io': Row('mpiio', 'refused', 'io=mpiio', needs={'checkpoint.async_mode': 'async'}),
    'checkpoint.writers_per_node': Row(1, 'refused'),
    'checkpoint.async_mode': Row('async', 'plan'),
    'checkpoint.verify': Row('off', 'says'),
    'checkpoint.async_busy': Row('skip', 'mpi/async.case'),
    'checkpoint.hints': Row('cb_nodes=1', 'mpi/bad-hints.case'),
    'checkpoint.near_interval': Row(3, 'fault/test_near.py'),
    'checkpoint.near_limit_bytes': Row(100000, 'fault/test_near.py'),
    'checkpoint.near_copies': Row(2, 'fault/test_near.py'),
    'checkpoint.near_distance': Row(2, 'fault/test_near.py'),
    'checkpoint.near_silence_seconds': Row(1, 'fault/test_near.py'),
    'checkpoint.timeout_seconds': Row(3, 'fault/test_load_stuck.py'),
    'checkpoint.max_failures': Row(0, 'fault/test_after_failure.py'),
    'checkpoint.keep_latest_k': Row(1, 'files', needs=OFTEN),
    'checkpoint.keep_every_n': Row(2, 'files', needs={**OFTEN, 'checkpoint.keep_latest_k': 1}),
    'checkpoint.initial_load_path': Row('none.h5', 'refused', 'none.h5: No such file'),
    'checkpoint.initial_load_model_only': Row('true', 'refused'),
    'model.hf_assets_path': Row('none', 'refused', 'is not a folder here'),
    'model.tokenizer': Row('none', 'refused', 'no tokenizer is called'),
    'model.hf': Row('none', 'refused', 'is not a folder here'),
    'model.hf_ignore': Row('a', 'unit/test_hf.c'),
    'checkpoint.initial_load_in_hf': Row('false', 'hf/test_golden.py'),
    'checkpoint.last_save_in_hf': Row('true', 'files'),
    'checkpoint.export_dtype': Row('bfloat16', 'hf/test_golden.py'),
    'checkpoint.max_shard_size': Row('1KiB', 'files', needs={'checkpoint.last_save_in_hf': True}),
    'checkpoint.trust': Row('any', 'mpi/trust.case'),
    'validation.enable': Row('false', 'steps'),
    'validation.dataset_path': Row('other.bin', 'steps'),
    'validation.ema': Row('true', 'steps', needs={'optimizer.ema_decay': 0.5}),
    'validation.freq': Row(3, 'steps'),
    'validation.sequences': Row(5, 'steps'),
    'metrics.log_freq': Row(1, 'says'),
    'metrics.progress': Row('false', 'user/test_terminal.py'),
    'metrics.peak_tflops': Row(0.001, 'says'),
    'metrics.gpu': Row('must', 'refused'),
    'metrics.tensorboard': Row('tb', 'files'),
    'metrics.openmetrics': Row('run.prom', 'files'),
    'metrics.state_digest_every': Row(2, 'mesh/test_audit.py'),
    'metrics.norms': Row('blocks', 'mesh/test_fingerprint.py'),
    'profiling.trace': Row('trace.json', 'trace'),
    'profiling.trace_first_step': Row(3, 'trace', needs=TRACE),
    'profiling.trace_steps': Row(1, 'trace', needs=TRACE),
    'objective.name': Row('dpo', 'mesh/test_preference.py'),
    'objective.loss_type': Row('ipo', 'gold/test_preference.py', needs={'objective.name': 'dpo'}),
    'objective.reference_path': Row('a.ref', 'mesh/test_preference.py', needs={'objective.name': 'dpo'}),
    'validation.reference_path': Row('v.ref', 'mesh/test_preference.py',
                                     needs={'objective.name': 'dpo', 'objective.reference_path': 'a.ref', 'validation.enable': True}),
    'objective.beta': Row(0.2, 'gold/test_preference.py', needs={'objective.name': 'dpo'}),
    'objective.label_smoothing': Row(0.1, 'gold/test_preference.py', needs={'objective.name': 'dpo'}),
    'objective.gamma': Row(0.4, 'gold/test_preference.py', needs={'objective.name': 'dpo', 'objective.loss_type': 'simpo'}),
    'objective.sft_weight': Row(0.3, 'gold/test_preference.py', needs={'objective.name': 'dpo'}),
    'objective.desirable_weight': Row(1.5, 'gold/test_preference.py', needs=UNPAIRED),
    'objective.undesirable_weight': Row(0.6, 'gold/test_preference.py', needs=UNPAIRED),
    'objective.center_rewards_coefficient': Row(0.05, 'gold/test_preference.py',
                                                needs={'objective.name': 'reward', 'model.num_labels': 1}),
    'objective.teacher_path': Row('top.bin', 'mesh/test_distillation.py', needs=DISTILLED),
    'objective.top_k': Row(6, 'mesh/test_distillation.py', needs=DISTILLED),
    'objective.temperature': Row(1.6, 'mesh/test_distillation.py', needs=DISTILLED),
    'objective.alpha': Row(0.7, 'mesh/test_distillation.py', needs=DISTILLED),
    'objective.kd_form': Row('tail', 'mesh/test_distillation.py', needs=DISTILLED),
    'plugin.files': Row('clamped.so', 'user/test_plugin.py'),
    'plugin.numbers': Row('clamped_swiglu.limit=5', 'user/test_plugin.py'),
    'plugin.allow_change': Row(True, 'user/test_plugin.py'),
    'model.num_labels': Row(3, 'plan'),
    'objective.plugin': Row('focal', 'user/test_plugin_loss.py', needs={'objective.name': 'plugin'}),
    'model.ffn': Row('y = linear(x, only, C)', 'plan'),
    'model.ffn_op': Row('clamped_swiglu', 'user/test_plugin.py'),
    'guard.action': Row('stop', 'says', needs=GUARD),
    'guard.z_score': Row(2, 'steps', needs=ROUGH),
    'guard.window': Row(30, 'steps', needs=GUARD),
    'guard.max_skips': Row(0, 'says', needs=GUARD),
    'guard.max_rollbacks': Row(1, 'mesh/test_rollback.py'),
    'fault.replica_check_every': Row(2, 'mpi/test_harm.c'),
    'fault.replay_every': Row(2, 'fault/test_replay.py'),
    'comm.train_timeout_seconds': Row(3, 'mesh/test_stall.py'),
    'comm.progress': Row('inline', 'mesh/test_inline.py'),
    'comm.trace_buf_size': Row(16, 'mesh/test_stall.py'),
    'comm.backend': Row('nccl', 'refused'),
    'comm.share_gpu': Row('true', 'refused'),
    'comm.nccl_max_ctas': Row(4, 'refused'),
    'comm.shared_memory': Row('off', 'plan', needs=HYBRID),
    'memory.limit_bytes': Row('10KiB', 'refused'),
    'memory.host_limit_bytes': Row('1KiB', 'mpi/plan-host-budget.case'),
    'training.enable_cpu_offload': Row('true', 'refused'),
    'offload.mode': Row('memory_budget', 'plan', needs={'offload.nvme_path': '.', 'memory.limit_bytes': 1 << 30}),
    'offload.nvme_limit_bytes': Row('1KiB', 'refused', needs=NVME),
    'offload.rates': Row('file=1e9/1e9', 'plan', needs=NVME),
    'offload.optimizer': Row('nvme', 'plan', needs={'offload.nvme_path': '.'}),
    'offload.gradients': Row('nvme', 'plan', needs={'offload.nvme_path': '.'}),
    'offload.parameters': Row('cpu', 'refused'),
    'offload.optimizer_ratio': Row(0.25, 'plan', needs=NVME),
    'offload.activations': Row('nvme', 'plan', needs={'offload.nvme_path': '.', **DEEP}),
    'offload.activation_ratio': Row(0.25, 'plan', needs={'offload.nvme_path': '.', 'offload.activations': 'nvme', **DEEP}),
    'offload.nvme_path': Row('nowhere', 'refused', needs=NVME),
    'offload.buffer_count': Row(2, 'plan', needs=NVME),
    'offload.overlap_update': Row('off', 'plan', needs=NVME),
    'offload.verify': Row('false', 'mesh/test_offload.py'),
    'offload.allow_network': Row('true', 'unit/test_tier.c'),
    'debug.seed': Row(5, 'steps'),
    'debug.row_block': Row(3, 'plan'),
    'debug.moe_force_load_balance': Row('true', 'steps', needs=MOE),
    'debug.sync_ops': Row('true', 'refused'),
    'debug.find_nan': Row('true', 'fault/test_wrong.py'),
    'debug.fingerprint': Row('f.jsonl', 'mesh/test_fingerprint.py'),
    'debug.fingerprint_steps': Row('2-3', 'mesh/test_fingerprint.py'),
    'debug.fingerprint_leaves': Row('true', 'mesh/test_fingerprint.py'),
}
TIMES = ('time', 'start_seconds', 'tokens_per_second', 'seconds', 'arena_bytes', 'peak_rss_bytes', 'mfu', 'event', 'path', 'bytes')
data = {}
firsts, lock = {}, threading.Lock()


def keys():
    """The names of all keys, in the order of the table."""
    section, names = '', []
    for line in job.sherd('help', '--config').splitlines():
        if re.fullmatch(r'[a-z_]+:', line):
            section = line[:-1]
        elif section and re.fullmatch(r'  [a-z0-9_]+', line):
            names.append(f'{section}.{line.strip()}')
    return names


def steps_of(folder):
    """Lines of metrics.jsonl except those of saves, without fields that differ from run to run."""
    path = folder / 'out/metrics.jsonl'
    lines = map(json.loads, path.read_text().splitlines()) if path.exists() else []
    return [{name: value for name, value in line.items() if name not in TIMES}
            for line in lines if 'stall_seconds' not in line]


def files_of(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob('*') if path.is_file())


def saved_of(folder):
    files = sorted(folder.glob('out/checkpoint/*.h5'))
    return job.sherd('ckpt', 'info', '--tensors', '--config', files[-1].relative_to(folder), folder=folder) if files else ''


def trace_of(folder):
    if not (folder / 'trace.json').exists():
        return ''
    events = json.loads((folder / 'trace.json').read_text())['traceEvents']
    return sorted({str(event['args'].get('step')) for event in events if event['ph'] == 'X'}), len(events)


def without_times(text):
    """Lines without values that depend on time: rates, seconds, used memory, time left."""
    text = re.sub(r'[0-9.e+-]+( [KMGT]?i?B)?(/s| s\b| tokens/s| %| MiB)', '#', text)
    return re.sub(r' *ETA.*|(?<=first step: )launch .*', '', text)


def run(folder, config, words):
    """Plan or train in a separate folder; returns the output that each kind of row compares."""
    folder = job.prepare(folder, config).absolute()
    done = subprocess.run(job.command(0, words), stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=folder,
                          env=job.environment(0), timeout=job.SECONDS, check=False)
    said = {'status': done.returncode, 'plan': done.stdout, 'error': done.stderr, 'says': without_times(done.stderr)}
    if words[0] == 'train':
        said.update(steps=steps_of(folder), files=files_of(folder), trace=trace_of(folder))
        said['saved'] = saved_of(folder) if done.returncode == 0 else ''
    shutil.rmtree(folder)
    return said


def config_of(row):
    config = {**BASE, **data, **({'mesh.ranks': 4} if row.shows == 'plan' else {}), **row.needs}
    if row.shows != 'plan':
        config.pop('mesh.ranks_per_node', None)  # one rank has no second node
    return {name: value for name, value in config.items() if value is not None}


def first_of(name, row, words):
    """Results without the second value. Most rows have them in common: the first row that needs them makes them."""
    key = json.dumps([config_of(row), words])
    with lock:
        made, mine = firsts.get(key), key not in firsts
        if mine:
            made = firsts[key] = concurrent.futures.Future()
    if mine:
        try:
            made.set_result(run(f'{name}.first', config_of(row), words))
        except BaseException as error:
            made.set_exception(error)
    return made.result()


def both(name, row):
    """Results without and with the second value."""
    words = ['plan', 'c.yaml', '--show'] if row.shows == 'plan' else ['train', 'c.yaml']
    return (first_of(name, row, words),
            run(f'{name}.second', config_of(row), [*words, f'--{name}={data_path(row.value)}']))


def data_path(value):
    return str(pathlib.Path(value).absolute()) if value == 'other.bin' else value


def names_key(name, file):
    path = job.TOP / 'tests' / file
    short = name.split('.')[1]
    if not path.exists():
        return [f'{name}: there is no tests/{file}']
    return [] if short in path.read_text() else [f'{name}: tests/{file} does not name it']


def judge_refused(name, row, first, second):
    if first['status'] != 0:
        return [f'{name}: refused without its second value too: {first["error"]}']
    if second['status'] not in (2, 3, 4) or (row.text or name) not in second['error']:
        return [f'{name}={row.value}: not refused: status {second["status"]}, {second["error"]}']
    return []


def judge(name):
    row = ROWS[name]
    if row.shows.endswith(('.py', '.case', '.c')):
        return names_key(name, row.shows)
    first, second = both(name, row)
    if row.shows == 'refused':
        return judge_refused(name, row, first, second)
    wrong = [f'{name}: {second["error"]}'] if second['status'] and row.shows != 'says' else []
    if first[row.shows] == second[row.shows]:
        wrong.append(f'{name}={row.value}: ignored, {row.shows} is the same: {str(first[row.shows])[:2000]}')
    return wrong


def equal_runs():
    """The compared output has nothing that differs between two equal runs."""
    wrong = []
    for shows, words in (('plan', ['plan', 'c.yaml', '--show']), ('steps', ['train', 'c.yaml'])):
        config = config_of(Row('', shows, needs={**TRACE, 'metrics.log_freq': 1}))
        first, second = (run(f'equal.{shows}', config, words) for _ in range(2))
        wrong += [f'{part} differs between two equal runs: {first[part]}, {second[part]}'
                  for part in first if part != 'error' and first[part] != second[part]]
    return wrong


def every_key_has_a_row():
    table = keys()
    wrong = [f'{name} has no row in {pathlib.Path(__file__).name}: what does a second value change?'
             for name in table if name not in ROWS]
    return wrong + [f'{name}: no such key' for name in ROWS if name not in table]


def no_option_is_ignored(names):
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return [line for wrong in pool.map(judge, names) for line in wrong]


def main():
    data['training.dataset_path'] = tiny.write_tokens('tokens.bin')
    data['validation.dataset_path'] = data['training.dataset_path']
    tokens = pathlib.Path('tokens.bin').read_bytes()
    pathlib.Path('other.bin').write_bytes(tokens[400:] + tokens[:400])
    for name in ('tokens.bin', 'other.bin'):
        pathlib.Path(f'{name}.mask').write_bytes(bytes(1 if i % 7 else 0 for i in range(len(tokens) // 2)))
    only = sys.argv[1:]
    whole = [('every key has a row', every_key_has_a_row), ('equal runs are equal', equal_runs)]
    return job.run_cases([*([] if only else whole), ('no option is ignored', no_option_is_ignored, only or list(ROWS))])


if __name__ == '__main__':
    sys.exit(main())
