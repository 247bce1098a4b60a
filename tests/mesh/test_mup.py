#!/usr/bin/env python3
"""Factors of widths: a run has the bits of one whose groups say the same, on several meshes. Prints TAP."""
import functools
import itertools
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job
import tiny

job.need_modules('h5py', 'numpy')
import h5py
import numpy

WIDTH = 5  # times the base model
MUP = {'mup.enable': True, 'mup.base_dim': tiny.COMMON['model.dim'] // WIDTH}
BASE = {**tiny.MODELS['llama'], 'training.reproducible': 'mesh', 'training.steps': 4, 'training.global_batch_size': 8,
        'lr_scheduler.total_steps': 4, 'checkpoint.create_seed_checkpoint': True, 'optimizer.eps': 1e-4}
MUON = {'optimizer.name': 'muon', 'optimizer.adjust_lr_fn': 'spectral_unclamped'}
HEAD = 'pattern=lm_head lr=0.2 weight_decay=0.5'
MATRICES = 'pattern=proj lr=0.2 eps=2e-5 weight_decay=0.5'
WAYS = {  # changes of a run with factors, and the groups that say the same
    'AdamW': ({}, f'{MATRICES}; {HEAD}'),
    'AdamW with groups': ({'optimizer.groups': 'pattern=down lr=0.5 eps=1e-3; pattern=head|norm weight_decay=0.3'},
                          'pattern=down lr=0.1 eps=2e-4 weight_decay=0.5; pattern=head lr=0.2 weight_decay=1.5; '
                          f'pattern=norm weight_decay=0.3; {MATRICES}'),
    'Lion': ({'optimizer.name': 'lion', 'optimizer.eps': 1e-8}, f'{MATRICES}; {HEAD}'),
    'Muon': (MUON, HEAD),
    'Muon and AdamW': ({**MUON, 'optimizer.groups': 'pattern=down optimizer=adamw'},
                       f'pattern=down optimizer=adamw {MATRICES.split(" ", 1)[1]}; {HEAD}'),
}
MESHES = {'full_shard over 2': (2, {}), 'hybrid_shard 2 x 2': (4, {'mesh.shard': 2, 'parallelism.sharding_strategy': 'hybrid_shard'})}
EVEN = {'model.dim': 24, 'model.n_heads': 6, 'model.n_kv_heads': 2, 'model.ffn_dim': 32}  # two ranks can share it
folders = itertools.count()


def checkpoint(folder, step):
    return (folder / f'out/checkpoint/step-{step:08}.h5').absolute()


def train(changes, ranks=0):
    folder = pathlib.Path(f'run-{next(folders)}')
    steps = job.train(folder, {**BASE, 'training.dataset_path': tokens, **changes}, ranks)
    return folder, [step[key] for step in steps for key in ('loss', 'grad_norm')]


def parameters(folder, step):
    found = {}
    with h5py.File(checkpoint(folder, step)) as file:
        file['model'].visititems(lambda name, x: found.update({name: x[()]}) if isinstance(x, h5py.Dataset) else None)
    return found


@functools.lru_cache(None)
def one_rank(way):
    return train({**MUP, **WAYS[way][0]})


def differences(a, b):
    return [f'{name} differs' for name in a if not numpy.array_equal(a[name], b[name])]


def case_groups(way):
    changes, groups = WAYS[way]
    folder, found = one_rank(way)
    other, expected = train({**changes, 'optimizer.groups': groups, 'checkpoint.initial_load_model_only': True,
                             'checkpoint.initial_load_path': str(checkpoint(folder, 0))})
    return job.differ('loss or norm', found, expected, 0) + differences(parameters(folder, 4), parameters(other, 4))


def case_initial_values():
    """The values of the model without factors, times those of the roles."""
    found, usual = parameters(one_rank('AdamW')[0], 0), parameters(train({})[0], 0)
    wrong = []
    for name, x in usual.items():
        factor = WIDTH ** -0.5 if 'proj' in name else 1 / WIDTH if 'lm_head' in name else 1
        if not numpy.allclose(found[name], factor * x, rtol=1e-6, atol=0):
            wrong.append(f'{name} is not {factor:.3f} of it')
    return wrong


def case_base():
    """The base model is as without."""
    folder, found = train({**MUP, 'mup.base_dim': tiny.COMMON['model.dim']})
    other, expected = train({})
    return job.differ('loss or norm', found, expected, 0) + differences(parameters(folder, 4), parameters(other, 4))


def case_mesh(way, mesh):
    ranks, changes = MESHES[mesh]
    folder, found = train({**MUP, **WAYS[way][0], **changes}, ranks)
    first, expected = one_rank(way)
    return job.differ('loss or norm', found, expected, 0) + differences(parameters(folder, 4), parameters(first, 4))


def case_tensor():
    """Matrices cut over two ranks: the same but for the order of sums."""
    _, found = train({**MUP, **EVEN, 'parallelism.tensor_parallel_degree': 2, 'training.reproducible': 'none'}, 2)
    return job.differ('loss or norm', found, train({**MUP, **EVEN})[1], 1e-5)


REFUSED = {
    'tied': ({'model.tie_word_embeddings': True}, 'model.tie_word_embeddings=false'),
    'Muon by RMS': ({'optimizer.name': 'muon'}, 'give spectral_unclamped'),
    'NorMuon by RMS': ({'optimizer.name': 'normuon'}, 'give spectral_unclamped'),
    'SGD': ({'optimizer.name': 'sgd'}, 'optimizer.name=adamw, lion or muon'),
    'adapters': ({'lora.rank': 2}, 'leave it out, or lora.rank'),
    'base of half a head': ({'mup.base_dim': 6}, '6 is not a multiple of model.head_dim 4'),
    'experts': ({**tiny.EXPERTS, 'model.tie_word_embeddings': False}, 'is for models without experts'),
}


def case_refused(name):
    changes, text = REFUSED[name]
    folder = job.prepare(pathlib.Path(f'run-{next(folders)}'), {**BASE, 'training.dataset_path': tokens, **MUP, **changes})
    done = subprocess.run(job.command(0, ['plan', 'c.yaml']), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          cwd=folder, env=job.environment(0), timeout=job.SECONDS)
    return [] if done.returncode == 2 and text in done.stderr else [f'{done.returncode}: {done.stderr}']


if __name__ == '__main__':
    tokens = tiny.write_tokens()
    cases = [(f'{way}: as groups', case_groups, way) for way in WAYS]
    cases += [('initial values', case_initial_values), ('base model', case_base)]
    cases += [(f'refused: {name}', case_refused, name) for name in REFUSED]
    cases += [(f'AdamW: {mesh}', case_mesh, 'AdamW', mesh) for mesh in MESHES if job.can_launch()]
    cases += [('AdamW: matrices over 2', case_tensor)] if job.can_launch() else []
    sys.exit(job.run_cases(cases))
