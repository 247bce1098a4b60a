#!/usr/bin/env python3
"""Losses of one's own: the examples are right by all checks, and each mutant is named; with numbers that make them the
losses that Sherd has, they make the same; they have the same bits on two meshes as on one rank, and go on; what does not
fit is refused. Prints TAP.
"""
import os
import pathlib
import subprocess
import sys

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(TOP / 'tests/gold'), str(TOP / 'tests/mesh')]
import job
import pairs
import tiny

job.need_launcher()
SHERD = os.environ['SHERD']
# The check that is to fail for each mutant of mutant_losses.c.
NAMED = {1: 'gradient', 2: 'gradient', 3: 'gradient', 4: 'nan', 5: 'nan', 6: 'numbers', 7: 'bits', 8: 'text', 9: 'process',
         10: 'process', 11: 'bits', 12: 'gradient', 13: 'gradient', 15: 'gradient', 16: 'gradient', 17: 'gradient', 18: 'sign',
         19: 'numbers', 20: 'gradient', 21: 'text'}
# That a loss leaves out the reference of an answer is its author's business.
SURVIVORS = {14}
WORDS = tiny.COMMON['model.vocab_size']
PLAIN = {**tiny.MODELS['llama'], 'training.global_batch_size': 8, 'training.steps': 6, 'training.reproducible': 'mesh',
         'checkpoint.interval': 3, 'checkpoint.keep_latest_k': 0, 'validation.enable': True, 'validation.freq': 3}
FOCAL = {'plugin.files': 'focal.so', 'objective.name': 'plugin', 'objective.plugin': 'focal'}
TILTED = {'plugin.files': 'tilted_dpo.so', 'objective.name': 'dpo', 'objective.loss_type': 'plugin',
          'objective.plugin': 'tilted_dpo', 'training.seq_len': 16}
KINDS = {'focal': FOCAL, 'focal in bf16': {**FOCAL, 'training.mixed_precision_param': 'bfloat16'}, 'tilted_dpo': TILTED}
MESHES = {
    'full_shard over 2': (2, {'parallelism.sharding_strategy': 'full_shard'}),
    'hybrid_shard 2 x 2': (4, {'parallelism.sharding_strategy': 'hybrid_shard', 'mesh.shard': 2, 'mesh.replicate': 2,
                               'activation_checkpoint.mode': 'full'}),
    '2 stages': (2, {'parallelism.sharding_strategy': 'shard_grad_op', 'parallelism.pipeline_parallel_degree': 2}),
}
NUMBERS = ('step', 'loss', 'grad_norm', 'targets', 'pairs', 'rewards', 'validation_loss')


def compile_plugin(source, library, *flags):
    subprocess.run(['cc', '-O1', '-shared', '-fPIC', f'-I{TOP}/include', *flags, '-o', library, TOP / source, '-lm'], check=True)
    return str(pathlib.Path(library).absolute())


def say(*words, **more):
    done = subprocess.run([SHERD, *words], capture_output=True, text=True, env={**job.environment(0), **more})
    return done.returncode, done.stdout + done.stderr


def case_example(name):
    code, text = say('plugin', 'check', f'{name}.so')
    return [text] if code or text.count('  ok ') != 7 else []


def case_mutants():
    wrong = []
    compile_plugin('tests/user/mutant_losses.c', 'mutants.so')
    for number in range(22):
        code, text = say('plugin', 'check', 'mutants.so', MUTANT=str(number))
        named = [line for line in text.splitlines() if line.split(': ')[1:2] == [NAMED.get(number)]]
        if bool(named) != (number in NAMED) or code != (3 if number in NAMED else 0):
            wrong.append(f'mutant {number}, {NAMED.get(number)}: {code}: {text}')
    code, text = say('plan', 'debug', '--training.device=cpu', '--plugin.files=mutants.so', MUTANT='1')
    wrong += [] if code == 3 and 'gradient' in text and '`sherd plugin check` says more' in text else [f'opened by a plan: {code}: {text}']
    return wrong if len(NAMED) + len(SURVIVORS) == 21 else [*wrong, 'a mutant is left out']


def config(kind, changes):
    path = pathlib.Path(KINDS[kind]['plugin.files']).absolute()
    sets = answers if 'dpo' in (KINDS[kind]['objective.plugin'], {**KINDS[kind], **changes}['objective.name']) else tokens
    given = {**PLAIN, **KINDS[kind], 'plugin.files': str(path), 'training.dataset_path': sets,
             'validation.dataset_path': sets, **changes}
    return {key: value for key, value in given.items() if value is not None}


def run(folder, kind, changes, ranks=0, fresh=True):
    folder = pathlib.Path(folder)
    if fresh:
        job.prepare(folder, {})
    (folder / 'c.yaml').write_text(job.yaml({'job.dump_folder': 'out', **config(kind, changes)}))
    job.sherd('train', 'c.yaml', ranks=ranks, folder=folder)
    return [[step.get(key) for key in NUMBERS] for step in job.metrics(folder)]


def case_mesh(kind, mesh):
    ranks, changes = MESHES[mesh]
    found = run(f'{kind}-{ranks}'.replace(' ', '-'), kind, changes, ranks)
    return [] if found == one[kind] else [f'{found}, expected {one[kind]}']


def case_resume(kind):
    """Three steps on four ranks, and three on one."""
    run('again', kind, {**MESHES['hybrid_shard 2 x 2'][1], 'training.steps': 3}, 4)
    found = run('again', kind, {}, fresh=False)
    return [] if found == one[kind] else [f'{found}, expected {one[kind]}']


def near(a, b):
    return abs(a - b) <= 1e-6 * abs(b)


def case_plain(kind, number, own):
    """With this number 0 it is a loss of Sherd's own, whose first gradient has the same bits."""
    found = run('plain', kind, {'plugin.numbers': f'{number}=0'})
    other = run('own', kind, {'plugin.files': None, 'objective.plugin': None, **own})
    wrong = [] if found[0][2] == other[0][2] else [f'norms {found[0]} and {other[0]}']
    wrong += [f'{a} and {b}' for a, b in zip(found, other) if not (near(a[1], b[1]) and near(a[2], b[2]))]
    return wrong + ([f'{number} has no effect'] if found == one[kind] else [])


def case_reference_kernels(kind):
    """Those that say what is right."""
    found = run('slow', kind, {'training.kernels': 'ref', 'training.reproducible': 'none', 'training.steps': 2})
    return [f'{a} and {b}' for a, b in zip(found, one[kind]) if not (near(a[1], b[1]) and abs(a[2] - b[2]) < 1e-4 * b[2])]


def case_beta():
    """It is what rewards are multiplied by, and nothing else."""
    found, rewards = run('beta', 'tilted_dpo', {'objective.beta': 0.2}), NUMBERS.index('rewards')
    wrong = []
    for a, b in zip(found, one['tilted_dpo']):
        same = [x for i, x in enumerate(a) if i != rewards] == [x for i, x in enumerate(b) if i != rewards]
        twice = all(near(a[rewards][key], 2 * b[rewards][key]) for key in ('chosen', 'rejected', 'margins'))
        wrong += [] if same and twice else [f'{a} and {b}']
    return wrong


REFUSED = {
    'no name': (FOCAL, {'objective.plugin': None}, 'no loss is named'),
    'another name': (FOCAL, {'objective.plugin': 'local'}, 'has a loss of that name'),
    'no file': (FOCAL, {'plugin.files': None}, 'names no plug-in that has it'),
    'pairs of targets': (FOCAL, {'objective.name': 'dpo', 'objective.loss_type': 'plugin'}, 'it is a loss of targets'),
    'targets of pairs': (TILTED, {'objective.name': 'plugin', 'objective.loss_type': None}, 'it is a loss of pairs'),
    'a loss in a block': (FOCAL, {'model.ffn_op': 'focal'}, 'it is a loss; objective.plugin names those'),
    'no objective of it': (FOCAL, {'objective.name': 'lm'}, 'has no effect without objective.name=plugin'),
    'sft_weight': (TILTED, {'objective.sft_weight': 0.2}, 'and can add it'),
    'label_smoothing': (TILTED, {'objective.label_smoothing': 0.2}, 'have it; leave it out'),
    'a number': (FOCAL, {'plugin.numbers': 'focal.alpha=1'}, 'focal has no number alpha'),
    'sequences on several ranks': (FOCAL, {'parallelism.context_parallel_degree': 2, 'mesh.ranks': 2}, 'by one rank from whole rows'),
    'words on several ranks': (FOCAL, {'parallelism.tensor_parallel_degree': 2, 'mesh.ranks': 2}, 'by one rank from all words'),
    'leaves': (FOCAL, {'training.row_leaves': 2}, 'which leaves cut'),
}


def case_refused(name):
    use, changes, wanted = REFUSED[name]
    given = {'model.name': 'debug', 'training.device': 'cpu', **use, **changes}
    pathlib.Path('empty.yaml').write_text('')
    code, text = say('plan', 'empty.yaml', *(f'--{key}={value}' for key, value in given.items() if value is not None))
    return [] if code == 2 and wanted in text else [f'{code}: {text}']


def case_plan():
    """The program names the loss with its numbers, also for a GPU, which needs no kernel of it."""
    wrong = []
    for device in 'cpu', 'cuda':
        code, text = say('plan', 'debug', f'--training.device={device}', '--objective.name=plugin', '--objective.plugin=focal',
                         '--plugin.files=focal.so', '--plugin.focal.gamma=3', '--show', '--after', 'grad')
        wrong += [] if code == 0 and ' focal ' in text and 'gamma 3' in text else [f'{device}: {code}: {text[-500:]}']
    return wrong


def main():
    global tokens, answers, one
    for name in ('focal', 'tilted_dpo'):
        compile_plugin(f'examples/plugins/{name}.c', f'{name}.so', '-Wall', '-Wextra', '-Werror')
    tokens = tiny.write_tokens()
    answers = pairs.write('pairs.bin', pairs.draw_pairs(1, 90, WORDS), WORDS)
    one = {kind: run(f'one-{kind}'.replace(' ', '-'), kind, {}) for kind in KINDS}
    cases = [*((f'{name}: checked', case_example, name) for name in ('focal', 'tilted_dpo')), ('mutants', case_mutants),
             ('a plan', case_plan), ('objective.beta', case_beta)]
    cases += [(f'{kind}: {mesh}', case_mesh, kind, mesh) for kind in KINDS for mesh in MESHES]
    cases += [(f'{kind}: resumed', case_resume, kind) for kind in ('focal', 'tilted_dpo')]
    cases += [(f'{kind}: the kernels that say what is right', case_reference_kernels, kind) for kind in ('focal', 'tilted_dpo')]
    cases += [('focal without gamma', case_plain, 'focal', 'focal.gamma', {'objective.name': 'lm'}),
              ('tilted_dpo without tilt', case_plain, 'tilted_dpo', 'tilted_dpo.tilt', {'objective.loss_type': 'sigmoid'})]
    return job.run_cases(cases + [(f'refused: {name}', case_refused, name) for name in REFUSED])


if __name__ == '__main__':
    sys.exit(main())
