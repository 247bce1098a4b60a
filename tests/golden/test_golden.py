#!/usr/bin/env python3
"""Checkpoints of each version of the format that was ever written are read as they were meant, to the bit. Prints TAP."""
import hashlib
import os
import pathlib
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import golden
import job

STEP = 3
STATES = ('model', 'exp_avg', 'exp_avg_sq')
TENSORS = 21
# SHA-256 of the values of all tensors, in the order of the file, by h5py when the file was made.
VALUES = {
    'model': 'ab6caeb79dd707492c3ccc9d984e4291cfb1cc5cc2559a79ea4ccad86d8ecd79',
    'exp_avg': 'c894f7a3006044e41744961596c5e1601fea68af4c5dbccd5a815cbee77bfb6c',
    'exp_avg_sq': '63252c0976cbd5411e299ad3ff6d8b3e32a4e870ff87d38abb2eb6888a2c35fa',
}
INFO = ('step 3, updates 3, samples 36, tokens 288', '21 tensors, 468 elements; for each:', '  lm_head.weight f32 [16,4]')
RESUMED = {4: 2.8194155}  # the loss that follows
HEAD_BYTES = 192  # of a .npy file as sherd writes it


def place(version):
    folder = golden.prepare(f'golden-{version}')
    golden.checkpoint(folder, STEP).write_bytes(golden.read(STEP, version))
    return folder, golden.checkpoint(folder, STEP).relative_to(folder)


def info(folder, path):
    return job.sherd('ckpt', 'info', '--tensors', '--config', path, folder=folder)


def check_info(version):
    folder, path = place(version)
    found = info(folder, path)
    wrong = [] if f'sherd-checkpoint {version},' in found else [f'not of format {version}: {found.splitlines()[0]}']
    wrong += [f'info does not say: {line}' for line in INFO if line not in found]
    said = job.sherd('ckpt', 'verify', path, folder=folder)
    return wrong + ([] if 'all digests match' in said else [said])


def check_values(version):
    folder, path = place(version)
    names = [line.split()[0] for line in info(folder, path).splitlines() if ' f32 [' in line]
    wrong = [] if len(names) == TENSORS else [f'{len(names)} tensors']
    for state in STATES:
        values = hashlib.sha256()
        for name in names:
            job.sherd('ckpt', 'extract', path, name, '--state', state, '-o', 'x.npy', folder=folder)
            values.update((folder / 'x.npy').read_bytes()[HEAD_BYTES:])
        wrong += [] if values.hexdigest() == VALUES[state] else [f'{state}: {values.hexdigest()}']
    return wrong


def check_resume(version):
    """A run goes on from it, and what it saves has the newest version."""
    folder, path = place(version)
    job.sherd('train', 'tiny.yaml', '--training.steps=4', *golden.OPTIONS, folder=folder)
    losses = {step['step']: step['loss'] for step in job.metrics(folder)}
    wrong = job.differ('losses', list(losses.values()), list(RESUMED.values()), 1e-4)
    newest = golden.checkpoint(folder, 4).relative_to(folder)
    return wrong + ([] if f'sherd-checkpoint {golden.VERSIONS[-1]},' in info(folder, newest) else ['saved in an old format'])


def check_unclosed(version):
    """A file whose writer never closed it, which HDF5 notes in byte 11, is refused before HDF5 sees it."""
    folder, path = place(version)
    data = bytearray((folder / path).read_bytes())
    data[11] |= 1
    (folder / path).write_bytes(data)
    done = subprocess.run(job.command(0, ['ckpt', 'info', '--tensors', '--config', path]), capture_output=True, text=True, cwd=folder,
                          env=job.environment(0), timeout=job.SECONDS, check=False)
    wanted = 'was never closed by its writer' if version == '1.0' else 'error: '  # later ones have a digest of it
    return [] if done.returncode == 3 and wanted in done.stderr else [f'status {done.returncode}: {done.stderr}']


if __name__ == '__main__':
    cases = [(f'format {version}: {check.__name__[6:]}', check, version)
             for version in golden.VERSIONS for check in (check_info, check_values, check_resume, check_unclosed)]
    sys.exit(job.run_cases(cases))
