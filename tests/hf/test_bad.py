#!/usr/bin/env python3
"""Wrong folders and texts: one line, a status of usage or data, and nothing left behind. Prints TAP.

ROWS has a row for each: what is wrong, a function that makes it from a good folder, and the text of the line.
tests/unit/test_safetensors.c tests headers and indices byte by byte, test_hf.c keys of config.json, test_tokenizer.c
parts of tokenizer.json.
"""
import gzip
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job

HERE = pathlib.Path(__file__).resolve().parent
RUN = ['--training.seq_len=15', '--training.steps=1', '--training.local_batch_size=1', '--training.threads=1',
       '--training.device=cpu', '--lr_scheduler.warmup_steps=0', '--training.dataset_path=../tokens.bin', '--job.dump_folder=out']
POINTER = 'version https://git-lfs.github.com/spec/v1\noid sha256:' + '0' * 64 + '\nsize 134\n'
BPE = {'type': 'BPE', 'vocab': {'a': 0, 'b': 1, 'ab': 2}, 'merges': [['a', 'b']]}


def config(change):
    """Edit config.json as an object."""
    def make(folder):
        path = folder / 'config.json'
        content = json.loads(path.read_text())
        change(content)
        path.write_text(json.dumps(content))
    return make


def text(name, content):
    def make(folder):
        path = folder / name
        if path.exists():
            path.unlink()
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return make


def remove(*names):
    def make(folder):
        for name in names:
            (folder / name).unlink()
    return make


def header(change):
    """Edit model.safetensors: the header as an object, and the data as it is."""
    def make(folder):
        data = (folder / 'model.safetensors').read_bytes()
        length, = struct.unpack('<Q', data[:8])
        content = json.loads(data[8:8 + length])
        change(content)
        out = json.dumps(content).encode()
        (folder / 'model.safetensors').write_bytes(struct.pack('<Q', len(out)) + out + data[8 + length:])
    return make


def start(bytes_of):
    """Edit the first bytes of model.safetensors."""
    def make(folder):
        path = folder / 'model.safetensors'
        path.write_bytes(bytes_of(path.read_bytes()))
    return make


def pickle(folder):
    (folder / 'model.safetensors').rename(folder / 'pytorch_model.bin')


def fifo(folder):
    (folder / 'model.safetensors').unlink()
    os.mkfifo(folder / 'model.safetensors')


def directory(folder):
    (folder / 'model.safetensors').unlink()
    (folder / 'model.safetensors').mkdir()


def index(files):
    def make(folder):
        header_of = (folder / 'model.safetensors').read_bytes()
        length, = struct.unpack('<Q', header_of[:8])
        names = [name for name in json.loads(header_of[8:8 + length]) if name != '__metadata__']
        shutil.copy(folder / 'model.safetensors', folder / 'a.safetensors')
        (folder / 'model.safetensors').unlink()
        (folder / 'model.safetensors.index.json').write_text(
            json.dumps({'metadata': {'total_size': 1}, 'weight_map': {name: files[i % len(files)] for i, name in enumerate(names)}}))
    return make


WEIGHT = 'transformer.wte.weight'
LABELS = {'architectures': ['GPT2ForSequenceClassification'], 'num_labels': 3}
FOLDERS = [
    ('no config.json', remove('config.json'), 'it has no config.json'),
    ('a config.json that is empty', text('config.json', ''), 'config.json'),
    ('a config.json that is no JSON', text('config.json', '{"a":'), 'config.json: line 1'),
    ('a config.json with a key twice', text('config.json', '{"a":1,"a":2}'), 'config.json: line 1'),
    ('a config.json of 1 MiB and more', text('config.json', '{"a":"' + 'x' * (1 << 20) + '"}'), 'config.json'),
    ('a config.json that is deep', text('config.json', '[' * 65 + ']' * 65), 'config.json: line 1'),
    ('a number that is too large', text('config.json', '{"n_layer":1e999}'), 'config.json: line 1'),
    ('a number that is none', text('config.json', '{"n_layer":NaN}'), 'config.json: line 1'),
    ('a family that nobody knows', config(lambda c: c.update(model_type='gpt9')), 'model_type gpt9 is not known'),
    ('code in the folder', config(lambda c: c.update(auto_map={'AutoModel': 'x.Y'})), 'auto_map'),
    ('an unknown key with a value', config(lambda c: c.update(logit_scale=0.5)), 'logit_scale'),
    ('a problem that nobody knows', config(lambda c: c.update(LABELS, problem_type='ranking')),
     'hf/config.json: problem_type ranking is not known; single_label_classification, multi_label_classification and regression are'),
    ('several numbers of a text', config(lambda c: c.update(LABELS, problem_type='regression')), 'problem_type regression with 3 labels'),
    ('heads that do not divide', config(lambda c: c.update(n_head=3)), 'is not a multiple of'),
    ('pickled weights only', pickle, 'pytorch_model.bin'),
    ('a pointer of Git LFS', text('model.safetensors', POINTER), 'pointer'),
    ('weights that are a FIFO', fifo, 'model.safetensors'),
    ('weights that are a folder', directory, 'model.safetensors'),
    ('an empty file of weights', text('model.safetensors', b''), 'model.safetensors'),
    ('a header of 2^63 bytes', start(lambda d: struct.pack('<Q', 1 << 63) + d[8:]), 'model.safetensors'),
    ('a header of 100 MB and 1', start(lambda d: struct.pack('<Q', 100_000_001) + d[8:]), 'model.safetensors'),
    ('a header beyond the file', start(lambda d: struct.pack('<Q', len(d)) + d[8:]), 'model.safetensors'),
    ('a tail behind the data', start(lambda d: d + b'x'), 'model.safetensors'),
    ('a file that is cut', start(lambda d: d[:-1]), 'model.safetensors'),
    ('weights of whole numbers', header(lambda h: h[WEIGHT].update(dtype='I32')), 'I32'),
    ('a matrix without dims', header(lambda h: h[WEIGHT].update(shape=[])), WEIGHT),
    ('a matrix that is empty', header(lambda h: h[WEIGHT].update(shape=[0, 8])), WEIGHT),
    ('another shape', header(lambda h: h[WEIGHT].update(shape=h[WEIGHT]['shape'][::-1])), WEIGHT),
    ('an index of a file that is not there', index(['b.safetensors']), 'b.safetensors'),
    ('an index that leaves the folder', index(['../a.safetensors']), 'not a plain file name'),
    ('an index with tensors in another file', index(['a.safetensors', 'c.safetensors']), 'safetensors'),
]


def bpe(**change):
    return json.dumps({'version': '1.0', 'model': {**BPE, **change}})


SPLIT = {'type': 'Split', 'behavior': 'Isolated', 'invert': False}
TOKENIZERS = [
    ('of another model', json.dumps({'model': {'type': 'Unigram', 'vocab': []}}), 'only BPE is read'),
    ('a merge of no word', bpe(merges=[['a', 'c']]), 'merges[0]: "c" is not a word'),
    ('a merge to no word', bpe(merges=[['b', 'a']]), 'together are not a word'),
    ('two words with one id', bpe(vocab={'a': 0, 'b': 0, 'ab': 2}), 'both have the id 0'),
    ('an id of 2^31', bpe(vocab={'a': 0, 'b': 1, 'ab': 1 << 31}), 'must be a whole number from 0'),
    ('merges that are no list', bpe(merges=5), 'merges is'),
    ('half of a surrogate pair', '{"model":{"type":"BPE","vocab":{"\\ud800":0},"merges":[]}}', 'line 1'),
    ('no JSON', '{', 'line 1'), ('no model', '{}', 'is it a tokenizer.json'),
    ('an expression that does not compile',
     json.dumps({'pre_tokenizer': {**SPLIT, 'pattern': {'Regex': '(a'}}, 'model': BPE}), 'pre_tokenizer'),
    ('an unknown normalizer', json.dumps({'normalizer': {'type': 'Lowercase'}, 'model': BPE}), 'Lowercase'),
]
OTHERS = [
    ('tokenizer.model', '.', "has no tokenizer.json; it has SentencePiece's tokenizer.model; make one: python3 -c"),
    ('vocab.json', '.', 'has no tokenizer.json; it has vocab.json and merges.txt; make one: python3 -c'),
    ('tokenizer.model', 'tokenizer.model', "tokenizer.model is SentencePiece's; make a tokenizer.json of its folder: python3 -c"),
    ('gpt.tiktoken', 'gpt.tiktoken', "gpt.tiktoken is tiktoken's and has neither the expression that cuts text nor"),
]
TEXTS = [
    ('a text that is not UTF-8', 'a.txt', b'ab\xff', 'is not UTF-8'),
    ('a line that is no JSON', 'a.jsonl', b'{"text":"a"}\nb\n', 'line 2'),
    ('a line without text', 'a.jsonl', b'{"txt":"a"}\n', 'line 1'),
    ('a line with half of a surrogate pair', 'a.jsonl', b'{"text":"\\ud800"}\n', 'line 1'),
    ('a packed file that is cut', 'a.txt.gz', gzip.compress(bytes(range(97, 123)) * 99)[:-9], 'a.txt.gz'),
    ('a packed file that is none', 'a.txt.gz', b'plain', 'a.txt.gz'),
    ('no text at all', 'a.txt', b'', 'a.txt'),
]


def refused(words, says, folder='.'):
    done = subprocess.run(job.command(0, words), cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          errors='replace', env=job.environment(0), timeout=job.SECONDS)
    lines = [line for line in done.stderr.splitlines() if line.startswith('sherd: error')]
    if done.returncode in (2, 3) and len(lines) == 1 and says in lines[0]:
        return []
    return [f'not refused as "{says}": exit {done.returncode}, {done.stdout}{done.stderr}']


def fresh():
    folder = pathlib.Path('bad')
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(HERE / 'gpt2', folder / 'hf', copy_function=shutil.copyfile)
    os.chmod(folder / 'hf', 0o755)
    return folder


def case_folder(make, says):
    """A run from the folder, and an import of it."""
    folder = fresh()
    make(folder / 'hf')
    wrong = refused(['train', '--model.hf=hf', *RUN], says, folder)
    wrong += refused(['ckpt', 'import', 'hf', '-o', 'kept'], says, folder)
    left = list((folder / 'kept').glob('*.h5*')) if (folder / 'kept').exists() else []
    return wrong + [f'left {left}' for _ in left[:1]]


def case_tokenizer(content, says):
    folder = fresh()
    (folder / 'tokenizer.json').write_text(content)
    (folder / 'a.txt').write_text('ab')
    wrong = refused(['tokenize', 'a.txt', '-o', 'a.bin', '--tokenizer', '.', '--no-eos'], says, folder)
    return wrong + (['a.bin is there'] if (folder / 'a.bin').exists() else [])


def case_another_size():
    """The key on the command line counts, not the one in config.json."""
    folder = fresh()
    return refused(['train', '--model.hf=hf', '--model.vocab_size=64', *RUN],
                   f'{WEIGHT} has shape [32,8], but this model wants [64,8]', folder)


def case_other_tokenizer(name, given, says):
    """A file of another library, in a folder or given by name."""
    folder = fresh()
    (folder / name).write_text('IQ== 0\n')
    (folder / 'a.txt').write_text('ab')
    return refused(['tokenize', 'a.txt', '-o', 'a.bin', '--tokenizer', given, '--no-eos'], says, folder)


def case_text(name, content, says):
    folder = fresh()
    (folder / 'tokenizer.json').write_text(bpe())
    (folder / name).write_bytes(content)
    wrong = refused(['tokenize', name, '-o', 'a.bin', '--tokenizer', '.', '--no-eos'], says, folder)
    return wrong + (['a.bin is there'] if (folder / 'a.bin').exists() else [])


def case_labels():
    folder = fresh()
    (folder / 'tokenizer.json').write_text(bpe())
    (folder / 'a.jsonl').write_text('{"text":"ab","label":1}\n{"text":"ab","label":[0,2]}\n')
    return refused(['tokenize', 'a.jsonl', '-o', 'a.bin', '--tokenizer', '.', '--format', 'classification'],
                   'a.jsonl: line 2: "label" is a list; --format multi_label is for several labels of a text', folder)


def case_hub_name():
    return refused(['plan', '--model.hf=meta-llama/Llama-3.2-1B'], 'nothing is downloaded')


if __name__ == '__main__':
    pathlib.Path('tokens.bin').write_bytes(bytes(2 * 64))
    sys.exit(job.run_cases([('a name of the hub', case_hub_name), ('a model of another size', case_another_size),
                            ('a line with several labels', case_labels)]
                           + [(name, case_folder, make, says) for name, make, says in FOLDERS]
                           + [(f'a tokenizer: {name}', case_tokenizer, *row) for name, *row in TOKENIZERS]
                           + [(f'a tokenizer: {name} as {given}', case_other_tokenizer, name, given, says)
                              for name, given, says in OTHERS]
                           + [(name, case_text, *row) for name, *row in TEXTS]))
