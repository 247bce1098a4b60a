#!/usr/bin/env python3
"""A rank of a training run is stopped or killed: the others do not wait for it for ever. Prints TAP.

A stopped rank (SIGSTOP) looks like a node that hangs: after comm.train_timeout_seconds one line names it and the job
ends with the class of communication. A killed rank ends the job immediately. No process is left running.
"""
import os
import pathlib
import re
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job
import live
import tiny

TIMEOUT_SECONDS = 2
RECENT = 16  # collectives in a flight file: fewer than a run of 20 steps starts
GRACE_SECONDS = 5
COMM = 5  # the exit status of a communication error
CASES = [(signal.SIGSTOP, 1, 2), (signal.SIGSTOP, 0, 4), (signal.SIGSTOP, 2, 4), (signal.SIGKILL, 1, 4)]


def start(folder, ranks, limit):
    return live.start(folder, {**tiny.MODELS['llama'], 'training.dataset_path': tokens, 'training.steps': 1000000,
                               'training.local_batch_size': tiny.GLOBAL_BATCH // ranks,
                               'comm.train_timeout_seconds': limit, 'comm.trace_buf_size': RECENT,
                               'checkpoint.enable': False}, ranks)


def plant(folder):
    """The flight file of rank 1 would go where somebody planted something; those of the other ranks have a good
    place."""
    (folder / 'victim').write_text('precious')
    (folder / 'out/rank-1.flight.txt').symlink_to('../victim')


def judge_flights(folder, how):
    wrong = [] if (folder / 'victim').read_text() == 'precious' else ['a flight file was written through a link']
    found = [path for path in (folder / 'out').glob('rank-*.flight.txt') if not path.is_symlink()]
    wrong += [f'{path.name} has mode {path.stat().st_mode:o}' for path in found if path.stat().st_mode & 0o022]
    recent = {path.name: sum(not line.startswith('#') for line in path.read_text().splitlines()) for path in found}
    wrong += [f'{name} has {n} collectives, not {RECENT}' for name, n in recent.items() if n != RECENT]
    return wrong + (['no flight file'] if how == signal.SIGSTOP and not found else [])


def judge(status, seconds, most, folder, how, rank):
    text = live.said(folder)
    said = [line for line in text.splitlines() if 'error:' in line and line.startswith('sherd:')]
    wrong = [f'process {number} is still there' for number in launcher.left_alive(folder.absolute())]
    if seconds > most:
        wrong.append(f'took {seconds:.1f} s')
    if how == signal.SIGSTOP and status != COMM:
        wrong.append(f'exit status {status}, expected {COMM}')
    # tests/mpi/stall expects one line; here two ranks may report at once, but must say the same.
    names_it = [re.search(rf'\brank {rank} on \S+ \(no answer\)', line) for line in said]
    if how == signal.SIGSTOP and not (said and all(names_it)):
        wrong.append(f'expected a line that names rank {rank}')
    return wrong + (text.splitlines()[-6:] if wrong else [])


def case(how, rank, ranks):
    folder = pathlib.Path(f'{how.name}-{rank}-of-{ranks}')
    limit = job.stretch(TIMEOUT_SECONDS)
    child = start(folder, ranks, limit)
    try:
        live.wait_for_steps(folder, child, 20)
        begin = time.monotonic()
        plant(folder)
        os.kill(live.find_rank(folder, rank), how)
        most = limit + job.stretch(GRACE_SECONDS)
        status = child.wait(most + 5)
        return judge(status, time.monotonic() - begin, most, folder, how, rank) + judge_flights(folder, how)
    finally:
        launcher.stop(child)


if __name__ == '__main__':
    job.need_launcher()
    launcher = job.launcher
    tokens = tiny.write_tokens()
    sys.exit(job.run_cases([(f'{how.name} to rank {rank} of {ranks}', case, how, rank, ranks)
                            for how, rank, ranks in CASES], deadlines=True))
