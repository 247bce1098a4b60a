#!/usr/bin/env python3
"""Losses, gradients and updates against PyTorch in float64, on one rank and on a 2 x 2 mesh. Prints TAP.

Weights are random, including biases and norms, so that no operation is near the identity. h5py alone puts them into a
checkpoint of step 0, digests included: that also checks the description of the format.
"""
import functools
import itertools
import pathlib
import sys

import job
job.need_modules('numpy', 'h5py', 'torch')
import numpy
import checkpoint
import torch_reference

STEPS = 5
LOSS_BOUND = 1e-5        # relative, each step
GRADIENT_BOUND = 1e-5    # norm of the difference by norm, each tensor; seen: under 4e-6
NORM_BOUND = 1e-6        # of the gradient norm where ranks share sequences, matrices or layers
CHANGE_BOUND = 1e-4      # the same, of the change in all steps; seen: 2.4e-5. A beta2 of 0.951 for 0.95 is 1.8e-4 off
LION_BOUND = 5e-3        # a sign that differs in float32 moves an element by two steps
MUON_BOUND = 5e-4        # small singular values of a momentum grow, and the rounding of gradients with them
ORTHOGONAL_BOUND = 1e-5  # the change of a step from the same momentum; seen: 3.1e-6. A coefficient of 2.0316 for 2.0315 is above it
BOUNDS = {'Lion': LION_BOUND, 'muon': MUON_BOUND, 'normuon': MUON_BOUND}
BF16_BOUND = 1e-2        # seen: 1.5e-3
GAP = 3e-5               # of scores, where experts are chosen, or to a limit: what float32 chooses differently is no rounding

COMMON = {
    'model.n_layers': 2, 'model.dim': 64, 'model.n_heads': 4, 'model.max_seq_len': 33, 'model.norm_eps': 1e-5,
    'training.dataset_path': '../tokens.bin', 'training.seq_len': 33, 'training.local_batch_size': 4,
    'training.global_batch_size': 8, 'training.steps': STEPS, 'training.max_norm': 0.5, 'training.threads': 1,
    'training.mixed_precision_param': 'float32', 'data.shuffle': False,
    # An eps this large shows in the result, and keeps gradients that are zero up to rounding from moving a weight.
    'optimizer.lr': 2e-3, 'optimizer.beta1': 0.9, 'optimizer.beta2': 0.95, 'optimizer.eps': 1e-5,
    'optimizer.weight_decay': 0.1,
    'lr_scheduler.warmup_steps': 2, 'lr_scheduler.total_steps': STEPS, 'lr_scheduler.decay_type': 'cosine',
    'lr_scheduler.min_lr_factor': 0.1,
    'checkpoint.interval': STEPS,
}
GPT2 = {**COMMON, 'model.family': 'gpt2', 'model.head_dim': 16, 'model.ffn_dim': 256, 'model.vocab_size': 97}
LLAMA = {**COMMON, 'model.family': 'llama', 'model.n_kv_heads': 2, 'model.head_dim': 16, 'model.ffn_dim': 96,
         'model.vocab_size': 101, 'model.rope_theta': 10000.0}
# Of the eight frequencies three lie above the ramp, two on it and three below.
SCALED = {'model.rope_factor': 8.0, 'model.rope_low_freq_factor': 1.0, 'model.rope_high_freq_factor': 4.0,
          'model.rope_original_max_len': 256, 'model.rope_theta': 500.0}
# Of the eight frequencies one lies before the ramp, four on it and three after it.
YARN = {'model.rope_type': 'yarn', 'model.rope_factor': 4.0, 'model.rope_original_max_len': 64, 'model.rope_theta': 100.0,
        'model.rope_beta_fast': 8.0, 'model.rope_beta_slow': 1.0}
# A micro-step is one sequence on one rank and on four, since the router's losses are of a micro-step.
EXPERTS = {**LLAMA, 'training.local_batch_size': 1, 'model.n_experts': 8, 'model.n_experts_per_token': 2,
           'model.expert_ffn_dim': 40}
ALL_EXPERTS = {key: value for key, value in EXPERTS.items() if key != 'model.ffn_dim'}
GROUPS = {'model.router': 'sigmoid', 'model.route_groups': 4, 'model.route_top_groups': 2, 'model.route_norm': True,
          'model.route_scale': 2.5}
MUON = {'optimizer.name': 'muon', 'optimizer.momentum': 0.9}
DOCUMENTS = {'data.document_mask': True, 'data.document_separator': 7}
MASKED = {'data.target_mask': 'must'}
WEIGHED = {'data.token_weight': 'must'}
MODELS = {
    'gpt2, tied': {**GPT2, 'model.tie_word_embeddings': True},
    'gpt2, untied': {**GPT2, 'model.tie_word_embeddings': False},
    'llama, untied': {**LLAMA, 'model.n_layers': 3, 'model.tie_word_embeddings': False},
    'llama, tied, scaled rope': {**LLAMA, **SCALED, 'model.tie_word_embeddings': True},
    'gpt2, documents': {**GPT2, **DOCUMENTS, 'model.tie_word_embeddings': True},
    'llama, documents': {**LLAMA, **DOCUMENTS, 'model.tie_word_embeddings': False},
    'llama, linear rope': {**LLAMA, 'model.rope_type': 'linear', 'model.rope_factor': 3.0},
    'llama, yarn': {**LLAMA, **YARN},
    'llama, yarn, ends not rounded': {**LLAMA, **YARN, 'model.rope_truncate': False, 'model.rope_attention_factor': 1.3},
    'llama, SGD': {**LLAMA, 'optimizer.name': 'SGD', 'optimizer.lr': 0.5},
    'llama, Lion': {**LLAMA, 'optimizer.name': 'Lion', 'optimizer.lr': 2e-4},
    'llama, groups': {**LLAMA, 'model.n_layers': 3, 'optimizer.groups': "pattern=layers.[02].*norm weight_decay=0.3 lr=2; pattern=mlp lr=0.5 "
                                                   "beta1=0.8 beta2=0.99; pattern=embed weight_decay=0 eps=1e-4"},
    'llama, Muon and groups': {**LLAMA, **MUON, 'optimizer.groups': 'pattern=down optimizer=adamw lr=2; pattern=q_proj '
                                                                    'lr=0.5 weight_decay=0.3; pattern=norm beta1=0.7'},
    'llama, AdamW and a group by Muon': {**LLAMA, **MUON, 'optimizer.name': 'adamw', 'optimizer.groups':
                                         'pattern=q_proj|up optimizer=muon lr=0.5; pattern=norm beta1=0.7 weight_decay=0.3; pattern=o_proj|down lr=2'},
    'llama, Muon': {**LLAMA, **MUON},
    'llama, Muon of heads, polar express': {**LLAMA, **MUON, 'optimizer.muon_split': 'heads', 'optimizer.nesterov': False,
                                            'optimizer.muon_coefficients': 'polar_express'},
    'gpt2, Muon': {**GPT2, **MUON, 'optimizer.adjust_lr_fn': 'spectral_unclamped'},
    'gpt2, Muon of fused matrices': {**GPT2, **MUON, 'optimizer.muon_split': 'none', 'optimizer.adjust_lr_fn': 'original'},
    'phi3, Muon': {**LLAMA, **MUON, 'model.family': 'phi3', 'optimizer.muon_coefficients': 'quintic', 'optimizer.ns_steps': 6},
    'llama, NorMuon': {**LLAMA, **MUON, 'optimizer.name': 'normuon', 'optimizer.muon_beta2': 0.8},
    'phi3, NorMuon of heads, cautious decay': {**LLAMA, **MUON, 'model.family': 'phi3', 'optimizer.name': 'normuon',
                                               'optimizer.muon_split': 'heads', 'optimizer.cautious_decay': True},
    'phi3, Muon of heads': {**LLAMA, **MUON, 'model.family': 'phi3', 'optimizer.muon_split': 'heads'},
    'qwen3_moe, Muon': {**ALL_EXPERTS, **MUON, 'model.family': 'qwen3_moe', 'model.route_norm': True,
                        'moe.aux_loss_coeff': 0.1},
    'llama, biases': {**LLAMA, 'model.attention_bias': True, 'model.mlp_bias': True},
    'mistral': {**LLAMA, 'model.family': 'mistral', 'model.head_dim': 24},
    'qwen2': {**LLAMA, 'model.family': 'qwen2', 'model.tie_word_embeddings': True},
    'phi3': {**LLAMA, 'model.family': 'phi3'},
    'phi3, half of each head turned': {**LLAMA, 'model.family': 'phi3', 'model.rotary_dim': 8},
    'smollm3': {**LLAMA, 'model.family': 'smollm3', 'model.tie_word_embeddings': True, 'model.no_rope_layer_interval': 2},
    'qwen3': {**LLAMA, 'model.family': 'qwen3', 'model.head_dim': 24},
    'granite': {**LLAMA, 'model.family': 'granite', 'model.embedding_multiplier': 3, 'model.residual_multiplier': 0.6,
                'model.logits_scaling': 1.5, 'model.query_pre_attn_scalar': 20},
    'olmo2': {**LLAMA, 'model.family': 'olmo2'},
    'olmo3': {**LLAMA, **YARN, 'model.family': 'olmo3', 'model.attention_window': 9, 'model.layer_types': 'sliding,full',
              'model.rope_local_base_freq': 500.0},
    'exaone4': {**LLAMA, 'model.family': 'exaone4', 'model.attention_window': 9, 'model.layer_types': 'sliding,full_nope'},
    'seed_oss': {**LLAMA, 'model.family': 'seed_oss', 'model.mlp_bias': True},
    'glm4': {**LLAMA, 'model.family': 'glm4', 'model.rotary_dim': 12},
    'cohere2': {**LLAMA, 'model.family': 'cohere2', 'model.tie_word_embeddings': True, 'model.attention_window': 9,
                'model.layer_types': 'sliding,full_nope', 'model.logits_scaling': 1.5},
    'gpt_neox': {**LLAMA, 'model.family': 'gpt_neox', 'model.n_kv_heads': 4, 'model.rotary_dim': 8},
    'gemma': {**LLAMA, 'model.family': 'gemma', 'model.head_dim': 24, 'model.tie_word_embeddings': True},
    'gemma3_text': {**LLAMA, 'model.family': 'gemma3_text', 'model.head_dim': 24, 'model.tie_word_embeddings': True,
                    'model.attention_window': 9, 'model.full_attention_interval': 2, 'model.rope_local_base_freq': 100.0,
                    'model.query_pre_attn_scalar': 20},
    'gemma2': {**LLAMA, **DOCUMENTS, 'model.family': 'gemma2', 'model.head_dim': 24, 'model.tie_word_embeddings': True,
               'model.attention_window': 9, 'model.layer_types': 'sliding,full', 'model.query_pre_attn_scalar': 20,
               'model.attention_softcap': 0.8, 'model.logits_softcap': 1.5, 'training.z_loss': 0.05},
    'starcoder2': {**LLAMA, 'model.family': 'starcoder2', 'model.tie_word_embeddings': True},
    'llama, documents, masked': {**LLAMA, **DOCUMENTS, **MASKED, 'model.tie_word_embeddings': False},
    'llama, weighed, documents, masked': {**LLAMA, **DOCUMENTS, **MASKED, **WEIGHED, 'model.tie_word_embeddings': False},
    'gpt2, weighed, squares': {**GPT2, **WEIGHED, 'model.tie_word_embeddings': True, 'training.z_loss': 0.05},
    'llama, masked, squares': {**LLAMA, **MASKED, 'training.z_loss': 0.05},
    'mixtral': {**ALL_EXPERTS, 'model.family': 'mixtral', 'model.route_norm': True, 'moe.aux_loss_coeff': 0.1},
    'qwen2_moe': {**EXPERTS, 'model.family': 'qwen2_moe', 'model.first_dense_layers': 1, 'model.shared_ffn_dim': 24,
                  'moe.aux_loss_coeff': 0.1, 'moe.z_loss_coeff': 0.02},
    'qwen3_moe, sigmoid, groups': {**EXPERTS, **GROUPS, 'model.family': 'qwen3_moe', 'model.moe_every': 2,
                                   'moe.aux_loss_coeff': 0.1},
    'qwen3_moe, documents, masked': {**ALL_EXPERTS, **DOCUMENTS, **MASKED, 'model.family': 'qwen3_moe',
                                     'model.route_norm': True, 'model.tie_word_embeddings': True,
                                     'moe.aux_loss_coeff': 0.1, 'moe.z_loss_coeff': 0.02},
    'olmoe': {**ALL_EXPERTS, 'model.family': 'olmoe', 'model.n_experts_per_token': 3, 'moe.z_loss_coeff': 0.05},
    'gpt_oss': {**ALL_EXPERTS, **YARN, 'model.family': 'gpt_oss', 'model.attention_window': 9, 'model.layer_types': 'sliding,full',
                'model.rope_truncate': False, 'moe.aux_loss_coeff': 0.1},
    'mixtral, one expert': {**ALL_EXPERTS, 'model.family': 'mixtral', 'model.n_experts': 1, 'model.n_experts_per_token': 1,
                            'moe.z_loss_coeff': 0.05},
    'olmoe, all experts': {**ALL_EXPERTS, 'model.family': 'olmoe', 'model.n_experts_per_token': 8},
}
# A gated branch and a narrow one, of other rows' norm, both added to the input.
MODELS['llama, statements'] = {**LLAMA, 'model.ffn': 'n = norm(x, inner); g = linear(n, gate_up, 2F); h = swiglu(g); '
                               'y = linear(h, down, C); u = linear(x, thin, 24); a = gelu(u); z = linear(a, back, C); '
                               's = add(y, z); r = add(s, x)'}
MODELS |= {f'{name}, adapters': {**MODELS[name], 'lora.rank': 3, 'lora.alpha': 9} for name in ('gpt2, tied', 'llama, biases')}
# Sequences that 2 and 4 ranks can share; then with a head of keys for several ranks, with one for each, and with several.
CUT = {f'{name}, cut': {**MODELS[name], 'training.seq_len': 32, 'model.max_seq_len': 32, **more} for name, more in (
    ('gpt2, documents', {}), ('llama, weighed, documents, masked', {'model.n_kv_heads': 1}), ('qwen3', {}),
    ('gemma2', {'model.n_kv_heads': 4}), ('llama, biases, adapters', {}))}
# Seven query heads, which neither can share: on one key-value head, or on seven; with documents, masks and windows.
SEVEN = {'model.n_heads': 7, 'model.head_dim': 8, 'model.n_kv_heads': 1}
CUT |= {f'{name}, gathered': {**MODELS[name], 'training.seq_len': 32, 'model.max_seq_len': 32, **SEVEN, **more}
        for name, more in (('llama, weighed, documents, masked', {}), ('qwen2', {}), ('gemma3_text', {'model.n_kv_heads': 7}))}
MODELS |= CUT
# Rows of a micro-step that tiles cut: 132, in which no tile fits a whole number of times; 128 on each of 2 ranks; 8,448.
BLOCKS = {'model.first_dense_layers': 1, 'model.shared_ffn_dim': 40, 'training.local_batch_size': 4}
MODELS |= {'qwen2_moe, tiled': {**EXPERTS, **BLOCKS, 'model.family': 'qwen2_moe', 'moe.aux_loss_coeff': 0.1},
           'qwen3, tiled, cut': {**CUT['qwen3, cut'], 'training.local_batch_size': 8},
           'llama, many rows': {**LLAMA, 'model.n_layers': 1, 'training.local_batch_size': 256,
                                'training.global_batch_size': 256, 'training.steps': 2}}
# Seeds that leave the gap, where 20 does not.
SEEDS = {'qwen2_moe, in parts': 21, 'qwen3_moe, Muon': 22, 'qwen2_moe': 21, 'qwen2_moe, tiled': 22, 'qwen3_moe, sigmoid, groups': 22, 'gpt_oss': 21,
         'llama, biases, adapters': 21}
HYBRID = {'training.local_batch_size': 1, 'parallelism.sharding_strategy': 'hybrid_shard', 'mesh.shard': 2,
          'mesh.replicate': 2}

# The model, the ranks and the tile.
TILED = [(name, 0, rows) for name, rows in (
    ('gpt2, untied', 64), ('llama, documents', 64), ('llama, biases', 128), ('gpt_neox', 64), ('gemma3_text', 128),
    ('gpt2, tied, adapters', 64), ('gpt2, weighed, squares', 64), ('llama, biases, adapters', 128), ('qwen2_moe, tiled', 64), ('llama, many rows', 'auto'))]
TILED += [('qwen3, tiled, cut', 2, 64)]

CONTEXT = {2: {'parallelism.context_parallel_degree': 2}, 4: {'parallelism.context_parallel_degree': 4},
           8: {**HYBRID, 'training.local_batch_size': 2, 'mesh.shard': 4, 'parallelism.context_parallel_degree': 2}}


# Heads that 2 and 4 ranks can share, and products with and without biases, apart, together and head by head.
HALVES = {f'{name}, in parts': {**MODELS[name], 'training.seq_len': 32, 'model.max_seq_len': 32, **more} for name, more in (
    ('gpt2, documents', {}), ('llama, documents, masked', {'model.n_kv_heads': 4}), ('phi3', {'model.n_kv_heads': 4, 'training.z_loss': 0.05}),
    ('gemma2', {'model.n_kv_heads': 4}), ('starcoder2', {'model.n_kv_heads': 4}),
    ('qwen2_moe', {'model.n_kv_heads': 4, 'moe.aux_loss_coeff': 0, 'moe.z_loss_coeff': 0}))}
MODELS |= HALVES
TENSOR = {2: {'parallelism.tensor_parallel_degree': 2}, 4: {'parallelism.tensor_parallel_degree': 4},
          8: {**HYBRID, 'training.local_batch_size': 2, 'parallelism.tensor_parallel_degree': 2}}

# Stages, of which the first has the embedding and the last the head.
STAGES = {'parallelism.pipeline_parallel_degree': 2, 'parallelism.sharding_strategy': 'shard_optim'}
STAGED = [('gpt2, untied', 2, STAGES), ('llama, weighed, documents, masked', 2, {**STAGES, 'parallelism.pipeline_parallel_schedule': 'ZBH1'}),
          ('llama, biases', 4, {**STAGES, 'parallelism.sharding_strategy': 'shard_grad_op'}),
          ('mixtral', 2, {**STAGES, 'training.local_batch_size': 1}),
          ('llama, biases, adapters', 4, {**STAGES, **TENSOR[2]})]


def draw_weights(shapes, around=1, seed=20):
    """Far from the usual initial values: norm weights around 1, some small and some large, and biases as large as
    activations."""
    random = numpy.random.default_rng(seed)

    def draw(name, shape):
        if len(shape) > 1:
            return random.normal(0, 0.3 if 'wte' in name or 'wpe' in name or 'embed' in name else 0.15, shape)
        return random.uniform(around - 0.5, around + 0.5, shape) if name.endswith('weight') else random.normal(0, 0.2, shape)

    return {name: draw(name, shape).astype(numpy.float32) for name, shape in shapes.items()}


def draw_tokens(c):
    """If documents are told apart, about every ninth token is a separator."""
    random = numpy.random.default_rng(10)
    count = STEPS * c['training.global_batch_size'] * c['training.seq_len'] + 1
    stream = random.integers(0, c['model.vocab_size'], count)
    if 'data.document_separator' in c:
        stream[random.random(len(stream)) < 1 / 9] = c['data.document_separator']
    return stream


def draw_mask(c):
    """Stretches as in conversations, so that the ranks have uneven parts; in every third step only the last of the
    eight sequences has targets that count: the other ranks and micro-steps have none."""
    random = numpy.random.default_rng(11)
    stretches = -(-c['training.seq_len'] // 11)
    rows = numpy.repeat(random.random((STEPS * c['training.global_batch_size'], stretches)) < 0.4, 11, 1)
    rows = rows[:, :c['training.seq_len']]
    for step in range(0, STEPS, 3):
        rows[8 * step:8 * step + 7] = False
        rows[8 * step + 7, 0] = True
    return numpy.concatenate([[0], rows.ravel()]).astype('u1')


def draw_heavy(c):
    """What targets weigh: every fifth nothing, others up to 16, so that a mean by their number is another one. The only target of a
    step weighs something."""
    count = STEPS * c['training.global_batch_size'] * c['training.seq_len'] + 1
    heavy = (2.0 ** numpy.random.default_rng(12).uniform(-8, 4, count)).astype('<f2')
    heavy[::5] = 0
    return heavy


class Model:
    """A configuration with its folder: tokens.bin, a mask if needed, and seed.h5 with random weights."""

    def __init__(self, name):
        self.c = MODELS[name]
        self.folder = pathlib.Path(name.replace(', ', '-').replace(' ', '-'))
        self.folder.mkdir()
        self.stream = draw_tokens(self.c)
        self.stream.astype('<u2').tofile(self.folder / 'tokens.bin')
        self.mask = draw_mask(self.c) if 'data.target_mask' in self.c else None
        if self.mask is not None:
            self.mask.tofile(self.folder / 'tokens.bin.mask')
        self.heavy = draw_heavy(self.c) if 'data.token_weight' in self.c else None
        if self.heavy is not None:
            self.heavy.tofile(self.folder / 'tokens.bin.weight')
        plain = {key: value for key, value in self.c.items() if not key.startswith(('optimizer.', 'lora.'))}
        job.train(self.folder / 'seed', {**plain, 'training.steps': 1, 'lr_scheduler.total_steps': 0,
                                         'lr_scheduler.warmup_steps': 0, 'checkpoint.create_seed_checkpoint': True})
        seed = self.folder / 'seed/out/checkpoint/step-00000000.h5'
        self.format_errors = checkpoint.verify(seed)
        self.weights = draw_weights({key: value.shape for key, value in checkpoint.read(seed).items()},
                                    0 if self.c['model.family'].startswith('gemma') else 1, SEEDS.get(name, 20))
        checkpoint.replace(seed, self.weights)
        if 'lora.rank' in self.c:  # those of any run upon this base
            self.weights |= checkpoint.read(self.train('adapters', {'checkpoint.create_seed_checkpoint': True}, steps=0)[1])

    @functools.cached_property
    def reference(self):
        return torch_reference.train(self.weights, self.stream, self.c['training.steps'], self.c, self.mask, self.heavy)

    def train(self, folder, changes, ranks=0, steps=None):
        """Returns (metrics, the checkpoint of that step, or of the last)."""
        path = self.folder / folder
        load = {'checkpoint.initial_load_path': '../seed/out/checkpoint/step-00000000.h5'}
        if 'optimizer.name' in self.c:  # the seed is in AdamW's format, which h5py can write
            load['checkpoint.initial_load_model_only'] = True
        lines = job.train(path, {**self.c, **load, **changes}, ranks)
        return lines, path / f'out/checkpoint/step-{lines[-1]["step"] if steps is None else steps:08}.h5'

    @functools.cached_property
    def float32(self):
        return self.train('one', {})


@functools.lru_cache(None)
def model(name):
    return Model(name)


def compare_tensors(found, expected, bound):
    wrong = [] if found.keys() == expected.keys() else [f'tensors {sorted(found)}, expected {sorted(expected)}']
    for name in found.keys() & expected.keys():
        a, b = found[name].astype(numpy.float64), expected[name]
        off = float(numpy.linalg.norm(a - b) / max(numpy.linalg.norm(b), 1e-300))
        wrong += [f'{name}: {off:.2g} off, bound {bound:g}'] if not off <= bound else []
    return wrong


def compare_run(m, steps, path, norm_bound=GRADIENT_BOUND):
    losses, norms, weights, _, gap, added = m.reference
    others = [sum(step.get(key, 0) for key in ('aux_loss', 'z_loss', 'head_z_loss')) for step in steps]
    changed = {name: values - m.weights[name] for name, values in checkpoint.read(path).items()}
    expected = {name: weights[name] - m.weights[name] for name in weights}
    return (([] if gap > GAP else [f'a choice has a gap of {gap:.2g}: give another seed'])
            + job.differ('loss', job.losses(steps), losses, LOSS_BOUND)
            + job.differ('gradient norm', [step['grad_norm'] for step in steps], norms, norm_bound)
            + (job.differ('losses beside it', others, added, LOSS_BOUND) if any(added) else [])
            + job.differ('rate', [step['lr'] for step in steps],
                         [torch_reference.learning_rate(i, m.c) for i in range(len(losses))], 1e-12)
            + compare_tensors(changed, expected, BOUNDS.get(m.c.get('optimizer.name'), CHANGE_BOUND)))


def compare_gradients(m, folder, changes, ranks=0):
    """After one unclipped step from zero states, exp_avg is (1 - beta1) times the gradient. Digests are as numpy finds
    them."""
    _, path = m.train(folder, {**changes, 'training.max_norm': 0, 'training.steps': 1}, ranks)
    found = {key: value / (1 - m.c['optimizer.beta1']) for key, value in checkpoint.read(path, checkpoint.EXP_AVG).items()}
    return compare_tensors(found, m.reference[3], GRADIENT_BOUND) + checkpoint.verify(path)


def case_gradients(name):
    m = model(name)
    return compare_gradients(m, 'gradients', {}) + m.format_errors


def case_one_rank(name):
    m = model(name)
    clipped = any(norm > m.c['training.max_norm'] for norm in m.reference[1])
    return compare_run(m, *m.float32) + ([] if clipped else ['no step was clipped: max_norm is too large to be tested'])


def case_hybrid(name):
    m = model(name)
    return compare_run(m, *m.train('hybrid', HYBRID, 4))


def case_muon(name):
    """The change of each step against Newton-Schulz in float64 of the momentum that its checkpoint has, so that gradients and earlier
    steps add no rounding. At this rate neither does that of a parameter."""
    m = model(name)
    c = {**m.c, 'optimizer.nesterov': False, 'optimizer.lr': 0.1, 'lr_scheduler.decay_type': 'linear', 'lr_scheduler.min_lr_factor': 1}
    _, last = m.train('orthogonal', {**c, 'checkpoint.interval': 1})
    wrong, before = [], m.weights
    for step in range(1, STEPS + 1):
        path = last.with_name(f'step-{step:08}.h5')
        after, momentum = checkpoint.read(path), checkpoint.read(path, checkpoint.EXP_AVG)
        lr = torch_reference.learning_rate(step - 1, c)
        found = {key: before[key] * (1 - lr * c['optimizer.weight_decay']) - after[key].astype(numpy.float64)
                 for key in after if torch_reference.is_matrix(key, after[key])}
        expected = {key: torch_reference.orthogonal_change(key, momentum[key], lr, c) for key in found}
        wrong += [f'step {step}, {line}' for line in compare_tensors(found, expected, ORTHOGONAL_BOUND)]
        before = {key: value.astype(numpy.float64) for key, value in after.items()}
    return wrong


def case_cut(name, ranks, changes):
    """On ranks that share sequences, matrices or layers."""
    m = model(name)
    return (compare_run(m, *m.train(f'cut-{ranks}', changes, ranks), NORM_BOUND)
            + compare_gradients(m, f'cut-{ranks}-once', changes, ranks))


def operations(checkpoint, rows, ranks):
    """How many the program of a run has, with tiles of that many rows."""
    return job.sherd('plan', checkpoint.parents[2] / 'c.yaml', '--ranks', max(ranks, 1), '--show', f'--training.tile_rows={rows}').count('\n')


def case_tiles(name, ranks, rows):
    """In float32 and in bfloat16."""
    m, full = model(name), {'activation_checkpoint.mode': 'full', **({} if ranks < 2 else CONTEXT[ranks])}
    tiled = {**full, 'training.tile_rows': rows}
    steps, path = m.train('tiled', tiled, ranks)
    narrow, _ = m.train('tiled-bf16', {**tiled, 'training.mixed_precision_param': 'bfloat16'}, ranks)
    return (compare_run(m, steps, path) + compare_gradients(m, 'tiled-once', tiled, ranks)
            + job.differ('loss in bf16', job.losses(narrow), m.reference[0], BF16_BOUND)
            + ['nothing is cut into tiles'] * (operations(path, rows, ranks) <= operations(path, 0, ranks)))


def case_scores(name, ranks, changes):
    """`sherd eval` of texts, several of which share a row, whose length no degree divides."""
    m = model(name)
    words = [f'--{key}={value}' for key, value in changes.items() if not key.startswith('training.')]
    tokens, texts = iter(m.stream.tolist()), []
    for context, *endings in (1, 4, 30), (20, 11, 1), (3, 2, 7), (12, 19, 3):
        start = list(itertools.islice(tokens, context))
        texts.append((start, [list(itertools.islice(tokens, ending)) for ending in endings]))
    seed, examples = m.folder / 'seed/out/checkpoint/step-00000000.h5', job.write_examples('texts.bin', texts)
    found = [score for score, _ in job.scores(seed, examples, '--batch', 3, *words, ranks=ranks)]
    pairs = [(context, ending) for context, endings in texts for ending in endings]
    return job.differ('score', found, torch_reference.scores(m.weights, pairs, m.c), LOSS_BOUND)


def case_bf16(name):
    m = model(name)
    steps, _ = m.train('bf16', {'training.mixed_precision_param': 'bfloat16'})
    return job.differ('loss in bf16', job.losses(steps), job.losses(m.float32[0]), BF16_BOUND)


MUONS = tuple(name for name in MODELS if 'Muon' in name)
MUON_OF_FAMILIES = ('llama, Muon', 'gpt2, Muon', 'phi3, Muon')
OPTIMIZERS = ('llama, SGD', 'llama, Lion', 'llama, groups', *MUONS)
FAMILIES = ('llama, linear rope', 'llama, yarn', 'llama, yarn, ends not rounded',
            'llama, biases', 'mistral', 'qwen2', 'phi3', 'smollm3', 'starcoder2', 'gemma3_text', 'gemma2', 'cohere2', 'mixtral, one expert',
            'olmoe, all experts', 'llama, statements', 'gpt2, tied, adapters', 'llama, biases, adapters')
WITH_EXPERTS = ('mixtral', 'qwen2_moe', 'qwen3_moe, sigmoid, groups', 'qwen3_moe, documents, masked', 'olmoe', 'gpt_oss')
WITH_OTHERS = ('tiled', 'many rows', 'tiled, cut')  # only tiles ask for them
# tests/op tests another compiler's kernels one by one, tests/mesh another MPI's meshes. Here they meet.
FEW_MODELS = ('gpt2, tied', 'llama, untied', 'gemma', 'llama, weighed, documents, masked')
# One of each layout, except on GPUs. That a mesh trains as one rank does is shown for each family by
# tests/unit/test_family.c, for Muon by tests/mesh/test_muon.py.
ON_A_MESH = (*FEW_MODELS, 'phi3, NorMuon of heads, cautious decay', 'qwen2_moe', 'qwen3_moe, documents, masked', 'gpt_oss')


def only_muon(name):
    return MODELS[name].get('optimizer.name') == 'muon' and 'optimizer.groups' not in MODELS[name]


def on_a_gpu(name):
    return MODELS[name].get('training.device') == 'cuda'


CASES = {'gradients': (case_gradients, lambda name: name not in OPTIMIZERS),
         f'{STEPS} steps on one rank': (case_one_rank, lambda name: True),
         'each step from its momentum': (case_muon, only_muon),
         f'{STEPS} steps on 2 x 2 ranks': (case_hybrid, lambda name: (name in ON_A_MESH or on_a_gpu(name)) and job.can_launch()),
         'bf16 stays near': (case_bf16, lambda name: name not in OPTIMIZERS + FAMILIES + WITH_EXPERTS)}


def degrees(i):
    """Ranks of the ith model that is cut: 4, on which each head of four has a rank, or 2, on which some share one."""
    return (2, 8) if i == 1 else ((4, 2)[i % 2],)


def cases():
    """Rows for job.run_cases()."""
    found = [(f'{name}: {what}', function, name) for name in ((*FEW_MODELS, *MUON_OF_FAMILIES) if job.FEW else MODELS)
             if name not in CUT and name not in HALVES and not name.endswith(WITH_OTHERS)
             for what, (function, of) in CASES.items() if of(name)]
    found += [(f'{name}: tiles of {rows} rows', case_tiles, name, ranks, rows)
              for name, ranks, rows in TILED[::5 if job.FEW else 1] if job.can_launch() or not ranks]
    found += [(f'{name}: 2 stages on {ranks} ranks', case_cut, name, ranks, changes)
              for name, ranks, changes in STAGED[::2 if job.FEW else 1] if job.can_launch()]
    found += [(f'{name}: on {ranks} ranks', case_cut, name, ranks, meshes[ranks]) for names, meshes in ((CUT, CONTEXT), (HALVES, TENSOR))
              for i, name in enumerate(names) for ranks in degrees(i)
              if job.can_launch() and (not job.FEW or (meshes is TENSOR and (i, ranks) == (1, 2)))]
    if job.FEW:
        return found
    return found + [(f'{name}: scores on {f"{ranks} ranks" if ranks else "one rank"}', case_scores, name, ranks, CONTEXT.get(ranks, {}))
                    for i, name in enumerate(CUT) for ranks in (0, *degrees(i)) if ranks < 8 and (job.can_launch() or not ranks)]


if __name__ == '__main__':
    torch_reference.torch.set_num_threads(1)
    sys.exit(job.run_cases(cases()))
