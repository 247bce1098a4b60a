#!/usr/bin/env python3
"""Models with experts where routing is as uneven as it can be: bits, memory, and what becomes of experts without rows.
Prints TAP.

Each run of a case ends in the file of one rank, to the byte, in as much memory as its plan says. SHERD_TEST_FEW=1 leaves
out every second mesh.
"""
import filecmp
import functools
import itertools
import os
import pathlib
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job
import test_memory
import tiny

LONG = bool(os.environ.get('SHERD_LONG'))
STEPS, IDLE_STEPS, GPU_IDLE_STEPS = 4, 100, 4  # emulated GPUs are slow
BETA1, BETA2, EPS, DECAY = 0.9, 0.95, 1e-8, 0.1
BASE = {**tiny.EXPERTS, 'training.global_batch_size': 8, 'training.reproducible': 'mesh', 'training.steps': STEPS,
        'optimizer.beta1': BETA1, 'optimizer.beta2': BETA2, 'optimizer.eps': EPS, 'optimizer.weight_decay': DECAY}
APART = {'comm.shared_memory': 'off'}
STRATEGIES = {
    'no_shard': {}, 'shard_optim': APART, 'shard_grad_op': {}, 'full_shard': APART,
    'hybrid_shard': {'mesh.shard': 2, 'model.moe_every': 2},
}
MODES = 'none', 'selective', 'full'
SIZES = {
    'all experts for each token': {'model.n_experts_per_token': 6},
    'one expert for each token': {'model.n_experts_per_token': 1, 'model.route_norm': True},
    'one expert': {'model.n_experts': 1, 'model.n_experts_per_token': 1},
    'groups': {'model.router': 'sigmoid', 'model.route_groups': 3, 'model.route_top_groups': 1},
}
SOME_MESHES = {'1 rank': (0, {}), '4 ranks': (4, {'parallelism.sharding_strategy': 'full_shard', **APART}),
               '2 ranks, all recomputed': (2, {'activation_checkpoint.mode': 'full'})}
# All rows go to one rank in the end, in as many waves as there can be.
SPREAD = {'4 ranks, experts over 2': (4, {'parallelism.expert_parallel_degree': 2, 'moe.capacity_factor': 1}),
          '2 ranks, experts over 2, all recomputed': (2, {
              'parallelism.expert_parallel_degree': 2, 'moe.capacity_factor': 1, 'activation_checkpoint.mode': 'full', **APART})}
ROOMY = {'4 ranks, experts over 2, room for 8 times the mean': (4, {'parallelism.expert_parallel_degree': 2, 'moe.capacity_factor': 8})}
# With codes, 64 neighbours share a scale: those of one rank, if all that lies before experts, and each of these, is whole blocks.
CODES = {'model.dim': 64, 'model.n_heads': 4, 'model.n_kv_heads': 2, 'model.head_dim': 16, 'model.expert_ffn_dim': 64,
         'model.shared_ffn_dim': 64, 'moe.aux_loss_coeff': 0}
KINDS_OF_CODES = {'of states': {'optimizer.state_dtype': 'int8'},
                  'of gathers': {'parallelism.gather_dtype': 'int8', 'training.mixed_precision_param': 'bfloat16'}}
HARD_MESHES = {**SOME_MESHES, **SPREAD}
EMULATED = b'SHERD_EMULATED_GPUS' in pathlib.Path(os.environ['SHERD']).read_bytes()
HARD_CASES = {**HARD_MESHES, **ROOMY, **({f'{name}, on GPUs': (ranks, {**changes, 'training.device': 'cuda', 'comm.backend': 'mpi'})
                                 for name, (ranks, changes) in SPREAD.items()} if EMULATED else {})}


def saved(folder, step):
    return pathlib.Path(folder) / f'out/checkpoint/step-{step:08}.h5'


def run(folder, ranks, changes, start=None, steps=STEPS):
    """Returns (metrics, the last checkpoint, complaints about memory). start: a checkpoint to go on from."""
    config = {**BASE, 'training.dataset_path': tokens, **changes, 'training.steps': steps, 'lr_scheduler.total_steps': steps}
    folder = job.prepare(folder, {'job.dump_folder': 'out', **config})
    if start:
        saved(folder, STEPS).parent.mkdir(parents=True)
        shutil.copy(start, saved(folder, STEPS))
    job.sherd('train', 'c.yaml', ranks=ranks, folder=folder)
    found = job.metrics(folder)
    planned = test_memory.plan({'mesh.ranks_per_node': ranks or 1, **config}, ranks or 1)[test_memory.ARENA]
    memory = found[-1]['arena_bytes']
    return found, saved(folder, steps), [f'arena of {memory} bytes, planned {planned}'] * (memory != planned)


def same(one, other):
    return [] if filecmp.cmp(one, other, shallow=False) else [f'{other} has other bytes than {one}']


def case_mesh(name, ranks, changes):
    """The bytes of one rank that keeps everything, made once for each model."""
    model = {key: value for key, value in changes.items() if key.startswith('model.')}
    one = pathlib.Path('one-' + '-'.join(map(str, model.values())))
    if not one.exists():
        run(one, 0, model)
    _, path, wrong = run(name.replace(' ', '-'), ranks, changes)
    return wrong + same(saved(one, STEPS), path)


@functools.lru_cache(None)
def seed(name, change, each=2):
    """Some steps of plain routing, so that all experts have moments; then change(weights) puts others there."""
    _, path, _ = run(name, 0, {'model.n_experts_per_token': each})
    checkpoint.replace(path, change(checkpoint.read(path)))
    return path


def to_the_first(w):
    """One element of the stream is large and the same for all tokens, and the first experts like it most."""
    w['model.embed_tokens.weight'][:, 0] = 50
    for name in routers(w):
        w[name][...] = 0
        w[name][:, 0] = 4 * np.arange(len(w[name]), 0, -1)
    return w


def to_not_a_number(w):
    """Products of the router are infinite in both directions."""
    for name in routers(w):
        w[name][...] = 3e38
    return w


def routers(w):
    return [name for name in w if name.endswith('.mlp.gate.weight')]


def idle_experts(path, busy):
    """Of all states: each tensor of experts without the first, that all tokens have."""
    return {(state, name): values[busy:].astype(float) for state in checkpoint.STATES
            for name, values in checkpoint.read(path, state).items() if '.mlp.experts.' in name}


def adamw_without_gradients(states, rates):
    """What AdamW makes of them after the first STEPS."""
    model, avg, square = checkpoint.STATES
    for step, rate in enumerate(rates, STEPS + 1):
        for name in [name for state, name in states if state == model]:
            m, v, w = (states[state, name] for state in (avg, square, model))
            m *= BETA1
            v *= BETA2
            w *= 1 - rate * DECAY
            w -= rate * m / (1 - BETA1 ** step) / (np.sqrt(v / (1 - BETA2 ** step)) + EPS)
    return states


def case_few_experts(mesh, each):
    """Experts without rows have gradients of 0, and not those of an earlier step or micro-step."""
    ranks, changes = HARD_CASES[mesh]
    changes = {**changes, 'model.n_experts_per_token': each, **({'moe.load_balance_coeff': 1e-6} if each == 1 else {})}  # it may help others
    start = seed(f'even-{each}', to_the_first, each)
    idle = GPU_IDLE_STEPS if 'training.device' in changes else IDLE_STEPS
    steps, path, wrong = run(f'busy-{each}', ranks, changes, start, STEPS + idle)
    expected = adamw_without_gradients(idle_experts(start, each), [step['lr'] for step in steps])
    for key, values in idle_experts(path, each).items():
        off = np.abs(values - expected[key]).max() / np.abs(expected[key]).max()
        wrong += [] if off < 1e-5 else [f'{key}: {off:.2g} off what AdamW makes of gradients of 0']
    kept = pathlib.Path(f'busy-{each}-{changes.get("training.device", "cpu")}.h5')
    if not kept.exists():
        shutil.copy(path, kept)
    return wrong + same(kept, path)


def case_not_a_number(mesh):
    """The guard skips such a step, and nothing else happens."""
    ranks, changes = HARD_CASES[mesh]
    start = seed('finite', to_not_a_number)
    steps, path, wrong = run('nan', ranks, changes, start, STEPS + 2)
    before, after = ({(state, name): values.tobytes() for state in checkpoint.STATES
                      for name, values in checkpoint.read(file, state).items()} for file in (start, path))
    wrong += [f'losses {job.losses(steps)}'] if any(loss is not None and loss == loss for loss in job.losses(steps)) else []
    return wrong + ([] if before == after else ['a step was not skipped'])


def case_codes(kind, mesh):
    ranks, changes = SPREAD[mesh]
    model = {**CODES, **KINDS_OF_CODES[kind]}
    _, path, wrong = run('codes-on-one', 0, model)
    return wrong + same(path, run('codes', ranks, {**model, **changes})[1])


def cases():
    rows = list(itertools.product(STRATEGIES, MODES, (2, 4)))
    rows = [(strategy, mode, ranks) for i, (strategy, mode, ranks) in enumerate(rows) if LONG or i % 2 == i // 2 % 2]
    meshes = [(f'{strategy}, {mode} recomputed, {ranks} ranks', ranks,
               {'parallelism.sharding_strategy': strategy, 'activation_checkpoint.mode': mode, **STRATEGIES[strategy]})
              for strategy, mode, ranks in rows]
    meshes += [(f'{size}, {mesh}', ranks, {**SIZES[size], **changes}) for size in SIZES
               for mesh, (ranks, changes) in (HARD_MESHES if SIZES[size].get('model.n_experts') != 1 else SOME_MESHES).items()]
    return ([(row[0], case_mesh, *row) for row in meshes[::2 if job.FEW else 1]]
            + [(f'codes {kind}, {mesh}', case_codes, kind, mesh) for kind, mesh in zip(KINDS_OF_CODES, SPREAD)]
            + [(f'all tokens have the same two experts, {mesh}', case_few_experts, mesh, 2) for mesh in HARD_CASES]
            + [(f'all tokens have one expert, {mesh}', case_few_experts, mesh, 1) for mesh in ('1 rank', *SPREAD, *ROOMY)]
            + [(f'NaN in the router, {mesh}', case_not_a_number, mesh) for mesh in HARD_CASES])


if __name__ == '__main__':
    job.need_launcher()
    job.need_modules('h5py', 'numpy')
    import numpy as np

    import checkpoint
    for folder in pathlib.Path('.').glob('one-*'):
        shutil.rmtree(folder)
    for file in pathlib.Path('.').glob('two-*.h5'):
        file.unlink()
    if EMULATED:
        os.environ['SHERD_EMULATED_GPUS'] = '8'
    tokens = tiny.write_tokens()
    sys.exit(job.run_cases(cases()))
