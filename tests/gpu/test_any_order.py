#!/usr/bin/env python3
"""The trainer on emulated GPUs whose streams do their work late, and in another order each time: this must not show.
Prints TAP. SHERD_LONG=1 tries many more orders.

Only in a build that was configured --with-cuda=emulated.
"""
import os
import sys

from trains import CUDA, job, run, tiny

LONG = bool(os.environ.get('SHERD_LONG'))


def in_any_order(mesh, seeds, more):
    """The same bits with each seed. With every other one NCCL's calls and collectives take up to 2 ms more."""
    expected, wrong = None, []
    for seed in seeds:
        os.environ.update(SHERD_EMULATED_SEED=str(seed), SHERD_EMULATED_NCCL_DELAY=str(seed % 2 * 2000))
        try:
            found = run('order', 'llama', CUDA, mesh, **more)
        finally:
            del os.environ['SHERD_EMULATED_SEED'], os.environ['SHERD_EMULATED_NCCL_DELAY']
        found = [(step['loss'], step['grad_norm']) for step in found]
        expected = expected or found
        if found != expected:
            wrong.append(f'seed {seed}: {found}, but with {seeds[0]} {expected}')
    return wrong


def main():
    job.need_emulated_gpus()
    tiny.write_tokens()
    behind = {'checkpoint.async_mode': 'async', 'checkpoint.interval': 1}
    return job.run_cases([
        ('on 1 GPU', in_any_order, '1x1', range(20 if LONG else 2), {}),
        ('on 2 GPUs', in_any_order, '1x2', range(100 if LONG else 3), {}),
        ('on 2 x 2 GPUs', in_any_order, '2x2', range(20 if LONG else 2), {}),
        ('through host memory', in_any_order, '1x2', range(15 if LONG else 2), {'comm.backend': 'mpi'}),
        ('with checkpoints in the background', in_any_order, '1x2', range(15 if LONG else 2), behind)])


if __name__ == '__main__':
    sys.exit(main())
