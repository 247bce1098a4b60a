#!/usr/bin/env python3
"""Near checkpoints of states on emulated GPUs: ranks die at random times, and the run goes on from memory, also on the CPU's
side of its homes, to the bits of the run that was never broken. Prints TAP. SHERD_LONG=1: more deaths.

Only in a build that was configured --with-cuda=emulated.
"""
import pathlib
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / name) for name in ('gold', 'mesh', 'fault')]
import job
import test_near
from trains import CUDA

RUNS = {'shards of float32': ([2], {}, 2),
        'states in host memory and in bfloat16, then one rank': (
            [2, 1], {'training.reproducible': 'mesh', 'offload.optimizer': 'cpu', 'optimizer.state_dtype': 'bfloat16'}, 1)}

if __name__ == '__main__':
    job.need_emulated_gpus()
    test_near.RUNS = {name: (ranks, CUDA | changes, whole) for name, (ranks, changes, whole) in RUNS.items()}
    sys.exit(job.run_cases([(name, test_near.survive, name, *run) for name, run in test_near.RUNS.items()]))
