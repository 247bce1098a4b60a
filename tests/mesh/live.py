"""A training run that continues while a test does something to it."""
import os
import pathlib
import signal
import subprocess
import time

import job

LAUNCHER_RANK = ('OMPI_COMM_WORLD_RANK', 'PMI_RANK')


def variable(process, names):
    """The first of these variables that the environment of a process has, or None."""
    try:
        words = (process / 'environ').read_bytes().split(b'\0')
    except OSError:
        return None
    found = dict(word.decode(errors='replace').split('=', 1) for word in words if b'=' in word)
    return next((found[name] for name in names if name in found), None)


def find_rank(folder, rank):
    """The process of a rank, among the processes that run in the folder."""
    for process in pathlib.Path('/proc').glob('[0-9]*'):
        works_here = job.launcher.works_in(process / 'cwd', folder.absolute())
        if works_here and variable(process, LAUNCHER_RANK) == str(rank):
            return int(process.name)
    raise job.Failed(f'rank {rank} is not running')


def wait_until(holds, folder, child, what):
    deadline = time.monotonic() + job.SECONDS
    while not holds():
        if child.poll() is not None or time.monotonic() > deadline:
            raise job.Failed(f'{what}: {said(folder)}')
        time.sleep(0.02)


def wait_for_steps(folder, child, count):
    """Wait until training is running, that is, has written some metrics."""
    path = folder / 'out/metrics.jsonl'
    wait_until(lambda: path.exists() and path.read_bytes().count(b'"loss"') >= count, folder, child, 'did not train')


def start(folder, config, ranks, **env):
    """Train in an empty folder, or continue in an existing one (config None)."""
    if config is not None:
        job.prepare(folder, {'job.dump_folder': 'out', **config})
    # A test in the background starts with SIGINT ignored, and would pass that on.
    with open(folder / 'stderr', 'wb') as errors:
        return subprocess.Popen(job.command(ranks, ['train', 'c.yaml']), stdin=subprocess.DEVNULL, stdout=errors,
                                stderr=errors, cwd=folder, env=job.environment(ranks) | env, start_new_session=True,
                                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))


def said(folder):
    return job.launcher.NOISE.sub('', (folder / 'stderr').read_text(errors='replace'))


def send(folder, number, ranks):
    """Send a signal to some ranks; ranks that have ended meanwhile are skipped."""
    for rank in ranks:
        try:
            os.kill(find_rank(folder, rank), number)
        except (job.Failed, ProcessLookupError):
            pass
