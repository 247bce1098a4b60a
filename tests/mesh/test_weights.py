#!/usr/bin/env python3
"""What targets weigh (data.token_weight): a step is divided by the exact sum of weights, so each mesh finds the same bits; weights of
0 and 1 are a mask; documents have theirs; and what is wrong with a file, or cannot weigh, is refused. Prints TAP.

tests/gold/test_torch.py and test_distillation.py compare weighed losses with PyTorch.
"""
import pathlib
import random
import shutil
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job
import pairs
import tiny

STEPS, BATCH, LENGTH = 4, 16, tiny.SEQ_LEN
CONFIG = {**tiny.MODELS['llama'], 'training.global_batch_size': BATCH, 'training.steps': STEPS, 'training.reproducible': 'mesh',
          'checkpoint.interval': STEPS, 'metrics.log_freq': 1}
PP = {'parallelism.pipeline_parallel_degree': 2, 'parallelism.sharding_strategy': 'shard_optim', 'model.n_layers': 4}
CUT = {'model.n_heads': 4, 'model.n_kv_heads': 2, 'training.reproducible': 'none'}
MESHES = {
    'full_shard over 2': (2, {'parallelism.sharding_strategy': 'full_shard'}, {}),
    'hybrid_shard 2 x 2': (4, {'parallelism.sharding_strategy': 'hybrid_shard', 'mesh.shard': 2, 'mesh.replicate': 2}, {}),
    '2 stages': (2, PP, {'model.n_layers': 4}),
    'sequences over 2': (2, {'parallelism.context_parallel_degree': 2, **CUT}, CUT),
}
NUMBERS = ('loss', 'grad_norm', 'targets', 'tokens')


def write(path, weights):
    pathlib.Path(f'{path}.weight').write_bytes(struct.pack(f'<{len(weights)}e', *weights))


def copy(name, weights=None, mask=None):
    """A file of the same tokens, with these things beside it."""
    path = str(pathlib.Path(name).absolute())
    shutil.copy(tokens, path)
    if weights is not None:
        write(path, weights)
    if mask is not None:
        pathlib.Path(f'{path}.mask').write_bytes(bytes(mask))
    return path


def train(name, path, ranks, changes):
    folder = pathlib.Path(name)
    shutil.rmtree(folder, ignore_errors=True)
    steps = job.train(folder, {**CONFIG, 'training.dataset_path': path, **changes}, ranks)
    return [[step.get(key) for key in NUMBERS] for step in steps], (folder / f'out/checkpoint/step-{steps[-1]["step"]:08}.h5').read_bytes()


def case_mesh(ranks, changes, model):
    one, other = train('one', heavy, 0, model), train('other', heavy, ranks, changes)
    if 'parallelism.context_parallel_degree' in changes:  # sums over rows are cut
        return job.differ('numbers', *([row[i] for row in run[0] for i in (0, 1, 3)] for run in (other, one)), 1e-6)
    return [f'{other[0]}, on one rank {one[0]}'] * (other[0] != one[0]) + ['the checkpoints differ'] * (other[1] != one[1])


def case_is_mask():
    """Weights of 0 and 1 are the mask with these bytes, to the bit; other equal weights change nothing; off ignores them."""
    mask = [draw.random() < 0.5 for _ in range(count)]
    masked, weighed = train('masked', copy('masked.bin', mask=mask), 0, {}), train('weighed', copy('weighed.bin', mask), 0, {})
    both = train('both', copy('both.bin', [4.0] * count, mask), 0, {})
    off = train('off', heavy, 0, {'data.token_weight': 'off'})
    numbers = [[row[:2] for row in run[0]] for run in (masked, weighed, both)]
    wrong = [f'{found}, by a mask {numbers[0]}' for found in numbers[1:] if found != numbers[0]]
    job.prepare('said', {'job.dump_folder': 'out', **CONFIG, 'training.dataset_path': heavy})
    for words, says in (([], True), (['--data.token_weight=off'], False)):
        said = job.launch('train', 'c.yaml', '--training.steps=1', *words, ranks=0, folder=pathlib.Path('said'))[1]
        wrong += [said] * (('targets weigh what the .weight files beside' in said) != says)
        shutil.rmtree('said/out')
    plain = train('plain', tokens, 0, {})
    return wrong + ['off does not ignore them'] * (off[0] != plain[0] or train('heavy', heavy, 0, {})[0] == plain[0])


def case_documents():
    """Documents in rows have the weights of their tokens: if those of every other one weigh nothing, that is a mask that leaves
    them out; `sherd data` says that there are weights."""
    texts = [([draw.randrange(61) for _ in range(draw.randrange(1, 4))], [draw.randrange(61) for _ in range(draw.randrange(1, 12))])
             for _ in range(200)]
    bits = [0 if i % 2 else bit for i, (prompt, answer) in enumerate(texts) for bit in [0] * len(prompt) + [1] * len(answer)]
    masked, weighed = pairs.write_documents('masked.docs', texts, 61, 1, bits), pairs.write_documents('weighed.docs', texts, 61, 1)
    write(weighed, [float(i % 2 == 0) for i, (prompt, answer) in enumerate(texts) for _ in prompt + answer])
    more = {'model.max_seq_len': 32, 'training.seq_len': 32, 'training.steps': 3}
    found = [train(f'documents-{i}', *row, more)[0] for i, row in enumerate(((masked, 0), (weighed, 0), (weighed, 2)))]
    wrong = [] if found[1] == found[2] else ['the mesh shows']
    return (wrong + [f'{found[1]}, by a mask {found[0]}'] * ([row[:2] for row in found[0]] != [row[:2] for row in found[1]])
            + ['sherd data does not say it'] * ('which weigh what files beside them say' not in job.sherd('data', weighed)))


WRONG = (('short', lambda w: w[:-1], 'two bytes a token'), ('negative', lambda w: [*w[:3], -0.5, *w[4:]], 'token 3 has the weight -0.5; weights are numbers from 0 to 1024'),
         ('large', lambda w: [*w[:20], 2000.0, *w[21:]], 'token 20 has the weight 2000;'), ('nan', lambda w: [float('nan')] * len(w), 'has the weight nan'),
         ('nothing', lambda w: [1.0] + [0.0] * (len(w) - 1), 'no target that counts weighs anything'))
MORE = (({'data.token_weight': 'must'}, False, 'there is no '), ({'objective.name': 'dpo'}, True, 'objective.name makes weights of its own'),
        ({'parallelism.tensor_parallel_degree': 2, 'model.n_heads': 4, 'model.n_kv_heads': 2}, True, 'no rank has all words of a target'),
        ({'training.row_leaves': 2, 'training.seq_len': 32, 'model.max_seq_len': 32}, True, 'cuts the rows that have them'))


def refusal(path, changes, ranks=0):
    try:
        train('refused', path, ranks, changes)
    except job.Failed as failed:
        return str(failed)
    return 'it trains'


def case_refused():
    weights, wrong = [1.0] * count, []
    for name, change, wanted in WRONG:
        said = refusal(copy(f'{name}.bin', change(weights)), {'data.shuffle': False})
        wrong += [] if wanted in said else [f'{name}: {said}']
    for changes, which, wanted in MORE:
        said = refusal(heavy if which else tokens, changes, 2 if 'parallelism.tensor_parallel_degree' in changes else 0)
        wrong += [] if wanted in said else [f'{changes}: {said}']
    for path in f'{heavy}.weight', f'{heavy}.wei*':
        said = refusal(path, {})
        wrong += [] if 'of weights' in said or 'weights only' in said else [said]
    copy('mixed-1.bin', weights)
    said = refusal(copy("mixed-2.bin").replace('-2', '-?'), {})
    return wrong + ([] if 'mixed-2.bin' in said else [said])


def case_empty():
    """A step whose targets weigh nothing is skipped, like one whose targets do not count."""
    weights = [float(i > BATCH * LENGTH) for i in range(count)]
    steps = job.train('empty', {**CONFIG, 'training.dataset_path': copy('empty.bin', weights), 'data.shuffle': False})
    return [] if [step.get('skipped') for step in steps] == ['no target weighs anything'] + [None] * (STEPS - 1) else [f'{steps}']


def case_changed():
    """Other weights are other data: a run that goes on says so."""
    path = copy('changed.bin', [1.0] * count)
    folder = job.prepare('changed', {'job.dump_folder': 'out', **CONFIG, 'training.dataset_path': path, 'training.steps': 2, 'lr_scheduler.total_steps': STEPS})
    job.sherd('train', 'c.yaml', folder=folder)
    write(path, [0.5] * count)
    done = job.launch('train', 'c.yaml', '--training.steps=3', ranks=0, folder=folder)
    return [] if 'data changed under the same name' in done[1] else [done[1]]


def case_plan():
    """The plan of a run with weights has the port that brings them, and validations weigh nothing."""
    folder = job.prepare('plan', {**CONFIG, 'training.dataset_path': heavy, 'validation.enable': True, 'validation.dataset_path': tokens})
    shown = job.sherd('plan', 'c.yaml', '--show', folder=folder)
    lines = [line for line in shown.splitlines() if ' head_loss' in line]
    train, evaluate = ([line for line in lines if ('head_loss_grad' in line) == grad] for grad in (True, False))
    return [] if train and evaluate and all('target weights' in line for line in train) and not any('target weights' in line for line in evaluate) else ['the plan shows', *lines]


if __name__ == '__main__':
    job.need_launcher()
    tokens = tiny.write_tokens(count=STEPS * BATCH * LENGTH + 1)
    count, draw = STEPS * BATCH * LENGTH + 1, random.Random(9)
    heavy = copy('heavy.bin', [draw.choice((0, 2 ** draw.uniform(-9, 9))) for _ in range(count)])
    sys.exit(job.run_cases([*((name, case_mesh, *row) for name, row in MESHES.items()), ('weights of 0 and 1', case_is_mask),
                            ('documents', case_documents), ('refused', case_refused), ('a step without weight', case_empty),
                            ('other weights', case_changed), ('plan', case_plan)]))
