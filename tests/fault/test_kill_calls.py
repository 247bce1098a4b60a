#!/usr/bin/env python3
"""A rank is killed (SIGKILL) in place of a storage call of a save, evenly spread over all of them. Prints TAP.

In the foreground through MPI-IO, and in the background. broken.py says what must result.
"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import broken
import job

PLACES = 24  # places for each rank, in each way


def call_cases(way):
    calls = broken.unbroken(way)[2]
    return [(f'{way}, rank {rank}, call {number} of {len(calls[rank])}, {calls[rank][number - 1]}: kill', broken.case,
             way, 'kill', broken.shim(RANK=rank, CALL='any', NUMBER=number, FAULT='kill'))
            for rank in broken.VICTIMS for number in range(1, len(calls[rank]) + 1, 1 + len(calls[rank]) // PLACES)]


if __name__ == '__main__':
    job.need_launcher()
    sys.exit(job.run_cases([case for way in broken.WAYS for case in call_cases(way)]))
