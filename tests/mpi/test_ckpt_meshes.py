#!/usr/bin/env python3
"""A checkpoint has no trace of the mesh: every mesh saves the same file, and every mesh loads it. Prints TAP.

The files of all meshes, written by MPI-IO, directly and in the background, have one SHA-256; one of them is loaded on
every mesh, to the bit. Since all files are the same, this covers every pair of a mesh that saves and a mesh that loads:
with SHERD_LONG=1 29 x 29 of them, all replicate x shard of 1 to 16 ranks. The tensors have prime sizes, and from 12
ranks on there are more shards than blocks of a state.
"""
import hashlib
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job

RANKS = (1, 2, 3, 4, 5, 6, 8, 12, 16) if os.environ.get('SHERD_LONG') else (1, 6)
WAYS = ('mpiio', 'direct', 'async')
PROGRAM = pathlib.Path(os.environ.get('SHERD_BUILDDIR', '.')) / 'tests/mpi/ckpt_meshes'
reference = pathlib.Path('reference.h5').resolve()


def meshes(ranks):
    return [(replicate, ranks // replicate) for replicate in range(1, ranks + 1) if ranks % replicate == 0]


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def start(ranks, folder):
    words = job.command(ranks, [folder, reference])
    words[words.index(os.environ['SHERD'])] = str(PROGRAM)
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=job.environment(ranks),
                          timeout=job.SECONDS)
    return [] if done.returncode == 0 else [f'exit {done.returncode}\n{done.stdout}{done.stderr}']


def case(ranks):
    folder = pathlib.Path(f'ranks-{ranks}').resolve()
    folder.mkdir()
    wrong = start(ranks, folder)
    expected = {f'{replicate}x{shard}-{way}.h5' for replicate, shard in meshes(ranks) for way in WAYS}
    found = {path.name for path in folder.iterdir()}
    if wrong or found != expected:
        return wrong + [f'files: {sorted(found)}']
    if not reference.exists():
        (folder / sorted(found)[0]).rename(reference)
    wrong = [f'{path.name} differs from {reference.name}' for path in folder.iterdir()
             if digest(path) != digest(reference)]
    for path in folder.iterdir():
        path.unlink()
    return wrong


if __name__ == '__main__':
    job.need_launcher()
    cases = [(f'{ranks} ranks: {len(meshes(ranks))} meshes save one file in {len(WAYS)} ways and load it', case, ranks)
             for ranks in RANKS]
    status = job.run_cases(cases)
    if reference.exists():
        print('# SHA-256', digest(reference))
    sys.exit(status)
