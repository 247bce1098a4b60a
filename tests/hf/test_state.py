#!/usr/bin/env python3
"""State folders: the weights, moments and numbers of a checkpoint come back to the bit, a run goes on from them as from
the checkpoint, and a wrong folder is one line with nothing left behind. Prints TAP.
"""
import array
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job

HERE = pathlib.Path(__file__).resolve().parent
RUN = {
    'training.seq_len': 15, 'training.local_batch_size': 2, 'training.global_batch_size': 2, 'training.steps': 3,
    'training.mixed_precision_param': 'float32', 'training.max_norm': 0, 'training.threads': 1, 'data.shuffle': False,
    'training.dataset_path': '../tokens.bin', 'optimizer.lr': 2e-3, 'optimizer.beta1': 0.8, 'optimizer.beta2': 0.98,
    'optimizer.eps': 1e-6, 'optimizer.weight_decay': 0.2, 'lr_scheduler.decay_type': 'constant',
}
KEYS = re.compile(r'--(optimizer\.\w+)=(\S+?),? ')


def tokens():
    with open('tokens.bin', 'wb') as f:
        array.array('H', json.loads((HERE / 'llama/expected.json').read_text())['tokens']).tofile(f)


def made(name, **change):
    """A run of three steps in folder `name`, and its state folder."""
    tokens()
    job.train(name, {'model.hf_assets_path': str(HERE / 'llama'), **RUN, **change})
    job.sherd('ckpt', 'export', 'out', '--moments', '-o', 'state', folder=name)
    return pathlib.Path(name)


def read(path):
    """Tensors by name, as bytes, from the description of the format alone."""
    data = path.read_bytes()
    length, = struct.unpack('<Q', data[:8])
    header = json.loads(data[8:8 + length])
    header.pop('__metadata__', None)
    return {name: (e['dtype'], e['shape'], data[8 + length + e['data_offsets'][0]:8 + length + e['data_offsets'][1]])
            for name, e in header.items()}


def npy(folder, name, state):
    job.sherd('ckpt', 'extract', 'out', name, '--state', state, '-o', 'x.npy', folder=folder)
    data = (folder / 'x.npy').read_bytes()
    (folder / 'x.npy').unlink()
    return data[10 + struct.unpack('<H', data[8:10])[0]:]


def folder_has_all():
    """Each tensor of each state, in float32; the numbers; the names that decay."""
    at = made('all', **{'optimizer.decay_all': False})
    wrong = []
    for state in 'model', 'exp_avg', 'exp_avg_sq':
        for name, (dtype, _, data) in read(at / f'state/{state}.safetensors').items():
            if dtype != 'F32' or data != npy(at, name, state):
                wrong.append(f'{state} {name}: not the numbers of the checkpoint')
    text = json.loads((at / 'state/state.json').read_text())
    names = read(at / 'state/model.safetensors')
    expected = {'format': 'sherd-state', 'version': 1, 'optimizer': 'AdamW', 'step': 3, 'updates': 3, 'samples': 6, 'tokens': 90,
                'lr': 2e-3, 'beta1': 0.8, 'beta2': 0.98, 'eps': 1e-6, 'weight_decay': 0.2, 'source': 'a checkpoint of Sherd',
                'decay': [name for name, (_, shape, _) in names.items() if len(shape) > 1]}
    text['decay'].sort()
    expected['decay'].sort()
    return wrong + [f'{key} is {text.get(key)!r}' for key in {*text, *expected} if text.get(key) != expected.get(key)]


def comes_back(decay_all):
    """The same files of several shards, the same checkpoint, and the keys that a run needs."""
    at = made('back', **{'optimizer.decay_all': decay_all})
    job.sherd('ckpt', 'export', 'out', '--moments', '--max-shard-size', 20000, '-o', 'shards', folder=at)
    said = job.launch('ckpt', 'import', 'state', '-o', 'one', folder=at)[1]
    job.sherd('ckpt', 'import', 'shards', '-o', 'two', folder=at)
    job.sherd('ckpt', 'export', 'one', '--moments', '-o', 'again', folder=at)
    wrong = [] if len(list(at.glob('shards/exp_avg_sq-*'))) > 1 else ['one shard']
    if (at / 'one/step-00000003.h5').read_bytes() != (at / 'two/step-00000003.h5').read_bytes():
        wrong.append('shards make another checkpoint')
    for file in at.glob('state/*'):
        if file.read_bytes() != (at / 'again' / file.name).read_bytes():
            wrong.append(f'{file.name} differs after a round trip')
    keys = dict(KEYS.findall(said))
    expected = {key: str(value).lower() for key, value in {**RUN, 'optimizer.decay_all': decay_all}.items()
                if key.startswith('optimizer.')}
    for key, value in expected.items():
        if keys.get(key) != value and float(keys.get(key, 'nan')) != float(value):
            wrong.append(f'{key} is said to be {keys.get(key)}, not {value}')
    return wrong


def goes_on(ranks):
    """A run that goes on from the state folder has the same bits as one that goes on from the checkpoint."""
    at = made('on')
    more = {**RUN, 'training.steps': 6, 'training.local_batch_size': 1, 'model.hf_assets_path': str(HERE / 'llama'), 'job.dump_folder': 'out'}
    job.sherd('ckpt', 'import', 'state', '-o', 'imported/checkpoint', folder=at)
    for folder in 'a', 'b':
        job.prepare(at / folder, {**more, 'training.dataset_path': '../../tokens.bin',
                                  'checkpoint.initial_load_path': '../out' if folder == 'a' else '../imported'})
        job.sherd('train', 'c.yaml', ranks=ranks, folder=at / folder)
    job.sherd('ckpt', 'diff', 'a/out', 'b/out', folder=at)
    return job.differ('losses', job.losses(job.metrics(at / 'b')), job.losses(job.metrics(at / 'a')), 0)


CHANGED = re.compile(r'^(\w+\.\w+): .* -> ', re.M)


def says_what_changes():
    """A run that goes on from an import names the keys of the other run that it changes, and none that nobody has given."""
    at, wrong = made('says'), []
    for source, words, keys in ('state', (), {'optimizer.lr'}), ('state', ('--weights-only',), set()):
        for folder, given in ('own/checkpoint', 'own'), ('imported', 'elsewhere'):
            job.sherd('ckpt', 'import', source, *words, '-o', folder, folder=at)
            job.prepare(at / 'c', {**RUN, 'optimizer.lr': 1e-3, 'training.steps': 5, 'job.dump_folder': given,
                                   'checkpoint.initial_load_path': folder, 'model.hf_assets_path': str(HERE / 'llama')})
            said = job.launch('train', 'c/c.yaml', folder=at)[1]
            if set(CHANGED.findall(said)) != keys or 'data changed' in said or 'now ends at' in said or 'did not note' in said:
                wrong.append(f'{words}: {said}')
            if bool(keys) != ('lr schedule changed: lr at step 3 was 2.00e-03, is 1.00e-03' in said):
                wrong.append(f'{words}: the rate: {said}')
            if ('which `sherd ckpt import` made; not compared with own/checkpoint' in said) != (given == 'own'):
                wrong.append(f'{words}: the start: {said}')
            shutil.rmtree(at / given)
            shutil.rmtree(at / folder, ignore_errors=True)
    return wrong


def edit(change):
    def make(folder):
        path = folder / 'state.json'
        content = json.loads(path.read_text())
        change(content)
        path.write_text(json.dumps(content))
    return make


def put(key, value):
    return edit(lambda content: content.update({key: value}))


def tensors(file, change):
    def make(folder):
        path = folder / file
        data = path.read_bytes()
        length, = struct.unpack('<Q', data[:8])
        header = json.loads(data[8:8 + length])
        body = bytearray(data[8 + length:])
        change(header, body)
        out = json.dumps(header).encode()
        path.write_bytes(struct.pack('<Q', len(out)) + out + body)
    return make


def first(file, value):
    def change(header, body):
        body[:4] = struct.pack('<f', value)
    return tensors(file, change)


def rename(header, _):
    header['model.norm.weights'] = header.pop('model.norm.weight')


def reshape(header, _):
    header['model.norm.weight']['shape'].insert(0, 1)


def halve(folder):
    os.truncate(folder / 'exp_avg.safetensors', (folder / 'exp_avg.safetensors').stat().st_size // 2)


def twice(folder):
    text = (folder / 'state.json').read_text()
    (folder / 'state.json').write_text(text.replace('"step": 3,', '"step": 3, "step": 4,'))


def others_write(folder):
    (folder / 'state.json').chmod(0o666)



BAD = [
    ('no step', edit(lambda c: c.pop('step')), 'state.json: step is missing'),
    ('step of text', put('step', '3'), 'state.json: step is a string; it must be a whole number'),
    ('negative step', put('step', -1), 'state.json: step is out of range'),
    ('step beyond a double', put('step', 2 ** 60), 'state.json: step is out of range'),
    ('more updates than steps', put('updates', 4), 'updates is 4, more than step, 3'),
    ('step twice', twice, 'duplicate'),
    ('eps is not a number', put('eps', None), 'state.json: eps is null; it must be a number'),
    ('beta2 above 1', put('beta2', 1.5), 'state.json: beta2 is out of range'),
    ('beta1 of 1', put('beta1', 1), 'optimizer.beta1'),
    ('another optimizer', put('optimizer', 'Lion'), 'optimizer is not "AdamW"'),
    ('a newer version', put('version', 2), 'version is not 1'),
    ('another format', put('format', 'x'), 'format is not "sherd-state"'),
    ('unknown key', put('warmup', 5), 'unknown key warmup'),
    ('decay of numbers', put('decay', [1]), 'number 1 of decay is not the name of a tensor'),
    ('decay twice', put('decay', ['lm_head.weight'] * 2), 'decay has lm_head.weight twice'),
    ('decay of another model', put('decay', ['wte.weight']), 'decay has wte.weight, which is not a tensor of this model'),
    ('decay of one matrix', put('decay', ['lm_head.weight']),
     'the weight decay there was not on model.embed_tokens.weight, and neither value of optimizer.decay_all'),
    ('no state.json of its own', lambda f: (f / 'state.json').write_text('[]'), 'state.json: it is a list, not an object'),
    ('half of exp_avg', halve, 'exp_avg.safetensors'),
    ('no exp_avg_sq', lambda f: (f / 'exp_avg_sq.safetensors').unlink(),
     'has neither exp_avg_sq.safetensors nor exp_avg_sq.safetensors.index.json'),
    ('a moment of another name', tensors('exp_avg_sq.safetensors', rename),
     "(exp_avg_sq): 1 of the model's tensors are missing, the first of them model.norm.weight"),
    ('a moment of another shape', tensors('exp_avg.safetensors', reshape), '(exp_avg): model.norm.weight has shape'),
    ('a moment that is not finite', first('exp_avg.safetensors', float('nan')), 'is not a finite number'),
    ('a negative square', first('exp_avg_sq.safetensors', -1e-9), 'is negative; a mean of squares is not'),
    ('others may write state.json', others_write, 'state.json'),
]


def refused(make, expected):
    at = pathlib.Path('bad')
    if not (at / 'state').exists():
        made('bad')
    shutil.rmtree(at / 'wrong', ignore_errors=True)
    shutil.copytree(at / 'state', at / 'wrong')
    make(at / 'wrong')
    before = sorted(path.name for path in at.iterdir())
    done = subprocess.run(job.command(0, ['ckpt', 'import', 'wrong', '-o', 'to']), capture_output=True, text=True, cwd=at,
                          env=job.environment(0))
    lines = [line for line in done.stderr.splitlines() if line.startswith('sherd: ')]
    wrong = [] if done.returncode in (2, 3) and len(lines) == 1 and expected in lines[0] and not done.stdout else [
        f'exit {done.returncode}: {done.stdout}{done.stderr}']
    if list(at.glob('to/*.h5')) or list(at.glob('to/.*tmp')) or sorted(
            path.name for path in at.iterdir() if path.name != 'to') != before:
        wrong.append('something is left behind')
    shutil.rmtree(at / 'to', ignore_errors=True)
    return wrong


def options():
    """Options that would be ignored are refused; --weights-only leaves out what the folder has beside the weights."""
    at = made('options')
    wrong = []
    for words, text in (('--dtype', 'bfloat16'), '--dtype'), (('--merge',), 'leave out'), (('--adapter', 'x'), 'leave out'):
        done = subprocess.run(job.command(0, ['ckpt', 'export', 'out', '--moments', '-o', 'x', *words]), capture_output=True,
                              text=True, cwd=at, env=job.environment(0))
        if done.returncode == 0 or text not in done.stderr or (at / 'x').exists():
            wrong.append(f'{words}: {done.stderr}')
    job.sherd('ckpt', 'import', 'state', '--weights-only', '-o', 'w', folder=at)
    if any(npy_of(at, 'w', 'exp_avg')) or npy_of(at, 'w', 'model') != npy_of(at, 'out', 'model'):
        wrong.append('--weights-only reads moments, or no weights')
    said = job.launch('train', f'--model.hf={at.resolve()}/state', '--training.seq_len=15', '--training.steps=1',
                      '--training.dataset_path=../tokens.bin', '--job.dump_folder=o2', folder=at)[1]
    if 'also has the moments of a state folder, which are not read here: `sherd ckpt import' not in said:
        wrong.append('moments are passed over without a word')
    job.train(at / 'groups', {'model.hf_assets_path': str(HERE / 'llama'), **RUN, 'training.dataset_path': '../../tokens.bin',
                              'optimizer.groups': 'pattern=norm weight_decay=0.5'})
    done = subprocess.run(job.command(0, ['ckpt', 'export', 'groups/out', '--moments', '-o', 'x']), capture_output=True, text=True,
                          cwd=at, env=job.environment(0))
    wrong += [] if 'have groups (optimizer.groups)' in done.stderr and not (at / 'x').exists() else [done.stderr]
    for name, left in ('Lion', 'optimizer.eps'), ('muon', None):  # Muon's states have AdamW's names
        job.train(at / name, {'model.hf_assets_path': str(HERE / 'llama'), **{k: v for k, v in RUN.items() if k != left},
                              'optimizer.name': name, 'training.dataset_path': '../../tokens.bin'})
        done = subprocess.run(job.command(0, ['ckpt', 'export', f'{name}/out', '--moments', '-o', 'x']), capture_output=True,
                              text=True, cwd=at, env=job.environment(0))
        wrong += [] if 'exp_avg and exp_avg_sq' in done.stderr and not (at / 'x').exists() else [done.stderr]
    return wrong


def npy_of(at, checkpoint, state):
    job.sherd('ckpt', 'extract', checkpoint, 'lm_head.weight', '--state', state, '-o', 'x.npy', folder=at)
    data = (at / 'x.npy').read_bytes()
    (at / 'x.npy').unlink()
    return data[10 + struct.unpack('<H', data[8:10])[0]:]


cases = [('a state folder has everything of the checkpoint', folder_has_all),
         ('the round trip keeps all bytes, matrices decay', comes_back, False),
         ('the round trip keeps all bytes, everything decays', comes_back, True),
         ('a run goes on with the same bits', goes_on, 0)]
if job.can_launch():
    cases.append(('a run goes on with the same bits, 2 ranks', goes_on, 2))
cases += [('what a run changes', says_what_changes), ('options', options)] + [(f'refused: {name}', refused, make, expected) for name, make, expected in BAD]
sys.exit(job.run_cases(cases))
