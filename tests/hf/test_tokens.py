#!/usr/bin/env python3
"""The tokenizer of a model outside `sherd tokenize`: its name and hash in checkpoints, the commands that use them, and
what is refused; bits per byte against a sum over the file; config.json in checkpoints; `sherd config get` of a folder.
Prints TAP.
"""
import array
import json
import math
import os
import pathlib
import random
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job

HERE = pathlib.Path(__file__).resolve().parent
# Words, and the bytes of the text that each stands for; the last word is special.
WORDS = {'a': 1, 'b': 1, '\u00e9': 2, 'ab': 2, 'aba': 3, '<end>': 0}
END, VOCABULARY, STEPS = 5, 8, 4
RUN = {
    'model.family': 'llama', 'model.n_layers': 1, 'model.dim': 16, 'model.n_heads': 2, 'model.ffn_dim': 32,
    'model.vocab_size': VOCABULARY, 'model.max_seq_len': 32, 'training.seq_len': 15, 'training.local_batch_size': 2,
    'training.global_batch_size': 4, 'training.steps': STEPS, 'training.threads': 1, 'training.device': 'cpu',
    'training.dataset_path': '../tokens.bin', 'lr_scheduler.decay_type': 'constant', 'lr_scheduler.warmup_steps': 1,
    'validation.enable': True, 'validation.dataset_path': '../tokens.bin', 'validation.freq': STEPS,
    'checkpoint.interval': STEPS,
}
NAMED = {**RUN, 'model.tokenizer': '../words'}


def make_words(folder, more=''):
    """A tokenizer.json; `more` blanks give another hash for the same words."""
    pathlib.Path(folder).mkdir(exist_ok=True)
    names = list(WORDS)[:-1]
    token = {'id': END, 'content': '<end>', 'single_word': False, 'lstrip': False, 'rstrip': False, 'normalized': False,
             'special': True}
    model = {'type': 'BPE', 'vocab': {name: i for i, name in enumerate(names)}, 'merges': [['a', 'b'], ['ab', 'a']]}
    (pathlib.Path(folder) / 'tokenizer.json').write_text(
        json.dumps({'version': '1.0', 'added_tokens': [token], 'model': model}) + more)


def stream():
    return [random.Random(3).randrange(len(WORDS)) if i % 7 else END for i in range(200)]


def prepare():
    make_words('words')
    make_words('other', ' ')
    with open('tokens.bin', 'wb') as f:
        array.array('H', stream()).tofile(f)


def refused(text, *words, ranks=0, folder='.'):
    """Expect one line that has `text`, and the status of usage or data."""
    done = subprocess.run(job.command(ranks, words), stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=folder,
                          env=job.environment(ranks), timeout=job.SECONDS)
    errors = [line for line in done.stderr.splitlines() if 'error:' in line]
    if done.returncode in (2, 3) and len(errors) == 1 and text in errors[0]:
        return []
    return [f'{" ".join(map(str, words))}: not refused as "{text}": exit {done.returncode}\n{done.stdout}{done.stderr}']


def validation(folder):
    text = (pathlib.Path(folder) / 'out/metrics.jsonl').read_text()
    return [line for line in map(json.loads, text.splitlines()) if 'validation_loss' in line]


def expected_bits(line):
    """Targets of the whole windows in the file."""
    seq, lengths = RUN['training.seq_len'], list(WORDS.values())
    ids = stream()
    targets = ids[1:(len(ids) - 1) // seq * seq + 1]
    return line['validation_loss'] * line['tokens'] / math.log(2) / sum(lengths[i] for i in targets[:line['tokens']])


def case_metrics(ranks, change):
    job.train(f'metrics-{ranks}', {**NAMED, **change}, ranks=ranks)
    lines = validation(f'metrics-{ranks}')
    wrong = [] if lines else ['no validation']
    for line in lines:
        wrong += job.differ('bits per byte', [line.get('bits_per_byte', 0)], [expected_bits(line)], 1e-12)
    said = job.sherd('eval', '--checkpoint', 'out', '--data', '../tokens.bin', folder=f'metrics-{ranks}')
    if lines and f'bits per byte {lines[-1]["bits_per_byte"]:.4f}' not in said:
        wrong.append(f'sherd eval says {said}')
    job.train('unnamed', RUN)
    return wrong + [f'without a tokenizer: {line}' for line in validation('unnamed') if 'bits_per_byte' in line]


def case_generate():
    """Found by the name in the checkpoint, and by another path to the same file; not with another file."""
    job.train('generate', NAMED)
    words = ['generate', '--checkpoint', 'out', '--prompt', 'ab\u00e9', '--tokens', 4]
    shutil.copytree('words', 'moved', dirs_exist_ok=True)
    first, second = (job.sherd(*words, *more, folder='generate') for more in ([], ['--tokenizer', '../moved']))
    wrong = [] if first == second and first.startswith('ab \u00e9') else [f'{first!r}, by another path {second!r}']
    wrong += refused('is not the tokenizer that the checkpoint was trained with', *words, '--tokenizer', '../other',
                     folder='generate')
    wrong += refused('no tokenizer is called "../gone"', *words, '--model.tokenizer=../gone', folder='generate')
    wrong += refused('is not the tokenizer', 'eval', '--checkpoint', 'out', '--data', '../tokens.bin',
                     '--model.tokenizer=../other', folder='generate')
    job.train('nameless', RUN)
    os.makedirs('empty', exist_ok=True)
    wrong += refused('empty has no tokenizer.json', *words, '--tokenizer', '../empty', folder='generate')
    return wrong + refused('its checkpoint names no tokenizer', *words, folder='nameless')


def case_resume(mode):
    """Another tokenizer is refused; without a name the checkpoint's stays; new runs may take another one."""
    folder = f'resume-{mode}'
    job.train(folder, {**NAMED, 'checkpoint.async_mode': mode})
    again = ['train', 'c.yaml', f'--training.steps={2 * STEPS}']
    wrong = refused('is not the tokenizer', *again, '--model.tokenizer=../other', folder=folder)
    wrong += refused('is not the tokenizer', *again, '--model.tokenizer=byte', folder=folder)
    (pathlib.Path(folder) / 'c.yaml').write_text(job.yaml({**RUN, 'job.dump_folder': 'out', 'checkpoint.async_mode': mode}))
    job.sherd(*again, folder=folder)
    info = job.sherd('ckpt', 'info', '--config', 'out', folder=folder)
    wrong += [] if 'tokenizer: "../words"' in info and 'step 8' in info else [info]
    job.sherd('generate', '--checkpoint', 'out', '--prompt', 'ab', '--tokens', 1, folder=folder)
    job.sherd(*again, '--init-from', 'out', '--job.dump_folder=new', '--model.tokenizer=../other', folder=folder)
    job.sherd('generate', '--checkpoint', 'new', '--prompt', 'ab', '--tokens', 1, '--tokenizer', '../other', folder=folder)
    return wrong


def case_large():
    return refused('has 6 words, the model has 5', 'train', 'c.yaml', '--model.vocab_size=5', '--model.tokenizer=../words',
                   folder=job.prepare('large', {**RUN, 'job.dump_folder': 'out'}))


def make_folder(folder):
    """A folder of transformers, with a tokenizer."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(HERE / 'llama', folder)
    os.chmod(folder, 0o755)
    make_words(folder)
    config = json.loads((HERE / 'llama/config.json').read_text())
    config.update(bos_token_id=4, eos_token_id=[END, 2], use_cache=False)
    pathlib.Path(folder, 'config.json').unlink()
    pathlib.Path(folder, 'config.json').write_text(json.dumps(config))


def check_export(folder, tokenizer):
    config = json.loads(pathlib.Path(folder, 'config.json').read_text())
    wrong = [] if (config['bos_token_id'], config['eos_token_id'], config['use_cache']) == (4, [END, 2], False) else [
        f'{folder}: ids of tokens {config}']
    there = pathlib.Path(folder, 'tokenizer.json').exists()
    return wrong + ([] if there == tokenizer else [f'{folder}: tokenizer.json {there}'])


def case_export():
    """The checkpoint has what an export needs from the folder; the tokenizer is taken from where it was."""
    make_folder('model')
    for folder in 'kept', 'with', 'without', 'changed':
        shutil.rmtree(folder, ignore_errors=True)
    job.sherd('ckpt', 'import', 'model', '-o', 'kept')
    job.sherd('ckpt', 'export', 'kept', '-o', 'with')
    wrong = check_export('with', True)
    make_words('model', '  ')
    job.sherd('ckpt', 'export', 'kept', '-o', 'changed')
    wrong += check_export('changed', False)
    shutil.rmtree('model')
    job.sherd('ckpt', 'export', 'kept', '-o', 'without')
    return wrong + check_export('without', False)


def case_train_folder():
    """A run from a folder keeps the tokenizer too, over a resume; a tokenizer in a folder that is not read has no
    effect."""
    make_folder('source')
    config = {key: value for key, value in RUN.items() if not key.startswith('model.')}
    config.update({'model.hf': '../source', 'checkpoint.last_save_in_hf': True})
    job.train('from-folder', config)
    wrong = check_export(f'from-folder/out/checkpoint/hf-{STEPS:08}', True)
    job.sherd('train', 'c.yaml', f'--training.steps={2 * STEPS}', folder='from-folder')
    wrong += check_export(f'from-folder/out/checkpoint/hf-{2 * STEPS:08}', True)
    job.sherd('generate', '--checkpoint', 'out', '--prompt', 'ab', '--tokens', 1, '--model.tokenizer=../source',
              folder='from-folder')
    pathlib.Path('source/tokenizer.json').write_text('{"model": {"type": "Unigram", "vocab": []}}')
    job.train('unread', config)
    return wrong + [f'unread: {line}' for line in validation('unread') if 'bits_per_byte' in line]


def case_config_get():
    make_folder('asked')
    found = job.sherd('config', 'get', 'model.dim', 'model.tokenizer', '--model.hf=asked', '--training.seq_len=8')
    wrong = [] if found == f'{json.loads((HERE / "llama/config.json").read_text())["hidden_size"]}\nasked\n' else [found]
    pathlib.Path('over.yaml').write_text('training:\n  seq_len: 7\nmodel:\n  tokenizer: words\n')
    found = job.sherd('config', 'get', 'training.seq_len', 'model.tokenizer', 'over.yaml', '--model.hf=asked')
    wrong += [] if found == '7\nwords\n' else [found]
    return wrong + refused('model.dimm: no such key', 'config', 'get', 'model.dimm', '--model.hf=asked',
                           '--training.seq_len=8')


if __name__ == '__main__':
    prepare()
    CASES = [('bits per byte', case_metrics, 0, {})]
    if job.can_launch():
        CASES += [('bits per byte on 3 ranks', case_metrics, 3, {'training.local_batch_size': 1,
                                                                 'training.global_batch_size': 3})]
    CASES += [('generate takes the tokenizer of the checkpoint', case_generate),
              ('a resume with another tokenizer', case_resume, 'disabled'),
              ('the same, saved beside training', case_resume, 'async'),
              ('a tokenizer with more words than the model', case_large),
              ('config.json and tokenizer of an export', case_export),
              ('the same of a run that began with a folder', case_train_folder),
              ('the configuration of a folder', case_config_get)]
    sys.exit(job.run_cases(CASES))
