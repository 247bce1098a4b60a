#!/usr/bin/env python3
"""Damage to HDF5's own structures, in files of both formats: no reader may crash, and a run falls back. Prints TAP.

One bit of each structure, each block of 4 KiB zeroed, and random bits. The heap holds things other than zeros, as in a
run: HDF5 has freed entries that it found there. SHERD_LONG=1: thousands of random bits, and runs for everything else.
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
# Each has once crashed a run, through the table of a group's links, in a file of format 1.0.
CRASHED = [('four zeros at 6579', 6579, bytes(4))] + [
    (f'bit 0 of byte {at}', at, None) for at in (6583, 6887, 4756, 28469, 28981)] + [('zeros from 24576', 24576, bytes(BLOCK))]


@functools.lru_cache(None)
def checkpoints(version):
    """Checkpoints of the steps GOOD and BAD. This program writes the newest format itself."""
    if version != golden.VERSIONS[-1]:
        return golden.read(GOOD, version), golden.read(BAD, version)
    folder = golden.prepare('writer')
    job.sherd('train', 'tiny.yaml', '--checkpoint.interval=1', *golden.OPTIONS, folder=folder)
    return tuple(golden.checkpoint(folder, step).read_bytes() for step in (GOOD, BAD))


def flipped(data, at, bit=0):
    return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1:]


def replaced(data, at, by):
    return data[:at] + by + data[at + len(by):]


def data_begin(version):
    """Where the tensors begin: HDF5's structures, a hole without data and the configuration come first, padded to a
    block."""
    data = checkpoints(version)[1]
    return data.index(b'job:\n') // BLOCK * BLOCK + BLOCK


def structures(version):
    data = checkpoints(version)[1]
    for found in SIGNATURES.finditer(data[:data_begin(version)]):
        yield f'{found.group().decode()} at {found.start()}', flipped(data, found.start() + 9, 3)
    yield 'superblock', flipped(data, 44, 3)


def some_structures(version):
    return list(structures(version))[::4]


def blocks(version):
    data = checkpoints(version)[1]
    for at in range(0, data_begin(version), BLOCK):
        if data[at:at + BLOCK] != bytes(BLOCK):
            yield f'zeros from {at}', replaced(data, at, bytes(BLOCK))


def crashed(version):
    data = checkpoints(version)[1]
    return [(text, replaced(data, at, by) if by else flipped(data, at)) for text, at, by in CRASHED]


def flips(version):
    """Random places, half of them in HDF5's structures."""
    data, draw = checkpoints(version)[1], random.Random(version)
    full = [at for at in range(data_begin(version)) if data[at]]
    for _ in range(FLIPS):
        at, bit = draw.choice([draw.choice(full), draw.randrange(data_begin(version))]), draw.randrange(8)
        yield f'bit {bit} of byte {at}', flipped(data, at, bit)


def place(version, damaged):
    folder = golden.prepare('damaged')
    golden.checkpoint(folder, GOOD).write_bytes(checkpoints(version)[0])
    golden.checkpoint(folder, BAD).write_bytes(damaged)
    return folder


def start(folder, *words):
    return subprocess.run(job.command(0, words), stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=folder,
                          env=job.environment(0) | {'MALLOC_PERTURB_': '165'}, timeout=job.SECONDS)


def verify(version, text, damaged):
    """HDF5 leaves some bytes of its structures unused; the old format cannot detect a change there."""
    folder = place(version, damaged)
    done = start(folder, 'ckpt', 'verify', golden.checkpoint(folder, BAD).relative_to(folder))
    wrong = done.returncode != DATA_STATUS and (version != '1.0' or done.returncode != 0)
    said = [line for line in done.stderr.splitlines() if line]
    wrong = wrong or len(said) != (done.returncode != 0)
    return [f'{text}: exit {done.returncode}: {done.stderr}'] if wrong else []


def resume(version, text, damaged):
    folder = place(version, damaged)
    done = start(folder, 'train', 'tiny.yaml', '--training.steps=4', *golden.OPTIONS)
    fell = f'resumed from {golden.checkpoint("", GOOD)} at step {GOOD}' in done.stderr
    warned = done.stderr.count('warning: checkpoint passed over: ')
    fine = done.returncode == 0 and fell and warned == 1
    unused = version == '1.0' and done.returncode == 0 and not warned
    return [] if fine or unused else [f'{text}: exit {done.returncode}: {done.stderr}']


def case(version, make, judge):
    tried, wrong = 0, []
    for text, damaged in make(version):
        tried += 1
        wrong += judge(version, text, damaged)
    print(f'# {tried} of format {version}')
    return wrong if tried else ['nothing was damaged']


if __name__ == '__main__':
    plan = [(crashed, resume), (crashed, verify), (structures, verify), (blocks, verify), (flips, verify)]
    plan += [(some_structures, resume), (blocks, resume)] if LONG else []
    sys.exit(job.run_cases([(f'format {version}: {make.__name__}, {judge.__name__}', case, version, make, judge)
                            for version in golden.VERSIONS for make, judge in plan]))
