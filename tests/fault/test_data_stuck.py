#!/usr/bin/env python3
"""A disk stops answering on one rank just as the run is asked to stop: the job saves, and ends with its status all the
same. Prints TAP.

The call that hangs is a read ahead, whose data nobody wants any more, or the close of the file, in which the rank's main
thread stands still.
"""
import os
import pathlib
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'mesh'))
import job
import live
import tiny

RANKS = 2
REQUEUE = 75
SHIM = pathlib.Path(os.environ.get('SHERD_BUILDDIR', '.')).absolute() / 'tests/fault/shim.so'
LIMIT_SECONDS = 2  # comm.train_timeout_seconds, which is also the limit of the end
END_SECONDS = 10   # what a stop waits for a read, and the launcher


def calls_of_steps(folder, call):
    """The number of calls on the data file by rank 1 in a run of some steps."""
    counts = (folder / 'counts').absolute()
    env = {'LD_PRELOAD': job.launcher.preload(SHIM), 'SHIM_FOLDER': tokens, 'SHIM_FAULT': 'count', 'SHIM_COUNTS': str(counts)}
    words = job.command(RANKS, ['train', 'c.yaml', '--training.steps=4', '--job.dump_folder=count'])
    subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, cwd=folder, env=job.environment(RANKS) | env,
                   check=True, timeout=job.SECONDS)
    line = next(line for line in counts.read_text().splitlines() if line.startswith('1 '))
    return line.split().count(call)


def case(call):
    limit = job.stretch(LIMIT_SECONDS)
    folder = job.prepare(f'stuck-{call}', {**tiny.MODELS['llama'], 'training.dataset_path': tokens, 'job.dump_folder': 'out',
                                           'training.steps': 1000000, 'lr_scheduler.total_steps': 500,
                                           'training.local_batch_size': tiny.GLOBAL_BATCH // RANKS,
                                           'checkpoint.interval': 1000000, 'comm.train_timeout_seconds': limit})
    # The last close is that of the end. The last reads are ahead of a step that is not done, one for each sequence.
    number = calls_of_steps(folder, call) - (tiny.GLOBAL_BATCH // RANKS - 1 if call == 'read' else 0)
    child = live.start(folder, None, RANKS, LD_PRELOAD=job.launcher.preload(SHIM), SHIM_FOLDER=tokens, SHIM_RANK='1',
                       SHIM_CALL=call, SHIM_NUMBER=str(number), SHIM_FAULT='hang')
    try:
        if call == 'close':
            live.wait_for_steps(folder, child, 4)
            live.send(folder, live.signal.SIGUSR1, [1])
        live.wait_until(lambda: ' saved ' in live.said(folder), folder, child, 'no save')
        begun = time.monotonic()
        status = child.wait(job.SECONDS)
        seconds = time.monotonic() - begun
    finally:
        job.launcher.stop(child)
    wrong = [] if status == REQUEUE else [f'exit status {status}']
    wrong += [f'took {seconds:.1f} s to end'] if seconds > limit + job.stretch(END_SECONDS) else []
    wrong += ['a process is left'] if job.launcher.left_alive(folder.absolute()) else []
    if call == 'close' and 'rank 1: warning: this rank is stuck while it closes what it opened' not in live.said(folder):
        wrong.append('nobody says which rank is stuck')
    return wrong + ([live.said(folder)] if wrong else [])


if __name__ == '__main__':
    job.need_launcher()
    tokens = tiny.write_tokens()
    sys.exit(job.run_cases([(f'a {call} that never returns', case, call) for call in ('read', 'close')], deadlines=True))
