#!/usr/bin/env python3
"""Pairs of answers: the first loss is that of equal answers to the bit, the same bits on every mesh, and a run that
goes on with the reference that it began with. Prints TAP.
"""
import json
import math
import pathlib
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job
import pairs
import tiny

WORDS = tiny.COMMON['model.vocab_size']
CONFIG = {'training.seq_len': 16, 'training.global_batch_size': 8, 'training.steps': 8, 'training.reproducible': 'mesh',
          'objective.name': 'dpo', 'metrics.log_freq': 1, 'checkpoint.interval': 3, 'checkpoint.keep_latest_k': 0,
          'validation.enable': True, 'validation.freq': 4, 'validation.sequences': 0}
MESHES = {
    'full_shard over 2': (2, {'parallelism.sharding_strategy': 'full_shard'}),
    'shard_grad_op over 4': (4, {'parallelism.sharding_strategy': 'shard_grad_op'}),
    'shard_optim over 2': (2, {'parallelism.sharding_strategy': 'shard_optim'}),
    'hybrid_shard 2 x 2': (4, {'parallelism.sharding_strategy': 'hybrid_shard', 'mesh.shard': 2, 'mesh.replicate': 2}),
    'no_shard over 4': (4, {'parallelism.sharding_strategy': 'no_shard'}),
}
BF16 = {'training.mixed_precision_param': 'bfloat16'}
LORA = {'lora.rank': 2, 'lora.alpha': 4}
KINDS = {
    'gpt2': {**tiny.MODELS['gpt2']},
    'llama in bf16': {**tiny.MODELS['llama'], **BF16},
    'llama, adapters': {**tiny.MODELS['llama'], **LORA},
    'simpo': {**tiny.MODELS['gpt2'], 'objective.loss_type': 'simpo', 'objective.sft_weight': 0.2, 'objective.beta': 2},
    'orpo': {**tiny.MODELS['llama'], **BF16, 'objective.loss_type': 'orpo'},
    'single answers': {**tiny.MODELS['llama'], 'objective.loss_type': 'apo_zero_unpaired'},
    'kto': {**tiny.MODELS['gpt2'], 'objective.loss_type': 'kto'},
    'experts': {**{key: value for key, value in {**tiny.EXPERTS, **tiny.LATENT}.items() if value is not None and not key.startswith('moe.')}, 'training.local_batch_size': 2},
}
NO_REFERENCE = ('simpo', 'orpo')
# What a pair costs when both answers are as likely as they were to the reference.
FIRST = {'sigmoid': math.log(2), 'hinge': 1, 'ipo': 25, 'nca_pair': 2 * math.log(2), 'robust': math.log(2),
         'bco_pair': 2 * math.log(2), 'sppo_hard': 50, 'apo_zero': 1, 'apo_down': 1, 'sigmoid_norm': math.log(2),
         'apo_zero_unpaired': 0.5}
NUMBERS = ('step', 'loss', 'grad_norm', 'targets', 'pairs', 'rewards', 'logps', 'answers', 'kl')


def config(kind, changes):
    single = {**KINDS[kind], **changes}.get('objective.loss_type', '') in ('kto', 'apo_zero_unpaired')
    return {'job.dump_folder': 'out', **KINDS[kind], **CONFIG, 'training.dataset_path': answers if single else data,
            'validation.dataset_path': held_out_answers if single else held_out, **changes}


def train(folder, kind, ranks=0, changes=None, fresh=True):
    """Lines of steps and of validations."""
    folder = pathlib.Path(folder)
    if fresh:
        job.prepare(folder, {})
    if 'lora.rank' in KINDS[kind]:
        changes = {'checkpoint.initial_load_path': base, **(changes or {})}
    (folder / 'c.yaml').write_text(job.yaml(config(kind, changes or {})))
    job.sherd('train', 'c.yaml', ranks=ranks, folder=folder)
    return job.metrics(folder)


def numbers(steps):
    return [[step.get(key) for key in NUMBERS] for step in steps]


def case_first(kind):
    """The weight of the pairs is known, so is the loss: log 2, to the bit, in whatever type it is computed."""
    if kind in ('single answers', 'kto'):
        zero = all(reward == 0 for reward in one[kind][0]['rewards'].values())
        return [] if one[kind][0]['loss'] == 0.5 and zero else [f'{one[kind][0]}']
    if kind in NO_REFERENCE:
        return no_reference(kind)
    step = one[kind][0]
    rewards = {'chosen': 0, 'rejected': 0, 'margins': 0, 'accuracies': 0}
    wrong = [] if step['loss'] == math.log(2) else [f'loss {step["loss"]}']
    wrong += [] if step['rewards'] == rewards else [f'rewards {step["rewards"]}']
    wrong += [] if step['grad_norm'] > 0 else ['no gradient']
    return wrong + ([] if one[kind][-1]['rewards']['margins'] > 0 else [f'nothing was learned: {one[kind][-1]}'])


def no_reference(kind):
    """A loss without a reference makes none."""
    wrong = [f'{path} was made' for path in pathlib.Path(f'one-{kind}/out').glob('reference*')]
    return wrong if one[kind][0]['rewards']['chosen'] < 0 else wrong + [f'{one[kind][0]}']


def case_half():
    """In float16, where weights of rejected answers are negative: a scale that overflows skips a step and falls, and is no fault of
    a loss; the first step that counts has the first loss, and the numbers are near those of float32."""
    steps = train('half', 'gpt2', 2, {'training.mixed_precision_param': 'float16', 'training.loss_scale_init': 2**40, 'training.steps': 40,
                                      'lr_scheduler.total_steps': 8, 'guard.max_skips': 40, 'training.reproducible': 'none'})
    counted = [step for step in steps if 'skipped' not in step][:8]
    wrong = [] if len(steps) > len(counted) == 8 and counted[0]['loss'] == math.log(2) else [f'{steps}']
    return wrong + job.differ('loss', job.losses(counted), [math.log(2)] * 8, 0.2)


def case_losses(loss):
    more = {'objective.label_smoothing': 0.1} if loss == 'robust' else {}
    step = train('loss', 'gpt2', changes={'objective.loss_type': loss, 'training.steps': 1, **more})[0]
    return [] if abs(step['loss'] - FIRST[loss]) < 1e-14 else [f'{step["loss"]}, expected {FIRST[loss]}']


def case_mesh(kind, mesh):
    ranks, changes = MESHES[mesh]
    found = numbers(train('run', kind, ranks, changes))
    shutil.rmtree('run')
    return [] if found == numbers(one[kind]) else [f'{found}, expected {numbers(one[kind])}']


def case_resume(kind):
    """Three steps on four ranks, the next on one, the rest on two."""
    steps = []
    for stop, (ranks, changes) in ((3, MESHES['hybrid_shard 2 x 2']), (6, (1, {})), (8, MESHES['full_shard over 2'])):
        steps = train('again', kind, ranks, {**changes, 'training.steps': stop}, fresh=not steps)
    shutil.rmtree('again')
    return [] if numbers(steps) == numbers(one[kind]) else [f'{numbers(steps)}, expected {numbers(one[kind])}']


def refused(words, says, name='pairs.bin', folder='refused', **changes):
    """words: of the command line, which ends with a class from 2 on and says something."""
    folder = pathlib.Path(folder)
    if not folder.exists():
        job.prepare(folder, {})
    path = str(pathlib.Path(name).absolute())
    (folder / 'c.yaml').write_text(job.yaml(config('gpt2', {'training.dataset_path': path, **changes})))
    try:
        job.sherd('train', 'c.yaml', *words, folder=folder)
    except job.Failed as failed:
        return [] if says in str(failed) else [f'{words} {name}: {failed}']
    return [f'{words} {name}: it was taken']


def case_refused():
    some = pairs.draw_pairs(4, 6, WORDS)
    pairs.write('documents.bin', some, WORDS, flags=1)
    pairs.write('silent.bin', some, WORDS, masks=[0] * sum(2 * len(p) + len(c) + len(r) for p, c, r in some))
    lengths = [len(p) + len(c) for p, c, _ in some[:1]]
    bits = [bit for p, *answers in some for answer in answers for bit in [0] * len(p) + [1] * len(answer)]
    pairs.write('deaf.bin', some, WORDS, masks=[0] * lengths[0] + bits[lengths[0]:])
    pairs.write('long.bin', [*some, ([1] * 9, [2] * 4, [3] * 4)], WORDS)
    pairs.write('short.bin', [*some, ([], [1], [2] * 4)], WORDS)
    pairs.write_answers('lonely.bin', pairs.draw_answers(4, 1, WORDS), WORDS)
    mute = pairs.draw_answers(4, 6, WORDS)
    pairs.write_answers('mute.bin', mute, WORDS, masks=[0] * sum(len(p) + len(a) for p, a, _ in mute))
    single = '--objective.loss_type=apo_zero_unpaired'
    lm = ['--objective.name=lm', '--validation.enable=false']
    rows = [
        (lm, 'pairs.bin has pairs of answers', 'pairs.bin'),
        ([], 'documents.bin has no pairs of answers', 'documents.bin'),
        ([], 'tokens.bin has no pairs of answers, labels or numbers; objective.name=dpo learns from files of', 'tokens.bin'),
        ([], 'has no target that counts', 'silent.bin'),
        ([], '1 of 7 documents have more than 17 tokens', 'long.bin'),
        (['--data.excess_length_strategy=split'], 'would part answers from their prompts', 'long.bin'),
        ([], 'pair 6 has an answer of fewer than two tokens', 'short.bin'),
        (['--data.target_mask=off'], 'data.target_mask=off: the mask says where', 'pairs.bin'),
        (['--data.packing=concat'], 'concat cuts pairs', 'pairs.bin'),
        (['--data.mix=a.bin=1', '--training.dataset_path='], 'has a reference of one set', 'pairs.bin'),
        (['--parallelism.context_parallel_degree=5'], 'no rank has whole sequences', 'pairs.bin'),
        (['--objective.loss_type=hinge', '--objective.label_smoothing=0.1'], 'only objective.loss_type=sigmoid', 'pairs.bin'),
        (['--objective.loss_type=exo_pair'], 'takes its logarithm', 'pairs.bin'),
        (['--objective.loss_type=aot'], 'objective.loss_type', 'pairs.bin'),
        (['--objective.loss_type=kto'], 'kto or apo_zero_unpaired learns from files of', 'pairs.bin'),
        (['--objective.loss_type=kto'], 'has a single answer', 'lonely.bin'),
        (['--objective.loss_type=kto'], 'has no target that counts', 'mute.bin'),
        (['--objective.loss_type=kto', '--objective.sft_weight=1'], 'it is for pairs', 'answers.bin'),
        ([single], 'apo_zero_unpaired learns from files of `sherd tokenize --format unpaired`; these are for objective.name=dpo', 'pairs.bin'),
        ([], 'answers.bin has answers with labels, not pairs', 'answers.bin'),
        ([single], 'has no target that counts', 'mute.bin'),
        ([single, '--data.excess_length_strategy=split'], 'would part answers from their prompts', 'answers.bin'),
        ([single, '--objective.sft_weight=1'], 'it is for pairs', 'answers.bin'),
        (['--objective.loss_type=orpo', '--objective.sft_weight=1'], 'in itself', 'pairs.bin'),
        (['--objective.gamma=1'], 'has no effect without objective.loss_type=simpo', 'pairs.bin'),
        (['--objective.desirable_weight=2'], 'has no effect without objective.loss_type=kto or apo_zero_unpaired', 'pairs.bin'),
        (['--objective.undesirable_weight=2'], 'has no effect without objective.loss_type=kto or apo_zero_unpaired', 'pairs.bin'),
        (lm, 'answers.bin has answers with labels, not pairs, of which some are to be avoided; give objective.name=dpo', 'answers.bin'),
        ([*lm, '--objective.sft_weight=1'], 'has no effect without objective.name=dpo', 'tokens.bin'),
        ([*lm, '--objective.beta=0.2'], 'has no effect without objective.name=dpo', 'tokens.bin'),
    ]
    wrong = [line for row in rows for line in refused(*row)]
    wrong += refused(['--data.shuffle=false'], 'the chosen answer of pair 0 has no target', 'deaf.bin')
    return wrong


def case_truncated(kind, packing):
    """TRL's max_length: the same bits as from a file that has only what is kept of each answer."""
    single = kind == 'single answers'
    most, longest, draw, write = (17, 20, pairs.draw_answers, pairs.write_answers) if single else (9, 9, pairs.draw_pairs, pairs.write)
    some = draw(6, 60, WORDS, longest)
    kept = [(prompt, *(x[:most - len(prompt)] if isinstance(x, list) else x for x in rest)) for prompt, *rest in some if len(prompt) < most]
    cut = sum(any(len(prompt) + len(x) > most for x in rest if isinstance(x, list)) for prompt, *rest in some)
    found = numbers(train('whole', kind, 2, {'data.packing': packing, 'data.excess_length_strategy': 'truncate',
                                             'training.dataset_path': write('whole.bin', some, WORDS)}))
    wanted = numbers(train('kept', kind, 0, {'data.packing': packing, 'training.dataset_path': write('kept.bin', kept, WORDS)}))
    said = job.launch('train', 'c.yaml', '--job.dump_folder=again', '--training.steps=1', folder='whole')[1]
    says = f'{cut} of more than {most} tokens, {60 - len(kept)} of them left out'
    wrong = [] if says in said and 0 < 60 - len(kept) < cut < 60 else [f'not said: {says}: {said}']
    return wrong + ([] if found == wanted else [f'{found}, expected {wanted}'])


def case_reference():
    """A run goes on with the numbers that it began with, or not at all."""
    steps = {'training.steps': 3}
    train('begun', 'gpt2', changes=steps)
    path = pathlib.Path('begun/out/reference.bin')
    good, wrong = path.read_bytes(), []
    for bad, says in ((None, 'reference.bin'), (good[:-1] + b'x', 'is damaged'), (b'x' + good[1:], 'is no file of'),
                      (good[:40] + b'?' + good[41:], 'other data'), (good[:-8], 'is damaged')):
        path.unlink() if bad is None else path.write_bytes(bad)
        wrong += refused([], says, folder='begun', **{'training.steps': 8})
        wrong += refused([], 'goes on with the reference that it began with', folder='begun', **{'training.steps': 8})
    path.write_bytes(good)
    found = numbers(train('begun', 'gpt2', fresh=False))
    return wrong + ([] if found == numbers(one['gpt2']) else [f'{found}, expected {numbers(one["gpt2"])}'])


def case_certain():
    """A model of one word finds each answer certain: log-probabilities of exactly 0 are numbers, and no gaps of the file."""
    sure = pairs.write('sure.bin', [([0, 0], [0] * n, [0]) for n in (1, 2, 3, 1) * 4], 1)
    changes = {'model.vocab_size': 1, 'training.dataset_path': sure, 'validation.enable': False}
    train('sure', 'gpt2', changes={**changes, 'training.steps': 3})
    last = train('sure', 'gpt2', 2, changes, fresh=False)[-1]
    return [] if last['step'] == 8 and abs(last['loss'] - math.log(2)) < 1e-12 else [f'{last}']


def score(checkpoint, name, *words, ranks=0, data=None):
    """The numbers of a model in a file; returns its path."""
    job.sherd('eval', '--checkpoint', checkpoint, '--data', data or pathlib.Path('pairs.bin').absolute(), '--reference', '-o', name, *words, ranks=ranks)
    return pathlib.Path(name).absolute()


def case_other():
    """Another model is the reference: the same file and the same steps on each mesh, and a run that goes on without the file."""
    trained, wrong = 'one-gpt2/out', []
    file = score(trained, 'other.ref')
    valid = score(trained, 'other.valid.ref', data=held_out)
    for ranks in 2, 4:
        again = score(trained, 'again.ref', '--parallelism.sharding_strategy=full_shard', ranks=ranks)
        wrong += [] if again.read_bytes() == file.read_bytes() else [f'{ranks} ranks write another file']
    given = {'objective.reference_path': str(file), 'validation.reference_path': str(valid)}
    first = train('other', 'gpt2', changes=given)
    lines = [line for line in map(json.loads, pathlib.Path('other/out/metrics.jsonl').read_text().splitlines()) if 'validation_loss' in line]
    wrong += [] if abs(first[0]['loss'] - math.log(2)) > 1e-3 and first[0]['rewards']['chosen'] < 0 else [f'{first[0]}']
    wrong += [] if lines[0]['rewards']['margins'] != first[3]['rewards']['margins'] else [f'{lines[0]}']
    for ranks, changes in (MESHES['full_shard over 2'], MESHES['no_shard over 4']):
        found = train('other-mesh', 'gpt2', ranks, {**given, **changes})
        wrong += [] if numbers(found) == numbers(first) else [f'{ranks} ranks: {numbers(found)}, expected {numbers(first)}']
    train('other-begun', 'gpt2', changes={**given, 'training.steps': 3})
    moved = file.rename('moved.ref').absolute()
    for name, path in (('the file is gone', file), ('it was moved', moved), ('the key is left out', '')):
        shutil.copytree('other-begun', name)
        changes = {**MESHES['shard_optim over 2'][1], **given, 'objective.reference_path': str(path)} if path else {}
        found = train(name, 'gpt2', 2 if path else 1, changes, fresh=False)
        wrong += [] if numbers(found) == numbers(first) else [f'{name}: {numbers(found)}, expected {numbers(first)}']
    train('own-begun', 'gpt2', changes={'training.steps': 3})
    for folder, path in (('own-begun', moved), ('other-begun', score('own-begun/out', 'strange.ref'))):
        wrong += refused([], 'is another reference than that with which the run began', folder=folder, **{**given, 'objective.reference_path': str(path)})
    return wrong


def case_own():
    """The numbers of the model that a run begins with are those that it makes."""
    train('own', 'gpt2', changes={'checkpoint.create_seed_checkpoint': True, 'training.steps': 1})
    file = score('own/out/checkpoint/step-00000000.h5', 'own.ref', '--data.excess_length_strategy=drop', '--data.packing=none')
    found = train('own-given', 'gpt2', changes={'objective.reference_path': str(file), 'validation.enable': False})
    return job.differ('loss', job.losses(found), job.losses(one['gpt2']), 1e-6)


def case_other_refused():
    """Files that are damaged, or of other answers, and options of the evaluation that cannot be."""
    trained = 'one-gpt2/out'
    good = score(trained, 'good.ref')
    bad, bytes_ = good.with_name('bad.ref'), good.read_bytes()
    off, wrong = {'validation.enable': False}, []
    for content, says in ((bytes_[:-1] + b'x', 'is damaged'), (bytes_[:-8], 'is damaged'), (b'x' + bytes_[1:], 'is no file of'), (b'', 'is no file of')):
        bad.write_bytes(content)
        wrong += refused([], f'objective.reference_path: {bad} {says}', **off, **{'objective.reference_path': str(bad)})
    wrong += refused([], 'none.ref', **off, **{'objective.reference_path': 'none.ref'})
    wrong += refused([], 'is about other data', 'long.bin', **off, **{'objective.reference_path': str(good), 'data.excess_length_strategy': 'drop'})
    long = pathlib.Path('long.bin').absolute()
    short, cut = (score(trained, f'{how}.ref', f'--data.excess_length_strategy={how}', data=long) for how in ('drop', 'truncate'))
    longer = {**off, 'training.seq_len': 32, 'model.max_seq_len': 32}
    wrong += refused([], 'has no number of answer 12', 'long.bin', **longer, **{'objective.reference_path': str(short)})
    wrong += refused([], 'answers cut to another length', 'long.bin', **longer, **{'objective.reference_path': str(cut)})
    single = score('one-single-answers/out', 'single.ref', data=answers)
    wrong += refused([], 'is for another objective.loss_type', 'answers.bin', **off, **{'objective.loss_type': 'kto', 'objective.reference_path': str(single)})
    wrong += refused([], 'give those of validation.dataset_path too', **{'objective.reference_path': str(good)})
    wrong += refused([], 'give those of training.dataset_path too', **{'validation.reference_path': str(good)})
    wrong += refused(['--objective.loss_type=simpo', f'--objective.reference_path={good}'], 'has no effect without')
    wrong += refused([f'--validation.reference_path={good}'], 'has no effect without', **off)
    for words, says in (([], 'give its name with -o'), (['-o', 'x', '--sequences=3'], 'leave out --sequences'), (['-o', 'x', '--top-k=3'], 'give one of them'),
                        (['-o', 'x', '--objective.name=lm'], 'is for objective.name=dpo'), (['-o', 'x', '--objective.loss_type=orpo'], 'has no reference')):
        try:
            job.sherd('eval', '--checkpoint', trained, '--data', data, '--reference', *words)
            wrong.append(f'{words}: it was taken')
        except job.Failed as failed:
            wrong += [] if says in str(failed) else [f'{words}: {failed}']
    return wrong


def case_validation():
    """Held-out pairs have a reference of their own."""
    lines = (pathlib.Path('one-gpt2/out/metrics.jsonl')).read_text().splitlines()
    found = [line for line in map(json.loads, lines) if 'validation_loss' in line]
    early = train('untrained', 'gpt2', changes={'training.steps': 1, 'optimizer.lr': 1e-30, 'optimizer.weight_decay': 0})
    line = json.loads([x for x in pathlib.Path('untrained/out/metrics.jsonl').read_text().splitlines() if 'validation_loss' in x][0])
    wrong = [] if abs(line['validation_loss'] - math.log(2)) < 1e-15 and line['pairs'] == 20 else [f'{line}']
    wrong += [] if early[0]['pairs'] >= 8 else [f'{early}']
    return wrong + ([] if len(found) == 2 and found[-1]['rewards']['margins'] != 0 else [f'{found}'])


if __name__ == '__main__':
    job.need_launcher()
    data = pairs.write('pairs.bin', pairs.draw_pairs(1, 90, WORDS), WORDS)
    held_out = pairs.write('held-out.bin', pairs.draw_pairs(2, 20, WORDS), WORDS)
    answers = pairs.write_answers('answers.bin', pairs.draw_answers(1, 180, WORDS), WORDS)
    held_out_answers = pairs.write_answers('held-out-answers.bin', pairs.draw_answers(2, 40, WORDS), WORDS)
    job.prepare('base', {})
    plain = {**tiny.MODELS['llama'], 'training.dataset_path': tiny.write_tokens(), 'training.steps': 1, 'checkpoint.interval': 1}
    job.train(pathlib.Path('base'), plain)
    base = str(pathlib.Path('base/out/checkpoint/step-00000001.h5').absolute())
    one = {kind: train(f'one-{kind}'.replace(' ', '-'), kind) for kind in KINDS}
    sys.exit(job.run_cases([*((f'{kind}: the first step', case_first, kind) for kind in KINDS),
                            *((f'{loss}: the first step', case_losses, loss) for loss in FIRST),
                            *((f'{kind}: {mesh}', case_mesh, kind, mesh) for i, kind in enumerate(KINDS)
                              for mesh in (MESHES if not i else ('shard_optim over 2', ('shard_grad_op over 4', 'no_shard over 4')[i % 2]))),
                            *((f'{kind}, {packing}: truncated', case_truncated, kind, packing)
                              for kind in ('gpt2', 'single answers') for packing in ('none', 'bfd')),
                            ('refused', case_refused), ('the reference', case_reference), ('all is certain', case_certain), ('another reference', case_other),
                            ('its own numbers', case_own), ('another reference, refused', case_other_refused), ('in float16', case_half),
                            ('validation', case_validation),
                            *((f'{kind}: resumed', case_resume, kind) for kind in KINDS)]))
