#!/usr/bin/env python3
"""training.reproducible: mesh: the same bits on every mesh whose number of ranks is a power of two, and after a change
of mesh in the middle. Prints TAP.

Losses, gradient norms and validation losses are compared as printed, with all their digits; parameters and optimizer
state by a SHA-256 of the last checkpoint. With training.row_leaves that holds for sequences cut over ranks too. Since the checkpoint is the same from every mesh, a mesh that continues from
one other mesh's checkpoint could continue from any. SHERD_LONG=1 tests all meshes, models and types, otherwise a sample
of them; SHERD_TEST_FEW=1 half of that.
"""
import functools
import hashlib
import itertools
import json
import os
import pathlib
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job
import tiny

LONG = bool(os.environ.get('SHERD_LONG'))
STEPS, HALF = 6, 3
MODELS = {**tiny.MODELS, 'codes': {**tiny.MODELS['llama'], 'parallelism.gather_dtype': 'int8'}, 'experts': tiny.EXPERTS}
TYPES = ('float32', 'bfloat16')
# 21 sequences fill the last batches only on one rank.
BATCH = {'training.reproducible': 'mesh', 'training.global_batch_size': 16, 'training.steps': STEPS, 'lr_scheduler.total_steps': STEPS,
         'checkpoint.interval': HALF,
         'validation.enable': True, 'validation.freq': HALF, 'validation.sequences': 21}


def flat(strategy, ranks, **more):
    return ranks, {'parallelism.sharding_strategy': strategy, **more}


def grid(strategy, replicate, shard, **more):
    return replicate * shard, {'parallelism.sharding_strategy': strategy, 'mesh.replicate': replicate,
                               'mesh.shard': shard, **more}


# Each strategy, each number of ranks, each kind of grid; with settings that must not show: when units are gathered,
# what is kept.
SAMPLE = {
    'full_shard over 2': flat('full_shard', 2),
    'full_shard over 4, resharded over 2': flat('full_shard', 4, **{'parallelism.reshard_after_forward': 2}),
    'full_shard over 8': flat('full_shard', 8),
    'hybrid_shard 2 x 2': grid('hybrid_shard', 2, 2),
    'hybrid_shard 2 x 4': grid('hybrid_shard', 2, 4),
    'hybrid_shard_zero2 4 x 2': grid('hybrid_shard_zero2', 4, 2),
    'no_shard, 4 replicas': flat('no_shard', 4, **{'mesh.replicate': 4}),
    'no_shard over 4, once a node of 2': flat('no_shard', 4, **{'mesh.ranks_per_node': 2}),
    'no_shard over 2, once': flat('no_shard', 2),
    'shard_optim over 2': flat('shard_optim', 2),
    'shard_optim 2 x 2': grid('shard_optim', 2, 2),
    'shard_optim 2 x 2, nothing shared': grid('shard_optim', 2, 2, **{'comm.shared_memory': 'off'}),
    'shard_grad_op over 4': flat('shard_grad_op', 4),
    '1 rank, full recompute': flat('full_shard', 1, **{'activation_checkpoint.mode': 'full'}),
}
MESHES = {'1 rank': flat('full_shard', 1), **SAMPLE}
if LONG:
    MESHES['1 rank, 2 threads'] = flat('full_shard', 1, **{'training.threads': 2})
    MESHES |= {f'{strategy}, {ranks} ranks': flat(strategy, ranks) for ranks in (1, 2, 4, 8)
               for strategy in ('no_shard', 'shard_optim', 'shard_grad_op', 'full_shard')}
    MESHES |= {f'{strategy} {r} x {s}': grid(strategy, r, s) for strategy in ('hybrid_shard', 'hybrid_shard_zero2', 'shard_optim')
               for r, s in itertools.product((1, 2, 4, 8), repeat=2) if r * s <= 8}
folders = itertools.count()
CP = 'parallelism.context_parallel_degree'
# Four leaves of 16 tokens for 1, 2 and 4 ranks of a sequence; two micro-steps on one rank.
PARTS = {'training.row_leaves': 4, 'training.seq_len': 64, 'model.max_seq_len': 64, 'model.n_heads': 4, 'model.n_kv_heads': 4,
         'training.local_batch_size': 3, 'training.global_batch_size': 6, 'training.steps': 4, 'checkpoint.interval': 4,
         'validation.freq': 4}
WIDE = {**PARTS, 'model.dim': 64, 'model.head_dim': 16, 'model.ffn_dim': 64}
FULL = {'activation_checkpoint.mode': 'full'}
KINDS = {
    'llama, documents': ('llama', 'float32', {**PARTS, 'data.document_mask': True, 'data.document_separator': 7}),
    'gpt2, tied': ('gpt2', 'float32', {**PARTS, 'model.dim': 16}),
    'gpt2, tied, bfloat16': ('gpt2', 'bfloat16', {**PARTS, 'model.dim': 16}),
    'window, bfloat16': ('llama', 'bfloat16', {**PARTS, 'model.family': 'mistral', 'model.attention_window': 5}),
    'norms of heads, z-loss': ('llama', 'float32', {**PARTS, 'model.family': 'olmo2', 'training.z_loss': 0.01}),
    'adapters in four bits': ('llama', 'bfloat16', {**WIDE, 'lora.rank': 2, 'lora.quantize_base': 'nf4'}),
}
CUT = {
    'full_shard over 4': flat('full_shard', 4, **{CP: 2}),
    'full_shard over 8, resharded': flat('full_shard', 8, **{CP: 4, 'parallelism.reshard_after_forward': 4}),
    'hybrid_shard 2 x 2, tiles': grid('hybrid_shard', 2, 2, **{CP: 2, **FULL, 'training.tile_rows': 64}),
    'no_shard, 8 replicas': flat('no_shard', 8, **{CP: 4, 'mesh.replicate': 8}),
    'shard_optim over 4, nothing shared': flat('shard_optim', 4, **{CP: 2, 'comm.shared_memory': 'off'}),
    'shard_grad_op over 4, inline': flat('shard_grad_op', 4, **{CP: 2, 'comm.progress': 'inline'}),
    '2 ranks, whole sequences': flat('full_shard', 2),
    '1 rank, tiles': flat('full_shard', 1, **FULL, **{'training.tile_rows': 64}),
}


# Matrices in halves: the bits are those of two ranks.
TP = 'parallelism.tensor_parallel_degree'
PAIR = {**{key: value for key, value in PARTS.items() if key != 'training.row_leaves'}, TP: 2, 'training.global_batch_size': 12}
HALVED_KINDS = {
    'halves of llama, documents': ('llama', 'float32', {**PAIR, 'data.document_mask': True, 'data.document_separator': 7}),
    'halves of gpt2, tied, bfloat16': ('gpt2', 'bfloat16', {**PAIR, 'model.dim': 16}),
    'halves of adapters': ('llama', 'float32', {**{key: value for key, value in WIDE.items() if key != 'training.row_leaves'},
                                      'training.global_batch_size': 12, TP: 2, 'lora.rank': 2}),
    # Experts of whole blocks of the norm's sum (src/base/number/exact.h).
    'halves around experts': ('experts', 'float32', {**PAIR, 'model.dim': 64, 'model.n_kv_heads': 2, 'model.expert_ffn_dim': 8,
                                                      'model.shared_ffn_dim': 8, 'moe.z_loss_coeff': 0.01}),
}
EP = 'parallelism.expert_parallel_degree'
SPREAD_PAIRS = {
    'full_shard over 4, experts over 2': flat('full_shard', 4, **{EP: 2}),
    'hybrid_shard 2 x 2, experts over 2': (8, {'parallelism.sharding_strategy': 'hybrid_shard', 'mesh.replicate': 2, 'mesh.shard': 2,
                                               EP: 2, **FULL}),
}
OF_PAIRS = {
    'full_shard over 4': flat('full_shard', 4),
    'hybrid_shard 2 x 2': (8, {'parallelism.sharding_strategy': 'hybrid_shard', 'mesh.replicate': 2, 'mesh.shard': 2}),
    'no_shard, 4 ranks': flat('no_shard', 4),
    'shard_optim, 4 ranks, full recompute': flat('shard_optim', 4, **FULL),
}


def config(family, precision, changes):
    return {'job.dump_folder': 'out', 'training.dataset_path': tokens, 'validation.dataset_path': tokens, **MODELS[family], **BATCH,
            'training.mixed_precision_param': precision, **changes}


def saved(folder, step):
    return pathlib.Path(folder) / f'out/checkpoint/step-{step:08}.h5'


def digest(path):
    """A hash of all tensors. Not of the file, which holds the configuration and so names the mesh."""
    hashed = hashlib.sha256()
    for state in checkpoint.STATES:
        for name, values in checkpoint.read(path, state).items():
            hashed.update(name.encode() + values.tobytes())
    return hashed.hexdigest()


def judge(found, expected):
    (numbers, state), (right, right_state) = found, expected
    wrong = [f'number {i} is {a!r}, expected {b!r}' for i, (a, b) in enumerate(zip(numbers, right)) if a != b][:1]
    return wrong + ([] if state == right_state else ['the last checkpoints hold other tensors'])


def validations(folder):
    lines = map(json.loads, (pathlib.Path(folder) / 'out/metrics.jsonl').read_text().splitlines())
    return [line['validation_loss'] for line in lines if 'validation_loss' in line]


def outcome(folder, steps):
    numbers = [step[key] for step in steps[-HALF:] for key in ('loss', 'grad_norm')]
    return numbers + validations(folder)[-1:], digest(saved(folder, STEPS))


def all_numbers(folder, steps):
    return [step[key] for step in steps for key in ('loss', 'grad_norm')] + validations(folder)


@functools.lru_cache(None)
def base():
    folder = pathlib.Path('base')
    job.train(folder, config('llama', 'float32', {**WIDE, 'training.steps': 1}))
    return str(next((folder / 'out/checkpoint').glob('*.h5')).resolve())


def cut(kind, changes):
    """One run of sequences in parts: all numbers, and the hash of its checkpoint."""
    family, precision, more = {**KINDS, **HALVED_KINDS}[kind]
    start = {'checkpoint.initial_load_path': base()} if 'lora.rank' in more else {}
    ranks, mesh = changes
    folder = pathlib.Path(f'cut-{next(folders)}')
    steps = job.train(folder, config(family, precision, {**more, **start, **mesh}), ranks if ranks > 1 else 0)
    found = all_numbers(folder, steps), digest(saved(folder, more['training.steps']))
    shutil.rmtree(folder)
    return found


@functools.lru_cache(None)
def cut_on_one(kind):
    return cut(kind, flat('full_shard', 1))


@functools.lru_cache(None)
def halved_on_two(kind):
    return cut(kind, flat('full_shard', 2))


def case_halved(kind, mesh):
    return judge(cut(kind, {**OF_PAIRS, **SPREAD_PAIRS}[mesh]), halved_on_two(kind))


def case_cut(kind, mesh):
    return judge(cut(kind, CUT[mesh]), cut_on_one(kind))


@functools.lru_cache(None)
def one_rank(family, precision):
    """Returns (folder, all numbers of the run, outcome)."""
    folder = pathlib.Path(f'one-{next(folders)}')
    steps = job.train(folder, config(family, precision, {}))
    return folder, all_numbers(folder, steps), outcome(folder, steps)


def case_mesh(family, precision, mesh):
    _, right, end = one_rank(family, precision)
    ranks, changes = MESHES[mesh]
    folder = pathlib.Path(f'run-{next(folders)}')
    steps = job.train(folder, config(family, precision, changes), ranks)
    found = all_numbers(folder, steps), digest(saved(folder, STEPS))
    shutil.rmtree(folder)
    return judge(found, (right, end[1]))


def case_taken_up(family, precision, first, second):
    """Half of the steps on one mesh, the rest on another."""
    ranks, changes = MESHES[first]
    before = pathlib.Path(f'first-{next(folders)}')
    job.train(before, config(family, precision, {**changes, 'training.steps': HALF}), ranks)
    ranks, changes = MESHES[second]
    after = job.prepare(f'second-{next(folders)}', config(family, precision, changes))
    saved(after, HALF).parent.mkdir(parents=True)
    shutil.copy(saved(before, HALF), saved(after, HALF))
    job.sherd('train', 'c.yaml', ranks=ranks, folder=after)
    return judge(outcome(after, job.metrics(after)), one_rank(family, precision)[2])


def case_eval(ranks):
    """sherd eval of one checkpoint."""
    folder, _, _ = one_rank('llama', 'float32')
    words = ('eval', '--checkpoint', saved('.', STEPS), '--data', tokens, '--sequences', 21)
    one, many = (job.sherd(*words, ranks=n, folder=folder).split('  ')[:5] for n in (1, ranks))
    return [] if one == many else [f'{many}, expected {one}']


def make_cases():
    kinds = list(itertools.product(MODELS, TYPES))
    turn = zip(itertools.cycle(kinds), MESHES)
    rows = itertools.product(kinds, MESHES) if LONG else turn
    cases = [(f'{family}, {precision}, {mesh}', case_mesh, family, precision, mesh)
             for (family, precision), mesh in rows if mesh != '1 rank']
    ends = list(MESHES) if LONG else ['1 rank', 'hybrid_shard 2 x 2', 'full_shard over 4, resharded over 2', 'no_shard, 4 replicas']
    pairs = zip(ends, ends[1:] + ends[:1])
    cases += [(f'{family}, {precision}, {first}, then {second}', case_taken_up, family, precision, first, second)
              for (family, precision), (first, second) in zip(itertools.cycle(kinds), pairs)]
    rows = itertools.product(KINDS, CUT) if LONG else zip(itertools.cycle(KINDS), CUT)
    cases += [(f'{kind}, in parts, {mesh}', case_cut, kind, mesh) for kind, mesh in rows]
    rows = itertools.product(HALVED_KINDS, OF_PAIRS) if LONG else zip(itertools.cycle(HALVED_KINDS), OF_PAIRS)
    cases += [(f'{kind}, {mesh}', case_halved, kind, mesh)
              for kind, mesh in [*rows, *(('halves around experts', mesh) for mesh in SPREAD_PAIRS)]]
    return cases[::2 if job.FEW else 1] + [(f'sherd eval on {ranks} ranks', case_eval, ranks) for ranks in (2, 8)]


if __name__ == '__main__':
    job.need_launcher()
    job.need_modules('h5py', 'numpy')
    import checkpoint
    tokens = tiny.write_tokens()
    sys.exit(job.run_cases(make_cases()))
