#!/usr/bin/env python3
"""A rank stands still, or is gone, while its node's only writer waits for its part, or while the others wait for the
writer: the job ends in time, in the foreground and in the background. Prints TAP.
"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import broken
import job

PASSED = {'checkpoint.io': 'direct', 'checkpoint.writers_per_node': 1}
WAYS = {'in front, passed': PASSED, 'in the background, passed': PASSED | {'checkpoint.async_mode': 'async'}}
CASES = (('in front, passed', 0, 'stop'), ('in front, passed', 2, 'stop'), ('in front, passed', 3, 'exit'),
         ('in the background, passed', 0, 'kill'), ('in the background, passed', 2, 'stop'))


def case(way, rank, how):
    env = {'DIES_AT': 'writing', 'DIES_SAVE': '2', 'DIES_RANK': str(rank), 'DIES_HOW': how}
    return broken.case(way, how, env, 'tests/fault/sherd_dies')


if __name__ == '__main__':
    job.need_launcher()
    broken.WAYS |= WAYS
    sys.exit(job.run_cases([(f'{way}, rank {rank}: {how}', case, way, rank, how) for way, rank, how in CASES], deadlines=True))
