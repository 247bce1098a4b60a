#!/usr/bin/env python3
"""Training on a disk that becomes full: a tmpfs with room for one checkpoint and a part of the next, or (in a long run)
not even for one. Prints TAP.

The save is refused with one line and the status for data, on any number of ranks; nothing unfinished is left, and the
previous checkpoint is whole.
"""
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'mesh'))
import job
import tiny

# In sizes of a checkpoint: (room, checkpoints that fit). While a file is written it takes more room than in the end, so
# 1 is too little for one checkpoint and 2 for two.
ROOMS = [(1.0, 0), (1.3, 0), (1.7, 1), (1.8, 1), (1.9, 1), (2.0, 1)] if os.environ.get('SHERD_LONG') else [(1.8, 1)]
STATUS_DATA = 3
# A rank that waits for another waits longer than a run may take.
FOR_EVER = {'comm.train_timeout_seconds': 604800, 'checkpoint.timeout_seconds': 1000000}


class Disk:
    """A tmpfs of that many bytes, mounted while the block runs."""

    def __init__(self, folder, size):
        self.folder, self.size = pathlib.Path(folder).resolve(), size
        self.folder.mkdir(exist_ok=True)

    def __enter__(self):
        done = subprocess.run(['mount', '-t', 'tmpfs', '-o', f'size={self.size}', 'none', self.folder],
                              capture_output=True, text=True)
        if done.returncode != 0:
            raise OSError(f'mount: {done.stderr.strip()}')
        return self.folder

    def __exit__(self, *_):
        subprocess.run(['umount', self.folder], check=True)


def config(folder):
    return {'job.dump_folder': 'out', 'training.dataset_path': tokens, 'checkpoint.interval': tiny.STEPS // 2,
            'checkpoint.folder': str(folder), **FOR_EVER, **tiny.MODELS['llama']}


def checkpoint_bytes():
    folder = pathlib.Path('room-enough').resolve()
    job.train('unbroken', config(folder))
    return (folder / f'step-{tiny.STEPS:08}.h5').stat().st_size


def judge(done, disk, fit):
    said = [line for line in done.stderr.splitlines() if line.startswith('sherd: ') and 'error' in line]
    wrong = [] if done.returncode == STATUS_DATA else [f'exit {done.returncode}']
    if len(said) != 1 or 'No space left on device' not in said[0]:
        wrong.append(f'{len(said)} lines: {done.stderr}')
    left = sorted(path.name for path in disk.iterdir() if path.name != '.lock')
    if left != [f'step-{tiny.STEPS // 2:08}.h5'][:fit]:
        return wrong + [f'on the disk: {left}']
    for name in left:
        job.sherd('ckpt', 'verify', disk / name)
    return wrong


def case(ranks, size, fit):
    with Disk('disk', size) as disk:
        folder = job.prepare(f'on-{ranks}', config(disk))
        done = subprocess.run(job.command(ranks, ['train', 'c.yaml']), stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, cwd=folder, env=job.environment(ranks), timeout=job.SECONDS)
        return judge(done, disk, fit)


def case_metrics(ranks):
    """The disk is full when a line of metrics is written."""
    with Disk('disk', 1 << 16) as disk:
        folder = job.prepare(f'metrics-on-{ranks}', {**config(disk), 'job.dump_folder': str(disk / 'out'),
                                                     'training.steps': 1000, 'checkpoint.enable': False})
        done = subprocess.run(job.command(ranks, ['train', 'c.yaml']), stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, cwd=folder, env=job.environment(ranks), timeout=job.SECONDS)
    said = [line for line in done.stderr.splitlines() if 'error:' in line]
    right = len(said) == 1 and said[0].endswith(f'write {disk}/out/metrics.jsonl: No space left on device')
    wrong = [] if done.returncode == STATUS_DATA else [f'exit {done.returncode}']
    return wrong + ([] if right else done.stderr.splitlines())


def need_mount():
    try:
        with Disk('disk', 1 << 20):
            pass
    except OSError as error:
        job.skip_all(f'no tmpfs can be mounted here ({error})')


if __name__ == '__main__':
    job.need_launcher()
    need_mount()
    tokens = tiny.write_tokens()
    size = checkpoint_bytes()
    cases = [(f'{ranks} ranks, room for {room} checkpoints', case, ranks, int(room * size) // 4096 * 4096, fit)
             for room, fit in ROOMS for ranks in (1, 2, 3, 4)]
    cases += [(f'{ranks} ranks, full of metrics', case_metrics, ranks) for ranks in (1, 3)]
    sys.exit(job.run_cases(cases))
