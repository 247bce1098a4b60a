#!/usr/bin/env python3
"""A rank that stands still while a checkpoint is loaded: the others end the job and name the stage. Prints TAP.

At each stage of a load, on the first or another rank in turn; with SHERD_LONG=1 on each rank.
"""
import os
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import broken
import job
import tiny

RANKS = 3
SECONDS = 2
GRACE_SECONDS = 3  # io/move/deadline.c: a waiting rank speaks two seconds later, ranks other than 0 another second
END_SECONDS = 5    # how long the launcher takes after that


def stages():
    """The stages, read from the table itself."""
    names = re.findall(r'{\.name = "([^"]+)"', (job.TOP / 'io/checkpoint/load.c').read_text())
    if len(names) < 4:
        raise job.Failed(f'the stages of a load are not where they were: {names}')
    return names


def case(folder, stage, rank):
    env = {'DIES_AT': stage, 'DIES_SAVE': '1', 'DIES_RANK': str(rank), 'DIES_HOW': 'stop'}
    before = broken.checkpoint(folder, tiny.STEPS).read_bytes()
    limit = job.stretch(SECONDS)
    limits = (f'--checkpoint.timeout_seconds={limit}', '--training.steps=20')
    status, seconds, said = broken.start(folder, env, 'tests/fault/sherd_dies', limits, RANKS)
    errors = [line for line in said.splitlines() if line.startswith('sherd: ') and 'error: ' in line]
    begin, end = f'loading out/checkpoint/step-{tiny.STEPS:08}.h5: ', f', {stage} takes longer than checkpoint.timeout'
    # When the launcher ends the job it wakes the rank, which may then report by itself.
    named = errors and all(begin in line and end in line for line in errors)
    good = status == broken.STATUS_COMM and named and 'other ranks are late' in said
    wrong = [] if good else [f'exit {status}: {said}']
    wrong += [f'it took {seconds:.1f} s to end'] if seconds > limit + GRACE_SECONDS + job.stretch(END_SECONDS) else []
    if broken.checkpoint(folder, tiny.STEPS).read_bytes() != before:
        wrong.append('the checkpoint has changed')
    return wrong


if __name__ == '__main__':
    job.need_launcher()
    trained = job.prepare('trained', broken.config('in front'))
    job.sherd('train', 'c.yaml', ranks=RANKS, folder=trained)
    chosen = [(stage, rank) for i, stage in enumerate(stages()) for rank in range(RANKS)
              if os.environ.get('SHERD_LONG') or rank == i % RANKS]
    sys.exit(job.run_cases([(f'"{stage}", rank {rank}', case, trained, stage, rank) for stage, rank in chosen],
                           deadlines=True))
