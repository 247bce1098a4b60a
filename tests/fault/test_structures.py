#!/usr/bin/env python3
"""Damage to HDF5's own structures: every reader refuses the file, and a run falls back. Prints TAP.

One bit of each structure, each block of 4 KiB zeroed, and random bits, on a heap that holds things other than zeros, as
in a run. SHERD_LONG=1: thousands of random bits, and a run for everything else.
"""
import functools
import os
import pathlib
import random
import re
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'golden'))
import golden
import job

LONG = bool(os.environ.get('SHERD_LONG'))
FLIPS = 2000 if LONG else 30
BLOCK = 4096
GOOD, BAD = 2, 3  # steps
DATA_STATUS = 3
# Structures that begin with these end with a checksum: object headers and their parts, heaps, B-trees, free-space
# lists.
SIGNATURES = re.compile(rb'OHDR|OCHK|FRHP|FHDB|FHIB|BTHD|BTLF|BTIN|FSHD|FSSE')


@functools.lru_cache(None)
def checkpoints():
    """Checkpoints of the steps GOOD and BAD."""
    folder = golden.prepare('writer')
    job.sherd('train', 'tiny.yaml', '--checkpoint.interval=1', *golden.OPTIONS, folder=folder)
    return tuple(golden.checkpoint(folder, step).read_bytes() for step in (GOOD, BAD))


def flipped(data, at, bit=0):
    return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1:]


def replaced(data, at, by):
    return data[:at] + by + data[at + len(by):]


def data_begin():
    """Where the tensors begin: HDF5's structures, a hole without data and the configuration come first, padded to a
    block."""
    data = checkpoints()[1]
    return data.index(b'job:\n') // BLOCK * BLOCK + BLOCK


def structures():
    data = checkpoints()[1]
    for found in SIGNATURES.finditer(data[:data_begin()]):
        yield f'{found.group().decode()} at {found.start()}', flipped(data, found.start() + 9, 3)
    yield 'superblock', flipped(data, 44, 3)


def some_structures():
    return list(structures())[::4]


def few_structures():
    return list(structures())[::20]


def blocks():
    data = checkpoints()[1]
    for at in range(0, data_begin(), BLOCK):
        if data[at:at + BLOCK] != bytes(BLOCK):
            yield f'zeros from {at}', replaced(data, at, bytes(BLOCK))


def flips():
    """Random places, half of them in HDF5's structures."""
    data, draw = checkpoints()[1], random.Random(1)
    full = [at for at in range(data_begin()) if data[at]]
    for _ in range(FLIPS):
        at, bit = draw.choice([draw.choice(full), draw.randrange(data_begin())]), draw.randrange(8)
        yield f'bit {bit} of byte {at}', flipped(data, at, bit)


def place(damaged):
    folder = golden.prepare('damaged')
    golden.checkpoint(folder, GOOD).write_bytes(checkpoints()[0])
    golden.checkpoint(folder, BAD).write_bytes(damaged)
    return folder


def start(folder, *words):
    return subprocess.run(job.command(0, words), stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=folder,
                          env=job.environment(0) | {'MALLOC_PERTURB_': '165'}, timeout=job.SECONDS)


def verify(text, damaged):
    folder = place(damaged)
    done = start(folder, 'ckpt', 'verify', golden.checkpoint(folder, BAD).relative_to(folder))
    said = [line for line in done.stderr.splitlines() if line]
    wrong = done.returncode != DATA_STATUS or len(said) != 1
    return [f'{text}: exit {done.returncode}: {done.stderr}'] if wrong else []


def resume(text, damaged):
    folder = place(damaged)
    done = start(folder, 'train', 'tiny.yaml', '--training.steps=4', *golden.OPTIONS)
    fell = f'resumed from {golden.checkpoint("", GOOD)} at step {GOOD}' in done.stderr
    warned = done.stderr.count('warning: checkpoint passed over: ')
    fine = done.returncode == 0 and fell and warned == 1
    return [] if fine else [f'{text}: exit {done.returncode}: {done.stderr}']


def case(make, judge):
    tried, wrong = 0, []
    for text, damaged in make():
        tried += 1
        wrong += judge(text, damaged)
    print(f'# {tried} files')
    return wrong if tried else ['nothing was damaged']


if __name__ == '__main__':
    plan = [(structures, verify), (blocks, verify), (flips, verify), (some_structures if LONG else few_structures, resume)]
    plan += [(blocks, resume)] if LONG else []
    sys.exit(job.run_cases([(f'{make.__name__}, {judge.__name__}', case, make, judge) for make, judge in plan]))
