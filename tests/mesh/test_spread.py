#!/usr/bin/env python3
"""Experts on several ranks (parallelism.expert_parallel_degree): the numbers of one rank that has all of them. Prints TAP.

With training.reproducible: mesh, losses, norms, loads of experts and the bytes of the last checkpoint are those of one
rank; without it the losses are, to LOSS_BOUND. Memory is what the plan says. The rows cover pairs of settings, and not
their product; SHERD_TEST_FEW=1 leaves out most of them. And a text that can be learnt is learnt, with all experts busy. On
emulated GPUs (--with-cuda=emulated) the one rank has a GPU too.
"""
import filecmp
import functools
import hashlib
import json
import os
import pathlib
import re
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job
import test_memory
import tiny

STEPS = 3
LOSS_BOUND = 1e-5
# An expert's matrices are whole blocks of 64; what lies before them in a block is not, so the last bit of a norm may depend on
# where a unit begins (decision 0055).
BASE = {**tiny.EXPERTS, 'model.expert_ffn_dim': 16, 'model.n_experts': 8, 'training.global_batch_size': 16, 'training.local_batch_size': 1,
        'training.reproducible': 'mesh', 'training.steps': STEPS, 'lr_scheduler.total_steps': STEPS}
EP, CAPACITY = 'parallelism.expert_parallel_degree', 'moe.capacity_factor'
NUMBERS = 'loss', 'grad_norm', 'expert_load', 'aux_loss'
LAST_BIT = 2 ** -52
EVEN = {'debug.moe_force_load_balance': True}
MACHINE = 'parallelism.', 'mesh.', 'comm.', 'activation_checkpoint.', 'memory.', 'offload.', CAPACITY
MODES = {'kept': {}, 'selective': {'activation_checkpoint.mode': 'selective'},
         'full': {'activation_checkpoint.mode': 'full'},
         'budget': {'activation_checkpoint.mode': 'memory_budget', 'memory.limit_bytes': 1 << 30}}
APART = {'comm.shared_memory': 'off'}
INLINE = {'comm.progress': 'inline'}
WHOLE = {'training.local_batch_size': 4}
NARROW = {'training.mixed_precision_param': 'bfloat16'}
TWICE = {'mesh.replicate': 2, 'mesh.shard': 2}


def on(strategy, ranks, spread, mode, *more):
    found = {'parallelism.sharding_strategy': strategy, EP: spread, **MODES[mode]}
    for changes in more:
        found |= changes
    return ranks, found


MESHES = {
    'full_shard, 2 of 2, kept': on('full_shard', 2, 2, 'kept'),
    'full_shard, 2 of 2, apart, full': on('full_shard', 2, 2, 'full', APART, INLINE, {CAPACITY: 1}),
    'full_shard, 2 of 4, selective': on('full_shard', 4, 2, 'selective', WHOLE, {CAPACITY: 8}),
    'full_shard, 4 of 4, apart, budget': on('full_shard', 4, 4, 'budget', APART, NARROW, {CAPACITY: 1}),
    'full_shard, 4 of 4, inline': on('full_shard', 4, 4, 'kept', INLINE, WHOLE, NARROW),
    'full_shard, resharded over 2, 2 of 4': on('full_shard', 4, 2, 'full', APART, {'parallelism.reshard_after_forward': 2}),
    'shard_grad_op, 2 of 2, budget': on('shard_grad_op', 2, 2, 'budget', WHOLE, NARROW, {CAPACITY: 8}),
    'shard_grad_op, 4 of 4, apart': on('shard_grad_op', 4, 4, 'full', APART, {CAPACITY: 1}),
    'shard_grad_op, 2 of 4, apart, inline': on('shard_grad_op', 4, 2, 'kept', APART, INLINE, NARROW),
    'shard_optim, 2 of 2, apart': on('shard_optim', 2, 2, 'selective', APART, NARROW, {CAPACITY: 1}),
    'shard_optim, 4 of 4': on('shard_optim', 4, 4, 'budget', INLINE, WHOLE),
    'shard_optim, 2 of 2, twice': on('shard_optim', 4, 2, 'full', TWICE, {CAPACITY: 8}),
    'hybrid_shard, 2 of 2, twice': on('hybrid_shard', 4, 2, 'kept', TWICE, WHOLE, {CAPACITY: 1}),
    'hybrid_shard, 2 of 2, twice, apart': on('hybrid_shard', 4, 2, 'selective', TWICE, APART, NARROW),
    'hybrid_shard_zero2, 2 of 2, twice': on('hybrid_shard_zero2', 4, 2, 'full', TWICE, APART, INLINE),
    'no_shard, 2 of 2': on('no_shard', 2, 2, 'full', NARROW),
    'no_shard, 4 of 4': on('no_shard', 4, 4, 'selective', {CAPACITY: 1}),
    'no_shard, 2 of 2, even': on('no_shard', 2, 2, 'kept', EVEN, {CAPACITY: 1}),
    'gpt_oss, full_shard, 2 of 2, full': on('full_shard', 2, 2, 'full', tiny.OSS, {CAPACITY: 1}),
    'gpt_oss, full_shard, 4 of 4, apart, selective': on('full_shard', 4, 4, 'selective', tiny.OSS, APART, {CAPACITY: 1}),
    'deepseek_v3, full_shard, 2 of 2, full': on('full_shard', 2, 2, 'full', tiny.LATENT, {CAPACITY: 1}),
    'deepseek_v3, shard_optim, 2 of 4, apart, selective': on('shard_optim', 4, 2, 'selective', tiny.LATENT, APART, NARROW),
    'nemotron_h, full_shard, 2 of 2, full': on('full_shard', 2, 2, 'full', tiny.NANO, {CAPACITY: 1}),
    'nemotron_h, shard_optim, 2 of 4, apart, selective': on('shard_optim', 4, 2, 'selective', tiny.NANO, APART),
    'no_shard, 2 of 2, twice': on('no_shard', 4, 2, 'kept', {'mesh.ranks_per_node': 2}, WHOLE, INLINE),
}
EMULATED = b'SHERD_EMULATED_GPUS' in pathlib.Path(os.environ['SHERD']).read_bytes()
NCCL, STAGED = ({'training.device': 'cuda', 'comm.backend': backend} for backend in ('nccl', 'mpi'))
GPU_MESHES = {
    'GPUs, full_shard, 2 of 2, kept': on('full_shard', 2, 2, 'kept', STAGED),
    'GPUs, full_shard, 2 of 4, selective': on('full_shard', 4, 2, 'selective', STAGED, WHOLE, {CAPACITY: 8}),
    'GPUs, full_shard, 4 of 4, budget': on('full_shard', 4, 4, 'budget', STAGED, NARROW, {CAPACITY: 1}),
    'GPUs, full_shard, 2 of 2, full, activations with the host': on(
        'full_shard', 2, 2, 'full', STAGED, WHOLE, {CAPACITY: 1, 'offload.activations': 'cpu', 'model.n_layers': 5}),
    'GPUs, shard_grad_op, 4 of 4, full': on('shard_grad_op', 4, 4, 'full', STAGED, WHOLE, {CAPACITY: 1}),
    'GPUs, shard_optim, 2 of 2, twice': on('shard_optim', 4, 2, 'full', STAGED, NARROW, TWICE),
}
# NCCL sums in its own order.
NCCL_MESHES = {
    'GPUs, full_shard, 2 of 2, kept, by NCCL': on('full_shard', 2, 2, 'kept', NCCL, WHOLE, {CAPACITY: 1}),
    'GPUs, full_shard, 4 of 4, full, by NCCL': on('full_shard', 4, 4, 'full', NCCL),
    'GPUs, hybrid_shard, 2 of 2, twice, selective, by NCCL': on('hybrid_shard', 4, 2, 'selective', TWICE, NCCL, {CAPACITY: 8}),
}
BLOCKS = 2  # of tiny.EXPERTS that have experts
if job.FEW:
    MESHES = dict(list(MESHES.items())[::6])


# Without the two that spread tokens, the largest load of an expert is 1.5 times the mean. Of the last steps the mean counts:
# each of them was within 1.30 on one machine, but a step has few tokens, and which ones it has decides its load.
LEARNS = {'training.global_batch_size': 64, 'training.local_batch_size': 16, 'training.steps': 90,
          'lr_scheduler.total_steps': 90, 'moe.aux_loss_coeff': 0.1, 'moe.load_balance_coeff': 0.005}
LAST, LEARNT, MOST_LOAD = 20, 1.5, 1.3


def config(changes):
    return {key: value for key, value in {'training.dataset_path': tokens, **BASE, **changes}.items() if value is not None}


def saved(folder, step=STEPS):
    return pathlib.Path(folder) / f'out/checkpoint/step-{step:08}.h5'


def name_of(changes):
    """Of a folder: one with many changes ends in their digest."""
    name = '-'.join(f'{key.split(".")[1]}={value}' for key, value in changes.items()).replace('/', '_') or 'base'
    return name if len(name) < 200 else f'{name[:150]}-{hashlib.sha256(name.encode()).hexdigest()[:16]}'


def same(one, other):
    return [] if filecmp.cmp(one, other, shallow=False) else [f'{other} has other bytes than {one}']


@functools.lru_cache(None)
def one_rank(changes):
    """One rank with all experts, once for each model."""
    folder = 'one-' + name_of(dict(changes))
    return folder, job.train(folder, config(dict(changes)))


def numbers(steps):
    return [(key, step[key]) for step in steps for key in NUMBERS if key in step]


def unequal(found, expected):
    return [f'{key}: {a}, expected {b}' for (key, a), (_, b) in zip(found, expected)
            if a != b and not (key == 'grad_norm' and abs(a / b - 1) <= LAST_BIT)][:1]


def arena(ranks, changes):
    return test_memory.plan({'mesh.ranks_per_node': ranks, **config(changes)}, ranks)[test_memory.ARENA]


def with_budget(ranks, changes):
    """A budget that is too small for all activations, and large enough for some."""
    if 'memory.limit_bytes' not in changes:
        return changes
    most, least = (arena(ranks, {**changes, **MODES[mode]}) for mode in ('kept', 'full'))
    return {**changes, 'memory.limit_bytes': (most + least) // 2}


def over_memory(ranks, changes, steps):
    planned = arena(ranks, changes)
    found = steps[-1]['arena_bytes']
    return [f'arena of {found} bytes, planned {planned}'] * (found != planned)


def wrong_waves(changes, steps):
    """Rows that are spread evenly fill one wave; others take more, unless that is large enough for all."""
    wrong = []
    for step in steps:
        most, mean, busiest = (step['expert_waves'][key] for key in ('max', 'mean', 'busiest_rank'))
        right = (busiest == most == 1 if EVEN.items() <= changes.items() else most == 1 if changes.get(CAPACITY) == 8
                 else most > 1 and most >= busiest if changes.get(CAPACITY) == 1 else True)
        wrong += [] if right and 1 <= mean <= most and 1 <= busiest <= changes[EP] else [f'{step["expert_waves"]}']
    return wrong[:1]


def case_mesh(name, exact=True):
    ranks, changes = {**MESHES, **GPU_MESHES, **NCCL_MESHES}[name]
    changes = with_budget(ranks, changes)
    if not exact:
        changes = {**changes, 'training.reproducible': 'none'}
    one, expected = one_rank(tuple((key, value) for key, value in changes.items() if not key.startswith(MACHINE)))
    folder = 'run-' + name.replace(', ', '-').replace(' ', '-')
    steps = job.train(folder, config(changes), ranks)
    wrong = over_memory(ranks, changes, steps) + wrong_waves(changes, steps)
    if exact:
        wrong += unequal(numbers(steps), numbers(expected)) + same(saved(one), saved(folder))
    else:
        wrong += job.differ('losses', job.losses(steps), job.losses(expected), LOSS_BOUND)
        wrong += job.differ('norms', *([step['grad_norm'] for step in run] for run in (steps, expected)), LOSS_BOUND)
    shutil.rmtree(folder)
    return wrong


def case_outside():
    """Texts and losses of a checkpoint are those of one rank with all experts."""
    job.train('outside', config({'model.vocab_size': 257, 'training.steps': 1}))
    prompts = pathlib.Path('outside/prompts.jsonl').absolute()
    prompts.write_text(''.join(json.dumps({'prompt': '12 3'[:n] * n}) + '\n' for n in (1, 4, 2, 3)))
    at, wrong = ('--checkpoint', saved('outside', 1)), []
    for words in (('generate', *at, '--prompts', prompts, '--tokenizer', 'byte', '--batch', 3, '--tokens', 14, '--temperature', 0),
                  ('eval', *at, '--data', tokens, '--sequences', 7)):
        one, spread = job.sherd(*words), job.sherd(*words, f'--{EP}', 2, ranks=2)
        loss = [float(re.search(r'loss +([0-9.]+)', said).group(1)) for said in (one, spread)] if words[0] == 'eval' else None
        wrong += [f'{words[0]}: {spread}, not {one}'] if (abs(loss[1] / loss[0] - 1) > LOSS_BOUND if loss else spread != one) else []
    return wrong


def case_learns():
    changes = {**LEARNS, 'training.dataset_path': tiny.write_sentences()}
    spread, together = (job.train(f'learns-{n}', config({**changes, EP: n}), 4) for n in (2, 1))
    load = sum(step['expert_load']['max'] for step in spread[-LAST:]) / LAST
    wrong = [f'the last loss is {spread[-1]["loss"]}'] if spread[-1]['loss'] > LEARNT else []
    wrong += [f'the busiest expert has {load} times the mean load'] if load > MOST_LOAD else []
    steps = LEARNS['training.steps']
    return wrong + unequal(numbers(spread), numbers(together)) + same(saved('learns-1', steps), saved('learns-2', steps))


def waits(ranks, changes, steps):
    """How often each rank waits for its GPU in so many steps."""
    path = pathlib.Path('counters').absolute()
    path.unlink(missing_ok=True)
    os.environ['SHERD_EMULATED_COUNTERS'] = str(path)
    try:
        job.train('waits', {**config(changes), 'training.reproducible': 'none', 'training.steps': steps, 'checkpoint.enable': False},
                  ranks)
    finally:
        del os.environ['SHERD_EMULATED_COUNTERS']
    return [line['waits'] for line in map(json.loads, path.read_text().splitlines()) if line['launches']]


def case_waits(name, micro_steps):
    """One more for each block with experts than without EP, for the counts of its forward; none for its backward."""
    ranks, changes = NCCL_MESHES[name]
    alone = {key: value for key, value in changes.items() if key not in (EP, CAPACITY)}
    spread, one = ((max(waits(ranks, run, 12)) - min(waits(ranks, run, 2))) / 10 for run in (changes, alone))
    return [] if spread <= one + BLOCKS * micro_steps + 0.5 else [f'{spread} waits a step, {one} without EP']


def gpu_cases():
    few = {name: job.FEW and i % 4 for i, name in enumerate([*GPU_MESHES, *NCCL_MESHES])}
    return [(name, case_mesh, name, name in GPU_MESHES) for name in few if not few[name]]


def cases():
    found = [(f'{name}', case_mesh, name) for name in MESHES]
    found += [(f'{name}, not reproducible', case_mesh, name, False) for name in list(MESHES)[::5]]
    if EMULATED:
        found += gpu_cases() + [('a wait for each block', case_waits, 'GPUs, full_shard, 2 of 2, kept, by NCCL', 2)]
    return found + [('texts and losses, experts over 2', case_outside), ('a text is learnt, experts over 2 of 4 ranks', case_learns)]


if __name__ == '__main__':
    job.need_launcher()
    if EMULATED:
        os.environ['SHERD_EMULATED_GPUS'] = '8'
    tokens = tiny.write_tokens()
    sys.exit(job.run_cases(cases()))
