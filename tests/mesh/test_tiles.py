#!/usr/bin/env python3
"""training.tile_rows: losses, norms and checkpoints of tiles that are whole blocks of rows are, to the bit, those of all
rows at once, in as much memory as planned, which is less. Prints TAP."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job
import test_memory
import tiny

# 192 rows a micro-step in blocks of 64, of which tiles take one or two; then 150 rows, so that the last tile is shorter.
BASE = {**tiny.COMMON, 'training.local_batch_size': 16, 'training.global_batch_size': 16, 'training.steps': 2,
        'lr_scheduler.total_steps': 10, 'training.seq_len': 12, 'activation_checkpoint.mode': 'full', 'model.ffn_dim': 200,
        'debug.row_block': 64, 'validation.enable': True, 'validation.sequences': 8, 'validation.freq': 1}
REST = {'training.seq_len': 10, 'training.local_batch_size': 15}
NARROW = {'training.mixed_precision_param': 'bfloat16'}
APART = {'comm.shared_memory': 'off'}
LLAMA = {'model.family': 'llama', 'model.n_kv_heads': 1}
NF4 = {'lora.rank': 2, 'lora.quantize_base': 'nf4', 'model.dim': 32, 'model.n_heads': 4, 'model.head_dim': 8,
       'model.n_kv_heads': 2, 'model.ffn_dim': 192, **NARROW}
NVME = {'offload.optimizer': 'nvme', 'offload.gradients': 'nvme', 'offload.activations': 'nvme', 'offload.nvme_path': '.',
        'model.dim': 64, 'model.n_heads': 4, 'model.head_dim': 16, 'model.n_layers': 5}
HEADS = {'model.n_heads': 4}
QUARTERS = {'parallelism.context_parallel_degree': 4, 'training.local_batch_size': 32, 'training.global_batch_size': 64, **APART}
RUNS = {
    'llama': (0, 64, LLAMA),
    'llama, the last tile shorter': (0, 64, {**LLAMA, **REST}),
    'llama, bfloat16, tiles of two blocks': (0, 128, {**LLAMA, **NARROW}),
    'gpt2': (0, 64, {'model.family': 'gpt2', 'model.tie_word_embeddings': True}),
    'gpt_neox, a parallel block': (0, 64, {'model.family': 'gpt_neox'}),
    'gemma3, norms after': (0, 64, {'model.family': 'gemma3_text', 'model.n_kv_heads': 1, 'model.tie_word_embeddings': True}),
    'qwen2_moe': (0, 64, {**{key: value for key, value in tiny.EXPERTS.items() if key not in BASE}, 'model.shared_ffn_dim': 70}),
    'llama, adapters': (0, 64, {**LLAMA, 'lora.rank': 2}),
    'llama, adapters beside nf4': (2, 64, {**LLAMA, **NF4}),
    'llama, all in a file': (2, 64, {**LLAMA, **NVME}),
    'keys and values of other blocks': (2, 64, {**LLAMA, **tiny.SHARING}),
    'keys and values of other blocks, all in a file': (2, 64, {**LLAMA, **tiny.SHARING, **NVME, 'model.n_layers': 6}),
    'llama, full_shard over 2, two micro-steps': (2, 64, {**LLAMA, 'training.local_batch_size': 12, 'training.global_batch_size': 48}),
    'gpt2, no_shard over 2': (2, 64, {'model.family': 'gpt2', 'parallelism.sharding_strategy': 'no_shard'}),
    'llama, hybrid_shard 2 x 2, nothing shared': (4, 64, {**LLAMA, **APART, 'parallelism.sharding_strategy': 'hybrid_shard', 'mesh.shard': 2}),
    'gpt2, shard_optim over 4': (4, 64, {'model.family': 'gpt2', **NARROW, 'parallelism.sharding_strategy': 'shard_optim'}),
    'llama, half of each sequence on 2': (2, 64, {**LLAMA, **HEADS, 'parallelism.context_parallel_degree': 2}),
    'gpt2, a quarter of each sequence on 4': (4, 64, {'model.family': 'gpt2', 'model.dim': 16, **HEADS, **QUARTERS}),
    'llama, adapters beside nf4, half of each sequence on 4': (
        4, 64, {**LLAMA, **NF4, 'parallelism.context_parallel_degree': 2, 'training.local_batch_size': 32, 'training.global_batch_size': 64}),
    'llama, reproducible, over 4': (4, 64, {**LLAMA, 'training.reproducible': 'mesh'}),
}


def base(changes):
    """A checkpoint of the whole model, beside which adapters are trained."""
    model = {key: value for key, value in {**BASE, **changes}.items() if key.startswith('model.')}
    job.train('base', {'training.dataset_path': tokens, **tiny.COMMON, **model, 'training.steps': 1})
    return {'checkpoint.initial_load_path': str(next(pathlib.Path('base/out/checkpoint').glob('*.h5')).resolve())}


def run(folder, ranks, changes):
    config = {'training.dataset_path': tokens, 'validation.dataset_path': tokens, **BASE, **changes}
    config['training.global_batch_size'] = changes.get('training.global_batch_size', config['training.local_batch_size'] * max(ranks, 1))
    steps = job.train(folder, config, ranks)
    planned = test_memory.plan({'mesh.ranks_per_node': ranks or 1, **config}, ranks or 1)[test_memory.ARENA]
    memory = steps[-1]['arena_bytes']
    saved = sorted(pathlib.Path(folder, 'out/checkpoint').glob('*.h5'))[-1].read_bytes()
    return steps, saved, memory, [f'{folder}: arena of {memory} bytes, planned {planned}'] * (memory != planned)


def case_same(ranks, tile, changes):
    """In bfloat16 the scratch of packed panels can be the peak of so small a model, with tiles and without."""
    if 'lora.rank' in changes:
        changes = {**changes, **base(changes)}
    whole, tiles = run('whole', ranks, changes), run('tiles', ranks, {**changes, 'training.tile_rows': tile})
    wrong = whole[3] + tiles[3]
    for name in 'loss', 'grad_norm':
        wrong += job.differ(name, [step[name] for step in tiles[0]], [step[name] for step in whole[0]], 0)
    if whole[1] != tiles[1]:
        wrong.append('the checkpoints differ')
    if tiles[2] > whole[2] or (tiles[2] == whole[2] and 'training.mixed_precision_param' not in changes):
        wrong.append(f'{tiles[2]} bytes with tiles, {whole[2]} without')
    return wrong


if __name__ == '__main__':
    tokens = tiny.write_tokens()
    sys.exit(job.run_cases([(name, case_same, *row) for name, row in RUNS.items() if row[0] == 0 or job.can_launch()]))
