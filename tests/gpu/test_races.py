#!/usr/bin/env python3
"""Races in CUDA kernels, found on the CPU by ThreadSanitizer (tests/gpu/emulated/races.h): two planted ones, between
the threads of a block and between blocks, and none in any kernel. Prints TAP. SHERD_LONG=1 goes through all shapes,
and through some of the attention kernels, which takes minutes. SHERD_TEST_FEW=1 leaves the kernels of rows and of experts
out, which take three."""
import os
import pathlib
import re
import subprocess
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / 'gold')]
import job

LONG = bool(os.environ.get('SHERD_LONG'))
FOUND = 66  # ThreadSanitizer's exit status
SUMMARY = re.compile(r'SUMMARY: ThreadSanitizer: data race \S+ in (?:\(anonymous namespace\)::)?(\w+)')


def run(name, **environment):
    """(exit status, kernels with a race, output)"""
    program = pathlib.Path(os.environ['SHERD_BUILDDIR']) / f'tests/gpu/race_{name}'
    done = subprocess.run([program], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors='replace', env={**os.environ, 'OMP_NUM_THREADS': '1', **environment,
                                                 'TSAN_OPTIONS': f'exitcode={FOUND}'})
    return done.returncode, sorted(set(SUMMARY.findall(done.stdout))), done.stdout


def finds_planted():
    status, kernels, text = run('emulation')
    if (status, kernels) == (FOUND, ['reverse', 'sum']):
        return []
    return [f'exit {status}, races in {kernels}; planted are reverse (a missing barrier) and sum (between blocks)', text]


def none_in(name):
    few = not LONG or name == 'attention'
    status, kernels, text = run(name, **({'SHERD_FEW_SHAPES': '1'} if few else {}))
    return [] if status == 0 and not kernels else [f'exit {status}, races in {kernels}', text]


def main():
    programs = ['softmax'] if job.FEW else ['elem', 'softmax', 'moe', 'muon', 'delta', *(['attention'] if LONG else [])]
    return job.run_cases([('both planted races are found', finds_planted)] + [
        (f'no race in the kernels of test_cuda_{name}', none_in, name) for name in programs])


if __name__ == '__main__':
    sys.exit(main())
