#!/usr/bin/env python3
"""tests/gpu/run and tests/gpu/bench where no GPU is to be seen: the one says so and skips, the other measures a toy on
the CPU. Prints TAP."""
import functools
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / 'gold')]
import job

TOY = ['--device', 'cpu', '--peak-tflops', '1', '--bandwidth-tbs', '0.04', '--rounds', '1', '--steps', '6', 'toy']


def is_emulated():
    return b'SHERD_EMULATED_GPUS' in pathlib.Path(os.environ['SHERD']).read_bytes()


def lacks(text, *lines):
    """A complaint for each that no line begins with."""
    return [f'no line begins with "{line}" in:\n{text}' for line in lines
            if not any(found.startswith(line) for found in text.splitlines())]


def skips():
    done = subprocess.run([HERE / 'run', '--build', os.environ['SHERD_BUILDDIR']], capture_output=True, text=True,
                          env={**os.environ, 'CUDA_VISIBLE_DEVICES': ''})
    wrong = lacks(done.stdout, '1..0 # SKIP no GPU: ', '0 passed, 0 failed, 1 skipped')
    return wrong + ([] if done.returncode == 0 else [f'exit {done.returncode}: {done.stderr}'])


def runs_a_part():
    done = subprocess.run([HERE / 'run', '--build', os.environ['SHERD_BUILDDIR'], 'kernels:elem', 'checkpoint'],
                          capture_output=True, text=True)
    wrong = lacks(done.stdout, 'gpu/kernels:elem', '    skipped: emulated GPUs', 'gpu/checkpoint ',
                  '8 passed, 0 failed, 1 skipped')
    return wrong + ([] if done.returncode == 0 else [f'exit {done.returncode}: {done.stderr}'])


@functools.lru_cache(None)
def has_torch(python):
    return subprocess.run([python, '-c', 'import torch'], capture_output=True).returncode == 0


def measures():
    python = next((python for python in (sys.executable, job.SYSTEM_PYTHON) if has_torch(python)), sys.executable)
    done = subprocess.run([sys.executable, HERE / 'bench', '--sherd', os.environ['SHERD'], '--python', python, *TOY],
                          capture_output=True, text=True, env={**job.environment(0)})
    if done.returncode:
        return [f'exit {done.returncode}: {done.stdout}{done.stderr}']
    return lacks(done.stdout, 'sherd ', 'PyTorch plain ' if has_torch(python) else 'PyTorch: left out', 'linear_bwd_w ',
                 'adamw ', 'no_shard ', 'full_shard ', 'checkpoint of step 3: ')


def main():
    first = ('a part runs on emulated GPUs', runs_a_part) if is_emulated() else ('without a GPU it says so', skips)
    return job.run_cases([first, ('the benchmark of a toy', measures)])


if __name__ == '__main__':
    sys.exit(main())
