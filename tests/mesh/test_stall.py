#!/usr/bin/env python3
"""A rank of a training run that is stopped or killed: the others do not wait for it for ever. Prints TAP.

A stopped rank (SIGSTOP) looks like a node that hangs: after comm.train_timeout_seconds one line names it and the job
ends with the class of communication. A killed one ends the job at once. Nobody is left running.
"""
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job
import tiny

TIMEOUT_SECONDS = 2
GRACE_SECONDS = 5
COMM = 5  # the exit status of a communication error
CASES = [(signal.SIGSTOP, 1, 2), (signal.SIGSTOP, 0, 4), (signal.SIGSTOP, 2, 4), (signal.SIGKILL, 1, 4)]
LAUNCHER_RANK = ('OMPI_COMM_WORLD_RANK', 'PMI_RANK')


def variable(process, names):
    """The first of these variables in the environment of a process, or None."""
    try:
        words = (process / 'environ').read_bytes().split(b'\0')
    except OSError:
        return None
    found = dict(word.decode(errors='replace').split('=', 1) for word in words if b'=' in word)
    return next((found[name] for name in names if name in found), None)


def find_rank(folder, rank):
    """The process of a rank among those that work in the folder."""
    for process in pathlib.Path('/proc').glob('[0-9]*'):
        if launcher.works_in(process / 'cwd', folder.absolute()) and variable(process, LAUNCHER_RANK) == str(rank):
            return int(process.name)
    raise job.Failed(f'rank {rank} is not running')


def wait_for_steps(folder, child, count):
    """Training is under way once it has written some metrics."""
    deadline = time.monotonic() + job.SECONDS
    path = folder / 'out/metrics.jsonl'
    while not path.exists() or path.read_bytes().count(b'\n') < count:
        if child.poll() is not None or time.monotonic() > deadline:
            raise job.Failed(f'did not train: {(folder / "stderr").read_text()}')
        time.sleep(0.05)


def start(folder, ranks):
    job.prepare(folder, {'job.dump_folder': 'out', **tiny.MODELS['llama'], 'training.dataset_path': tokens,
                         'training.steps': 1000000, 'training.local_batch_size': tiny.GLOBAL_BATCH // ranks,
                         'comm.train_timeout_seconds': TIMEOUT_SECONDS, 'checkpoint.enable': False})
    with open(folder / 'stderr', 'wb') as errors:
        return subprocess.Popen(job.command(ranks, ['train', 'c.yaml']), stdin=subprocess.DEVNULL, stdout=errors,
                                stderr=errors, cwd=folder, env=job.environment(ranks), start_new_session=True)


def judge(status, seconds, folder, how, rank):
    text = launcher.NOISE.sub('', (folder / 'stderr').read_text(errors='replace'))
    said = [line for line in text.splitlines() if 'error:' in line and line.startswith('sherd:')]
    wrong = [f'process {number} is still there' for number in launcher.left_alive(folder.absolute())]
    if seconds > TIMEOUT_SECONDS + GRACE_SECONDS:
        wrong.append(f'took {seconds:.1f} s')
    if how == signal.SIGSTOP and status != COMM:
        wrong.append(f'exit status {status}, expected {COMM}')
    # tests/mpi/stall asks for one line; here two ranks may speak at once, but must say the same.
    names_it = [re.search(rf'\brank {rank} on \S+ \(no answer\)', line) for line in said]
    if how == signal.SIGSTOP and not (said and all(names_it)):
        wrong.append(f'expected a line that names rank {rank}')
    return wrong + (text.splitlines()[-6:] if wrong else [])


def case(how, rank, ranks):
    folder = pathlib.Path(f'{how.name}-{rank}-of-{ranks}')
    child = start(folder, ranks)
    try:
        wait_for_steps(folder, child, 20)
        begin = time.monotonic()
        os.kill(find_rank(folder, rank), how)
        status = child.wait(TIMEOUT_SECONDS + GRACE_SECONDS + 5)
        return judge(status, time.monotonic() - begin, folder, how, rank)
    finally:
        launcher.stop(child)


if __name__ == '__main__':
    job.need_launcher()
    launcher = job.launcher
    tokens = tiny.write_tokens()
    sys.exit(job.run_cases([(f'{how.name} to rank {rank} of {ranks}', case, how, rank, ranks)
                            for how, rank, ranks in CASES]))
