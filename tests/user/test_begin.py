#!/usr/bin/env python3
"""Every option and key that names where a run begins, given again in a folder that has the run: the same beginning goes
on and says so, wherever it lies now; another one is refused, whatever its name; nothing goes on. Prints TAP."""
import array
import json
import pathlib
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'golden'))
import golden
import job

HF = job.TOP / 'tests/hf'
COMMON = ('--training.dataset_path=tokens.bin', '--training.seq_len=16', '--training.global_batch_size=2',
          '--training.local_batch_size=1', '--training.steps=1', '--training.threads=1')
SHAPE = ('shape.yaml',)
CONFIG = {'model.family': 'llama', 'model.n_layers': 1, 'model.dim': 16, 'model.n_heads': 2, 'model.ffn_dim': 32,
          'model.vocab_size': 32, 'model.max_seq_len': 32}
MODEL_A = '--model.hf=model-a'
LORA = (MODEL_A, '--lora.rank=3', '--lora.alpha=6')
TWO = (*SHAPE, '--training.steps=2')
CLM = ('run_clm', '--train_file', 'tokens.bin', '--block_size', '16', '--max_steps', '1')

GOES_ON, USED = 'resumed from', '{key}: used at step 0, when this run began from '
NOT = '{key}: {folder}/checkpoint/step-00000001.h5 belongs to a run that began from '
# What a run begins with, and the starts that follow: words, then the line that is expected in its standard error.
ROWS = {
    'random': (('train', *SHAPE), [
        ((*SHAPE,), GOES_ON),
        ((*SHAPE, '--debug.seed=7'), 'debug.seed: '),
        ((*SHAPE, '--checkpoint.resume=must'), GOES_ON),
        ((*SHAPE, '--checkpoint.resume=never'), 'step-00000001.h5 belongs to another run; choose another'),
        ((*SHAPE, '--init-from', 'x'), ('--init-from', NOT + 'initial values, not from x; to continue it, name that')),
        ((*SHAPE, '--checkpoint.initial_load_path=x'), ('checkpoint.initial_load_path', NOT + 'initial values')),
    ]),
    'checkpoint': (('train', *SHAPE, '--init-from', 'x'), [
        ((*SHAPE,), GOES_ON),
        ((*SHAPE, '--init-from', 'x'), ('--init-from', USED)),
        ((*SHAPE, '--init-from', './x/checkpoint/step-00000001.h5'), ('--init-from', USED)),
        ((*SHAPE, '--init-from', 'same-as-x'), ('--init-from', USED)),
        ((*SHAPE, '--checkpoint.initial_load_path=x'), ('checkpoint.initial_load_path', USED)),
        ((*SHAPE, '--init-from', 'y'), ('--init-from', NOT)),
        ((*SHAPE, '--init-from', 'gone.h5'), ('--init-from', NOT)),
        ((*SHAPE, '--init-from', 'model-a'), ('--init-from', NOT)),
    ]),
    'whole-checkpoint': (('train', *TWO, '--checkpoint.initial_load_path=x'), [
        ((*TWO, '--checkpoint.initial_load_path=x'), ('checkpoint.initial_load_path', USED)),
        ((*TWO, '--checkpoint.initial_load_path=y'), ('checkpoint.initial_load_path', NOT.replace('1.h5', '2.h5'))),
    ]),
    'model': (('train', MODEL_A), [
        ((MODEL_A,), ('model.hf_assets_path', USED)),
        (('--model.hf=same-as-a',), ('model.hf_assets_path', USED)),
        (('--model.hf=one-file',), ('model.hf_assets_path', USED)),
        (('--model.hf_assets_path=model-b',), ('model.hf_assets_path', NOT)),
        ((MODEL_A, '--checkpoint.initial_load_in_hf=false'), ('checkpoint.initial_load_in_hf', NOT)),
        ((MODEL_A, '--init-from', 'x'), ('--init-from', NOT)),
    ]),
    'architecture': (('train', MODEL_A, '--checkpoint.initial_load_in_hf=false'), [
        ((MODEL_A, '--checkpoint.initial_load_in_hf=false'), GOES_ON),
        ((MODEL_A,), ('model.hf_assets_path', NOT + 'initial values')),
    ]),
    'adapters': (('train', *LORA, '--lora.adapter_path=adapter-p'), [
        (LORA, GOES_ON),
        ((*LORA, '--lora.adapter_path=adapter-p'), ('lora.adapter_path', USED)),
        ((*LORA, '--lora.adapter_path=adapter-q'), ('lora.adapter_path', NOT)),
        ((*LORA, '--model.hf=model-b'), 'was trained on the parameters that were in'),
    ]),
    'new-adapters': (('train', *LORA), [
        (LORA, GOES_ON),
        ((*LORA, '--lora.adapter_path=adapter-p'), ('lora.adapter_path', NOT + 'initial values')),
    ]),
    'run_clm': ((*CLM, '--model_name_or_path', 'model-a'), [
        ((*CLM, '--model_name', 'same-as-a'), ('model.hf_assets_path', USED)),
        ((*CLM, '--model_name', 'model-a', '--seed', '7'), 'debug.seed: '),
        ((*CLM, '--model_name_or_path', 'model-b'), ('model.hf_assets_path', NOT)),
        ((*CLM, '--config_name', 'model-a'), ('checkpoint.initial_load_in_hf', NOT)),
        ((*CLM, '--model_name', 'model-a', '--checkpoint.initial_load_path=x'), ('checkpoint.initial_load_path', NOT)),
    ]),
}


def run(folder, words, ranks=0):
    """Status and standard error."""
    if words[0] == 'run_clm':
        words = (*words, '--output_dir', folder)
    else:
        words = (words[0], *last_of_each((*COMMON, *words[1:])), f'--job.dump_folder={folder}')
    done = subprocess.run(job.command(ranks, words), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          env=job.environment(ranks), timeout=job.SECONDS)
    return done.returncode, done.stderr


def last_of_each(words):
    """A key may be given once; the last one counts here."""
    return {word.split('=')[0]: word for word in words}.values()


def expect(folder, words, wanted, ranks=0):
    key, text = ('', wanted) if isinstance(wanted, str) else wanted
    text = text.format(key=key, folder=folder)
    status, said = run(folder, words if words[0] == 'run_clm' else ('train', *words), ranks)
    fine = status == 0 if text.startswith((f'{key}: used', GOES_ON, 'debug.seed')) else status in (2, 3)
    return [] if fine and text in said else [f'{folder}: {" ".join(words)}: status {status}, not "{text}": {said}']


def begin(folder, words):
    shutil.rmtree(folder, ignore_errors=True)
    status, said = run(folder, words)
    if status != 0:
        raise job.Failed(f'{folder}: {said}')


def case_row(folder):
    words, rows = ROWS[folder]
    begin(folder, words)
    return [line for later, wanted in rows for line in expect(folder, later, wanted)]


def case_ranks():
    """One rank looks, and all agree."""
    begin('two', ('train', *SHAPE, '--init-from', 'x'))
    return expect('two', (*SHAPE, '--init-from', 'x'), ('--init-from', USED), 2) + expect(
        'two', (*SHAPE, '--init-from', 'y'), ('--init-from', NOT), 2)


def case_gone():
    """What the run began from may be deleted; what lies in its place must be the same."""
    copy('x', 'temporary')
    begin('began', ('train', *SHAPE, '--init-from', 'temporary'))
    again = (*SHAPE, '--init-from', 'temporary')
    pathlib.Path('temporary/checkpoint/step-00000001.h5').rename('temporary/kept.h5')
    wrong = expect('began', again, ('--init-from', USED))
    shutil.copy('y/checkpoint/step-00000001.h5', 'temporary/checkpoint')
    wrong += expect('began', again, ('--init-from', NOT + f'{pathlib.Path.cwd()}/temporary/checkpoint/step-00000001.h5, '
                                     'whose numbers are different now; for a new run give another job.dump_folder'))
    shutil.rmtree('temporary')
    wrong += expect('began', again, ('--init-from', USED))
    copy('model-a', 'place')
    begin('from-place', ('train', '--model.hf=place'))
    copy('model-b', 'place')
    return wrong + expect('from-place', ('--model.hf=place',), ('model.hf_assets_path', NOT + f'{pathlib.Path.cwd()}/place, whose'))


def case_newer():
    """The run that another one began from has gone on: its folder still means the checkpoint of that day."""
    copy('x', 'grows')
    begin('child', ('train', *SHAPE, '--init-from', 'grows'))
    job.sherd('train', *SHAPE, *[word for word in COMMON if 'steps' not in word], '--training.steps=2', '--job.dump_folder=grows')
    return expect('child', (*SHAPE, '--init-from', 'grows'), ('--init-from', USED))


def case_damaged():
    """The newest checkpoint cannot be read: the one before it, from which the run continues, says what it began from."""
    begin('damaged', ('train', *SHAPE, '--init-from', 'x'))
    pathlib.Path('damaged/checkpoint/step-00000002.h5').write_bytes(b'not a checkpoint' * 100)
    wrong = expect('damaged', (*SHAPE, '--init-from', 'y'), ('--init-from', NOT))
    return wrong + expect('damaged', (*SHAPE, '--init-from', 'x'), ('--init-from', USED))


def case_older_version():
    """A checkpoint of a version that did not note the beginning goes on, with a line."""
    folder = golden.prepare('older')
    golden.checkpoint(folder, 3).write_bytes(golden.read())
    done = subprocess.run(job.command(0, ['train', 'tiny.yaml', *golden.OPTIONS, '--init-from', '../x']), capture_output=True,
                          text=True, cwd=folder, env=job.environment(0), timeout=job.SECONDS)
    fine = done.returncode == 0 and done.stderr.count('that did not note what a run begins from; not compared with ../x') == 1
    return [] if fine else [done.stderr]


def copy(one, other):
    shutil.rmtree(other, ignore_errors=True)
    shutil.copytree(one, other)
    for path in pathlib.Path(other).rglob('*'):
        path.chmod(0o755 if path.is_dir() else 0o644)


def change(folder):
    """Other weights under the same names: the lowest bit of each byte pair, so that all stay finite."""
    for path in pathlib.Path(folder).glob('*.safetensors'):
        data = bytearray(path.read_bytes())
        begin = 8 + int.from_bytes(data[:8], 'little')
        data[begin::2] = bytes(byte ^ 1 for byte in data[begin::2])
        path.write_bytes(data)


def join(folder, other):
    """The same tensors in one file."""
    copy(folder, other)
    header, data = {}, b''
    for path in sorted(pathlib.Path(folder).glob('*.safetensors')):
        text = path.read_bytes()
        n = int.from_bytes(text[:8], 'little')
        for name, tensor in json.loads(text[8:8 + n]).items():
            if name != '__metadata__':
                tensor['data_offsets'] = [at + len(data) for at in tensor['data_offsets']]
                header[name] = tensor
        data += text[8 + n:]
        pathlib.Path(other, path.name).unlink()
    pathlib.Path(other, 'model.safetensors.index.json').unlink()
    text = json.dumps(header).encode()
    pathlib.Path(other, 'model.safetensors').write_bytes(len(text).to_bytes(8, 'little') + text + data)


def prepare():
    pathlib.Path('tokens.bin').write_bytes(array.array('H', (i * 7 % 32 for i in range(1601))).tobytes())
    pathlib.Path('shape.yaml').write_text(job.yaml(CONFIG))
    for folder, source in ('model-a', 'llama'), ('model-b', 'llama'), ('adapter-p', 'adapter-llama'), ('adapter-q', 'adapter-llama'):
        copy(HF / source, folder)
    copy('model-a', 'same-as-a')
    join('model-a', 'one-file')
    change('model-b')
    change('adapter-q')
    for folder, seed in ('x', 1), ('y', 2):
        begin(folder, ('train', *SHAPE, f'--debug.seed={seed}'))
    copy('x', 'same-as-x')


if __name__ == '__main__':
    prepare()
    sys.exit(job.run_cases([(f'a run that begins with: {name}', case_row, name) for name in ROWS]
                           + [('two ranks', case_ranks)] * job.can_launch()
                           + [('what a run began from is gone', case_gone), ('it has newer checkpoints', case_newer),
                              ('its newest checkpoint is damaged', case_damaged),
                              ('the run is of an older version', case_older_version)]))
