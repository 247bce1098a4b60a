#!/usr/bin/env python3
"""Labels, one or several of a text, numbers and rewards of texts: the same bits on every mesh, one text a row or packed; the accuracy; texts made
by `sherd tokenize`; what is refused. Prints TAP.
"""
import json
import math
import pathlib
import random
import shutil
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job
job.need_modules('numpy', 'h5py')
import numpy
import checkpoint
import pairs
import tiny

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
WORDS, LABELS = tiny.COMMON['model.vocab_size'], 3
CONFIG = {'training.seq_len': 16, 'training.global_batch_size': 8, 'training.steps': 6,
          'training.reproducible': 'mesh', 'metrics.log_freq': 1, 'checkpoint.interval': 3, 'checkpoint.keep_latest_k': 0,
          'validation.enable': True, 'validation.freq': 3, 'validation.sequences': 0}
MESHES = {
    'full_shard over 2': (2, {'parallelism.sharding_strategy': 'full_shard'}),
    'shard_grad_op over 4': (4, {'parallelism.sharding_strategy': 'shard_grad_op'}),
    'hybrid_shard 2 x 2': (4, {'parallelism.sharding_strategy': 'hybrid_shard', 'mesh.shard': 2, 'mesh.replicate': 2}),
}
KINDS = {'gpt2': {**tiny.MODELS['gpt2'], 'model.num_labels': LABELS, 'data.packing': 'none'},
         'llama in bf16': {**tiny.MODELS['llama'], 'model.num_labels': LABELS, 'training.mixed_precision_param': 'bfloat16'}}
VALUES = {
    'reward': {**KINDS['llama in bf16'], 'model.num_labels': 1, 'objective.name': 'reward'},
    'regression': {**KINDS['gpt2'], 'model.num_labels': 1, 'objective.name': 'regression', 'data.packing': 'bfd'},
}
SEVERAL = {'several': {**KINDS['gpt2'], 'objective.name': 'multi_label', 'data.packing': 'bfd'},
           'several in bf16': {**KINDS['llama in bf16'], 'objective.name': 'multi_label'}}
MORE_MESHES = {**MESHES, 'stages': (2, {'parallelism.pipeline_parallel_degree': 2, 'parallelism.sharding_strategy': 'shard_grad_op'}),
               'parts': (2, {'parallelism.context_parallel_degree': 2, 'training.reproducible': 'none'}),
               'larger micro-steps': (2, {'training.local_batch_size': 2})}
NUMBERS = ('step', 'loss', 'grad_norm', 'targets', 'pairs', 'texts', 'mean_reward', 'margin', 'accuracy', 'min_reward', 'max_reward')


def draw_texts(seed, count, longest=9):
    """The label is a function of the last word."""
    draw = random.Random(seed)
    texts = [[draw.randrange(WORDS) for _ in range(draw.randint(1, longest))] for _ in range(count)]
    return [(text, [text[-1] % LABELS]) for text in texts]


def config(kind, changes):
    sets = {'reward': (scored, scored), 'regression': (numbered, numbered), **dict.fromkeys(SEVERAL, (several, several))}.get(kind, (data, held_out))
    return {'job.dump_folder': 'out', **{**KINDS, **VALUES, **SEVERAL}[kind], **CONFIG, 'training.dataset_path': sets[0],
            'validation.dataset_path': sets[1], **changes}


def train(folder, kind, ranks=0, changes=None, fresh=True):
    folder = pathlib.Path(folder)
    if fresh:
        job.prepare(folder, {})
    (folder / 'c.yaml').write_text(job.yaml(config(kind, changes or {})))
    job.sherd('train', 'c.yaml', ranks=ranks, folder=folder)
    lines = [json.loads(line) for line in (folder / 'out/metrics.jsonl').read_text().splitlines()]
    return ([[line.get(key) for key in NUMBERS] for line in lines if 'loss' in line],
            [[line['validation_loss'], *map(line.get, ('accuracy', 'tokens', 'mean_reward', 'margin', 'pairs', 'texts', 'min_reward', 'max_reward', 'f1'))] for line in lines if 'validation_loss' in line])


def case_mesh(kind, mesh):
    ranks, changes = MESHES[mesh]
    found = train('run', kind, ranks, changes)
    return [] if found == one[kind] else [f'{found}, expected {one[kind]}']


def case_several(kind, mesh):
    """The same bits, unless sums are those of other parts of the sequences."""
    ranks, changes = MORE_MESHES[mesh]
    found = train('run', kind, ranks, changes)
    if mesh not in ('parts', 'larger micro-steps'):
        return [] if found == one[kind] else [f'{found}, expected {one[kind]}']
    wrong = [f'{found[1]}, expected {one[kind][1]}'] * ([line[1:] for line in found[1]] != [line[1:] for line in one[kind][1]])
    return wrong + job.differ('losses and norms', *(sum((step[1:3] for step in steps), []) for steps in (found[0], one[kind][0])), 1e-5)


def case_several_leaves():
    """Leaves of sequences, one of which may end between two texts: the same bits on ranks that have parts of them."""
    leaves = {'training.seq_len': 32, 'model.max_seq_len': 32, 'training.row_leaves': 2, 'training.local_batch_size': 8, 'model.n_heads': 4, 'model.n_kv_heads': 2}
    expected, found = (train('run', 'several in bf16', ranks, {**leaves, 'parallelism.context_parallel_degree': ranks or 1}) for ranks in (0, 2))
    return [] if found == expected and expected[1][-1][2] == 80 else [f'{found}, expected {expected}']


def case_several_evaluated():
    """Loss, accuracy and F1 are those of the logits, also of some sequences; a head of labels is exported as it came."""
    job.sherd('eval', '--checkpoint', 'one-several/out', '--data', several, '-o', 'logits.jsonl')
    said = job.sherd('eval', '--checkpoint', 'one-several/out', '--data', several, ranks=2).split()
    words = dict(zip(said[::2], said[1::2]))
    logits = numpy.array([json.loads(line)['logits'] for line in pathlib.Path('logits.jsonl').read_text().splitlines()])
    y = numpy.array(shares)
    found, there = logits > 0, y >= 0.5
    right = {'loss': (numpy.log1p(numpy.exp(logits)) - y * logits).mean(), 'accuracy': (found == there).all(1).mean(),
             'f1': 2 * (found & there).sum() / (found.sum() + there.sum())}
    wrong = [f'{key} {words.get(key)}, expected {number}' for key, number in right.items() if abs(float(words[key]) - number) > 1e-4]
    wrong += [] if 0 < right['accuracy'] < 1 and 'perplexity' not in words else [f'{words}']
    wrong += job.differ('validation', [one['several'][1][-1][i] for i in (0, 1, -1)], list(right.values()), 1e-5)
    job.sherd('ckpt', 'export', 'one-several/out', '-o', 'several-folder')
    text = json.loads(pathlib.Path('several-folder/config.json').read_text())
    wrong += [] if text['problem_type'] == 'multi_label_classification' else [f'{text}']
    job.sherd('ckpt', 'import', 'several-folder', '-o', 'several-again')
    again = job.sherd('eval', '--checkpoint', 'several-again', '--data', several, '--training.seq_len=16', '--training.mixed_precision_param=float32').split()
    return wrong + ([] if again[:6] == said[:6] else [f'{again}, expected {said}'])


def case_parts():
    """Ranks with parts of texts count the same labels."""
    steps, lines = train('parts', 'gpt2', 4, {'parallelism.context_parallel_degree': 2, 'parallelism.context_parallel_method': 'gather',
                                              'training.reproducible': 'none'})
    wrong = [f'{lines}, expected {one["gpt2"][1]}'] * ([line[1:] for line in lines] != [line[1:] for line in one['gpt2'][1]])
    return wrong + job.differ('losses and norms', *(sum((step[1:3] for step in found), []) for found in (steps, one['gpt2'][0])), 1e-5)


def case_resumed(kind):
    train('again', kind, 2, {'training.steps': 3})
    found = train('again', kind, 4, fresh=False)
    return [] if found == one[kind] else [f'{found}, expected {one[kind]}']


def case_learned():
    """A rule of the last word is learned, and counted text by text."""
    many = pairs.write_documents('many.bin', draw_texts(7, 1500), WORDS, 1)
    _, lines = train('learned', 'gpt2', changes={'training.dataset_path': many, 'training.steps': 200, 'validation.freq': 200,
                                                 'lr_scheduler.total_steps': 200, 'checkpoint.interval': 200})
    loss, accuracy, texts = lines[-1][:3]
    wrong = [] if accuracy > 0.9 and loss < 0.5 and texts == 40 else [f'{lines}']
    said = job.sherd('eval', '--checkpoint', 'learned/out', '--data', held_out).split()
    words = dict(zip(said[::2], said[1::2]))
    wrong += [] if abs(float(words['accuracy']) - accuracy) < 1e-6 and 'perplexity' not in words else [f'{said}, {accuracy}']
    return wrong + ([] if abs(one['gpt2'][0][0][1] - math.log(LABELS)) < 0.5 else [f'{one["gpt2"][0][0]}'])


ADAPTED = {'lora.rank': 2, 'lora.alpha': 4, 'validation.enable': False}


def case_adapters():
    """A matrix of labels is trained beside adapters, from that of the base on: the same bits on a rank, and on two and then
    four; `sherd eval` and a run from the exported folder have the trained one."""
    base = str(pathlib.Path('one-reward/out/checkpoint/step-00000006.h5').resolve())
    changes = {**ADAPTED, 'checkpoint.initial_load_path': base}
    steps, _ = train('adapted', 'reward', changes=changes)
    train('adapted-more', 'reward', 2, {**changes, 'training.steps': 3, 'parallelism.sharding_strategy': 'full_shard'})
    found, _ = train('adapted-more', 'reward', 4, changes, fresh=False)
    wrong = [] if found == steps else [f'{found}, expected {steps}']
    full, _ = train('full', 'reward', changes={'checkpoint.initial_load_path': base, 'checkpoint.initial_load_model_only': True,
                                               'training.steps': 1, 'validation.enable': False})
    wrong += [] if full[0][1] == steps[0][1] else [f'begins with a loss of {steps[0][1]}, the base with {full[0][1]}']
    sheet = job.sherd('ckpt', 'info', '--tensors', 'adapted/out/checkpoint/step-00000006.h5')
    wrong += [] if 'score.weight' in sheet and 'norm.weight' not in sheet else [sheet]
    wrong += [] if moved('adapted', 'score.weight') else ['score.weight stays as it was']
    loss = {}
    for name, words in ('end', ['--checkpoint', 'adapted/out']), ('begin', ['--checkpoint', 'one-reward/out']):
        said = job.sherd('eval', *words, '--data', scored).split()
        loss[name] = float(said[said.index('loss') + 1])
    job.sherd('ckpt', 'export', 'adapted/out', '--adapter', 'adapted-folder')
    _, lines = train('from-folder', 'reward', changes={
        **changes, 'validation.enable': True, 'lora.adapter_path': str(pathlib.Path('adapted-folder').resolve()),
        'training.steps': 1, 'validation.freq': 1, 'optimizer.lr': 1e-12})
    wrong += [] if abs(lines[-1][0] - loss['end']) < 1e-5 < abs(loss['begin'] - loss['end']) else [f'{lines}, {loss}']
    job.sherd('ckpt', 'export', 'adapted/out', '--merge', '-o', 'merged')
    at, found = tensor('merged/model.safetensors', 'score.weight')
    trained = checkpoint.read('adapted/out/checkpoint/step-00000006.h5')['score.weight'].ravel()
    return wrong + ([] if (found == trained).all() else [f'merged: {at}: {found}, expected {trained}'])


NEW = {**{key: CONFIG[key] for key in CONFIG if 'validation' not in key}, 'job.dump_folder': 'out', 'model.num_labels': LABELS,
       'training.steps': 2, 'checkpoint.interval': 1, 'checkpoint.create_seed_checkpoint': True, 'training.threads': 1, 'training.local_batch_size': 2}


NEW_WAYS = {'': {}, ', adapters': {'lora.rank': 2, 'lora.alpha': 4}, ', adapters on nf4': {'lora.rank': 2, 'lora.alpha': 4, 'lora.quantize_base': 'nf4'}}


def case_new_head(changes):
    """A language model's folder brings all but the matrix of labels, which has the values that a run without the folder draws, on any mesh;
    it is trained, taken up elsewhere and, beside adapters, merged. A folder of labels without it is damaged."""
    words, few = TOP / 'tests/hf/llama', pairs.write_documents('few.bin', [([i % 32, i % 7], [i % LABELS]) for i in range(40)], 32, 1)
    new = {**NEW, 'training.dataset_path': few, 'model.hf_assets_path': str(words), **changes}
    meshes = {'0': (0, {}), '2': (2, {'parallelism.sharding_strategy': 'full_shard'}), '4': MESHES['hybrid_shard 2 x 2']}
    runs = {name: job.train(f'new-{name}', {**new, **mesh}, ranks) for name, (ranks, mesh) in meshes.items()}
    found = {name: [checkpoint.read(f'new-{name}/out/checkpoint/step-{step:08}.h5') for step in range(3)] for name in meshes}
    wrong = [f'{name}: {runs[name]}, one rank: {runs["0"]}' for name in meshes if job.losses(runs[name]) != job.losses(runs['0'])]
    wrong += [f'{name}: {key} in step {step} is another' for name in meshes for step in range(3) for key, value in found['0'][step].items()
              if not numpy.array_equal(found[name][step][key], value)]
    first, head = found['0'][0], 'score.weight'
    wrong += [] if (first[head] != found['0'][2][head]).all() else ['score.weight is not trained']
    job.train('drawn', {**new, 'checkpoint.initial_load_in_hf': False, **({'lora.rank': 0} if changes else {})})
    drawn = checkpoint.read('drawn/out/checkpoint/step-00000000.h5')
    wrong += [] if numpy.array_equal(first[head], drawn[head]) and first[head].std() > 0.01 else [f'drawn: {first[head]}, {drawn[head]}']
    if not changes:
        job.sherd('ckpt', 'import', words, '-o', 'words')
        given = checkpoint.read('words/step-00000000.h5')
        said = ''.join(job.launch('train', 'c.yaml', '--job.dump_folder=said', folder='new-0'))
        wrong += [] if "holds a language model: lm_head.weight is left out, and score.weight is the run's own" in said else [said]
        wrong += [f'tensors {sorted(first)}'] * (first.keys() - {head} != given.keys() - {'lm_head.weight'})
        wrong += [f'{key} is not that of the folder' for key in first.keys() - {head} if not numpy.array_equal(first[key], given[key])]
    (pathlib.Path('new-2/out/checkpoint/step-00000002.h5')).unlink()
    job.sherd('train', 'c.yaml', *(f'--{key}={value}' for key, value in meshes['4'][1].items()), ranks=4, folder='new-2')
    wrong += [] if job.losses(job.metrics('new-2'))[-1] == job.losses(runs['0'])[-1] else ['resumed on four ranks, it goes on otherwise']
    wrong += [] if 'score' in job.sherd('plan', 'c.yaml', '--show', folder='new-0') else ['the plan has no matrix of labels']
    job.sherd('ckpt', 'export', 'new-0/out', *(['--merge'] if changes else []), '-o', 'new-folder')
    wrong += [] if (tensor('new-folder/model.safetensors', head)[1] == found['0'][2][head].ravel()).all() else ['exported: another score.weight']
    wrong += [] if 'accuracy' in job.sherd('eval', '--checkpoint', 'new-0/out', '--data', few) else ['no accuracy']
    shutil.rmtree('new-folder')
    shutil.copytree(words, 'lacking')
    text = pathlib.Path('lacking/config.json')
    text.write_text(text.read_text().replace('ForCausalLM', 'ForSequenceClassification').replace('"attention_bias"', '"num_labels": 3, "attention_bias"'))
    wrong += refused('1 of the model\'s tensors are missing, the first of them score.weight', 'train', 'c.yaml',
                     f'--model.hf_assets_path={text.parent.absolute()}', '--job.dump_folder=other', folder='new-0')
    shutil.rmtree('lacking')
    return wrong


def tensor(path, name):
    """Where a float32 tensor of a file lies, and its elements."""
    data = pathlib.Path(path).read_bytes()
    size = struct.unpack_from('<Q', data)[0]
    entry = json.loads(data[8:8 + size])[name]
    begin, end = entry['data_offsets']
    return entry, numpy.frombuffer(data[8 + size + begin:8 + size + end], '<f4')


def moved(folder, name):
    first, last = (checkpoint.read(f'{folder}/out/checkpoint/step-{step:08}.h5')[name] for step in (3, 6))
    return (first != last).any()


STAGES = ('--parallelism.pipeline_parallel_degree=2', '--parallelism.sharding_strategy=shard_grad_op')


def case_scores(kind, ranks, *words):
    """The file with the scores of texts."""
    file = pathlib.Path(f'{kind}-{ranks}-{len(words)}.jsonl')
    job.sherd('eval', '--checkpoint', f'one-{kind}/out', '--data', {'reward': scored, 'regression': numbered}[kind], '-o', file, *words,
              ranks=ranks)
    return file.read_text()


def case_logits(kind):
    """The logits of labels are the same on all meshes, and those of the loss and the accuracy."""
    folder, right = f'one-{kind}'.replace(' ', '-'), draw_texts(2, 40)
    files, words = {}, {}
    meshes = {'one rank': (0,), 'two': (2,), 'stages': (2, *STAGES), 'parts': (2, '--parallelism.context_parallel_degree=2', '--training.reproducible=none')}
    for name, (ranks, *more) in meshes.items():
        if name == 'parts' and kind != 'gpt2':
            continue  # sums of parts are not those of wholes in bfloat16
        said = job.sherd('eval', '--checkpoint', f'{folder}/out', '--data', held_out, '-o', 'logits.jsonl', *more, ranks=ranks).split()
        words[name], files[name] = dict(zip(said[::2], said[1::2])), pathlib.Path('logits.jsonl').read_text()
    lines = {name: [json.loads(line) for line in file.splitlines()] for name, file in files.items()}
    wrong = [f'{name}: other logits than on one rank: {files[name]}' for name in files if name != 'parts' and files[name] != files['one rank']]
    logits = {name: numpy.array([line['logits'] for line in found]) for name, found in lines.items()}
    wrong += [f'{name}: {found.shape}, or off' for name, found in logits.items()
              if found.shape != (40, LABELS) or abs(found - logits['one rank']).max() > 1e-5]
    wrong += [] if [line['document'] for line in lines['one rank']] == list(range(40)) else [files['one rank']]
    one_rank, answers = logits['one rank'], [label for _, (label,) in right]
    losses = numpy.log(numpy.exp(one_rank).sum(1)) - one_rank[range(40), answers]
    wrong += job.differ('loss of the logits', [losses.mean()], [float(words['one rank']['loss'])], 1e-5)
    accuracy = (one_rank.argmax(1) == answers).mean()
    wrong += [] if abs(accuracy - float(words['one rank']['accuracy'])) < 1e-6 else [f'{accuracy}, said {words}']
    job.sherd('eval', '--checkpoint', f'{folder}/out', '--data', held_out, '-o', 'logits.jsonl', '--sequences', 1)
    few = pathlib.Path('logits.jsonl').read_text().splitlines()
    return wrong + ([] if 0 < len(few) < 40 and set(few) <= set(files['one rank'].splitlines()) else [f'of one sequence: {few}'])


def case_values(kind):
    """The metrics are there, and `sherd eval` finds those of the validation; a head alone is exported as it came."""
    last, validation = one[kind][0][-1], one[kind][1][-1]
    said = job.sherd('eval', '--checkpoint', f'one-{kind}/out', '--data', {'reward': scored, 'regression': numbered}[kind]).split()
    words = dict(zip(said[::2], said[1::2]))
    keys = {'reward': {'loss': 0, 'accuracy': 1, 'mean_reward': 3, 'margin': 4, 'pairs': 5, 'min_reward': 7, 'max_reward': 8}, 'regression': {'loss': 0, 'texts': 6}}[kind]
    wrong = [f'{key} {words.get(key)}, expected {validation[i]}' for key, i in keys.items()
             if key not in words or abs(float(words[key]) - validation[i]) > 1e-5]
    files = {ranks: case_scores(kind, ranks) for ranks in ((0, 2) if job.can_launch() else (0,))}
    if job.can_launch():
        files['stages'] = case_scores(kind, 2, *STAGES)
    wrong += [] if len(set(files.values())) == 1 else [f'scores differ between ranks: {files}']
    lines = [json.loads(line) for line in files[0].splitlines()]
    wrong += [] if [line['document'] for line in lines] == list(range(len(lines))) else [f'{lines}']
    scores = [line['score'] for line in lines]
    if kind == 'reward':
        chosen, rejected = scores[::2], scores[1::2]
        numbers = {'pairs': len(chosen), 'mean_reward': sum(scores) / len(scores),
                   'min_reward': min(scores), 'max_reward': max(scores),
                   'margin': sum(c - r for c, r in zip(chosen, rejected)) / len(chosen),
                   'accuracy': sum(c > r for c, r in zip(chosen, rejected)) / len(chosen)}
    else:
        numbers = {'texts': len(scores), 'loss': sum((x - text[-1] / WORDS) ** 2 for x, text in zip(scores, texts)) / len(scores)}
    wrong += [f'{key} of the scores is {number}, printed {words[key]}' for key, number in numbers.items()
              if abs(float(words[key]) - number) > 1e-5 * max(1, abs(number))]
    there = [number is not None for number in last]
    wrong += [] if there[4:] == [kind == 'reward', kind != 'reward', *5 * [kind == 'reward']] else [f'{last}']
    job.sherd('ckpt', 'export', f'one-{kind}/out', '-o', f'{kind}-folder')
    found = json.loads(pathlib.Path(f'{kind}-folder/config.json').read_text())
    right = {'id2label': {'0': 'LABEL_0'}, 'problem_type': 'regression' if kind == 'regression' else None}
    wrong += [f'{found}' for key, value in right.items() if found.get(key) != value]
    plan = job.sherd('plan', '--model.hf', f'{kind}-folder', f'--objective.name={kind}', '--training.seq_len=16', '--ranks', 1)
    job.sherd('ckpt', 'import', f'{kind}-folder', '-o', f'{kind}-again')
    job.sherd('ckpt', 'export', f'{kind}-again', '-o', f'{kind}-back')
    both = [pathlib.Path(f'{kind}-{name}/model.safetensors').read_bytes() for name in ('folder', 'back')]
    wrong += [] if both[0] == both[1] else ['an import changes the weights']
    return wrong + ([] if 'score' in json.dumps(found['architectures']) or 'ForSequenceClassification' in found['architectures'][0] and plan else [f'{found}'])


def refused(says, *words, folder='.'):
    try:
        job.sherd(*words, folder=folder)
    except job.Failed as failed:
        return [] if says in str(failed) else [f'{words}: {failed}']
    return [f'{words}: it was taken']


def case_refused():
    job.prepare('refused', config('gpt2', {}))
    pathlib.Path('words.txt').write_text('some words')
    more = pairs.write_documents('more.bin', [*draw_texts(3, 5), ([1, 2], [LABELS])], WORDS, 1)
    rows = [('sequence 5 has the label 3, but model.num_labels is 3', f'--training.dataset_path={more}', '--data.shuffle=false'),
            ('concat cuts texts', '--data.packing=concat'), ('cuts the label off', '--data.excess_length_strategy=truncate'),
            ('cuts the label off', '--data.excess_length_strategy=split'), ('give objective.name=regression', '--model.num_labels=1'),
            ('has a loss of its own', '--objective.name=distillation'), ('has a loss of its own', '--objective.name=dpo'),
            ('give model.num_labels=1', '--objective.name=reward'), ('give model.num_labels=1', '--model.num_labels=0', '--objective.name=regression'),
            ('objective.name: there is no class for values of texts', '--model.num_labels=0', '--objective.name=reward', '--model.family=granite'),
            ('has no effect without objective.name=reward', '--objective.center_rewards_coefficient=0.1'),
            ('has no pairs of answers, labels or numbers; objective.name=regression learns from files of `sherd tokenize --format regression`', '--model.num_labels=1', '--objective.name=regression'),
            (f'are for objective.name=regression', '--model.num_labels=1', '--objective.name=reward', f'--training.dataset_path={numbered}'),
            ('texts with numbers; give objective.name=regression', f'--training.dataset_path={numbered}'),
            ('texts with several labels each; give objective.name=multi_label', f'--training.dataset_path={several}'),
            ('numbers for 3 labels, but model.num_labels is 4', f'--training.dataset_path={several}', '--objective.name=multi_label', '--model.num_labels=4'),
            ('objective.name=multi_label learns from files of `sherd tokenize --format multi_label`', '--objective.name=multi_label'),
            ('has the number 1.5 for label 1, which is not from 0 to 1', '--objective.name=multi_label', '--validation.enable=false',
             f'--training.dataset_path={pairs.write_values("beyond.bin", texts, [[0, 1.5, 1]] * 80, WORDS)}'),
            ('give model.num_labels, 2 or more', '--objective.name=multi_label', '--model.num_labels=0'),
            ('those of one set', '--objective.name=multi_label', f'--data.mix={several}=1', '--training.dataset_path='),
            ('those of one set', '--model.num_labels=1', '--objective.name=reward', f'--data.mix={scored}=1', '--training.dataset_path='),
            ('an output matrix of words', '--parallelism.tensor_parallel_degree=5', '--training.reproducible=none'),
            ('no rank has whole sequences', '--model.num_labels=1', '--objective.name=regression',
             '--parallelism.context_parallel_degree=5', '--training.reproducible=none')]
    wrong = [line for says, *words in rows for line in refused(says, 'train', 'c.yaml', *words, folder='refused')]
    job.prepare('olmoe', {key: value for key, value in {**config('llama in bf16', {}), **tiny.EXPERTS, 'model.family': 'olmoe'}.items()
                          if key not in ('model.first_dense_layers', 'model.shared_ffn_dim', 'model.n_kv_heads')})
    job.sherd('train', 'c.yaml', '--model.num_labels=0', f'--training.dataset_path={more}', '--validation.enable=false', '--training.steps=1', folder='refused')
    wrong += refused('`sherd ckpt export` makes a folder of it', 'train', 'c.yaml', '--job.dump_folder=other', '--checkpoint.initial_load_path=out/checkpoint/step-00000001.h5', folder='refused')
    wrong += refused('no class for labels', 'plan', 'c.yaml', folder='olmoe')
    train('bytes', 'gpt2', changes={'model.vocab_size': 256, 'training.steps': 1})
    model = ('--checkpoint', pathlib.Path('bytes/out'))
    wrong += refused('does not predict tokens', 'generate', *model, '--prompt', 'a', '--tokenizer', 'byte')
    wrong += refused('does not predict tokens', 'eval', *model, '--text', 'words.txt', '--tokenizer', 'byte')
    return wrong + refused('does not predict tokens', 'eval', *model, '--data', held_out, '--top-k', 2, '-o', 'x.bin')


def read(path):
    """The documents of a file (doc/data.md), each a list of ids."""
    data = pathlib.Path(path).read_bytes()
    _, _, width, _, count, documents, offsets_at, tokens_at, _ = struct.unpack_from('<4i5q', data)
    offsets = struct.unpack_from(f'<{documents + 1}q', data, offsets_at)
    tokens = struct.unpack_from(f'<{count}{"H" if width == 2 else "I"}', data, tokens_at)
    return [list(tokens[a:b]) for a, b in zip(offsets, offsets[1:])]


def numbers_of(path, width=1):
    data = pathlib.Path(path).read_bytes()
    return list(struct.unpack_from(f'<{struct.unpack_from("<q", data, 24)[0] * width}d', data, struct.unpack_from('<q', data, 104)[0]))


def tokenized_values(tokenizer):
    """A number is kept to the bit; a margin is that of the chosen answer; the last token alone is a target."""
    texts = [{'text': 'A good film.', 'label': 0.1}, {'text': 'Bad!', 'label': -3}]
    answers = [{'prompt': 'Is it?', 'chosen': ' Yes.', 'rejected': ' No, no.', 'margin': 0.3},
               {'prompt': 'Was it?', 'chosen': ' No.', 'rejected': ' Yes.'}]
    wrong = []
    for name, lines, numbers, rest in (('regression', texts, [0.1, -3], []), ('reward', answers, [0.3, 0, 0, 0], ['--eos', '<|end_of_text|>'])):
        pathlib.Path(f'{name}.jsonl').write_text(''.join(json.dumps(line) + '\n' for line in lines))
        said = job.sherd('tokenize', f'{name}.jsonl', '-o', f'{name}.bin', '--tokenizer', tokenizer, '--format', name, *rest)
        wrong += [] if numbers_of(f'{name}.bin') == numbers else [f'{numbers_of(f"{name}.bin")}, expected {numbers}']
        wrong += [] if f'; {len(numbers)} tokens are learned' in said else [said]
        wrong += [] if all(ids[-1] == 0 for ids in read(f'{name}.bin')) else [f'{read(f"{name}.bin")}']
    job.sherd('tokenize', 'reward.jsonl', '-o', 'pairs.bin', '--tokenizer', tokenizer, '--format', 'preference', *rest)
    wrong += [] if [ids[:-1] for ids in read('reward.bin')] == read('pairs.bin') else [f'{read("pairs.bin")}']
    for name, line, says in (('regression', {'text': 'a', 'label': 'b'}, '"label" is a string, not a number'),
                             ('regression', {'text': 'a', 'label': True}, 'not a number'), ('regression', {'text': '', 'label': 1}, '"text" is empty'),
                             ('reward', {**answers[0], 'margin': '1'}, '"margin" is a string, not a number')):
        pathlib.Path('bad.jsonl').write_text(json.dumps(line) + '\n')
        wrong += refused(says, 'tokenize', 'bad.jsonl', '-o', 'bad.bin', '--tokenizer', tokenizer, '--format', name,
                         *(rest if name == 'reward' else []))
    return wrong


def tokenized_sets(tokenizer):
    """Labels by number, by name, as a number for each, or as keys of the line; what is none of these is refused."""
    names, sets = ['joy', 'anger', 'fear'], [[1, 0, 1], [0, 0, 0], [0, 1, 0], [0.25, 1, 0], [1, 1, 0]]
    tokenize = ('-o', 'sets.bin', '--tokenizer', tokenizer, '--format', 'multi_label', '--labels')
    lists = ['[2, 0]', '[]', '[1]', '[0.25, 1.0, 0]', '[0, 1]'], ['["joy", "fear"]', '[]', '["anger"]', '[0.25, 1, 0.0]', '[true, true, false]'], \
            ['[1, 0, 1]', '[0, 0, 0]', '[false, true, false]', '[0.25, 1, 0]', '["joy", 1]']
    wrong = []
    for which, labels in enumerate(lists):
        pathlib.Path('sets.jsonl').write_text(''.join(f'{{"text": "A film.", "label{"s" * (which != 1)}": {text}}}\n' for text in labels))
        job.sherd('tokenize', 'sets.jsonl', *tokenize, ','.join(names) if which else '3')
        found = numbers_of('sets.bin', 3)
        wrong += [] if found == sum(sets, []) else [f'{labels}: {found}']
        wrong += [] if all(ids[-1] == 0 for ids in read('sets.bin')) and len(read('sets.bin')) == 5 else [f'{read("sets.bin")}']
    pathlib.Path('sets.jsonl').write_text(''.join(json.dumps({'text': 'A film.', 'id': 7, **dict(zip(names, some))}) + '\n' for some in sets))
    job.sherd('tokenize', 'sets.jsonl', *tokenize, ','.join(names))
    wrong += [] if numbers_of('sets.bin', 3) == sum(sets, []) else [f'keys of a line: {numbers_of("sets.bin", 3)}']
    for labels, line, says in (('3', '{"labels": [3]}', 'entry 1 of "labels" is none of the labels'), ('3', '{"labels": [0, "joy"]}', 'entry 2 of'),
                               ('3', '{"labels": [0, 0]}', 'is there twice'), ('joy,anger', '{"labels": ["anger", "fear"]}', 'entry 2 of'),
                               ('2', '{"labels": [0, 1]}', 'both the list of both labels'), ('3', '{"labels": 1}', 'is a whole number, not a list'),
                               ('3', '{"labels": [0.5, 2, 0]}', 'entry 1 of'), ('joy,anger', '{"joy": 1}', 'is missing, not a list'),
                               ('joy,anger', '{"joy": 1, "anger": "no"}', 'is missing, not a list'), ('1', '{}', 'needs --labels'), ('joy', '{}', 'needs --labels'),
                               ('joy,joy', '{}', "'joy' is there twice"), ('joy, anger', '{}', "' anger' has a blank"), ('joy,', '{}', 'name 2 is empty')):
        pathlib.Path('bad.jsonl').write_text(line.replace('{', '{"text": "a", ', 1).replace(', }', '}') + '\n')
        wrong += refused(says, 'tokenize', 'bad.jsonl', *tokenize, labels)
    wrong += refused('needs --labels', 'tokenize', 'bad.jsonl', *tokenize[:-1])
    return wrong + refused('--labels is for --format multi_label', 'tokenize', 'bad.jsonl', *tokenize[:-2], 'classification', '--labels', '3')


def case_tokenize():
    """A text with its label, as the tokenizer has it, without an end of text."""
    tokenizer = TOP / 'tests/golden/tokenizer/llama3.json'
    texts = [{'text': 'A good film.', 'label': 1}, {'text': 'Bad!', 'label': 0}, {'text': 'So so', 'label': 2}]
    pathlib.Path('texts.jsonl').write_text(''.join(json.dumps(text) + '\n' for text in texts))
    pathlib.Path('reviews.jsonl').write_text(json.dumps({'review': 'Bad!', 'label': 0}) + '\n')
    tokenize = ('tokenize', 'texts.jsonl', '-o', 'texts.bin', '--tokenizer', tokenizer, '--format', 'classification')
    job.sherd(*tokenize)
    job.sherd('tokenize', 'reviews.jsonl', '-o', 'reviews.bin', *tokenize[4:], '--field', 'review')
    ids = {name: read(f'{name}.bin') for name in ('texts', 'reviews')}
    job.sherd('tokenize', 'texts.jsonl', '-o', 'plain.bin', '--tokenizer', tokenizer, '--documents', '--no-eos')
    wrong = [] if ids['texts'] == [[*text, line['label']] for text, line in zip(read('plain.bin'), texts)] else [f'{ids}']
    wrong += [] if ids['reviews'] == ids['texts'][1:2] else [f'{ids}']
    for line, says in (({'text': 'a'}, '"label" is no whole number'), ({'text': 'a', 'label': -1}, '"label" is no whole number'),
                       ({'text': 'a', 'label': True}, '"label" is no whole number'), ({'label': 1}, '"text" is missing'),
                       ({'text': '', 'label': 1}, '"text" is'), ({'text': 'a', 'label': 2**40}, '"label" is no whole number')):
        pathlib.Path('bad.jsonl').write_text(json.dumps(line) + '\n')
        wrong += refused(says, 'tokenize', 'bad.jsonl', *tokenize[2:])
    wrong += tokenized_values(tokenizer) + tokenized_sets(tokenizer)
    wrong += refused('--chat-template is for', *tokenize, '--chat-template', 'chatml')
    wrong += refused('--eos is for', *tokenize, '--eos', 'x')
    return wrong


if __name__ == '__main__':
    job.need_launcher()
    data = pairs.write_documents('texts.bin', draw_texts(1, 160), WORDS, 1)
    held_out = pairs.write_documents('held-out.bin', draw_texts(2, 40), WORDS, 1)
    texts = [text for text, _ in draw_texts(5, 80, 7)]
    numbered = pairs.write_values('numbered.bin', texts, [text[-1] / WORDS for text in texts], WORDS)
    scored = pairs.write_values('scored.bin', texts, [0.1 * (i % 4) for i in range(80)], WORDS, pairs=True)
    shares = [[float(text[-1] % 2), float(text[0] % 3 == 0), text[-1] / WORDS if i % 3 else 0.0] for i, text in enumerate(texts)]
    several = pairs.write_values('several.bin', texts, shares, WORDS)
    one = {kind: train(f'one-{kind}'.replace(' ', '-'), kind) for kind in [*KINDS, *VALUES, *SEVERAL]}
    sys.exit(job.run_cases([*((f'{kind}: {mesh}', case_mesh, kind, mesh) for kind in KINDS for mesh in MESHES),
                            *((f'{kind}: {mesh}', case_mesh, kind, mesh) for kind in VALUES for mesh in [*MESHES][::2]),
                            *((f'{kind}: evaluated and exported', case_values, kind) for kind in VALUES),
                            *((f'{kind}: {mesh}', case_several, kind, mesh) for kind, meshes in
                              (('several', [*MORE_MESHES][:3] + ['parts', 'larger micro-steps']), ('several in bf16', [*MORE_MESHES][1:4])) for mesh in meshes),
                            ('several: leaves', case_several_leaves),
                            ('several: evaluated and exported', case_several_evaluated),
                            *((f'{kind}: logits', case_logits, kind) for kind in KINDS),
                            *((f'{kind}: resumed', case_resumed, kind) for kind in KINDS),
                            ('parts of sequences', case_parts), ('adapters', case_adapters),
                            *((f'a new head{name}', case_new_head, changes) for name, changes in NEW_WAYS.items()), ('the rule is learned', case_learned), ('refused', case_refused),
                            ('sherd tokenize', case_tokenize)]))
