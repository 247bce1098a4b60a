#!/usr/bin/env python3
"""A rank ends at a stage of a save: killed, gone by itself, or stopped like a node that hangs. Prints TAP.

In the foreground through MPI-IO, and in the background. broken.py says what must result. Tests a sample of ranks, ways
and ends, but all stages; with SHERD_LONG=1 each stage in both ways on the first, a middle and the last rank.
"""
import itertools
import os
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import broken
import job

WAYS, VICTIMS = broken.WAYS, broken.VICTIMS


def stages():
    """The stages, read from the table itself."""
    names = re.findall(r'{\.name = "([^"]+)"', (job.TOP / 'io/checkpoint/stages.c').read_text())
    if len(names) < 10:
        raise job.Failed(f'the stages of a save are not where they were: {names}')
    return names


def stage_case(stage, rank, way, how):
    env = {'DIES_AT': stage, 'DIES_SAVE': '2', 'DIES_RANK': str(rank), 'DIES_HOW': how}
    return f'{way}, "{stage}", rank {rank}: {how}', broken.case, way, how, env, 'tests/fault/sherd_dies'


def never_finalized():
    """Launchers have their own opinion of a rank that leaves so: without one."""
    folder = job.prepare('never-finalized', broken.config('in front'))
    status, seconds, said = broken.start(folder, {'DIES_AT': 'MPI_Finalize'}, 'tests/fault/sherd_dies', ranks=0)
    wrong = [] if status == 0 and len(job.metrics(folder)) == broken.tiny.STEPS else [f'exit {status}: {said}']
    return wrong + ([] if 20 < seconds < job.SECONDS else [f'it took {seconds:.1f} s'])


def sample():
    """Ways, ranks and ends alternate."""
    turns = zip(stages(), itertools.cycle(itertools.product(WAYS, VICTIMS)),
                itertools.cycle(('kill', 'exit', 'kill', 'stop')))
    return [stage_case(stage, rank, way, how) for stage, (way, rank), how in turns] + [
        stage_case('fsync', 0, 'in front', 'time limit'), ('MPI_Finalize that does not return', never_finalized)]


def every():
    kills = [stage_case(stage, rank, way, 'kill') for way in WAYS for rank in VICTIMS for stage in stages()]
    return kills + [stage_case(stage, VICTIMS[i % len(VICTIMS)], way, how) for how in ('exit', 'stop') for way in WAYS
                    for i, stage in enumerate(stages())]


if __name__ == '__main__':
    job.need_launcher()
    sys.exit(job.run_cases(every() if os.environ.get('SHERD_LONG') else sample(), deadlines=True))
