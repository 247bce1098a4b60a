#!/usr/bin/env python3
"""Factors of widths: a run has the bits of one whose groups say the same, on several meshes; and `sherd study coords` tells
whether a rate fits other widths. Prints TAP."""
import functools
import itertools
import pathlib
import re
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
    'Lion': ({'optimizer.name': 'lion', 'optimizer.eps': 1e-8}, f'{MATRICES}; {HEAD}'.replace('eps=2e-5 ', '')),
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


STUDY = {'model.name': 'debug', 'model.n_layers': 2, 'training.mixed_precision_param': 'float32', 'optimizer.lr': 0.01}
WIDE = {'mup.enable': True, 'mup.base_dim': 64}
SPECTRAL = {'optimizer.name': 'muon', 'optimizer.adjust_lr_fn': 'spectral_unclamped'}
GROWS, FITS = (0.5, 9), (-0.35, 0.35)
MAMBA = {'model.family': 'nemotron_h', 'model.layer_types': 'linear,full_nope,linear,mlp', 'model.n_layers': 4,
         'model.linear_key_heads': 2, 'model.linear_value_heads': 4, 'model.linear_key_dim': 16, 'model.linear_value_dim': 16,
         'model.linear_conv_size': 4, 'model.tie_word_embeddings': False}
COORDS = {  # changes of a run, and between what the mean slopes of attention and ffn, and of logits, lie
    'AdamW': ({}, GROWS, GROWS),
    'AdamW with factors': (WIDE, FITS, FITS),
    'Muon by RMS': ({'optimizer.name': 'muon'}, GROWS, (-9, 9)),
    'Muon with factors': ({**SPECTRAL, **WIDE}, (-0.1, 0.1), FITS),
    'SGD': ({'optimizer.name': 'sgd'}, GROWS, GROWS),
    'without a change, leaves and short sequences': ({'optimizer.lr': 0, 'training.seq_len': 128, 'training.reproducible': 'mesh',
                                                      'training.row_leaves': 8, 'data.length_schedule': '0:32, 1:128'}, None, None),
    'Mamba-2 with factors': ({**MAMBA, **WIDE}, FITS, FITS),
}


def study(changes, *words, ranks=0):
    """Status and text of `sherd study coords`, which leaves nothing behind."""
    folder = pathlib.Path(f'study-{next(folders)}')
    job.prepare(folder, {**STUDY, **changes})
    before = sorted(folder.iterdir())
    done = subprocess.run(job.command(ranks, ['study', 'coords', 'c.yaml', *words]), stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, cwd=folder, env=job.environment(ranks), timeout=job.SECONDS)
    return done.returncode, done.stdout + done.stderr, sorted(folder.iterdir()) == before


def case_coords(name):
    changes, branches, logits = COORDS[name]
    code, text, clean = study(changes, '--widths', '64,128,256')
    wrong = [] if clean and re.search(r'^width +64 +128 +256 ', text, re.M) else [text]
    if branches is None:
        return wrong + ([] if code == 3 and 'does not change' in text else [f'{code}: {text}'])
    slopes = [float(x) for x in re.search(r'mean slopes: attention (\S+), ffn (\S+), logits (\S+)', text).groups()]
    inside = [low <= slope <= high for slope, (low, high) in zip(slopes, (branches, branches, logits))]
    right = (code, 'fits the others' in text) == (0, True) if branches != GROWS else code == 3 and 'see mup.enable' in text
    return wrong + ([] if all(inside) and right else [f'{code}: {text}'])


BAD_STUDIES = {
    'one width': ({}, ('--widths', '64'), '--widths takes 2 to 12 numbers'),
    'thirteen widths': ({}, ('--widths', ','.join(str(64 * i) for i in range(1, 14))), '--widths takes 2 to 12 numbers'),
    'falling widths': ({}, ('--widths', '128,64'), 'smallest first'),
    'no whole heads': ({}, ('--widths', '64,96'), 'a model 96 wide'),
    'no whole global heads': ({'model.family': 'gemma4_text', 'model.keys_as_values': True, 'model.global_kv_heads': 1,
                               'model.layer_types': 'full'}, ('--widths', '64,128'), 'n_kv_heads, global_kv_heads and'),
    'experts': ({'model.name': 'debug-moe'}, (), 'models without experts'),
    'adapters': ({'lora.rank': 2}, (), 'leave out lora.rank'),
    'answers': ({'objective.name': 'dpo'}, (), '--objective.name=lm'),
}


def case_bad_study(name):
    changes, words, wanted = BAD_STUDIES[name]
    code, text, clean = study(changes, *words)
    return [] if code == 2 and wanted in text and clean else [f'{code}: {text}']


def case_two_processes():
    code, text, _ = study({}, ranks=2)
    return [] if code == 2 and 'start it without mpirun' in text else [f'{code}: {text}']


def case_usual_widths():
    """The first has whole heads, of both kinds, and is not below 64."""
    _, text, _ = study({'model.n_layers': 1, 'model.n_heads': 4, 'model.n_kv_heads': 4, 'model.dim': 160, 'model.ffn_dim': 320,
                        'model.family': 'gemma4_text', 'model.keys_as_values': True, 'model.global_kv_heads': 4, 'model.layer_types': 'full'})
    return [] if re.search(r'^width +80 +160 +320 +640 ', text, re.M) else [text]


if __name__ == '__main__':
    tokens = tiny.write_tokens()
    cases = [(f'{way}: as groups', case_groups, way) for way in WAYS]
    cases += [('initial values', case_initial_values), ('base model', case_base)]
    cases += [(f'refused: {name}', case_refused, name) for name in REFUSED]
    cases += [(f'AdamW: {mesh}', case_mesh, 'AdamW', mesh) for mesh in MESHES if job.can_launch()]
    cases += [('AdamW: matrices over 2', case_tensor), ('study of two processes', case_two_processes)] if job.can_launch() else []
    cases += [(f'study: {name}', case_coords, name) for name in COORDS]
    cases += [(f'study refuses {name}', case_bad_study, name) for name in BAD_STUDIES] + [('usual widths', case_usual_widths)]
    sys.exit(job.run_cases(cases))
