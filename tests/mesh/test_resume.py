#!/usr/bin/env python3
"""A run that is interrupted and resumed, on the same mesh and on others. Prints TAP.

On the same mesh the interruption leaves no trace: losses and the last checkpoint are the same to the bit. On another
mesh the run reads the same global batches, and its losses are those of the uninterrupted run to LOSS_BOUND; one case
shows that the test would notice other batches. SHERD_LONG=1 resumes every mesh's run on every other mesh, and continues
for 50 steps.
"""
import functools
import itertools
import os
import pathlib
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job
import tiny

LOSS_BOUND = 1e-5
LONG = bool(os.environ.get('SHERD_LONG'))
BEFORE, AFTER = (10, 50) if LONG else (5, 5)  # steps
STEPS = BEFORE + AFTER

# Name: ranks, changes of the configuration.
MESHES = {
    '1 rank': (0, {}),
    'full_shard over 3': (3, {}),
    'hybrid_shard 2 x 2': (4, {'parallelism.sharding_strategy': 'hybrid_shard', 'mesh.shard': 2}),
    'shard_grad_op over 2': (2, {'parallelism.sharding_strategy': 'shard_grad_op'}),
}
if LONG:
    MESHES |= {
        'full_shard over 8': (8, {}),
        'no_shard, 2 replicas': (2, {'parallelism.sharding_strategy': 'no_shard', 'mesh.replicate': 2}),
        'no_shard over 3, once': (3, {'parallelism.sharding_strategy': 'no_shard'}),
        'shard_optim over 4': (4, {'parallelism.sharding_strategy': 'shard_optim'}),
        'shard_optim 2 x 2': (4, {'parallelism.sharding_strategy': 'shard_optim', 'mesh.shard': 2}),
        'hybrid_shard_zero2 2 x 3': (6, {'parallelism.sharding_strategy': 'hybrid_shard_zero2', 'mesh.shard': 3}),
    }
BF16 = {'training.mixed_precision_param': 'bfloat16'}
folders = itertools.count()


def config(family, mesh, more):
    return {'job.dump_folder': 'out', 'training.dataset_path': tokens, 'checkpoint.interval': BEFORE,
            **tiny.MODELS[family], 'training.steps': STEPS, 'lr_scheduler.total_steps': STEPS, **MESHES[mesh][1],
            **dict(more)}


def checkpoint(folder, step):
    return folder / f'out/checkpoint/step-{step:08}.h5'


@functools.lru_cache(None)
def uninterrupted(family, mesh, more=()):
    """Returns (folder, metrics)."""
    folder = pathlib.Path(f'whole-{next(folders)}')
    return folder, job.train(folder, config(family, mesh, more), MESHES[mesh][0])


def take_up(before, family, mesh, more=()):
    """Continue from the first checkpoint of `before`, as after a crash; returns (folder, metrics from then on)."""
    folder = job.prepare(f'taken-up-{next(folders)}', config(family, mesh, more))
    checkpoint(folder, BEFORE).parent.mkdir(parents=True)
    shutil.copy(checkpoint(before, BEFORE), checkpoint(folder, BEFORE))
    job.sherd('train', 'c.yaml', ranks=MESHES[mesh][0], folder=folder)
    return folder, job.metrics(folder)


def compare(after, whole, keys, bound):
    found, expected = ([step[key] for step in steps for key in keys] for steps in (after, whole[BEFORE:]))
    return job.differ(', '.join(keys), found, expected, bound)


def case_same(family, mesh, more):
    before, whole = uninterrupted(family, mesh, more)
    folder, after = take_up(before, family, mesh, more)
    same = checkpoint(folder, STEPS).read_bytes() == checkpoint(before, STEPS).read_bytes()
    return (compare(after, whole, ('step', 'loss', 'grad_norm', 'lr', 'tokens_seen'), 0)
            + ([] if same else ['the last checkpoints differ']))


def case_other(family, mesh, other):
    before, whole = uninterrupted(family, mesh)
    return compare(take_up(before, family, other)[1], whole, ('step', 'loss', 'tokens_seen'), LOSS_BOUND)


def case_other_batches():
    before, whole = uninterrupted('llama', '1 rank')
    after = take_up(before, 'llama', '1 rank', tuple({'debug.seed': 1}.items()))[1]
    near = [step['step'] for step, expected in zip(after, whole[BEFORE:])
            if abs(step['loss'] - expected['loss']) <= LOSS_BOUND * expected['loss']]
    return [f'the losses of other batches are near at steps {near}'] if near or len(after) != AFTER else []


def make_cases():
    same = [(f'{family}, {mesh}, {kind}: nothing shows', case_same, family, mesh, more)
            for family, mesh in zip(itertools.cycle(tiny.MODELS), MESHES)
            for kind, more in (('float32', ()), ('bfloat16', tuple(BF16.items())))]
    ring = list(zip(MESHES, [*MESHES][1:] + [*MESHES][:1]))
    pairs = itertools.permutations(MESHES, 2) if LONG else ring
    return (same + [(f'llama, {mesh}, then {other}', case_other, 'llama', mesh, other) for mesh, other in pairs]
            + [('batches of another seed show in every loss', case_other_batches)])


if __name__ == '__main__':
    job.need_launcher()
    tokens = tiny.write_tokens()
    sys.exit(job.run_cases(make_cases()))
