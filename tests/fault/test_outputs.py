#!/usr/bin/env python3
"""Outputs in folders where others may write too: Sherd writes nothing through a planted link or into a FIFO or a
device, and nothing that others may change, whatever the umask. Inputs there: Sherd never waits for a FIFO. Prints TAP.
"""
import os
import pathlib
import shutil
import stat
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'mesh'))
import job
import tiny

DATA = 3
SECONDS = job.SECONDS  # a command that waits for a FIFO would wait for ever
STEPS = 3
CHECKPOINT = f'out/checkpoint/step-{STEPS:08}.h5'
TENSOR = 'model.norm.weight'
TRAIN = ('train', 'c.yaml')
TRACE = ('--profiling.trace=trace.json', '--profiling.trace_first_step=1', '--profiling.trace_steps=1')

# An output, and the command that writes it.
OUTPUTS = [
    ('out/config.yaml', TRAIN),
    ('out/metrics.jsonl', TRAIN),
    ('out/progress.json', TRAIN),
    ('trace.json', (*TRAIN, *TRACE)),
    ('out/report.html', ('report', 'out')),
    ('page.html', ('report', 'out', '-o', 'page.html')),
    ('train.bin', ('tokenize', 'c.yaml', '-o', 'train.bin')),
    ('val.bin', ('tokenize', 'c.yaml', '-o', 'train.bin', '--val', 'val.bin')),
    ('tensor.npy', ('ckpt', 'extract', CHECKPOINT, TENSOR, '-o', 'tensor.npy')),
    ('bench.json', ('bench', 'io', 'c.yaml', '--repeat', '1', '--json', 'bench.json')),
]
# Files that a command reads in a folder that others may write to.
INPUTS = [
    ('out/metrics.jsonl', ('report', 'out')),
    ('out/config.yaml', ('report', 'out')),
    ('out/progress.json', ('report', 'out')),
    ('out/chain', ('report', 'out')),
    ('out.out', ('report', 'out')),
    (CHECKPOINT, ('ckpt', 'verify', CHECKPOINT)),
    (CHECKPOINT, ('ckpt', 'ls', 'out/checkpoint')),
    ('tokens.bin', ('doctor', 'c.yaml', '--training.dataset_path=tokens.bin')),
    ('tokens.bin', (*TRAIN, '--training.dataset_path=tokens.bin')),
    ('c.yaml', ('plan', 'c.yaml')),
]
MUST_READ = {('report', 'out/metrics.jsonl'), ('report', 'out/config.yaml'), ('ckpt', CHECKPOINT), ('doctor', 'tokens.bin'),
             ('train', 'tokens.bin'), ('plan', 'c.yaml')}
# Outputs with no umask. The doctor makes the same folders as training.
MODES = {'new/deep/out': 0o755, 'new/deep/out/checkpoint': 0o750, f'new/deep/{CHECKPOINT}': 0o640, 'other/out': 0o755,
         'other/out/checkpoint': 0o750, 'new/deep/out/metrics.jsonl': 0o644, 'new/deep/out/report.html': 0o644,
         'trace.json': 0o644, 'train.bin': 0o640, 'tensor.npy': 0o640}
REPORT_OF_NO_STEPS = '{"event": "start", "time": "2030-01-31T12:00:00Z", "step": 0, "ranks": 1}\n'


def run(words, folder, **more):
    return subprocess.run([os.environ['SHERD'], *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=folder,
                          env=job.environment(0), timeout=SECONDS, **more)


def prepare(name):
    """A folder with a configuration and, for commands that read a run, a run."""
    folder = job.prepare(name, {**tiny.MODELS['llama'], 'job.dump_folder': 'out', 'training.dataset_path': tokens,
                                'training.steps': STEPS, 'lr_scheduler.total_steps': STEPS, 'training.local_batch_size': 12})
    return folder


def prepare_run(name):
    folder = prepare(name)
    shutil.copytree(finished / 'out', folder / 'out')
    return folder


def prepare_for(name, output, words):
    """Before the first line of a run, or after its end."""
    folder = prepare(name) if words[0] in ('train', 'tokenize', 'bench') else prepare_run(name)
    (folder / output).parent.mkdir(exist_ok=True)
    (folder / 'victim').write_text('precious')
    return folder


def plant_link(path, folder):
    path.symlink_to(folder / 'victim')


def plant_broken_link(path, folder):
    path.symlink_to(folder / 'new')


def plant_fifo(path, _):
    os.mkfifo(path)


def plant_fifo_with_reader(path, folder):
    os.mkfifo(path)
    readers.append(os.open(path, os.O_RDONLY | os.O_NONBLOCK))


PLANTS = [('a link', plant_link, 'is a symbolic link'), ('a link to nothing', plant_broken_link, 'is a symbolic link'),
          ('a FIFO', plant_fifo, 'is not a regular file'), ('a FIFO and its reader', plant_fifo_with_reader, 'is not a regular file')]


def untouched(folder):
    wrong = [] if (folder / 'victim').read_text() == 'precious' else ['the file behind the link was written']
    return wrong + (['a file was made through the link'] if (folder / 'new').exists() else [])


def left_behind(folder):
    return [f'left behind: {path.relative_to(folder)}' for path in folder.rglob('*.tmp') if path.name.startswith('.')]


def case_planted(output, words):
    """Each plant is refused in one line that names the output, and nothing is written."""
    wrong = []
    for kind, plant, said in PLANTS:
        folder = prepare_for('planted', output, words)
        (folder / output).unlink(missing_ok=True)
        plant(folder / output, folder)
        done = run(words, folder)
        lines = [line for line in done.stderr.splitlines() if 'error:' in line]
        if done.returncode != DATA or len(lines) != 1 or f'{output} {said}' not in lines[0]:
            wrong += [f'{kind}: exit {done.returncode}', *done.stderr.splitlines()]
        wrong += untouched(folder) + left_behind(folder)
    return wrong


def case_old_names(output, words):
    """Links with the output's name followed by .tmp have no effect."""
    folder = prepare_for('old-names', output, words)
    plant_link(folder / f'{output}.tmp', folder)
    done = run(words, folder)
    wrong = [] if done.returncode == 0 else [f'exit {done.returncode}', *done.stderr.splitlines()]
    return wrong + untouched(folder) + left_behind(folder)


def open_to_others(folder):
    return [f'{path.relative_to(folder)} has mode {stat.S_IMODE(path.lstat().st_mode):o}' for path in folder.rglob('*')
            if path.lstat().st_mode & (stat.S_IWGRP | stat.S_IWOTH)]


def case_umask():
    """With no umask at all, nobody else may write to the outputs."""
    folder, wrong = prepare('umask'), []
    for words in [(*TRAIN, *TRACE, '--job.dump_folder=new/deep/out'), ('doctor', 'c.yaml', '--job.dump_folder=other/out'),
                  ('report', 'new/deep/out'), ('tokenize', 'c.yaml', '-o', 'train.bin', '--val', 'val.bin'),
                  ('ckpt', 'extract', f'new/deep/{CHECKPOINT}', TENSOR, '-o', 'tensor.npy'),
                  ('bench', 'io', 'c.yaml', '--repeat', '1', '--json', 'bench.json')]:
        done = run(words, folder, umask=0)
        wrong += [] if done.returncode == 0 else [f'{words[0]}: exit {done.returncode}', *done.stderr.splitlines()]
    made = [path.relative_to(folder).as_posix() for path in folder.rglob('*')]
    wrong += [f'{name} was not made' for name in ('new/deep/out/report.html', 'trace.json', 'tensor.npy', 'bench.json',
                                                  'val.bin') if name not in made]
    (folder / 'c.yaml').chmod(0o644)
    wrong += [f'{name} has mode {stat.S_IMODE((folder / name).stat().st_mode):o}, expected {mode:o}'
              for name, mode in MODES.items() if stat.S_IMODE((folder / name).stat().st_mode) != mode]
    return wrong + open_to_others(folder)


def case_strict_umask():
    """Permissions that the user's umask removes stay removed."""
    folder = prepare('strict')
    done = run(TRAIN, folder, umask=0o077)
    wrong = [] if done.returncode == 0 else [f'exit {done.returncode}', *done.stderr.splitlines()]
    return wrong + [f'{path.name} has mode {path.stat().st_mode:o}' for path in (folder / 'out').rglob('*')
                    if path.stat().st_mode & 0o077]


def case_fifo(name, words):
    """A FIFO is not waited for, and is refused if the command cannot do without the file."""
    folder = prepare_run('read')
    (folder / 'out/metrics.jsonl').write_text(REPORT_OF_NO_STEPS)  # so that the report asks why the run ended
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    done = run(words, folder)
    expected = DATA if (words[0], name) in MUST_READ and words[1] != 'ls' else 0
    return [] if done.returncode == expected else [f'exit {done.returncode}, expected {expected}', *done.stderr.splitlines()]


def case_device():
    """As root, /dev/null would become a file; this device is the test's own."""
    folder = prepare_run('device')
    try:
        os.mknod(folder / 'null', stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:
        return []
    done = run(('report', 'out', '-o', 'null'), folder)
    wrong = [] if done.returncode == DATA else [f'exit {done.returncode}', *done.stderr.splitlines()]
    return wrong + ([] if stat.S_ISCHR((folder / 'null').lstat().st_mode) else ['the device was replaced'])


CASES = [(f'{output} is a link or a FIFO', case_planted, output, words) for output, words in OUTPUTS]
CASES += [(f'{output}.tmp is a link', case_old_names, output, words) for output, words in OUTPUTS if words[0] != 'bench']
CASES += [(f'{words[0]}: {name} is a FIFO', case_fifo, name, words) for name, words in INPUTS]
CASES += [('a device stays a device', case_device), ('umask 000', case_umask), ('umask 077', case_strict_umask)]

if __name__ == '__main__':
    tokens, readers = tiny.write_tokens(), []
    finished = prepare('finished')
    job.sherd(*TRAIN, folder=finished)
    sys.exit(job.run_cases(CASES))
