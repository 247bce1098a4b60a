#!/usr/bin/env python3
"""Memory runs out at the n-th allocation of a command, once or for good. Prints TAP.

The command ends with 0, or with 4 and one line of Sherd's. alloc.so says which library asked; the libraries in FOREIGN
end the process in their own way, and Sherd can only be required not to hang. Tests a sample of all n; `make check-long`
tests each, except for train.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job

LONG = 'SHERD_LONG' in os.environ
SECONDS = job.SECONDS
SHIM = (pathlib.Path(os.environ.get('SHERD_BUILDDIR', '.')) / 'tests/fault/alloc.so').resolve()

# The library that asked first, and why Sherd is not to blame for its end.
FOREIGN = {
    r'libhdf5': 'crashes, prints or exits if it cannot start; and it cannot read a file without memory for it',
    r'libmpi|libopen-|libpmix|mca_|libevent|libhwloc|libudev|libucp|libucs|libfabric|libpmi': 'MPI aborts the job itself',
    r'libdnnl': 'oneDNN compiles its kernels at run time, and writes through the buffer that it did not get',
    r'libgomp|libomp|libiomp': 'the OpenMP runtime prints its own line and exits, or crashes (Clang)',
}
COMMANDS = {  # name: (arguments, how many n in a quick run, how many in a long one, 0: all)
    'help': (['--help'], 4, 0),
    'plan': (['plan', 'tiny.yaml'], 40, 0),
    'tokenize': (['tokenize', 'book.txt', '-o', 'book.bin'], 6, 0),
    'ckpt info': (['ckpt', 'info', '--tensors', '--config', 'out/checkpoint/step-00000002.h5'], 16, 0),
    'train': (['train', 'tiny.yaml', '--job.dump_folder=again'], 10, 400),
}


def prepare():
    if not pathlib.Path('tiny.yaml').exists():
        text = (pathlib.Path(__file__).resolve().parent.parent / 'mpi/tiny.yaml').read_text()
        pathlib.Path('tiny.yaml').write_text(text.replace('steps: 3', 'steps: 2'))
        pathlib.Path('tokens.bin').write_bytes(bytes(40000))
        pathlib.Path('book.txt').write_text('It was a dark night.\n' * 100)
        run(['train', 'tiny.yaml'], 0, False)


def run(words, number, lasting):
    shutil.rmtree('again', ignore_errors=True)
    report = pathlib.Path('report')
    report.unlink(missing_ok=True)
    env = job.environment(0) | {'LD_PRELOAD': str(SHIM), 'ALLOC_NUMBER': str(number), 'ALLOC_REPORT': str(report)}
    env |= {'ALLOC_LASTING': '1'} if lasting else {}
    done = subprocess.run([os.environ['SHERD'], *words], env=env, capture_output=True, timeout=SECONDS)
    said = [line for line in done.stderr.decode(errors='replace').splitlines() if ' error: ' in line]
    return done.returncode, said, report.read_text().splitlines() if report.exists() else []


def who_asked(lines):
    names = lines[0].split() if lines else []
    return next((name for name in names if not re.match(r'libc\.|libc-|alloc\.so|ld-linux', name)), 'nobody')


def judge(words, number, lasting):
    status, said, lines = run(words, number, lasting)
    who = who_asked(lines)
    if any(re.match(pattern, who) for pattern in FOREIGN):
        return []
    if status == 0 or (status == 4 and len(said) == 1):
        return []
    if lasting and words[0] == 'train' and status and len(said) == 1 and re.search('out of memory|cannot create a thread', said[0]):
        return []  # the line was printed; MPI_Abort, which ends the other ranks, needs memory too: it crashes or exits its own way
    return [f'allocation {number}, asked for by {who}: exit status {status}, {said}']


def case(words, quick, thorough, lasting):
    prepare()
    status, said, lines = run(words, 0, False)
    if status:
        return [f'without a fault: exit status {status}, {said}']
    total = int(lines[-1])
    wanted = thorough if LONG else quick
    numbers = range(1, total + 1, 1 + total // wanted if wanted else 1)
    return [wrong for number in numbers for wrong in judge(words, number, lasting)]


if __name__ == '__main__':
    if not SHIM.exists():
        job.skip_all(f'no {SHIM}')
    sys.exit(job.run_cases([(f'{name}, {how}', case, *what, how == 'for good')
                            for name, what in COMMANDS.items() for how in ('once', 'for good')]))
