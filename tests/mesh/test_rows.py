#!/usr/bin/env python3
"""Collectives that exchange rows of the model, inside of micro-steps: training in which activations make a round trip
between ranks has the bits of training without. Prints TAP.

tests/unit/test_pass_simulate.c has the meshes, strategies and schedules; here are the backends, the trace and the plan.
"""
import json
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job
import tiny

PROGRAM = pathlib.Path(os.environ.get('SHERD_BUILDDIR', '.')).resolve() / 'tests/mesh/sherd_rows'
EMULATED = b'SHERD_EMULATED_GPUS' in pathlib.Path(os.environ['SHERD']).read_bytes()
INNER_AND_OUTER, REPLICATE, WORLD = 24, 32, 127  # bits of the axes
HYBRID = {'parallelism.sharding_strategy': 'hybrid_shard', 'mesh.shard': 2, 'mesh.replicate': 2}
OFF = {'comm.shared_memory': 'off'}
TREE = {'training.reproducible': 'mesh', 'training.global_batch_size': 16}
CUDA = {'training.device': 'cuda'}
# ranks, group, size of the group, configuration
RUNS = {
    'gpt2, full_shard, all ranks': (4, INNER_AND_OUTER, 4, 'gpt2', {}),
    'llama, by messages, selective': (4, INNER_AND_OUTER, 4, 'llama', {**OFF, 'activation_checkpoint.mode': 'selective'}),
    'llama, hybrid_shard, shards': (4, INNER_AND_OUTER, 2, 'llama', {**HYBRID, 'activation_checkpoint.mode': 'full'}),
    'llama, hybrid_shard, replicas, a tree of sums': (4, REPLICATE, 2, 'llama', {**HYBRID, **TREE}),
    'gpt2, hybrid_shard, all ranks, bf16': (4, WORLD, 4, 'gpt2', {**HYBRID, 'training.mixed_precision_param': 'bfloat16'}),
    'llama, no_shard, two ranks': (2, WORLD, 2, 'llama', {'parallelism.sharding_strategy': 'no_shard'}),
}
GPU_RUNS = {
    'llama, nccl': (4, INNER_AND_OUTER, 4, 'llama', {**CUDA, 'comm.backend': 'nccl'}),
    'gpt2, GPUs through host memory': (2, WORLD, 2, 'gpt2', {**CUDA, 'comm.backend': 'mpi'}),
}


class Rows:
    """`sherd` is sherd_rows while it is in force."""

    def __init__(self, group, ranks):
        self.changes = {'SHERD': str(PROGRAM), 'ROWS': f'{group},{ranks}'}

    def __enter__(self):
        self.before = {name: os.environ.get(name) for name in self.changes}
        os.environ.update(self.changes)

    def __exit__(self, *_):
        for name, value in self.before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def config(family, changes):
    return {**tiny.MODELS[family], 'training.dataset_path': tiny.write_tokens(), 'training.steps': 4, 'training.local_batch_size': 2,
            'checkpoint.enable': False, 'metrics.log_freq': 1, **changes}


def numbers(steps):
    return [(step['loss'], step['grad_norm']) for step in steps]


def same_bits(name, ranks, group, size, family, changes):
    folder = name.replace(' ', '-').replace(',', '')
    plain = job.train(f'{folder}-plain', config(family, changes), ranks)
    with Rows(group, size):
        rows = job.train(folder, config(family, changes), ranks)
    return [] if numbers(rows) == numbers(plain) else [f'{numbers(rows)}\nnot {numbers(plain)}']


def traced():
    """The trace shows the exchanges on a stream of their own."""
    with Rows(INNER_AND_OUTER, 2):
        job.train('traced', config('llama', {'profiling.trace': 'trace.json', **OFF}), 2)
    events = json.loads(pathlib.Path('traced/trace.json').read_text())['traceEvents']
    names = {event.get('name', '').rsplit(' ', 1)[-1] for event in events}
    return [] if {'all_to_all', 'reduce_scatter', 'all_gather'} <= names else [f'in the trace: {sorted(names)}']


def planned():
    """Bytes and time of the exchanges are in the plan."""
    job.prepare('planned', config('llama', {**OFF, 'mesh.ranks': 2}))
    with Rows(INNER_AND_OUTER, 2):
        text = job.sherd('plan', 'c.yaml', '--machine', 'h100', folder='planned')
    wrong = [f'no {word}: {text}' for word in ('all_to_all ',) if text.count(word) < 2]
    # Four tensors there and back in each block: 2 x 12 tokens of 28 float32 elements, half of which come from the peer.
    sent = 3 * 4 * 2 * 12 * 28 * 4 // 2 * (tiny.GLOBAL_BATCH // 4)
    return wrong + ([] if f'{sent / 1024:.1f} KiB' in text else [f'not {sent / 1024:.1f} KiB: {text}'])


def cases():
    runs = {**RUNS, **(GPU_RUNS if EMULATED else {})}
    return [(name, same_bits, name, *run) for name, run in runs.items()] + [('trace', traced), ('plan', planned)]


if __name__ == '__main__':
    job.need_launcher()
    if EMULATED:
        os.environ['SHERD_EMULATED_GPUS'] = '8'
    sys.exit(job.run_cases(cases()))
