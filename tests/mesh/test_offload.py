#!/usr/bin/env python3
"""Optimizer states, gradients and activations in a file change no bit: losses, norms and checkpoints are those of a run
that keeps them in memory, and a run moves what its plan says. Prints TAP.

SHERD_TEST_FEW=1 leaves out most rows, and limits, times and damage, which another MPI and compiler do not affect."""
import functools
import hashlib
import itertools
import json
import os
import pathlib
import re
import resource
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job
import tiny

STEPS = 4
FEWER = 3 if job.FEW else 1  # of the tables of rows every third
NVME = {'offload.optimizer': 'nvme', 'offload.nvme_path': '.'}
AT_ONCE = {'offload.overlap_update': 'off'}
GRADS = {'offload.gradients': 'nvme'}
ALONE = {**GRADS, 'offload.optimizer': 'none'}
NUMBERS = ('loss', 'grad_norm', 'lr')


def config(ranks, **more):
    return {**tiny.MODELS['llama'], 'training.dataset_path': str(pathlib.Path('tokens.bin').absolute()),
            'training.steps': STEPS, 'lr_scheduler.total_steps': STEPS, 'checkpoint.interval': 2, 'training.device': 'cpu',
            'training.local_batch_size': tiny.GLOBAL_BATCH // max(ranks, 1), 'metrics.log_freq': 1000, **more}


def digest(path):
    """Hash in pieces: memory that this process has held at once counts towards its children's peak."""
    sum = hashlib.sha256()
    with open(path, 'rb') as file:
        for piece in iter(lambda: file.read(1 << 20), b''):
            sum.update(piece)
    return sum.hexdigest()


def checkpoints(folder):
    return {path.name: digest(path) for path in sorted(pathlib.Path(folder).glob('out/checkpoint/*.h5'))}


def compare(name, found, expected, folder, other):
    wrong = [f'{name}: {key} differs: {[step[key] for step in found]}, not {[step[key] for step in expected]}'
             for key in NUMBERS if [step[key] for step in found] != [step[key] for step in expected]]
    saved, wanted = checkpoints(folder), checkpoints(other)
    if not saved or saved.keys() != wanted.keys():
        wrong.append(f'{name}: checkpoints are {list(saved)}, not {list(wanted)}')
    elif saved[max(saved)] != wanted[max(saved)]:
        wrong.append(f'{name}: the last checkpoint differs')
    return wrong


def left_behind(folder):
    """A scratch file has no name."""
    return [f'{path} was left behind' for path in pathlib.Path(folder).glob('*') if path.name not in ('c.yaml', 'out')]


@functools.lru_cache(None)
def in_memory(ranks, more):
    """The folder of a run that keeps everything in memory, and its metrics."""
    folder = f'memory-{in_memory.cache_info().misses}'
    return folder, job.train(folder, config(ranks, **dict(more)), ranks)


def same(name, ranks, more, offload):
    memory, expected = in_memory(ranks, tuple(more.items()))
    file = f'{name}-file'
    found = job.train(file, config(ranks, **more, **offload), ranks)
    return compare(name, found, expected, file, memory) + left_behind(file) + moved(name, file, ranks, found)


def moved(name, folder, ranks, steps):
    """Bytes of all steps: each update moves what the plan says, with overlap_update in its own step or in the next.
    Tensors that move in micro-steps move in their own step, even in a step that is skipped."""
    words = ['plan', 'c.yaml', '--ranks', max(ranks, 1), f'--mesh.ranks_per_node={max(ranks, 1)}']
    plan = job.sherd(*words, folder=folder)
    found = re.search(r'moved in a training step: (\d+) bytes read, (\d+) bytes written', plan)
    if not found:
        return [f'{name}: the plan has no bytes that are moved: {plan}']
    planned = [int(found[1]), int(found[2])]
    rows = [[step['offload_read_bytes'], step['offload_written_bytes']] for step in steps]
    updates = sum(1 for step in steps if not step.get('skipped'))
    if 'gradients' in plan and updates < len(steps):
        return []
    wrong = [f'{name}: a step moved {row}, {planned} are planned' for row in rows
             if 'activations' not in plan and 'gradients' not in plan and row not in ([0, 0], planned, [2 * planned[0], 2 * planned[1]])]
    if [sum(column) for column in zip(*rows)] != [updates * bytes for bytes in planned]:
        wrong.append(f'{name}: {updates} updates moved {rows}, {planned} are planned for each')
    return wrong


BF16 = {'training.mixed_precision_param': 'bfloat16'}
CODED = {'optimizer.state_dtype': 'int8'}
SMALL = {'optimizer.state_dtype': 'bfloat16'}
F16 = {'training.mixed_precision_param': 'float16', 'training.loss_scale_init': 2**16, 'training.loss_scale_window': 1}
MATRIX = [
    (0, {}, {}), (0, BF16, {}), (0, {}, {'offload.optimizer_ratio': 0.4}), (0, BF16, {'offload.optimizer_ratio': 0.7}),
    (0, {'training.local_batch_size': 4}, {'offload.buffer_count': 2, 'offload.verify': False}),
    (0, {'optimizer.name': 'sgd'}, {}), (0, {**BF16, 'optimizer.name': 'lion'}, {}),
    (2, {'parallelism.sharding_strategy': 'full_shard'}, {}),
    (2, {**BF16, 'parallelism.sharding_strategy': 'no_shard'}, {}),
    (2, {**BF16, 'parallelism.sharding_strategy': 'shard_optim', 'comm.shared_memory': 'off',
         'training.local_batch_size': 3}, {'offload.optimizer_ratio': 0.5}),
    (4, {**BF16, 'parallelism.sharding_strategy': 'hybrid_shard', 'mesh.shard': 2}, {}),
    (3, {'parallelism.sharding_strategy': 'shard_grad_op', 'training.local_batch_size': 2}, {'offload.buffer_count': 4}),
    (0, SMALL, {}), (0, {**BF16, **SMALL, 'checkpoint.async_mode': 'async', 'checkpoint.async_busy': 'wait'}, {}),
    (2, {**BF16, **SMALL, 'parallelism.sharding_strategy': 'full_shard'}, {'offload.optimizer_ratio': 0.6}),
    (4, {**SMALL, 'parallelism.sharding_strategy': 'shard_optim', 'mesh.shard': 2}, {}),
    (0, CODED, {}), (0, {**BF16, **CODED}, {'offload.optimizer_ratio': 0.4}), (0, {**BF16, **CODED, 'optimizer.name': 'lion'}, {}),
    (2, {**BF16, **CODED, 'parallelism.sharding_strategy': 'full_shard'}, {'offload.optimizer_ratio': 0.6}),
    (4, {**CODED, 'parallelism.sharding_strategy': 'shard_optim', 'mesh.shard': 2}, {}),
    (0, {**BF16, 'training.local_batch_size': 3, 'activation_checkpoint.mode': 'full', 'checkpoint.interval': 4}, AT_ONCE),
    (0, {**BF16, 'training.local_batch_size': 3, 'activation_checkpoint.mode': 'full', 'checkpoint.interval': 4}, {}),
    (2, {**BF16, 'parallelism.sharding_strategy': 'full_shard', 'comm.shared_memory': 'off', 'checkpoint.interval': 4}, {}),
    (2, {'parallelism.sharding_strategy': 'no_shard', 'comm.shared_memory': 'off', 'checkpoint.interval': 4}, {}),
    (2, {**BF16, 'parallelism.sharding_strategy': 'shard_optim', 'training.reproducible': 'mesh',
         'training.local_batch_size': 3, 'checkpoint.interval': 4}, {}),
    (4, {**BF16, 'parallelism.sharding_strategy': 'hybrid_shard_zero2', 'mesh.shard': 2, 'fault.replica_check_every': 3,
         'checkpoint.interval': 4}, {'offload.optimizer_ratio': 0.5}),
    (3, {'parallelism.sharding_strategy': 'full_shard', 'comm.shared_memory': 'off', 'checkpoint.interval': 4}, {}),
    (0, {}, GRADS), (0, {**BF16, 'training.local_batch_size': 3}, ALONE), (0, {'training.local_batch_size': 3}, GRADS),
    (0, BF16, {**GRADS, **AT_ONCE, 'offload.optimizer_ratio': 0.4}),
    (2, {**BF16, 'parallelism.sharding_strategy': 'full_shard', 'training.local_batch_size': 2}, GRADS),
    (2, {**BF16, 'parallelism.sharding_strategy': 'no_shard', 'training.local_batch_size': 3}, {**GRADS, 'offload.verify': False}),
    (2, {'parallelism.sharding_strategy': 'no_shard', 'comm.shared_memory': 'off', 'training.reproducible': 'mesh'}, GRADS),
    (2, {**BF16, 'parallelism.sharding_strategy': 'shard_optim', 'training.local_batch_size': 2,
         'training.mixed_precision_reduce': 'bfloat16'}, ALONE),
    (4, {**BF16, 'parallelism.sharding_strategy': 'hybrid_shard', 'mesh.shard': 2, 'checkpoint.interval': 4}, GRADS),
    (4, {'parallelism.sharding_strategy': 'hybrid_shard', 'mesh.shard': 2, 'training.local_batch_size': 1,
         'fault.replica_check_every': 3}, {**GRADS, 'offload.optimizer_ratio': 0.5}),
    (2, {**BF16, 'parallelism.sharding_strategy': 'shard_grad_op', 'comm.shared_memory': 'off'}, {**GRADS, **AT_ONCE}),
    (0, F16, {}), (2, {**F16, 'parallelism.sharding_strategy': 'full_shard', 'training.local_batch_size': 3}, GRADS),
]


def label(ranks, more, offload):
    words = [str(value) for value in itertools.chain(more.values(), offload.values())]
    return '-'.join([f'{max(ranks, 1)}-ranks', *words])


# Activations of whole pages, in blocks before the last two.
DEEP = {'model.n_layers': 5, 'model.dim': 128, 'model.n_heads': 4, 'model.head_dim': 32, 'model.ffn_dim': 64,
        'model.init_std': 0.05, 'training.seq_len': 16, 'training.global_batch_size': 8, 'training.local_batch_size': 1,
        'checkpoint.interval': 4}
ACT = {'offload.activations': 'nvme', 'offload.nvme_path': '.'}
FULL = {'activation_checkpoint.mode': 'full'}
DEEP_MATRIX = [
    (0, {'training.local_batch_size': 8}, ACT), (0, BF16, ACT), (0, {**BF16, **FULL}, ACT),
    (0, {'activation_checkpoint.mode': 'selective'}, {**ACT, 'offload.activation_ratio': 0.4}),
    (0, BF16, {**ACT, **NVME}), (0, BF16, {**ACT, **NVME, **GRADS}), (0, F16, {**ACT, **NVME, **GRADS}), (0, FULL, {**ACT, **GRADS}),
    (0, {'training.local_batch_size': 4}, {**ACT, **NVME, **AT_ONCE, 'offload.verify': False}),
    (2, {**BF16, **FULL, 'parallelism.sharding_strategy': 'full_shard'}, {**ACT, **NVME}),
    (2, {'parallelism.sharding_strategy': 'no_shard', 'training.reproducible': 'mesh'}, ACT),
    (2, {'parallelism.sharding_strategy': 'shard_optim', 'comm.shared_memory': 'off'}, {**ACT, **NVME}),
    (4, {**BF16, 'parallelism.sharding_strategy': 'hybrid_shard', 'mesh.shard': 2}, {**ACT, **NVME}),
    (2, {**FULL, 'parallelism.sharding_strategy': 'shard_grad_op', 'comm.shared_memory': 'off'}, ACT),
]


def takes_less(name):
    """With borders of blocks in the file, a step's memory grows with the number of blocks only by their parameters."""
    more = {**DEEP, **FULL, 'training.local_batch_size': 8}
    arenas = [[arena_of(f'{name}-{n}-{len(offload)}', {**more, 'model.n_layers': n, **offload, 'optimizer.name': 'sgd'})
               for n in (12, 16)] for offload in ({}, ACT)]
    border = 8 * 16 * DEEP['model.dim'] * 4
    grown = [larger - smaller for smaller, larger in arenas]
    return [] if grown[0] - grown[1] == 4 * border else [f'{name}: {arenas}; a border is {border}']


def resumes(name, first, second, more):
    """Half the run with one setting, half with the other: equal to a whole run in memory."""
    parts, (whole, expected) = f'{name}-parts', in_memory(0, tuple(more.items()))
    job.train(parts, config(0, **more, **first, **{'training.steps': 2}), 0)
    (pathlib.Path(parts) / 'c.yaml').write_text(job.yaml({'job.dump_folder': 'out', **config(0, **more, **second)}))
    job.sherd('train', 'c.yaml', folder=parts)
    return compare(name, job.metrics(parts), expected, parts, whole)


def background(name):
    more = {**BF16, 'checkpoint.async_mode': 'async', 'checkpoint.async_busy': 'wait'}
    return same(name, 0, more, NVME)


def validated(name):
    """Validations see the parameters that an immediate update would leave."""
    more = {**BF16, 'validation.enable': True, 'validation.dataset_path': str(pathlib.Path('tokens.bin').absolute()),
            'validation.freq': 3, 'validation.sequences': 6, 'training.steps': 8, 'lr_scheduler.total_steps': 8,
            'checkpoint.interval': 8}
    wrong = same(name, 0, more, NVME)
    seen = [[row['validation_loss'] for row in map(json.loads, (pathlib.Path(folder) / 'out/metrics.jsonl').open())
             if 'validation_loss' in row] for folder in (in_memory(0, tuple(more.items()))[0], f'{name}-file')]
    return wrong if len(seen[0]) == 3 and seen[0] == seen[1] else [f'{name}: validation losses {seen}', *wrong]


def without_targets(name, ranks, more, offload=NVME):
    """After a step in which no target counts, every reader of the state sees the update of the step before it."""
    tokens, batch, steps = tiny.write_tokens(f'{name}.bin'), tiny.GLOBAL_BATCH * tiny.SEQ_LEN, 5
    mask = bytearray(b'\1' * (os.stat(tokens).st_size // 2))
    mask[2 * batch + 1:3 * batch + 1] = bytes(batch)
    pathlib.Path(f'{tokens}.mask').write_bytes(mask)
    more = {'training.dataset_path': tokens, 'data.shuffle': False, 'training.steps': steps,
            'lr_scheduler.total_steps': steps, 'checkpoint.interval': steps, **more}
    wrong = same(name, ranks, more, offload)
    left_out = [step['step'] for step in job.metrics(f'{name}-file') if step.get('skipped')]
    return wrong if left_out == [3] else [f'{name}: steps without targets are {left_out}, not step 3', *wrong]


def adapters(name, ranks, more, offload=NVME):
    """With a frozen base, states and gradients are those of the adapters only."""
    base = f'{name}-base'
    job.train(base, config(0, **more))
    begin = {'lora.rank': 2, 'checkpoint.initial_load_path': str(max(pathlib.Path(base).absolute().glob('out/checkpoint/*.h5')))}
    return same(name, ranks, {**more, **begin, 'checkpoint.interval': 3}, offload)


def goes_back(name, offload=NVME):
    """A guard goes back to checkpoints, some five times: at this rate norms are tens to thousands, whatever a CPU rounds."""
    more = {**BF16, 'training.steps': 60, 'lr_scheduler.total_steps': 60, 'optimizer.lr': 3, 'guard.window': 8,
            'guard.z_score': 2, 'guard.action': 'rollback', 'guard.max_rollbacks': 1000, 'checkpoint.interval': 7,
            'training.global_batch_size': 1, 'training.local_batch_size': 1}
    wrong = same(name, 0, more, offload)
    text = pathlib.Path(f'{name}-file/out/metrics.jsonl').read_text()
    return wrong if 'rollback_from' in text else [f'{name}: nothing was rolled back', *wrong]


def hugging_face(name):
    """The last state as a folder of transformers, and a run that starts from it: masters in halves, one half in the
    file."""
    more = {**BF16, 'checkpoint.last_save_in_hf': True, 'checkpoint.export_dtype': 'float32'}
    wrong = same(name, 0, more, NVME)
    folders = [next(pathlib.Path(folder).glob('**/model.safetensors')) for folder in (in_memory(0, tuple(more.items()))[0], f'{name}-file')]
    if folders[0].read_bytes() != folders[1].read_bytes():
        wrong.append(f'{name}: model.safetensors differs')
    begin = {**{key: value for key, value in BF16.items()}, 'model.hf_assets_path': str(folders[0].parent.absolute()),
             'checkpoint.initial_load_in_hf': True}
    return wrong + same(f'{name}-again', 0, begin, NVME)


def traced(name):
    """Moves have their own rows, and names that say what moves; so do the waits for them."""
    more = {**BF16, 'profiling.trace': 'out/trace.json', 'profiling.trace_first_step': 2, 'profiling.trace_steps': 1}
    job.train(name, config(0, **more, **NVME, **GRADS), 0)
    events = json.loads((pathlib.Path(name) / 'out/trace.json').read_text())['traceEvents']
    rows = {event['tid']: event['args']['name'] for event in events if event['name'] == 'thread_name'}
    found = {row: [event for event in events if event['ph'] == 'X' and rows[event['tid']] == row]
             for row in ('in', 'out', 'exposed offload')}
    # Both updates, that of the step before and the step's own before a save, fetch gradients that were evicted once in
    # it.
    n, fetched = len(found['in']), sum('gradients' in event['name'] for event in found['in'])
    if n < 10 or fetched < 4 or len(found['out']) != n - fetched // 2 or len(found['exposed offload']) != n + len(found['out']):
        return [f'{name}: {({row: len(events) for row, events in found.items()})}']
    wrong = []
    for row, kind in (('in', 'fetch'), ('out', 'evict')):
        kinds = {re.sub(r'^\w+ \S+ ', '', event['name']) for event in found[row]}
        if kinds != {f'{kind} optimizer states', f'{kind} gradients'}:
            wrong.append(f'{name}: {kinds} on row {row}')
    for row in ('in', 'out'):
        for a, b in zip(found[row], found[row][1:]):
            if b['ts'] < a['ts'] + a['dur'] - 0.01:
                wrong.append(f'{name}: two at once on row {row}: {a}, {b}')
    return wrong


# States are half of the memory that it takes.
LARGE = {'model.n_layers': 2, 'model.dim': 256, 'model.n_heads': 4, 'model.head_dim': 64, 'model.ffn_dim': 512,
         'model.vocab_size': 4096, 'model.init_std': 0.02, 'training.global_batch_size': 1, 'training.local_batch_size': 1,
         'training.steps': 3, 'lr_scheduler.total_steps': 3}


def arena_of(folder, more):
    job.prepare(folder, {'job.dump_folder': 'out', **config(0, **LARGE), **more})
    return int(re.search(r'all that is allocated +(\d+)', job.sherd('plan', 'c.yaml', folder=folder))[1])


def fits(name):
    """Trains within a limit at which it is otherwise refused, and takes less memory in return."""
    whole, sliced = arena_of(f'{name}-plan', {}), arena_of(f'{name}-plan', NVME)
    limit = {'memory.limit_bytes': sliced}
    wrong = is_refused(f'{name}-refused', {**LARGE, **limit, 'offload.optimizer': 'none'}, 4, 'offload.optimizer=nvme')
    expected = job.train(f'{name}-memory', config(0, **LARGE), 0)
    found = job.train(f'{name}-file', config(0, **LARGE, **limit, **NVME), 0)
    wrong += compare(name, found, expected, f'{name}-file', f'{name}-memory')
    if found[-1]['arena_bytes'] != sliced or expected[-1]['arena_bytes'] != whole:
        wrong.append(f'{name}: arenas of {sliced} and {whole} bytes were planned')
    saved = expected[-1]['peak_rss_bytes'] - found[-1]['peak_rss_bytes']
    if saved < 0.8 * (whole - sliced):
        wrong.append(f'{name}: {whole - sliced} bytes less are planned, {saved} less were resident')
    return wrong


BUDGET = {'offload.mode': 'memory_budget', 'offload.nvme_path': '.', 'training.threads': 1}
BOTH = {**BUDGET, 'activation_checkpoint.mode': 'memory_budget'}
DISK = {'offload.rates': 'file=2e5/1e5,mixed=1e5'}


def planned(folder, ranks, more):
    """Read the plan of the job: the line of its strategy, the arena, the bytes of the file and the bytes that move."""
    job.prepare(folder, {'job.dump_folder': 'out', **config(ranks, **LARGE), **more})
    ranks = max(ranks, 1)
    text = job.sherd('plan', 'c.yaml', '--ranks', ranks, f'--mesh.ranks_per_node={ranks}', folder=folder)
    file = re.search(r'file of this rank.*\n  .* {2,}(\d+)  ', text)
    return {'strategy': ' '.join(re.search(r'strategy(.*?)\nstep', text, re.S)[1].split()),
            'arena': int(re.search(r'all that is allocated +(\d+)', text)[1]), 'file': int(file[1]) if file else 0}


def within_budget(name, ranks, more, share, says):
    """The budget chooses what the plan says, and changes no bit. `share`: the share of the memory that the file and
    recomputation can save which is left to the run."""
    alone = {key: value for key, value in more.items() if not key.startswith(('offload', 'activation'))}
    most = planned(f'{name}-most', ranks, alone)['arena']
    recompute = {'activation_checkpoint.mode': 'full'} if 'activation_checkpoint.mode' in more else {}
    least = planned(f'{name}-least', ranks, {**alone, **recompute, **NVME})['arena']
    limit = {'memory.limit_bytes': least + int(share * (most - least))}
    plan = planned(f'{name}-plan', ranks, {**more, **limit})
    wrong = [] if re.search(says, plan['strategy']) else [f'{name}: the plan says {plan["strategy"]}, not {says}']
    expected = job.train(f'{name}-memory', {**config(ranks, **LARGE), **alone}, ranks)
    found = job.train(f'{name}-budget', {**config(ranks, **LARGE), **more, **limit}, ranks)
    wrong += compare(name, found, expected, f'{name}-budget', f'{name}-memory') + left_behind(f'{name}-budget')
    if plan['file']:
        wrong += moved(name, f'{name}-budget', ranks, found)
    elif 'offload_read_bytes' in found[-1]:
        wrong.append(f'{name}: nothing was planned to be moved')
    if found[-1]['arena_bytes'] != plan['arena'] or plan['arena'] > limit['memory.limit_bytes']:
        wrong.append(f'{name}: an arena of {found[-1]["arena_bytes"]} bytes, planned {plan["arena"]}, {limit}')
    return wrong


def file_is_as_planned(name):
    """The scratch file has the bytes of the plan, however they were chosen."""
    whole = planned(f'{name}-whole', 0, {})['arena']
    more = {**LARGE, **BUDGET, 'memory.limit_bytes': int(0.8 * whole)}
    plan = planned(f'{name}-plan', 0, more)
    run = start(name, {**more, 'training.steps': 4000, 'lr_scheduler.total_steps': 4000, 'checkpoint.enable': False})
    bytes = os.stat(scratch_file(run.pid)).st_size
    run.kill()
    says = run.communicate()[1]
    wrong = [] if bytes == plan['file'] else [f'{name}: a file of {bytes} bytes, planned {plan["file"]}']
    choice = re.search(r'recompute none(, .* in a file)', plan['strategy'])
    return wrong if choice and choice[1] in says else [f'{name}: planned "{plan["strategy"]}", said: {says}', *wrong]


# Llama 3.1 70B on four ranks: 70.55 G parameters, or 207 M with adapters of rank 16; bytes of all ranks.
LARGEST = [
    ('trained whole', {}, {'parameters': 141.1e9, 'optimizer states: all that is in it': 705.5e9}),
    ('adapters', {'lora.rank': 16},
     {'parameters, frozen': 141.1e9, 'optimizer states: all that is in it': 2.07e9}),
]
PLAN_SECONDS = 1.0


def plans_70b(name, more, wanted):
    """The memory and the file that 70 billion parameters need, within one per cent, and the bytes that a step moves."""
    words = {'training.device': 'cpu', 'training.threads': 16, 'training.seq_len': 4096, 'training.global_batch_size': 128,
             'activation_checkpoint.mode': 'full', 'memory.limit_bytes': 0, 'checkpoint.enable': 'false',
             'offload.rates': 'file=7e9/5e9', **NVME, **more}
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    text = job.sherd('plan', job.TOP / 'examples/llama3.1-70b.yaml', '--ranks', 4, '--mesh.ranks_per_node=4',
                     *(f'--{key}={value}' for key, value in words.items()))
    seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    wrong = [f'{name}: took {seconds:.1f} s'] if seconds > PLAN_SECONDS else []
    for what, bytes in wanted.items():
        found = 4 * int(re.search(rf'^  {re.escape(what)} +(\d+) ', text, re.M)[1])
        if not 0.99 * bytes <= found <= 1.01 * bytes:
            wrong.append(f'{name}: {what}: {found} bytes, not {bytes:.4g}')
    moved, taken = 4 * int(re.search(r'step: (\d+) bytes read', text)[1]), float(re.search(r'written; ([\d.e+-]+) s a step', text)[1])
    if not 0.99 <= taken / (moved / 7e9 + moved / 5e9) <= 1.01:
        wrong.append(f'{name}: {taken} s for {moved} bytes each way')
    return wrong


def start(folder, more):
    """A long run, after some steps."""
    job.prepare(folder, {'job.dump_folder': 'out', **config(0, **more)})
    run = job.subprocess.Popen(job.command(0, ['train', 'c.yaml']), cwd=folder, stdin=job.subprocess.DEVNULL,
                               stderr=job.subprocess.PIPE, text=True, env=job.environment(0))
    metrics, end = pathlib.Path(folder) / 'out/metrics.jsonl', time.monotonic() + job.SECONDS
    while time.monotonic() < end and run.poll() is None:
        if metrics.exists() and metrics.read_text().count('grad_norm') > 4:
            return run
        time.sleep(0.02)
    run.kill()
    raise job.Failed(f'{folder}: no steps; {run.communicate()[1]}')


LONG = {**BF16, 'training.steps': 4000, 'lr_scheduler.total_steps': 4000, 'checkpoint.interval': 3,
        'checkpoint.keep_latest_k': 2}


def private_bytes(pid):
    """The memory that RLIMIT_DATA counts."""
    return int(re.search(r'VmData:\s+(\d+)', pathlib.Path(f'/proc/{pid}/status').read_text())[1]) * 1024


def benched(name):
    """A checkpoint has the file's states; tests/mpi/bench-step measures steps."""
    job.prepare(name, {'job.dump_folder': 'out', **config(0, **BF16), **NVME})
    said = job.sherd('bench', 'io', 'c.yaml', '--folder', '.', '--repeat', '1', folder=name)
    return [] if re.search('^load cold ', said, re.M) else [said]


def sample(name, more):
    run = start(name, {**LARGE, **more, 'training.steps': 4000, 'lr_scheduler.total_steps': 4000, 'checkpoint.enable': False})
    bytes = private_bytes(run.pid)
    run.kill()
    run.communicate()
    return bytes


def held_by_the_kernel(name):
    """With half of the difference to spare, the kernel lets the run with a file train, save and load, but not the other
    run."""
    more = {**BF16, 'model.vocab_size': 32768, 'offload.buffer_count': 2}
    plan = planned(f'{name}-plan', 0, {**more, **NVME})
    budget = {**BUDGET, 'memory.limit_bytes': plan['arena']}
    most = (sample(f'{name}-sample', more) + sample(f'{name}-sample', {**more, **NVME})) // 2
    wrong = [] if plan['file'] > plan['arena'] else [f'{name}: states are less than the memory: {plan}']
    wrong += is_refused(f'{name}-planned', {**LARGE, **more, 'offload.optimizer': 'none', **{
        key: value for key, value in budget.items() if key != 'offload.mode'}}, 4, 'offload.optimizer=nvme')
    for steps, offload, status in ((2, {}, 4), (2, NVME, 0), (4, NVME, 0), (2, budget, 0)):
        folder = pathlib.Path(name)
        if steps == 2:
            job.prepare(folder, {})
        (folder / 'c.yaml').write_text(job.yaml({'job.dump_folder': 'out', **config(0, **LARGE), **more, **offload,
                                                 'training.steps': steps, 'lr_scheduler.total_steps': 4}))
        done = job.subprocess.run(job.command(0, ['train', 'c.yaml']), cwd=folder, capture_output=True, text=True,
                                  stdin=job.subprocess.DEVNULL, env=job.environment(0), timeout=job.SECONDS, check=False,
                                  preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (most, most)))
        if done.returncode != status:
            wrong.append(f'{name}: {steps} steps, {offload}, within {most} bytes: exit {done.returncode}: {done.stderr}')
    return wrong


# Many blocks, each a small part of the model. In bfloat16 the state is 16 bytes per parameter.
NARROW = {**BF16, 'model.n_layers': 24, 'model.dim': 192, 'model.n_heads': 4, 'model.n_kv_heads': 4, 'model.head_dim': 48,
          'model.ffn_dim': 512, 'model.init_std': 0.02, 'training.global_batch_size': 1, 'training.local_batch_size': 1,
          'checkpoint.enable': False, 'training.threads': 1}
BESIDE_THE_PLAN = 64 << 20


def states_thrice_the_limit(name):
    """With states and gradients in the file a model trains within a third of the bytes of its state, a limit that the
    kernel enforces; with only the states in the file it does not fit."""
    folder = job.prepare(f'{name}-plan', {'job.dump_folder': 'out', **config(0, **NARROW), **NVME, **GRADS})
    text = job.sherd('plan', 'c.yaml', folder=folder)
    arena = int(re.search(r'all that is allocated +(\d+)', text)[1])
    states = 8 * int(re.search(r'^  parameters +(\d+) ', text, re.M)[1])
    limit, most = {'memory.limit_bytes': states // 3}, arena + BESIDE_THE_PLAN
    wrong = [] if most < states else [f'{name}: states of {states} bytes fit into {most}']
    wrong += is_refused(f'{name}-none', {**NARROW, **limit, 'offload.optimizer': 'none'}, 4, 'offload.optimizer=nvme')
    wrong += is_refused(f'{name}-states', {**NARROW, **limit}, 4, 'offload.gradients=nvme')
    expected = job.train(f'{name}-memory', config(0, **NARROW), 0)
    for kind, offload, status in (('kernel', {}, 4), ('file', {**limit, **NVME, **GRADS}, 0)):
        folder = job.prepare(f'{name}-{kind}', {'job.dump_folder': 'out', **config(0, **NARROW), **offload})
        done = job.subprocess.run(job.command(0, ['train', 'c.yaml']), cwd=folder, capture_output=True, text=True,
                                  stdin=job.subprocess.DEVNULL, env=job.environment(0), timeout=job.SECONDS, check=False,
                                  preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (most, most)))
        if done.returncode != status:
            return [*wrong, f'{name}: {offload} within {most} bytes: exit {done.returncode}: {done.stderr}']
    found = job.metrics(folder)
    if found[-1]['arena_bytes'] != arena or arena > states // 3 or found[-1]['peak_rss_bytes'] > most:
        wrong.append(f'{name}: {found[-1]["arena_bytes"]} bytes, {arena} planned, resident {found[-1]["peak_rss_bytes"]}')
    return wrong + [f'{name}: {key} differs' for key in NUMBERS if [row[key] for row in found] != [row[key] for row in expected]]


def killed(name):
    """Nothing is left of the file, and a new start continues from the checkpoint with the same bits."""
    run = start(name, {**LONG, **NVME})
    run.kill()
    run.communicate()
    wrong = left_behind(name)
    steps = len(job.metrics(name)) + 3
    more = {**LONG, 'training.steps': steps, 'lr_scheduler.total_steps': 4000}
    (pathlib.Path(name) / 'c.yaml').write_text(job.yaml({'job.dump_folder': 'out', **config(0, **more), **NVME}))
    job.sherd('train', 'c.yaml', folder=name)
    expected = job.train(f'{name}-memory', config(0, **more), 0)
    found = job.metrics(name)[-1]
    return wrong + compare(name, [found], [expected[-1]], name, f'{name}-memory')


def scratch_file(pid):
    """A path to a file without a name, through the process that has it open."""
    for fd in pathlib.Path(f'/proc/{pid}/fd').iterdir():
        target = os.readlink(fd)
        if target.endswith('(deleted)') and os.stat(fd).st_size > 0 and '/#' in target:
            return fd
    raise job.Failed('no scratch file is open')


def breaks(name, how, says, offload=NVME):
    """A disk that loses or damages data ends the job in one line; the last checkpoint stays."""
    run = start(name, {**LONG, **offload, 'checkpoint.interval': 4000, 'checkpoint.create_seed_checkpoint': True})
    how(scratch_file(run.pid))
    error = run.communicate(timeout=job.SECONDS)[1]
    lines = [line for line in error.splitlines() if 'error:' in line]
    wrong = [] if run.returncode == 3 and len(lines) == 1 and re.search(says, lines[0]) and 'update' in lines[0] else [
        f'{name}: exit {run.returncode}: {error}']
    if list(checkpoints(name)) != ['step-00000000.h5']:
        wrong.append(f'{name}: checkpoints: {list(checkpoints(name))}')
    job.sherd('ckpt', 'verify', 'out/checkpoint/step-00000000.h5', folder=name)
    return wrong + left_behind(name)


def damage(path):
    with open(path, 'r+b') as file:
        file.write(b'?' * os.stat(path).st_size)


def damage_until_it_ends(path):
    """Damage the file again and again: each step overwrites damaged gradients with new ones."""
    try:
        while True:
            damage(path)
            time.sleep(0.001)
    except OSError:
        pass


BUDGETS = [
    ('by-the-file', 0, BUDGET, 0.6, r'recompute none, .*(states|gradients).* in a file, to fit'),
    ('by-the-file-in-float16', 0, {**BUDGET, **F16}, 0.5, r'recompute none, .*(states|gradients).* in a file, to fit'),
    ('by-all-of-it', 0, {**BUDGET, **BF16}, 0, r'recompute none, optimizer states.* in a file, to fit'),
    ('by-recomputation', 0, {**BOTH, **DISK}, 0.998, r'recompute selective.*, to fit'),
    ('by-both', 2, {**BOTH, **BF16, 'parallelism.sharding_strategy': 'full_shard', 'training.global_batch_size': 2}, -0.1,
     r'(selective|full).*, (states|gradients).* in a file, to fit'),
    ('no-shard', 2, {**BUDGET, 'parallelism.sharding_strategy': 'no_shard', 'training.global_batch_size': 2}, 0.5,
     r'(states|gradients).* in a file, to fit'),
]

REFUSED = [
    ({'offload.mode': 'memory_budget', 'memory.limit_bytes': 1 << 30}, 2, 'chooses it; leave out one'),
    ({'offload.mode': 'memory_budget', 'offload.optimizer': 'none', 'memory.limit_bytes': 10240}, 4,
     'no plan fits; the smallest is '),
    ({'offload.mode': 'memory_budget', 'offload.optimizer': 'none', 'memory.limit_bytes': 10240,
      'offload.nvme_limit_bytes': 1}, 4, '0 B in a file, and offload.nvme_limit_bytes allows 1 B'),
    ({'offload.mode': 'memory_budget', 'offload.optimizer': 'none'}, 2, 'fits memory.limit_bytes'),
    ({'offload.mode': 'memory_budget', 'offload.optimizer': 'none', 'offload.nvme_path': '', 'memory.limit_bytes': 1 << 30},
     2, 'offload.nvme_path is missing'),
    ({'offload.nvme_limit_bytes': 4096}, 4, 'more than offload.nvme_limit_bytes'),
    ({'offload.nvme_path': '/dev/shm'}, 2, 'memory itself'), ({'offload.nvme_path': 'nowhere'}, 3, 'nowhere'),
    ({'offload.nvme_path': ''}, 2, 'offload.nvme_path'), ({'offload.nvme_path': 'c.yaml'}, 3, 'c.yaml'),
    ({'offload.optimizer_ratio': 0}, 2, 'leave out'), ({'offload.buffer_count': 1}, 2, 'offload.buffer_count'),
    ({'offload.optimizer': 'none', 'offload.activations': 'nvme', 'model.n_layers': 2}, 2, 'the model has 2 blocks'),
    ({'offload.optimizer': 'none', 'offload.activations': 'nvme'}, 2, 'whole pages of 4096 bytes'),
    ({'offload.activations': 'nvme', 'offload.activation_ratio': 0}, 2, 'leave out offload.activations'),
    ({'offload.optimizer': 'none', 'offload.activations': 'nvme', 'training.device': 'cuda'}, 2, 'offload.activations'),
    ({'training.device': 'cuda'}, 2, 'offload.optimizer'), ({'offload.optimizer': 'cpu'}, 2, 'nvme'),
    ({**ALONE, 'offload.nvme_path': ''}, 2, 'offload.nvme_path'), ({**ALONE, 'training.device': 'cuda'}, 2, 'offload.gradients'),
    ({**ALONE, 'offload.mode': 'memory_budget', 'memory.limit_bytes': 1 << 30}, 2, 'offload.gradients'),
]


def is_refused(name, more, status, says):
    folder = job.prepare(name, {'job.dump_folder': 'out', **config(0), **NVME, **more})
    done = job.subprocess.run(job.command(0, ['train', 'c.yaml']), cwd=folder, capture_output=True, text=True,
                              stdin=job.subprocess.DEVNULL, env=job.environment(0), timeout=job.SECONDS, check=False)
    if done.returncode != status or says not in done.stderr:
        return [f'{name}: exit {done.returncode}, expected {status} with "{says}": {done.stderr}']
    return [f'{name}: {folder}/out was made'] if (folder / 'out/metrics.jsonl').exists() else []


def main():
    tiny.write_tokens('tokens.bin')
    cases = [(label(*row), same, label(*row), row[0], row[1], {**NVME, **row[2]})
             for row in MATRIX[::FEWER] if row[0] == 0 or job.can_launch()]
    cases += [(f'deep {label(*row)}', same, f'deep-{label(*row)}', row[0], {**DEEP, **row[1]}, row[2])
              for row in DEEP_MATRIX[::FEWER] if row[0] == 0 or job.can_launch()]
    cases += [('deep takes less', takes_less, 'less')]
    cases += [(f'resumed {name}', resumes, name, *way) for name, *way in (
        ('memory-to-file', {}, NVME, {}), ('file-to-memory', NVME, {}, BF16),
        ('file-to-file', {**NVME, 'offload.optimizer_ratio': 0.3}, NVME, BF16),
        ('gradients-to-states', {**NVME, **ALONE}, NVME, BF16), ('states-to-both', NVME, {**NVME, **GRADS}, BF16))]
    cases += [(f'within a budget, {name}', within_budget, f'budget-{name}', *row)
              for name, *row in BUDGETS[::FEWER] if row[0] == 0 or job.can_launch()]
    cases += [(f'planned: 70B, {name}', plans_70b, f'70b-{name}', *row) for name, *row in LARGEST]
    cases += [('saved in the background', background, 'background'), ('rolled back', goes_back, 'rollback'), ('validated', validated, 'validated'),
              ('validated without targets', without_targets, 'empty', 0, {
                  'validation.enable': True, 'validation.dataset_path': str(pathlib.Path('tokens.bin').absolute()),
                  'validation.freq': 3, 'validation.sequences': 6}),
              ('adapters', adapters, 'adapters', 0, BF16),
              ('adapters, gradients too', adapters, 'adapters-both', 0, {**BF16, 'training.local_batch_size': 3},
               {**NVME, **GRADS}),
              ('adapters, gradients alone', adapters, 'adapters-alone', 0, {}, {**NVME, **ALONE}),
              ('from and to a folder of transformers', hugging_face, 'hf'), ('traced', traced, 'trace'),
              ('rolled back, gradients too', goes_back, 'rollback-both', {**NVME, **GRADS}),
              ('without targets, gradients too', without_targets, 'empty-both', 0, {}, {**NVME, **GRADS}),
              ('killed', killed, 'killed')]
    cases += [] if job.FEW else [
              ('benched', benched, 'bench'), ('of the bytes planned', file_is_as_planned, 'bytes'), ('within a limit', fits, 'limit'),
              ('held by the kernel', held_by_the_kernel, 'kernel'), ('states of three times the limit', states_thrice_the_limit, 'thrice'),
              ('damaged gradients', breaks, 'damaged-gradients', damage_until_it_ends, 'damaged', {**NVME, **ALONE}),
              ('damaged, with offload.verify', breaks, 'damaged', damage, 'damaged'),
              # A write that follows the cut makes the file longer again: zeros come back then, not an early end.
              ('cut off', breaks, 'cut', lambda path: os.truncate(path, 0), 'truncated while in use|damaged')]
    cases += [(f'refused: {more}', is_refused, f'refused-{i}', more, status, says)
              for i, (more, status, says) in enumerate(REFUSED)]
    if job.can_launch():
        cases.append(('compared without targets', without_targets, 'empty-2', 2, {
            'parallelism.sharding_strategy': 'no_shard', 'comm.shared_memory': 'off', 'fault.replica_check_every': 3}))
        cases.append(('adapters on 2 ranks', adapters, 'adapters-2', 2, {'parallelism.sharding_strategy': 'full_shard'}))
        cases.append(('adapters on 2 ranks, gradients too', adapters, 'adapters-both-2', 2, {
            **BF16, 'parallelism.sharding_strategy': 'full_shard', 'training.local_batch_size': 3}, {**NVME, **GRADS}))
    return job.run_cases(cases)


if __name__ == '__main__':
    sys.exit(main())
