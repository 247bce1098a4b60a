#!/usr/bin/env python3
"""Long sequences: tiles of rows, parts of sequences, and everything that a run may have besides, as seeds draw it; then a
text of one document, which two ranks learn as one does. Prints TAP.

A mesh has the losses, norms and losses of validation of one rank to LOSS_BOUND. Tiles, recomputation and the places of
states change none of its bits, nor the checkpoint; memory is what the plan says. SHERD_TEST_FEW=1: fewer seeds.
"""
import functools
import json
import os
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job
import test_memory
import tiny

SEEDS = (0, 1, 2) if job.FEW else (0, 1, 2, 3, 5, 6, 7, 11)  # each kind once
STEPS = 3
LOSS_BOUND = 1e-5
# OpenBLAS in float32 sums in another order below 16 rows; the last tile may have fewer.
FEW_ROWS, FEW_ROWS_BOUND = 16, 1e-6
CP, TILE = 'parallelism.context_parallel_degree', 'training.tile_rows'
# With AdamW's own eps an element whose gradient is nothing but rounding moves as far as any other: 7e-5 of a norm.
COMMON = {**tiny.COMMON, 'optimizer.eps': 1e-3, 'model.n_heads': 4, 'model.n_layers': 5, 'model.ffn_dim': 44, 'model.max_seq_len': 64,
          'training.steps': STEPS, 'lr_scheduler.total_steps': STEPS, 'debug.row_block': 64, 'validation.enable': True,
          'validation.freq': 1, 'checkpoint.interval': 2, 'metrics.log_freq': 1}
# Rows of 64 numbers: what 16 of them keep fills a page of a file.
WIDE = {'model.family': 'llama', 'model.dim': 64, 'model.head_dim': 16, 'model.ffn_dim': 160}
KINDS = {
    'gpt2': {'model.family': 'gpt2', 'model.tie_word_embeddings': True, 'model.dim': 16},
    'gpt_neox': {'model.family': 'gpt_neox', 'model.dim': 16},
    'window': {'model.family': 'mistral', 'model.n_kv_heads': 4, 'model.attention_window': 7},
    'gemma3': {'model.family': 'gemma3_text', 'model.n_kv_heads': 1, 'model.attention_window': 9,
               'model.full_attention_interval': 2, 'model.tie_word_embeddings': True},
    'experts': {**{key: value for key, value in tiny.EXPERTS.items() if key not in tiny.COMMON}, 'model.n_experts': 8,
                'moe.aux_loss_coeff': 0, 'moe.load_balance_coeff': 0},
    'wide': {**WIDE, 'model.n_kv_heads': 2},
    'adapters': {**WIDE, 'model.n_kv_heads': 1, 'lora.rank': 2},
    'adapters beside nf4': {**WIDE, 'model.n_kv_heads': 2, 'lora.rank': 2, 'lora.quantize_base': 'nf4'},
}
STRATEGIES = ('full_shard', 'full_shard', 'shard_grad_op', 'shard_optim', 'no_shard', 'hybrid_shard')
NVME = {'offload.nvme_path': '.'}
FULL = {'activation_checkpoint.mode': 'full'}
MOVED = (FULL, FULL, FULL, {'activation_checkpoint.mode': 'every_k', 'activation_checkpoint.every_k': 2},
         {'activation_checkpoint.mode': 'selective'}, {})


def some(draw, share, changes):
    return changes if draw.random() < share else {}


def draw_mesh(draw, kind, ranks, degree):
    strategy = draw.choice(STRATEGIES)
    spreads = kind == 'experts' and degree < ranks and strategy in ('full_shard', 'shard_grad_op')
    return {CP: degree, 'parallelism.sharding_strategy': strategy,
            **({'mesh.replicate': ranks // degree, 'mesh.shard': degree} if strategy == 'hybrid_shard' else {}),
            **some(draw, 0.5, {'comm.shared_memory': 'off'}),
            **some(draw, 0.25, {'comm.progress': 'inline'}),
            **some(draw, 0.3, {'parallelism.forward_prefetch': draw.randrange(4), 'parallelism.backward_prefetch': draw.randrange(4)}),
            **some(draw, 0.3, {'parallelism.gradient_sync': draw.choice(('every_micro_step', 'last_micro_step'))}),
            **some(draw, 0.5 * spreads, {'parallelism.expert_parallel_degree': 2})}


def draw_moves(draw, wide):
    """What changes no bit."""
    moved = dict(draw.choice(MOVED))
    for what in ('optimizer', 'gradients') + ('activations',) * (wide and moved == FULL):
        moved |= some(draw, 0.4, {f'offload.{what}': 'nvme', **NVME})
    return {**moved, **some(draw, 0.3, {'checkpoint.async_mode': 'async'}), **some(draw, 0.3, {'offload.overlap_update': 'off'})}


@functools.lru_cache(None)
def drawn(seed):
    """The kind, the number of ranks, what one rank trains, the mesh, what is moved on it, and the tile."""
    draw = random.Random(seed)
    kind, ranks = draw.choice(list(KINDS)), draw.choice((1, 2, 2, 4, 4, 4))
    degree = draw.choice([n for n in (2, 4) if n <= ranks] or [1])
    wide = 'model.dim' in KINDS[kind] and KINDS[kind]['model.dim'] == 64
    batch = draw.choice((4, 8) if wide else (2, 3, 5, 8))
    length = degree * (4 * draw.randint(2, 16 // degree) if wide else draw.randint(min(16, -(-80 // (batch * degree))), 64 // degree))
    alone = {**COMMON, **KINDS[kind], 'training.seq_len': min(length, 64), 'training.local_batch_size': batch,
             'training.global_batch_size': batch * (ranks // degree) * draw.choice((1, 1, 2, 3)),
             'validation.sequences': draw.randint(1, 11),
             **some(draw, 0.4, {'data.document_mask': True, 'data.document_separator': 7})}
    mesh = draw_mesh(draw, kind, ranks, degree)
    return kind, ranks, alone, mesh, draw_moves(draw, wide), draw.choice((64, 64, 128))


@functools.lru_cache(None)
def base(kind):
    """A checkpoint of the whole model, beside which adapters are trained."""
    config = {key: value for key, value in {**COMMON, **KINDS[kind]}.items() if not key.startswith(('lora.', 'validation.'))}
    job.train('base ' + kind, {'training.dataset_path': tokens, **config, 'training.steps': 1})
    return str(pathlib.Path('base ' + kind, 'out').resolve())


def run(folder, kind, ranks, config):
    """Returns losses, norms and the losses of validation; the checkpoint; and what is wrong with the memory."""
    config = {'training.dataset_path': tokens, 'validation.dataset_path': tokens, **config}
    if 'lora.rank' in config:
        config['checkpoint.initial_load_path'] = base(kind)
    steps = job.train(folder, config, 0 if ranks == 1 else ranks)
    lines = map(json.loads, pathlib.Path(folder, 'out/metrics.jsonl').read_text().splitlines())
    numbers = [step[key] for step in steps for key in ('loss', 'grad_norm')]
    numbers += [line['validation_loss'] for line in lines if 'validation_loss' in line]
    planned, memory = test_memory.plan({'mesh.ranks_per_node': ranks, **config}, ranks)[test_memory.ARENA], steps[-1]['arena_bytes']
    saved = sorted(pathlib.Path(folder, 'out/checkpoint').glob('*.h5'))[-1].read_bytes()
    return numbers, saved, [f'{folder}: arena of {memory} bytes, planned {planned}'] * (memory != planned)


def case_drawn(seed):
    kind, ranks, alone, mesh, moved, tile = drawn(seed)
    one, plain = run('one', kind, 1, alone), run('plain', kind, ranks, {**alone, **mesh})
    found = run('found', kind, ranks, {**alone, **mesh, **moved, TILE: tile})
    rows = alone['training.local_batch_size'] * alone['training.seq_len'] // mesh[CP]
    few = rows > tile and 0 < rows % tile < FEW_ROWS
    wrong = plain[2] + found[2] + job.differ('the mesh', plain[0], one[0], LOSS_BOUND)
    wrong += job.differ('moved', found[0], plain[0], FEW_ROWS_BOUND if few else 0)
    wrong += ['the checkpoints differ'] * (not few and found[1] != plain[1])
    return wrong and [f'{alone} {mesh} {moved} tiles of {tile}'] + wrong


# Python's own modules: text that each machine with this test has.
LENGTH, DOCUMENTS = 512, 36
LEARNER = {'model.family': 'qwen3', 'model.n_layers': 3, 'model.dim': 64, 'model.n_heads': 4, 'model.n_kv_heads': 2,
           'model.head_dim': 16, 'model.ffn_dim': 192, 'model.vocab_size': 256, 'model.max_seq_len': LENGTH,
           'model.attention_window': 64, 'model.window_first_layer': 1, 'model.tie_word_embeddings': False,
           'training.seq_len': LENGTH, 'training.local_batch_size': 1, 'training.global_batch_size': 1, 'training.threads': 1,
           'training.mixed_precision_param': 'float32', 'training.steps': DOCUMENTS, 'data.shuffle': False,
           'optimizer.lr': 4e-3, 'lr_scheduler.warmup_steps': 4, 'lr_scheduler.total_steps': DOCUMENTS, **FULL}
LEARNT = 0.7  # the last losses, of the first one; seen: 0.60


def case_learns():
    """Each step reads the beginning of another document."""
    modules = sorted(pathlib.Path(os.__file__).parent.glob('*.py'))
    texts = [text for text in (module.read_bytes()[:LENGTH] for module in modules) if len(text) == LENGTH and text.isascii()]
    pathlib.Path('modules.txt').write_bytes(b''.join(texts[:DOCUMENTS]) + b'\n')
    job.sherd('tokenize', 'modules.txt', '-o', 'modules.bin')
    config = {**LEARNER, 'training.dataset_path': str(pathlib.Path('modules.bin').absolute())}
    one = job.losses(job.train('learnt alone', config))
    two = job.losses(job.train('learnt', {**config, CP: 2, TILE: 128}, 2))
    wrong = job.differ('losses', two, one, LOSS_BOUND)
    return wrong + ([] if sum(two[-4:]) / 4 < LEARNT * two[0] else [f'nothing is learnt: {two}'])


def name_of(seed):
    kind, ranks, alone, mesh, moved, tile = drawn(seed)
    return f'seed {seed}: {kind}, {mesh[CP]} of {ranks} ranks, {alone["training.seq_len"]} tokens, tiles of {tile}'


if __name__ == '__main__':
    job.need_launcher()
    tokens = tiny.write_tokens(count=12000)
    sys.exit(job.run_cases([(name_of(seed), case_drawn, seed) for seed in SEEDS] + [('a document is learnt', case_learns)]))
