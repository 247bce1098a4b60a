#!/usr/bin/env python3
"""Distillation on meshes: a teacher writes the same file and a student has the same bits on each, for a stream and for
packed documents; files that do not fit are refused with their place. Prints TAP.
"""
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job
import pairs
import tiny

CONFIG = {'training.seq_len': 16, 'training.global_batch_size': 8, 'training.steps': 6, 'training.reproducible': 'mesh',
          'metrics.log_freq': 1, 'checkpoint.interval': 3, 'checkpoint.keep_latest_k': 0}
STUDENT = {'objective.name': 'distillation', 'objective.top_k': 7, 'objective.temperature': 1.7, 'objective.alpha': 0.8}
MESHES = {
    'full_shard over 2': (2, {'parallelism.sharding_strategy': 'full_shard'}),
    'shard_grad_op over 4': (4, {'parallelism.sharding_strategy': 'shard_grad_op'}),
    'hybrid_shard 2 x 2': (4, {'parallelism.sharding_strategy': 'hybrid_shard', 'mesh.shard': 2, 'mesh.replicate': 2}),
    'no_shard over 4': (4, {'parallelism.sharding_strategy': 'no_shard'}),
}
KINDS = {'gpt2': tiny.MODELS['gpt2'],
         'llama in bf16': {**tiny.MODELS['llama'], 'training.mixed_precision_param': 'bfloat16'},
         'llama, documents': {**tiny.MODELS['llama'], 'model.n_heads': 4, 'model.n_kv_heads': 2, 'data.packing': 'bfd'}}
NUMBERS = ('step', 'loss', 'grad_norm', 'targets', 'teacher', 'mean_token_accuracy')
HEADER, PLACE = 56, 4  # bytes of the header, and of a word with its log-probability


class Kind:
    """A folder with a teacher's checkpoint, its file, and the steps of a student on one rank."""

    def __init__(self, kind):
        self.folder = pathlib.Path(kind.replace(', ', '-').replace(' ', '-'))
        self.data = documents if 'documents' in kind else tokens
        self.c = {'job.dump_folder': 'out', **KINDS[kind], **CONFIG, 'training.dataset_path': self.data}
        job.prepare(self.folder, {})
        self.run('teacher', {'training.steps': 3, 'optimizer.lr': 0.05})
        self.teacher = (self.folder / 'teacher/out').resolve()
        self.teach('top.bin')
        self.top = (self.folder / 'top.bin').resolve()
        self.one = self.student('one')

    def run(self, folder, changes, ranks=0, fresh=True):
        path = self.folder / folder
        if fresh:
            job.prepare(path, {})
        (path / 'c.yaml').write_text(job.yaml({**self.c, **changes}))
        job.sherd('train', 'c.yaml', ranks=ranks, folder=path)
        return [[step.get(key) for key in NUMBERS] for step in job.metrics(path)]

    def teach(self, name, *words, ranks=0):
        return job.sherd('eval', '--checkpoint', self.teacher, '--data', self.data, '--top-k', 9, '-o', name, *words,
                         folder=self.folder, ranks=ranks)

    def student(self, folder, ranks=0, changes=None, fresh=True):
        return self.run(folder, {**STUDENT, 'objective.teacher_path': str(self.top), **(changes or {})}, ranks, fresh)


def case_teacher(kind, ranks):
    k = kinds[kind]
    k.teach('again.bin', ranks=ranks)
    return [] if (k.folder / 'again.bin').read_bytes() == k.top.read_bytes() else ['the file has other bytes']


def case_mesh(kind, mesh):
    k, (ranks, changes) = kinds[kind], MESHES[mesh]
    found = k.student('mesh', ranks, changes)
    return [] if found == k.one else [f'{found}, expected {k.one}']


def case_resumed(kind):
    k = kinds[kind]
    k.student('again', 2, {'training.steps': 3, 'parallelism.sharding_strategy': 'full_shard'})
    found = k.student('again', 4, {'parallelism.sharding_strategy': 'shard_optim'}, fresh=False)
    return [] if found == k.one else [f'{found}, expected {k.one}']


def case_parts(kind, method):
    """Ranks with parts of sequences write the same file, and learn the same from it."""
    k, cut = kinds[kind], {'parallelism.context_parallel_degree': 2, 'parallelism.context_parallel_method': method,
                           'training.reproducible': 'none'}
    k.teach('again.bin', *(f'--{key}={value}' for key, value in cut.items()), ranks=2)
    found, wanted = (path.read_bytes() for path in (k.folder / 'again.bin', k.top))
    alike = sum(a == b for a, b in zip(found, wanted)) / len(wanted)  # gathered keys are added in another order
    wrong = [] if len(found) == len(wanted) and (found == wanted or (method == 'gather' and alike > 0.95)) else [
        f'the file has other bytes, {alike:.1%} of them equal']
    return wrong + job.differ('losses and norms', *(sum((step[:3] for step in steps), []) for steps in (k.student('parts', 4, cut), k.one)), 1e-5)


def case_leaves():
    k, longer = kinds['llama, documents'], {'model.max_seq_len': 32, 'training.seq_len': 32}
    k.teach('long.bin', *(f'--{key}={value}' for key, value in longer.items()))
    longer |= {'training.row_leaves': 2, 'training.local_batch_size': 8, 'objective.teacher_path': '../long.bin'}
    one, two = (k.student('leaves', n, {**longer, 'parallelism.context_parallel_degree': n}) for n in (1, 2))
    return [] if one == two else [f'{two}, expected {one}']


def case_with(changes):
    """One rank and two, with what other runs have."""
    k = kinds['llama, documents']
    begin = sorted((k.teacher / 'checkpoint').glob('step-*.h5'))[-1]
    changes = {**changes, 'checkpoint.initial_load_path': str(begin), 'checkpoint.initial_load_model_only': 'lora.rank' not in changes}
    one, two = k.student('with', 1, changes), k.student('with', 2, {**changes, 'parallelism.sharding_strategy': 'full_shard'})
    return [] if one == two and all(step[2] > 0 for step in one) else [f'{one}, {two}']


def case_matters():
    """Each number changes the loss; the teacher's own loss is smaller than a stranger's."""
    k = kinds['gpt2']
    first = {name: k.student('matters', changes={**changes, 'training.steps': 1})[0][1] for name, changes in (
        ('as it is', {}), ('top_k', {'objective.top_k': 6}), ('temperature', {'objective.temperature': 1.6}),
        ('alpha', {'objective.alpha': 0.7}), *((form, {'objective.kd_form': form, 'objective.temperature': 1}) for form in
                                               ('normalized', 'stored', 'tail')))}
    wrong = [] if len(set(first.values())) == 7 else [f'{first}']
    begin = sorted((k.teacher / 'checkpoint').glob('step-*.h5'))[-1]
    own = k.student('own', changes={'training.steps': 1, 'objective.alpha': 1, 'checkpoint.initial_load_path': str(begin),
                                    'checkpoint.initial_load_model_only': True})[0][1]
    return wrong + ([] if own < first['as it is'] else [f'own {own}, {first}'])


def case_validation():
    """Without a teacher: the loss of the next token, as `sherd eval` has it."""
    k = kinds['gpt2']
    k.student('valid', 2, {'training.steps': 3, 'validation.enable': True, 'validation.dataset_path': tokens,
                           'validation.freq': 3, 'validation.sequences': 0})
    lines = (k.folder / 'valid/out/metrics.jsonl').read_text().splitlines()
    loss = [json.loads(line)['validation_loss'] for line in lines if 'validation_loss' in line][-1]
    said = job.sherd('eval', '--checkpoint', 'valid/out', '--data', tokens, folder=k.folder)
    return [] if abs(float(said.split()[1]) - loss) < 2e-6 else [f'{loss}, eval says {said}']


def refused(says, function, *arguments, **how):
    try:
        function(*arguments, **how)
    except job.Failed as failed:
        return [] if says in str(failed) else [f'{says}: {failed}']
    return [f'{says}: it was taken']


def student_refused(says, **changes):
    k = kinds['gpt2']
    return refused(says, k.student, 'refused', changes={key.replace('__', '.'): value for key, value in changes.items()})


def case_files():
    """Missing, short, damaged and foreign files."""
    k, bad = kinds['gpt2'], pathlib.Path('bad.bin').absolute()
    good = k.top.read_bytes()
    record = 16 + CONFIG['training.seq_len'] * 9 * PLACE
    first = HEADER + 2 * record
    wrong = student_refused('objective.teacher_path is not set', objective__teacher_path='')
    wrong += student_refused('No such file', objective__teacher_path='nowhere.bin')
    for data, says in ((b'', 'is no file of a teacher'), (b'x' + good[1:], 'is no file of a teacher'),
                       (good[:20] + b'?' + good[21:], 'its header does not match its sum'), (good[:-1], 'it was cut short'),
                       (good + b'x', 'something was added'), (good[:40] + b'?' + good[41:], 'its header does not match'),
                       (good[:first + 30] + bytes([good[first + 30] ^ 1]) + good[first + 31:], 'sequence 2 does not match its sum'),
                       (good[:first] + good[first + record:first + 2 * record] + good[first + record:],
                        'sequence 2 has other tokens than the training data')):
        bad.write_bytes(data)
        wrong += student_refused(says, objective__teacher_path=str(bad), data__shuffle=False)
    stream = bytearray(pathlib.Path(tokens).read_bytes())
    stream[2 * (2 * CONFIG['training.seq_len'] + 3)] ^= 1
    pathlib.Path('other.bin').write_bytes(stream)
    other = str(pathlib.Path('other.bin').absolute())
    wrong += student_refused('sequence 2 has other tokens', training__dataset_path=other, data__shuffle=False)
    wrong += student_refused('make it of the same data, training.seq_len', training__seq_len=8)
    wrong += student_refused('has 9 tokens for each place', objective__top_k=10)
    wrong += student_refused('did not keep documents apart', data__document_mask=True, data__document_separator=7)
    pathlib.Path('narrow.bin').write_bytes(bytes(2 * (200 * tiny.SEQ_LEN + 1)))
    return wrong + student_refused('with 61 words, but model.vocab_size is 60', model__vocab_size=60,
                                   training__dataset_path=str(pathlib.Path('narrow.bin').absolute()))


def case_tokenizer():
    """Of the same tokenizer.json, wherever it is."""
    k, named = kinds['gpt2'], {}
    for name, word in ('one', 'a'), ('copy', 'a'), ('other', 'b'):
        path = pathlib.Path(f'words-{name}').absolute()
        path.mkdir()
        (path / 'tokenizer.json').write_text('{"model": {"type": "BPE", "vocab": {"%s": 0}, "merges": []}}' % word)
        named[name] = str(path)
    k.teach('named.bin', f'--model.tokenizer={named["one"]}')
    use = {'objective__teacher_path': str((k.folder / 'named.bin').absolute()), 'training__steps': 1}
    wrong = student_refused('is of a teacher with another tokenizer.json', model__tokenizer=named['other'], **use)
    k.student('named', changes={key.replace('__', '.'): value for key, value in use.items()} | {'model.tokenizer': named['copy']})
    return wrong


def case_not_finite():
    """A teacher whose logits are no numbers ends with that, and leaves no file."""
    k = kinds['gpt2']
    job.sherd('ckpt', 'export', k.teacher, '-o', 'spoilt', folder=k.folder)
    path = k.folder / 'spoilt/model.safetensors'
    data = path.read_bytes()
    path.write_bytes(data[:-4] + b'\xff' * 4)
    job.sherd('ckpt', 'import', 'spoilt', '-o', 'nan', '--allow-nan', folder=k.folder)
    wrong = refused('which is not finite in float16', job.sherd, 'eval', '--checkpoint', 'nan', '--data', tokens,
                    '--top-k', 3, '-o', 'x.bin', '--training.seq_len=16', folder=k.folder, ranks=2)
    return wrong + [f'{path} was left' for path in k.folder.glob('*x.bin*')]


def case_refused():
    k = kinds['gpt2']
    wrong = refused('give its name with -o', job.sherd, 'eval', '--checkpoint', k.teacher, '--data', tokens, '--top-k', 3)
    wrong += refused('leave out --sequences', k.teach, 'x.bin', '--sequences', 3)
    wrong += refused('goes with --data', job.sherd, 'eval', '--checkpoint', k.teacher, '--text', tokens, '--top-k', 3)
    wrong += refused('-o goes with', job.sherd, 'eval', '--checkpoint', k.teacher, '--data', tokens, '-o', 'x.bin')
    wrong += refused('has only 61 words', job.sherd, 'eval', '--checkpoint', k.teacher, '--data', tokens, '--top-k', 62,
                     '-o', 'x.bin')
    wrong += refused('--top-k needs all blocks', kinds['llama, documents'].teach, 'x.bin', '--training.reproducible=none',
                     '--parallelism.tensor_parallel_degree=2', ranks=2)
    wrong += student_refused('has only 61 words', objective__top_k=62)
    wrong += student_refused('no rank has all words', parallelism__tensor_parallel_degree=5)
    wrong += student_refused('those of all words are needed', objective__kd_form='tail')
    wrong += student_refused('of one set', data__mix='a.bin=1', training__dataset_path='')
    for key, value in (('teacher_path', 'a.bin'), ('top_k', 5), ('temperature', 2), ('alpha', 0.5), ('kd_form', 'tail')):
        wrong += refused('has no effect without objective.name=distillation', job.sherd, 'train', 'c.yaml',
                         f'--objective.{key}={value}', folder=k.folder / 'teacher')
    wrong += [f'{path} was left' for path in k.folder.glob('*x.bin*')]
    return wrong


if __name__ == '__main__':
    job.need_launcher()
    tokens = tiny.write_tokens()
    draw = pairs.draw_pairs(6, 120, tiny.COMMON['model.vocab_size'], longest=6)
    documents = pairs.write_documents('documents.bin', [pair[:2] for pair in draw], tiny.COMMON['model.vocab_size'], 1)
    kinds = {kind: Kind(kind) for kind in KINDS}
    sys.exit(job.run_cases([*((f'{kind}: the teacher on {ranks} ranks', case_teacher, kind, ranks) for kind in KINDS
                              for ranks in (2, 4)),
                            *((f'{kind}: {mesh}', case_mesh, kind, mesh) for kind in KINDS for mesh in MESHES),
                            *((f'{kind}: resumed', case_resumed, kind) for kind in ('gpt2', 'llama, documents')),
                            *((f'{kind}: parts of sequences, {method}', case_parts, kind, method)
                              for kind, method in (('gpt2', 'gather'), ('llama, documents', 'ulysses'))),
                            ('leaves of parts', case_leaves), ('with adapters', case_with, {'lora.rank': 2}),
                            ('in float16', case_with, {'training.mixed_precision_param': 'float16'}),
                            ('with the rest as one word', case_with, {'objective.kd_form': 'tail', 'objective.temperature': 1}),
                            ('each number matters', case_matters), ('validation', case_validation),
                            ('files that do not fit', case_files), ('the tokenizer', case_tokenizer),
                            ('not finite', case_not_finite),
                            ('refused', case_refused)]))
