#!/usr/bin/env python3
"""Keeping optimizer states, gradients, parameters and activations in host memory changes no bit on emulated GPUs:
losses, norms and checkpoints equal those of a run that keeps them on the GPU, whatever order its queues take; a run
moves and holds what its plan says; and a failure ends in one line. Prints TAP. SHERD_LONG=1 tries more meshes and many
more orders.

Only in a build that was configured --with-cuda=emulated.
"""
import contextlib
import itertools
import json
import os
import pathlib
import re
import subprocess
import sys

from trains import CPU, CUDA, job, known, tiny, train

LONG = bool(os.environ.get('SHERD_LONG'))
STEPS = 3
HOST = {'offload.optimizer': 'cpu'}
NUMBERS = ('loss', 'grad_norm', 'lr')
BF16 = {'training.mixed_precision_param': 'bfloat16'}
SMALL = {'optimizer.state_dtype': 'bfloat16'}
CODED = {'optimizer.state_dtype': 'int8'}
ASYNC = {'checkpoint.async_mode': 'async', 'checkpoint.async_busy': 'wait'}
# Several slices per unit; no unit is a whole number of slices.
LARGE = {'model.dim': 64, 'model.n_heads': 4, 'model.n_kv_heads': 2, 'model.head_dim': 16, 'model.ffn_dim': 200,
         'model.vocab_size': 301}


def config(ranks, **more):
    return {**tiny.MODELS['llama'], 'training.dataset_path': str(pathlib.Path('tokens.bin').absolute()),
            'training.steps': STEPS, 'lr_scheduler.total_steps': STEPS, 'checkpoint.interval': 2, **CUDA,
            'training.global_batch_size': 8, 'training.local_batch_size': 8 // max(ranks, 1), 'metrics.log_freq': 1,
            **more}


@contextlib.contextmanager
def emulated(**names):
    """SHERD_EMULATED_X of x."""
    names = {f'SHERD_EMULATED_{name.upper()}': str(value) for name, value in names.items()}
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(names)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            os.environ.update({name: value} if value is not None else {})


def checkpoints(folder):
    return {path.name: path.read_bytes() for path in sorted(pathlib.Path(folder).glob('out/checkpoint/*.h5'))}


def compare(found, expected, other, folder):
    wrong = [f'{key} differs: {[step[key] for step in found]}, not {[step[key] for step in expected]}'
             for key in NUMBERS if [step[key] for step in found] != [step[key] for step in expected]]
    saved, wanted = checkpoints(folder), checkpoints(other)
    if saved.keys() != wanted.keys():
        return [*wrong, f'checkpoints are {list(saved)}, not {list(wanted)}']
    return wrong + ['the last checkpoint differs' for name in list(saved)[-1:] if saved[name] != wanted[name]]


def plan_of(folder, ranks):
    text = job.sherd('plan', 'c.yaml', '--ranks', max(ranks, 1), folder=folder)
    found = {}
    for what, words in (('arena', r'arena: all that is allocated on it'), ('homes', r'pinned host memory: optimizer states'),
                        ('gradients', r'pinned host memory: gradients'),
                        ('parameters', r'pinned host memory: parameters'),
                        ('activations', r'pinned host memory: activations'),
                        ('snapshots', r'pinned host memory: snapshots')):
        line = re.search(words + r' +(\d+)', text)
        found[what] = int(line[1]) if line else 0
    moved = re.search(r'moved in a training step: (\d+) bytes to the GPU, (\d+) bytes back', text)
    found['moved'] = [int(moved[1]), int(moved[2])] if moved else [None, None]
    return found


def as_planned(folder, ranks, steps):
    """On a GPU and between tiers, to the byte; with overlap_update an update's moves are in its own step or in the
    next."""
    plan = plan_of(folder, ranks)
    wrong = [f'{name} is {steps[-1][name]}, planned {plan["arena"]}' for name in ('arena_bytes', 'gpu_used_bytes')
             if steps[-1][name] != plan['arena']]
    moved = [sum(step.get(f'offload_{way}_bytes', 0) for step in steps) for way in ('read', 'written')]
    updates = sum(not step.get('skipped') for step in steps)
    if plan['moved'] == [None, None] or moved != [updates * planned for planned in plan['moved']]:
        wrong.append(f'{updates} updates moved {moved}, planned {plan["moved"]} for each')
    return wrong


def same(ranks, more, offload):
    expected = known(config(ranks, **more), ranks)
    found = train('host', config(ranks, **{**more, **HOST, **offload}), ranks)
    return compare(found, *expected, 'host') + as_planned('host', ranks, found)


MATRIX = [
    (1, LARGE, {}), (1, {**LARGE, **BF16}, {'offload.optimizer_ratio': 0.4, 'offload.buffer_count': 2}),
    (1, {**BF16, **SMALL, 'optimizer.name': 'lion'}, {}),
    (2, {**BF16, 'parallelism.sharding_strategy': 'full_shard', 'training.local_batch_size': 2}, {}),
    (2, {'parallelism.sharding_strategy': 'no_shard', 'comm.backend': 'mpi'}, {'offload.optimizer_ratio': 0.5}),
    (4, {**LARGE, **BF16, 'parallelism.sharding_strategy': 'hybrid_shard', 'mesh.shard': 2, **ASYNC}, {}),
]
# Alone and with the states; written by the backward directly, added to, scattered into, cast, and summed over replicas.
GRADS = {'offload.gradients': 'cpu'}
ALONE = {**GRADS, 'offload.optimizer': 'none'}
MATRIX += [
    (1, {**LARGE, 'training.local_batch_size': 2}, GRADS),
    (2, {**BF16, 'parallelism.sharding_strategy': 'full_shard', 'training.local_batch_size': 1}, GRADS),
    (4, {**LARGE, **BF16, 'parallelism.sharding_strategy': 'hybrid_shard', 'mesh.shard': 2, 'training.local_batch_size': 1},
     ALONE),
]
# Only the last step's update is done at once; or every one.
LATE = {'checkpoint.interval': STEPS}
AT_ONCE = {'offload.overlap_update': 'off'}
MATRIX += [
    (1, {**LARGE, **BF16, **LATE}, {'offload.optimizer_ratio': 0.7}), (1, {**LARGE, **BF16}, AT_ONCE),
    (2, {**BF16, **LATE, 'parallelism.sharding_strategy': 'full_shard', 'training.local_batch_size': 2}, GRADS),
    (4, {**LARGE, **BF16, **LATE, 'parallelism.sharding_strategy': 'shard_optim', 'mesh.shard': 2}, {}),
]
# Whole matrices travel from copies of slices, and rows at their owners stay.
MATRIX += [
    (2, {**BF16, **SMALL, **LATE, 'optimizer.name': 'muon', 'parallelism.sharding_strategy': 'full_shard'}, {}),
    (1, {**LARGE, 'optimizer.name': 'normuon'}, {'offload.optimizer_ratio': 0.5}),
    (4, {**LARGE, **BF16, 'optimizer.name': 'normuon', 'parallelism.sharding_strategy': 'hybrid_shard', 'mesh.shard': 2, **ASYNC}, {}),
]
# States in codes leave but for those of vectors.
MATRIX += [
    (1, {**LARGE, **CODED}, {'offload.optimizer_ratio': 0.6}),
    (2, {**LARGE, **BF16, **CODED, **LATE, 'parallelism.sharding_strategy': 'full_shard', **ASYNC}, {}),
    (4, {**LARGE, **CODED, 'optimizer.name': 'lion', 'parallelism.sharding_strategy': 'hybrid_shard', 'mesh.shard': 2, 'optimizer.ema_decay': 0.7}, {}),
]
# Chunks that gathers fetch, and, on one rank, the fetch that takes the place of the gather.
PARAMS = {'offload.parameters': 'cpu'}
ALL = {**GRADS, **PARAMS}
MATRIX += [
    (1, {**LARGE, **BF16, **LATE}, ALL), (1, {'training.local_batch_size': 2}, {**PARAMS, 'offload.optimizer': 'none'}),
    (2, {**BF16, **LATE, 'parallelism.sharding_strategy': 'full_shard', 'training.local_batch_size': 2}, ALL),
    (4, {**LARGE, **BF16, 'parallelism.sharding_strategy': 'hybrid_shard', 'mesh.shard': 2, **ASYNC}, ALL),
]
# An average reads the chunk that was updated, once for each slice.
MEAN = {'optimizer.ema_decay': 0.7}
MATRIX += [
    (1, {**LARGE, **BF16, **MEAN}, {**PARAMS, 'offload.optimizer_ratio': 0.5}), (1, MEAN, {**PARAMS, 'offload.optimizer': 'none'}),
    (2, {**LARGE, **BF16, **MEAN, **LATE, 'parallelism.sharding_strategy': 'full_shard', 'training.local_batch_size': 2}, ALL),
]
# With gathers in codes, which leave as well.
GATHERS = {'parallelism.gather_dtype': 'int8'}
MATRIX += [
    (1, {**LARGE, **BF16, **GATHERS}, PARAMS), (1, {**LARGE, **GATHERS, **LATE}, {**GRADS, 'offload.optimizer_ratio': 0.5}),
    (2, {**LARGE, **BF16, **GATHERS, **LATE, 'parallelism.sharding_strategy': 'full_shard', 'training.local_batch_size': 2}, ALL),
    (4, {**LARGE, **BF16, **GATHERS, 'parallelism.sharding_strategy': 'hybrid_shard', 'mesh.shard': 2, **ASYNC}, ALL),
]
# Blocks before the last two, with each recomputation and accumulation.
DEEP = {'model.n_layers': 5}
ACT = {'offload.activations': 'cpu'}
ACTS = {**ACT, 'offload.optimizer': 'none'}
FULL, SOME = ({'activation_checkpoint.mode': mode} for mode in ('full', 'selective'))
MATRIX += [
    (1, {**DEEP, **BF16, 'training.local_batch_size': 2}, ACTS), (1, {**DEEP, **FULL, **LATE}, {**ALL, **ACT}),
    (2, {**DEEP, **SOME, 'parallelism.sharding_strategy': 'full_shard', 'training.local_batch_size': 1}, ACTS),
    (2, {**DEEP, **BF16, 'parallelism.sharding_strategy': 'no_shard', 'training.local_batch_size': 2},
     {**GRADS, **ACT, 'offload.activation_ratio': 0.2}),
    (4, {**DEEP, **BF16, **FULL, 'parallelism.sharding_strategy': 'shard_optim', 'training.local_batch_size': 1}, ACTS),
    (4, {**DEEP, **BF16, **LATE, 'parallelism.sharding_strategy': 'hybrid_shard', 'mesh.shard': 2, 'comm.backend': 'mpi'},
     {**ALL, **ACT}),
]
# In tiles of rows, with halves of sequences or of matrices: 192 or 96 rows a micro-step.
TILES = {'activation_checkpoint.mode': 'full', 'debug.row_block': 64, 'training.tile_rows': 64, 'training.global_batch_size': 16,
         'training.local_batch_size': 16, 'model.ffn_dim': 200}
HALVES = {'parallelism.sharding_strategy': 'full_shard', 'parallelism.context_parallel_degree': 2, 'model.n_heads': 4}
MATRIX += [
    (1, {**DEEP, **BF16, **LATE, **TILES}, {**ALL, **ACT}),
    (2, {**DEEP, **TILES, **HALVES}, {**ALL, **ACT}),
    (2, {**DEEP, **BF16, **SOME, **HALVES, 'training.local_batch_size': 4}, {**GRADS, **ACT}),
    (4, {**DEEP, **BF16, **TILES, **HALVES, **ASYNC, 'parallelism.context_parallel_method': 'gather', 'training.global_batch_size': 32}, {**PARAMS, **ACT}),
    (2, {**LARGE, **TILES, **LATE, 'parallelism.sharding_strategy': 'full_shard', 'parallelism.tensor_parallel_degree': 2}, ALL),
]
MORE = [
    *((ranks, {**DEEP, **BF16, **recompute, 'parallelism.sharding_strategy': strategy, 'training.local_batch_size': batch},
       {**ACTS, **(PARAMS if strategy != 'shard_optim' and batch == 1 else {})})
      for ranks in (2, 4) for strategy in ('full_shard', 'shard_grad_op', 'shard_optim')
      for recompute in ({}, FULL, SOME, {'activation_checkpoint.mode': 'every_k', 'activation_checkpoint.every_k': 2})
      for batch in (1, 2)),
    (2, {**DEEP, 'parallelism.sharding_strategy': 'full_shard', 'training.reproducible': 'mesh', 'comm.backend': 'mpi',
         'training.local_batch_size': 1}, {**ALL, **ACT}),
    (1, {**DEEP, **BF16, 'lora.rank': 4, 'lora.alpha': 8, 'training.local_batch_size': 2}, ACTS),
    (1, {**BF16, 'activation_checkpoint.mode': 'full', 'training.local_batch_size': 2}, {**ALL, **AT_ONCE}),
    (2, {**LARGE, 'parallelism.sharding_strategy': 'full_shard', 'parallelism.resident_units': 2}, PARAMS),
    (2, {**BF16, 'parallelism.sharding_strategy': 'shard_grad_op', 'training.local_batch_size': 2}, ALL),
    (4, {**BF16, **LATE, 'parallelism.sharding_strategy': 'full_shard', 'parallelism.reshard_after_forward': 2}, ALL),
    (4, {**BF16, 'parallelism.sharding_strategy': 'hybrid_shard_zero2', 'mesh.shard': 2}, {**PARAMS, **AT_ONCE}),
    (1, {**LATE, 'training.local_batch_size': 2, 'activation_checkpoint.mode': 'full'}, {**GRADS, **AT_ONCE}),
    (2, {**BF16, **LATE, 'parallelism.sharding_strategy': 'no_shard'}, GRADS),
    (2, {**LARGE, **LATE, 'parallelism.sharding_strategy': 'shard_grad_op', **ASYNC}, {}),
    (4, {**BF16, **LATE, 'parallelism.sharding_strategy': 'full_shard', 'parallelism.forward_prefetch': 2}, GRADS),
    (1, BF16, ALONE), (2, {**LARGE, 'parallelism.sharding_strategy': 'no_shard',
                           'training.mixed_precision_reduce': 'bfloat16'}, ALONE),
    (2, {**BF16, 'parallelism.sharding_strategy': 'shard_optim', 'training.local_batch_size': 1}, GRADS),
    (4, {**LARGE, **BF16, 'parallelism.sharding_strategy': 'shard_grad_op', 'training.local_batch_size': 1, **ASYNC}, GRADS),
    (1, {**LARGE, 'training.local_batch_size': 2}, {}), (1, {**BF16, 'optimizer.name': 'sgd'}, {}),
    (1, {**LARGE, **SMALL, **ASYNC}, {'offload.optimizer_ratio': 0.7}), (1, {'checkpoint.enable': False}, {}),
    (2, {**LARGE, 'parallelism.sharding_strategy': 'shard_optim', 'training.local_batch_size': 1}, {}),
    (2, {**BF16, **SMALL, 'parallelism.sharding_strategy': 'full_shard', **ASYNC}, {'offload.optimizer_ratio': 0.6}),
    (2, {**BF16, 'parallelism.sharding_strategy': 'full_shard', 'training.reproducible': 'mesh', 'comm.backend': 'mpi',
         'training.local_batch_size': 2}, {}),
    (4, {**LARGE, 'parallelism.sharding_strategy': 'shard_grad_op', 'training.local_batch_size': 1}, {}),
    (4, {**BF16, 'parallelism.sharding_strategy': 'hybrid_shard_zero2', 'mesh.shard': 2}, {'offload.buffer_count': 5}),
    (4, {**LARGE, **SMALL, 'parallelism.sharding_strategy': 'shard_optim', 'mesh.shard': 2}, {}),
    (4, {'parallelism.sharding_strategy': 'full_shard'}, {}),
]


def label(ranks, more, offload):
    return ' '.join([f'{ranks} ranks', *(str(value) for value in itertools.chain(more.values(), offload.values()))])


def resumes(first, second, more):
    """A part of the run one way, the rest the other, equal to a whole run on the GPU."""
    expected = known(config(1, **more), 1)
    train('parts', config(1, **more, **first, **{'training.steps': 2}), 1)
    pathlib.Path('parts/c.yaml').write_text(job.yaml({'job.dump_folder': 'out', **config(1, **more, **second)}))
    job.sherd('train', 'c.yaml', folder='parts')
    return compare(job.metrics('parts'), *expected, 'parts')


def goes_back(how):
    """A guard that judges each step after the first few an outlier goes back to a checkpoint."""
    wrong = same(1, {**BF16, 'training.steps': 40, 'lr_scheduler.total_steps': 40, 'optimizer.lr': 0.3, 'guard.window': 8,
                     'guard.z_score': 2, 'guard.action': 'rollback', 'guard.max_rollbacks': 1000, 'checkpoint.interval': 7,
                     'training.global_batch_size': 1, 'training.local_batch_size': 1}, how)
    text = pathlib.Path('host/out/metrics.jsonl').read_text()
    return wrong if 'rollback_from' in text else ['nothing was rolled back', *wrong]


def hugging_face():
    """The last state exported as a transformers folder, and a run that starts from it."""
    more = {**BF16, 'checkpoint.last_save_in_hf': True, 'checkpoint.export_dtype': 'float32'}
    wrong = same(1, more, {})
    folders = [next(pathlib.Path(f'{kind}/out').glob('**/model.safetensors')) for kind in (known(config(1, **more), 1)[1], 'host')]
    if folders[0].read_bytes() != folders[1].read_bytes():
        wrong.append('model.safetensors differs')
    begin = folders[0].parent.absolute()
    return wrong + same(1, {**BF16, 'model.hf_assets_path': str(begin), 'checkpoint.initial_load_in_hf': True}, {})


def without_an_update(more):
    """Validations in between, whose forwards move nothing, and steps that each move what is planned."""
    return same(1, {**more, 'validation.enable': True, 'validation.freq': 1, 'validation.sequences': 8,
                    'validation.dataset_path': str(pathlib.Path('tokens.bin').absolute())}, ACTS)


def in_any_order(ranks, seeds, more):
    """The same bits with each seed; no unordered access, or the run would end."""
    expected, wrong = None, []
    for seed in seeds:
        with emulated(seed=seed, nccl_delay=seed % 2 * 2000):
            found = [tuple(step[key] for key in NUMBERS)
                     for step in train('order', config(ranks, **more, **HOST), ranks)]
        found = (found, list(checkpoints('order').values())[-1:])
        expected = expected or found
        if found != expected:
            wrong.append(f'seed {seed}: {found[0]}, with {seeds[0]} {expected[0]}')
    return wrong


def ends(folder, ranks, status, says, more, command='train'):
    job.prepare(folder, {'job.dump_folder': 'out', **config(ranks, **more)})
    done = subprocess.run(job.command(ranks, [command, 'c.yaml']), cwd=folder, capture_output=True, text=True,
                          env=job.environment(ranks), timeout=job.SECONDS, stdin=subprocess.DEVNULL)
    lines = [line for line in done.stderr.splitlines() if 'error:' in line]
    if done.returncode != status or len(lines) != 1 or not re.search(says, lines[0]):
        return [f'exit {done.returncode}, expected {status} and one line with "{says}":', done.stderr]
    return []


def forgotten(how):
    """Drop any one of the events between the queues of a step, every second here: the order checker finds an unordered
    access, or the result equals that of the run with all events, because another event also ordered the two accesses."""
    more = {**LARGE, 'training.steps': 2, 'checkpoint.enable': False, **how}
    expected = job.losses(train('all', config(1, **more), 1))
    found = 0
    for drop in range(1, 80) if LONG else range(1, 20, 2):
        job.prepare('dropped', {'job.dump_folder': 'out', **config(1, **more)})
        with emulated(drop=drop):
            done = subprocess.run(job.command(0, ['train', 'c.yaml']), cwd='dropped', capture_output=True, text=True,
                                  env=job.environment(0), timeout=job.SECONDS, stdin=subprocess.DEVNULL)
        if 'no event lets the one wait' in done.stderr:
            found += 1
        elif done.returncode or job.losses(job.metrics('dropped')) != expected:
            return [f'{drop}: exit {done.returncode}', done.stderr]
    return [] if found > (5 if LONG else 2) else [f'only {found} forgotten events were found']


def counters(more):
    path = pathlib.Path('counters').absolute()
    path.unlink(missing_ok=True)
    with emulated(counters=path):
        train('counted', config(1, **{'checkpoint.enable': False}, **more), 1)
    return max((json.loads(line) for line in path.read_text().splitlines()), key=lambda line: line['launches'])


def pinned(more):
    """The pinned host memory is what the plan says, to the byte."""
    without = counters({key: value for key, value in more.items() if not key.startswith('offload.')})['pinned']
    host = counters({**more, **HOST})['pinned']
    plan = plan_of('counted', 1)
    homes = sum(plan[what] for what in ('homes', 'gradients', 'parameters', 'activations'))
    return [] if host - without == homes > 0 else [f'{host - without} bytes are pinned, planned {plan}']


def no_snapshots():
    """A run whose saves make training wait pins no copy of what it saves; one that saves in the background does."""
    job.prepare('plan', {'job.dump_folder': 'out', **config(1, **HOST)})
    now = plan_of('plan', 1)
    job.prepare('plan', {'job.dump_folder': 'out', **config(1, **HOST, **ASYNC)})
    behind = plan_of('plan', 1)
    return [] if now['snapshots'] == 0 < behind['snapshots'] and now['homes'] == behind['homes'] else [f'{now}, {behind}']


def too_little_pinned():
    with emulated(pinned_mib=17):
        return ends('little', 1, 4, r'MiB of pinned host memory cannot be allocated.*offload.optimizer',
                    {**LARGE, 'model.vocab_size': 4000, **HOST})


def more_than_the_node():
    """Each of two ranks alone would have room for its homes; together they are refused before the first byte."""
    free = 1024 * int(re.search(r'MemAvailable: +(\d+)', pathlib.Path('/proc/meminfo').read_text())[1])
    more = {**LARGE, **HOST, 'model.vocab_size': 64, 'model.dim': 2048, 'model.n_heads': 16, 'model.head_dim': 128,
            'model.n_kv_heads': 16, 'model.ffn_dim': 8192, 'parallelism.sharding_strategy': 'no_shard',
            'memory.limit_bytes': 1 << 44, 'checkpoint.enable': False}
    block = 8 * (4 * 2048 * 2048 + 3 * 2048 * 8192)
    more['model.n_layers'] = int(0.7 * free / block)
    says = r'pinned host memory: 2 ranks with .* each need .*, but the free memory of their node is .*offload\.optimizer'
    return [line for command in ('train', 'doctor') for line in ends('node', 2, 4, says, more, command)]


def grows_by_parameters_alone():
    """With the activations at block borders on the host, a block adds only its parameters to a step's GPU memory."""
    arenas = []
    for offload in ({}, ACTS):
        for layers in (8, 12):
            job.prepare('grows', {'job.dump_folder': 'out', **config(1, **LARGE, **FULL, **offload, **{
                'model.n_layers': layers, 'optimizer.name': 'sgd'})})
            arenas.append(plan_of('grows', 1)['arena'])
    border = 8 * tiny.SEQ_LEN * LARGE['model.dim'] * 4
    return [] if (arenas[1] - arenas[0]) - (arenas[3] - arenas[2]) == 4 * border else [f'{arenas}; a border is {border}']


def copy_fails():
    with emulated(copy_fail=30):
        return ends('copy', 1, 70, r'GPU 0: copy: an error of the emulated runtime', {**LARGE, **HOST})


def traced():
    train('trace', config(1, **LARGE, **HOST, **{
        'profiling.trace': 'out/trace.json', 'profiling.trace_first_step': 2, 'profiling.trace_steps': 1}), 1)
    events = json.loads(pathlib.Path('trace/out/trace.json').read_text())['traceEvents']
    rows = {event['tid']: event['args']['name'] for event in events if event['name'] == 'thread_name'}
    n = {row: sum(event['ph'] == 'X' and rows[event['tid']] == row for event in events)
         for row in ('in', 'out', 'exposed offload')}
    return [] if n['in'] == n['out'] > 5 and n['exposed offload'] == 2 * n['in'] else [str(n)]


def benched(how):
    """Checkpoints are written from the states wherever they live, and read back."""
    job.prepare('bench', {'job.dump_folder': 'out', **config(1, **LARGE, **BF16, **how)})
    text = job.sherd('bench', 'io', 'c.yaml', '--folder', '.', '--repeat', '1', folder='bench')
    return [] if re.search(r'^load cold +[0-9.]', text, re.M) else [text]


BUDGET = {'offload.mode': 'memory_budget'}
BOTH = {**BUDGET, 'activation_checkpoint.mode': 'memory_budget'}


IN_HOST = r'(states|gradients|parameters) in host memory, to fit'
BUDGETS = [
    (1, {**LARGE, **BF16, **LATE}, BUDGET, 0.5, f'recompute none.*{IN_HOST}'),
    (2, {**BF16, 'parallelism.sharding_strategy': 'full_shard', 'training.local_batch_size': 2}, BUDGET, 0,
     r'optimizer states.*, parameters in host memory, to fit'),
    (2, {**LARGE, **BF16, 'parallelism.sharding_strategy': 'full_shard', 'training.local_batch_size': 1, **ASYNC},
     BOTH, 0.1, IN_HOST),
    (2, {**LARGE, **TILES, **HALVES, 'training.global_batch_size': 32}, BUDGET, 0.3, IN_HOST),
]


def planned(more, ranks):
    job.prepare('budget', {'job.dump_folder': 'out', **config(ranks, **more)})
    return plan_of('budget', ranks)


def within_budget(ranks, more, how, share, says):
    """A budget's choice is what its plan says, keeps the limit and changes no bit. `share`: how much the run still has
    of the GPU memory that homes on the host can save."""
    most, least = planned(more, ranks)['arena'], planned({**more, **HOST, **ALL}, ranks)['arena']
    limit = {**how, 'memory.limit_bytes': least + int(share * (most - least)), 'memory.host_limit_bytes': 1 << 30}
    expected = known(config(ranks, **more), ranks)
    found = train('host', config(ranks, **{**more, **limit}), ranks)
    wrong = compare(found, *expected, 'host') + as_planned('host', ranks, found)
    text = ' '.join(job.sherd('plan', 'c.yaml', '--ranks', ranks, folder='host').split())
    if not re.search(says, text):
        wrong.append(f'the plan does not say "{says}": {text}')
    if found[-1]['arena_bytes'] > limit['memory.limit_bytes']:
        wrong.append(f'{found[-1]["arena_bytes"]} bytes, with {limit}')
    return wrong


def host_limits(more):
    """Everything fits on the GPU, but the copy for saves is more than the host may hold, so states live there
    instead."""
    plan = planned(more, 1)
    limit = {'memory.limit_bytes': 2 * plan['arena'], 'memory.host_limit_bytes': plan['snapshots'] - 1}
    expected = known(config(1, **more), 1)
    found = train('host', config(1, **more, **BUDGET, **limit), 1)
    chosen = plan_of('host', 1)
    wrong = compare(found, *expected, 'host') + as_planned('host', 1, found)
    if not 0 < chosen['homes'] < plan['snapshots'] or chosen['snapshots']:
        wrong.append(f'{chosen}, with {limit}')
    swapped = {'memory.limit_bytes': limit['memory.host_limit_bytes'] // 8, 'memory.host_limit_bytes': 1024}
    return wrong + ends('both', 1, 4, r'no plan fits; the smallest is \d+ bytes over memory.limit_bytes.* over memory.host_limit_bytes',
                        {**more, **BUDGET, **swapped})


def rates_of_the_host():
    """The benchmark prints the values that a plan uses."""
    job.prepare('tier', config(1, **HOST))
    text = job.sherd('bench', 'tier', '--bytes', 1 << 24, '--repeat', 1, folder='tier')
    rates = re.search(r'^for a GPU: --(offload.rates=host=([0-9.e+]+)/([0-9.e+]+))$', text, re.M)
    if not rates or not re.search(r'^both ways +[0-9.]', text, re.M):
        return [text]
    plan = job.sherd('plan', 'c.yaml', f'--{rates[1]}', folder='tier')
    says = re.search(r'rates of a GPU \(offload.rates\): ([0-9.e+-]+) GB/s to it, ([0-9.e+-]+) GB/s back', plan)
    wrong = [plan for i in (1, 2) if not says or abs(float(says[i]) * 1e9 / float(rates[i + 1]) - 1) > 0.01]
    return wrong[:1]


REFUSED = [
    ({**BUDGET, **HOST, 'memory.limit_bytes': 1 << 30}, 2, 'offload.optimizer.*chooses it; leave out one'),
    ({**HOST, 'memory.host_limit_bytes': 1024}, 4, 'of pinned host memory per rank, more than memory.host_limit_bytes'),
    ({**CPU, **HOST}, 2, 'offload.optimizer.*cpu is for GPUs'),
    ({'offload.optimizer': 'nvme', 'offload.nvme_path': '.'}, 2, 'offload.optimizer.*not of a GPU; give cpu'),
    ({**HOST, 'offload.optimizer_ratio': 0}, 2, 'offload.optimizer_ratio.*leave out'),
    ({**CPU, **GRADS}, 2, 'offload.gradients.*cpu is for GPUs'),
    ({**CPU, **PARAMS}, 2, 'offload.parameters.*cpu is for GPUs'),
    ({**PARAMS, 'parallelism.sharding_strategy': 'shard_optim'}, 2, 'offload.parameters.*sharding_strategy=full_shard'),
    ({**CPU, **DEEP, **ACT}, 2, 'offload.activations.*cpu is for GPUs'),
    ({'offload.activations': 'nvme', 'offload.nvme_path': '.'}, 2, 'offload.activations.*not of a GPU; give cpu'),
    ({**ACT, 'offload.activation_ratio': 0}, 2, 'offload.activation_ratio.*leave out'),
    ({**ACT, 'model.n_layers': 2}, 2, 'offload.activations=cpu: activations of the last two blocks stay.*2 blocks'),
    ({**HOST, 'offload.buffer_count': 1}, 2, 'offload.buffer_count'),
]


def main():
    job.need_emulated_gpus()
    tiny.write_tokens()
    cases = [(label(*row), same, *row) for row in MATRIX + (MORE if LONG else [])]
    cases += [(f'within a budget, {label(ranks, more, how)}, {share}', within_budget, ranks, more, how, share, says)
              for ranks, more, how, share, says in BUDGETS]
    cases += [('limits of the host', host_limits, {**LARGE, **BF16}), ('rates of the host', rates_of_the_host)]
    cases += [(f'resumed {name}', resumes, *way, BF16) for name, *way in (
        ('GPU to host', {}, HOST), ('GPU to host, all', {}, {**HOST, **ALL}), ('host to GPU, all', {**HOST, **ALL}, {}), ('host to GPU', HOST, {}),
        ('host to host', {**HOST, 'offload.optimizer_ratio': 0.3}, HOST))]
    cases += [(f'resumed {name}, states in codes', resumes, *way, {**LARGE, **BF16, **CODED}) for name, *way in (
        ('GPU to GPU, saved behind', {}, ASYNC), ('GPU to host', ASYNC, HOST), ('host to GPU', HOST, {}))]
    cases += [('rolled back', goes_back, AT_ONCE), ('rolled back with an update pending', goes_back, {}), ('from and to a folder of transformers', hugging_face),
              ('in any order on 1 GPU', in_any_order, 1, range(20 if LONG else 3), {**LARGE, **BF16, **LATE}),
              ('in any order on 2 GPUs, saved behind', in_any_order, 2, range(20 if LONG else 2), {**LARGE, **BF16, **ASYNC}),
              ('states in codes in any order, saved behind', in_any_order, 2, range(20 if LONG else 2), {**LARGE, **BF16, **CODED, **ASYNC}),
              ('activations in any order', in_any_order, 1, range(20 if LONG else 2), {**DEEP, **BF16, **ACT}),
              ('all and activations in any order', in_any_order, 2, range(20 if LONG else 2),
               {**DEEP, **BF16, **ALL, **ACT, **LATE, 'training.local_batch_size': 1}),
              ('validated between', without_an_update, DEEP), ('grows by parameters alone', grows_by_parameters_alone),
              ('activations pinned as planned', pinned, {**DEEP, **BF16, **ACT}),
              ('an event is forgotten', forgotten, HOST), ('an event of activations is forgotten', forgotten, {**DEEP, **FULL, **ACTS}),
              ('pinned as planned', pinned, {**LARGE, **BF16}),
              ('gradients pinned as planned', pinned, {**LARGE, **BF16, **GRADS}),
              ('all pinned as planned', pinned, {**LARGE, **BF16, **ALL}),
              ('all in any order', in_any_order, 2, range(20 if LONG else 2),
               {**LARGE, **BF16, **ALL, **LATE, 'training.local_batch_size': 1}),
              ('all in any order, averaged', in_any_order, 2, range(20 if LONG else 2), {**LARGE, **BF16, **ALL, **MEAN, **LATE}),
              ('no snapshots', no_snapshots), ('too little pinned memory', too_little_pinned),
              ('more than the node has', more_than_the_node), ('a copy fails', copy_fails),
              ('traced', traced), ('benchmark of checkpoints', benched, {}), ('benchmark of checkpoints, states in codes', benched, {**HOST, **CODED}),
              ('benchmark of checkpoints, all away', benched, {**HOST, **ALL})]
    cases += [(f'refused: {more}', ends, 'refused', 1, status, says, more) for more, status, says in REFUSED]
    return job.run_cases(cases)


if __name__ == '__main__':
    sys.exit(main())
