#!/usr/bin/env python3
"""A rank is killed (SIGKILL) in the middle of a save, at each phase of it, and the job is started again. Prints TAP.

The job must end soon; the checkpoint of before is untouched; started again it resumes by itself and ends with the
losses and the checkpoint, to the bit, of the run that was never broken, and nothing unfinished is left. First, middle
and last rank; with SHERD_LONG=1 at up to 60 storage calls of each, evenly spread over the save.
"""
import functools
import itertools
import os
import pathlib
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'mesh'))
import job
import tiny

LONG = bool(os.environ.get('SHERD_LONG'))
RANKS = 3
HALF = tiny.STEPS // 2
END_SECONDS = 30
SHIM = pathlib.Path(os.environ.get('SHERD_BUILDDIR', '.')) / 'tests/fault/shim.so'
folders = itertools.count()


def config():
    return {'job.dump_folder': 'out', 'training.dataset_path': tokens, 'checkpoint.interval': HALF,
            **tiny.MODELS['llama']}


def checkpoint(folder, step):
    return folder / f'out/checkpoint/step-{step:08}.h5'


def start(folder, **shim):
    """Train with the shim watching the second save; returns (exit status, seconds)."""
    env = job.environment(RANKS) | {f'SHIM_{key}': str(value) for key, value in shim.items()}
    env |= {'LD_PRELOAD': str(SHIM), 'SHIM_FOLDER': 'out/', 'SHIM_AFTER': f'step-{tiny.STEPS:08}.h5'}
    # The sanitizers' library need not be the first one here.
    env['ASAN_OPTIONS'] = f"{env.get('ASAN_OPTIONS', '')}:verify_asan_link_order=0"
    began = time.monotonic()
    done = subprocess.run(job.command(RANKS, ['train', 'c.yaml']), stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, cwd=folder, env=env, timeout=job.SECONDS)
    return done.returncode, time.monotonic() - began


@functools.lru_cache(None)
def unbroken():
    """Returns (folder, metrics, {rank: calls of the second save in their order})."""
    folder, counts = job.prepare('unbroken', config()), pathlib.Path('counts').resolve()
    status, _ = start(folder, FAULT='count', COUNTS=counts)
    if status != 0:
        raise job.Failed(f'the unbroken run: exit {status}')
    lines = [line.split() for line in counts.read_text().splitlines()]
    return folder, job.metrics(folder), {int(line[0]): line[1:] for line in lines if len(line) > 1}


def phases(rank, calls):
    """Places in a rank's calls, from 1. Of rank 0: creating, laying out, writing, fsync, the rename and the fsync of
    the folder behind it; of the others: writing and verifying."""
    of_kind = {kind: [i for i, call in enumerate(calls, 1) if call == kind] for kind in calls}
    middle = of_kind['write'][len(of_kind['write']) // 2]
    if rank > 0:
        return [middle, of_kind['read'][-1]]
    return [1, of_kind['write'][0], middle, of_kind['sync'][0], of_kind['rename'][0], of_kind['sync'][-1]]


def spread(calls):
    return range(1, len(calls) + 1, 1 + len(calls) // 60)


def case(rank, number):
    whole, metrics, _ = unbroken()
    folder = job.prepare(f'killed-{next(folders)}', config())
    status, seconds = start(folder, RANK=rank, CALL='any', NUMBER=number, FAULT='kill')
    wrong = [] if status != 0 else ['the job was not killed']
    wrong += [f'it took {seconds:.1f} s to end'] if seconds > END_SECONDS else []
    if checkpoint(folder, HALF).read_bytes() != checkpoint(whole, HALF).read_bytes():
        wrong.append('the checkpoint before is not what it was')
    committed = checkpoint(folder, tiny.STEPS).exists()
    job.sherd('train', 'c.yaml', ranks=RANKS, folder=folder)
    if checkpoint(folder, tiny.STEPS).read_bytes() != checkpoint(whole, tiny.STEPS).read_bytes():
        wrong.append('the last checkpoint is not that of the unbroken run')
    wrong += [f'left behind: {path.name}' for path in checkpoint(folder, 0).parent.glob('.*.tmp*')]
    after = [] if committed else job.losses(job.metrics(folder))[-HALF:]
    return wrong + ([] if committed else job.differ('losses', after, job.losses(metrics)[HALF:], 0))


def make_cases():
    calls = unbroken()[2]
    return [(f'rank {rank}, call {number} of {len(calls[rank])}: {calls[rank][number - 1]}', case, rank, number)
            for rank in sorted({0, RANKS // 2, RANKS - 1})
            for number in (spread(calls[rank]) if LONG else phases(rank, calls[rank]))]


if __name__ == '__main__':
    job.need_launcher()
    tokens = tiny.write_tokens()
    sys.exit(job.run_cases(make_cases()))
